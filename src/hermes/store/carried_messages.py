"""The owners of messages that a session shows without owning them, when sessions are imported one by one.

An imported session may have a parent that is not here. The carried messages then belong to a tombstone under the parent's
id, as those of a deleted session do: other sessions that carry them find them there, and the parent gets them when it is
imported. No message is stored twice, and every session still shows the same messages.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from hermes.store import codec, lineage, message_reading
from hermes.store.engines.base import KEPT, REDACTED, REPLACED, Tx, set_meta
from hermes.store.lineage import Place

HIGHEST = 1 << 62
Identity = tuple[Any, ...]
Moved = dict[int, Place]  # by the id a message had, its place now


def usable_id(value: Any) -> bool:
    """Whether an exported id can be a message's id here."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < HIGHEST


def _identity(message: Mapping[str, Any]) -> Identity:
    """The identity of a message, independent of the store."""
    content, calls, at = message.get("content"), message.get("tool_calls"), message.get("timestamp")
    return (
        at if isinstance(at, (int, float)) else None,
        message["role"], content if isinstance(content, str) else codec.to_json(content),
        message.get("tool_call_id"), calls if isinstance(calls, str) else codec.to_json(calls),
    )  # fmt: skip


class StoredRow(NamedTuple):
    """The row of a message in this store: its id, its session and how it is hidden."""

    id: int
    owner: str
    hidden: int | None

    @property
    def shown(self) -> int | None:
        """Its `hidden` once its owner shows it again."""
        return None if self.hidden == KEPT else self.hidden


class StoredMessages:
    """The messages of a session that are here, each used at most once; with `kept`, those that are there for others."""

    def __init__(self, tx: Tx, owner: str, *, kept: bool = False) -> None:
        self._tx, self._owner = tx, owner
        self._which = f"m.hidden IN ({KEPT}, {REDACTED})" if kept else f"coalesce(m.hidden, 0) <> {REPLACED}"
        self._by_identity: dict[Identity, list[StoredRow]] | None = None
        self._taken: set[int] = set()
        self._any = tx.row("SELECT 1 FROM messages WHERE session_id = ? LIMIT 1", (owner,)) is not None

    def take(self, message: Mapping[str, Any], preferred: Any) -> StoredRow | None:
        """Where this message is stored: under its expected id, else under the id of an equal message.

        An earlier version of a message differs only in the text: it equals no message.
        """
        if not self._any or message.get("hidden") == REPLACED:
            return None
        equal: list[StoredRow] = []
        if usable_id(preferred):
            where = f"m.id = ? AND m.session_id = ? AND {self._which}"
            row = self._tx.row(
                f"SELECT hidden, timestamp, role FROM messages m WHERE {where}", (preferred, self._owner)
            )
            if row is not None and row[1:] == (message.get("timestamp"), message["role"]):
                equal.append(StoredRow(preferred, self._owner, row[0]))
        if not equal or equal[0].id in self._taken:
            if self._by_identity is None:
                self._by_identity = self._read()
            equal = self._by_identity.get(_identity(message), [])
        found = next((one for one in equal if one.id not in self._taken), None)
        if found is not None:
            self._taken.add(found.id)
        return found

    def _read(self) -> dict[Identity, list[StoredRow]]:
        found: dict[Identity, list[StoredRow]] = defaultdict(list)
        columns = f"{message_reading.ROW}, m.hidden"
        sql = f"SELECT {columns} FROM messages m WHERE m.session_id = ? AND {self._which} ORDER BY m.id"
        for *row, hidden in self._tx.rows(sql, (self._owner,)):
            message = message_reading.decode(tuple(row))
            found[_identity(message)].append(StoredRow(message["id"], self._owner, hidden))
        return found


def are_free(tx: Tx, owner: str, ids: Sequence[Any]) -> bool:
    """Whether messages of a session can get these ids: no message has one, and no other session would show it."""
    taken = (
        "SELECT 1 FROM messages WHERE id = ? UNION ALL"
        " SELECT 1 FROM session_refs WHERE from_session = ? AND ? BETWEEN first_id AND last_id"
    )
    return all(tx.row(taken, (one, owner, one)) is None for one in ids)


