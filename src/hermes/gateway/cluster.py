"""The gateways of one store: they share the chats, and what one leaves when it dies the others take over.

Each gives a sign of life. A platform is connected by one of them at a time, which sends whatever any of them has to say
there; the others stand by. A chat is served by one of them at a time (see store/instances.py). An instance that gave no
sign of life for too long is declared dead: when it wakes up, the store takes nothing more from what it was doing, it sends
nothing, and it joins again as if it had just been started. A file has one gateway at a time: a cluster of one.
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

from hermes.agent.session_leases import is_gone
from hermes.errors import HermesError, StoreGone
from hermes.store.instances import Instance, choose, lease_of, platform_lease

if TYPE_CHECKING:
    from collections.abc import Callable

    from hermes.gateway.connection import Connection
    from hermes.store.gateway_db import GatewayDB

SECONDS = "HERMES_GATEWAY_SECONDS"  # the variable that says how long an instance may give no sign of life
LOOK = 0.2  # seconds between two looks for something that another gateway has left us to do
LOOK_ALONE = 2.0  # the same where no other is: nothing comes that we are not woken for
BEAT, BEAT_ALONE = 1.0, 5.0  # seconds between two signs of life, at most
GRACE = 3  # beats for which one that has its share of platforms leaves a free one to others
CERTAIN = 0.8  # of the time a lease lasts it is certain that nobody has taken it: clocks differ a little
_log = logging.getLogger("hermes.gateway")


def patience() -> float:
    """Seconds after which an instance that gives no sign of life counts as dead."""
    try:
        return max(1.0, float(os.environ.get(SECONDS, "30")))
    except ValueError:
        return 30.0


def clock() -> float:
    """A clock that only goes forward, also while this machine or process sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


def boot() -> str:
    """This run of this machine or container: only within it a process number tells whether a process still runs."""
    with suppress(OSError):
        return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {os.readlink('/proc/self/ns/pid')}"
    return ""


@dataclass(slots=True)
class Held:
    """A platform that is ours for now."""

    token: int
    sure_until: float
    ready: bool = False  # whether all that was waiting for it is queued, so that what is said now comes after it
    lost: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(slots=True)
class Beat:
    """What one sign of life has brought to light."""

    at: float
    renewed: dict[str, bool]  # by the name of the lease
    everyone: list[Instance] = field(default_factory=list)
    taken: dict[str, int] = field(default_factory=dict)  # platforms that are ours from now on, with their tokens


