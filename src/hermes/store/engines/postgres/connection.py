"""A connection to the server, the deadline of every wait on it, and the mapping of its errors to this program's.

A server that was stopped, or waits for a lost replica, neither answers nor closes the connection. So a statement that is not
answered in time is cancelled; if the server does not react to that either, the connection is given up.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Self

import psycopg
from psycopg import generators
from psycopg.adapt import Transformer
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from hermes import errors
from hermes.errors import HermesError, InvalidInput

NO_OPTIONS = (
    "goes through a pooler that does not pass on `options`; remove them from the URL, and set the same on the server:"
    " ALTER ROLE … SET search_path = …"
)
_NO_DATABASE = "does not exist on the server; create it: createdb NAME"
_REJECTED = "rejects this user; check the user name and the password in the URL"
_NOT_WRITABLE = "does not let this user write; check the user's rights, and that the server is no replica"
_CHANGING = "is being changed by another process in the same place; nothing was stored, try again"
_SLOW = "took longer than the server allows (statement_timeout); nothing was stored, try again"
# By SQLSTATE, or where there is none (no connection could be made) by libpq's words.
_KINDS: tuple[tuple[str, type[HermesError], str], ...] = (
    ("53100|53200", errors.StoreFull, "has no space left; free some on the server and try again"),
    ("25006|42501", errors.StoreReadOnly, _NOT_WRITABLE),
    ("55P03|40P01|40001|23505|53300", errors.StoreBusy, _CHANGING),
    ("57014", errors.StoreBusy, _SLOW),
    ("XX001|XX002", errors.StoreCorrupt, "is damaged; restore it from a backup"),
    ('3D000| .*database "[^"]*" does not exist', errors.StoreError, _NO_DATABASE),
    (" .*(too many clients|too many connections|connection slots are reserved)", errors.StoreBusy,
     "has no connection left; try again, or raise max_connections on the server"),
    (" .*unsupported startup parameter", errors.StoreError, NO_OPTIONS),
    (r'28P01|28000| .*(authentication|password|role "[^"]*"|no pg_hba\.conf entry|permission denied for database)',
     errors.StoreError, _REJECTED),
    # A prepared statement that is unknown, there already, or another one of the same name, with other parameters.
    ("26000|42P05|08P01", errors.StoreUnreachable,
     "goes through a pooler that mixes up prepared statements; nothing was stored: give the server's own address"),
    ("53400|F0000", errors.StoreError, "is not configured correctly"),
)  # fmt: skip
# The errors of a tenant's views for unsupported statements.
OWNERS_ONLY = {"42501", "55000", "42P01", "42809"}
_LOST = {"57P01", "57P02", "57P03", "57P04", "08000", "25P03"}


def parts(url: str) -> dict[str, Any] | None:
    """The parts of a URL, by libpq's names; None when it is invalid.

    A / or @ of a password that is not written as %2F or %40 makes it part of the host or the database: such a URL is
    refused, since its error message could not avoid showing the password.
    """
    try:
        known = conninfo_to_dict(url)
    except (psycopg.Error, UnicodeError):
        return None
    ports = str(known.get("port") or "").split(",")
    if not all(port.isdigit() or not port for port in ports):
        return None
    if any("@" in str(known.get(name) or "") for name in ("host", "hostaddr", "dbname")):
        return None
    return known


def search_path(conninfo: str) -> str | None:
    """The search_path that `options` sets, without spaces; None when they don't."""
    found = re.search(r"search_path\s*=\s*((?:\\.|\S)+)", str((parts(conninfo) or {}).get("options") or ""))
    return None if found is None else re.sub(r"\\(.)|\s", r"\1", found[1]).replace(" ", "")


def shown(url: str) -> str:
    """A URL for display: where the store is, without the password."""
    known = parts(url)
    if known is None:
        return "the PostgreSQL database"
    hosts = str(known.get("host") or known.get("hostaddr") or "localhost").split(",")
    ports = str(known.get("port") or "").split(",")
    ports = ports * len(hosts) if len(ports) == 1 else ports
    places = ",".join(f"{host}:{port}" if port else host for host, port in zip(hosts, ports, strict=False))
    user = f"{known['user']}@" if known.get("user") else ""
    return f"postgresql://{user}{places}/{known.get('dbname') or ''}"


def is_lost(error: BaseException, connection: psycopg.Connection[Any] | None) -> bool:
    """Whether an error means that the connection is lost, and not that a statement failed."""
    if connection is not None and connection.closed:
        return True
    if not isinstance(error, psycopg.Error):
        return False
    no_code = error.sqlstate is None and isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError))
    return no_code or error.sqlstate in _LOST


def translate(error: psycopg.Error, where: str, connection: psycopg.Connection[Any] | None = None) -> HermesError:
    """The error to raise in place of one of psycopg's."""
    message = _first_line(error)
    if error.sqlstate is not None and (known := _known(error, where)) is not None:
        return known
    if is_lost(error, connection):
        return errors.StoreUnreachable(f"the connection to {where} was lost; nothing was stored, try again ({message})")
    if isinstance(error, psycopg.DataError) or (error.sqlstate or "").startswith("54"):  # the server's limits
        return errors.InvalidInput(f"a value can't be stored: {message}")
    return errors.StoreError(f"{where}: {message}")


def unreachable(error: BaseException, where: str) -> HermesError:
    """Why no connection could be made."""
    reason = f"{where} can't be reached; is the server running? ({_first_line(error)})"
    return _known(error, where) or errors.StoreUnreachable(reason)


def _known(error: BaseException, where: str) -> HermesError | None:
    message = f"{getattr(error, 'sqlstate', None) or ''} {error}"
    for pattern, ours, hint in _KINDS:
        if re.match(pattern, message, re.DOTALL):
            return ours(f"{where} {hint} ({_first_line(error)})")
    return None


def _first_line(error: BaseException) -> str:
    """The first line of an error; of several servers the line of each."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    each = [line for line in lines if line.startswith("- ")] or lines[:1]
    return "; ".join(line.rpartition("connection failed: ")[2] for line in each)


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
    parameters = parts(url)
    if parameters is None:  # libpq's message may quote the password
        raise InvalidInput(
            "the URL of the store is invalid; in names and passwords write : / @ % and the like as %3A %2F %40 %25"
        )
    defaults = dict(_DEFAULTS)
    if "," in str(parameters.get("host") or parameters.get("hostaddr") or "") and not read_only:
        defaults["target_session_attrs"] = "read-write"  # of several servers the primary
    return make_conninfo(url, **{key: value for key, value in defaults.items() if key not in parameters})


class PooledConnection(psycopg.Connection[Any]):
    """A connection, and what is known about its server."""

    where = ""  # for display
    process = 0  # the server's process of this connection; 0 behind a pooler, where it changes
    since = 0.0  # when it was made, by the server's clock
    unconfirmed = False  # a commit returned although the replica that has to confirm it did not
    timeout: float | None = None  # seconds for a BEGIN or COMMIT; None: no deadline
    limit: float | None = None  # for the current statement
    begin_row: tuple[Any, ...] | None = None  # the last row of the answer to the beginning of a transaction
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
        self.begin_row = reader.load_row(0, tuple) if result.ntuples else None

    def command(self, statement: bytes) -> str:
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
