"""Times for people: "2h ago" out, "7d", "yesterday" and "2026-01-31" in; and the times of a schedule.

Ages are measured from `now()`, which the variable HERMES_NOW (seconds since 1970) can hold still for screens that are
compared; only the display of ages and times in questions ("last week") ask it.

Schedules are cron's five fields in a time zone, as Debian's cron reads them where clocks are changed: a time that is skipped in
spring is due right after the gap, one that comes twice in autumn is due once; `*` and `*/n` hours go by real time.
"""

from __future__ import annotations

import math
import os
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from datetime import datetime, tzinfo

MINUTE, HOUR, DAY = 60, 3600, 86_400
_UNITS = {"m": MINUTE, "min": MINUTE, "h": HOUR, "d": DAY, "w": 7 * DAY}


def now() -> float:
    """The moment from which ages are measured."""
    try:
        return float(os.environ["HERMES_NOW"])
    except (KeyError, ValueError):
        return time.time()


def ago(then: float | None, zone: tzinfo | None = None, *, at: float | None = None) -> str:
    """How long ago that was: "just now", "5m ago", "2h ago", "yesterday", "3d ago"; from a week on the date."""
    if then is None or not math.isfinite(then):
        return "—"
    age = (now() if at is None else at) - then
    if -MINUTE < age < MINUTE:
        return "just now"
    if age < 0 or age >= 7 * DAY:
        return date(then, zone)
    if age < HOUR:
        return f"{int(age // MINUTE)}m ago"
    if age < DAY:
        return f"{int(age // HOUR)}h ago"
    return "yesterday" if age < 2 * DAY else f"{int(age // DAY)}d ago"


def date(then: Any, zone: tzinfo | None = None, *, unknown: str = "—") -> str:
    """The day, as 2026-01-31; `unknown` for a time outside the calendar."""
    return _written(then, zone, "%Y-%m-%d", unknown)


def clock(then: Any, zone: tzinfo | None = None, *, unknown: str = "—") -> str:
    """The day and the minute, as 2026-01-31 14:05; `unknown` for a time outside the calendar."""
    return _written(then, zone, "%Y-%m-%d %H:%M", unknown)


def _written(then: Any, zone: tzinfo | None, form: str, unknown: str) -> str:
    try:
        if zone is None:  # the machine's own, without loading datetime
            return time.strftime(form, time.localtime(float(then)))
        from datetime import datetime

        return datetime.fromtimestamp(float(then), zone).strftime(form)
    except (TypeError, OverflowError, ValueError, OSError):
        return unknown


def duration(seconds: float) -> str:
    """A duration to the second: `12s`, `4m 05s`, `2h 03m`."""
    whole = max(0, int(seconds))
    if whole < HOUR:
        return f"{whole}s" if whole < MINUTE else f"{whole // MINUTE}m {whole % MINUTE:02}s"
    return f"{whole // HOUR}h {whole % HOUR // MINUTE:02}m"


def rough_duration(seconds: float) -> str:
    """A duration to the minute, then the hour: `45s`, `12m`, `3h 05m`, `2d 4h`."""
    whole = max(0, int(seconds))
    if whole < HOUR:
        return f"{whole}s" if whole < MINUTE else f"{whole // MINUTE}m"
    return (
        f"{whole // HOUR}h {whole % HOUR // MINUTE:02}m" if whole < DAY else f"{whole // DAY}d {whole % DAY // HOUR}h"
    )


def zone_of(name: str | None) -> tzinfo | None:
    """The time zone config.yaml names; None is the machine's own. ConfigError when it is unknown."""
    from hermes.errors import ConfigError

    if name and (found := _named_zone(name)) is None:
        raise ConfigError(f"timezone: {_UNKNOWN_ZONE.format(name)}")
    return found if name else None


_UNKNOWN_ZONE = "unknown time zone {!r}; use a name such as Europe/Berlin"


def _named_zone(name: str) -> tzinfo | None:
    from zoneinfo import ZoneInfo

    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        return None


