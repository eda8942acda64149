"""The documents that a store keeps of its sessions, and how changes made here since the last synchronisation come into them.

Each store keeps, beside its rows, what it has sent and received of every session: a document (document.py) and the names of its
messages, in tables that are made with the first synchronisation. No text of a message is in them. A document is a whole
session, not a log of changes: shredding removes a file, nothing has to be compacted, and a lost or repeated file does no harm.
The price is that a changed session is written whole. A message is named by a digest of what it was when it was first sent, so
copies of a store, restored backups and the same history imported twice give the same names.

A session is compared with what it was when it was last compared; what differs was changed here, and gets a clock. So no
write of any program has to know of synchronisation, and what another program wrote into the file counts as well. The state of
a session is its fingerprint, which shows whether anything changed, and its values; values name messages as documents do, not by
the ids they have here. replica.py puts a merged document into the rows.
"""

from __future__ import annotations

import os
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from hermes.store.engines.base import COMPACTED, KEPT, REDACTED, REPLACED, Engine, Tx, get_meta, note_meta, rows_among
from hermes.store.exchange import document as documents
from hermes.store.exchange.document import DELETED, LIVE, TICKS, TRASHED, Document, Placement, digest
from hermes.store.records import codec, lineage, message_reading, message_values, sessions
from hermes.store.records.lineage import StoredRow, await_again
from hermes.store.redact import redact
from hermes.store.transcripts import replay
from hermes.store.transcripts.replay import SessionState

STORE = "sync_store"  # the key of state_meta with this store's permanent id
TABLES = (
    """CREATE TABLE IF NOT EXISTS sync_trees (
        tree TEXT PRIMARY KEY, state TEXT NOT NULL, version TEXT NOT NULL, fingerprint TEXT NOT NULL)""",
    "CREATE TABLE IF NOT EXISTS sync_forks (session_id TEXT PRIMARY KEY, tree TEXT NOT NULL)",
    """CREATE TABLE IF NOT EXISTS sync_messages (
        origin TEXT PRIMARY KEY, tree TEXT NOT NULL, message_id INTEGER NOT NULL)""",
    "CREATE INDEX IF NOT EXISTS idx_sync_messages ON sync_messages(message_id)",
    "CREATE TABLE IF NOT EXISTS sync_seen (name TEXT PRIMARY KEY)",
)


@dataclass(slots=True)
class TreeState:
    """The document of a session and its forks, and what this store had when it last compared them."""

    document: Document
    local: dict[str, Any] = field(default_factory=dict)  # by session, its values here when they were last compared
    version: str = ""
    fingerprint: str = ""
    known: bool = True  # it has been saved before

    @property
    def tree(self) -> str:
        return str(self.document["id"])


def prepare(engine: Engine) -> str:
    """Create the tables, if they do not exist; returns the permanent id of this store. Not inside a transaction."""
    with engine.read() as tx:
        there = tx.has_table("sync_seen")
        known = get_meta(tx, STORE) if there else None
    if known is not None:
        return str(known)
    engine.make_tables(TABLES)
    with engine.write() as tx:
        note_meta(tx, STORE, os.urandom(8).hex())
        return str(get_meta(tx, STORE))


def load(tx: Tx, tree: str) -> TreeState:
    """The state of a session; an empty one when it is not known."""
    row = tx.row("SELECT state, version, fingerprint FROM sync_trees WHERE tree = ?", (tree,))
    if row is None:
        return TreeState(documents.new(tree), known=False)
    kept = codec.from_json(row[0])
    return TreeState(kept["document"], kept["local"], row[1], row[2])


def save(tx: Tx, state: TreeState) -> None:
    """Store the state of a session."""
    text = documents.canonical({"document": state.document, "local": state.local})
    tx.run(
        "INSERT INTO sync_trees(tree, state, version, fingerprint) VALUES(?, ?, ?, ?) ON CONFLICT(tree) DO UPDATE SET"
        " state = excluded.state, version = excluded.version, fingerprint = excluded.fingerprint",
        (state.tree, text, state.version, state.fingerprint),
    )
    for fork in state.document["sessions"].keys() - {state.tree}:
        tx.run("INSERT INTO sync_forks(session_id, tree) VALUES(?, ?) ON CONFLICT DO NOTHING", (fork, state.tree))


