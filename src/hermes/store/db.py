"""SessionDB: the record's public face.

One flat class, written in parts by subject: db_sessions.py, db_messages.py, db_exchange.py and db_keeping.py, on top of
db_open.py. Each method opens a transaction and makes one short call into the module that knows the subject. After a
change is committed, a line about it goes to the session's transcript.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hermes.errors import InvalidInput, StoreCorrupt
from hermes.store import session_exports
from hermes.store.db_exchange import ExchangeCalls
from hermes.store.db_keeping import Keeping
from hermes.store.db_messages import MessageCalls
from hermes.store.db_sessions import SessionCalls
from hermes.store.title_rules import MAX_TITLE

if TYPE_CHECKING:
    from hermes.store.engines.base import Tx
    from hermes.store.rows import Finding

__all__ = ["SessionDB"]


class SessionDB(SessionCalls, MessageCalls, ExchangeCalls, Keeping):
    """Every conversation in one place.

    `SessionDB()` opens `<home>/state.db`, `SessionDB(db_path=…)` another file (made if it is not there).
    Safe to share between threads; any number of processes may have the same file open. A file of an older version is
    brought up to date at once and stays searchable while its index is rebuilt; one of a newer or foreign version opens
    read-only. `read_only=True` never alters a file, whatever its version. `SessionDB(url="postgresql://…")` opens a
    record that several hosts share; transcripts and the like then lie beside `db_path` (the default one's place) on each.
    `SessionDB(":memory:")` is empty, private (a temporary folder), without transcripts, and gone when it is closed.

    durability "full" survives power loss, "normal" a crash of the program. Secrets are masked when a message is
    stored, unless `redact_secrets=False`. Transcripts are written for "all" sessions, for those of the "gateway", or "off".
    `prepared_statements` ("auto", "on", "off") is about PostgreSQL: "auto" uses none where a pooler is in front of the server.
    `timeout` is how many seconds such a server may leave a call unanswered before it is asked whether it is still there.

    Errors are those of `hermes.errors`: an unknown session is SessionNotFound where a message would be lost (append,
    branch, compress, rewind), and None / False / [] where a question simply has no answer.
    """

    MAX_TITLE_LENGTH = MAX_TITLE

    # ------------------------------------------------------------------------------------------ the record as a whole

    def import_database(self, path: Path | str) -> dict[str, int]:
        """Bring in every session of another state.db, of any version; that file is not altered. Values that programs
        have set there (set_meta) come along where there is none of that name here.

        → {"sessions": n, "messages": n, "skipped": n}; sessions that are here already are skipped.
        """
        with SessionDB(db_path=Path(path), read_only=True) as other:
            counts = self.import_sessions(other.iter_export(), attachments_dir=other.attachments_dir)
            with other._engine.read() as tx:
                values = session_exports.meta_of(tx)
        with self._engine.write() as tx:
            session_exports.bring_meta(tx, values)
        return counts

    def backup(self, path: Path | str) -> None:
        """A consistent copy of the database while others write. The target must not exist.

        Of a server's record it is a SQLite file with everything in it; the attachments lie beside it.
        """
        target = Path(path)
        if not self._engine.shared:
            self._engine.backup(target)
            return
        if target.exists():
            raise InvalidInput(f"{target} exists already; name a file that does not")
        from hermes.store.store_copy import snapshot

        with SessionDB(db_path=target, durability="normal", transcripts="off") as copy:
            snapshot(self, copy)

    def check(self, *, progress: Callable[[str, int, int], None] | None = None) -> list[Finding]:
        """What is wrong with the store: [{"kind", "where", "detail"}], [] when it is sound.

        `progress` is called with what is being looked at, how much of it is done, and of how much.
        """
        from hermes.store import consistency

        return consistency.check(self._engine, self._scribe, self._attachments, progress)

    def repair(
        self, *, rebuild_index: bool = False, from_transcripts: bool = False, from_database: bool = False
    ) -> list[str]:
        """Mend what check() finds, after a backup beside the file; what was done. Nothing is dropped.

        The database is the truth: what someone changed or removed with SQL is not brought back, what damage took is.
        Findings of the kind `transcript-differs`, where that can't be told apart, are left as they are, unless
        `from_transcripts` brings back what the transcripts have, or `from_database` writes the transcripts anew.
        `rebuild_index` makes the full-text index anew in any case: a flipped bit in it can go unnoticed.
        """
        from hermes.store import repair

        if from_transcripts and from_database:
            raise InvalidInput("repair takes from_transcripts or from_database, not both")
        side = repair.TRANSCRIPTS if from_transcripts else repair.DATABASE if from_database else None

        def mended(rebuild: bool) -> list[str] | None:
            place = (self._engine, self._scribe, self._attachments, self.path, self.backup)
            return repair.repair(*place, rebuild_index=rebuild, side=side)

        done = mended(rebuild_index)
        if done and not self._engine.shared and any(one["kind"] == "corruption" for one in self._engine.problems()):
            done = None  # damage that shows only once something is written
        if done is None and self._engine.shared:
            raise StoreCorrupt(f"{self.where} is damaged; restore it from a backup of the server")
        if done is None:  # the file itself is damaged: what can be saved goes into a new one
            self.close()
            done = repair.salvage(self.path, self.sessions_dir)
            self._open()
            done += mended(False) or []
        return done


class Transactions:
    """What the other modules of store/ may do with an open SessionDB: its transactions, with its fences and its mask."""

    def __init__(self, db: SessionDB) -> None:
        self._db = db
        self.read = db._engine.read
        self.make_tables = db._engine.make_tables

    def write(self, *, lasting: bool = True) -> AbstractContextManager[Tx]:
        """A write transaction that this thread's fences hold for (see SessionDB.fenced, Engine.write)."""
        return self._db._changing(lasting=lasting)

    def masked(self, text: str | None) -> str | None:
        """A text as the store keeps it, if there is one."""
        return self._db._masked(text)

    def store_message(self, session_id: str, message: dict[str, Any], also: Callable[[Tx, int], None]) -> int:
        """Store a message as `append_message` does; `also` does what belongs to it in the same transaction, given its id.

        If the server went away in the middle and nothing was stored, it is tried again, and `also` called again.
        """
        return self._db._append(session_id, self._db._ready(message), also=also)


def transactions(db: SessionDB) -> Transactions:
    """The transactions of an open SessionDB, for what is kept in the same store (gateway_db.py)."""
    return Transactions(db)
