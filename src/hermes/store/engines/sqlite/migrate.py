"""Migrates any older file to the current tables, in one short transaction.

Opening must never keep a user waiting: columns are added without rewriting rows, the old full-text tables are only
renamed, and slow work (the new index, removing the old one) is done later in small pieces while every
message stays findable. A file of a newer or foreign version is never altered; temporary views let it be read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import apsw

from hermes.errors import StoreCorrupt
from hermes.store import codec
from hermes.store.engines.sqlite import schema, shared_columns
from hermes.store.index_text import plain_parts
from hermes.store.title_rules import shown_title, split_family

META_INDEXED = "fts_indexed_to"  # every message up to this id is in messages_fts
META_WORDS = "words_noted_to"  # the words of every message up to this id are in words
META_ADOPTED = "adopted_to"  # rows up to this id existed when this program adopted the file
META_CHANGES = "changes_noted_after"  # rows above this id: every change made with SQL is recorded in changed_messages
OLD_INDEXES = ("old_messages_fts", "old_messages_fts_trigram")
_SWEEP_ROWS = 256
# Content that holds parts as other programs store them (codec.FOREIGN_PARTS). Text functions end at its NUL.
HOLDS_PARTS = "substr(CAST(content AS BLOB), 1, 6) = x'006a736f6e3a'"


_OURS = {statement.split("EXISTS ")[1].split(" ")[0] for statement in schema.TABLES} | {
    "messages_fts",
    "messages_fts_trigram",
    *schema.CHANGE_TRIGGERS,
}
# This program's own changes after format 1: format number → one named function, run inside the upgrade's transaction.
OWN_MIGRATIONS: dict[int, Callable[[apsw.Connection], None]] = {}


@dataclass(frozen=True, slots=True)
class State:
    """What kind of file this is: empty, current, earlier (this program's own), old, newer or foreign-application."""

    kind: str
    version: int = 0
    journal: str = ""
    foreign_triggers: tuple[str, ...] = ()
    incomplete: bool = False  # a table or column of this format is missing
    readable: bool = True  # without stand-in views: every column exists
    shared: bool = False  # another program has added its columns since
    foreign: bool = False  # another program's file; its newer version says nothing about upgrades of this one


def inspect(connection: apsw.Connection) -> State:
    """Inspect a file without changing it."""
    application, own, journal = (
        _one(connection, f"PRAGMA {name}") for name in ("application_id", "user_version", "journal_mode")
    )
    names: dict[str, str] = dict(
        connection.execute("SELECT name, type FROM sqlite_master WHERE type IN ('table', 'trigger')").fetchall()  # type: ignore[arg-type]
    )
    if not names:
        return State("empty", journal=journal)
    if "sessions" not in names or "messages" not in names:
        return State("foreign-application", journal=journal)
    version = 1
    if "schema_version" in names:
        version = _one(connection, "SELECT max(version) FROM schema_version") or 1
    triggers = tuple(name for name, kind in names.items() if kind == "trigger" and _feeds_the_index(connection, name))
    if application == schema.APPLICATION_ID:  # ours, regardless of another program's schema_version
        if own > schema.FORMAT_VERSION:
            return State("newer", own, journal)
        return _own_state(connection, names, State("current", own, journal, triggers))
    if version > schema.SCHEMA_VERSION:
        return State("newer", version, journal, foreign=True)
    return State("old", version, journal, triggers)


def _own_state(connection: apsw.Connection, names: dict[str, str], state: State) -> State:
    columns = {name: set(live_columns(connection, name)) for name in ("sessions", "messages")}
    readable = columns["sessions"] >= set(schema.SESSION_COLUMNS) and columns["messages"] >= set(schema.MESSAGE_COLUMNS)
    return replace(
        state,
        kind="current" if state.version == schema.FORMAT_VERSION else "earlier",
        incomplete=not readable or not names.keys() >= _OURS or _has_earlier_view(connection),
        readable=readable,
        shared=shared_columns.are_there(columns["messages"], columns["sessions"])
        and shared_columns.MARKER not in names,
    )


def _has_earlier_view(connection: apsw.Connection) -> bool:
    """Whether the view of messages is older than redaction: it would show redacted messages."""
    sql = "SELECT 1 FROM sqlite_master WHERE type = 'view' AND name = 'visible_messages' AND instr(sql, ?) = 0"
    return connection.execute(sql, (schema.CARRIABLE,)).fetchone() is not None


def upgrade(connection: apsw.Connection) -> None:
    """Migrate the file to the current tables; runs inside a write transaction, so it is atomic."""
    state = inspect(connection)  # again, now under the lock: another process may have done it
    for trigger in state.foreign_triggers:
        connection.execute(f'DROP TRIGGER IF EXISTS "{trigger}"')
    if state.kind in ("current", "earlier"):
        for number in range(state.version + 1, schema.FORMAT_VERSION + 1) if state.kind == "earlier" else ():
            OWN_MIGRATIONS[number](connection)
            connection.execute(f"PRAGMA user_version={number}")
        if state.incomplete:
            _complete(connection)
        if state.shared:
            shared_columns.begin(connection)
        _place_inert_triggers(connection)
        _note_changes(connection)
        return
    for table in schema.TABLES:
        connection.execute(table)
    if state.kind == "old":
        for name, columns in (("sessions", schema.SESSION_COLUMNS), ("messages", schema.MESSAGE_COLUMNS)):
            _add_columns(connection, name, columns)
        _number_equal_titles(connection)
        _set_old_indexes_aside(connection)
        _derive(connection)
    for statement in (*schema.INDEXES, *schema.VIEWS):
        connection.execute(statement)
    make_index(connection)
    _place_inert_triggers(connection)
    _note_changes(connection)
    connection.execute("DELETE FROM schema_version")
    connection.execute("INSERT INTO schema_version(version) VALUES(?)", (schema.SCHEMA_VERSION,))
    last = _one(connection, "SELECT coalesce(max(id), 0) FROM messages")
    for key, value in ((META_INDEXED, 0), (META_WORDS, 0), (META_ADOPTED, last)):
        connection.execute("INSERT OR REPLACE INTO state_meta(key, value) VALUES(?, ?)", (key, str(value)))
    connection.execute(f"PRAGMA application_id={schema.APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version={schema.FORMAT_VERSION}")


def _feeds_the_index(connection: apsw.Connection, trigger: str) -> bool:
    """Whether a trigger writes to the full-text tables, as older programs' do; a user's own triggers are left alone."""
    row = connection.execute("SELECT sql FROM sqlite_master WHERE type = 'trigger' AND name = ?", (trigger,)).fetchone()
    return row is not None and "messages_fts" in str(row[0]).split("BEGIN", 1)[-1]


def _place_inert_triggers(connection: apsw.Connection) -> None:
    """Older programs make their index triggers `IF NOT EXISTS`; these take their names and do nothing."""
    for table in ("messages_fts", "messages_fts_trigram"):
        for event in ("insert", "delete", "update"):
            connection.execute(
                f"CREATE TRIGGER IF NOT EXISTS {table}_{event} AFTER {event.upper()} ON messages WHEN 0 BEGIN SELECT 1; END"
            )


def _note_changes(connection: apsw.Connection) -> None:
    """From now on each change of a message with SQL is recorded; earlier changes are unknown."""
    names = {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall()}
    if names >= schema.CHANGE_TRIGGERS.keys():
        return
    for statement in schema.CHANGE_TRIGGERS.values():
        connection.execute(statement)
    last = _one(connection, "SELECT coalesce(max(id), 0) FROM messages")
    if _one(connection, "SELECT 1 FROM sqlite_master WHERE name = 'sqlite_sequence'"):
        last = max(last, _one(connection, "SELECT seq FROM sqlite_sequence WHERE name = 'messages'") or 0)
    connection.execute("INSERT OR REPLACE INTO state_meta(key, value) VALUES(?, ?)", (META_CHANGES, str(last)))


def in_step(connection: apsw.Connection) -> bool:
    """Whether another program's columns are in the file, synchronised with ours."""
    sql = "SELECT 1 FROM sqlite_master WHERE type = 'trigger' AND name = ?"
    return connection.execute(sql, (shared_columns.MARKER,)).fetchone() is not None


def _complete(connection: apsw.Connection) -> None:
    """Recreate tables that were dropped; without the word list or the index, everything is indexed again."""
    names = {row[0] for row in connection.execute("SELECT name FROM sqlite_master").fetchall()}
    for name, columns in (("sessions", schema.SESSION_COLUMNS), ("messages", schema.MESSAGE_COLUMNS)):
        _add_columns(connection, name, columns)
    for view in ("visible_sessions", "visible_messages"):  # with fewer columns, or older than redaction
        connection.execute(f"DROP VIEW IF EXISTS {view}")
    for statement in (*schema.TABLES, *schema.INDEXES, *schema.VIEWS):
        connection.execute(statement)
    if not {"words", "messages_fts", "messages_fts_trigram"} <= names:
        for table in ("messages_fts", "messages_fts_trigram"):
            connection.execute(f"DROP TABLE IF EXISTS {table}")
        connection.execute("DELETE FROM words")
        connection.execute("DELETE FROM indexed_texts")
        make_index(connection)
        connection.execute("DELETE FROM state_meta WHERE key IN (?, ?)", (META_INDEXED, META_WORDS))
    if connection.execute("SELECT 1 FROM schema_version").fetchone() is None:
        connection.execute("INSERT INTO schema_version(version) VALUES(?)", (schema.SCHEMA_VERSION,))


def make_index(connection: apsw.Connection) -> None:
    """The full-text tables, empty."""
    for statement in schema.FULL_TEXT:
        connection.execute(statement)
    if _one(connection, "PRAGMA page_size") >= 8192:
        connection.execute("INSERT INTO messages_fts(messages_fts, rank) VALUES('pgsz', 8000)")
    for table, option, value in schema.FULL_TEXT_SETTINGS:
        connection.execute(f"INSERT INTO {table}({table}, rank) VALUES(?, ?)", (option, value))


def _one(connection: apsw.Connection, sql: str) -> Any:
    row = connection.execute(sql).fetchone()
    return None if row is None else row[0]


def live_columns(connection: apsw.Connection, table: str) -> list[str]:
    """The columns a table of the file itself has now."""
    return [str(name) for _, name, *_ in connection.execute(f"PRAGMA main.table_info({table})").fetchall()]


def _add_columns(connection: apsw.Connection, table: str, wanted: dict[str, str]) -> bool:
    present = set(live_columns(connection, table))
    missing = {column: kind for column, kind in wanted.items() if column not in present}
    for column, kind in missing.items():
        kind = kind.replace(" PRIMARY KEY", "").replace(" NOT NULL", "")
        connection.execute(f"ALTER TABLE {table} ADD COLUMN {column} {kind}")
    return bool(missing)


def _number_equal_titles(connection: apsw.Connection) -> None:
    """Before version 4 titles could be equal; the oldest keeps its own, the others get the next free number."""
    taken = {row[0] for row in connection.execute("SELECT title FROM sessions WHERE title IS NOT NULL").fetchall()}
    doubles = connection.execute(
        "SELECT id, title FROM sessions s WHERE title IS NOT NULL AND EXISTS (SELECT 1 FROM sessions o WHERE o.title = s.title"
        " AND (o.started_at < s.started_at OR (o.started_at = s.started_at AND o.rowid < s.rowid))) ORDER BY started_at, rowid"
    ).fetchall()
    for session_id, title in doubles:
        base, number = split_family(str(title))
        while shown_title(base, number) in taken:
            number += 1
        taken.add(shown_title(base, number))
        connection.execute("UPDATE sessions SET title = ? WHERE id = ?", (shown_title(base, number), session_id))


def _set_old_indexes_aside(connection: apsw.Connection) -> None:
    names = {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type='table'").fetchall()}
    for new in OLD_INDEXES:
        table = new.removeprefix("old_")
        if table in names:
            connection.execute(f"ALTER TABLE {table} RENAME TO {new}")


def has_old_index(connection: apsw.Connection) -> bool:
    """Whether a part of an old index still has to be removed."""
    sql = f"SELECT 1 FROM sqlite_master WHERE name IN ({', '.join('?' * len(OLD_INDEXES))})"
    return connection.execute(sql, OLD_INDEXES).fetchone() is not None


def sweep(connection: apsw.Connection) -> bool:
    """Remove a bounded piece of an old index; returns whether there may be more."""
    for table in OLD_INDEXES:
        found = connection.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (table,)).fetchone()
        if not found:
            continue
        for part, key in (("data", "id"), ("content", "id"), ("docsize", "id")):
            shadow = f"{table}_{part}"
            if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (shadow,)).fetchone():
                continue
            # Rows 1 and 10 of _data are the index's own header: the table must stay readable until it is dropped.
            keep = "WHERE id > 10" if part == "data" else ""
            connection.execute(
                f"DELETE FROM {shadow} WHERE {key} IN (SELECT {key} FROM {shadow} {keep} LIMIT {_SWEEP_ROWS})"
            )
            if connection.changes():
                return True
        connection.execute(f"DROP TABLE {table}")
        return True
    return False


