"""A connection to the server and a transaction on it; the deadline of every wait, and the mapping of the server's errors.

A server that was stopped, or waits for a lost replica, neither answers nor closes the connection. So a statement that is not
answered in time is cancelled; if the server does not react to that either, the connection is given up.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Self

import psycopg
from psycopg import generators
from psycopg.adapt import Transformer
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from hermes import errors
from hermes.errors import HermesError, InvalidInput, StoreReadOnly
from hermes.store.engines.base import HELD, Params, Row
from hermes.store.engines.unindexed import WaitingMessages
from hermes.store.records.codec import ESCAPE, Blob, fit, unfit

VERSION = 1  # of the tables; a store of a higher one was written by a newer program
# Held by an exclusive writer until its transaction ends. Only the store's owner can take it.
ALONE = "LOCK TABLE hermes_migrations IN SHARE ROW EXCLUSIVE MODE"
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


# ----------------------------------------------------------------------------------------------------
# A transaction, as the modules above the engine use it.

# The time, and the store's version: reading it blocks an upgrade until the transaction ends.
NOW = "extract(epoch FROM clock_timestamp())::float8, (SELECT max(version) FROM hermes_migrations)"
_QUOTED = re.compile(r"('(?:[^']|'')*')|(\?)|(%)")


@lru_cache(maxsize=4096)
def translated(sql: str) -> bytes:
    """Portable SQL for psycopg: `?` becomes `%s` (not inside quotes), and a percent sign stays one."""

    def replace(found: re.Match[str]) -> str:
        if found[1]:
            return found[1].replace("%", "%%")
        return "%s" if found[2] else "%%"

    return _QUOTED.sub(replace, sql).encode()


class PostgresTx:
    """A transaction on one connection."""

    __slots__ = (
        "_cursor", "ahead", "connection", "extent", "key", "keyed", "unindexed", "waiting",
    )  # fmt: skip

    def __init__(self, connection: PooledConnection, *, ahead: float = 0.0, key: int = 0) -> None:
        """`ahead` is how many seconds the server's clock is ahead of ours."""
        self.connection = connection
        self.ahead = ahead
        self.key = key  # of a writing transaction: shows after a lost connection whether it was committed
        self.keyed = False  # whether it has stored the key, and knows that no newer program has upgraded the store
        self._cursor = connection.cursor(binary=True)
        self.extent: Sequence[Any] | None = None  # of the index, once it was read: see fulltext.candidates
        self.unindexed: WaitingMessages | None = None  # messages that wait to be indexed, once their ids were read
        self.waiting: list[int] = []  # messages that were stored, to index after the commit

    def begun(self, now: float, version: int) -> None:
        """Called with the server's answer, after the key was stored: the time, and the store's version."""
        if version > VERSION:
            raise StoreReadOnly(
                f"{self.connection.where} was upgraded by a newer program (version {version}); nothing was stored, upgrade this"
                " program and start it again"
            )
        self.keyed, self.ahead = True, now - time.time()

    def ask(self, sql: str | bytes, params: Params = ()) -> Any:
        """Run PostgreSQL's own SQL (`%s`, any type of parameter); returns the cursor."""
        return self._cursor.execute(sql if isinstance(sql, bytes) else sql.encode(), params)

    def _execute(self, sql: str, params: Params, *, prepare: bool | None = None) -> Any:
        return self._cursor.execute(translated(sql), fit_values(params), prepare=prepare)

    def rows(self, sql: str, params: Params = (), *, prepare: bool | None = None) -> list[Row]:
        cursor = self._execute(sql, params, prepare=prepare)
        if cursor.pgresult is None or not cursor.pgresult.nfields:  # (`description` makes an object a column)
            return []
        return restored_rows(cursor.fetchall())

    def planned(self, sql: str, params: Params = ()) -> list[Row]:
        """All rows of a query that is planned for its parameters each time: the frequency of a word decides the plan."""
        return self.rows(sql, params, prepare=False)

    def row(self, sql: str, params: Params = ()) -> Row | None:
        return next(iter(self.rows(sql, params)), None)

    def value(self, sql: str, params: Params = ()) -> Any:
        return (self.row(sql, params) or (None,))[0]

    def column(self, sql: str, params: Params = ()) -> list[Any]:
        return [row[0] for row in self.rows(sql, params)]

    def dicts(self, sql: str, params: Params = (), *, prepare: bool | None = None) -> list[Any]:
        rows = self.rows(sql, params, prepare=prepare)
        names = [column.name for column in self._cursor.description or ()]
        return [dict(zip(names, row, strict=True)) for row in rows]

    def select(self, sql: str, params: Params) -> list[dict[str, Any]]:
        """All rows of a caller's own query; one statement, since it is prepared. InvalidInput when the server rejects it."""
        try:
            found = self.dicts(sql, params, prepare=True)
            if self._cursor.description is None:
                raise InvalidInput(
                    "sql() only reads: it takes one SELECT; use the methods of SessionDB to change something"
                )
            return found
        except psycopg.Error as error:
            if error.sqlstate in ("25006", "42501"):  # it would write, or has no right to read
                raise InvalidInput(f"sql() only reads ({error.diag.message_primary})") from error
            wrong = (psycopg.ProgrammingError, psycopg.DataError, psycopg.NotSupportedError)
            if isinstance(error, wrong) or error.sqlstate in ("25000", "25001"):  # it begins or ends a transaction
                raise InvalidInput(f"sql(): {error.diag.message_primary or error}") from error
            raise

    def run(self, sql: str, params: Params = ()) -> int:
        return int(self._execute(sql, params).rowcount)

    def run_many(self, sql: str, many: Sequence[Params]) -> None:
        self._cursor.executemany(translated(sql), [fit_values(params) for params in many])

    def insert(self, sql: str, params: Params = ()) -> int:
        return int(self._execute(f"{sql} RETURNING id", params).fetchone()[0])

    def has_table(self, name: str) -> bool:
        return self.value("SELECT to_regclass(?) IS NOT NULL", (name,)) is True

    def among(self, column: str, values: Sequence[int] | Sequence[str]) -> tuple[str, list[Any]]:
        """A condition with one array as its parameter: the driver takes a millisecond to read a statement with hundreds of
        them, and the server plans it again."""
        if not values:
            return "FALSE", []
        kind = "bigint" if isinstance(values[0], int) else "text"
        return f"{column} = ANY(?::{kind}[])", [array_text(values)]

    def spans(self, spans: Sequence[tuple[str, int, int]]) -> tuple[str, list[Any]]:
        ids, firsts, lasts = zip(*spans, strict=True) if spans else ((), (), ())
        source = "unnest(?::text[], ?::bigint[], ?::bigint[]) AS a(session_id, first, last)"
        return source, [array_text(column) for column in (ids, firsts, lasts)]

    def hold(self, session_id: str) -> None:
        self._execute("SELECT 1 FROM sessions WHERE id = ? FOR UPDATE", (session_id,))

    def holds(self, lease: str, token: int) -> bool:
        return self.row(f"{HELD} FOR SHARE", (lease, token)) is not None

    def now(self) -> float:
        return time.time() + self.ahead  # by the server's clock: those of several hosts differ

    def reserve(self, highest: int, table: str = "messages") -> None:
        if highest > self.last_number(table):
            self.ask(f"LOCK TABLE {table} IN SHARE ROW EXCLUSIVE MODE")  # no id is generated meanwhile
            if highest > self.last_number(table):
                self.ask("SELECT setval(pg_get_serial_sequence(%s, 'id'), %s)", (table, highest))

    def last_number(self, table: str) -> int:
        row = self.ask(f"SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM {table}_id_seq").fetchone()
        return int(row[0])

    def store_message(self, count: tuple[str, Params], insert: tuple[str, Params]) -> int | None:
        values = fit_values([*count[1], *insert[1]])
        statement = _statement(count[0], insert[0], self.keyed)
        row = self.ask(statement, values if self.keyed else [self.key, *values]).fetchone()
        self.keyed = True
        if row is None:  # there is no such session
            return None
        message_id, *start = row
        self.begun(*start)
        self.waiting.append(message_id)
        return int(message_id)


