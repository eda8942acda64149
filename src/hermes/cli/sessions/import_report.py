"""What `hermes sessions import` prints at its end: what came in, and one line for each cause of what did not."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from hermes.interop.formats import Problem
from hermes.texts import counted, one_line

_MOST_CAUSES = 50
_EACH = 3  # as many problems of one cause in a file are listed one by one
_NUMBERS = 5  # lines that are named where there are more
# What differs between two problems of the same cause: names of sessions and files, details, numbers.
_DIFFERING = re.compile(r"\(.*?\)|'.*?'|^(?:session|attachment) \S+: |^\S+\.jsonl?: |[0-9a-f]{8,}|\d+")


@dataclass(slots=True)
class ImportReport:
    """Collects counts and problems of an import."""

    counts: Counter[str] = field(default_factory=Counter)
    problems: list[Problem] = field(default_factory=list)

    def found(self) -> int:
        """How many sessions the files have had so far, whatever became of them, and how much damage."""
        sessions = sum(self.counts[name] for name in ("sessions", "updated", "skipped", "deleted"))
        return sessions + sum(one.unknown is None for one in self.problems)

    def nothing_in(self, name: str, *, is_chosen: bool) -> None:
        """Note that a path that was named brought nothing: that is a failure, not a success without a word."""
        which = " that --since and --folder select" if is_chosen else ""
        self.problems.append(Problem(0, f"{one_line(name)}: there is no conversation in it{which}"))

    def print(self, dry_run: bool) -> int:
        """Print what was imported and what was not; returns the exit status."""
        verb, counts = ("would be imported" if dry_run else "imported"), self.counts
        updated = f", {counted(counts['updated'], 'session')} updated" if counts["updated"] else ""
        print(f"{counted(counts['sessions'], 'session')} with {counted(counts['messages'], 'message')} {verb}{updated};"
              f" {counted(counts['skipped'], 'session')} already here")  # fmt: skip
        if counts["trashed"]:
            print(f"{counts['trashed']} of them {'is' if counts['trashed'] == 1 else 'are'} in the trash;"
                  " `hermes sessions restore ID` brings one back")  # fmt: skip
        if counts["deleted"]:
            print(f"{counted(counts['deleted'], 'session')} deleted here before {'was' if counts['deleted'] == 1 else 'were'}"
                  " left out; --again imports what was not shredded")  # fmt: skip
        damaged = [one for one in self.problems if one.unknown is None]
        for line in damage_lines(damaged):
            print(f"hermes: {line}", file=sys.stderr)
        unknown: Counter[str] = Counter()
        files: dict[str, set[Path | None]] = {}
        for one in self.problems:
            if one.unknown is not None:
                unknown[one.unknown] += one.times
                files.setdefault(one.unknown, set()).add(one.path)
        for kind, times in unknown.most_common(_MOST_CAUSES):
            print(f"hermes: skipped {counted(times, 'record')} of an unknown type: {one_line(kind)}"
                  f" (in {counted(len(files[kind]), 'file')})", file=sys.stderr)  # fmt: skip
        if len(unknown) > _MOST_CAUSES:
            print(f"hermes: … and of {len(unknown) - _MOST_CAUSES} more types", file=sys.stderr)
        return 1 if damaged else 0


def place(problem: Problem) -> str:
    """Where a problem is, before its reason."""
    file = f"{problem.path.name}: " if problem.path is not None else ""
    return f"{file}line {problem.line}: " if problem.line else file


def damage_lines(problems: Iterable[Problem]) -> Iterator[str]:
    """A line for each cause, or a few where it is rare; their number is bounded however much is damaged."""
    causes: dict[str, dict[Path | None, list[Problem]]] = {}
    for one in problems:
        causes.setdefault(_DIFFERING.sub("", one.reason), {}).setdefault(one.path, []).append(one)
    for number, files in enumerate(causes.values()):
        if number == _MOST_CAUSES:
            rest = sum(len(some) for more in list(causes.values())[number:] for some in more.values())
            yield f"… and {counted(rest, 'problem')} of {counted(len(causes) - number, 'other cause')}"
            return
        for some in list(files.values())[:_EACH]:
            yield from _of_a_file(some)
        if len(files) > _EACH:
            rest = sum(len(some) for some in list(files.values())[_EACH:])
            yield f"… and {counted(rest, 'problem')} of the same cause in {counted(len(files) - _EACH, 'other file')}"


def _of_a_file(problems: list[Problem]) -> Iterator[str]:
    first = problems[0]
    if len(problems) <= _EACH:
        yield from (f"{place(one)}{one.reason}" for one in problems)
    elif first.line:
        file = f"{first.path.name}: " if first.path is not None else ""
        numbers = list(dict.fromkeys(one.line for one in problems))
        named, rest = ", ".join(map(str, numbers[:_NUMBERS])), len(numbers) - _NUMBERS
        yield f"{file}lines {named}{f' and {rest:,} more' if rest > 0 else ''}: {first.reason}"
    else:
        yield f"{place(first)}{first.reason} (and {len(problems) - 1:,} more of this cause)"
