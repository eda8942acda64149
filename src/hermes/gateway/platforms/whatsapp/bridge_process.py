"""The bridge as a process of the gateway: started, and ended with the gateway.

It gets its settings by variables: HERMES_BRIDGE_PORT, HERMES_BRIDGE_TOKEN, HERMES_BRIDGE_FOLDER for its files. With
HERMES_BRIDGE_SUPERVISED it ends when its standard input is closed, so that a killed gateway leaves none behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import random
import shlex
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import IO

from hermes.errors import PlatformRefused, PlatformUnreachable
from hermes.gateway.platforms._shared.tasks import Tasks

GRACE = 5.0  # seconds to end by itself
_LONGEST_LINE = 300
_VARIABLES = frozenset(
    {"PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "NO_PROXY", "no_proxy"}
)
_KINDS_OF_VARIABLES = ("LC_", "NODE_", "SSL_", "HTTP_", "HTTPS_", "ALL_", "http_", "https_", "all_")


class AlreadyRuns(PlatformUnreachable):
    """Another process runs a bridge with the same files: two of them would throw each other out."""


class BridgeProcess:
    """One bridge. `folder` has its files; `note` gets its output and what happens to it, line by line."""

    def __init__(self, command: str, folder: Path, token: str, *, port: int = 0) -> None:
        self._command, self._folder, self._token, self._wanted = command, folder, token, port
        self._port = 0
        self._tasks = Tasks()
        self._process: asyncio.subprocess.Process | None = None
        self._lock: IO[str] | None = None

    @property
    def runs(self) -> bool:
        """Whether it was started and not stopped."""
        return self._lock is not None

    def choose_port(self) -> int:
        """The port it will listen on: the wanted one, else one that is free now."""
        self._port = self._wanted or _free_port()
        return self._port

    async def start(self, note: Callable[[str], None]) -> None:
        """Start it on the chosen port and look after it. AlreadyRuns, or PlatformRefused if the command does not exist."""
        if self.runs:
            return
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lock = _locked(self._folder.parent / "bridge.lock")
        try:
            process = await self._started()
        except BaseException:
            await self.stop()
            raise
        self._tasks.start(self._watch(process, note), name="whatsapp-bridge")

    async def stop(self) -> None:
        """End it, by force after some seconds; may be called twice."""
        await self._tasks.stop()
        process, self._process = self._process, None
        if process is not None:
            await _ended(process)
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.close()

    async def _started(self) -> asyncio.subprocess.Process:
        place = {
            "HERMES_BRIDGE_PORT": str(self._port), "HERMES_BRIDGE_TOKEN": self._token,
            "HERMES_BRIDGE_FOLDER": str(self._folder), "HERMES_BRIDGE_SUPERVISED": "1",
        }  # fmt: skip
        try:
            self._process = await asyncio.create_subprocess_exec(
                *shlex.split(self._command), env={**_environment(), **place}, start_new_session=True,
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
            )  # fmt: skip
        except (OSError, ValueError) as error:
            raise PlatformRefused(f"bridge_command can't be run ({self._command}): {error}") from None
        return self._process

    async def _watch(self, process: asyncio.subprocess.Process, note: Callable[[str], None]) -> None:
        """Pass on its output. The gateway reconnects when the bridge does not answer, which starts it again."""
        assert process.stdout is not None
        line: bytes | None = None
        while line != b"":
            try:
                line = await process.stdout.readline()
            except ValueError:  # a line longer than the buffer
                continue
            if text := line.decode("utf-8", "replace").strip():
                note(text[:_LONGEST_LINE])
        note(f"the bridge has ended (status {await process.wait()})")


async def _ended(process: asyncio.subprocess.Process) -> None:
    """Close its input, ask its process group to end, and end it after GRACE seconds."""
    if process.stdin is not None:
        process.stdin.close()
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), GRACE)
            if number == signal.SIGTERM:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)  # what it started
            return


def _environment() -> dict[str, str]:
    """The variables a bridge gets of our environment: no keys and tokens of others."""
    return {
        name: value for name, value in os.environ.items() if name in _VARIABLES or name.startswith(_KINDS_OF_VARIABLES)
    }


def _locked(path: Path) -> IO[str]:
    file = path.open("w")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise AlreadyRuns("another process runs this number's bridge (the gateway, or setup)") from None
    return file


def _free_port() -> int:
    """A free port below those that the system hands out: another program's connection could take one before the bridge does."""
    while True:
        with socket.socket() as one, contextlib.suppress(OSError):
            one.bind(("127.0.0.1", random.randint(10_240, 32_000)))
            return int(one.getsockname()[1])
