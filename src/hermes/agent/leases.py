"""The leases that this process holds, renewed by one thread for as long as they are needed.

A lease is renewed four times in its lifetime, so one failed beat does no harm; those of one store in one transaction.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING
from weakref import WeakSet

from hermes.errors import Fenced, HermesError, StoreClosed
from hermes.store.leases import COMPRESSION, OPEN, TURN, holder_name, release, session_lease, take_turn

if TYPE_CHECKING:
    from hermes.store.api.session_db import SessionDB
    from hermes.store.engines.base import Tx

TTL = 120.0  # seconds after which a crashed process's session is no longer live
BEATS = 4  # renewals in the lifetime of a lease
_log = logging.getLogger("hermes.leases")


class Lease:
    """A lease that this process has taken."""

    def __init__(
        self, db: SessionDB, held: tuple[str, int] | None, ttl: float, *, lost: Callable[[], None] = lambda: None,
        failed: Callable[[HermesError], None] = lambda error: None,
    ) -> None:  # fmt: skip
        """`held` is its name and token. In the renewer's thread, `lost` is called when another process has taken it, and
        `failed` when it could not be renewed (the next beat retries)."""
        self.db, self.held, self.ttl, self.failed = db, held, ttl, failed
        self.due = 0.0  # when it must be renewed, by the monotonic clock
        self.requested_at = 0.0  # when the last renewal was requested, by `clock`
        self._lost = lost

    def renewed(self, held: tuple[str, int] | None, still: bool) -> None:
        """Called after an attempt to renew the lease `held` at that time; `still`: whether it is still held."""
        if not still and _renewer.drop(self):
            self._lost()


@contextmanager
def renewing(lease: Lease) -> Iterator[Lease]:
    """Renew a lease during this block; its holder releases it."""
    _renewer.keep(lease)
    try:
        yield lease
    finally:
        _renewer.drop(lease)


class _Renewer:
    """Renews all leases of this process, in a thread that runs while there are any."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget all leases: a forked process has none."""
        self._lock = threading.Lock()
        self._leases: WeakSet[Lease] = WeakSet()  # a lease whose owner forgot it expires
        self._changed = threading.Event()
        self._thread: threading.Thread | None = None

    def keep(self, lease: Lease) -> None:
        """Renew this lease from now on."""
        with self._lock:
            if lease in self._leases:
                return
            lease.due = time.monotonic() + lease.ttl / BEATS
            self._leases.add(lease)
            self._changed.set()
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="hermes-leases", daemon=True)
                self._thread.start()

    def drop(self, lease: Lease) -> bool:
        """Stop renewing this lease; returns whether it was being renewed. With the last one the thread ends."""
        with self._lock:
            was_renewed = lease in self._leases
            self._leases.discard(lease)
            if not self._leases:
                self._changed.set()
            return was_renewed

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._leases:
                    self._thread = None
                    return
                due = min((lease.due for lease in self._leases), default=0.0)
                self._changed.clear()
            self._changed.wait(max(0.0, due - time.monotonic()))
            self._beat()

    def _beat(self) -> None:
        """Renew the leases that are due, or will be soon."""
        now = time.monotonic()
        stores: dict[SessionDB, list[Lease]] = {}
        with self._lock:
            for lease in self._leases:
                if lease.due - lease.ttl / BEATS / 2 <= now:
                    lease.due = now + lease.ttl / BEATS
                    stores.setdefault(lease.db, []).append(lease)
        for db, leases in stores.items():
            try:
                _renew(db, leases)
            except Exception:
                _log.exception("leases could not be renewed")  # a bug of ours; the thread serves the whole process


