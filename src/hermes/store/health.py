"""A quick check of a store's file, for `hermes doctor`: what can be checked in a few seconds, and which processes use it.

Nothing is changed: an older file keeps its tables, and where no process has the file open no other file is created next to it.
The thorough check is `SessionDB.check()`.
"""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from hermes.errors import StoreCorrupt
from hermes.store import message_reading, sessions
from hermes.store.engines.sqlite import cipher, migrate
from hermes.store.engines.sqlite import connection as driver
from hermes.store.engines.sqlite.connection import Connection, code, codes
from hermes.store.engines.sqlite.error_mapping import holder_of
from hermes.store.engines.sqlite.fulltext import SqliteFullText
from hermes.store.engines.sqlite.transaction import SqliteTx
from hermes.store.meaning import vectors
from hermes.texts import counted


@dataclass(frozen=True, slots=True)
class AgentStore:
    """A database that the program Hermes Agent wrote. It is read here, and never changed."""

    path: Path
    schema: int
    sessions: int

    def __str__(self) -> str:
        return f"Hermes Agent (schema {self.schema}, {counted(self.sessions, 'session')})"


def agent_store(path: Path) -> AgentStore | None:
    """What Hermes Agent keeps in a file; None where the file is missing, unreadable or another program's."""
    if not path.is_file() or not cipher.is_plain(path):
        return None
    try:
        with closing(_reading(path, alone=not _size(path.with_name(path.name + "-wal")))) as connection:
            state = migrate.inspect(connection)
            if not state.foreign:
                return None
            return AgentStore(path, state.version, connection.execute("SELECT count(*) FROM sessions").fetchone()[0])
    except driver.Error:
        return None


@dataclass(slots=True)
class Health:
    """The result of a quick check. Only a file of the current version is counted."""

    kind: str  # current, old, newer, empty or foreign-application
    bytes: int
    wal_bytes: int
    sessions: int = 0
    messages: int = 0
    pending: int = 0  # messages that are not in the index yet
    vectors: dict[str, tuple[int, int]] | None = None  # rows of each model, and those with a vector; None: switched off
    all_rows: int = 0  # messages, hidden ones too
    damage: list[str] = field(default_factory=list)
    finished: bool = True  # False: the file is so large that only a part of it was checked
    used_by: str = ""


def look(path: Path, seconds: float = 3.0) -> Health:
    """Check a database file quickly. StoreCorrupt when it can't be read."""
    wal = path.with_name(path.name + "-wal")
    alone = not _size(wal)
    health = _look(path, wal, seconds, alone=alone)
    if alone and _size(wal):  # a process began to write meanwhile
        health = _look(path, wal, seconds, alone=False)
    return health


def _reading(path: Path, *, alone: bool) -> Connection:
    return driver.connect(path, key=cipher.key_of(path), read_only=True, immutable=alone)


def _look(path: Path, wal: Path, seconds: float, *, alone: bool) -> Health:
    try:
        connection = _reading(path, alone=alone)
    except driver.Error as error:
        raise StoreCorrupt(f"{path} can't be opened ({error})") from error
    try:
        health = Health(migrate.inspect(connection).kind, path.stat().st_size, _size(wal))
        health.used_by = holder_of(path).strip(" ()")
        _search_for_damage(connection, health, seconds)
        if health.kind == "current" and not health.damage:
            tx = SqliteTx(connection, SqliteFullText())
            health.sessions, health.messages = sessions.count(tx, None, None), message_reading.count(tx, None, None)
            health.pending = SqliteFullText().pending(tx)
            if vectors.are_kept(tx):
                health.vectors = vectors.counts(tx)
                health.all_rows = int(tx.value("SELECT count(*) FROM messages"))
        return health
    except driver.Error as error:
        raise StoreCorrupt(f"{path} can't be read ({error})") from error
    finally:
        connection.close()


def _search_for_damage(connection: Connection, health: Health, seconds: float) -> None:
    end = time.monotonic() + seconds
    connection.set_progress_handler(lambda: time.monotonic() > end, 10_000)
    try:
        found = [str(row[0]) for row in connection.execute("PRAGMA quick_check(5)")]
        health.damage = [text for text in found if text != "ok"]
    except driver.Error as error:
        if code(error) != codes.SQLITE_INTERRUPT:
            raise
        health.finished = False
    finally:
        connection.set_progress_handler(None, 0)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
