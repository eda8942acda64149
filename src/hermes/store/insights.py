"""Insights: usage in the last days, counted from the rows.

Messages and tool calls count by their own time, each once, under the session that owns it. A session that began in the
period counts with its whole counters; of one that began before it only the usage of its messages in the period counts.
Days and hours are those of a time zone, so they are computed here and not in the database.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import date, datetime, tzinfo
from typing import TYPE_CHECKING, Any, Literal

from hermes.errors import InvalidInput
from hermes.store import codec, message_reading, message_values
from hermes.store.arguments import checked_time
from hermes.store.engines.base import Row, Tx, batched
from hermes.store.visibility import User, session_clause

if TYPE_CHECKING:
    from hermes.store import rows as shapes

TokenKind = Literal["input", "output", "cache_read", "cache_write", "reasoning"]
TOKENS: tuple[TokenKind, ...] = ("input", "output", "cache_read", "cache_write", "reasoning")
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


def _no_tokens() -> shapes.InsightsTokens:
    return {"input": 0, "output": 0, "cache_read": 0, "cache_write": 0, "reasoning": 0}


@dataclass(slots=True)
class _Share:
    """The usage of one model in a session."""

    tokens: shapes.InsightsTokens = field(default_factory=_no_tokens)
    cost: float | None = None
    replies: int = 0


@dataclass(slots=True)
class _Talk:
    """A session and its messages of the period."""

    row: dict[str, Any]
    began: bool  # in the period
    messages: int = 0
    carried: int = 0  # messages of other sessions that it shows
    tools: Counter[str] = field(default_factory=Counter)
    first: float = math.inf
    last: float = -math.inf
    models: dict[str | None, _Share] = field(default_factory=dict)
    unpriced: bool = False  # a message used tokens of unknown price
    tokens: shapes.InsightsTokens = field(default_factory=_no_tokens)
    estimated: float | None = None
    actual: float | None = None
    unknown: bool = False

    @property
    def cost(self) -> float | None:
        return self.estimated if self.actual is None else self.actual


def insights(
    tx: Tx,
    *,
    days: float,
    source: str | None,
    now: float | None,
    timezone: str | tzinfo | None,
    visible_to: User | None,
) -> shapes.Insights:
    """See SessionDB.insights."""
    zone = _zone(timezone)
    since, until = _period(days, now)
    talks = {row["id"]: _Talk(row, since <= row["started_at"] <= until)
             for row in _candidates(tx, since, until, source, visible_to)}  # fmt: skip
    activity = _Activity(zone)
    for session_id, stamp, role, calls, model, cost, *used in _said(tx, list(talks), since, until):
        activity.add(stamp, cost, used)
        _add(talks[session_id], stamp, role, calls, model, cost, used)
    counted = [talk for talk in talks.values() if talk.began or talk.messages]
    children = [talk.row["id"] for talk in counted if talk.row["kind"] in ("branch", "compression")]
    for session_id, count in message_reading.carried_counts(tx, children).items():
        talks[session_id].carried = count
    for talk in counted:
        _settle(talk)
    return {
        "days": days,
        "since": since,
        "until": until,
        "timezone": str(zone) if zone is not None else (datetime.fromtimestamp(until).astimezone().tzname() or "local"),
        "source": source,
        "sessions": len(counted),
        "messages": sum(talk.messages for talk in counted),
        "tool_calls": sum(talk.tools.total() for talk in counted),
        "tokens": _tokens(talk.tokens for talk in counted),
        "cost": _cost(counted),
        "by_model": _by_model(counted),
        "by_source": _by_source(counted),
        "by_tool": _by_tool(counted),
        **activity.result(until),
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
    where, params = session_clause(visible_to)
    if source is not None:
        where, params = f"{where} AND s.source = ?", [*params, source]
    for row in tx.rows(
        f"SELECT {', '.join(f's.{name}' for name in _SESSION)} FROM sessions s"
        f" WHERE {where} AND (s.active_at >= ? OR (s.started_at >= ? AND s.started_at <= ?)) ORDER BY s.id",
        [*params, since, since, until],
    ):
        yield dict(zip(_SESSION, map(codec.restored, row), strict=True))


def _said(tx: Tx, session_ids: list[str], since: float, until: float) -> Iterator[Row]:
    """The messages these sessions own and show, of the period: never their text."""
    for some in batched(session_ids):
        these, ids = tx.among("m.session_id", some)
        yield from tx.rows(
            f"SELECT {_MESSAGE} FROM messages m WHERE {these} AND m.hidden IS NULL AND m.timestamp >= ? AND m.timestamp <= ?",
            [*ids, since, until],
        )


def _add(talk: _Talk, stamp: float, role: Any, calls: Any, model: Any, cost: Any, used: list[Any]) -> None:
    """Count one message; `used` has its tokens in the order of _MESSAGE_TOKENS."""
    talk.messages += 1
    talk.first, talk.last = min(talk.first, stamp), max(talk.last, stamp)
    if calls is not None:
        talk.tools.update(_tool_names(calls))
    if role != "assistant" and cost is None and not any(used):
        return
    share = talk.models.setdefault(codec.restored(model), _Share())
    share.replies += role == "assistant"
    for name, value in zip(_MESSAGE_TOKENS, used, strict=True):
        share.tokens[name] += _whole(value)
    if _money(cost) is not None:
        share.cost = (share.cost or 0.0) + cost
    elif any(used):
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
    """The usage of the session in the period, and the share of each model. The parts add up to the whole."""
    row = talk.row
    if None in talk.models and row["model"] is not None:
        _merge(talk.models.setdefault(row["model"], _Share()), talk.models.pop(None))
    if not talk.began:
        talk.tokens = _tokens(share.tokens for share in talk.models.values())
        talk.estimated = _sum(share.cost for share in talk.models.values())
        talk.unknown = talk.unpriced
        return
    for name in TOKENS:
        talk.tokens[name] = _whole(row[f"{name}_tokens"])
    talk.estimated, talk.actual = _money(row["estimated_cost_usd"]), _money(row["actual_cost_usd"])
    used = any(talk.tokens.values()) or bool(row["api_call_count"])
    talk.unknown = used and (talk.cost is None or row["cost_status"] == "unknown")
    _split(talk)


def _merge(into: _Share, other: _Share) -> None:
    for name in TOKENS:
        into.tokens[name] += other.tokens[name]
    into.replies += other.replies
    into.cost = _sum((into.cost, other.cost))


def _split(talk: _Talk) -> None:
    """Divide the session's counters: the usage in its messages goes to their models, the rest to the session's own."""
    told = _tokens(share.tokens for share in talk.models.values())
    if any(told[name] > talk.tokens[name] for name in TOKENS):  # they contradict the counters, which count
        told = _no_tokens()
        for share in talk.models.values():
            share.tokens = _no_tokens()
    priced = _sum(share.cost for share in talk.models.values())
    if priced is not None and (talk.cost is None or priced > talk.cost + _CENT):
        priced = None
        for share in talk.models.values():
            share.cost = None
    owner = talk.row["model"]
    if owner is None and len(talk.models) == 1:
        owner = next(iter(talk.models))
    rest = talk.models.setdefault(owner, _Share())
    for name in TOKENS:
        rest.tokens[name] += talk.tokens[name] - told[name]
    if talk.cost is not None and (priced is None or talk.cost - priced > _CENT):
        rest.cost = (rest.cost or 0.0) + talk.cost - (priced or 0.0)


def _tokens(many: Iterable[shapes.InsightsTokens]) -> shapes.InsightsTokens:
    total = _no_tokens()
    for tokens in many:
        for name in TOKENS:
            total[name] += tokens[name]
    return total


def _sum(values: Iterable[float | None]) -> float | None:
    """The sum of the known values; None when there are none."""
    known = [value for value in values if value is not None]
    return math.fsum(known) if known else None


def _cost(talks: list[_Talk]) -> shapes.InsightsCost:
    return {
        "estimated_usd": _sum(talk.estimated for talk in talks),
        "actual_usd": _sum(talk.actual for talk in talks),
        "usd": _sum(talk.cost for talk in talks),
        "priced_sessions": sum(talk.cost is not None for talk in talks),
        "unknown_sessions": sum(talk.unknown for talk in talks),
    }


# ---------------------------------------------------------------------------------------------- who, with what, when


def _by_model(talks: list[_Talk]) -> list[shapes.InsightsModel]:
    found: dict[str | None, list[_Share]] = {}
    for talk in talks:
        for model, share in talk.models.items():
            found.setdefault(model, []).append(share)
    rows: list[shapes.InsightsModel] = [
        {
            "model": model,
            "sessions": len(shares),
            "replies": sum(share.replies for share in shares),
            "tokens": _tokens(share.tokens for share in shares),
            "cost_usd": _sum(share.cost for share in shares),
        }
        for model, shares in found.items()
    ]
    return sorted(rows, key=lambda row: (-_spent(row["tokens"]), -row["replies"], -row["sessions"], row["model"] or ""))


def _by_source(talks: list[_Talk]) -> list[shapes.InsightsSource]:
    found: dict[str, list[_Talk]] = {}
    for talk in talks:
        found.setdefault(talk.row["source"], []).append(talk)
    rows: list[shapes.InsightsSource] = [
        {
            "source": source,
            "sessions": len(some),
            "messages": sum(talk.messages for talk in some),
            "tool_calls": sum(talk.tools.total() for talk in some),
            "tokens": _tokens(talk.tokens for talk in some),
            "cost_usd": _sum(talk.cost for talk in some),
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


class _Activity:
    """Messages by hour of the day, by weekday (Monday first), by both and by day, in a time zone."""

    def __init__(self, zone: tzinfo | None) -> None:
        self._zone = zone
        self._grid = [[0] * 24 for _ in range(7)]
        self._days: dict[date, shapes.InsightsDay] = {}
        # By quarter of an hour: a cell of the grid, a day.
        self._local: dict[int, tuple[list[int], int, shapes.InsightsDay]] = {}

    def add(self, stamp: float, cost: Any, used: list[Any]) -> None:
        """Count a message."""
        quarter = int(stamp // _QUARTER)
        if quarter not in self._local:
            when = datetime.fromtimestamp(quarter * _QUARTER, self._zone)
            day = self._days.setdefault(when.date(), {"messages": 0, "tokens": 0, "cost_usd": None})
            self._local[quarter] = self._grid[when.weekday()], when.hour, day
        row, hour, day = self._local[quarter]
        row[hour] += 1
        day["messages"] += 1
        day["tokens"] += sum(map(_whole, used))
        if cost is not None:
            day["cost_usd"] = _sum((day["cost_usd"], _money(cost)))

    def result(self, until: float) -> shapes.InsightsActivity:
        """What was counted, and the streaks of days."""
        ordered = dict(sorted(self._days.items()))
        today = datetime.fromtimestamp(until, self._zone).toordinal()
        return {
            "by_hour": [sum(column) for column in zip(*self._grid, strict=True)],
            "by_weekday": [sum(row) for row in self._grid],
            "by_weekday_hour": self._grid,
            "by_day": {day.isoformat(): used["messages"] for day, used in ordered.items()},
            "usage_by_day": {day.isoformat(): used for day, used in ordered.items()},
            "streaks": _streaks([day.toordinal() for day in ordered], today),
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
        "tokens": talk.tokens,
        "cost_usd": talk.cost,
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
