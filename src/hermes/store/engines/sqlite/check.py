"""Checks the file itself, that every value can be read, and that the index agrees with the messages.

SQLite checks the structure of pages, not their values. The index holds no text; beside it lies a checksum of what each entry
was made of (`indexed_texts`). Every row is read once.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hermes.store.engines.base import Progress, finding
from hermes.store.engines.sqlite import connection as driver
from hermes.store.engines.sqlite import migrate, schema
from hermes.store.engines.sqlite.connection import Connection, beginning, pragma
from hermes.store.engines.sqlite.fulltext import text_crc
from hermes.store.engines.unindexed import IndexedRow
from hermes.store.records import codec

if TYPE_CHECKING:
    from hermes.store.records.rows import Finding

_STEPS = 20_000  # of SQLite's machine, between two calls of `progress`
_CHUNK = 500  # messages between two calls of `progress`
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


def corruption(connection: Connection, progress: Progress | None = None) -> list[Finding]:
    """Have SQLite check the file; its findings."""
    inside, calls = connection.in_transaction, count(1)
    if progress is not None:  # the total is not known: the share grows ever more slowly
        connection.set_progress_handler(lambda: bool(progress("file", n := next(calls), n + 100)), _STEPS)
    try:
        if not inside:
            connection.execute("BEGIN")
        _look_anew(connection)
        found = [str(row[0]) for row in connection.execute("PRAGMA integrity_check(20)")]
    except driver.Error as error:
        return [finding("corruption", "file", str(error))]
    finally:
        connection.set_progress_handler(None, 1)
        if not inside and connection.in_transaction:
            connection.execute("ROLLBACK")
    wrong = [text for text in found if text != "ok" and not _about_another_index(connection, text)]
    return [finding("corruption", "file", text) for text in (*wrong, *_header(connection))]


def _header(connection: Connection) -> list[str]:
    """Whether the two header bytes with the format versions are wrong: SQLite treats unknown ones as read-only."""
    start = beginning(Path(connection.execute("PRAGMA database_list").fetchone()[2]), 20)
    plain = start.startswith(b"SQLite format 3")
    return ["the header's format versions are invalid"] if plain and start[18:] not in (b"\1\1", b"\2\2") else []


def _look_anew(connection: Connection) -> None:
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


def drift(connection: Connection, mark: int, progress: Progress | None) -> Iterator[Finding]:
    """Values that can't be read; messages the index lacks, entries without a message or of another text."""
    connection.text_factory = decoded
    try:
        for table in _CHECKED:
            yield from _rows(connection, table, mark, progress)
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


def _rows(connection: Connection, table: str, mark: int, progress: Progress | None) -> Iterator[Finding]:
    """Damaged values of a table (one flipped bit can change a type); of messages, also index entries of another text."""
    kinds = {str(row[1]): str(row[2]).upper() for row in connection.execute(f"PRAGMA main.table_info({table})")}
    if not kinds:
        return  # it is made when it is needed
    columns, joined, total = ", ".join(f"t.{name}" for name in kinds), "", 0
    if table == "messages":
        columns += ", i.crc, EXISTS (SELECT 1 FROM changed_messages c WHERE c.id = t.id)"
        joined = " LEFT JOIN indexed_texts i ON i.id = t.id"
        total = connection.execute("SELECT count(*) FROM messages").fetchone()[0]
        indexed = itemgetter(*(list(kinds).index(name) for name in IndexedRow._fields))
    sound: set[tuple[type, ...]] = set()  # few combinations of types occur
    for done, row in enumerate(connection.execute(f"SELECT {columns} FROM main.{table} t NOT INDEXED{joined}"), 1):
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
            if progress is not None and done % _CHUNK == 0:
                progress("messages", done, max(done, total))


def _message(row: IndexedRow, mark: int, crc: int | None, was_changed: bool) -> Iterator[Finding]:
    """A text that can't be unpacked or parsed, or an index entry that was made of another text."""
    if (damage := codec.text_damage(*row[1:4])) is not None:
        yield finding("damaged-text", f"message {row.id}", damage)
    elif row.id <= mark and crc != text_crc(row):
        if crc is None or was_changed:
            yield finding("fts-stale", f"message {row.id}", "the full-text index has another text")
        else:  # no program changed it
            yield finding("damaged-text", f"message {row.id}", "its text is not the one that was stored")
