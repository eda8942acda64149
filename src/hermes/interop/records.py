"""Objects of other programs' files: a value of another type than the one that is asked for counts as missing."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

_MILLISECONDS = 1e11  # a time above this is in milliseconds: in seconds it would be in the year 5138
FIRST, LAST = -62_135_596_800.0, 253_402_300_799.0  # seconds since 1970: the years 1 to 9999


class Record(dict[str, Any]):
    """An object of a program's file, and its values by their types."""

    @staticmethod
    def of(value: Any) -> Record:
        """A value that is an object as a record; an empty one in the place of any other."""
        return value if isinstance(value, Record) else Record(value if isinstance(value, dict) else ())

    @staticmethod
    def all(value: Any) -> list[Record]:
        """The objects of a list; [] when it is no list."""
        return [Record.of(one) for one in value if isinstance(one, dict)] if isinstance(value, list) else []

    def object(self, key: str) -> Record:
        """An object, or an empty one."""
        value = self.get(key)
        if isinstance(value, dict) and not isinstance(value, Record):
            value = self[key] = Record(value)
        return value if isinstance(value, Record) else Record()

    def objects(self, key: str) -> list[Record]:
        """The objects of a list; [] when it is no list."""
        value = self.get(key)
        if isinstance(value, list):
            value[:] = [Record(one) if isinstance(one, dict) and not isinstance(one, Record) else one for one in value]
        return Record.all(value)

    def text(self, key: str) -> str | None:
        """A text that says something, or None."""
        return text(self.get(key))

    def time(self, key: str) -> float | None:
        """A time, as `seconds` reads it, or None."""
        return seconds(self.get(key))

    def count(self, key: str) -> int | None:
        """A number of tokens, or None."""
        return count(self.get(key))

    def counts(self, names: Mapping[str, str], *, with_cached: bool = False) -> dict[str, int]:
        """The numbers of tokens that are known, by our names of theirs. `with_cached`: the program counts what the model's
        cache had as sent, too."""
        found = {ours: number for ours, theirs in names.items() if (number := self.count(theirs)) is not None}
        if with_cached and "input_tokens" in found:
            found["input_tokens"] = max(0, found["input_tokens"] - found.get("cache_read_tokens", 0))
        return found


def text(value: Any) -> str | None:
    """A text that says something, or None."""
    return value if isinstance(value, str) and value.strip() else None


def seconds(value: Any) -> float | None:
    """A time in seconds since 1970 from ISO text, seconds or milliseconds; None when it is none of them.

    A time outside the years 1 to 9999 is none: no program could write it again.
    """
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, (int, float)):
        at = value / 1000 if value > _MILLISECONDS else value
        return float(at) if FIRST <= at <= LAST else None
    if not isinstance(value, str):
        return None
    try:
        when = datetime.fromisoformat(value)
    except ValueError:
        try:
            return seconds(float(value))
        except ValueError:
            return None
    return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()


def count(value: Any) -> int | None:
    """A number of tokens, or None."""
    return (
        int(value) if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 1 << 63 else None
    )