def add_functions(connection: apsw.Connection) -> None:
    """What the statements of this module need: the first words of a message, whichever program stored it."""

    def beginning(content: Any) -> str | None:
        try:
            value = codec.content_value(codec.restored(content), None)
        except StoreCorrupt:
            return None
        text = plain_parts(value) if isinstance(value, (list, dict)) else None if value is None else str(value)
        return None if text is None else text[:400].encode("utf-8", "replace").decode()

    connection.create_scalar_function("hermes_beginning", beginning, 1, deterministic=True)  # type: ignore[arg-type]


def _derive(connection: apsw.Connection) -> None:
    """Fill this program's columns of the session row: last activity, preview, title family."""
    connection.execute(
        "UPDATE sessions SET last_active = (SELECT max(timestamp) FROM messages m WHERE m.session_id = sessions.id),"
        " preview = (SELECT hermes_beginning(content) FROM messages m WHERE m.session_id = sessions.id AND m.role = 'user'"
        " AND m.content IS NOT NULL ORDER BY m.id LIMIT 1), title_seen = title"
    )
    for session_id, title in connection.execute("SELECT id, title FROM sessions WHERE title IS NOT NULL").fetchall():
        base, number = split_family(str(title))
        connection.execute("UPDATE sessions SET title_base = ?, title_no = ? WHERE id = ?", (base, number, session_id))