def tree_of(tx: Tx, session_id: str) -> str:
    """The session whose document contains this one: itself, unless it is a fork."""
    found = tx.value("SELECT tree FROM sync_forks WHERE session_id = ?", (session_id,))
    return session_id if found is None else str(found)


def forks_of(tx: Tx, tree: str) -> list[str]:
    """The forks of a session."""
    return tx.column("SELECT session_id FROM sync_forks WHERE tree = ? ORDER BY session_id", (tree,))


def versions(tx: Tx) -> dict[str, tuple[str, str]]:
    """By session, the version of its document here, and how it looked when it was last compared."""
    return {row[0]: (row[1], row[2]) for row in tx.rows("SELECT tree, version, fingerprint FROM sync_trees")}


# ------------------------------------------------------------------------------------------ names of messages


def remember(tx: Tx, tree: str, origin: str, message_id: int) -> None:
    """Record the name that a message has among stores."""
    tx.run(
        "INSERT INTO sync_messages(origin, tree, message_id) VALUES(?, ?, ?) ON CONFLICT(origin) DO UPDATE SET"
        " message_id = excluded.message_id, tree = excluded.tree",
        (origin, tree, message_id),
    )


def origins(tx: Tx, ids: Sequence[int]) -> dict[int, str]:
    """By id, the names of these messages, as far as they have one."""
    return dict(rows_among(tx, "SELECT message_id, origin FROM sync_messages WHERE {these}", ids, "message_id"))


def rows_of(tx: Tx, names: Iterable[str]) -> dict[str, StoredRow]:
    """By name, the rows of these messages that are here."""
    sql = "SELECT y.origin, m.id, m.session_id, m.hidden FROM sync_messages y JOIN messages m ON m.id = y.message_id"
    rows = rows_among(tx, f"{sql} WHERE {{these}}", list(names), "y.origin")
    return {origin: StoredRow(*row) for origin, *row in rows}


def forget_missing(tx: Tx, tree: str) -> None:
    """Forget the names of messages of a session that are no longer stored."""
    sql = "DELETE FROM sync_messages WHERE tree = ? AND NOT EXISTS (SELECT 1 FROM messages m WHERE m.id = message_id)"
    tx.run(sql, (tree,))


# ------------------------------------------------------------------------------------------ what was seen


def mark_merged(tx: Tx, name: str) -> None:
    """Record that this version of a document was merged here."""
    tx.run("INSERT INTO sync_seen(name) VALUES(?) ON CONFLICT DO NOTHING", (name,))


def shredded(tx: Tx, session_ids: Iterable[str]) -> None:
    """Forget everything about shredded sessions but that they were shredded."""
    if not tx.has_table("sync_seen"):
        return
    for session_id in session_ids:
        tree = tree_of(tx, session_id)
        own = "SELECT id FROM messages WHERE session_id = ?"
        tx.run(f"DELETE FROM sync_messages WHERE message_id IN ({own})", (session_id,))
        state = load(tx, tree)
        if not state.known:
            continue
        state.document["sessions"][session_id] = {**documents.new_session(), "shred": True}
        state.document = documents.normal(state.document)
        state.local.pop(session_id, None)
        state.fingerprint = ""
        save(tx, state)


# ------------------------------------------------------------------------------------------ what a session looks like

FIELDS = (
    "source", "user_id", "model", "model_config", "parent_session_id", "started_at", "ended_at", "end_reason",
    "billing_provider", "billing_base_url", "billing_mode", "cost_status", "cost_source", "pricing_version", "kind", "cwd",
    "pinned_at", "archived_at", "meta",
)  # fmt: skip
USAGE = (
    "input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens", "reasoning_tokens", "estimated_cost_usd",
    "actual_cost_usd", "api_call_count",
)  # fmt: skip
_ROW = (*FIELDS, *USAGE, "title", "trashed_at", "trashed_title", "system_prompt_hash")
# Messages of a session in the trash, and those that are there only for others, travel with those who show them.
_OWNER_TRASHED = "(SELECT o.trashed_at FROM sessions o WHERE o.id = from_session)"
_KEPT_IN_RANGE = (
    "(SELECT count(*) FROM messages k WHERE k.session_id = from_session AND k.id BETWEEN first_id AND last_id"
    f" AND k.hidden = {KEPT})"
)
_RELATED = {
    "session_tags": "tag",
    "session_members": "source, user_id",
    "session_refs": f"ord, from_session, first_id, last_id, after_id, rewound, born, {_OWNER_TRASHED}, {_KEPT_IN_RANGE}",
    "session_rewinds": "batch, cut_id",
}
# Prefix of a deleted session's id: the messages that are there only for others.
KEPT_OF = "~kept~"


