"""Drafts: the received part of a reply that is still being streamed.

A message can only be stored when it is whole. Until then its text is in a small file, written again with each piece, so
that a process killed in the middle of a reply loses no word that was shown. The writer holds a lock on the file; the
system releases the lock when the process dies, which distinguishes an abandoned draft from one in progress. Of an encrypted
store the text is in the table `drafts`, and the file is empty: it is only the lock.

Secrets are masked in it as well. A secret may arrive in several pieces, so the last line is masked again with each of them
(secrets are on one line, except in private keys, .netrc files and continued commands: those count as one line), and the
end of it waits as long as it may be the beginning of a secret: `ghp_abc`, or what follows `password: `.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from hermes.errors import StoreError
from hermes.home import companion, make_private
from hermes.store.codec import Blob
from hermes.store.engines.base import Engine

_LONGEST_LINE = 32_000  # characters that are masked again with each piece; a longer line is taken as two
_REACH = 1_000  # characters before the end of a line in which the name of a secret is searched
# What may follow the beginning of a secret: with one of these behind it, masking recognises it.
_ENDING = "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8s9T0u1V2w3X4y5Z6a1B2c3D4e5F6g7H8i9J0"
_NETRC_LINES = 4  # machine, login, account, password
_OF_ONE_LENGTH = re.compile(
    r"(?:A[KSBC]|SK)[A-Za-z0-9]*$|[0-9]{6}:[\w-]*$|SG\.[\w-]*$|key-[0-9a-z]*$"
)  # recognised by their length
_MAILGUN = re.compile(r"(?<![\w-])[0-9a-f]{8,32}(?:-[0-9a-f]{0,8}){0,2}$")
_MAILGUN_ENDING = f"{'0' * 32}-{'0' * 8}-{'0' * 8}"


@dataclass(slots=True, frozen=True)
class LeftBehind:
    """A reply that was never finished: its text, the last message stored before it began, and the model."""

    text: str
    after: int
    model: str | None


class Drafts:
    """The drafts of one store, in files; those of an encrypted one are `inside` its database."""

    def __init__(self, engine: Engine, database: Path, *, inside: bool) -> None:
        self.folder, self.inside, self._engine = companion(database, "drafts"), inside, engine

    def path(self, session_id: str) -> Path:
        """The file of a session's draft. Its id may hold any character, so the file is named by a hash."""
        return self.folder / hashlib.sha256(session_id.encode("utf-8", "surrogatepass")).hexdigest()[:32]

    def begin(
        self, session_id: str, *, after: int, model: str | None, mask: Callable[[str], str] | None = None
    ) -> Draft:
        """The draft of a reply that begins after this message; `mask` masks secrets in a text (None: there is no need)."""
        head = json.dumps({"session": session_id, "after": after, "model": model}).encode() + b"\n"
        return Draft(self, self.path(session_id), head, mask or str)

    @contextlib.contextmanager
    def left_behind(self, session_id: str) -> Iterator[LeftBehind | None]:
        """The draft that a dead process left for a session, or None. It is deleted when the block ends without an error."""
        path = self.path(session_id)
        try:
            if self.inside and self._row(path) is None:
                raise FileNotFoundError
            handle = open_locked(path, make=self.inside)
        except OSError:
            yield None
            return
        if handle is None:  # its writer is running
            yield None
            return
        try:
            yield _parsed(self._row(path) or b"" if self.inside else path.read_bytes(), session_id)
            self.forget(session_id)
        finally:
            os.close(handle)

    def forget(self, session_id: str) -> None:
        """Remove the draft of a session."""
        path = self.path(session_id)
        if self.inside and self._row(path) is not None:
            with contextlib.suppress(StoreError), self._engine.write(alone=False) as tx:
                tx.run("DELETE FROM drafts WHERE name = ?", (path.name,))
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)

    def sessions(self) -> list[str]:
        """The sessions with a draft, of a running process or of one that is gone."""
        found = []
        for data in self._all():
            with contextlib.suppress(ValueError, KeyError, TypeError):  # not begun yet
                found.append(str(json.loads(data.partition(b"\n")[0])["session"]))
        return found

    def _all(self) -> Iterator[bytes]:
        if self.inside:
            with self._engine.read() as tx:
                yield from [bytes(row[0]) for row in tx.rows("SELECT data FROM drafts ORDER BY name")]
            return
        with contextlib.suppress(OSError):
            for path in sorted(self.folder.iterdir()):
                with contextlib.suppress(OSError):  # removed meanwhile
                    yield path.read_bytes()

    def _row(self, path: Path) -> bytes | None:
        with self._engine.read() as tx:
            data = tx.value("SELECT data FROM drafts WHERE name = ?", (path.name,))
        return None if data is None else bytes(data)

    def save(self, path: Path, handle: int, data: bytes, same: int, before: int) -> None:
        """Put this in place of a draft, which had `before` bytes, `same` of them as now; it survives the death of the process."""
        if not self.inside:
            os.pwrite(handle, data[same:], same)
            if len(data) < before:
                os.ftruncate(handle, len(data))
            return
        with self._engine.write(alone=False, lasting=False) as tx:
            sql = "INSERT INTO drafts(name, data) VALUES(?, ?) ON CONFLICT(name) DO UPDATE SET data = excluded.data"
            tx.run(sql, (path.name, Blob(data)))


