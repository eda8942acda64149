"""Migrates a file of the original program (schema_version 1 to 11) to the current tables, in one short transaction.

Opening must never keep a user waiting: columns are added without rewriting rows, the old full-text tables are only
renamed, and slow work (the new index, removing the old one) is done later in small pieces while every
message stays findable. A file of a newer or foreign version is never altered; temporary views let it be read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hermes.errors import StoreCorrupt
from hermes.store.engines.base import COMPACTED
from hermes.store.engines.sqlite import connection as driver
from hermes.store.engines.sqlite import schema
from hermes.store.engines.sqlite.connection import Connection, pragma
from hermes.store.records import codec
from hermes.store.records.titles import shown_title, split_family
from hermes.store.text.index_text import plain_parts

META_INDEXED = "fts_indexed_to"  # every message up to this id is in messages_fts, and its words in words
META_FORM = "fts_form"  # how the index was made: schema.INDEX_FORM
META_ADOPTED = "adopted_to"  # rows up to this id existed when this program adopted the file
OLD_INDEXES = ("old_messages_fts", "old_messages_fts_trigram")
_SWEEP_ROWS = 256


_WIDE = {"sessions": schema.SESSION_COLUMNS, "messages": schema.MESSAGE_COLUMNS}  # the tables that gained columns
_OURS = {statement.split("EXISTS ")[1].split(" ")[0] for statement in schema.TABLES} | set(schema.CHANGE_TRIGGERS)


@dataclass(frozen=True, slots=True)
class State:
    """The kind of a file: empty, current, old (the original program's), newer or foreign-application."""

    kind: str
    version: int = 0
    foreign_triggers: tuple[str, ...] = ()
    incomplete: bool = False  # a table or column of this format is missing
    readable: bool = True  # without stand-in views: every column exists
    foreign: bool = False  # another program's file; its newer version says nothing about upgrades of this one


def inspect(connection: Connection) -> State:
    """Inspect a file without changing it."""
    application, own = pragma(connection, "application_id"), pragma(connection, "user_version")
    names = _names(connection)
    if not names:
        return State("empty")
    if "sessions" not in names or "messages" not in names:
        return State("foreign-application")
    version = 1
    if "schema_version" in names:
        version = connection.execute("SELECT max(version) FROM schema_version").fetchone()[0] or 1
    # Triggers that write to the full-text tables, as older programs' do; a user's own triggers are left alone.
    rows = connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall()
    triggers = tuple(name for name, sql in rows if "messages_fts" in str(sql).split("BEGIN", 1)[-1])
    if application == schema.APPLICATION_ID:  # ours, regardless of another program's schema_version
        if own != schema.FORMAT_VERSION:
            return State("newer", own)
        readable = all(set(live_columns(connection, name)) >= wanted.keys() for name, wanted in _WIDE.items())
        incomplete = not readable or not names >= _OURS or not _has_index(connection, names)
        return State("current", own, triggers, incomplete, readable)
    if version > schema.SCHEMA_VERSION:
        return State("newer", version, foreign=True)
    return State("old", version, triggers)


def upgrade(connection: Connection) -> None:
    """Migrate the file to the current tables; runs inside a write transaction, so it is atomic.

    A current file gets back what another program dropped; without the word list or the index, everything is indexed again.
    """
    state = inspect(connection)  # again, now under the lock: another process may have done it
    for trigger in state.foreign_triggers:
        connection.execute(f'DROP TRIGGER IF EXISTS "{trigger}"')
    if state.kind != "current" or state.incomplete:
        has_index = state.kind == "current" and _has_index(connection, _names(connection))
        for statement in schema.TABLES:
            connection.execute(statement)
        for name, columns in _WIDE.items():
            _add_columns(connection, name, columns)
        for view in ("visible_sessions", "visible_messages"):  # made when there were fewer columns
            connection.execute(f"DROP VIEW IF EXISTS {view}")
        if state.kind == "old":
            _number_equal_titles(connection)
            _set_old_indexes_aside(connection)
            _derive(connection)
        for statement in (*schema.INDEXES, *schema.VIEWS):
            connection.execute(statement)
        if not has_index:
            reset_index(connection)
        if state.kind != "current":
            connection.execute("DELETE FROM schema_version")
            connection.execute(
                "INSERT OR REPLACE INTO state_meta(key, value) SELECT ?, coalesce(max(id), 0) FROM messages",
                (META_ADOPTED,),
            )
        sql = "INSERT INTO schema_version SELECT ? WHERE NOT EXISTS (SELECT 1 FROM schema_version)"
        connection.execute(sql, (schema.SCHEMA_VERSION,))
    for statement in (*schema.CHANGE_TRIGGERS.values(), *schema.INERT_TRIGGERS):
        connection.execute(statement)
    connection.execute(f"PRAGMA application_id={schema.APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version={schema.FORMAT_VERSION}")


def _names(connection: Connection) -> set[str]:
    """The tables and triggers of the file."""
    rows = connection.execute("SELECT name FROM main.sqlite_master WHERE type IN ('table', 'trigger')").fetchall()
    return {row[0] for row in rows}


def _has_index(connection: Connection, names: set[str]) -> bool:
    """Whether there is an index made as this version makes it: only then can its entries be removed."""
    if not names >= {"words", "indexed_texts", "messages_fts", "messages_fts_trigram", "state_meta"}:
        return False
    form = connection.execute("SELECT value FROM state_meta WHERE key = ?", (META_FORM,)).fetchone()
    return form is not None and form[0] == str(schema.INDEX_FORM)


def make_index(connection: Connection) -> None:
    """The full-text tables, empty."""
    connection.execute(
        "INSERT OR REPLACE INTO state_meta(key, value) VALUES(?, ?)", (META_FORM, str(schema.INDEX_FORM))
    )
    for statement in schema.FULL_TEXT:
        connection.execute(statement)
    if pragma(connection, "page_size") >= 8192:
        connection.execute("INSERT INTO messages_fts(messages_fts, rank) VALUES('pgsz', 8000)")


def reset_index(connection: Connection) -> None:
    """Empty the full-text index (inside a write transaction); every message is then indexed again."""
    for table in ("messages_fts", "messages_fts_trigram"):
        try:
            connection.execute(f"DROP TABLE IF EXISTS {table}")
        except driver.Error:  # too damaged to be dropped: drop its tables one by one
            for part in ("data", "idx", "docsize", "config", "content"):
                connection.execute(f"DROP TABLE IF EXISTS {table}_{part}")
            connection.execute("PRAGMA writable_schema=ON")
            connection.execute("DELETE FROM sqlite_master WHERE name = ?", (table,))
            connection.execute("PRAGMA writable_schema=RESET")
    for table in ("words", "indexed_texts", "changed_messages"):
        connection.execute(f"DELETE FROM {table}")
    make_index(connection)
    connection.execute("DELETE FROM state_meta WHERE key = ?", (META_INDEXED,))


def live_columns(connection: Connection, table: str) -> list[str]:
    """The columns a table of the file itself has now."""
    rows = connection.execute("SELECT name FROM pragma_table_info(?, 'main')", (table,)).fetchall()
    return [str(name) for (name,) in rows]


def _add_columns(connection: Connection, table: str, wanted: dict[str, str]) -> None:
    present = set(live_columns(connection, table))
    for column, kind in wanted.items():
        if column not in present:
            kind = kind.replace(" PRIMARY KEY", "").replace(" NOT NULL", "")
            connection.execute(f"ALTER TABLE {table} ADD COLUMN {column} {kind}")


def _number_equal_titles(connection: Connection) -> None:
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


def _set_old_indexes_aside(connection: Connection) -> None:
    names = _names(connection)
    for new in OLD_INDEXES:
        table = new.removeprefix("old_")
        if table in names:
            connection.execute(f"ALTER TABLE {table} RENAME TO {new}")


def has_old_index(connection: Connection) -> bool:
    """Whether a part of an old index still has to be removed."""
    sql = f"SELECT 1 FROM sqlite_master WHERE name IN ({', '.join('?' * len(OLD_INDEXES))})"
    return connection.execute(sql, OLD_INDEXES).fetchone() is not None


def sweep(connection: Connection) -> bool:
    """Remove a bounded piece of an old index; returns whether there may be more."""
    names = _names(connection)
    for table in OLD_INDEXES:
        if table not in names:
            continue
        for shadow in (f"{table}_data", f"{table}_content", f"{table}_docsize"):
            # Rows 1 and 10 of _data are the index's own header: the table must stay readable until it is dropped.
            rows = f"SELECT id FROM {shadow} {'WHERE id > 10' if shadow.endswith('_data') else ''} LIMIT {_SWEEP_ROWS}"
            if shadow in names and connection.execute(f"DELETE FROM {shadow} WHERE id IN ({rows})").rowcount > 0:
                return True
        connection.execute(f"DROP TABLE {table}")
        return True
    return False


def add_functions(connection: Connection) -> None:
    """Add the SQL function that gives the first words of a message, whichever program stored it."""

    def beginning(content: Any) -> str | None:
        try:
            value = codec.content_value(codec.restored(content), None)
        except StoreCorrupt:
            return None
        text = plain_parts(value) if isinstance(value, (list, dict)) else None if value is None else str(value)
        return None if text is None else text[:400].encode("utf-8", "replace").decode()

    connection.create_function("hermes_beginning", 1, beginning, deterministic=True)


def _derive(connection: Connection) -> None:
    """Fill this program's columns of the session row: last activity, preview, title family."""
    connection.execute(
        "UPDATE sessions SET active_at = (SELECT max(timestamp) FROM messages m WHERE m.session_id = sessions.id),"
        " first_words = (SELECT hermes_beginning(content) FROM messages m WHERE m.session_id = sessions.id AND m.role = 'user'"
        " AND m.content IS NOT NULL ORDER BY m.id LIMIT 1), title_seen = title"
    )
    for session_id, title in connection.execute("SELECT id, title FROM sessions WHERE title IS NOT NULL").fetchall():
        base, number = split_family(str(title))
        connection.execute("UPDATE sessions SET title_base = ?, title_no = ? WHERE id = ?", (base, number, session_id))


# -------------------------------------------------------------------------------- reading what may not be altered

_COMPUTED = {
    "active_at": "(SELECT max(timestamp) FROM main.messages m WHERE m.session_id = s.id)",
    "first_words": "(SELECT hermes_beginning(content) FROM main.messages m WHERE m.session_id = s.id AND m.role = 'user'"
    " AND m.content IS NOT NULL ORDER BY m.id LIMIT 1)",
    "title_base": "hermes_title_base(s.title)",
    "title_no": "hermes_title_no(s.title)",
    "title_seen": "s.title",
}

# The public Hermes Agent (schema 12 to 30) sets `active = 0` on a message that is not shown (with `compacted = 1`: because a
# summary replaces it; else it was undone), `display_kind = 'hidden'` on scaffolding, and `archived = 1` on a session. Its lists
# leave out some sources, and a session is a sub-agent's, a branch or a reset only if the marker in `model_config` names its own
# parent: continuations inherit the markers.
_UNDONE = 1_000_000  # the batch (session_rewinds) of messages that it has undone
_OF_MESSAGES = ("observed", "effect_disposition", "api_content", "display_kind", "display_metadata", "display_identity",
                "display_order")  # stored in `meta` on import  # fmt: skip
_OF_SESSIONS = (
    "session_key", "chat_id", "chat_type", "thread_id", "display_name", "origin_json", "git_branch", "git_repo_root",
    "profile_name", "rewind_count", "title_source", "created_source",
)  # fmt: skip
_KINDS = {"_delegate_from": "subagent", "_branched_from": "branch", "_reset_from": "reset"}
_UNLISTED = "'cron', 'tool', 'oneshot', 'kanban'"
# Messages undone there can be shown again here: one batch per session.
_REWINDS = (
    f"SELECT u.session_id, {_UNDONE} AS batch, coalesce((SELECT max(b.id) FROM messages b WHERE b.session_id = u.session_id"
    " AND b.hidden IS NULL AND b.id < u.first), 0) AS cut_id FROM (SELECT session_id, min(id) AS first FROM messages"
    f" WHERE hidden = {_UNDONE} GROUP BY session_id) u"
)


def _theirs(table: str, present: set[str], shown: str) -> dict[str, str]:
    """By column of ours, the expression over the other program's columns with the same meaning.

    `shown` is a condition on messages that leaves out scaffolding.
    """
    if table == "messages":
        summary = ["'summary', CASE WHEN m._compressed_summary = 1 THEN json('true') END"]
        extra = summary if "_compressed_summary" in present else []
        made = {"meta": _object("m", [name for name in _OF_MESSAGES if name in present], extra)}
        if "active" in present:
            compacted = f"WHEN m.compacted = 1 THEN {COMPACTED} " if "compacted" in present else ""
            made["hidden"] = f"CASE WHEN m.active <> 0 THEN NULL {compacted}ELSE {_UNDONE} END"
        return made
    made = {"meta": _object("s", [name for name in _OF_SESSIONS if name in present]), "kind": _kind()}
    if "rewind_count" in present:  # added together with `active`; undone messages are still counted there
        made["message_count"] = (
            f"(SELECT count(*) FROM main.messages m WHERE m.session_id = s.id AND m.active <> 0{shown})"
        )
    if "archived" in present:
        hidden = " OR s.hidden = 1" if "hidden" in present else ""
        unlisted = f"s.source IN ({_UNLISTED}) OR (s.source = 'subagent' AND s.parent_session_id IS NULL)"
        made["archived_at"] = (
            f"CASE WHEN s.archived = 1{hidden} OR {unlisted} THEN coalesce((SELECT max(timestamp) FROM main.messages m"
            " WHERE m.session_id = s.id), s.started_at) END"
        )
    if "pinned" in present:
        made["pinned_at"] = "CASE WHEN s.pinned = 1 THEN s.started_at END"
    if shown:
        made["first_words"] = _COMPUTED["first_words"].replace(" ORDER BY", f"{shown} ORDER BY")
    return made


def _kind() -> str:
    marker = "json_extract(CASE WHEN json_valid(s.model_config) THEN s.model_config END, '$.{}') = s.parent_session_id"
    marked = " ".join(f"WHEN {marker.format(name)} THEN '{kind}'" for name, kind in _KINDS.items())
    ended = "coalesce((SELECT p.end_reason FROM main.sessions p WHERE p.id = s.parent_session_id), 'compression')"
    return f"CASE {marked} WHEN s.source = 'subagent' AND {ended} <> 'compression' THEN 'subagent' END"


def _object(alias: str, names: list[str], extra: Sequence[str] = ()) -> str:
    """A JSON object of those columns that are set, and the `extra` pairs; NULL when none is."""
    if not names:
        return "NULL"
    pairs = ", ".join([*(f"'{name}', nullif({alias}.{name}, 0)" for name in names), *extra])
    return f"nullif(json_patch('{{}}', json_object({pairs})), '{{}}')"


def stand_in(connection: Connection) -> None:
    """Temporary views and empty tables that make a file of another version look like the current one."""
    for number, name in enumerate(("hermes_title_base", "hermes_title_no")):
        connection.create_function(name, 1, lambda title, n=number: title and split_family(title)[n])
    ours = pragma(connection, "application_id") == schema.APPLICATION_ID
    known = set(live_columns(connection, "messages"))
    summary = "m._compressed_summary = 1 OR " if "_compressed_summary" in known else ""
    shown = f" AND ({summary}coalesce(m.display_kind, '') <> 'hidden')" if "display_kind" in known and not ours else ""
    for name, wanted, alias in (("sessions", schema.SESSION_COLUMNS, "s"), ("messages", schema.MESSAGE_COLUMNS, "m")):
        present = set(live_columns(connection, name))
        theirs = {} if ours else _theirs(name, present, shown)
        columns = []
        for column, kind in wanted.items():
            if column in present and column not in theirs:
                columns.append(f"{alias}.{column} AS {column}")
            else:
                value = theirs.get(column) or _COMPUTED.get(column, "0" if "DEFAULT 0" in kind else "NULL")
                if "s.title" in value and "title" not in present:
                    value = "NULL"
                columns.append(f"{value} AS {column}")
        rows = f"main.{name} {alias} WHERE TRUE{shown if name == 'messages' else ''}"
        connection.execute(f"CREATE TEMP VIEW IF NOT EXISTS {name} AS SELECT {', '.join(columns)} FROM {rows}")
    names = _names(connection)
    if "system_prompts" in names and not ours:
        view = "SELECT hash, NULL AS base_hash, NULL AS base_chars, prompt AS text FROM main.system_prompts"
        connection.execute(f"CREATE TEMP VIEW IF NOT EXISTS system_prompts AS {view}")
    if "session_rewinds" not in names:
        connection.execute(f"CREATE TEMP VIEW IF NOT EXISTS session_rewinds AS {_REWINDS}")
    for statement in schema.TABLES:
        name = statement.split("EXISTS ")[1].split(" ")[0]
        if name not in names and name != "session_rewinds":
            connection.execute(statement.replace("CREATE TABLE IF NOT EXISTS ", "CREATE TEMP TABLE IF NOT EXISTS "))
