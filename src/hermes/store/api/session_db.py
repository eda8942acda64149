"""SessionDB: the public API of the store.

One flat class, written in parts by subject: sessions.py, messages.py and upkeep.py, on top of open.py; here are
export and import, and what concerns the record as a whole. Each method opens a transaction and calls one function of the module
for that subject. After a change is committed, a line that records it is appended to the session's transcript.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from hermes.errors import HermesError, InvalidInput, StoreCorrupt, StoreError
from hermes.store.api.arguments import checked_text, guarded
from hermes.store.api.messages import MessageCalls
from hermes.store.api.sessions import SessionCalls
from hermes.store.api.upkeep import UpkeepCalls
from hermes.store.engines.base import Tx
from hermes.store.exchange import ingest
from hermes.store.exchange.ingest import Ingested
from hermes.store.records import codec, message_reading
from hermes.store.records.attachments import Attachments, Read
from hermes.store.records.rows import ExportedSession, Finding
from hermes.store.records.sessions import checked_usage
from hermes.store.records.titles import MAX_TITLE
from hermes.store.records.visibility import User
from hermes.store.upkeep import retention

__all__ = ["SessionDB"]


@guarded
class SessionDB(SessionCalls, MessageCalls, UpkeepCalls):
    """Every conversation in one place.

    `SessionDB()` opens `<home>/state.db`, `SessionDB(db_path=…)` another file (created if it does not exist).
    Safe to share between threads; any number of processes may have the same file open. A file of an older version is
    migrated when it is opened and stays searchable while its index is rebuilt; one of a newer or foreign version opens
    read-only. `read_only=True` never alters a file of any version. `SessionDB(url="postgresql://…")` opens a
    store that several hosts share; each host has its transcripts and attachments next to `db_path` (or the default path).
    `SessionDB(":memory:")` is new, private (a temporary folder), without transcripts, and deleted when it is closed.

    durability "full" survives power loss, "normal" a crash of the program. Secrets are masked when a message is
    stored, unless `redact_secrets=False`. Transcripts are written for "all" sessions, for those of the "gateway", or "off".
    `timeout`: seconds in which a server has to begin or commit a transaction; other statements may take ten times as long.
    `patience`: so many seconds a call waits for a lock, a connection or a server that is being restarted before it fails.

    Errors are those of `hermes.errors`: an unknown session is SessionNotFound where a message would be lost (append,
    branch, compress, rewind), and None / False / [] from a query without a result.
    """

    MAX_TITLE_LENGTH = MAX_TITLE

    # ------------------------------------------------------------------------------------------ export and import

    def export_session(self, session_id: str, *, visible_to: User | None = None) -> ExportedSession | None:
        """The session with its messages, or None."""
        return self._read(ingest.export, session_id, visible_to)

    def export_all(self, source: str | None = None, *, visible_to: User | None = None) -> list[ExportedSession]:
        """Every session with its messages, as a list (iter_export streams)."""
        return list(self.iter_export(source, visible_to=visible_to))

    def iter_export(self, source: str | None = None, *, visible_to: User | None = None) -> Iterator[ExportedSession]:
        """Every session with its messages, one at a time, in constant memory."""
        return ingest.iterate(self._engine, checked_text(source, "source"), visible_to)

    def import_session(self, data: Mapping[str, Any]) -> bool:
        """Store an exported session under its own ids; False when that session exists (it stays unchanged)."""
        return self._ingest(data, "keep", {}, None).is_new

    def _ingest(
        self, data: Mapping[str, Any], policy: ingest.Policy, ids: dict[int, int], read: Read | None
    ) -> Ingested:
        """Bring a session in (see ingest.py), with its transcript and its attachments."""
        with self._engine.read() as tx:
            session_id = ingest.checked(data)
            known = tx.row("SELECT 1 FROM sessions WHERE id = ? AND purged IS NULL", (session_id,)) is not None
        carried = data.get(ingest.FILES)
        files = carried if isinstance(carried, Mapping) else {}
        done = Ingested()
        if not known or policy != "keep":
            prepared = ingest.prepared(data, self._attachments, self._mask)
            with self._writing(session_id) as tx:
                done = ingest.ingest(self._engine, tx, prepared, policy, ids)
                self._transcripts.mark(tx, done.touched)
        if done.is_new:
            self._transcripts.rewritten(*sorted({session_id, *done.touched}))
        elif done and ingest.PARTIAL in data:
            self._transcripts.revised(session_id, done.stored, done.changed, hides=done.hides)
        elif done:
            self._transcripts.complete([session_id])
        if (
            read is not None or files
        ):  # also of a session that was here: an import may have been killed before its files came
            for digest in self._read(message_reading.attachments_shown, session_id):
                self._attachments.take_over(read, digest, files.get(digest))
        return done

    def import_sessions(
        self,
        exported: Iterable[Mapping[str, Any]],
        *,
        attachments_dir: Path | str | None = None,
        attachments: Read | None = None,
        refused: Callable[[Mapping[str, Any], Exception], None] | None = None,
        update: bool = False,
        again: bool = True,
    ) -> dict[str, int]:
        """Store exported sessions one after the other; references between them stay valid. Attachments are those that a
        session carries (`attachments`: bytes or base64 by SHA-256), or are copied from `attachments_dir`, if it is given, or from
        what `attachments` reads by a hash (another store's `read_attachment`).
        A session that can't be imported raises, or goes to `refused`, if given.

        → {"sessions": n, "messages": n, "skipped": n}; sessions that exist here are skipped, also those in the trash:
        {"trashed": n} says how many of the skipped ones are there. With `update`, those
        that were imported from another program get the new messages from there: {"updated": n} counts them. Without
        `again`, a session that was deleted here stays deleted: {"deleted": n} counts them. One that was shredded here
        never comes back.
        """
        if attachments_dir is not None:
            attachments = Attachments(Path(attachments_dir)).read
        counts = Counter(sessions=0, messages=0, skipped=0, **({"updated": 0} if update else {}))
        ids: dict[int, int] = {}
        policy: ingest.Policy = "follow" if update else "keep"
        deleted, trashed = self.deleted_sessions(), {row["id"] for row in self.list_trash()}
        parts: dict[str, str] = {}  # of each session that comes in parts, as what it was counted
        for data in exported:
            gone = deleted.get(str(data.get("id"))) if isinstance(data, Mapping) else None
            if gone or (gone is not None and not again):
                counts["deleted"] += 1
                continue
            try:
                done = self._ingest(data, policy, ids, attachments)
            except (HermesError, TypeError, ValueError, LookupError, AttributeError, OverflowError) as error:
                is_trouble = isinstance(error, StoreError) and type(error) is not StoreError  # the next would fail, too
                if refused is None or is_trouble:
                    raise
                refused(data, error)
                continue
            if done.is_new and gone is not None:
                self._write(retention.audit, "restore", data["id"], "import")
            counts["messages"] += done.added
            kind = "sessions" if done.is_new else "updated" if done else "skipped"
            if (counted := parts.get(data["id"])) is not None:  # one more part of it
                if counted != "skipped" or kind == "skipped":
                    continue
                counts["skipped"] -= 1
            counts[kind] += 1
            if ingest.PARTIAL in data:
                parts[data["id"]] = kind
            if not done and data["id"] in trashed:
                counts["trashed"] += 1
        return dict(counts)

    def foreign_message_ids(self, session_id: str) -> set[str]:
        """The ids that a session's messages had on their platform or in the program they come from."""
        sql = "SELECT platform_message_id FROM messages WHERE session_id = ? AND platform_message_id IS NOT NULL"
        return {
            str(codec.restored(one)) for one in self._read(lambda tx: tx.column(sql, (codec.storable(session_id),)))
        }

    def import_database(self, path: Path | str, *, again: bool = True) -> dict[str, int]:
        """Import every session of another state.db, of any version; that file is not altered.

        → {"sessions": n, "messages": n, "skipped": n}; sessions that exist here are skipped. `again` as in import_sessions.
        """
        with SessionDB(db_path=Path(path), read_only=True) as other:
            return self.import_sessions(other.iter_export(), attachments=other.read_attachment, again=again)

    # ------------------------------------------------------------------------------------------ the record as a whole

    def backup(self, path: Path | str) -> None:
        """Write a consistent copy of the database while others write to it. The target must not exist.

        Of a server's store, the copy is a complete SQLite file with an attachments folder next to it.
        """
        target = Path(path)
        if not self._engine.shared:
            self._engine.backup(target)
        elif target.exists():
            raise InvalidInput(f"{target} exists already; choose the name of a new file")
        else:
            from hermes.store.exchange.copy import snapshot

            try:
                with SessionDB(db_path=target, durability="normal", transcripts="off") as copy:
                    snapshot(self, copy)
            except BaseException:  # what is not whole is no backup, and a second try finds the name free
                for end in ("", "-wal", "-shm", "-queue"):
                    target.with_name(target.name + end).unlink(missing_ok=True)
                raise

    def check(self) -> list[Finding]:
        """The problems of the store: [{"kind", "where", "detail"}], [] when it is sound.

        Rows that another program has written are adopted first, as before a list.
        """
        from hermes.store.upkeep.check import check

        with suppress(StoreError):  # if they can't be, the check finds out why
            self._engine.adopt_foreign_rows()
        return check(self._engine, self._transcripts)

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
        """Rebuild the database from all readable rows and what only the transcripts have; returns what was done."""
        from hermes.store.upkeep.check import rebuild_store

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
        from hermes.store.upkeep.check import repair

        return repair(self._engine, self._transcripts, self.path, self.backup, rebuild_index=rebuild_index)


class Transactions:
    """The transactions of an open SessionDB, with its fences and its mask, for other tables in the same store."""

    def __init__(self, db: SessionDB) -> None:
        self._db = db
        self.read, self.make_tables = db._engine.read, db._engine.make_tables
        self.write, self.masked, self.attachments = db._writing, db._masked, db._attachments

    def store_message(
        self,
        session_id: str,
        message: Mapping[str, Any],
        also: Callable[[Tx, int], None] | None = None,
        usage: Mapping[str, Any] | None = None,
    ) -> int:
        """Store a message as `append_message` does; `also`, given its id, writes related rows in the same transaction.

        Its tokens are estimated. If the server connection is lost and nothing was stored, the call is retried, and `also` is
        called again.
        """
        from hermes.texts import estimate_tokens

        message = {**message, "token_count": message.get("token_count") or estimate_tokens((message,))}
        return self._db._append(session_id, self._db._encoded(message), checked_usage(usage), also)
