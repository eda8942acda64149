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
from hermes.store import codec, cron_jobs, gateway_queues, session_events
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


def _tables(*sources: Sequence[str]) -> list[CopiedTable]:
    every = (declared(statement) for source in sources for statement in source)
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
    left: list[str] = field(default_factory=list)  # what still differed after the last round


def snapshot(source: SessionDB, target: SessionDB) -> CopyResult:
    """Make the target hold what the source holds at this moment, even while others write."""
    with source._engine.read():
        return move(source, target)


def refuse_in_use(source: SessionDB, target: SessionDB) -> None:
    """InvalidInput when the target holds what the source does not, or holds differently: it is no interrupted copy.

    For a target that is already in use, where `move` would remove and overwrite what was written there since.
    """
    moved = CopyResult()
    for table in _tables(TABLES):
        if table.name not in ("sessions", "messages"):
            continue
        copy = _Copy(source._engine, target._engine, table, moved, None)
        there = copy._keys(target._engine)
        more = len(set(there).difference(copy._keys(source._engine)))
        changed = sum(copy.differing(there[start : start + AT_ONCE]) for start in range(0, len(there), AT_ONCE))
        if more or changed:
            raise InvalidInput(
                f"{target.where} is in use: {more or changed} of its {table.name} are not in {source.where}, or differ from it,"
                f" and copying would undo that; import the file's sessions instead: hermes sessions import {source.path}"
            )


def move(source: SessionDB, target: SessionDB, progress: Progress | None = None) -> CopyResult:
    """Make the target hold what the source holds, and prove it. StoreError when others keep writing to the source."""
    if target.read_only:
        raise InvalidInput(f"{target.where} can only be read")
    if source.where == target.where:
        raise InvalidInput(f"{source.where} is already the current store")
    there, here = source._engine, target._engine
    tables = _tables(TABLES)
    with there.read() as tx:
        gateway = there.has_table(tx, "gateway_aliases")
    if gateway:
        here.make_tables(gateway_statements(shared=here.shared))
        tables = _tables(TABLES, GATEWAY_TABLES)
        with there.read() as tx:
            tables = [table for table in tables if there.has_table(tx, table.name)]
    with there.read() as tx:
        happened = session_events.are_kept(tx)
    if happened:
        session_events.prepare(target._engine)
        tables += _tables(session_events.TABLES)
    with there.read() as tx:
        jobs = there.has_table(tx, "cron_runs")
    if jobs:
        here.make_tables(cron_jobs.TABLES)
        tables += _tables(cron_jobs.TABLES)
    with there.read() as tx:
        synced = there.has_table(tx, "sync_seen")
    if synced:
        sync_tables.prepare(here)
        tables += _tables([one for one in sync_tables.TABLES if one.startswith("CREATE TABLE")])
    with there.read() as tx:
        meant = vectors.are_kept(tx)
    if meant:
        vectors.prepare(here)
    moved = CopyResult()
    while True:
        moved.rounds += 1
        before = moved.written, moved.removed
        with there.read():
            for table in tables:
                _Copy(there, here, table, moved, progress).run()
            is_same = (moved.written, moved.removed) == before
            if is_same and meant:  # no part of the proof: they are made in the background all the time
                for table in _tables(vectors.TABLES):
                    _Copy(there, here, table, moved, None).run()
        if is_same:
            break
        if moved.rounds == ROUNDS:
            raise StoreError(
                f"{source.where} is being written to while it is copied ({', '.join(sorted(set(moved.left))) or '?'}); stop"
                " the programs that use it, and run this again: it continues from here"
            )
    if gateway and not here.shared:
        with there.read() as tx:
            highest = tx.last_number("gateway_inbox")
        with here.write() as tx:
            gateway_queues.number_above(tx, highest)
    _attachments(source, target, moved)
    target.catch_up()
    if not here.shared:
        _transcripts(target)
    moved.sessions, moved.messages = target.session_count(), target.message_count()
    return moved


