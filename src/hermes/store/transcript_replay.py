"""Synchronises transcripts and database, in both directions.

`fill_in` writes what a transcript lacks (after a crash, or for rows another program wrote); `replay` reads transcripts
into a database. Both use one form of a session: its columns, its messages, and a state of tags, members,
carried ranges and rewinds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from hermes.errors import InvalidInput
from hermes.store import codec, message_attachments, message_reading, messages, session_events, titles
from hermes.store.engines.base import REDACTED, REPLACED, Engine, Tx
from hermes.store.engines.sqlite.schema import SESSION_COLUMNS
from hermes.store.message_values import make_ready
from hermes.store.prompt_files import read_prompt
from hermes.store.sessions import keep_prompt
from hermes.store.transcript import Entry, Journal, entries, event, header, line

if TYPE_CHECKING:
    from hermes.store.rows import MessageRow, SessionEvent

COLUMNS = (
    "id", "source", "user_id", "model", "model_config", "parent_session_id", "started_at", "ended_at", "end_reason",
    "input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens", "reasoning_tokens", "billing_provider",
    "billing_base_url", "billing_mode", "estimated_cost_usd", "actual_cost_usd", "cost_status", "cost_source",
    "pricing_version", "title", "api_call_count", "handoff_state", "handoff_platform", "handoff_error", "kind", "cwd",
    "preview", "title_base", "title_no", "pinned_at", "archived_at", "trashed_at", "trashed_title", "purged",
    "meta",
)  # fmt: skip
_NUMBERS = {name: kind for name, kind in SESSION_COLUMNS.items() if kind.startswith(("INTEGER", "REAL"))}
_OMITTED = ("session_id",)
_PART = 2000  # messages that are in memory at once while a transcript is written: some 5 MB


class SessionState(TypedDict):
    """What belongs to a session beside its columns and messages: rows of the tables that are about it."""

    tags: list[str]
    members: list[list[str]]
    """source, user_id"""
    refs: list[list[Any]]
    """ord, from_session, first_id, last_id, after_id, rewound, born"""
    rewinds: list[list[int]]
    """batch, cut_id"""
    hidden: list[list[int]]
    """The id of a message, and its `hidden`."""


StateKey = Literal["tags", "members", "refs", "rewinds", "hidden"]
Columns = dict[str, Any]  # of a session, by name
ToldState = dict[str, list[Any]]  # the same as a file tells it, or a part of it


def message_entry(message: Mapping[str, Any]) -> Entry:
    """A decoded message as a transcript line; empty fields are left out."""
    body = {key: value for key, value in message.items() if value is not None and key not in _OMITTED}
    return {"type": "message", "id": message["id"], **body}


def session_columns(tx: Tx, session_id: str) -> Columns:
    """A session's own columns, as stored; its system prompt as text."""
    return columns_of_sessions(tx, [session_id]).get(session_id, {})


def columns_of_sessions(tx: Tx, session_ids: Sequence[str]) -> dict[str, Columns]:
    """The same for several sessions, by id."""
    from hermes.store.sessions import PROMPT, tidy

    names = ", ".join(f"s.{name}" for name in COLUMNS)
    chosen = ", ".join("?" * len(session_ids))
    sql = f"SELECT {names}, {PROMPT} AS system_prompt FROM sessions s WHERE s.id IN ({chosen})"
    return {row["id"]: row for row in map(tidy, tx.dicts(sql, session_ids))}


def session_state(tx: Tx, session_id: str) -> SessionState:
    """The state of a session besides its columns and messages."""
    return {
        "tags": [codec.restored(tag) for (tag,) in tx.rows(
            "SELECT tag FROM session_tags WHERE session_id = ? ORDER BY tag", (session_id,))],
        "members": [list(map(codec.restored, row)) for row in tx.rows(
            "SELECT source, user_id FROM session_members WHERE session_id = ? ORDER BY source, user_id", (session_id,))],
        "refs": [list(row) for row in tx.rows(
            "SELECT ord, from_session, first_id, last_id, after_id, rewound, born FROM session_refs WHERE session_id = ?"
            " ORDER BY ord", (session_id,))],
        "rewinds": [list(row) for row in tx.rows(
            "SELECT batch, cut_id FROM session_rewinds WHERE session_id = ? ORDER BY batch", (session_id,))],
        "hidden": [list(row) for row in tx.rows(
            "SELECT id, hidden FROM messages WHERE session_id = ? AND hidden IS NOT NULL ORDER BY id", (session_id,))],
    }  # fmt: skip


