"""The one way into the record for what was made elsewhere: an export, another program's history, another store.

`Ingest` has the rules that all of them share: which ids messages get, how they come into their order, what happens to the
earlier version of a changed one, to a taken title, to a parent that is not here. `ingest` takes a session in the form of an
export: one that is not here (or was deleted) is stored, under its own ids where they are free; what happens to one that is here
is the caller's policy. `export` is the way out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from operator import itemgetter
from typing import Any, Literal, cast

from hermes.errors import InvalidInput
from hermes.store.engines.base import COMPACTED, KEPT, REDACTED, REPLACED, Engine, Tx
from hermes.store.records import codec, lineage, message_reading, messages, sessions
from hermes.store.records.attachments import Attachments, listed, references
from hermes.store.records.lineage import Moved, Place, StoredMessages, StoredRow, usable_id
from hermes.store.records.message_values import EncodedMessage, Mask, count_calls, encode_message, masked_session
from hermes.store.records.rows import ExportedSession, HiddenMessage, MessageRow, RedactedMessage
from hermes.store.records.titles import adopt_foreign_titles, set_or_number
from hermes.store.records.visibility import User, session_clause
from hermes.store.transcripts import replay
from hermes.store.transcripts.replay import SessionState

PARTIAL = "partial"  # the key of a session that comes with some of its messages only; True: the others have to be here
FILES = "attachments"  # by hash, the bytes of attachments (or their base64), where an export carries them
Record = Mapping[str, Any]  # a session or a message as a file or another store has it
# A session that is here stays as it is, or is brought to what the program that it was imported from has now.
Policy = Literal["keep", "follow"]

_FOLLOWED = ("ended_at", "end_reason", "model", "input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens",
             "reasoning_tokens", "api_call_count", "actual_cost_usd", "cost_status", "cost_source")  # fmt: skip
_ENDS = ("imported", "compression")  # how an imported session ends that was not continued here
_COMPARED = ("tool_calls", "tool_name", "tool_call_id", "reasoning", "finish_reason")
_TOKENS = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens")
_COUNTED = ("model", *_TOKENS, "cost_usd")


class OutOfPlace(InvalidInput):
    """A part of a session does not follow what is here: the session has to be brought in as a whole."""


def as_row(data: Record) -> EncodedMessage:
    """A message that was masked and lifted before, in the shape of its row."""
    return encode_message(data, mask=None, lift=None)


class Ingest:
    """Sessions and messages that come in with one transaction."""

    def __init__(self, engine: Engine, tx: Tx) -> None:
        self.engine, self.tx = engine, tx
        self.touched: set[str] = set()  # other sessions that were changed, so that their transcripts are written again
        self.attachments: set[str] = set()  # of the messages that came in
        self._unindexed: list[int] = []

    # ------------------------------------------------------------------------------------------ messages

    def add(self, owner: str, message: EncodedMessage, number: int | None = None, hidden: int | None = None) -> int:
        """Store a message; its id."""
        number = messages.insert(self.tx, owner, message, number)
        if hidden is not None:
            self.tx.run("UPDATE messages SET hidden = ? WHERE id = ?", (hidden, number))
        self._unindexed.append(number)
        self.attachments.update(digest for digest, _, _ in message.lifted)
        return number

    def keep_for_others(self, owner: str, message: Record, *, redacted: bool = False) -> int:
        """Store a message that is there for others than its owner; an owner that is not here gets a tombstone."""
        at: Any = message.get("timestamp")
        number: Any = message.get("id")
        sql = "INSERT INTO sessions(id, source, started_at, purged) VALUES(?, 'unknown', ?, 1) ON CONFLICT DO NOTHING"
        self.tx.run(sql, (owner, at if isinstance(at, (int, float)) else 0.0))
        if not usable_id(number) or not lineage.are_free(self.tx, owner, [number]):
            number = None
        else:
            self.tx.reserve(number)
        self.touched.add(owner)
        return self.add(owner, as_row(message), number, REDACTED if redacted else KEPT)

    def arrange(
        self, session_id: str, own: Sequence[tuple[Record | None, StoredRow | None]], moved: Moved
    ) -> list[int]:
        """A session's own messages in their order, each with its row if it is here; the id of each.

        New ones keep the ids they come with, if all of them are free and in order. Else they get higher ones, and so do
        the messages after them: `moved` has their places. (Within lineage.references_kept.)
        """
        wanted: list[Any] = [row.id if row is not None else (one or {}).get("id") for one, row in own]
        fresh = [number for number, (_, row) in zip(wanted, own, strict=True) if row is None]
        in_order = all(map(usable_id, wanted)) and all(first < second for first, second in pairwise(wanted))
        keeps_ids = in_order and lineage.are_free(self.tx, session_id, fresh)
        if keeps_ids and fresh:
            self.tx.reserve(max(fresh))
        ids = [0]
        for wanted_id, (one, row) in zip(wanted, own, strict=True):
            if row is None:
                number = self.add(session_id, as_row(one or {}), wanted_id if keeps_ids else None)
            elif row.id < ids[-1]:
                number = self._move(row, session_id)
                moved[row.id] = (number, session_id)
            else:
                number = row.id
                if row.owner != session_id or row.hidden == KEPT:
                    sql = "UPDATE messages SET session_id = ?, hidden = ? WHERE id = ?"
                    self.tx.run(sql, (session_id, row.shown, number))
            if row is not None and row.owner != session_id:
                moved[row.id] = (number, session_id)
                self._move_versions(row, number, session_id)
            ids.append(number)
        return ids[1:]

    def _move(self, row: StoredRow, session_id: str) -> int:
        """Give a message a higher id: it comes after one that has a higher id than it."""
        (was,) = replay.with_attachments(self.tx, row.owner, [replay.message(self.tx, row.id)])
        number = self.add(session_id, as_row(was), None, row.shown)
        messages.delete(self.engine, self.tx, [row.id])
        return number

    def _move_versions(self, row: StoredRow, number: int, session_id: str) -> None:
        """Move the earlier versions of an edited message with it."""
        at = self.tx.row("SELECT timestamp, role FROM messages WHERE id = ?", (number,))
        assert at is not None
        sql = "SELECT id FROM messages WHERE session_id = ? AND hidden = ? AND timestamp = ? AND role = ?"
        for (version,) in self.tx.rows(sql, (row.owner, REPLACED, *at)):
            self.tx.run("UPDATE messages SET session_id = ? WHERE id = ?", (session_id, version))

    def replace(self, number: int, keeper: str, message: Record) -> int:
        """Change a message; `keeper` gets the row with the earlier version, whose id is returned."""
        encoded = as_row(message)
        version = messages.replace(self.engine, self.tx, number, encoded, keeper)
        self.attachments.update(digest for digest, _, _ in encoded.lifted)
        return version

    # ------------------------------------------------------------------------------------------ sessions

    def set_columns(self, session_id: str, values: Mapping[str, Any]) -> None:
        """Set columns of a session's row."""
        stored = [codec.storable(value) if isinstance(value, str) else value for value in values.values()]
        if values:
            self.tx.run(
                f"UPDATE sessions SET {', '.join(f'{name} = ?' for name in values)} WHERE id = ?", [*stored, session_id]
            )

    def refer(self, session_id: str, refs: Sequence[tuple[Sequence[Place], int, int | None, int | None]]) -> None:
        """Let a session show these messages of others: their places, the message before them, rewound, born."""
        named = ((lineage.ranges(self.tx, places), rest) for places, *rest in refs)
        lineage.set_refs(self.tx, session_id, [(*one, *rest) for ranges, rest in named for one in ranges])

    def index(self) -> None:
        """Index the messages that came in."""
        if self._unindexed:
            self.engine.fulltext.index_now(self.tx, self._unindexed)
            self._unindexed = []

    def finish(self, session_id: str, more: tuple[int, int, float, str | None] | None = None) -> None:
        """The last step for each session: the index, its parent, its children, its counters (`more`: what is added to them
        by messages.count_more)."""
        self.index()
        lineage.await_parent(self.tx, session_id)
        lineage.find_children(self.tx, session_id, self.touched)
        if more is None:
            messages.recount(self.tx, session_id)
        else:
            messages.count_more(self.tx, session_id, *more)


