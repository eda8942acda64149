"""Rows about `hermes web`: how soon the page shows something in a real Chromium, at 70,000 messages, and how much it loads.

The rival can't be asked this and takes no part. Times are the browser's own: from the start of the navigation, or from the last
letter typed, until a frame with the rows has been handed to the screen.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.bench import Bench, say
from benchmarks.jobs.common import percentile
from benchmarks.table import Cell, Goal, Row, Section, at_most
from tests.support.browser import Browser
from tests.support.page import Page

MESSAGES, EACH = 70_000, 70
ROUNDS = 15
_BEGAN, _APART = 1.76e9, 9_000.0
_SOURCES = ("cli", "cli", "cli", "telegram", "discord", "claude-code", "web")
_MODELS = ("gpt-5-mini", "claude-sonnet", "qwen3")
_SYLLABLES = [a + b for a in "bdfgklmnprstvz" for b in ("a", "e", "i", "o", "u", "an", "er", "is", "on")]
# The page's own clock: the moment at which a frame with what is waited for was drawn.
_WATCH = """
window.shown = (selector, also) => new Promise(done => {
  const look = () => {
    if (!document.querySelector(selector) || (also && !also())) return requestAnimationFrame(look);
    requestAnimationFrame(() => { const port = new MessageChannel(); port.port1.onmessage = () => done(performance.now()); port.port2.postMessage(0); });
  };
  look();
});
"""


def web(bench: Bench) -> Section:
    from hermes.store.api.session_db import SessionDB

    messages = MESSAGES // 10 if bench.size == "XS" else MESSAGES
    rounds = 5 if bench.size == "XS" else ROUNDS
    words = _vocabulary()
    with tempfile.TemporaryDirectory(dir=bench.cache.home) as folder:
        home = Path(folder, "home")
        say(f"web: {messages:,} messages")
        with SessionDB(home / "state.db", durability="normal", transcripts="off") as db:
            db.import_sessions(_sessions(messages // EACH, words))
            db.catch_up()
        say("web: a browser")
        with Browser() as browser:
            cold = [_first_visit(home, browser) for _ in range(3)]
        with Page(home) as page, Browser() as browser:
            browser.open(page.link, 1280)
            browser.wait("document.querySelectorAll('.row').length > 20")
            browser.call("Page.addScriptToEvaluateOnNewDocument", source=_WATCH)
            first = [_first_rows(browser, page.address + "/", cached=False) for _ in range(rounds)]
            again = [_first_rows(browser, page.address + "/", cached=True) for _ in range(rounds)]
            search = [_search(browser, text) for text in _queries(words)]
            size, transferred = _bytes(browser, page.address + "/")
        ended = _BEGAN + messages // EACH * _APART
        with Page(home, env={"HERMES_NOW": str(ended)}) as page, Browser() as browser:  # all of it is in the last year
            say("web: insights")
            asked = [_answered(page, "/api/insights?days=365") for _ in range(rounds)]
            browser.open(page.link, 1280)
            browser.call("Page.addScriptToEvaluateOnNewDocument", source=_WATCH)
            drawn = [_drawn(browser, page.address + "/insights?days=365", "main figure") for _ in range(rounds)]
    return Section(
        [
            _row(f"web: first rows on the screen at {messages:,} messages, empty browser cache, p50", percentile(first, 0.5), at_most(300, "≤ 300 ms")),
            _row("· the first visit after the start of `hermes web`", percentile(cold, 0.5), at_most(300, "≤ 300 ms")),
            _row("· slowest", max(first)),
            _row("· with what the browser has kept, p50", percentile(again, 0.5)),
            _row("web: insights of a year, the server's answer, p50", percentile(asked, 0.5), at_most(300, "≤ 300 ms")),
            _row("· the plots on the screen, p50", percentile(drawn, 0.5)),
            _row("web: search, from the last letter to the hits on the screen, p50", percentile(search, 0.5), at_most(100, "≤ 100 ms")),
            _row("· slowest", max(search)),
            Row("web: what the first view loads, its data aside, uncompressed", "kB", {"ours": Cell(size / 1e3)}, at_most(120, "≤ 120 kB")),
            Row("· as transferred", "kB", {"ours": Cell(transferred / 1e3)}),
        ]
    )  # fmt: skip


def _row(label: str, milliseconds: float, goal: Goal | None = None) -> Row:
    return Row(label, "ms", {"ours": Cell(milliseconds)}, goal)


def _first_visit(home: Path, browser: Browser) -> float:
    """Milliseconds to the first rows from a server that has answered nothing yet."""
    browser.call("Page.addScriptToEvaluateOnNewDocument", source=_WATCH)
    with Page(home, visit=False) as page:
        browser.open(page.link, 1280)
        return float(browser.value("shown('main .row')"))


def _first_rows(browser: Browser, address: str, *, cached: bool) -> float:
    browser.call("Network.setCacheDisabled", cacheDisabled=not cached)
    return _drawn(browser, address, "main .row")


def _drawn(browser: Browser, address: str, selector: str) -> float:
    """Milliseconds until the page at an address shows such an element."""
    browser.open(address, 1280)
    return float(browser.value(f"shown({selector!r})"))


def _answered(page: Page, path: str) -> float:
    """Milliseconds until the server has answered."""
    began = time.perf_counter()
    assert page.client.get(path).json()["messages"] > 0
    return (time.perf_counter() - began) * 1000


def _search(browser: Browser, text: str) -> float:
    """Milliseconds from the last letter of a query to its hits; the letters before it have been answered already."""
    browser.value("document.activeElement.blur()")
    put = "const box = document.getElementById('query'); box.focus(); box.value = {!r}; box.dispatchEvent(new Event('input'))"
    browser.value(f"(() => {{ {put.format(text[:-1])} }})()")
    browser.wait(
        f"new URLSearchParams(location.search).get('q') === {text[:-1]!r} && !!document.querySelector('.hit, .empty')"
    )
    mark = "document.querySelectorAll('main .hit, main .empty').forEach(one => one.dataset.old = '1')"
    fresh = "'main .hit:not([data-old]), main .empty:not([data-old])'"
    return float(
        browser.value(
            f"(() => {{ {mark}; const from = performance.now(); {put.format(text)}; return shown({fresh}).then(at => at - from); }})()"
        )
    )


def _bytes(browser: Browser, address: str) -> tuple[int, int]:
    """The bytes of the files that the first view loads: as they are, and as they came."""
    browser.call("Network.setCacheDisabled", cacheDisabled=True)
    browser.open(address, 1280)
    browser.wait("document.querySelectorAll('.row').length > 20")
    entries = "[...performance.getEntriesByType('navigation'), ...performance.getEntriesByType('resource')]"
    files = browser.value(
        f"{entries}.filter(one => !new URL(one.name).pathname.startsWith('/api/')).map(one => [one.decodedBodySize, one.transferSize])"
    )
    return sum(one for one, _ in files), sum(one for _, one in files)


# ---------------------------------------------------------------------------------------------- the record


def _vocabulary() -> list[str]:
    chance = random.Random(7)
    return ["".join(chance.choices(_SYLLABLES, k=chance.randint(2, 4))) for _ in range(8_000)]


def _queries(words: list[str]) -> list[str]:
    """Common and rare words, two words, a phrase, a prefix."""
    return [
        words[0], words[3], words[20], words[200], words[2_000], words[7_000], f"{words[1]} {words[40]}",
        f"{words[5]} OR {words[900]}", f'"{words[0]} {words[1]}"', words[60][:4] + "*", "zzzznothing", "how did I do the " + words[9],
    ]  # fmt: skip


def _sessions(count: int, words: list[str]) -> Iterator[dict[str, Any]]:
    """Conversations in words that are as unevenly used as those of a language, a third of the messages from tools."""
    chance = random.Random(1)
    weights = [1 / (rank + 3) for rank in range(len(words))]
    for number in range(count):
        at = _BEGAN + number * _APART
        text = iter(chance.choices(words, weights, k=EACH * 90 + 10))
        source, model = chance.choice(_SOURCES), chance.choice(_MODELS)
        messages: list[dict[str, Any]] = []
        for place in range(EACH):
            said = " ".join(next(text) for _ in range(chance.randint(10, 80)))
            message: dict[str, Any] = {"timestamp": at + place * 20, "content": said}
            message["role"] = ("user", "assistant", "tool", "assistant")[place % 4]
            if message["role"] == "assistant":
                message |= {"model": model, "input_tokens": 900 + place, "output_tokens": 40, "cost_usd": 0.002}
            if place % 4 == 1:
                call = {"id": f"c{place}", "type": "function", "function": {"name": "terminal", "arguments": "{}"}}
                message |= {"tool_calls": [call]}
            elif place % 4 == 2:
                message |= {"tool_call_id": f"c{place - 1}", "tool_name": "terminal"}
            messages.append(message)
        yield {
            "id": f"s{number:05}", "source": source, "started_at": at, "cwd": f"/home/ann/src/project{number % 40}",
            "title": " ".join(next(text) for _ in range(5)) + f" {number}", "model": model,
            "tags": [f"tag{number % 12}"] if number % 5 == 0 else [], "messages": messages,
        }  # fmt: skip
