"""Messages between a platform and the store: handed over until they are stored, spooled where the platform can't wait.

Slack and Discord wait three seconds for an acknowledgement, and never resend an acknowledged message. So a message
is acknowledged when the store has it, and after ACKNOWLEDGE_AFTER seconds at the latest: then its file is on the disk
first. A killed process leaves the file, and the next connection reads it. If neither the store nor the disk takes a
message it is not acknowledged: Slack sends it again, Discord shows the person that the command failed.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from logging import Logger, LoggerAdapter
from pathlib import Path
from typing import Any

from hermes.errors import ConfigError
from hermes.gateway.adapter import Link
from hermes.gateway.events import Event, Reaction, Revision

Mask = Callable[[str], str]

ACKNOWLEDGE_AFTER = 1.0  # seconds; both platforms wait 3, and the network and a slow disk need a part of it
_MOST = 10_000  # files: messages beyond these are not acknowledged
_WORDS = frozenset({"text", "quoted", "fallback", "preview", "plain_text", "pretext", "footer"})
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 30.0  # seconds between two tries to store a message


async def hand_over(link: Link, what: Event | Revision | Reaction) -> None:
    """Give a message, a revision or a reaction to the gateway. When this returns it is stored."""
    if isinstance(what, Reaction):
        await link.reacted(what)
    else:
        await (link.revised(what) if isinstance(what, Revision) else link.received(what))


async def keep(link: Link, what: Event | Revision | Reaction) -> None:
    """Retry until it is stored, for platforms that do not send it again."""
    pause = _FIRST_PAUSE
    while True:
        try:
            return await hand_over(link, what)
        except Exception as error:
            link.log.warning("a message could not be stored (%s); next try in %g s", type(error).__name__, pause)
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)


def store_mask(home: Path) -> Mask:
    """The mask that this home's store applies to texts (privacy.redact_secrets): no file holds what the store does not."""

    @cache
    def mask() -> Mask:
        from hermes.config import load_config
        from hermes.store.redact import redact

        try:
            main = (
                home.parents[2] if home.parent.parent.name == "accounts" else home
            )  # an account's folder is inside it
            wanted = load_config(main / "config.yaml").privacy.redact_secrets
        except ConfigError:
            wanted = True
        return redact if wanted else str

    return lambda text: mask()(text)


class Spool:
    """A folder of messages in order of arrival. Only the user can read its files; they are removed once the store has them.

    The text people wrote in a message (`_WORDS`) is masked; its other fields are names and numbers that must not change.
    """

    def __init__(self, folder: Path, mask: Mask = str) -> None:
        self._folder, self._mask = folder, mask
        self._thread: ThreadPoolExecutor | None = None  # not the loop's own threads: those may all wait for the store

    def waiting(self) -> list[tuple[str, dict[str, Any]]]:
        """The name and the content of each message in it, the oldest first; unreadable files stay where they are."""
        from hermes.store import sealed_files

        found = []
        for file in sorted(self._folder.glob("*.json")):
            try:
                content = json.loads(sealed_files.read_bytes(file))
            except (OSError, ValueError):
                continue
            if isinstance(content, dict):
                found.append((file.name, content))
        return found

    async def put(self, content: dict[str, Any]) -> str:
        """Write a message to the disk and sync it; returns its name here. OSError if that fails."""
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "hermes-spool")
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._write, content)

    def drop(self, name: str) -> None:
        """Remove a message that the store has. A file that can't be removed is read again, and recognised by its id."""
        try:
            (self._folder / name).unlink(missing_ok=True)
        except OSError:
            pass

    def close(self) -> None:
        """Release the thread; a write under way is finished."""
        if self._thread is not None:
            self._thread.shutdown(wait=False)
            self._thread = None

    def _write(self, content: dict[str, Any]) -> str:
        from hermes.store import encryption_keys, sealed_files

        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if sum(1 for _ in self._folder.iterdir()) >= _MOST:
            raise OSError(f"{_MOST:,} messages already wait there for the store")
        name = f"{time.time_ns():020d}.json"
        draft = self._folder / f"{name}.part"
        try:
            raw = json.dumps(_masked(content, self._mask)).encode()
            handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(handle, "wb") as file:
                file.write(sealed_files.sealed(raw, encryption_keys.writing_key_near(draft)))
                file.flush()
                os.fsync(file.fileno())
            os.replace(draft, self._folder / name)
        except OSError:
            draft.unlink(missing_ok=True)
            raise
        folder = os.open(self._folder, os.O_RDONLY)
        try:
            os.fsync(folder)  # without it a power cut may lose the new name
        finally:
            os.close(folder)
        return name


def _masked(content: Any, mask: Mask) -> Any:
    if isinstance(content, dict):
        return {
            name: mask(value) if name in _WORDS and isinstance(value, str) else _masked(value, mask)
            for name, value in content.items()
        }
    return [_masked(one, mask) for one in content] if isinstance(content, list | tuple) else content


class Receipt:
    """One message on its way into the store; it is acknowledged to its platform once, when it is safe."""

    def __init__(
        self, spool: Spool, content: dict[str, Any], tell: Callable[[], Awaitable[None]], log: Logger | LoggerAdapter[Logger]
    ) -> None:  # fmt: skip
        """`tell` acknowledges the message to the platform; it raises nothing."""
        self._spool, self._content, self._tell, self._log = spool, content, tell, log
        self._name: str | None = None
        self._once = asyncio.Lock()

    async def follow(self, kept: asyncio.Future[bool]) -> None:
        """Acknowledge the message when it is `kept`, or when the spool has it, whichever comes first.

        `kept` results in False if the message can't be kept at all: it is not acknowledged, or its file stays.
        """
        await asyncio.wait([kept], timeout=ACKNOWLEDGE_AFTER)
        if not kept.done():
            await self.hold()
        if not await kept:
            return
        if self._name is None:
            await self._tell()
        else:
            self._spool.drop(self._name)

    async def hold(self) -> bool:
        """Acknowledge it before the store has it; False if the disk does not take it either."""
        async with self._once:
            if self._name is None:
                try:
                    self._name = await self._spool.put(self._content)
                except OSError as error:
                    why = "it could be written neither to the store nor to the disk"
                    self._log.warning("a message is not acknowledged: %s (%s)", why, error)
                    return False
                await self._tell()
        return True
