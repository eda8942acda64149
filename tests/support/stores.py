"""Stores on each engine, for the fixtures: where one lies, and how it is opened."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support import pgbouncer, postgres

FILES = ("sqlite", "encrypted")


def made_encrypted(folder: Path) -> None:
    """A store that is made in this folder is encrypted from its beginning."""
    from hermes.home import key_file
    from hermes.store import keys

    if not key_file(folder / "state.db").exists():
        folder.mkdir(parents=True, exist_ok=True)
        vault = keys.new_vault(keys.by_file(folder.parent / "the key"))
        keys.save(folder / "state.db", vault)


def server_of(engine: str) -> Any:
    """The server whose stores tests on this engine use."""
    return pgbouncer.pooled_stores() if engine == "pgbouncer" else postgres.server(engine.removeprefix("postgres"))


def opener(engine: str) -> Callable[..., Any]:
    """opener(engine)(folder, **kw) → the store of that folder on this engine."""
    from hermes_state import SessionDB

    def opened(folder: Path, **kw: Any) -> Any:
        if engine == "encrypted":
            made_encrypted(folder)
        url = None if engine in FILES else server_of(engine).store(str(folder))
        return SessionDB(db_path=folder / "state.db", **({} if url is None else {"url": url}), **kw)

    return opened