def owners(tx: Tx, session_id: str) -> list[str]:
    """The sessions whose messages a session refers to."""
    sql = "SELECT DISTINCT from_session FROM session_refs WHERE session_id = ? AND from_session <> ?"
    return [row[0] for row in tx.rows(sql, (session_id, session_id))]


def successors(tx: Tx, session_id: str) -> dict[str, str | list[str]]:
    """Where a conversation continues from here: the session that continues it, and its branches."""
    rows = tx.rows(
        "SELECT c.id, c.kind, p.end_reason FROM sessions c JOIN sessions p ON p.id = c.parent_session_id WHERE p.id = ?"
        " AND c.kind IN ('compression', 'branch') AND c.purged IS NULL ORDER BY c.started_at, c.id",
        (session_id,),
    )
    found: dict[str, str | list[str]] = {}
    if continued := [child for child, kind, ended in rows if kind == ended == "compression"]:
        found["continued_in"] = continued[-1]
    if branches := [child for child, kind, _ in rows if kind == "branch"]:
        found["branches"] = branches
    return found


def own_messages(tx: Tx, session_id: str) -> list[MessageRow]:
    """Every message row a session owns, hidden ones included."""
    rows = tx.rows(f"SELECT {message_reading.ROW} FROM messages m WHERE m.session_id = ? ORDER BY m.id", (session_id,))
    return [message_reading.decode(row) for row in rows]


def _own_in_parts(tx: Tx, session_id: str) -> Iterator[list[MessageRow]]:
    """The same a few thousand at a time: a session may have been imported with a hundred thousand."""
    sql = (
        f"SELECT {message_reading.ROW} FROM messages m WHERE m.session_id = ? AND m.id > ? ORDER BY m.id LIMIT {_PART}"
    )
    last = -1
    while rows := [message_reading.decode(row) for row in tx.rows(sql, (session_id, last))]:
        yield rows
        last = rows[-1]["id"]


def message(tx: Tx, message_id: int) -> MessageRow:
    """One message row, decoded."""
    row = tx.row(f"SELECT {message_reading.ROW} FROM messages m WHERE m.id = ?", (message_id,))
    assert row is not None
    return message_reading.decode(row)


def fill_in(tx: Tx, journal: Journal, session_id: str, *, rewrite: bool = False) -> bool:
    """Append to a transcript what it lacks (or rewrite it); False when it could not be written."""
    columns = session_columns(tx, session_id)
    if not columns:
        return True

    def missing(path: Path) -> bytes:
        present: set[int] = set()
        noted: set[float] = set()  # events
        started = False
        for entry in entries(path):
            if (happened := session_events.told_by(entry)) is not None:
                noted.add(happened["at"])
            started = started or entry.get("type") == "session"
            if isinstance(entry.get("id"), int):
                present.add(entry["id"])
            present.update(one["id"] for one in _messages_in(entry, "keeps"))
        told = journal.prompts.named(columns)
        out = [] if started else [header({key: value for key, value in told.items() if value is not None})]
        changed: list[Entry] = []
        # In a file that has lines already, any message may be the earlier version of any other.
        for part in [own_messages(tx, session_id)] if present else _own_in_parts(tx, session_id):
            rows = with_attachments(tx, session_id, part)
            out += [line(message_entry(one)) for one in rows if one["id"] not in present]
            changed += [message_entry(one) for one in _changed_since(tx, session_id, rows, present)]
        if changed:
            out.append(line(event("edit", replaces=changed)))
        out += [
            line(session_events.line_of(one))
            for one in session_events.of_session(tx, session_id)
            if one["at"] not in noted
        ]
        state = {**session_state(tx, session_id), **successors(tx, session_id)}
        if started or any(state.values()):  # a new file's first line already has the columns
            out.append(line(event("state", set=told, **state)))
        return b"".join(out)

    return journal.revise(session_id, missing, rewrite=rewrite)


