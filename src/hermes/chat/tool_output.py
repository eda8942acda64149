"""What the screen shows of a tool's output: its last lines while it runs, its end folded afterwards, a diff in colour."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hermes.texts import counted, harmless

if TYPE_CHECKING:
    from rich.text import Text

RUNNING_LINES = 6
FOLDED_LINES = 4  # of a command that is over; /show shows all
DIFF_LINES = 40
DIFFS = frozenset(("write_file", "edit_file"))  # tools whose output is a diff
INDENT = "    "


def last_lines(text: str, count: int) -> list[str]:
    """The last non-empty end of an output, as plain lines."""
    lines = harmless(text).expandtabs(8).rstrip().split("\n")
    return lines[-count:] if count > 0 and lines != [""] else []


def folded(name: str, text: str) -> list[str]:
    """The lines that stand below a finished call, the note about the hidden ones included."""
    lines = harmless(text).expandtabs(8).rstrip().split("\n")
    if lines == [""]:
        return []
    if name in DIFFS:
        if len(lines) <= DIFF_LINES:
            return lines
        return [*lines[: DIFF_LINES - 1], f"… {counted(len(lines) - DIFF_LINES + 1, 'more line')}: /show"]
    if len(lines) <= FOLDED_LINES + 1:  # a note would take the room of the line it hides
        return lines
    return [f"… {counted(len(lines) - FOLDED_LINES, 'line')} above: /show", *lines[-FOLDED_LINES:]]


def styled_lines(name: str, lines: list[str], width: int) -> list[Text]:
    """The lines indented, dim or, in a diff, in its colours; each on one line of the screen."""
    from rich.text import Text

    made = []
    for line in lines:
        one = Text(INDENT + line, style=_style(name, line), no_wrap=True, overflow="ellipsis")
        one.truncate(width, overflow="ellipsis")
        made.append(one)
    return made


def _style(name: str, line: str) -> str:
    if name in DIFFS:
        if line.startswith("+") and not line.startswith("+++"):
            return "green"
        if line.startswith("-") and not line.startswith("---"):
            return "red"
        if line.startswith("@@"):
            return "bold dim"
    return "dim"
