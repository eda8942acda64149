"""Is the file itself sound, and does the index agree with the messages? And what can be saved when it is not.

The index holds no text; beside it lies a checksum of what each entry was made of (`indexed_texts`). Each message is read
once and compared with that; entries of older files that have no checksum are compared word by word (index_check.py).
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw

from hermes.errors import StoreCorrupt
from hermes.store import codec
from hermes.store.engines.sqlite import index_check, locks, migrate, schema, values
from hermes.store.engines.sqlite.fulltext import SqliteFullText
from hermes.store.engines.sqlite.words import COLUMNS, text_crc

Problem = dict[str, Any]
Progress = Callable[[str, int, int], None]
_CHUNK = 500
_STEPS = 20_000  # of SQLite's machine, between two calls of `progress`
_STEPS_A_PAGE = 200  # as many as a page of a usual store takes to check, about


def problem(kind: str, where: str, detail: str) -> Problem:
    """One finding."""
    return {"kind": kind, "where": where, "detail": detail}


def corruption(connection: apsw.Connection, progress: Progress | None = None) -> list[Problem]:
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
        return [problem("corruption", "file", str(error))]
    finally:
        if not inside and connection.in_transaction:
            connection.execute("ROLLBACK")
    wrong = [text for text in found if text != "ok" and not _about_another_index(connection, text)]
    return [problem("corruption", "file", text) for text in wrong] + _header(connection)


@contextmanager
def _told(connection: apsw.Connection, progress: Progress | None) -> Iterator[None]:
    """Tell `progress` while SQLite works. How much there is to do is not known: the share grows ever more slowly."""
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
    """Let FTS5 see what other connections merged meanwhile: it looks when it is asked something, not when it is checked."""
    for table in ("messages_fts", "messages_fts_trigram"):
        try:
            connection.execute(f"SELECT rowid FROM {table} WHERE {table} MATCH 'anything' LIMIT 1").fetchall()
        except apsw.Error:
            continue  # it is missing or damaged; the check itself says so


def _about_another_index(connection: apsw.Connection, finding: str) -> bool:
    """Whether a finding is about a full-text index this program does not use: one that a migration set aside (it is being
    cleared away, piece by piece), or another program's, which its SQLite may have made by other rules than this one's."""
    unused = list(migrate.OLD_INDEXES)
    if connection.pragma("application_id") != schema.APPLICATION_ID:
        unused += [table.removeprefix("old_") for table in migrate.OLD_INDEXES]
    return any(finding.endswith(f"main.{table}") for table in unused)


def _header(connection: apsw.Connection) -> list[Problem]:
    """The two bytes that say how a file may be read and written: SQLite takes odd ones for read-only."""
    try:  # through SQLite: opening the file beside it would drop its locks
        start = connection.read("main", 0, 0, 20)[1]
    except apsw.Error:
        return []
    if len(start) == 20 and (start[18], start[19]) not in ((1, 1), (2, 2)):
        return [problem("corruption", "file", "the header's format versions make no sense")]
    return []


def drift(
    connection: apsw.Connection, fulltext: SqliteFullText, tx: Any, progress: Progress | None = None
) -> Iterator[Problem]:
    """Values that can't be read; messages the index lacks, entries without a message, entries of an older text."""
    for damage in values.damaged(connection):
        yield problem("damaged-row", damage.name, f"{damage.column} {damage.detail}")
    mark = fulltext.mark(tx)
    for (message_id,) in connection.execute(
        "SELECT m.id FROM messages m LEFT JOIN messages_fts_docsize d ON d.id = m.id WHERE m.id <= ? AND d.id IS NULL",
        (mark,),
    ):
        yield problem("fts-missing", f"message {message_id}", "is not in the full-text index")
    for (message_id,) in connection.execute(
        "SELECT d.id FROM messages_fts_docsize d LEFT JOIN messages m ON m.id = d.id WHERE m.id IS NULL"
    ):
        yield problem("fts-extra", f"message {message_id}", "is in the full-text index but not in the store")
    yield from index_check.totals(connection)
    yield from _messages(connection, mark, progress)


