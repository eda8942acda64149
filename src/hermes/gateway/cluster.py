"""The gateways of one store: they share the chats, and when one dies the others take over its work.

Each instance renews a lease as its heartbeat. One instance at a time is connected to a platform and sends the messages of
all instances there; the others stand by. One instance at a time serves a chat (see store/instances.py). An instance without
a heartbeat for too long is declared dead: if it wakes up, the store rejects its writes, it sends nothing, and it joins
again as if it had just been started. A SQLite file has one gateway at a time: a cluster of one.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import secrets
import socket
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from hermes.errors import HermesError, StoreGone
from hermes.store import instances
from hermes.store.instances import Instance, choose, lease_of, platform_lease
from hermes.store.leases import is_gone

if TYPE_CHECKING:
    from collections.abc import Callable

    from hermes.gateway.connection import Connection
    from hermes.store.gateway_db import GatewayDB

SECONDS = "HERMES_GATEWAY_SECONDS"  # the variable with the seconds after which an instance without heartbeat is dead
LOOK = 0.2  # seconds between two polls for work that another gateway left for this one
LOOK_ALONE = 2.0  # the same for a single gateway: it is woken for everything that arrives
BEAT, BEAT_ALONE = 1.0, 5.0  # seconds between two heartbeats, at most
GRACE = 3  # heartbeats for which an instance with its share of platforms leaves a free one to others
CERTAIN = 0.8  # the part of a lease's time in which it certainly belongs to its holder: clocks differ a little
_log = logging.getLogger("hermes.gateway")


def patience() -> float:
    """Seconds without a heartbeat after which an instance counts as dead."""
    try:
        return max(1.0, float(os.environ.get(SECONDS, "30")))
    except ValueError:
        return 30.0


def clock() -> float:
    """A clock that only goes forward, also while this machine or process sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


def boot() -> str:
    """The id of this boot of the machine or container: a process number identifies a process only within it."""
    with suppress(OSError):
        return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {os.readlink('/proc/self/ns/pid')}"
    return ""


@dataclass(slots=True)
class Held:
    """A platform this instance is connected to."""

    token: int
    sure_until: float
    ready: bool = False  # whether all older messages for it are queued, so that new ones may be sent after them
    lost: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(slots=True)
class Beat:
    """The result of one heartbeat."""

    at: float
    renewed: dict[str, bool]  # by the name of the lease
    everyone: list[Instance] = field(default_factory=list)
    taken: dict[str, int] = field(default_factory=dict)  # newly acquired platforms, with their lease tokens


