"""Checks the file itself and that the index agrees with the messages, and salvages rows of a damaged file.

The index holds no text; beside it lies a checksum of what each entry was made of (`indexed_texts`). message_check.py
compares each message with that; entries of older files that have no checksum are compared word by word (compare_index).
"""

from __future__ import annotations

import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import apsw

from hermes.home import has_key_file, key_file
from hermes.store.engines.base import Progress, finding
from hermes.store.engines.sqlite import locks, migrate, schema, value_check
from hermes.store.engines.sqlite.fulltext import SqliteFullText
from hermes.store.engines.sqlite.word_table import COLUMNS, IndexedRow, document
from hermes.store.index_text import index_text

if TYPE_CHECKING:
    from hermes.store.rows import Finding

_STEPS = 20_000  # of SQLite's machine, between two calls of `progress`
_STEPS_A_PAGE = 200  # as many as a page of a usual store takes to check, about


def corruption(connection: apsw.Connection, progress: Progress | None = None) -> list[Finding]:
    """What SQLite itself finds wrong with the file."""
    if progress is not None:
        progress("file", 0, 1)
    inside = connection.in_transaction
    try:
        if not inside:
            connection.execute("BEGIN")
        _look_anew(connection)
        with _told(connection, progress):
            found = [str(row[0]) for row in connection.execute("PRAGMA integrity_check(20)")]
    except apsw.Error as error:
        return [finding("corruption", "file", str(error))]
    finally:
        if not inside and connection.in_transaction:
            connection.execute("ROLLBACK")
    wrong = [text for text in found if text != "ok" and not _about_another_index(connection, text)]
    return [finding("corruption", "file", text) for text in wrong] + _header(connection)


