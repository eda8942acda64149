"""Insights: usage in the last days, counted from the rows.

Messages and tool calls count by their own time, each once, under the session that owns it. A session that began in the
period counts with its whole counters; of one that began before it, or has none, the usage of its messages in the period counts.
Every part adds up to the whole: what a session's counters have and its messages do not is divided among its replies. The
database adds up quarters of an hour; days and hours are those of a time zone, so they are computed here.
"""

from __future__ import annotations

import math
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta, tzinfo
from typing import Any

from hermes.errors import InvalidInput
from hermes.store.api.arguments import checked_time
from hermes.store.engines.base import Tx, rows_among
from hermes.store.records import codec, message_reading, message_values
from hermes.store.records import rows as shapes
from hermes.store.records.file_changes import calls_in
from hermes.store.records.listing import CONTINUES, OF_ITS_OWN
from hermes.store.records.visibility import AUTOMATED, User, session_clause

TOKENS = ("input", "output", "cache_read", "cache_write", "reasoning")
TOP = 5  # sessions in "longest" and "costliest"
_SPENT = 4  # of them: a message has no separate count of reasoning
_QUARTER = 900  # seconds: every offset from UTC is a multiple of it, so a quarter of an hour has one local hour
_LAST_DAY = 253_402_214_400.0  # the last day of the year 9999, where calendars end
_CENT = 1e-9  # the error of adding floats

# Of a session. Other programs may have written anything into its numbers.
_SESSION = (
    "id", "source", "title", "first_words", "model", "kind", "parent_session_id", "started_at", "api_call_count",
    "estimated_cost_usd", "actual_cost_usd", "cost_status", *(f"{name}_tokens" for name in TOKENS),
)  # fmt: skip
_PLACE = (  # in lists: continues another session, is a line (or its continuation), is a run that no person held
    f"CASE WHEN {CONTINUES} THEN 1 ELSE 0 END,"
    f" CASE WHEN s.parent_session_id IS NULL OR p.id IS NULL OR {OF_ITS_OWN} OR s.kind = 'subagent' OR ({CONTINUES})"
    f" THEN 1 ELSE 0 END, CASE WHEN {AUTOMATED.format(s='s')} THEN 1 ELSE 0 END"
)
# Of the messages of a session, by quarter of an hour and model. (One engine's CAST cuts, the other's rounds; and integers
# that other programs wrote may be too large to be added up. One engine refuses to divide the tiniest numbers: the sum is none.)
_QUARTERS = f"(m.timestamp + {_QUARTER}) / {_QUARTER}"
_WHOLE = f"CAST({_QUARTERS} AS BIGINT)"
_SAID = (
    f"SELECT m.session_id, {_WHOLE} - CASE WHEN {_WHOLE} > {_QUARTERS} THEN 2 ELSE 1 END AS quarter, m.model,"
    " min(m.timestamp), max(m.timestamp), count(*), sum(CASE WHEN m.role = 'assistant' THEN 1 ELSE 0 END), sum(m.cost_usd),"
    f" max(CASE WHEN m.cost_usd IS NULL AND ({' OR '.join(f'm.{name}_tokens <> 0' for name in TOKENS[:_SPENT])})"
    f" THEN 1 ELSE 0 END), {', '.join(f'sum(CAST(m.{name}_tokens AS DOUBLE PRECISION))' for name in TOKENS[:_SPENT])}"
    " FROM messages m"
)
_IN_PERIOD = " WHERE {these} AND m.hidden IS NULL AND m.timestamp >= ? AND m.timestamp <= ?"


@dataclass(slots=True)
class _Use:
    """Tokens (in the order of TOKENS) and their cost: of one model in a session, of a session, of a quarter of an hour."""

    tokens: list[int] = field(default_factory=lambda: [0] * len(TOKENS))
    cost: float | None = None
    messages: int = 0
    replies: int = 0

    def add(self, other: _Use, sign: int = 1) -> None:
        """Count the other as well; with `sign` -1, its tokens no more."""
        self.tokens = [mine + sign * theirs for mine, theirs in zip(self.tokens, other.tokens, strict=True)]
        self.cost = other.cost if self.cost is None else self.cost + (other.cost or 0.0)
        self.messages += other.messages
        self.replies += other.replies

    @property
    def spent(self) -> int:
        """All tokens sent and received: output includes the reasoning tokens, input excludes the cached ones."""
        return sum(self.tokens[:_SPENT])


