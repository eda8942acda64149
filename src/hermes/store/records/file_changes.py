"""The files that tool calls changed: recorded with each message as it is stored, read by `hermes why`.

A row for each file of each tool call: the path as the call names it, its last component for the index, and a hash of every
line that the call adds. The result of a call that failed takes its rows away again. Messages that another program stored are
noted when they are indexed; until then a question reads them itself.

Programs name their tools and arguments differently (`Write`, `write_file`, `create_file`; `file_path`, `filePath`, `path`),
and mean a few things by them: a whole text, pieces replaced by others, a patch, a file removed. Names are compared without
their case, underscores and prefixes, so one short table serves every program. A line is kept as a hash of a few bytes.
"""

from __future__ import annotations

import posixpath
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from hermes.store.engines.base import REDACTED, Engine, Row, Scope, Tx, rows_among
from hermes.store.records import codec, message_reading
from hermes.store.records.rows import ChangeReason, FileChangeRow
from hermes.store.records.visibility import Filters, User, scope_of
from hermes.store.text.index_text import plain_parts

HASH_BYTES = 5  # a file of 10,000 lines has a wrong match once in 100 million lines
MOST_LINES = 20_000  # of one change
WRITE, EDIT, DELETE, MOVE = "write", "edit", "delete", "move"
# By the meaning of their arguments, the tools of all programs: lower case, without "_", "-" and a server's prefix.
_TOOLS = {
    WRITE: "write writefile writetofile create createfile newfile copilotcreatefile overwritefile",
    EDIT: "edit editfile editfilev2 texteditgroup multiedit notebookedit editnotebook editnotebookfile replace"
    " searchreplace searchandreplace strreplace strreplacefile strreplaceeditor strreplacebasededittool texteditor editor fswrite"
    " replaceinfile replacestringinfile multireplacestringinfile inserteditintofile insertcontent replacefilecontent"
    " multireplacefilecontent applydiff patch applypatch copilotreplacestring copilotinsertedit copilotapplypatch",
    DELETE: "delete deletefile removefile",
}
_KINDS = {name: kind for kind, names in _TOOLS.items() for name in names.split()}
_READING = ("view", "undoedit", "read")  # commands of editors that change nothing, or nothing that is known
_PATHS = "path filepath targetfile notebookpath targetnotebook file filename relativeworkspacepath".split()
_WHOLE = ("content", "contents", "filetext", "codecontent", "code")
_OLD = ("old", "oldstring", "oldstr", "oldtext", "targetcontent", "search")
_NEW = ("new", "newstring", "newstr", "newtext", "newsource", "newcode", "replacementcontent", "codeedit", "code", "content",
        "inserttext", "insertedtext", "filetext", "replace", "text")  # fmt: skip
_PIECES = ("edits", "edit", "replacements", "replacementchunks")
_PATCHES = ("patch", "patchtext", "diff", "input")
_BEGIN, _END = "*** Begin Patch", "*** End Patch"
_HEAD = re.compile(r"\*\*\* (Add File|Update File|Delete File|Move to): (.+)")
_PREFIX = re.compile(r".*(?:__|[./:])")
_SEARCH, _MIDDLE, _REPLACE = (
    re.compile(sign) for sign in (r"(?:<{5,}|-{5,}) ?SEARCH", r"={5,}\Z", r"(?:>{5,}|\+{5,}) ?REPLACE")
)
_ABOUT = re.compile(r":|-{5,}\Z")  # the place in the file, between SEARCH and the lines
_SAYS_SOMETHING = re.compile(r"\w\W*\w\W*\w")


# The number of the call, path, its last component, kind, hashes of added lines.
Noted = tuple[int, str, str, str, bytes]


@dataclass(slots=True)
class FileChange:
    """A file that a tool call changes, as the call names it, and the lines it adds."""

    path: str
    kind: str
    added: list[str]


def changes_of(tool_name: str, arguments: Any) -> list[FileChange]:
    """The file changes of one tool call; [] for a call that changes none. `arguments` is JSON text, a dict or plain text."""
    kind = _KINDS.get(_plain(_PREFIX.sub("", tool_name)))
    if kind is None and not (isinstance(arguments, str) and _BEGIN in arguments):
        return []
    fields = arguments
    if isinstance(fields, str):
        decoded = codec.from_json(fields)
        fields = decoded if isinstance(decoded, dict) else {"input": decoded if isinstance(decoded, str) else fields}
    if not isinstance(fields, Mapping):
        return []
    named = {_plain(str(name)): value for name, value in fields.items()}
    if patch := _codex_patch(fields.values()):
        base = next((value for name in ("workdir", "cwd") if isinstance(value := named.get(name), str)), "")
        found = [FileChange(posixpath.join(base, one.path), one.kind, one.added) for one in _patched(patch)]
    else:
        found = [] if kind is None else list(_changes(kind, named))
    merged: dict[str, FileChange] = {}
    for one in found:
        if path := _clean(one.path):
            merged.setdefault(path, FileChange(path, one.kind, [])).added += one.added
    return list(merged.values())


