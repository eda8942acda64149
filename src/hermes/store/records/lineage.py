"""Lineage: where a conversation came from and where it continues.

A child never copies what it carries over: `session_refs` names ranges of another session's rows and their position
among the child's own. Rewinding hides rows (or shortens such a range) under a batch number, so that it can be undone.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, NamedTuple

from hermes.errors import InvalidInput
from hermes.store.engines.base import CARRIABLE, KEPT, REDACTED, REPLACED, Tx, drop_meta, set_meta
from hermes.store.records import codec, message_reading, message_values, messages, sessions, titles
from hermes.store.records.visibility import User

_INHERITED = "source, user_id, model, model_config, system_prompt, system_prompt_hash, cwd"
_MARKS = ", pinned_at, archived_at"  # copied to a continuation; a branch is another conversation and gets none
Place = tuple[int, str]  # a shown message: its id and the session that owns it


def shown_places(tx: Tx, session_id: str) -> list[Place]:
    """Every message a session shows, in order."""
    return message_reading.shown_rows(tx, session_id, "m.id, m.session_id")


def ranges(tx: Tx, places: Sequence[Place]) -> list[tuple[str, int, int]]:
    """The smallest number of ranges (owner, first, last) that cover exactly these places."""
    neighbours: dict[str, dict[int, int]] = {}
    for owner in {owner for _, owner in places}:
        ids = tx.column("SELECT id FROM messages WHERE session_id = ? ORDER BY id", (owner,))
        neighbours[owner] = dict(pairwise(ids))
    out: list[tuple[str, int, int]] = []
    for message_id, owner in places:
        if out and out[-1][0] == owner and neighbours[owner].get(out[-1][2]) == message_id:
            out[-1] = (owner, out[-1][1], message_id)
        else:
            out.append((owner, message_id, message_id))
    return out


def _refer(tx: Tx, session_id: str, places: Sequence[Place], after_id: int, *, born: int | None = None) -> None:
    add_refs(tx, session_id, [(*one, after_id, None, born) for one in ranges(tx, places)])


def add_refs(tx: Tx, session_id: str, refs: Iterable[Sequence[Any]]) -> None:
    """Let a session show these ranges after those it has: owner, first, last, after, rewound, born."""
    start = int(tx.value("SELECT coalesce(max(ord), 0) FROM session_refs WHERE session_id = ?", (session_id,)))
    for number, row in enumerate(refs, start + 1):
        tx.run(
            "INSERT INTO session_refs(session_id, ord, from_session, first_id, last_id, after_id, rewound, born)"
            " VALUES(?, ?, ?, ?, ?, ?, ?, ?)",
            (session_id, number, *row),
        )


def _child(tx: Tx, parent: str, child: str, kind: str) -> None:
    if tx.row("SELECT 1 FROM sessions WHERE id = ?", (child,)) is not None:
        raise InvalidInput(f"a session with the id {child} exists already")
    columns = _INHERITED + (_MARKS if kind == "compression" else "")
    tx.run(
        f"INSERT INTO sessions(id, {columns}, parent_session_id, started_at, kind)"
        f" SELECT ?, {columns}, id, ?, ? FROM sessions WHERE id = ?",
        (child, time.time(), kind, parent),
    )
    for table, columns in (("session_tags", "tag"), ("session_members", "source, user_id")):
        sql = f"INSERT INTO {table}(session_id, {columns}) SELECT ?, {columns} FROM {table} WHERE session_id = ?"
        tx.run(sql, (child, parent))
    sessions.inherit_model(tx, parent, child)


def branch(tx: Tx, session_id: str, new_id: str, at_message: int | None, title: str | None) -> None:
    """A new session that shows the old one's messages up to `at_message` (0: none) and continues independently from there."""
    sessions.require(tx, session_id)
    places = [] if at_message == 0 else shown_places(tx, session_id)
    if at_message:
        places = _upto(places, at_message, session_id)
    _child(tx, session_id, new_id, "branch")
    _refer(tx, new_id, places, 0)
    messages.recount(tx, new_id)
    if title is not None:
        titles.set_title(tx, new_id, title)


def _upto(places: Sequence[Any], message_id: int, session_id: str) -> list[Place]:
    for number, (shown, _) in enumerate(places):
        if shown == message_id:
            return list(places[: number + 1])
    raise InvalidInput(f"session {session_id} shows no message {message_id}")


