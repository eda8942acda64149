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
from itertools import repeat
from typing import NamedTuple, TextIO

from hermes.texts import one_line

PIPE_WIDTH = 120
GAP = "  "
RULE = "─"
CUT = "…"
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

# Characters of one cell each: where a text has no others, the library with the whole of Unicode need not be loaded (10 ms).
_NARROW = re.compile("[ -~\xa0-\xac\xae-\u02ff\u2010-\u2027\u2500-\u257f]*")


def clusters(text: str) -> Iterator[tuple[str, int]]:
    """The pieces of a text that must stay together, each with the cells it takes."""
    if _NARROW.fullmatch(text):
        return zip(text, repeat(1), strict=False)
    from wcwidth import iter_graphemes, width

    return ((piece, width(piece)) for piece in iter_graphemes(text))


def cells(text: str) -> int:
    """How many cells a line takes on a terminal."""
    return len(text) if _NARROW.fullmatch(text) else sum(width for _, width in clusters(text))


def cut(text: str, width: int) -> str:
    """The text, or its beginning and `…` where it does not fit; no letter or emoji loses a part."""
    if cells(text) <= width:
        return text
    if width <= 0:
        return ""
    kept, room = [], width - 1
    for piece, size in clusters(text):
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
    width, out = max(1, width), list[str]()
    for line in _joined(re.findall(r"\s*\S+|\s+", text), width):
        out += _broken(line, width) if cells(line) > width else [line.rstrip()]
    return out or [""]


def _joined(pieces: Iterable[str], width: int) -> list[str]:
    """Pieces of a text in as few lines as hold them."""
    out: list[str] = []
    for piece in pieces:
        if out and cells(out[-1] + piece) <= width:
            out[-1] += piece
        else:
            out.append(piece.lstrip() if out else piece)
    return out


def _broken(word: str, width: int) -> list[str]:
    """A word longer than a line, in pieces that fit."""
    out, room = [""], width
    for piece, size in clusters(word):
        if size > room and out[-1]:
            out, room = [*out, ""], width
        out[-1] += piece
        room -= size
    return out


def message(text: str, stream: TextIO) -> str:
    """A message as it fits a terminal: broken between words, but never inside a `command`, which people copy."""
    return "\n".join(message_lines(text, screen_width(stream))) if stream.isatty() else text


def message_lines(text: str, width: int) -> list[str]:
    """The lines of a message: broken between words; a `command` or a path that is longer stays whole."""
    pieces = re.compile(r"\s*(?:[^\s`]*`[^`]*`\S*|\S+)")
    return [part for line in text.split("\n") for part in _joined(pieces.findall(line), width) or [""]]


# ------------------------------------------------------------------------------------------------ tables


class Column(NamedTuple):
    """A column: its head, how narrow it may become (None: it is never cut), how wide at most, and how dear it is:
    where there is no room for all, the cheapest goes first."""

    head: str
    least: int | None = None
    most: int = 200
    worth: int = 0
    right: bool = False  # numbers stand at the right


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
            space = " " * (widths[i] - cells(text))
            out.append(space + text if columns[i].right else text + mark + space)
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
