"""Messages as HTML: whatever was said, the only tags, attributes and addresses in the page are those the renderer makes."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hermes.serve.web import message_html
from tests.support.page import HOSTILE
from tests.support.sizes import size

pytestmark = pytest.mark.mechanism

TAGS = set(
    "p a pre code span em strong del blockquote ul ol li h1 h2 h3 h4 h5 h6 hr br table thead tbody tr th td details summary b div"
    " img audio video input math mrow mi mn mo mtext mspace mfrac msqrt mroot msub msup msubsup munder mover munderover mtable mtr mtd"
    " mstyle mpadded mphantom".split()
)
ATTRIBUTES = set("class href target rel id src alt loading controls preload aria-label download start".split())
OF_INPUTS = {"class": "task-list-item-checkbox", "type": "checkbox", "disabled": "disabled", "checked": "checked"}
OF_MATH = set(
    "display mathvariant stretchy fence form separator accent accentunder displaystyle scriptlevel columnalign linethickness largeop"
    " movablelimits symmetric minsize maxsize width height depth lspace rspace voffset".split()
)
PIECES = [
    "<script>", "</pre>", "</details>", '"onload="x"', "<img src=x>", "[x](javascript:x)", "[x](data:text/html,x)", "![p](http://a.b/c)",
    "`", "```html\n<b>\n```", "```\n", "|a|\n|-|\n", "<http://a.b?x=\">", "&lt;", "\n\n", "    ", "* ", "> ", "\x1b[1m", "\u202e", "\0",
    "$", "$$", "\n$$\n", r"\(", r"\)", "\n\\[\n", "\n\\]\n", r"\text{<script>}", r"\href{javascript:x}{y}", r"\style{color:red}{x}", r"\class{a}{b}",
    r"\unicode{x3c}", "&#x3c;", r"\frac{a}{b}", r"\rule{9999em}{9999em}", r"\color{red}", r"\newcommand{\a}{\a\a}", "_", "^", "{", "}",
    "- [ ] ", "- [x] ", "https://a.b/?x=<i>", "javascript:alert(1)", "JAVASCRIPT://a.b/%0aalert(1)", "ftp://a.b", "//a.b", "data:text/html,x",
    "file:///etc/passwd", "```mermaid\nclick A href \"javascript:x\"\n", "[Picture a<b>, saved as /x (attachment:sha256:" + "b" * 64 + ")]\n",
    "[File x, saved as attachment:sha256:" + "c" * 64 + ":]\n<attached-file>\n<script>\n</attached-file>\n",
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
            if tag == "input":
                allowed = OF_INPUTS.get(name) == place
            else:
                allowed = name in ATTRIBUTES or (tag.startswith("m") and name in OF_MATH)
            if not allowed or (any(sign in place for sign in "();") and name in OF_MATH):
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


@settings(max_examples=size(40, 800), deadline=None)
@given(texts)
def test_the_blocks_of_a_text_are_one_element_each(text: str) -> None:
    """The page replaces the blocks that have changed, and counts elements to find them."""

    class Outside(HTMLParser):
        depth = elements = 0

        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            self.elements += self.depth == 0
            self.depth += tag not in ("br", "hr", "img", "input")

        def handle_endtag(self, tag: str) -> None:
            self.depth -= tag not in ("br", "hr", "img", "input")

        def handle_data(self, data: str) -> None:
            assert self.depth or not data.strip(), data

    for block in message_html.written(text):
        seen = Outside()
        seen.feed(block)
        seen.close()
        assert (seen.elements, seen.depth) == (1, 0), block


def test_a_finished_reply_is_its_blocks() -> None:
    text = "# One\n\nTwo [x].\n\n- a\n- b\n\n| a |\n|--:|\n| 1 |\n\n$$x^2$$\n\n```py\n1\n```\n\n[x]: https://a.b"
    assert "".join(message_html.blocks(text)) == message_html.markdown(text, {"id": 1})


def test_formulas_are_mathml_and_what_is_none_stays_text() -> None:
    for text in ("$x^2$", r"\(x^2\)", "$$\nx^2\n$$", "\\[\nx^2\n\\]", "a $x^2$, b"):
        shown = "".join(message_html.blocks(text))
        assert "<msup><mi>x</mi><mn>2</mn></msup>" in shown, text
    for text in (
        "it costs $5 and $6",
        "echo $HOME and $PATH",
        "`$x^2$`",
        "```\n$$x$$\n```",
        r"an array \\[0]",
        "$ x $",
    ):
        assert "<math" not in "".join(message_html.blocks(text)), text
    for broken in (r"$x^$", r"$\newcommand{\a}{\b\b}\a$", "${" + "{" * 900 + "$", "$" + "x" * 3000 + "$"):
        assert "<code>" in "".join(message_html.blocks(broken)), broken[:40]


def test_a_formula_takes_no_room_beyond_its_own() -> None:
    assert "9999" not in "".join(message_html.blocks(r"$\rule{9999em}{9999em}\hspace{-9999em}$"))


def test_bare_addresses_are_links_and_names_of_files_are_not() -> None:
    shown = "".join(message_html.blocks("see https://a.b/c?d=1. and main.py, ftp://x.y, javascript:x, a.b.com"))
    assert re.findall('href="([^"]*)"', shown) == ["https://a.b/c?d=1"]


def test_tables_are_aligned_by_classes() -> None:
    shown = "".join(message_html.blocks("|a|b|c|\n|:-|:-:|-:|\n|1|2|3|"))
    assert (
        "style" not in shown
        and "<td class=left>" in shown
        and "<td class=center>" in shown
        and "<td class=right>" in shown
    )


@pytest.mark.parametrize("text", ["- [ ] <b>x</b>", "- [x] done", "1. [X] done"])
def test_task_lists_are_boxes_that_nobody_can_tick(text: str) -> None:
    shown = "".join(message_html.blocks(text))
    assert 'type="checkbox"' in shown and "disabled" in shown and "<b>" not in shown
    assert ("checked" in shown) == ("x]" in text.lower())


def test_what_may_still_become_something_else_waits() -> None:
    decided = message_html.decided
    for text in (
        "one\n",
        "one\n-",
        "one\n--",
        "one\n\n| a | b |",
        "one\n\n| a | b |\n|--",
        "one\n$$\nx = ",
        "one\n\\[ x",
    ):
        assert decided(text).strip() == "one", text
    for text in ("one\n- two", "one\n\n| a | b |\n|--|--|\n| 1", "one\n$$\nx\n$$\ntwo", "你好", "one $x"):
        assert decided(text) == text


@settings(max_examples=size(30, 400), deadline=None)
@given(texts)
def test_a_snippet_has_marks_and_nothing_else(text: str) -> None:
    seen = message_html.marked(text).replace("<mark>", "").replace("</mark>", "")
    assert "<" not in seen


def test_how_a_call_ended_is_said() -> None:
    for text, meta, word in (
        ("fine", None, "done"), ("boom\n[exit status 2]", {"outcome": "exit 2"}, "exit 2"),
        ("error: no such file", None, "failed"), ("what an import says", {"failed": True}, "failed"),
    ):  # fmt: skip
        assert message_html.status({"content": text, "meta": meta})[0] == word, text
    assert message_html.status(None)[0] == "no result"


def test_a_call_without_a_result_runs_or_waits_while_a_turn_does() -> None:
    function = {"name": "terminal", "arguments": '{"command": "rm -rf build"}'}
    row = {
        "id": 1,
        "role": "assistant",
        "content": None,
        "timestamp": 1.0,
        "tool_calls": [{"id": "c", "function": function}],
    }
    show = message_html.HtmlRenderer(lambda digest: None).message
    for waiting, word in ((None, "no result"), ("", "running"), ("c", "waits for permission"), ("another", "running")):
        assert f">{word}<" in show(row, {}, waiting)["html"], waiting


def test_files_keep_their_names() -> None:
    digest = "d" * 64
    note = f"[File report <1>.csv (text/csv, 12 bytes), saved as /home/x (attachment:sha256:{digest}):]\n<attached-file>\na,b\n</attached-file>"
    part = {"type": "file", "file": {"filename": "plan <2>.pdf", "file_data": f"attachment:sha256:{digest}"}}
    for content, name in (
        (f"look\n\n{note}", "report &lt;1&gt;.csv"),
        ([{"type": "text", "text": "look"}, part], "plan &lt;2&gt;.pdf"),
    ):
        row = {"id": 1, "role": "user", "content": content, "timestamp": 1.0}
        shown = message_html.HtmlRenderer(lambda digest: None).message(row, {})["html"]
        assert f'download="{name}">{name}</a>' in shown and "/home/x" not in shown and "look" in shown


def test_the_bytes_decide_what_a_browser_may_show() -> None:
    assert (
        message_html.shown_type(b"\x89PNG\r\n") == "image/png" and message_html.shown_type(b"OggS....") == "audio/ogg"
    )
    assert message_html.shown_type(b"RIFF....WAVE") == "audio/wav" and message_html.shown_type(b"RIFF....AVI ") is None
    for program in (b"<svg ", b"<!doctype html>", b"\xef\xbb\xbf<svg", b"%PDF-1.7", b""):
        assert message_html.shown_type(program) is None