def with_attachments(tx: Tx, session_id: str, rows: Sequence[MessageRow]) -> list[Entry]:
    """The same messages, each with its attachments as a transcript line lists them."""
    attached = message_attachments.attached(tx, session_id)
    out: list[Entry] = []
    for one in rows:
        entry: Entry = {**one}
        if one["id"] in attached or message_attachments.mentions(one["content"]):
            entry["attachments"] = attached.get(one["id"], [])
        out.append(entry)
    return out


def _changed_since(tx: Tx, session_id: str, rows: list[Entry], present: set[int]) -> list[Entry]:
    """Messages whose text was changed after their line was written: their earlier version has no line yet."""
    earlier = {
        row[0]
        for row in tx.rows(f"SELECT id FROM messages WHERE session_id = ? AND hidden = {REPLACED}", (session_id,))
    }
    untold = {(one["timestamp"], one["role"]) for one in rows if one["id"] in earlier - present}
    return [one for one in rows if one["id"] in present - earlier and (one["timestamp"], one["role"]) in untold]


# ------------------------------------------------------------------------------------------- from files to rows


class ReplayedSession:
    """A session as its transcript describes it."""

    def __init__(self, session_id: str) -> None:
        self.columns: Columns = {"id": session_id, "source": "unknown"}
        self.messages: dict[int, Entry] = {}
        self.loose: list[Entry] = []  # messages of older files, which have no ids
        self.state: ToldState = {}
        self.events: list[SessionEvent] = []

    def take(self, entry: Entry) -> None:
        """Apply one line. In older files a time may be text."""
        stamp = entry.get("timestamp")
        if isinstance(stamp, str):
            entry = {**entry, "timestamp": _seconds(stamp)}
        elif stamp is not None and codec.number(stamp, "REAL") is None:  # no time: the message is still worth having
            entry = {**entry, "timestamp": None}
        kind = entry.get("type")
        if kind == "session" and isinstance(entry.get("session"), dict):
            self._set(entry["session"])
        elif kind == "event":
            if (happened := session_events.told_by(entry)) is not None:
                self.events.append(happened)
            self._set(entry.get("set") or {})
            self.state.update({k: entry[k] for k in ("tags", "members", "refs", "rewinds", "hidden") if k in entry})
            self._revise(entry)
            removed = entry.get("removed")
            if removed == "all":
                self.messages.clear()
            elif isinstance(removed, list):
                for message_id in removed:
                    self.messages.pop(message_id, None)
        elif "role" in entry:
            self._take_message(entry)

    def _revise(self, entry: Entry) -> None:
        """Messages whose text was changed: `replaces` has them as they are now, `keeps` as they were."""
        crc = {"crc": entry["crc"]} if "crc" in entry else {}
        for one in _messages_in(entry, "replaces"):
            if one["id"] in self.messages:
                self.messages[one["id"]] = {**one, **crc}
            else:
                self._take_message({**one, **crc})
        for one in _messages_in(entry, "keeps"):
            self._take_message({**one, **crc})

    def _take_message(self, entry: Entry) -> None:
        """If an id occurs twice the first line counts, but a damaged line (perhaps in its id) never replaces another."""
        if not isinstance(entry.get("id"), int):
            self.loose.append(entry)
            return
        first = self.messages.setdefault(entry["id"], entry)
        damaged, first_damaged = entry.get("crc") is False, first.get("crc") is False
        if first is not entry and damaged != first_damaged:
            self.messages[entry["id"]] = first if damaged else entry
            self.loose.append(entry if damaged else first)

    def _set(self, columns: Mapping[str, Any]) -> None:
        """The prompt is given as text (version 1) or by its hash: the last line counts."""
        for told, other in (("system_prompt", "system_prompt_hash"), ("system_prompt_hash", "system_prompt")):
            if told in columns:
                self.columns.pop(other, None)
        self.columns.update(columns)


def _messages_in(entry: Entry, key: str) -> list[Entry]:
    """The messages that an event lists."""
    told = entry.get(key)
    return (
        [one for one in told if isinstance(one, dict) and isinstance(one.get("id"), int) and "role" in one]
        if isinstance(told, list)
        else []
    )


def _seconds(text: str) -> float | None:
    from datetime import datetime

    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return None


