"""`hermes web` in a real Chromium: how a reply looks while it is written and afterwards, and everything the prompt box does."""

from __future__ import annotations

import base64
import re
from itertools import pairwise
from pathlib import Path

import pytest

from hermes_state import SessionDB
from tests.support.axe import serious
from tests.support.browser import Browser
from tests.support.echo import Echo
from tests.support.page import Page, png
from tests.support.sizes import some

# What the model says back: everything Markdown has, in pieces of forty characters.
TEXT = r"""hello slow=8

## A heading

Some **bold** words, `code`, a formula $x^2 + y^2$ and https://example.com/a.

$$
\frac{1}{2}
$$

- [x] done
- [ ] open

| left | right |
|:-----|------:|
| 1 | 2 |

```python
def one():
    return 1
```

```mermaid
flowchart LR
  A --> B
```

שלום `code(x)` עולם

The end of it."""


@pytest.fixture(scope="module")
def model(model: Echo) -> Echo:
    model.models = ["echo", "other"]
    return model


@pytest.fixture(scope="module")
def window(window: Browser) -> Browser:
    window.call("Browser.grantPermissions", permissions=["clipboardReadWrite", "clipboardSanitizedWrite"])
    return window


def begin(browser: Browser, page: Page, text: str, width: int = 1280) -> None:
    browser.open(page.address + "/new", width)
    browser.wait("document.activeElement.id === 'prompt'")
    browser.type(text)
    browser.key("Enter")


def over(browser: Browser, count: int) -> None:
    """Wait until the turn is over and so many messages are shown."""
    browser.wait(
        f"document.querySelectorAll('#messages > .message').length === {count} && !document.querySelector('.reply *')"
        " && !document.querySelector('.talk [type=submit]').hidden"
    )


def copied(browser: Browser, text: str) -> None:
    browser.wait(f"navigator.clipboard.readText().then(text => text.trim() === {text!r})")


# ------------------------------------------------------------------------------------------------ the reply


@pytest.mark.parametrize("width", some([390, 1280], 1))
def test_a_reply_has_its_form_while_it_is_written_and_nothing_moves_at_its_end(
    browser: Browser, page: Page, width: int
) -> None:
    begin(browser, page, TEXT, width)
    browser.wait("location.pathname.startsWith('/s/') && !!document.querySelector('.streaming h2')")
    browser.value(
        "window.seen = []; (function look() {"
        " const one = document.querySelector('.reply > .message.assistant') || document.querySelector('#messages > .message.assistant');"
        " const last = one?.querySelector('.body').lastElementChild;"
        " if (last) seen.push({ written: !!one.closest('.reply'), top: Math.round(one.getBoundingClientRect().top + scrollY),"
        " height: one.offsetHeight, page: document.documentElement.scrollHeight, text: last.textContent,"
        " both: document.querySelectorAll('.message.assistant').length > 1 });"
        " requestAnimationFrame(look); })()"
    )
    for selector in ("a[target]", "math", ".task-list-item input:checked", "td.right", ".code .k"):
        browser.wait(f"!!document.querySelector('.streaming {selector}')")
    over(browser, 2)
    seen = browser.wait("seen.some(one => !one.written) && seen")
    assert not any(one["both"] for one in seen), "the reply was shown twice"
    assert len({one["top"] for one in seen}) == 1, "the reply moved"
    last = [one for one in seen if one["written"] and one["text"].endswith("The end of it.")]
    first = next(one for one in seen if not one["written"])
    if last:  # the last piece was drawn before the end
        assert abs(last[-1]["height"] - first["height"]) <= 1 and abs(last[-1]["page"] - first["page"]) <= 1
    heights = [one["height"] for one in seen]
    assert all(later >= earlier - 2 for earlier, later in pairwise(heights)), heights


def test_there_is_a_sign_of_life_before_the_server_has_answered(browser: Browser, page: Page) -> None:
    browser.hold("*/api/talk*")
    begin(browser, page, "hello there")
    browser.held()  # the answer to the message is still on its way
    assert browser.value("document.querySelector('.reply .user').innerText.includes('hello there')")
    assert browser.value("document.querySelector('.reply .waiting').checkVisibility()")
    browser.release()
    browser.wait("location.pathname.startsWith('/s/')")
    over(browser, 2)


