"""Insights: usage in the last days, counted from the rows.

Messages and tool calls count by their own time, each once, under the session that owns it. A session that began in the
period counts with its whole counters; of one that began before it only the usage of its messages in the period counts.
Days and hours are those of a time zone, so they are computed here and not in the database.
"""

from __future__ import annotations

import math
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime, tzinfo
from typing import TYPE_CHECKING, Any

from hermes.errors import InvalidInput
from hermes.store import codec, message_reading, message_values
from hermes.store.arguments import checked_time
from hermes.store.engines.base import Row, Tx, rows_among
from hermes.store.visibility import User, session_clause

if TYPE_CHECKING:
    from hermes.store import rows as shapes

TOKENS = ("input", "output", "cache_read", "cache_write", "reasoning")
TOP = 5  # sessions in "longest" and "costliest"
_MESSAGE_TOKENS = TOKENS[:4]  # a message has no separate count of reasoning
_MESSAGE = "m.session_id, m.timestamp, m.role, m.tool_calls, m.model, m.cost_usd, " + ", ".join(
    f"m.{name}_tokens" for name in _MESSAGE_TOKENS
)
_QUARTER = 900  # seconds: every offset from UTC is a multiple of it, so a quarter of an hour has one local hour
_LAST_DAY = 253_402_214_400.0  # the last day of the year 9999, where calendars end
_CENT = 1e-9  # the error of adding floats


# Of a session. Other programs may have written anything into its numbers.
_SESSION = (
    "id", "source", "title", "first_words", "model", "kind", "parent_session_id", "started_at", "api_call_count",
    "estimated_cost_usd", "actual_cost_usd", "cost_status", *(f"{name}_tokens" for name in TOKENS),
)  # fmt: skip


@dataclass(slots=True)
class _Use:
    """Tokens and their cost: of one model in a session, of a session, of a quarter of an hour."""

    tokens: Counter[str] = field(default_factory=Counter)
    cost: float | None = None
    messages: int = 0
    replies: int = 0

    def add(self, cost: Any, used: list[Any]) -> None:
        """Count a message; `used` has its tokens in the order of _MESSAGE_TOKENS."""
        self.messages += 1
        for name, value in zip(_MESSAGE_TOKENS, used, strict=True):
            self.tokens[name] += _whole(value)
        if (money := _money(cost)) is not None:
            self.cost = (self.cost or 0.0) + money


@dataclass(slots=True, kw_only=True)
class _Talk(_Use):
    """A session and its messages of the period."""

    row: dict[str, Any]
    began: bool  # in the period
    carried: int = 0  # messages of other sessions that it shows
    tools: Counter[str] = field(default_factory=Counter)
    first: float = math.inf
    last: float = -math.inf
    models: dict[str | None, _Use] = field(default_factory=lambda: defaultdict(_Use))
    unpriced: bool = False  # a message used tokens of unknown price
    estimated: float | None = None
    actual: float | None = None
    unknown: bool = False


