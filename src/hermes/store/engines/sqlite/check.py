"""Checks the file itself, that every value can be read, and that the index agrees with the messages; copies damaged files.

SQLite checks the structure of pages, not their values. The index holds no text; beside it lies a checksum of what each
entry was made of (`indexed_texts`). Every row is read once. A repair copies a file aside before it changes it, and a
rebuild copies every readable row of a damaged file into a new one.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from operator import itemgetter
from pathlib import Path
from typing import Any

from hermes.errors import StoreBusy
from hermes.home import has_key_file, key_file
from hermes.store.engines.base import finding
from hermes.store.engines.sqlite import connection as driver
from hermes.store.engines.sqlite import migrate, schema
from hermes.store.engines.sqlite.connection import (
    Connection,
    WalGuard,
    WriteQueue,
    beginning,
    holder_of,
    identity,
    is_busy,
    pragma,
)
from hermes.store.engines.sqlite.engine import SqliteEngine
from hermes.store.engines.sqlite.fulltext import text_crc
from hermes.store.engines.unindexed import IndexedRow
from hermes.store.records import codec
from hermes.store.records.rows import Finding

_CHECKED = (
    "sessions", "messages", "session_refs", "session_rewinds", "session_tags", "session_members", "session_events",
    "system_prompts", "attachments", "leases", "audit", "state_meta",
)  # fmt: skip
_NONE = type(None)
_TYPES = {"TEXT": (str, _NONE), "REAL": (float, int, _NONE), "INTEGER": (int, _NONE), "BLOB": (bytes, _NONE)}
_MISSING = (
    "SELECT m.id FROM messages m LEFT JOIN messages_fts_docsize d ON d.id = m.id WHERE m.id <= ? AND d.id IS NULL"
)
_EXTRA = "SELECT d.id FROM messages_fts_docsize d LEFT JOIN messages m ON m.id = d.id WHERE m.id IS NULL"


def corruption(connection: Connection) -> list[Finding]:
    """Have SQLite check the file; its findings."""
    inside = connection.in_transaction
    try:
        if not inside:
            connection.execute("BEGIN")
        _reload_indexes(connection)
        found = [str(row[0]) for row in connection.execute("PRAGMA integrity_check(20)")]
    except driver.Error as error:
        return [finding("corruption", "file", str(error))]
    finally:
        if not inside and connection.in_transaction:
            connection.execute("ROLLBACK")
    wrong = [text for text in found if text != "ok" and not _about_another_index(connection, text)]
    return [finding("corruption", "file", text) for text in (*wrong, *_header(connection))]


def _header(connection: Connection) -> list[str]:
    """Whether the two header bytes with the format versions are wrong: SQLite treats unknown ones as read-only."""
    start = beginning(Path(connection.execute("PRAGMA database_list").fetchone()[2]), 20)
    plain = start.startswith(b"SQLite format 3")
    return ["the header's format versions are invalid"] if plain and start[18:] not in (b"\1\1", b"\2\2") else []


def _reload_indexes(connection: Connection) -> None:
    """Let FTS5 see what other connections merged meanwhile: it reloads on a query, not on a check."""
    for table in ("messages_fts", "messages_fts_trigram"):
        try:
            connection.execute(f"SELECT rowid FROM {table} WHERE {table} MATCH 'anything' LIMIT 1").fetchall()
        except driver.Error:
            continue  # it is missing or damaged; the check itself reports that


def _about_another_index(connection: Connection, text: str) -> bool:
    """Whether a finding is about a full-text index this program does not use: one that a migration set aside (it is being
    removed, piece by piece), or another program's, which its SQLite may have made by other rules than this one's."""
    unused = list(migrate.OLD_INDEXES)
    if pragma(connection, "application_id") != schema.APPLICATION_ID:
        unused += [table.removeprefix("old_") for table in migrate.OLD_INDEXES]
    return any(table in text for table in unused)


def drift(connection: Connection, mark: int) -> Iterator[Finding]:
    """Values that can't be read; messages the index lacks, entries without a message or of another text."""
    connection.text_factory = decoded
    try:
        for table in _CHECKED:
            yield from _rows(connection, table, mark)
    finally:
        connection.text_factory = str
    for (message_id,) in connection.execute(_MISSING, (mark,)):
        yield finding("fts-missing", f"message {message_id}", "is not in the full-text index")
    for (message_id,) in connection.execute(_EXTRA):
        yield finding("fts-extra", f"message {message_id}", "is in the full-text index but not in the store")


