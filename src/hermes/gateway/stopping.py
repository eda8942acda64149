"""Ending a gateway: within ten seconds, whatever hangs, and nothing is lost.

Turns get a while to end by themselves, then they are cut short, and the next start takes them up. What can't be sent in
time lies in the outbox. Each step has its time; what does not keep to it is left behind, since the store has everything.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
from collections.abc import Awaitable, Iterable
from typing import TYPE_CHECKING, Any

from hermes.gateway.index import write_index

if TYPE_CHECKING:
    from hermes.gateway.runner import Gateway

STOP_SECONDS = 10.0  # all of it
TURN_SECONDS = 5.0  # for turns to end by themselves
CUT_SECONDS = 1.5  # for turns that are cut short to end
SEND_SECONDS = 1.0  # for what is ready to be sent, at least
LEAVE_SECONDS = 1.0  # for adapters, and then for everything else, to let go
_log = logging.getLogger("hermes.gateway")


async def wind_down(gateway: Gateway, tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Receive nothing more, let turns end or be cut short, send what is ready, and let go."""
    loop, connections = asyncio.get_running_loop(), list(gateway.connections.values())
    turns_end = loop.time() + TURN_SECONDS
    for connection in connections:
        connection.accepts = False
    gateway.lanes.stop()
    while gateway.lanes.running and loop.time() < turns_end:
        await asyncio.sleep(0.02)
    for item in gateway.lanes.under_way():
        item.stop.want()
    while gateway.lanes.running and loop.time() < turns_end + CUT_SECONDS:
        await asyncio.sleep(0.05)
    if gateway.lanes.running:
        _log.warning("%s turns do not end; the next start takes them up", gateway.lanes.running)
    left = max(SEND_SECONDS, turns_end + CUT_SECONDS + SEND_SECONDS - loop.time() if not gateway.lanes.running else 0)
    if not await _within(left, *(connection.delivery.idle() for connection in connections)):
        _log.info("some messages wait in the outbox for the next start")
    for task in tasks:
        task.cancel()
    await _within(LEAVE_SECONDS, *tasks, *(connection.stop(LEAVE_SECONDS) for connection in connections))
    if gateway.sharing is not None:
        await _within(LEAVE_SECONDS, gateway.sharing.leave())  # what waits is others' to do from now on
    await _within(
        LEAVE_SECONDS,
        gateway.writer.idle(),
        asyncio.to_thread(gateway.agents.close, LEAVE_SECONDS * 0.8),
        asyncio.to_thread(write_index, gateway.store, gateway.db.sessions_dir),
    )


async def _within(seconds: float, *work: Awaitable[Any]) -> bool:
    """Do all this, at most so long; whether it was done. What goes wrong is a line in the log."""
    if not work:
        return True
    tasks = [asyncio.ensure_future(one) for one in work]
    done, pending = await asyncio.wait(tasks, timeout=seconds)
    for task in pending:
        task.cancel()
    for task in done:
        if not task.cancelled() and task.exception() is not None:
            _log.error("something went wrong while the gateway ended", exc_info=task.exception())
    return not pending


def end_for_sure(seconds: float = STOP_SECONDS - 0.5) -> None:
    """Have this process end within this time, even if a thread of it never does: a kill loses nothing here."""

    def end() -> None:
        _log.warning("something does not end; the gateway ends without it")
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