def insights(
    tx: Tx, days: float, source: str | None, now: float | None, timezone: str | tzinfo | None, visible_to: User | None
) -> shapes.Insights:
    """See SessionDB.insights."""
    zone = _zone(timezone)
    since, until = _period(days, now)
    talks = {row["id"]: _Talk(row=row, began=since <= row["started_at"] <= until)
             for row in _candidates(tx, since, until, source, visible_to)}  # fmt: skip
    quarters = defaultdict[int, _Use](_Use)
    for session_id, stamp, role, calls, model, cost, *used in _said(tx, list(talks), since, until):
        quarters[int(stamp // _QUARTER)].add(cost, used)
        _add(talks[session_id], stamp, role, calls, model, cost, used)
    counted = [talk for talk in talks.values() if talk.began or talk.messages]
    children = [talk.row["id"] for talk in counted if talk.row["kind"] in ("branch", "compression")]
    for session_id, count in message_reading.carried_counts(tx, children).items():
        talks[session_id].carried = count
    for talk in counted:
        _settle(talk)
    total = _total(counted)
    return {
        "days": days,
        "since": since,
        "until": until,
        "timezone": str(zone) if zone is not None else (datetime.fromtimestamp(until).astimezone().tzname() or "local"),
        "source": source,
        "sessions": len(counted),
        "messages": sum(talk.messages for talk in counted),
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
        "by_source": _by_source(counted),
        "by_tool": _by_tool(counted),
        **_activity(quarters, zone, until),
        "longest": _longest(counted),
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


def _period(days: float, now: float | None) -> tuple[float, float]:
    if isinstance(days, bool) or not isinstance(days, (int, float)) or not days > 0:
        raise InvalidInput(f"days is a number above 0, not {days!r}")
    until = time.time() if now is None else checked_time(now, "now")
    if not 0 <= until <= _LAST_DAY:
        raise InvalidInput(f"now is a time between 1970 and the year 9999, not {now!r}")
    return max(0.0, until - min(days, 1e6) * 86_400), until


def _candidates(
    tx: Tx, since: float, until: float, source: str | None, visible_to: User | None
) -> Iterator[dict[str, Any]]:
    """Sessions that began in the period, or may have messages of it."""
    where, params = session_clause(visible_to, source=source)
    for row in tx.rows(
        f"SELECT {', '.join(f's.{name}' for name in _SESSION)} FROM sessions s"
        f" WHERE {where} AND (s.active_at >= ? OR (s.started_at >= ? AND s.started_at <= ?)) ORDER BY s.id",
        [*params, since, since, until],
    ):
        yield dict(zip(_SESSION, map(codec.restored, row), strict=True))


def _said(tx: Tx, session_ids: list[str], since: float, until: float) -> Iterator[Row]:
    """The messages these sessions own and show, of the period: never their text."""
    shown = "m.hidden IS NULL AND m.timestamp >= ? AND m.timestamp <= ?"
    sql = f"SELECT {_MESSAGE} FROM messages m WHERE {{these}} AND {shown}"
    return rows_among(tx, sql, session_ids, "m.session_id", (since, until))


def _add(talk: _Talk, stamp: float, role: Any, calls: Any, model: Any, cost: Any, used: list[Any]) -> None:
    """Count a message of a session."""
    talk.messages += 1
    talk.first, talk.last = min(talk.first, stamp), max(talk.last, stamp)
    if calls is not None:
        talk.tools.update(_tool_names(calls))
    if role != "assistant" and cost is None and not any(used):
        return
    use = talk.models[codec.restored(model)]
    use.replies += role == "assistant"
    use.add(cost, used)
    if any(used) and _money(cost) is None:
        talk.unpriced = True


def _tool_names(stored: Any) -> list[str]:
    """The tools a message calls, one name for each call."""
    calls = codec.from_json(stored)
    listed = calls if isinstance(calls, list) else [calls] * message_values.count_calls(calls)
    return [_tool_name(call) for call in listed]


def _tool_name(call: Any) -> str:
    if isinstance(call, dict):
        function = call.get("function")
        name = function.get("name") if isinstance(function, dict) else call.get("name")
        if isinstance(name, str) and name:
            return name
    return "(no name)"


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
    told = _total(models.values())
    if not talk.began:
        talk.tokens, talk.cost, talk.estimated, talk.unknown = told.tokens, told.cost, told.cost, talk.unpriced
        return
    talk.tokens.update({name: _whole(row[f"{name}_tokens"]) for name in TOKENS})
    talk.estimated, talk.actual = _money(row["estimated_cost_usd"]), _money(row["actual_cost_usd"])
    talk.cost = talk.estimated if talk.actual is None else talk.actual
    is_used = any(talk.tokens.values()) or bool(row["api_call_count"])
    talk.unknown = is_used and (talk.cost is None or row["cost_status"] == "unknown")
    is_more = any(told.tokens[name] > talk.tokens[name] for name in TOKENS)
    costs_more = told.cost is not None and (talk.cost is None or told.cost > talk.cost + _CENT)
    for use in (told, *models.values()):
        use.tokens, use.cost = Counter() if is_more else use.tokens, None if costs_more else use.cost
    owner = next(iter(models)) if row["model"] is None and len(models) == 1 else row["model"]
    rest = models[owner]
    rest.tokens.update(talk.tokens)
    rest.tokens.subtract(told.tokens)
    if talk.cost is not None and (told.cost is None or talk.cost - told.cost > _CENT):
        rest.cost = (rest.cost or 0.0) + talk.cost - (told.cost or 0.0)


def _total(uses: Iterable[_Use]) -> _Use:
    total, costs = _Use(), list[float | None]()
    for use in uses:
        total.tokens.update(use.tokens)
        total.replies += use.replies
        costs.append(use.cost)
    total.cost = _sum(costs)
    return total


def _used(use: _Use) -> shapes.InsightsUse:
    tokens: Any = {name: use.tokens[name] for name in TOKENS}
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
    rows: list[shapes.InsightsModel] = [
        {"model": model, "sessions": len(uses), "replies": sum(use.replies for use in uses), **_used(_total(uses))}
        for model, uses in found.items()
    ]
    return sorted(rows, key=lambda row: (-_spent(row["tokens"]), -row["replies"], -row["sessions"], row["model"] or ""))


def _by_source(talks: list[_Talk]) -> list[shapes.InsightsSource]:
    found = defaultdict[str, list[_Talk]](list)
    for talk in talks:
        found[talk.row["source"]].append(talk)
    rows: list[shapes.InsightsSource] = [
        {
            "source": source,
            "sessions": len(some),
            "messages": sum(talk.messages for talk in some),
            "tool_calls": sum(talk.tools.total() for talk in some),
            **_used(_total(some)),
        }
        for source, some in found.items()
    ]
    return sorted(rows, key=lambda row: (-row["sessions"], -row["messages"], row["source"]))


def _spent(tokens: shapes.InsightsTokens) -> int:
    """All tokens sent and received: output includes the reasoning tokens, input excludes the cached ones."""
    return tokens["input"] + tokens["cache_read"] + tokens["cache_write"] + tokens["output"]


def _by_tool(talks: list[_Talk]) -> list[shapes.InsightsTool]:
    calls: Counter[str] = Counter()
    within: Counter[str] = Counter()
    for talk in talks:
        calls.update(talk.tools)
        within.update(talk.tools.keys())
    ordered = sorted(calls.items(), key=lambda item: (-item[1], item[0]))
    return [{"tool": tool, "calls": count, "sessions": within[tool]} for tool, count in ordered]


def _activity(quarters: Mapping[int, _Use], zone: tzinfo | None, until: float) -> shapes.InsightsActivity:
    """Messages by hour of the day, by weekday (Monday first), by both and by day, in a time zone."""
    grid = [[0] * 24 for _ in range(7)]
    days: dict[date, shapes.InsightsDay] = {}
    for quarter, use in sorted(quarters.items()):
        when = datetime.fromtimestamp(quarter * _QUARTER, zone)
        grid[when.weekday()][when.hour] += use.messages
        day = days.setdefault(when.date(), {"messages": 0, "tokens": 0, "cost_usd": None})
        day["messages"] += use.messages
        day["tokens"] += use.tokens.total()
        day["cost_usd"] = _sum((day["cost_usd"], use.cost))
    return {
        "by_hour": [sum(column) for column in zip(*grid, strict=True)],
        "by_weekday": [sum(row) for row in grid],
        "by_weekday_hour": grid,
        "by_day": {day.isoformat(): used["messages"] for day, used in days.items()},
        "usage_by_day": {day.isoformat(): used for day, used in days.items()},
        "streaks": _streaks([day.toordinal() for day in days], datetime.fromtimestamp(until, zone).toordinal()),
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
    return {
        "id": talk.row["id"],
        "title": talk.row["title"],
        "preview": message_values.preview_of(talk.row["first_words"]),
        "source": talk.row["source"],
        "messages": talk.messages + talk.carried,
        "seconds": max(0.0, talk.last - talk.first) if talk.messages else 0.0,
        **_used(talk),
    }


def _longest(talks: list[_Talk]) -> list[shapes.InsightsSession]:
    continued = {talk.row["parent_session_id"] for talk in talks if talk.row["kind"] == "compression"}
    # A conversation once, as in lists.
    spoken = [talk for talk in talks if talk.messages and talk.row["id"] not in continued]
    spoken.sort(key=lambda talk: (-talk.messages - talk.carried, talk.first - talk.last, talk.row["id"]))
    return [_line(talk) for talk in spoken[:TOP]]


def _costliest(talks: list[_Talk]) -> list[shapes.InsightsSession]:
    paid = [talk for talk in talks if talk.cost]
    paid.sort(key=lambda talk: (-(talk.cost or 0.0), talk.row["id"]))
    return [_line(talk) for talk in paid[:TOP]]
