"""The lines of transcripts, and how they are made from a session's rows and read back.

Next to the database, one JSON-lines file per session that any tool can read, follow and archive. The first line names the format
and the session; one line per message and a short line per other change follow. docs/format.md specifies each line. The database
is the truth and commits first; a line that is missing after a crash is written when the store is opened next, and a database can
be rebuilt from the files alone.

`lines` makes a transcript from the rows, `differences` compares them; `read_transcript` and the functions after it bring lines
back into a database (for `rebuild` alone). All use one form of a session: its columns, its messages, and a state of tags,
members, carried ranges and rewinds.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from msgspec.json import encode

from hermes.store.engines.base import REDACTED, Tx
from hermes.store.engines.sqlite.schema import SESSION_COLUMNS
from hermes.store.records import codec, message_reading, sessions, titles
from hermes.store.records.rows import MessageRow, SessionEvent
from hermes.store.records.sessions import PROMPT, free_id, keep_prompt, tidy

Entry = dict[str, Any]  # a line: its `type` says which keys it has, see docs/format.md
FORMAT = "hermes-transcript"
VERSION = 1
_ESCAPE = codec.ESCAPE.encode()  # of characters that JSON can not have: lone surrogates
_SAFE = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-.@:+=, ")

_LEFT_OUT = (  # counted again, or of this database alone; the prompt is written as text
    "system_prompt", "system_prompt_hash", "message_count", "tool_call_count", "active_at", "title_seen", "transcript",
    "handoff_requested_at",
)  # fmt: skip
COLUMNS = tuple(name for name in SESSION_COLUMNS if name not in _LEFT_OUT)
_NUMBERS = {name: kind for name, kind in SESSION_COLUMNS.items() if kind.startswith(("INTEGER", "REAL"))}
_STATE = {  # by name, the table and its columns
    "tags": ("session_tags", "tag"),
    "members": ("session_members", "source, user_id"),
    "refs": ("session_refs", "ord, from_session, first_id, last_id, after_id, rewound, born"),
    "rewinds": ("session_rewinds", "batch, cut_id"),
}
_DERIVED = ("id", "first_words", "title_base", "title_no", "purged")
_COMPARED = ("system_prompt", *(name for name in COLUMNS if name not in _DERIVED))
MALFORMED = (AttributeError, KeyError, OverflowError, TypeError, ValueError)  # what values of another type lead to
_PART = 2000  # messages that are in memory at once while a transcript is written: some 5 MB


SessionState = dict[str, list[Any]]  # rows of the tables that are about it, and `hidden`: ids of messages, and theirs
PartialState = SessionState  # as a file has it, or a part of it


def file_name(session_id: str) -> str:
    """The file of a session's transcript; characters that a file name can't have are written %XX."""
    safe = "".join(c if c in _SAFE or c.isalnum() else "".join(f"%{b:02X}" for b in c.encode()) for c in session_id)
    if safe.startswith("."):
        safe = "%2E" + safe[1:]
    if len(safe.encode()) > 200:
        import hashlib

        safe = f"{safe.encode()[:120].decode('utf-8', 'ignore')}~{hashlib.sha256(session_id.encode()).hexdigest()[:32]}"
    return safe + ".jsonl"


# ------------------------------------------------------------------------------------------- lines


def line(entry: Entry) -> bytes:
    """One line of a transcript."""
    try:
        data = encode(entry)
    except (TypeError, ValueError, OverflowError):  # lone surrogates, numbers beyond 64 bits
        data = _ESCAPE
    if _ESCAPE in data:
        data = codec.fit(json.dumps(entry, ensure_ascii=False, separators=(",", ":"))).encode()
    return data + b"\n"


def read(raw: bytes) -> Entry | None:
    """The entry of a line; None for one that is no object, ValueError for no JSON."""
    entry = json.loads(codec.unfit(raw.decode()) if _ESCAPE in raw else raw)
    return entry if isinstance(entry, dict) else None


def entries(path: Path, unread: list[bytes]) -> Iterator[Entry]:
    """The lines of a transcript that can be read; one that is no JSON is added to `unread`."""
    with path.open("rb") as file:
        for raw in filter(bytes.strip, file):
            try:
                entry = read(raw)
            except (TypeError, ValueError, RecursionError):
                unread.append(raw)
                continue
            if entry is not None:
                yield entry


def event(kind: str, **values: Any) -> Entry:
    """A short line for a change that is not a message."""
    return {"type": "event", "event": kind, "at": time.time(), **values}


# ------------------------------------------------------------------------------------------- from rows to lines


def message_entry(message: Mapping[str, Any], files: Sequence[Any] = ()) -> Entry:
    """A decoded message, with its attachments, as a transcript line; empty fields are left out."""
    body = {key: value for key, value in message.items() if value is not None and key != "session_id"}
    if files or message_reading.mentions(message["content"]):
        body["attachments"] = list(files)
    return {"type": "message", "id": message["id"], **body}


def session_columns(tx: Tx, session_id: str) -> dict[str, Any]:
    """A session's own columns, as stored; its system prompt as text."""
    names = ", ".join(f"s.{name}" for name in COLUMNS)
    found = tx.dicts(f"SELECT {names}, {PROMPT} AS system_prompt FROM sessions s WHERE s.id = ?", (session_id,))
    return tidy(found[0]) if found else {}


