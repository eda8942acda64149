"""The history file of the terminal's prompt, without texts that are to be forgotten.

prompt_toolkit writes an entry as an empty line, a comment with the time, and the lines of the text, each after a `+`. It
opens the file for each line it adds, so the file may be replaced while a terminal is open.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Collection, Iterator
from pathlib import Path

from hermes.whole_files import write_whole

try:
    import fcntl
except ImportError:
    fcntl = None  # type: ignore[assignment]

_TRIES = 20  # while terminals add lines


def forget_texts(path: Path, texts: Collection[str]) -> None:
    """Remove the entries that are one of these texts, whatever spaces surround it; OSError when that is not possible."""
    wanted = {text.strip() for text in texts}
    for leftover in path.parent.glob(".history.*"):  # of a process that was killed while it rewrote the file
        leftover.unlink(missing_ok=True)
    for _ in range(_TRIES):
        try:
            before = path.stat()
            lines = path.read_bytes().decode("utf-8", "surrogateescape").split("\n")
        except FileNotFoundError:
            return
        kept = [line for entry, text in _entries(lines) if text is None or text.strip() not in wanted for line in entry]
        if kept == lines:
            return
        if _replaced(path, "\n".join(kept), before):
            return
    raise BlockingIOError(f"{path} is being written all the time")


def read_history(path: Path) -> str:
    """The text of the file."""
    return path.read_bytes().decode("utf-8", "replace")


def load_history(path: Path) -> list[str]:
    """The texts in the file, the newest first."""
    found = [text for _, text in _entries(read_history(path).split("\n")) if text is not None]
    return found[::-1]


def append_history(path: Path, data: bytes) -> None:
    """Add to the file; OSError when that fails."""
    handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if fcntl is not None:
            with contextlib.suppress(OSError):
                fcntl.flock(handle, fcntl.LOCK_EX)
        os.write(handle, data)
    finally:
        os.close(handle)


def replace_history(path: Path, text: str) -> None:
    """Put this text in place of the whole file."""
    path = Path(os.path.realpath(path))
    write_whole(path, text.encode("utf-8", "replace"), sync=False)


def _entries(lines: list[str]) -> Iterator[tuple[list[str], str | None]]:
    """The lines in groups: an entry with what stands before it, and its text; None after the last one."""
    group: list[str] = []
    for number, line in enumerate(lines):
        group.append(line)
        if line.startswith("+") and not "".join(lines[number + 1 : number + 2]).startswith("+"):
            yield group, "\n".join(one[1:] for one in group if one.startswith("+"))
            group = []
    if group:
        yield group, None


def _replaced(path: Path, text: str, before: os.stat_result) -> bool:
    """Put the text in place of the file, unless someone has written to it since."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".history.")  # made with mode 0600
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(text.encode("utf-8", "surrogateescape"))
            file.flush()
            os.fsync(file.fileno())
        now = path.stat()
        if (now.st_size, now.st_mtime_ns, now.st_ino) != (before.st_size, before.st_mtime_ns, before.st_ino):
            return False
        os.replace(name, os.path.realpath(path))
        return True
    finally:
        Path(name).unlink(missing_ok=True)
