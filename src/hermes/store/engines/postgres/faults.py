"""What PostgreSQL and the way to it report, as this program's errors."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl, urlsplit

import psycopg
from psycopg import errors

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
        "does not let this user write; look at its rights, and that the server is no replica",
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
    ((errors.DataCorrupted, errors.IndexCorrupted), StoreCorrupt, "is damaged; restore it from a backup"),
    ((errors.InvalidCatalogName,), StoreError, "does not exist on the server; create it: createdb NAME"),
    (
        (errors.InvalidPassword, errors.InvalidAuthorizationSpecification),
        StoreError,
        "does not let this user in; look at the user name and the password in the URL",
    ),
    ((errors.ConfigurationLimitExceeded, errors.ConfigFileError), StoreError, "is not set up as it should be"),
)
_LOST = (
    errors.AdminShutdown,
    errors.CrashShutdown,
    errors.CannotConnectNow,
    errors.ConnectionException,
    errors.IdleInTransactionSessionTimeout,
    errors.DatabaseDropped,
)


def shown(url: str) -> str:
    """A URL as it may be shown: where the record is, without the password."""
    try:
        parts = urlsplit(url)
        asked = dict(parse_qsl(parts.query))
        host = parts.hostname or asked.get("host") or "localhost"
        port = parts.port or asked.get("port")
    except ValueError:
        return "the PostgreSQL database"
    user = f"{parts.username}@" if parts.username else ""
    return f"postgresql://{user}{host}{f':{port}' if port else ''}/{parts.path.lstrip('/')}"


def is_lost(error: BaseException, connection: psycopg.Connection[Any] | None) -> bool:
    """Whether an error means that the connection is gone, and not that a statement was refused."""
    if connection is not None and connection.closed:
        return True
    return isinstance(error, _LOST) or (
        isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError)) and error.sqlstate is None
    )


def translate(error: psycopg.Error, where: str, connection: psycopg.Connection[Any] | None = None) -> HermesError:
    """The error to raise in place of one of psycopg's."""
    told = _first_line(error)
    for kinds, ours, hint in _KINDS:
        if isinstance(error, kinds):
            return ours(f"{where} {hint} ({told})")
    if is_lost(error, connection):
        return StoreUnreachable(f"the connection to {where} was lost; nothing was stored, try again ({told})")
    if isinstance(error, (psycopg.DataError, errors.ProgramLimitExceeded, errors.StatementTooComplex)):
        return InvalidInput(f"a value can't be stored: {told}")
    return StoreError(f"{where}: {told}")


def unreachable(error: psycopg.Error, where: str) -> HermesError:
    """Why no connection could be made."""
    for kinds, ours, hint in _KINDS:
        if isinstance(error, kinds):
            return ours(f"{where} {hint} ({_first_line(error)})")
    text = str(error)
    if "does not exist" in text and "database" in text:
        return StoreError(f"{where} does not exist on the server; create it: createdb NAME ({_first_line(error)})")
    if "authentication" in text or "role" in text:
        return StoreError(
            f"{where} does not let this user in; look at the user name and the password in the URL"
            f" ({_first_line(error)})"
        )
    return StoreUnreachable(f"{where} can't be reached; is the server running? ({_first_line(error)})")


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
