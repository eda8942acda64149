"""Which conversation made a file, or a line of it: what tool calls changed (SessionDB.file_changes) against what git knows.

A path is recorded as it was when the file was changed. The same file is found again by its path, by its path in the
repository (a moved or cloned folder), and under the names it had before git renamed it. A line is found by its text among the
lines that the changes added, before the commit that git blames for it; failing that, by the texts it had in earlier commits.

Without a repository, or without git, a file has its lines and its path alone. A git command that takes too long is given up: in a
long history, its result is left out. No program that a repository's own configuration names is run, and nothing is fetched: the
repository may come from others.
"""

from __future__ import annotations

import os
import posixpath
import re
import shlex
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NotRequired, TypedDict

from hermes.errors import InvalidInput
from hermes.home import project_folder
from hermes.store.records.codec import from_json
from hermes.store.records.file_changes import EDIT, HASH_BYTES, WRITE, calls_in, hashes_in, is_failure, line_hash
from hermes.texts import content_text, counted, one_line, shortened_line
from hermes.times import ago

if TYPE_CHECKING:
    from datetime import tzinfo

    from hermes.store.api.session_db import SessionDB
    from hermes.store.records.rows import ChangeReason, FileChangeRow
    from hermes.store.records.visibility import User

Matched = Literal["line", "file", "nothing"]
MOST = 200  # changes of a file that are returned, unless another number is wanted
TEXT = 300  # characters of a request or of the agent's words
_AROUND = 3  # lines before and after one that tell repeated lines apart
_SIMILAR = 0.6  # of two texts that are versions of one line, by difflib
_LEAST_PART, _MOST_TOKENS = 6, 60  # characters of a part of a line that was replaced; words and signs of a line
_MOST_TRACED, _TRACE_SECONDS = 20, 3.0  # lines of one question whose earlier texts are looked for, and for how long
_MOST_TEXTS, _MOST_TEXT = 5_000, 500  # earlier texts of a line that are compared with it, and characters of each
_GIT_SECONDS = 5.0  # of one command
_SAFE = (
    *("-c", "core.quotepath=false", "-c", "color.ui=false", "-c", "color.diff=false"),
    *("-c", "core.fsmonitor=false", "-c", f"core.hooksPath={os.devnull}", "-c", "log.showSignature=false"),
)
_KEPT = ("GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM", "GIT_CONFIG_NOSYSTEM", "GIT_EXEC_PATH")
_PLAIN = ("--no-ext-diff", "--no-textconv", "--ignore-submodules=all")
_COMMIT = re.compile(r"^\x01(\d+)\n", re.M)  # a line of a diff never begins so
_RENAMED = re.compile(r"R\d+\0([^\0]+)\0([^\0]+)\0")  # with -z
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
    db: SessionDB,
    path: Path,
    lines: tuple[int, int] | None = None,
    *,
    limit: int = MOST,
    tests: bool = False,
    visible_to: User | None = None,
    is_local: bool = True,
) -> Answer:
    """Who changed this file, or these lines of it, newest first. InvalidInput for lines that the file does not have.

    Unless `is_local`, no file of this machine is read (the caller may not): the end of the recorded path is matched, and lines
    are ignored.
    """
    file = GitFile(Path(os.path.abspath(path)) if is_local else path, is_local)
    lines = lines if is_local else None
    if lines is not None and not 1 <= lines[0] <= lines[1] <= len(file.lines):
        has = f"has {counted(len(file.lines), 'line')}" if file.lines else "is not a file that can be read"
        raise InvalidInput(f"{path} {has}; there is no line {lines[1] if lines[0] else 0}")
    blamed = file.blamed(*lines) if lines is not None else []
    file.find_names()
    file.names |= {entry.name for entry in blamed if entry.name}
    changes = _Changes(file, db, visible_to)
    found = changes.of_lines(blamed)
    matched: Matched = "line" if found else "file" if changes.rows else "nothing"
    rows = sorted(found or changes.rows, key=lambda row: (row["time"], row["message_id"]), reverse=True)[:limit]
    reasons = db.change_reasons([row["message_id"] for row in rows], visible_to=visible_to)
    entries = [_change(row, reasons.get(row["message_id"], _NONE)) for row in rows]
    if tests:
        for entry in entries:
            entry["tests"] = _tests_after(db, entry, visible_to)
    return {
        "path": str(file.path),
        "lines": None if lines is None else list(lines),
        "matched": matched,
        "conversations": _conversations(db, {row["session_id"] for row in changes.rows}),
        "changes": entries,
    }