# ---------------------------------------------------------------------------------------------- exported sessions


@dataclass(slots=True)
class Ingested:
    """The changes that an import made."""

    is_new: bool = False  # the session was not here
    touched: set[str] = field(default_factory=set)  # other sessions that were changed
    added: int = 0  # messages of the session itself
    revised: int = 0  # messages that were changed, hidden or shown again, and columns of the session's row
    stored: list[int] = field(default_factory=list)  # the rows that an import into a session that was here has made
    changed: list[int] = field(default_factory=list)  # and those that it has changed
    hides: bool = False  # messages were hidden or shown again

    def __bool__(self) -> bool:
        return bool(self.is_new or self.added or self.revised)


def checked(data: Any) -> str:
    """The id of an exported session; InvalidInput when it is none."""
    if not isinstance(data, Mapping) or not isinstance(data.get("id"), str):
        raise InvalidInput("an exported session is an object with an id")
    for key in ("messages", "rewound_messages"):
        entries = data.get(key) or []
        if not isinstance(entries, list) or not all(isinstance(m, dict) and m.get("role") for m in entries):
            raise InvalidInput(f"session {data['id']}: {key} is not a list of messages")
    return sessions.checked_id(data["id"])


def prepared(data: Record, attachments: Attachments, mask: Mask | None) -> dict[str, Any]:
    """An exported session as this store stores it: base64 payloads lifted into attachments, secrets masked.

    Each message lists its attachments; where neither the export nor a payload names any, its text does.
    """
    attached = data.get("attached") if isinstance(data.get("attached"), dict) else None

    def lifted(message: dict[str, Any]) -> dict[str, Any]:
        content, found = message.get("content"), list[Any]()
        if isinstance(content, (str, list, dict)):
            content, named = attachments.lift(content)
            found = listed(tuple(one for one in named if one[1]))  # payloads: a reference has no type
        if attached is not None:
            files = attached.get(str(message.get("id")))
        else:
            files = listed(references(content if isinstance(content, str) else codec.to_json(content)))
        return {**message, "content": content, "attachments": [*found, *(files if isinstance(files, list) else ())]}

    lists = {key: [lifted(one) for one in data.get(key) or ()] for key in ("messages", "rewound_messages")}
    events = data.get("events")
    prepared = {**data, **lists, "events": events if isinstance(events, list) else []}
    return prepared if mask is None else masked_session(prepared, mask)


