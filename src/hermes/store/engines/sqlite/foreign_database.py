"""SQLite databases of other programs, read table by table and never changed.

A database in WAL mode that no process has open is read as immutable: no lock is taken and no file is created next to it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from hermes.errors import HermesError
from hermes.store.engines.sqlite import connection as driver

HEADER = b"SQLite format 3\0"
Row = dict[str, Any]


class UnreadableDatabase(HermesError):
    """Another program's database can't be read."""


def is_database(path: Path) -> bool:
    """Whether a file is an SQLite database."""
    try:
        if not path.is_file():  # a pipe would wait for who writes into it
            return False
        with path.open("rb") as file:
            return file.read(len(HEADER)) == HEADER
    except OSError:
        return False


def tables_of(path: Path) -> frozenset[str]:
    """The names of a database's tables; none when it is no database or can't be read."""
    if not is_database(path):
        return frozenset()
    try:
        with ForeignDatabase(path) as database:
            return frozenset(database.columns)
    except UnreadableDatabase:
        return frozenset()


class ForeignDatabase:
    """Another program's database: `columns` by table, and its rows as dicts."""

    def __init__(self, path: Path) -> None:
        wal = path.with_name(path.name + "-wal")
        quiet = not wal.exists() or wal.stat().st_size == 0
        try:
            self._connection = driver.connect(path.resolve(), read_only=True, immutable=quiet, busy=5.0)
            names = [row[0] for row in self._connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            self.columns = {
                name: tuple(column for _, column, *_ in self._connection.execute(f"PRAGMA table_info({_name(name)})"))
                for name in names
            }
        except driver.Error as error:
            raise UnreadableDatabase(f"{path}: {error}") from None
        self._path = path
        self._found_by: dict[tuple[str, str], str | None] = {}

    def rows(self, table: str, where: Mapping[str, Any] | None = None, order: Sequence[str] = ()) -> Iterator[Row]:
        """The rows of a table with these values, in this order; columns that the table does not have are left out of it."""
        columns = self.columns.get(table)
        if columns is None:
            return
        asked = {key: value for key, value in (where or {}).items() if key in columns}
        sorted_by = [f"t.{_name(key)}" for key in order if key in columns]
        try:
            beside = self._index(table, next(iter(asked))) if asked else None
            sql = f"SELECT t.* FROM {_name(table)} t"
            if beside is not None:
                sql = f"SELECT t.* FROM temp.{beside} i CROSS JOIN {_name(table)} t ON t.rowid = i.row"
            if asked:
                first = "t." + _name(next(iter(asked))) if beside is None else "i.value"
                rest = [f"t.{_name(key)}" for key in [*asked][1:]]
                sql += " WHERE " + " AND ".join(f"{key} IS ?" for key in (first, *rest))
            if sorted_by:
                sql += " ORDER BY " + ", ".join(sorted_by)
            for row in self._connection.execute(sql, tuple(asked.values())):
                yield dict(zip(columns, row, strict=True))
        except driver.Error as error:
            raise UnreadableDatabase(f"{self._path}: {error}") from None

    def _index(self, table: str, column: str) -> str | None:
        """An index made beside the database, in memory, where that program has none: else each look-up reads the table."""
        if (table, column) not in self._found_by:
            self._found_by[table, column] = None if self._is_indexed(table, column) else self._indexed(table, column)
        return self._found_by[table, column]

    def _is_indexed(self, table: str, column: str) -> bool:
        names = [row[1] for row in self._connection.execute(f"PRAGMA index_list({_name(table)})")]
        first = [self._connection.execute(f"PRAGMA index_info({_name(name)})").fetchone() for name in names]
        keys = [row for row in self._connection.execute(f"PRAGMA table_info({_name(table)})") if row[5]]
        return any(row is not None and row[2] == column for row in first) or [row[1] for row in keys] == [column]

    def _indexed(self, table: str, column: str) -> str | None:
        name = f"index_{len(self._found_by)}"
        try:
            self._connection.execute("PRAGMA temp_store = MEMORY")  # an encrypted store leaves no plain text in a file
            self._connection.execute(
                f"CREATE TEMP TABLE {name} AS SELECT {_name(column)} AS value, rowid AS row FROM main.{_name(table)}"
            )
            self._connection.execute(f"CREATE INDEX temp.{name}_by ON {name}(value)")
        except driver.Error:  # a table without row ids
            return None
        return name

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def __enter__(self) -> ForeignDatabase:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _name(text: str) -> str:
    return '"' + text.replace('"', '""') + '"'