@dataclass(slots=True, kw_only=True)
class _Talk(_Use):
    """A session and its messages of the period."""

    row: dict[str, Any]
    began: bool  # in the period
    continues: bool
    is_line: bool
    automated: bool
    carried: int = 0  # messages of other sessions that it shows
    tools: Counter[str] = field(default_factory=Counter)
    first: float = math.inf
    last: float = -math.inf
    models: dict[str | None, _Use] = field(default_factory=lambda: defaultdict(_Use))
    quarters: dict[int, _Use] = field(default_factory=lambda: defaultdict(_Use))
    unpriced: bool = False  # a message used tokens of unknown price
    estimated: float | None = None
    actual: float | None = None
    unknown: bool = False
    parts: list[_Talk] = field(default_factory=list)  # of a conversation that was compressed: the earlier ones


def insights(
    tx: Tx, days: float, source: str | None, now: float | None, timezone: str | tzinfo | None, whole_days: bool,
    visible_to: User | None,
) -> shapes.Insights:  # fmt: skip
    """See SessionDB.insights."""
    zone = _zone(timezone)
    since, until = _period(days, now, zone, whole_days)
    talks = _candidates(tx, since, until, source, visible_to)
    _read_messages(tx, talks, since, until)
    counted = [talk for talk in talks.values() if talk.began or talk.messages]
    children = [talk.row["id"] for talk in counted if talk.row["kind"] in ("branch", "compression")]
    for session_id, count in message_reading.carried_counts(tx, children).items():
        talks[session_id].carried = count
    for talk in counted:
        _settle(talk)
    lines = _lines(counted)
    total = _total(counted)
    starts, ends = (datetime.fromtimestamp(moment, zone).astimezone(zone) for moment in (since, until))
    return {
        "days": days,
        "since": since,
        "until": until,
        "local": [moment.isoformat(timespec="minutes") for moment in (starts, ends)],
        "timezone": str(zone) if zone is not None else (ends.tzname() or "local"),
        "source": source,
        "sessions": len(counted),
        **_runs(lines),
        "messages": total.messages,
        "tool_calls": sum(talk.tools.total() for talk in counted),
        "tokens": _used(total)["tokens"],
        "cost": {
            "estimated_usd": _sum(talk.estimated for talk in counted),
            "actual_usd": _sum(talk.actual for talk in counted),
            "usd": total.cost,
            "priced_sessions": sum(talk.cost is not None for talk in counted),
            "unknown_sessions": sum(talk.unknown for talk in counted),
        },
        "by_model": _by_model(counted),
        "by_source": _by_source(counted, lines),
        "by_tool": _by_tool(counted),
        **_activity(counted, zone, ends.date()),
        "longest": _longest(lines),
        "costliest": _costliest(counted),
    }


def _zone(timezone: str | tzinfo | None) -> tzinfo | None:
    """The time zone of that name; None is the machine's own."""
    if timezone is None or isinstance(timezone, tzinfo):
        return timezone
    from zoneinfo import ZoneInfo

    try:
        return ZoneInfo(timezone)
    except (KeyError, ValueError, OSError, TypeError) as error:
        raise InvalidInput(f"unknown time zone {timezone!r}; use a name like Europe/Berlin") from error


def _period(days: float, now: float | None, zone: tzinfo | None, whole_days: bool) -> tuple[float, float]:
    if isinstance(days, bool) or not isinstance(days, (int, float)) or not days > 0:
        raise InvalidInput(f"days is a number above 0, not {days!r}")
    until = time.time() if now is None else checked_time(now, "now")
    if not 0 <= until <= _LAST_DAY:
        raise InvalidInput(f"now is a time between 1970 and the year 9999, not {now!r}")
    since = max(0.0, until - min(days, 1e6) * 86_400)
    if whole_days and since:
        first = datetime.fromtimestamp(until, zone).date() - timedelta(days=math.ceil(days) - 1)
        since = datetime.combine(first, datetime.min.time(), zone).timestamp()
    return max(0.0, since), until


