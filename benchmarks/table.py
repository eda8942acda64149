"""Rows, cells and goals, and the Markdown they are printed as.

A cell is the median of its rounds (the worst of them for a "longest" row). A round that failed is said in the
cell; a goal is met only by a cell that has a value.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from benchmarks.contestants import Result

Rounds = dict[str, list[Result]]
Pick = Callable[[Result], float | None]
NONE = "–"


@dataclass(frozen=True)
class Cell:
    """A figure, or why there is none."""

    value: float | None = None
    note: str = ""


@dataclass(frozen=True)
class Goal:
    """A promise in words and as a test of (ours, rival); None when it cannot be told without the rival."""

    text: str
    test: Callable[[float, float | None], bool | None]


@dataclass(frozen=True)
class Columns:
    """The columns of a table: who is in it, whose goals are judged, and against whom."""

    names: dict[str, str]
    judged: str
    against: str
    ratio: str


RIVAL = Columns(
    {"rival": "rival 0.19", "raw": "raw SQLite (the limit)", "ours": "ours"}, "ours", "rival", "ours / rival"
)
ENCRYPTED = Columns({"ours": "plain", "encrypted": "encrypted"}, "encrypted", "ours", "encrypted / plain")
POSTGRES = Columns({"ours": "SQLite", "postgres": "PostgreSQL 18"}, "postgres", "ours", "PostgreSQL / SQLite")


@dataclass(frozen=True)
class Row:
    label: str
    unit: str  # "/s", "ms", "s", "MB", "%", "×" or "" (a count)
    cells: dict[str, Cell]
    goal: Goal | None = None
    columns: Columns = RIVAL

    def met(self) -> str:
        """yes, no, ? (the other's figure is missing) or – (nothing was promised)."""
        if self.goal is None or self.columns.judged not in self.cells:
            return NONE
        mine = self.cells[self.columns.judged].value
        if mine is None:
            return "**no**"
        answer = self.goal.test(mine, self.cells.get(self.columns.against, Cell()).value)
        return "?" if answer is None else "yes" if answer else "**no**"


@dataclass
class Section:
    """The rows of one group, and lines to print below the table."""

    rows: list[Row] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)


def at_least_times(times: float) -> Goal:
    return Goal(f"≥ {times:g}× the rival", lambda ours, rival: None if rival is None else ours >= times * rival)


def at_most(limit: float, text: str) -> Goal:
    return Goal(text, lambda ours, _: ours <= limit)


def at_least(limit: float, text: str) -> Goal:
    return Goal(text, lambda ours, _: ours >= limit)


def ahead() -> Goal:
    return Goal("ahead of the rival", lambda ours, rival: None if rival is None else ours < rival)


def both(first: Goal, second: Goal) -> Goal:
    def test(ours: float, rival: float | None) -> bool | None:
        answers = (first.test(ours, rival), second.test(ours, rival))
        return False if False in answers else None if None in answers else True

    return Goal(f"{first.text}; {second.text}", test)


def cells(rounds: Rounds, pick: Pick, over: Callable[[Iterable[float]], float] = statistics.median) -> dict[str, Cell]:
    """One cell a contestant: `pick` from each round that worked, put together by `over`."""
    return {key: _cell(results, pick, over) for key, results in rounds.items()}


def _cell(results: list[Result], pick: Pick, over: Callable[[Iterable[float]], float]) -> Cell:
    errors = [str(result["error"]) for result in results if "error" in result]
    values = [value for result in results if "error" not in result and (value := pick(result)) is not None]
    if not values:
        return Cell(note=f"failed: {errors[0]}" if errors else NONE)
    note = f"({len(errors)} of {len(results)} rounds failed: {errors[0]})" if errors else ""
    return Cell(over(values), note)


def failed(label: str, reason: str, keys: Iterable[str], goal: Goal | None = None) -> Row:
    """A row whose measurement could not even begin."""
    return Row(label, "", {key: Cell(note=f"failed: {reason}") for key in keys}, goal)


def render(rows: list[Row]) -> str:
    """All rows; a table for each set of columns."""
    tables = {row.columns.ratio: row.columns for row in rows}
    return "\n\n".join(_table(columns, [row for row in rows if row.columns is columns]) for columns in tables.values())


def _table(columns: Columns, rows: list[Row]) -> str:
    lines = [
        "| " + " | ".join(["measured", *columns.names.values(), columns.ratio, "goal", "met"]) + " |",
        "|---|" + "--:|" * (len(columns.names) + 1) + "---|---|",
    ]
    for row in rows:
        parts = [row.label, *(_show(row.cells.get(key, Cell()), row.unit) for key in columns.names)]
        parts += [_ratio(row), row.goal.text if row.goal else NONE, row.met()]
        lines.append("| " + " | ".join(part.replace("|", "\\|") for part in parts) + " |")
    return "\n".join(lines)


def _show(cell: Cell, unit: str) -> str:
    if cell.value is None:
        return cell.note or NONE
    return f"{_figure(cell.value, unit)} {cell.note}".rstrip()


def _figure(value: float, unit: str) -> str:
    if unit == "":
        return f"{value:,.0f}"
    if unit == "%":
        return f"{value:.1f} %"
    if unit == "×":
        return f"{value:.2f}×"
    if unit == "ms" and value >= 1000:
        return f"{value / 1000:,.2f} s"
    return f"{_digits(value)} {unit}".replace(" /s", "/s")


def _digits(value: float) -> str:
    places = 0 if value >= 100 else 1 if value >= 10 else 2 if value >= 0.1 else 3
    return f"{value:,.{places}f}"


def _ratio(row: Row) -> str:
    mine, theirs = (row.cells.get(key, Cell()).value for key in (row.columns.judged, row.columns.against))
    if mine is None or not theirs or row.unit in ("%", ""):
        return NONE
    return f"{mine / theirs:.3g}×"