class Undecodable(bytes):
    """The bytes of a text that is no UTF-8."""


def decoded(raw: bytes) -> str | Undecodable:
    """The text_factory of a connection that reads damaged text, too."""
    return raw.decode() if is_text(raw, "strict") else Undecodable(raw)


def is_text(value: bytes, errors: str) -> bool:
    """Whether bytes are UTF-8, with "surrogatepass" also of lone surrogates."""
    try:
        value.decode("utf-8", errors)
    except UnicodeDecodeError:
        return False
    return True


def is_lone(value: Any) -> bool:
    """Whether a value is text with lone surrogates, which is stored as a BLOB, and only then."""
    return type(value) is bytes and not is_text(value, "strict") and is_text(value, "surrogatepass")


def _rows(connection: Connection, table: str, mark: int) -> Iterator[Finding]:
    """Damaged values of a table (one flipped bit can change a type); of messages, also index entries of another text."""
    kinds = {str(row[1]): str(row[2]).upper() for row in connection.execute(f"PRAGMA main.table_info({table})")}
    if not kinds:
        return  # it is made when it is needed
    columns, joined = ", ".join(f"t.{name}" for name in kinds), ""
    if table == "messages":
        columns += ", i.crc, EXISTS (SELECT 1 FROM changed_messages c WHERE c.id = t.id)"
        joined = " LEFT JOIN indexed_texts i ON i.id = t.id"
        indexed = itemgetter(*(list(kinds).index(name) for name in IndexedRow._fields))
    sound: set[tuple[type, ...]] = set()  # few combinations of types occur
    for row in connection.execute(f"SELECT {columns} FROM main.{table} t NOT INDEXED{joined}"):
        if (types := tuple(map(type, row))) not in sound:
            damaged = [
                name
                for (name, kind), value in zip(kinds.items(), row)
                if type(value) not in _TYPES.get(kind, (type(value),)) and not (kind == "TEXT" and is_lone(value))
            ]
            key = row[0].decode("utf-8", "replace") if isinstance(row[0], bytes) else row[0]
            for name in damaged:
                yield finding("damaged-row", f"{table.removesuffix('s')} {key}", f"{name} is damaged")
            if damaged:
                continue
            sound.update([types] if bytes not in types else [])
        if table == "messages":
            yield from _message(IndexedRow._make(indexed(row)), mark, *row[-2:])


def _message(row: IndexedRow, mark: int, crc: int | None, was_changed: bool) -> Iterator[Finding]:
    """A text that can't be unpacked or parsed, or an index entry that was made of another text."""
    if (damage := codec.text_damage(*row[1:4])) is not None:
        yield finding("damaged-text", f"message {row.id}", damage)
    elif row.id <= mark and crc != text_crc(row):
        if crc is None or was_changed:
            yield finding("fts-stale", f"message {row.id}", "the full-text index has another text")
        else:  # no program changed it
            yield finding("damaged-text", f"message {row.id}", "its text is not the one that was stored")