def ingest(engine: Engine, tx: Tx, data: Record, policy: Policy, ids: dict[int, int]) -> Ingested:
    """Store a prepared session; the policy says what happens to one that is here.

    A message keeps its id unless another message has it; `ids` maps it to the new one for later sessions that refer to it.
    Messages carried from other sessions stay theirs, also where those are not here (lineage.py).
    """
    session_id = data["id"]
    here = tx.row("SELECT trashed_at FROM sessions WHERE id = ? AND purged IS NULL", (session_id,))
    if here is None and data.get(PARTIAL):
        raise OutOfPlace(session_id)
    if here is None:
        into = Ingest(engine, tx)
        _store(into, session_id, data, ids)
        own = [one for one in data["messages"] if one.get("session_id", session_id) == session_id]
        return Ingested(is_new=True, touched=into.touched, added=len(own))
    if policy == "keep" or here[0] is not None:  # one in the trash stays there unchanged
        return Ingested()
    return _Follow(engine, tx, session_id, data, ids).run()


def _store(into: Ingest, session_id: str, data: Record, ids: dict[int, int]) -> None:
    tx = into.tx
    replay.insert_session(tx, data)
    shown, rewound, refs = data["messages"], data["rewound_messages"], data.get("refs") or []

    def is_carried(one: Record) -> bool:
        owner, old = one.get("session_id", session_id), one.get("id")
        is_others = owner != session_id and usable_id(old)
        return is_others and any(whose == owner and first <= old <= last for _, whose, first, last, *_ in refs)

    own = [one for one in (*shown, *rewound) if not is_carried(one)]
    numbers: list[Any] = [one.get("id") for one in shown if not is_carried(one)]
    if all(usable_id(one.get("id")) for one in own) and all(first < second for first, second in pairwise(numbers)):
        own.sort(key=itemgetter("id"))  # rewound messages at their place
    kept = StoredMessages(tx, session_id, kept=True)
    with lineage.references_kept(tx, {session_id}, into.touched) as moved:
        new_ids = into.arrange(session_id, [(one, kept.claim(one, one.get("id"))) for one in own], moved)
    here = {one["id"]: new for one, new in zip(own, new_ids, strict=True) if usable_id(one.get("id"))}
    ids.update(here)
    places: dict[int, Place] = {}
    stored: dict[str, StoredMessages] = {}
    for one in sorted(filter(is_carried, (*shown, *rewound)), key=itemgetter("id")):
        owner, old = one["session_id"], one["id"]
        if owner not in stored:
            stored[owner] = StoredMessages(tx, owner)
        row = stored[owner].claim(one, ids.get(old, old))
        number = row.id if row is not None else into.keep_for_others(owner, one, redacted=one.get("hidden") == REDACTED)
        places[old] = (number, owner)
    new = {**here, **{old: number for old, (number, _) in places.items()}}
    ids.update(new)
    state: replay.PartialState = {key: data[key] for key in ("tags", "members") if key in data}
    state["rewinds"] = [[batch, new.get(cut, 0)] for batch, cut in data.get("rewinds") or [] if not cut or cut in new]
    state["hidden"] = [[here[m["id"]], m["hidden"]] for m in rewound if m.get("id") in here and m.get("hidden")]
    replay.set_state(tx, session_id, state)
    into.refer(session_id, [
        ([place for old, place in places.items() if place[1] == owner and first <= old <= last],
         here.get(after, -1) if after else 0, rewound_, born)  # a missing anchor: they are placed at the end, as before
        for _, owner, first, last, after, rewound_, born in refs
    ])  # fmt: skip
    if data["events"]:
        sessions.add_missing_events(tx, session_id, data["events"], new)
    into.finish(session_id)