class Cluster:
    """One gateway's part in it. For the gateway's event loop, unless something else is said.

    `cut` ends the turns that are under way; `gone` hears that the store's file was deleted or replaced.
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
        self.fence = ("", 0)  # the lease what we do is done under
        self.living: list[Instance] = []
        self._held: dict[str, Held] = {}
        self._free: dict[str, int] = {}  # platforms nobody has, and for how many beats
        self._lock = threading.Lock()  # a beat goes to its end before we leave
        self._left = False
        self._trusting_until = 0.0  # until then nobody counts as dead: perhaps the store was out of reach for all
        self._beaten = clock()
        self._changed = asyncio.Event()  # what we hold has changed
        self._wake = asyncio.Event()

    # ------------------------------------------------------------------------------------------ what others ask

    def has(self, platform: str) -> bool:
        """Whether we are the one who is connected to a platform; from any thread."""
        return platform in self._held

    def ready(self, platform: str) -> bool:
        """Whether what is said now may be sent at once: nothing that was said before is still to be found."""
        held = self._held.get(platform)
        return held is not None and held.ready

    def sure(self, platform: str) -> bool:
        """Whether that is certain in this very moment: nobody can have taken it over."""
        held = self._held.get(platform)
        return held is not None and clock() < held.sure_until

    def platform_fence(self, platform: str) -> tuple[str, int] | None:
        """The lease what we send is sent under."""
        held = self._held.get(platform)
        return None if held is None else (platform_lease(platform), held.token)

    def is_ours(self, key: str, platform: str) -> bool:
        """Whether a chat in which nothing waits is ours to look after; from any thread."""
        return choose(key, platform, self.living) == self.name

    def held(self) -> dict[str, Held]:
        """The platforms that are ours now."""
        return dict(self._held)

    def wake(self) -> None:
        """There may be something to do."""
        self._wake.set()

    def looks(self) -> None:
        """Somebody looks for it now."""
        self._wake.clear()

    async def woken(self) -> None:
        """Wait until it is time to look again."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._look):
                await self._wake.wait()

    # ------------------------------------------------------------------------------------------ being there

    async def join(self) -> None:
        """Be one of them from now on, under a name that nobody had before."""
        await asyncio.to_thread(self._join)
        _log.info("this gateway is called %s", self.name)

    def _join(self) -> None:
        name = f"{socket.gethostname()}:{os.getpid()}:gateway:{secrets.token_hex(4)}"
        token = self._store.join(name, self._label, boot(), self._platforms, self._ttl)
        self.name, self.fence = name, (lease_of(name), token)

    async def run(self) -> None:
        """Give signs of life, take what is free, and see to it that the dead are noticed, until cancelled."""
        while True:
            try:
                self._heard(await asyncio.to_thread(self._beat))
            except StoreGone as error:
                self._gone(error)
            except HermesError as error:
                _log.warning("the sign of life could not be given: %s", error)
            if self.fence[1] == 0:
                await self._again()
            await asyncio.sleep(self._pause)

    def _beat(self) -> Beat:
        with self._lock:
            return Beat(clock(), {self.fence[0]: True}) if self._left else self._beat_once()

    def _beat_once(self) -> Beat:
        begun = clock()  # before the store reckons: the lease lasts longer than we are sure of it
        if begun - self._beaten > self._ttl / 2:
            self._trusting_until = begun + GRACE * self._pause
        held = {platform_lease(name): one.token for name, one in list(self._held.items())}
        held[self.fence[0]] = self.fence[1]
        still = self._db.renew_leases([(name, token, self._ttl) for name, token in held.items()])
        beat = Beat(begun, dict(zip(held, still, strict=True)))
        self._beaten = begun
        if not beat.renewed[self.fence[0]]:
            return beat
        beat.everyone = self._bury_the_dead()
        living = sum(one.lives for one in beat.everyone)
        for platform in self._wanted(living):
            token = self._db.acquire_lease(platform_lease(platform), self.name, self._ttl)
            if token is not None:
                beat.taken[platform] = token
        return beat

    def _bury_the_dead(self) -> list[Instance]:
        """All instances, after those that died were noticed and what they had was given to others."""
        everyone, astray = self._store.instances(self._platforms)
        here = boot()
        gone = [one.name for one in everyone if one.lives and one.boot == here and is_gone(one.name)]
        dead = [one.name for one in everyone if not one.lives and one.name != self.name]
        if gone or (dead and clock() >= self._trusting_until) or astray:
            if self._store.remove_dead(gone):
                _log.warning("%s gave no sign of life any more; what was theirs is given to others", [*gone, *dead])
            everyone, _ = self._store.instances()
        return everyone

    def _wanted(self, living: int) -> list[str]:
        """The platforms that are free and that we should take now: others get a moment's time for what is above our share."""
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
        """Go by what a beat has brought to light."""
        if not beat.renewed[self.fence[0]]:
            self.fence = (self.fence[0], 0)
        else:
            self.living = [one for one in beat.everyone if one.lives]
        for platform, held in list(self._held.items()):
            if self.fence[1] == 0 or not beat.renewed.get(platform_lease(platform), True):
                _log.warning("%s has passed to another gateway", platform)
                del self._held[platform]
                held.lost.set()
            elif platform_lease(platform) in beat.renewed:
                held.sure_until = beat.at + CERTAIN * self._ttl
        for platform, token in beat.taken.items():
            self._held[platform] = Held(token, beat.at + CERTAIN * self._ttl)
            self._free.pop(platform, None)
            self._changed.set()
            self._wake.set()  # what waits for it is to be found

    async def _again(self) -> None:
        """We were declared dead: whatever we were doing is others' by now. Begin as if just started."""
        _log.error("this gateway gave no sign of life for too long, and others have taken over; it joins again")
        self._cut()
        try:
            await self.join()
        except HermesError as error:
            _log.warning("joining again has to wait: %s", error)

    async def leave(self) -> None:
        """Be one of them no longer; what waits for us is given to others."""
        self._held.clear()
        await asyncio.to_thread(self._leave)

    def _leave(self) -> None:
        with self._lock:
            self._left = True
            try:
                self._store.remove_dead([self.name])
            except HermesError as error:  # others notice it when the lease runs out
                _log.info("that this gateway ends could not be noted: %s", error)

    # ------------------------------------------------------------------------------------------ platforms

    async def keep(self, connection: Connection) -> None:
        """Have a platform connected as long as it is ours, and let go of it when it is not; until cancelled."""
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
