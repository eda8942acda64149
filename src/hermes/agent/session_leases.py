"""The lease of a session: while a process uses it, it is live and never pruned or deleted.

The process that runs a turn also holds its turn lease: a terminal holds a session for hours, and other
processes may run turns in it between its own.

A holder is named `host:pid:…:source`. A lease expires two minutes after its last renewal; if its holder was a process of this
machine which no longer runs, it is released at once.
"""

from __future__ import annotations

import os
import secrets
import socket
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hermes.agent.lease_renewer import Held, renewer_of
from hermes.errors import HermesError

if TYPE_CHECKING:
    from hermes.store.db import SessionDB

TTL = 120.0  # seconds after which a crashed process's lease expires


class SessionLease:
    """A lease on one session at a time, and on its turn, renewed in the background until `release`."""

    def __init__(self, db: SessionDB, *, ttl: float = TTL, source: str = "another program") -> None:
        self.ttl = ttl
        self._db = db
        self._holder = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}:{source}"
        self._lock = threading.Lock()
        self._session_id: str | None = None
        self._token: int | None = None
        self._sure_at = 0.0  # when the lease was last known to be ours, by the clock of leases
        self._leaving = False
        self._turn: int | None = None  # the token of the turn
        self._renewing: int | None = None  # the token the session had when its renewal began

    def take(self, session_id: str) -> bool:
        """Take the lease of this session (and no other); False while another process has it. The session must exist."""
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
            renewer_of(self._db).keep(self)
            return self._token is not None

    def take_turn(self, session_id: str) -> str | None:
        """Take the leases of this session and its turn; None, else the holder's source (`cli`, `telegram` …). It must exist.

        A turn is possible although another process has the session open.
        """
        busy = self._take_turn(session_id)
        if busy is not None and (not busy or is_ours(busy)):  # free since, or a lease that is about to be released
            renewer_of(self._db).part_now()
            busy = self._take_turn(session_id)
        return None if busy is None else source_of(busy)

    def _take_turn(self, session_id: str) -> str | None:
        """Take the turn lease; None, else the name of its holder."""
        with self._lock:
            if self._session_id == session_id and self._turn is not None:
                if 0 <= time.time() - self._sure_at < self.ttl / 2:
                    self._leaving = False
                    return None
                self._turn = None
            held, turn = self._db.take_turn(session_id, self._holder, self.ttl)
            if turn is None and release_dead(self._db, session_id, "turn"):
                held, turn = self._db.take_turn(session_id, self._holder, self.ttl)
            if turn is None:
                return self._db.lease_holder(f"turn:{session_id}") or ""
            if held is None and release_dead(self._db, session_id):
                held = self._db.hold_session(session_id, self._holder, self.ttl)
            if self._session_id != session_id:
                self._let_go()  # only now: no other process gets in between when a conversation continues in a child
            self._session_id, self._token, self._turn = session_id, held, turn
            self._leaving = False
            self._sure_at = time.time()
            renewer_of(self._db).keep(self)
            return None

    def end_turn(self) -> None:
        """Release the turn lease; the session lease stays."""
        with self._lock:
            turn, self._turn = self._turn, None
            if turn is not None:
                try:
                    self._db.release_lease(f"turn:{self._session_id}", turn)
                except HermesError:
                    pass  # a closed or read-only store: the lease expires

    def turn(self) -> tuple[str, int] | None:
        """The lease of the turn, its name and token; None while there is none."""
        with self._lock:
            return None if self._turn is None else (f"turn:{self._session_id}", self._turn)

    def release(self) -> None:
        """Release both leases; the session is no longer live."""
        renewer_of(self._db).leave(self)
        with self._lock:
            self._let_go()

    def release_soon(self) -> None:
        """Release both leases a moment later, together with others; unless they are taken again before."""
        with self._lock:
            if self._token is None and self._turn is None:
                self._session_id = None
                return
            self._leaving = True
        renewer_of(self._db).part(self)

    def parting(self) -> list[tuple[str, int]]:
        """The leases to release now; none when they were taken again."""
        with self._lock:
            if not self._leaving:
                return []
            given = self._leases()
            self._session_id = self._token = self._turn = None
            self._leaving = False
            return given

    def doubt(self) -> None:
        """A write was fenced off: another process has the lease, or had it. The next `take` asks the store again."""
        self._sure_at = -self.ttl

    def session(self) -> tuple[str, int] | None:
        """The lease of the session, its name and token; None while there is none."""
        with self._lock:
            return None if self._token is None else (f"session:{self._session_id}", self._token)

    def held(self) -> list[Held]:
        """Both leases, for the renewer."""
        with self._lock:
            self._renewing = self._token
            return [(*lease, self.ttl) for lease in self._leases()]

    def renewed(self, still: Sequence[bool]) -> None:
        """Try to take again a session lease that was lost, or that another process held before."""
        with self._lock:
            if self._renewing is not None and still[0]:
                self._sure_at = time.time()
            elif self._session_id is not None and self._token == self._renewing:
                self._token = self._acquired(self._session_id)

    def failed(self, error: HermesError) -> None:
        """The next beat retries; the lease lasts for three more."""

    def _acquired(self, session_id: str) -> int | None:
        token = self._db.hold_session(session_id, self._holder, self.ttl)
        if token is None and release_dead(self._db, session_id):
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
                pass  # a closed or read-only store: the lease expires
        self._session_id = self._token = self._turn = None


def release_dead(db: SessionDB, session_id: str, kind: str = "session") -> bool:
    """Release the lease of a crashed process of this machine (`session`, or its `turn`); returns whether there was one."""
    name = f"{kind}:{session_id}"
    holder = db.lease_holder(name)
    if holder is None or not is_gone(holder):
        return False
    token = db.acquire_lease(name, holder, 1.0)  # under its own name: this does not take it from a running process
    return token is not None and db.release_lease(name, token)


def source_of(holder: str | None) -> str:
    """The entry point of a holder: `cli`, `telegram` …"""
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