def fingerprints(tx: Tx, session_ids: Sequence[str] | None = None) -> dict[str, str]:
    """By session (all, or these), a digest of its state. An edit leaves a row, so no text is read."""
    found: dict[str, list[Any]] = {}

    def rows(query: str, column: str = "session_id") -> Iterator[tuple[str, list[Any]]]:
        these, values = ("TRUE", []) if session_ids is None else tx.among(column, session_ids)
        return ((key, list(map(_plain, row))) for key, *row in tx.rows(query.format(these), values))

    for session_id, row in rows(f"SELECT id, {', '.join(_ROW)} FROM sessions WHERE purged IS NULL AND {{}}", "id"):
        found[session_id] = [row]
    counted = "count(*), max(id), sum(coalesce(hidden, 0) * (id % 1000003)), sum(length(content))"
    queries = [f"SELECT session_id, {counted} FROM messages WHERE {{}} GROUP BY session_id"]
    for table, names in _RELATED.items():
        queries.append(f"SELECT session_id, {names} FROM {table} WHERE {{}} ORDER BY session_id, {names}")
    queries.append("SELECT session_id, count(*), max(at) FROM session_events WHERE {} GROUP BY session_id")
    for number, query in enumerate(queries):
        for session_id, row in rows(query):
            if session_id in found:
                found[session_id].append([number, *row])
    kept = (
        "SELECT y.tree, count(*), sum(m.hidden * (m.id % 1000003)), sum(length(m.content)) FROM sync_messages y JOIN messages m"
        " ON m.id = y.message_id JOIN sessions s ON s.id = m.session_id WHERE s.purged IS NOT NULL AND {} GROUP BY y.tree"
    )
    for tree, row in rows(kept, "y.tree"):
        found[KEPT_OF + tree] = [row]
    return {session_id: digest(looks) for session_id, looks in found.items()}


def _plain(value: Any) -> Any:
    value = codec.restored(value)
    return value if value is None or isinstance(value, (str, int, float)) else int(value)


def combined(prints: dict[str, str], session_ids: Iterable[str]) -> str:
    """The fingerprint of a session with its forks."""
    names = [name for one in session_ids for name in (one, KEPT_OF + one)]
    return digest(sorted((one, prints[one]) for one in names if one in prints))


def snapshot(tx: Tx, session_id: str) -> dict[str, Any]:
    """The values of a session here: all but its messages."""
    values, state = replay.session_columns(tx, session_id), replay.session_state(tx, session_id)
    fields = {name: values[name] for name in (*FIELDS, "system_prompt")}
    fields["title"] = values["title"] if values["trashed_at"] is None else values["trashed_title"]
    recorded = sessions.events_of(tx, session_id)
    named = origins(tx, [event["after"] for event in recorded])
    return {
        "fields": fields,
        "usage": {name: values[name] for name in USAGE if values[name]},
        "tags": state["tags"],
        "members": sorted(map(documents.canonical, state["members"])),
        "view": view_of(tx, state),
        "events": [{**event, "after": named.get(event["after"], "")} for event in recorded],
        "life": [LIVE, 0.0] if values["trashed_at"] is None else [TRASHED, values["trashed_at"]],
    }


