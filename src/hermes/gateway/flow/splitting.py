"""Splitting a long text into messages: at paragraph borders where possible, with code fences kept whole.

A fence that is longer than a message is closed at the end of one and opened again at the beginning of the next. What a
text begins with never changes its cut when more is added to its end, so that a growing reply can be shown in parts.
Work grows with the length of the text, not faster: `measure` adds up, so each piece is measured once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator

Measure = Callable[[str], int]  # the length of a text; additive for two texts, and at least 1 for a character

_FENCE = re.compile(r"[ \t]*(`{3,}|~{3,})(.*)")


def split(text: str, longest: int, measure: Measure = len) -> list[str]:
    """The text in parts none of which is longer than `longest`; [] for a text without a visible character."""
    parts = _pack(_blocks(text), "\n\n", longest, measure, lambda block: _cut(block, longest, measure))
    return [part for part in parts if part.strip()]


def limited(parts: list[str], most: int, longest: int, measure: Measure, note: Callable[..., str]) -> list[str]:
    """No more than `most` parts (0: all). Where some are left out, the last one ends with `note(count=…)`: their characters."""
    if not most or len(parts) <= most:
        return parts
    rest = parts[most - 1 :]
    whole = sum(map(len, rest))
    last = split(rest[0], longest - measure(note(count=whole)) - 2, measure)[0]
    return [*parts[: most - 1], f"{last}\n\n{note(count=whole - len(last))}"]


def with_cursor(text: str, cursor: str) -> str:
    """A streamed text with the sign that more is coming, unless it would keep a fence from ending."""
    return text + ("\n" if _FENCE.fullmatch(text.rpartition("\n")[2]) else "") + cursor


def _blocks(text: str) -> Iterator[str]:
    """Paragraphs and whole fences, without the blank lines between them. A fence that does not end, ends with the text."""
    lines: list[str] = []
    fence: str | None = None
    for line in text.replace("\r\n", "\n").split("\n"):
        if fence is not None:
            lines.append(line)
            if _closes(line, fence):
                yield "\n".join(lines)
                lines, fence = [], None
        elif opening := _opened(line):
            if lines:
                yield "\n".join(lines)
            lines, fence = [line], opening
        elif line.strip():
            lines.append(line)
        elif lines:
            yield "\n".join(lines)
            lines = []
    if lines:
        yield "\n".join([*lines, fence] if fence is not None else lines)


def _opened(line: str) -> str | None:
    """The fence that a line opens. In lists they are indented; a backtick after backticks makes it code within a line."""
    match = _FENCE.fullmatch(line)
    return None if match is None or (match[1][0] == "`" and "`" in match[2]) else match[1]


def _closes(line: str, fence: str) -> bool:
    bare = line.strip()
    return len(bare) >= len(fence) and set(bare) == {fence[0]}


# ------------------------------------------------------------------------------------------------ too long for a message


def _cut(block: str, longest: int, measure: Measure) -> list[str]:
    """One block that is too long, in pieces; of a fence each piece is one."""
    first, *body = block.split("\n")
    fence = _opened(first)
    if fence is None or 3 * len(fence) > longest:
        return _pack_lines([first, *body], longest, measure)
    if body and _closes(body[-1], fence):
        body.pop()
    opening = first.strip()
    if measure(opening) > longest // 3:  # the info string is too long to be a language: it becomes the first line
        opening, body = fence, [opening.removeprefix(fence), *body]
    room = longest - measure(f"{opening}\n\n{fence}")
    return [f"{opening}\n{piece}\n{fence}" for piece in _pack_lines(body, room, measure, code=True)] or [
        f"{opening}\n{fence}"
    ]


def _pack_lines(lines: list[str], longest: int, measure: Measure, *, code: bool = False) -> list[str]:
    """Lines put together as far as they fit; one that does not fit alone is cut."""
    pieces = _pack(lines, "\n", longest, measure, lambda line: _cut_line(line, longest, measure, code))
    return [piece for piece in pieces if code or piece.strip()]


def _pack(
    items: Iterable[str], between: str, longest: int, measure: Measure, cut: Callable[[str], list[str]]
) -> list[str]:
    """Items joined as far as they fit; one that does not fit alone is cut."""
    packed: list[str] = []
    current: list[str] = []
    used, gap = 0, measure(between)
    for item in items:
        size = measure(item)
        if current and used + gap + size <= longest:
            current.append(item)
            used += gap + size
            continue
        if current:
            packed.append(between.join(current))
        if size > longest:
            *whole, item = cut(item)
            packed += whole
            size = measure(item)
        current, used = [item], size
    if current:
        packed.append(between.join(current))
    return packed


def _cut_line(line: str, longest: int, measure: Measure, code: bool) -> list[str]:
    """A line cut after a sentence or a word in the last third of a message, else where the message is full."""
    pieces: list[str] = []
    start = 0
    while True:
        ends = _places(line, start, longest, measure)
        if ends[-1] == len(line):
            return [*pieces, line[start:]]
        end = _best(line, start, ends)
        piece = line[start:end]
        pieces.append(piece if code else piece.rstrip() or piece)
        start = end


def _places(line: str, start: int, longest: int, measure: Measure) -> list[int]:
    """The place to cut the text from `start` on so that it fits: never within a grapheme cluster."""
    from wcwidth import iter_graphemes

    ends: list[int] = []
    end, used = start, 0
    for sign in iter_graphemes(line[start : start + longest + 1]):
        used += measure(sign)
        if used > longest:
            break
        end += len(sign)
        ends.append(end)
    if not ends:  # one grapheme cluster that is longer than a message
        end = start + 1
        while end < len(line) and measure(line[start : end + 1]) <= longest:
            end += 1
        ends = [end]
    return ends


def _best(line: str, start: int, ends: list[int]) -> int:
    """The best of these places: after a sentence, after a word, or the last; none that makes the rest look like a fence."""
    full = ends[-1]
    wanted = []
    for sign in (". ", "。", " "):
        place = line.rfind(sign, start + (full - start) * 2 // 3, full)
        if place > start:
            wanted.append(place + len(sign))
    for end in (*wanted, *reversed(ends)):
        head, rest = line[start:end], line[end : end + 200]
        if _FENCE.match(rest) is None and (_FENCE.match(head) is None or end == full):
            return end
    return full
