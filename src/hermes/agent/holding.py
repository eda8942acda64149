"""Holding a session: as long as a process works with it, it counts as live and nobody prunes or deletes it.

A holder is named `host:pid:…`. A lease runs out two minutes after its holder's last sign of life; if that was a process
of this machine which no longer runs, there is no need to wait for it.
"""

from __future__ import annotations

import os
import secrets
import socket
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from hermes.errors import HermesError, StoreClosed

if TYPE_CHECKING:
    from hermes.store.db import SessionDB

TTL = 120.0  # a crashed process lets go after this many seconds


class Hold:
    """A lease on one session at a time, renewed in the background until `release`."""

    def __init__(self, db: SessionDB, *, ttl: float = TTL) -> None:
        self._db = db
        self._ttl = ttl
        self._holder = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
        self._lock = threading.Lock()
        self._session_id: str | None = None
        self._token: int | None = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def take(self, session_id: str) -> bool:
        """Hold this session (and no other); False while another process does. It must exist."""
        with self._lock:
            if self._session_id == session_id and self._token is not None:
                if self._db.renew_lease(f"session:{session_id}", self._token, self._ttl):
                    return True
                self._token = None
            self._let_go()
            self._session_id, self._token = session_id, self._acquired(session_id)
        if self._thread is None or not self._thread.is_alive():
            self._stop.clear()
            self._thread = threading.Thread(target=self._beat, name="hermes-hold", daemon=True)
            self._thread.start()
        return self._token is not None

    def release(self) -> None:
        """Let go; the session is no longer live."""
        self._stop.set()
        with self._lock:
            self._let_go()

    def _acquired(self, session_id: str) -> int | None:
        token = self._db.hold_session(session_id, self._holder, self._ttl)
        if token is None and free_from_the_dead(self._db, session_id):
            token = self._db.hold_session(session_id, self._holder, self._ttl)
        return token

    def _let_go(self) -> None:
        if self._session_id is not None and self._token is not None:
            try:
                self._db.release_lease(f"session:{self._session_id}", self._token)
            except HermesError:
                pass  # a closed or read-only store: the lease runs out by itself
        self._session_id = self._token = None

    def _beat(self) -> None:
        while not self._stop.wait(self._ttl / 4):
            with self._lock:
                if self._session_id is None:
                    continue
                try:
                    if self._token is None:  # someone else held it when we came; perhaps they are gone
                        self._token = self._acquired(self._session_id)
                    else:
                        self._db.renew_lease(f"session:{self._session_id}", self._token, self._ttl)
                except StoreClosed:
                    return
                except HermesError:
                    pass  # busy: the next beat tries again, and there are four of them


def free_from_the_dead(db: SessionDB, session_id: str) -> bool:
    """Give back what a crashed process of this machine held; whether there was such a one."""
    holder = db.session_holder(session_id)
    if holder is None or not is_gone(holder):
        return False
    token = db.hold_session(session_id, holder, ttl=1.0)  # in its name: a living one would not be ousted by this
    return token is not None and db.release_lease(f"session:{session_id}", token)


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
