"""Times, numbers and texts as callers give them, checked before a database sees them.

A database converts what is of another type silently, or stores it (SQLite), or refuses it in words of its own (PostgreSQL):
here it is InvalidInput, which names the argument, and nothing is stored.
"""

from __future__ import annotations

import math
from typing import Any

from hermes.errors import InvalidInput
from hermes.store import codec


def checked_time(value: Any, name: str) -> float:
    """A time as seconds since 1970, as it may be stored."""
    if (seconds := codec.number(_as_float(value), "REAL")) is None:
        raise InvalidInput(f"{name} is a number of seconds since 1970, not {_shown(value)}")
    return seconds


def checked_bound(value: Any, name: str) -> float:
    """One end of a range of times; infinity leaves it open."""
    seconds = _as_float(value)
    if math.isnan(seconds):
        raise InvalidInput(f"{name} is a number of seconds since 1970, not {_shown(value)}")
    return seconds


def checked_period(value: Any, name: str, unit: str) -> float:
    """A length of time in this unit; infinity is for ever."""
    if isinstance(value, (str, bytes)) or math.isnan(length := _as_float(value)):
        raise InvalidInput(f"{name} is a number of {unit}, not {_shown(value)}")
    return length


def checked_ttl(value: Any) -> float:
    """How many seconds a lease lasts: it ends one day, also when its holder never releases it."""
    seconds = checked_period(value, "the time to live of a lease", "seconds")
    if codec.number(seconds, "REAL") is None:
        raise InvalidInput(f"the time to live of a lease is a limited number of seconds, not {_shown(value)}")
    return seconds


def checked_number(value: Any, name: str, kind: str) -> int | float:
    """A number for a column of this type: INTEGER or REAL."""
    if (number := codec.number(value, kind)) is None:
        raise InvalidInput(f"{name} is a {'whole ' if kind == 'INTEGER' else ''}number, not {_shown(value)}")
    return number


def checked_text(value: Any, name: str) -> str | None:
    """A text or None; a whole number (the id of a user) becomes its digits."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return _shown(value)
    raise InvalidInput(f"{name} is text, not {type(value).__name__}")


def checked_message_id(value: Any) -> int:
    """The id of a message."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidInput(f"the id of a message is a whole number, not {_shown(value)}")
    return value


def _as_float(value: Any) -> float:
    """NaN for what is no number, or one that is too large."""
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def _shown(value: Any) -> str:
    try:
        shown = repr(value)
    except ValueError:  # Python prints no number of more than 4,300 digits
        shown = f"a very large {type(value).__name__}"
    return shown if len(shown) <= 60 else f"{shown[:60]}…"
