"""Pushed payloads of vendors, read as JSON. A malformed one is dropped with one line in the log, which never has its content.

Vendors' objects may hold anything: `dict_of` and its like give a value of the wanted kind, empty where it is another.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from datetime import datetime
from typing import Any

Log = logging.Logger | logging.LoggerAdapter[Any]
LOG = logging.getLogger("hermes.gateway")


def read_object(
    data: str | bytes, platform: str, log: Log = LOG, *, parse: Callable[[Any], Any] = json.loads
) -> dict[str, Any] | None:
    """The JSON object of a pushed frame; None, and a line in the log, if it is none."""
    try:
        found = parse(data)
        why = "it is not a JSON object"
    except RecursionError:
        found, why = None, "its JSON is nested too deeply"
    except ValueError as error:  # its text may have a part of the frame: only the place is reported
        place = getattr(error, "pos", getattr(error, "start", None))
        found, why = None, "it is not JSON" + ("" if place is None else f" (character {place})")
    if isinstance(found, dict):
        return found
    dropped(data, platform, why, log)
    return None


def dropped(data: str | bytes, platform: str, why: str, log: Log = LOG) -> None:
    """Write the log line for a frame that can't be read."""
    size = len(data) if isinstance(data, bytes) else len(data.encode("utf-8", "replace"))
    log.warning("%s: a frame of %d bytes can't be read and is dropped: %s", platform, size, why)


def dict_of(value: Any) -> dict[str, Any]:
    """The value, if it is an object; else {}."""
    return value if isinstance(value, dict) else {}


def dicts_of(value: Any) -> list[dict[str, Any]]:
    """The objects in a list; [] if the value is none."""
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def text_of(value: Any) -> str:
    """The value, if it is a text; else ""."""
    return value if isinstance(value, str) else ""


def parsed(content: Any) -> dict[str, Any]:
    """The JSON object in a text or in bytes; {} if there is none."""
    try:
        return dict_of(json.loads(content))
    except (TypeError, ValueError, RecursionError):
        return {}


def moment_of(value: Any, unit: int = 1000) -> float | None:
    """A vendor's time, a number or a text of digits, as Unix seconds; None if it is none. `unit` of it are a second."""
    if isinstance(value, str) and value.isascii() and value.isdigit():
        value = int(value[:20])
    number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e13 * unit
    return value / unit if number else None


def iso_moment(value: Any) -> float | None:
    """A vendor's time in ISO 8601 as Unix seconds; None if it is none."""
    try:
        return datetime.fromisoformat(text_of(value)).timestamp()
    except (ValueError, OverflowError, OSError):
        return None