def read_transcript(path: Path) -> ReplayedSession:
    """A transcript file as a session. Older files have no first line: their name is the session's id."""
    session = ReplayedSession(path.name.removesuffix(".jsonl"))
    for entry in entries(path):
        session.take(entry)
    if session.columns.get("system_prompt_hash") is not None:
        session.columns["system_prompt"] = read_prompt(path.parent, session.columns["system_prompt_hash"])
    if "started_at" not in session.columns:
        times = [m["timestamp"] for m in (*session.messages.values(), *session.loose) if m.get("timestamp")]
        session.columns["started_at"] = min(times, default=path.stat().st_mtime)
    _date(session.loose, path.stat().st_mtime)
    return session


def _date(loose: list[Entry], otherwise: float) -> None:
    """A message without a time gets that of the line before it (or of the first that has one), so that it stays in its place."""
    at = next((one["timestamp"] for one in loose if one.get("timestamp") is not None), otherwise)
    for number, one in enumerate(loose):
        if one.get("timestamp") is None:
            loose[number] = {**one, "timestamp": at}
        at = loose[number]["timestamp"]


def replay(engine: Engine, folder: Path, *, beside: bool = False) -> dict[str, int]:
    """Read all transcripts of a folder into the (empty or partial) database; existing rows stay.

    `beside`: the folder belongs to the database, so these are its sessions' transcripts from now on.
    """
    counts = {"sessions": 0, "messages": 0, "skipped": 0}
    done: dict[str, tuple[ToldState, dict[int, int]]] = {}  # of each its state, and the ids of its messages here
    for path in sorted(folder.glob("*.jsonl")):
        session = read_transcript(path)
        if not session.messages and not session.loose and session.columns["source"] == "unknown":
            counts["skipped"] += 1
            continue
        try:
            if session.events:
                session_events.prepare(engine)
            with engine.write() as tx:
                if tx.row("SELECT 1 FROM sessions WHERE id = ?", (session.columns["id"],)) is None:
                    insert_session(tx, session.columns)
                    if beside:
                        tx.run("UPDATE sessions SET transcript = 1 WHERE id = ?", (session.columns["id"],))
                    counts["sessions"] += 1
                given = insert_messages(engine, tx, session)
                counts["messages"] += len(given)
                if session.events:
                    session_events.bring_in(tx, session.columns["id"], session.events, given)
                done[session.columns["id"]] = session.state, given
        except InvalidInput:  # an invalid file must not stop the others
            counts["skipped"] += 1
    with engine.write() as tx:
        cut_loose_parents(tx)
        ids = {session_id: given for session_id, (_, given) in done.items()}
        for session_id, (state, _) in done.items():  # now that every session they may refer to exists
            set_state(tx, session_id, state_here(tx, session_id, state, ids))
        for session_id in done:
            messages.recount(tx, session_id)
    return counts


def state_here(tx: Tx, session_id: str, state: ToldState, ids: dict[str, dict[int, int]]) -> ToldState:
    """A transcript's state with the ids and owners that the messages have in this database."""
    own = ids[session_id]

    def new(owner: str, old: int) -> int:
        return ids.get(owner, {}).get(old, old)

    out = dict(state)
    if "refs" in state:
        out["refs"] = []
        for ord_, owner, first, last, after, *rest in state["refs"]:
            place = _owner(tx, owner, first, last, ids), new(owner, first), new(owner, last)
            out["refs"].append([ord_, *place, own.get(after, after), *rest])
        carried = {old: number for _, owner, *_ in state["refs"] for old, number in ids.get(owner, {}).items()}
        own = {**carried, **own}
    if "rewinds" in state:
        out["rewinds"] = [[batch, own.get(cut, cut)] for batch, cut in state["rewinds"]]
    if "hidden" in state:
        out["hidden"] = [[new(session_id, old), hidden] for old, hidden in state["hidden"]]
    return out


def _owner(tx: Tx, owner: str, first: int, last: int, ids: dict[str, dict[int, int]]) -> str:
    """The owner of a range. Files written before a deletion rewrote the ranges name the owner by its old id."""
    given = ids.get(owner, {})
    here = "SELECT 1 FROM messages WHERE session_id = ? AND id BETWEEN ? AND ? LIMIT 1"
    if tx.row(here, (owner, given.get(first, first), given.get(last, last))) is not None:
        return owner
    shells = tx.rows(
        "SELECT DISTINCT m.session_id FROM messages m JOIN sessions s ON s.id = m.session_id"
        " WHERE m.id BETWEEN ? AND ? AND s.purged IS NOT NULL",
        (first, last),
    )
    return str(shells[0][0]) if len(shells) == 1 else owner


