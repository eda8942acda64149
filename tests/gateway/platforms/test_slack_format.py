"""Slack's formatting: nothing pings, nothing is lost, everything fits, whatever the text."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes.gateway.platforms.slack import outgoing as form
from hermes.gateway.platforms.slack.adapter import Slack
from tests.support.labs.slack_schema import problems_of

pytestmark = pytest.mark.mechanism

LONGEST = Slack.capabilities.longest
PARTS = st.sampled_from(
    ["<!channel>", "<!here|x>", "@here", "@everyone", "<@U123>", "<", ">", "&", "&lt;", "&amp;", "<!", "```\n", "**", "\n"]
    + ["| a | b |", "[x](https://a.example)", "# ", "`", "~~", "汉字", "😀", " ", "<!DOCTYPE html>", "a@here.example"]
)  # fmt: skip
TEXTS = st.lists(st.one_of(PARTS, st.text(max_size=40)), max_size=40).map("".join).map(lambda text: text[:LONGEST])
LONG = st.tuples(PARTS, st.text(max_size=30)).map(lambda two: ("".join(two) * LONGEST)[:LONGEST])
PING = re.compile(r"<!(channel|here|everyone|group|subteam)|<@[a-z0-9]|(?<![\w.])@(channel|here|everyone)\b", re.I)


@given(st.one_of(TEXTS, LONG))
def test_what_goes_out_pings_nobody_and_looks_the_same(text: str) -> None:
    (block,) = form.formatted(text)
    assert not PING.search(block["text"])
    assert block["text"].replace(form.INVISIBLE, "") == text.replace(form.INVISIBLE, "")
    assert len(block["text"]) <= 12_000


@given(LONG.filter(str.strip))
def test_every_message_is_one_that_slack_takes(text: str) -> None:
    for blocks in (form.formatted(text), form.plain(text)):
        message = {"channel": "C1", "text": form.preview(text), "blocks": blocks, "unfurl_links": False}
        assert problems_of("chat.postMessage", message, as_json=True) == []
        assert 0 < len(message["text"]) <= 4_000


@given(st.one_of(TEXTS, LONG))
def test_plain_sections_hold_the_whole_text(text: str) -> None:
    pieces = [block["text"]["text"] for block in form.plain(text)]
    assert "".join("".join(pieces).split()) == "".join(text.split())
    assert all(len(piece) <= 3_000 for piece in pieces)


@given(st.one_of(TEXTS, LONG))
def test_the_preview_is_the_beginning_of_the_text_and_interprets_nothing(text: str) -> None:
    shown = form.preview(text)
    assert "<" not in shown
    assert ">" not in shown
    assert re.sub(r"&(amp|lt|gt);", "", shown).count("&") == 0
    whole = shown.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
    assert form.without_pings(text).startswith(whole) or form.without_pings(text).startswith(whole.removesuffix("…"))


@given(st.text())
def test_any_text_a_person_types_is_read_as_it_was(text: str) -> None:
    assert form.readable(form.escaped(text), "U1", {}) == text.strip()


@given(TEXTS)
def test_any_text_can_be_read_and_the_mention_of_us_is_gone(text: str) -> None:
    assert "<@U1>" not in form.readable(f"<@U1> {text} <@U1|hermes>", "U1", {})
    form.mentioned(text)


def test_code_is_left_alone_where_it_pings_nobody() -> None:
    code = "```html\n<!DOCTYPE html>\n<!-- a -->\n<a href='x'>mail@here.example</a>\n```\n@channels @heresy a<@ b"
    assert form.formatted(code)[0]["text"] == code


def test_plain_text_is_cut_at_ends_of_lines() -> None:
    lines = "".join(f"line {number}\n" for number in range(400))
    pieces = [block["text"]["text"] for block in form.plain(lines)]
    assert len(pieces) > 1
    assert all(piece.endswith("\n") for piece in pieces)
    assert "".join(pieces) == lines
