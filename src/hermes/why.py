"""Which conversation made a file, or a line of it: what tool calls changed (SessionDB.file_changes) against what git knows.

A path is recorded as it was when the file was changed. The same file is found again by its path, by its path in the
repository (a moved or cloned folder), and under the names it had before git renamed it. A line is found by its text among the
lines that the changes added, before the commit that git blames for it; failing that, by the texts it had in earlier commits.
"""

from __future__ import annotations

import os
import posixpath
import re
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NotRequired, TypedDict

from hermes.errors import InvalidInput
from hermes.home import project_folder
from hermes.store.codec import from_json
from hermes.store.file_edits import WRITE, calls_in, hashes_in, is_failure, line_hash
from hermes.texts import content_text, counted, one_line, shortened_line
from hermes.times import ago

if TYPE_CHECKING:
    from datetime import tzinfo

    from hermes.store.db import SessionDB
    from hermes.store.rows import FileChangeRow
    from hermes.store.visibility import User

Matched = Literal["line", "file", "nothing"]
TEXT = 300  # characters of a request or of the agent's words
_GIT_SECONDS = 20.0
_AROUND = 3  # lines before and after one that tell repeated lines apart
_SIMILAR = 0.6  # of two texts that are versions of one line, by difflib
_MOST_TRACED = 20  # lines of one question whose earlier texts are looked for
_WHERE = re.compile(r"(.+?):(\d+)(?:-(\d+)|:\d+)?:?\Z", re.S)
_HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")


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


class Answer(TypedDict):
    """The conversations that made a file, or some lines of it."""

    path: str
    lines: list[int] | None
    matched: Matched
    conversations: int
    changes: list[Change]


def parsed(words: str, folder: Path) -> tuple[Path, tuple[int, int] | None]:
    """FILE, FILE:LINE or FILE:LINE-LINE as a path and its lines; a file whose name reads like that is the file."""
    found = _WHERE.match(words)
    if found is None or (folder / words).exists():
        return folder / Path(words).expanduser(), None
    first, last = int(found[2]), int(found[3] or found[2])
    return folder / Path(found[1]).expanduser(), (min(first, last), max(first, last))


def why(
    db: SessionDB, path: Path, lines: tuple[int, int] | None = None, *, limit: int | None = None, tests: bool = False,
    visible_to: User | None = None, is_local: bool = True,
) -> Answer:  # fmt: skip
    """Who changed this file, or these lines of it, newest first. InvalidInput for lines that the file does not have.

    Unless `is_local`, no file of this machine is read (the person who asks may not): the path as recorded answers, by its end.
    """
    file = _File(Path(os.path.abspath(path)) if is_local else path, is_local)
    if is_local and lines is not None and not 1 <= lines[0] <= lines[1] <= len(file.lines):
        has = f"has {len(file.lines)} lines" if file.lines else "is not a file that can be read"
        raise InvalidInput(f"{path} {has}; there is no line {lines[1] if lines[0] else 0}")
    blamed = file.blamed(*lines) if is_local and lines is not None else []
    file.names |= {one.name for one in blamed if one.name} if lines is not None else file.earlier_names()
    changes = _Changes(file, db, visible_to)
    found = changes.of_lines(blamed)
    if lines is not None and not found and file.names != (names := file.earlier_names()):
        file.names |= names
        changes = _Changes(file, db, visible_to)
        found = changes.of_lines(blamed)
    matched: Matched = "line" if found else "file" if changes.rows else "nothing"
    rows = sorted(found or changes.rows, key=lambda row: (row["time"], row["message_id"]), reverse=True)[:limit]
    reasons = db.change_reasons([row["message_id"] for row in rows], visible_to=visible_to)
    told: list[Change] = [
        {
            "session_id": row["session_id"], "title": row["title"], "source": row["source"], "time": row["time"],
            "message_id": row["message_id"], "kind": row["kind"], "path": _full(row),
            "request": shortened_line(reasons.get(row["message_id"], _NONE)["request"], TEXT),
            "words": shortened_line(reasons.get(row["message_id"], _NONE)["words"], TEXT),
            "resume": f"hermes -r {row['session_id']}",
        } for row in rows
    ]  # fmt: skip
    if tests:
        for one in told:
            one["tests"] = _tests_after(db, one, visible_to)
    chains = {db.get_compression_chain(row["session_id"])[0] for row in changes.rows}
    return {
        "path": str(file.path), "lines": None if lines is None else list(lines), "matched": matched,
        "conversations": len(chains), "changes": told,
    }  # fmt: skip


def sessions_that_changed(db: SessionDB, file: str, folder: Path) -> list[str]:
    """The sessions that changed a file, the latest change first."""
    path, _ = parsed(file, folder)
    here = _File(Path(os.path.abspath(path)), True)
    here.names |= here.earlier_names()
    return list(dict.fromkeys(row["session_id"] for row in _Changes(here, db, None).rows))


