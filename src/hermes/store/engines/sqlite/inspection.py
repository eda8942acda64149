"""Is the file itself sound, and does the index agree with the messages? And what can be saved when it is not.

The index holds no text, so each message is put through the tokenizer once more and compared with what the index
says of it: its length in words, and that its most telling words lead to it.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apsw

from hermes.store import codec
from hermes.store.engines.sqlite import migrate, schema
from hermes.store.engines.sqlite.fulltext import SqliteFullText
from hermes.store.engines.sqlite.words import COLUMNS, document
from hermes.store.text import index_text, vocabulary

Problem = dict[str, Any]
_CHUNK = 500
_TELLING = 48  # how many words of a message are looked up


def problem(kind: str, where: str, detail: str) -> Problem:
    """One finding."""
    return {"kind": kind, "where": where, "detail": detail}


def corruption(connection: apsw.Connection) -> list[Problem]:
    """What SQLite itself finds wrong with the file."""
    inside = connection.in_transaction
    try:
        if not inside:
            connection.execute("BEGIN")
        _look_anew(connection)
        found = [str(row[0]) for row in connection.execute("PRAGMA integrity_check(20)")]
    except apsw.Error as error:
        return [problem("corruption", "file", str(error))]
    finally:
        if not inside and connection.in_transaction:
            connection.execute("ROLLBACK")
    wrong = [text for text in found if text != "ok" and not _about_another_index(connection, text)]
    return [problem("corruption", "file", text) for text in wrong] + _header(connection)


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


def drift(connection: apsw.Connection, fulltext: SqliteFullText, tx: Any) -> Iterator[Problem]:
    """Messages the index lacks, entries without a message, entries that speak of an older text."""
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
    yield from _stale(connection, mark)


def _stale(connection: apsw.Connection, mark: int) -> Iterator[Problem]:
    connection.execute(
        f"CREATE VIRTUAL TABLE IF NOT EXISTS temp.check_fts USING fts5({schema.FTS_COLUMNS}, content='',"
        f" contentless_delete=1, tokenize='{schema.TOKENIZER}')"
    )
    last = 0
    while True:
        rows = connection.execute(
            f"SELECT {COLUMNS} FROM messages WHERE id > ? AND id <= ? ORDER BY id LIMIT ?", (last, mark, _CHUNK)
        ).fetchall()
        if not rows:
            break
        last = int(rows[-1][0])  # type: ignore[arg-type]
        yield from _stale_of(connection, rows)
    connection.execute("DROP TABLE temp.check_fts")


def _stale_of(connection: apsw.Connection, rows: list[Any]) -> Iterator[Problem]:
    connection.execute("INSERT INTO check_fts(check_fts) VALUES('delete-all')")
    telling: dict[int, str] = {}
    for row in rows:
        if not codec.is_whole(row[3]):
            yield problem("damaged-text", f"message {row[0]}", "the rest of its text can't be unpacked")
        text, name, calls = document(row)
        connection.execute(
            f"INSERT INTO check_fts(rowid, {schema.FTS_COLUMNS}) VALUES(?, ?, ?, ?)",
            (row[0], index_text(text), index_text(name), index_text(calls)),
        )
        words = sorted((w for w in vocabulary(text) if w.isalnum() and 3 < len(w) < 40), key=len)[-_TELLING:]
        telling[row[0]] = " AND ".join(f'"{word.decode()}"' for word in words)
    differing = {
        row[0]
        for row in connection.execute(
            "SELECT d.id FROM messages_fts_docsize d JOIN temp.check_fts_docsize c ON c.id = d.id WHERE c.sz <> d.sz"
        )
    }
    for message_id, words_of in telling.items():
        held = message_id not in differing
        if (
            held
            and words_of
            and connection.execute("SELECT 1 FROM messages_fts_docsize WHERE id = ?", (message_id,)).fetchone()
        ):
            match = "SELECT 1 FROM messages_fts WHERE messages_fts MATCH ? AND rowid = ?"
            held = connection.execute(match, (words_of, message_id)).fetchone() is not None
        if not held:
            yield problem("fts-stale", f"message {message_id}", "the full-text index speaks of another text")


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
        connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
        connection.execute("PRAGMA cell_size_check=ON")
    except apsw.Error:
        return
    for table in ("system_prompts", "sessions", "messages", "session_refs", "session_rewinds", "session_tags",
                  "session_members", "attachments", "leases", "audit", "state_meta"):  # fmt: skip
        for row in _rows_of(connection, table):
            take(table, row)
    connection.close()


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
