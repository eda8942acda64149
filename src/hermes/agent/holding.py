"""Holding a session: as long as a process works with it, it counts as live and nobody prunes or deletes it.

Who answers in a session holds its turn besides: a terminal keeps a session for hours, and others may answer in it while
nobody else does.

A holder is named `host:pid:…:source`. A lease runs out two minutes after its holder's last sign of life; if that was a process
of this machine which no longer runs, there is no need to wait for it.
"""

from __future__ import annotations

import os
import secrets
import socket
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary, WeakSet, ref

from hermes.errors import HermesError, StoreClosed

if TYPE_CHECKING:
    from hermes.store.db import SessionDB

TTL = 120.0  # a crashed process lets go after this many seconds
GATHER = 0.1  # seconds in which those that let go are gathered


class Hold:
    """A lease on one session at a time, and on its turn, renewed in the background until `release`."""

    def __init__(self, db: SessionDB, *, ttl: float = TTL, source: str = "another program") -> None:
        self.ttl = ttl
        self._db = db
        self._holder = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}:{source}"
        self._lock = threading.Lock()
        self._session_id: str | None = None
        self._token: int | None = None
        self._sure_at = 0.0  # when it was last certain that the lease is ours; the clock that leases run by
        self._leaving = False
        self._turn: int | None = None  # the token of the turn

    def take(self, session_id: str) -> bool:
        """Hold this session (and no other); False while another process does. It must exist."""
        with self._lock:
            self._leaving = False
            if self._session_id == session_id and self._token is not None:
                if 0 <= time.time() - self._sure_at < self.ttl / 2:
                    return True
                if self._db.renew_lease(f"session:{session_id}", self._token, self.ttl):
                    self._sure_at = time.time()
                    return True
                self._token = None
            if self._session_id != session_id:
                self._let_go()
            self._session_id, self._token = session_id, self._acquired(session_id)
            _heart_of(self._db).keep(self)
            return self._token is not None

    def take_turn(self, session_id: str) -> str | None:
        """Hold this session and be the one who answers in it; else who does (`cli`, `telegram` …). It must exist.

        That another process has the session open does not keep us from answering in it.
        """
        busy = self._take_turn(session_id)
        if busy is not None and (not busy or is_ours(busy)):  # free by now, or a hold that is given back in a moment
            _heart_of(self._db).part_now()
            busy = self._take_turn(session_id)
        return None if busy is None else source_of(busy)

    def _take_turn(self, session_id: str) -> str | None:
        """Take the turn; else the name of its holder."""
        with self._lock:
            if self._session_id == session_id and self._turn is not None:
                if 0 <= time.time() - self._sure_at < self.ttl / 2:
                    self._leaving = False
                    return None
                self._turn = None
            held, turn = self._db.take_turn(session_id, self._holder, self.ttl)
            if turn is None and free_from_the_dead(self._db, session_id, "turn"):
                held, turn = self._db.take_turn(session_id, self._holder, self.ttl)
            if turn is None:
                return self._db.lease_holder(f"turn:{session_id}") or ""
            if held is None and free_from_the_dead(self._db, session_id):
                held = self._db.hold_session(session_id, self._holder, self.ttl)
            if self._session_id != session_id:
                self._let_go()  # only now: nobody comes in between where a conversation goes on in a child
            self._session_id, self._token, self._turn = session_id, held, turn
            self._leaving = False
            self._sure_at = time.time()
            _heart_of(self._db).keep(self)
            return None

    def end_turn(self) -> None:
        """Others may answer; the session stays held."""
        with self._lock:
            turn, self._turn = self._turn, None
            if turn is not None:
                try:
                    self._db.release_lease(f"turn:{self._session_id}", turn)
                except HermesError:
                    pass  # a closed or read-only store: the lease runs out by itself

    def turn(self) -> tuple[str, int] | None:
        """The lease of the turn, its name and token; None while there is none."""
        with self._lock:
            return None if self._turn is None else (f"turn:{self._session_id}", self._turn)

    def release(self) -> None:
        """Let go; the session is no longer live."""
        _heart_of(self._db).leave(self)
        with self._lock:
            self._let_go()

    def release_soon(self) -> None:
        """Let go in a moment, together with others that do; unless it is taken again before."""
        with self._lock:
            if self._token is None and self._turn is None:
                self._session_id = None
                return
            self._leaving = True
        _heart_of(self._db).part(self)

    def parting(self) -> list[tuple[str, int]]:
        """What to give back, as it has come to that; nothing when it was taken again."""
        with self._lock:
            if not self._leaving:
                return []
            given = self._leases()
            self._session_id = self._token = self._turn = None
            self._leaving = False
            return given

    def sure(self) -> None:
        """The lease was just prolonged."""
        self._sure_at = time.time()

    def doubt(self) -> None:
        """A write was fenced off: the lease is somebody else's, or was. The next `take` asks the store again."""
        self._sure_at = -self.ttl

    def turn_held(self) -> tuple[str, int, float] | None:
        """The lease of the turn as `held` gives that of the session."""
        lease = self.turn()
        return None if lease is None else (*lease, self.ttl)

    def held(self) -> tuple[str, int, float] | None:
        """The lease to be renewed: its name, token and time to live; None while there is none."""
        with self._lock:
            return None if self._token is None else (f"session:{self._session_id}", self._token, self.ttl)

    def try_again(self, lost: int | None = None) -> None:
        """Take a session that someone else held when we came, or that was lost with this token: perhaps they are gone."""
        with self._lock:
            if self._session_id is not None and self._token == lost:
                self._token = self._acquired(self._session_id)

    def _acquired(self, session_id: str) -> int | None:
        token = self._db.hold_session(session_id, self._holder, self.ttl)
        if token is None and free_from_the_dead(self._db, session_id):
            token = self._db.hold_session(session_id, self._holder, self.ttl)
        self._sure_at = time.time()
        return token

    def _leases(self) -> list[tuple[str, int]]:
        ours = {f"session:{self._session_id}": self._token, f"turn:{self._session_id}": self._turn}
        return [(name, token) for name, token in ours.items() if token is not None]

    def _let_go(self) -> None:
        leases = self._leases()
        if leases:
            try:
                self._db.release_leases(leases)
            except HermesError:
                pass  # a closed or read-only store: the lease runs out by itself
        self._session_id = self._token = self._turn = None