@contextmanager
def references_kept(tx: Tx, owners: set[str], touched: set[str]) -> Iterator[Moved]:
    """While messages of these sessions move, the sessions that refer to them still show the same ones.

    Those whose references changed are added to `touched`. A range is every message between two ids, so ranges are rewritten
    afterwards; the dict maps ids to their new places.
    """
    marks = ", ".join("?" * len(owners)) or "NULL"
    columns = "from_session, first_id, last_id, after_id, rewound, born"
    referring = tx.rows(
        f"SELECT DISTINCT session_id FROM session_refs WHERE from_session IN ({marks}) ORDER BY session_id",
        sorted(owners),
    )
    named: dict[str, list[tuple[list[Place], tuple[Any, ...]]]] = {}
    for (session_id,) in referring:
        refs = f"SELECT {columns} FROM session_refs WHERE session_id = ? ORDER BY ord"
        for owner, first, last, *rest in tx.rows(refs, (session_id,)):
            sql = "SELECT id FROM messages WHERE session_id = ? AND id BETWEEN ? AND ? ORDER BY id"
            places = [(row[0], owner) for row in tx.rows(sql, (owner, first, last))]
            named.setdefault(session_id, []).append((places, tuple(rest)))
    moved: Moved = {}
    yield moved
    if not moved:
        return
    for session_id, ranges in named.items():
        fresh: list[tuple[Any, ...]] = []
        for places, (after, rewound, born) in ranges:
            anchor = moved[after][0] if after in moved else after
            now = lineage.ranges(tx, [moved.get(place[0], place) for place in places])
            fresh += [(*one, anchor, rewound, born) for one in now]
        set_refs(tx, session_id, fresh)
        for batch, cut in tx.rows("SELECT batch, cut_id FROM session_rewinds WHERE session_id = ?", (session_id,)):
            if cut in moved:
                sql = "UPDATE session_rewinds SET cut_id = ? WHERE session_id = ? AND batch = ?"
                tx.run(sql, (moved[cut][0], session_id, batch))
        touched.add(session_id)


def set_refs(tx: Tx, session_id: str, refs: Sequence[Sequence[Any]]) -> None:
    """Let a session refer to exactly these ranges: (owner, first, last, after, rewound, born), in their order."""
    tx.run("DELETE FROM session_refs WHERE session_id = ?", (session_id,))
    lineage.add_refs(tx, session_id, refs)


# ------------------------------------------------------------------------------------------ parents that come later

AWAITED = "parent_of:"  # in state_meta: the session whose child this one is, once that one is imported


def await_parent(tx: Tx, child: str) -> None:
    """Clear a parent that is not here, and record it until that session is imported."""
    parent = tx.value(
        "SELECT s.parent_session_id FROM sessions s WHERE s.id = ? AND NOT EXISTS"
        " (SELECT 1 FROM sessions p WHERE p.id = s.parent_session_id AND p.purged IS NULL)",
        (child,),
    )
    if parent is None:
        return
    tx.run("UPDATE sessions SET parent_session_id = NULL WHERE id = ?", (child,))
    await_again(tx, child, parent)


def await_again(tx: Tx, child: str, parent: str) -> None:
    """Record the parent that a session had: it was deleted here and may come back from another store."""
    set_meta(tx, AWAITED + child, parent)


def find_children(tx: Tx, parent: str, touched: set[str]) -> None:
    """A session was imported: the sessions that recorded it as their parent are its children again."""
    for (key,) in tx.rows("SELECT key FROM state_meta WHERE value = ? AND key LIKE ?", (parent, AWAITED + "%")):
        child = str(codec.restored(key)).removeprefix(AWAITED)
        if tx.run(
            "UPDATE sessions SET parent_session_id = ? WHERE id = ? AND parent_session_id IS NULL AND purged IS NULL",
            (parent, child),
        ):
            touched.add(child)
        tx.run("DELETE FROM state_meta WHERE key = ?", (key,))