def _plain(name: str) -> str:
    return name.replace("_", "").replace("-", "").lower()


def _first(named: Mapping[str, Any], names: Iterable[str]) -> str | None:
    return next((value for name in names if isinstance(value := named.get(name), str)), None)


def _path_of(named: Mapping[str, Any]) -> str | None:
    for name in _PATHS:
        value = named.get(name)
        if isinstance(value, Mapping):  # an address as VS Code writes it
            value = value.get("fsPath") or value.get("path")
        if isinstance(value, str) and value.strip():
            return value.strip()
    return None


def _clean(path: str) -> str:
    path = path.removeprefix("file://")
    if "\\" in path and ("/" not in path or path[1:2] == ":"):
        path = path.replace("\\", "/")
    return posixpath.normpath(path) if path.strip() else ""


def _changes(kind: str, named: Mapping[str, Any]) -> Iterator[FileChange]:
    """The changes of a call that names its file in an argument."""
    command, path = _plain(str(named.get("command") or "")), _path_of(named)
    if command in _READING:
        return
    if kind == DELETE:
        yield from [FileChange(path, DELETE, [])] if path else ()
        return
    pieces = next((value for name in _PIECES if isinstance(value := named.get(name), (list, dict))), None)
    for piece in _flat(pieces):
        one = {_plain(str(name)): value for name, value in piece.items()}
        if where := _path_of(one) or path:
            yield FileChange(where, EDIT, _replaced(_first(one, _OLD), _first(one, _NEW)))
    if pieces is not None or path is None:
        return
    patch, old = _first(named, _PATCHES), _first(named, _OLD)
    if kind == EDIT and patch is not None:
        yield FileChange(path, EDIT, _diffed(patch))
    elif kind == WRITE or command in ("create", "write") or named.get("mode") in ("create", "overwrite"):
        whole = _first(named, (*_WHOLE, *_NEW))
        yield FileChange(path, WRITE, (whole or "").split("\n"))
    else:
        yield FileChange(path, EDIT, _replaced(old, _first(named, _NEW)))


def _flat(pieces: Any) -> Iterator[Mapping[str, Any]]:
    """The objects of lists in lists."""
    if isinstance(pieces, Mapping):
        yield pieces
    for one in pieces if isinstance(pieces, list) else ():
        yield from _flat(one)


def _replaced(old: str | None, new: str | None) -> list[str]:
    return _added((old or "").split("\n"), (new or "").split("\n"))


def _added(old: Iterable[str], new: Iterable[str]) -> list[str]:
    """The new lines that are not among the old ones; an indented line is the same line."""
    before, added = Counter(map(str.strip, old)), []
    for line in new:
        if before[line.strip()] > 0:
            before[line.strip()] -= 1
        else:
            added.append(line)
    return added


def _diffed(patch: str) -> list[str]:
    """The lines that a unified diff, or blocks of SEARCH and REPLACE, add."""
    if blocks := list(_blocks(patch.replace("\r\n", "\n").split("\n"))):
        return [line for old, new in blocks for line in _added(old, new)]
    lines = [line for line in patch.split("\n") if not line.startswith(("+++ ", "--- "))]
    return _signed(lines)


def _blocks(lines: Iterable[str]) -> Iterator[tuple[list[str], list[str]]]:
    """The lines of each whole block of SEARCH and REPLACE: those before, and those after."""
    old: list[str] | None = None
    new: list[str] | None = None
    for line in lines:
        if old is None or new is None:
            if old is not None and _MIDDLE.match(line):
                new = []
            elif _SEARCH.match(line):
                old = []
            elif old is not None and (old or not _ABOUT.match(line)):
                old.append(line)
        elif _REPLACE.match(line):
            yield old, new
            old = new = None
        else:
            new.append(line)


def _signed(lines: Iterable[str]) -> list[str]:
    lines = list(lines)
    return _added((one[1:] for one in lines if one[:1] == "-"), (one[1:] for one in lines if one[:1] == "+"))


def _codex_patch(values: Iterable[Any]) -> str | None:
    """The patch in Codex's format that an argument, or a shell command in one, holds."""
    for value in values:
        for text in value if isinstance(value, list) else (value,):
            if isinstance(text, str) and _BEGIN in text:
                return text.partition(_BEGIN)[2].partition(_END)[0]
    return None


def _patched(patch: str) -> Iterator[FileChange]:
    path, kind, lines = "", EDIT, list[str]()
    for line in [*patch.split("\n"), "*** Update File: "]:
        head = _HEAD.match(line)
        if head is None and line != "*** Update File: ":
            lines.append(line)
            continue
        what, where = (head[1], head[2].strip()) if head else ("", "")
        if what == "Move to":
            yield FileChange(path, MOVE, [])
            path = where
            continue
        if path:
            yield FileChange(path, kind, _signed(lines))
        path, lines = where, []
        kind = {"Add File": WRITE, "Delete File": DELETE}.get(what, EDIT)


