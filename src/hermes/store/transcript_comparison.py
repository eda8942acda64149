"""Compares a session in the database with the same session in its transcript.

The database is authoritative. A difference is *repairable* where its cause is known: a line that fails its checksum is
damaged, a row that can't be read is damaged, a message above every id that was ever given out (or whose id was given
out again) was lost with a damaged log, and a row that was changed with SQL is recorded by the store (`changed_messages`).
Where none of that is known the difference is *undecided*: it is reported, and repair asks which side counts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hermes.errors import StoreCorrupt
from hermes.store import message_reading, session_events, transcript_replay
from hermes.store.attachments import listed
from hermes.store.carried_messages import SHELL
from hermes.store.engines.base import REPLACED, Engine, MessageColumns, Tx
from hermes.store.expected_lines import Attached, expected_lines, message_columns, other_lines
from hermes.store.prompt_files import read_prompt
from hermes.store.transcript import Entry, entries, is_intact
from hermes.store.transcript_replay import SessionState, StateKey, ToldState

if TYPE_CHECKING:
    from hermes.store.rows import MessageRow, SessionEvent

FIELDS = tuple(name for name in message_reading.SHOWN if name not in ("id", "session_id"))
_DERIVED = frozenset(("id", "preview", "title_base", "title_no", "purged"))
COLUMNS = (*(name for name in transcript_replay.COLUMNS if name not in _DERIVED), "system_prompt")
STATE: tuple[StateKey, ...] = ("tags", "members", "refs", "rewinds", "hidden")
_NO_STATE: SessionState = {"tags": [], "members": [], "refs": [], "rewinds": [], "hidden": []}
TELLING = ("role", "content", "timestamp")  # two messages that agree in these are the same message


@dataclass(slots=True)
class TranscriptContent:
    """The content of a transcript, read line by line."""

    session: transcript_replay.ReplayedSession
    begun: bool = False  # it has a first line
    typed: bool = False  # it has lines as this program writes them
    damaged: int = 0  # lines that fail their checksum
    torn: int = 0  # lines that are no JSON at all: a crash may leave one
    again: list[Entry] = field(
        default_factory=list
    )  # further lines of an id that have another time: the id was given twice
    repeated: list[int] = field(default_factory=list)  # ids with the same line twice
    promptless: bool = False  # the prompt it names has no file, or a damaged one


@dataclass(slots=True)
class Comparison:
    """Where a session and its transcript differ."""

    session_id: str
    gone: bool = False  # the transcript file is missing
    damaged: int = 0
    headless: bool = False  # its first line is missing
    repeated: list[int] = field(default_factory=list)
    unlined: list[int] = field(default_factory=list)  # rows without a line
    unreadable: dict[int, Entry | None] = field(default_factory=dict)  # damaged rows, and the line that has them whole
    broken: dict[int, Entry] = field(default_factory=dict)  # rows that differ from their line, not changed with SQL
    lost: list[Entry] = field(default_factory=list)  # messages lost to damage
    astray: dict[int, Entry] = field(default_factory=dict)  # damaged rows stored under another session
    edited: list[int] = field(default_factory=list)  # rows changed with SQL
    removed: list[int] = field(default_factory=list)  # rows deleted with SQL
    unnoted: list[SessionEvent] = field(default_factory=list)  # events without a line
    # undecided:
    moved: dict[int, Entry] = field(default_factory=dict)  # rows stored under another session
    differing: dict[int, Entry] = field(default_factory=dict)
    absent: dict[int, Entry] = field(default_factory=dict)  # lines without a row
    columns: transcript_replay.Columns = field(default_factory=dict)  # what the transcript says of columns that differ
    state: ToldState = field(default_factory=dict)
    events: list[SessionEvent] = field(default_factory=list)  # as the transcript tells them, and the database does not
    edited_lines: dict[int, Entry] = field(default_factory=dict)  # the lines of what was edited
    outdated: bool = False  # columns or state differ, and the transcript is known to be damaged
    renamed: bool = False  # it refers to a deleted session by that session's old id
    promptless: bool = False  # the file of its system prompt is missing or damaged

    def says_something(self) -> bool:
        """Whether there is any difference."""
        return any(getattr(self, name) for name in _DIFFERENCES)

    def repairable(self) -> list[str]:
        """What repair fixes, as text for people."""
        texts = [
            (self.gone, "its transcript is missing"),
            (self.damaged, f"{self.damaged} lines of its transcript are damaged"),
            (self.headless, "the first line of its transcript is missing"),
            (self.repeated, f"{_these(self.repeated)} more than one line"),
            (self.unlined, f"{_these(self.unlined)} no line in the transcript"),
            (self.unreadable, f"{_these(self.unreadable)} a row that can't be read"),
            (self.broken, f"{_these(self.broken)} a damaged row: it is not what was stored"),
            (self.lost, f"{_count(self.lost)} of the transcript lost from the database"),
            (self.astray, f"{_these(self.astray)} a row under a session that is not its own"),
            (self.edited, f"{_these(self.edited)} a row that was changed with SQL; the transcript has the old text"),
            (self.removed, f"{_count(self.removed)} deleted with SQL; the transcript still has the lines"),
            (self.unnoted, f"{_events(self.unnoted)} no line in the transcript"),
            (self.outdated, "its damaged transcript describes the session differently"),
            (self.renamed, "its transcript still names a session that was deleted"),
            (self.promptless, "the file of its system prompt is missing or damaged"),
        ]
        return [text for there, text in texts if there]

    def undecided(self) -> list[str]:
        """What repair can't decide, as text for people."""
        texts = [
            (self.moved, f"{_these(self.moved)} a row under another session"),
            (self.differing, f"{_these(self.differing)} another text in the transcript"),
            (self.absent, f"{_count(self.absent)} of the transcript not in the database (deleted, or lost)"),
            (self.columns, f"the transcript has different values of {', '.join(sorted(self.columns))}"),
            (self.state, f"the transcript has different values of {', '.join(sorted(self.state))}"),
            (self.events, f"{_events(self.events)} a line in the transcript that differs from the database"),
        ]
        return [text for there, text in texts if there]


