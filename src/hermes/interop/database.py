"""A Hermes state.db, of this program or of an older one: its sessions come in with their ids and attachments."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from hermes.interop.formats import Found, Problem

if TYPE_CHECKING:
    from hermes.store.api.session_db import SessionDB


def sniff(path: Path) -> bool:
    """Whether a file is an SQLite database, or an encrypted one with its key file beside it."""
    from hermes.home import has_key_file
    from hermes.store.engines.sqlite.foreign import is_database

    return is_database(path) or has_key_file(path)


def read(path: Path, folder: Path | None, problems: list[Problem]) -> Iterator[Found]:
    """The sessions of another store, which stays as it is."""
    from hermes.store.api.session_db import SessionDB

    with SessionDB(db_path=path, read_only=True) as other:
        for session in other.iter_export():
            yield Found(0, session)


def take(db: SessionDB, path: Path, *, again: bool = True) -> dict[str, int]:
    """Import a store with its attachments, which an export leaves out; the counts."""
    return db.import_database(path, again=again)
