"""Reads every value of every row as the program reads it: its type, its UTF-8, its JSON, its compressed rest.

SQLite checks the structure of pages, not their values: one flipped bit turns text into bytes, a number into text, or
a letter into an invalid byte, and every list that reads it fails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import apsw

from hermes.errors import StoreCorrupt
from hermes.store import codec

TABLES = (
    "sessions", "session_refs", "session_rewinds", "session_tags", "session_members", "system_prompts",
    "attachments", "leases", "audit", "state_meta",
)  # fmt: skip
_CHUNK = 500
_ALLOWED = {
    "TEXT": ("text", "null"),
    "REAL": ("real", "integer", "null"),
    "INTEGER": ("integer", "null"),
    "BLOB": ("blob", "null"),
}


@dataclass(frozen=True, slots=True)
class Damage:
    """One value that this program can't have written."""

    table: str
    key: tuple[Any, ...]  # the row: its rowid, or its whole primary key as it is stored (text as bytes)
    column: str
    detail: str
    name: str  # the row, for display
    found: Any  # the stored value (text as bytes)


@dataclass(frozen=True, slots=True)
class CheckedTable:
    """A table as the file declares it."""

    name: str
    kinds: dict[str, str]  # column → declared type
    key: tuple[str, ...]  # ("rowid",) or the primary key
    required: frozenset[str] = frozenset()

    @property
    def texts(self) -> tuple[str, ...]:
        return tuple(name for name, kind in self.kinds.items() if kind == "TEXT")


def table(connection: apsw.Connection, name: str) -> CheckedTable | None:
    """What a table of the file looks like; None when there is none."""
    columns = connection.execute(f"PRAGMA main.table_info({name})").fetchall()
    if not columns:
        return None
    sql = connection.execute("SELECT sql FROM main.sqlite_master WHERE type = 'table' AND name = ?", (name,)).fetchone()
    keyed = tuple(str(column) for _, column, _, _, _, key in columns if key)
    own = bool(sql) and "WITHOUT ROWID" in str(sql[0]).upper()  # type: ignore[index]
    required = frozenset(str(column) for _, column, _, not_null, _, key in columns if not_null or key)
    kinds = {str(column): str(kind).upper() for _, column, kind, *_ in columns}
    return CheckedTable(name, kinds, keyed if own else ("rowid",), required)


def damaged(connection: apsw.Connection) -> Iterator[Damage]:
    """Values that can't be read, or are of a type that is never written there; not of messages (message_check.py)."""
    for name in TABLES:
        one = table(connection, name)
        if one is not None:
            yield from of_wrong_type(connection, one)
            yield from unreadable(connection, one)


def damaged_messages(connection: apsw.Connection) -> Iterator[Damage]:
    """The same for messages."""
    one = table(connection, "messages")
    if one is None:
        return
    yield from of_wrong_type(connection, one)
    last = 0
    while True:
        bounds = connection.execute(
            "SELECT max(id) FROM (SELECT id FROM main.messages WHERE id > ? ORDER BY id LIMIT ?)", (last, _CHUNK)
        ).fetchone()
        if bounds is None or bounds[0] is None:
            return
        yield from unreadable(connection, one, f"id > {last} AND id <= {bounds[0]}")
        last = int(bounds[0])


def of_wrong_type(connection: apsw.Connection, one: CheckedTable, where: str = "TRUE") -> Iterator[Damage]:
    """Values of a type that is never written there."""
    tests = [f"typeof({c}) NOT IN {_ALLOWED[kind]}" for c, kind in one.kinds.items() if kind in _ALLOWED]
    for row in _raw_rows(connection, one, f"({' OR '.join(tests)}) AND {where}"):
        for column, (kind, value) in row[1].items():
            wanted = _ALLOWED.get(one.kinds[column])
            if wanted is None or kind in wanted or (kind == "blob" and "text" in wanted and not _is_utf8(value)):
                continue  # text that is no valid UTF-8 is stored as a BLOB: see unreadable()
            yield Damage(one.name, row[0], column, f"is {kind}, not {wanted[0]}", _name(one, row), value)


