"""File changes in tool calls: which files a call of any known program's edit tool changes, and the lines it adds. No SQL.

Programs name their tools and arguments differently (`Write`, `write_file`, `create_file`; `file_path`, `filePath`, `path`),
and mean a few things by them: a whole text, pieces replaced by others, a patch, a file removed. Names are compared without
their case, underscores and prefixes, so one short table serves every program. A line is kept as a hash of a few bytes.
"""

from __future__ import annotations

import posixpath
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from hermes.store.records import codec

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