def compress(
    tx: Tx,
    session_id: str,
    new_id: str,
    summary: message_values.EncodedMessage,
    head_until: int | None,
    tail_from: int | None,
) -> int:
    """End a session by compression and open its continuation; the id of the summary message."""
    parent = sessions.require(tx, session_id)
    if parent["end_reason"] == "compression" and (tip := compression_tip(tx, session_id)) != session_id:
        raise InvalidInput(f"session {session_id} was already compressed; it continues as {tip}")
    places = shown_places(tx, session_id)
    head = _upto(places, head_until, session_id) if head_until is not None else []
    tail: list[Place] = []
    if tail_from is not None:
        tail = places[len(_upto(places, tail_from, session_id)) - 1 :]
    if set(head) & set(tail):
        raise InvalidInput("head_until is after tail_from: no message would be left out")
    tx.run("UPDATE sessions SET ended_at = NULL, end_reason = NULL WHERE id = ?", (session_id,))
    sessions.end(tx, session_id, "compression")
    _child(tx, session_id, new_id, "compression")
    if parent["title"]:
        titles.set_title(tx, new_id, titles.next_title(tx, parent["title"]))
    _refer(tx, new_id, head, 0)
    summary_id = messages.append(tx, new_id, summary)
    _refer(tx, new_id, tail, summary_id)
    messages.recount(tx, new_id)
    return summary_id


# ------------------------------------------------------------------------------------------------ rewinding


def rewind(tx: Tx, session_id: str, message_id: int) -> list[int]:
    """Hide everything a session shows after `message_id` (0: everything); returns the messages that were hidden."""
    sessions.require(tx, session_id)
    after = _after(shown_places(tx, session_id), message_id, session_id)
    if not after:
        return []
    _hide(tx, session_id, after, new_rewind(tx, session_id, message_id))
    messages.recount(tx, session_id)
    return [place[0] for place in after]


def new_rewind(tx: Tx, session_id: str, cut: int) -> int:
    """Note a rewind to a message (0: before the first); its number, which the messages it hides get."""
    batch = 1 + int(tx.value("SELECT coalesce(max(batch), 0) FROM session_rewinds WHERE session_id = ?", (session_id,)))
    tx.run("INSERT INTO session_rewinds(session_id, batch, cut_id) VALUES(?, ?, ?)", (session_id, batch, cut))
    return batch


def _after(places: Sequence[Any], message_id: int, session_id: str) -> list[Place]:
    return list(places[len(_upto(places, message_id, session_id)) :]) if message_id else list(places)


def _hide(tx: Tx, session_id: str, after: Iterable[Place], batch: int) -> None:
    carried = set()
    for message_id, owner in after:
        if owner == session_id:
            tx.run("UPDATE messages SET hidden = ? WHERE id = ?", (batch, message_id))
        else:
            carried.add(message_id)
    if not carried:
        return
    sql = "SELECT ord, from_session, first_id, last_id, after_id FROM session_refs WHERE session_id = ? AND rewound IS NULL"
    refs = tx.rows(sql, (session_id,))
    for ord_, owner, first, last, after_id in refs:
        between = "SELECT id FROM messages WHERE session_id = ? AND id BETWEEN ? AND ? ORDER BY id"
        ids = tx.column(between, (owner, first, last))
        if carried.isdisjoint(ids):
            continue
        tx.run("UPDATE session_refs SET rewound = ? WHERE session_id = ? AND ord = ?", (batch, session_id, ord_))
        left = [(message_id, owner) for message_id in ids if message_id not in carried]
        _refer(tx, session_id, left, after_id, born=batch)


def unrewind(tx: Tx, session_id: str) -> tuple[list[int], list[int]]:
    """Undo the last rewind: what it hid is shown again, later messages are hidden instead. Returns both id lists."""
    sessions.require(tx, session_id)
    newest = "SELECT batch, cut_id FROM session_rewinds WHERE session_id = ? ORDER BY batch DESC LIMIT 1"
    last = tx.row(newest, (session_id,))
    if last is None:
        return [], []
    batch, cut = last
    known = set(shown_places(tx, session_id))
    rows = message_reading.shown_rows(tx, session_id, "m.id, m.session_id", redacted=True)
    since = [place for place in _after(rows, cut, session_id) if place in known]  # the cut may be redacted
    tx.run("DELETE FROM session_refs WHERE session_id = ? AND born = ?", (session_id, batch))
    tx.run("UPDATE session_refs SET rewound = NULL WHERE session_id = ? AND rewound = ?", (session_id, batch))
    tx.run("UPDATE messages SET hidden = NULL WHERE session_id = ? AND hidden = ?", (session_id, batch))
    back = [place[0] for place in shown_places(tx, session_id) if place not in known]
    if since:
        _hide(tx, session_id, since, batch)
    else:
        tx.run("DELETE FROM session_rewinds WHERE session_id = ? AND batch = ?", (session_id, batch))
    messages.recount(tx, session_id)
    return back, [place[0] for place in since]


