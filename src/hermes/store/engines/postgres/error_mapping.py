"""Maps errors of PostgreSQL and of the connection to this program's errors."""

from __future__ import annotations

import re
from typing import Any

import psycopg
from psycopg import errors
from psycopg.conninfo import conninfo_to_dict

from hermes.errors import (
    HermesError,
    InvalidInput,
    StoreBusy,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreUnreachable,
)

_KINDS: tuple[tuple[tuple[type[psycopg.Error], ...], type[HermesError], str], ...] = (
    ((errors.DiskFull, errors.OutOfMemory), StoreFull, "has no space left; free some on the server and try again"),
    (
        (errors.ReadOnlySqlTransaction, errors.InsufficientPrivilege),
        StoreReadOnly,
        "does not let this user write; check the user's rights, and that the server is no replica",
    ),
    (
        (
            errors.LockNotAvailable,
            errors.DeadlockDetected,
            errors.SerializationFailure,
            errors.UniqueViolation,
            errors.TooManyConnections,
        ),
        StoreBusy,
        "is being changed by another process in the same place; nothing was stored, try again",
    ),
    (
        (errors.QueryCanceled,),
        StoreBusy,
        "took longer than the server allows (statement_timeout); nothing was stored, try again",
    ),
    ((errors.DataCorrupted, errors.IndexCorrupted), StoreCorrupt, "is damaged; restore it from a backup"),
    ((errors.InvalidCatalogName,), StoreError, "does not exist on the server; create it: createdb NAME"),
    (
        (errors.InvalidPassword, errors.InvalidAuthorizationSpecification),
        StoreError,
        "rejects this user; check the user name and the password in the URL",
    ),
    ((errors.ConfigurationLimitExceeded, errors.ConfigFileError), StoreError, "is not configured correctly"),
)
NO_OPTIONS = (
    "goes through a pooler that does not pass on `options`; remove them from the URL, and set the same on the server:"
    " ALTER ROLE … SET search_path = …"
)
# A statement that is unknown, that is there already, or that is another one of the same name, with other parameters.
MIXED_UP = (errors.InvalidSqlStatementName, errors.DuplicatePreparedStatement, errors.ProtocolViolation)
_WORDS: tuple[tuple[re.Pattern[str], type[HermesError], str], ...] = (
    (
        re.compile(r"too many clients|too many connections|connection slots are reserved"),
        StoreBusy,
        "has no connection left; try again, or raise max_connections on the server",
    ),
    (re.compile(r"unsupported startup parameter"), StoreError, NO_OPTIONS),
    (
        re.compile(r'database "[^"]*" does not exist'),
        StoreError,
        "does not exist on the server; create it: createdb NAME",
    ),
    (
        re.compile(r'authentication|password|role "[^"]*"|no pg_hba\.conf entry|permission denied for database'),
        StoreError,
        "rejects this user; check the user name and the password in the URL",
    ),
)
# The errors of a tenant's views for unsupported statements.
OWNERS_ONLY = (
    errors.InsufficientPrivilege,
    errors.ObjectNotInPrerequisiteState,
    errors.UndefinedTable,
    errors.WrongObjectType,
)
_LOST = (
    errors.AdminShutdown,
    errors.CrashShutdown,
    errors.CannotConnectNow,
    errors.ConnectionException,
    errors.IdleInTransactionSessionTimeout,
    errors.DatabaseDropped,
)


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
    return isinstance(error, _LOST) or (
        isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError)) and error.sqlstate is None
    )


def is_repeated(error: BaseException, connection: psycopg.Connection[Any] | None) -> bool:
    """Whether a query that ended with this error is repeated on another connection."""
    return isinstance(error, MIXED_UP) or is_lost(error, connection)


def translate(error: psycopg.Error, where: str, connection: psycopg.Connection[Any] | None = None) -> HermesError:
    """The error to raise in place of one of psycopg's."""
    message = _first_line(error)
    for kinds, ours, hint in _KINDS:
        if isinstance(error, kinds):
            return ours(f"{where} {hint} ({message})")
    if isinstance(error, MIXED_UP):
        return StoreUnreachable(
            f"{where} goes through a pooler that mixes up connections; nothing was stored, try again"
        )
    if is_lost(error, connection):
        return StoreUnreachable(f"the connection to {where} was lost; nothing was stored, try again ({message})")
    if isinstance(error, (psycopg.DataError, errors.ProgramLimitExceeded, errors.StatementTooComplex)):
        return InvalidInput(f"a value can't be stored: {message}")
    return StoreError(f"{where}: {message}")


def unreachable(error: BaseException, where: str) -> HermesError:
    """Why no connection could be made. (libpq gives no code for it, only words.)"""
    for kinds, ours, hint in _KINDS:
        if isinstance(error, kinds):
            return ours(f"{where} {hint} ({_first_line(error)})")
    text = str(error)
    for words, ours, hint in _WORDS:
        if words.search(text):
            return ours(f"{where} {hint} ({_first_line(error)})")
    return StoreUnreachable(f"{where} can't be reached; is the server running? ({_first_line(error)})")


def _first_line(error: BaseException) -> str:
    """The first line of an error; of several servers the line of each."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    each = [line for line in lines if line.startswith("- ")] or lines[:1]
    return "; ".join(line.rpartition("connection failed: ")[2] for line in each)
