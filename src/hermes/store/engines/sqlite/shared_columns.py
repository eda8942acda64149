"""Columns of the other program that uses such files, and how they are synchronised with this program's.

That program (schema 12 to 22) sets `active = 0` on a message that is not shown (with `compacted = 1`: because a summary
replaces it; else it was undone) and `archived = 1` on a session; this one sets `hidden` and `archived_at`. A file of
its own is read through translating expressions. In our files that it has opened, triggers set its columns for what is hidden
here, and what differs afterwards was changed there: small partial indexes find that, and it is applied here.
"""

from __future__ import annotations

import apsw

from hermes.store.engines.base import COMPACTED, Tx

UNDONE = 1_000_000  # the batch (session_rewinds) of messages that the other program has undone
OF_MESSAGES = ("observed", "effect_disposition", "api_content")  # stored in `meta` on import
OF_SESSIONS = (
    "session_key", "chat_id", "chat_type", "thread_id", "display_name", "origin_json", "git_branch", "git_repo_root",
    "profile_name", "rewind_count",
)  # fmt: skip

DIFFERS = "active <> (hidden IS NULL)"
ARCHIVED_DIFFERS = "archived <> (archived_at IS NOT NULL)"
MARKER = "hermes_hidden_is_not_active"
_IN_STEP = (
    f"CREATE TRIGGER IF NOT EXISTS {MARKER} AFTER UPDATE OF hidden ON messages WHEN new.{DIFFERS.replace('hidden', 'new.hidden')}"
    f" BEGIN UPDATE messages SET active = (new.hidden IS NULL), compacted = coalesce(new.hidden = {COMPACTED}, 0)"
    " WHERE id = new.id; END",
    "CREATE TRIGGER IF NOT EXISTS hermes_archived_at_is_archived AFTER UPDATE OF archived_at ON sessions"
    " BEGIN UPDATE sessions SET archived = (new.archived_at IS NOT NULL) WHERE id = new.id; END",
    f"CREATE INDEX IF NOT EXISTS idx_messages_differing ON messages(session_id) WHERE {DIFFERS}",
    f"CREATE INDEX IF NOT EXISTS idx_sessions_differing ON sessions(id) WHERE {ARCHIVED_DIFFERS}",
)


def are_there(message_columns: set[str], session_columns: set[str]) -> bool:
    """Whether the other program has added its columns to a file."""
    return {"active", "compacted"} <= message_columns and "archived" in session_columns


def begin(connection: apsw.Connection) -> None:
    """Synchronise both programs' columns from now on; set the other's for what was hidden or archived before."""
    connection.execute(f"UPDATE messages SET active = 0, compacted = (hidden = {COMPACTED}) WHERE hidden IS NOT NULL")
    connection.execute("UPDATE sessions SET archived = 1 WHERE archived_at IS NOT NULL")
    for statement in _IN_STEP:
        connection.execute(statement)


def differing(tx: Tx) -> list[str]:
    """Sessions in which the other program has hidden, shown, archived or unarchived something."""
    rows = tx.rows(
        f"SELECT DISTINCT session_id FROM messages INDEXED BY idx_messages_differing WHERE {DIFFERS}"
        f" UNION SELECT id FROM sessions INDEXED BY idx_sessions_differing WHERE {ARCHIVED_DIFFERS}"
    )
    return [row[0] for row in rows]


# ------------------------------------------------------------------------------------ reading a file of its own


def computed(table: str, present: set[str]) -> dict[str, str]:
    """By column of ours, the expression over the other program's columns with the same meaning."""
    if table == "messages":
        made = {"meta": _object("m", [name for name in OF_MESSAGES if name in present])}
        if "active" in present:
            compacted = f"WHEN m.compacted = 1 THEN {COMPACTED} " if "compacted" in present else ""
            made["hidden"] = f"CASE WHEN m.active <> 0 THEN NULL {compacted}ELSE {UNDONE} END"
        return made
    made = {"meta": _object("s", [name for name in OF_SESSIONS if name in present])}
    if "rewind_count" in present:  # added together with `active`; undone messages are still counted there
        made["message_count"] = "(SELECT count(*) FROM main.messages m WHERE m.session_id = s.id AND m.active <> 0)"
    if "archived" in present:
        made["archived_at"] = (
            "CASE WHEN s.archived = 1 THEN coalesce((SELECT max(timestamp) FROM main.messages m WHERE m.session_id = s.id),"
            " s.started_at) END"
        )
    return made


def _object(alias: str, names: list[str]) -> str:
    """A JSON object of those columns that are set; NULL when none is."""
    if not names:
        return "NULL"
    pairs = ", ".join(f"'{name}', nullif({alias}.{name}, 0)" for name in names)
    return f"nullif(json_patch('{{}}', json_object({pairs})), '{{}}')"


# Messages undone there can be shown again here: one batch per session.
REWINDS = (
    f"SELECT u.session_id, {UNDONE} AS batch, coalesce((SELECT max(b.id) FROM messages b WHERE b.session_id = u.session_id"
    " AND b.hidden IS NULL AND b.id < u.first), 0) AS cut_id FROM (SELECT session_id, min(id) AS first FROM messages"
    f" WHERE hidden = {UNDONE} GROUP BY session_id) u"
)
