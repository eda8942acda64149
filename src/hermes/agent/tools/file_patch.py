"""Applying a unified diff to a text. Line numbers are only a hint: models count badly, and quote the lines well."""

from __future__ import annotations

import re
from dataclasses import dataclass

from hermes.errors import ToolError

_FILE_HEADS = ("--- ", "+++ ", "diff ", "index ")
_HEAD = re.compile(r"^@@(?: -(\d+)(?:,\d+)? \+\d+(?:,\d+)? @@.*| .*|)$")


@dataclass(slots=True)
class _Hunk:
    line: int  # where it says it begins; 0: it does not say
    old: list[str]
    new: list[str]


def patched(text: str, patch: str) -> str:
    """The text with every hunk applied; ToolError when one does not fit, and then nothing is changed."""
    ending = "\r\n" if "\r\n" in text else "\n"
    lines = text.split(ending)
    moved = 0
    hunks = _hunks(patch)
    if not hunks:
        raise ToolError("the patch has no hunks; it is a unified diff with lines that begin with @@, space, + and -")
    for number, hunk in enumerate(hunks, 1):
        place = _place(lines, hunk, moved, number)
        lines[place : place + len(hunk.old)] = hunk.new
        moved += len(hunk.new) - len(hunk.old)
    return ending.join(lines)


def _hunks(patch: str) -> list[_Hunk]:
    made: list[_Hunk] = []
    for line in patch.replace("\r\n", "\n").rstrip("\n").split("\n"):
        head = _HEAD.match(line)
        if head is not None:
            made.append(_Hunk(int(head[1] or 0), [], []))
        elif not made:
            if line.strip() and not line.startswith(_FILE_HEADS):
                raise ToolError(f"the patch begins with no hunk (@@) but with {line[:80]!r}")
        elif not line.startswith("\\"):  # "\ No newline at end of file"
            sign, rest = (line[0], line[1:]) if line else (" ", "")
            if sign not in " +-":
                raise ToolError(f"a line of the patch begins with neither space, + nor -: {line[:80]!r}")
            if sign != "+":
                made[-1].old.append(rest)
            if sign != "-":
                made[-1].new.append(rest)
    return [hunk for hunk in made if hunk.old or hunk.new]


def _place(lines: list[str], hunk: _Hunk, moved: int, number: int) -> int:
    """The line at which a hunk's old lines stand: the only place, or of several the one nearest to where it says."""
    said = max(0, hunk.line - 1 + moved)
    if not hunk.old:
        if not hunk.line:
            raise ToolError(f"hunk {number} only adds lines and does not say where: quote a line around them")
        return min(said + 1, len(lines))
    size = len(hunk.old)
    found = [at for at in range(len(lines) - size + 1) if lines[at : at + size] == hunk.old]
    if not found:
        raise ToolError(f"hunk {number} does not fit: its lines are not in the file as they are quoted; read it again")
    if len(found) > 1 and not hunk.line:
        raise ToolError(f"hunk {number} fits in {len(found)} places; quote more lines around it")
    return min(found, key=lambda at: abs(at - said))