def view_of(tx: Tx, state: SessionState) -> dict[str, Any]:
    """The messages that a session hides, and those of others that it shows, by their names."""
    hidden = [(one, batch) for one, batch in state["hidden"] if batch > 0 or batch == COMPACTED]
    sql = f"SELECT id FROM messages WHERE session_id = ? AND id BETWEEN ? AND ? AND coalesce(hidden, 0) <> {REPLACED}"
    ranges = [tx.column(f"{sql} ORDER BY id", ref[1:4]) for ref in state["refs"]]
    ids = [one for one, _ in hidden] + [cut for _, cut in state["rewinds"]] + [ref[4] for ref in state["refs"]]
    named = origins(tx, [*ids, *(one for some in ranges for one in some)])
    refs = [
        [named.get(after, "" if after == 0 else "?"), [named[one] for one in some if one in named], rewound, born]
        for (*_, after, rewound, born), some in zip(state["refs"], ranges, strict=True)
    ]
    return {
        "hidden": {named[one]: batch for one, batch in hidden if one in named},
        "rewinds": [[batch, named.get(cut, "")] for batch, cut in state["rewinds"]],
        "refs": joined(refs),
    }


def joined(refs: Sequence[list[Any]]) -> list[list[Any]]:
    """Ranges that follow each other in the same place as one: how they are cut depends on the ids here."""
    out: list[list[Any]] = []
    for after, names, rewound, born in refs:
        if out and [out[-1][0], *out[-1][2:]] == [after, rewound, born]:
            out[-1][1].extend(names)
        else:
            out.append([after, list(names), rewound, born])
    return out


def stored_body(tx: Tx, row: StoredRow, attached: dict[str, Any]) -> dict[str, Any]:
    """The body of a stored message; `attached` has the attachments of the owners that were read so far."""
    if row.owner not in attached:
        attached[row.owner] = message_reading.attached(tx, row.owner)
    return body_of(message_reading.rows_of(tx, row.id)[0], attached[row.owner])


def body_of(row: tuple[Any, ...], attached: Any) -> dict[str, Any]:
    """A message without what differs between stores: its id, and its session's."""
    entry = replay.message_entry(message_reading.decode(row), attached.get(row[0], ()))
    return {name: value for name, value in entry.items() if name not in ("type", "id")}


# ------------------------------------------------------------------------------------------ what has changed at all


def changed_trees(tx: Tx) -> list[str]:
    """The sessions that may differ from their documents, the oldest first."""
    prints, noted = fingerprints(tx), versions(tx)
    forks: dict[str, str] = {row[0]: row[1] for row in tx.rows("SELECT session_id, tree FROM sync_forks")}
    # Sessions that were deleted before any synchronisation count as well: another store may have them from elsewhere.
    deleted = tx.column("SELECT DISTINCT session_id FROM audit WHERE action = 'delete' AND session_id IS NOT NULL")
    members: defaultdict[str, set[str]] = defaultdict(set)
    for tree in {*noted, *deleted}.difference(forks):
        members[tree].add(tree)
    for one in (*prints, *forks):
        if not one.startswith(KEPT_OF):
            members[forks.get(one, one)].add(one)
    changed = {tree for tree, ids in members.items() if noted.get(tree, ("", ""))[1] != combined(prints, ids)}
    order = tx.column("SELECT id FROM sessions ORDER BY started_at, id")
    return [tree for tree in order if tree in changed] + sorted(changed.difference(order))


# ------------------------------------------------------------------------------------------ one session


def bring_up_to_date(tx: Tx, tree: str, store: str) -> TreeState:
    """Put into a session's document what was changed here."""
    state = load(tx, tree)
    ids = [tree, *forks_of(tx, tree)]
    prints = fingerprints(tx, ids)
    now = combined(prints, ids)
    if state.known and state.fingerprint == now:
        return state
    deleted = "SELECT 1 FROM audit WHERE action = 'delete' AND session_id = ? LIMIT 1"
    if not state.known and not prints and tx.row(deleted, (tree,)) is None:
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
    save(tx, state)


def version_of(tx: Tx, state: TreeState) -> str:
    """The name of this document's content, and of what of it is here as text."""
    document = state.document
    rows = rows_of(tx, [origin for origin, record in document["messages"].items() if "b" in record])
    lacking = documents.absent(document, rows)
    carried = [row_origin for row_origin, _ in carried_without_owner(tx, document)]
    whole = "full" if not lacking else digest(lacking, 12)
    return f"{digest(document)}.{whole}{'-' + digest(sorted(carried), 12) if carried else ''}"


