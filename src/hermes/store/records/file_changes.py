"""The files that tool calls changed: recorded with each message as it is stored, read by `hermes why`.

A row for each file of each tool call (file_edits.py reads the calls): the path as the call names it, its last component for
the index, and a hash of every line that the call adds. The result of a call that failed takes its rows away again. Messages
that another program stored are noted when they are indexed; until then a question reads them itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from hermes.store.engines.base import REDACTED, Engine, Row, Scope, Tx, rows_among
from hermes.store.records import codec, message_reading
from hermes.store.records.file_edits import Noted, calls_in, is_failure, noted
from hermes.store.records.message_values import EncodedMessage
from hermes.store.records.rows import ChangeReason, FileChangeRow
from hermes.store.records.visibility import User
from hermes.store.text.index_text import plain_parts

_NEAR = 200  # ids among which the result of a call is looked for, and the call of a result
_OF_SESSION = "session_id || '' = ?"  # an expression: the few ids are read, not the index of a long session
_STORED = (
    "SELECT id, session_id, tool_calls FROM messages WHERE id > ? AND tool_calls IS NOT NULL AND (hidden IS NULL OR hidden >"
    f" {REDACTED}) ORDER BY id LIMIT 500"
)
_PUT = "INSERT INTO file_changes(message_id, call, path, name, kind, lines) VALUES(?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING"


# ---------------------------------------------------------------------------------------------- noting


def note(tx: Tx, session_id: str, message_id: int, encoded: EncodedMessage) -> None:
    """Record the file changes of a message that was just stored."""
    if encoded.changes:
        _put(tx, message_id, encoded.changes)
    elif encoded.failed:
        sql = (
            f"SELECT id, tool_calls FROM messages WHERE {_OF_SESSION} AND id < ? AND id >= ? AND tool_calls IS NOT NULL"
            " ORDER BY id DESC"
        )
        for made, calls in tx.rows(sql, (session_id, message_id, message_id - _NEAR)):
            ids = [call_id for call_id, _, _ in calls_in(codec.restored(calls))]
            if encoded.values["tool_call_id"] in ids:
                call = ids.index(encoded.values["tool_call_id"])
                tx.run("DELETE FROM file_changes WHERE message_id = ? AND call = ?", (made, call))
                return


def _put(tx: Tx, message_id: int, rows: Sequence[Noted]) -> None:
    for call, path, name, kind, lines in rows:
        tx.run(_PUT, (message_id, call, path, name, kind, lines))


def forget(tx: Tx, message_ids: Sequence[int]) -> None:
    """Remove what was noted of these messages."""
    for message_id in message_ids:
        tx.run("DELETE FROM file_changes WHERE message_id = ?", (message_id,))


def note_stored(tx: Tx, rows: Sequence[tuple[int, str, Any]]) -> None:
    """Note the calls of messages that are already stored: id, session, tool calls."""
    for message_id, session_id, calls in rows:
        _put(tx, message_id, _succeeded(tx, message_id, session_id, calls))


def _succeeded(tx: Tx, message_id: int, session_id: str, calls: Any) -> list[Noted]:
    """The changes that a stored message's tool calls made, but for those that failed."""
    decoded = codec.from_json(codec.restored(calls))
    if not (found := noted(decoded)):
        return []
    sql = (
        "SELECT tool_call_id, content, content_rest, content_format, meta FROM messages WHERE id > ? AND id <= ? AND"
        f" {_OF_SESSION} AND role = 'tool'"
    )
    failed = {
        codec.restored(call_id)
        for call_id, *content, meta in tx.rows(sql, (message_id, message_id + _NEAR, session_id))
        if is_failure(_text(*content), None if meta is None else codec.from_json(codec.restored(meta)))
    }
    ids = [call_id for call_id, _, _ in calls_in(decoded)]
    return [row for row in found if ids[row[0]] not in failed]


def _text(content: Any, rest: Any, form: Any) -> str:
    value = codec.content_value(codec.joined(content, rest), form)
    return value if isinstance(value, str) else plain_parts(value) if value else ""


def note_again(engine: Engine) -> None:
    """Note the changes of all messages again, where notes may be lost or wrong."""
    with engine.write() as tx:
        tx.run("DELETE FROM file_changes")
        last = 0
        while rows := tx.rows(_STORED, (last,)):
            note_stored(tx, rows)
            last = rows[-1][0]


# ---------------------------------------------------------------------------------------------- asking


_OWNER = "m.timestamp, m.session_id, s.source, s.title, s.cwd, s.trashed_at IS NULL AND s.purged IS NULL"


