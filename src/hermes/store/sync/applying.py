"""A merged document, put into this store's rows.

Messages are moved to the session they belong to, missing ones are inserted in their order, and the values that another store
changed are set. Sessions that refer to moved messages still show the same ones.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from hermes.errors import HermesError, InvalidInput, TitleClash
from hermes.store import (
    carried_messages,
    codec,
    leases,
    lineage,
    message_values,
    messages,
    retention,
    session_events,
    sessions,
    titles,
    transcript_replay,
)
from hermes.store.carried_messages import Touched, shell_of
from hermes.store.engines.base import COMPACTED, KEPT, REDACTED, REPLACED, Engine, Tx
from hermes.store.sync import document as documents
from hermes.store.sync import documenting, snapshots, tables
from hermes.store.sync.document import DELETED, LIVE, SHREDDED, TRASHED, Document, Placement
from hermes.store.sync.tables import StoredRow, TreeState


class NotYet(HermesError):
    """This document can't be taken now: a session in it is in use, or messages it shows have not arrived."""


@dataclass(slots=True)
class Applied:
    """What a document has changed here."""

    sessions: set[str] = field(default_factory=set)  # their transcripts are written again
    touched: Touched = field(default_factory=Touched)
    new_messages: int = 0
    new_sessions: int = 0
    forks: int = 0
    trashed: int = 0
    expired: list[str] = field(default_factory=list)  # deleted elsewhere, and the grace is over
    to_shred: list[str] = field(default_factory=list)
    attachments: set[str] = field(default_factory=set)


def take(
    engine: Engine,
    tx: Tx,
    state: TreeState,
    told: Document,
    bodies: Mapping[str, Any],
    store: str,
    expired_before: float,
) -> Applied:
    """Merge a document of another store into this one's, and the rows with it. `state` is up to date."""
    merged = documents.merged(state.document, told)
    for origin, record in state.document["messages"].items():  # an edit whose text is not here: take it when it comes
        now = merged["messages"].get(origin)
        if (
            now is not None
            and "b" in record
            and now.get("b", record["b"])[0] != record["b"][0]
            and origin not in bodies
        ):
            now["b"] = record["b"]
    placement = Placement(merged)
    documents.add_forks(merged, placement)
    lacking = documents.absent(merged, tables.rows_of(tx, merged["messages"]))
    if merged == state.document and bodies.keys().isdisjoint(lacking):
        return Applied()
    work = _Work(engine, tx, state, merged, placement, dict(bodies), store)
    return work.run(expired_before)