class Cluster:
    """One gateway's membership. Methods run on the gateway's event loop unless they say otherwise.

    `cut` interrupts the running turns; `gone` is called when the store's file was deleted or replaced.
    """

    def __init__(
        self, store: GatewayDB, platforms: list[str], home: Path, *, cut: Callable[[], None], gone: Callable[[StoreGone], None]
    ) -> None:  # fmt: skip
        self._store, self._db, self._platforms = store, store.db, platforms
        self._cut, self._gone = cut, gone
        self._label = f"{socket.gethostname()}:{home}"
        self._ttl = patience()
        self._look, beat = (LOOK, BEAT) if self._db.is_shared else (LOOK_ALONE, BEAT_ALONE)
        self._pause = min(beat, self._ttl / 6)
        self.name = ""
        self.fence = ("", 0)  # the lease that fences this instance's writes
        self.living: list[Instance] = []
        self._held: dict[str, Held] = {}
        self._free: dict[str, int] = {}  # platforms without a holder, and for how many heartbeats
        self._lock = threading.Lock()  # a heartbeat finishes before we leave
        self._left = False
        self._trusting_until = 0.0  # until then no instance counts as dead: the store may have been unreachable for all
        self._beaten = clock()
        self._changed = asyncio.Event()  # the set of platforms we hold has changed
        self._wake = asyncio.Event()

    # ------------------------------------------------------------------------------------------ questions of the other parts

    def has(self, platform: str) -> bool:
        """Whether this instance is connected to a platform; from any thread."""
        return platform in self._held

    def ready(self, platform: str) -> bool:
        """Whether a new message may be sent at once: all older ones are queued already."""
        held = self._held.get(platform)
        return held is not None and held.ready

    def sure(self, platform: str) -> bool:
        """Whether the platform's lease is certainly ours at this moment."""
        held = self._held.get(platform)
        return held is not None and clock() < held.sure_until

    def platform_fence(self, platform: str) -> tuple[str, int] | None:
        """The lease that fences what is sent to a platform."""
        held = self._held.get(platform)
        return None if held is None else (platform_lease(platform), held.token)

    def is_ours(self, key: str, platform: str) -> bool:
        """Whether this instance serves a chat in which nothing waits; from any thread."""
        return choose(key, platform, self.living) == self.name

    def held(self) -> dict[str, Held]:
        """The platforms this instance holds."""
        return dict(self._held)

    def wake(self) -> None:
        """Poll the store soon."""
        self._wake.set()

    def looks(self) -> None:
        """Note that a poll begins now."""
        self._wake.clear()

    async def woken(self) -> None:
        """Wait until the next poll is due."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._look):
                await self._wake.wait()

    # ------------------------------------------------------------------------------------------ membership

    async def join(self) -> None:
        """Join the cluster under a new, unique name."""
        await asyncio.to_thread(self._join)
        _log.info("this gateway instance is %s", self.name)

    def _join(self) -> None:
        name = f"{socket.gethostname()}:{os.getpid()}:gateway:{secrets.token_hex(4)}"
        token = self._store.write(instances.join, name, self._label, boot(), self._platforms, self._ttl)
        self.name, self.fence = name, (lease_of(name), token)

    async def run(self) -> None:
        """Send heartbeats, take free platforms and reassign the work of dead instances, until cancelled."""
        while True:
            try:
                self._heard(await asyncio.to_thread(self._beat))
            except StoreGone as error:
                self._gone(error)
            except HermesError as error:
                _log.warning("the heartbeat failed: %s", error)
            if self.fence[1] == 0:
                await self._again()
            await asyncio.sleep(self._pause)

    def _beat(self) -> Beat:
        with self._lock:
            return Beat(clock(), {self.fence[0]: True}) if self._left else self._beat_once()

    def _beat_once(self) -> Beat:
        begun = clock()  # before the store computes the expiry: the lease lasts longer than we rely on it
        if begun - self._beaten > self._ttl / 2:
            self._trusting_until = begun + GRACE * self._pause
        held = {platform_lease(name): one.token for name, one in list(self._held.items())}
        held[self.fence[0]] = self.fence[1]
        still = self._db.renew_leases([(name, token, self._ttl) for name, token in held.items()])
        beat = Beat(begun, dict(zip(held, still, strict=True)))
        self._beaten = begun
        if not beat.renewed[self.fence[0]]:
            return beat
        beat.everyone = self._remove_dead_instances()
        living = sum(one.lives for one in beat.everyone)
        for platform in self._wanted(living):
            token = self._db.acquire_lease(platform_lease(platform), self.name, self._ttl)
            if token is not None:
                beat.taken[platform] = token
        return beat

    def _remove_dead_instances(self) -> list[Instance]:
        """All instances, after those without a heartbeat are removed and their work is assigned to others."""
        everyone = self._store.read(instances.everyone)
        here = boot()
        gone = [one.name for one in everyone if one.lives and one.boot == here and is_gone(one.name)]
        dead = [one.name for one in everyone if not one.lives and one.name != self.name]
        if gone or (dead and clock() >= self._trusting_until) or self._store.has_unassigned(self._platforms):
            if self._store.write(instances.remove_dead, gone):
                _log.warning("no heartbeat from %s; its work is assigned to other gateways", [*gone, *dead])
            everyone = self._store.read(instances.everyone)
        return everyone

    def _wanted(self, living: int) -> list[str]:
        """The free platforms to take now: what exceeds our share is left to others for a few heartbeats."""
        share = math.ceil(len(self._platforms) / max(1, living))
        wanted: list[str] = []
        for platform in self._platforms:
            if platform in self._held:
                continue
            if self._db.lease_holder(platform_lease(platform)) is not None:
                self._free.pop(platform, None)
                continue
            self._free[platform] = self._free.get(platform, 0) + 1
            if len(self._held) + len(wanted) < share or self._free[platform] > GRACE:
                wanted.append(platform)
        return wanted

    def _heard(self, beat: Beat) -> None:
        """Apply the result of a heartbeat."""
        if not beat.renewed[self.fence[0]]:
            self.fence = (self.fence[0], 0)
        else:
            self.living = [one for one in beat.everyone if one.lives]
        for platform, held in list(self._held.items()):
            if self.fence[1] == 0 or not beat.renewed.get(platform_lease(platform), True):
                _log.warning("another gateway has taken over %s", platform)
                del self._held[platform]
                held.lost.set()
            elif platform_lease(platform) in beat.renewed:
                held.sure_until = beat.at + CERTAIN * self._ttl
        for platform, token in beat.taken.items():
            self._held[platform] = Held(token, beat.at + CERTAIN * self._ttl)
            self._free.pop(platform, None)
            self._changed.set()
            self._wake.set()  # poll for the messages that wait for it

    async def _again(self) -> None:
        """This instance was declared dead, and others have taken over its work: start over as if just started."""
        _log.error("this gateway had no heartbeat for too long, and others have taken over; joining again")
        self._cut()
        try:
            await self.join()
        except HermesError as error:
            _log.warning("could not join again yet: %s", error)

    async def leave(self) -> None:
        """Leave the cluster; what waits for this instance is assigned to others."""
        self._held.clear()
        await asyncio.to_thread(self._leave)

    def _leave(self) -> None:
        with self._lock:
            self._left = True
            try:
                self._store.write(instances.remove_dead, [self.name])
            except HermesError as error:  # the others notice when the lease expires
                _log.info("could not record that this gateway stops: %s", error)

    # ------------------------------------------------------------------------------------------ platforms

    async def keep(self, connection: Connection) -> None:
        """Keep a platform connected as long as it is ours, and disconnect it when it is not; until cancelled."""
        while True:
            held = self._held.get(connection.platform)
            if held is None:
                self._changed.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._pause):
                        await self._changed.wait()
                continue
            connecting = asyncio.create_task(connection.run())
            try:
                await held.lost.wait()
            finally:
                connecting.cancel()
                await asyncio.gather(connecting, return_exceptions=True)
            await connection.stand_by()
