"""Output of the commands: notes, colour, JSON, progress, and tables whose columns line up for any text.

Text is made harmless first (no escapes, no control characters, nothing that turns the line around), then measured in
terminal cells: a Chinese character takes two, an emoji made of seven characters takes two, a combining mark none.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import repeat
from typing import Any, NamedTuple, TextIO

import msgspec

from hermes.cli.streams import complain
from hermes.texts import one_line

PIPE_WIDTH = 120
GAP = "  "
RULE = "─"
CUT = "…"


def screen_width(stream: TextIO | None = None) -> int:
    """How many cells a line may take: $COLUMNS, else the terminal's width, else 120 (a pipe)."""
    try:
        columns = int(os.environ.get("COLUMNS", ""))
        if columns > 0:
            return columns
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
    """The text, or its beginning and `…` if it does not fit; no letter or emoji is split."""
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
    """Pieces of a text joined to as few lines as possible."""
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
    """A message wrapped for a terminal between words, but never inside a `command`, which people copy."""
    return "\n".join(message_lines(text, screen_width(stream))) if stream.isatty() else text


def message_lines(text: str, width: int) -> list[str]:
    """The lines of a message: broken between words; a `command` or a path that is longer stays whole."""
    pieces = re.compile(r"\s*(?:[^\s`]*`[^`]*`\S*|\S+)")
    return [part for line in text.split("\n") for part in _joined(pieces.findall(line), width) or [""]]


# ------------------------------------------------------------------------------------------------ tables


class Column(NamedTuple):
    """A column: its head, its least width (None: it is never cut), its greatest width, and its worth: if there is no room
    for all columns, the one with the least worth is left out first."""

    head: str
    least: int | None = None
    most: int = 200
    worth: int = 0
    right: bool = False  # numbers stand at the right


def printed(columns: Sequence[Column], rows: Iterable[Sequence[str]]) -> str:
    """A table as it fits standard output."""
    return "\n".join(table(columns, rows, screen_width()))


def table(columns: Sequence[Column], rows: Iterable[Sequence[str]], width: int) -> list[str]:
    """The lines of a table: head, rule, rows. Columns that can't be cut stay whole; the others shrink, then go.

    Cells are made harmless here.
    """
    shown = [[one_line(cell) for cell in row] for row in rows]
    heads = [column.head for column in columns]
    widest = [max(map(cells, values)) for values in zip(heads, *shown, strict=True)]
    natural = [
        size if column.least is None else min(column.most, size) for column, size in zip(columns, widest, strict=True)
    ]
    widths = fitted(natural, columns, width)
    kept = [i for i, size in enumerate(widths) if size > 0]

    def drawn(values: Sequence[str]) -> str:
        out = []
        for i in kept:
            text = cut(values[i], widths[i]) if columns[i].least is not None else values[i]
            space = " " * (widths[i] - cells(text))
            out.append(space + text if columns[i].right else text + space)
        return GAP.join(out).rstrip(" ")

    total = sum(widths[i] for i in kept) + len(GAP) * (len(kept) - 1)
    return [drawn(heads), RULE * total, *map(drawn, shown)]


def fitted(natural: Sequence[int], columns: Sequence[Column], width: int) -> list[int]:
    """The columns' widths in this room: the widest that may shrink does so first; 0 means left out.

    The others share the room of a column that is left out.
    """
    widths = list(natural)
    while True:
        kept = [i for i, size in enumerate(widths) if size > 0]
        soft = [i for i in kept if columns[i].least is not None]
        if not soft or sum(widths[i] for i in kept) + len(GAP) * (len(kept) - 1) <= width:
            return widths
        wide = [i for i in soft if widths[i] > (columns[i].least or 0)]
        if wide:
            widths[max(wide, key=lambda i: (widths[i], i))] -= 1
        else:
            left_out = min(soft, key=lambda i: columns[i].worth)
            widths = [0 if i == left_out or not widths[i] else natural[i] for i in range(len(widths))]


BOLD, DIM, GOLD, GREEN, CYAN = "1", "2", "33", "32", "36"


def note(text: str) -> None:
    """A line beside the result."""
    complain(text)


def wrapped(question: str) -> str:
    """A question wrapped between words, with room for the answers that click appends."""
    return "\n".join(message_lines(question, screen_width(sys.stderr) - len(" [Y/n]: ")))


def colourful(stream: TextIO | None = None) -> bool:
    """Whether to use colour on this stream: it is a terminal, and NO_COLOR is not set."""
    stream = stream or sys.stdout
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def styled(text: str, *codes: str, on: bool) -> str:
    """The text in a style, if styles are on."""
    return f"\x1b[{';'.join(codes)}m{text}\x1b[0m" if on and text else text


def print_json(value: Any) -> None:
    """One JSON value on standard output, indented."""
    from hermes.interop.json_reading import encoded

    try:
        text = msgspec.json.format(encoded(value), indent=2)
    except ValueError:  # msgspec reads no escaped half of a surrogate pair
        text = json.dumps(value, indent=2).encode()
    put(text + b"\n")


def print_rows(
    values: Sequence[Any], columns: Sequence[Column], rows: Iterable[Sequence[str]], *, none: str, as_json: bool
) -> int:
    """Print rows as a table, or values as JSON; `none` is the message for an empty list. Returns exit status 0."""
    if as_json:
        print_json(msgspec.to_builtins(values))
    else:
        print(printed(columns, rows) if values else message(none, sys.stdout))
    return 0


def put(data: bytes) -> None:
    """Write bytes to standard output."""
    sys.stdout.flush()
    view = memoryview(data)
    while view:  # an unbuffered stream takes a part of it
        view = view[sys.stdout.buffer.write(view) :]
    sys.stdout.buffer.flush()


def size_of(count: int) -> str:
    """A number of bytes, in MB or GB."""
    return f"{count / 1_048_576:.1f} MB" if count < 1 << 30 else f"{count / (1 << 30):.1f} GB"


@contextmanager
def status_line(wait: float = 0.3) -> Iterator[Callable[[Callable[[], str]], None]]:
    """A line on a terminal's stderr that is drawn again and again while something long runs; nothing in a pipe.

    Call it with a function that makes the text; it is called at most ten times a second, and not in the first `wait` seconds.
    """
    shown = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
    last, drawn = time.monotonic() + wait - 0.1, False

    def show(text: Callable[[], str]) -> None:
        nonlocal last, drawn
        if shown and time.monotonic() - last >= 0.1:
            sys.stderr.write(f"\r\x1b[K{text()}")
            sys.stderr.flush()
            last, drawn = time.monotonic(), True

    try:
        yield show
    finally:
        if drawn:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


def bar(done: int, total: int) -> str:
    """A bar of twenty cells."""
    filled = min(20, done * 20 // max(1, total))
    return f"{'█' * filled}{'░' * (20 - filled)}"


def amount(label: str, done: int, total: int | None) -> str:
    """An amount done, with a bar and a percentage if the total is known."""
    return f"{label} {bar(done, total)} {min(100, done * 100 // total)}%" if total else f"{label} {done}"


@contextmanager
def progress(label: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """A progress bar; call it with the amount done so far."""
    with status_line() as show:
        yield lambda done: show(lambda: amount(label, done, total))
