"""A session as its transcript tells it: the lines that its rows give, and the rows that its lines give.

`lacking_lines` makes what a transcript lacks; `read_transcript` and the functions after it bring lines back into a database (for
`rebuild` alone). Both use one form of a session: its columns, its messages, and a state of tags, members, carried ranges and
rewinds.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from hermes.store import codec, message_attachments, message_reading, messages, session_events, titles
from hermes.store.engines.base import REDACTED, Engine, Tx
from hermes.store.engines.sqlite.schema import SESSION_COLUMNS
from hermes.store.message_values import make_ready
from hermes.store.prompt_files import PromptFiles, read_prompt
from hermes.store.sessions import free_id, keep_prompt
from hermes.store.transcript import Entry, entries, event, file_name, header, line

if TYPE_CHECKING:
    from hermes.store.rows import MessageRow, SessionEvent

COLUMNS = (
    "id", "source", "user_id", "model", "model_config", "parent_session_id", "started_at", "ended_at", "end_reason",
    "input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens", "reasoning_tokens", "billing_provider",
    "billing_base_url", "billing_mode", "estimated_cost_usd", "actual_cost_usd", "cost_status", "cost_source",
    "pricing_version", "title", "api_call_count", "handoff_state", "handoff_platform", "handoff_error", "kind", "cwd",
    "first_words", "title_base", "title_no", "pinned_at", "archived_at", "trashed_at", "trashed_title", "purged",
    "meta",
)  # fmt: skip
_NUMBERS = {name: kind for name, kind in SESSION_COLUMNS.items() if kind.startswith(("INTEGER", "REAL"))}
_OMITTED = ("session_id",)
_DERIVED = frozenset(("id", "first_words", "title_base", "title_no", "purged"))  # columns that are not compared
MALFORMED = (AttributeError, KeyError, OverflowError, TypeError, ValueError)  # what values of another type lead to
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


Columns = dict[str, Any]  # of a session, by name
ToldState = dict[str, list[Any]]  # the same as a file tells it, or a part of it


def message_entry(message: Mapping[str, Any]) -> Entry:
    """A decoded message as a transcript line; empty fields are left out."""
    body = {key: value for key, value in message.items() if value is not None and key not in _OMITTED}
    return {"type": "message", "id": message["id"], **body}


def session_columns(tx: Tx, session_id: str) -> Columns:
    """A session's own columns, as stored; its system prompt as text."""
    from hermes.store.sessions import PROMPT, tidy

    names = ", ".join(f"s.{name}" for name in COLUMNS)
    found = tx.dicts(f"SELECT {names}, {PROMPT} AS system_prompt FROM sessions s WHERE s.id = ?", (session_id,))
    return tidy(found[0]) if found else {}


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


def lacking_lines(tx: Tx, prompts: PromptFiles, session_id: str, told: ReplayedSession | None) -> Iterator[bytes]:
    """The lines that a transcript lacks: of a new file (`told` is None) all of them."""
    columns = prompts.named(session_columns(tx, session_id))
    state = {**session_state(tx, session_id), **successors(tx, session_id)}
    events = session_events.of_session(tx, session_id)
    if told is None or not told.is_begun:
        known = {key: value for key, value in columns.items() if value is not None}
        yield header(known, tx.last_number("messages"))
    if told is None:
        for part in _own_in_parts(tx, session_id):
            yield b"".join(line(message_entry(one)) for one in with_attachments(tx, session_id, part))
    else:
        found = compare(tx, session_id, told)
        if found.agrees:
            return
        events = [one for one in events if one["at"] not in {known["at"] for known in told.events}]
        yield b"".join(line(found.stored[one]) for one in found.lacking)
        if found.changed:
            yield line(event("edit", replaces=[found.stored[one] for one in found.changed]))
    yield b"".join(line(session_events.line_of(one)) for one in events)
    if told is not None or any(state.values()):  # a new file's first line already has the columns
        yield line(event("state", set=columns, **state))


@dataclass(slots=True)
class Comparison:
    """How a transcript differs from its session's rows."""

    stored: dict[int, Entry]  # the lines that the messages should have
    lacking: list[int]
    extra: list[int]
    changed: list[int]
    other: list[str]  # columns, tags, …

    @property
    def agrees(self) -> bool:
        """Whether nothing differs."""
        return not (self.lacking or self.extra or self.changed or self.other)


def compare(tx: Tx, session_id: str, told: ReplayedSession) -> Comparison:
    """Compare a transcript with its session's rows."""
    own = with_attachments(tx, session_id, own_messages(tx, session_id))
    stored = {one["id"]: message_entry(one) for one in own}
    lines = told.messages
    other = ["damaged or doubled lines"] if told.is_damaged or told.has_doubles or not told.is_begun else []
    for name, value in session_columns(tx, session_id).items():
        is_told = told.columns.get(name)
        if name not in _DERIVED and (is_told or value) and not (is_told == value or is_told == _from_json(value)):
            other.append(name)
    for key, rows in session_state(tx, session_id).items():
        if sorted(told.state.get(key, []), key=repr) != sorted(rows, key=repr):  # type: ignore[call-overload]
            other.append(key)
    events = {(one["at"], one["kind"], one["text"]) for one in session_events.of_session(tx, session_id)}
    if events != {(one["at"], one["kind"], one["text"]) for one in told.events}:
        other.append("events")
    return Comparison(
        stored=stored,
        lacking=sorted(stored.keys() - lines.keys()),
        extra=sorted(lines.keys() - stored.keys()),
        changed=[one for one in stored if one in lines and not same_message(lines[one], stored[one])],
        other=other,
    )


