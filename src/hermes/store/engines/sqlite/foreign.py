"""SQLite databases of other programs, read table by table and never changed.

A database in WAL mode that no process has open is read as immutable: no lock is taken and no file is created next to it.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from hermes.errors import HermesError
from hermes.store.engines.sqlite import connection as driver

Row = dict[str, Any]


class UnreadableDatabase(HermesError):
    """Another program's database can't be read."""


def is_database(path: Path) -> bool:
    """Whether a file is an SQLite database."""
    return os.path.isfile(path) and driver.is_plain(path)  # a pipe would wait for who writes into it


def tables_of(path: Path) -> frozenset[str]:
    """The names of a database's tables; none when it is no database or can't be read."""
    if not is_database(path):
        return frozenset()
    try:
        with ForeignDatabase(path) as database:
            return frozenset(database.columns)
    except UnreadableDatabase:
        return frozenset()


class ForeignDatabase(AbstractContextManager["ForeignDatabase"]):
    """Another program's database: `columns` by table, and its rows as dicts."""

    def __init__(self, path: Path) -> None:
        try:
            self._connection = driver.connect(
                path.resolve(), read_only=True, immutable=not driver.file_size(f"{path}-wal"), busy=5.0
            )
            names = [row[0] for row in self._connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            self.columns = {
                name: tuple(column for _, column, *_ in self._connection.execute(f"PRAGMA table_info({_name(name)})"))
                for name in names
            }
        except driver.Error as error:
            raise UnreadableDatabase(f"{path}: {error}") from None
        self._path = path
        self._found_by: dict[tuple[str, str], dict[Any, list[int]]] = {}

    def rows(self, table: str, where: Mapping[str, Any] | None = None, order: Sequence[str] = ()) -> Iterator[Row]:
        """The rows of a table with these values, in this order; columns that the table does not have are left out of it."""
        columns = self.columns.get(table)
        if columns is None:
            return
        filters = {key: value for key, value in (where or {}).items() if key in columns}
        conditions, values = [f"{_name(key)} IS ?" for key in filters], list(filters.values())
        sorted_by = [_name(key) for key in order if key in columns]
        for key in [*filters][:1]:
            if (found := self._row_ids(table, key)) is not None:
                conditions.append("rowid IN (SELECT value FROM json_each(?))")
                values.append(json.dumps(found.get(filters[key], [])))
        sql = f"SELECT * FROM {_name(table)} WHERE {' AND '.join(conditions) or 'TRUE'}"
        if sorted_by:
            sql += " ORDER BY " + ", ".join(sorted_by)
        yield from self._select(columns, sql, values)

    def beginning(self, table: str, column: str, prefix: str) -> Iterator[Row]:
        """The rows of a table in which a column begins with this text: what keys of a key-value table have in common."""
        columns = self.columns.get(table, ())
        if column not in columns:
            return
        sql = f"SELECT * FROM {_name(table)} WHERE {_name(column)} >= ? AND {_name(column)} < ?"
        yield from self._select(columns, sql, (prefix, f"{prefix}\U0010ffff"))

    def _select(self, columns: Sequence[str], sql: str, values: Sequence[Any]) -> Iterator[Row]:
        """The rows of a query, as dicts."""
        try:
            for row in self._connection.execute(sql, values):
                yield dict(zip(columns, row, strict=True))
        except UnicodeEncodeError:  # no row can have such a value
            return
        except driver.Error as error:
            raise UnreadableDatabase(f"{self._path}: {error}") from None

    def _row_ids(self, table: str, column: str) -> dict[Any, list[int]] | None:
        """The rows of each value, read once: not every program has an index, without which each look-up reads the table."""
        if (table, column) not in self._found_by:
            found = defaultdict[Any, list[int]](list)
            try:
                for value, row in self._connection.execute(f"SELECT {_name(column)}, rowid FROM {_name(table)}"):
                    found[value].append(row)
            except driver.Error:  # a table without row ids
                return None
            self._found_by[table, column] = found
        return self._found_by[table, column]

    def __exit__(self, *_: object) -> None:
        self._connection.close()


def _name(text: str) -> str:
    return '"' + text.replace('"', '""') + '"'