# -------------------------------------------------------------------------------- reading what may not be altered

_COMPUTED = {
    "last_active": "(SELECT max(timestamp) FROM main.messages m WHERE m.session_id = s.id)",
    "preview": "(SELECT hermes_beginning(content) FROM main.messages m WHERE m.session_id = s.id AND m.role = 'user'"
    " AND m.content IS NOT NULL ORDER BY m.id LIMIT 1)",
    "title_base": "hermes_title_base(s.title)",
    "title_no": "hermes_title_no(s.title)",
    "title_seen": "s.title",
}


def stand_in(connection: apsw.Connection) -> None:
    """Temporary views and empty tables that make a file of another version look like the current one."""
    for number, name in enumerate(("hermes_title_base", "hermes_title_no")):
        connection.create_scalar_function(name, lambda title, n=number: title and split_family(title)[n], 1)  # type: ignore[misc, arg-type]
    for name, wanted, alias in (("sessions", schema.SESSION_COLUMNS, "s"), ("messages", schema.MESSAGE_COLUMNS, "m")):
        present = set(live_columns(connection, name))
        theirs = shared_columns.computed(name, present)
        columns = []
        for column, kind in wanted.items():
            if column in present and column not in theirs:
                columns.append(f"{alias}.{column} AS {column}")
            else:
                value = theirs.get(column) or _COMPUTED.get(column, "0" if "DEFAULT 0" in kind else "NULL")
                if "s.title" in value and "title" not in present:
                    value = "NULL"
                columns.append(f"{value} AS {column}")
        connection.execute(
            f"CREATE TEMP VIEW IF NOT EXISTS {name} AS SELECT {', '.join(columns)} FROM main.{name} {alias}"
        )
    names = {row[0] for row in connection.execute("SELECT name FROM main.sqlite_master WHERE type='table'").fetchall()}
    if "session_rewinds" not in names:
        connection.execute(f"CREATE TEMP VIEW IF NOT EXISTS session_rewinds AS {shared_columns.REWINDS}")
    for statement in schema.TABLES:
        name = statement.split("EXISTS ")[1].split(" ")[0]
        if name not in names and name != "session_rewinds":
            connection.execute(statement.replace("CREATE TABLE IF NOT EXISTS ", "CREATE TEMP TABLE IF NOT EXISTS "))
