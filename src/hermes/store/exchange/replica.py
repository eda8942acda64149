"""Synchronises an open store with others: sends its documents and merges theirs into the rows.

Merging a document moves messages to the session they belong to, inserts missing ones in their order, and sets the values that
another store changed. Sessions that refer to moved messages still show the same ones.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from typing import Any

from hermes.errors import HermesError, InvalidInput, TitleClash
from hermes.store import leases
from hermes.store.api.session_db import SessionDB
from hermes.store.engines.base import COMPACTED, KEPT, REDACTED, Engine, Tx
from hermes.store.exchange import collect
from hermes.store.exchange import document as documents
from hermes.store.exchange.collect import TreeState
from hermes.store.exchange.document import DELETED, LIVE, SHREDDED, TRASHED, Document, Placement
from hermes.store.exchange.ingest import Ingest
from hermes.store.records import file_changes, lineage, messages, sessions, titles
from hermes.store.records.lineage import Moved, StoredRow
from hermes.store.transcripts import replay
from hermes.store.upkeep import retention

_AT_ONCE = 25  # sessions in one transaction
_MOST = 1 << 31  # bytes of a document, unpacked
Progress = Callable[[int, int], None]
_HERE = "SELECT trashed_at FROM sessions WHERE id = ? AND purged IS NULL"


class NotYet(HermesError):
    """This document can't be taken now: a session in it is in use, or messages it shows have not arrived."""


@dataclass(slots=True)
class Counts:
    """The numbers of things that a synchronisation has changed in a store."""

    sessions: int = 0
    messages: int = 0
    forks: int = 0
    trashed: int = 0
    deleted: int = 0
    shredded: int = 0
    attachments: int = 0
    waiting: int = 0  # documents that are taken the next time

    def add(self, other: Counts) -> None:
        for one in fields(self):
            setattr(self, one.name, getattr(self, one.name) + getattr(other, one.name))


@dataclass(slots=True)
class Applied:
    """The changes that a document has made here."""

    sessions: set[str] = field(default_factory=set)  # their transcripts are written again
    counts: Counts = field(default_factory=Counts)
    expired: list[str] = field(default_factory=list)  # deleted elsewhere, and the grace is over
    attachments: set[str] = field(default_factory=set)


def _apply(
    engine: Engine, tx: Tx, state: TreeState, theirs: Document, bodies: Mapping[str, Any], expired_before: float
) -> Applied:
    """Merge a document of another store into this one's, and the rows with it. `state` is up to date."""
    merged = documents.merged(state.document, theirs)
    for origin, record in state.document["messages"].items():  # an edit whose text is not here: take it when it comes
        now, was = merged["messages"].get(origin, {}), record.get("b")
        if was is not None and now.get("b", was)[0] != was[0] and origin not in bodies:
            now["b"] = was
    placement = Placement(merged)
    documents.add_forks(merged, placement)
    lacking = documents.absent(merged, collect.rows_of(tx, merged["messages"]))
    if merged == state.document and bodies.keys().isdisjoint(lacking):
        return Applied()
    return _Work(engine, tx, state, merged, placement, bodies).run(expired_before)


