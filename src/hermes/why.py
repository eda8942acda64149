"""Which conversation made a file, or a line of it: what tool calls changed (SessionDB.file_changes) against what git knows.

A path is recorded as it was when the file was changed. The same file is found again by its path, by its path in the
repository (a moved or cloned folder), and under the names it had before git renamed it. A line is found by its text among the
lines that the changes added, before the commit that git blames for it; failing that, by the texts it had in earlier commits.
"""

from __future__ import annotations

import os
import posixpath
import re
import shlex
import time
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NotRequired, TypedDict

from hermes.errors import InvalidInput
from hermes.git_file import GitFile, Line, first_commits
from hermes.store.records.codec import from_json
from hermes.store.records.file_changes import EDIT, HASH_BYTES, WRITE, calls_in, hashes_in, is_failure, line_hash
from hermes.texts import content_text, counted, one_line, shortened_line
from hermes.times import ago

if TYPE_CHECKING:
    from datetime import tzinfo

    from hermes.store.api.session_db import SessionDB
    from hermes.store.records.rows import FileChangeRow
    from hermes.store.records.visibility import User

Matched = Literal["line", "file", "nothing"]
MOST = 200  # changes of a file that are returned, unless another number is wanted
TEXT = 300  # characters of a request or of the agent's words
_AROUND = 3  # lines before and after one that tell repeated lines apart
_SIMILAR = 0.6  # of two texts that are versions of one line, by difflib
_LEAST_PART, _MOST_TOKENS = 6, 60  # characters of a part of a line that was replaced; words and signs of a line
_MOST_TRACED, _TRACE_SECONDS = 20, 3.0  # lines of one question whose earlier texts are looked for, and for how long
_MOST_TEXTS, _MOST_TEXT = 5_000, 500  # earlier texts of a line that are compared with it, and characters of each
_WHERE = re.compile(r"(.+?):(\d{1,9})(?:-(\d{1,9})|:\d+)?:?\Z", re.S)


class TestRun(TypedDict):
    """A test command that was run after a change."""

    command: str
    passed: bool | None  # None: its result does not say


class Change(TypedDict):
    """One change of the file, with the conversation it was made in."""

    session_id: str
    title: str | None
    source: str
    time: float
    message_id: int
    kind: str
    path: str
    request: str
    words: str
    resume: str
    tests: NotRequired[list[TestRun]]


class ChangedFile(TypedDict):
    """A file that a session changed, how often, and the message of the last change."""

    path: str
    changes: int
    message_id: int


class Answer(TypedDict):
    """The conversations that made a file, or some lines of it."""

    path: str
    lines: list[int] | None
    matched: Matched
    conversations: int
    changes: list[Change]


def parsed(words: str, folder: Path | None) -> tuple[Path, tuple[int, int] | None]:
    """FILE, FILE:LINE or FILE:LINE-LINE as a path and its lines; a file whose name reads like that is the file.

    Without a folder, nothing of this machine is looked at."""
    if "\0" in words:
        raise InvalidInput("the name of a file has no NUL in it")
    found = _WHERE.match(words)
    if found is None or (folder is not None and os.path.exists(folder / words)):
        name, lines = words, None
    else:
        first, last = int(found[2]), int(found[3] or found[2])
        name, lines = found[1], (min(first, last), max(first, last))
    return Path(name) if folder is None else folder / os.path.expanduser(name), lines


