"""Chooses the engine for a store's address."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from hermes.errors import InvalidInput, MissingExtra

if TYPE_CHECKING:
    from hermes.store.engines.base import Engine

_PASSWORD = re.compile(r"(://[^:/?@]*:|[?&]password=)(?!\$\{)[^@&/]+(?=@|&|\Z)")
_KINDS = "sqlite:///PATH or postgresql://USER@HOST/DATABASE"


def file_of(url: str) -> Path | None:
    """The file a sqlite:///… URL names; None when it is a server's URL."""
    if not isinstance(url, str):
        raise InvalidInput(f"a store's URL is text ({_KINDS}), not {type(url).__name__}")
    kind, _, rest = url.partition(":")
    if kind in ("postgresql", "postgres") and rest.startswith("//"):
        return None
    if kind == "sqlite" and rest.startswith("///") and len(rest) > 3:
        path = Path(unquote(urlsplit(url).path)[1:] if rest.startswith("////") else unquote(rest[2:]))
        return path.expanduser()
    raise InvalidInput(f"a store's URL is {_KINDS}, not {kind + ':…' if kind and rest else url!r}")


def same_server(one: str | None, other: str) -> bool:
    """Whether two URLs name the same store of a server, written alike except for the password."""
    return one is not None and file_of(one) is None and file_of(other) is None and _named(one) == _named(other)


def without_password(url: str) -> str:
    """The URL with ${HERMES_DB_PASSWORD} in place of its password. A variable stays."""
    return _PASSWORD.sub(lambda found: f"{found[1]}${{HERMES_DB_PASSWORD}}", url)


def _named(url: str) -> str:
    bare = re.sub(r"(://[^:/?@]*):[^@/]*@", r"\1@", url)  # a password does not identify the store
    return re.sub(r"([?&])password=[^&]*&?", r"\1", bare).rstrip("?&").replace("postgres://", "postgresql://", 1)


def open_engine(path: Path, url: str | None, *, read_only: bool, durability: str, **of_a_server: Any) -> Engine:
    """The engine for a file, or for a server's URL, with further arguments of PostgresEngine."""
    if url is None:
        from hermes.store.engines.sqlite import SqliteEngine

        return SqliteEngine(path, read_only=read_only, durability=durability)
    try:
        from hermes.store.engines.postgres import PostgresEngine
    except ImportError as error:
        raise MissingExtra("PostgreSQL", "postgres") from error
    return PostgresEngine(url, read_only=read_only, durability=durability, **of_a_server)