_DIFFERENCES = tuple(one.name for one in fields(Comparison) if one.name not in ("session_id", "edited_lines"))


def _these(ids: Iterable[int]) -> str:
    some = sorted(ids) or [0]
    return f"message {some[0]} has" if len(some) == 1 else f"{len(some)} messages ({some[0]} …) have"


def _events(some: list[SessionEvent]) -> str:
    return "1 event has" if len(some) == 1 else f"{len(some)} events have"


def _count(some: Any) -> str:
    return "1 message was" if len(some) == 1 else f"{len(some)} messages were"


# Lines that change no message of the file; a file with any other kind is read line by line.
_OF_A_SESSION = frozenset(("type", "format", "version", "session", "crc"))
_OF_AN_EVENT = frozenset(("type", "event", "at", "set", "after", "text", "crc", "continued_in", "branches", *STATE))
_KNOWN = {"session": _OF_A_SESSION, "event": _OF_AN_EVENT}


def _agreeing(session_id: str, entries: list[Entry]) -> TranscriptContent | None:
    """A transcript whose messages are known to agree, by its other lines; None if one of those changes messages."""
    content = TranscriptContent(transcript_replay.ReplayedSession(session_id), typed=True)
    for entry in entries:
        kind = entry.get("type")
        if entry.get("crc") is False or not entry.keys() <= _KNOWN.get(str(kind), frozenset()):
            return None
        content.begun = content.begun or kind == "session"
        content.session.take(entry)
    return content


def read(path: Path, session_id: str) -> TranscriptContent:
    """A transcript without its damaged lines, which are counted and not applied."""
    content = TranscriptContent(transcript_replay.ReplayedSession(session_id))
    torn: list[bytes] = []
    for entry in entries(path, torn):
        if entry.get("crc") is False:
            content.damaged += 1
            continue
        content.begun = content.begun or entry.get("type") == "session"
        content.typed = content.typed or "type" in entry
        first = content.session.messages.get(entry["id"]) if _is_message(entry) else None
        content.session.take(entry)
        if first is not None and entry["id"] in content.session.messages:
            if entry.get("timestamp") == first.get("timestamp"):
                content.repeated.append(entry["id"])
            else:
                content.again.append(entry)
    sealed = sum(1 for raw in torn if is_intact(raw) is False)  # it has a seal, so no crash tore it
    content.damaged, content.torn = content.damaged + sealed, len(torn) - sealed
    return content


def _is_message(entry: Entry) -> bool:
    return "role" in entry and entry.get("type") != "event" and type(entry.get("id")) is int


def same(given: Any, stored: Any) -> bool:
    """Equal after a JSON round trip (it joins the halves of a surrogate pair)."""
    return bool(given == stored or given == json.loads(json.dumps(stored)))


def is_same_message(entry: Entry, stored: Mapping[str, Any]) -> bool:
    """Whether a line and a row are the same message, regardless of their ids."""
    return all(same(entry.get(name), stored.get(name)) for name in TELLING)


