"""The renewal of leases: one thread per store, and one transaction per beat for any number of leases.

Every holder of a longer lease registers it here: the session and the turn of an agent, a compression, the
gateway of a store, a handoff. A lease is renewed four times in its lifetime, so one failed beat does no harm; a lease that passed
to another process is reported to its holder (`lost`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol
from weakref import WeakKeyDictionary, WeakSet, ref

from hermes.errors import HermesError, StoreClosed

if TYPE_CHECKING:
    from hermes.store.db import SessionDB

GATHER = 0.1  # seconds in which leases to release are collected
BEATS = 4  # renewals in the lifetime of a lease

Held = tuple[str, int, float]  # a lease: its name, token and time to live


class LeaseKeeper(Protocol):
    """A holder of leases that are renewed together."""

    ttl: float

    def held(self) -> list[Held]:
        """The leases to renew."""

    def renewed(self, still: Sequence[bool]) -> None:
        """Called with each of these leases that was renewed, or is lost. Raises HermesError when handling that failed."""

    def failed(self, error: HermesError) -> None:
        """Called when this beat could not renew them; the next one retries."""

    def parting(self) -> list[tuple[str, int]]:
        """The leases to release now, if any: their names and tokens."""


class KeptLease:
    """One lease that is renewed until `end`, or until it passed to another process."""

    def __init__(
        self, name: str, token: int, ttl: float, *, lost: Callable[[], None] = lambda: None,
        failed: Callable[[HermesError], None] = lambda error: None, renew: Callable[[], bool] | None = None,
    ) -> None:  # fmt: skip
        """`lost` and `failed` are called in the renewer's thread. `renew`, if given, renews more than the lease's row."""
        self.name, self.token, self.ttl = name, token, ttl
        self._lost, self._failed, self._renew = lost, failed, renew
        self._over = False

    def held(self) -> list[Held]:
        """The lease, as long as it is held."""
        return [] if self._over or self._renew is not None else [(self.name, self.token, self.ttl)]

    def renewed(self, still: Sequence[bool]) -> None:
        """Renew what depends on it; call `lost` if it is lost."""
        if self._over:
            return
        ours = self._renew() if self._renew is not None else all(still)
        if not ours and not self._over:
            self._over = True
            self._lost()

    def failed(self, error: HermesError) -> None:
        """Call `failed`, as long as it is held."""
        if not self._over:
            self._failed(error)

    def parting(self) -> list[tuple[str, int]]:
        """Nothing: its holder releases it."""
        return []

    def end(self) -> None:
        """Stop renewing it."""
        self._over = True


@contextmanager
def kept(db: SessionDB, lease: KeptLease) -> Iterator[KeptLease]:
    """Renew a lease during this block."""
    renewer = renewer_of(db)
    renewer.keep(lease)
    try:
        yield lease
    finally:
        lease.end()
        renewer.leave(lease)


class LeaseRenewer:
    """Renews the leases of all keepers of one store, and releases those they give up."""

    def __init__(self, db: SessionDB) -> None:
        self._db = ref(db)  # weak, so that this does not keep an unused store open
        self._lock = threading.Lock()
        self._keepers: WeakSet[LeaseKeeper] = WeakSet()
        self._beaten: dict[float, float] = {}  # when the leases with this time to live were last renewed
        self._changed = threading.Event()
        self._parting: list[LeaseKeeper] = []
        self._gathering = threading.Lock()  # held while leases are released
        self._given: list[tuple[str, int]] = []  # leases to release
        self._thread: threading.Thread | None = None

    def keep(self, keeper: LeaseKeeper) -> None:
        """Renew this keeper's leases from now on."""
        with self._lock:
            self._keepers.add(keeper)
            if keeper.ttl not in self._beaten:
                self._beaten[keeper.ttl] = time.monotonic()
                self._changed.set()
            self._run()

    def leave(self, keeper: LeaseKeeper) -> None:
        """Stop renewing this keeper's leases; with the last keeper the thread ends."""
        with self._lock:
            self._keepers.discard(keeper)
            if not self._keepers:
                self._changed.set()

    def part(self, keeper: LeaseKeeper) -> None:
        """Release soon the leases that this keeper gives up."""
        with self._lock:
            self._parting.append(keeper)
            self._changed.set()
            self._run()

    def part_now(self) -> None:
        """Release pending leases now, without collecting more."""
        db = self._db()
        if db is not None:
            self._part(db)

    def _run(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="hermes-leases", daemon=True)
            self._thread.start()

    def _part(self, db: SessionDB) -> None:
        with self._gathering:
            with self._lock:
                parting, self._parting = self._parting, []
            for keeper in dict.fromkeys(parting):
                self._given += keeper.parting()
            if self._given:
                db.release_leases(self._given)
                self._given = []

    def _next_beat(self) -> float | None:
        """When leases must be renewed next, by the monotonic clock; None when there are none."""
        if not self._keepers:
            self._beaten.clear()
        return min((at + ttl / BEATS for ttl, at in self._beaten.items()), default=None)

    def _work(self) -> None:
        while True:
            with self._lock:
                beat = self._next_beat()
                if beat is None and not self._parting:  # leases that could not be released expire
                    self._thread = None
                    return
            pause = GATHER if self._given or beat is None else max(0.0, beat - time.monotonic())
            if self._changed.wait(pause):
                self._changed.clear()
                if self._parting:
                    time.sleep(GATHER)
            db = self._db()
            try:
                if db is not None and (self._parting or self._given):
                    self._part(db)
                if db is not None:
                    self._beat(db)
            except StoreClosed:
                with self._lock:
                    self._keepers.clear()
                    self._parting.clear()
                    self._given = []
            except HermesError:
                pass  # the store is busy: they are released with the next ones
            if db is None:
                with self._lock:
                    self._thread = None
                return
            del db

    def _beat(self, db: SessionDB) -> None:
        """Renew the leases that are due, in one transaction."""
        now = time.monotonic()
        with self._lock:
            due = {ttl for ttl, at in self._beaten.items() if now >= at + ttl / BEATS}
            if not due:
                return
            keepers = [keeper for keeper in self._keepers if keeper.ttl in due]
            kept = {keeper.ttl for keeper in keepers}
            for ttl in due:
                if ttl in kept:
                    self._beaten[ttl] = now
                else:
                    del self._beaten[ttl]
        held = {keeper: keeper.held() for keeper in keepers}
        leases = [lease for some in held.values() for lease in some]
        try:
            results = iter(db.renew_leases(leases) if leases else ())
        except StoreClosed:
            raise
        except HermesError as error:
            for keeper in keepers:
                keeper.failed(error)
            return
        for keeper, some in held.items():
            try:
                keeper.renewed([next(results) for _ in some])
            except StoreClosed:
                raise
            except HermesError as error:  # its session was deleted, or the store is busy: the others continue
                keeper.failed(error)


_renewers: WeakKeyDictionary[SessionDB, LeaseRenewer] = WeakKeyDictionary()
_renewers_lock = threading.Lock()


def renewer_of(db: SessionDB) -> LeaseRenewer:
    """The renewer of the leases held through this store."""
    with _renewers_lock:
        if db not in _renewers:
            _renewers[db] = LeaseRenewer(db)
        return _renewers[db]
