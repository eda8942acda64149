"""Copies one store to another, row by row, between any two engines.

Rows that differ are written, extra rows are removed, round after round until a whole round finds no difference: that
round is the proof. So an interrupted copy continues where it stopped, and one made while others write ends up complete.
Each round reads one snapshot of the source. Rows are copied unchanged, with their ids, those in the trash and the audit log
included.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hermes.errors import InvalidInput, StoreCorrupt, StoreError
from hermes.store import codec, cron_jobs, session_events
from hermes.store.codec import Blob
from hermes.store.engines.base import Engine, Tx
from hermes.store.engines.sqlite.schema import TABLES
from hermes.store.gateway_tables import TABLES as GATEWAY_TABLES
from hermes.store.gateway_tables import statements as gateway_statements
from hermes.store.meaning import vectors
from hermes.store.session_exports import OWN_KEYS
from hermes.store.sync import tables as sync_tables

if TYPE_CHECKING:
    from hermes.store.db import SessionDB

AT_ONCE = 200  # rows
ROUNDS = 5
_NOT_COPIED = ("schema_version", "words", "indexed_texts", "changed_messages")
Key = tuple[Any, ...]
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class CopiedTable:
    """A table, parsed from its declaration."""

    name: str
    columns: tuple[str, ...]
    key: tuple[str, ...]
    numbered: bool  # it generates its keys

    def list(self) -> str:
        return ", ".join(self.columns)


def declared(statement: str) -> CopiedTable | None:
    """The table that a CREATE TABLE creates; None when it has no key."""
    found = re.match(r"CREATE TABLE IF NOT EXISTS (\w+) \((.*)\)[^)]*\Z", statement, re.DOTALL)
    assert found is not None, statement
    columns: list[str] = []
    key: tuple[str, ...] = ()
    numbered = False
    for part in re.split(r",\s*(?![^()]*\))", found[2]):
        words = part.split()
        whole = re.match(r"PRIMARY KEY \((.*)\)", part.strip())
        if whole:
            key = tuple(name.strip() for name in whole[1].split(","))
        elif words[0] != "UNIQUE":
            columns.append(words[0])
            if "PRIMARY KEY" in part:
                key, numbered = (words[0],), "INTEGER PRIMARY KEY" in part
    return CopiedTable(found[1], tuple(columns), key, numbered) if key else None


def _tables(statements: Sequence[str]) -> list[CopiedTable]:
    every = [declared(one) for one in statements if one.startswith("CREATE TABLE")]
    return [table for table in every if table is not None and table.name not in _NOT_COPIED]


@dataclass(slots=True)
class CopyResult:
    """The result of a copy."""

    sessions: int = 0
    messages: int = 0
    written: int = 0  # rows
    removed: int = 0
    attachments: int = 0
    rounds: int = 0
    left: set[str] = field(default_factory=set)  # the tables that differed


def snapshot(source: SessionDB, target: SessionDB) -> CopyResult:
    """Make the target hold what the source holds at this moment, even while others write."""
    with source._engine.read():
        return move(source, target)


def refuse_in_use(source: SessionDB, target: SessionDB) -> None:
    """InvalidInput when the target holds what the source does not, or holds differently: it is no interrupted copy.

    For a target that is already in use, where `move` would remove and overwrite what was written there since.
    """
    for table in _tables(TABLES):
        if table.name not in ("sessions", "messages"):
            continue
        copy = _Copy(source._engine, target._engine, table, CopyResult())
        if differing := sum(map(copy.differing, _some(copy.keys(target._engine)))):
            raise InvalidInput(
                f"{target.where} is in use: {differing} of its {table.name} are not in {source.where}, or differ from it,"
                f" and copying would undo that; import the file's sessions instead: hermes sessions import {source.path}"
            )


def _made_when_needed(here: Engine) -> tuple[tuple[str, Sequence[str], Callable[[], Any]], ...]:
    """Tables that a store has once it needs them: one of them, their declarations, how a store gets them."""
    return (
        ("gateway_aliases", GATEWAY_TABLES, lambda: here.make_tables(gateway_statements(shared=here.shared))),
        ("session_events", session_events.TABLES, lambda: session_events.prepare(here)),
        ("cron_runs", cron_jobs.TABLES, lambda: here.make_tables(cron_jobs.TABLES)),
        ("sync_seen", sync_tables.TABLES, lambda: sync_tables.prepare(here)),
    )


def move(source: SessionDB, target: SessionDB, progress: Progress | None = None) -> CopyResult:
    """Make the target hold what the source holds, and prove it. StoreError when others keep writing to the source."""
    if target.read_only:
        raise InvalidInput(f"{target.where} can only be read")
    if source.where == target.where:
        raise InvalidInput(f"{source.where} is already the current store")
    there, here, moved = source._engine, target._engine, CopyResult()
    tables = _tables(TABLES)
    for name, statements, make in _made_when_needed(here):
        with there.read() as tx:
            is_there = tx.has_table(name)
        if is_there:
            make()
            tables += _tables(statements)
    with there.read() as tx:
        meant = _tables(vectors.TABLES) if vectors.are_kept(tx) else []
    if meant:
        vectors.prepare(here)
    is_same = False
    while not is_same:
        if moved.rounds == ROUNDS:
            raise StoreError(
                f"{source.where} is being written to while it is copied ({', '.join(sorted(moved.left))}); stop"
                " the programs that use it, and run this again: it continues from here"
            )
        moved.rounds += 1
        before = moved.written, moved.removed
        with there.read():
            for table in tables:
                _Copy(there, here, table, moved, progress).run()
            is_same = (moved.written, moved.removed) == before
            for table in meant if is_same else ():  # no part of the proof: they are made in the background all the time
                _Copy(there, here, table, moved).run()
    _attachments(source, target, moved)
    target.catch_up()
    if not here.shared:
        _transcripts(target)
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
        for some in _some(list(set(self.keys(self.here)).difference(wanted))):
            self._remove(some)
        done = 0
        for some in _some(wanted):
            self._bring(some)
            done += len(some)
            if self.progress is not None and table.name == "messages":
                self.progress(done, len(wanted))
        if table.numbered:  # keys that were used once are not used again, even if no row has them any more
            with self.there.read() as tx:
                highest = tx.last_number(table.name)
            if highest:
                with self.here.write() as tx:
                    tx.reserve(highest, table.name)

    def keys(self, engine: Engine) -> list[Key]:
        """The keys of the rows that are copied."""
        names = ", ".join(self.table.key)
        with engine.read() as tx:
            rows = tx.rows(f"SELECT {names} FROM {self.table.name} ORDER BY {names}")
            keys = [tuple(map(codec.restored, row)) for row in rows]
        return [key for key in keys if self.table.name != "state_meta" or key[0] not in OWN_KEYS]

    def _rows(self, engine: Engine, keys: Sequence[Key]) -> dict[Key, dict[str, Any]]:
        with engine.read() as tx:
            rows = tx.rows(f"SELECT {self.table.list()} FROM {self.table.name} WHERE {self._among(keys)}", _flat(keys))
        cells = [
            {name: _plain(name, value) for name, value in zip(self.table.columns, row, strict=True)} for row in rows
        ]
        return {tuple(row[name] for name in self.table.key): row for row in cells}

    def _among(self, keys: Sequence[Key]) -> str:
        one = f"({', '.join('?' * len(self.table.key))})"
        return f"({', '.join(self.table.key)}) IN (VALUES {', '.join([one] * len(keys))})"

    def differing(self, keys: Sequence[Key]) -> int:
        """How many of these rows of the target differ in the source. Which host has a transcript is no difference."""
        wanted, present = self._rows(self.there, keys), self._rows(self.here, keys)
        return sum({**wanted.get(key, {}), "transcript": 0} != {**row, "transcript": 0} for key, row in present.items())

    def _bring(self, keys: Sequence[Key]) -> None:
        wanted, present, table = self._rows(self.there, keys), self._rows(self.here, keys), self.table
        changed = {key: row for key, row in wanted.items() if present.get(key) != row}
        if not changed:
            return
        known = [key for key in changed if key in present]
        sets = ", ".join(f"{name} = excluded.{name}" for name in table.columns if name not in table.key)
        with self.here.write() as tx:
            if table.numbered:
                tx.reserve(max(key[0] for key in changed), table.name)
            if table.name == "sessions" and known:  # they may swap titles
                tx.run(f"UPDATE sessions SET title = NULL WHERE {self._among(known)}", _flat(known))
            try:
                tx.run_many(
                    f"INSERT INTO {table.name}({table.list()}) VALUES({', '.join('?' * len(table.columns))})"
                    f" ON CONFLICT({', '.join(table.key)}) DO {f'UPDATE SET {sets}' if sets else 'NOTHING'}",
                    [tuple(row.values()) for row in changed.values()],
                )
            except (TypeError, ValueError, OverflowError) as error:
                raise StoreError(f"a row of {table.name} can't be copied: {error}") from error
            if table.name == "messages":
                self._index(tx, [row for key, row in changed.items() if key not in present])
                self.here.fulltext.reindex(tx, [key[0] for key in known])
        self.moved.written += len(changed)
        self.moved.left.add(table.name)

    def _index(self, tx: Tx, rows: Sequence[dict[str, Any]]) -> None:
        """Engines index at different times: as rows are stored, or later, or on request."""
        for row in rows:
            try:
                whole = codec.joined(row["content"], row["content_rest"])
            except StoreCorrupt:  # it is copied unchanged; `check` reports it there as here
                whole = row["content"]
            others = (row[name] for name in ("content_format", "tool_name", "tool_calls"))
            tx.message_stored(row["id"], row["timestamp"], whole, *others)
        self.here.fulltext.index_now(tx, [row["id"] for row in rows])

    def _remove(self, keys: Sequence[Key]) -> None:
        with self.here.write() as tx:
            if self.table.name == "messages":
                self.here.fulltext.drop(tx, [key[0] for key in keys])
            self.moved.removed += tx.run(f"DELETE FROM {self.table.name} WHERE {self._among(keys)}", _flat(keys))
        self.moved.left.add(self.table.name)


def _some(keys: Sequence[Key]) -> Iterator[Sequence[Key]]:
    return (keys[start : start + AT_ONCE] for start in range(0, len(keys), AT_ONCE))


def _flat(keys: Sequence[Key]) -> list[Any]:
    return [value for key in keys for value in key]


def _plain(name: str, value: Any) -> Any:
    """A value that both engines accept."""
    if name in ("content_rest", "vector"):
        return None if value is None else Blob(value)
    return codec.restored(value)


def _attachments(source: SessionDB, target: SessionDB, moved: CopyResult) -> None:
    with source._engine.read() as tx:
        hashes = [row[0] for row in tx.rows("SELECT DISTINCT hash FROM attachments ORDER BY hash")]
    for digest in hashes:
        moved.attachments += target._attachments.take_over(source.read_attachment, digest)


def _transcripts(target: SessionDB) -> None:
    """Next to a file, each session has its transcript; write those that were written elsewhere."""
    with target._engine.read() as tx:
        ids = [row[0] for row in tx.rows("SELECT id FROM sessions WHERE transcript IS NOT NULL AND purged IS NULL")]
    for session_id in ids:
        if not target._transcripts.files.exists(session_id):
            target._transcripts.rewritten(session_id)
