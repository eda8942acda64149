"""The owners of messages that a session shows without owning them, when sessions are imported one by one.

An imported session may have a parent that is not here. The carried messages then belong to a shell, as those of a deleted
session do, under an id made of the parent's: other sessions that carry them find them there, and the parent gets them when
it is imported. No message is stored twice, and every session still shows the same messages.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from hermes.store import codec, lineage, message_reading, message_values, messages
from hermes.store.engines.base import KEPT, REDACTED, REPLACED, Engine, Tx
from hermes.store.lineage import Place

SHELL = "~deleted~"  # the prefix of a shell's id
HIGHEST = 1 << 62
Identity = tuple[Any, ...]


@dataclass(slots=True)
class Touched:
    """Which sessions besides the imported one were changed, so that their transcripts are updated."""

    shells: set[str] = field(default_factory=set)  # created, or with other messages than before
    gone: set[str] = field(default_factory=set)  # shells that were deleted
    referring: set[str] = field(default_factory=set)  # sessions whose ranges were rewritten
    children: set[str] = field(default_factory=set)  # sessions that found their parent

    def all(self) -> set[str]:
        """Every session whose files have to be updated."""
        return self.shells | self.gone | self.referring | self.children


def shell_of(owner: str) -> str:
    """The shell that holds messages of a session that is not here."""
    if owner.startswith(SHELL):
        return owner
    import hashlib  # few sessions are imported without their parent

    return SHELL + hashlib.sha256(owner.encode()).hexdigest()[:16]


def usable_id(value: Any) -> bool:
    """Whether an exported id can be a message's id here."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < HIGHEST


def _identity(message: Mapping[str, Any]) -> Identity:
    """The identity of a message, independent of the store."""
    content = message.get("content")
    calls = message.get("tool_calls")
    return (
        message.get("timestamp"), message["role"], content if isinstance(content, str) else codec.to_json(content),
        message.get("tool_call_id"), calls if isinstance(calls, str) else codec.to_json(calls),
    )  # fmt: skip


class _Stored:
    """The messages of some sessions that are here, each used at most once."""

    def __init__(self, tx: Tx, owners: Iterable[str]) -> None:
        self._tx, self._owners = tx, list(owners)
        self._by_identity: dict[Identity, list[Place]] | None = None
        self._taken: set[int] = set()

    def take(self, message: Mapping[str, Any], preferred: Any) -> Place | None:
        """Where this message is stored: under its expected id, else under the id of an equal message.

        An earlier version of a message differs only in the text: it equals no message.
        """
        if message.get("hidden") == REPLACED:
            return None
        if usable_id(preferred) and preferred not in self._taken:
            row = self._tx.row("SELECT session_id, timestamp, role, hidden FROM messages WHERE id = ?", (preferred,))
            like = (message.get("timestamp"), message["role"])
            owner, at, role, hidden = row or (None, None, None, None)
            if owner in self._owners and (at, role) == like and hidden != REPLACED:
                self._taken.add(preferred)
                return preferred, owner
        if self._by_identity is None:
            self._by_identity = self._read()
        for place in self._by_identity.get(_identity(message), ()):
            if place[0] not in self._taken:
                self._taken.add(place[0])
                return place
        return None

    def _read(self) -> dict[Identity, list[Place]]:
        found: dict[Identity, list[Place]] = defaultdict(list)
        for owner in self._owners:
            sql = f"SELECT {message_reading.ROW} FROM messages m WHERE m.session_id = ? AND coalesce(m.hidden, 0) <> {REPLACED}"
            for row in self._tx.rows(f"{sql} ORDER BY m.id", (owner,)):
                message = message_reading.decode(row)
                found[_identity(message)].append((message["id"], owner))
        return found


