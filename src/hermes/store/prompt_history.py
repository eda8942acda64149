"""The history file of the terminal's prompt, without texts that are to be forgotten.

prompt_toolkit writes an entry as an empty line, a comment with the time, and the lines of the text, each after a `+`. Terminals
add entries, and the file is changed, in place and under a lock of it.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Collection, Iterator
from pathlib import Path


def forget_texts(path: Path, texts: Collection[str]) -> None:
    """Remove the entries that are one of these texts, whatever spaces surround it; OSError when that is not possible."""
    wanted = {text.strip() for text in texts}

    def without(whole: str) -> str:
        kept = (lines for lines, text in _entries(whole.split("\n")) if text is None or text.strip() not in wanted)
        return "\n".join(line for lines in kept for line in lines)

    rewrite_history(path, without)


def rewrite_history(path: Path, change: Callable[[str], str]) -> None:
    """Change the text of the file, if there is one; OSError when that is not possible."""
    if not path.exists() or change(text := _read(path)) == text:
        return
    with os.fdopen(os.open(path, os.O_RDWR | os.O_CLOEXEC), "r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        os.fchmod(file.fileno(), 0o600)
        changed = change(_read(path)).encode("utf-8", "surrogateescape")  # terminals may have added to it
        file.write(changed)
        file.truncate()
        file.flush()
        os.fsync(file.fileno())


def _read(path: Path) -> str:
    return path.read_bytes().decode("utf-8", "surrogateescape")


def load_history(path: Path) -> list[str]:
    """The texts in the file, the newest first."""
    lines = path.read_bytes().decode("utf-8", "replace").split("\n")
    return [text for _, text in _entries(lines) if text is not None][::-1]


def append_history(path: Path, data: bytes) -> None:
    """Add to the file; OSError when that fails."""
    handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    with os.fdopen(handle, "ab", buffering=0) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write(data)


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