class _Work:
    def __init__(
        self, engine: Engine, tx: Tx, state: TreeState, merged: Document, placement: Placement, bodies: dict[str, Any], store: str
    ) -> None:  # fmt: skip
        self.engine, self.tx, self.state, self.merged = engine, tx, state, merged
        self.placement, self.bodies, self.store = placement, bodies, store
        self.done = Applied()
        self.rows: dict[str, StoredRow] = tables.rows_of(tx, merged["messages"])
        self.ids = [self.merged["id"], *sorted(merged["sessions"].keys() - {self.merged["id"]}, key=self._depth)]
        self.was_here = {one: row[0] for one in self.ids for row in tx.rows(_HERE, (one,))}

    def _depth(self, session_id: str) -> tuple[int, str]:
        return documents._depth(self.placement, session_id), session_id

    def run(self, expired_before: float) -> Applied:
        for session_id in self.was_here:
            if leases.is_live(self.tx, session_id):
                raise NotYet(f"session {session_id} is in use")
        self._keep_carried()
        self._require_carried()
        here = [one for one in self.ids if self._exists(one, expired_before)]
        with _references_kept(self.tx, self._owners(here), self.done.touched) as moved:
            self._keep_ancestors(here)
            for session_id in here:
                self._arrange(session_id, moved)
            self._remove_gone()
        self._drop_shells()
        self._revise()
        for session_id in here:
            self._values(session_id)
            self._view(session_id)
            self._life(session_id)
        for session_id in here:
            self._finish(session_id)
        for other in self.done.touched.referring:
            messages.recount(self.tx, other)
        self._save(here)
        return self.done

    # -------------------------------------------------------------------------------------- which sessions are here

    def _exists(self, session_id: str, expired_before: float) -> bool:
        """Whether a session has rows here from now on; a new one is created."""
        state, at = self.placement.life(session_id)
        if state == SHREDDED:
            if session_id in self.was_here:
                self.done.to_shred.append(session_id)
            return False
        if state == DELETED and 0 < at < expired_before and session_id in self.was_here:
            self.done.expired.append(session_id)
        if session_id in self.was_here:
            return True
        if self.tx.row("SELECT 1 FROM sessions WHERE id = ?", (session_id,)) is not None:
            raise NotYet(f"session {session_id} is being deleted")
        first_contact = not self.state.known or session_id not in self.state.document["sessions"]
        if (state == DELETED or (state == TRASHED and not first_contact)) and not self._is_stranded(session_id):
            return False
        if any(self._needs(origin) for origin in self.placement.order.get(session_id, ())):
            return False  # another store has its messages
        fields = {name: register[0] for name, register in self.merged["sessions"][session_id]["fields"].items()}
        if not fields:
            return False
        fields.pop("title", None)
        sessions.checked_id(session_id)
        transcript_replay.insert_session(self.tx, {**fields, "id": session_id})
        self.done.new_sessions += 1
        self.done.forks += session_id != self.merged["id"]
        if state == DELETED and 0 < at < expired_before:
            self.done.expired.append(session_id)
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

    def _carried(self) -> set[str]:
        return {
            origin
            for one in self.merged["sessions"].values()
            for _, names, _, _ in (one["view"][0]["refs"] if "view" in one else ())
            for origin in names
            if origin not in self.merged["messages"]
        }

    def _keep_carried(self) -> None:
        """Messages whose owner was deleted come with those who show them, and belong to a shell here."""
        wanted = [one for one in sorted(self._carried()) if isinstance(self.bodies.get(one), dict)]
        known = tables.rows_of(self.tx, wanted)
        for origin in (one for one in wanted if one not in known and "tree" in self.bodies[one]):
            tree, body = self.bodies[origin]["tree"], self.bodies[origin]["body"]
            record = tables.load(self.tx, tree).document["messages"].get(origin, {})
            red = record.get("red") or self.bodies[origin].get("red")
            if red:
                body = {name: body[name] for name in ("role", "timestamp")}
            shell = shell_of(tree)
            with carried_messages._ranges_kept(self.tx, shell, self.done.touched):
                carried_messages._make(self.tx, shell, [body])
                number = self._insert(shell, body)
                self.tx.run("UPDATE messages SET hidden = ? WHERE id = ?", (REDACTED if red else KEPT, number))
            tables.remember(self.tx, tree, origin, number)
            self.done.touched.shells.add(shell)

    def _keep_ancestors(self, here: Sequence[str]) -> None:
        """A fork shows messages of a session that was deleted here: they belong to its shell."""
        shell = shell_of(self.merged["id"])
        views = (self.merged["sessions"][one]["view"][0] for one in here if "view" in self.merged["sessions"][one])
        carried = {origin for view in views for _, names, _, _ in view["refs"] for origin in names}
        wanted = [
            one for one in carried if one in self.merged["messages"] and one not in self.rows and self._stored(one)
        ]
        for origin in sorted(wanted, key=self.placement._said):
            if self.placement.home[origin] not in here:
                carried_messages._make(self.tx, shell, [self.bodies[origin]])
                number = self._insert(shell, self.bodies[origin])
                self.tx.run("UPDATE messages SET hidden = ? WHERE id = ?", (KEPT, number))
                self._at(origin, number, shell, KEPT)
                self.done.touched.shells.add(shell)

    def _require_carried(self) -> None:
        old = self.state.document["sessions"]
        for session_id, one in self.merged["sessions"].items():
            if "view" not in one or one["view"] == old.get(session_id, {}).get("view"):
                continue
            names = [name for _, some, _, _ in one["view"][0]["refs"] for name in some]
            names = [name for name in names if name not in self.merged["messages"]]
            if len(tables.rows_of(self.tx, names)) < len(set(names)) and self._shown(session_id):
                raise NotYet(f"session {session_id} shows messages that have not arrived")

    def _shown(self, session_id: str) -> bool:
        return self.placement.life(session_id)[0] in (LIVE, TRASHED)

    # -------------------------------------------------------------------------------------- own messages

    def _insert(self, session_id: str, body: Mapping[str, Any]) -> int:
        ready = message_values.make_ready(body, mask=None, lift=None)
        number = messages.insert(self.tx, session_id, ready, None)
        self.engine.fulltext.index_now(self.tx, [number])
        self.done.attachments.update(digest for digest, _, _ in ready.lifted)
        return number

    def _arrange(self, session_id: str, moved: dict[int, tuple[int, str]]) -> None:
        """The messages of a session are its own, in their order."""
        order = [one for one in self.placement.order.get(session_id, ()) if self._stored(one)]
        missing = [place for place, one in enumerate(order) if one not in self.rows]
        last = 0
        for place, origin in enumerate(order):
            row = self.rows.get(origin)
            if row is None:
                number = self._insert(session_id, self.bodies[origin])
                self.done.new_messages += 1
                self.done.sessions.add(session_id)
                self._at(origin, number, session_id, None)
            elif missing and place > missing[0] and row.id < last:
                self._again(origin, row, session_id, moved)
            elif row.owner != session_id or row.hidden == KEPT:
                hidden = None if row.hidden == KEPT else row.hidden
                self.tx.run("UPDATE messages SET session_id = ?, hidden = ? WHERE id = ?", (session_id, hidden, row.id))
                self.tx.changed_by_us([row.id])
                moved[row.id] = (row.id, session_id)
                self.done.sessions.update((row.owner, session_id))
                self._move_versions(row, session_id)
                self._at(origin, row.id, session_id, hidden)
            last = self.rows[origin].id

    def _stored(self, origin: str) -> bool:
        record = self.merged["messages"][origin]
        if record.get("gone"):
            return False
        return origin in self.rows or ("b" in record and origin in self.bodies)

    def _at(self, origin: str, number: int, owner: str, hidden: int | None) -> None:
        self.rows[origin] = StoredRow(number, owner, hidden)
        tables.remember(self.tx, self.merged["id"], origin, number)

    def _again(self, origin: str, row: StoredRow, session_id: str, moved: dict[int, tuple[int, str]]) -> None:
        """A message comes after one that was inserted just now: it gets a higher id."""
        (was,) = transcript_replay.with_attachments(self.tx, row.owner, [transcript_replay.message(self.tx, row.id)])
        number = self._insert(session_id, was)
        hidden = None if row.hidden == KEPT else row.hidden
        self.tx.run("UPDATE messages SET hidden = ? WHERE id = ?", (hidden, number))
        self.engine.fulltext.drop(self.tx, [row.id])
        self.tx.run("DELETE FROM attachments WHERE message_id = ?", (row.id,))
        self.tx.run("DELETE FROM messages WHERE id = ?", (row.id,))
        self.tx.changed_by_us([row.id])
        moved[row.id] = (number, session_id)
        self.done.sessions.update((row.owner, session_id))
        self._at(origin, number, session_id, hidden)

    def _move_versions(self, row: StoredRow, session_id: str) -> None:
        """What a message said before it was edited goes with it."""
        at = self.tx.row("SELECT timestamp, role FROM messages WHERE id = ?", (row.id,))
        assert at is not None
        sql = "SELECT id FROM messages WHERE session_id = ? AND hidden = ? AND timestamp = ? AND role = ?"
        for (number,) in self.tx.rows(sql, (row.owner, REPLACED, *at)):
            self.tx.run("UPDATE messages SET session_id = ? WHERE id = ?", (session_id, number))
            self.tx.changed_by_us([number])

    def _remove_gone(self) -> None:
        for origin, record in self.merged["messages"].items():
            row = self.rows.get(origin)
            if record.get("gone") and row is not None and row.hidden != KEPT:
                messages.remove_own(self.engine, self.tx, row.owner, [row.id])
                self.done.sessions.add(row.owner)

    def _drop_shells(self) -> None:
        """A shell whose messages have all found their session goes."""
        for shell in {one for one in self.done.sessions if one.startswith(carried_messages.SHELL)}:
            self.done.sessions.discard(shell)
            carried_messages._settle(self.tx, shell, self.done.touched)

    def _revise(self) -> None:
        """Edits and redactions of other stores, also of messages that are here only for others."""
        was = self.state.document["messages"]
        for origin, row in self.rows.items():
            record, old = self.merged["messages"][origin], was.get(origin)
            if record.get("gone"):
                continue
            if record.get("red"):
                if row.hidden != REDACTED:
                    self.tx.run("UPDATE messages SET hidden = ? WHERE id = ?", (REDACTED, row.id))
                    self._shown_by(row)
                continue
            if old is None or "b" not in old or old["b"][0] == record["b"][0] or origin not in self.bodies:
                continue
            self._replace(row.owner, row.id, self.bodies[origin])
            self._shown_by(row)

    def _shown_by(self, row: StoredRow) -> None:
        """The sessions that show a message that was changed."""
        if row.owner.startswith(carried_messages.SHELL):
            self.done.touched.shells.add(row.owner)
        else:
            self.done.sessions.add(row.owner)
        sql = "SELECT DISTINCT session_id FROM session_refs WHERE from_session = ? AND ? BETWEEN first_id AND last_id"
        self.done.touched.referring.update(one[0] for one in self.tx.rows(sql, (row.owner, row.id)))

    def _replace(self, session_id: str, number: int, body: Mapping[str, Any]) -> None:
        """The earlier version moves to a row of its own that is never shown."""
        (was,) = transcript_replay.with_attachments(self.tx, session_id, [transcript_replay.message(self.tx, number)])
        if session_id.startswith(carried_messages.SHELL):  # of a deleted session only what others show stays
            sql = "SELECT session_id FROM session_refs WHERE from_session = ? AND ? BETWEEN first_id AND last_id ORDER BY 1"
            session_id = self.tx.value(sql, (session_id, number)) or session_id
        version = self._insert(session_id, was)
        self.tx.run("UPDATE messages SET hidden = ? WHERE id = ?", (REPLACED, version))
        ready = message_values.make_ready(body, mask=None, lift=None)
        messages.set_values(self.tx, number, ready)
        self.engine.fulltext.reindex(self.tx, [number])
        self.done.attachments.update(digest for digest, _, _ in ready.lifted)

    # -------------------------------------------------------------------------------------- values

    def _changed(self, session_id: str, part: str) -> dict[str, Any]:
        """The registers of a part whose value another store has changed."""
        now = self.merged["sessions"][session_id][part]
        was = self.state.document["sessions"].get(session_id, {}).get(part, {}) if session_id in self.was_here else {}
        return {name: one[0] for name, one in now.items() if name not in was or was[name][0] != one[0]}

    def _values(self, session_id: str) -> None:
        entry = self.merged["sessions"][session_id]
        fields = self._changed(session_id, "fields")
        titled, title = "title" in fields, fields.pop("title", None)
        if "system_prompt" in fields:
            digest = sessions.keep_prompt(self.tx, fields.pop("system_prompt"))
            self.tx.run(
                "UPDATE sessions SET system_prompt = NULL, system_prompt_hash = ? WHERE id = ?", (digest, session_id)
            )
            self.done.sessions.add(session_id)
        known = {name: value for name, value in fields.items() if name in snapshots.FIELDS}
        for name, slots in entry["usage"].items():
            if name in snapshots.USAGE:
                known[name] = documents.total(slots)
        for name, value in known.items():
            kept = codec.storable(value) if isinstance(value, str) else value
            self.tx.run(f"UPDATE sessions SET {name} = ? WHERE id = ?", (kept, session_id))
        for part, table, columns in _SETS:
            for name, there in self._changed(session_id, part).items():
                values = [name] if part == "tags" else json.loads(name)
                keys = " AND ".join(f"{column} = ?" for column in ("session_id", *columns))
                self.tx.run(f"DELETE FROM {table} WHERE {keys}", (session_id, *values))
                if there:
                    marks = ", ".join("?" * (len(columns) + 1))
                    names = ", ".join(("session_id", *columns))
                    self.tx.run(f"INSERT INTO {table}({names}) VALUES({marks})", (session_id, *values))
                self.done.sessions.add(session_id)
        was = self.state.document["sessions"].get(session_id, {})
        if fields or any(entry[part] != was.get(part) for part in ("usage", "events")):
            self.done.sessions.add(session_id)
        if titled:
            self._title(session_id, title)
        if entry["events"]:
            ids = {one: row.id for one, row in self.rows.items()}
            told = [{**event, "after": ids.get(event["after"], 0)} for _, event in sorted(entry["events"].items())]
            session_events.bring_in(self.tx, session_id, told, {})

    def _title(self, session_id: str, title: str | None) -> None:
        """Set a title; of two sessions with the same, the one that got it later gets the next number."""
        trashed = self.tx.value("SELECT trashed_at FROM sessions WHERE id = ?", (session_id,))
        if trashed is not None:
            kept = None if title is None else codec.storable(title)
            self.tx.run("UPDATE sessions SET trashed_title = ? WHERE id = ?", (kept, session_id))
            self.done.sessions.add(session_id)
            return
        holder = self.tx.value("SELECT id FROM sessions WHERE title = ? AND id <> ?", (title, session_id))
        if title is not None and holder is not None:
            mine = self.merged["sessions"][session_id]["fields"]["title"]
            theirs = self._title_of(str(holder))
            if theirs is None or (theirs[1], str(holder)) < (mine[1], session_id):
                title = titles.next_title(self.tx, title)  # compared with the document, it was changed here
            else:
                titles.set_title(self.tx, str(holder), titles.next_title(self.tx, title))
                self.done.sessions.add(str(holder))
        try:
            titles.set_title(self.tx, session_id, title)
        except (TitleClash, ValueError) as error:
            raise InvalidInput(f"session {session_id}: its title can't be set ({error})") from error
        self.done.sessions.add(session_id)

    def _title_of(self, session_id: str) -> list[Any] | None:
        if session_id in self.merged["sessions"]:
            found = self.merged["sessions"][session_id]["fields"].get("title")
        else:
            other = tables.load(self.tx, tables.tree_of(self.tx, session_id)).document
            found = other["sessions"].get(session_id, documents.new_session())["fields"].get("title")
        return list(found) if found is not None else None

    def _view(self, session_id: str) -> None:
        """Which messages are hidden, and which of other sessions are shown."""
        register = self.merged["sessions"][session_id].get("view")
        if register is None:
            return
        if session_id in self.was_here and self.state.local.get(session_id, {}).get("view") == register[0]:
            return
        view = register[0]
        for origin in self.placement.order.get(session_id, ()):
            row = self.rows.get(origin)
            if row is not None and not self.merged["messages"][origin].get("gone"):
                self.tx.run(
                    f"UPDATE messages SET hidden = ? WHERE id = ? AND (hidden IS NULL OR hidden > 0 OR hidden = {COMPACTED})",
                    (view["hidden"].get(origin), row.id),
                )
        names = {name for _, some, _, _ in view["refs"] for name in some}
        every = {**tables.rows_of(self.tx, names), **self.rows}

        def number(origin: str, otherwise: int) -> int:
            return every[origin].id if origin in every else otherwise

        refs: list[tuple[Any, ...]] = []
        for after, some, rewound, born in view["refs"]:
            places = [(every[one].id, every[one].owner) for one in some if one in every]
            anchor = number(after, -1) if after else 0
            refs += [(*one, anchor, rewound, born) for one in lineage.ranges(self.tx, places)]
        carried_messages.state(self.tx, session_id, refs)
        self.tx.run("DELETE FROM session_rewinds WHERE session_id = ?", (session_id,))
        for batch, cut in view["rewinds"]:
            self.tx.run(
                "INSERT INTO session_rewinds(session_id, batch, cut_id) VALUES(?, ?, ?)",
                (session_id, batch, number(cut, 0)),
            )
        self.done.sessions.add(session_id)

    def _life(self, session_id: str) -> None:
        state, at = self.placement.life(session_id)
        trashed = self.tx.value("SELECT trashed_at FROM sessions WHERE id = ?", (session_id,)) is not None
        if state == LIVE and trashed:
            retention.restore(self.tx, session_id, "sync")
            self.done.sessions.add(session_id)
        elif state != LIVE and not trashed:
            retention.trash(self.tx, session_id, "sync", at or None)
            self.done.trashed += 1
            self.done.sessions.add(session_id)

    def _finish(self, session_id: str) -> None:
        carried_messages.await_parent(self.tx, session_id)
        carried_messages.find_children(self.tx, session_id, self.done.touched)
        messages.recount(self.tx, session_id)

    def _save(self, here: Sequence[str]) -> None:
        """What is here now is no change of this store; but a title that got another number is."""
        self.state.document, self.state.local = self.merged, {}
        for session_id in here:
            now = snapshots.snapshot(self.tx, session_id)
            wanted = self.merged["sessions"][session_id]["fields"].get("title")
            if wanted is not None and now["life"][0] == LIVE:
                now["fields"]["title"] = wanted[0]
            self.state.local[session_id] = now
        prints = snapshots.fingerprints(self.tx, here) if here else {}
        self.state.fingerprint = snapshots.combined(prints, here)
        titled = "SELECT title FROM sessions WHERE id = ?"
        for session_id, now in self.state.local.items():
            if (
                now["life"][0] == LIVE
                and codec.restored(self.tx.value(titled, (session_id,))) != now["fields"]["title"]
            ):
                self.state.fingerprint = ""
        documenting.settle(self.tx, self.state)