def why(
    db: SessionDB, path: Path, lines: tuple[int, int] | None = None, *, limit: int = MOST, tests: bool = False,
    visible_to: User | None = None, is_local: bool = True,
) -> Answer:  # fmt: skip
    """Who changed this file, or these lines of it, newest first. InvalidInput for lines that the file does not have.

    Unless `is_local`, no file of this machine is read (the caller may not): the end of the recorded path is matched, and lines
    are ignored.
    """
    file = GitFile(Path(os.path.abspath(path)) if is_local else path, is_local)
    lines = lines if is_local else None
    if lines is not None and not 1 <= lines[0] <= lines[1] <= len(file.lines):
        has = f"has {counted(len(file.lines), 'line')}" if file.lines else "is not a file that can be read"
        raise InvalidInput(f"{path} {has}; there is no line {lines[1] if lines[0] else 0}")
    file.start_names()
    blamed = file.blamed(*lines) if lines is not None else []
    file.names |= {entry.name for entry in blamed if entry.name}
    file.finish_names()
    changes = _Changes(file, db, visible_to)
    if not changes.rows and file.add_staged_name():
        changes = _Changes(file, db, visible_to)
    found = changes.of_lines(blamed)
    matched: Matched = "line" if found else "file" if changes.rows else "nothing"
    rows = sorted(found or changes.rows, key=lambda row: (row["time"], row["message_id"]), reverse=True)[:limit]
    reasons = db.change_reasons([row["message_id"] for row in rows], visible_to=visible_to)
    entries: list[Change] = [
        {
            "session_id": row["session_id"], "title": row["title"], "source": row["source"], "time": row["time"],
            "message_id": row["message_id"], "kind": row["kind"], "path": _full(row),
            "request": shortened_line(reasons.get(row["message_id"], _NONE)["request"], TEXT),
            "words": shortened_line(reasons.get(row["message_id"], _NONE)["words"], TEXT),
            "resume": f"hermes -r {shlex.quote(row['session_id'])}",
        } for row in rows
    ]  # fmt: skip
    if tests:
        for entry in entries:
            entry["tests"] = _tests_after(db, entry, visible_to)
    return {
        "path": str(file.path), "lines": None if lines is None else list(lines), "matched": matched,
        "conversations": _conversations(db, {row["session_id"] for row in changes.rows}), "changes": entries,
    }  # fmt: skip


def _conversations(db: SessionDB, session_ids: set[str]) -> int:
    """The number of conversations that these sessions belong to; the parts of a compressed one count as one."""
    rows = db.get_sessions(sorted(session_ids)).values()
    parts = {row["id"] for row in rows if row["kind"] == "compression" or row["end_reason"] == "compression"}
    return len(session_ids - parts) + len({db.get_compression_chain(part)[0] for part in parts})


def sessions_that_changed(
    db: SessionDB, path: Path, *, visible_to: User | None = None, is_local: bool = True
) -> list[str]:
    """The sessions that changed a file, the latest change first; `is_local` as of `why`."""
    file = GitFile(Path(os.path.abspath(path)) if is_local else path, is_local)
    file.start_names()
    file.finish_names()
    return list(dict.fromkeys(row["session_id"] for row in _Changes(file, db, visible_to).rows))


def files_changed(db: SessionDB, session_id: str, *, visible_to: User | None = None) -> list[ChangedFile]:
    """The files that a session changed, by their paths, each with its last change."""
    found: dict[str, ChangedFile] = {}
    for row in db.file_changes(session_id=session_id, visible_to=visible_to):
        file = found.setdefault(_full(row), {"path": _full(row), "changes": 0, "message_id": row["message_id"]})
        file["changes"] += 1
    return [found[path] for path in sorted(found)]


_NONE = {"request": "", "words": ""}


def _full(row: FileChangeRow) -> str:
    """The path of a change, absolute if the folder of its session is known."""
    if row["path"].startswith("/") or row["path"][1:3] == ":/":  # a drive of Windows
        return row["path"]
    folder = row["cwd"] or ""
    if row["source"] == "zed" and row["path"].startswith(f"{posixpath.basename(folder)}/"):
        folder = posixpath.dirname(folder)  # Zed's paths begin with the name of the project's folder
    return posixpath.normpath(posixpath.join(folder, row["path"]))


# ---------------------------------------------------------------------------------------------- changes of this file


