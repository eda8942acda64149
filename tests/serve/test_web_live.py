"""`hermes web` in a real Chromium while answers are late and other processes write: what a person reads, typed or opened stays."""

from __future__ import annotations

import shlex
from pathlib import Path
from urllib.parse import quote

import pytest

from hermes_state import SessionDB
from tests.support.browser import Browser
from tests.support.page import Page

MANY = 700
CALL = {"id": "c9", "type": "function", "function": {"name": "terminal", "arguments": "{}"}}


@pytest.fixture(scope="module")
def home(home: Path) -> Path:
    with SessionDB(home / "state.db", transcripts="off", durability="normal") as db:
        db.create_session("long", "cli")
        db.replace_messages(
            "long", [{"role": ("user", "assistant")[n % 2], "content": f"number {n} " + "words " * 30} for n in range(MANY)]
        )  # fmt: skip
    return home


def numbers(browser: Browser) -> list[int]:
    found: list[int] = browser.value(
        "[...document.querySelectorAll('#messages .body')].map(one => Number(one.innerText.match(/number (\\d+)/)[1]))"
    )
    return found


def test_folds_stay_open_and_the_prompt_keeps_its_text_while_others_write(
    browser: Browser, page: Page, home: Path
) -> None:
    with SessionDB(home / "state.db") as db:
        db.create_session("folds", "cli")
        db.append_message("folds", "user", "begin")
        db.append_message("folds", "assistant", "looking", reasoning="I think", tool_calls=[CALL])
    browser.open(page.address + "/s/folds", 1280)
    browser.click("#messages .reasoning summary")
    browser.click("#messages details:not(.reasoning) summary")
    browser.click("#prompt")
    browser.type("half a sentence")
    with SessionDB(home / "state.db") as db:
        db.append_message("folds", "tool", "the output", tool_call_id="c9", tool_name="terminal")
        browser.shows("the output")
        db.append_message("folds", "assistant", "and so it ended")
        browser.shows("and so it ended")
    assert browser.value("[...document.querySelectorAll('#messages details')].every(one => one.open)")
    assert browser.value("document.getElementById('prompt').value") == "half a sentence"
    assert browser.value("document.activeElement.id") == "prompt"
    browser.click("a.brand")
    browser.wait("location.pathname === '/' && !!document.querySelector('.row')")
    browser.click(".row[href='/s/folds']")
    browser.wait("document.getElementById('prompt')?.value === 'half a sentence'")
    browser.open(page.address + "/", 1280)  # the page is left altogether
    browser.open(page.address + "/s/folds", 1280)
    browser.wait("document.getElementById('prompt')?.value === 'half a sentence'")


def test_what_is_typed_while_a_message_is_sent_is_kept(browser: Browser, page: Page, home: Path) -> None:
    with SessionDB(home / "state.db") as db:
        db.create_session("typed", "cli")
        db.append_message("typed", "user", "begin")
    browser.hold("*/api/talk/*")
    browser.open(page.address + "/s/typed", 1280)
    browser.click("#prompt")
    browser.type("the first one")
    browser.key("Enter")
    browser.held()
    browser.key("Enter")  # pressed twice: sent once
    browser.type("the next one")
    browser.release()
    browser.wait("document.querySelector('#messages').innerText.includes('the first one')")
    browser.wait("!document.querySelector('.talk [type=submit]').hidden")
    assert browser.value("document.getElementById('prompt').value").strip() == "the next one"
    with SessionDB(home / "state.db") as db:
        said = [row["content"] for row in db.get_messages("typed") if row["role"] == "user"]
    assert said == ["begin", "the first one"]


def test_a_message_that_could_not_be_sent_is_still_in_the_prompt(home: Path, browser: Browser, page: Page) -> None:
    with SessionDB(home / "state.db") as db:
        db.create_session("unsent", "cli")
        db.append_message("unsent", "user", "begin")
    browser.hold("*/api/talk/*")
    browser.open(page.address + "/s/unsent", 1280)
    browser.click("#prompt")
    browser.type("hello")
    browser.key("Enter")
    for request in browser.held():
        browser.call("Fetch.failRequest", requestId=request, errorReason="ConnectionReset")
    browser.call("Fetch.disable")
    browser.wait("document.getElementById('prompt').value === 'hello'")
    browser.events.clear()  # the error of the browser itself, about the connection