def reads_same(entry: Entry, stored: Mapping[str, Any]) -> bool:
    """Whether a line and a row agree in every field of the line."""
    if {**transcript_replay.message_entry(stored), "crc": True} == entry:
        return True
    return all(same(entry.get(name), stored.get(name)) for name in FIELDS)


class _Sessions:
    """The rows needed to compare several sessions, read for all of them at once."""

    def __init__(self, tx: Tx, session_ids: Sequence[str], has_events: bool) -> None:
        chosen = f"IN ({', '.join('?' * len(session_ids))})"
        tables = ("session_tags", "session_members", "session_refs", "session_rewinds")
        parts = [f"SELECT session_id FROM {table} WHERE session_id {chosen}" for table in tables]
        rows = tx.rows(" UNION ".join(parts), [*session_ids] * len(parts))
        self.with_state = {row[0] for row in rows}  # these have state besides their columns and messages
        self.attached: dict[str, Attached] = {}
        if tx.row("SELECT 1 FROM attachments LIMIT 1") is not None:
            for owner, message_id, digest, mime, size in tx.rows(
                "SELECT m.session_id, a.message_id, a.hash, a.mime, a.bytes FROM attachments a"
                f" JOIN messages m ON m.id = a.message_id WHERE m.session_id {chosen} ORDER BY a.message_id, a.hash",
                session_ids,
            ):
                of_message = self.attached.setdefault(owner, {}).setdefault(message_id, [])
                of_message += listed(((digest, mime or "", size or 0),))
        self.events: dict[str, list[SessionEvent]] | None = None
        try:
            self.columns = transcript_replay.columns_of_sessions(tx, session_ids)
            self.events = session_events.of_sessions(tx, session_ids) if has_events else {}
        except (StoreCorrupt, UnicodeDecodeError):
            self.columns = {}  # a damaged row: read session by session to find it