class _Work:
    def __init__(
        self,
        engine: Engine,
        tx: Tx,
        state: TreeState,
        merged: Document,
        placement: Placement,
        bodies: Mapping[str, Any],
    ) -> None:
        self.engine, self.tx, self.state, self.merged = engine, tx, state, merged
        self.placement, self.bodies = placement, bodies
        self.into = Ingest(engine, tx)
        self.done = Applied(self.into.touched, attachments=self.into.attachments)
        self.rows: dict[str, StoredRow] = collect.rows_of(tx, merged["messages"])
        self.ids = [self.merged["id"], *sorted(merged["sessions"].keys() - {self.merged["id"]}, key=self._depth)]
        self.was_here = {one: row[0] for one in self.ids for row in tx.rows(_HERE, (one,))}

    def _depth(self, session_id: str) -> tuple[int, str]:
        return documents._depth(self.placement, session_id), session_id

    def run(self, expired_before: float) -> Applied:
        for session_id in self.was_here:
            if leases.is_live(self.tx, session_id):
                raise NotYet(f"session {session_id} is in use")
        here = [one for one in self.ids if self._exists(one)]
        lives = {one: self.placement.life(one) for one in here}
        self.done.expired = [one for one, (state, at) in lives.items() if state == DELETED and 0 < at < expired_before]
        self._keep_carried(here)
        self._require_carried()
        with lineage.references_kept(self.tx, self._owners(here), self.done.sessions) as moved:
            self._keep_ancestors(here)
            for session_id in here:
                self._arrange(session_id, moved)
            self._remove_gone()
        for owner in self.done.sessions:  # deleted sessions whose messages have all moved to the session they belong to
            retention.drop_empty_tombstone(self.tx, owner)
        self._revise()
        for session_id in here:
            self._values(session_id)
            self._view(session_id)
            self._life(session_id)
        self.into.index()
        for session_id in here:
            self.into.finish(session_id)
        for other in self.done.sessions.difference(here):
            messages.recount(self.tx, other)
        self._save(here)
        return self.done

    # -------------------------------------------------------------------------------------- which sessions are here

    def _exists(self, session_id: str) -> bool:
        """Whether a session has rows here from now on; a new one is created."""
        state, _ = self.placement.life(session_id)
        if state == SHREDDED or session_id in self.was_here:
            return state != SHREDDED
        if session_id in retention.half_deleted(self.tx):
            raise NotYet(f"session {session_id} is being deleted")
        first_contact = not self.state.known or session_id not in self.state.document["sessions"]
        if state != LIVE and not (state == TRASHED and first_contact) and not self._is_stranded(session_id):
            return False
        if any(self._needs(origin) for origin in self.placement.order.get(session_id, ())):
            return False  # another store has its messages
        fields = {name: register[0] for name, register in self.merged["sessions"][session_id]["fields"].items()}
        if not fields:
            return False
        fields.pop("title", None)
        sessions.checked_id(session_id)
        replay.insert_session(self.tx, {**fields, "id": session_id})
        self.done.counts.sessions += 1
        self.done.counts.forks += session_id != self.merged["id"]
        return True

    def _is_stranded(self, session_id: str) -> bool:
        """Whether messages of a fork that was deleted elsewhere are still in the session it forked from: this store did not
        know of the fork. They go to the trash with it, as they do where it was known."""
        return any(
            origin in self.rows and self.rows[origin].owner in self.was_here and self.rows[origin].hidden != KEPT
            and not self.merged["messages"][origin].get("gone")
            for origin in self.placement.order.get(session_id, ())
        )  # fmt: skip

    def _needs(self, origin: str) -> bool:
        record = self.merged["messages"][origin]
        wanted = "b" in record and not record.get("gone") and not record.get("red")
        return wanted and origin not in self.rows and origin not in self.bodies

    def _owners(self, here: Sequence[str]) -> set[str]:
        return {*here, *(row.owner for row in self.rows.values())}

    # -------------------------------------------------------------------------------------- messages of others

    def _keep_carried(self, here: Sequence[str]) -> None:
        """Store messages whose owner was deleted, for the sessions that show them."""
        shown = [one for one in self.ids if one in here or self._shown(one)]
        carried = collect.carried(self.merged, shown)
        wanted = [one for one in sorted(carried) if isinstance(self.bodies.get(one), dict)]
        known = collect.rows_of(self.tx, wanted)
        for origin in (one for one in wanted if one not in known and "tree" in self.bodies[one]):
            tree, body = self.bodies[origin]["tree"], self.bodies[origin]["body"]
            record = collect.load(self.tx, tree).document["messages"].get(origin, {})
            red = record.get("red") or self.bodies[origin].get("red")
            if red:
                body = {name: body[name] for name in ("role", "timestamp")}
            number = self.into.keep_for_others(tree.removeprefix(collect.KEPT_OF), body, redacted=bool(red))
            collect.remember(self.tx, tree, origin, number)

    def _keep_ancestors(self, here: Sequence[str]) -> None:
        """Keep the messages of a session deleted here that a fork shows."""
        own = collect.shown_of_others(self.merged, here) & self.merged["messages"].keys()
        wanted = [one for one in own if one not in self.rows and self._stored(one)]
        for origin in sorted(wanted, key=self.placement.by_time):
            if self.placement.home[origin] not in here:
                number = self.into.keep_for_others(self.merged["id"], self.bodies[origin])
                self._at(origin, StoredRow(number, self.merged["id"], KEPT))

    def _require_carried(self) -> None:
        old = self.state.document["sessions"]
        for session_id, one in self.merged["sessions"].items():
            if "view" not in one or one["view"] == old.get(session_id, {}).get("view"):
                continue
            names = collect.carried(self.merged, [session_id])
            if len(collect.rows_of(self.tx, names)) < len(names) and self._shown(session_id):
                raise NotYet(f"session {session_id} shows messages that have not arrived")

    def _shown(self, session_id: str) -> bool:
        return self.placement.life(session_id)[0] in (LIVE, TRASHED)

    # -------------------------------------------------------------------------------------- own messages

    def _arrange(self, session_id: str, moved: Moved) -> None:
        """Give a session its own messages, in their order."""
        order = [one for one in self.placement.order.get(session_id, ()) if self._stored(one)]
        pairs = [(self.bodies.get(one), self.rows.get(one)) for one in order]
        for origin, (_, row), number in zip(order, pairs, self.into.arrange(session_id, pairs, moved), strict=True):
            now = StoredRow(number, session_id, None if row is None else row.shown)
            if row != now:
                self._at(origin, now)
                self.done.sessions.update((session_id, session_id if row is None else row.owner))
                self.done.counts.messages += row is None

    def _stored(self, origin: str) -> bool:
        record = self.merged["messages"][origin]
        if record.get("gone"):
            return False
        return origin in self.rows or ("b" in record and origin in self.bodies)

    def _at(self, origin: str, row: StoredRow) -> None:
        self.rows[origin] = row
        collect.remember(self.tx, self.merged["id"], origin, row.id)

    def _remove_gone(self) -> None:
        for origin, record in self.merged["messages"].items():
            row = self.rows.get(origin)
            if record.get("gone") and row is not None and row.hidden != KEPT:
                messages.remove_own(self.engine, self.tx, row.owner, [row.id])
                self.done.sessions.add(row.owner)

    def _revise(self) -> None:
        """Apply edits and redactions of other stores, also to messages that are here only for others."""
        was = self.state.document["messages"]
        for origin, row in self.rows.items():
            record, old = self.merged["messages"][origin], was.get(origin, {})
            if record.get("gone"):
                continue
            redacted = record.get("red") and row.hidden != REDACTED
            edited = not record.get("red") and "b" in old and old["b"][0] != record["b"][0] and origin in self.bodies
            if not redacted and not edited:
                continue
            home = messages.home_of(self.tx, row.id)
            keeper, carriers = (row.owner, ()) if home is None else (home.keeper, home.carriers)
            if redacted:
                self.tx.run("UPDATE messages SET hidden = ? WHERE id = ?", (REDACTED, row.id))
                file_changes.forget(self.tx, [row.id])
            else:
                self.into.replace(row.id, keeper, self.bodies[origin])
            self.done.sessions.update((row.owner, *carriers))

    # -------------------------------------------------------------------------------------- values

    def _changed(self, session_id: str, part: str) -> dict[str, Any]:
        """The registers of a part whose value another store has changed."""
        now = self.merged["sessions"][session_id][part]
        was = self.state.document["sessions"].get(session_id, {}).get(part, {}) if session_id in self.was_here else {}
        return {name: one[0] for name, one in now.items() if name not in was or was[name][0] != one[0]}

    def _values(self, session_id: str) -> None:
        entry = self.merged["sessions"][session_id]
        fields = self._changed(session_id, "fields")
        sets = {part: self._changed(session_id, part) for part in ("tags", "members")}
        was = self.state.document["sessions"].get(session_id, {})
        if fields or any(sets.values()) or any(entry[part] != was.get(part) for part in ("usage", "events")):
            self.done.sessions.add(session_id)
        if "system_prompt" in fields:
            sessions.set_prompt(self.tx, session_id, fields["system_prompt"])
        values = {name: value for name, value in fields.items() if name in collect.FIELDS}
        usage = {name: documents.total(slots) for name, slots in entry["usage"].items() if name in collect.USAGE}
        self.into.set_columns(session_id, {**values, **usage})
        there = {part: [name for name, one in entry[part].items() if one[0]] for part in sets if sets[part]}
        if "members" in there:
            there["members"] = [json.loads(name) for name in there["members"]]
        replay.set_state(self.tx, session_id, there)
        if "title" in fields:
            self._title(session_id, fields["title"])
        if entry["events"]:
            ids = {one: row.id for one, row in self.rows.items()}
            entries = [{**event, "after": ids.get(event["after"], 0)} for _, event in sorted(entry["events"].items())]
            sessions.add_missing_events(self.tx, session_id, entries, {})

    def _title(self, session_id: str, title: str | None) -> None:
        """Set a title; of two sessions with the same, the one that got it later gets the next number."""
        if self.tx.value("SELECT trashed_at FROM sessions WHERE id = ?", (session_id,)) is not None:
            self.into.set_columns(session_id, {"trashed_title": title})
            return
        holder = self.tx.value("SELECT id FROM sessions WHERE title = ? AND id <> ?", (title, session_id))
        if title is not None and holder is not None:
            mine = self.merged["sessions"][session_id]["fields"]["title"]
            theirs = self._title_of(str(holder))
            if theirs is not None and (theirs[1], str(holder)) > (mine[1], session_id):
                titles.set_title(self.tx, str(holder), titles.next_title(self.tx, title))
                self.done.sessions.add(str(holder))
        try:
            titles.set_or_number(
                self.tx, session_id, title
            )  # with another number than in the document, it was changed here
        except (TitleClash, ValueError) as error:
            raise InvalidInput(f"session {session_id}: its title can't be set ({error})") from error

    def _title_of(self, session_id: str) -> Any:
        entry = self.merged["sessions"].get(session_id)
        if entry is None:
            other = collect.load(self.tx, collect.tree_of(self.tx, session_id)).document
            entry = other["sessions"].get(session_id, documents.new_session())
        return entry["fields"].get("title")

    def _view(self, session_id: str) -> None:
        """Hide, show and refer to messages as the merged document says."""
        view = self.merged["sessions"][session_id].get("view", (None,))[0]
        was = self.state.local.get(session_id, {}).get("view") if session_id in self.was_here else None
        if view is None or view == was:
            return
        for origin in self.placement.order.get(session_id, ()):
            row = self.rows.get(origin)
            if row is not None and not self.merged["messages"][origin].get("gone"):
                sql = f"UPDATE messages SET hidden = ? WHERE id = ? AND (hidden IS NULL OR hidden > 0 OR hidden = {COMPACTED})"
                self.tx.run(sql, (view["hidden"].get(origin), row.id))
        names = {name for _, some, _, _ in view["refs"] for name in some}
        every = {**collect.rows_of(self.tx, names), **self.rows}

        def number(origin: str, otherwise: int) -> int:
            return every[origin].id if origin in every else otherwise

        self.into.refer(session_id, [
            ([(every[one].id, every[one].owner) for one in some if one in every], number(after, -1) if after else 0, *rest)
            for after, some, *rest in view["refs"]
        ])  # fmt: skip
        rewinds = [[batch, number(cut, 0)] for batch, cut in view["rewinds"]]
        replay.set_state(self.tx, session_id, {"rewinds": rewinds})
        self.done.sessions.add(session_id)

    def _life(self, session_id: str) -> None:
        state, at = self.placement.life(session_id)
        trashed = self.tx.value("SELECT trashed_at FROM sessions WHERE id = ?", (session_id,)) is not None
        if state == LIVE and trashed:
            retention.restore(self.tx, session_id, "sync")
            self.done.sessions.add(session_id)
        elif state != LIVE and not trashed:
            retention.trash(self.tx, session_id, "sync", at or None)
            self.done.counts.trashed += 1
            self.done.sessions.add(session_id)

    def _save(self, here: Sequence[str]) -> None:
        """Note what is here now as no change of this store, except for a title that got another number."""
        self.state.document, self.state.local = self.merged, {}
        self.state.fingerprint = collect.combined(collect.fingerprints(self.tx, here) if here else {}, here)
        for session_id in here:
            now = self.state.local[session_id] = collect.snapshot(self.tx, session_id)
            title = self.merged["sessions"][session_id]["fields"].get("title")
            if title is not None and now["life"][0] == LIVE and now["fields"]["title"] != title[0]:
                now["fields"]["title"] = title[0]
                self.state.fingerprint = ""
        collect.settle(self.tx, self.state)