def test_a_jump_during_a_live_update_leaves_no_gap(browser: Browser, page: Page, home: Path) -> None:
    browser.hold("*/api/messages/long?from=*")
    browser.open(page.address + "/s/long", 1280)
    browser.wait(f"document.querySelector('#messages').innerText.includes('number {MANY - 1} ')")
    browser.held()
    browser.key("g")  # while an answer with the last messages is on its way
    browser.release()
    browser.wait("/number 0\\b/.test(document.querySelector('#messages').innerText)")
    with SessionDB(home / "state.db") as db:
        db.append_message("long", "user", f"number {MANY} late")
    browser.wait(f"document.getElementById('status').innerText.includes('of {MANY + 1}')")
    found = numbers(browser)
    assert found == list(range(len(found)))


def test_a_late_answer_does_not_take_the_place_of_the_page_opened_since(browser: Browser, page: Page) -> None:
    browser.hold("*/api/search?*")
    browser.open(page.address + "/", 1280)
    browser.wait("document.querySelectorAll('.row').length >= 5")
    browser.click("#query")
    browser.type("tokenizer")
    browser.held()
    browser.click(".row[href='/s/s1']")
    browser.shows("missing bracket")
    browser.release()
    browser.value("new Promise(done => setTimeout(done, 150))")
    browser.shows("missing bracket")
    assert browser.value("location.pathname === '/s/s1' && !document.querySelector('.hit, button.more')")


def test_an_impossible_time_is_left_out_and_breaks_no_page(browser: Browser, page: Page, home: Path) -> None:
    with SessionDB(home / "state.db") as db:
        db.create_session("times", "cli")
        for at in (1e15, -1e15, 1e12, 0.5):
            db.append_message("times", "user", f"said at {at}", timestamp=at)
    browser.open(page.address + "/s/times", 1280)
    browser.shows("said at 0.5")
    browser.open(page.address + "/", 1280)
    browser.wait("!!document.querySelector(\".row[href='/s/times']\")")
    browser.open(page.address + "/insights", 1280)
    browser.shows("Insights")


def test_the_command_to_resume_is_safe_to_paste_into_a_shell(browser: Browser, page: Page, home: Path) -> None:
    hostile = "x';touch${IFS}pwned;'$(id)"
    with SessionDB(home / "state.db") as db:
        for name in (hostile, "-rf", "plain_1.2"):
            db.create_session(name, "cli")
            db.append_message(name, "user", "hello")
    for name in (hostile, "-rf", "plain_1.2"):
        browser.open(f"{page.address}/s/{quote(name, safe='')}", 1280)
        browser.shows("hello")
        told = browser.value(
            "[...document.querySelectorAll('button')].find(one => one.innerText.startsWith('Resume')).title"
        )
        assert shlex.split(told.removeprefix("Copies the command: ")) == ["hermes", "-r", name]
        assert (told.endswith("hermes -r plain_1.2")) == (name == "plain_1.2")


def test_a_conversation_that_is_trashed_elsewhere_says_so_and_stays_readable(
    browser: Browser, page: Page, home: Path
) -> None:
    with SessionDB(home / "state.db") as db:
        db.create_session("leaving", "cli")
        db.append_message("leaving", "user", "words to keep")
        browser.open(page.address + "/s/leaving", 1280)
        db.append_message("leaving", "user", "and these")
        browser.shows("and these")  # it is told of changes
        assert db.trash_session("leaving")
    browser.shows("in the trash")
    browser.shows("words to keep")
    assert not browser.value("!!document.querySelector('#prompt, .head .actions')")
    browser.events.clear()  # the refusal is in the console, as it should be


def test_an_address_that_is_none_is_said(browser: Browser, page: Page) -> None:
    browser.open(page.address + "/s/%FF", 1280)
    browser.wait("document.querySelector('main [role=alert]')?.innerText.includes('session')")
    browser.events.clear()
