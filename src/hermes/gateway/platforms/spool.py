"""Messages that were acknowledged before the store had them: each is a small file until the store has it.

Slack and Discord wait three seconds for an acknowledgement, and what was acknowledged they never send again. So a message
is acknowledged when the store has it, and after ACKNOWLEDGE_AFTER seconds at the latest: then its file is on the disk
first. A killed process leaves the file, and the next connection takes it up. Where neither the store nor the disk takes a
message it is not acknowledged: Slack sends it again, Discord tells the person that the command failed.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from logging import Logger, LoggerAdapter
from pathlib import Path
from typing import Any

ACKNOWLEDGE_AFTER = 1.0  # seconds; both platforms wait 3, and the way there and a slow disk take their part of it
_MOST = 10_000  # files: what comes beyond these is not acknowledged


class Spool:
    """A folder of messages in the order they came. Its files are the user's alone, and gone once the store has them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._thread: ThreadPoolExecutor | None = None  # not the loop's own threads: those may all wait for the store

    def waiting(self) -> list[tuple[str, dict[str, Any]]]:
        """The name and the content of each message in it, the oldest first; what can't be read is left where it is."""
        found = []
        for file in sorted(self._folder.glob("*.json")):
            try:
                content = json.loads(file.read_text("utf-8"))
            except (OSError, ValueError):
                continue
            if isinstance(content, dict):
                found.append((file.name, content))
        return found

    async def put(self, content: dict[str, Any]) -> str:
        """Write a message down for good; its name here. OSError where that can't be."""
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "hermes-spool")
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._write, content)

    def drop(self, name: str) -> None:
        """The store has it. A file that can't be removed is taken up again, and known by its id then."""
        try:
            (self._folder / name).unlink(missing_ok=True)
        except OSError:
            pass

    def close(self) -> None:
        """Let go of the thread; what is being written is still written."""
        if self._thread is not None:
            self._thread.shutdown(wait=False)
            self._thread = None

    def _write(self, content: dict[str, Any]) -> str:
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if sum(1 for _ in self._folder.iterdir()) >= _MOST:
            raise OSError(f"{_MOST:,} messages wait there for the store")
        name = f"{time.time_ns():020d}.json"
        draft = self._folder / f"{name}.part"
        try:
            handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump(content, file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(draft, self._folder / name)
        except OSError:
            draft.unlink(missing_ok=True)
            raise
        folder = os.open(self._folder, os.O_RDONLY)
        try:
            os.fsync(folder)  # without it a power cut may take the new name away
        finally:
            os.close(folder)
        return name


async def acknowledge(
    kept: asyncio.Future[bool], content: dict[str, Any], spool: Spool, tell: Callable[[], Awaitable[None]],
    log: Logger | LoggerAdapter[Logger],
) -> None:  # fmt: skip
    """Tell the platform of a message when it is `kept`, or when the spool has it, whichever comes first.

    `kept` results in False where the message can't be read: it is not acknowledged, or its file stays.
    """
    await asyncio.wait([kept], timeout=ACKNOWLEDGE_AFTER)
    name = None
    if not kept.done():
        try:
            name = await spool.put(content)
        except OSError as error:
            log.warning("a message is not acknowledged yet: neither the store nor the disk takes it (%s)", error)
        else:
            await tell()
    if not await kept:
        return
    if name is None:
        await tell()
    else:
        spool.drop(name)