class Comparer:
    """Compares sessions within one consistent view of the database."""

    def __init__(
        self,
        engine: Engine,
        tx: Tx,
        folder_path: Callable[[str], Path],
        session_ids: Sequence[str],
        prompt: Callable[[Path, Any], str | None] = read_prompt,
    ) -> None:
        """`session_ids`: the sessions to compare. `prompt` reads the file of a system prompt."""
        self._tx = tx
        self._has_events = session_events.are_kept(tx)
        self._sessions = _Sessions(tx, session_ids, self._has_events)
        self._path, self._prompt = folder_path, prompt
        self._top = tx.last_number("messages")
        noted = tx.value("SELECT value FROM state_meta WHERE key = 'changes_noted_after'")
        self._noted_after = int(noted) if noted is not None and str(noted).isdigit() else None
        self._changed: set[int] = set()
        if self._noted_after is not None and engine.has_table(tx, "changed_messages"):
            self._changed = {row[0] for row in tx.rows("SELECT id FROM changed_messages")}

    def _is_noted(self, message_id: int) -> bool:
        """Whether the store would have recorded a change of this message with SQL."""
        return self._noted_after is not None and message_id > self._noted_after

    def compare(self, session_id: str, columns: MessageColumns | None = None) -> Comparison | None:
        """Where a session differs from its transcript; None when they agree. `columns`: its messages, if already read."""
        out = Comparison(session_id)
        path = self._path(session_id)
        try:
            content = self._agreeing(path, session_id, columns)
            if content is None:
                content = read(path, session_id)
                self._take_prompt(content, path)
                self._compare_messages(out, content)
            else:
                self._take_prompt(content, path)
        except FileNotFoundError:
            had_one = self._tx.value("SELECT transcript FROM sessions WHERE id = ?", (session_id,))
            out.gone = bool(had_one) or self._is_referred_to(session_id)
            return out if out.gone else None
        self._compare_events(out, content)
        if content.begun:
            shown = columns is not None and columns["hidden"].count(None) == len(columns["hidden"])
            self._compare_columns(out, content, bare=shown and session_id not in self._sessions.with_state)
        out.headless = content.typed and not content.begun
        return out if out.says_something() else None

    def _agreeing(self, path: Path, session_id: str, columns: MessageColumns | None) -> TranscriptContent | None:
        """The transcript, if its message lines are byte for byte those made from the rows; else it is read whole."""
        columns = columns or message_columns(self._tx, session_id)
        lines = None if columns is None else expected_lines(columns, self._sessions.attached.get(session_id, {}))
        entries = None if lines is None else other_lines(path, lines)
        return None if entries is None else _agreeing(session_id, entries)

    def _take_prompt(self, content: TranscriptContent, path: Path) -> None:
        digest = content.session.columns.get("system_prompt_hash")
        if digest is not None:
            text = self._prompt(path.parent, digest)
            content.promptless = text is None
            content.session.columns["system_prompt"] = text

    def _compare_messages(self, out: Comparison, content: TranscriptContent) -> None:
        stored, unreadable = readable_messages(self._tx, out.session_id)
        out.damaged, out.repeated = content.damaged, content.repeated
        for message_id in unreadable:
            out.unreadable[message_id] = content.session.messages.get(message_id)
        self._compare_lines(out, content, stored)
        self._find_absent(out, content, stored)

    def _is_referred_to(self, owner: str) -> bool:
        """Whether a session with a transcript shows messages of this one: only this one's file has them."""
        rows = self._tx.rows("SELECT DISTINCT session_id FROM session_refs WHERE from_session = ?", (owner,))
        return any(self._path(row[0]).exists() for row in rows)

    def _compare_lines(self, out: Comparison, content: TranscriptContent, stored: dict[int, MessageRow]) -> None:
        for message_id, message in stored.items():
            entry = content.session.messages.get(message_id)
            if entry is not None and not content.again and reads_same(entry, message):
                continue
            versions = [] if entry is None else [entry, *(one for one in content.again if one["id"] == message_id)]
            right = next((one for one in versions if reads_same(one, message)), None)
            if right is None and len(versions) > 1:
                right = next((one for one in versions if one.get("timestamp") == message["timestamp"]), None)
            elif right is None and versions:
                right = entry
            out.lost += [one for one in versions if one is not right]
            if right is None:
                out.unlined.append(message_id)
            elif not reads_same(right, message):
                self._judge(out, message_id, right, message)

    def _judge(self, out: Comparison, message_id: int, entry: Entry, message: MessageRow) -> None:
        """Decide why a row and its line differ, and record it."""
        if self._is_earlier_version(entry, message):
            out.unlined.append(message_id)
            return
        ours = self._tx.value("SELECT writer FROM messages WHERE id = ?", (message_id,)) is not None
        if message_id in self._changed or not ours:
            out.edited.append(message_id)
            out.edited_lines[message_id] = entry
        elif self._is_noted(message_id):
            out.broken[message_id] = entry
        else:
            out.differing[message_id] = entry

    def _is_earlier_version(self, entry: Entry, message: MessageRow) -> bool:
        """Whether a line has its message's text before an edit; that text is stored in a separate row."""
        sql = f"SELECT {message_reading.ROW} FROM messages m WHERE m.hidden = {REPLACED} AND m.timestamp = ? AND m.role = ?"
        try:
            rows = [message_reading.decode(row) for row in self._tx.rows(sql, (message["timestamp"], message["role"]))]
        except (StoreCorrupt, UnicodeDecodeError):
            return False
        return any(reads_same(entry, {**row, "id": message["id"]}) for row in rows)

    def _find_absent(self, out: Comparison, content: TranscriptContent, stored: dict[int, MessageRow]) -> None:
        """Lines without a row: lost, deleted, or the row is stored elsewhere."""
        unlined = {message_id: stored[message_id] for message_id in out.unlined}
        for message_id, entry in content.session.messages.items():
            if message_id in stored or message_id in out.unreadable:
                continue
            if any(is_same_message(entry, row) for row in unlined.values()):
                continue  # it is stored under another id; its line is written with the transcript
            holder = self._tx.row("SELECT session_id FROM messages WHERE id = ?", (message_id,))
            if holder is not None and self._is_entry_of(message_id, entry):
                missing = self._tx.row("SELECT 1 FROM sessions WHERE id = ?", (holder[0],)) is None
                if message_id in self._changed and not missing:
                    out.removed.append(message_id)
                elif missing or self._is_noted(message_id):
                    out.astray[message_id] = entry
                else:
                    out.moved[message_id] = entry
            elif holder is not None or message_id > self._top:
                out.lost.append(entry)
            elif message_id in self._changed:
                out.removed.append(message_id)
            else:
                out.absent[message_id] = entry
        out.lost += [one for one in content.again if one["id"] not in stored and one["id"] not in out.unreadable]
        # A line whose id was damaged: its row exists and lacks a line.
        out.lost = [one for one in out.lost if not any(is_same_message(one, row) for row in unlined.values())]

    def _is_entry_of(self, message_id: int, entry: Entry) -> bool:
        try:
            return is_same_message(entry, transcript_replay.message(self._tx, message_id))
        except (StoreCorrupt, UnicodeDecodeError):
            return False

    def _compare_events(self, out: Comparison, content: TranscriptContent) -> None:
        """Compare the events. `after` is left out: message ids may have changed since."""
        known_events = self._sessions.events
        try:
            if known_events is not None:
                stored = known_events.get(out.session_id, [])
            else:
                stored = session_events.of_session(self._tx, out.session_id)
        except (StoreCorrupt, UnicodeDecodeError):
            return  # the damaged row is a separate finding
        if not stored and not content.session.events:
            return
        lines = {event["at"]: event for event in content.session.events}
        known = {event["at"]: event for event in stored}
        out.unnoted = [event for event in stored if event["at"] not in lines]
        for at, event in lines.items():
            if at not in known or any(not same(event[name], known[at][name]) for name in ("kind", "text")):
                out.events.append(event)

    def _was_deleted(self, session_id: Any) -> bool:
        """Whether a session was deleted on purpose: its children have no parent any more."""
        sql = "SELECT 1 FROM audit WHERE session_id = ? AND action = 'delete'"
        return isinstance(session_id, str) and self._tx.row(sql, (session_id,)) is not None

    def _compare_columns(self, out: Comparison, content: TranscriptContent, *, bare: bool) -> None:
        try:
            columns = self._sessions.columns.get(out.session_id) or transcript_replay.session_columns(
                self._tx, out.session_id
            )
            state = _NO_STATE if bare else transcript_replay.session_state(self._tx, out.session_id)
        except (StoreCorrupt, UnicodeDecodeError):
            return  # the damaged row is a separate finding
        found = content.session.columns
        wrong = {
            n: found.get(n) for n in COLUMNS if (found.get(n) or columns[n]) and not same(found.get(n), columns[n])
        }
        if columns["parent_session_id"] is None and self._was_deleted(wrong.get("parent_session_id")):
            del wrong["parent_session_id"]
            out.renamed = True
        out.promptless = content.promptless
        if content.promptless:  # the database has it
            wrong.pop("system_prompt", None)
        beside: ToldState = {}
        for key in STATE:
            tells = content.session.state.get(key, [])
            if not _alike(tells, state[key]):
                beside[key] = tells
            elif key == "refs" and not _alike(tells, state[key], renamed=False):
                out.renamed = True
        if content.damaged or content.torn:
            out.outdated = bool(wrong or beside)
        else:
            out.columns, out.state = wrong, beside