def keep(
    engine: Engine, tx: Tx, owner: str, entries: Sequence[Mapping[str, Any]], ids: dict[int, int], touched: Touched
) -> dict[int, Place]:
    """Where the messages of one owner that a session carries are stored here; missing ones go into the owner's shell."""
    shell = shell_of(owner)
    stored = _Stored(tx, dict.fromkeys([owner, *_named(tx, owner), shell]))
    places: dict[int, Place] = {}
    absent: list[Mapping[str, Any]] = []
    for entry in entries:
        place = stored.take(entry, ids.get(entry["id"], entry["id"]))
        if place is None:
            absent.append(entry)
        else:
            places[entry["id"]] = place
    if absent:
        with _ranges_kept(tx, shell, touched) as moved:
            _make(tx, shell, absent)
            for entry in absent:
                message_id = _insert(engine, tx, shell, entry)
                hidden = REDACTED if entry.get("hidden") == REDACTED else KEPT
                tx.run("UPDATE messages SET hidden = ? WHERE id = ?", (hidden, message_id))
                places[entry["id"]] = (message_id, shell)
            assert not moved
        touched.shells.add(shell)
    ids.update({old: place[0] for old, place in places.items()})
    return places


def _named(tx: Tx, owner: str) -> list[str]:
    """The session in this store that a shell's id stands for."""
    if not owner.startswith(SHELL) or tx.row("SELECT 1 FROM sessions WHERE id = ?", (owner,)) is not None:
        return []
    return [row[0] for row in tx.rows("SELECT id FROM sessions WHERE purged IS NULL") if shell_of(row[0]) == owner]


def _make(tx: Tx, shell: str, entries: Sequence[Mapping[str, Any]]) -> None:
    times = [entry["timestamp"] for entry in entries if isinstance(entry.get("timestamp"), (int, float))]
    tx.run(
        "INSERT INTO sessions(id, source, started_at, purged) VALUES(?, 'unknown', ?, 1) ON CONFLICT DO NOTHING",
        (shell, min(times, default=0.0)),
    )


def _insert(engine: Engine, tx: Tx, session_id: str, entry: Mapping[str, Any]) -> int:
    """Store a message under the id it had, if that is free."""
    wanted: Any = entry.get("id")
    free = usable_id(wanted) and tx.row("SELECT 1 FROM messages WHERE id = ?", (wanted,)) is None
    if free:
        tx.reserve(wanted)
    ready = message_values.make_ready(entry, mask=None, lift=None)
    message_id = messages.insert(tx, session_id, ready, wanted if free else None)
    engine.fulltext.index_now(tx, [message_id])
    return message_id


def bring_own(
    engine: Engine, tx: Tx, session_id: str, entries: Sequence[Mapping[str, Any]], touched: Touched
) -> list[int]:
    """Store a session's own messages in their order; returns the id of each. Those in its shell are moved from there."""
    shell = shell_of(session_id)
    kept: list[Place | None] = [None] * len(entries)
    if tx.row("SELECT 1 FROM sessions WHERE id = ?", (shell,)) is not None:
        stored = _Stored(tx, [shell])
        kept = [stored.take(entry, entry.get("id")) for entry in entries]
    wanted: list[Any] = [
        entry.get("id") if place is None else place[0] for entry, place in zip(entries, kept, strict=True)
    ]
    as_they_are = all(map(usable_id, wanted)) and all(first < second for first, second in pairwise(wanted))
    for one, place in zip(wanted, kept, strict=True):
        if as_they_are and place is None:
            as_they_are = tx.row("SELECT 1 FROM messages WHERE id = ?", (one,)) is None
    with _ranges_kept(tx, shell, touched) as moved:
        if as_they_are and wanted:
            tx.reserve(max(wanted))
        given, fresh = list[int](), list[int]()
        for entry, place, one in zip(entries, kept, wanted, strict=True):
            if as_they_are and place is not None:
                tx.run("UPDATE messages SET session_id = ?, hidden = NULL WHERE id = ?", (session_id, one))
                tx.changed_by_us([one])
                given.append(one)
            else:
                ready = message_values.make_ready(entry, mask=None, lift=None)
                given.append(messages.insert(tx, session_id, ready, one if as_they_are else None))
                fresh.append(given[-1])
            if place is not None:
                moved[place[0]] = (given[-1], session_id)
        engine.fulltext.index_now(tx, fresh)
        if not as_they_are:
            _drop(engine, tx, list(moved))
    if moved:
        _settle(tx, shell, touched)
    return given


def _drop(engine: Engine, tx: Tx, ids: Sequence[int]) -> None:
    engine.fulltext.drop(tx, ids)
    for message_id in ids:
        tx.run("DELETE FROM attachments WHERE message_id = ?", (message_id,))
        tx.run("DELETE FROM messages WHERE id = ?", (message_id,))
    tx.changed_by_us(ids)