# ---------------------------------------------------------------------------------------------- another program's


class _Follow:
    """Brings a session that was imported from another program to what that program has now.

    Its messages are known by the ids they had there (`platform_message_id`). New messages are appended; a message that was
    changed there is changed here as an edit does it, with the earlier version stored; one that was undone there is hidden as
    a rewind does it, and shown again when that program shows it again (a branch gone back to, a file that was read while it
    was being written). What was hidden or redacted here stays so, and messages stored here stay in place. A title follows the
    one there until it is changed here; end, model, tokens and cost follow until the conversation is continued here.

    Of a session that comes in parts (PARTIAL), only the messages that a part names are looked at, and what they add is added
    to the session's counters.
    """

    def __init__(self, engine: Engine, tx: Tx, session_id: str, data: Record, ids: dict[int, int]) -> None:
        self.tx, self.id, self.data, self.ids, self.done = tx, session_id, data, ids, Ingested()
        self.into = Ingest(engine, tx)
        self.used: Counter[str] = Counter()  # tokens, cost and replies that came in
        self.calls, self.latest = 0, 0.0  # how many more tool calls there are, and when the last message was written
        self.preview: str | None = None
        self.is_partial = PARTIAL in data
        self.stored = {codec.restored(name): StoredRow(*row) for name, *row in self._rows()}
        if self.is_partial:
            self._check_order()
        meta = codec.from_json(tx.value("SELECT meta FROM sessions WHERE id = ?", (session_id,)) or "{}")
        self.meta = meta if isinstance(meta, dict) else {}
        source = self.meta.get("imported")
        self.source = dict(source) if isinstance(source, dict) else None  # what imports have recorded

    def _rows(self) -> Iterator[tuple[Any, ...]]:
        sql = (
            "SELECT platform_message_id, id, session_id, hidden FROM messages WHERE session_id = ? AND platform_message_id"
            f" IS NOT NULL AND coalesce(hidden, 0) <> {REPLACED}"
        )
        if not self.is_partial:
            yield from self.tx.rows(f"{sql} ORDER BY id", (self.id,))
            return
        for one in (*self.data["messages"], *self.data["rewound_messages"]):
            if name := one.get("platform_message_id"):
                yield from self.tx.rows(f"{sql} AND platform_message_id = ?", (self.id, codec.storable(name)))

    def _check_order(self) -> None:
        """A part begins with messages that are here, and names none that was stored before them: some programs use the
        id of a message again."""
        found = [row.id for row in self.stored.values()]
        if (self.data[PARTIAL] and self.data["messages"] and not found) or (found and min(found) < found[0]):
            raise OutOfPlace(self.id)

    def run(self) -> Ingested:
        if (
            not self.stored and self.data["messages"]
        ):  # it has no messages of another program, or they have no ids from there
            return self.done
        shown = [one for one in self.data["messages"] if one.get("platform_message_id")]
        names = {one["platform_message_id"] for one in shown}
        noted = (self.source or {}).get("hidden")  # the rewinds that imports have made; all others were made here
        ours = [one for one in noted if isinstance(one, int)] if isinstance(noted, list) else []
        for name, row in self.stored.items():
            if name in names and row.hidden in ours:
                self.tx.run("UPDATE messages SET hidden = NULL WHERE id = ?", (row.id,))
                self.stored[name] = StoredRow(row.id, row.owner, None)
                self.done.revised += 1
                self.done.hides = True
        self.done.added = len(names - self.stored.keys())
        rewound = [one for one in self.data["rewound_messages"] if one.get("platform_message_id")]
        for one in (*shown, *(one for one in rewound if one["platform_message_id"] not in self.stored)):
            self._apply_message(one)
        undone = [row.id for name, row in self.stored.items() if row.hidden is None and name not in names]
        compacted = {one["platform_message_id"] for one in rewound if one.get("hidden") == COMPACTED}
        for row in (row for name, row in self.stored.items() if row.id in undone and name in compacted):
            self.tx.run("UPDATE messages SET hidden = ? WHERE id = ?", (COMPACTED, row.id))
            undone.remove(row.id)
            self.done.revised += 1
        if undone and not self.data.get("keeps_lost"):  # hidden as by a rewind, which can be undone
            sql = "SELECT max(id) FROM messages WHERE session_id = ? AND hidden IS NULL AND id < ?"
            ours.append(lineage.new_rewind(self.tx, self.id, self.tx.value(sql, (self.id, min(undone))) or 0))
            for number in undone:
                self.tx.run("UPDATE messages SET hidden = ? WHERE id = ?", (ours[-1], number))
            self.done.revised += len(undone)
            self.done.hides = True
        if ours and self.done.revised:
            lineage.drop_empty_rewinds(self.tx, self.id)
            there = self.tx.column("SELECT batch FROM session_rewinds WHERE session_id = ?", (self.id,))
            self._record(hidden=sorted({*there}.intersection(ours)))
        self._columns()
        if self.done:
            more = self.done.added, self.calls, self.latest, self.preview
            self.into.finish(self.id, more if self.is_partial and not self.done.hides else None)
        return self.done

    def _apply_message(self, message: Record) -> None:
        """Store a message, or what was changed in it."""
        name = message["platform_message_id"]
        encoded, row = as_row(message), self.stored.get(name)
        if row is None:
            self.done.stored.append(self.into.add(self.id, encoded))
            self.stored[name] = StoredRow(self.done.stored[-1], self.id, None)
            self._count(message, encoded.values, dict.fromkeys(_COUNTED), encoded.calls)
            self.used["api_call_count"] += message["role"] == "assistant"
            self.latest = max(self.latest, encoded.timestamp)
            self.preview = self.preview or encoded.preview
        if usable_id(message.get("id")):
            self.ids[message["id"]] = self.stored[name].id
        if row is None or row.hidden is not None:
            return
        columns = ", ".join((*_COMPARED, *_COUNTED))
        was = self.tx.row(
            f"SELECT content, content_rest, content_format, {columns} FROM messages WHERE id = ?", (row.id,)
        )
        assert was is not None
        text, values = (codec.joined(*was[:2]), was[2]), dict(zip((*_COMPARED, *_COUNTED), was[3:], strict=True))
        is_other = text != (encoded.text, encoded.form) or any(values[n] != encoded.values[n] for n in _COMPARED)
        before = count_calls(codec.restored(values["tool_calls"])) if values["tool_calls"] else 0
        self._count(message, encoded.values, values, encoded.calls - before if is_other else 0)
        if is_other:
            self.done.stored.append(self.into.replace(row.id, self.id, message))
            self.done.changed.append(row.id)
            self.done.revised += 1
            return
        counted = {name: encoded.values[name] for name in _COUNTED}  # programs write these after the words
        if new := {name: value for name, value in counted.items() if value not in (None, values[name])}:
            sets = ", ".join(f"{name} = ?" for name in new)
            self.tx.run(f"UPDATE messages SET {sets} WHERE id = ?", (*new.values(), row.id))
            self.done.changed.append(row.id)
            self.done.revised += 1

    def _count(self, message: Record, new: Record, old: Record, calls: int) -> None:
        """Count what a message used, or what more it used than its stored version says."""
        self.calls += calls
        for name in (*_TOKENS, "cost_usd"):
            if new[name] is not None:
                self.used[name] += new[name] - (old[name] or 0)
        if old["output_tokens"] is None:
            self.used["reasoning_tokens"] += message.get("reasoning_tokens") or 0

    def _columns(self) -> None:
        """Take over what the other program has changed about the session itself."""
        row = self.tx.row(f"SELECT {', '.join(_FOLLOWED)}, title, title_base FROM sessions WHERE id = ?", (self.id,))
        assert row is not None
        *values, title, base = row
        was = dict(zip(_FOLLOWED, values, strict=True))
        if was["end_reason"] in _ENDS or self._ended_there(was["end_reason"]):
            there = {**self.data, **self._sums(was)} if self.is_partial else self.data
            new = {name: there[name] for name in _FOLLOWED if there.get(name) not in (None, was[name])}
            self.into.set_columns(self.id, new)
            self.done.revised += len(new)
            if self.source is not None and "end" in self.source and "end_reason" in new:
                self._record(end=new["end_reason"])
        new_title = self.data.get("title")
        if self.source is None or new_title is None or new_title == (known := self.source.get("title")):
            return
        if (title is None and known is None) or (title is not None and known in (title, base)):
            adopt_foreign_titles(self.tx)
            set_or_number(self.tx, self.id, new_title)
            self._record(title=new_title)
            self.done.revised += 1

    def _ended_there(self, reason: Any) -> bool:
        """Whether a session is as the other program ended it (or has not yet), and nothing was said in it here."""
        sql = "SELECT 1 FROM messages WHERE session_id = ? AND platform_message_id IS NULL AND hidden IS NULL LIMIT 1"
        return (
            "end" in (self.source or {}) and reason == (self.source or {})["end"] and not self.tx.value(sql, (self.id,))
        )

    def _sums(self, was: Record) -> Record:
        """The session's own sums with what a part of it adds to them."""
        names = {name: name for name in (*_TOKENS, "reasoning_tokens", "api_call_count")}
        names["actual_cost_usd"] = "cost_usd"
        return {name: (was[name] or 0) + self.used[part] if self.used[part] else None for name, part in names.items()}

    def _record(self, **values: Any) -> None:
        self.source = {**(self.source or {}), **values}
        self.meta["imported"] = self.source
        self.into.set_columns(self.id, {"meta": codec.to_json(self.meta)})