def shown_of_others(document: documents.Document, session_ids: Iterable[str]) -> set[str]:
    """The messages that these sessions of a document show of other sessions."""
    views = (document["sessions"].get(one, {}).get("view", [{"refs": ()}])[0] for one in session_ids)
    return {name for view in views for _, names, _, _ in view["refs"] for name in names}


def carried(document: documents.Document, session_ids: Iterable[str]) -> set[str]:
    """The messages that these sessions of a document show, and that belong to another document."""
    return shown_of_others(document, session_ids).difference(document["messages"])


def carried_without_owner(tx: Tx, document: documents.Document) -> list[tuple[str, StoredRow]]:
    """Messages that the sessions of a document show and whose owner is in the trash or deleted: where the owner was deleted,
    they can't be taken from its document."""
    rows = rows_of(tx, carried(document, document["sessions"]))
    live = "SELECT 1 FROM sessions WHERE id = ? AND trashed_at IS NULL AND purged IS NULL"
    gone = {owner for owner in {row.owner for row in rows.values()} if tx.row(live, (owner,)) is None}
    return [(origin, row) for origin, row in sorted(rows.items()) if row.owner in gone or row.hidden == KEPT]


def _owners_first(tx: Tx, tree: str, here: Iterable[str], store: str) -> None:
    """Name the messages a session carries in the document of their owner."""
    for session_id in here:
        refs = tx.rows(
            "SELECT from_session, first_id, last_id FROM session_refs WHERE session_id = ? ORDER BY ord", (session_id,)
        )
        for owner, first, last in refs:
            other = tree_of(tx, owner)
            unnamed = tx.row(
                "SELECT 1 FROM messages m WHERE m.session_id = ? AND m.id BETWEEN ? AND ? AND coalesce(m.hidden, 0) <> ?"
                " AND NOT EXISTS (SELECT 1 FROM sync_messages y WHERE y.message_id = m.id) LIMIT 1",
                (owner, first, last, REPLACED),
            )
            if unnamed is None or other == tree:
                continue
            bring_up_to_date(tx, other, store)
            if tx.row("SELECT 1 FROM sessions WHERE id = ? AND purged IS NOT NULL", (owner,)) is not None:
                _name_kept_messages(tx, owner, store)