def cut_loose_parents(tx: Tx) -> int:
    """Remove links to parents that do not exist; returns how many."""
    return tx.run(
        "UPDATE sessions SET parent_session_id = NULL WHERE parent_session_id IS NOT NULL AND NOT EXISTS"
        " (SELECT 1 FROM sessions p WHERE p.id = sessions.parent_session_id)"
    )


def insert_session(tx: Tx, columns: Mapping[str, Any]) -> None:
    """A session row from stored columns; unknown ones are ignored, missing ones stay empty."""
    from hermes.store import codec
    from hermes.store.title_rules import split_family

    values = {name: columns[name] for name in COLUMNS if columns.get(name) is not None}
    for name in values.keys() & _NUMBERS.keys():  # values from a file are unchecked
        values[name] = codec.number(values[name], _NUMBERS[name])
    values = {name: value for name, value in values.items() if value is not None}
    values["transcript"] = None
    values.setdefault("source", "unknown")
    values.setdefault("started_at", 0.0)
    for name in ("model_config", "meta"):
        if isinstance(values.get(name), (dict, list)):
            values[name] = codec.to_json(values[name])
    values["system_prompt_hash"] = keep_prompt(tx, columns.get("system_prompt"))
    if values.get("title") is not None:
        if tx.row("SELECT 1 FROM sessions WHERE title = ?", (values["title"],)) is not None:
            values["title"] = titles.next_title(tx, values["title"])
            values.pop("title_base", None)
        if values.get("title_base") is None:
            values["title_base"], values["title_no"] = split_family(values["title"])
        values["title_seen"] = values["title"]
    names = list(values)
    tx.run(
        f"INSERT INTO sessions({', '.join(names)}) VALUES({', '.join('?' * len(names))})",
        [codec.storable(value) if isinstance(value, str) else value for value in values.values()],
    )


def insert_messages(engine: Engine, tx: Tx, session: ReplayedSession) -> dict[int, int]:
    """Store the missing messages of a replayed session; returns the id of each.

    They keep their ids, unless another session uses one of them: then all get new ones, in their order.
    """
    session_id, given = session.columns["id"], dict[int, int]()
    holders = {i: tx.value("SELECT session_id FROM messages WHERE id = ?", (i,)) for i in session.messages}
    kept = all(holder in (None, session_id) for holder in holders.values())
    if kept and session.messages:
        tx.reserve(max(session.messages))
    for message_id, entry in sorted(session.messages.items()):
        if holders[message_id] == session_id:
            continue
        ready = make_ready(entry, mask=None, lift=None)
        given[message_id] = messages.insert(tx, session_id, ready, message_id if kept else None)
    for number, entry in enumerate(session.loose):
        given[-1 - number] = messages.insert(tx, session_id, make_ready(entry, mask=None, lift=None), None)
    engine.fulltext.index_now(tx, list(given.values()))
    return given


def set_state(tx: Tx, session_id: str, state: ToldState) -> None:
    """Tags, members, carried ranges and rewinds as a transcript or an export gives them."""
    tables = {
        "tags": ("session_tags", "tag"),
        "members": ("session_members", "source, user_id"),
        "refs": ("session_refs", "ord, from_session, first_id, last_id, after_id, rewound, born"),
        "rewinds": ("session_rewinds", "batch, cut_id"),
    }
    for key, (table, names) in tables.items():
        if key not in state:
            continue
        tx.run(f"DELETE FROM {table} WHERE session_id = ?", (session_id,))
        marks = ", ".join("?" * (names.count(",") + 2))
        for row in state[key]:
            values = row if isinstance(row, list) else [row]
            tx.run(f"INSERT INTO {table}(session_id, {names}) VALUES({marks})", [session_id, *values])
    for message_id, hidden in state.get("hidden", ()):
        tx.run(
            "UPDATE messages SET hidden = ? WHERE id = ? AND session_id = ?"
            f" AND (hidden IS NULL OR hidden > {REDACTED} OR hidden = ?)",  # redacted messages are never shown again
            (hidden, message_id, session_id, hidden),
        )
