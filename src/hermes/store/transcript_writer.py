"""Writes, after each commit, the line for it into the session's transcript.

A transaction marks the sessions it changes (`sessions.transcript` = 0). The mark is cleared by a later transaction, once their
lines are written; sessions that still have one at the next opening are compared with their files. Nothing here raises to a
caller whose change is already committed.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar, cast

from hermes.errors import StoreClosed, StoreError, StoreUnreachable
from hermes.store import codec, transcript_replay
from hermes.store.attachments import PREFIX, Attachments, listed
from hermes.store.carried_messages import Touched
from hermes.store.engines.base import Engine, Tx
from hermes.store.message_values import Ready
from hermes.store.transcript import Entry, TranscriptFolder, event, highest_id, highest_known, line

LOST = "newest_lost"  # key of state_meta: transcripts have messages that this database lost
NOT_GATEWAY = ("cli", "acp", "batch", "cron", "web")
_MARKED = {  # by setting: the sessions whose transcript has to follow a change
    "all": "coalesce(transcript, 1) <> 0",
    "gateway": f"(transcript = 1 OR (transcript IS NULL AND source NOT IN {NOT_GATEWAY}))",
    "off": "transcript = 1",
}
_MARKS = 4  # that are left until they are cleared together: conversations take turns
_ACTIVE = (  # the sessions written to last, and the newest message of each
    "SELECT s.id, (SELECT max(m.id) FROM messages m WHERE m.session_id = s.id) FROM sessions s"
    " WHERE s.trashed_at IS NULL AND s.purged IS NULL ORDER BY coalesce(s.active_at, s.started_at) DESC LIMIT ?"
)
_RAW = frozenset(codec.JSON_FIELDS)
_LEFT_OUT = frozenset(("content", "content_rest", "content_format", "writer"))
Method = TypeVar("Method", bound=Callable[..., None])


def _after_commit(method: Method) -> Method:
    """Have the next write or the next opening complete the transcript if this fails: the change itself is stored."""

    @wraps(method)
    def guarded(self: TranscriptWriter, session_id: str, *args: Any, **kwargs: Any) -> None:
        try:
            method(self, session_id, *args, **kwargs)
        except Exception as error:
            self._failed(session_id, error)

    return cast("Method", guarded)


class TranscriptWriter:
    """Writes the transcripts of one store."""

    def __init__(self, engine: Engine, folder: Path, which: str, attachments: Attachments) -> None:
        self.which = which
        self.also_in: Path | None = None  # a further folder to remove transcripts of deleted sessions from
        self.files = TranscriptFolder(folder)
        self._attachments = attachments
        self._engine = engine
        self._kept: dict[str, bool] = {}  # whether a session has a transcript
        self._behind: set[str] = set()  # sessions whose line could not be written
        self._marked: dict[
            int, tuple[Tx | None, set[str]]
        ] = {}  # by thread: its last transaction, and what that marked
        self._written: set[str] = set()  # sessions whose lines are written, and whose mark is not cleared yet
        self._warned = False
        self._mark = f"UPDATE sessions SET transcript = 0 WHERE id = ? AND {_MARKED[which]}"
        engine.on_adopted = engine.on_unsure = self.complete

    def wanted(self, source: str) -> bool:
        """Whether sessions of this source have transcripts."""
        return self.which == "all" or (self.which == "gateway" and source not in NOT_GATEWAY)

    # ------------------------------------------------------------------ what a crash leaves out

    def mark(self, tx: Tx, session_ids: Iterable[str]) -> None:
        """This transaction changes these sessions: if their lines are not written, the next opening compares them."""
        if self._engine.shared:  # each host has the transcripts of the sessions it serves
            return
        thread, changed = threading.get_ident(), set(session_ids)
        before, marked = self._marked.get(thread, (None, set()))
        if before is not tx:  # the lines of this thread's earlier transaction are written
            self._written |= marked
            marked = set()
        self._written -= changed
        if len(self._written) > _MARKS or not changed:
            cleared, self._written = self._written, set()
            for session_id in cleared - self._behind - self.files.shared:
                tx.run("UPDATE sessions SET transcript = 1 WHERE id = ? AND transcript = 0", (session_id,))
        for session_id in changed:
            tx.run(self._mark, (session_id,))
        if self.which != "off":
            self._marked[thread] = (tx, marked | changed)

    def settle(self) -> None:
        """Clear this thread's marks before it closes the store."""
        if self._written or self._marked.get(threading.get_ident()):
            with suppress(StoreError), self._engine.write(alone=False, lasting=False) as tx:
                self.mark(tx, ())

    def complete_marked(self) -> None:
        """On opening: complete the transcripts of sessions whose last lines may be missing."""
        if self.which == "off" or not self.files.folder.is_dir():  # a copy of a database has none
            return
        with self._engine.read() as tx:
            if self._engine.shared:
                newest = {one: number or 0 for one, number in tx.rows(_ACTIVE, (32,))}
                marked = [one for one in newest if self.files.exists(one) and not self._has_line(one, newest[one])]
                active = []
            else:
                marked = [row[0] for row in tx.rows("SELECT id FROM sessions WHERE transcript = 0")]
                active = [row[0] for row in tx.rows(_ACTIVE, (8,))]
        if not self._engine.shared and self._is_newer([*marked, *active]):
            hint = "`hermes sessions rebuild` brings them back from the transcripts"
            warnings.warn(f"{self._engine.where} lost its newest messages; {hint}", stacklevel=4)
            return  # the transcripts stay as they are for a rebuild
        self.complete(marked)
        if marked:
            self.prompt_dropped()

    def _has_line(self, session_id: str, message_id: int) -> bool:
        return highest_id(self.files.tail(session_id)) >= message_id

    def look_first(self, session_id: str) -> None:
        """Before this process's first message of a session: its transcript may be newer than the database."""
        if self.which != "off" and self.files.is_first(session_id) and not self._engine.shared:
            self._is_newer([session_id])

    def _is_newer(self, session_ids: list[str]) -> bool:
        """Whether transcripts have messages with higher ids than this database ever gave: it, or its WAL, was lost.

        The ids of the lost messages are not given again.
        """
        tails = map(self.files.tail, session_ids)
        told = max(map(highest_known, tails)) if session_ids else self.files.highest_known()
        with self._engine.read() as tx:  # a line follows its commit
            is_noted = tx.row("SELECT 1 FROM state_meta WHERE key = ?", (LOST,)) is not None
            is_newer = told > tx.last_number("messages")
        if is_newer:
            self._note_lost(is_known=bool(session_ids))
        return is_noted or (is_newer and bool(session_ids))

    def _note_lost(self, *, is_known: bool = True) -> None:
        told = self.files.highest_known()
        with self._engine.write() as tx:
            tx.reserve(told)
            if is_known:
                tx.run("INSERT INTO state_meta(key, value) VALUES(?, '1') ON CONFLICT DO NOTHING", (LOST,))

    def complete(self, session_ids: Iterable[str]) -> None:
        """Write the lines that these sessions' transcripts lack."""
        for session_id in session_ids:
            self._complete(session_id)

    @_after_commit
    def _complete(self, session_id: str) -> None:
        if self._keeps(session_id):
            self._write_lacking(session_id, rewrite=self._has_removed(session_id))
            self._written.add(session_id)

    def _has_removed(self, session_id: str) -> bool:
        """Whether messages were removed on purpose after the transcript was last written."""
        try:
            written = self.files.path(session_id).stat().st_mtime
        except OSError:
            return False
        with self._engine.read() as tx:
            removed = "SELECT 1 FROM audit WHERE session_id = ? AND action IN ('replace', 'clear', 'delete') AND at > ?"
            return tx.row(removed, (session_id, written)) is not None

    # ------------------------------------------------------------------ lines

    @_after_commit
    def opened(self, session_id: str, source: str) -> None:
        """A session was opened."""
        self._kept[session_id] = self.wanted(source)
        if self._kept[session_id]:
            if not self._engine.shared and (told := highest_id(self.files.tail(session_id))):
                with self._engine.read() as tx:
                    is_there = tx.row("SELECT 1 FROM messages WHERE id = ? AND session_id = ?", (told, session_id))
                if is_there is None:  # a session that this database does not know any more
                    self._note_lost()
            self._write_lacking(session_id)

    @_after_commit
    def message_stored(
        self, session_id: str, message_id: int, ready: Ready, used: Mapping[str, Any] | None = None
    ) -> None:
        """A message was stored; `used` are the usage columns of its session that changed with it."""
        if self._keeps(session_id):
            usage = line(event("usage", set=used)) if used else b""
            self._append(session_id, line(_entry(message_id, ready)), usage)

    @_after_commit
    def happened(self, session_id: str, entry: Entry) -> None:
        """An event was stored."""
        if self._keeps(session_id):
            self._append(session_id, line(entry))

    @_after_commit
    def changed(
        self, session_id: str, what: str, *columns: str, also: Mapping[str, Any] | None = None, **values: Any
    ) -> None:
        """Columns of a session were changed; `also` is added to the line for readers."""
        if self._keeps(session_id):
            with self._engine.read() as tx:
                values = self.files.prompts.named({**self.values(tx, session_id, columns), **values})
            self._append(session_id, line(event(what, **({"set": values} if values else {}), **(also or {}))))

    def values(self, tx: Tx, session_id: str, columns: Sequence[str]) -> dict[str, Any]:
        """Columns of a session as they are now."""
        row = tx.row(f"SELECT {', '.join(columns)} FROM sessions WHERE id = ?", (session_id,)) if columns else None
        return dict(zip(columns, map(codec.restored, row or ()), strict=False))

    def prompt_dropped(self, digest: str | None = None) -> None:
        """A session no longer has this system prompt (None: any file may be left over)."""

        def is_used(one: str) -> bool:
            with self._engine.read() as tx:
                return tx.row("SELECT 1 FROM sessions WHERE system_prompt_hash = ? LIMIT 1", (one,)) is not None

        if self.which != "off":
            with suppress(StoreError):  # a leftover file does no harm
                self.files.prompts.drop(None if digest is None else [digest], is_used)

    @_after_commit
    def restated(self, session_id: str, what: str, **also: Any) -> None:
        """State besides the columns was changed: tags, members, carried ranges, rewinds."""
        if self._keeps(session_id):
            with self._engine.read() as tx:
                state = transcript_replay.session_state(tx, session_id)
            self._append(session_id, line(event(what, **state, **also)))

    @_after_commit
    def edited(self, session_id: str, message_id: int, version: int, kept_in: str) -> None:
        """A message's text was changed: one line has the new text and the old one (under an id of its own)."""
        if kept_in != session_id:  # the owner was deleted
            self.kept(session_id)
            self.complete([kept_in])
        elif self._keeps(session_id):
            with self._engine.read() as tx:
                state = transcript_replay.session_state(tx, session_id)
                rows = [transcript_replay.message(tx, one) for one in (message_id, version)]
                now, was = map(
                    transcript_replay.message_entry, transcript_replay.with_attachments(tx, session_id, rows)
                )
            self._append(session_id, line(event("edit", **state, replaces=[now], keeps=[was])))

    @_after_commit
    def rewritten(self, session_id: str) -> None:
        """A session's messages were replaced, or it was imported: its transcript is rewritten."""
        if self._keeps(session_id):
            self._write_lacking(session_id, rewrite=True)

    def arrived(self, session_id: str, touched: Touched) -> None:
        """A session was imported; the sessions it carries messages of may have changed with it."""
        self.rewritten(session_id)
        self.others_touched(touched, {session_id})

    def others_touched(self, touched: Touched, written: Set[str]) -> None:
        """Sessions were changed by an import or a synchronisation; the transcripts of `written` are up to date."""
        for owner in sorted(touched.owners - written):
            self.kept(owner)
        for session_id in sorted(touched.referring - written):
            self.restated(session_id, "refs")
        self.cut_off(sorted(touched.children - written))

    def cut_off(self, session_ids: list[str]) -> None:
        """Sessions have another parent, or none."""
        for session_id in session_ids:
            self.changed(session_id, "parent", "parent_session_id")

    def deleted(self, session_id: str) -> None:
        """A session is being deleted: remove its transcript."""
        self._kept.pop(session_id, None)
        self._behind.discard(session_id)
        self.files.forget(session_id, self.also_in)

    def unused(self, attachments: list[str]) -> None:
        """Remove the attachments to which no message refers any more; one that can't be removed does no harm."""
        with suppress(OSError, StoreError):
            self._attachments.forget(attachments)

    @_after_commit
    def kept(self, session_id: str) -> None:
        """The rows that a session keeps for others have a transcript even where the session itself would have none."""
        if self.which != "off" and not self._write_lacking(session_id, rewrite=True):
            self.deleted(session_id)

    # ------------------------------------------------------------------ files

    def _keeps(self, session_id: str) -> bool:
        """Whether the session has a transcript that this process writes."""
        if self.which == "off":
            return False
        if session_id not in self._kept:
            with self._engine.read() as tx:
                row = tx.row("SELECT source, transcript FROM sessions WHERE id = ?", (session_id,))
            if row is None:
                return False
            # A session that has a transcript because others refer to it keeps it.
            self._kept[session_id] = self.wanted(row[0]) or row[1] is not None
        return self._kept[session_id]

    def _append(self, session_id: str, data: bytes, more: bytes = b"") -> None:
        lacks_lines = session_id in self._behind or not self.files.exists(session_id)
        if not lacks_lines and self._engine.shared:  # no mark tells what a killed process of this host left out
            lacks_lines = self.files.is_first(session_id)
        if lacks_lines:
            with suppress(BlockingIOError):  # a process hangs that has locked it: this line is written all the same
                self._write_lacking(session_id)
                return
        self.files.append(session_id, data, more)

    def _write_lacking(self, session_id: str, *, rewrite: bool = False) -> bool:
        """Append the lines that a transcript lacks (or rewrite it); False when there is no such session."""
        with self._engine.read() as tx:
            row = tx.row("SELECT transcript FROM sessions WHERE id = ?", (session_id,))
        if row is None:
            return False
        path = self.files.path(session_id)
        with self.files.open(session_id) as file:
            file.require_lock()
            with self._engine.read() as tx:  # after the lock: the lines of all later commits follow
                told = transcript_replay.read_transcript(path) if file.size and not rewrite else None
                if told is None:
                    file.clear()
                for lines in transcript_replay.lacking_lines(tx, self.files.prompts, session_id, told):
                    if lines:
                        file.append(lines)
                owners = transcript_replay.owners(tx, session_id)
        self.files.wrote(session_id, file)
        self._behind.discard(session_id)
        if row[0] is None:  # it has one from now on: if it goes missing, check() reports that
            self._kept[session_id] = True
            with suppress(StoreError), self._engine.write(alone=False) as tx:
                tx.run("UPDATE sessions SET transcript = 1 WHERE id = ?", (session_id,))
        for owner in owners:  # the messages it refers to are in their files
            if not self.files.exists(owner):
                self._write_lacking(owner)
        return True

    def _failed(self, session_id: str, error: Exception) -> None:
        self._behind.add(session_id)
        if not self._warned and not isinstance(error, StoreClosed | StoreUnreachable):
            self._warned = True
            warnings.warn(
                f"the transcript of session {session_id} could not be written (the database has everything);"
                " the missing lines are added when the store is opened next",
                stacklevel=4,
            )


def _entry(message_id: int, ready: Ready) -> Entry:
    """A stored message as its transcript line, without reading it back."""
    entry: Entry = {"type": "message", "id": message_id}
    for name, value in ready.values.items():
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
