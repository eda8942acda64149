"""Copies one store to another, row by row, between any two engines.

Rows that differ are written, extra rows are removed, round after round until a whole round finds no difference: that
round is the proof. So an interrupted copy continues where it stopped, and one made while others write ends up complete.
Each round reads one snapshot of the source. Rows are copied unchanged, with their ids, those in the trash and the audit log
included: an import (ingest.py) is for sessions that come into a store with other ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from hermes.errors import InvalidInput, StoreError
from hermes.store.api.session_db import SessionDB
from hermes.store.engines.base import Engine, batched
from hermes.store.engines.sqlite.connection import Connection
from hermes.store.engines.sqlite.schema import TABLES
from hermes.store.exchange import collect
from hermes.store.exchange.ingest import OWN_KEYS
from hermes.store.gateway import cron, routes
from hermes.store.records import codec
from hermes.store.records.codec import Blob
from hermes.store.search import vectors

ROUNDS = 5
_NOT_COPIED = ("schema_version", "words", "indexed_texts", "changed_messages")
Key = tuple[Any, ...]
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class CopiedTable:
    """A table as it is declared for both engines."""

    name: str
    columns: tuple[str, ...]
    key: tuple[str, ...]
    is_numbered: bool  # it generates its keys


def declared(statements: Sequence[str]) -> list[CopiedTable]:
    """The tables with a key that these declarations make, without those of a store's own index."""
    found = []
    with closing(Connection(":memory:")) as memory:
        for statement in statements:
            memory.execute(statement)
        for (name,) in memory.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY rowid"):
            columns = memory.execute(f"SELECT name, type, pk FROM pragma_table_info('{name}')").fetchall()
            keys = [column for column in sorted(columns, key=itemgetter(2)) if column[2]]
            if keys and name not in _NOT_COPIED:
                names, key = (tuple(column[0] for column in some) for some in (columns, keys))
                found.append(CopiedTable(name, names, key, [column[1] for column in keys] == ["INTEGER"]))
    return found


@dataclass(slots=True)
class CopyResult:
    """The result of a copy."""

    sessions: int = 0
    messages: int = 0
    written: int = 0  # rows
    removed: int = 0
    attachments: int = 0
    rounds: int = 0


# Tables that a store has once it needs them: one of them, their declarations, how a store gets them.
_LATER: tuple[tuple[str, Sequence[str], Callable[[Engine], object]], ...] = (
    ("gateway_aliases", routes.TABLES, lambda here: here.make_tables(routes.STATEMENTS)),
    ("cron_runs", cron.TABLES, lambda here: here.make_tables(cron.TABLES)),
    ("sync_seen", collect.TABLES, collect.prepare),
    ("message_vectors", vectors.TABLES, vectors.prepare),
)


def snapshot(source: SessionDB, target: SessionDB) -> CopyResult:
    """Make the target hold what the source holds at this moment, even while others write."""
    with source._engine.read():
        return move(source, target)


def move(source: SessionDB, target: SessionDB, progress: Progress | None = None) -> CopyResult:
    """Make the target hold what the source holds, and prove it. StoreError when others keep writing to the source."""
    if target.read_only:
        raise InvalidInput(f"{target.where} can only be read")
    if source.where == target.where:
        raise InvalidInput(f"{source.where} is already the current store")
    there, here, moved = source._engine, target._engine, CopyResult()
    tables = declared(TABLES)
    for name, statements, prepare in _LATER:
        with there.read() as tx:
            is_there = tx.has_table(name)
        if is_there:
            prepare(here)
            tables += declared(statements)
    is_same = False
    while not is_same:
        if moved.rounds == ROUNDS:
            raise StoreError(
                f"{source.where} is being written to while it is copied; stop the programs that use it, and run this"
                " again: it continues from here"
            )
        moved.rounds += 1
        before = moved.written + moved.removed
        with there.read() as tx:
            for table in tables:
                _Copy(there, here, table, moved, progress).run()
            is_same = moved.written + moved.removed == before
            hashes = tx.column("SELECT DISTINCT hash FROM attachments")
    moved.attachments = sum(target._attachments.take_over(source.read_attachment, digest) for digest in hashes)
    target.catch_up()
    if not here.shared:  # next to a file, each session has its transcript: write those that were written elsewhere
        kept = "SELECT id FROM sessions WHERE transcript IS NOT NULL AND purged IS NULL"
        ids = target._read(lambda tx: tx.column(kept))
        target._transcripts.complete(one for one in ids if not target._transcripts.files.exists(one))
    moved.sessions, moved.messages = target.session_count(), target.message_count()
    return moved


