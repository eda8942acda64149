"""A program's output, limited in size and made readable.

A program can print gigabytes; only the beginning and the end are stored, with a note of the gap. The text is decoded
from any bytes, without what only a terminal understands (colours, cursor movements, progress bars that
write over themselves).
"""

from __future__ import annotations

import re
import threading
from typing import Final

from hermes.texts import without_middle

FIRST_BYTES: Final = 200_000
LAST_BYTES: Final = 800_000
SHOWN_CHARS: Final = 40_000

_ESCAPES: Final = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # colours, cursor
    r"|\x1b[\]PX^_].*?(?:\x07|\x1b\\|$)"  # titles, links and other strings for the terminal
    r"|\x1b[ -/]*[0-~]"
    r"|\x9b[0-?]*[ -/]*[@-~]",
    re.S,
)
_CONTROLS: Final = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_ERASED: Final = re.compile(r"[^\n\x08]\x08")


class Output:
    """The bytes of one program; offsets count from its first byte. Safe to use from several threads."""

    def __init__(self, first: int = FIRST_BYTES, last: int = LAST_BYTES) -> None:
        self._lock = threading.Lock()
        self._first_limit, self._last_limit = first, last
        self._first = bytearray()
        self._last = bytearray()
        self.size = 0

    def add(self, data: bytes) -> None:
        """Add output."""
        with self._lock:
            self.size += len(data)
            room = self._first_limit - len(self._first)
            if room > 0:
                self._first += data[:room]
                data = data[room:]
            self._last += data
            if len(self._last) > self._last_limit * 2:  # cut occasionally, not at every byte
                del self._last[: len(self._last) - self._last_limit]

    def end(self, size: int = 4_096) -> str:
        """The readable text of the last bytes, without a line whose beginning is not among them."""
        with self._lock:
            data = bytes(self._last[-size:])
            if len(data) < size:
                data = bytes(self._first[-(size - len(data)) :]) + data
            cut = len(data) < self.size
        text = readable(data.decode("utf-8", "replace"))
        return text.partition("\n")[2] or text if cut else text

    def since(self, offset: int = 0, limit: int | None = None) -> tuple[str, int]:
        """The readable text from an offset on, and the next offset.

        Where a part was dropped, or exceeds a `limit` of characters, a note in the middle says so.
        """
        with self._lock:
            first = bytes(self._first[offset:]) if offset < len(self._first) else b""
            start = self.size - len(self._last)
            last = bytes(self._last[max(0, offset - start) :])
            gap = max(0, start - max(offset, len(self._first)))
            size = self.size
        if not gap:
            text = readable((first + last).decode("utf-8", "replace"))
            return (text if limit is None else without_middle(text, limit, first=1 / 3)), size
        head, tail = readable(first.decode("utf-8", "replace")), readable(last.decode("utf-8", "replace"))
        if limit is not None:
            gap += max(0, len(head) - limit // 3) + max(0, len(tail) - limit * 2 // 3)
            head, tail = head[: limit // 3], tail[-(limit * 2 // 3) :]
        return f"{head}\n[… about {gap:,} characters left out …]\n{tail}", size


def readable(text: str) -> str:
    """The text a person would have seen in a terminal, without colours."""
    text = _ESCAPES.sub("", text.replace("\r\n", "\n"))
    while "\x08" in text:
        shorter = _ERASED.sub("", text)
        if shorter == text:
            break
        text = shorter
    if "\r" in text:  # a progress bar: the last state of each line counts
        text = "\n".join(_last_state(line) for line in text.split("\n"))
    return _CONTROLS.sub("", text)


def _last_state(line: str) -> str:
    return next((part for part in reversed(line.split("\r")) if part.strip()), "")


def last_lines(text: str, count: int) -> str:
    """The last lines, and how many there were before them."""
    lines = text.rstrip("\n").split("\n")
    if len(lines) <= count:
        return text
    return f"[… {len(lines) - count:,} lines before …]\n" + "\n".join(lines[-count:])
