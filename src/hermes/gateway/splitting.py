"""Cutting a long text into messages: at paragraph borders where possible, with code fences kept whole.

A fence that is longer than a message is closed at the end of one and opened again at the beginning of the next. What a
text begins with never changes its cut when more is added to its end, so that a growing reply can be shown in parts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
_ROOM_FOR_CODE = 16  # characters besides the fences, below which a fence is not worth its lines


def split(text: str, longest: int, measure: Callable[[str], int] = len) -> list[str]:
    """The text in parts none of which is longer than `longest`; [] for a text without a visible sign."""
    parts: list[str] = []
    current = ""
    for block in _blocks(text):
        joined = f"{current}\n\n{block}" if current else block
        if measure(joined) <= longest:
            current = joined
            continue
        if current:
            parts.append(current)
        if measure(block) <= longest:
            current = block
            continue
        *whole, current = _cut(block, longest, measure)
        parts += whole
    if current:
        parts.append(current)
    return [part for part in parts if part.strip()]


def _blocks(text: str) -> Iterator[str]:
    """Paragraphs and whole fences, without the blank lines between them."""
    lines: list[str] = []
    fence: str | None = None
    for line in text.splitlines():
        if fence is not None:
            lines.append(line)
            if _closes(line, fence):
                yield "\n".join(lines)
                lines, fence = [], None
            continue
        match = _FENCE.match(line)
        if match is not None and not ("`" in match[1] and "`" in line[match.end() :]):
            if any(one.strip() for one in lines):
                yield "\n".join(lines)
            lines, fence = [line], match[1]
        elif line.strip():
            lines.append(line)
        elif lines:
            yield "\n".join(lines)
            lines = []
    if any(one.strip() for one in lines):
        yield "\n".join(lines)


def _closes(line: str, fence: str) -> bool:
    bare = line.strip()
    return len(bare) >= len(fence) and set(bare) == {fence[0]} and len(line) - len(line.lstrip(" ")) <= 3


def _cut(block: str, longest: int, measure: Callable[[str], int]) -> list[str]:
    """One block that is too long, in pieces."""
    match = _FENCE.match(block)
    first = block.partition("\n")[0]
    if match is None or measure(first) + len(match[1]) + 2 + _ROOM_FOR_CODE > longest:
        return _pack(block.split("\n"), longest, measure)
    fence = match[1]
    body = block.split("\n")[1:]
    if body and _closes(body[-1], fence):
        body.pop()
    room = longest - measure(first) - len(fence) - 2
    return [f"{first}\n{piece}\n{fence}" for piece in _pack(body, room, measure, blank=True)] or [f"{first}\n{fence}"]


def _pack(lines: list[str], longest: int, measure: Callable[[str], int], *, blank: bool = False) -> list[str]:
    """Lines put together as far as they fit; a line that does not fit alone is cut at its words, or anywhere."""
    pieces: list[str] = []
    current: str | None = None
    for line in lines:
        joined = line if current is None else f"{current}\n{line}"
        if measure(joined) <= longest:
            current = joined
            continue
        if current is not None:
            pieces.append(current)
        if measure(line) <= longest:
            current = line
        else:
            *whole, current = _words(line, longest, measure)
            pieces += whole
    if current is not None:
        pieces.append(current)
    return [piece for piece in pieces if blank or piece.strip()]


def _words(line: str, longest: int, measure: Callable[[str], int]) -> list[str]:
    """A line cut after a sentence or a word in its last third, else where it is full."""
    pieces = []
    while measure(line) > longest:
        end = _fitting(line, longest, measure)
        for sign in (". ", "。", " "):
            place = line.rfind(sign, end * 2 // 3, end)
            if place > 0:
                end = place + len(sign)
                break
        pieces.append(line[:end].rstrip() or line[:end])
        line = line[end:]
    return [*pieces, line]


def _fitting(line: str, longest: int, measure: Callable[[str], int]) -> int:
    """How many characters from the beginning fit: at least one, and no sign apart from the accents that follow it."""
    low, high = 1, len(line)
    while low < high:
        middle = (low + high + 1) // 2
        if measure(line[:middle]) <= longest:
            low = middle
        else:
            high = middle - 1
    end = low
    while end > 1 and _belongs_together(line[end - 1], line[end : end + 1]):
        end -= 1
    return end if end > 1 else low


def _belongs_together(before: str, after: str) -> bool:
    import unicodedata

    joiner = "\u200d"
    return bool(after) and (
        after == joiner or before == joiner or unicodedata.combining(after) > 0 or "\ufe00" <= after <= "\ufe0f"
    )
