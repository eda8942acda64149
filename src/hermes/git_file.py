"""A file and its lines as git knows them: the commits they come from, the texts they had before, the file's earlier names.

Without a repository, or without git, a file has its lines and its path alone. A command that takes too long is given up: in a
long history, its result is left out. No program that a repository's own configuration names is run, and nothing is
fetched: the repository may come from others.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from hermes.home import project_folder

_GIT_SECONDS = 5.0  # of one command
_SAFE = (
    *("-c", "core.quotepath=false", "-c", "color.ui=false", "-c", "color.diff=false"),
    *("-c", "core.fsmonitor=false", "-c", f"core.hooksPath={os.devnull}", "-c", "log.showSignature=false"),
)
_KEPT = ("GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM", "GIT_CONFIG_NOSYSTEM", "GIT_EXEC_PATH")
_PLAIN = ("--no-ext-diff", "--no-textconv", "--ignore-submodules=all")
_COMMIT = re.compile(r"^\x01(\d+)\n", re.M)  # a line of a diff never begins so
_RENAMED = re.compile(r"R\d+\0([^\0]+)\0([^\0]+)\0")  # with -z
_HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")


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
    _names: subprocess.Popen[bytes] | None = None
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
        return "" if self.root is None else _output(_start(self.root, *words, settings=self._no_filters))

    def start_names(self) -> None:
        """Begin to look for the paths that the file had before it was renamed."""
        options = ("--follow", "-M", "--diff-filter=R", "--name-status", "--format=", "-z")
        self._names = None if self.root is None else _start(self.root, "log", *options, "--", self.name)

    def finish_names(self) -> None:
        """Add the paths that `start_names` looks for to the file's names."""
        self.names |= {old for old, _ in _RENAMED.findall(_output(self._names))}

    def add_staged_name(self) -> bool:
        """Add the path that the file had before a rename that is not committed yet; whether there is one."""
        diff = self._git("diff", *_PLAIN, "-M", "--name-status", "-z", "--diff-filter=R", "HEAD")
        before = {old for old, new in _RENAMED.findall(diff) if new == self.name}
        self.names |= before
        return bool(before)

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

    def earlier_texts(self, line: Line) -> Iterator[tuple[list[str], float | None]]:
        """The texts that a line and its neighbours had before, newest first, with the time of the commit that replaced them."""
        commit, name, first, last = line.commit or "HEAD", line.name or self.name, line.origin, line.origin
        if not line.commit:
            hunk = _hunk(self._git("diff", *_PLAIN, "-U0", "HEAD", "--", name), line.number)
            if hunk is None:
                return
            removed, first, last = hunk
            yield removed, None
        log = self._git("log", *_PLAIN, f"-L{first},{last}:{name}", "--format=%x01%ct", commit)
        parts = _COMMIT.split(log)
        for at, diff in zip(parts[1::2], parts[2::2], strict=True):
            removed = [text[1:] for text in diff.partition("\n@@ ")[2].split("\n") if text[:1] == "-"]
            yield removed, float(at)


@lru_cache(maxsize=64)
def first_commits(root: Path) -> frozenset[str]:
    """The commits that a repository began with: clones share them."""
    return frozenset(_output(_start(root, "rev-list", "--max-parents=0", "HEAD")).split())


def _without_filters(root: Path) -> dict[str, str]:
    """Settings that empty every filter of a repository: git would run its program on the files that it compares."""
    names = _output(_start(root, "config", "--null", "--name-only", "--get-regexp", r"^filter\."))
    drivers = {name.rpartition(".")[0] for name in names.split("\0") if name.count(".") > 1}
    emptied = [(f"{driver}.{key}", "") for driver in sorted(drivers) for key in ("clean", "smudge", "process")]
    settings = [*emptied, *((f"{driver}.required", "false") for driver in sorted(drivers))]
    found = {"GIT_CONFIG_COUNT": str(len(settings))}
    for number, (key, value) in enumerate(settings):
        found |= {f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value}
    return found


def _start(root: Path, *words: str, settings: Mapping[str, str] | None = None) -> subprocess.Popen[bytes] | None:
    """A git command in a repository, running; None without git."""
    env = {name: value for name, value in os.environ.items() if name in _KEPT or not name.startswith("GIT_")}
    env |= {"GIT_OPTIONAL_LOCKS": "0", "GIT_LITERAL_PATHSPECS": "1", "GIT_ALLOW_PROTOCOL": "", **(settings or {})}
    try:
        return subprocess.Popen(
            ["git", *_SAFE, *words], cwd=root, env=env,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
    except OSError:
        return None


def _output(process: subprocess.Popen[bytes] | None) -> str:
    """The output of a git command; "" when it failed, or took too long."""
    if process is None:
        return ""
    with process:
        try:
            output, _ = process.communicate(timeout=_GIT_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            return ""
    return output.decode("utf-8", "surrogateescape") if process.returncode == 0 else ""


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
