"""When a conversation on a platform begins anew: never, after a time of silence, each day at an hour, or both.

Everything is reckoned from the user's last message, which the store knows, so a restart changes nothing. Hours are those
of a time zone: an hour that a clock change skips counts as the one after it, one that comes twice as the first.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hermes.config import Config

IDLE, DAILY = "idle", "daily"

FAREWELL = (
    "[From the gateway, not from the user: this conversation was quiet and is about to be closed; a new one begins with the"
    " next message. Save now, with your memory and skills tools, what will be worth knowing later: facts about the user,"
    " decisions, how something was done. Save nothing that is already saved. Nobody reads your answer: one word is enough.]"
)


@dataclass(frozen=True, slots=True)
class Policy:
    """When to begin anew."""

    mode: str  # "none", "idle", "daily" or "both"
    idle_minutes: float
    at_hour: int
    notify: bool


def policy(config: Config, platform: str, chat_type: str) -> Policy:
    """What holds for a chat: what is said of its platform, else of its type, else of all."""
    reset = config.session_reset
    layers = [reset.by_platform.get(platform), reset.by_type.get(chat_type)]

    def pick(name: str) -> object:
        for layer in layers:
            value = getattr(layer, name) if layer is not None else None
            if value is not None:
                return value
        return getattr(reset, name)

    return Policy(str(pick("mode")), float(str(pick("idle_minutes"))), int(str(pick("at_hour"))), bool(pick("notify")))


def due(policy: Policy, last_user_at: float | None, now: float, zone: tzinfo) -> str | None:
    """Why a conversation is to begin anew now: "idle" or "daily"; None when it is not."""
    if last_user_at is None:
        return None
    if policy.mode in (IDLE, "both") and now - last_user_at >= policy.idle_minutes * 60:
        return IDLE
    if policy.mode in (DAILY, "both") and boundary(now, policy.at_hour, zone) > last_user_at:
        return DAILY
    return None


def boundary(now: float, hour: int, zone: tzinfo) -> float:
    """The last moment, up to now, at which the clock showed that hour."""
    today = datetime.fromtimestamp(now, zone).date()
    for back in range(3):
        day = today - timedelta(days=back)
        moment = datetime(day.year, day.month, day.day, hour, tzinfo=zone).timestamp()
        if moment <= now:
            return moment
    raise AssertionError("a day without that hour three times in a row")


def time_zone(name: str | None) -> tzinfo:
    """The configured time zone; None: the machine's."""
    if name is None:
        return _Local()
    from zoneinfo import ZoneInfo

    return ZoneInfo(name)


class _Local(tzinfo):
    """The machine's time zone with its clock changes (`astimezone` alone fixes today's offset for ever)."""

    def utcoffset(self, moment: datetime | None) -> timedelta | None:
        return None if moment is None else moment.replace(tzinfo=None).astimezone().utcoffset()

    def dst(self, moment: datetime | None) -> timedelta | None:
        return None if moment is None else moment.replace(tzinfo=None).astimezone().dst()

    def tzname(self, moment: datetime | None) -> str | None:
        return None if moment is None else moment.replace(tzinfo=None).astimezone().tzname()

    def fromutc(self, moment: datetime) -> datetime:
        return moment.replace(tzinfo=UTC).astimezone().replace(tzinfo=self)


def notice(reason: str, policy: Policy, name: str) -> str:
    """What the user is told with the first message after a reset, and how the old conversation comes back."""
    if reason == IDLE:
        why = f"the last one was quiet for {_span(policy.idle_minutes)}"
    else:
        why = f"every day at {policy.at_hour}:00 a new one begins"
    return f"↻ This is a new conversation: {why}. `/resume {name}` brings the old one back."


def _span(minutes: float) -> str:
    if minutes >= 2880:
        return f"{minutes / 1440:g} days"
    if minutes >= 120:
        return f"{minutes / 60:g} hours"
    return f"{minutes:g} minutes"