class Replica:
    """A store that is synchronised with others. `grace` is how many days the trash keeps a session."""

    def __init__(self, db: SessionDB, grace: float = 7) -> None:
        if db.read_only:
            raise InvalidInput(f"{db.where} can only be read; it can't be synchronised")
        self._db, self._engine, self._grace = db, db._engine, grace
        self.store = collect.prepare(self._engine)

    # ------------------------------------------------------------------------------------------ out

    def document(self, progress: Progress | None = None) -> None:
        """Put local changes into the documents; remove what no session shows any more and no deletion has removed."""
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
            return {documents.key_of(tree): (tree, version) for tree, (version, _) in collect.versions(tx).items()}

    def packed(self, tree: str) -> tuple[str, bytes, list[str]]:
        """A session's document with the texts of its messages: its version, its bytes, the attachments it needs."""
        with self._engine.read() as tx:
            state = collect.load(tx, tree)
            bodies = _bodies(tx, state.document)
            version = collect.version_of(tx, state)
        data = documents.canonical({"document": state.document, "bodies": bodies}).encode()
        import zstandard

        return version, zstandard.ZstdCompressor(level=3, write_checksum=True).compress(data), _shown_files(bodies)

    # ------------------------------------------------------------------------------------------ in

    def merged(self) -> set[str]:
        """The versions of documents that were merged here."""
        with self._engine.read() as tx:
            return set(tx.column("SELECT name FROM sync_seen"))

    def mark_merged(self, name: str) -> None:
        """Record that this version needs not be merged: it was made here."""
        with self._engine.write(exclusive=False) as tx:
            collect.mark_merged(tx, name)

    def merge(self, name: str, data: bytes) -> tuple[Counts, set[str]]:
        """Merge a document of another store; what it changed here, and the attachments its messages show.

        NotYet when a session of it is in use, or shows messages that have not arrived. `name` is noted as seen.
        """
        theirs, bodies = _unpacked(data)
        if self._db._mask is not None:
            documents.masked(theirs, bodies, self._db._mask)
        tree = str(theirs["id"])
        shredded = self._shred(theirs)
        with self._engine.read() as tx:
            known = [tree, *collect.forks_of(tx, tree), *(theirs["sessions"].keys() - {tree})]
        with self._db._writing(*dict.fromkeys(known)) as tx:
            state = collect.bring_up_to_date(tx, tree, self.store)
            before = time.time() - self._grace * retention.DAY
            done = _apply(self._engine, tx, state, theirs, bodies, before)
            self._db._transcripts.mark(tx, done.sessions)
            collect.mark_merged(tx, name)
        self._db._transcripts.rewritten(*sorted(done.sessions))
        counts = done.counts
        counts.deleted = sum(self._db.delete_session(session_id, by="sync") for session_id in done.expired)
        counts.trashed = max(0, counts.trashed - counts.deleted)
        counts.shredded = shredded
        return counts, done.attachments

    def _shred(self, theirs: Document) -> int:
        """Shred here, before the document is merged, what was shredded elsewhere; how many sessions. NotYet if one is in use."""
        gone = {session_id for session_id, one in theirs["sessions"].items() if one.get("shred")}
        count = 0
        for session_id in sorted(gone):
            with self._engine.read() as tx:
                if tx.row(_HERE, (session_id,)) is None:
                    continue
                if leases.is_live(tx, session_id):
                    raise NotYet(f"session {session_id} is in use")
                parts = lineage.parts(tx, session_id)
                whole = all(part in gone or _is_shredded(tx, part) for part in parts)
            try:
                if not (whole and self._shred_whole(session_id)):
                    # It has gone on here: what that part shows of it stays.
                    self._db.delete_session(session_id, by="sync")
                    self._engine.scrub()
            except HermesError as error:
                raise NotYet(f"session {session_id} can't be shredded here yet ({error})") from error
            count += 1
        return count

    def _shred_whole(self, session_id: str) -> bool:
        with suppress(InvalidInput):  # a branch shows messages of it
            self._db.shred_session(session_id, by="sync")
            return True
        return False

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

    def shredded_attachments(self, tree: str, earlier: Iterable[bytes]) -> list[str]:
        """The attachments that earlier versions of a shredded session's document show, and no message here."""
        with self._engine.read() as tx:
            shredded = any(one.get("shred") for one in collect.load(tx, tree).document["sessions"].values())
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
    document = collect.load(tx, collect.tree_of(tx, session_id)).document
    return Placement(document).life(session_id)[0] == SHREDDED


def _bodies(tx: Tx, document: documents.Document) -> dict[str, Any]:
    """The texts of a document's messages that are here, and of those it shows whose owner was deleted."""
    found: dict[str, Any] = {}
    wanted = {one: record for one, record in document["messages"].items() if "b" in record}
    attached: dict[str, Any] = {}
    for origin, row in collect.rows_of(tx, wanted).items():
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