def undone(tx: Tx, session_id: str) -> list[Any]:
    """The rows of the messages that `unrewind` would show again, in order."""
    batch = tx.value("SELECT max(batch) FROM session_rewinds WHERE session_id = ?", (session_id,))
    columns, shown = message_reading.ROW, {place[0] for place in shown_places(tx, session_id)}
    rows = tx.rows(f"SELECT {columns} FROM messages m WHERE m.session_id = ? AND m.hidden = ?", (session_id, batch))
    sql = "SELECT from_session, first_id, last_id FROM session_refs WHERE session_id = ? AND rewound = ?"
    for ref in tx.rows(sql, (session_id, batch)):
        carried = f"SELECT {columns} FROM messages m WHERE m.session_id = ? AND m.id BETWEEN ? AND ? AND {CARRIABLE}"
        rows += [row for row in tx.rows(carried, ref) if row[0] not in shown]
    return sorted(rows, key=lambda row: int(row[0]))


def drop_empty_rewinds(tx: Tx, session_id: str) -> None:
    """Forget rewinds of which nothing is hidden any more."""
    tx.run(
        "DELETE FROM session_rewinds WHERE session_id = ? AND NOT EXISTS (SELECT 1 FROM messages m WHERE m.session_id ="
        " session_rewinds.session_id AND m.hidden = session_rewinds.batch) AND NOT EXISTS (SELECT 1 FROM session_refs r"
        " WHERE r.session_id = session_rewinds.session_id AND r.rewound = session_rewinds.batch)",
        (session_id,),
    )


# ------------------------------------------------------------------------------------------------ chains

_SUCCEEDS = (
    "c.parent_session_id = p.id AND p.end_reason = 'compression' AND c.purged IS NULL"
    " AND coalesce(c.kind, 'compression') = 'compression' AND c.started_at >= p.ended_at"
)
CONTINUATION = f"{_SUCCEEDS} AND c.trashed_at IS NULL"
_PART = f"{_SUCCEEDS} AND p.purged IS NULL AND (c.trashed_at IS NULL) = (p.trashed_at IS NULL)"
_NEWEST = "ORDER BY c.started_at DESC, c.id DESC LIMIT 1"
_THERE = "c.trashed_at IS NULL AND c.purged IS NULL"


def _follow(tx: Tx, session_id: str, step: str) -> Iterator[str]:
    """The session and those that one step after the other leads to; `step` gives the next one of an id."""
    seen, current = set[str](), session_id
    while current is not None and current not in seen:
        seen.add(current)
        yield current
        current = tx.value(step, (current,))


def compression_tip(tx: Tx, session_id: str) -> str:
    """The end of the chain of compressions that begins at this session; the session itself when there is none."""
    step = f"SELECT c.id FROM sessions p JOIN sessions c ON {CONTINUATION} WHERE p.id = ? {_NEWEST}"
    return [*_follow(tx, session_id, step)][-1]


def chain_root(tx: Tx, session_id: str) -> str:
    """The beginning of the chain of compressions that this session continues."""
    step = f"SELECT p.id FROM sessions c JOIN sessions p ON {CONTINUATION} WHERE c.id = ?"
    return [*_follow(tx, session_id, step)][-1]


def parts(tx: Tx, session_id: str) -> list[str]:
    """The sessions of one compressed conversation, the oldest first; of one in the trash, those in
    the trash."""
    before = _follow(tx, session_id, f"SELECT p.id FROM sessions c JOIN sessions p ON {_PART} WHERE c.id = ?")
    after = _follow(tx, session_id, f"SELECT c.id FROM sessions p JOIN sessions c ON {_PART} WHERE p.id = ? {_NEWEST}")
    return list(dict.fromkeys([*[*before][::-1], *after]))


def subagents(tx: Tx, session_id: str) -> list[str]:
    """The children of kind `subagent`, the oldest first."""
    return tx.column(
        f"SELECT c.id FROM sessions c WHERE c.parent_session_id = ? AND c.kind = 'subagent' AND {_THERE}"
        " ORDER BY c.started_at, c.id",
        (session_id,),
    )


