"""A connection to the server, and the deadline of every wait on it.

A server that was stopped, or waits for a lost replica, neither answers nor closes the connection. So a statement that is not
answered in time is cancelled; if the server does not react to that either, the connection is given up.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Self

import psycopg
from psycopg import generators
from psycopg.adapt import Transformer
from psycopg.conninfo import make_conninfo

from hermes.errors import InvalidInput
from hermes.store.engines.postgres import errors

APPLICATION = "hermes-sessions"
GRACE = 5.0  # seconds for the answer to a cancelled statement
WORKING = 10  # times as long as for a BEGIN or a COMMIT the server may work on any other statement
_DEFAULTS: dict[str, str | int] = {
    "client_encoding": "UTF8",
    "connect_timeout": 10,
    "application_name": APPLICATION,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}


def conninfo(url: str, read_only: bool) -> str:
    """The parameters for libpq: the URL, and defaults for what it does not set."""
    given = errors.parts(url)
    if given is None:  # libpq's message may quote the password
        raise InvalidInput(
            "the URL of the store is invalid; in names and passwords write : / @ % and the like as %3A %2F %40 %25"
        )
    defaults = dict(_DEFAULTS)
    if "," in str(given.get("host") or given.get("hostaddr") or "") and not read_only:
        defaults["target_session_attrs"] = "read-write"  # of several servers the primary
    return make_conninfo(url, **{key: value for key, value in defaults.items() if key not in given})


class PooledConnection(psycopg.Connection[Any]):
    """A connection, and what is known about its server."""

    where = ""  # for display
    process = 0  # the server's process of this connection; 0 behind a pooler, where it changes
    since = 0.0  # when it was made, by the server's clock
    unconfirmed = False  # a commit returned although the replica that has to confirm it did not
    timeout: float | None = None  # seconds for a BEGIN or COMMIT; None: no deadline
    limit: float | None = None  # for the current statement
    said: tuple[Any, ...] | None = None  # the last row of the answer to the beginning of a transaction
    beginning: tuple[bytes, ...] = ()  # of a transaction that indexes, statement by statement

    @classmethod
    def connect(cls, conninfo: str = "", *, opener: Callable[[], Self] | None = None, **options: Any) -> Self:  # type: ignore[override]
        """A new connection; `opener` makes it instead, if there is one (the pool's are made by the engine)."""
        return opener() if opener is not None else super().connect(conninfo, **options)

    def begin(self, statements: bytes, limit: float) -> None:
        """Begin a transaction; `limit` in seconds."""
        result = self._sent(statements, limit)
        reader = Transformer(self)
        reader.set_pgresult(result)
        self.said = reader.load_row(0, tuple) if result.ntuples else None

    def tell(self, statement: bytes) -> str:
        """Send a COMMIT or the like; returns the answer."""
        return (self._sent(statement, self.timeout).command_status or b"").decode()

    def _sent(self, statements: bytes, limit: float | None) -> Any:
        """The last answer to some statements, with the least overhead (it is most of an append's cost)."""
        self.limit = limit
        try:
            self.pgconn.send_query(statements)
            result = self.wait(generators.execute(self.pgconn))[-1]
        finally:
            self.limit = self.timeout and self.timeout * WORKING
        if result.status not in (psycopg.pq.ExecStatus.COMMAND_OK, psycopg.pq.ExecStatus.TUPLES_OK):
            if self.pgconn.status == psycopg.pq.ConnStatus.BAD:  # libpq's error has no code
                raise psycopg.OperationalError(result.get_error_message())
            raise psycopg.errors.error_from_result(result)
        return result

    def wait(self, gen: Generator[Any, Any, Any], *args: Any, **options: Any) -> Any:
        """Wait for the end of an exchange with the server, but not without end."""
        return super().wait(gen if self.limit is None else self._limited(gen), *args, **options)

    def _limited(self, gen: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
        ready, silent_since, cancelled = None, time.monotonic(), False
        limit = self.limit or 0.0
        try:
            while True:
                ready = yield gen.send(ready)
                if ready:
                    silent_since = time.monotonic()
                elif time.monotonic() - silent_since > limit:
                    if cancelled:
                        self.close()
                        raise psycopg.OperationalError("the server does not answer")
                    limit, silent_since, cancelled = min(GRACE, limit), time.monotonic(), True
                    with suppress(psycopg.Error):
                        self.cancel_safe(timeout=limit)
        except StopIteration as done:
            return done.value

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
