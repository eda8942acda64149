"""Copies every readable row of a damaged file into a new one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import apsw

from hermes.store import codec
from hermes.store.engines.sqlite import migrate, schema
from hermes.store.engines.sqlite.engine import SqliteEngine
from hermes.store.engines.sqlite.inspection import read_what_can_be_read

_OURS_ONLY = frozenset((migrate.META_INDEXED, migrate.META_WORDS, migrate.META_ADOPTED))


def copy_rows(engine: SqliteEngine, damaged: Path) -> int:
    """Copy every readable row; returns how many."""
    count = 0
    with engine.write() as tx:
        for statement in schema.EVENTS:
            tx.run(statement)
        known = {
            table: set(migrate.live_columns(tx.connection, table))
            for table in (statement.split("EXISTS ")[1].split(" ")[0] for statement in (*schema.TABLES, *schema.EVENTS))
        }

        def take(table: str, row: dict[str, Any]) -> None:
            nonlocal count
            if table == "state_meta" and row.get("key") in _OURS_ONLY:
                return
            if table == "state_meta" and row.get("key") == migrate.META_CHANGES:
                tx.run("UPDATE state_meta SET value = ? WHERE key = ?", (row["value"], migrate.META_CHANGES))
                return
            if table == "sessions" and row.get("title") is not None:
                clash = tx.value("SELECT 1 FROM sessions WHERE title = ?", (row["title"],))
                row["title"] = None if clash else row["title"]
                row.setdefault("title_seen", row["title"])
            if table == "messages" and not codec.is_whole(row.get("content_rest")):
                row["content"], row["content_rest"] = (row["content"] or "") + codec.DAMAGED, None
            names = [name for name in row if name in known[table]]
            sql = f"INSERT OR IGNORE INTO {table}({', '.join(names)}) VALUES({', '.join('?' * len(names))})"
            try:
                count += tx.run(sql, [row[name] for name in names])
            except apsw.Error:
                pass  # a row with invalid values: its transcript has it

        read_what_can_be_read(damaged, take)
    return count
