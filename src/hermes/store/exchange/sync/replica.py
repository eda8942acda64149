"""Synchronises an open store with others: sends its documents and merges theirs."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from hermes.errors import HermesError, InvalidInput
from hermes.store.api.session_db import SessionDB
from hermes.store.engines.base import REDACTED, Tx, drop_meta, meta_names, note_meta
from hermes.store.exchange.sync import apply, collect, tables
from hermes.store.exchange.sync import document as documents
from hermes.store.exchange.sync.apply import Applied, Counts, NotYet
from hermes.store.exchange.sync.document import SHREDDED, Placement
from hermes.store.records import lineage
from hermes.store.records.attachments import note_absent
from hermes.store.upkeep import retention

_AT_ONCE = 25  # sessions in one transaction
_MOST = 1 << 31  # bytes of a document, unpacked
_TO_SHRED = "sync_shred:"  # keys of state_meta, followed by a session's id: shredded elsewhere, in use here
Progress = Callable[[int, int], None]


class Replica:
    """A store that is synchronised with others. `grace` is how many days the trash keeps a session."""

    def __init__(self, db: SessionDB, grace: float = 7) -> None:
        if db.read_only:
            raise InvalidInput(f"{db.where} can only be read; it can't be synchronised")
        self._db, self._engine, self._grace = db, db._engine, grace
        self.store = tables.prepare(self._engine)

    # ------------------------------------------------------------------------------------------ out

    def document(self, progress: Progress | None = None) -> None:
        """Put local changes into the documents; remove what no session shows any more and no deletion has removed."""
        self._shred_late()
        retention.finish_deletions(self._engine, self._db._transcripts)
        self._engine.adopt_foreign_rows()
        with self._engine.read() as tx:
            changed = collect.changed_trees(tx)
        for start in range(0, len(changed), _AT_ONCE):
            with self._engine.write() as tx:
                for tree in changed[start : start + _AT_ONCE]:
                    collect.bring_up_to_date(tx, tree, self.store)
            if progress is not None:
                progress(min(start + _AT_ONCE, len(changed)), len(changed))

    def versions(self) -> dict[str, tuple[str, str]]:
        """By key, the session and the version of its document."""
        with self._engine.read() as tx:
            return {documents.key_of(tree): (tree, version) for tree, (version, _) in tables.versions(tx).items()}

    def packed(self, tree: str) -> tuple[str, bytes, list[str]]:
        """A session's document with the texts of its messages: its version, its bytes, the attachments it needs."""
        with self._engine.read() as tx:
            state = tables.load(tx, tree)
            bodies = _bodies(tx, state.document)
            version = collect.version_of(tx, state)
        data = documents.canonical({"document": state.document, "bodies": bodies}).encode()
        import zstandard

        return version, zstandard.ZstdCompressor(level=3, write_checksum=True).compress(data), _shown_files(bodies)

    # ------------------------------------------------------------------------------------------ in

    def merged(self) -> set[str]:
        """The versions of documents that were merged here."""
        with self._engine.read() as tx:
            return tables.merged_versions(tx)

    def mark_merged(self, name: str) -> None:
        """Record that this version needs not be merged: it was made here."""
        with self._engine.write(exclusive=False) as tx:
            tables.mark_merged(tx, name)

    def merge(self, name: str, data: bytes) -> tuple[Counts, set[str]]:
        """Merge a document of another store; what it changed here, and the attachments its messages show.

        NotYet when a session of it is in use, or shows messages that have not arrived. `name` is noted as seen.
        """
        theirs, bodies = _unpacked(data)
        if self._db._mask is not None:
            documents.masked(theirs, bodies, self._db._mask)
        tree = str(theirs["id"])
        with self._engine.read() as tx:
            known = [tree, *tables.forks_of(tx, tree), *(theirs["sessions"].keys() - {tree})]
        with self._db._writing(*dict.fromkeys(known)) as tx:
            state = collect.bring_up_to_date(tx, tree, self.store)
            before = time.time() - self._grace * retention.DAY
            done = apply.apply_document(self._engine, tx, state, theirs, bodies, before)
            for session_id in done.to_shred:
                note_meta(tx, _TO_SHRED + session_id)
            self._db._transcripts.mark(tx, done.sessions)
            tables.mark_merged(tx, name)
        return self._finish(done), done.attachments

    def _finish(self, done: Applied) -> Counts:
        """Update transcripts, and remove expired sessions, after applying a document."""
        self._db._transcripts.rewritten(*sorted(done.sessions))
        counts = done.counts
        counts.deleted = sum(self._db.delete_session(session_id, by="sync") for session_id in done.expired)
        counts.trashed = max(0, counts.trashed - counts.deleted)
        counts.shredded = self._shred_late() if done.to_shred else 0
        return counts

    def _shred_late(self) -> int:
        """Shred here what was shredded elsewhere, unless a process uses it."""
        with self._engine.read() as tx:
            waiting = meta_names(tx, _TO_SHRED)
        done = [session_id for session_id in waiting if self._shred(session_id)]
        for session_id in done:
            with self._engine.write(exclusive=False) as tx:
                drop_meta(tx, _TO_SHRED + session_id)
        return len(done)

    def _shred(self, session_id: str) -> bool:
        with self._engine.read() as tx:
            if tx.row("SELECT 1 FROM sessions WHERE id = ? AND purged IS NULL", (session_id,)) is None:
                return True
            parts = lineage.parts(tx, session_id)
            whole = all(_is_shredded(tx, part) for part in parts)
        try:
            if whole:
                with suppress(InvalidInput):  # a branch shows messages of it
                    self._db.shred_session(session_id, by="sync")
                    return True
            self._db.delete_session(session_id, by="sync")  # it has gone on here: what that part shows of it stays
            self._engine.scrub()
        except HermesError:
            return False
        return True

    # ------------------------------------------------------------------------------------------ attachments

    def lacks(self, digests: Iterable[str]) -> list[str]:
        """The attachments that are not here."""
        return [one for one in digests if not self._db._attachments.has(one)]

    def attachment(self, digest: str) -> bytes | None:
        """The bytes of an attachment; None when they are not here."""
        try:
            return self._db.read_attachment(digest)
        except OSError:
            return None

    def keep(self, data: bytes) -> str:
        """Store an attachment; its hash."""
        return self._db._attachments.keep(data)

    def settle_attachments(self, digests: Iterable[str]) -> None:
        """Record which of these are here and which were never brought."""
        wanted = sorted(set(digests))
        here = [one for one in wanted if self._db._attachments.has(one)]
        with self._engine.write(exclusive=False) as tx:
            note_absent(tx, here, [one for one in wanted if one not in here])

    def shredded_attachments(self, tree: str, earlier: Iterable[bytes]) -> list[str]:
        """The attachments that earlier versions of a shredded session's document show, and no message here."""
        with self._engine.read() as tx:
            shredded = any(one.get("shred") for one in tables.load(tx, tree).document["sessions"].values())
            if not shredded:
                return []
            files = {one for data in earlier for one in _shown_files(_unpacked(data)[1])}
            return [one for one in files if tx.row("SELECT 1 FROM attachments WHERE hash = ?", (one,)) is None]

    def lacking_attachments(self) -> list[str]:
        """Attachments that messages show and whose bytes are not here."""
        with self._engine.read() as tx:
            return self.lacks(tx.column("SELECT DISTINCT hash FROM attachments ORDER BY hash"))


