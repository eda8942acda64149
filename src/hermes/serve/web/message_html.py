"""Messages as HTML: Markdown without raw HTML, code with highlighting, tool calls with their output, pictures and recordings.

Everything that came from a person, a model or a tool is escaped; the only tags are those made here. Escape codes of
terminals and characters that reorder text are left out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache
from html import escape
from typing import Any

from hermes.texts import counted, encodable, harmless, one_line

_REFERENCE = re.compile(r"attachment:sha256:([0-9a-f]{64})")
_EXIT = re.compile(r"\[(?:.*; )?exit status (-?\d+)[^\]\n]*\]\s*$")
_LONGEST = 100_000  # characters of one text that are in the page; the rest is behind a link
_LONGEST_MARKDOWN = 40_000  # longer texts are shown as they are: parsing them takes too long
_MOST_BRACKETS = 2_000  # each may begin a link, which is looked for up to the end of the text
_LONGEST_CODE = 20_000  # that is highlighted
_LONGEST_LINE = 5_000  # of code that is highlighted


@cache
def _markdown() -> Any:
    from markdown_it import MarkdownIt

    made = MarkdownIt("commonmark", {"html": False, "linkify": False, "highlight": _highlighted}).enable(
        ["table", "strikethrough"]
    )
    made.validateLink = lambda url: url.split(":", 1)[0].lower() in ("http", "https", "mailto")  # type: ignore[method-assign]
    made.add_render_rule("link_open", _link)
    made.add_render_rule("image", _picture_elsewhere)
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


def _clean(text: Any) -> str:
    cleaned: str = encodable(harmless(str(text)))
    return cleaned


def _cut(text: str, row: Mapping[str, Any]) -> tuple[str, str]:
    """The part of a text that is in the page, and a link to the whole of it."""
    if len(text) <= _LONGEST:
        return text, ""
    return text[:_LONGEST], (
        f'<p class="cut">… {len(text) - _LONGEST:,} more characters: '
        f'<a href="/text/{row["id"]}" download>download the whole text</a></p>'
    )


def markdown(text: str, row: Mapping[str, Any]) -> str:
    """A text as HTML."""
    shown, rest = _cut(text, row)
    shown = _clean(shown)
    if len(text) > _LONGEST_MARKDOWN or shown.count("[") > _MOST_BRACKETS:
        return f"<pre class=text>{escape(shown)}</pre>{rest}"
    return str(_markdown().render(shown)) + rest


class HtmlRenderer:
    """Messages as HTML; `type_of(digest)` is the type of an attachment that a browser may show, None for others."""

    def __init__(self, type_of: Callable[[str], str | None]) -> None:
        self._type_of = type_of

    def message(self, row: Mapping[str, Any], results: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        """What the page shows of a message: who, when, and its body as HTML. `results` are tools' messages by their call."""
        return {
            "id": row["id"],
            "role": row["role"],
            "at": row["timestamp"],
            "model": row.get("model"),
            "tokens": [row.get(f"{name}_tokens") for name in ("input", "output", "cache_read", "cache_write")],
            "cost": row.get("cost_usd"),
            "ended": row.get("finish_reason"),
            "html": self._body(row, results),
        }

    def _body(self, row: Mapping[str, Any], results: Mapping[str, Mapping[str, Any]]) -> str:
        parts: list[str] = []
        thought = row.get("reasoning") or row.get("reasoning_content")
        if thought:
            shown, rest = _cut(str(thought), row)
            parts.append(
                f"<details class=reasoning><summary>Reasoning</summary><pre>{escape(_clean(shown))}</pre>{rest}</details>"
            )
        parts += self._content(row)
        for call in row.get("tool_calls") or ():
            parts.append(self._call(call, results))
        return "".join(parts) or '<p class="dim">(empty)</p>'

    def _content(self, row: Mapping[str, Any]) -> list[str]:
        content = row.get("content")
        if row["role"] == "tool":
            return [self._output(row, folded=True)]
        if isinstance(content, str):
            return [markdown(content, row)] if content else []
        return [
            self._part(part, row) for part in (content if isinstance(content, list) else [content] if content else ())
        ]

    def _part(self, part: Any, row: Mapping[str, Any]) -> str:
        if isinstance(part, dict) and part.get("type") in ("text", "input_text", "output_text"):
            return markdown(str(part.get("text") or ""), row)
        found = _REFERENCE.findall(str(part))
        if found:
            kind = str(part.get("type") or "") if isinstance(part, dict) else ""
            name = one_line(str(part.get("name") or part.get("filename") or "")) if isinstance(part, dict) else ""
            return "".join(self._attachment(digest, kind, name, row) for digest in found)
        return f"<pre>{escape(_clean(str(part)[:2000]))}</pre>"

    def _attachment(self, digest: str, kind: str, name: str, row: Mapping[str, Any]) -> str:
        """A picture, a recording, or a link to the file."""
        place = f"/attachment/{row['id']}/{digest}"
        told = escape(name or kind.replace("_", " ") or "attachment", quote=True)
        mime = self._type_of(digest)
        family = (mime or "").partition("/")[0]
        if family == "image":
            return (
                f'<a class=attachment href="{place}" target=_blank rel=noopener>'
                f'<img loading=lazy alt="{told}" src="{place}"></a>'
            )
        if family in ("audio", "video"):
            return f'<{family} class=attachment controls preload=metadata src="{place}" aria-label="{told}"></{family}>'
        return f'<p class=attachment><a href="{place}" download>{told}</a></p>'

    def _call(self, call: Any, results: Mapping[str, Mapping[str, Any]]) -> str:
        function = call.get("function") if isinstance(call, dict) else None
        told = function if isinstance(function, dict) else {}
        name, given = str(told.get("name") or "tool"), _clean(str(told.get("arguments") or "")[:_LONGEST])
        result = results.get(str(call.get("id"))) if isinstance(call, dict) else None
        word, state = status(result)
        output = (
            ""
            if result is None
            else f'<div id="m{result["id"]}" class=result>{self._output(result, folded=False)}</div>'
        )
        return (
            f"<details class=call><summary><b>{escape(one_line(name))}</b>"
            f" <span class=given>{escape(_gist(told.get('arguments')))}</span>"
            f' <span class="state {state}">{escape(word)}</span></summary><pre>{escape(given)}</pre>{output}</details>'
        )

    def _output(self, row: Mapping[str, Any], *, folded: bool) -> str:
        content = row.get("content")
        if not isinstance(content, str):
            return "".join(
                self._part(part, row) for part in (content if isinstance(content, list) else [content or ""])
            )
        shown, rest = _cut(content, row)
        block = f"<pre>{escape(_clean(shown))}</pre>{rest}"
        if not folded:
            return block
        name = escape(one_line(str(row.get("tool_name") or "result")))
        lines = counted(content.count("\n") + 1, "line")
        return f"<details class=output><summary><b>{name}</b> {lines}</summary>{block}</details>"


