"""Copies every readable row of a damaged file into a new one, and files that a repair changes aside."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from hermes.errors import StoreBusy, StoreCorrupt
from hermes.home import has_key_file, key_file
from hermes.store import codec
from hermes.store.engines.sqlite import cipher, migrate
from hermes.store.engines.sqlite import connection as driver
from hermes.store.engines.sqlite.connection import Connection, WalGuard, WriteQueue, identity, is_busy
from hermes.store.engines.sqlite.engine import SqliteEngine
from hermes.store.engines.sqlite.error_mapping import holder_of
from hermes.store.engines.sqlite.inspection import is_text

_PATIENCE = 15.0  # seconds to wait for the write lock
Later = list[tuple[str, dict[str, Any]]]  # rows, by table
_DERIVED = ("words", "indexed_texts", "schema_version", "changed_messages")
_NOT_COPIED = ("sqlite_", "messages_fts", "old_messages_fts")  # what names begin with
_NO_SHADOWS = " AND name NOT IN (SELECT name FROM pragma_table_list WHERE type = 'shadow')"  # of virtual tables
_LONG = ("sessions", "messages", "audit")  # tables that are read from both ends
_OURS_ONLY = frozenset((migrate.META_INDEXED, migrate.META_FORM, migrate.META_ADOPTED))


def copy_name(path: Path) -> Path:
    """An unused name next to a file, for a copy of it before the repair."""
    stem = f"{path.name}.before-repair-{time.strftime('%Y%m%d-%H%M%S')}"
    copy, number = path.with_name(stem), 1
    while copy.exists():
        number += 1
        copy = path.with_name(f"{stem}-{number}")
    return copy


def set_aside(path: Path) -> Path:
    """Copy a database with its -wal and similar files before the repair; returns the path of the copy."""
    copy = copy_name(path)
    for suffix in ("", "-wal"):
        source = path.with_name(path.name + suffix)
        if source.exists():
            shutil.copy2(source, copy.with_name(copy.name + suffix))
            os.chmod(copy.with_name(copy.name + suffix), 0o600)
    if has_key_file(path):
        shutil.copy2(key_file(path), key_file(copy))
    return copy


@contextmanager
def write_lock(path: Path) -> Iterator[None]:
    """Hold the write lock of a database: what another process stores while the file is being replaced would be lost.

    Processes of this program wait in the queue, others for SQLite's lock. Nothing can be stored in a file too damaged for that.
    """
    file, queue = identity(path), WriteQueue(path.with_name(path.name + "-queue"))
    busy = f"{path} is held by another process{holder_of(path)}; end it, then try again"
    connection, guard = None, WalGuard(path)
    try:
        if not queue.enter(_PATIENCE) and os.name == "posix":
            raise StoreBusy(busy)
        if identity(path) != file:
            raise StoreBusy(f"another process has just replaced {path}; try again")
        try:
            connection = driver.connect(path, key=cipher.key_of(path), busy=_PATIENCE)
            connection.execute("BEGIN IMMEDIATE")
        except driver.Error as error:
            if is_busy(error):
                raise StoreBusy(busy) from None  # else it is damaged
        yield
    finally:
        if connection is not None:
            connection.close()
        guard.close()  # after closing: SQLite would remove the WAL of the file that is now in its place
        queue.close()


def copy_rows(engine: SqliteEngine, damaged: Path) -> tuple[int, Later]:
    """Copy every readable row of every table that is not derived from others; returns how many.

    Rows with a damaged value are returned: what is left of them is stored by `store_rest`, where no transcript has them whole.
    """
    count, later = 0, Later()
    try:
        connection = driver.connect(damaged, key=cipher.key_of(damaged), read_only=True)
        connection.execute("PRAGMA cell_size_check=ON")
        tables = connection.execute(f"SELECT name, sql FROM sqlite_master WHERE type = 'table'{_NO_SHADOWS}").fetchall()
        indexes = connection.execute(
            "SELECT tbl_name, sql FROM sqlite_master WHERE type = 'index' AND sql > ''"
        ).fetchall()
    except driver.Error:
        return 0, later
    with engine.write() as tx:
        for table, sql in tables:
            if not isinstance(table, str) or table in _DERIVED or table.startswith(_NOT_COPIED):
                continue
            if not (known := set(migrate.live_columns(tx.connection, table))):
                made = [str(sql), *(str(more) for of, more in indexes if of == table)]
                with suppress(*driver.Error):  # a damaged definition, or a module that is not here
                    for statement in made:
                        tx.run(statement)
                known = set(migrate.live_columns(tx.connection, table))
            for row, is_whole in _rows_of(connection, table):
                if table == "state_meta" and row.get("key") in _OURS_ONLY:
                    continue
                if table == "sessions" and not isinstance(row["id"], str):
                    continue  # without its id, nothing can be said of it; its transcript tells it
                row = {name: value for name, value in row.items() if name in known}
                if is_whole:
                    count += _stored(tx, table, row)
                else:
                    later.append((table, row))
    connection.close()
    return count, later


def store_rest(engine: SqliteEngine, later: Later) -> int:
    """Store what is left of damaged rows that are still missing; returns how many."""
    with engine.write() as tx:
        return sum(_stored(tx, table, row) for table, row in later)


def _stored(tx: Any, table: str, row: dict[str, Any]) -> int:
    if table == "sessions" and row.get("title") is not None:
        clash = tx.value("SELECT 1 FROM sessions WHERE title = ?", (row["title"],))
        row["title"] = None if clash else row["title"]
        row.setdefault("title_seen", row["title"])
    names = ", ".join(map(_quoted, row))
    sql = f"INSERT OR IGNORE INTO {_quoted(table)}({names}) VALUES({', '.join('?' * len(row))})"
    try:
        return int(tx.run(sql, list(row.values())))
    except driver.Error:
        return 0


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _rows_of(connection: Connection, table: str) -> Iterator[tuple[dict[str, Any], bool]]:
    """The rows of a table that can be read, each with whether all its values are whole."""
    try:
        kinds = {
            str(row[1]): (str(row[2]).upper(), bool(row[3]))
            for row in connection.execute(f"PRAGMA table_info({_quoted(table)})")
        }
    except driver.Error:
        return
    # Text is read as bytes with its type: invalid UTF-8 must not end the reading.
    columns = ", ".join(
        f"typeof({n}), CASE typeof({n}) WHEN 'text' THEN CAST({n} AS BLOB) ELSE {n} END" for n in map(_quoted, kinds)
    )
    by_rowid = table in _LONG
    seen: set[Any] = set()
    columns = f"rowid, {columns}" if by_rowid else f"0, {columns}"
    for order in (" ORDER BY rowid ASC", " ORDER BY rowid DESC") if kinds and by_rowid else ("",) if kinds else ():
        try:
            for row in connection.execute(f"SELECT {columns} FROM {_quoted(table)} NOT INDEXED{order}"):
                if not by_rowid or row[0] not in seen:
                    seen.add(row[0])
                    yield _readable(kinds, row[1:])
            return
        except driver.Error:
            continue
    for rowid in range(min(seen), max(seen) + 1) if by_rowid and seen else ():  # go on in the middle, row by row
        if rowid not in seen:
            try:
                found = connection.execute(
                    f"SELECT {columns} FROM {_quoted(table)} WHERE rowid = ?", (rowid,)
                ).fetchone()
            except driver.Error:
                continue
            if found is not None:
                yield _readable(kinds, found[1:])


def _readable(kinds: dict[str, tuple[str, bool]], row: Any) -> tuple[dict[str, Any], bool]:
    """The readable part of each value of a row (of each column its type and its value), and whether that is all."""
    values, is_whole = dict[str, Any](), True
    for (name, (kind, required)), found, value in zip(kinds.items(), row[::2], row[1::2], strict=True):
        left = value
        if found == "text" or (kind == "TEXT" and found == "blob"):
            text = value.decode("utf-8", "replace")
            is_right = text.encode() == value  # a BLOB with valid text has lost its type alone
            left = value if found == "blob" and not is_right and is_text(value, "surrogatepass") else text
            is_whole = is_whole and (kind != "TEXT" or is_right or left is value)
        if kind in ("INTEGER", "REAL") and isinstance(left, bytes | str):
            left, is_whole = codec.number(left, kind), False
        elif kind == "TEXT" and isinstance(left, int | float):
            left, is_whole = None if name == "id" else str(left), False
        values[name] = 0 if left is None and required and kind != "TEXT" else left
    if not codec.is_whole(values.get("content_rest")):
        values["content"], values["content_rest"], is_whole = (values["content"] or "") + codec.DAMAGED, None, False
    if values.get("content_format") not in (None, "json", "text") or not _is_parts(values):
        values["content_format"], is_whole = None, False
    return values, is_whole


def _is_parts(values: dict[str, Any]) -> bool:
    if values.get("content_format") != "json":
        return True
    try:
        return isinstance(codec.from_json(codec.joined(values["content"], values["content_rest"])), (list, dict))
    except StoreCorrupt:
        return False
