"""An exported page in a real browser: nothing in it acts, nothing comes from elsewhere, and it fits on every screen."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from hermes_state import SessionDB
from tests.support.browser import Browser
from tests.support.program import run
from tests.support.sizes import some

ATTACK = "<script>document.title='taken'</script><img src=x onerror=\"document.title='taken'\"> [x](javascript:document.title='taken')"
TABLE = "| a | b | c |\n|---|--:|:-:|\n" + "| a rather long cell | 12345.678 | 日本語のテキスト |\n" * 3
CODE = "```python\n" + "value = " + "'" + "x" * 400 + "'\n```"


def picture(width: int, height: int) -> str:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    pixels = zlib.compress(b"".join(b"\0" + b"\x80\x40\x20" * width for _ in range(height)))
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    png = b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")
    return "data:image/png;base64," + base64.b64encode(png).decode()


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("home")
    with SessionDB(home / "state.db") as db:
        db.create_session("s", "cli", model="gpt-4o")
        db.set_session_title("s", f"{ATTACK[:40]} 京都 🛠️")
        db.append_message("s", "system", f"Be careful. {ATTACK}")
        db.append_message("s", "user", f"{ATTACK}\n\nمرحبا، كيف حالك اليوم؟\n\n    kept   spaces 👨‍👩‍👧‍👦 🇯🇵")
        calls = [
            {
                "id": "c",
                "type": "function",
                "function": {"name": "terminal", "arguments": f'{{"command": "{"y" * 300}"}}'},
            }
        ]
        db.append_message("s", "assistant", "", tool_calls=calls, reasoning_content=ATTACK)
        db.append_message("s", "tool", "z" * 2000 + "\n" + "a line of a log\n" * 65_000, tool_name="terminal")
        db.append_message(
            "s",
            "assistant",
            f"# Head\n\n{ATTACK}\n\n{TABLE}\n{CODE}\n\n- أولا\n- ثانيا\n\n![p](https://example.com/p.png)",
        )
        parts = [{"type": "text", "text": "look"}, {"type": "image_url", "image_url": {"url": picture(1600, 40)}}]
        db.append_message("s", "user", parts)
        db.append_message("s", "assistant", "w" * 500)
    file = home / "page.html"
    assert run("sessions", "export", file, "--session-id", "s", home=home).status == 0
    return file


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as one:
        yield one


@pytest.mark.parametrize("width", some([320, 400, 1200], 2))
def test_the_page_is_alone_in_the_world_and_fits(browser: Browser, page: Path, width: int) -> None:
    browser.open(page, width)
    browser.value("for (const one of document.querySelectorAll('details')) one.open = true")
    assert browser.value("document.documentElement.scrollWidth") <= width, "nobody has to scroll sideways"
    assert browser.value("document.scripts.length") == 0
    assert browser.value("document.title") != "taken"
    assert [url for url in browser.asked_for() if not url.startswith(("file:", "data:"))] == []
    assert browser.value("[...document.images].map(one => one.complete && one.naturalWidth)") == [1600]
    assert [
        event for event in browser.events if event.get("method") in ("Log.entryAdded", "Runtime.exceptionThrown")
    ] == []


def test_text_runs_in_its_own_direction_and_looks_as_it_was_typed(browser: Browser, page: Path) -> None:
    browser.open(page, 1200)
    directions = browser.value(
        "[...document.querySelectorAll('article.user .typed')].map(one => getComputedStyle(one).direction)"
    )
    assert directions == ["ltr", "rtl", "ltr", "ltr"]
    assert browser.value("getComputedStyle(document.querySelector('.said ul')).direction") == "rtl"
    assert "    kept   spaces" in browser.value("document.querySelectorAll('article.user .typed')[2].textContent")
    assert browser.value("document.querySelectorAll('.said td').length") == 9