@contextmanager
def _told(connection: apsw.Connection, progress: Progress | None) -> Iterator[None]:
    """Call `progress` while SQLite works. The total is not known: the share grows ever more slowly."""
    if progress is None:
        yield
        return
    calls, about = 0, max(1, int(str(connection.pragma("page_count"))) * _STEPS_A_PAGE // _STEPS)

    def tell() -> bool:
        nonlocal calls
        calls += 1
        progress("file", calls, calls + about)
        return False

    connection.set_progress_handler(tell, _STEPS)
    try:
        yield
    finally:
        connection.set_progress_handler(None)


def _look_anew(connection: apsw.Connection) -> None:
    """Let FTS5 see what other connections merged meanwhile: it reloads on a query, not on a check."""
    for table in ("messages_fts", "messages_fts_trigram"):
        try:
            connection.execute(f"SELECT rowid FROM {table} WHERE {table} MATCH 'anything' LIMIT 1").fetchall()
        except apsw.Error:
            continue  # it is missing or damaged; the check itself reports that


def _about_another_index(connection: apsw.Connection, finding: str) -> bool:
    """Whether a finding is about a full-text index this program does not use: one that a migration set aside (it is being
    removed, piece by piece), or another program's, which its SQLite may have made by other rules than this one's."""
    unused = list(migrate.OLD_INDEXES)
    if connection.pragma("application_id") != schema.APPLICATION_ID:
        unused += [table.removeprefix("old_") for table in migrate.OLD_INDEXES]
    return any(finding.endswith(f"main.{table}") for table in unused)


def _header(connection: apsw.Connection) -> list[Finding]:
    """Check the two header bytes with the format versions: SQLite treats unknown ones as read-only."""
    try:  # through SQLite: opening the file separately would drop its locks
        start = connection.read("main", 0, 0, 20)[1]
    except apsw.Error:
        return []
    if len(start) == 20 and (start[18], start[19]) not in ((1, 1), (2, 2)):
        return [finding("corruption", "file", "the header's format versions are invalid")]
    return []


def drift(connection: apsw.Connection, fulltext: SqliteFullText, tx: Any) -> Iterator[Finding]:
    """Unreadable values outside of messages; messages the index lacks, entries without a message."""
    for damage in value_check.damaged(connection):
        yield finding("damaged-row", damage.name, f"{damage.column} {damage.detail}")
    mark = fulltext.mark(tx)
    yield from _entries(connection, mark)
    yield from index_totals(connection)


def _entries(connection: apsw.Connection, mark: int) -> Iterator[Finding]:
    """Messages up to the mark without an entry in the index, and entries without a message: counted, and named if any."""
    entries, both, below = connection.execute(
        "SELECT (SELECT count(*) FROM messages_fts_docsize), count(*), coalesce(sum(m.id <= ?), 0)"
        " FROM messages m JOIN messages_fts_docsize d ON d.id = m.id",
        (mark,),
    ).fetchone() or (0, 0, 0)
    total, above = connection.execute(
        "SELECT (SELECT count(*) FROM messages), (SELECT count(*) FROM messages WHERE id > ?)", (mark,)
    ).fetchone() or (0, 0)
    if below != total - above:
        for (message_id,) in connection.execute(
            "SELECT m.id FROM messages m LEFT JOIN messages_fts_docsize d ON d.id = m.id WHERE m.id <= ? AND d.id IS NULL",
            (mark,),
        ):
            yield finding("fts-missing", f"message {message_id}", "is not in the full-text index")
    if entries != both:
        for (message_id,) in connection.execute(
            "SELECT d.id FROM messages_fts_docsize d LEFT JOIN messages m ON m.id = d.id WHERE m.id IS NULL"
        ):
            yield finding("fts-extra", f"message {message_id}", "is in the full-text index but not in the store")


def reset_index(connection: apsw.Connection) -> None:
    """Empty the full-text index (inside a write transaction); catching up fills it again."""
    for table in ("messages_fts", "messages_fts_trigram"):
        try:
            connection.execute(f"DROP TABLE IF EXISTS {table}")
        except apsw.Error:  # too damaged to be dropped: drop its tables one by one
            for part in ("data", "idx", "docsize", "config", "content"):
                connection.execute(f"DROP TABLE IF EXISTS {table}_{part}")
            connection.execute("PRAGMA writable_schema=ON")
            connection.execute("DELETE FROM sqlite_master WHERE name = ?", (table,))
            connection.execute("PRAGMA writable_schema=RESET")
    connection.execute("DELETE FROM words")
    connection.execute("DELETE FROM indexed_texts")
    migrate.make_index(connection)
    marks = (migrate.META_INDEXED, migrate.META_WORDS)
    connection.execute("UPDATE state_meta SET value = '0' WHERE key IN (?, ?)", marks)


# ------------------------------------------------------------------------------------------------ salvage


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


def read_what_can_be_read(path: Path, take: Callable[[str, dict[str, Any]], None]) -> None:
    """Call `take(table, row)` with every row of a damaged database that can still be read."""
    try:
        connection = locks.connect(str(path), flags=apsw.SQLITE_OPEN_READONLY)
        connection.execute("PRAGMA cell_size_check=ON")
    except apsw.Error:
        return
    for table in ("system_prompts", "sessions", "messages", "session_refs", "session_rewinds", "session_tags",
                  "session_members", "session_events", "attachments", "leases", "audit",
                  "state_meta", "changed_messages"):  # fmt: skip
        for row in _rows_of(connection, table):
            take(table, row)
    connection.close()
    locks.tidy()


def _rows_of(connection: apsw.Connection, table: str) -> Iterator[dict[str, Any]]:
    try:
        names = [str(name) for _, name, *_ in connection.execute(f"PRAGMA table_info({table})")]
    except apsw.Error:
        return
    if not names:
        return
    # Text is read as bytes with its type: invalid UTF-8 must not end the reading.
    columns = ", ".join(f"typeof({n}), CASE typeof({n}) WHEN 'text' THEN CAST({n} AS BLOB) ELSE {n} END" for n in names)
    by_rowid = table in ("sessions", "messages", "audit")
    seen: set[Any] = set()
    columns = f"rowid, {columns}" if by_rowid else f"0, {columns}"
    for order in ("ASC", "DESC") if by_rowid else ("",):
        tail = f" ORDER BY rowid {order}" if by_rowid else ""
        try:
            for row in connection.execute(f"SELECT {columns} FROM {table} NOT INDEXED{tail}"):
                if by_rowid and row[0] in seen:
                    continue
                seen.add(row[0])
                yield _readable(names, row)
            return
        except apsw.Error:
            continue
    if by_rowid and seen:  # continue in the middle, row by row
        for rowid in range(min(seen), max(seen) + 1):
            if rowid in seen:
                continue
            try:
                found = connection.execute(f"SELECT {columns} FROM {table} WHERE rowid = ?", (rowid,)).fetchone()
            except apsw.Error:
                continue
            if found is not None:
                yield _readable(names, found)


def _readable(names: list[str], row: Any) -> dict[str, Any]:
    """A row of a rowid, and of each column its type and its value."""
    _, *pairs = row
    values = {}
    for name, kind, value in zip(names, pairs[::2], pairs[1::2], strict=True):
        values[name] = value.decode("utf-8", "replace") if kind == "text" else value
    return values


# ----------------------------------------------------------------------------------------------------
# Does the full-text index hold the words of its messages?
#
# The quick look compares totals that the index keeps of itself. The thorough one puts messages through the tokenizer once
# more and compares every word and its place; it reads the whole index once, whatever the words are.

_CHUNK = 500
_MASK = (1 << 64) - 1


def index_totals(connection: apsw.Connection) -> Iterator[Finding]:
    """Whether the index holds as many words as its totals say: the lengths of its messages add up to its own totals."""
    record = connection.execute("SELECT block FROM messages_fts_data WHERE id = 1").fetchone()
    if record is None or not isinstance(record[0], bytes):
        return
    rows, *says = _varints(record[0]) or [0]
    lengths = Counter(chain.from_iterable(connection.execute("SELECT sz FROM messages_fts_docsize")))  # many are equal
    count, sums = sum(lengths.values()), [0] * len(says)
    for sizes, times in lengths.items():
        for column, number in enumerate(_varints(sizes)[: len(sums)]):
            sums[column] += number * times
    if says and (count, sums) != (rows, says):
        yield finding("fts-stale", "the index", f"says {rows} messages and {says} words, and holds {count} and {sums}")


def _varints(data: bytes) -> list[int]:
    """SQLite's variable-length integers: seven bits a byte, the highest bit means that more follow."""
    if data.isascii():  # small numbers take one byte each
        return list(data)
    out, value, length = [], 0, 0
    for byte in data:
        length += 1
        if length == 9:
            value = value << 8 | byte
        else:
            value = value << 7 | byte & 0x7F
            if byte & 0x80:
                continue
        out.append(value)
        value = length = 0
    return out


def compare_index(
    connection: apsw.Connection, message_ids: Sequence[int], progress: Callable[[str, int, int], None] | None
) -> Iterator[Finding]:
    """Of these messages, those whose index entry is of another text."""
    indexed = _places(connection, "main", "messages_fts", set(message_ids))
    present = {row[0] for row in connection.execute("SELECT id FROM messages_fts_docsize").fetchall()}
    connection.execute(
        f"CREATE VIRTUAL TABLE IF NOT EXISTS temp.check_fts USING fts5({schema.FTS_COLUMNS}, content='',"
        f" contentless_delete=1, tokenize='{schema.TOKENIZER}')"
    )
    try:
        for start in range(0, len(message_ids), _CHUNK):
            some = message_ids[start : start + _CHUNK]
            _tokenize(connection, some[0], some[-1])
            fresh = _places(connection, "temp", "check_fts", None)
            for message_id in some:
                if message_id in present and indexed.get(message_id, 0) != fresh.get(message_id, 0):
                    yield finding("fts-stale", f"message {message_id}", "the full-text index has another text")
            if progress is not None:
                progress("index", start + len(some), len(message_ids))
    finally:
        connection.execute("DROP TABLE temp.check_fts")


def _tokenize(connection: apsw.Connection, first: int, last: int) -> None:
    connection.execute("INSERT INTO check_fts(check_fts) VALUES('delete-all')")
    rows = connection.execute(f"SELECT {COLUMNS} FROM messages WHERE id BETWEEN ? AND ?", (first, last)).fetchall()
    for row in map(IndexedRow._make, rows):
        text, name, calls = document(row)
        connection.execute(
            f"INSERT INTO check_fts(rowid, {schema.FTS_COLUMNS}) VALUES(?, ?, ?, ?)",
            (row.id, index_text(text), index_text(name), index_text(calls)),
        )


def _places(connection: apsw.Connection, where: str, table: str, wanted: set[int] | None) -> dict[int, int]:
    """By message, one number (a hash) of all its words and their positions."""
    connection.execute(f"CREATE VIRTUAL TABLE temp.check_words USING fts5vocab('{where}', '{table}', 'instance')")
    out: dict[int, int] = {}
    try:
        for term, message_id, column, place in connection.execute(
            "SELECT term, doc, col, offset FROM temp.check_words"
        ):
            if wanted is None or message_id in wanted:
                out[message_id] = (out.get(message_id, 0) + hash((term, column, place))) & _MASK
    finally:
        connection.execute("DROP TABLE temp.check_words")
    return out