def _candidates(tx: Tx, since: float, until: float, source: str | None, visible_to: User | None) -> dict[str, _Talk]:
    """Sessions that began in the period, or may have messages of it, by their id."""
    where, params = session_clause(visible_to, source=source)
    found: dict[str, _Talk] = {}
    for *values, continues, is_line, automated in tx.rows(
        f"SELECT {', '.join(f's.{name}' for name in _SESSION)}, {_PLACE} FROM sessions s LEFT JOIN sessions p"
        f" ON p.id = s.parent_session_id AND p.purged IS NULL"
        f" WHERE {where} AND (s.active_at >= ? OR (s.started_at >= ? AND s.started_at <= ?)) ORDER BY s.id",
        [*params, since, since, until],
    ):
        row = dict(zip(_SESSION, map(codec.restored, values), strict=True))
        found[row["id"]] = _Talk(
            row=row, began=since <= row["started_at"] <= until, continues=bool(continues), is_line=bool(is_line),
            automated=bool(automated),
        )  # fmt: skip
    return found


def _read_messages(tx: Tx, talks: dict[str, _Talk], since: float, until: float) -> None:
    """Add up the messages these sessions own and show, of the period: never their text."""
    ids, period = list(talks), (since, until)
    sql = f"{_SAID}{_IN_PERIOD} GROUP BY m.session_id, quarter, m.model"
    for session_id, quarter, model, first, last, messages, replies, cost, unpriced, *used in rows_among(
        tx, sql, ids, "m.session_id", period
    ):
        talk = talks[codec.restored(session_id)]
        use = _Use([*map(_whole, used), 0], _money(cost), messages, replies)
        talk.quarters[quarter].add(use)
        talk.messages += messages
        talk.first, talk.last = min(talk.first, first), max(talk.last, last)
        talk.unpriced = talk.unpriced or bool(unpriced)
        if replies or cost is not None or any(use.tokens):
            talk.models[codec.restored(model)].add(use)
    sql = f"SELECT m.session_id, m.tool_calls FROM messages m{_IN_PERIOD} AND m.tool_calls IS NOT NULL"
    for session_id, calls in rows_among(tx, sql, ids, "m.session_id", period):
        tools = talks[codec.restored(session_id)].tools
        for _, name, _ in calls_in(codec.restored(calls)):
            tools[name or "(no name)"] += 1


def _whole(value: Any) -> int:
    """A counter; other programs omit what they don't count."""
    if type(value) is int:
        return value
    return int(value) if isinstance(value, (int, float)) and math.isfinite(value) else 0


def _money(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) and math.isfinite(value) else None


# ---------------------------------------------------------------------------------------------- tokens and money


def _settle(talk: _Talk) -> None:
    """The usage of the session in the period, and the share of each model. The parts add up to the whole.

    Of a session that began in it, the usage in its messages goes to their models, the rest to the session's own. Where they
    contradict the session's counters, the counters count.
    """
    row, models = talk.row, talk.models
    if None in models and row["model"] is not None:
        models[row["model"]] = _total([models.pop(None), models[row["model"]]])
    total = _total(models.values())
    talk.tokens = [_whole(row[f"{name}_tokens"]) for name in TOKENS]
    talk.estimated, talk.actual = _money(row["estimated_cost_usd"]), _money(row["actual_cost_usd"])
    talk.cost = talk.estimated if talk.actual is None else talk.actual
    is_used = any(talk.tokens) or bool(row["api_call_count"])
    if not talk.began or not (is_used or talk.cost is not None):  # or its program counted only messages
        talk.tokens, talk.cost, talk.estimated, talk.unknown = total.tokens, total.cost, total.cost, talk.unpriced
        talk.actual = None
        return
    talk.unknown = is_used and (talk.cost is None or row["cost_status"] == "unknown")
    is_more = any(tokens > counter for tokens, counter in zip(total.tokens, talk.tokens, strict=True))
    costs_more = total.cost is not None and (talk.cost is None or total.cost > talk.cost + _CENT)
    for use in (total, *models.values(), *talk.quarters.values()):
        use.tokens, use.cost = [0] * len(TOKENS) if is_more else use.tokens, None if costs_more else use.cost
    owner = next(iter(models)) if row["model"] is None and len(models) == 1 else row["model"]
    rest = _Use(talk.tokens)
    rest.add(_Use(total.tokens), -1)
    if talk.cost is not None and (total.cost is None or talk.cost - total.cost > _CENT):
        rest.cost = talk.cost - (total.cost or 0.0)
    models[owner].add(rest)
    _divide(rest, talk)


