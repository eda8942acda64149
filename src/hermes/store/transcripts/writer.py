"""Writes, after each commit, the line for it into the session's transcript.

A transaction marks the sessions it changes (`sessions.transcript` = 0). The mark is cleared by a later transaction, once their
lines are written; sessions that still have one at the next opening are compared with their files. Nothing here raises to a
caller whose change is already committed.
"""

from __future__ import annotations

import fcntl
import os
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any, Self

from hermes.errors import StoreClosed, StoreError, StoreUnreachable
from hermes.home import lock_within, make_private
from hermes.store.engines.base import Engine, Tx, get_meta, note_meta
from hermes.store.records import codec, message_reading
from hermes.store.records.attachments import Attachments, listed
from hermes.store.records.message_values import EncodedMessage
from hermes.store.transcripts import replay
from hermes.store.transcripts.replay import Entry, event, file_name, line

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
_REMOVED = "SELECT 1 FROM audit WHERE session_id = ? AND action IN ('replace', 'clear', 'delete') AND at > ?"
_AT_ONCE = 1000  # lines that are written together

_PATIENCE = 2.0  # seconds to wait for another process's line
_NEWEST = 8  # files in which messages that a database lost are searched
_TAIL = 1 << 18  # bytes from the end in which a line that another process wrote for us is searched
_WHOLE_LINE = re.compile(rb'^\{"type":"message","id":(\d{1,18}),.*\}$', re.MULTILINE)
_COMPLETE_TO = re.compile(rb'{"type":"session",[^{]*"complete_to":(\d{1,18}),')
_FLAGS = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC


# ------------------------------------------------------------------------------------------- files


def highest_id(data: bytes) -> int:
    """The highest message id in these lines; a torn line is no message."""
    return max(map(int, _WHOLE_LINE.findall(data)), default=0)


class TranscriptFile:
    """A transcript, open and locked: no other process writes to it until it is closed."""

    def __init__(self, path: Path) -> None:
        try:
            self.handle = os.open(path, _FLAGS, 0o600)
        except FileNotFoundError:
            make_private(path.parent)
            self.handle = os.open(path, _FLAGS, 0o600)
        # Unless the holder of the lock hangs: then writing the line matters more than the order of lines.
        self.is_locked = lock_within(self.handle, _PATIENCE)
        self.size = os.fstat(self.handle).st_size

    def append(self, data: bytes) -> None:
        """Append whole lines in one write; a torn last line stays a separate line."""
        if self.size and os.pread(self.handle, 1, self.size - 1) != b"\n":
            data = b"\n" + data
        self.size += len(data)
        while data:
            data = data[os.write(self.handle, data) :]

    def clear(self) -> None:
        """Empty the file; other processes go on in it."""
        os.ftruncate(self.handle, 0)
        self.size = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.is_locked:
            fcntl.flock(self.handle, fcntl.LOCK_UN)  # a forked child that has the file open would keep it locked
        os.close(self.handle)


class TranscriptFolder:
    """The transcripts of one store."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.sizes: dict[str, int] = {}  # the size of each file after this process's last write
        self.shared: set[str] = set()  # sessions whose file other processes write to, too

    def path(self, session_id: str) -> Path:
        """The path of a session's transcript."""
        return self.folder / file_name(session_id)

    def exists(self, session_id: str) -> bool:
        """Whether the session has a transcript (known without a file access once this process wrote to it)."""
        return session_id in self.sizes or self.path(session_id).exists()

    def append(self, session_id: str, data: bytes, *more: bytes) -> None:
        """Append lines in one write; `data` is left out if another process wrote the line of that message meanwhile."""
        known = self.sizes.pop(session_id, None)
        with TranscriptFile(self.path(session_id)) as file:
            if known not in (None, file.size):
                self.shared.add(session_id)
            if known != file.size and data in tail(self.path(session_id)):
                data = b""
            file.append(b"".join((data, *more)))
        self.sizes[session_id] = file.size

    def all(self) -> list[Path]:
        """The files of all transcripts, in the order of their names."""
        return sorted(path for path in self.folder.glob("*.jsonl") if path.is_file())

    def newest(self) -> list[Path]:
        """The transcripts that were written last."""
        times = dict[Path, float]()
        for path in self.all():
            with suppress(OSError):  # removed meanwhile
                times[path] = path.stat().st_mtime
        return sorted(times, key=times.__getitem__)[-_NEWEST:]

    def forget(self, session_id: str, also_in: Path | None = None) -> None:
        """Remove a session's transcript, here and in another folder."""
        self.sizes.pop(session_id, None)
        name = file_name(session_id)
        for folder in (one for one in (self.folder, also_in) if one is not None):
            for one in (name, name.removesuffix("l")):
                with suppress(OSError):
                    (folder / one).unlink(missing_ok=True)