@dataclass(slots=True)
class _Copy:
    """Copy one table, one round."""

    there: Engine
    here: Engine
    table: CopiedTable
    moved: CopyResult
    progress: Progress | None = None

    def run(self) -> None:
        wanted, table = self.keys(self.there), self.table
        if table.is_numbered:  # keys that were used once are not used again, even if no row has them any more
            with self.there.read() as tx:
                highest = max(tx.last_number(table.name), *(key[0] for key in wanted[-1:]), 0)
            with self.here.write() as tx:
                tx.reserve(highest, table.name)
        extra = list(set(self.keys(self.here)).difference(wanted))
        for some in batched(extra):  # first: a new row may have the title of one of them
            self._bring(some)
        done = 0
        for some in batched(wanted):
            self._bring(some)
            done += len(some)
            if self.progress is not None and table.name == "messages":
                self.progress(done, len(wanted))

    def keys(self, engine: Engine) -> list[Key]:
        """The keys of the rows that are copied."""
        names = ", ".join(self.table.key)
        with engine.read() as tx:
            rows = tx.rows(f"SELECT {names} FROM {self.table.name} ORDER BY {names}")
        keys = (tuple(map(codec.restored, row)) for row in rows)
        return [key for key in keys if self.table.name != "state_meta" or key[0] not in OWN_KEYS]

    def _rows(self, engine: Engine, keys: Sequence[Key]) -> dict[Key, dict[str, Any]]:
        names, table = ", ".join(self.table.columns), self.table
        with engine.read() as tx:
            rows = tx.dicts(f"SELECT {names} FROM {table.name} WHERE {self._among(keys)}", _flat(keys))
        cells = ({name: _plain(name, value) for name, value in row.items()} for row in rows)
        return {tuple(row[name] for name in table.key): row for row in cells}

    def _among(self, keys: Sequence[Key]) -> str:
        one = f"({', '.join('?' * len(self.table.key))})"
        return f"({', '.join(self.table.key)}) IN (VALUES {', '.join([one] * len(keys))})"

    def _bring(self, keys: Sequence[Key]) -> None:
        """Make these rows of the target those of the source."""
        wanted, present, table = self._rows(self.there, keys), self._rows(self.here, keys), self.table
        gone = [key for key in present if key not in wanted]
        changed = {key: row for key, row in wanted.items() if present.get(key) != row}
        known = [key for key in changed if key in present]
        if not changed and not gone:
            return
        sets = ", ".join(f"{name} = excluded.{name}" for name in table.columns if name not in table.key)
        fulltext = self.here.fulltext
        with self.here.write() as tx:
            if gone:
                self.moved.removed += tx.run(f"DELETE FROM {table.name} WHERE {self._among(gone)}", _flat(gone))
                if table.name == "messages":
                    fulltext.drop(tx, [key[0] for key in gone])
            if table.name == "sessions" and known:  # they may swap titles
                tx.run(f"UPDATE sessions SET title = NULL WHERE {self._among(known)}", _flat(known))
            try:
                tx.run_many(
                    f"INSERT INTO {table.name}({', '.join(table.columns)}) VALUES({', '.join('?' * len(table.columns))})"
                    f" ON CONFLICT({', '.join(table.key)}) DO {f'UPDATE SET {sets}' if sets else 'NOTHING'}",
                    [tuple(row.values()) for row in changed.values()],
                )
            except (TypeError, ValueError, OverflowError) as error:
                raise StoreError(f"a row of {table.name} can't be copied: {error}") from error
            if table.name == "messages":
                fulltext.reindex(tx, [key[0] for key in known])
                fulltext.index_now(tx, [key[0] for key in changed if key not in present])
        self.moved.written += len(changed)


def _flat(keys: Sequence[Key]) -> list[Any]:
    return [value for key in keys for value in key]


def _plain(name: str, value: Any) -> Any:
    """A value that both engines accept."""
    if name in ("content_rest", "vector", "lines"):
        return None if value is None else Blob(value)
    return codec.restored(value)