def _settle(tx: Tx, shell: str, touched: Touched) -> None:
    """Delete a shell if none of its messages is left."""
    if tx.row("SELECT 1 FROM messages WHERE session_id = ? LIMIT 1", (shell,)) is not None:
        touched.shells.add(shell)
        return
    tx.run("DELETE FROM sessions WHERE id = ? AND purged IS NOT NULL", (shell,))
    touched.gone.add(shell)


@contextmanager
def _ranges_kept(tx: Tx, owner: str, touched: Touched) -> Iterator[dict[int, Place]]:
    """While an owner gains or loses messages, the sessions that refer to it still show the same ones.

    A range is every message between two ids, so ranges are rewritten afterwards; `moved` maps old places to new ones.
    """
    before = tx.rows(
        "SELECT session_id, ord, first_id, last_id FROM session_refs WHERE from_session = ? ORDER BY session_id, ord",
        (owner,),
    )
    named: dict[tuple[str, int], list[Place]] = {
        (session_id, ord_): [
            (row[0], owner)
            for row in tx.rows(
                "SELECT id FROM messages WHERE session_id = ? AND id BETWEEN ? AND ? ORDER BY id", (owner, first, last)
            )
        ]
        for session_id, ord_, first, last in before
    }
    moved: dict[int, Place] = {}
    yield moved
    for session_id in dict.fromkeys(key[0] for key in named):
        rows = tx.rows(
            "SELECT ord, from_session, first_id, last_id, after_id, rewound, born FROM session_refs WHERE session_id = ?"
            " ORDER BY ord",
            (session_id,),
        )
        fresh: list[tuple[Any, ...]] = []
        for ord_, from_session, first, last, *rest in rows:
            places = named.get((session_id, ord_))
            if places is None:
                fresh.append((from_session, first, last, *rest))
            else:
                ranges = lineage.ranges(tx, [moved.get(place[0], place) for place in places])
                fresh += [(*one, *rest) for one in ranges]
        state(tx, session_id, fresh)
        for batch, cut in tx.rows("SELECT batch, cut_id FROM session_rewinds WHERE session_id = ?", (session_id,)):
            if cut in moved:
                sql = "UPDATE session_rewinds SET cut_id = ? WHERE session_id = ? AND batch = ?"
                tx.run(sql, (moved[cut][0], session_id, batch))
        touched.referring.add(session_id)


def state(tx: Tx, session_id: str, refs: Sequence[Sequence[Any]]) -> None:
    """Let a session refer to exactly these ranges: (owner, first, last, after, rewound, born), in their order."""
    tx.run("DELETE FROM session_refs WHERE session_id = ?", (session_id,))
    for ord_, row in enumerate(refs, 1):
        tx.run(
            "INSERT INTO session_refs(session_id, ord, from_session, first_id, last_id, after_id, rewound, born)"
            " VALUES(?, ?, ?, ?, ?, ?, ?, ?)",
            (session_id, ord_, *row),
        )


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
    tx.run(
        "INSERT INTO state_meta(key, value) VALUES(?, ?) ON CONFLICT(key) DO UPDATE SET value = excluded.value",
        (AWAITED + child, parent),
    )


def await_again(tx: Tx, child: str, parent: str) -> None:
    """Record the parent that a session had: it was deleted here and may come back from another store."""
    tx.run(
        "INSERT INTO state_meta(key, value) VALUES(?, ?) ON CONFLICT(key) DO UPDATE SET value = excluded.value",
        (AWAITED + child, parent),
    )


def await_no_more(tx: Tx, child: str) -> None:
    """A session is deleted: a later session with its id does not get this parent."""
    tx.run("DELETE FROM state_meta WHERE key = ?", (AWAITED + child,))


def find_children(tx: Tx, parent: str, touched: Touched) -> None:
    """A session was imported: the sessions that recorded it as their parent are its children again."""
    for (key,) in tx.rows("SELECT key FROM state_meta WHERE value = ? AND key LIKE ?", (parent, AWAITED + "%")):
        child = str(codec.restored(key)).removeprefix(AWAITED)
        if tx.run(
            "UPDATE sessions SET parent_session_id = ? WHERE id = ? AND parent_session_id IS NULL AND purged IS NULL",
            (parent, child),
        ):
            touched.children.add(child)
        tx.run("DELETE FROM state_meta WHERE key = ?", (key,))
