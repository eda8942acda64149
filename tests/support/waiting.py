"""Wait for what happens elsewhere: in another thread or process, on a server, in a browser.

The deadline says "never"; it is no measure of speed. It is long enough for a machine that does other things at the same time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

PATIENCE = 120.0  # seconds
What = str | Callable[[], object]  # what was waited for; a function is asked when it did not happen


def _never() -> bool:
    return False


def until(condition: Callable[[], Any], what: What = "", *, unless: Callable[[], Any] = _never) -> Any:
    """Wait until this is true and return it; AssertionError with `what` after PATIENCE, or when it can't become true (`unless`)."""
    end = time.monotonic() + PATIENCE
    while not (value := condition()):
        _check(condition, what, end, unless)
        time.sleep(0.02)
    return value


async def until_async(
    condition: Callable[[], Any],
    what: What = "",
    *,
    unless: Callable[[], Any] = _never,
    pause: Callable[[float], Awaitable[Any]] = asyncio.sleep,
) -> Any:
    """Wait as `until` does while the event loop goes on; `pause` is awaited between two looks."""
    end = time.monotonic() + PATIENCE
    while not (value := condition()):
        _check(condition, what, end, unless)
        await pause(0.02)
    return value


def _check(condition: Callable[[], Any], what: What, end: float, unless: Callable[[], Any]) -> None:
    why = "it can't happen any more" if unless() else f"not within {PATIENCE:g} s" if time.monotonic() > end else ""
    if why and not condition():  # it may have happened just before it became impossible
        raise AssertionError(f"{why}: {(what() if callable(what) else what) or condition}")
