"""Messages as HTML: Markdown without raw HTML, code with highlighting, tool calls and reasoning folded, pictures inline.

Everything that came from a person, a model or a tool is escaped; the only tags are those made here.
"""

from __future__ import annotations

import re
from functools import cache
from html import escape
from typing import Any

_REFERENCE = re.compile(r"attachment:sha256:([0-9a-f]{64})")
_LONGEST = 100_000  # characters of one message that are shown; the rest is behind a link
_PICTURES = ("image/png", "image/jpeg", "image/gif", "image/webp")


@cache
def _markdown() -> Any:
    from markdown_it import MarkdownIt

    made = MarkdownIt("commonmark", {"html": False, "linkify": False, "highlight": _highlighted}).enable(
        ["table", "strikethrough"]
    )
    made.validateLink = lambda url: url.split(":", 1)[0].lower() in ("http", "https", "mailto")  # type: ignore[method-assign]
    return made


def _highlighted(code: str, language: str, attributes: str) -> str:
    if not language or len(code) > 20_000:
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


def markdown(text: str) -> str:
    """A text as HTML."""
    cut = "" if len(text) <= _LONGEST else f'<p class="cut">… {len(text) - _LONGEST:,} more characters</p>'
    return str(_markdown().render(text[:_LONGEST])) + cut


def message(row: dict[str, Any], results: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """What the page shows of a message: who, when, and its body as HTML."""
    return {
        "id": row["id"],
        "role": row["role"],
        "at": row["timestamp"],
        "model": row.get("model"),
        "tokens": [row.get("input_tokens"), row.get("output_tokens")],
        "cost": row.get("cost_usd"),
        "html": _body(row, results),
    }


def _body(row: dict[str, Any], results: dict[str, dict[str, Any]]) -> str:
    parts: list[str] = []
    if row.get("reasoning"):
        parts.append(
            f"<details class=reasoning><summary>Reasoning</summary><pre>{escape(row['reasoning'][:_LONGEST])}</pre></details>"
        )
    parts += _content(row)
    for call in row.get("tool_calls") or ():
        parts.append(_call(call, results))
    return "".join(parts) or '<p class="empty">(empty)</p>'


def _content(row: dict[str, Any]) -> list[str]:
    content = row.get("content")
    if isinstance(content, str):
        if row["role"] == "tool":
            return [_output(row.get("tool_name") or "result", content)]
        return [markdown(content)] if content else []
    made: list[str] = []
    for part in content if isinstance(content, list) else ():
        if isinstance(part, dict) and part.get("type") == "text":
            made.append(markdown(str(part.get("text") or "")))
        else:
            made += [_attachment(digest) for digest in _REFERENCE.findall(str(part))] or [
                f"<pre>{escape(str(part)[:2000])}</pre>"
            ]
    return made


def _attachment(digest: str) -> str:
    place = f"/attachment/{digest}"
    return f'<a class=attachment href="{place}" target=_blank rel=noopener><img loading=lazy alt=attachment src="{place}"></a>'


def _call(call: Any, results: dict[str, dict[str, Any]]) -> str:
    function = call.get("function") if isinstance(call, dict) else None
    told = function if isinstance(function, dict) else {}
    name, given = escape(str(told.get("name") or "tool")), escape(str(told.get("arguments") or "")[:_LONGEST])
    result = results.get(str(call.get("id"))) if isinstance(call, dict) else None
    status = "" if result is None else f'<a class=result href="#m{result["id"]}">result</a>'
    return f"<details class=call><summary>{name} {status}</summary><pre>{given}</pre></details>"


def _output(name: str, text: str) -> str:
    lines = text.count("\n") + 1
    return (
        f"<details class=output><summary>{escape(name)} · {lines:,} line{'' if lines == 1 else 's'}</summary>"
        f"<pre>{escape(text[:_LONGEST])}</pre></details>"
    )


def marked(snippet: str) -> str:
    """A snippet of a search hit with its matches marked."""
    return escape(snippet).replace("&gt;&gt;&gt;", "<mark>").replace("&lt;&lt;&lt;", "</mark>")


def picture_type(data: bytes) -> str | None:
    """The type of a picture that a browser may show; None for anything else, which is offered for download."""
    known = {b"\x89PNG": "image/png", b"\xff\xd8\xff": "image/jpeg", b"GIF8": "image/gif"}
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    return next((mime for start, mime in known.items() if data.startswith(start)), None)