def _change(row: FileChangeRow, reason: ChangeReason) -> Change:
    """A change as an answer has it, with the reason of its message."""
    return {
        "session_id": row["session_id"],
        "title": row["title"],
        "source": row["source"],
        "time": row["time"],
        "message_id": row["message_id"],
        "kind": row["kind"],
        "path": _full(row),
        "request": shortened_line(reason["request"], TEXT),
        "words": shortened_line(reason["words"], TEXT),
        "resume": f"hermes -r {shlex.quote(row['session_id'])}",
    }


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
    file.find_names()
    return list(dict.fromkeys(row["session_id"] for row in _Changes(file, db, visible_to).rows))


def files_changed(db: SessionDB, session_id: str, *, visible_to: User | None = None) -> list[ChangedFile]:
    """The files that a session changed, by their paths, each with its last change."""
    found: dict[str, ChangedFile] = {}
    for row in db.file_changes(session_id=session_id, visible_to=visible_to):
        file = found.setdefault(_full(row), {"path": _full(row), "changes": 0, "message_id": row["message_id"]})
        file["changes"] += 1
    return [found[path] for path in sorted(found)]


_NONE: ChangeReason = {"request": "", "words": ""}


def _full(row: FileChangeRow) -> str:
    """The path of a change, absolute if the folder of its session is known."""
    if row["path"].startswith("/") or row["path"][1:3] == ":/":  # a drive of Windows
        return row["path"]
    folder = row["cwd"] or ""
    if row["source"] == "zed" and row["path"].startswith(f"{posixpath.basename(folder)}/"):
        folder = posixpath.dirname(folder)  # Zed's paths begin with the name of the project's folder
    return posixpath.normpath(posixpath.join(folder, row["path"]))


# ---------------------------------------------------------------------------------------------- the file in git


@dataclass(slots=True)
class Line:
    """A line of the file: its number, its text, and what git knows of the commit it comes from (nothing: not committed)."""

    number: int
    text: str
    at: float | None = None
    commit: str = ""
    name: str = ""  # of the file in that commit
    origin: int = 0  # the line's number there


