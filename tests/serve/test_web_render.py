"""Messages as HTML: whatever was said, the only tags, attributes and addresses in the page are those the renderer makes."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from hermes.serve.web import message_html
from tests.support.page import HOSTILE
from tests.support.sizes import size

TAGS = set(
    "p a pre code span em strong del blockquote ul ol li h1 h2 h3 h4 h5 h6 hr br table thead tbody tr th td details summary b div"
    " img audio video".split()
)
ATTRIBUTES = set("class href target rel id src alt loading controls preload aria-label download start style".split())
PIECES = [
    "<script>", "</pre>", "</details>", '"onload="x"', "<img src=x>", "[x](javascript:x)", "[x](data:text/html,x)", "![p](http://a.b/c)",
    "`", "```html\n<b>\n```", "```\n", "|a|\n|-|\n", "<http://a.b?x=\">", "&lt;", "\n\n", "    ", "* ", "> ", "\x1b[1m", "\u202e", "\0",
    "attachment:sha256:" + "a" * 64, ">>>", "<<<", "\ud800", "<!--", "]]>", "<a\thref='x'>",
]  # fmt: skip
texts = st.lists(st.sampled_from(PIECES) | st.text(max_size=8), max_size=12).map("".join)
contents = texts | st.none() | st.lists(
    st.fixed_dictionaries({"type": st.sampled_from(["text", "image_url", "input_audio", "file"]), "text": texts, "name": texts}), max_size=3
)  # fmt: skip
rows = st.fixed_dictionaries({
    "id": st.integers(1, 10**9), "role": st.sampled_from(["user", "assistant", "tool", "system"]), "content": contents,
    "reasoning": st.none() | texts, "tool_name": st.none() | texts, "timestamp": st.just(1.0),
    "tool_calls": st.none() | st.lists(
        st.fixed_dictionaries({"id": st.just("c"), "function": st.fixed_dictionaries({"name": texts, "arguments": texts})}), max_size=2
    ),
})  # fmt: skip


class _Seen(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.strange: list[Any] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in TAGS:
            self.strange.append(tag)
        for name, value in attrs:
            place = value or ""
            if name not in ATTRIBUTES or (name == "style" and not place.startswith("text-align:")):
                self.strange.append((tag, name, value))
            if name == "href" and not place.startswith(("http:", "https:", "mailto:", "/text/", "/attachment/")):
                self.strange.append((tag, name, value))
            if name == "src" and not place.startswith("/attachment/"):
                self.strange.append((tag, name, value))

    def handle_comment(self, data: str) -> None:
        self.strange.append(("comment", data))


def strange(html: str) -> list[Any]:
    seen = _Seen()
    seen.feed(html)
    seen.close()
    return seen.strange


@settings(max_examples=size(40, 800), deadline=None)
@given(row=rows, result=rows, kind=st.sampled_from([None, "image/png", "audio/ogg", "video/mp4"]))
@example(
    row={"id": 1, "role": "user", "content": HOSTILE, "timestamp": 1.0},
    result={"id": 2, "role": "tool", "content": HOSTILE},
    kind=None,
)
def test_only_what_the_renderer_makes_is_in_the_page(
    row: dict[str, Any], result: dict[str, Any], kind: str | None
) -> None:
    shown = message_html.HtmlRenderer(lambda digest: kind).message(row, {"c": {**result, "role": "tool"}})
    assert strange(shown["html"]) == []
    assert not any(sign in shown["html"] for sign in "\x1b\u202e\0")
    json.dumps(shown).encode()


@settings(max_examples=size(30, 400), deadline=None)
@given(texts)
def test_a_snippet_has_marks_and_nothing_else(text: str) -> None:
    seen = message_html.marked(text).replace("<mark>", "").replace("</mark>", "")
    assert "<" not in seen


def test_how_a_call_ended_is_said() -> None:
    for text, word in (
        ("3 passed\n[exit status 0]", "done"), ("boom\n[exit status 2; now in /tmp]", "exit 2"), ("error: no such file", "failed"),
        ("error: interrupted by the user before it had finished", "stopped"), ("The user declined: it was not run.", "declined"),
        ("fine", "done"),
    ):  # fmt: skip
        assert message_html.status({"content": text})[0] == word, text
    assert message_html.status(None)[0] == "no result"


def test_the_bytes_decide_what_a_browser_may_show() -> None:
    assert (
        message_html.shown_type(b"\x89PNG\r\n") == "image/png" and message_html.shown_type(b"OggS....") == "audio/ogg"
    )
    assert message_html.shown_type(b"RIFF....WAVE") == "audio/wav" and message_html.shown_type(b"RIFF....AVI ") is None
    for program in (b"<svg ", b"<!doctype html>", b"\xef\xbb\xbf<svg", b"%PDF-1.7", b""):
        assert message_html.shown_type(program) is None
