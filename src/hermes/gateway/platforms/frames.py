"""What a vendor pushes, read as JSON. What can't be read is dropped with one line in the log, which never has its content."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
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