def unreadable(connection: apsw.Connection, one: CheckedTable, where: str = "TRUE") -> Iterator[Damage]:
    """Text of a table that is no valid UTF-8."""
    texts = ", ".join(one.texts)
    try:
        for row in connection.execute(f"SELECT {texts} FROM main.{one.name} WHERE {where}"):
            for value in row:
                if type(value) is bytes:
                    codec.restored(value)
        return
    except (UnicodeDecodeError, StoreCorrupt):
        pass
    for raw in _raw_rows(connection, one, where):
        for column, (kind, value) in raw[1].items():
            if one.kinds[column] == "TEXT" and kind in ("text", "blob") and not _is_text(kind, value):
                yield Damage(one.name, raw[0], column, "is damaged: no valid UTF-8", _name(one, raw), value)


def _is_utf8(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def _is_text(kind: str, value: bytes) -> bool:
    try:
        value.decode("utf-8", "strict" if kind == "text" else "surrogatepass")
    except UnicodeDecodeError:
        return False
    return True


RawRow = tuple[tuple[Any, ...], dict[str, tuple[str, Any]]]


def _raw_rows(connection: apsw.Connection, one: CheckedTable, where: str) -> Iterator[RawRow]:
    """Rows with each value's type, text as bytes: nothing in them can fail to be read."""
    columns = ", ".join(
        f"typeof({c}), CASE typeof({c}) WHEN 'text' THEN CAST({c} AS BLOB) ELSE {c} END" for c in one.kinds
    )
    key = ", ".join(f"CASE typeof({c}) WHEN 'text' THEN CAST({c} AS BLOB) ELSE {c} END" for c in one.key)
    for row in connection.execute(f"SELECT {key}, {columns} FROM main.{one.name} NOT INDEXED WHERE {where}"):
        start = len(one.key)
        pairs = zip(row[start::2], row[start + 1 :: 2], strict=True)
        yield tuple(row[:start]), dict(zip(one.kinds, pairs, strict=True))


def _name(one: CheckedTable, row: RawRow) -> str:
    """`message 5`, `session abc`, `session_tags abc, red`."""
    if one.name == "messages":
        return f"message {row[0][0]}"
    values = [row[1][c][1] for c in one.kinds if c in one.key] or [next(iter(row[1].values()))[1]]
    shown = ", ".join(v.decode("utf-8", "replace") if isinstance(v, bytes) else str(v) for v in values)
    return f"{'session' if one.name == 'sessions' else one.name} {shown}"


# ------------------------------------------------------------------------------------------- repair


def put_right(tx: Any, damages: list[Damage], known: Callable[[str, Any, str], Any]) -> int:
    """Write the `known` value over each damaged one, else its readable part; returns how many were written."""
    done, connection = 0, tx.connection
    for damage in damages:
        one = table(connection, damage.table)
        if one is None:
            continue
        try:
            value = known(damage.table, damage.key[0], damage.column)
        except LookupError:
            value = _left_of(one, damage)
        keys = " AND ".join(f"(CASE typeof({c}) WHEN 'text' THEN CAST({c} AS BLOB) ELSE {c} END) IS ?" for c in one.key)
        try:
            connection.execute(f"UPDATE {damage.table} SET {damage.column} = ? WHERE {keys}", (value, *damage.key))
        except apsw.ConstraintError:
            continue  # a title or a name that another row already has: it remains a finding
        done += connection.changes()
    tx.changed_by_us([damage.key[0] for damage in damages if damage.table == "messages"])
    return done


def _left_of(one: CheckedTable, damage: Damage) -> Any:
    """The readable part of a damaged value."""
    kind, value = one.kinds[damage.column], damage.found
    if kind == "TEXT":
        return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
    try:
        text = value.decode() if isinstance(value, bytes) else value
        return int(text) if kind == "INTEGER" else float(text) if kind == "REAL" else None
    except (TypeError, ValueError, UnicodeDecodeError):
        return 0 if damage.column in one.required else None