def highest_known(paths: Iterable[Path]) -> int:
    """The highest id that the database had given when these transcripts were written, as far as they show."""
    known = ((highest_id(end), _COMPLETE_TO.match(end)) for end in map(tail, paths))
    return max((max(newest, int(begun[1]) if begun else 0) for newest, begun in known), default=0)


def tail(path: Path) -> bytes:
    """The end of a transcript; empty where it is missing or can't be read."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL))
            return file.read()
    except OSError:
        return b""


# ------------------------------------------------------------------------------------------- the lines of a store


class TranscriptWriter:
    """Writes the transcripts of one store."""

    def __init__(self, engine: Engine, folder: Path, which: str, attachments: Attachments) -> None:
        self.which = which
        self.also_in: Path | None = None  # a further folder to remove transcripts of deleted sessions from
        self.files = TranscriptFolder(folder)
        self._attachments = attachments
        self._engine = engine
        self._has_transcript: dict[str, bool] = {}  # whether a session has a transcript
        self._behind: set[str] = set()  # sessions whose line could not be written
        self._written: set[str] = set()  # sessions whose lines are written, and whose mark is not cleared yet
        self._warned = False
        self._mark = f"UPDATE sessions SET transcript = 0 WHERE id = ? AND {_MARKED[which]}"
        engine.on_behind = self.complete

    def wanted(self, source: str) -> bool:
        """Whether sessions of this source have transcripts."""
        return self.which == "all" or (self.which == "gateway" and source not in NOT_GATEWAY)

    # ------------------------------------------------------------------ what a crash leaves out

    def mark(self, tx: Tx, session_ids: Iterable[str]) -> None:
        """Mark the sessions that a transaction changes: the next opening compares them if their lines are not written."""
        if self._engine.shared:  # each host has the transcripts of the sessions it serves
            return
        changed = set(session_ids)
        self._written -= changed
        if len(self._written) > _MARKS or not changed:
            cleared, self._written = self._written, set()
            for session_id in cleared - self._behind - self.files.shared:
                tx.run("UPDATE sessions SET transcript = 1 WHERE id = ? AND transcript = 0", (session_id,))
        for session_id in changed:
            tx.run(self._mark, (session_id,))

    def settle(self) -> None:
        """Clear the marks before the store is closed."""
        if self._written:
            with suppress(StoreError), self._engine.write(exclusive=False, durable=False) as tx:
                self.mark(tx, ())

    def complete_marked(self) -> None:
        """On opening: complete the transcripts of sessions whose last lines may be missing."""
        if self.which == "off" or not self.files.folder.is_dir():  # a copy of a database has none
            return
        with self._engine.read() as tx:
            active = {one: number or 0 for one, number in tx.rows(_ACTIVE, (32 if self._engine.shared else 8,))}
            marked = tx.column("SELECT id FROM sessions WHERE transcript = 0")
        if self._engine.shared:
            newest_ids = {one: highest_id(tail(self.files.path(one))) for one in active if self.files.exists(one)}
            marked = [one for one, newest in newest_ids.items() if newest < active[one]]
        elif self._is_newer(
            map(self.files.path, {*marked, *active}), self.files.newest() if marked or not active else []
        ):
            hint = "`hermes sessions rebuild` brings them back from the transcripts"
            warnings.warn(f"{self._engine.where} lost its newest messages; {hint}", stacklevel=4)
            return  # the transcripts stay as they are for a rebuild
        self.complete(marked)

    def check_newer(self, session_id: str) -> None:
        """Check, before this process stores its first message in a session, whether its transcript is newer than the database."""
        if self.which != "off" and session_id not in self.files.sizes and not self._engine.shared:
            self._is_newer([self.files.path(session_id)])

    def _is_newer(self, known: Iterable[Path], newest: Iterable[Path] = ()) -> bool:
        """Whether transcripts (those of known sessions, and those written last, perhaps of unknown ones) have messages with
        higher ids than this database ever gave: it, or its WAL, was lost.

        The ids of the lost messages are not given again. Of an empty database, which may be new, no more than that is noted.
        """
        paths = [*known]
        highest = highest_known([*paths, *newest])
        with self._engine.read() as tx:  # a line follows its commit
            is_noted = get_meta(tx, LOST) is not None
            is_newer = highest > tx.last_number("messages")
        if is_newer:
            self._note_lost(is_known=bool(paths))
        return is_noted or (is_newer and bool(paths))

    def _note_lost(self, *, is_known: bool = True) -> None:
        highest = highest_known(self.files.all())
        with self._engine.write() as tx:
            tx.reserve(highest)
            if is_known:
                note_meta(tx, LOST)

    def complete(self, session_ids: Iterable[str]) -> None:
        """Rewrite the transcripts of these sessions where they differ."""
        for session_id in session_ids:
            with self._after_commit(session_id):
                if self._keeps(session_id):
                    self._write(session_id)

    # ------------------------------------------------------------------ lines

    def has_lines(self, session_id: str) -> bool:
        """Whether there is a transcript of this session already."""
        return bool(tail(self.files.path(session_id)))

    def opened(self, session_id: str, source: str, *, had_lines: bool) -> None:
        """Write the line for an opened session; `had_lines`: it had a transcript before that was committed."""
        with self._after_commit(session_id):
            self._has_transcript[session_id] = self.wanted(source)
            if not self._has_transcript[session_id]:
                return
            with self._engine.read() as tx:
                is_revived = tx.row("SELECT 1 FROM messages WHERE session_id = ?", (session_id,)) is not None
            if is_revived or self._engine.shared or not had_lines:
                self._write(session_id)
            else:  # a session that this database does not know any more: its transcript stays for a rebuild
                self._note_lost()

    def message_stored(
        self, session_id: str, message_id: int, encoded: EncodedMessage, used: Mapping[str, Any] | None = None
    ) -> None:
        """Write the line for a stored message; `used` are the usage columns of its session that changed with it."""
        usage = [event("usage", set=used)] if used else []
        self._append(session_id, lambda: [_entry(message_id, encoded), *usage])

    def event_stored(self, session_id: str, entry: Entry) -> None:
        """Write the line for a stored event."""
        self._append(session_id, lambda: [entry])

    def changed(self, session_id: str, what: str, *columns: str, **also: Any) -> None:
        """Write the line for changed columns of a session, or (without any) its tags, members, carried ranges and rewinds.

        `also` is added to the line for readers.
        """
        self._append(session_id, lambda: [self._event(session_id, what, columns, also)])

    def revised(self, session_id: str, stored: Sequence[int], changed: Sequence[int], *, hides: bool) -> None:
        """Write lines for stored messages, and one for everything that was changed, also in the session.

        `hides`: messages were hidden or shown again.
        """

        def entries() -> list[Entry]:
            with self._engine.read() as tx:
                rows = [replay.message(tx, one) for one in (*stored, *changed)]
                messages = list(replay.with_attachments(tx, session_id, rows))
                columns = replay.session_columns(tx, session_id)
                if not hides and not changed:
                    return [*messages, event("usage", set=columns)]
                state = replay.session_state(tx, session_id)
            hidden = [one for one, _ in state["hidden"] if one in stored]
            edit = event("edit", set=columns, replaces=messages[len(stored) :], hides=hidden, **state)
            return [*messages[: len(stored)], edit]

        self._append(session_id, entries)

    def _event(self, session_id: str, what: str, columns: Sequence[str], also: Mapping[str, Any]) -> Entry:
        with self._engine.read() as tx:
            if columns:
                return event(what, set=self.values(tx, session_id, columns), **also)
            return event(what, **also, **replay.session_state(tx, session_id))

    def values(self, tx: Tx, session_id: str, columns: Sequence[str]) -> dict[str, Any]:
        """Columns of a session as they are now."""
        row = tx.row(f"SELECT {', '.join(columns)} FROM sessions WHERE id = ?", (session_id,)) if columns else None
        return dict(zip(columns, map(codec.restored, row or ()), strict=False))

    def rewritten(self, *session_ids: str, needed: bool = False) -> None:
        """Rewrite the transcripts of sessions whose messages were replaced, imported or removed (`needed`: also where the
        settings ask for none), and remove those of sessions that are gone."""
        for session_id in session_ids:
            with self._after_commit(session_id):
                wanted = needed or self._keeps(session_id)
                if wanted and self._write(session_id, only_different=False) is None:
                    self.deleted(session_id)

    def cut_off(self, session_ids: list[str]) -> None:
        """Write the lines for sessions that have another parent, or none."""
        for session_id in session_ids:
            self.changed(session_id, "parent", "parent_session_id")

    def deleted(self, session_id: str) -> None:
        """Remove the transcript of a session that is being deleted."""
        self._has_transcript.pop(session_id, None)
        self._behind.discard(session_id)
        self.files.forget(session_id, self.also_in)

    def unused(self, attachments: list[str]) -> None:
        """Remove the attachments to which no message refers any more; one that can't be removed does no harm."""
        with suppress(OSError, StoreError):
            self._attachments.forget(attachments)

    # ------------------------------------------------------------------ files

    def _keeps(self, session_id: str) -> bool:
        """Whether the session has a transcript that this process writes."""
        if self.which == "off":
            return False
        if session_id not in self._has_transcript:
            with self._engine.read() as tx:
                row = tx.row("SELECT source, transcript, purged FROM sessions WHERE id = ?", (session_id,))
            if row is None:
                return True  # it is gone, and so must its file: see `rewritten`
            # A session that has a transcript because others refer to it keeps it; a tombstone always has one.
            self._has_transcript[session_id] = self.wanted(row[0]) or row[1:] != (None, None)
        return self._has_transcript[session_id]

    def _append(self, session_id: str, entries: Callable[[], list[Entry]]) -> None:
        """Append the lines for a change; where the transcript lacks others, or is missing, rewrite it."""
        with self._after_commit(session_id):
            if not self._keeps(session_id):
                return
            lacks_lines = session_id in self._behind or not self.files.exists(session_id)
            if not lacks_lines and self._engine.shared:  # no mark shows what a killed process of this host left out
                lacks_lines = session_id not in self.files.sizes
            with suppress(BlockingIOError):  # a process hangs that has locked it: this line is written all the same
                if lacks_lines and self._write(session_id) is not False:
                    return
            self.files.append(session_id, *map(line, entries()))

    def _write(self, session_id: str, *, only_different: bool = True) -> bool | None:
        """Rewrite a transcript from the rows (where it differs); None when there is no such session, False when the file
        stays as it is: another program's, or one with messages that the database lost."""
        path = self.files.path(session_id)
        with self._engine.read() as tx:
            row = tx.row("SELECT transcript FROM sessions WHERE id = ?", (session_id,))
        if row is None:
            return None
        self.files.sizes.pop(session_id, None)
        with TranscriptFile(path) as file:
            if not file.is_locked:
                raise BlockingIOError("another process is still writing this transcript")
            with self._engine.read() as tx:  # after the lock: the lines of all later commits follow
                replayed = replay.read_transcript(path) if only_different else None
                if replayed is not None and self._has_more(tx, session_id, replayed, os.fstat(file.handle).st_mtime):
                    return False
                if replayed is None or replay.differences(tx, session_id, replayed):
                    file.clear()
                    lines = map(line, replay.lines(tx, session_id))
                    while some := b"".join(islice(lines, _AT_ONCE)):
                        file.append(some)
                owners = replay.owners(tx, session_id)
        self.files.sizes[session_id] = file.size
        self._behind.discard(session_id)
        if row[0] is None:  # it has one from now on: if it goes missing, check() reports that
            self._has_transcript[session_id] = True
            with suppress(StoreError), self._engine.write(exclusive=False) as tx:
                tx.run("UPDATE sessions SET transcript = 1 WHERE id = ?", (session_id,))
        for owner in owners:  # the messages it refers to are in their files
            if not self.files.exists(owner):
                self._write(owner)
        return True

    def _has_more(self, tx: Tx, session_id: str, replayed: replay.ReplayedSession, written: float) -> bool:
        """Whether a transcript has messages that the rows lack, though none were removed since it was written."""
        stored = set(tx.column("SELECT id FROM messages WHERE session_id = ?", (session_id,)))
        is_more = bool(replayed.loose or replayed.messages.keys() - stored)
        return is_more and tx.row(_REMOVED, (session_id, written)) is None

    @contextmanager
    def _after_commit(self, session_id: str) -> Iterator[None]:
        """Have the next write or the next opening complete the transcript if this fails: the change itself is stored."""
        try:
            yield
            if self.which != "off":
                self._written.add(session_id)
        except Exception as error:
            self._behind.add(session_id)
            if not self._warned and not isinstance(error, StoreClosed | StoreUnreachable):
                self._warned = True
                warnings.warn(
                    f"the transcript of session {session_id} could not be written (the database has everything);"
                    " the missing lines are added when the store is opened next",
                    stacklevel=5,
                )


def _entry(message_id: int, encoded: EncodedMessage) -> Entry:
    """A stored message as its transcript line, without reading it back."""
    named = {**encoded.values, "id": message_id, "session_id": "", "content": encoded.text}
    row = (*(named[name] for name in message_reading.SHOWN), encoded.form, None)
    return replay.message_entry(
        message_reading.decode(row), listed(tuple(sorted(encoded.lifted))) if encoded.lifted else ()
    )