# ----------------------------------------------------------------------------------------------------
# How transactions begin: each sets all its settings itself.
#
# Settings hold for one transaction and are set at its beginning. A pooler in front of the server gives each transaction
# another connection: what a SET left there would hold for whichever client comes next.

PAUSED = 10  # seconds after which the server ends an idle writing transaction: its process was stopped
PAUSED_READER = 60  # it blocks no one
_READ = (
    "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY;"
    f" SET LOCAL idle_in_transaction_session_timeout = '{PAUSED_READER}s';"
    " SET LOCAL jit = off"
)
_BEGIN = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"


@dataclass(frozen=True, slots=True)
class Beginnings:
    """The first statements of a transaction, by its purpose."""

    writing: bytes  # concurrently with others
    exclusive: bytes
    read: bytes
    indexing: tuple[bytes, ...]  # statement by statement


def beginnings(durability: str, views: str | None, patience: float) -> Beginnings:
    """For a store of that durability; `views` is the schema with what a tenant is shown. Locks are waited for with `patience`."""
    locks = f"SET LOCAL lock_timeout = '{patience:g}s'"
    settings = {"idle_in_transaction_session_timeout": f"{PAUSED}s"}
    if durability == "normal":
        settings["synchronous_commit"] = "off"
    place = [] if views is None else [f'SET LOCAL search_path = "{views.replace(chr(34), chr(34) * 2)}"']
    statements = [_BEGIN, locks, *(f"SET LOCAL {name} = '{value}'" for name, value in settings.items())]
    writing = "; ".join(statements)
    return Beginnings(
        writing=writing.encode(),
        exclusive=f"{writing}; {ALONE}".encode(),
        read="; ".join([_READ, locks, *place]).encode(),
        # An index can be made again: it waits for no disk and no replica. (After a crash they still wait in `unindexed`.)
        indexing=tuple(one.encode() for one in (*statements, "SET LOCAL synchronous_commit = off")),
    )