# ---------------------------------------------------------------------------------------------- lines


def line_hash(line: str) -> bytes:
    """The hash of a line, whatever its indentation; b"" for one that says too little to be traced (blank, `}`)."""
    if _SAYS_SOMETHING.search(line) is None:
        return b""
    return blake2b(" ".join(line.split()).encode("utf-8", "surrogatepass"), digest_size=HASH_BYTES).digest()


def hashed(lines: Iterable[str]) -> bytes:
    """The hashes of lines, each once, one after the other."""
    return b"".join(dict.fromkeys(line_hash(line) for line, _ in zip(lines, range(MOST_LINES), strict=False)))


def hashes_in(stored: bytes) -> set[bytes]:
    """The hashes that `hashed` joined."""
    return {stored[at : at + HASH_BYTES] for at in range(0, len(stored), HASH_BYTES)}


# ---------------------------------------------------------------------------------------------- the calls of a message


def calls_in(tool_calls: Any) -> list[tuple[str, str, Any]]:
    """The id, tool and arguments of each tool call of a message, in any form that programs store."""
    if isinstance(tool_calls, str):
        tool_calls = codec.from_json(tool_calls)
    found = []
    for call in [tool_calls] if isinstance(tool_calls, dict) else tool_calls if isinstance(tool_calls, list) else ():
        call = call if isinstance(call, dict) else {}
        function = call["function"] if isinstance(call.get("function"), dict) else call
        arguments = function.get("arguments", function.get("input"))
        found.append((str(call.get("id") or ""), str(function.get("name") or ""), arguments))
    return found


def noted(tool_calls: Any) -> list[Noted]:
    """The file changes of a message's tool calls, in the shape of their rows."""
    found: list[Noted] = []
    for number, (_, tool, arguments) in enumerate(calls_in(tool_calls)):
        for one in changes_of(tool, arguments):
            found.append((number, one.path, one.path.rpartition("/")[2], one.kind, codec.Blob(hashed(one.added))))
    return found


_FAILED = re.compile(
    r"\s*(?:error\b|<tool_use_error>|the user (?:doesn't|does not|did not) want|the tool use was rejected|\[?request interrupted"
    r"|(?:user|operation|tool call|edit|patch|exec command)\b.{0,40}\b(?:rejected|declined|denied|cancell?ed|aborted)"
    r"|aborted|apply_patch verification failed|failed\b|invalid\b|exit code:? [1-9]|process exited with code [1-9])",
    re.I,
)
_EXIT_CODE = re.compile(r'"exit_code": ?[1-9]')


def is_failure(content: Any, meta: Any = None) -> bool:
    """Whether the result of an edit tool says that nothing was changed: an error, or the user declined."""
    if isinstance(meta, Mapping) and isinstance(meta.get("failed"), bool):
        return bool(meta["failed"])
    if not isinstance(content, str):
        return False
    in_json = content[:1] == "{" and _EXIT_CODE.search(content[-200:]) is not None
    return in_json or "nothing was changed" in content[:500] or _FAILED.match(content) is not None


# ---------------------------------------------------------------------------------------------- noting

_NEAR = 200  # ids among which the result of a call is looked for, and the call of a result
_OF_SESSION = "session_id || '' = ?"  # an expression: the few ids are read, not the index of a long session
_STORED = (
    "SELECT id, session_id, tool_calls FROM messages WHERE id > ? AND tool_calls IS NOT NULL AND (hidden IS NULL OR hidden >"
    f" {REDACTED}) ORDER BY id LIMIT 500"
)
_PUT = "INSERT INTO file_changes(message_id, call, path, name, kind, lines) VALUES(?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING"


def note(tx: Tx, session_id: str, message_id: int, changes: Sequence[Noted], failed_call: str | None) -> None:
    """Record the file changes of a message that was just stored; or that it is the result of a call that failed."""
    if changes:
        _put(tx, message_id, changes)
    elif failed_call:
        sql = (
            f"SELECT id, tool_calls FROM messages WHERE {_OF_SESSION} AND id < ? AND id >= ? AND tool_calls IS NOT NULL"
            " ORDER BY id DESC"
        )
        for made, calls in tx.rows(sql, (session_id, message_id, message_id - _NEAR)):
            ids = [call_id for call_id, _, _ in calls_in(codec.restored(calls))]
            if failed_call in ids:
                tx.run("DELETE FROM file_changes WHERE message_id = ? AND call = ?", (made, ids.index(failed_call)))
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
    engine: Engine, tx: Tx, names: Sequence[str] | None, session_id: str | None, visible_to: User | None
) -> list[FileChangeRow]:
    """See SessionDB.file_changes."""
    scope = scope_of(tx, Filters(session_ids=None if session_id is None else [session_id]), visible_to)
    found: list[FileChangeRow] = []
    for message_id, path, kind, lines, at, owner, *about, is_shown in _all_changes(
        engine, tx, names, session_id, scope
    ):
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


def _all_changes(
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
