"""Puts what was changed in this store since the last time into its documents.

A session is compared with what it was when it was last compared; what differs was changed here, and gets a clock. So no
write of any program has to know of synchronisation, and what another program wrote into the file counts as well.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from hermes.store import lineage, message_reading, message_values
from hermes.store.engines.base import KEPT, REDACTED, REPLACED, Tx
from hermes.store.lineage import StoredRow, await_again
from hermes.store.redact import redact
from hermes.store.sync import document as documents
from hermes.store.sync import tables
from hermes.store.sync.document import DELETED, LIVE, TICKS, TRASHED, Placement, digest
from hermes.store.sync.snapshots import KEPT_OF, body_of, combined, fingerprints, snapshot, stored_body
from hermes.store.sync.tables import TreeState

# ------------------------------------------------------------------------------------------ what has changed at all


def changed_trees(tx: Tx) -> list[str]:
    """The sessions that may differ from their documents, the oldest first."""
    prints, forks, noted = fingerprints(tx), tables.forks(tx), tables.versions(tx)
    members: dict[str, list[str]] = {tree: [tree] for tree in noted}
    for session_id in (one for one in prints if not one.startswith(KEPT_OF)):
        members.setdefault(forks.get(session_id, session_id), []).append(session_id)
    for fork, tree in forks.items():
        members.setdefault(tree, []).append(fork)
    for tree in _deleted_unknown(tx, members.keys() | prints.keys() | forks.keys()):
        members[tree] = [tree]
    changed = {tree for tree, ids in members.items() if noted.get(tree, ("", ""))[1] != combined(prints, set(ids))}
    order = [row[0] for row in tx.rows("SELECT id FROM sessions ORDER BY started_at, id")]
    return [tree for tree in order if tree in changed] + sorted(changed.difference(order))


def _deleted_unknown(tx: Tx, known: Iterable[str]) -> list[str]:
    """Sessions that were deleted before any synchronisation: another store may have them from elsewhere."""
    rows = tx.rows("SELECT DISTINCT session_id FROM audit WHERE action = 'delete' AND session_id IS NOT NULL")
    known = set(known)
    return [row[0] for row in rows if row[0] not in known]


def _was_deleted(tx: Tx, session_id: str) -> bool:
    return tx.row("SELECT 1 FROM audit WHERE action = 'delete' AND session_id = ? LIMIT 1", (session_id,)) is not None


# ------------------------------------------------------------------------------------------ one session


def bring_up_to_date(tx: Tx, tree: str, store: str) -> TreeState:
    """Put into a session's document what was changed here."""
    state = tables.load(tx, tree)
    ids = [tree, *tables.forks_of(tx, tree)]
    prints = fingerprints(tx, ids)
    now = combined(prints, ids)
    if state.known and state.fingerprint == now:
        return state
    if not state.known and not prints and not _was_deleted(tx, tree):
        return state
    here = [one for one in ids if one in prints]
    _owners_first(tx, tree, here, store)
    _Comparison(tx, state, store).run(here)
    state.fingerprint = now
    settle(tx, state)
    return state


def settle(tx: Tx, state: TreeState) -> None:
    """Name the version of a document, and store it."""
    for session_id, entry in state.document["sessions"].items():
        if session_id not in state.local and entry.get("life", [[LIVE]])[0][0] == DELETED:
            state.document["sessions"][session_id] = {**documents.new_session(), "life": entry["life"]}
    state.version = version_of(tx, state)
    tables.save(tx, state)


def version_of(tx: Tx, state: TreeState) -> str:
    """The name of this document's content, and of what of it is here as text."""
    document = state.document
    rows = tables.rows_of(tx, [origin for origin, record in document["messages"].items() if "b" in record])
    lacking = documents.absent(document, rows)
    carried = [row_origin for row_origin, _ in carried_without_owner(tx, document)]
    whole = "full" if not lacking else digest(lacking, 12)
    return f"{digest(document)}.{whole}{'-' + digest(sorted(carried), 12) if carried else ''}"


def shown_of_others(document: documents.Document, session_ids: Iterable[str]) -> set[str]:
    """The messages that these sessions of a document show of other sessions."""
    views = (document["sessions"].get(one, {}).get("view", [{"refs": ()}])[0] for one in session_ids)
    return {name for view in views for _, names, _, _ in view["refs"] for name in names}


