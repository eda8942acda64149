"""Markdown as HTML, block by block: without raw HTML, with formulas as MathML, task lists, tables and highlighted code.

Everything that was said is escaped; the only tags and attributes are those made here, and links lead to http(s) and mailto.
A reply that is still being written is rendered by the same code, so that nothing moves when it is complete.
"""

from __future__ import annotations

import re
from functools import cache, lru_cache
from html import escape, unescape
from typing import Any

_LONGEST_MARKDOWN = 40_000  # longer texts are shown as they are: parsing them takes too long
_MOST_BRACKETS = 2_000  # each may begin a link, which is looked for up to the end of the text
_MOST_LINKS = 300  # bare ones; with more of them, looking for their ends takes too long
_LONGEST_CODE = 20_000  # that is highlighted
_LONGEST_LINE = 5_000  # of code that is highlighted
_LONGEST_FORMULA = 2_000
# The end of a text that is still being written and may turn into something else: marks without a word (a list item or the
# line under a heading may begin so), and the head of a table.
_UNDECIDED = re.compile(r"(?:(?:\A|\n[ \t]*\n)\|[^\n]*(?:\n[^\w\n]*)?|(?:\A|\n)[^\w\n]*)\Z")


def blocks(text: str) -> list[str]:
    """The HTML of each block of a text (a paragraph, a list, a table …), in order; each is one element."""
    if len(text) > _LONGEST_MARKDOWN or text.count("[") > _MOST_BRACKETS:
        return [f"<pre class=text>{escape(text)}</pre>"]
    parser, env = _markdown(text.count("://") <= _MOST_LINKS), dict[str, Any]()
    made: list[str] = []
    begun = 0
    tokens = parser.parse(text, env)
    for place, token in enumerate(tokens, 1):
        if token.level == 0 and token.nesting <= 0:
            made.append(parser.renderer.render(tokens[begun:place], parser.options, env))
            begun = place
    return made


def decided(text: str) -> str:
    """The part of an unfinished text that will not turn into something else by what comes next."""
    text = _UNDECIDED.sub("", text)
    for place, is_open in (
        (text.rfind("$$"), text.count("$$") % 2 == 1),
        (text.rfind(r"\["), text.rfind(r"\[") > text.rfind(r"\]")),
    ):
        begun = text[place:] if is_open and not text[:place].rpartition("\n")[2].strip() else ""
        if 0 < len(begun) < _LONGEST_FORMULA and "\n\n" not in begun:
            return text[:place]  # a formula that has begun
    return text


@cache
def _markdown(bare_links: bool) -> Any:
    from markdown_it import MarkdownIt
    from mdit_py_plugins.dollarmath import dollarmath_plugin
    from mdit_py_plugins.tasklists import tasklists_plugin

    made: Any = MarkdownIt("commonmark", {"html": False, "linkify": bare_links, "highlight": _highlighted})
    made.enable(["table", "strikethrough", "linkify"])
    made.use(dollarmath_plugin, allow_labels=False, allow_space=False, allow_digits=False, allow_blank_lines=False)
    made.use(tasklists_plugin)
    made.block.ruler.before("fence", "math_brackets", _bracketed_block)
    made.inline.ruler.before("escape", "math_brackets", _bracketed)
    made.linkify.set(
        {"fuzzy_link": False, "fuzzy_email": False, "fuzzy_ip": False}
    )  # main.py is no address in Paraguay
    for scheme in ("ftp:", "//"):
        made.linkify.add(scheme, None)
    made.validateLink = lambda url: url.split(":", 1)[0].lower() in ("http", "https", "mailto")
    made.add_render_rule("link_open", _link)
    made.add_render_rule("image", _picture_elsewhere)
    for cell in ("th_open", "td_open"):
        made.add_render_rule(cell, _cell)
    made.add_render_rule("math_inline", _formula)
    made.add_render_rule("math_block", _formula)
    return made


def _link(self: Any, tokens: Any, index: int, options: Any, env: Any) -> str:
    """A link opens a tab of its own, which learns nothing about this page."""
    place = escape(str(tokens[index].attrGet("href") or ""))
    return f'<a href="{place}" target="_blank" rel="noopener noreferrer">'


def _picture_elsewhere(self: Any, tokens: Any, index: int, options: Any, env: Any) -> str:
    """A picture on a server elsewhere is a link: loading it would tell that server who reads this."""
    token = tokens[index]
    place = escape(str(token.attrGet("src") or ""))
    return (
        f'<a href="{place}" target="_blank" rel="noopener noreferrer">[picture: {escape(token.content or place)}]</a>'
    )


