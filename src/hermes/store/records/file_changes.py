"""The files that tool calls changed, asked by `hermes why`.

Nothing is noted of them beside the messages: the full-text index finds the messages that name a file, and their tool calls
tell what they changed (file_edits.py reads them). A call whose result says that it failed changed nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from hermes.store.engines.base import Engine, Row, Scope, Tx, phrase_words, rows_among
from hermes.store.records import codec, message_reading
from hermes.store.records.file_edits import FileChange, calls_in, changes_of, hashed, is_failure
from hermes.store.records.visibility import User
from hermes.store.text.index_text import plain_parts
from hermes.store.text.query import Leaf, Or

if TYPE_CHECKING:
    from hermes.store.records.rows import ChangeReason, FileChangeRow

_ANY = 1 << 62  # above every id
_NEAR = 200  # ids after a call among which its result is looked for
_MOST = 20_000  # messages that name a file, the newest
_OF_SESSION = "session_id || '' = ?"  # an expression: the few ids are read, not the index of a long session
_OWNER = "m.timestamp, m.session_id, s.source, s.title, s.cwd, s.trashed_at IS NULL AND s.purged IS NULL"


def changes(
    engine: Engine, tx: Tx, names: Sequence[str] | None, session_id: str | None, visible_to: User | None, scope: Scope
) -> list[FileChangeRow]:
    """See SessionDB.file_changes."""
    found: list[FileChangeRow] = []
    for message_id, calls, at, owner, *about, is_shown in _candidates(engine, tx, names, session_id, scope):
        made = _succeeded(tx, message_id, owner, calls, names)
        if made and (visible_to is not None or not is_shown):  # a session that carries the message may be seen instead
            other = message_reading.session_of(tx, message_id, visible_to) or owner
            if other != owner:
                owner, *about = tx.row("SELECT id, source, title, cwd FROM sessions WHERE id = ?", (other,)) or ()
        source, title, cwd = map(codec.restored, about)
        found += [{
            "message_id": message_id, "session_id": codec.restored(owner), "source": source, "title": title, "cwd": cwd,
            "path": one.path, "kind": one.kind, "time": at, "lines": hashed(one.added),
        } for one in made]  # fmt: skip
    return sorted(found, key=lambda one: (one["time"], one["message_id"]), reverse=True)


def _candidates(
    engine: Engine, tx: Tx, names: Sequence[str] | None, session_id: str | None, scope: Scope
) -> Iterator[Row]:
    """Id, tool calls and `_OWNER` of the messages whose tool calls may have changed files of these names."""
    of_session, params = ("TRUE", []) if session_id is None else ("m.session_id = ?", [session_id])
    sql = (
        f"SELECT m.id, m.tool_calls, {_OWNER} FROM messages m JOIN sessions s ON s.id = m.session_id WHERE {{these}}"
        f" AND m.tool_calls IS NOT NULL AND {of_session} AND {scope.where}"
    )
    leaves = tuple(Leaf(name, "phrase") for name in names or ())
    if session_id is None and names is not None and all(phrase_words(leaf)[0] for leaf in leaves):
        (ids,) = engine.fulltext.holder_ids(tx, [Or(leaves)], _MOST) if leaves else ([],)
        return rows_among(tx, sql, ids, "m.id", [*params, *scope.params])
    return iter(tx.rows(sql.format(these="TRUE"), [*params, *scope.params]))


def _succeeded(tx: Tx, message_id: int, session_id: str, calls: Any, names: Sequence[str] | None) -> list[FileChange]:
    """The changes of files of these names that a message's tool calls made, but for those that failed."""
    found = [
        (call_id, one)
        for call_id, tool, arguments in calls_in(codec.restored(calls))
        for one in changes_of(tool, arguments)
        if names is None or one.path.rpartition("/")[2] in names
    ]
    sql = (
        "SELECT tool_call_id, content, content_rest, content_format, meta FROM messages WHERE id > ? AND id <= ? AND"
        f" {_OF_SESSION} AND role = 'tool'"
    )
    failed = {
        codec.restored(call_id)
        for call_id, *content, meta in (tx.rows(sql, (message_id, message_id + _NEAR, session_id)) if found else ())
        if is_failure(_text(*content), None if meta is None else codec.from_json(codec.restored(meta)))
    }
    return [one for call_id, one in found if call_id not in failed]


def _text(content: Any, rest: Any, form: Any) -> str:
    value = codec.content_value(codec.joined(content, rest), form)
    return value if isinstance(value, str) else plain_parts(value) if value else ""


def reasons(tx: Tx, message_ids: Sequence[int], visible_to: User | None) -> dict[int, ChangeReason]:
    """See SessionDB.change_reasons."""
    found: dict[int, ChangeReason] = {}
    sql = "SELECT m.id, m.session_id, m.timestamp FROM messages m WHERE {these}"
    for message_id, session_id, at in rows_among(tx, sql, list(message_ids), "m.id"):
        if message_reading.session_of(tx, message_id, visible_to) is None:
            continue
        asked, request = _request(tx, session_id, message_id, at)
        if asked and visible_to is not None and message_reading.session_of(tx, asked, visible_to) is None:
            request = ""  # it is not shared with this person
        said, words = _last(tx, "assistant", session_id, message_id, at)
        if said and visible_to is not None and message_reading.session_of(tx, said, visible_to) is None:
            words = ""
        found[message_id] = {"request": request, "words": words if said > asked else ""}
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
        asked, text = _last(tx, "user", session_id, message_id, at)
        kind, parent, first = tx.row(sql, (session_id,)) or (None, None, None)
        is_summary = kind == "compression" and asked == first
        if asked and not is_summary and kind != "subagent":
            return asked, text
        best = (asked, text) if asked and not best[0] else best
        if parent is None:
            break
        session_id, message_id = parent, _ANY
    return best