_HERE = "SELECT trashed_at FROM sessions WHERE id = ? AND purged IS NULL"
_SETS = (("tags", "session_tags", ("tag",)), ("members", "session_members", ("source", "user_id")))


@contextmanager
def _references_kept(tx: Tx, owners: set[str], touched: Touched) -> Iterator[dict[int, tuple[int, str]]]:
    """While messages move between sessions, those that refer to them still show the same ones.

    A range is every message between two ids, so ranges are rewritten afterwards; the dict maps ids to their new places.
    """
    marks = ", ".join("?" * len(owners)) or "NULL"
    columns = "ord, from_session, first_id, last_id, after_id, rewound, born"
    referring = [
        row[0]
        for row in tx.rows(
            f"SELECT DISTINCT session_id FROM session_refs WHERE from_session IN ({marks}) ORDER BY session_id",
            sorted(owners),
        )
    ]
    named: dict[str, list[tuple[list[tuple[int, str]], tuple[Any, ...]]]] = {}
    for session_id in referring:
        for _, owner, first, last, *rest in tx.rows(
            f"SELECT {columns} FROM session_refs WHERE session_id = ? ORDER BY ord", (session_id,)
        ):
            sql = "SELECT id FROM messages WHERE session_id = ? AND id BETWEEN ? AND ? ORDER BY id"
            places = [(row[0], owner) for row in tx.rows(sql, (owner, first, last))]
            named.setdefault(session_id, []).append((places, tuple(rest)))
    moved: dict[int, tuple[int, str]] = {}
    yield moved
    if not moved:
        return
    for session_id, ranges in named.items():
        fresh: list[tuple[Any, ...]] = []
        for places, (after, rewound, born) in ranges:
            anchor = moved[after][0] if after in moved else after
            now = lineage.ranges(tx, [moved.get(place[0], place) for place in places])
            fresh += [(*one, anchor, rewound, born) for one in now]
        carried_messages.state(tx, session_id, fresh)
        for batch, cut in tx.rows("SELECT batch, cut_id FROM session_rewinds WHERE session_id = ?", (session_id,)):
            if cut in moved:
                sql = "UPDATE session_rewinds SET cut_id = ? WHERE session_id = ? AND batch = ?"
                tx.run(sql, (moved[cut][0], session_id, batch))
        touched.referring.add(session_id)