class _Copy:
    """Copy one table, one round."""

    def __init__(
        self, there: Engine, here: Engine, table: CopiedTable, moved: CopyResult, progress: Progress | None
    ) -> None:
        self.there, self.here, self.table, self.moved, self.progress = there, here, table, moved, progress

    def run(self) -> None:
        wanted, present = self._keys(self.there), set(self._keys(self.here))
        extra = list(present.difference(wanted))
        for start in range(0, len(extra), AT_ONCE):
            self._remove(extra[start : start + AT_ONCE])
        for start in range(0, len(wanted), AT_ONCE):
            self._bring(wanted[start : start + AT_ONCE])
            if self.progress is not None and self.table.name == "messages":
                self.progress(min(start + AT_ONCE, len(wanted)), len(wanted))
        if self.table.numbered:
            self._number()

    def _keys(self, engine: Engine) -> list[Key]:
        names = ", ".join(self.table.key)
        with engine.read() as tx:
            rows = [
                tuple(map(codec.restored, row))
                for row in tx.rows(f"SELECT {names} FROM {self.table.name} ORDER BY {names}")
            ]
        return [row for row in rows if self.table.name != "state_meta" or row[0] not in OWN_KEYS]

    def _rows(self, engine: Engine, keys: Sequence[Key]) -> dict[Key, tuple[Any, ...]]:
        places = [self.table.columns.index(name) for name in self.table.key]
        with engine.read() as tx:
            rows = tx.rows(f"SELECT {self.table.list()} FROM {self.table.name} WHERE {self._among(keys)}", _flat(keys))
        plain = [
            tuple(_plain(name, value) for name, value in zip(self.table.columns, row, strict=True)) for row in rows
        ]
        return {tuple(row[place] for place in places): row for row in plain}

    def _among(self, keys: Sequence[Key]) -> str:
        one = f"({', '.join('?' * len(self.table.key))})"
        return f"({', '.join(self.table.key)}) IN (VALUES {', '.join([one] * len(keys))})"

    def differing(self, keys: Sequence[Key]) -> int:
        """How many of these rows of the target differ in the source. Which host has a transcript is no difference."""
        aside = self.table.columns.index("transcript") if "transcript" in self.table.columns else None
        wanted, present = self._rows(self.there, keys), self._rows(self.here, keys)
        return sum(
            any(ours != theirs for at, (ours, theirs) in enumerate(zip(wanted[key], row, strict=True)) if at != aside)
            for key, row in present.items()
            if key in wanted
        )

    def _bring(self, keys: Sequence[Key]) -> None:
        wanted, present = self._rows(self.there, keys), self._rows(self.here, keys)
        changed = {key: row for key, row in wanted.items() if present.get(key) != row}
        if not changed:
            return
        with self.here.write() as tx:
            if self.table.numbered:
                tx.reserve(max(key[0] for key in changed), self.table.name)
            if self.table.name == "sessions" and (known := [key for key in changed if key in present]):
                tx.run(
                    f"UPDATE sessions SET title = NULL WHERE {self._among(known)}", _flat(known)
                )  # they may swap titles
            self._write(tx, list(changed.values()))
            if self.table.name == "messages":
                self._index(tx, changed, present)
        self.moved.written += len(changed)
        self.moved.left.append(self.table.name)

    def _write(self, tx: Tx, rows: Sequence[tuple[Any, ...]]) -> None:
        table = self.table
        others = [name for name in table.columns if name not in table.key]
        sets = ", ".join(f"{name} = excluded.{name}" for name in others)
        try:
            tx.run_many(
                f"INSERT INTO {table.name}({table.list()}) VALUES({', '.join('?' * len(table.columns))})"
                f" ON CONFLICT({', '.join(table.key)}) DO {f'UPDATE SET {sets}' if sets else 'NOTHING'}",
                rows,
            )
        except (TypeError, ValueError, OverflowError) as error:
            raise StoreError(f"a row of {table.name} can't be copied: {error}") from error

    def _index(self, tx: Tx, changed: dict[Key, tuple[Any, ...]], present: dict[Key, tuple[Any, ...]]) -> None:
        """Engines index at different times: as rows are stored, or later, or on request."""
        for key, row in changed.items():
            if key not in present:
                cells = dict(zip(self.table.columns, row, strict=True))
                try:
                    whole = codec.joined(cells["content"], cells["content_rest"])
                except StoreCorrupt:  # it is copied unchanged; `check` reports it there as here
                    whole = cells["content"]
                tx.message_stored(
                    key[0], cells["timestamp"], whole, cells["content_format"], cells["tool_name"], cells["tool_calls"]
                )
        self.here.fulltext.index_now(tx, [key[0] for key in changed if key not in present])
        self.here.fulltext.reindex(tx, [key[0] for key in changed if key in present])

    def _remove(self, keys: Sequence[Key]) -> None:
        with self.here.write() as tx:
            if self.table.name == "messages":
                self.here.fulltext.drop(tx, [key[0] for key in keys])
            self.moved.removed += tx.run(f"DELETE FROM {self.table.name} WHERE {self._among(keys)}", _flat(keys))
        self.moved.left.append(self.table.name)

    def _number(self) -> None:
        """Keys that were used once are not used again, even if no row has them any more."""
        with self.there.read() as tx:
            highest = tx.last_number(self.table.name)
        if highest:
            with self.here.write() as tx:
                tx.reserve(highest, self.table.name)


def _flat(keys: Sequence[Key]) -> list[Any]:
    return [value for key in keys for value in key]


def _plain(name: str, value: Any) -> Any:
    """A value that both engines accept."""
    if name in ("content_rest", "vector"):
        return None if value is None else Blob(value)
    return codec.restored(value)


def _hashes(engine: Engine) -> Iterator[str]:
    with engine.read() as tx:
        yield from (row[0] for row in tx.rows("SELECT DISTINCT hash FROM attachments ORDER BY hash"))


def _attachments(source: SessionDB, target: SessionDB, moved: CopyResult) -> None:
    for digest in list(_hashes(source._engine)):
        with source._engine.read() as tx:
            source._attachments.fetch(tx, [digest])
        if target._attachments.take_over(source.attachments_dir, digest):
            moved.attachments += 1


def _transcripts(target: SessionDB) -> None:
    """Next to a file, each session has its transcript; write those that were written elsewhere."""
    with target._engine.read() as tx:
        ids = [row[0] for row in tx.rows("SELECT id FROM sessions WHERE transcript IS NOT NULL AND purged IS NULL")]
    for session_id in ids:
        if not target._scribe.journal.exists(session_id):
            target._scribe.rewritten(session_id)