class Draft:
    """A reply in progress. No file is created before the first piece; without a writable folder there is no draft."""

    def __init__(self, drafts: Drafts, path: Path, head: bytes, mask: Callable[[str], str]) -> None:
        self._drafts, self._path, self._head, self._mask = drafts, path, head, mask
        self._handle: int | None = None
        self._useless = False
        self._stale = False
        self._done = b""  # masked, up to the last line
        self._same = 0  # how much of what is written stays as it is
        self._length = 0  # how much is written
        self._line = ""  # the last text, from where a secret could reach into the next piece

    def write(self, text: str) -> None:
        """Add a piece; once this returns, it survives the death of the process."""
        if self._useless or not text:
            return
        try:
            if self._handle is None and (handle := open_locked(self._path, make=True)) is not None:
                self._handle, self._length = handle, os.fstat(handle).st_size  # an unreadable one of a dead process
            if self._handle is None:  # another process writes in this session: the draft is its own
                self._useless = True
                return
            if self._stale:
                self._stale, self._done, self._line, self._same = False, b"", "", 0
            self._line += text
            begins = _last_line(self._line)
            done, self._line = self._mask(self._line[:begins]), self._line[begins:]
            self._done += done.encode(errors="replace")
            self._save(_certain(self._mask, self._line))
        except (OSError, StoreError):  # a full disk must not stop the reply; the message itself is what matters
            self._useless = True

    def _save(self, line: str) -> None:
        assert self._handle is not None
        data = self._head + self._done + line.encode(errors="replace")
        self._drafts.save(self._path, self._handle, data, self._same, self._length)
        self._same, self._length = len(self._head) + len(self._done), len(data)

    def restart(self) -> None:
        """The reply starts over: the old text stays until the first new piece replaces it."""
        self._stale = True

    def close(self, *, keep: bool) -> None:
        """The reply is stored, or there is none: the draft is no longer needed. `keep` leaves it for `left_behind`."""
        if self._handle is None:
            return
        with contextlib.suppress(OSError, StoreError):
            if not keep:
                self._drafts.forget(str(json.loads(self._head)["session"]))
            else:  # nothing more comes: the withheld end can be written
                self._save(self._mask(self._line))
        os.close(self._handle)
        self._handle = None


def _last_line(text: str) -> int:
    """The start of the part that a secret completed by the next piece may include."""
    begins = text.rfind("\n") + 1
    key = text.rfind("-----BEGIN ")
    if key >= 0 and "\n" not in text[max(text.find("-----END ", key), key) :].partition("-----END ")[2]:
        begins = min(begins, key)
    machine = text.rfind("machine ", max(0, begins - _REACH))
    if machine >= 0 and text.count("\n", machine) <= _NETRC_LINES:
        begins = min(begins, machine)
    while text.endswith("\\\n", 0, begins):
        begins = text.rfind("\n", 0, begins - 1) + 1
    return begins if len(text) - begins <= _LONGEST_LINE else len(text)


def _certain(mask: Callable[[str], str], line: str) -> str:
    """An unfinished line, masked, without what may become a secret at its end."""
    masked = mask(line)
    if not line or line[-1].isspace() or not line[-1].isascii():
        return masked
    tail = masked[-_REACH:]
    for ending in _endings(tail):
        longer = mask(tail + ending)
        if not longer.endswith(ending):  # the ending became part of a secret, and so would what is there of it
            return masked[: len(masked) - len(tail)] + longer[: longer.rindex("[masked:")]
    return masked


def _endings(tail: str) -> Iterator[str]:
    """The endings with which a text would hold a secret, if its end is the beginning of one."""
    yield _ENDING
    for quote in ('\\\\\\"', '\\"', '"', "'", "`"):
        if quote in tail:
            yield _ENDING + quote
            yield from ("A" * count + "Onh4" + quote for count in range(4))  # base64 of a name and a password
    if "://" in tail:
        yield _ENDING + "@host"
    if "eyJ" in tail:
        yield f"{_ENDING}.eyJ{_ENDING}.{_ENDING}"
        yield f"{_ENDING}.{_ENDING}"
    if "asic" in tail:
        yield from ("A" * count + "Onh4" for count in range(4))
    if _OF_ONE_LENGTH.search(tail):
        yield from ("0" * count for count in range(1, 37))
        yield from (f"{'0' * count}.{_ENDING[:43]}" for count in range(23))
    if begun := _MAILGUN.search(tail):
        yield _MAILGUN_ENDING[len(begun[0]) :]


def open_locked(path: Path, *, make: bool) -> int | None:
    """A descriptor of the file with its lock; None while another one has it. OSError when there is no file."""
    flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if make else 0)
    if make:
        make_private(path.parent)
    handle = os.open(path, flags, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(handle).st_nlink:  # its name still refers to it
            return handle
    except OSError:
        pass
    os.close(handle)
    return None


def _parsed(content: bytes, session_id: str) -> LeftBehind | None:
    head, _, rest = content.partition(b"\n")
    try:
        known = json.loads(head)
        text = rest.decode(errors="ignore")  # a character cut in half by the end is not a character
        if known["session"] == session_id and text:
            return LeftBehind(text, int(known["after"]), known["model"])
    except (ValueError, KeyError, TypeError):
        pass  # killed before its first line was whole
    return None
