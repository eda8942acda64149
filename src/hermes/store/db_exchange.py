"""The part of SessionDB about export and import."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hermes.errors import HermesError, StoreError
from hermes.store import codec, ingest, message_attachments, retention, session_events, session_exports
from hermes.store.arguments import checked_text
from hermes.store.attachments import Attachments, Read, note
from hermes.store.db_open import OpenStore
from hermes.store.ingest import Ingested
from hermes.store.visibility import User

if TYPE_CHECKING:
    from hermes.store.rows import ExportedSession


class ExchangeCalls(OpenStore):
    """Export and import of sessions."""

    # ------------------------------------------------------------------------------------------ export and import

    def export_session(self, session_id: str, *, visible_to: User | None = None) -> ExportedSession | None:
        """The session with its messages, or None."""
        return self._read(session_exports.export, session_id, visible_to)

    def export_all(self, source: str | None = None, *, visible_to: User | None = None) -> list[ExportedSession]:
        """Every session with its messages, as a list (iter_export streams)."""
        return list(self.iter_export(source, visible_to=visible_to))

    def iter_export(self, source: str | None = None, *, visible_to: User | None = None) -> Iterator[ExportedSession]:
        """Every session with its messages, one at a time, in constant memory."""
        return session_exports.iterate(self._engine, checked_text(source, "source"), visible_to)

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
            told = ingest.prepared(data, self._attachments, self._mask)
            if told["events"]:
                session_events.prepare(self._engine)
            with self._writing(session_id) as tx:
                done = ingest.ingest(self._engine, tx, told, policy, ids)
                self._transcripts.mark(tx, done.touched.all())
        if done.is_new:
            self._transcripts.arrived({session_id}, done.touched)
        elif done:
            self._transcripts.complete([session_id])
        if done or read is not None or files:  # an import that was killed may have left some of them behind
            self._files_came(session_id, read, files, again=not done)
        return done

    def _files_came(self, session_id: str, read: Read | None, files: Mapping[str, bytes | str], *, again: bool) -> None:
        """Copy the attachments of an imported session from another store or the export, and record which of them are missing."""
        wanted = self._read(message_attachments.attachments_shown, session_id)
        taken = [digest for digest in wanted if self._attachments.take_over(read, digest, files.get(digest))]
        if not wanted or (again and not taken):
            return
        here = [digest for digest in wanted if self._attachments.has(digest)]
        self._write(note, here, [digest for digest in wanted if digest not in here])

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
        counts = {"sessions": 0, "messages": 0, "skipped": 0, **({"updated": 0} if update else {})}
        ids: dict[int, int] = {}
        policy: ingest.Policy = "follow" if update else "keep"
        deleted, trashed = self._read(retention.deleted), self._read(retention.trashed_ids)
        for data in exported:
            gone = deleted.get(str(data.get("id"))) if isinstance(data, Mapping) else None
            if gone or (gone is not None and not again):
                counts["deleted"] = counts.get("deleted", 0) + 1
                continue
            try:
                done = self._ingest(data, policy, ids, attachments)
            except (HermesError, TypeError, ValueError, LookupError, AttributeError, OverflowError) as error:
                is_trouble = isinstance(error, StoreError) and type(error) is not StoreError  # the next would fail, too
                if refused is None or is_trouble:
                    raise
                refused(data, error)
                continue
            if done.is_new:
                if gone is not None:
                    self._write(retention.audit, "restore", data["id"], "import")
                counts["sessions"] += 1
                rows = data.get("messages") or ()
                counts["messages"] += sum(m.get("session_id", data["id"]) == data["id"] for m in rows)
            elif done:
                counts["updated"] += 1
                counts["messages"] += done.added
            else:
                counts["skipped"] += 1
                if data["id"] in trashed:
                    counts["trashed"] = counts.get("trashed", 0) + 1
        return counts

    def foreign_message_ids(self, session_id: str) -> set[str]:
        """The ids that a session's messages had on their platform or in the program they come from."""
        sql = "SELECT platform_message_id FROM messages WHERE session_id = ? AND platform_message_id IS NOT NULL"
        rows = self._read(lambda tx: tx.rows(sql, (codec.storable(session_id),)))
        return {str(codec.restored(row[0])) for row in rows}
