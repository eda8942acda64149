"""Checks that a store is complete and consistent.

`check` reads the file, every value of every row, the index, the references, the counters, the attachments and the
transcripts. Other processes may write meanwhile: findings that a write could explain are checked again first.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from hermes.errors import StoreCorrupt
from hermes.store import codec, message_values, sessions, transcript_replay
from hermes.store.attachments import GONE, Attachments, noted
from hermes.store.carried_messages import SHELL
from hermes.store.engines.base import Engine, MessageColumns, Progress, Row, Tx, finding
from hermes.store.prompt_files import read_prompt
from hermes.store.retention import SHREDDING, half_deleted, loose_shells
from hermes.store.transcript import Entry
from hermes.store.transcript_comparison import Comparer, Comparison, confirmed, is_same_message, read
from hermes.store.transcript_writer import TranscriptWriter

if TYPE_CHECKING:
    from hermes.store.rows import Finding

_LOOKS = (0.0, 0.1, 0.4, 1.0)  # seconds before each further check while others write: a line follows its commit
_IN_LIST = 500  # sessions queried in one statement
_AT_ONCE = 32  # sessions compared within one view of the database
_LIST = msgspec.json.Decoder(list[msgspec.Raw])
UNDECIDED = "transcript-differs"
DECIDE = "`hermes sessions repair --from-transcripts` uses the transcript's version, `--from-database` the database's"


def check(
    engine: Engine, scribe: TranscriptWriter, attachments: Attachments, progress: Progress | None = None
) -> list[Finding]:
    """Everything that is wrong, [] when the store is sound. `progress` is called with (subject, done, total)."""
    found: list[Finding] = []
    looked = Looked(engine, scribe)
    try:
        found = engine.problems(progress, looked.at)
        if any(one["kind"] == "corruption" for one in found):
            return found
        with engine.read() as tx:
            found += [
                *_orphans(tx),
                *looked.miscounted,
                *_counters(tx, looked.done),
                *_prompts(tx),
                *_half_shredded(tx),
            ]
        found += _cut_short(engine, scribe)
        found += _attachments(engine, attachments, progress)
        found += [one for one, _ in transcripts(engine, scribe, progress, looked)]
    except StoreCorrupt as error:
        if not any(one["kind"] == "damaged-row" for one in found):  # else that is the cause
            found.append(finding("corruption", "file", str(error)))
    return found


def _orphans(tx: Tx) -> list[Finding]:
    found = [
        finding("orphan-messages", f"session {session_id}", f"{count} messages of a session that does not exist")
        for session_id, count in tx.rows(
            "SELECT m.session_id, count(*) FROM messages m LEFT JOIN sessions s ON s.id = m.session_id WHERE s.id IS NULL"
            " GROUP BY m.session_id"
        )
    ]
    found += [
        finding("orphan-parent", f"session {session_id}", f"its parent {parent} does not exist")
        for session_id, parent in tx.rows(
            "SELECT s.id, s.parent_session_id FROM sessions s LEFT JOIN sessions p ON p.id = s.parent_session_id"
            " WHERE s.parent_session_id IS NOT NULL AND p.id IS NULL"
        )
    ]
    for table in ("session_refs", "session_tags", "session_members", "session_rewinds"):
        found += [
            finding("orphan-rows", f"session {session_id}", f"rows of {table} for a session that does not exist")
            for (session_id,) in tx.rows(
                f"SELECT DISTINCT x.session_id FROM {table} x LEFT JOIN sessions s ON s.id = x.session_id WHERE s.id IS NULL"
            )
        ]
    return found


def _cut_short(engine: Engine, scribe: TranscriptWriter) -> list[Finding]:
    """Deletions that were interrupted, not those in progress."""
    with engine.read() as tx:
        found = _half_deleted(tx)
    for pause in _LOOKS[1:]:
        if not found or not scribe.journal.is_busy():
            break
        time.sleep(pause)
        with engine.read() as tx:
            again = _half_deleted(tx)
        found = [one for one in found if one in again]
    return found


def _half_deleted(tx: Tx) -> list[Finding]:
    return [
        finding("half-deleted", f"session {session_id}", "its deletion was interrupted")
        for session_id in dict.fromkeys((*half_deleted(tx), *loose_shells(tx)))
    ]


def _half_shredded(tx: Tx) -> list[Finding]:
    """Shreddings that were cut short, or that something was in the way of."""
    return [
        finding(
            "half-shredded",
            f"session {session_id}",
            f"files may still hold deleted text of it; `hermes sessions delete --shred {session_id}` removes it",
        )
        for session_id in (
            str(row[0]).removeprefix(SHREDDING)
            for row in tx.rows("SELECT key FROM state_meta WHERE key LIKE ? ORDER BY key", (SHREDDING + "%",))
        )
    ]


def _prompts(tx: Tx) -> list[Finding]:
    found = []
    for session_id, digest, text in tx.rows(
        f"SELECT s.id, s.system_prompt_hash, {sessions.PROMPT} FROM sessions s WHERE s.system_prompt_hash IS NOT NULL"
        " AND s.system_prompt IS NULL"
    ):
        raw = text if isinstance(text, bytes) else (text or "").encode("utf-8", "surrogatepass")
        if hashlib.sha256(raw).hexdigest() != digest:
            found.append(finding("prompt", f"session {session_id}", "its system prompt is not the one that was stored"))
    return found


def _counters_of(tx: Tx, session_ids: Sequence[str]) -> list[Row]:
    return tx.rows(
        "SELECT id, coalesce(message_count, 0), coalesce(tool_call_count, 0), last_active FROM sessions"
        f" WHERE purged IS NULL AND id IN ({', '.join('?' * len(session_ids))})",
        session_ids,
    )


def _counters(tx: Tx, done: set[str]) -> list[Finding]:
    """Sessions with wrong counters, without those that were already checked."""
    found = []
    left = [row[0] for row in tx.rows("SELECT id FROM sessions WHERE purged IS NULL") if row[0] not in done]
    for start in range(0, len(left), _IN_LIST):
        some = left[start : start + _IN_LIST]
        rows = tx.rows(
            f"SELECT session_id, hidden, tool_calls, timestamp FROM messages WHERE session_id IN ({', '.join('?' * len(some))})",
            some,
        )
        own: dict[str, list[Row]] = {}
        for session_id, *counted in rows:
            own.setdefault(session_id, []).append(tuple(counted))
        for session_id, *counters in _counters_of(tx, some):
            columns = zip(*own.get(session_id, ()), strict=True)
            right = _counted(dict(zip(("hidden", "tool_calls", "timestamp"), columns, strict=False)))
            found += _miscounted(session_id, counters, right)
    return found


def _counted(columns: MessageColumns) -> list[Any]:
    """The right counters of a session: the messages it shows, their tool calls, and the time of the last one."""
    if not columns:
        return [0, 0, None]
    hidden, calls, stamps = columns["hidden"], columns["tool_calls"], columns["timestamp"]
    count = hidden.count(None)
    if count != len(hidden):
        calls, stamps = ([v for v, by in zip(column, hidden, strict=True) if by is None] for column in (calls, stamps))
    made = sum(map(_calls_in, [text for text in calls if text is not None]))
    return [count, made, max(stamps, default=None)]


def _calls_in(text: Any) -> int:
    try:
        return len(_LIST.decode(text))  # only the length of the list matters
    except (msgspec.DecodeError, UnicodeEncodeError):
        return message_values.count_calls(codec.restored(text))


def _miscounted(session_id: str, counters: Sequence[Any], right: list[Any]) -> list[Finding]:
    if list(counters) == right:
        return []
    return [finding("counters", f"session {session_id}", f"the row has {list(counters)}, its messages give {right}")]


def _attachments(engine: Engine, attachments: Attachments, progress: Progress | None) -> list[Finding]:
    """Files that are missing or whose bytes do not match their name, which is their SHA-256.

    Attachments that an import did not bring are recorded and no finding. In stores older than that record: without any
    attachments folder none was ever stored.
    """
    with engine.read() as tx:
        had_some, absent = noted(tx)
        rows = tx.rows("SELECT hash, max(bytes), min(message_id) FROM attachments GROUP BY hash ORDER BY hash")
    found = []
    may_be_gone = had_some or (bool(rows) and attachments.any_here())
    for number, (digest, size, message_id) in enumerate(rows):
        detail = attachments.damage(digest)
        if detail == GONE and (
            not size or not may_be_gone or digest in absent
        ):  # a text may name one that was never stored here
            detail = None
        if detail is not None:
            with engine.read() as tx:  # it may have been deleted meanwhile
                if tx.row("SELECT 1 FROM attachments WHERE hash = ?", (digest,)) is None:
                    continue
            found.append(finding("attachment", f"attachment {digest}", f"{detail} (of message {message_id})"))
        if progress is not None:
            progress("attachments", number + 1, len(rows))
    return found


# ---------------------------------------------------------------------------------------- transcripts

Difference: TypeAlias = "tuple[Finding, Comparison | Path]"


def _has_transcripts(engine: Engine, scribe: TranscriptWriter) -> bool:
    """With a shared store each host has the transcripts of the sessions it served: copies, not the store itself."""
    return scribe.which != "off" and not engine.shared and scribe.journal.folder.is_dir()


class Looked:
    """Checks sessions while the engine reads their messages: their counters, and their transcripts."""

    def __init__(self, engine: Engine, scribe: TranscriptWriter) -> None:
        self._engine, self._journal = engine, scribe.journal
        self._has_transcripts = _has_transcripts(engine, scribe)
        self._prompt = lru_cache(maxsize=64)(read_prompt)  # many sessions have the same one
        self.done: set[str] = set()
        self.miscounted: list[Finding] = []
        self.differing: dict[str, Comparison] = {}

    def at(self, tx: Tx, session_ids: Sequence[str]) -> Callable[[str, MessageColumns | None], None]:
        """Check these sessions within one snapshot of the database."""
        counters = {session_id: counters for session_id, *counters in _counters_of(tx, session_ids)}
        comparer = None
        if self._has_transcripts:
            comparer = Comparer(self._engine, tx, self._journal.path, session_ids, self._prompt)

        def look(session_id: str, columns: MessageColumns | None) -> None:
            if columns is not None and session_id in counters:
                self.miscounted += _miscounted(session_id, counters[session_id], _counted(columns))
            difference = None if comparer is None else comparer.compare(session_id, columns)
            if difference is not None:
                self.differing[session_id] = difference
            self.done.add(session_id)

        return look


def transcripts(
    engine: Engine, scribe: TranscriptWriter, progress: Progress | None = None, looked: Looked | None = None
) -> list[Difference]:
    """Where sessions and transcripts differ: the finding, and the details that repair needs."""
    if not _has_transcripts(engine, scribe):
        return []
    looked = looked or Looked(engine, scribe)
    with engine.read() as tx:
        rows = tx.rows("SELECT id, purged FROM sessions ORDER BY id")
    wanted = {row[0] for row in rows if not row[1] or row[0].startswith(SHELL)}
    _compare(engine, looked, wanted - looked.done, progress)
    compared = {session_id: one for session_id, one in sorted(looked.differing.items()) if session_id in wanted}
    left = _without_session(engine, scribe, None)
    for pause in _LOOKS:
        if (not compared and not left) or (pause and not scribe.journal.is_busy()):
            break
        time.sleep(pause)
        looked = Looked(engine, scribe)
        _compare(engine, looked, compared)
        again = looked.differing
        agreed = ((key, confirmed(one, again.get(key))) for key, one in compared.items())
        compared = {key: one for key, one in agreed if one is not None}
        before, left = left, _without_session(engine, scribe, [path for _, path in left])
        left = [one for one in left if one in before]
    found: list[Difference] = []
    for session_id, one in compared.items():
        where = f"session {session_id}"
        if one.repairable():
            found.append((finding("transcript", where, "; ".join(one.repairable())), one))
        if one.undecided():
            found.append((finding(UNDECIDED, where, f"{'; '.join(one.undecided())}; {DECIDE}"), one))
    return [*found, *left]


def _compare(engine: Engine, looked: Looked, session_ids: Iterable[str], progress: Progress | None = None) -> None:
    ids = sorted(session_ids)
    for start in range(0, len(ids), _AT_ONCE):
        with engine.read() as tx:
            some = ids[start : start + _AT_ONCE]
            look = looked.at(tx, some)
            for session_id in some:
                look(session_id, None)
        if progress is not None:
            progress("transcripts", min(start + _AT_ONCE, len(ids)), len(ids))


def _without_session(engine: Engine, scribe: TranscriptWriter, files: list[Any] | None) -> list[Difference]:
    """Transcripts of sessions that the database does not have."""
    folder = scribe.journal.folder
    paths = sorted(folder.glob("*.jsonl")) if files is None else files  # before the names: files follow their sessions
    with engine.read() as tx:
        known = {scribe.journal.path(row[0]).name for row in tx.rows("SELECT id FROM sessions")}
        found: list[Difference] = []
        for path in paths:
            if path.name not in known and path.exists():
                found.append((_judge_file(engine, tx, path), path))
    return found


def _judge_file(engine: Engine, tx: Tx, path: Path) -> Finding:
    """The finding for a transcript without its session, which was deleted or lost."""
    session_id = transcript_replay.read_transcript(path).columns["id"]
    if tx.row("SELECT 1 FROM audit WHERE session_id = ? AND action = 'delete'", (session_id,)) is not None:
        return finding("transcript-left", path.name, f"session {session_id} was deleted, its transcript was not")
    content = read(path, session_id)
    rows = {i: tx.row("SELECT session_id FROM messages WHERE id = ?", (i,)) for i in content.session.messages}
    changed = set()
    if engine.has_table(tx, "changed_messages"):
        changed = {row[0] for row in tx.rows("SELECT id FROM changed_messages")} & rows.keys()
    if rows and changed >= {i for i, row in rows.items() if row is None} and not all(rows.values()):
        detail = f"session {session_id} was deleted with SQL, its transcript was not"
        return finding("transcript-left", path.name, detail)
    top = tx.last_number("messages")
    lines = content.session.messages
    lost = any(i > top or (row is not None and _is_other(tx, i, lines[i])) for i, row in rows.items())
    orphaned = tx.row("SELECT 1 FROM messages WHERE session_id = ?", (session_id,)) is not None
    if lost or orphaned or content.session.loose or tx.row("SELECT 1 FROM sessions") is None:
        return finding("lost-session", path.name, f"session {session_id} is not in the database")
    detail = f"session {session_id} is not in the database (deleted, or lost); {DECIDE}"
    return finding(UNDECIDED, path.name, detail)


def _is_other(tx: Tx, message_id: int, entry: Entry) -> bool:
    """Whether an id was given to another message."""
    try:
        return not is_same_message(entry, transcript_replay.message(tx, message_id))
    except (StoreCorrupt, UnicodeDecodeError):
        return False