def test_what_a_reply_is_made_of(browser: Browser, page: Page) -> None:
    begin(browser, page, TEXT.replace(" slow=8", ""))
    browser.wait("location.pathname.startsWith('/s/')")
    over(browser, 2)
    body = "document.querySelectorAll('#messages .body')[1]"
    assert browser.value(f"getComputedStyle({body}.querySelector('td.right')).textAlign") == "right"
    assert browser.value(f"{body}.querySelector('math').getBoundingClientRect().width") > 20
    # "Copy" lies beside the code, not over it
    browser.value(f"window.code = {body}.querySelector('.code'); code.scrollIntoView()")
    assert browser.value(
        "code.querySelector('button').getBoundingClientRect().bottom <= code.querySelector('pre').getBoundingClientRect().top"
    )
    browser.click(".code button", "Copy")
    copied(browser, "def one():\n    return 1")
    # in a paragraph that is written from right to left, code is not
    at = f"[...{body}.querySelectorAll('p')].find(one => one.textContent.includes('שלום'))"
    assert browser.value(f"getComputedStyle({at}.querySelector('code')).direction") == "ltr"
    assert browser.value(
        f"(() => {{ const range = document.createRange(); range.selectNodeContents({at}); return innerWidth / 2 < range.getBoundingClientRect().left; }})()"
    )
    # a diagram is text; its link carries it behind the #, and the page itself asks for nothing
    diagram = browser.value(f"{body}.querySelector('.bar a').href")
    assert re.match(r"https://mermaid\.live/edit#", diagram)
    assert "flowchart LR" in base64.b64decode(diagram.partition("base64:")[2]).decode()
    assert all(url.startswith(page.address) for url in browser.asked_for())
    browser.click("#messages .assistant .tools button", "Copy")
    copied(browser, "echo: " + TEXT.replace(" slow=8", ""))
    assert serious(browser) == []


def test_times_stand_beside_dates(browser: Browser, page: Page, home: Path) -> None:
    with SessionDB(home / "state.db") as db:
        db.create_session("old-times", "cli")
        db.append_message("old-times", "user", "long ago", timestamp=1_700_000_000.0)
    browser.open(page.address + "/s/old-times", 1280)
    browser.shows("long ago")
    shown = browser.value("document.querySelector('#messages time').innerText")
    assert "2023" in shown and re.search(r"\d\d?:\d\d", shown)


# ------------------------------------------------------------------------------------------------ the prompt


def test_a_draft_is_kept_for_each_conversation_until_it_is_sent(browser: Browser, page: Page) -> None:
    for place, text in (("/s/s1", "half a thought"), ("/new", "another")):
        browser.open(page.address + place, 1280)
        browser.click("#prompt")
        browser.type(text)
    for place, text in (("/s/s1", "half a thought"), ("/new", "another"), ("/s/media", "")):
        browser.open(page.address + place, 1280)
        browser.wait("!!document.getElementById('prompt')")
        assert browser.value("document.getElementById('prompt').value") == text
    browser.open(page.address + "/new", 1280)
    browser.click("#prompt")
    browser.key("Enter")
    browser.wait("location.pathname.startsWith('/s/')")
    over(browser, 2)
    browser.open(page.address + "/new", 1280)
    browser.wait("document.activeElement.id === 'prompt'")
    assert browser.value("document.getElementById('prompt').value") == ""


def test_edit_a_message_and_send_it_in_a_branch(browser: Browser, page: Page, home: Path) -> None:
    begin(browser, page, "the *first* question")
    browser.wait("location.pathname.startsWith('/s/')")
    over(browser, 2)
    old = browser.value("location.pathname")
    browser.click("#prompt")
    browser.type("a draft")
    browser.click("#messages .user .tools button", "Edit")
    browser.wait("document.getElementById('prompt').value === 'the *first* question'")
    browser.click(".editing button", "Cancel")
    assert browser.value("document.getElementById('prompt').value") == "a draft"
    browser.click("#messages .user .tools button", "Edit")
    browser.wait("document.getElementById('prompt').value === 'the *first* question'")
    browser.type("!!")
    browser.key("Enter")
    browser.wait(f"location.pathname.startsWith('/s/') && location.pathname !== {old!r}")
    over(browser, 2)
    browser.shows("echo: the first question!!")
    with SessionDB(home / "state.db", read_only=True) as db:
        assert db.get_messages(old[3:])[0]["content"] == "the *first* question"


def test_regenerate_the_last_reply_and_bring_the_earlier_one_back(browser: Browser, page: Page) -> None:
    begin(browser, page, "tell me")
    browser.wait("location.pathname.startsWith('/s/')")
    over(browser, 2)
    first = browser.value("document.querySelector('#messages').lastElementChild.id")
    browser.click("#messages .assistant .tools button", "Regenerate")
    browser.wait(f"document.querySelector('#messages').lastElementChild.id !== {first!r}")
    over(browser, 2)
    assert browser.value("document.querySelectorAll('#messages .again').length") == 1
    browser.click(".undone summary", "1 message undone")
    browser.wait(f"document.querySelector('.undone .message')?.id === {first!r}")
    browser.click(".hint > button", "Bring back")
    browser.wait(f"document.querySelector('#messages').lastElementChild.id === {first!r}")


