"""Columns that line up, whatever is in them.

Text is made harmless first (no escapes, no control characters, nothing that turns the line around), then measured in
terminal cells: a Chinese character takes two, an emoji made of seven characters takes two, a combining mark none.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import NamedTuple, TextIO

from hermes.texts import one_line

PIPE_WIDTH = 120
GAP = "  "
RULE = "─"
CUT = "…"
_JOINER, _EMOJI_STYLE = "\u200d", "\ufe0f"
_LEFT_TO_RIGHT = "\u200e"


def screen_width(stream: TextIO | None = None) -> int:
    """How many cells a line may take: $COLUMNS, else the terminal's width, else 120 (a pipe)."""
    try:
        asked = int(os.environ.get("COLUMNS", ""))
        if asked > 0:
            return asked
    except ValueError:
        pass
    try:
        return os.get_terminal_size((stream or sys.stdout).fileno()).columns or PIPE_WIDTH
    except (OSError, ValueError, AttributeError):
        return PIPE_WIDTH


# ------------------------------------------------------------------------------------------------ cells

# Most text is made of these, and then the library with the whole of Unicode need not be loaded (10 ms).
_PLAIN = (
    (0x20, 0x2FF, 1), (0x370, 0x482, 1), (0x48A, 0x52F, 1), (0x2010, 0x2027, 1), (0x2500, 0x257F, 1), (0x3001, 0x3029, 2),
    (0x3041, 0x3096, 2), (0x30A1, 0x30FA, 2), (0x30FC, 0x30FF, 2), (0x4E00, 0x9FFF, 2), (0xAC00, 0xD7A3, 2), (0xFF01, 0xFF60, 2),
)  # fmt: skip


@cache
def _cell(character: str) -> int:
    code = ord(character)
    for first, last, width in _PLAIN:
        if first <= code <= last:
            return width
    from wcwidth import wcwidth

    return max(0, wcwidth(character))


def clusters(text: str) -> Iterator[tuple[str, int]]:
    """The pieces of a text that must stay together, each with the cells it takes."""
    held, width, flag = "", 0, False
    for character in text:
        cell = _cell(character)
        is_flag = "\U0001f1e6" <= character <= "\U0001f1ff"
        joins = held and (
            cell == 0
            or (held[-1] == _JOINER and width == 2 and not character.isalnum() and not character.isascii())
            or "\U0001f3fb" <= character <= "\U0001f3ff"
            or (is_flag and flag)
        )
        if not joins:
            if held:
                yield held, width
            held, width, flag = character, cell, is_flag
            continue
        held += character
        if character == _EMOJI_STYLE or is_flag:
            width = 2
        flag = False
    if held:
        yield held, width


def cells(text: str) -> int:
    """How many cells a line takes on a terminal."""
    return len(text) if text.isascii() else sum(width for _, width in clusters(text))


def cut(text: str, width: int) -> str:
    """The text, or its beginning and `…` where it does not fit; no letter or emoji loses a part."""
    if cells(text) <= width:
        return text
    if width <= 0:
        return ""
    kept, room = [], width - 1
    for piece, size in ((c, 1) for c in text) if text.isascii() else clusters(text):
        if size > room:
            break
        kept.append(piece)
        room -= size
    return "".join(kept).rstrip(" .") + CUT  # a text that was cut before (`...`) gets no second mark behind the first


def pad(text: str, width: int) -> str:
    """The text filled up with spaces."""
    return text + " " * (width - cells(text))


def wrap(text: str, width: int) -> list[str]:
    """A line of text in lines that fit, broken at spaces where there are any. Indentation stays on the first."""
    width = max(1, width)
    out: list[str] = []
    current, used = "", 0
    for word in re.findall(r"\s*\S+|\s+", text):
        size = cells(word)
        if used and used + size > width:
            out.append(current)
            word = word.lstrip()
            current, used, size = "", 0, cells(word)
        current, used = current + word, used + size
        if used > width:  # a word longer than the line
            *whole, current = _broken(current, width)
            out += whole
            used = cells(current)
    if current or not out:
        out.append(current)
    return [one.rstrip() for one in out]