def _messages(connection: apsw.Connection, mark: int, progress: Progress | None) -> Iterator[Problem]:
    """Every message once: can it be read, and is it what the index was made of?"""
    noted = "(SELECT crc FROM indexed_texts i WHERE i.id = m.id)"
    if connection.execute("SELECT 1 FROM main.sqlite_master WHERE name = 'indexed_texts'").fetchone() is None:
        noted = "NULL"
    one = values.table(connection, "messages")
    others = ", ".join(f"m.{name}" for name in one.texts if name not in COLUMNS.split(", ")) if one else "NULL"
    columns = ", ".join(f"m.{name}" for name in COLUMNS.split(", "))
    sql = f"SELECT {columns}, {noted}, {others} FROM messages m WHERE m.id > ? ORDER BY m.id LIMIT ?"
    last, done = 0, 0
    total = int(connection.execute("SELECT count(*) FROM messages").fetchone()[0])  # type: ignore[index]
    unknown: list[Any] = []
    while True:
        try:
            rows = connection.execute(sql, (last, _CHUNK)).fetchall()
        except UnicodeDecodeError:
            rows = yield from _one_by_one(connection, sql, last)
        if not rows:
            break
        for row in rows:
            yield from _broken(row)
            if row[0] <= mark:  # type: ignore[operator]
                if row[9] is None:
                    unknown.append(row[0])
                elif row[9] != text_crc(row):
                    yield problem("fts-stale", f"message {row[0]}", "the full-text index speaks of another text")
        last, done = int(rows[-1][0]), done + len(rows)  # type: ignore[arg-type]
        if progress is not None:
            progress("messages", done, total)
    if unknown:
        yield from index_check.compare(connection, unknown, progress)


def _one_by_one(connection: apsw.Connection, sql: str, last: int) -> Generator[Problem, None, list[Any]]:
    """A piece of the table in which some text is no text: the rows of it that can be read."""
    rows: list[Any] = []
    ids = connection.execute("SELECT id FROM messages WHERE id > ? ORDER BY id LIMIT ?", (last, _CHUNK)).fetchall()
    table = values.table(connection, "messages")
    for (message_id,) in ids:
        try:
            rows += connection.execute(sql, (int(message_id) - 1, 1)).fetchall()  # type: ignore[arg-type]
        except UnicodeDecodeError:
            rows.append((message_id, *(None,) * 8, 0))
            for damage in values.unreadable(connection, table, f"id = {message_id}") if table else ():
                yield problem("damaged-row", damage.name, f"{damage.column} {damage.detail}")
    return rows


def _broken(row: Any) -> Iterator[Problem]:
    """What of a message's text can't be read."""
    where = f"message {row[0]}"
    try:
        text = codec.joined(row[2], row[3])
    except StoreCorrupt:
        what = "the rest of its text can't be unpacked" if row[3] is not None else "its text can't be read"
        yield problem("damaged-text", where, what)
        return
    if row[4] not in (None, "json"):
        yield problem("damaged-text", where, f"its content has an unknown format ({row[4]!r})")
    elif row[4] == "json" and isinstance(codec.from_json(text), (str, int, float, type(None))):
        yield problem("damaged-text", where, "its content is no JSON any more")
    for value in row[10:]:
        if type(value) is bytes:
            try:
                codec.restored(value)
            except StoreCorrupt:
                yield problem("damaged-row", where, "a text of it is no text any more (not UTF-8)")


def reset_index(connection: apsw.Connection) -> None:
    """Start the full-text index anew (inside a write transaction); catching up fills it."""
    for table in ("messages_fts", "messages_fts_trigram"):
        try:
            connection.execute(f"DROP TABLE IF EXISTS {table}")
        except apsw.Error:  # too damaged to be dropped: its parts go one by one
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


def set_aside(path: Path) -> Path:
    """Copy a database and what lies beside it before anything is mended; where the copy is."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    copy = path.with_name(f"{path.name}.before-repair-{stamp}")
    number = 1
    while copy.exists():
        number += 1
        copy = path.with_name(f"{path.name}.before-repair-{stamp}-{number}")
    for suffix in ("", "-wal"):
        source = path.with_name(path.name + suffix)
        if source.exists():
            shutil.copy2(source, copy.with_name(copy.name + suffix))
            os.chmod(copy.with_name(copy.name + suffix), 0o600)
    return copy


def read_what_can_be_read(path: Path, take: Callable[[str, dict[str, Any]], None]) -> None:
    """Hand every row of a damaged database that can still be read to `take(table, row)`."""
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
        names = [str(row[1]) for row in connection.execute(f"PRAGMA table_info({table})")]
    except apsw.Error:
        return
    if not names:
        return
    # Text goes as bytes beside its type: what is no UTF-8 any more must not end the reading.
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
    if by_rowid and seen:  # in the middle, row by row
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
    values = {}
    for number, name in enumerate(names):
        kind, value = row[1 + 2 * number], row[2 + 2 * number]
        values[name] = value.decode("utf-8", "replace") if kind == "text" else value
    return values