def carried(document: documents.Document, session_ids: Iterable[str]) -> set[str]:
    """The messages that these sessions of a document show, and that are told of in another document."""
    return shown_of_others(document, session_ids).difference(document["messages"])


def carried_without_owner(tx: Tx, document: documents.Document) -> list[tuple[str, StoredRow]]:
    """Messages that the sessions of a document show and whose owner is in the trash or deleted: where the owner was deleted,
    they can't be taken from its document."""
    rows = tables.rows_of(tx, carried(document, document["sessions"]))
    live = "SELECT 1 FROM sessions WHERE id = ? AND trashed_at IS NULL AND purged IS NULL"
    gone = {owner for owner in {row.owner for row in rows.values()} if tx.row(live, (owner,)) is None}
    return [(origin, row) for origin, row in sorted(rows.items()) if row.owner in gone or row.hidden == KEPT]


def _owners_first(tx: Tx, tree: str, here: Iterable[str], store: str) -> None:
    """The messages a session carries get their names from the document of their owner."""
    for session_id in here:
        refs = tx.rows(
            "SELECT from_session, first_id, last_id FROM session_refs WHERE session_id = ? ORDER BY ord", (session_id,)
        )
        for owner, first, last in refs:
            other = tables.tree_of(tx, owner)
            unnamed = tx.row(
                "SELECT 1 FROM messages m WHERE m.session_id = ? AND m.id BETWEEN ? AND ? AND coalesce(m.hidden, 0) <> ?"
                " AND NOT EXISTS (SELECT 1 FROM sync_messages y WHERE y.message_id = m.id) LIMIT 1",
                (owner, first, last, REPLACED),
            )
            if unnamed is None or other == tree:
                continue
            bring_up_to_date(tx, other, store)
            if tx.row("SELECT 1 FROM sessions WHERE id = ? AND purged IS NOT NULL", (owner,)) is not None:
                _name_kept(tx, owner, store)


def _name_kept(tx: Tx, owner: str, store: str) -> None:
    """Messages that are only there for others, of a session that was deleted before they were synchronised: a document of
    their own tells of them."""
    tree = KEPT_OF + owner
    state = tables.load(tx, tree)
    _Comparison(tx, state, store).messages_of(owner, named=tree)
    state.document["sessions"][tree] = {**documents.new_session(), "life": [[DELETED, 0.0], 0, ""]}
    state.fingerprint = combined(fingerprints(tx, [tree]), [tree])
    settle(tx, state)


_FARTHEST = 1 << 62  # ticks: a number that every reader of JSON has


def _ticks(seconds: float) -> int:
    """A time on the clock of documents. One that no calendar has is as far away as the clock goes."""
    return int(max(-_FARTHEST, min(seconds * TICKS, _FARTHEST)))


