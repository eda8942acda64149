"""sessions.json: the routing table as a file, session key → entry. The table is authoritative; the file follows it lazily.

A message only marks the file as outdated. It is written at once, and again after a pause for all changes in it; the pause
is the longer the longer writing takes.
"""

from __future__ import annotations

import asyncio
import json
import logging
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from hermes.errors import HermesError
from hermes.home import make_private, write_whole
from hermes.store.gateway import routes

if TYPE_CHECKING:
    from hermes.gateway.settings import Timings
    from hermes.store.gateway.gateway_db import GatewayDB

_COLUMNS = ("session_id", "created_at", "updated_at", "platform", "chat_type", "display_name", "title")
_COUNTS = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens", "reasoning_tokens")
SHARE = 50  # between two writes at least so many times as long as the last one took
_log = logging.getLogger("hermes.gateway")


class SessionsIndex:
    """Keeps the file up to date. `touched` may be called from any thread, and costs nothing."""

    def __init__(self, store: GatewayDB, folder: Path, timings: Timings) -> None:
        self._store, self._folder, self._timings = store, folder, timings
        self._wake = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    def touched(self) -> None:
        """Note that the routing table has changed."""
        if self._loop is not None and not self._wake.is_set():
            with suppress(RuntimeError):  # the gateway has ended
                self._loop.call_soon_threadsafe(self._wake.set)

    async def follow(self) -> None:
        """Write the file whenever it is outdated, until cancelled."""
        self._loop = loop = asyncio.get_running_loop()
        while True:
            self._wake.clear()  # first: a change from here on wakes this again
            begun = loop.time()
            try:
                await asyncio.to_thread(write_index, self._store, self._folder)
            except (HermesError, OSError) as error:
                self._wake.set()
                _log.warning("sessions.json could not be written: %s", error)
            await asyncio.sleep(max(self._timings.index_pause, SHARE * (loop.time() - begun)))
            with suppress(TimeoutError):
                async with asyncio.timeout(self._timings.index_check):
                    await self._wake.wait()


def entries(store: GatewayDB) -> dict[str, Any]:
    """Session key → the entry with its session."""
    return {row["key"]: _entry(row) for row in store.read(routes.index)}


def _entry(row: dict[str, Any]) -> dict[str, Any]:
    flags = {"shared": bool(row["shared"]), "reset": row["reset_reason"], "previous_session_id": row["previous_id"]}
    return {
        **{name: row[name] for name in _COLUMNS},
        "origin": {**json.loads(row["chat"]), "user_id": row["user_id"]},
        "messages": row["message_count"] or 0,
        **{name: row[name] or 0 for name in _COUNTS},
        "flags": flags,
        "last_user_at": row["last_user_at"],
    }


def write_index(store: GatewayDB, folder: Path) -> Path:
    """Write the file atomically; returns its path. An up-to-date file is left alone."""
    make_private(folder)
    target = folder / "sessions.json"
    if store.db.is_encrypted:  # it has titles and names
        target.unlink(missing_ok=True)
        return target
    content = msgspec.json.format(msgspec.json.encode(entries(store)), indent=1) + b"\n"
    if target.is_file() and target.read_bytes() == content:
        return target
    write_whole(target, content, sync=False)
    return target
