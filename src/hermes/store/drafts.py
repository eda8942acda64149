"""Drafts: the received part of a reply that is still being streamed.

A message can only be stored when it is whole. Until then its text is in a small file that grows with each piece, so
that a process killed in the middle of a reply loses no word that was shown. The writer holds a lock on the file; the
system releases the lock when the process dies, which distinguishes an abandoned draft from one in progress.

Secrets are masked in it as well. A secret may arrive in several pieces, so the last line is written again with each of them
(secrets are on one line, except private keys: their block counts as one), and the end of it waits as long as it may be
the beginning of a secret: `ghp_abc`, or what follows `password: `.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from hermes.errors import StoreError
from hermes.home import companion, has_key_file, make_private
from hermes.store import sealed_files

if TYPE_CHECKING:
    from hermes.store import encryption_keys

_LONGEST_LINE = 32_000  # characters that are written again with each piece; a longer line is taken as two
_REACH = 1_000  # characters before the end of a line in which the name of a secret is searched
# What may follow the beginning of a secret: with one of these behind it, masking recognises it.
_ENDING = "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8s9T0u1V2w3X4y5Z6a1B2c3D4e5F6g7H8i9J0"
_LENGTH = struct.Struct("<Q")
_WHOLE = 2**64 - 1  # nothing is cut
_OF_ONE_LENGTH = re.compile(r"(?:A[KSBC]|SK)[A-Za-z0-9]*$|[0-9]{6}:[\w-]*$|SG\.[\w-]*$")  # recognised by their length


@dataclass(slots=True, frozen=True)
class LeftBehind:
    """A reply that was never finished: its text, the last message stored before it began, and the model."""

    text: str
    after: int
    model: str | None


def _key_of(database: Path) -> encryption_keys.DataKey | None:
    from hermes.store import encryption_keys

    return encryption_keys.writing_key(database)


def draft_path(database: Path, session_id: str) -> Path:
    """The draft of a session. Its id may hold any character, so the file is named by a hash."""
    return Path(_draft_name(database, session_id))


@lru_cache(maxsize=1000)
def _draft_name(database: Path, session_id: str) -> str:
    return str(
        companion(database, "drafts") / hashlib.sha256(session_id.encode("utf-8", "surrogatepass")).hexdigest()[:32]
    )


class Draft:
    """A reply in progress. No file is created before the first piece; without a writable folder there is no draft."""

    def __init__(
        self,
        database: Path,
        session_id: str,
        *,
        after: int,
        model: str | None,
        mask: Callable[[str], str] | None = None,
    ) -> None:
        """`mask` masks secrets in a text; None: there is no need."""
        self._path = _draft_name(database, session_id)
        self._head = json.dumps({"session": session_id, "after": after, "model": model}).encode() + b"\n"
        self._handle: int | None = None
        self._useless = False
        self._stale = False
        self._mask = mask
        self._key = _key_of(database) if has_key_file(database) else None
        self._seal: sealed_files.Seal | None = None
        self._told = b""  # in an encrypted draft: what is written of the last line
        self._line = ""  # the last text, from where a secret could reach into the next piece
        self._line_at = len(self._head)  # where it begins in the file
        self._length = 0  # how much of a plain draft is written

    def write(self, text: str) -> None:
        """Add a piece; once this returns, it survives the death of the process."""
        if self._useless or not text:
            return
        try:
            if self._handle is None:
                self._begin()
            if self._handle is not None:
                if self._stale:
                    self._cut(self._handle, len(self._head))
                    self._stale = False
                    self._line, self._line_at = "", len(self._head)
                if self._mask is None:
                    self._add(self._handle, text.encode(errors="replace"))
                else:
                    self._write_masked(self._handle, text, self._mask)
        except OSError:  # a full disk must not stop the reply; the message itself is stored, or fails, by its own rules
            self._useless = True

    def _write_masked(self, handle: int, text: str, mask: Callable[[str], str]) -> None:
        self._line += text
        begins = _last_line(self._line)
        done = mask(self._line[:begins]).encode(errors="replace")
        rest = _certain(mask, self._line[begins:])
        shown = rest.encode(errors="replace")
        self._put(handle, done + shown)
        self._line, self._line_at, self._told = self._line[begins:], self._line_at + len(done), shown

    # A plain draft is the head and the text. An encrypted one is a sealed file whose pieces are changes: eight bytes with the
    # length to which the text so far is cut, and what follows from there.

    def _add(self, handle: int, data: bytes) -> None:
        if self._seal is not None:
            self._add_change(handle, _WHOLE, data)
            return
        os.lseek(handle, 0, os.SEEK_END)
        self._length += os.write(handle, data if self._length else self._head + data)

    def _cut(self, handle: int, length: int) -> None:
        if self._seal is None:
            os.ftruncate(handle, length)
            self._length = min(self._length, length)
        else:
            self._add_change(handle, length, b"")
            self._told = b""

    def _put(self, handle: int, data: bytes) -> None:
        """Replace the text from the last line on."""
        if self._seal is None:
            head = self._head if self._length == 0 else b""
            os.pwrite(handle, head + data, self._line_at - len(head))
            end = self._line_at + len(data)
            if end < self._length:
                os.ftruncate(handle, end)
            self._length = end
            return
        same = next((at for at, pair in enumerate(zip(self._told, data)) if pair[0] != pair[1]), len(self._told))
        same = min(same, len(data))
        self._add_change(handle, self._line_at + same, data[same:])

    def _add_change(self, handle: int, length: int, data: bytes) -> None:
        if self._seal is not None:
            os.lseek(handle, 0, os.SEEK_END)
            os.write(handle, self._seal.piece(_LENGTH.pack(length) + data))

    def _begin(self) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        try:
            handle = os.open(self._path, flags, 0o600)
        except FileNotFoundError:
            make_private(Path(self._path).parent)
            handle = os.open(self._path, flags, 0o600)
        if not _locked(handle):  # another process writes in this session: the draft is its own
            os.close(handle)
            self._useless = True
            return
        if os.fstat(handle).st_size:  # an unreadable one that a dead process left
            os.ftruncate(handle, 0)
        self._length = 0  # a plain one is written with its head at the first piece
        if self._key is not None:
            self._seal = sealed_files.Seal(self._key)
            os.write(handle, self._seal.header + self._seal.piece(_LENGTH.pack(0) + self._head))
            self._told = b""
        self._handle = handle

    def restart(self) -> None:
        """The reply starts over: the old text stays until the first new piece replaces it."""
        self._stale = True

    def close(self, *, keep: bool) -> None:
        """The reply is stored, or there is none: the draft is no longer needed. `keep` leaves it for `left_behind`."""
        if self._handle is not None:
            if keep and self._mask is not None:  # nothing more comes: the withheld end can be written
                with contextlib.suppress(OSError):
                    self._put(self._handle, self._mask(self._line).encode(errors="replace"))
            if not keep:
                with contextlib.suppress(OSError):
                    os.unlink(self._path)
            os.close(self._handle)
            self._handle = None


def _last_line(text: str) -> int:
    """The start of the part that a secret completed by the next piece may include."""
    begins = text.rfind("\n") + 1
    key = text.rfind("-----BEGIN ")
    if key >= 0 and "\n" not in text[max(text.find("-----END ", key), key) :].partition("-----END ")[2]:
        begins = min(begins, key)
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


def forget(database: Path, session_id: str) -> None:
    """Remove the draft of a session that is deleted."""
    with contextlib.suppress(OSError):
        draft_path(database, session_id).unlink(missing_ok=True)


@contextlib.contextmanager
def left_behind(database: Path, session_id: str) -> Iterator[LeftBehind | None]:
    """The draft that a dead process left for a session, or None. It is deleted when the block ends without an error."""
    try:
        handle = os.open(_draft_name(database, session_id), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        yield None
        return
    path = draft_path(database, session_id)
    try:
        if not _locked(handle):  # its writer is running
            yield None
            return
        yield _read(handle, session_id, path)
        path.unlink(missing_ok=True)
    finally:
        os.close(handle)


def drafted(database: Path) -> list[str]:
    """The sessions with a draft, of a running process or of one that is gone."""
    found = []
    for path in _files(companion(database, "drafts")):
        try:
            with path.open("rb") as file:
                found.append(str(json.loads(file.readline())["session"]))
        except (OSError, ValueError, KeyError, TypeError):
            continue  # removed meanwhile, or not begun yet
    return found


def _files(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _locked(handle: int) -> bool:
    """Whether we locked the file, and its name still refers to it."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return os.fstat(handle).st_nlink > 0


