"""Text for notifications, and settings that can't work: no house is needed for these."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes.errors import PlatformRefused, PlatformUnreachable
from hermes.gateway.events import Chat
from hermes.gateway.platforms.homeassistant import HomeAssistant, plain, without_html
from tests.support.markdown import MARKDOWN


def test_plain_text_keeps_what_markdown_means() -> None:
    text = (
        "# Plan\n\nGo **now**, see [the map](https://m.org/a).\n\n- one\n- two\n  - inner\n\n1. first\n2. second\n\n"
        "| a | b |\n|---|---|\n| 1 | 2 |\n\n```python\nprint('x')\n```\n\nDone with `it`."
    )
    assert plain(text) == (
        "Plan\n\nGo now, see the map (https://m.org/a).\n\n- one\n- two\n  - inner\n\n1. first\n2. second\n\n"
        "a | b\n1 | 2\n\nprint('x')\n\nDone with it."
    )


@given(MARKDOWN)
def test_any_text_has_a_plain_form_that_can_be_sent(text: str) -> None:
    assert plain(text).encode().decode() == plain(text)


@given(st.text(alphabet=st.characters(categories=["L", "N"]), min_size=1))
def test_words_without_marks_stay_as_they_are(text: str) -> None:
    assert plain(text) == text == without_html(text)


@given(MARKDOWN)
def test_no_html_and_no_picture_is_left_for_the_page(text: str) -> None:
    shown = without_html(text)
    assert not re.search(r"<[A-Za-z/!?]", shown) and "![" not in shown
    assert shown.replace("\u200b", "") == text.encode("utf-8", "replace").decode().replace("\u200b", "")


GOOD: dict[str, Any] = {"url": "http://127.0.0.1:1", "token": "secret-token"}


@pytest.mark.parametrize(
    "change, word",
    [
        ({"url": ""}, "url"),
        ({"url": "homeassistant.local:8123"}, "url"),
        ({"token": ""}, "token"),
        ({"event_type": "same", "reply_event": "same"}, "differ"),
        ({"notify_service": "mobile_app_phone"}, "notify_service"),
        ({"ca_file": "/nowhere.pem"}, "ca_file"),
    ],
)
def test_settings_that_can_not_work_are_refused_by_name(change: dict[str, Any], word: str) -> None:
    with pytest.raises(PlatformRefused, match=word) as caught:
        asyncio.run(HomeAssistant({**GOOD, **change}, Path("/nowhere")).check())
    assert "secret-token" not in str(caught.value)


def test_nobody_at_home_is_unreachable() -> None:
    with pytest.raises(PlatformUnreachable, match="127.0.0.1:1"):
        asyncio.run(HomeAssistant(GOOD, Path("/nowhere")).check())
    with pytest.raises(PlatformUnreachable):
        chat = Chat(platform="homeassistant", chat_id="home")
        asyncio.run(HomeAssistant(GOOD, Path("/nowhere")).send(chat, "hello", nonce="one"))