def clock() -> float:
    """A clock that only goes forward, also while this machine or process sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


def _renew(db: SessionDB, leases: list[Lease]) -> None:
    held = [lease.held for lease in leases]
    for lease in leases:
        lease.requested_at = clock()  # before the store computes the expiry: the lease lasts longer than we assume
    requests = [(*pair, lease.ttl) for lease, pair in zip(leases, held, strict=True) if pair is not None]
    try:
        results = iter(db.renew_leases(requests) if requests else ())
    except HermesError as error:
        for lease in leases:
            _failed(lease, error)
        return
    for lease, pair in zip(leases, held, strict=True):
        try:
            lease.renewed(pair, pair is not None and next(results))
        except HermesError as error:  # its session was deleted, or the store is busy: the others continue
            _failed(lease, error)


def _failed(lease: Lease, error: HermesError) -> None:
    if isinstance(error, StoreClosed):
        _renewer.drop(lease)
    else:
        lease.failed(error)


_renewer = _Renewer()
os.register_at_fork(after_in_child=_renewer.reset)


class SessionLease(Lease):
    """The lease of one session at a time: it is live from `open` or `take` until `release`.

    A session that is only open here may be taken for another process's turn; it is open here again when that process is done.
    """

    def __init__(self, db: SessionDB, *, ttl: float = TTL, source: str = "another program") -> None:
        super().__init__(db, None, ttl)
        self.fence: tuple[str, int] | None = (
            None  # name and token as taken; a lost lease that the renewer took again has another token
        )
        self._holder = holder_name(source)
        self._lock = threading.Lock()
        self._session_id: str | None = None
        self._reason = OPEN
        self._sure_at = 0.0  # when the lease was last known to be ours, by the clock of leases
        self._planned: tuple[str, int] | None = None  # a session to take, and the token of its last lease
        self._new: int | None = None  # the token by which a transaction that is not committed yet takes it
        self._leaves = False  # whether such a transaction releases it

    def holds(self, session_id: str, reason: str | None = None) -> bool:
        """Whether this is certainly the lease of this session (if given, for this reason)."""
        sure = self.held is not None and 0 <= time.time() - self._sure_at < self.ttl / 2
        return sure and self._session_id == session_id and reason in (None, self._reason)

    def open(self, session_id: str) -> bool:
        """Make this session live, and no other; False while another process has it. The session must exist."""
        with self._lock:
            if not self.holds(session_id):
                self._set_lease(session_id, self.db.hold_session(session_id, self._holder, self.ttl), OPEN)
            return self.held is not None

    def take(self, session_id: str, reason: str = TURN) -> None:
        """Take this session, and no other, to answer in it or to compress it, also if another process merely has it open.

        SessionBusy while another process answers there or compresses it. The session must exist.
        """
        with self._lock:
            self._planned = None
            if not self.holds(session_id, reason):
                token = self.db.take_turn(session_id, self._holder, self.ttl, reason=reason)
                self._set_lease(session_id, token, reason)

    def plan(self, session_id: str) -> None:
        """Check that `take` for a turn would succeed now. `take_in` takes it later, if no other process has used it since.

        SessionBusy while another process answers there. The session must exist.
        """
        with self._lock:
            if not self.holds(session_id, TURN):
                self._planned = session_id, self.db.turn_is_free(session_id, self._holder)
                self.fence = None  # the fence of an earlier turn is no longer valid

    @contextmanager
    def joining(self) -> Iterator[None]:
        """In this block, a transaction may call `take_in` and `release_in`; they take effect if it ends without an error."""
        with self._lock:  # the renewer waits: it would undo the changes of the transaction
            self._new, self._leaves = None, False
            yield
            if self._new is not None and self._planned is not None:
                self._set_lease(self._planned[0], self._new, TURN)
                self._planned = None
            if self._leaves:
                self._session_id = self.held = None
        if self._leaves:
            _renewer.drop(self)

    def take_in(self, tx: Tx) -> None:
        """Take the planned session in this transaction of `joining`; SessionBusy if another process has used it since."""
        if self._planned is not None:
            session_id, last = self._planned
            self._new = take_turn(tx, session_id, self._holder, self.ttl, last=last)

    def release_in(self, tx: Tx) -> None:
        """Release the session in this transaction of `joining`."""
        if self.held is not None:
            self._leaves = release(tx, *self.held)

    def _set_lease(self, session_id: str, token: int | None, reason: str) -> None:
        if self._session_id != session_id:
            self._release_current()  # only now: no other process gets in between when a conversation continues in a child
        self.fence = self.held = None if token is None else (session_lease(session_id), token)
        self._session_id, self._reason = session_id, reason
        self._sure_at = time.time()
        _renewer.keep(self)

    @contextmanager
    def compressing(self, session_id: str) -> Iterator[None]:
        """Hold a session during its compression, if not for a turn anyway; SessionBusy while another process uses it."""
        if (self._session_id, self._reason) == (session_id, TURN):
            yield
            return
        self.take(session_id, COMPRESSION)
        try:
            yield
        finally:
            self.end_turn()

    def end_turn(self) -> None:
        """Let other processes answer in the session; it stays open here."""
        with self._lock:
            if self.held is not None and self._reason != OPEN:
                self._reason = OPEN
                with suppress(HermesError):  # a closed or read-only store: the lease expires
                    self.db.renew_lease(*self.held, self.ttl, reason=OPEN)

    def release(self) -> None:
        """Release the session: it is no longer live here."""
        _renewer.drop(self)
        with self._lock:
            self._release_current()

    @contextmanager
    def fenced(self) -> Iterator[None]:
        """In this block, writes are stored only if no other process has taken the session since this one took it."""
        if self.fence is None:
            yield
            return
        try:
            with self.db.fenced(*self.fence):
                yield
        except Fenced:
            self._sure_at = 0.0  # the next `take` asks the store
            raise

    def renewed(self, held: tuple[str, int] | None, still: bool) -> None:
        """Open the session again if the lease was lost, or could not be taken before."""
        with self._lock:
            if held is not self.held or self._session_id is None:
                return  # taken or released meanwhile
            if not still:
                self._reason, token = OPEN, self.db.hold_session(self._session_id, self._holder, self.ttl)
                self.held = None if token is None else (session_lease(self._session_id), token)
            self._sure_at = time.time()

    def _release_current(self) -> None:
        if self.held is not None:
            with suppress(HermesError):  # a closed or read-only store: the lease expires
                self.db.release_lease(*self.held)
        self._session_id = self.held = None
