"""SessionDB: the public API of the store.

One flat class, written in parts by subject: db_sessions.py, db_messages.py, db_exchange.py and db_keeping.py, on top of
db_open.py. Each method opens a transaction and calls one function of the module for that subject. After a
change is committed, a line that records it is appended to the session's transcript.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hermes.errors import InvalidInput, StoreCorrupt, StoreError
from hermes.store import codec, session_exports
from hermes.store.arguments import guarded
from hermes.store.db_exchange import ExchangeCalls
from hermes.store.db_keeping import UpkeepCalls
from hermes.store.db_messages import MessageCalls
from hermes.store.db_sessions import SessionCalls
from hermes.store.session_copies import note_backup
from hermes.store.title_rules import MAX_TITLE

if TYPE_CHECKING:
    from hermes.store.engines.base import Tx
    from hermes.store.rows import Finding

__all__ = ["SessionDB"]


@guarded
class SessionDB(SessionCalls, MessageCalls, ExchangeCalls, UpkeepCalls):
    """Every conversation in one place.

    `SessionDB()` opens `<home>/state.db`, `SessionDB(db_path=…)` another file (created if it does not exist).
    Safe to share between threads; any number of processes may have the same file open. A file of an older version is
    migrated when it is opened and stays searchable while its index is rebuilt; one of a newer or foreign version opens
    read-only. `read_only=True` never alters a file of any version. `SessionDB(url="postgresql://…")` opens a
    store that several hosts share; each host has its transcripts and attachments next to `db_path` (or the default path).
    `SessionDB(":memory:")` is new, private (a temporary folder), without transcripts, and deleted when it is closed.

    durability "full" survives power loss, "normal" a crash of the program. Secrets are masked when a message is
    stored, unless `redact_secrets=False`. Transcripts are written for "all" sessions, for those of the "gateway", or "off".
    `prepared_statements` ("auto", "on", "off") applies to PostgreSQL: "auto" uses none behind a connection pooler.
    `timeout`: seconds in which a server has to begin or commit a transaction; other statements may take ten times as long.
    `patience`: so many seconds a call waits for a lock, a connection or a server that is being restarted before it fails.

    Errors are those of `hermes.errors`: an unknown session is SessionNotFound where a message would be lost (append,
    branch, compress, rewind), and None / False / [] from a query without a result.
    """

    MAX_TITLE_LENGTH = MAX_TITLE

    # ------------------------------------------------------------------------------------------ the record as a whole

    def import_database(
        self, path: Path | str, *, again: bool = True, only: Callable[[Mapping[str, Any]], bool] | None = None
    ) -> dict[str, int]:
        """Import every session of another state.db, of any version; that file is not altered. Values that programs
        have set there (set_meta) are imported where this store has none of that name.

        → {"sessions": n, "messages": n, "skipped": n}; sessions that exist here are skipped. `again` as in import_sessions.
        With `only`, the exported sessions for which it is true, and no values of programs.
        """
        with SessionDB(db_path=Path(path), read_only=True) as other:
            found = (one for one in other.iter_export() if only is None or only(one))
            counts = self.import_sessions(found, attachments=other.read_attachment, again=again)
            if only is not None:
                return counts
            values = [(key, self._masked(codec.restored(value))) for key, value in other._read(session_exports.meta_of)]
        self._write(session_exports.bring_meta, values)
        return counts

    def backup(self, path: Path | str) -> bool:
        """Write a consistent copy of the database while others write to it. The target must not exist.

        Of a server's store, the copy is a complete SQLite file with an attachments folder next to it. → whether the store
        has noted where the copy lies, so that `shred_session` names it: a store that can only be read can't.
        """
        target = Path(path)
        if not self._engine.shared:
            self._engine.backup(target)
            return self._note_backup(target)
        if target.exists():
            raise InvalidInput(f"{target} exists already; choose the name of a new file")
        from hermes.store.store_copy import snapshot

        try:
            with SessionDB(db_path=target, durability="normal", transcripts="off") as copy:
                snapshot(self, copy)
        except BaseException:  # what is not whole is no backup, and a second try finds the name free
            for end in ("", "-wal", "-shm", "-queue"):
                target.with_name(target.name + end).unlink(missing_ok=True)
            raise
        return self._note_backup(target)

    def _note_backup(self, target: Path) -> bool:
        """Record where a backup lies, so that shredding can name it; False when the store can't be written."""
        try:
            self._write(note_backup, target)
        except StoreError:
            return False
        return True

    def check(self, *, progress: Callable[[str, int, int], None] | None = None) -> list[Finding]:
        """The problems of the store: [{"kind", "where", "detail"}], [] when it is sound.

        Rows that another program has written are adopted first, as before a list. `progress` is called with the current
        subject, the number of items done, and their total.
        """
        from hermes.store.check import check

        with suppress(StoreError), self._engine.taking_in():  # if they can't be, the check finds out why
            pass
        return check(self._engine, self._transcripts, self._attachments, progress)

    def repair(self, *, rebuild_index: bool = False) -> list[str]:
        """Repair what check() finds, after a backup next to the file; returns the list of repairs.

        The database is the truth: transcripts that differ are written again, and the old ones set aside. Where rows can't be
        read, or newer ones were lost, the file is rebuilt. `rebuild_index` always rebuilds the full-text index: a flipped bit in
        it can go undetected.
        """
        done = self._repaired(rebuild_index)
        if done and not self._engine.shared and any(one["kind"] == "corruption" for one in self._engine.problems()):
            done = None  # damage that only a write reveals
        return self.rebuild() if done is None else done

    def rebuild(self) -> list[str]:
        """Make the database anew from all rows that can be read and what only the transcripts have; returns what was done."""
        from hermes.store.rebuild import rebuild_store

        if self._engine.shared:
            raise StoreCorrupt(f"{self.where} is damaged; restore it from a backup of the server")
        self.close()
        try:
            done = rebuild_store(self.path, self.sessions_dir)
        except BaseException:
            with suppress(StoreError):
                self._open()  # as it was
            raise
        self._open()
        return done + (self._repaired(False) or [])

    def _repaired(self, rebuild_index: bool) -> list[str] | None:
        from hermes.store.repair import repair

        place = (self._engine, self._transcripts, self._attachments, self.path, self.backup)
        return repair(*place, rebuild_index=rebuild_index)


class Transactions:
    """The transactions of an open SessionDB, with its fences and its mask, for the other modules of store/."""

    def __init__(self, db: SessionDB) -> None:
        self._db = db
        self.read = db._engine.read
        self.make_tables = db._engine.make_tables
        self.attachments = db._attachments

    def write(self, *, lasting: bool = True) -> AbstractContextManager[Tx]:
        """A write transaction under this thread's fences (see SessionDB.fenced, Engine.write)."""
        return self._db._writing(lasting=lasting)

    def masked(self, text: str | None) -> str | None:
        """The text as the store would store it (secrets masked); None stays None."""
        return self._db._masked(text)

    def store_message(self, session_id: str, message: dict[str, Any], also: Callable[[Tx, int], None]) -> int:
        """Store a message as `append_message` does; `also`, given its id, writes related rows in the same transaction.

        If the server connection is lost and nothing was stored, the call is retried, and `also` is called again.
        """
        return self._db._append(session_id, self._db._ready(message), also=also)


def transactions(db: SessionDB) -> Transactions:
    """The transactions of an open SessionDB, for other tables in the same store (gateway_db.py)."""
    return Transactions(db)