def _cell(self: Any, tokens: Any, index: int, options: Any, env: Any) -> str:
    """A cell of a table, aligned by a class: the page allows no styles in a text."""
    side = str(tokens[index].attrGet("style") or "").removeprefix("text-align:")
    return f"<{tokens[index].tag} class={side}>" if side in ("left", "center", "right") else f"<{tokens[index].tag}>"


def _highlighted(code: str, language: str, attributes: str) -> str:
    if not language or len(code) > _LONGEST_CODE or max(map(len, code.split("\n"))) > _LONGEST_LINE:
        return escape(code)
    from pygments import highlight  # type: ignore[import-untyped]
    from pygments.formatters import HtmlFormatter  # type: ignore[import-untyped]
    from pygments.lexers import get_lexer_by_name  # type: ignore[import-untyped]
    from pygments.util import ClassNotFound  # type: ignore[import-untyped]

    try:
        lexer = get_lexer_by_name(language, stripnl=False)
    except ClassNotFound:
        return escape(code)
    return str(highlight(code, lexer, HtmlFormatter(nowrap=True)))


# ------------------------------------------------------------------------------------------------ formulas

_MATH_TAGS = frozenset(
    "math mrow mi mn mo mtext mspace mfrac msqrt mroot msub msup msubsup munder mover munderover mmultiscripts mprescripts"
    " mtable mtr mtd mstyle mpadded mphantom".split()
)
_MATH_ATTRIBUTES = frozenset(
    "display mathvariant stretchy fence form separator accent accentunder displaystyle scriptlevel columnalign linethickness"
    " largeop movablelimits symmetric minsize maxsize width height depth lspace rspace voffset".split()
)
_MATH_VALUE = re.compile(r"[a-z -]{1,40}|[+-]?\d?(?:\.\d{1,3})?(?:em|ex|pt|mu)?")  # no width that covers the page
_MACROS = re.compile(r"\\(?:\w*newcommand|def|\w*newenvironment|Declare\w+)")  # a short one may expand to gigabytes


def _bracketed_block(state: Any, line: int, end: int, silent: bool) -> bool:
    r"""A formula between \[ and \] on lines of its own."""
    start = state.bMarks[line] + state.tShift[line]
    if state.src[start : start + 2] != r"\[" or state.is_code_block(line):
        return False
    close = state.src.find(r"\]", start, start + _LONGEST_FORMULA)
    last = next((one for one in range(line, end) if state.bMarks[one] <= close < state.eMarks[one]), None)
    inner = state.src[start + 2 : close]
    if close < 0 or last is None or state.src[close + 2 : state.eMarks[last]].strip() or "\n\n" in inner:
        return False
    if not silent:
        token = state.push("math_block", "math", 0)
        token.block, token.content, token.map = True, inner, [line, last + 1]
    state.line = last + 1
    return True


def _bracketed(state: Any, silent: bool) -> bool:
    r"""A formula between \( and \), or \[ and \], in a line of text."""
    close = {r"\(": r"\)", r"\[": r"\]"}.get(state.src[state.pos : state.pos + 2])
    end = -1 if close is None else state.src.find(close, state.pos + 2, state.pos + _LONGEST_FORMULA)
    if end <= state.pos + 2:
        return False
    if not silent:
        token = state.push("math_inline", "math", 0)
        token.content = state.src[state.pos + 2 : end]
    state.pos = end + 2
    return True


def _formula(self: Any, tokens: Any, index: int, options: Any, env: Any) -> str:
    """A formula as MathML; one that can't be read, as it was written."""
    token = tokens[index]
    shown = _mathml_of(token.content.strip(), bool(token.block))
    return f"<div class=formula>{shown}</div>\n" if token.block else shown


@lru_cache(maxsize=2000)  # a reply that is being written is rendered again and again
def _mathml_of(latex: str, block: bool) -> str:
    try:
        if len(latex) > _LONGEST_FORMULA or _MACROS.search(latex):
            raise ValueError("too much to expand")
        from latex2mathml.converter import Converter

        return _mathml(Converter(display="block" if block else "inline").convert_to_element(latex))
    except Exception:  # the library raises many, also RecursionError
        return f"<code>{escape(latex)}</code>"


def _mathml(element: Any) -> str:
    """A tree as text. Only known tags and harmless attributes: the library passes on addresses, styles and tags in texts."""
    tag = element.tag if element.tag in _MATH_TAGS else "mrow"
    given = "".join(
        f' {name}="{value}"'
        for name, value in element.attrib.items()
        if name in _MATH_ATTRIBUTES and _MATH_VALUE.fullmatch(value)
    )
    inner = "".join(map(_mathml, element))
    return f"<{tag}{given}>{escape(unescape(element.text or ''))}{inner}</{tag}>"