def draft_content(raw: bytes, path: Path) -> bytes:
    """The head and the text of a draft from the bytes of its file, encrypted or not."""
    try:
        seal = sealed_files.seal_of(raw[: sealed_files.HEADER], path)
    except StoreError:
        return b""
    if seal is None:
        return b"" if sealed_files.is_sealed(raw) else raw
    text = b""
    for change, whole in seal.pieces(raw, sealed_files.HEADER):
        if whole and len(change) >= _LENGTH.size:
            text = text[: _LENGTH.unpack_from(change)[0]] + change[_LENGTH.size :]
    return text


def sealed_draft(content: bytes, key: encryption_keys.DataKey) -> bytes:
    """The inverse of draft_content()."""
    seal = sealed_files.Seal(key)
    return seal.header + seal.piece(_LENGTH.pack(0) + content)


def _read(handle: int, session_id: str, path: Path) -> LeftBehind | None:
    with os.fdopen(os.dup(handle), "rb") as file:
        head, _, rest = draft_content(file.read(), path).partition(b"\n")
    try:
        known = json.loads(head)
        text = rest.decode(errors="ignore")  # a character cut in half by the end is not a character
        if known["session"] == session_id and text:
            return LeftBehind(text, int(known["after"]), known["model"])
    except (ValueError, KeyError, TypeError):
        pass  # killed before its first line was whole
    return None