class _Changes:
    """The changes in the record that are changes of this file."""

    def __init__(self, file: GitFile, db: SessionDB, visible_to: User | None) -> None:
        self._file = file
        names = {posixpath.basename(name) for name in file.names} | {file.path.name}
        rows = db.file_changes(sorted(names), visible_to=visible_to)
        self._content = {line_hash(line) for line in file.lines} - {b""}
        root = file.root
        self._here = {str(file.path), os.path.realpath(file.path)} if file.is_local else set()
        self._here |= {str(root / name) for name in file.names} if root is not None else set()
        if not file.is_local:
            end = f"/{posixpath.normpath(file.path.as_posix()).lstrip('/')}"
            self._here = {where for row in rows if (where := _full(row)) == str(file.path) or f"/{where}".endswith(end)}
        mine = [row for row in rows if _full(row) in self._here]
        elsewhere: dict[str, list[FileChangeRow]] = {}
        for row in rows:
            if _full(row) not in self._here and (base := self._base(row)) is not None:
                elsewhere.setdefault(base, []).append(row)
        for base, some in elsewhere.items():
            if self._is_this_project(base, some):
                mine += some
        self.rows = sorted(mine, key=lambda row: (row["time"], row["message_id"]), reverse=True)
        self._added = [(row, hashes_in(row["lines"])) for row in self.rows]

    def _base(self, row: FileChangeRow) -> str | None:
        """The folder of a change that takes the place of this file's repository, where the path in it is the same."""
        where, cwd = _full(row), row["cwd"]
        for name in self._file.names if self._file.root is not None else ():
            if where.endswith(name) and f"/{where}".endswith(f"/{name}"):
                return where[: -len(name)].rstrip("/")
        folder = (cwd or "").rstrip("/") + "/"
        inside = where[len(folder) - 1 :] if cwd and where.startswith(folder) else ""
        return cwd if inside and any(here.endswith(inside) for here in self._here) else None

    def _is_this_project(self, base: str, rows: Sequence[FileChangeRow]) -> bool:
        """Whether changes below another folder are of this file: its lines are here, or the folder was moved here. A folder that
        is a repository with another beginning is another project, however alike."""
        is_repository = base.startswith("/") and os.path.exists(posixpath.join(base, ".git"))
        ours = first_commits(self._file.root) if is_repository and self._file.root is not None else None
        if ours:  # none: git refuses it, or nothing is committed yet
            return bool(first_commits(Path(base)) & ours)
        added = [hashes_in(row["lines"]) for row in rows]
        every = set().union(*added)
        here = every & self._content
        if here and len(here) >= min(3, len(every)) and any(2 * len(one & here) >= len(one) for one in added if one):
            return True
        root = self._file.root or self._file.path.parent
        return posixpath.basename(base) == root.name and not any(os.path.exists(_full(row)) for row in rows)

    # ------------------------------------------------------------------------------------------ lines

    def of_lines(self, lines: Sequence[Line]) -> list[FileChangeRow]:
        """The changes that these lines come from, each once."""
        found: dict[tuple[int, str], FileChangeRow] = {}
        left, until = _MOST_TRACED, time.monotonic() + _TRACE_SECONDS
        for line in lines:
            row = self._author(line.text, line.number, line.at)
            if row is None and left and self.rows and line.text.strip():
                left = left - 1 if time.monotonic() < until else 0
                row = self._fragment_author(line) or self._earlier_author(line)
            if row is not None:
                found[row["message_id"], row["path"]] = row
        return list(found.values())

    def _author(self, text: str, number: int, until: float | None) -> FileChangeRow | None:
        """The newest change that added this text, up to a time (of a commit, in whole seconds).

        Of a repeated line, one that also added its neighbours. A change that writes the whole file writes the lines that were
        there again: an earlier one that added the line made it.
        """
        wanted = line_hash(text)
        candidates = [
            (row, added) for row, added in self._added
            if wanted and wanted in added and (until is None or row["time"] < until + 1)
        ]  # fmt: skip
        near = self._file.lines[max(0, number - 1 - _AROUND) : number - 1] + self._file.lines[number : number + _AROUND]
        around = {line_hash(line) for line in near} - {b"", wanted}
        fitting = [row for row, added in candidates if 2 * len(added & around) >= min(len(around), len(added) - 1)]
        rows = fitting or [row for row, _ in candidates]
        return next((row for row in rows if row["kind"] != WRITE), rows[-1] if rows else None)

    def _fragment_author(self, line: Line) -> FileChangeRow | None:
        """The newest change that replaced a part of this line: its new text begins or ends with a part that is no line."""
        parts = {line_hash(part) for part in _parts(line.text)} - self._content - {b""}
        for row in self.rows:
            ends = {row["lines"][:HASH_BYTES], row["lines"][-HASH_BYTES:]}
            if row["kind"] == EDIT and ends & parts and (line.at is None or row["time"] < line.at + 1):
                return row
        return None

    def _earlier_author(self, line: Line) -> FileChangeRow | None:
        """The change that added an earlier text of a line: of those that a commit replaced, the most similar one."""

        def likeness(text: str) -> float:
            old, new = text.strip()[:_MOST_TEXT], line.text.strip()[:_MOST_TEXT]
            if len(old) >= _LEAST_PART and old in new:  # something was added to it
                return 1.0
            return SequenceMatcher(None, old, new).ratio()

        for texts, until in self._file.earlier_texts(line):
            gone = (
                text for text in texts if line_hash(text) not in self._content
            )  # a line that is still there is that line
            text = max(islice(gone, _MOST_TEXTS), key=likeness, default="")
            row = self._author(text, line.number, until) if likeness(text) >= _SIMILAR else None
            if row is not None:
                return row
        return None