@dataclass(slots=True)
class GitFile:
    """A file: its lines, its repository, and the paths it has there. Unless `is_local`, nothing of it is read."""

    path: Path
    is_local: bool
    root: Path | None = None  # of the repository
    lines: list[str] = field(default_factory=list)
    name: str = ""  # its path in the repository; without one, its name alone
    names: set[str] = field(default_factory=set)  # that, and those it had before renames
    _no_filters: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.names = {self.path.name}
        if not self.is_local:
            return
        with suppress(OSError):
            if self.path.is_file():  # a pipe or a device has no end
                content = self.path.read_bytes().decode("utf-8", "surrogateescape")
                self.lines = content.removesuffix("\n").split("\n")
        real = Path(os.path.realpath(self.path))
        root = project_folder(real.parent)
        self.root = root if (root / ".git").exists() else None
        self.name = real.name if self.root is None else real.relative_to(root).as_posix()
        self.names = {self.name}
        if self.root is not None:
            self._no_filters = _without_filters(self.root)

    def _git(self, *words: str) -> str:
        """The output of a git command in the repository."""
        return "" if self.root is None else _git(self.root, *words, settings=self._no_filters)

    def find_names(self) -> None:
        """Add the paths that the file had before it was renamed."""
        log = ("log", "--follow", "-M", "--diff-filter=R", "--name-status", "--format=", "-z", "--", self.name)
        self.names |= {old for old, _ in _RENAMED.findall(self._git(*log))}

    def blamed(self, first: int, last: int) -> list[Line]:
        """These lines with the commits they come from; indentation is no change."""
        blame = self._git("blame", "--no-textconv", "-w", "-M", "--porcelain", "-L", f"{first},{last}", "--", self.name)
        times: dict[str, float] = {}
        paths: dict[str, str] = {}
        found: dict[int, Line] = {}
        commit, origin, number = "", 0, 0
        for line in blame.split("\n"):
            if head := re.match(r"([0-9a-f]{40,}) (\d+) (\d+)", line):
                commit, origin, number = head[1], int(head[2]), int(head[3])
            elif line.startswith("committer-time "):
                times[commit] = float(line.split()[1])
            elif line.startswith("filename "):
                paths[commit] = line.removeprefix("filename ")
            elif line.startswith("\t") and commit.strip("0"):
                found[number] = Line(number, line[1:], times.get(commit), commit, paths.get(commit, ""), origin)
        return [found.get(place) or Line(place, self.lines[place - 1]) for place in range(first, last + 1)]

    def earlier_texts(self, line: Line) -> Iterator[tuple[list[str], float]]:
        """The texts that a committed line and its neighbours had before, newest first, with the time of the commit that replaced
        them."""
        if not line.commit:
            return
        where = f"-L{line.origin},{line.origin}:{line.name or self.name}"
        log = self._git("log", *_PLAIN, where, "--format=%x01%ct", line.commit)
        parts = _COMMIT.split(log)
        for at, diff in zip(parts[1::2], parts[2::2], strict=True):
            removed = [text[1:] for text in diff.partition("\n@@ ")[2].split("\n") if text[:1] == "-"]
            yield removed, float(at)


@lru_cache(maxsize=64)
def first_commits(root: Path) -> frozenset[str]:
    """The commits that a repository began with: clones share them."""
    return frozenset(_git(root, "rev-list", "--max-parents=0", "HEAD").split())


def _without_filters(root: Path) -> dict[str, str]:
    """Settings that empty every filter of a repository: git would run its program on the files that it compares."""
    names = _git(root, "config", "--null", "--name-only", "--get-regexp", r"^filter\.")
    drivers = {name.rpartition(".")[0] for name in names.split("\0") if name.count(".") > 1}
    emptied = [(f"{driver}.{key}", "") for driver in sorted(drivers) for key in ("clean", "smudge", "process")]
    settings = [*emptied, *((f"{driver}.required", "false") for driver in sorted(drivers))]
    found = {"GIT_CONFIG_COUNT": str(len(settings))}
    for number, (key, value) in enumerate(settings):
        found |= {f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value}
    return found


def _git(root: Path, *words: str, settings: Mapping[str, str] | None = None) -> str:
    """The output of a git command in a repository; "" without git, or when it failed or took too long."""
    env = {name: value for name, value in os.environ.items() if name in _KEPT or not name.startswith("GIT_")}
    env |= {"GIT_OPTIONAL_LOCKS": "0", "GIT_LITERAL_PATHSPECS": "1", "GIT_ALLOW_PROTOCOL": "", **(settings or {})}
    command, nothing = ["git", *_SAFE, *words], subprocess.DEVNULL
    try:
        done = subprocess.run(
            command, cwd=root, env=env, stdin=nothing, stdout=subprocess.PIPE, stderr=nothing, timeout=_GIT_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode("utf-8", "surrogateescape") if done.returncode == 0 else ""


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
            (row, added)
            for row, added in self._added
            if wanted and wanted in added and (until is None or row["time"] < until + 1)
        ]
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