_NONE = {"request": "", "words": ""}


def _full(row: FileChangeRow) -> str:
    """The path of a change, absolute if the folder of its session is known."""
    return posixpath.normpath(posixpath.join(row["cwd"] or "", row["path"]))


# ---------------------------------------------------------------------------------------------- the file, and git


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
class _File:
    path: Path
    is_local: bool
    root: Path | None = None  # of the repository
    lines: list[str] = field(default_factory=list)
    name: str = ""  # its path in the repository; without one, its name alone
    names: set[str] = field(default_factory=set)  # that, and those it had before renames

    def __post_init__(self) -> None:
        self.names = {self.path.name}
        if not self.is_local:
            return
        try:
            self.lines = self.path.read_text("utf-8", "surrogateescape").removesuffix("\n").split("\n")
        except OSError:
            self.lines = []
        real = Path(os.path.realpath(self.path))
        root = project_folder(real.parent)
        self.root = root if (root / ".git").exists() else None
        self.name = real.name if self.root is None else real.relative_to(root).as_posix()
        self.names = {self.name}

    def _git(self, *words: str) -> str:
        """The output of a git command in the repository; "" when there is none, or it fails."""
        return "" if self.root is None else _git(self.root, *words)

    def earlier_names(self) -> set[str]:
        """The paths that the file had before it was renamed."""
        told = self._git("log", "--follow", "-M", "--diff-filter=R", "--name-status", "--format=", "--", self.name)
        return {line.split("\t")[1] for line in told.split("\n") if line.count("\t") == 2} | self.names

    def blamed(self, first: int, last: int) -> list[Line]:
        """These lines with the commits they come from; indentation is no change."""
        told = self._git("blame", "-w", "-M", "--porcelain", "-L", f"{first},{last}", "--", self.name)
        times: dict[str, float] = {}
        paths: dict[str, str] = {}
        found: dict[int, Line] = {}
        commit, origin, number = "", 0, 0
        for line in told.split("\n"):
            if head := re.match(r"([0-9a-f]{40,}) (\d+) (\d+)", line):
                commit, origin, number = head[1], int(head[2]), int(head[3])
            elif line.startswith("committer-time "):
                times[commit] = float(line.split()[1])
            elif line.startswith("filename "):
                paths[commit] = line.removeprefix("filename ")
            elif line.startswith("\t") and commit.strip("0"):
                found[number] = Line(number, line[1:], times.get(commit), commit, paths.get(commit, ""), origin)
        return [found.get(one) or Line(one, self.lines[one - 1]) for one in range(first, last + 1)]

    def earlier_texts(self, line: Line) -> Iterator[tuple[list[str], float | None]]:
        """The texts that a line and its neighbours had before, newest first, with the time of the commit that replaced them."""
        commit, name, first, last = line.commit or "HEAD", line.name or self.name, line.origin, line.origin
        if not line.commit:
            hunk = _hunk(self._git("diff", "--no-ext-diff", "-U0", "HEAD", "--", name), line.number)
            if hunk is None:
                return
            removed, first, last = hunk
            yield removed, None
        told = self._git("log", "--no-ext-diff", f"-L{first},{last}:{name}", "--format=%x01%ct", commit)
        for part in told.split("\x01")[1:]:
            at, _, diff = part.partition("\n")
            yield [one[1:] for one in diff.split("\n") if one[:1] == "-" and not one.startswith("--- ")], float(at)