def _parts(text: str) -> Iterator[str]:
    """The parts of a line from one word or sign to another, without those that are too short to identify it."""
    tokens = re.findall(r"\w+|[^\w\s]|\s+", text.strip())[:_MOST_TOKENS]
    for first in range(len(tokens)):
        for last in range(first + 1, len(tokens) + 1):
            part = "".join(tokens[first:last])
            if len(part) >= _LEAST_PART:
                yield part


# ---------------------------------------------------------------------------------------------- for people


def described(answer: Answer, zone: tzinfo | None) -> Iterator[str]:
    """The answer as lines of text."""
    which = counted(answer["conversations"], "conversation")
    lines = answer["lines"]
    if lines is not None and answer["matched"] == "file":
        what = "the line itself was" if lines[0] == lines[1] else "the lines themselves were"
        yield f"{which} changed this file; {what} not written by one of them."
    elif lines is None:
        yield f"{which} changed this file."
    for change in answer["changes"]:
        yield ""
        yield f"{ago(change['time'], zone)} · {change['source']} · {one_line(change['title']) or '—'}"
        if change["path"] != answer["path"]:
            yield f"  file     {change['path']}"
        for name, text in (("asked", change["request"]), ("said", change["words"])):
            if text:
                yield f"  {name:<8} {text}"
        for run in change.get("tests", ()):
            verdict = {True: "passed", False: "failed", None: "result unknown"}[run["passed"]]
            yield f"  {'tests':<8} {run['command']}: {verdict}"
        yield f"  {'message':<8} {change['message_id']} ({change['kind']})"
        yield f"  {'resume':<8} {change['resume']}"


# ---------------------------------------------------------------------------------------------- tests after a change

_TESTS = re.compile(
    r"\b(?:pytest|py\.test|unittest|tox|nox|(?:npm|yarn|pnpm|bun|deno)(?: run)? test|jest|vitest|mocha|node --test"
    r"|(?:cargo|go|dotnet|mix|swift|bazel|rake|rails|composer) (?:nextest|test)|make (?:\S+ )*(?:test|check)\S*"
    r"|ctest|rspec|phpunit|(?:mvn|gradlew?|sbt)\b.*\btest)\b"
)
_STATUS = re.compile(r"exit(?:ed)?(?: with)?(?: status| code)?\"?:? ?(\d+)\b", re.I)
_FAILURES = re.compile(r"\b[1-9]\d* (?:failed|failing|errors?|failures?)\b|\bFAIL(?:ED)?\b")
_SUCCESS = re.compile(r"\b\d+ (?:passed|passing)\b|\btest result: ok\b|^(?:OK|PASS|ok)\b", re.M)


def _tests_after(db: SessionDB, change: Change, visible_to: User | None) -> list[TestRun]:
    """The test commands that were run after a change in its conversation, and whether they passed."""
    runs: dict[str, TestRun] = {}
    for message in db.get_messages(change["session_id"], visible_to=visible_to):
        if message["id"] < change["message_id"]:
            continue
        for call_id, _, arguments in calls_in(message["tool_calls"]):
            command = _command_in(arguments)
            if command and _TESTS.search(command):
                runs[call_id] = {"command": shortened_line(command, TEXT), "passed": None}
        if message["role"] == "tool" and (run := runs.get(message["tool_call_id"] or "")) is not None:
            run["passed"] = _passed(content_text(message["content"]), message["meta"])
    return list(runs.values())


def _command_in(arguments: Any) -> str:
    """The command line of a call that runs one; "" for any other."""
    values = from_json(arguments) if isinstance(arguments, str) else arguments
    if not isinstance(values, dict):
        return ""
    command = next((values[name] for name in ("command", "cmd", "commands") if values.get(name)), "")
    return " ".join(map(str, command)) if isinstance(command, list) else str(command)


def _passed(output: str, meta: Any) -> bool | None:
    """Whether a test run passed: its exit status, else its summary, else unknown."""
    if status := _STATUS.search(output[:200]) or _STATUS.search(output[-200:]):
        return int(status[1]) == 0
    if _FAILURES.search(output) or is_failure(output, meta):
        return False
    return True if _SUCCESS.search(output) else None