class _Heart:
    """The signs of life of all holds of one store: one thread, and one transaction a beat, however many there are."""

    def __init__(self, db: SessionDB) -> None:
        self._db = ref(db)  # who forgets the store need not be remembered here
        self._lock = threading.Lock()
        self._holds: WeakSet[Hold] = WeakSet()
        self._changed = threading.Event()
        self._parting: list[Hold] = []
        self._gathering = threading.Lock()  # held while leases are given back
        self._given: list[tuple[str, int]] = []  # leases that are to be given back
        self._thread: threading.Thread | None = None

    def keep(self, hold: Hold) -> None:
        """Renew this hold's lease from now on."""
        with self._lock:
            soonest = min((other.ttl for other in self._holds), default=float("inf"))
            self._holds.add(hold)
            if self._thread is None:
                self._thread = threading.Thread(target=self._beat, name="hermes-hold", daemon=True)
                self._thread.start()
            elif hold.ttl < soonest:
                self._changed.set()

    def leave(self, hold: Hold) -> None:
        """No longer; with the last one the thread ends."""
        with self._lock:
            self._holds.discard(hold)
            if not self._holds:
                self._changed.set()

    def part(self, hold: Hold) -> None:
        """Give this one back in a moment."""
        with self._lock:
            self._parting.append(hold)
            self._changed.set()
            if self._thread is None:
                self._thread = threading.Thread(target=self._beat, name="hermes-hold", daemon=True)
                self._thread.start()

    def part_now(self) -> None:
        """Give back without waiting for others what is to be given back."""
        db = self._db()
        if db is not None:
            self._part(db)

    def _part(self, db: SessionDB) -> None:
        with self._gathering:
            with self._lock:
                parting, self._parting = self._parting, []
            for hold in dict.fromkeys(parting):
                self._given += hold.parting()
            if self._given:
                db.release_leases(self._given)
                self._given = []

    def _beat(self) -> None:
        renewed = time.monotonic()
        while True:
            with self._lock:
                pause = min((hold.ttl for hold in self._holds), default=0.0) / 4
                if not pause and not self._parting:
                    self._thread = None
                    return
            left = renewed + pause - time.monotonic()
            if self._changed.wait(GATHER if self._given else max(0.0, left)):
                self._changed.clear()
                if self._parting:
                    time.sleep(GATHER)
            db = self._db()
            try:
                if db is not None and (self._parting or self._given):
                    self._part(db)
                if db is not None and pause and time.monotonic() - renewed >= pause:
                    renewed = time.monotonic()
                    self._renew(db)
            except StoreClosed:
                with self._lock:
                    self._holds.clear()
                    self._parting.clear()
                    self._given = []
            except HermesError:
                pass  # busy: the next beat tries again, and there are four of them
            del db

    def _renew(self, db: SessionDB) -> None:
        with self._lock:
            holds = list(self._holds)
        held = {hold: lease for hold in holds if (lease := hold.held()) is not None}
        turns = [lease for hold in holds if (lease := hold.turn_held()) is not None]
        renewed = db.renew_leases([*held.values(), *turns]) if held or turns else []
        still = dict(zip(held, renewed, strict=False))
        for hold in holds:
            if still.get(hold):
                hold.sure()
            else:
                try:
                    hold.try_again(held[hold][1] if hold in held else None)
                except StoreClosed:
                    raise
                except HermesError:
                    continue  # its session was deleted, or the store is busy: the others are not to suffer for it


_hearts: WeakKeyDictionary[SessionDB, _Heart] = WeakKeyDictionary()
_hearts_lock = threading.Lock()


def _heart_of(db: SessionDB) -> _Heart:
    with _hearts_lock:
        if db not in _hearts:
            _hearts[db] = _Heart(db)
        return _hearts[db]


def free_from_the_dead(db: SessionDB, session_id: str, kind: str = "session") -> bool:
    """Give back what a crashed process of this machine held (`session`, or its `turn`); whether there was such a one."""
    name = f"{kind}:{session_id}"
    holder = db.lease_holder(name)
    if holder is None or not is_gone(holder):
        return False
    token = db.acquire_lease(name, holder, 1.0)  # in its name: a living one would not be ousted by this
    return token is not None and db.release_lease(name, token)


def source_of(holder: str | None) -> str:
    """Which door a holder speaks through: `cli`, `telegram` …"""
    parts = (holder or "").split(":", 3)
    return parts[3] if len(parts) == 4 else "another program"


def is_gone(holder: str) -> bool:
    """Whether a holder was a process of this machine that no longer runs."""
    host, _, rest = holder.partition(":")
    number = rest.partition(":")[0]
    if host != socket.gethostname() or not number.isdigit():
        return False
    try:
        os.kill(int(number), 0)
    except (ProcessLookupError, OverflowError):
        return True
    except OSError:
        return False
    try:  # dead, but its parent has not noticed yet
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (OSError, IndexError, UnicodeDecodeError):
        return False


def is_ours(holder: str) -> bool:
    """Whether a holder is a part of this process."""
    return holder.startswith(f"{socket.gethostname()}:{os.getpid()}:")
