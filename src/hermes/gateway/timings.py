"""How long the gateway waits for what, and how often it looks."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from hermes.errors import HermesError, PlatformUnreachable, SlowDown

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """Seconds. A program that embeds a Gateway can give it other ones."""

    turns_end: float = 5.0  # for turns to end by themselves when the gateway stops
    answer: float = 300.0  # for a person to answer a question; then the answer is no
    reconnect: float = 1.0  # before a lost connection is established again; doubled with each failure
    retry: float = 0.25  # before a failed message is sent again; doubled with each failure
    reset_check: float = 30.0  # between two searches for quiet conversations
    index_pause: float = 0.15  # between two writes of sessions.json, at least
    index_check: float = 60.0  # between two checks for changes without a notification: a title, another process


STANDARD = Timings()


async def retried(
    work: Callable[[], Awaitable[Result]], seconds: float, may_repeat: Callable[[Exception], bool]
) -> Result:
    """What `work` gives; a rate limit or a broken connection is waited out, if it may be repeated, for so many seconds in all."""
    loop, pause = asyncio.get_running_loop(), 0.5
    end = loop.time() + seconds
    async with asyncio.timeout_at(end):
        while True:
            try:
                return await work()
            except (SlowDown, PlatformUnreachable) as error:
                wait = error.retry_after if isinstance(error, SlowDown) else pause
                if not may_repeat(error) or loop.time() + wait > end:
                    raise
            await asyncio.sleep(max(0.05, wait))
            pause = min(pause * 2, 10.0)


async def repeat(work: Callable[[], Awaitable[None]], seconds: float, failed: str) -> None:
    """Do something again and again, with a pause after each time, until cancelled; `failed` is logged where it fails."""
    while True:
        try:
            await work()
        except HermesError as error:
            logging.getLogger("hermes.gateway").warning("%s: %s", failed, error)
        await asyncio.sleep(seconds)