def changes(
    engine: Engine, tx: Tx, names: Sequence[str] | None, session_id: str | None, visible_to: User | None, scope: Scope
) -> list[FileChangeRow]:
    """See SessionDB.file_changes."""
    found: list[FileChangeRow] = []
    for message_id, path, kind, lines, at, owner, *about, is_shown in _changes(engine, tx, names, session_id, scope):
        if visible_to is not None or not is_shown:  # the session that carries the message, if its own is not to be seen
            other = message_reading.session_of(tx, message_id, visible_to) or owner
            if other != owner:
                owner, *about = tx.row("SELECT id, source, title, cwd FROM sessions WHERE id = ?", (other,)) or ()
        source, title, cwd = map(codec.restored, about)
        found.append({
            "message_id": message_id, "session_id": codec.restored(owner), "source": source, "title": title, "cwd": cwd,
            "path": codec.restored(path), "kind": kind, "time": at, "lines": bytes(lines or b""),
        })  # fmt: skip
    return sorted(found, key=lambda one: (one["time"], one["message_id"]), reverse=True)


def _changes(
    engine: Engine, tx: Tx, names: Sequence[str] | None, session_id: str | None, scope: Scope
) -> Iterator[Row]:
    """Id, path, kind, lines and `_OWNER` of changes: noted ones, and those in another program's messages above the mark."""
    joined = f"JOIN sessions s ON s.id = m.session_id WHERE {{these}} AND {scope.where}"
    of_session = "TRUE" if session_id is None else "m.session_id = ?"
    params = [*([] if session_id is None else [session_id]), *scope.params]
    is_noted = tx.has_table("file_changes")
    if names is not None and not names:
        return
    if is_noted:
        these, values = ("TRUE", []) if names is None else tx.among("c.name", names)
        sql = f"SELECT c.message_id, c.path, c.kind, c.lines, {_OWNER} FROM file_changes c JOIN messages m ON m.id = c.message_id"
        yield from tx.rows(f"{sql} {joined.format(these=f'{these} AND {of_session}')}", [*values, *params])
    # Without the table it is an older file, which is only read.
    mark, unnoted = (engine.fulltext.mark(tx), "m.writer IS NULL") if is_noted else (0, "TRUE")
    known = [name for name in names or () if all(map(str.isascii, names or ()))]  # programs may have escaped others
    named = " OR ".join(["instr(m.tool_calls, ?) > 0"] * len(known)) or "TRUE"
    others = f"m.id > ? AND {unnoted} AND m.tool_calls IS NOT NULL AND ({named}) AND {of_session}"
    sql = f"SELECT m.id, m.tool_calls, {_OWNER} FROM messages m {joined.format(these=others)}"
    for message_id, calls, *owner in tx.rows(sql, [mark, *known, *params]):
        for _, path, name, kind, lines in _succeeded(tx, message_id, owner[1], calls):
            if names is None or name in names:
                yield message_id, path, kind, lines, *owner


def reasons(tx: Tx, message_ids: Sequence[int], visible_to: User | None) -> dict[int, ChangeReason]:
    """See SessionDB.change_reasons."""
    found: dict[int, ChangeReason] = {}
    sql = "SELECT m.id, m.session_id, m.timestamp FROM messages m WHERE {these}"
    for message_id, session_id, at in rows_among(tx, sql, list(message_ids), "m.id"):
        if message_reading.session_of(tx, message_id, visible_to) is None:
            continue
        prompt_id, request = _request(tx, session_id, message_id, at)
        reply_id, words = _last(tx, "assistant", session_id, message_id, at)
        shown = [visible_to is None or message_reading.session_of(tx, one, visible_to) for one in (prompt_id, reply_id)]
        found[message_id] = {
            "request": request if shown[0] else "",
            "words": words if shown[1] and reply_id > prompt_id else "",
        }
    return found


_LAST = (
    "SELECT m.id, m.content, m.content_rest, m.content_format FROM messages m WHERE m.session_id = ? AND m.timestamp <= ? AND"
    " m.id <= ? AND m.role = ? AND m.content <> '' AND coalesce(m.hidden, 0) BETWEEN -2 AND 0"
    " AND (m.meta IS NULL OR instr(m.meta, '\"summary\"') = 0)"
    " ORDER BY m.timestamp DESC, m.id DESC LIMIT 1"
)


def _last(tx: Tx, role: str, session_id: str, message_id: int, at: float) -> tuple[int, str]:
    """The last message of this role with words, up to this one; (0, "") when there is none."""
    row = tx.row(_LAST, (session_id, at, message_id, role))
    return (0, "") if row is None else (int(row[0]), _text(*row[1:]).strip())


def _request(tx: Tx, session_id: str, message_id: int, at: float) -> tuple[int, str]:
    """The user's message that led to a message: of a sub-agent, and after a compression, in the session before it."""
    own = "SELECT min(id) FROM messages m WHERE m.session_id = s.id"
    sql = f"SELECT kind, parent_session_id, ({own}) FROM sessions s WHERE s.id = ?"
    best = 0, ""
    for _ in range(20):
        prompt_id, text = _last(tx, "user", session_id, message_id, at)
        kind, parent, first = tx.row(sql, (session_id,)) or (None, None, None)
        is_summary = kind == "compression" and prompt_id == first
        if prompt_id and not is_summary and kind != "subagent":
            return prompt_id, text
        best = (prompt_id, text) if prompt_id and not best[0] else best
        if parent is None:
            break
        session_id, message_id = parent, message_reading.LAST
    return best
