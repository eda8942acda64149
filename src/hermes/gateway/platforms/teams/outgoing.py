"""Markdown as Teams shows it: without HTML, foreign pictures and tables, and with line breaks that are kept."""

from __future__ import annotations

import re

LONGEST = 26_000  # of the 28 KB of a message, counted by `length`
_CODE = re.compile(r"(```.*?(?:```|\Z)|`[^`\n]*`)", re.DOTALL)
_TAG = re.compile(r"<(?=[/!]?[A-Za-z-])(?!https?://|mailto:)")
_PICTURE = re.compile(r"!(?=\[)")
_LINE = re.compile(r"(?<=[^\n ])\n(?=[^\n])")
_TABLE = re.compile(
    r"^[^\n]*\|[^\n]*\n[ \t]*\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)+\|?[ \t]*(?:\n[^\n]*\|[^\n]*)*", re.MULTILINE
)
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


def length(text: str) -> int:
    """The bytes of a text in a request, at most: two for a character of one byte, and what `shown` adds."""
    size = len(text.encode("utf-8", "surrogatepass"))
    plain = sum(1 for sign in text if sign < "\x80")
    return size + plain + 6 * text.count("<") + 10 * text.count("\n") + 4 * len(_CONTROL.findall(text))


def shown(text: str) -> str:
    """The text for a message: tags as they are written, pictures as links, tables as code."""
    fenced = "".join(
        part if number % 2 else _TABLE.sub(lambda found: f"```\n{found.group()}\n```", part)
        for number, part in enumerate(_CODE.split(text))
    )
    parts = _CODE.split(fenced)
    return "".join(part if number % 2 else _plain(part) for number, part in enumerate(parts))


def _plain(text: str) -> str:
    return _LINE.sub("  \n", _PICTURE.sub("", _TAG.sub("&lt;", text)))