# ----------------------------------------------------------------------------------------------------
# Keys: what became of a commit whose answer was lost.
#
# Every writing transaction stores a key that the client made. A client that stores the same key again waits, on the unique
# index, until the server has decided on the first one; then the key is there, or it is not. Also after a failover.

KEPT_MINUTES = 10
_KEY = b"INSERT INTO write_keys(key) VALUES(%d) RETURNING " + NOW.encode()
REMOVE_OLD_KEYS = (
    "DELETE FROM write_keys WHERE key = ANY(ARRAY(SELECT key FROM write_keys"
    f" WHERE at < now() - interval '{KEPT_MINUTES} minutes' FOR UPDATE SKIP LOCKED))"
).encode()
# -infinity: the first transaction was not committed.
_DECIDE = (
    "INSERT INTO write_keys(key, at) VALUES(%s, '-infinity') ON CONFLICT (key) DO UPDATE SET at = write_keys.at"
    " RETURNING at > '-infinity'"
)
_END = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid = %s AND backend_start <= to_timestamp(%s)"


def noting(key: int) -> bytes:
    """SQL that stores the key of a transaction and answers for `PostgresTx.begun`."""
    return _KEY % key


def was_stored(connection: PooledConnection, tx: PostgresTx, begin: bytes) -> bool | None:
    """Whether a transaction was committed, and confirmed by the replicas that have to; None as long as that is unknown."""
    with suppress(psycopg.errors.InsufficientPrivilege):  # it waits for words that will not come any more
        connection.execute(_END, (tx.connection.process, tx.connection.since))
    connection.command(begin)
    (stored,) = connection.execute(_DECIDE, (tx.key,)).fetchone() or (None,)
    connection.command(b"COMMIT")
    return None if connection.unconfirmed else stored


# ----------------------------------------------------------------------------------------------------
# Storing a message in one statement: it is counted on its session, inserted, and queued for indexing.
#
# Each round trip to the server costs about as much as the storing itself, so an append is three: the beginning
# of a transaction, this, and the commit. It also stores the transaction's key.


@lru_cache(maxsize=64)
def _statement(count: str, insert: str, keyed: bool) -> bytes:
    """`count` changes the session, or no row if there is none; `insert` is an INSERT … VALUES(…) of one row."""
    chosen = insert.replace(" VALUES(", " SELECT ", 1).removesuffix(")")
    key = "" if keyed else "key AS (INSERT INTO write_keys(key) VALUES(%s)), "
    return (
        f"WITH {key}counted AS ({translated(count).decode()} RETURNING 1),"
        f" said AS ({translated(chosen).decode()} FROM counted RETURNING id),"
        " noted AS (INSERT INTO unindexed(message_id) SELECT id FROM said)"
        f" SELECT id, {NOW} FROM said"
    ).encode()


# ---------------------------------------------------------------------------------------------- Text as PostgreSQL can hold it
#
# A column of type text accepts every character but NUL and lone surrogates: see codec.fit.


def fit_value(value: Any) -> Any:
    """A parameter as it is stored.

    Bytes are text that is no valid UTF-8 (codec.storable), unless they are a Blob. What SQLite converts silently is converted
    here: a bool is a number, and NaN is NULL.
    """
    if isinstance(value, str):
        return fit(str(value))
    if isinstance(value, Blob):
        return bytes(value)
    if isinstance(value, bytes):
        return fit(value.decode("utf-8", "surrogatepass"))
    if isinstance(value, float):
        return float(value) if value == value else None
    if value is None or isinstance(value, int):
        return value if value is None else int(value)
    raise TypeError(f"a value of type {type(value).__name__} can't be stored")


def array_text(values: Sequence[int] | Sequence[str]) -> str:
    """Numbers or texts as one parameter, to be cast to an array. (The driver's own arrays are made element by element.)"""
    if not values or isinstance(values[0], int):
        return f"{{{','.join(map(str, values))}}}"
    return f"{{{','.join(map(_quoted, values))}}}"  # type: ignore[arg-type]


def _quoted(text: str) -> str:
    return '"{}"'.format(text.replace("\\", "\\\\").replace('"', '\\"'))


def fit_values(values: Sequence[Any]) -> list[Any]:
    """Parameters as they are stored."""
    return [fit_value(one) for one in values]


def restored_rows(found: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Rows as they went in."""
    return [tuple(unfit(one) if type(one) is str and ESCAPE in one else one for one in row) for row in found]
