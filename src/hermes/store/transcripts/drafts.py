"""Drafts: the received part of a reply that is still being streamed.

A message can only be stored when it is whole. Until then its text is in a small file, written again with each piece, so
that a process killed in the middle of a reply loses at most the last word that was shown. It belongs to the process that
holds the session for its turn (leases.py): a draft of a session that no process answers in was left behind. Of an encrypted
store the text is in the table `drafts`.

Secrets are masked in it as well. A secret may arrive in several pieces, so the whole text is masked again with each of them, and
a last word that is long enough to be the beginning of a token waits for its end.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from hermes.errors import StoreError
from hermes.home import companion, make_private
from hermes.store.engines.base import Engine
from hermes.store.leases import OPEN, is_gone, session_lease
from hermes.store.records.codec import Blob

_REACH = 500  # characters before the end of a text in which the name of a secret is searched
_LONG_WORD = re.compile(r"[!-~]{8,}$")  # unless it is a plain word, it may become a token


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
        return Draft(self, session_id, head, mask or str)

    @contextlib.contextmanager
    def left_behind(self, session_id: str) -> Iterator[LeftBehind | None]:
        """The draft of a session that no other process answers in, or None: the caller holds it for a turn.

        It is deleted when the block ends without an error.
        """
        data = self._read(session_id)
        yield None if data is None else _parsed(data, session_id)
        if data is not None:
            self.forget(session_id)

    def exists(self, session_id: str) -> bool:
        """Whether a session has a draft, of any process."""
        return self._read(session_id) is not None

    def is_abandoned(self, session_id: str) -> bool:
        """Whether a session has a draft, and no process answers there; also not one that was suspended for long."""
        if not self.exists(session_id):
            return False
        with self._engine.read() as tx:
            sql = "SELECT holder FROM leases WHERE name = ? AND coalesce(reason, '') <> ?"
            holder = tx.value(sql, (session_lease(session_id), OPEN))
        return holder is None or is_gone(str(holder))

    # ------------------------------------------------------------------------------------------ rows or files

    def _read(self, session_id: str) -> bytes | None:
        path = self.path(session_id)
        if self.inside:
            with self._engine.read() as tx:
                data = tx.value("SELECT data FROM drafts WHERE name = ?", (path.name,))
            return None if data is None else bytes(data)
        try:
            return path.read_bytes()
        except OSError:
            return None

    def save(self, session_id: str, data: bytes) -> None:
        """Replace a session's draft; it survives the death of the process."""
        path = self.path(session_id)
        if self.inside:
            with self._engine.write(exclusive=False, durable=False) as tx:
                sql = "INSERT INTO drafts(name, data) VALUES(?, ?) ON CONFLICT(name) DO UPDATE SET data = excluded.data"
                tx.run(sql, (path.name, Blob(data)))
            return
        make_private(self.folder)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:  # in place: a process killed here leaves no other file with the text
            os.ftruncate(handle, len(data))
            os.pwrite(handle, data, 0)
        finally:
            os.close(handle)

    def forget(self, session_id: str) -> None:
        """Remove the draft of a session."""
        path = self.path(session_id)
        if self.inside and self.exists(session_id):
            with contextlib.suppress(StoreError), self._engine.write(exclusive=False) as tx:
                tx.run("DELETE FROM drafts WHERE name = ?", (path.name,))
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)


class Draft:
    """A reply in progress. No file is created before the first piece; without a writable folder there is no draft."""

    def __init__(self, drafts: Drafts, session_id: str, head: bytes, mask: Callable[[str], str]) -> None:
        self._drafts, self._session_id, self._head, self._mask = drafts, session_id, head, mask
        self._text = ""  # as it came
        self._useless = False
        self._stale = False

    def write(self, text: str) -> None:
        """Add a piece; once this returns, it survives the death of the process."""
        if not text:
            return
        self._text = text if self._stale else self._text + text
        self._stale = False
        word = _LONG_WORD.search(self._text)
        self._save(self._text if word is None or word[0].isalpha() else self._text[: word.start()])

    def _save(self, text: str) -> None:
        if self._useless:
            return
        try:
            self._drafts.save(self._session_id, self._head + self._masked(text).encode(errors="replace"))
        except (OSError, StoreError):  # a full disk must not stop the reply; the message itself is what matters
            self._useless = True

    def _masked(self, text: str) -> str:
        masked = self._mask(text)
        before, end = masked[:-_REACH], masked[-_REACH:]
        for quote in "'\"":  # a value in quotes is known as a secret when they are closed
            end = self._mask(end + quote).removesuffix(quote)
        return before + end

    def restart(self) -> None:
        """The reply starts over: the old text stays until the first new piece replaces it."""
        self._stale = True

    def close(self, *, keep: bool) -> None:
        """The reply is stored, or there is none: the draft is no longer needed. `keep` leaves it for `left_behind`."""
        if self._text and keep:
            self._save(self._text)  # nothing more comes: the last word need not wait
        elif self._text:
            with contextlib.suppress(StoreError):
                self._drafts.forget(self._session_id)


def _parsed(content: bytes, session_id: str) -> LeftBehind | None:
    head, _, rest = content.partition(b"\n")
    try:
        known = json.loads(head)
        text = rest.decode(errors="ignore")  # a character cut in half by the end is not a character
        if known["session"] == session_id and text:
            return LeftBehind(text, int(known["after"]), known["model"])
    except (ValueError, KeyError, TypeError):
        pass  # damaged
    return None
