"""`hermes insights`: totals, bars by model, source, tool, weekday and hour, and the longest sessions of the last days.

Everything is plain text that lines up in any width from a phone's to 120 cells; colour is added only where a terminal
wants it and changes nothing about the letters.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta, tzinfo
from typing import TYPE_CHECKING

import click

from hermes.cli.common import json_option, source_option
from hermes.cli.shared import colourful, opened, print_json, zone
from hermes.cli.table import GAP, RULE, cells, cut, pad, screen_width, wrap
from hermes.texts import counted, one_line
from hermes.times import rough_duration

if TYPE_CHECKING:
    from hermes.store.rows import Insights, InsightsCost, InsightsSession


@click.command()
@click.option(
    "--days",
    type=click.IntRange(min=1),
    metavar="N",
    default=30,
    show_default=True,
    help="How many days, today included.",
)
@source_option()
@json_option("Print one JSON object.")
def command(days: int, source: str | None, as_json: bool) -> None:
    """Sessions, messages, tokens and cost of the last days, by model, source and tool, and when you talked."""
    from hermes.times import now

    where, moment = zone(), now()
    with opened() as db:
        found = db.insights(_since_midnight(days, moment, where), source, now=moment, timezone=where)
    found["days"] = days
    if as_json:
        print_json(found)
    else:
        click.echo(draw(found, width=screen_width(), zone=where, colour=colourful()))


def _since_midnight(days: int, moment: float, where: tzinfo | None) -> float:
    """How many days ago the first of the last `days` days began, today being one of them."""
    today = datetime.fromtimestamp(moment, where)
    try:
        first = datetime.combine(today.date() - timedelta(days=days - 1), datetime.min.time(), today.tzinfo)
        return max((moment - first.timestamp()) / 86_400, 1e-6)
    except (OverflowError, ValueError, OSError):  # before the year 1
        return float(days)


LEAST, MOST = 16, 120
_EIGHTHS = " ▏▎▍▌▋▊▉█"
_LEVELS = " ▁▂▃▄▅▆▇█"
_WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_TALL = 4  # lines of the picture of the hours
_TOOLS = 10
_NO_MODEL = "(no model recorded)"

Row = tuple[str, float, tuple[str, ...]]  # what, how long its bar is, the numbers behind it


def draw(found: Insights, *, width: int, zone: tzinfo | None = None, colour: bool = False) -> str:
    """The whole picture, without a line break at its end. Dates are those of `zone` (None: the machine's)."""
    width = max(LEAST, min(width, MOST))
    paint = _Paint(colour)
    out = _head(found, zone, width, paint)
    if not found["sessions"]:
        return "\n".join([*out, *(part for text in _empty(found) for part in wrap(text, width))])
    out += _totals(found, width, paint)
    parts = (
        _bars(_models(found), width, paint),
        _bars(_sources(found), width, paint),
        _bars(_tools(found), width, paint),
        _bars(_weekdays(found), width, paint) if found["messages"] else [],
        _hours(found, width, paint) if found["messages"] else [],
        _sessions("Longest sessions", found["longest"], width, paint),
        _sessions("Costliest sessions", found["costliest"], width, paint),
    )
    for part in parts:
        if part:
            out += ["", *part]
    return "\n".join(text.rstrip() for text in out)


class _Paint:
    """Colour, or none."""

    def __init__(self, on: bool) -> None:
        self.on = on

    def _in(self, code: str, text: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self.on and text.strip() else text

    def strong(self, text: str) -> str:
        return self._in("1", text)

    def dim(self, text: str) -> str:
        return self._in("2", text)

    def bar(self, text: str) -> str:
        return self._in("36", text)


# ---------------------------------------------------------------------------------------------- numbers for people


def count(number: float) -> str:
    """12,345"""
    return f"{number:,}"


def short(number: int) -> str:
    """At most five characters: 950, 12.3K, 4.1M."""
    for size, letter in ((10**12, "T"), (10**9, "G"), (10**6, "M"), (10**3, "K")):
        if number >= size:
            value = number / size
            return f"{value:.0f}{letter}" if value >= 99.95 else f"{value:.1f}{letter}"
    return str(number)


def dollars(usd: float | None) -> str:
    """$1.23; small sums keep two significant digits; an unknown one is a dash."""
    if usd is None:
        return "—"
    if usd and abs(usd) < 0.01:
        return f"${usd:.4f}" if abs(usd) >= 0.0001 else "<$0.0001"
    return f"${usd:,.2f}"


# ---------------------------------------------------------------------------------------------- the parts


def _head(found: Insights, zone: tzinfo | None, width: int, paint: _Paint) -> list[str]:
    title = f"Insights · last {counted(int(found['days']), 'day')}" if found["days"] != 1 else "Insights · last day"
    if found["source"] is not None:
        title += f" · {one_line(found['source'])}"
    title = cut(title, width)
    first, last = (datetime.fromtimestamp(found[key], zone) for key in ("since", "until"))
    dates = f"{first:%d %b %Y} – {last:%d %b %Y}, {found['timezone']}"
    room = width - cells(title) - len(GAP)
    if cells(dates) <= room:
        return [paint.strong(title) + " " * (width - cells(title) - cells(dates)) + paint.dim(dates), RULE * width]
    return [paint.strong(title), paint.dim(cut(dates, width)), RULE * width]


def _empty(found: Insights) -> list[str]:
    where = f" in the source {one_line(found['source'])}" if found["source"] is not None else ""
    return [
        f"No conversations in this time{where}.",
        "`hermes` starts one; `hermes insights --days 365` looks further back.",
    ]


def _totals(found: Insights, width: int, paint: _Paint) -> list[str]:
    tokens, streaks = found["tokens"], found["streaks"]
    left = [
        ("Sessions", count(found["sessions"])),
        ("Messages", count(found["messages"])),
        ("Tool calls", count(found["tool_calls"])),
        ("Days active", count(streaks["days_active"])),
        ("Streak (days)", count(streaks["current"])),
        ("Longest (days)", count(streaks["longest"])),
    ]
    right = [
        ("Input tokens", count(tokens["input"])),
        ("Output tokens", count(tokens["output"])),
        ("Cache read", count(tokens["cache_read"])),
        ("Cache written", count(tokens["cache_write"])),
        ("Reasoning", count(tokens["reasoning"])),
    ]
    one, other = _pairs(left, paint), _pairs(right, paint)
    cost = _under("Cost", 14, _cost(found["cost"]), width)
    if one[0][1] + 4 + other[0][1] > width:
        return [text for text, _ in one + other] + cost
    rows = [text + " " * 4 + (other[number][0] if number < len(other) else "") for number, (text, _) in enumerate(one)]
    return rows + cost


def _pairs(pairs: Sequence[tuple[str, str]], paint: _Paint) -> list[tuple[str, int]]:
    """Labels and numbers in two columns, each line with its width."""
    names = max(max(cells(name) for name, _ in pairs), 14)
    numbers = max(cells(number) for _, number in pairs)
    return [
        (pad(name, names) + GAP + paint.strong(number.rjust(numbers)), names + len(GAP) + numbers)
        for name, number in pairs
    ]


def _cost(cost: InsightsCost) -> str:
    parts = []
    if cost["estimated_usd"] is not None:
        parts.append(f"{dollars(cost['estimated_usd'])} estimated")
    if cost["actual_usd"] is not None:
        parts.append(f"{dollars(cost['actual_usd'])} billed")
    if cost["unknown_sessions"]:
        parts.append(f"price unknown for {counted(cost['unknown_sessions'], 'session')}")
    return ", ".join(parts) or "none recorded"


def _under(name: str, names: int, text: str, width: int) -> list[str]:
    """A label and a text that may take several lines, one under the other."""
    indent = names + len(GAP) if width >= 40 else 2
    lines = wrap(text, width - indent)
    if indent == 2:
        return [name, *(" " * indent + one for one in lines)]
    return [pad(name, indent) + lines[0], *(" " * indent + one for one in lines[1:])]


def _models(found: Insights) -> tuple[str, tuple[str, ...], list[Row]]:
    rows: list[Row] = []
    for row in found["by_model"]:
        used = sum(row["tokens"][name] for name in ("input", "cache_read", "cache_write", "output"))
        numbers = (short(row["replies"]), short(used), dollars(row["cost_usd"]))
        rows.append((one_line(row["model"]) or _NO_MODEL, used, numbers))
    if not any(amount for _, amount, _ in rows):  # no tokens were counted: use the number of replies
        rows = [
            (name, row["replies"], numbers) for (name, _, numbers), row in zip(rows, found["by_model"], strict=True)
        ]
    return "Models", ("replies", "tokens", "cost"), rows


def _sources(found: Insights) -> tuple[str, tuple[str, ...], list[Row]]:
    rows: list[Row] = [
        (
            one_line(row["source"]),
            row["sessions"],
            (count(row["sessions"]), short(row["messages"]), dollars(row["cost_usd"])),
        )
        for row in found["by_source"]
    ]
    return "Sources", ("sessions", "messages", "cost"), rows


def _tools(found: Insights) -> tuple[str, tuple[str, ...], list[Row]]:
    rows: list[Row] = [
        (one_line(row["tool"]), row["calls"], (count(row["calls"]),)) for row in found["by_tool"][:_TOOLS]
    ]
    others = found["by_tool"][_TOOLS:]
    if others:
        calls = sum(row["calls"] for row in others)
        rows.append((f"{len(others)} more", calls, (count(calls),)))
    return "Tools", ("calls",), rows


def _weekdays(found: Insights) -> tuple[str, tuple[str, ...], list[Row]]:
    rows: list[Row] = [
        (name, number, (count(number),)) for name, number in zip(_WEEKDAYS, found["by_weekday"], strict=True)
    ]
    return "Weekdays", ("messages",), rows


def _bars(part: tuple[str, tuple[str, ...], list[Row]], width: int, paint: _Paint) -> list[str]:
    """A part with a bar for each row; without room for numbers and bars, the bars are left out."""
    title, heads, rows = part
    if not rows:
        return []
    sizes = [max(cells(head), *(cells(row[2][i]) for row in rows)) for i, head in enumerate(heads)]
    shown = len(heads)
    while shown > 1 and sum(sizes[:shown]) + len(GAP) * shown > width - 8:
        shown -= 1
    sizes = sizes[:shown]
    numbers = sum(sizes) + len(GAP) * shown
    room = max(1, width - numbers)
    names = min(max(cells(title), *(cells(row[0]) for row in rows)), max(4, room // 2 if room >= 24 else room))
    length = room - names - len(GAP)
    length = length if length >= 4 else 0
    most = max(row[1] for row in rows)
    out = [paint.strong(pad(cut(title, names), names + (len(GAP) + length if length else 0)))
           + paint.dim("".join(GAP + head.rjust(size) for head, size in zip(heads, sizes, strict=False)))]  # fmt: skip
    for name, amount, values in rows:
        text = pad(cut(name, names), names)
        if length:
            text += GAP + paint.bar(pad(_bar(amount, most, length), length))
        out.append(text + "".join(GAP + value.rjust(size) for value, size in zip(values, sizes, strict=False)))
    return out


def _bar(amount: float, most: float, length: int) -> str:
    """A bar in eighths of a cell; the smallest amount above zero is visible."""
    if amount <= 0 or most <= 0:
        return ""
    eighths = max(1, round(amount / most * length * 8))
    return _EIGHTHS[8] * (eighths // 8) + (_EIGHTHS[eighths % 8] if eighths % 8 else "")


def _hours(found: Insights, width: int, paint: _Paint) -> list[str]:
    """The hours of the day side by side, as columns."""
    hours = found["by_hour"]
    most = max(hours)
    scale = len(count(most))
    wide = 3 if width >= 100 else 2 if width >= 24 * 2 + scale + 1 else 1
    if 24 * wide + scale + 1 > width:
        return []
    fill = wide - 1 if wide > 1 else 1
    heights = [max(1, round(number / most * _TALL * 8)) if number else 0 for number in hours]
    out = [paint.strong("Hours") + paint.dim(GAP + "messages")]
    for floor in range(_TALL - 1, -1, -1):
        label = count(most) if floor == _TALL - 1 else ""
        drawn = "".join(pad(_LEVELS[min(8, max(0, height - floor * 8))] * fill, wide) for height in heights)
        out.append(paint.dim(label.rjust(scale)) + " " + paint.bar(drawn))
    marks = "".join(pad(f"{hour:02}", wide * 6) for hour in range(0, 24, 6))
    return [*out, " " * (scale + 1) + paint.dim(marks)]


def _sessions(title: str, rows: list[InsightsSession], width: int, paint: _Paint) -> list[str]:
    """Sessions with their numbers; the title stands last, where text of any script disturbs nothing."""
    if not rows:
        return []
    ids = [cut(one_line(row["id"]), 40) for row in rows]
    columns = [
        ("messages", [count(row["messages"]) for row in rows]),
        ("time", [rough_duration(row["seconds"]) for row in rows]),
        ("cost", [dollars(row["cost_usd"]) for row in rows]),
    ]
    if not any(row["cost_usd"] is not None for row in rows):
        columns.pop()
    first = max(len(title), *map(cells, ids))
    sizes = [max(len(head), *map(len, values)) for head, values in columns]
    while columns and first + sum(sizes) + len(GAP) * len(sizes) > width:
        columns, sizes = columns[:-1], sizes[:-1]
    used = first + sum(sizes) + len(GAP) * (len(sizes) + 1)
    heads = "".join(GAP + head.rjust(size) for (head, _), size in zip(columns, sizes, strict=True))
    out = [paint.strong(pad(cut(title, width), first)) + paint.dim(heads)]
    for number, row in enumerate(rows):
        text = pad(cut(ids[number], width), first)
        text += "".join(GAP + values[number].rjust(size) for (_, values), size in zip(columns, sizes, strict=True))
        name = one_line(row["title"]) or one_line(row["preview"])
        if name and width - used >= 8:
            text += GAP + cut(name, width - used)
        out.append(text)
    return out
