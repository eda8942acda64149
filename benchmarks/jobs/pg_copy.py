"""Fill an empty PostgreSQL store with COPY from a loaded SQLite store: the same rows under the same names.

The words of each message are made by the engine's own code, in several processes; the indexes are built at the end.
"""

from __future__ import annotations

import multiprocessing
import sqlite3
import time
from collections.abc import Sequence
from typing import Any

from benchmarks.jobs.common import Config, main

TABLES = (
    "sessions", "messages", "system_prompts", "session_refs", "session_rewinds", "session_tags", "session_members",
    "attachments", "state_meta",
)  # fmt: skip
CHUNK = 500
PROCESSES = 2


def pg_copy(config: Config) -> dict[str, Any]:
    import psycopg

    from hermes_state import SessionDB

    SessionDB(url=config["url"]).close()  # makes the tables
    start = time.perf_counter()
    source = sqlite3.connect(f"file:{config['from']}?mode=ro", uri=True)
    source.text_factory = bytes
    with psycopg.connect(config["url"], autocommit=True) as target:
        target.execute("SET maintenance_work_mem = '1GB'")
        indexes = target.execute(
            "SELECT indexname::text, indexdef FROM pg_indexes WHERE schemaname = current_schema() AND indexdef LIKE '%USING gin%'"
        ).fetchall()
        for name, _ in indexes:
            target.execute(f"DROP INDEX {name}".encode())
        for table in TABLES:
            _copy(source, target, table)
        copied = time.perf_counter() - start
        last = source.execute("SELECT coalesce(max(id), 0) FROM messages").fetchone()[0]
        _words(config, target, last)
        worded = time.perf_counter() - start
        target.execute("SELECT setval(pg_get_serial_sequence('messages', 'id'), %s)", (last + 1,))
        for _, definition in indexes:
            target.execute(definition.encode())
        indexed = time.perf_counter() - start
        target.execute("VACUUM (ANALYZE)")
        target.execute("CHECKPOINT")
    return {
        "messages": last,
        "rows_s": copied,
        "words_s": worded,
        "indexed_s": indexed,
        "s": time.perf_counter() - start,
    }


def _copy(source: sqlite3.Connection, target: Any, table: str) -> None:
    names = [row[1].decode() for row in source.execute(f"PRAGMA table_info({table})")]
    raw = [name == "content_rest" for name in names]
    with target.cursor().copy(f"COPY {table} ({', '.join(names)}) FROM STDIN".encode()) as copy:
        for row in source.execute(f"SELECT {', '.join(names)} FROM {table}"):
            copy.write_row(_fit(row, raw))


def _fit(row: Sequence[Any], raw: Sequence[bool]) -> list[Any]:
    from hermes.store.engines.postgres.connection import fit

    return [
        fit(value.decode("utf-8", "surrogatepass")) if isinstance(value, bytes) and not keep else value
        for value, keep in zip(row, raw, strict=True)
    ]


def _words(config: Config, target: Any, last: int) -> None:
    chunks = [(config["from"], start, start + CHUNK - 1) for start in range(1, last + 1, CHUNK)]
    words: set[bytes] = set()
    with multiprocessing.get_context("fork").Pool(PROCESSES) as pool:
        with target.cursor().copy(b"COPY message_words FROM STDIN") as copy:
            for rows, found in pool.imap(_of_chunk, chunks):
                for row in rows:
                    copy.write_row(row)
                words |= found
    from hermes.store.engines.postgres.fulltext import listed

    with target.cursor().copy(b"COPY words FROM STDIN") as copy:
        for one in sorted(set(listed(words))):
            copy.write_row((one,))


def _of_chunk(chunk: tuple[str, int, int]) -> tuple[list[tuple[Any, ...]], set[bytes]]:
    from hermes.store.engines.base import columns_of
    from hermes.store.engines.postgres.lexemes import distinct_words, entries
    from hermes.store.records import codec

    path, first, last = chunk
    rows: list[tuple[Any, ...]] = []
    words: set[bytes] = set()
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as source:
        for message_id, head, rest, form, name, calls in source.execute(
            "SELECT id, content, content_rest, content_format, tool_name, tool_calls FROM messages WHERE id BETWEEN ? AND ?",
            (first, last),
        ):
            columns = columns_of(codec.joined(head, rest), form, name, calls)
            rows += entries(message_id, columns)
            words |= distinct_words(columns)
    return rows, words


if __name__ == "__main__":
    main(pg_copy)
