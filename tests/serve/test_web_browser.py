"""`hermes web` in a real Chromium: each thing a person does, by mouse and by keys; hostile content; accessibility."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from hermes_state import SessionDB
from tests.support.axe import serious
from tests.support.browser import Browser
from tests.support.page import Page, fill
from tests.support.sizes import THOROUGH, size

MANY = 10_000


@pytest.fixture(scope="module")
def home(home: Path) -> Path:
    with SessionDB(home / "state.db", transcripts="off", durability="normal") as db:
        db.create_session("tabs", "cli")
        db.replace_messages("tabs", [{"role": "user", "content": f"as it was {n}"} for n in range(150)])
        db.create_session("long", "cli")
        db.set_session_title("long", "Ten thousand messages")
        db.replace_messages(
            "long", [{"role": ("user", "assistant")[n % 2], "content": f"number {n} " + "words " * (n % 40)} for n in range(MANY)]
        )  # fmt: skip
    return home


@pytest.fixture
def browser(window: Browser, page: Page) -> Iterator[Browser]:
    """A browser that came by the link; at the end, the page has complained about nothing."""
    window.open(page.link, 1280)
    window.wait("document.querySelectorAll('.row').length >= 5")
    yield window
    assert window.problems() == []


# ------------------------------------------------------------------------------------------------ find


def test_find_with_the_keyboard_alone(browser: Browser, page: Page) -> None:
    browser.key("/")
    browser.type("tokenizer")
    browser.wait("document.querySelectorAll('.hit mark').length >= 2")
    assert browser.value("location.search") == "?q=tokenizer"
    browser.key("Enter")
    for _ in range(10):
        if browser.value("document.activeElement.matches('.hit[href^=\"/s/s1\"]')"):
            break
        browser.key("j")
    browser.key("k")
    assert browser.value("document.activeElement.matches('.row[href=\"/s/s1\"]')")
    browser.key("j")
    browser.key("Enter")
    browser.wait("!!document.querySelector('.message.target')")
    assert "tokenizer" in browser.value("document.querySelector('.target').innerText")
    browser.key("Escape")
    browser.wait("document.querySelectorAll('.hit mark').length >= 2")
    assert browser.value("document.getElementById('query').value") == "tokenizer"
    assert browser.value("document.activeElement.matches('.row.on[href=\"/s/s1\"]')")  # where one was
    browser.key("/")
    browser.key("Escape")
    browser.wait("location.search === '' && document.querySelectorAll('.row').length >= 5")


def test_filter_by_chips_and_a_link_to_a_search(browser: Browser, page: Page) -> None:
    browser.click("summary.chip", "Source")
    browser.click(".choices button", "telegram")
    browser.wait("document.querySelectorAll('.row').length === 1")
    assert browser.value("location.search") == "?source=telegram"
    browser.click(".chip.on", "telegram")
    browser.wait("document.querySelectorAll('.row').length >= 5")
    browser.open(page.address + "/?q=tokenizer&folder=/home/ann", 1280)
    browser.wait("document.querySelectorAll('.row').length === 1 && !!document.querySelector('.chip.on')")
    browser.click(".chip.on", "Folder")
    browser.wait("document.querySelectorAll('.row').length === 2")
    browser.open(page.address + "/?q=zebra", 1280)
    browser.shows("No messages match")
    browser.open(page.address + "/?q=which tokenizer did Veronica choose for the parser", 1280)
    browser.shows("Nothing closely matches")
    browser.wait("document.querySelectorAll('.hit').length > 0")


def test_one_conversation_with_many_hits_does_not_hide_the_others(browser: Browser, page: Page) -> None:
    browser.open(page.address + "/?q=number OR tokenizer", 1280)
    browser.wait("['/s/long', '/s/s1', '/s/media'].every(place => document.querySelector(`.row[href='${place}']`))")
    assert browser.value("document.querySelectorAll('.hit[href^=\"/s/long\"]').length") == 3
    browser.click("button.hits", "more hits here")
    browser.wait("document.querySelectorAll('.hit[href^=\"/s/long\"]').length > 50")
    browser.wait(
        "new Set([...document.querySelectorAll('.hit')].map(one => one.href)).size === document.querySelectorAll('.hit').length"
    )


# ------------------------------------------------------------------------------------------------ read


def test_read_code_calls_and_reasoning(browser: Browser, page: Page) -> None:
    browser.call("Browser.grantPermissions", permissions=["clipboardReadWrite", "clipboardSanitizedWrite"])
    browser.open(page.address + "/s/s1", 1280)
    browser.wait("document.querySelectorAll('.message').length === 3")
    assert browser.value("document.querySelectorAll('pre .nb').length") >= 1  # highlighted
    assert browser.value("document.querySelector('.call .state').innerText") == "exit 2"
    assert not browser.value("document.querySelector('.call pre').checkVisibility()")
    browser.click(".call summary")
    browser.wait("document.querySelector('.call .result pre').checkVisibility()")
    assert browser.value("document.querySelector('.call .result pre').innerText").startswith("<h1>out</h1>")
    browser.click(".reasoning summary")
    browser.shows("I should look.")
    assert "1,200 in, 80 out" in browser.value("document.querySelectorAll('.used')[1].innerText")
    browser.click(".body > .code button", "Copy")
    browser.wait("navigator.clipboard.readText().then(text => text.trim() === \"print('<i>')\")")
    browser.click(".head button", "Resume in terminal")
    browser.wait("navigator.clipboard.readText().then(text => text === 'hermes -r s1')")


def test_a_link_to_a_tools_result_opens_its_fold(browser: Browser, page: Page, home: Path) -> None:
    with SessionDB(home / "state.db", read_only=True) as db:
        result = next(row["id"] for row in db.get_messages("s1") if row["role"] == "tool")
    browser.open(f"{page.address}/s/s1#m{result}", 1280)
    browser.wait(f"document.querySelector('#m{result}.target')?.checkVisibility()")


def test_from_a_changed_file_to_the_conversations_that_changed_it_and_back(
    browser: Browser, page: Page, home: Path
) -> None:
    call = {
        "id": "w1",
        "type": "function",
        "function": {"name": "write_file", "arguments": '{"path": "/srv/<b>app.py", "content": "x"}'},
    }
    with SessionDB(home / "state.db") as db:
        db.create_session("files", "cli", cwd="/srv")
        made = db.append_message("files", "assistant", "I write it.", tool_calls=[call])
    browser.open(page.address + "/s/files", 1280)
    browser.click("details.files summary", "Files changed (1)")
    assert browser.value(f"document.querySelector('details.files a.dim').getAttribute('href') === '#m{made}'")
    browser.click("details.files a", "<b>app.py")
    browser.wait("document.querySelectorAll('.row').length === 1 && !!document.querySelector('.chip.on')")
    browser.wait("document.querySelectorAll('.chip').length > 5")  # they come after the rows, in a line of their own
    browser.click(".row", "files")
    browser.wait("location.pathname === '/s/files' && !!document.querySelector('details.files')")


def test_pictures_and_recordings_are_inline(browser: Browser, page: Page) -> None:
    browser.open(page.address + "/s/media", 1280)
    browser.wait("document.querySelector('.message img')?.naturalWidth === 48")
    browser.wait("document.querySelector('audio')?.duration === 1")


def test_walk_the_lineage(browser: Browser, page: Page) -> None:
    browser.open(page.address + "/s/new", 1280)
    browser.wait("[...document.querySelectorAll('.who')].some(one => one.innerText === 'Summary')")
    browser.click(".lineage summary", "Part 2 of 2")
    browser.click(".lineage a", "Another way")
    browser.wait("location.pathname === '/s/branch' && document.querySelector('h1').innerText === 'Another way'")
    browser.click(".steps a", "Branched from")
    browser.wait("location.pathname === '/s/new'")
    browser.click(".steps a", "Previous part")
    browser.wait("location.pathname === '/s/old' && document.querySelectorAll('.message').length === 12")
    browser.click(".steps a", "Next part")
    browser.wait("location.pathname === '/s/new'")


def numbers(browser: Browser) -> list[int]:
    found: list[int] = browser.value(
        "[...document.querySelectorAll('#messages .body')].map(one => Number(one.innerText.match(/number (\\d+)/)[1]))"
    )
    assert found == list(range(found[0], found[0] + len(found)))  # in order, none left out, none twice
    assert len(found) <= 300
    return found


def test_ten_thousand_messages_scroll_and_only_some_are_in_the_page(browser: Browser, page: Page) -> None:
    browser.open(page.address + "/s/long", 1280)
    browser.wait("document.querySelectorAll('.message').length === 100")
    assert numbers(browser)[-1] == MANY - 1
    top = MANY
    while top > MANY - size(450, 3000):
        browser.wheel(-2500)
        first = numbers(browser)[0]
        seen = browser.value(
            "[...document.querySelectorAll('.message')].some(one => { const box = one.getBoundingClientRect(); return box.bottom > 70 && box.top < innerHeight; })"
        )
        assert seen, "the window shows no message"
        top = min(top, first)
    while numbers(browser)[-1] < MANY - 1:
        browser.wheel(4000)
    browser.key("g")
    browser.wait("scrollY === 0 && /number 0\\b/.test(document.querySelector('#messages').innerText)")
    assert numbers(browser)[0] == 0
    browser.key("G")
    browser.wait(f"document.querySelector('#messages').innerText.includes('number {MANY - 1} ')")


def test_what_another_process_writes_appears(browser: Browser, page: Page, home: Path) -> None:
    browser.open(page.address + "/s/branch", 1280)
    browser.shows("going on")
    with SessionDB(home / "state.db") as db:
        db.append_message("branch", "user", "from another process")
        browser.shows("from another process")
        call = {"id": "late", "type": "function", "function": {"name": "terminal", "arguments": "{}"}}
        db.append_message("branch", "assistant", "calling", tool_calls=[call])
        browser.wait("document.querySelector('#messages').lastElementChild.innerText.includes('no result')")
        db.append_message("branch", "tool", "late result", tool_call_id="late", tool_name="terminal")
        browser.wait("document.querySelector('#messages').lastElementChild.innerText.includes('done')")
        first = db.get_messages("branch")[0]["id"]
        db.rewind("branch", first)
    browser.wait("document.querySelectorAll('.message').length === 1")


@pytest.mark.thorough
def test_seven_tabs_and_more_work_and_a_hidden_one_misses_nothing(page: Page, home: Path) -> None:
    with Browser() as browser:
        browser.open(page.link, 1280)
        tabs = []
        for _ in range(8):  # the browser has six connections to a server
            tabs.append(browser.new_tab(page.address + "/s/tabs"))
            browser.wait("document.querySelector('main')?.innerText.includes('as it was 149')")
        browser.show_tab(tabs[0])
        browser.value("scrollTo(0, 0)")
        browser.wait("document.querySelectorAll('.message').length === 150")
        browser.show_tab(tabs[1])
        with SessionDB(home / "state.db") as db:
            db.replace_messages("tabs", [{"role": "user", "content": f"written meanwhile {n}"} for n in range(150)])
        for tab in tabs:
            browser.show_tab(tab)
            browser.shows("written meanwhile 149")
            browser.wait("!document.querySelector('#messages').innerText.includes('as it was')")
        browser.click("#prompt")
        browser.type("say walrus long=400 slow=1")
        browser.click("button", "Send")
        browser.wait("!document.querySelector('#talk .danger').hidden")
        browser.show_tab(tabs[0])
        browser.shows("say walrus")
        for tab in (tabs[-1], tabs[3]):
            browser.show_tab(tab)
            browser.wait("document.querySelector('#messages').lastElementChild.matches('.assistant')")
            browser.wait("document.querySelector('#talk .danger').hidden")
            assert browser.value("document.querySelectorAll('.reply *').length") == 0
        assert browser.problems() == []


def test_eight_tabs_that_are_seen_at_once_share_one_connection(page: Page, home: Path) -> None:
    with SessionDB(home / "state.db") as db:
        for number in range(8):
            db.create_session(f"seen{number}", "cli")
            db.append_message(f"seen{number}", "user", "before")
    with Browser() as browser:
        browser.open(page.link, 1280)
        tabs = []
        for number in range(8):
            tabs.append(browser.new_tab(f"{page.address}/s/seen{number}"))
            browser.call("Emulation.setFocusEmulationEnabled", enabled=True)  # as in a window of its own
            browser.shows("before")
        with SessionDB(home / "state.db") as db:
            for number in range(8):
                db.append_message(f"seen{number}", "user", "after")
        for tab in tabs:  # none is brought to the front
            browser.attach(tab)
            assert browser.value("document.visibilityState") == "visible"
            browser.shows("after")
            assert browser.value(
                "performance.getEntriesByType('resource').every(one => !one.name.includes('/api/events'))"
            )
        browser.click("#prompt")
        browser.type("say walrus")
        browser.click("button", "Send")
        browser.shows("walrus")
        assert browser.problems() == []


def test_a_browser_without_shared_workers_is_told_as_well(page: Page, home: Path) -> None:
    with Browser() as browser:
        browser.call("Page.addScriptToEvaluateOnNewDocument", source="delete window.SharedWorker")
        browser.open(page.link, 390)
        browser.wait("document.querySelectorAll('.row').length >= 5")
        with SessionDB(home / "state.db") as db:
            db.create_session("alone", "cli")
            db.append_message("alone", "user", "seen by one tab alone")
            browser.wait("document.querySelector('.row[href=\"/s/alone\"]')?.innerText.includes('1 message')")
            browser.click(".row[href='/s/alone']")
            browser.wait("document.querySelectorAll('.message').length === 1")
            db.append_message("alone", "user", "and a second one")
            browser.shows("and a second one")
        assert browser.problems() == []


# ------------------------------------------------------------------------------------------------ do


def test_tidy_a_conversation(browser: Browser, page: Page, home: Path) -> None:
    with SessionDB(home / "state.db") as db:
        db.create_session("tidy", "cli")
        for text in ("first", "second", "third"):
            db.append_message("tidy", "user", text)
    browser.open(page.address + "/s/tidy", 1280)
    browser.click(".head button", "Rename")
    browser.wait("document.getElementById('ask').open")
    browser.type("Tidied up")
    browser.key("Enter")
    browser.wait("document.querySelector('h1').innerText === 'Tidied up'")
    browser.click(".head button", "Tag")
    browser.wait("document.getElementById('ask').open")
    browser.type("later")
    browser.click("#ask-ok")
    browser.wait("document.querySelector('.head .tag')?.innerText.includes('#later')")
    browser.click(".head button", "Pin")
    browser.wait("document.querySelector('h1').innerText.startsWith('★')")
    beside = "document.getElementById(one).getBoundingClientRect()"  # what confirms it does not lie over the prompt box
    browser.wait("document.getElementById('toast').innerText.startsWith('Pinned')")
    assert browser.value(
        f"(([toast, box]) => toast.top >= box.bottom || toast.bottom <= box.top)(['toast', 'talk'].map(one => {beside}))"
    )
    browser.click(".head button", "Archive")
    browser.click(".head button", "Unarchive")
    browser.wait("[...document.querySelectorAll('.head button')].some(one => one.innerText === 'Archive')")
    browser.click(".message:nth-child(2) .tools button", "Branch")
    browser.wait("location.pathname !== '/s/tidy' && document.querySelectorAll('.message').length === 2")
    browser.value("history.back()")
    browser.wait("location.pathname === '/s/tidy' && document.querySelectorAll('.message').length === 3")
    browser.click(".head button", "Trash")
    browser.wait("location.pathname === '/' && !document.querySelector('main').innerText.includes('Tidied up\\n')")
    browser.click("#toast button", "Undo")
    browser.wait("location.pathname === '/s/tidy' && document.querySelectorAll('.message').length === 3")
    browser.click(".head button", "Trash")
    browser.wait("location.pathname === '/'")
    browser.click("nav a", "Trash")
    browser.wait("document.querySelectorAll('.trashed').length === 1")
    browser.click(".trashed button", "Restore")
    browser.shows("The trash is empty")
    with SessionDB(home / "state.db", read_only=True) as db:
        row = db.get_session("tidy")
        assert row is not None and row["title"] == "Tidied up" and row["pinned_at"] and db.get_tags("tidy") == ["later"]
    assert [one for one in browser.problems() if "404" not in one] == []
    browser.events.clear()  # a request that was under way when its conversation was trashed finds nothing


def button_with_the_focus(browser: Browser, text: str) -> None:
    browser.wait(f"document.activeElement.innerText === {text!r}")


def test_the_focus_stays_and_every_change_can_be_undone(browser: Browser, page: Page, home: Path) -> None:
    with SessionDB(home / "state.db") as db:
        db.create_session("undone", "cli")
        db.append_message("undone", "user", "words")
    browser.open(page.address + "/s/undone", 1280)
    for do, undo in (("Pin", "Unpin"), ("Archive", "Unarchive")):
        browser.click(".head button", do)
        button_with_the_focus(browser, undo)
        browser.wait("!!document.querySelector('#toast .undo')")
        browser.key("u")
        button_with_the_focus(browser, do)
    browser.click(".head button", "Rename")
    browser.wait("document.getElementById('ask').open")
    browser.type("The parser")  # another conversation is called so
    browser.key("Enter")
    browser.wait("document.getElementById('ask-problem').innerText.includes('already in use')")
    assert (
        browser.value("document.getElementById('ask').open && document.getElementById('ask-value').value")
        == "The parser"
    )
    browser.type(", again")
    browser.click("#ask-ok")
    browser.wait(
        "document.querySelector('h1').innerText === 'The parser, again' && !document.getElementById('ask').open"
    )
    button_with_the_focus(browser, "Rename")
    browser.click("#toast button", "Undo")
    browser.wait("document.querySelector('h1').innerText === 'words'")
    browser.events.clear()  # the refusal is in the console, as it should be


def test_escape_goes_up_one_level_and_never_out_of_the_page(browser: Browser, page: Page) -> None:
    browser.open(page.address + "/?q=tokenizer&source=cli", 1280)
    browser.click(".hit", "tokenizer")
    browser.wait("location.pathname === '/s/s1' && !!document.getElementById('prompt')")
    browser.click("#prompt")
    browser.key("Escape")
    assert browser.value("location.pathname") == "/s/s1"  # out of the field first
    for search in ("?q=tokenizer&source=cli", "?source=cli", "", ""):
        browser.key("Escape")
        browser.wait(
            f"location.pathname === '/' && location.search === {search!r} && !!document.querySelector('main .row')"
        )


def test_walk_from_conversation_to_conversation(browser: Browser, page: Page, home: Path) -> None:
    browser.open(page.address + "/?source=cli", 1280)
    browser.wait("document.querySelectorAll('.row').length >= 4")
    places = browser.value("[...document.querySelectorAll('.row')].map(one => one.pathname)")
    browser.click(f".row[href='{places[0]}']")
    browser.wait("!!document.querySelector('#side [aria-current=page]')")
    for key, place in (("]", places[1]), ("]", places[2]), ("[", places[1])):
        browser.key(key)
        browser.wait(
            f"location.pathname === {place!r} && document.querySelector('#side [aria-current=page]').pathname === {place!r}"
        )
    browser.click("#side .other[href='" + places[3] + "']")
    browser.wait(f"location.pathname === {places[3]!r}")
    with SessionDB(home / "state.db") as db:
        db.set_session_title(places[0][3:], "Renamed beside")
    browser.wait("document.getElementById('side').innerText.includes('Renamed beside')")
    with SessionDB(home / "state.db") as db:
        db.set_session_title(places[3][3:], "Renamed above")
    browser.wait("document.querySelector('h1').innerText.includes('Renamed above')")


def test_the_list_is_live_and_the_pinned_ones_come_first(browser: Browser, page: Page, home: Path) -> None:
    with SessionDB(home / "state.db") as db:
        db.create_session("live", "cli")
        db.append_message("live", "user", "just begun elsewhere")
        browser.shows("just begun elsewhere")
        browser.value("document.querySelector('.row[href=\"/s/live\"]').focus()")
        db.set_session_title("live", "Now it has a title")
        browser.wait("document.activeElement.innerText.includes('Now it has a title')")
        db.append_message("live", "assistant", "an answer")
        browser.wait("document.querySelector('.row[href=\"/s/live\"]').innerText.includes('2 messages')")
        db.pin_session("media")
        places = "[...document.querySelectorAll('.row')].map(one => one.pathname)"
        browser.wait(f"{places}.indexOf('/s/media') < {places}.indexOf('/s/live')")
        db.pin_session("media", False)
        db.trash_session("live")
        browser.wait(f"!{places}.includes('/s/live') && !document.querySelector('.row[href=\"/s/media\"] .star')")


def test_titles_tags_and_folders_are_found_before_messages(browser: Browser, page: Page) -> None:
    browser.key("/")
    browser.type("hostile")
    browser.wait("document.querySelector('.titled .row')?.pathname === '/s/hostile'")
    assert browser.value("document.querySelector('.group').innerText") == "Conversations"
    browser.key("Escape")
    browser.type("parser")
    browser.click(".suggested a", "src/parser")
    browser.wait(
        "location.search === '?folder=%2Fhome%2Fann%2Fsrc%2Fparser' && document.querySelectorAll('.row').length === 1"
    )
    browser.open(page.address + "/?q=work", 1280)
    browser.click(".suggested a", "work")
    browser.wait("location.search === '?tag=work'")


# ------------------------------------------------------------------------------------------------ talk


def test_talk_in_a_new_conversation_and_go_on(browser: Browser, page: Page, home: Path) -> None:
    browser.key("n")
    browser.wait("document.activeElement.id === 'prompt'")
    browser.type("hello there")
    browser.key("Enter")
    browser.wait("location.pathname.startsWith('/s/') && document.querySelectorAll('#messages .message').length === 2")
    assert browser.value("document.querySelectorAll('#messages .body')[1].innerText.trim()") == "echo: hello there"
    browser.wait("!document.querySelector('.talk .primary').hidden && !document.querySelector('.streaming')")
    browser.click("#prompt")
    browser.type("long=3000 slow=60")
    browser.key("Enter")
    browser.wait("(document.querySelector('.streaming')?.innerText || '').length > 40")
    browser.click(".talk button", "Stop")
    browser.wait("document.querySelectorAll('.message').length === 4 && !document.querySelector('.streaming')")
    assert browser.value("document.querySelectorAll('.message')[3].innerText.includes('stopped')")
    session_id = browser.value("location.pathname.slice(3)")
    with SessionDB(home / "state.db", read_only=True) as db:
        assert [row["role"] for row in db.get_messages(session_id)] == ["user", "assistant"] * 2


def test_a_dangerous_command_is_asked_about_in_the_page(browser: Browser, page: Page, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    for yes in (False, True):
        browser.open(page.address + "/new", 1280)
        browser.wait("document.activeElement.id === 'prompt'")
        browser.type(f'call=terminal {{"command": "rm -rf {tmp_path}/a"}}')
        browser.key("Enter")
        browser.wait("document.querySelector('[role=alertdialog]')?.innerText.includes('rm -rf')")
        assert (tmp_path / "a").exists()
        browser.wait("document.activeElement.innerText === 'Decline'")  # Enter alone allows nothing
        if yes:
            browser.open(browser.value("location.href"), 390)  # a page that is loaded again is asked again
        browser.click("[role=alertdialog] button", "Allow" if yes else "Decline")
        browser.wait(
            "document.querySelectorAll('.message').length === 3 && !document.querySelector('.reply').innerText"
        )
        browser.shows("the tool said")
        assert (tmp_path / "a").exists() is not yes


def test_another_process_is_answering(browser: Browser, page: Page, home: Path) -> None:
    with SessionDB(home / "state.db") as db:
        db.take_turn("old", "elsewhere:1:x:telegram", 60.0)
        token = db.take_turn("new", "elsewhere:1:x:telegram", 60.0)
        browser.open(page.address + "/s/new", 1280)
        browser.shows("(telegram) is answering here")
        browser.click("#prompt")
        browser.type("me too")
        browser.key("Enter")
        browser.shows("try again when it is done")
        assert browser.value("document.getElementById('prompt').value") == "me too"
        db.release_lease("session:new", token)
    browser.events.clear()  # the refusal is in the console, as it should be


# ------------------------------------------------------------------------------------------------ look


@pytest.mark.parametrize(("width", "dark", "turn"), [(1280, False, 0), (390, True, 1)])
def test_every_page_fits_and_is_accessible(browser: Browser, page: Page, width: int, dark: bool, turn: int) -> None:
    places = (
        ("/", ".row"), ("/?q=tokenizer", ".hit"), ("/s/s1", ".message"), ("/s/media", "audio"), ("/s/new", ".lineage"),
        ("/s/hostile", ".message"), ("/insights", "figure svg"), ("/new", "#prompt"), ("/trash", "h1"), ("/s/nothing", "[role=alert]"),
    )  # fmt: skip
    for place, ready in places if THOROUGH else places[turn::2]:
        browser.open(page.address + place, width, dark=dark)
        browser.wait(f"!!document.querySelector('main {ready}, main{ready}')")
        browser.value("document.querySelectorAll('main details').forEach(one => { one.open = true; })")
        assert browser.value("document.documentElement.scrollWidth <= innerWidth"), place
        assert serious(browser) == [], place
    browser.events.clear()  # the last page is an error


# ------------------------------------------------------------------------------------------------ hostile


def test_hostile_content_is_text_and_asks_nobody_for_anything(browser: Browser, page: Page) -> None:
    for place in ("/", "/?q=window", "/s/hostile"):
        browser.open(page.address + place, 1280)
        browser.wait("document.querySelectorAll('.row, .message').length >= 1")
        browser.value("document.querySelectorAll('details').forEach(one => { one.open = true; })")
        assert browser.value("window.hacked === undefined") is True
        assert all(url.startswith((page.address, "data:", "blob:")) for url in browser.asked_for()), browser.asked_for()
    assert "<script>window.hacked = 1</script>" in browser.value("document.querySelector('.message').innerText")
    assert browser.value("[...document.querySelectorAll('main script, main iframe, main svg, main img')].length") == 0


def test_a_page_of_another_origin_reads_nothing_and_does_nothing(browser: Browser, page: Page, home: Path) -> None:
    tries = f"""
      const base = {page.address!r}, got = [];
      const note = (name, one) => one.then(value => got.push([name, value]), () => got.push([name, null]));
      window.done = Promise.all([
        note("read", fetch(base + "/api/sessions", {{credentials: "include"}}).then(a => a.text())),
        note("opaque", fetch(base + "/api/sessions", {{credentials: "include", mode: "no-cors"}}).then(a => a.text())),
        note("post", fetch(base + "/api/do/pin/s1", {{method: "POST", credentials: "include", mode: "no-cors", body: "{{}}"}}).then(a => a.text())),
        note("json", fetch(base + "/api/do/pin/s1", {{method: "POST", credentials: "include", headers: {{"content-type": "application/json"}}, body: "{{}}"}}).then(a => a.text())),
        note("talk", fetch(base + "/api/talk", {{method: "POST", credentials: "include", mode: "no-cors", body: JSON.stringify({{text: "evil"}})}}).then(a => a.text())),
        note("live", new Promise((yes, no) => {{ const s = new EventSource(base + "/api/events?session=s1", {{withCredentials: true}}); s.onmessage = e => yes(e.data); s.onerror = no; }})),
        note("image", new Promise((yes, no) => {{ const i = new Image(); i.onload = () => yes("shown"); i.onerror = no; i.src = base + "/static/icon.svg"; }})),
        note("script", new Promise((yes, no) => {{ const s = document.createElement("script"); s.onload = () => yes("run"); s.onerror = no; s.src = base + "/static/app.js"; document.head.append(s); }})),
        note("frame", new Promise(yes => {{ const f = document.createElement("iframe"); f.onload = () => {{ let text = null; try {{ text = f.contentDocument?.body?.innerText || null; }} catch {{}} yes(text); }}; f.src = base + "/"; document.body.append(f); }})),
      ]).then(() => got);
      const form = document.createElement("form"); form.method = "post"; form.target = "other"; form.action = base + "/api/do/pin/s1";
      const other = document.createElement("iframe"); other.name = "other"; document.body.append(other, form); form.submit();
    """

    class Evil(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = b"<!doctype html><body></body>"
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Evil)  # another port: the same site, so that cookies are sent
    thread = threading.Thread(target=partial(server.serve_forever, 0.05), daemon=True)
    thread.start()
    try:
        browser.open(f"http://127.0.0.1:{server.server_port}/", 1280)
        browser.value(f"(() => {{ {tries} }})()")
        found = dict(browser.value("window.done"))
    finally:
        server.shutdown()
        server.server_close()
    assert set(found) == {"read", "opaque", "post", "json", "talk", "live", "image", "script", "frame"}
    assert not any(found.values()), found
    with SessionDB(home / "state.db", read_only=True) as db:
        row = db.get_session("s1")
        assert row is not None and row["pinned_at"] is None
        assert db.search_messages("evil", ["web"]) == []
    browser.events.clear()  # the browser has complained about every single try


# ------------------------------------------------------------------------------------------------ how many


def test_the_password_is_asked_for_and_lets_in(window: Browser, tmp_path: Path) -> None:
    fill(tmp_path)
    (tmp_path / "config.yaml").write_text("web: {password: correct horse battery staple}\n")
    with Page(tmp_path, visit=False) as page:
        window.open(page.address + "/s/s1", 390, dark=True)
        for password in ("a wrong one", "correct horse battery staple"):
            assert serious(window) == []
            window.click("#password")
            window.type(password)
            window.key("Enter")
            window.wait(
                "!!document.querySelector('.message') || document.querySelector('[role=alert]').innerText !== ''"
            )
        window.shows("tokenizer")
        assert window.value("location.pathname") == "/s/s1"
    window.events.clear()  # the refusals are in the console, as they should be


def test_what_is_read_only_offers_no_change(window: Browser, tmp_path: Path) -> None:
    fill(tmp_path)
    with SessionDB(tmp_path / "state.db") as db:
        assert db.trash_session("media")
    with Page(tmp_path, "--read-only") as page:
        window.open(page.link, 390)
        window.wait("document.querySelectorAll('.row').length >= 3")
        for place, there in (("/s/s1", ".message"), ("/trash", ".trashed"), ("/new", ".row")):
            window.open(page.address + place, 390)
            window.wait(f"!!document.querySelector('{there}')")
            offered = window.value("[...document.querySelectorAll('main button')].map(one => one.textContent)")
            assert set(offered) <= {"Resume in terminal", "Copy"}, (place, offered)
        assert window.problems() == []


def test_a_store_without_conversations(window: Browser, tmp_path: Path) -> None:
    with Page(tmp_path / "home") as page:
        window.open(page.link, 390)
        window.shows("No conversations yet")
        assert not window.value("document.querySelector('#chips').checkVisibility()")  # there is nothing to narrow
        assert serious(window) == []
        window.open(page.address + "/insights", 390)
        window.shows("No conversations in this time")
        window.open(page.address + "/?q=anything", 390)
        window.shows("No messages match")
        assert window.problems() == []


def test_ten_thousand_conversations(window: Browser, tmp_path: Path) -> None:
    many = size(2_000, 10_000)
    with SessionDB(tmp_path / "home" / "state.db", transcripts="off", durability="normal") as db:
        db.import_sessions(
            {
                "id": f"n{number:05}", "source": "cli", "started_at": 1_700_000_000.0 + number, "title": f"Conversation {number}",
                "messages": [{"role": "user", "content": f"question {number} about zebras", "timestamp": 1_700_000_000.0 + number}],
            }
            for number in range(many)
        )  # fmt: skip
    with Page(tmp_path / "home") as page:
        window.open(page.link, 1280)
        window.wait("document.querySelectorAll('.row').length >= 100")
        assert window.value("document.querySelector('.row .title').innerText") == f"Conversation {many - 1}"
        for _ in range(3):
            before = window.value("document.querySelectorAll('.row').length")
            window.value("scrollTo(0, document.documentElement.scrollHeight)")
            window.wait(f"document.querySelectorAll('.row').length > {before}")
        window.key("/")
        window.type(f'"question {many // 2} about"')
        window.wait(f"document.querySelector('.row .title')?.innerText === 'Conversation {many // 2}'")
        assert window.problems() == []