def session_state(tx: Tx, session_id: str) -> SessionState:
    """The state of a session besides its columns and messages."""
    state: SessionState = {}
    for name, (table, columns) in _STATE.items():
        rows = tx.rows(f"SELECT {columns} FROM {table} WHERE session_id = ? ORDER BY {columns}", (session_id,))
        state[name] = [list(map(codec.restored, row)) for row in rows]
    sql = "SELECT id, hidden FROM messages WHERE session_id = ? AND hidden IS NOT NULL ORDER BY id"
    return {
        **state,
        "tags": [tag for (tag,) in state["tags"]],
        "hidden": [list(row) for row in tx.rows(sql, (session_id,))],
    }


def owners(tx: Tx, session_id: str) -> list[str]:
    """The sessions whose messages a session refers to."""
    sql = "SELECT DISTINCT from_session FROM session_refs WHERE session_id = ? AND from_session <> ?"
    return tx.column(sql, (session_id, session_id))


def successors(tx: Tx, session_id: str, end_reason: str | None) -> dict[str, str | list[str]]:
    """The sessions in which a conversation continues: the one that continues it, and its branches."""
    sql = "SELECT id FROM sessions WHERE parent_session_id = ? AND kind = ? AND purged IS NULL ORDER BY started_at, id"
    continued, branches = (tx.column(sql, (session_id, kind)) for kind in ("compression", "branch"))
    found: dict[str, str | list[str]] = {"branches": branches} if branches else {}
    return {"continued_in": continued[-1], **found} if continued and end_reason == "compression" else found


def own_messages(tx: Tx, session_id: str) -> Iterator[MessageRow]:
    """Every message row a session owns, hidden ones included, read in pieces: it may have a hundred thousand."""
    sql = (
        f"SELECT {message_reading.ROW} FROM messages m WHERE m.session_id = ? AND m.id > ? ORDER BY m.id LIMIT {_PART}"
    )
    last = -1
    while rows := tx.rows(sql, (session_id, last)):
        yield from map(message_reading.decode, rows)
        last = rows[-1][0]


def message(tx: Tx, message_id: int) -> MessageRow:
    """One message row, decoded."""
    (row,) = message_reading.rows_of(tx, message_id)
    return message_reading.decode(row)


def with_attachments(tx: Tx, session_id: str, rows: Iterable[MessageRow]) -> Iterator[Entry]:
    """Messages of a session, each with its attachments, as transcript lines."""
    attached = message_reading.attached(tx, session_id)
    return (message_entry(one, attached.get(one["id"], ())) for one in rows)


def lines(tx: Tx, session_id: str) -> Iterator[Entry]:
    """Every line of a session's transcript, made from its rows.

    A message of the session up to the id `complete_to` that has no line was removed before the file was begun.
    """
    columns = {key: value for key, value in session_columns(tx, session_id).items() if value is not None}
    head = {"type": "session", "format": FORMAT, "version": VERSION, "complete_to": tx.last_number("messages")}
    yield {**head, "session": columns}
    yield from with_attachments(tx, session_id, own_messages(tx, session_id))
    yield from map(sessions.line_of_event, sessions.events_of(tx, session_id))
    state = {**session_state(tx, session_id), **successors(tx, session_id, columns.get("end_reason"))}
    if any(state.values()):
        yield event("state", **state)


def as_read(entry: Entry) -> Entry:
    """An entry as it is read back from its line."""
    return cast("Entry", read(line(entry)))


def differences(tx: Tx, session_id: str, file: ReplayedSession) -> list[str]:
    """How a transcript differs from the one that its session's rows give: [] where it agrees."""
    rows = ReplayedSession(session_id)
    for entry in lines(tx, session_id):
        is_same = "id" in entry and entry == file.messages.get(entry["id"])  # nearly always; reading it back takes long
        rows.apply(entry if is_same else as_read(entry))
    is_damaged = any(raw.rstrip().endswith(b"}") for raw in file.unread)  # a crash would have torn it
    found = ["damaged or doubled lines"] if is_damaged or file.has_doubles or not file.is_begun else []
    ids = rows.messages.keys() | file.messages.keys()
    if differing := sorted(one for one in ids if rows.messages.get(one) != file.messages.get(one)):
        found.append(f"{len(differing)} messages ({differing[0]} …)")
    found += [name for name in _COMPARED if (file.columns.get(name) or None) != (rows.columns.get(name) or None)]
    ours, theirs = ({**one.state, "events": one.events} for one in (rows, file))
    found += [name for name in ours if sorted(map(repr, ours[name])) != sorted(map(repr, theirs[name]))]
    return found