def _shown_files(bodies: dict[str, Any]) -> list[str]:
    files = [one["hash"] for body in bodies.values() for one in body.get("body", body).get("attachments") or ()]
    return list(dict.fromkeys(files))


def _is_shredded(tx: Tx, session_id: str) -> bool:
    document = tables.load(tx, tables.tree_of(tx, session_id)).document
    return Placement(document).life(session_id)[0] == SHREDDED


def _bodies(tx: Tx, document: documents.Document) -> dict[str, Any]:
    """The texts of a document's messages that are here, and of those it shows whose owner was deleted."""
    found: dict[str, Any] = {}
    wanted = {one: record for one, record in document["messages"].items() if "b" in record}
    attached: dict[str, Any] = {}
    for origin, row in tables.rows_of(tx, wanted).items():
        body = collect.stored_body(tx, row, attached)
        if wanted[origin].get("red"):
            found[origin] = _place_only(body)
        elif documents.digest(body) == wanted[origin]["b"][0]:
            found[origin] = body
    for origin, row in collect.carried_without_owner(tx, document):
        tree = tx.value("SELECT tree FROM sync_messages WHERE origin = ?", (origin,))
        body, red = collect.stored_body(tx, row, attached), row.hidden == REDACTED
        found[origin] = {"tree": tree, "body": _place_only(body), "red": True} if red else {"tree": tree, "body": body}
    return found


def _place_only(body: dict[str, Any]) -> dict[str, Any]:
    """The part of a redacted message that other stores get."""
    return {name: body[name] for name in ("role", "timestamp")}


def _unpacked(data: bytes) -> tuple[documents.Document, dict[str, Any]]:
    import zstandard

    try:
        with zstandard.ZstdDecompressor().stream_reader(data) as stream:
            text = stream.read(_MOST)
        package = json.loads(text)
        document, bodies = package["document"], package["bodies"]
    except (zstandard.ZstdError, ValueError, KeyError, TypeError) as error:
        raise InvalidInput(f"it is damaged or incomplete ({error})") from error
    return documents.checked(document), bodies


__all__ = ["Counts", "NotYet", "Replica"]
