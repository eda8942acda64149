"""The walker that every platform without a Markdown of its own renders from: whole spans, no stray markup, any unit."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes.gateway.adapter import utf16_units
from hermes.gateway.platforms._shared import markup
from hermes.gateway.platforms._shared.markup import BOLD, CODE, ITALIC, LINK, PRE, QUOTE, STRIKE, Layout, Span, marked
from tests.support.markdown import MARKDOWN

pytestmark = pytest.mark.mechanism

LAYOUTS = st.builds(
    Layout,
    bullet=st.sampled_from(["• ", "- "]),
    links=st.sampled_from([markup.is_web, lambda address: False]),
    quotes=st.booleans(),
    code_alone=st.booleans(),
    tight_lists=st.booleans(),
    table=st.sampled_from([None, markup.cells, lambda rows: markup.columns(rows) or markup.cells(rows)]),
)


@given(MARKDOWN, LAYOUTS)
def test_spans_of_any_text_are_whole_and_inside_it(text: str, layout: Layout) -> None:
    result = marked(text, layout)
    assert result.text == result.text.rstrip()
    assert all(0 <= span.start < span.end <= len(result.text) for span in result.spans)
    if layout.code_alone:
        code = [span for span in result.spans if span.kind in (CODE, PRE)]
        others = [span for span in result.spans if span.kind not in (CODE, PRE, QUOTE)]
        assert not any(one.start < other.end and other.start < one.end for one in code for other in others)


@given(MARKDOWN, LAYOUTS, st.sampled_from([len, utf16_units, lambda text: len(text.encode("utf-8", "surrogatepass"))]))
def test_spans_are_counted_in_the_unit_of_the_platform(text: str, layout: Layout, measure: object) -> None:
    result = marked(text, layout)
    for span, start, length in result.measured(measure):  # type: ignore[arg-type]
        assert start == measure(result.text[: span.start])  # type: ignore[operator]
        assert length == measure(result.text[span.start : span.end])  # type: ignore[operator]


@given(st.lists(st.from_regex(r"[a-zäöü]{1,9}", fullmatch=True), min_size=1, max_size=30), st.randoms(), LAYOUTS)
def test_no_word_is_lost_and_no_sign_of_markup_stays(words: list[str], random: object, layout: Layout) -> None:
    wraps = ["{}", "**{}**", "*{}*", "`{}`", "~~{}~~", "\n\n# {}\n\n", "\n- {}\n", "\n> {}\n", "\n```\n{}\n```\n"]
    text = " ".join(random.choice(wraps).format(word) for word in words)  # type: ignore[attr-defined]
    shown = marked(text, layout).text
    assert re.findall(r"[a-zäöü]+", shown) == words
    assert not re.search(r"[*`~#]", shown)


@pytest.mark.parametrize(
    ("text", "shown", "spans"),
    [
        ("**a _b_**", "a b", [(ITALIC, "b"), (BOLD, "a b")]),
        ("# **a** b", "a b", [(BOLD, "a b")]),
        ("~~x~~ `y`", "x y", [(STRIKE, "x"), (CODE, "y")]),
        ("[a](https://e.org)", "a", [(LINK, "a")]),
        ("> one\n> two\n\nthree", "one\ntwo\n\nthree", [(QUOTE, "one\ntwo")]),
        ("1. a\n\n   b\n2. c\n   - d", "1. a\n\n   b\n2. c\n   • d", []),
        ("> - a\n>   ```\n>   x\n>   y\n>   ```", "• a\n  x\ny", [(PRE, "x\ny"), (QUOTE, "• a\n  x\ny")]),
    ],
)
def test_what_is_shown_and_marked(text: str, shown: str, spans: list[tuple[str, str]]) -> None:
    result = marked(text, Layout(links=markup.is_web, quotes=True, code_alone=True))
    assert result.text == shown
    assert [(span.kind, shown[span.start : span.end]) for span in result.spans] == spans


def test_a_platform_without_spans_for_quotes_and_links_gets_them_as_text() -> None:
    result = marked("> see [a](https://e.org)\n> ```\n> x\n> ```", Layout())
    assert result.text == "> see a (https://e.org)\n> x"
    assert result.spans == (Span(PRE, 26, 27),)


def test_html_uses_no_tag_of_the_text_and_no_address_but_links() -> None:
    html, differs = markup.html("**a** <script> ![p](https://e.org/p.png) [j](javascript:x) [r](a.py)")
    assert html == (
        '<p><strong>a</strong> &lt;script&gt; <a href="https://e.org/p.png">p</a> [j](javascript:x) [r](a.py)</p>'
    )
    assert differs
    assert not markup.html("just words & more\ntwo lines")[1]


def test_the_parser_is_not_loaded_before_a_text_is_rendered() -> None:
    code = "import sys, hermes.gateway.platforms._shared.markup; sys.exit('markdown_it' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