def resume_target(tx: Tx, session_id: str) -> str:
    """The session that a resume continues: this one if it shows messages, else its first descendant that does."""
    step = f"SELECT c.id FROM sessions c WHERE c.parent_session_id = ? AND {_THERE} {_NEWEST}"
    own = "SELECT 1 FROM messages WHERE session_id = ? AND hidden IS NULL LIMIT 1"
    descendants = _follow(tx, session_id, step)
    return next((one for one in descendants if tx.row(own, (one,)) or shown_places(tx, one)), session_id)


def ancestors(tx: Tx, session_id: str) -> list[str]:
    """The session and all its ancestors, the root first."""
    step = f"SELECT c.id FROM sessions s JOIN sessions c ON c.id = s.parent_session_id AND {_THERE} WHERE s.id = ?"
    return [*_follow(tx, session_id, step)][::-1]


def with_ancestors(tx: Tx, session_id: str, columns: str, visible_to: User | None) -> list[Any]:
    """The rows of a session and its ancestors from the root on, each message once; of a branched parent the prefix only.

    Ancestors that the caller may not see are left out.
    """
    out: list[Any] = []
    seen: set[int] = set()
    chain = ancestors(tx, session_id)
    for number, member in enumerate(chain):
        if member != session_id and sessions.get(tx, member, visible_to) is None:
            continue
        rows = message_reading.shown_rows(tx, member, columns)
        following = chain[number + 1] if number + 1 < len(chain) else None
        if following is not None and tx.value("SELECT kind FROM sessions WHERE id = ?", (following,)) == "branch":
            carried = {place[0] for place in shown_places(tx, following)}
            rows = [row for row in rows if row[0] in carried]
        for row in rows:
            if row[0] not in seen:
                seen.add(row[0])
                out.append(row)
    return out


def cut_children(tx: Tx, session_id: str) -> list[str]:
    """Detach a session's children from it; returns their ids."""
    children = tx.column("SELECT id FROM sessions WHERE parent_session_id = ?", (session_id,))
    tx.run("UPDATE sessions SET parent_session_id = NULL WHERE parent_session_id = ?", (session_id,))
    return children


# ------------------------------------------------------------------------ sessions that come and go one by one
#
# The owners of messages that a session shows without owning them, when sessions are imported one by one.
#
# An imported session may have a parent that is not here. The carried messages then belong to a tombstone under the parent's
# id, as those of a deleted session do: other sessions that carry them find them there, and the parent gets them when it is
# imported. No message is stored twice, and every session still shows the same messages.

Identity = tuple[Any, ...]
Moved = dict[int, Place]  # by the id a message had, its place now


def usable_id(value: Any) -> bool:
    """Whether an exported id can be a message's id here."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < message_reading.LAST


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
        """The value of `hidden` once the owner shows the row again."""
        return None if self.hidden == KEPT else self.hidden


class StoredMessages:
    """The messages of a session that are here, each used at most once; with `kept`, those that are there for others."""

    def __init__(self, tx: Tx, owner: str, *, kept: bool = False) -> None:
        self._tx, self._owner = tx, owner
        self._which = f"m.hidden IN ({KEPT}, {REDACTED})" if kept else f"coalesce(m.hidden, 0) <> {REPLACED}"
        self._by_identity: dict[Identity, list[StoredRow]] | None = None
        self._taken: set[int] = set()
        self._any = tx.row("SELECT 1 FROM messages WHERE session_id = ? LIMIT 1", (owner,)) is not None

    def claim(self, message: Mapping[str, Any], preferred: Any) -> StoredRow | None:
        """Find the row of this message: under its expected id, else under the id of an equal message.

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
    """Keep the references to these sessions right while their messages move: sessions that show them still show the same ones.

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
    for session_id, shown in named.items():
        fresh: list[tuple[Any, ...]] = []
        for places, (after, rewound, born) in shown:
            anchor = moved[after][0] if after in moved else after
            now = ranges(tx, [moved.get(place[0], place) for place in places])
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
    add_refs(tx, session_id, refs)


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
    """Restore the parent of the sessions that recorded this imported session as theirs."""
    for (key,) in tx.rows("SELECT key FROM state_meta WHERE value = ? AND key LIKE ?", (parent, AWAITED + "%")):
        child = str(codec.restored(key)).removeprefix(AWAITED)
        if tx.run(
            "UPDATE sessions SET parent_session_id = ? WHERE id = ? AND parent_session_id IS NULL AND purged IS NULL",
            (parent, child),
        ):
            touched.add(child)
        drop_meta(tx, key)