def _gist(arguments: Any) -> str:
    """What a call is about, on one line: the command, the question, else all that was given."""
    import msgspec

    text = str(encodable(str(arguments or "")))
    try:
        given = msgspec.json.decode(text) if len(text) < _LONGEST else None
    except msgspec.DecodeError:
        given = None
    if isinstance(given, dict):
        found = given.get("command") or given.get("query")
        text = found if isinstance(found, str) else text
    return one_line(text[:300])[:160]


def status(result: Mapping[str, Any] | None) -> tuple[str, str]:
    """How a call ended, in a word or two, and its class."""
    if result is None:
        return "no result", "bad"
    text = result.get("content")
    if not isinstance(text, str):
        return "done", "good"
    ended = _EXIT.search(text[-300:])
    if ended is not None:
        return ("done", "good") if ended[1] == "0" else (f"exit {ended[1]}", "bad")
    start = text[:200].lstrip().lower()
    if start.startswith("the user declined"):
        return "declined", "bad"
    if start.startswith("error: interrupted"):
        return "stopped", "bad"
    return ("failed", "bad") if start.startswith(("error:", "error ", '{"error"')) else ("done", "good")


def marked(snippet: str) -> str:
    """A snippet of a search hit with its matches marked."""
    return escape(one_line(encodable(snippet))).replace("&gt;&gt;&gt;", "<mark>").replace("&lt;&lt;&lt;", "</mark>")


def shown_type(data: bytes) -> str | None:
    """The type of a picture or recording that a browser may show; None for anything else, which is only offered for download.

    The bytes decide, not what was said about them: SVG and HTML are programs.
    """
    if data[:4] == b"RIFF":
        return {b"WEBP": "image/webp", b"WAVE": "audio/wav"}.get(data[8:12])
    if data[4:8] == b"ftyp":
        return "audio/mp4" if data[8:11] in (b"M4A", b"M4B") else "video/mp4"
    known = {
        b"\x89PNG": "image/png", b"\xff\xd8\xff": "image/jpeg", b"GIF8": "image/gif", b"OggS": "audio/ogg",
        b"ID3": "audio/mpeg", b"\xff\xfb": "audio/mpeg", b"\xff\xf3": "audio/mpeg", b"fLaC": "audio/flac",
        b"\x1aE\xdf\xa3": "video/webm",
    }  # fmt: skip
    return next((mime for start, mime in known.items() if data.startswith(start)), None)