class _Comparison:
    """Compares a session's rows with its document."""

    def __init__(self, tx: Tx, state: TreeState, store: str) -> None:
        self.tx, self.state, self.store = tx, state, store
        self.document = state.document
        self.now = int(time.time() * TICKS)
        self.clock = max(self.now, documents.highest_clock(self.document) + 1)
        self.placement = Placement(self.document)

    def run(self, here: Iterable[str]) -> None:
        here = [one for one in [self.state.tree, *sorted(self.document["sessions"])] if one in set(here)]
        here = list(dict.fromkeys(here))
        for session_id in here:
            self.messages_of(session_id)
        self.placement = Placement(self.document)
        for session_id in here:
            self._values(session_id)
            self._seal(session_id)
        gone = [one for one in self.state.local if one not in here]
        if not self.state.known and not here:
            gone.append(self.state.tree)
        for session_id in gone:
            self._deleted(session_id)
        self._kept()
        self.state.document = documents.normal(self.document)

    # -------------------------------------------------------------------------------------- messages

    def messages_of(self, session_id: str, *, named: str | None = None) -> None:
        """Name new messages, and note which were changed or removed; with `named`, those kept for others, as that session's."""
        known = self.document["messages"]
        order = self.placement.order.get(named or session_id, [])
        tail = order[-1] if order else None
        present: set[str] = set()
        undone: list[tuple[str, int]] = []
        before: list[str] = []
        rows = self.tx.rows(
            f"SELECT {message_reading.ROW}, m.hidden FROM messages m WHERE m.session_id = ?"
            f" AND coalesce(m.hidden, 0) <> {REPLACED} ORDER BY m.id",
            (session_id,),
        )
        origins = tables.origins(self.tx, [row[0] for row in rows])
        attached = message_reading.attached(self.tx, session_id) if rows else {}
        told = [(row[0], row[-1], body_of(row[:-1], attached)) for row in rows]
        first_said = self._first_versions(session_id, told, attached)
        for number, hidden, body in told:
            origin = origins.get(number)
            if (hidden == KEPT and named is None) or (named is not None and origin is not None and origin not in known):
                continue
            if origin is None or origin not in known:
                origin = self._name(session_id, first_said.get((body["timestamp"], body["role"]), body), present)
                tables.remember(self.tx, self.state.tree, origin, number)
                if origin not in known:
                    stamp = min(_ticks(body["timestamp"]), self.now)
                    known[origin] = {"p": tail, "c": stamp, "by": self.store, "b": [digest(body), 0, ""]}
                    away = sorted(one for one, batch in undone if hidden is None or hidden <= 0 or hidden > batch)
                    if away != before:
                        known[origin]["u"] = before = away
                    tail = origin
            record = known[origin]
            present.add(origin)
            if hidden == REDACTED:
                record["red"] = True
            elif digest(body) != record["b"][0] and not record.get("red"):
                record["b"] = [digest(body), self.clock, self.store]
            if hidden is not None and hidden > 0:
                undone.append((origin, hidden))
        if session_id in self.state.local:
            self._removed(order, present)

    def _kept(self) -> None:
        """Redactions and edits of messages that are there only for others."""
        for origin, row in tables.rows_of(self.tx, self.document["messages"]).items():
            record = self.document["messages"][origin]
            if row.hidden not in (KEPT, REDACTED) or "b" not in record or record.get("red"):
                continue
            body = stored_body(self.tx, row, {})
            if row.hidden == REDACTED:
                record["red"] = True
            elif digest(body) != record["b"][0]:
                record["b"] = [digest(body), self.clock, self.store]

    def _first_versions(
        self, session_id: str, told: Sequence[Any], attached: Any
    ) -> dict[tuple[Any, Any], dict[str, Any]]:
        """By time and role, what edited messages said first: a store that lost its documents gives them the same names."""
        shown = Counter((body["timestamp"], body["role"]) for _, _, body in told)
        found: dict[tuple[Any, Any], dict[str, Any]] = {}
        sql = f"SELECT {message_reading.ROW} FROM messages m WHERE m.session_id = ? AND m.hidden = {REPLACED} ORDER BY m.id"
        for body in (body_of(row, attached) for row in self.tx.rows(sql, (session_id,))):
            if shown[key := (body["timestamp"], body["role"])] == 1:
                found.setdefault(key, body)
        return found

    def _name(self, session_id: str, body: dict[str, Any], present: set[str]) -> str:
        """A name made of what the message is, so that every store gives it the same, whether it masks secrets or not."""
        number, body = 0, dict(message_values.masked_message(body, redact))
        while True:
            origin = digest([session_id, number, body])
            record = self.document["messages"].get(origin)
            if origin not in present and (record is None or not record.get("gone")):
                return origin
            number += 1

    def _removed(self, order: Sequence[str], present: set[str]) -> None:
        """Messages that were here and were removed from a session that still exists."""
        missing = [one for one in order if one not in present and not self.document["messages"][one].get("gone")]
        was_here = self.tx.rows("SELECT origin FROM sync_messages WHERE tree = ?", (self.state.tree,))
        for origin in {row[0] for row in was_here}.intersection(missing):
            record = self.document["messages"][origin]
            self.document["messages"][origin] = {**{k: record[k] for k in ("p", "c", "by")}, "gone": True}

    # -------------------------------------------------------------------------------------- everything else

    def _values(self, session_id: str) -> None:
        now = snapshot(self.tx, session_id)
        was = self.state.local.get(session_id)
        first = session_id not in self.document["sessions"]
        entry = self.document["sessions"].setdefault(session_id, documents.new_session())
        clock, store = (0, "") if first else (self.clock, self.store)
        was = was or {"fields": {}, "tags": [], "members": [], "usage": {}, "view": None, "life": [LIVE, 0.0]}
        self._of = session_id
        self._fields(entry, was["fields"], now["fields"], clock, store)
        for part in ("tags", "members"):
            for name in set(was[part]) ^ set(now[part]):
                told = entry[part].get(name)
                if told is None or told[0] != (name in now[part]):
                    entry[part][name] = [name in now[part], clock, store]
        self._count(entry, now["usage"], first)
        if now["view"] != was["view"] and ("view" not in entry or now["view"] != entry["view"][0]):
            entry["view"] = [now["view"], clock, store]
        for event in now["events"]:
            entry["events"].setdefault(f"{event['at']!r}", event)
        if now["life"] != was["life"] or (session_id not in self.state.local and not first):
            self._lives(session_id, now["life"])
        self.state.local[session_id] = now

    def _fields(self, entry: Any, was: dict[str, Any], now: dict[str, Any], clock: int, store: str) -> None:
        for name, value in now.items():
            told = entry["fields"].get(name)
            if name in was and was[name] == value:
                continue
            if name == "parent_session_id" and value is None and was.get(name) is not None:
                gone = self.tx.row("SELECT 1 FROM sessions WHERE id = ? AND purged IS NULL", (was[name],)) is None
                if gone:  # elsewhere it may still be there, and come back
                    await_again(self.tx, self._of, was[name])
                    continue
            if told is None or told[0] != value:
                entry["fields"][name] = [value, clock, store]

    def _count(self, entry: Any, now: dict[str, Any], first: bool) -> None:
        """Each store counts what it used itself."""
        for name, value in now.items():
            slots = entry["usage"].setdefault(name, {})
            if first:
                slots[""] = [0, value]
                continue
            more = value - documents.total(slots)
            if more:
                slots[self.store] = [self.clock, slots.get(self.store, [0, 0])[1] + more]

    def _lives(self, session_id: str, life: Any) -> None:
        entry = self.document["sessions"][session_id]
        before = entry["life"][1] if "life" in entry else 0
        said = [self.document["messages"][one]["c"] for one in self.placement.order.get(session_id, ())]
        at = _ticks(life[1]) if life[0] != LIVE else self.now
        entry["life"] = [life, max(at, before + 1, *(one + 1 for one in said)), self.store]

    def _deleted(self, session_id: str) -> None:
        """A session is here no more. Emptying the trash is no new decision: it has the clock of the trashing."""
        entry = self.document["sessions"].setdefault(session_id, documents.new_session())
        was = self.state.local.pop(session_id, None)
        actions = self.tx.rows(
            "SELECT at, action, detail FROM audit WHERE session_id = ? AND action IN ('trash', 'restore', 'delete')"
            " ORDER BY id DESC LIMIT 2",
            (session_id,),
        )
        tables.forget_missing(self.tx, self.state.tree)
        if actions and actions[0][1] == "delete" and str(actions[0][2] or "").startswith("shredded"):
            entry["shred"] = True
            return
        if was is not None and was["life"][0] == TRASHED and entry.get("life", [[LIVE]])[0][0] == TRASHED:
            _, clock, store = entry["life"]
            entry["life"] = [[DELETED, was["life"][1]], clock, store]
            return
        trashed = actions[1][0] if len(actions) > 1 and actions[1][1] == "trash" else None
        at = actions[0][0] if actions and actions[0][1] == "delete" else time.time()
        self._lives(session_id, [DELETED, at if trashed is None else trashed])

    def _seal(self, session_id: str) -> None:
        """Seal a session that was compressed here: what other stores say after this point belongs to a fork."""
        entry = self.document["sessions"][session_id]
        if entry["seals"] or entry["fields"].get("end_reason", [None])[0] != "compression":
            return
        if lineage.compression_tip(self.tx, session_id) == session_id:
            return
        order = self.placement.order.get(session_id, [])
        entry["seals"][order[-1] if order else ""] = [self.store]