# ------------------------------------------------------------------------------------------- from files to rows


class ReplayedSession:
    """A session as its transcript describes it."""

    def __init__(self, session_id: str) -> None:
        self.columns: dict[str, Any] = {"id": session_id, "source": "unknown"}
        self.messages: dict[int, Entry] = {}
        self.loose: list[Entry] = []  # messages of older files, which have no ids
        self.state: PartialState = {"tags": [], "members": [], "refs": [], "rewinds": [], "hidden": []}
        self.events: list[SessionEvent] = []
        self.unread: list[bytes] = []  # lines that are damaged, or that a crash has torn
        self.has_doubles = False
        self.is_begun = False  # it has a first line, with all columns that are not empty
        self.complete_to = 0  # every own message up to this id that was not removed has a line
        self.redacted: set[int] = set()

    def is_none(self, path: Path) -> bool:
        """Whether the file has no session (it is empty, or another program's), or is a copy of the session's transcript."""
        own = path.with_name(file_name(str(self.columns["id"])))
        is_empty = not self.messages and not self.loose and self.columns["source"] == "unknown"
        return is_empty or (own != path and own.exists())

    def apply(self, entry: Entry) -> None:
        """Apply one line."""
        kind = entry.get("type")
        if kind == "session" and isinstance(entry.get("session"), dict):
            self.columns.update(entry["session"])
            self.is_begun = True
            self.complete_to = int(entry.get("complete_to") or 0)
        elif kind == "event":
            if (happened := sessions.event_of_line(entry)) is not None:
                self.events.append(happened)
            self.columns.update(entry.get("set") or {})
            self.state.update({key: list(entry[key]) for key in self.state if key in entry})
            self.redacted.update(one for one, hidden in entry.get("hidden") or () if hidden == REDACTED)
            for one in entry.get("replaces") or ():  # messages as they are now
                self.messages.pop(one["id"], None)
                self._add(one)
        elif "role" in entry:
            self._add(entry)

    def _add(self, entry: Entry) -> None:
        """Of two lines with one id the first counts; another message is kept apart."""
        if (at := _time(entry.get("timestamp"))) != entry.get("timestamp"):
            entry = {**entry, "timestamp": at}
        if not isinstance(entry.get("id"), int):
            self.loose.append(entry)
            return
        first = self.messages.setdefault(entry["id"], entry)
        if first.get("timestamp") != entry.get("timestamp"):
            self.loose.append(entry)
        elif first is not entry:
            self.has_doubles = True


def _time(value: Any) -> float | None:
    """The time of a message; in older files it may be text. A message without one is still worth having."""
    from datetime import datetime

    try:
        return datetime.fromisoformat(value).timestamp() if isinstance(value, str) else codec.number(value, "REAL")
    except ValueError:
        return None


def read_transcript(path: Path) -> ReplayedSession:
    """A transcript file as a session. Older files have no first line: their name is the session's id."""
    session = ReplayedSession(path.name.removesuffix(".jsonl"))
    for entry in entries(path, session.unread):
        try:
            session.apply(entry)
        except MALFORMED:
            session.unread.append(b"{}")
    times = [m["timestamp"] for m in (*session.messages.values(), *session.loose) if m.get("timestamp")]
    session.columns.setdefault("started_at", min(times, default=path.stat().st_mtime))
    at = next((one["timestamp"] for one in session.loose if one.get("timestamp") is not None), path.stat().st_mtime)
    for one in session.loose:  # one without a time gets that of the line before it, so that it stays in its place
        at = one["timestamp"] = at if one.get("timestamp") is None else one["timestamp"]
    return session


def insert_session(tx: Tx, columns: Mapping[str, Any]) -> None:
    """A session row from stored columns; unknown ones are ignored, missing ones stay empty."""
    from hermes.store.records.titles import split_family

    row = dict[str, Any]({name: columns.get(name) for name in COLUMNS})
    row |= {name: codec.number(row[name], kind) for name, kind in _NUMBERS.items() if name in row}  # it is unchecked
    values = {"source": "unknown", "started_at": 0.0, **{name: one for name, one in row.items() if one is not None}}
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
    sql = f"INSERT INTO sessions({', '.join(names)}) VALUES({', '.join('?' * len(names))})"
    tx.run(sql, [codec.storable(value) if isinstance(value, str) else value for value in values.values()])


def set_state(tx: Tx, session_id: str, state: PartialState) -> None:
    """Tags, members, carried ranges and rewinds as a transcript or an export gives them."""
    for key in _STATE.keys() & state.keys():
        table, names = _STATE[key]
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