def _divide(rest: _Use, talk: _Talk) -> None:
    """Divide usage that no message records among the quarters with replies; without messages, it was used at the beginning."""
    spent, cost = rest.spent, rest.cost
    if not spent and cost is None:
        return
    by_reply = any(use.replies for use in talk.quarters.values())
    shares = {quarter: use.replies if by_reply else use.messages for quarter, use in talk.quarters.items()}
    shares = shares or {int(talk.row["started_at"] // _QUARTER): 1}
    whole, before = sum(shares.values()), 0
    for quarter, share in shares.items():
        tokens = spent * (before + share) // whole - spent * before // whole
        part = None if cost is None or not share else cost * share / whole
        talk.quarters[quarter].add(_Use([tokens, 0, 0, 0, 0], part))  # only their sum is shown
        before += share


def _total(uses: Iterable[_Use]) -> _Use:
    total, costs = _Use(), list[float | None]()
    for use in uses:
        total.add(use)
        costs.append(use.cost)
    total.cost = _sum(costs)  # adding one by one loses digits
    return total


def _used(use: _Use) -> shapes.InsightsUse:
    tokens: Any = dict(zip(TOKENS, use.tokens, strict=True))
    return {"tokens": tokens, "cost_usd": use.cost}


def _sum(values: Iterable[float | None]) -> float | None:
    """The sum of the known values; None when there are none."""
    known = [value for value in values if value is not None]
    return math.fsum(known) if known else None


# ---------------------------------------------------------------------------------------------- who, with what, when


def _by_model(talks: list[_Talk]) -> list[shapes.InsightsModel]:
    found = defaultdict[str | None, list[_Use]](list)
    for talk in talks:
        for model, use in talk.models.items():
            found[model].append(use)
    totals = sorted(
        ((_total(uses), model, len(uses)) for model, uses in found.items()),
        key=lambda one: (-one[0].spent, -one[0].replies, -one[2], one[1] or ""),
    )
    return [
        {"model": model, "sessions": sessions, "replies": use.replies, **_used(use)} for use, model, sessions in totals
    ]


def _lines(talks: list[_Talk]) -> list[_Talk]:
    """The sessions that are lines of a list: of a conversation that was compressed, the newest one, with the earlier parts."""
    by_id = {talk.row["id"]: talk for talk in talks}
    before = {talk.row["id"]: by_id.get(talk.row["parent_session_id"]) for talk in talks if talk.continues}
    continued = {part.row["id"] for part in before.values() if part is not None}
    lines = [talk for talk in talks if talk.is_line and talk.row["id"] not in continued]
    for line in lines:
        part = before.get(line.row["id"])
        while part is not None and part not in line.parts:
            line.parts.append(part)
            part = before.get(part.row["id"])
    return lines


def _runs(lines: list[_Talk]) -> shapes.InsightsRuns:
    automated = sum(line.automated for line in lines)
    return {"conversations": len(lines) - automated, "automated_runs": automated}


def _by_source(talks: list[_Talk], lines: list[_Talk]) -> list[shapes.InsightsSource]:
    found = defaultdict[str, list[_Talk]](list)
    for talk in talks:
        found[talk.row["source"]].append(talk)
    rows: list[shapes.InsightsSource] = [
        {
            "source": source,
            "sessions": len(some),
            **_runs([line for line in lines if line.row["source"] == source]),
            "messages": sum(talk.messages for talk in some),
            "tool_calls": sum(talk.tools.total() for talk in some),
            **_used(_total(some)),
        }
        for source, some in found.items()
    ]
    return sorted(rows, key=lambda row: (-row["sessions"], -row["messages"], row["source"]))


def _by_tool(talks: list[_Talk]) -> list[shapes.InsightsTool]:
    calls: Counter[str] = Counter()
    within: Counter[str] = Counter()
    for talk in talks:
        calls.update(talk.tools)
        within.update(talk.tools.keys())
    ordered = sorted(calls.items(), key=lambda item: (-item[1], item[0]))
    return [{"tool": tool, "calls": count, "sessions": within[tool]} for tool, count in ordered]


def _activity(talks: list[_Talk], zone: tzinfo | None, today: date) -> shapes.InsightsActivity:
    """Messages by hour of the day, by weekday (Monday first), by both and by day, in a time zone."""
    quarters = defaultdict[int, list[_Use]](list)
    for talk in talks:
        for quarter, use in talk.quarters.items():
            quarters[quarter].append(use)
    grid = [[0] * 24 for _ in range(7)]
    used = defaultdict[date, list[_Use]](list)
    for quarter, uses in sorted(quarters.items()):
        when = datetime.fromtimestamp(quarter * _QUARTER, zone)
        grid[when.weekday()][when.hour] += sum(use.messages for use in uses)
        used[when.date()] += uses
    days = {day: _total(uses) for day, uses in used.items()}
    usage: dict[str, shapes.InsightsDay] = {
        day.isoformat(): {"messages": use.messages, "tokens": use.spent, "cost_usd": use.cost}
        for day, use in days.items()
    }
    return {
        "by_hour": [sum(column) for column in zip(*grid, strict=True)],
        "by_weekday": [sum(row) for row in grid],
        "by_weekday_hour": grid,
        "by_day": {day: use["messages"] for day, use in usage.items()},
        "usage_by_day": usage,
        "streaks": _streaks([day.toordinal() for day, use in days.items() if use.messages], today.toordinal()),
    }


def _streaks(days: list[int], today: int) -> shapes.InsightsStreaks:
    """Days in a row; the current streak may end yesterday, for today is not over."""
    longest = run = 0
    before: int | None = None
    for day in days:
        run = run + 1 if before is not None and day == before + 1 else 1
        longest, before = max(longest, run), day
    current = run if before is not None and before >= today - 1 else 0
    return {"current": current, "longest": longest, "days_active": len(days)}


def _line(talk: _Talk) -> shapes.InsightsSession:
    parts = [talk, *talk.parts]
    spoken = [part for part in parts if part.messages]
    return {
        "id": talk.row["id"],
        "title": talk.row["title"],
        "preview": message_values.preview_of(talk.row["first_words"]),
        "source": talk.row["source"],
        "last_active": max((part.last for part in spoken), default=talk.row["started_at"]),
        "messages": talk.messages + talk.carried,
        "seconds": max((part.last for part in spoken), default=0.0) - min((part.first for part in spoken), default=0.0),
        **_used(_total(parts)),
    }


def _longest(lines: list[_Talk]) -> list[shapes.InsightsSession]:
    """Conversations, each once, as in lists."""
    spoken = [line for line in lines if line.messages and not line.automated]
    spoken.sort(key=lambda talk: (-talk.messages - talk.carried, talk.first - talk.last, talk.row["id"]))
    return [_line(talk) for talk in spoken[:TOP]]


def _costliest(talks: list[_Talk]) -> list[shapes.InsightsSession]:
    earlier = {part.row["id"] for talk in talks for part in talk.parts}
    costs = ((_total([talk, *talk.parts]).cost, talk) for talk in talks if talk.row["id"] not in earlier)
    paid = [(cost, talk) for cost, talk in costs if cost]
    paid.sort(key=lambda one: (-one[0], one[1].row["id"]))
    return [_line(talk) for _, talk in paid[:TOP]]