# ---------------------------------------------------------------------------------------------- export
#
# Export of sessions: one complete dict per session, which `ingest.py` brings back without loss.
#
# An export shows a session as the API shows it (carried messages in their places); separate keys hold what is needed to
# restore the references.

# Keys in which a store records its own index, changes and tables.
OWN_KEYS = (
    "fts_indexed_to", "fts_form", "words_removed", "adopted_to", "sync_store", "meaning",
)  # fmt: skip
IMPORTED_FILE = "history:"  # prefix of the keys that record which file of another program was read, and when


def export(tx: Tx, session_id: str, visible_to: User | None) -> ExportedSession | None:
    """A session with its messages; None when there is none visible."""
    row = sessions.get(tx, session_id, visible_to)
    if row is None:
        return None
    shown = [message_reading.decode(one) for one in message_reading.shown_rows(tx, session_id)]
    state = replay.session_state(tx, session_id)
    rewound: list[Any] = _rewound(tx, session_id, shown, state)
    if visible_to is not None:
        rewound = [one for one in map(_for_others, rewound) if one is not None]
    beside: dict[str, Any] = {key: state[key] for key in ("tags", "members", "refs", "rewinds")}
    beside |= {"events": sessions.events_of(tx, session_id), "rewound_messages": rewound}
    session = {**row, "messages": shown, **{key: value for key, value in beside.items() if value}}
    attached = message_reading.attached(tx, session_id)
    every = [*shown, *rewound]
    listed = {str(one["id"]): attached[one["id"]] for one in every if one["id"] in attached}
    if listed or any(message_reading.mentions(one["content"]) for one in every):
        session["attached"] = listed  # {}: they only read like it
    return cast("ExportedSession", session)


