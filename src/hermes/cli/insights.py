"""`hermes insights`: totals, bars by model, source, tool, weekday and hour, and the longest sessions of the last days.

Every part is a table whose columns fit the width; colour is added only where a terminal wants it and changes nothing about
the letters.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING

import click

from hermes.cli.options import json_option, source_option
from hermes.cli.output import (
    BOLD,
    CYAN,
    DIM,
    RULE,
    Column,
    cells,
    colourful,
    pad,
    print_json,
    screen_width,
    styled,
    table,
    wrap,
)
from hermes.cli.record import opened, zone
from hermes.texts import counted, one_line
from hermes.times import now, rough_duration

if TYPE_CHECKING:
    from hermes.store.records.rows import Insights, InsightsCost, InsightsSession

LEAST, MOST = 16, 120
_EIGHTHS = " ▏▎▍▌▋▊▉█"
_LEVELS = " ▁▂▃▄▅▆▇█"
_DRAWN = re.compile(f"[{_EIGHTHS[1:]}{_LEVELS[1:]}]+")
_WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_LONGEST_BAR = 60
_TOOLS = 10

Row = tuple[str, float, tuple[str, ...]]  # a name, the length of its bar, the numbers beside it


@click.command()
@click.option(
    "--days", type=click.IntRange(1), metavar="N", default=30, show_default=True, help="How many days, today included."
)
@source_option()
@json_option("Print one JSON object.")
def command(days: int, source: str | None, as_json: bool) -> None:
    """Sessions, messages, tokens and cost of the last days, by model, source and tool, and when you talked."""
    where = zone()
    with opened() as db:
        found = db.insights(days, source, now=now(), timezone=where, whole_days=True)
    if as_json:
        print_json(found)
    else:
        click.echo(draw(found, width=screen_width(), colour=colourful()))


def draw(found: Insights, *, width: int, colour: bool = False) -> str:
    """The whole report as text, without a line break at its end."""
    width = max(LEAST, min(width, MOST))
    source = one_line(found["source"])
    title = "Insights · last " + (counted(int(found["days"]), "day") if found["days"] != 1 else "day")
    first, last = map(datetime.fromisoformat, found["local"])
    dates = f"{first:%d %b %Y, %H:%M} – {last:%d %b %Y, %H:%M}, {found['timezone']}"
    about = [*wrap(title + (f" · {source}" if source else ""), width), *wrap(dates, width)]
    out = [styled(about[0], BOLD, on=colour), *(styled(line, DIM, on=colour) for line in about[1:]), RULE * width]
    if not found["sessions"]:
        where = f" in the source {source}" if source else ""
        hint = "`hermes` starts one; `hermes insights --days 365` looks further back."
        return "\n".join([*out, *wrap(f"No conversations in this time{where}.", width), *wrap(hint, width)])
    out += _totals(found, width)
    days = zip(_WEEKDAYS, found["by_weekday"], strict=True) if found["messages"] else ()
    parts = [
        _bars("Models", ("replies", "tokens", "cost"), _models(found), width),
        _bars("Sources", ("sessions", "messages", "cost"), _sources(found), width),
        _bars("Tools", ("calls",), _tools(found), width),
        _bars("Weekdays", ("messages",), [(name, number, (f"{number:,}",)) for name, number in days], width),
        _hours(found["by_hour"]) if found["messages"] else [],
        _sessions("Longest sessions", found["longest"], width),
        _sessions("Costliest sessions", found["costliest"], width),
    ]
    for head, *lines in filter(None, parts):
        out += ["", styled(head, BOLD, on=colour)]
        out += [_DRAWN.sub(lambda bar: styled(bar[0], CYAN, on=colour), line) for line in lines]
    return "\n".join(text.rstrip() for text in out)


def short(number: int) -> str:
    """A number in at most five characters: 950, 12.3K, 4.1M."""
    for size, letter in ((10**12, "T"), (10**9, "G"), (10**6, "M"), (10**3, "K")):
        if number >= size:
            value = number / size
            return f"{value:.0f}{letter}" if value >= 99.95 else f"{value:.1f}{letter}"
    return str(number)


def dollars(usd: float | None) -> str:
    """A sum as $1.23; small sums keep two significant digits; an unknown one is a dash."""
    if usd is None:
        return "—"
    if usd and abs(usd) < 0.01:
        return f"${usd:.4f}" if abs(usd) >= 0.0001 else "<$0.0001"
    return f"${usd:,.2f}"


# ---------------------------------------------------------------------------------------------- the parts


def _totals(found: Insights, width: int) -> list[str]:
    tokens, streaks = found["tokens"], found["streaks"]
    sessions = [f"{found['sessions']:,}"]
    if found["conversations"] != found["sessions"]:
        sessions.append(counted(found["conversations"], "conversation"))
        sessions += [counted(found["automated_runs"], "automated run")] if found["automated_runs"] else []
    rows = {
        "Sessions": sessions,
        "Messages": [f"{found['messages']:,}", f"{found['tool_calls']:,} tool calls"],
        "Tokens": [
            f"{tokens['input']:,} input",
            f"{tokens['output']:,} output ({tokens['reasoning']:,} reasoning)",
            f"{tokens['cache_read']:,} cache read",
            f"{tokens['cache_write']:,} cache written",
        ],
        "Cost": _cost(found["cost"]),
        "Days active": [f"{streaks['days_active']}", f"streak {streaks['current']}", f"longest {streaks['longest']}"],
    }
    out, indent = [], 13
    for label, parts in rows.items():
        first, *others = wrap(", ".join(parts), max(1, width - indent))
        out += [pad(label, indent) + first, *(" " * indent + line for line in others)]
    return out


def _cost(cost: InsightsCost) -> list[str]:
    parts = []
    if cost["estimated_usd"] is not None:
        parts.append(f"{dollars(cost['estimated_usd'])} estimated")
    if cost["actual_usd"] is not None:
        parts.append(f"{dollars(cost['actual_usd'])} billed")
    if cost["unknown_sessions"]:
        parts.append(f"price unknown for {counted(cost['unknown_sessions'], 'session')}")
    return parts or ["none recorded"]


def _models(found: Insights) -> list[Row]:
    rows: list[Row] = []
    for row in found["by_model"]:
        used = sum(row["tokens"][name] for name in ("input", "cache_read", "cache_write", "output"))
        numbers = (short(row["replies"]), short(used), dollars(row["cost_usd"]))
        rows.append((row["model"] or "(no model recorded)", used, numbers))
    return rows


def _sources(found: Insights) -> list[Row]:
    return [
        (row["source"], row["sessions"], (f"{row['sessions']:,}", short(row["messages"]), dollars(row["cost_usd"])))
        for row in found["by_source"]
    ]


def _tools(found: Insights) -> list[Row]:
    others = found["by_tool"][_TOOLS:]
    rows = [(row["tool"], row["calls"]) for row in found["by_tool"][:_TOOLS]]
    rows += [(f"{len(others)} more", sum(row["calls"] for row in others))] if others else []
    return [(name, calls, (f"{calls:,}",)) for name, calls in rows]


def _numbers(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[Column]:
    """Columns of numbers, never cut: where there is no room, the last one is left out first."""
    columns = []
    for i, head in enumerate(heads):
        size = max(len(head), *(cells(row[i]) for row in rows))
        columns.append(Column(head, size, worth=len(heads) - i, right=True))
    return columns


def _bars(title: str, heads: tuple[str, ...], rows: Sequence[Row], width: int) -> list[str]:
    """A part of the report with a bar for each row, if there is room; the smallest amount above zero is visible."""
    if not rows:
        return []
    numbers = _numbers(heads, [values for _, _, values in rows])
    names = max(cells(title), *(cells(one_line(name)) for name, _, _ in rows))
    room = width - sum((column.least or 0) + 2 for column in numbers) - 2
    length = min(_LONGEST_BAR, max(room // 2, room - names))
    most = max(amount for _, amount, _ in rows)
    lines = []
    for name, amount, values in rows:
        eighths = max(1, round(amount / most * length * 8)) if amount > 0 else 0
        lines.append((name, (_EIGHTHS[8] * (eighths // 8) + _EIGHTHS[eighths % 8]).rstrip(), *values))
    head, _, *drawn = table([Column(title, 4, worth=9), Column("", max(4, length)), *numbers], lines, width)
    return [head, *drawn]


def _hours(hours: Sequence[int]) -> list[str]:
    """The hours of the day side by side, each as high as it had messages."""
    most = max(hours)
    levels = [max(1, round(number / most * 8)) if number else 0 for number in hours]
    marks = "".join(pad(f"{hour:02}", 12) for hour in range(0, 24, 6))
    return [f"Hours (up to {counted(most, 'message')})", " ".join(_LEVELS[level] for level in levels), marks]


def _sessions(title: str, rows: Sequence[InsightsSession], width: int) -> list[str]:
    """Sessions with their numbers; the title stands last, where text of any script disturbs nothing."""
    if not rows:
        return []
    values = [(f"{row['messages']:,}", rough_duration(row["seconds"]), dollars(row["cost_usd"])) for row in rows]
    columns = [Column(title), *_numbers(("messages", "time", "cost"), values), Column("", 8, worth=8)]
    names = [row["title"] or row["preview"] or "" for row in rows]
    lines = [(row["id"], *one, name) for row, one, name in zip(rows, values, names, strict=True)]
    head, _, *drawn = table(columns, lines, width)
    return [head, *drawn]
