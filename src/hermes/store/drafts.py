"""Drafts: what has arrived of a reply that is still being streamed.

A message can only be stored when it is whole. Until then its text lies in a small file that grows with each piece, so
that a process killed in the middle of a reply loses no word that was shown. The writer holds a lock on the file; the
system takes the lock back when the process dies, and that is how a draft left behind is told from one in the making.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hermes.home import companion, make_private


@dataclass(slots=True, frozen=True)
class LeftBehind:
    """A reply that was never finished: its text, the last message stored before it began, and who was speaking."""

    text: str
    after: int
    model: str | None


def _place(database: Path, session_id: str) -> Path:
    """The draft of a session. Its id may hold any character, so the file is named by a hash."""
    return companion(database, "drafts") / hashlib.sha256(session_id.encode()).hexdigest()[:32]


class Draft:
    """A reply in the making. No file is made before the first piece; a place that can't be written is done without."""

    def __init__(self, database: Path, session_id: str, *, after: int, model: str | None) -> None:
        self._path = _place(database, session_id)
        self._head = json.dumps({"session": session_id, "after": after, "model": model}).encode() + b"\n"
        self._handle: int | None = None
        self._useless = False
        self._stale = False

    def write(self, text: str) -> None:
        """Add a piece; once this returns, the death of the process can't take it away."""
        if self._useless or not text:
            return
        try:
            if self._handle is None:
                self._begin()
            if self._handle is not None:
                if self._stale:
                    os.ftruncate(self._handle, len(self._head))
                    self._stale = False
                os.write(self._handle, text.encode(errors="replace"))
        except OSError:  # a full disk must not stop the reply; the message itself is stored, or fails, by its own rules
            self._useless = True

    def _begin(self) -> None:
        make_private(self._path.parent)
        handle = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        if not _locked(handle):  # another process speaks in this session too: the draft is theirs
            os.close(handle)
            self._useless = True
            return
        os.ftruncate(handle, 0)
        os.write(handle, self._head)
        self._handle = handle

    def restart(self) -> None:
        """The reply begins anew: the old text stays until the first new piece replaces it."""
        self._stale = True

    def close(self, *, keep: bool) -> None:
        """The reply is stored, or there is none: the draft has done its work. `keep` leaves it for `left_behind`."""
        if self._handle is not None:
            if not keep:
                with contextlib.suppress(OSError):
                    self._path.unlink(missing_ok=True)
            os.close(self._handle)
            self._handle = None


def forget(database: Path, session_id: str) -> None:
    """Remove the draft of a session that is deleted."""
    with contextlib.suppress(OSError):
        _place(database, session_id).unlink(missing_ok=True)


@contextlib.contextmanager
def left_behind(database: Path, session_id: str) -> Iterator[LeftBehind | None]:
    """The draft a dead process left for a session, or None. It is gone when the block ends without an error."""
    path = _place(database, session_id)
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        yield None
        return
    try:
        if not _locked(handle):  # its writer lives
            yield None
            return
        yield _read(handle, session_id)
        path.unlink(missing_ok=True)
    finally:
        os.close(handle)


def _locked(handle: int) -> bool:
    """Whether the file is ours now, and still the one its name stands for."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return os.fstat(handle).st_nlink > 0


def _read(handle: int, session_id: str) -> LeftBehind | None:
    with os.fdopen(os.dup(handle), "rb") as file:
        head, _, rest = file.read().partition(b"\n")
    try:
        known = json.loads(head)
        text = rest.decode(errors="ignore")  # a character cut in half by the end is not a character
        if known["session"] == session_id and text:
            return LeftBehind(text, int(known["after"]), known["model"])
    except (ValueError, KeyError, TypeError):
        pass  # killed before its first line was whole
    return None
