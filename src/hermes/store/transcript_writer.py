"""Writes, after each commit, the line for it into the session's transcript.

Knows which sessions have a transcript, what a line holds, and how to repair files that a crash left incomplete. It never
raises to a caller whose change is already committed to the database.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hermes.errors import StoreError
from hermes.store import codec, transcript_replay
from hermes.store.attachments import PREFIX, Attachments, listed
from hermes.store.carried_messages import SHELL, Touched
from hermes.store.engines.base import Engine
from hermes.store.message_values import Ready, StoredColumns
from hermes.store.transcript import Entry, Journal, event, line

if TYPE_CHECKING:
    from hermes.store.encryption_keys import DataKey

_NOT_GATEWAY = frozenset(("cli", "acp", "batch", "cron", "web"))
_RAW = frozenset(codec.JSON_FIELDS)
_LEFT_OUT = frozenset(("content", "content_rest", "content_format", "writer"))


class TranscriptWriter:
    """Writes the transcripts of one store."""

    def __init__(
        self, engine: Engine, folder: Path, which: str, attachments: Attachments, key: DataKey | None = None
    ) -> None:
        self.which = which
        self.also_in: Path | None = None  # a further folder to remove transcripts of deleted sessions from
        self._attachments = attachments
        self.journal = Journal(folder, key)
        self._engine = engine
        self._kept: dict[str, bool] = {}  # sessions whose transcript is known to exist, or not wanted
        self._warned = False
        self._missed: set[str] = set()  # sessions changed here that have a transcript this process does not write
        self._underway: dict[int, set[str]] = {}  # by thread: sessions it is changing, until their lines are written
        engine.on_adopted = self._adopted
        engine.on_unsure = self._unsure

    def _adopted(self, sessions: Iterable[str]) -> None:
        """Another program wrote messages: write their lines as well."""
        for session_id in sessions:
            if self._keeps(session_id, fresh=True):
                self._fill_in(session_id)

    def _unsure(self, sessions: Iterable[str]) -> None:
        """These sessions were changed although their caller gets an error: write their lines."""
        for session_id in sessions:
            if self._keeps(session_id, fresh=True):
                self._fill_in(session_id, rewrite=self._removal_pending(session_id))

    def wanted(self, source: str) -> bool:
        """Whether sessions of this source have transcripts."""
        return self.which == "all" or (self.which == "gateway" and source not in _NOT_GATEWAY)

    def close(self) -> None:
        """Close the files. The lines of changes that other threads have just committed are written at the next opening."""
        here = threading.get_ident()
        others = [sessions for thread, sessions in list(self._underway.items()) if thread != here]
        self.journal.close({session_id for sessions in others for session_id in list(sessions)})

    def intends(self, session_id: str) -> None:
        """A session is about to be changed: if this process dies in between, the next one completes its transcript."""
        if self.which == "off":
            return
        if session_id not in self.journal.touched:
            self.journal.mark(session_id)
        here = threading.get_ident()
        mine = self._underway.get(here)
        if mine is None:
            self._underway[here] = {session_id}
        else:
            mine.add(session_id)

    def _settled(self, session_id: str) -> None:
        """This thread's change is in the transcript, or the session has none."""
        mine = self._underway.get(threading.get_ident())
        if mine is not None:
            mine.discard(session_id)

    def repair(self) -> None:
        """Write the lines that crashed processes (or failed writes) left out, and remove the files they left over."""
        if self.which == "off":
            return
        left = self.journal.left_behind()
        for session_id in dict.fromkeys(one for _, ids in left for one in ids):  # each once for all processes
            self._mend(session_id)
        if not self.journal.behind:
            for mark, _ in left:
                mark.unlink(missing_ok=True)
        if left:
            self.prompt_dropped()
        with self._engine.read() as tx:
            behind = [row[0] for row in tx.rows("SELECT id FROM sessions WHERE transcript = 0")]
        for session_id in behind:
            self._fill_in(session_id, rewrite=self._removal_pending(session_id))

    def _mend(self, session_id: str) -> None:
        with self._engine.read() as tx:
            row = tx.row("SELECT source, transcript FROM sessions WHERE id = ?", (session_id,))
            deleted = row is None and tx.row(
                "SELECT 1 FROM audit WHERE session_id = ? AND action = 'delete'", (session_id,)
            )
        if deleted or (row is None and session_id.startswith(SHELL)):
            self.journal.forget(session_id)
        elif row is not None and (row[1] is not None or self.wanted(row[0]) or self.journal.exists(session_id)):
            self._fill_in(session_id, rewrite=session_id.startswith(SHELL) or self._removal_pending(session_id))

    def _removal_pending(self, session_id: str) -> bool:
        """Whether messages were removed on purpose after the transcript was last written."""
        try:
            written = self.journal.path(session_id).stat().st_mtime
        except OSError:
            return False
        with self._engine.read() as tx:
            removed = "SELECT 1 FROM audit WHERE session_id = ? AND action IN ('replace', 'clear') AND at > ?"
            return tx.row(removed, (session_id, written)) is not None

    # ------------------------------------------------------------------ lines

    def opened(self, session_id: str, source: str) -> None:
        """A session was opened."""
        self._kept[session_id] = wanted = self.wanted(source)
        if wanted:
            self._fill_in(session_id)

    def prepare(self, session_id: str, message_id: int, ready: Ready) -> None:
        """A message is being stored: make its line, if it will have one."""
        if self._kept.get(session_id):
            ready.line = line(_entry(message_id, ready))

    def message_stored(self, session_id: str, message_id: int, ready: Ready, *, used: Sequence[str] = ()) -> None:
        """A message was stored; `used` are the usage columns of its session that changed with it."""
        if self._keeps(session_id):
            values = self._values(session_id, used) if used else {}
            usage = line(event("usage", set=values)) if values else b""
            self._write(session_id, ready.line or line(_entry(message_id, ready)), message_id, usage)
        elif used:  # not kept, or just rewritten without this event
            self.changed(session_id, "usage", *used)

    def happened(self, session_id: str, entry: Entry) -> None:
        """An event was stored."""
        if self._keeps(session_id):
            self._write(session_id, line(entry))

    def changed(
        self, session_id: str, what: str, *columns: str, also: Mapping[str, Any] | None = None, **values: Any
    ) -> None:
        """Columns of a session were changed; `also` is added to the line for readers."""
        if self._keeps(session_id):
            if columns:
                values = {**self._values(session_id, columns), **values}
            try:
                values = self.journal.prompts.named(values)
            except (OSError, StoreError):
                self.journal.behind.add(session_id)
                self._warn(session_id)
                return
            told = {"set": values, **(also or {})} if values else also or {}
            self._write(session_id, line(event(what, **told)))

    def _values(self, session_id: str, columns: Sequence[str]) -> dict[str, Any]:
        """Columns of a session as they are now."""
        with self._engine.read() as tx:
            row = tx.row(f"SELECT {', '.join(columns)} FROM sessions WHERE id = ?", (session_id,))
        return dict(zip(columns, map(codec.restored, row or ()), strict=False))

    def prompt_dropped(self, digest: str | None = None) -> None:
        """A session no longer has this system prompt (None: any file may be left over)."""

        def is_used(one: str) -> bool:
            with self._engine.read() as tx:
                return tx.row("SELECT 1 FROM sessions WHERE system_prompt_hash = ? LIMIT 1", (one,)) is not None

        if self.which != "off":
            self.journal.prompts.drop(None if digest is None else [digest], is_used)

    def restated(self, session_id: str, what: str, **also: Any) -> None:
        """State besides the columns was changed: tags, members, carried ranges, rewinds."""
        if self._keeps(session_id):
            with self._engine.read() as tx:
                state = transcript_replay.session_state(tx, session_id)
            self._write(session_id, line(event(what, **state, **also)))

    def edited(self, session_id: str, message_id: int, version: int, kept_in: str) -> None:
        """A message's text was changed: one line has the new text and the old one (under an id of its own)."""
        if session_id.startswith(SHELL):
            self.kept(session_id)
            self.adopted([kept_in])
        elif self._keeps(session_id):
            with self._engine.read() as tx:
                state = transcript_replay.session_state(tx, session_id)
                rows = [transcript_replay.message(tx, one) for one in (message_id, version)]
                now, was = map(
                    transcript_replay.message_entry, transcript_replay.with_attachments(tx, session_id, rows)
                )
            self._write(session_id, line(event("edit", **state, replaces=[now], keeps=[was])))

    def adopted(self, session_ids: Iterable[str]) -> None:
        """These sessions have messages without a line."""
        self._adopted(session_ids)

    def rewritten(self, session_id: str) -> None:
        """A session's messages were replaced, or it was imported: its transcript is rewritten."""
        if self._keeps(session_id, fresh=True) or (self.which != "off" and session_id.startswith(SHELL)):
            self._fill_in(session_id, rewrite=True)

    def arrived(self, session_id: str, touched: Touched) -> None:
        """A session was imported; the sessions it carries messages of may have changed with it."""
        self.rewritten(session_id)
        for shell in touched.shells - touched.gone:
            self.kept(shell)
        for shell in touched.gone:
            self.journal.forget(shell)
        self.owner_renamed(sorted(touched.referring - {session_id}))
        self.cut_off(sorted(touched.children))

    def deleted(self, session_id: str, attachments: list[str]) -> None:
        """A session was deleted: remove its transcript and the files no session refers to any more."""
        self._kept.pop(session_id, None)
        self.journal.forget(session_id, self.also_in)
        self._settled(session_id)
        self._attachments.forget(attachments)

    def kept(self, session_id: str) -> None:
        """The rows of a deleted session that others need get their own transcript."""
        if self.which != "off":
            self._fill_in(session_id, rewrite=True)

    def owner_renamed(self, session_ids: list[str]) -> None:
        """These sessions show messages whose owner has another id now."""
        for session_id in session_ids:
            self.restated(session_id, "refs")

    def cut_off(self, session_ids: list[str]) -> None:
        """Sessions have another parent, or none."""
        for session_id in session_ids:
            self.changed(session_id, "parent", "parent_session_id")

    # ------------------------------------------------------------------ keeping them whole

    def _keeps(self, session_id: str, *, fresh: bool = False) -> bool:
        if self.which == "off":
            self._miss(session_id)
            return False
        known = self._kept.get(session_id)
        if known is None:
            with self._engine.read() as tx:
                row = tx.row("SELECT source, transcript FROM sessions WHERE id = ?", (session_id,))
            if row is None:
                self._settled(session_id)
                return False
            # A session that has a transcript because others refer to it keeps it.
            known = self._kept[session_id] = self.wanted(row[0]) or row[1] is not None
            if known and not fresh and not self.journal.exists(session_id):
                self._fill_in(session_id)
                return False  # the rewritten file already has this line
        if not known:
            self._miss(session_id)
        return known

    def _miss(self, session_id: str) -> None:
        """This process writes no transcript of the session: if it has one, the next process that does completes it."""
        self._settled(session_id)
        if session_id in self._missed:
            return
        with self._engine.read() as tx:
            noted = tx.value("SELECT transcript FROM sessions WHERE id = ?", (session_id,))
        if noted == 1:
            self._set_note(session_id, 0)
        self._missed.add(session_id)

    def _write(self, session_id: str, data: bytes, message_id: int | None = None, more: bytes = b"") -> None:
        if session_id in self.journal.behind:
            self.journal.behind.discard(session_id)
            self._fill_in(session_id)
            if more and session_id not in self.journal.behind:
                self._write(session_id, more)
        elif self.journal.write(session_id, data, message_id, more):
            self._settled(session_id)
        else:
            self._warn(session_id)

    def _fill_in(self, session_id: str, *, rewrite: bool = False) -> None:
        owners: list[str] = []
        try:
            with self._engine.read() as tx:
                transcript_replay.fill_in(tx, self.journal, session_id, rewrite=rewrite)
                owners = transcript_replay.owners(tx, session_id)
        except (OSError, StoreError):
            self.journal.behind.add(session_id)
        if session_id in self.journal.behind:
            self._warn(session_id)
        else:
            self._note(session_id)
            self._settled(session_id)
        for owner in owners:  # the messages it refers to are in their files
            if not self.journal.exists(owner):
                self._fill_in(owner)
                self._kept.pop(owner, None)

    def _note(self, session_id: str) -> None:
        """The session has a transcript from now on: if it goes missing, check() reports that."""
        self._set_note(session_id, 1)

    def _set_note(self, session_id: str, value: int) -> None:
        try:
            with self._engine.read() as tx:
                noted = tx.row("SELECT transcript FROM sessions WHERE id = ?", (session_id,))
            if noted is not None and noted[0] != value:
                with self._engine.write(alone=False) as tx:
                    tx.run("UPDATE sessions SET transcript = ? WHERE id = ?", (value, session_id))
        except StoreError:
            pass  # only informational

    def _warn(self, session_id: str) -> None:
        self._set_note(session_id, 0)  # the next process that opens the store retries
        if not self._warned:
            self._warned = True
            warnings.warn(
                f"the transcript of session {session_id} could not be written (the database has everything);"
                " the missing lines are added when the store is opened next",
                stacklevel=4,
            )


def _entry(message_id: int, ready: Ready) -> Entry:
    """A stored message as its transcript line, without reading it back."""
    entry: Entry = {"type": "message", "id": message_id}
    for name, value in zip(StoredColumns._fields, ready.values):
        if value is None or name in _LEFT_OUT:
            continue
        if name in _RAW:
            entry[name] = _raw(value) if ready.clean_json and isinstance(value, str) else codec.from_json(value)
        else:
            entry[name] = codec.restored(value)
        if name == "role" and ready.text is not None:
            entry["content"] = ready.text
            if ready.is_json:  # unchanged, unless it has lone surrogates
                valid = codec.storable(ready.text) is ready.text
                entry["content"] = _raw(ready.text) if valid else codec.from_json(ready.text)
    if ready.lifted or (ready.text is not None and PREFIX in ready.text):
        entry["attachments"] = listed(ready.lifted)
    return entry


def _raw(text: str) -> Any:
    """JSON embedded in a line unchanged. (Here, since an import takes longer than the rest of most lines.)"""
    from msgspec import Raw

    return Raw(text)
