"""Messages as HTML: Markdown, tool calls with how they ended and their output, pictures, recordings and files by their names.

Everything that came from a person, a model or a tool is escaped; the only tags and attributes are those made here, and links
lead to http(s) and mailto. Escape codes of terminals and characters that reorder text are left out.

Markdown is rendered block by block: without raw HTML, with formulas as MathML, task lists, tables and highlighted code. A
reply that is still being written is rendered by the same code, so that nothing moves when it is complete.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache, lru_cache
from html import escape, unescape
from typing import Any
from urllib.parse import quote

import msgspec

from hermes.agent.attached_files import NOTE
from hermes.agent.tool_calls import OUTCOME, succeeded
from hermes.agent.tools.tool import FAILED
from hermes.store.records.attachments import mime_of
from hermes.texts import counted, encodable, harmless, one_line

Row = Mapping[str, Any]  # a message
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
    # main.py is no address in Paraguay
    made.linkify.set({"fuzzy_link": False, "fuzzy_email": False, "fuzzy_ip": False})
    for scheme in ("ftp:", "//"):
        made.linkify.add(scheme, None)
    made.validateLink = lambda url: url.split(":", 1)[0].lower() in ("http", "https", "mailto")
    rules = {"link_open": _link, "image": _picture_elsewhere, "th_open": _cell, "td_open": _cell}
    for token, rule in {**rules, "math_inline": _formula, "math_block": _formula}.items():
        made.add_render_rule(token, rule)
    return made


def _link(self: Any, tokens: Any, index: int, options: Any, env: Any) -> str:
    """A link opens a tab of its own, which learns nothing about this page."""
    return _to(escape(str(tokens[index].attrGet("href") or "")))


def _to(place: str) -> str:
    return f'<a href="{place}" target="_blank" rel="noopener noreferrer">'


def _picture_elsewhere(self: Any, tokens: Any, index: int, options: Any, env: Any) -> str:
    """A picture on another server is a link: loading it would tell that server who reads this."""
    token = tokens[index]
    place = escape(str(token.attrGet("src") or ""))
    return f"{_to(place)}[picture: {escape(token.content or place)}]</a>"


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
    attributes = "".join(
        f' {name}="{value}"'
        for name, value in element.attrib.items()
        if name in _MATH_ATTRIBUTES and _MATH_VALUE.fullmatch(value)
    )
    inner = "".join(map(_mathml, element))
    return f"<{tag}{attributes}>{escape(unescape(element.text or ''))}{inner}</{tag}>"


_REFERENCE = re.compile(r"attachment:sha256:([0-9a-f]{64})")
_TELLING = ("command", "query", "path", "file_path", "url", "pattern")  # arguments that say what a call is about
_LONGEST = 100_000  # characters of one text that are in the page; the rest is behind a link


def _clean(text: Any) -> str:
    cleaned: str = encodable(harmless(str(text)))
    return cleaned


def place_of(row: Row, what: str, name: str = "") -> str:
    """The address of the text of a message, or of a file in it; of an undone one it names the session that can bring it back."""
    undone = row.get("undone_in")
    return f"/{what}/{row['id']}{name}" + (f"?undone_in={quote(str(undone), safe='')}" if undone else "")


def _cut(text: str, row: Row) -> tuple[str, str]:
    """The part of a text that is in the page, and a link to the whole of it."""
    if len(text) <= _LONGEST:
        return text, ""
    return text[:_LONGEST], (
        f'<p class="cut">… {len(text) - _LONGEST:,} more characters: '
        f'<a href="{place_of(row, "text")}" download>download the whole text</a></p>'
    )


def markdown(text: str, row: Row) -> str:
    """A text as HTML."""
    shown, rest = _cut(text, row)
    return "".join(blocks(_clean(shown))) + rest


def written(text: str) -> list[str]:
    """The blocks of a reply that is still being written, as HTML."""
    return blocks(decided(_clean(text[:_LONGEST])))


class HtmlRenderer:
    """Messages as HTML; `type_of(digest)` is the type of an attachment that a browser may show, None for others."""

    def __init__(self, type_of: Callable[[str], str | None]) -> None:
        self._type_of = type_of

    def message(self, row: Row, results: Mapping[str, Row], waiting: str | None = None) -> dict[str, Any]:
        """A message as the page shows it: who, when, and its body as HTML. `results` are tools' messages by their call.

        `waiting` is given while a turn runs: the id of the call that waits for permission, or "".
        """
        return {
            "id": row["id"],
            "role": row["role"],
            "at": row["timestamp"],
            "model": row.get("model"),
            "tokens": [row.get(f"{name}_tokens") for name in ("input", "output", "cache_read", "cache_write")],
            "cost": row.get("cost_usd"),
            "ended": row.get("finish_reason"),
            "html": self._body(row, results, waiting),
            "said": place_of(row, "text"),
        }

    def _body(self, row: Row, results: Mapping[str, Row], waiting: str | None) -> str:
        parts: list[str] = []
        thought = row.get("reasoning") or row.get("reasoning_content")
        if thought:
            parts.append(f"<details class=reasoning><summary>Reasoning</summary>{_pre(str(thought), row)}</details>")
        parts += self._content(row)
        for call in row.get("tool_calls") or ():
            parts.append(self._call(call, results, waiting))
        return "".join(parts) or '<p class="dim">(empty)</p>'

    def _content(self, row: Row) -> list[str]:
        content = row.get("content")
        if row["role"] == "tool":
            return [self._output(row, folded=True)]
        if isinstance(content, str):
            return [self._text(content, row)] if content else []
        parts = content if isinstance(content, list) else [content] if content else []
        texts = [str(part.get("text") or "") for part in parts if _is_text(part)] if row["role"] == "user" else []
        noted = {found[3] for text in texts for found in NOTE.finditer(text)}  # shown where they are noted
        return [self._part(part, row, noted) for part in parts]

    def _text(self, text: str, row: Row) -> str:
        """A text; in a person's, the files that are noted there with what was read from them, instead of the notes."""
        if row["role"] != "user" or "attachment:sha256:" not in text:
            return markdown(text, row)
        made, begun = [], 0
        for found in NOTE.finditer(text):
            made.append(markdown(text[begun : found.start()], row))
            made.append(self._attachment(found[3], found[1], one_line(found[2]), row))
            if found[4]:
                name = escape(one_line(found[2]))
                made.append(f"<details class=output><summary>{name}</summary>{_pre(found[4], row)}</details>")
            begun = found.end()
        return "".join([*made, markdown(text[begun:], row)])

    def _part(self, part: Any, row: Row, noted: set[str]) -> str:
        if _is_text(part):
            return self._text(str(part.get("text") or ""), row)
        found = _REFERENCE.findall(str(part))
        if found:
            kind = str(part.get("type") or "") if isinstance(part, dict) else ""
            return "".join(self._attachment(one, kind, _name_of(part), row) for one in found if one not in noted)
        return f"<pre>{escape(_clean(str(part)[:2000]))}</pre>"

    def _attachment(self, digest: str, kind: str, name: str, row: Row) -> str:
        """A picture, a recording, or a link to the file."""
        place = place_of(row, "attachment", f"/{digest}")
        alt = escape(name or kind.replace("_", " ") or "attachment", quote=True)
        mime = self._type_of(digest)
        family = (mime or "").partition("/")[0]
        if family == "image":
            return (
                f'<a class=attachment href="{place}" target=_blank rel=noopener>'
                f'<img loading=lazy alt="{alt}" src="{place}"></a>'
            )
        if family in ("audio", "video"):
            return f'<{family} class=attachment controls preload=metadata src="{place}" aria-label="{alt}"></{family}>'
        return f'<p class=attachment><a href="{place}" download="{alt}">{alt}</a></p>'

    def _call(self, call: Any, results: Mapping[str, Row], waiting: str | None) -> str:
        function = call.get("function") if isinstance(call, dict) else None
        fields = function if isinstance(function, dict) else {}
        name, arguments = str(fields.get("name") or "tool"), _clean(str(fields.get("arguments") or "")[:_LONGEST])
        result = results.get(str(call.get("id"))) if isinstance(call, dict) else None
        word, state = status(result)
        if result is None and waiting is not None:
            word, state = ("waits for permission", "bad") if call.get("id") == waiting else ("running", "")
        output = ""
        if result is not None:
            output = f'<div id="m{result["id"]}" class=result>{self._output(result, folded=False)}</div>'
        return (
            f"<details class=call><summary><b>{escape(one_line(name))}</b>"
            f" <span class=arguments>{escape(_gist(fields.get('arguments')))}</span>"
            f' <span class="state {state}">{escape(word)}</span></summary><pre>{escape(arguments)}</pre>{output}</details>'
        )

    def _output(self, row: Row, *, folded: bool) -> str:
        content = row.get("content")
        if not isinstance(content, str):
            parts = content if isinstance(content, list) else [content or ""]
            return "".join(self._part(part, row, set()) for part in parts)
        block = _pre(content, row)
        if not folded:
            return block
        name = escape(one_line(str(row.get("tool_name") or "result")))
        lines = counted(content.count("\n") + 1, "line")
        return f"<details class=output><summary><b>{name}</b> {lines}</summary>{block}</details>"


