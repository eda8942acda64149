"""A pool of connections reused from one transaction to the next, each used by one thread at a time.

The thread that needs a connection opens it, so a problem is reported at once and unchanged; nothing runs in
the background, and the next call notices a server that is back.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psycopg
from psycopg.conninfo import make_conninfo

from hermes.errors import InvalidInput, StoreBusy
from hermes.store.engines.postgres import error_mapping, migrate

IDLE = 300.0  # seconds after which an unused connection is closed


class PooledConnection(psycopg.Connection[Any]):
    """A connection, and what is known about its server."""

    where = ""  # for display
    timeline = ""  # "" on a replica; another one after a failover
    started_at = ""
    process = 0  # the server's process of this connection (behind a pooler: its first one)
    watched = True  # whether replicas may have to confirm a commit
    unconfirmed = False  # a commit returned although the replica that has to confirm it did not
    waiting_since: float | None = None  # when the statement was sent that is not answered yet
    committing = False  # it is the commit of a writing transaction
    beginning: tuple[bytes, ...] = ()  # of a transaction that indexes, statement by statement

    def tell(self, statement: bytes) -> str:
        """Send a BEGIN or COMMIT with the least overhead (it is most of an append's cost); returns the last answer."""
        self.waiting_since = time.monotonic()
        try:
            result = self.pgconn.exec_(statement)
        finally:
            self.waiting_since = None
        if result.status != psycopg.pq.ExecStatus.COMMAND_OK:
            if self.pgconn.status == psycopg.pq.ConnStatus.BAD:  # libpq's error has no code
                raise psycopg.OperationalError(result.get_error_message())
            raise psycopg.errors.error_from_result(result)
        return (result.command_status or b"").decode()

    def wait(self, *args: Any, **options: Any) -> Any:
        """Wait for an answer; Watch limits the time."""
        self.waiting_since = time.monotonic()
        try:
            return super().wait(*args, **options)
        finally:
            self.waiting_since = None

    def put_off(self, since: float) -> None:
        """The server works on the statement: its waiting time begins again."""
        if self.waiting_since == since:
            self.waiting_since = time.monotonic()

    @contextmanager
    def indexing(self) -> Iterator[None]:
        """A transaction that indexes, from its beginning to its commit in one round trip; it reads nothing."""
        try:
            with self.pipeline():
                for statement in self.beginning:
                    self.execute(statement)
                yield
                self.execute(b"COMMIT")
        except BaseException:
            self.abandon()
            raise

    def abandon(self) -> None:
        """Undo what was done in a transaction, if there is still one."""
        if not self.closed and self.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
            with suppress(psycopg.Error):
                self.rollback()


class Pool:
    """At most `size` connections."""

    def __init__(self, connect: Callable[[], PooledConnection], size: int, where: str) -> None:
        self._connect = connect
        self._size, self._where = size, where
        self._places = threading.BoundedSemaphore(size)
        self._lock = threading.Lock()
        self._idle: deque[tuple[PooledConnection, float]] = deque()  # the most recently used is taken first
        self._closed = False

    def take(self, patience: float) -> PooledConnection:
        """Take a connection; StoreBusy when all stay in use for that long, or the error of opening one."""
        if not self._places.acquire(timeout=max(0.0, patience)):
            raise StoreBusy(f"all {self._size} connections to {self._where} are in use; try again")
        try:
            kept = self._kept()
            return kept if kept is not None else self._connect()
        except BaseException:
            self._places.release()
            raise

    def _kept(self) -> PooledConnection | None:
        now, old = time.monotonic(), []
        with self._lock:
            link = self._idle.pop()[0] if self._idle else None
            while self._idle and now - self._idle[0][1] > IDLE:
                old.append(self._idle.popleft()[0])
        for one in old:
            one.close()
        return link

    def give_back(self, link: PooledConnection) -> None:
        """Return a connection. One that is broken, or still in a transaction, is not used again."""
        fit = not link.closed and link.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
        with self._lock:
            fit = fit and not self._closed
            if fit:
                self._idle.append((link, time.monotonic()))
        if not fit:
            link.close()
        self._places.release()

    def forget(self) -> None:
        """One connection is broken: drop the other idle ones as well."""
        with self._lock:
            idle, self._idle = self._idle, deque()
        for link, _ in idle:
            link.close()

    def close(self) -> None:
        """Close all that are not in use; the others when they are returned."""
        self._closed = True
        self.forget()


# ----------------------------------------------------------------------------------------------------
# The connection parameters for libpq, and what a server says of itself then.

_DEFAULTS: dict[str, str | int] = {
    "client_encoding": "UTF8",
    "connect_timeout": 10,
    "application_name": migrate.APPLICATION,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}
SERVER = (
    "SELECT CASE WHEN pg_is_in_recovery() THEN '' ELSE substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8) END,"
    " pg_postmaster_start_time()::text, current_setting('synchronous_standby_names') <> '',"
    " extract(epoch FROM clock_timestamp())::float8, pg_backend_pid(), current_setting('search_path')"
)


def conninfo(url: str, read_only: bool) -> str:
    """The parameters for libpq: the URL, and defaults for what it does not set."""
    given = error_mapping.parts(url)
    if given is None:  # libpq's message may quote the password
        raise InvalidInput(
            "the URL of the store is invalid; in names and passwords write : / @ % and the like as %3A %2F %40 %25"
        )
    defaults = dict(_DEFAULTS)
    if given.get("application_name") == migrate.OLDER_APPLICATION:
        del given["application_name"]  # the name of older programs, which may no longer write
    if "," in str(given.get("host") or given.get("hostaddr") or "") and not read_only:
        defaults["target_session_attrs"] = "read-write"  # of several servers the primary
    return make_conninfo(url, **{key: value for key, value in defaults.items() if key not in given})
