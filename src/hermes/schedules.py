"""When a job is due: cron's five fields in a time zone, right where clocks are changed.

As Debian's cron does it: a time that the clock skips in spring is due right after the gap, one that comes twice in autumn is
due once; schedules with `*` or `*/n` hours go by real time.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

from hermes.errors import InvalidInput


def next_time(schedule: str, timezone: str, after: float) -> float:
    """The first moment after this one at which a schedule is due. InvalidInput when it can't be read or never is."""
    from cronsim import CronSim, CronSimError

    if len(schedule.split()) != 5:
        raise InvalidInput(
            f"{schedule!r} is not a schedule: give five fields (minute hour day month weekday), such as '0 9 * * 1-5'"
        )
    start = datetime.fromtimestamp(after, UTC).astimezone(zone(timezone))
    try:
        return next(CronSim(schedule, start)).timestamp()
    except CronSimError as error:
        field = str(error).removeprefix("Bad ")  # cronsim: "Bad minute"
        raise InvalidInput(
            f"{schedule!r} is not a schedule: its {field} is not valid (minute hour day month weekday)"
        ) from None
    except StopIteration:
        raise InvalidInput(f"the schedule {schedule!r} names a day that never comes") from None


def zone(name: str) -> ZoneInfo:
    """The time zone of this name; InvalidInput when there is none."""
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        raise InvalidInput(f"unknown time zone {name!r}; use a name such as Europe/Berlin") from None


def own_timezone() -> str:
    """The name of this machine's time zone; UTC where it has none."""
    named = os.environ.get("TZ", "").lstrip(":")
    linked = os.path.realpath("/etc/localtime").partition("zoneinfo/")[2]
    for name in (named, linked):
        try:
            if name and ZoneInfo(name):
                return name
        except (KeyError, ValueError, OSError):
            continue
    return "UTC"