def message(text: str, stream: TextIO) -> str:
    """A message as it fits a terminal: broken between words, but never inside a `command`, which people copy."""
    if not stream.isatty():
        return text
    return "\n".join(message_lines(text, screen_width(stream)))


def message_lines(text: str, width: int) -> list[str]:
    """The lines of a message: broken between words; a `command` or a path that is longer stays whole."""
    out: list[str] = []
    for line in text.split("\n"):
        if cells(line) <= width:
            out.append(line)
            continue
        held = ""
        for piece in re.findall(r"\s*(?:[^\s`]*`[^`]*`\S*|\S+)", line):
            if held and cells(held + piece) > width:
                out.append(held)
                piece = piece.lstrip()
                held = ""
            held += piece
        out.append(held)
    return out


def _broken(word: str, width: int) -> list[str]:
    """A word longer than a line, in pieces that fit."""
    if word.isascii():
        return [word[start : start + width] for start in range(0, len(word), width)]
    out, held, used = [], list[str](), 0
    for piece, size in clusters(word):
        if held and used + size > width:
            out.append("".join(held))
            held, used = [], 0
        held.append(piece)
        used += size
    return [*out, "".join(held)]


# ------------------------------------------------------------------------------------------------ tables


class Column(NamedTuple):
    """A column: its head, how narrow it may become (None: it is never cut), how wide at most, and how dear it is:
    where there is no room for all, the cheapest goes first."""

    head: str
    least: int | None = None
    most: int = 200
    worth: int = 0


@cache
def _turned() -> re.Pattern[str]:
    return re.compile("[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefe\U00010800-\U00010fff\U0001e800-\U0001efff]")


def printed(columns: Sequence[Column], rows: Iterable[Sequence[str]]) -> str:
    """A table as it fits standard output."""
    return "\n".join(table(columns, rows, screen_width(), terminal=sys.stdout.isatty()))


def table(columns: Sequence[Column], rows: Iterable[Sequence[str]], width: int, *, terminal: bool = False) -> list[str]:
    """The lines of a table: head, rule, rows. Columns that can't be cut stay whole; the others shrink, then go.

    Cells are made harmless here. On a terminal, a cell with right-to-left text is closed by a mark, so that a terminal
    which turns such text around leaves the next column where it is.
    """
    shown = [[one_line(cell) for cell in row] for row in rows]
    natural = [
        min(column.most, max([cells(column.head), *(cells(row[i]) for row in shown)]))
        if column.least is not None
        else max([cells(column.head), *(cells(row[i]) for row in shown)])
        for i, column in enumerate(columns)
    ]
    widths = fitted(natural, columns, width)
    kept = [i for i, size in enumerate(widths) if size > 0]

    def drawn(values: Sequence[str]) -> str:
        out = []
        for i in kept:
            text = cut(values[i], widths[i]) if columns[i].least is not None else values[i]
            mark = _LEFT_TO_RIGHT if terminal and not text.isascii() and _turned().search(text) else ""
            out.append(text + mark + " " * (widths[i] - cells(text)))
        return GAP.join(out).rstrip(" ")

    total = sum(widths[i] for i in kept) + len(GAP) * (len(kept) - 1)
    return [drawn([column.head for column in columns]), RULE * total, *map(drawn, shown)]


def fitted(natural: Sequence[int], columns: Sequence[Column], width: int) -> list[int]:
    """The columns' widths in so much room: the widest that may shrink gives way first; 0 is left out.

    Where a column is left out, the others share its room.
    """
    widths = list(natural)
    while True:
        kept = [i for i, size in enumerate(widths) if size > 0]
        over = sum(widths[i] for i in kept) + len(GAP) * (len(kept) - 1) - width
        if over <= 0:
            return widths
        soft = [i for i in kept if columns[i].least is not None]
        wide = [i for i in soft if widths[i] > (columns[i].least or 0)]
        if not soft:
            return widths
        if wide:
            widest = max(wide, key=lambda i: (widths[i], i))
            others = [widths[i] for i in wide if i != widest]
            floor = max(columns[widest].least or 0, max(others, default=0) - 1)
            widths[widest] -= max(1, min(over, widths[widest] - floor))
        else:
            left_out = min(soft, key=lambda i: columns[i].worth)
            widths = [0 if i == left_out or not widths[i] else natural[i] for i in range(len(widths))]