def same_message(told: Entry, stored: Entry) -> bool:
    """Whether a line tells a message as its row has it."""
    return told == stored or _plain(told) == _plain(stored)


def _plain(entry: Entry) -> Any:
    """An entry after a JSON round trip (it joins the halves of a surrogate pair), its attachments in a fixed order."""
    files = sorted(entry.get("attachments") or (), key=lambda one: str(one.get("hash")))
    bare = {name: value for name, value in entry.items() if name not in ("attachments", "type") and value is not None}
    return _from_json({**bare, "attachments": files})


def _from_json(value: Any) -> Any:
    return json.loads(json.dumps(value))


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


# ------------------------------------------------------------------------------------------- from files to rows


class ReplayedSession:
    """A session as its transcript describes it."""

    def __init__(self, session_id: str) -> None:
        self.columns: Columns = {"id": session_id, "source": "unknown"}
        self.messages: dict[int, Entry] = {}
        self.loose: list[Entry] = []  # messages of older files, which have no ids
        self.state: ToldState = {}
        self.events: list[SessionEvent] = []
        self.unread: list[bytes] = []  # lines that are damaged, or that a crash has torn
        self.has_doubles = False
        self.is_ours = False  # it has lines as this program writes them
        self.is_begun = False  # it has a first line, with all columns that are not empty
        self.complete_to = 0  # every own message up to this id that was not removed has a line
        self.edits: dict[int, set[int]] = {}  # by message, the rows with its earlier versions
        self.redacted: set[int] = set()

    @property
    def is_damaged(self) -> bool:
        """Whether it has a damaged line that no crash has torn."""
        return any(raw.rstrip().endswith(b"}") for raw in self.unread)

    @property
    def is_empty(self) -> bool:
        """Whether it tells of no session: an empty file, or another program's."""
        return not self.messages and not self.loose and self.columns["source"] == "unknown"

    def is_copy(self, path: Path) -> bool:
        """Whether this file is a copy of the session's own transcript."""
        own = path.with_name(file_name(str(self.columns["id"])))
        return own != path and own.exists()

    def take(self, entry: Entry) -> None:
        """Apply one line. In older files a time may be text."""
        stamp = entry.get("timestamp")
        if isinstance(stamp, str):
            entry = {**entry, "timestamp": _seconds(stamp)}
        elif stamp is not None and codec.number(stamp, "REAL") is None:  # no time: the message is still worth having
            entry = {**entry, "timestamp": None}
        kind = entry.get("type")
        self.is_ours = self.is_ours or kind is not None
        if kind == "session" and isinstance(entry.get("session"), dict):
            self.columns.update(entry["session"])
            self.is_begun = True
            self.complete_to = entry["complete_to"] if isinstance(entry.get("complete_to"), int) else 0
        elif kind == "event":
            if (happened := session_events.told_by(entry)) is not None:
                self.events.append(happened)
            self.columns.update(entry.get("set") or {})
            self.state.update({k: entry[k] for k in ("tags", "members", "refs", "rewinds", "hidden") if k in entry})
            self.redacted.update(one for one, hidden in entry.get("hidden") or () if hidden == REDACTED)
            self._revise(entry)
        elif "role" in entry:
            self._take_message(entry)

    def _revise(self, entry: Entry) -> None:
        """Messages whose text was changed: `replaces` has them as they are now, `keeps` as they were."""
        kept = _messages_in(entry, "keeps")
        for one in _messages_in(entry, "replaces"):
            self.messages[one["id"]] = one
            self.edits.setdefault(one["id"], set()).update(was["id"] for was in kept)
        for one in kept:
            self._take_message(one)

    def _take_message(self, entry: Entry) -> None:
        """Of two lines with one id the first counts; another message is kept apart."""
        if not isinstance(entry.get("id"), int):
            self.loose.append(entry)
            return
        first = self.messages.setdefault(entry["id"], entry)
        if first.get("timestamp") != entry.get("timestamp"):
            self.loose.append(entry)
        elif first is not entry:
            self.has_doubles = True


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
    for entry in entries(path, session.unread):
        try:
            session.take(entry)
        except MALFORMED:
            session.unread.append(b"{}")
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


def state_here(session_id: str, state: ToldState, ids: dict[str, dict[int, int]]) -> ToldState:
    """A transcript's state with the ids and owners that the messages have in this database."""
    own = ids[session_id]

    def new(owner: str, old: int) -> int:
        return ids.get(owner, {}).get(old, old)

    out = dict(state)
    if "refs" in state:
        out["refs"] = []
        for ord_, owner, first, last, after, *rest in state["refs"]:
            out["refs"].append([ord_, owner, new(owner, first), new(owner, last), own.get(after, after), *rest])
        carried = {old: number for _, owner, *_ in state["refs"] for old, number in ids.get(owner, {}).items()}
        own = {**carried, **own}
    if "rewinds" in state:
        out["rewinds"] = [[batch, own.get(cut, cut)] for batch, cut in state["rewinds"]]
    if "hidden" in state:
        out["hidden"] = [[new(session_id, old), hidden] for old, hidden in state["hidden"]]
    return out


def cut_loose_parents(tx: Tx) -> int:
    """Remove links to parents that do not exist; returns how many."""
    return tx.run(
        "UPDATE sessions SET parent_session_id = NULL WHERE parent_session_id IS NOT NULL AND NOT EXISTS"
        " (SELECT 1 FROM sessions p WHERE p.id = sessions.parent_session_id)"
    )


def insert_session(tx: Tx, columns: Mapping[str, Any]) -> None:
    """A session row from stored columns; unknown ones are ignored, missing ones stay empty."""
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
    free_id(tx, values["id"])
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