def own_timezone() -> str:
    """The name of this machine's time zone; UTC where it has none."""
    named = os.environ.get("TZ", "").lstrip(":")
    linked = os.path.realpath("/etc/localtime").partition("zoneinfo/")[2]
    return next((name for name in (named, linked) if name and _named_zone(name)), "UTC")


def next_time(schedule: str, timezone: str, after: float) -> float:
    """The first moment after this one at which a schedule is due. InvalidInput when it can't be read or never is."""
    from datetime import UTC, datetime

    from cronsim import CronSim, CronSimError

    from hermes.errors import InvalidInput

    if len(schedule.split()) != 5:
        raise InvalidInput(
            f"{schedule!r} is not a schedule: give five fields (minute hour day month weekday), such as '0 9 * * 1-5'"
        )
    if (zone := _named_zone(timezone)) is None:
        raise InvalidInput(_UNKNOWN_ZONE.format(timezone))
    try:
        return next(CronSim(schedule, datetime.fromtimestamp(after, UTC).astimezone(zone))).timestamp()
    except CronSimError as error:
        field = str(error).removeprefix("Bad ")  # cronsim: "Bad minute"
        raise InvalidInput(
            f"{schedule!r} is not a schedule: its {field} is not valid (minute hour day month weekday)"
        ) from None
    except StopIteration:
        raise InvalidInput(f"the schedule {schedule!r} names a day that never comes") from None


def span(text: str, zone: tzinfo | None = None, *, at: float | None = None) -> tuple[float, float]:
    """The first and the last moment a person means: a day has both, "7d" (seven days ago) is one moment.

    Takes 2026-01-31, 2026-01, 2026, 2026-01-31 14:05, today, yesterday, and an age: 30m, 12h, 7d, 2w.
    ValueError names the accepted forms.
    """
    from datetime import datetime, timedelta

    words = text.strip().lower().removesuffix(" ago").strip()
    reference = time.time() if at is None else at
    number = words.rstrip("abcdefghijklmnopqrstuvwxyz").strip()
    unit = _UNITS.get(words[len(number) :].strip()) if number.replace(".", "", 1).isdigit() else None
    try:
        if unit is not None:
            moment = reference - float(number) * unit
            datetime.fromtimestamp(moment, zone)  # an age before the calendar began is refused here
            return moment, moment
        if words in ("today", "yesterday"):
            today = datetime.fromtimestamp(reference, zone).replace(hour=0, minute=0, second=0, microsecond=0)
            start = today if words == "today" else today - timedelta(days=1)
            return _between(start, start + timedelta(days=1))
        return _calendar(text.strip(), zone)
    except (ValueError, OverflowError, OSError):
        raise ValueError(
            f"{text!r} is not a time: use 2026-01-31, 2026-01-31 14:05, 7d, 12h, today or yesterday"
        ) from None


def _calendar(text: str, zone: tzinfo | None) -> tuple[float, float]:
    """A year, a month, a day, or a moment."""
    from datetime import datetime, timedelta

    parts = text.split("-")
    if len(parts) <= 2 and all(part.isdigit() for part in parts) and len(parts[0]) == 4:
        year, month = int(parts[0]), int(parts[1]) if len(parts) == 2 else 1
        start = datetime(year, month, 1, tzinfo=zone)
        after = datetime(year + 1, 1, 1, tzinfo=zone)
        if len(parts) == 2 and month < 12:
            after = datetime(year, month + 1, 1, tzinfo=zone)
        return _between(start, after)
    when = datetime.fromisoformat(text)
    if when.tzinfo is None:
        when = when.replace(tzinfo=zone)
    if len(text) == 10:
        return _between(when, when + timedelta(days=1))
    moment = when.timestamp()
    # "14:05" means the whole minute, "14:05:30" the whole second.
    return moment, moment + (59.999999 if text.count(":") == 1 and "+" not in text else 0.999999)


def _between(start: datetime, after: datetime) -> tuple[float, float]:
    return start.timestamp(), math.nextafter(after.timestamp(), 0)