def _rewound(tx: Tx, session_id: str, shown: Sequence[MessageRow], state: SessionState) -> list[HiddenMessage]:
    """Messages a session no longer shows, its own and carried ones, each with `hidden`: the batch of the rewind that hid it,
    or the code of a redaction or edit."""
    hidden = {message_id: kind for message_id, kind in state["hidden"] if kind != KEPT}
    found = {m["id"]: m for m in replay.own_messages(tx, session_id) if m["id"] in hidden} if hidden else {}
    shown_ids = {message["id"] for message in shown}
    for _, owner, first, last, _, rewound, _ in state["refs"]:
        sql = f"SELECT {message_reading.ROW}, m.hidden FROM messages m WHERE m.session_id = ? AND m.id BETWEEN ? AND ?"
        if rewound is None:
            sql += f" AND m.hidden = {REDACTED}"
        for *row, kind in tx.rows(f"{sql} ORDER BY m.id", (owner, first, last)):
            message_id = row[0]
            if message_id not in shown_ids and kind != REPLACED:
                found[message_id] = message_reading.decode(tuple(row))
                hidden.setdefault(message_id, REDACTED if kind == REDACTED else rewound)
    return [{**message, "hidden": hidden[number]} for number, message in sorted(found.items())]


def _for_others(message: HiddenMessage) -> HiddenMessage | RedactedMessage | None:
    """A hidden message in an export for a user who is not the owner: a redacted one's place, no earlier version."""
    if message["hidden"] == REPLACED:
        return None
    if message["hidden"] != REDACTED:
        return message
    place: Any = {name: message.get(name) for name in ("id", "session_id", "role", "timestamp", "hidden")}
    return cast("RedactedMessage", {**place, "content": None})


def iterate(engine: Engine, source: str | None, visible_to: User | None) -> Iterator[ExportedSession]:
    """Exported sessions one by one, in constant memory: oldest first, so that a parent comes before its children."""
    where, params = session_clause(visible_to, source=source)
    with engine.read() as tx:
        ids = tx.rows(f"SELECT s.id FROM sessions s WHERE {where} ORDER BY s.started_at, s.id", params)
    for (session_id,) in ids:
        with engine.read() as tx:
            data = export(tx, session_id, visible_to)
        if data is not None:
            yield data