def _pre(text: str, row: Row) -> str:
    """A text as it is, and a link to the rest of a very long one."""
    shown, rest = _cut(text, row)
    return f"<pre>{escape(_clean(shown))}</pre>{rest}"


def _is_text(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") in ("text", "input_text", "output_text")


def _name_of(part: Any) -> str:
    """The name of a file that is a part of a message, where the message gives one."""
    if not isinstance(part, dict):
        return ""
    places = [part, *(value for value in part.values() if isinstance(value, dict))]
    named = (one.get(key) for one in places for key in ("name", "filename", "title"))
    return one_line(next((name for name in named if name and isinstance(name, str)), ""))


def _gist(arguments: Any) -> str:
    """Summarise a call on one line: the command, the file …, else all arguments."""
    text = str(encodable(str(arguments or "")))
    try:
        values = msgspec.json.decode(text) if len(text) < _LONGEST else None
    except msgspec.DecodeError:
        values = None
    if isinstance(values, dict):
        text = next((values[name] for name in _TELLING if isinstance(values.get(name), str)), text)
    return one_line(text[:300])[:160]


def status(result: Row | None) -> tuple[str, str]:
    """How a call ended, in a word or two, and its class."""
    if result is None:
        return "no result", "bad"
    if succeeded(result):
        return "done", "good"
    return str((result.get("meta") or {}).get(OUTCOME) or FAILED), "bad"


def marked(snippet: str) -> str:
    """A snippet of a search hit with its matches marked."""
    return escape(one_line(encodable(snippet))).replace("&gt;&gt;&gt;", "<mark>").replace("&lt;&lt;&lt;", "</mark>")


def shown_type(data: bytes) -> str | None:
    """The type of a picture or recording that a browser may show; None for anything else, which is only offered for download.

    The bytes decide, not the declared type: SVG and HTML are programs.
    """
    found = mime_of(data)
    return found if found.startswith(("image/", "audio/", "video/")) else None