def _git(root: Path, *words: str) -> str:
    """The output of a git command; "" if it fails."""
    command = ["git", "-c", "core.fsmonitor=false", "-c", "core.quotepath=false", *words]
    try:
        done = subprocess.run(command, cwd=root, capture_output=True, timeout=_GIT_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode("utf-8", "surrogateescape") if done.returncode == 0 else ""


@lru_cache(maxsize=64)
def _first_commits(root: Path) -> frozenset[str]:
    """The commits that a repository began with: clones share them."""
    return frozenset(_git(root, "rev-list", "--max-parents=0", "HEAD").split())


def _hunk(diff: str, number: int) -> tuple[list[str], int, int] | None:
    """The lines that the hunk with this new line replaced, and where they were; None where it replaced none."""
    removed: list[str] | None = None
    first = last = 0
    for line in diff.split("\n"):
        if head := _HUNK.match(line):
            if removed is not None:
                break
            old, count = int(head[1]), int(head[2] or 1)
            begins, size = int(head[3]), int(head[4] or 1)
            if begins <= number < begins + size and count:
                removed, first, last = [], old, old + count - 1
        elif removed is not None and line[:1] == "-":
            removed.append(line[1:])
    return None if removed is None else (removed, first, last)


# ---------------------------------------------------------------------------------------------- changes of this file


class _Changes:
    """The changes in the record that are changes of this file."""

    def __init__(self, file: _File, db: SessionDB, visible_to: User | None) -> None:
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
            if f"/{where}".endswith(f"/{name}"):
                return where[: -len(name)].rstrip("/")
        inside = posixpath.relpath(where, cwd) if cwd and where.startswith(f"{cwd.rstrip('/')}/") else ""
        if inside and any(here.endswith(f"/{inside}") for here in self._here):
            return cwd
        return None

    def _is_this_project(self, base: str, rows: Sequence[FileChangeRow]) -> bool:
        """Whether changes below another folder are of this file: its lines are here, or the folder was moved here. A folder that
        is a repository with another beginning is another project, however alike."""
        if self._file.root is not None and os.path.exists(posixpath.join(base, ".git")):
            return bool(_first_commits(Path(base)) & _first_commits(self._file.root))
        added = [hashes_in(row["lines"]) for row in rows]
        every = set().union(*added)
        held = every & self._content
        if held and len(held) >= min(3, len(every)) and any(2 * len(one & held) >= len(one) for one in added if one):
            return True
        root = self._file.root or self._file.path.parent
        return posixpath.basename(base) == root.name and not any(os.path.exists(_full(row)) for row in rows)

    # ------------------------------------------------------------------------------------------ lines

    def of_lines(self, lines: Sequence[Line]) -> list[FileChangeRow]:
        """The changes that these lines come from, each once."""
        found: dict[tuple[int, str], FileChangeRow] = {}
        left = _MOST_TRACED
        for line in lines:
            row = self._author(line.text, line.number, line.at)
            if row is None and left and self.rows and line.text.strip():
                left -= 1
                row = self._earlier_author(line)
            if row is not None:
                found[row["message_id"], row["path"]] = row
        return list(found.values())

    def _author(self, text: str, number: int, until: float | None) -> FileChangeRow | None:
        """The newest change that added this text, up to a time (of a commit, in whole seconds).

        Of a repeated line, one that also added its neighbours. A change that writes the whole file writes the lines that were
        there again: an earlier one that added the line made it.
        """
        wanted = line_hash(text)
        those = [
            (row, added) for row, added in self._added
            if wanted and wanted in added and (until is None or row["time"] < until + 1)
        ]  # fmt: skip
        near = self._file.lines[max(0, number - 1 - _AROUND) : number - 1] + self._file.lines[number : number + _AROUND]
        around = {line_hash(line) for line in near} - {b"", wanted}
        fitting = [row for row, added in those if 2 * len(added & around) >= min(len(around), len(added) - 1)]
        rows = fitting or [row for row, _ in those]
        return next((row for row in rows if row["kind"] != WRITE), rows[-1] if rows else None)

    def _earlier_author(self, line: Line) -> FileChangeRow | None:
        """The change that added an earlier text of a line: of those that a commit replaced, the most similar one."""

        def likeness(text: str) -> float:
            return SequenceMatcher(None, text.strip(), line.text.strip()).ratio()

        for texts, until in self._file.earlier_texts(line):
            text = max(texts, key=likeness, default="")
            row = self._author(text, line.number, until) if likeness(text) >= _SIMILAR else None
            if row is not None:
                return row
        return None


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
    for one in answer["changes"]:
        yield ""
        yield f"{ago(one['time'], zone)} · {one['source']} · {one_line(one['title']) or '—'}"
        if one["path"] != answer["path"]:
            yield f"  file     {one['path']}"
        for name, text in (("asked", one["request"]), ("said", one["words"])):
            if text:
                yield f"  {name:<8} {text}"
        for run in one.get("tests", ()):
            verdict = {True: "passed", False: "failed", None: "result unknown"}[run["passed"]]
            yield f"  {'tests':<8} {run['command']}: {verdict}"
        yield f"  {'message':<8} {one['message_id']} ({one['kind']})"
        yield f"  {'resume':<8} {one['resume']}"


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
    given = from_json(arguments) if isinstance(arguments, str) else arguments
    if not isinstance(given, dict):
        return ""
    command = next((given[name] for name in ("command", "cmd", "commands") if given.get(name)), "")
    return " ".join(map(str, command)) if isinstance(command, list) else str(command)


def _passed(output: str, meta: Any) -> bool | None:
    """Whether a test run passed: its exit status, else its summary, else unknown."""
    if status := _STATUS.search(output[:200]) or _STATUS.search(output[-200:]):
        return int(status[1]) == 0
    if _FAILURES.search(output) or is_failure(output, meta):
        return False
    return True if _SUCCESS.search(output) else None