def _name_kept_messages(tx: Tx, owner: str, store: str) -> None:
    """Name the messages that are only there for others, of a session that was deleted before its first synchronisation, in a
    document of their own."""
    tree = KEPT_OF + owner
    state = load(tx, tree)
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
        self._compare_kept()
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
        names = origins(self.tx, [row[0] for row in rows])
        attached = message_reading.attached(self.tx, session_id) if rows else {}
        stored = [(row[0], row[-1], body_of(row[:-1], attached)) for row in rows]
        first_versions = self._first_versions(session_id, stored, attached)
        for number, hidden, body in stored:
            origin = names.get(number)
            if (hidden == KEPT and named is None) or (named is not None and origin is not None and origin not in known):
                continue
            if origin is None or origin not in known:
                origin = self._name(session_id, first_versions.get((body["timestamp"], body["role"]), body), present)
                remember(self.tx, self.state.tree, origin, number)
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

    def _compare_kept(self) -> None:
        """Note redactions and edits of messages that are there only for others."""
        for origin, row in rows_of(self.tx, self.document["messages"]).items():
            record = self.document["messages"][origin]
            if row.hidden not in (KEPT, REDACTED) or "b" not in record or record.get("red"):
                continue
            body = stored_body(self.tx, row, {})
            if row.hidden == REDACTED:
                record["red"] = True
            elif digest(body) != record["b"][0]:
                record["b"] = [digest(body), self.clock, self.store]

    def _first_versions(
        self, session_id: str, stored: Sequence[Any], attached: Any
    ) -> dict[tuple[Any, Any], dict[str, Any]]:
        """By time and role, the first versions of edited messages: a store that lost its documents gives them the same names."""
        shown = Counter((body["timestamp"], body["role"]) for _, _, body in stored)
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
        """Note messages that were removed from a session that still exists."""
        missing = [one for one in order if one not in present and not self.document["messages"][one].get("gone")]
        was_here = self.tx.column("SELECT origin FROM sync_messages WHERE tree = ?", (self.state.tree,))
        for origin in {*was_here}.intersection(missing):
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
        self._session_id = session_id
        self._fields(entry, was["fields"], now["fields"], clock, store)
        for part in ("tags", "members"):
            for name in set(was[part]) ^ set(now[part]):
                register = entry[part].get(name)
                if register is None or register[0] != (name in now[part]):
                    entry[part][name] = [name in now[part], clock, store]
        self._count(entry, now["usage"], first)
        if now["view"] != was["view"] and ("view" not in entry or now["view"] != entry["view"][0]):
            entry["view"] = [now["view"], clock, store]
        for event in now["events"]:
            entry["events"].setdefault(f"{event['at']!r}", event)
        if now["life"] != was["life"] or (session_id not in self.state.local and not first):
            self._set_life(session_id, now["life"])
        self.state.local[session_id] = now

    def _fields(self, entry: Any, was: dict[str, Any], now: dict[str, Any], clock: int, store: str) -> None:
        for name, value in now.items():
            register = entry["fields"].get(name)
            if name in was and was[name] == value:
                continue
            if name == "parent_session_id" and value is None and was.get(name) is not None:
                gone = self.tx.row("SELECT 1 FROM sessions WHERE id = ? AND purged IS NULL", (was[name],)) is None
                if gone:  # elsewhere it may still be there, and come back
                    await_again(self.tx, self._session_id, was[name])
                    continue
            if register is None or register[0] != value:
                entry["fields"][name] = [value, clock, store]

    def _count(self, entry: Any, now: dict[str, Any], first: bool) -> None:
        """Add what this store used to its own slot of each counter."""
        for name, value in now.items():
            slots = entry["usage"].setdefault(name, {})
            if first:
                slots[""] = [0, value]
                continue
            more = value - documents.total(slots)
            if more:
                slots[self.store] = [self.clock, slots.get(self.store, [0, 0])[1] + more]

    def _set_life(self, session_id: str, life: Any) -> None:
        entry = self.document["sessions"][session_id]
        before = entry["life"][1] if "life" in entry else 0
        clocks = [self.document["messages"][one]["c"] for one in self.placement.order.get(session_id, ())]
        at = _ticks(life[1]) if life[0] != LIVE else self.now
        entry["life"] = [life, max(at, before + 1, *(one + 1 for one in clocks)), self.store]

    def _deleted(self, session_id: str) -> None:
        """Note that a session is gone. Emptying the trash is no new decision: it has the clock of the trashing."""
        entry = self.document["sessions"].setdefault(session_id, documents.new_session())
        was = self.state.local.pop(session_id, None)
        actions = self.tx.rows(
            "SELECT at, action, detail FROM audit WHERE session_id = ? AND action IN ('trash', 'restore', 'delete')"
            " ORDER BY id DESC LIMIT 2",
            (session_id,),
        )
        forget_missing(self.tx, self.state.tree)
        if actions and actions[0][1] == "delete" and str(actions[0][2] or "").startswith("shredded"):
            entry["shred"] = True
            return
        if was is not None and was["life"][0] == TRASHED and entry.get("life", [[LIVE]])[0][0] == TRASHED:
            _, clock, store = entry["life"]
            entry["life"] = [[DELETED, was["life"][1]], clock, store]
            return
        trashed = actions[1][0] if len(actions) > 1 and actions[1][1] == "trash" else None
        at = actions[0][0] if actions and actions[0][1] == "delete" else time.time()
        self._set_life(session_id, [DELETED, at if trashed is None else trashed])

    def _seal(self, session_id: str) -> None:
        """Seal a session that was compressed here: what other stores say after this point belongs to a fork."""
        entry = self.document["sessions"][session_id]
        if entry["seals"] or entry["fields"].get("end_reason", [None])[0] != "compression":
            return
        if lineage.compression_tip(self.tx, session_id) == session_id:
            return
        order = self.placement.order.get(session_id, [])
        entry["seals"][order[-1] if order else ""] = [self.store]