def test_a_turn_that_failed_can_be_tried_again(browser: Browser, page: Page, model: Echo) -> None:
    model.refuses["echo"] = 401
    begin(browser, page, "no key yet")
    browser.wait("!!document.querySelector('.problem button')")
    del model.refuses["echo"]
    browser.click(".problem button", "Try again")
    over(browser, 2)
    browser.shows("echo: no key yet")


def test_choose_the_model_of_a_conversation(browser: Browser, page: Page, home: Path, model: Echo) -> None:
    choose = "(() => { const box = document.querySelector('.talk select'); box.value = NAME; box.dispatchEvent(new Event('change')); })()"
    browser.open(page.address + "/new", 1280)
    browser.wait("!document.querySelector('.talk select').hidden")
    browser.value(choose.replace("NAME", "'other'"))
    browser.click("#prompt")
    browser.type("who are you")
    browser.key("Enter")
    browser.wait("location.pathname.startsWith('/s/')")
    over(browser, 2)
    assert "other" in {one["model"] for one in model.requests if "who are you" in str(one["messages"])}
    browser.wait("document.querySelector('.talk select').value === 'other'")
    browser.value(choose.replace("NAME", "'echo'"))
    shows_status = "document.getElementById('toast').innerText.includes('echo answers here')"
    browser.wait(shows_status)
    with SessionDB(home / "state.db", read_only=True) as db:
        assert not db.chosen_model(browser.value("location.pathname.slice(3)"))


def test_files_are_dropped_pasted_or_chosen(browser: Browser, page: Page, tmp_path: Path) -> None:
    (tmp_path / "chosen.txt").write_text("chosen words")
    browser.open(page.address + "/new", 1280)
    browser.wait("document.activeElement.id === 'prompt'")
    picture = base64.b64encode(png()).decode()
    browser.value(f"window.bytes = Uint8Array.from(atob({picture!r}), sign => sign.charCodeAt(0))")
    for kind, target, name in (("drop", ".talk", "dropped.png"), ("paste", "#prompt", "pasted.png")):
        field = "dataTransfer" if kind == "drop" else "clipboardData"
        browser.value(
            f"(() => {{ const data = new DataTransfer(); data.items.add(new File([bytes], {name!r}, {{type: 'image/png'}}));"
            f" const event = new Event({kind!r}, {{bubbles: true, cancelable: true}});"
            f" Object.defineProperty(event, {field!r}, {{value: data}}); document.querySelector({target!r}).dispatchEvent(event); }})()"
        )
    root = browser.call("DOM.getDocument")["root"]["nodeId"]
    node = browser.call("DOM.querySelector", nodeId=root, selector=".talk input[type=file]")["nodeId"]
    browser.call("DOM.setFileInputFiles", nodeId=node, files=[str(tmp_path / "chosen.txt")])
    browser.wait("document.querySelectorAll('.talk .files li').length === 3")
    browser.click(".talk .files li:nth-child(2) button")
    browser.wait("document.querySelectorAll('.talk .files li').length === 2")
    assert serious(browser) == []
    browser.type("look at these")
    browser.key("Enter")
    browser.wait("location.pathname.startsWith('/s/')")
    over(browser, 2)
    browser.wait("document.querySelector('#messages .user img')?.naturalWidth === 48")
    assert browser.value("document.querySelector('#messages .user img').alt") == "dropped.png"
    browser.click("#messages .user .output summary", "chosen.txt")
    browser.shows("chosen words")


def test_hostile_text_is_harmless_while_it_is_written(browser: Browser, page: Page) -> None:
    hostile = (
        r"slow=1 $\text{<img src=x onerror=window.hacked=1>}$ $\href{javascript:window.hacked=2}{x}$ <img src=x onerror=window.hacked=3>"
        '\n\n```mermaid\nclick A href "javascript:window.hacked=4"\n```\n\n[a](javascript:window.hacked=5) javascript:window.hacked=6'
        "\n\n- [ ] <script>window.hacked=7</script>\n\n|a|\n|--:|\n|<b onclick=window.hacked=8>x</b>|"
    )
    begin(browser, page, hostile)
    browser.wait("location.pathname.startsWith('/s/')")
    over(browser, 2)
    browser.value(
        "document.querySelectorAll('#messages a').forEach(one => one.dispatchEvent(new MouseEvent('mouseover')))"
    )
    assert browser.value("window.hacked === undefined") is True
    assert (
        browser.value("[...document.querySelectorAll('#messages :is(script, img, iframe, svg, [style])')].length") == 0
    )
    assert browser.value("[...document.querySelectorAll('#messages a')].every(one => /^https?:/.test(one.href))")
    assert all(url.startswith(page.address) for url in browser.asked_for())