def _alike(given: Any, stored: list[Any], *, renamed: bool = True) -> bool:
    if given == stored:
        return True
    if not isinstance(given, list) or len(given) != len(stored):
        return False
    pairs = zip(sorted(given, key=repr), sorted(stored, key=repr), strict=True)
    return all(one == other or (renamed and _is_renamed(one, other)) for one, other in pairs)


def _is_renamed(told: Any, stored: Any) -> bool:
    """A range of a session that was deleted since: its remaining rows have a new id."""
    if not isinstance(told, list) or len(told) != 7 or len(stored) != 7:
        return False
    told_ord, _, *told_range = told
    stored_ord, owner, *stored_range = stored
    return str(owner).startswith(SHELL) and (told_ord, told_range) == (stored_ord, stored_range)


def readable_messages(tx: Tx, session_id: str) -> tuple[dict[int, MessageRow], list[int]]:
    """A session's own messages that can be read, and the ids of those that can't."""
    try:
        return {one["id"]: one for one in transcript_replay.own_messages(tx, session_id)}, []
    except (StoreCorrupt, UnicodeDecodeError):
        pass
    good: dict[int, MessageRow] = {}
    bad: list[int] = []
    for (message_id,) in tx.rows("SELECT id FROM messages WHERE session_id = ? ORDER BY id", (session_id,)):
        try:
            good[message_id] = transcript_replay.message(tx, message_id)
        except (StoreCorrupt, UnicodeDecodeError):
            bad.append(message_id)
    return good, bad


def confirmed(first: Comparison, second: Comparison | None) -> Comparison | None:
    """The differences that two comparisons of a session agree on; None when there are none."""
    if second is None:
        return None
    out = Comparison(second.session_id)
    for name in _DIFFERENCES:
        before, now = getattr(first, name), getattr(second, name)
        agreed: Any
        if isinstance(now, list):
            agreed = [one for one in now if one in before]
        elif isinstance(now, dict):
            agreed = {key: value for key, value in now.items() if key in before}
        else:  # a flag, or a number of lines
            agreed = min(before, now)
        setattr(out, name, agreed)
    return out if out.repairable() or out.undecided() else None