_PATIENCE = 15.0  # seconds to wait for the write lock
Later = list[tuple[str, dict[str, Any]]]  # rows, by table
_DERIVED = ("words", "indexed_texts", "schema_version", "changed_messages")
_NOT_COPIED = ("sqlite_", "messages_fts", "old_messages_fts")  # what names begin with
_TABLES = (  # and their indexes after them, without the shadow tables of virtual ones
    "SELECT type, tbl_name, sql FROM sqlite_master WHERE type IN ('table', 'index') AND sql > '' AND name NOT IN"
    " (SELECT name FROM pragma_table_list WHERE type = 'shadow') ORDER BY type = 'index'"
)
_LONG = ("sessions", "messages", "audit")  # tables that are read on behind a damaged page
_GIVE_UP = 100_000  # rows that can't be read one after the other
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
            connection = driver.connect(path, key=driver.key_of(path), busy=_PATIENCE)
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
        connection = driver.connect(damaged, key=driver.key_of(damaged), read_only=True)
        connection.execute("PRAGMA cell_size_check=ON")
        connection.text_factory = decoded  # text that is no UTF-8 must not end the reading
        tables = connection.execute(_TABLES).fetchall()
    except driver.Error:
        return 0, later
    with engine.write() as tx:
        for kind, table, sql in tables:
            if not isinstance(table, str) or table in _DERIVED or table.startswith(_NOT_COPIED):
                continue
            with suppress(*driver.Error):  # it is there; or a damaged definition, or a module that is not here
                tx.run(str(sql))
            known = set(migrate.live_columns(tx.connection, table)) if kind == "table" else ()
            for row, is_whole in _rows_of(connection, table) if known else ():
                if table == "state_meta" and row.get("key") in _OURS_ONLY:
                    continue
                if table == "sessions" and not isinstance(row["id"], str):
                    continue  # without its id, it can't be named; its transcript has it
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
    """The rows of a table that can be read, each with whether all its values are whole.

    Where a page is damaged, reading goes on behind the last row, one number at a time, until a row can be read again.
    """
    try:
        found = connection.execute(f"PRAGMA table_info({_quoted(table)})").fetchall()
        kinds = {str(row[1]): (str(row[2]).upper(), bool(row[3])) for row in found}
    except driver.Error:
        return
    key, where = ("rowid", "rowid > ? ORDER BY rowid") if table in _LONG else ("0", "? IS NOT NULL")
    sql = f"SELECT {key}, {', '.join(map(_quoted, kinds))} FROM {_quoted(table)} NOT INDEXED WHERE {where}"
    last, failed = -(1 << 62), 0
    while kinds and failed < _GIVE_UP:
        try:
            for row in connection.execute(sql, (last,)):
                last, failed = row[0], 0
                yield _readable(kinds, row[1:])
            return
        except driver.Error:
            last, failed = max(last, 0) + 1, failed + 1 if table in _LONG else _GIVE_UP


def _readable(kinds: dict[str, tuple[str, bool]], row: Any) -> tuple[dict[str, Any], bool]:
    """The readable part of each value of a row, and whether that is all."""
    values, is_whole = dict[str, Any](), True
    for (name, (kind, required)), value in zip(kinds.items(), row, strict=True):
        left = value
        if isinstance(value, bytes) and (kind == "TEXT" or isinstance(value, Undecodable)) and not is_lone(value):
            left = value.decode("utf-8", "replace")  # a BLOB with valid text has lost its type alone
            is_whole = is_whole and (kind != "TEXT" or left.encode() == value)
        if kind in ("INTEGER", "REAL") and isinstance(left, bytes | str):
            left, is_whole = codec.number(left, kind), False
        elif kind == "TEXT" and isinstance(left, int | float):
            left, is_whole = None if name == "id" else str(left), False
        values[name] = 0 if left is None and required and kind != "TEXT" else left
    if codec.text_damage("", values.get("content_rest"), None) is not None:
        values["content"], values["content_rest"], is_whole = (values["content"] or "") + codec.DAMAGED, None, False
    if codec.text_damage(*(values.get(name) for name in ("content", "content_rest", "content_format"))) is not None:
        values["content_format"], is_whole = None, False
    return values, is_whole
