"""Single flipped bits and rows changed with SQL: repair brings back what damage took and never overrules the database.

Each case damages a copy of one small store (lineage, attachments, tool calls, tags, a rewind), then checks, repairs and
checks again. Whatever happened: rows that were sound stay as they were, no message is doubled, and the damage is either
mended or still reported.
"""

from __future__ import annotations

import base64
import json
import random
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from hermes_state import SessionDB

from . import clone, size

PICTURE = base64.b64encode(bytes(range(256)) * 4).decode()
CALL = [{"id": "c1", "type": "function", "function": {"name": "terminal", "arguments": '{"command": "df -h"}'}}]
# What another program may not change by accident: the columns that people and models wrote, and those that place them.
MESSAGE_COLUMNS = ("role", "content", "tool_calls", "tool_name", "tool_call_id", "timestamp", "reasoning", "content_rest",
                   "session_id", "finish_reason", "model")  # fmt: skip
SESSION_COLUMNS = ("source", "user_id", "model", "model_config", "started_at", "ended_at", "end_reason", "title", "cwd",
                   "parent_session_id", "kind", "input_tokens", "system_prompt_hash")  # fmt: skip
TRIGGERS = ("messages_changed", "messages_removed")


@pytest.fixture(scope="module")
def base(module_folder: Path) -> Path:
    folder = module_folder / "base"
    with SessionDB(folder / "state.db", durability="normal") as db:
        db.create_session("s1", "cli", system_prompt="be kind", model="m", user_id="7", model_config={"a": 1}, cwd="/x")
        db.set_session_title("s1", "the first")
        ids = [
            db.append_message("s1", "user", "How much is left on the disk?"),
            db.append_message("s1", "assistant", "Let me see.", tool_calls=CALL, reasoning="They want df.", model="m"),
            db.append_message("s1", "tool", "/dev/sda1 38G\n" * 400, tool_call_id="c1", tool_name="terminal"),
            db.append_message("s1", "user", [{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PICTURE}"}}]),
            db.append_message("s1", "assistant", "Plenty: größer als genug.", finish_reason="stop"),
        ]  # fmt: skip
        db.tag_session("s1", "disk")
        db.record_event("s1", "model_error", "HTTP 500")
        db.branch_session("s1", "s2", at_message=ids[2])
        db.append_message("s2", "user", "And on the other one?")
        db.create_session("s3", "telegram", user_id="8")
        for number in range(4):
            db.append_message("s3", "user", f"note {number} of the garden")
        db.rewind("s3", db.get_messages("s3")[1]["id"])
        db.compress_session("s1", "s4", summary="about disks", head_until=ids[0], tail_from=ids[4])
        db.append_message("s4", "user", "go on")
        db.catch_up()
        assert db.check() == []
    return folder


def everything(path: Path) -> dict[str, Any]:
    """Every message row as it is stored, by id, without what only counts."""
    with closing(sqlite3.connect(path)) as sql:
        sql.text_factory = lambda raw: raw.decode("utf-8", "backslashreplace")
        sql.row_factory = sqlite3.Row
        rows = [dict(row) for row in sql.execute("SELECT * FROM messages ORDER BY id")]
    return {row["id"]: row for row in rows}


def look(path: Path) -> list[dict[str, Any]]:
    with SessionDB(path) as db:
        return db.check()


def repaired(path: Path) -> list[dict[str, Any]]:
    with SessionDB(path) as db:
        db.repair()
    return look(path)


def identity(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["role"], row["content"], row["timestamp"]


def assert_kept(path: Path, before: dict[int, Any], harmed: set[int]) -> None:
    """All sound rows are as they were, and nothing is there twice."""
    after = everything(path)
    changed = [i for i, row in before.items() if i not in harmed and after.get(i) != row]
    assert not changed, f"sound rows were changed: {[(before[i], after.get(i)) for i in changed][:1]}"
    doubled = [key for key, times in Counter(map(identity, after.values())).items() if times > 1]
    assert not doubled, f"there twice: {doubled}"
    assert len(after) == len(before), f"{len(before)} messages became {len(after)}"


def shown(path: Path) -> dict[str, Any]:
    with SessionDB(path, read_only=True) as db:
        return {row["id"]: (row["title"], db.get_messages(row["id"])) for row in db.list_sessions_rich(limit=50)}


# ── rows changed with SQL: the database is the truth ──


def change(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path)) as sql, sql:
        for statement in statements:
            sql.execute(statement)


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM messages WHERE id = 2",
        "UPDATE messages SET content = 'something else', timestamp = 5 WHERE id = 5",
        "UPDATE messages SET session_id = 's3' WHERE id = 6",
    ],
)
def test_what_someone_changed_with_sql_is_not_overruled(base: Path, folder: Path, statement: str) -> None:
    path = clone(base, folder / "work")
    change(path, statement)
    wanted = everything(path)
    assert any(one["kind"].startswith("transcript") for one in look(path))
    assert repaired(path) == []
    assert everything(path) == wanted


def test_a_text_that_no_program_changed_is_damaged_and_comes_back_from_the_transcript(base: Path, folder: Path) -> None:
    path = clone(base, folder / "work")
    before = everything(path)
    without_notes(path)
    change(path, "UPDATE messages SET content = 'Barely: kleiner als genug.' WHERE id = 5")
    assert ("damaged-text", "message 5") in [(one["kind"], one["where"]) for one in look(path)]
    assert repaired(path) == [] and everything(path) == before


def test_a_session_deleted_with_sql_stays_deleted_and_its_transcript_is_left_alone(base: Path, folder: Path) -> None:
    path = clone(base, folder / "work")
    change(path, "DELETE FROM messages WHERE session_id = 's2'", "DELETE FROM session_refs WHERE session_id = 's2'",
           "DELETE FROM sessions WHERE id = 's2'")  # fmt: skip
    for found in (look(path), repaired(path)):
        assert [one["kind"] for one in found if one["where"] == "s2.jsonl" and "rebuild" in one["detail"]] == [
            "transcript"
        ]
    assert "s2" not in shown(path)


def without_notes(path: Path) -> None:
    """Drop the triggers, so that later changes are made as a failing disk makes them: without a note."""
    change(path, *(f"DROP TRIGGER {name}" for name in TRIGGERS))


# ── bits flipped in rows ──


def flipped(value: Any, dice: random.Random) -> Any:
    """A value with one bit of it turned, as the bytes of the file would have it."""
    if isinstance(value, bytes):
        data = bytearray(value)
        data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
        return bytes(data)
    if isinstance(value, int):
        return value ^ 1 << dice.randrange(8)
    import struct

    data = bytearray(struct.pack(">d", value))
    data[dice.randrange(2, 8)] ^= 1 << dice.randrange(8)
    return struct.unpack(">d", bytes(data))[0]


def harm_row(path: Path, table: str, column: str, dice: random.Random) -> int | None:
    """Turn one bit of a value, past the triggers as a failing disk would; the message it hit."""
    with closing(sqlite3.connect(path)) as sql, sql:
        triggers = sql.execute(
            f"SELECT sql FROM sqlite_master WHERE name IN ({','.join('?' * len(TRIGGERS))})", TRIGGERS
        ).fetchall()
        for name in TRIGGERS:
            sql.execute(f"DROP TRIGGER {name}")
        raw = f"CASE typeof({column}) WHEN 'text' THEN CAST({column} AS BLOB) ELSE {column} END"
        rows = sql.execute(f"SELECT rowid, typeof({column}), {raw} FROM {table} WHERE {column} IS NOT NULL").fetchall()
        rows = [row for row in rows if row[2] != b""]
        if rows:
            rowid, kind, value = dice.choice(rows)
            became = "BLOB" if kind == "text" and dice.random() < 0.2 else kind
            new = value if became == "BLOB" and kind == "text" else flipped(value, dice)
            target = "CAST(? AS TEXT)" if became == "text" else "?"
            sql.execute(f"UPDATE OR IGNORE {table} SET {column} = {target} WHERE rowid = ?", (new, rowid))
        for (statement,) in triggers:
            sql.execute(statement)
    if not rows:
        pytest.skip(f"no row has a {column}")
    return int(rowid) if table == "messages" else None


@pytest.mark.parametrize("seed", range(size(1, 10)))
@pytest.mark.parametrize("column", MESSAGE_COLUMNS)
def test_a_flipped_bit_in_a_message_is_found_and_mended(base: Path, folder: Path, column: str, seed: int) -> None:
    path = clone(base, folder / "work")
    before = everything(path)
    hit = harm_row(path, "messages", column, random.Random(f"{column} {seed}"))
    if everything(path) == before and column != "role":
        with closing(sqlite3.connect(path)) as sql:
            kinds = sql.execute(f"SELECT DISTINCT typeof({column}) FROM messages").fetchall()
        assert len(kinds) > 1, "nothing was harmed"
    found = look(path)
    assert found, "check finds nothing"
    assert repaired(path) == []
    assert_kept(path, before, {hit or 0})
    if any(
        one["kind"].startswith("damaged") for one in found
    ):  # the row could not be read: the transcript has it whole
        assert everything(path) == before


@pytest.mark.parametrize("seed", range(size(1, 8)))
@pytest.mark.parametrize("column", SESSION_COLUMNS)
def test_a_flipped_bit_in_a_session_is_found_and_nothing_raises_after_repair(
    base: Path, folder: Path, column: str, seed: int
) -> None:
    path = clone(base, folder / "work")
    before, seen = everything(path), shown(path)
    harm_row(path, "sessions", column, random.Random(f"{column} {seed}"))
    assert look(path), "check finds nothing"
    assert repaired(path) == []
    assert_kept(path, before, set())
    shown(path)  # lists, reads and exports without an error
    with SessionDB(path, read_only=True) as db:
        after = {name: db.get_messages(name) for name in seen}
        db.export_all()
        db.search_messages("garden")
    assert after == {name: messages for name, (_, messages) in seen.items()}


@pytest.mark.parametrize(
    ("statement", "kind"),
    [
        ("UPDATE sessions SET message_count = 1 WHERE id = 's1'", "counters"),
        ("UPDATE sessions SET tool_call_count = 7 WHERE id = 's1'", "counters"),
        ("UPDATE sessions SET active_at = 1 WHERE id = 's1'", "counters"),
        ("UPDATE messages SET token_count = 'many' WHERE id = 1", "damaged-row"),
        ("UPDATE messages SET model = x'ff00fe' WHERE id = 2", "damaged-row"),
        ("DELETE FROM messages_fts_docsize WHERE id = 5", "fts-missing"),
        ("INSERT INTO messages_fts(rowid, content, tool_name, tool_calls) VALUES(999, 'ghost', '', '')", "fts-extra"),
        ("DELETE FROM indexed_texts WHERE id = 5", "fts-stale"),
        ("UPDATE sessions SET parent_session_id = 'gone' WHERE id = 's3'", "orphan-parent"),
        ("INSERT INTO session_tags VALUES('gone', 'tag')", "orphan-rows"),
        ("UPDATE session_events SET text = 'HTTP 200'", "transcript"),
        ("DROP TABLE session_events", "transcript"),
    ],
)
def test_a_wrong_value_is_found_and_mended(base: Path, folder: Path, statement: str, kind: str) -> None:
    path = clone(base, folder / "work")
    before = everything(path)
    change(path, statement)
    assert kind in {one["kind"] for one in look(path)}
    assert repaired(path) == []
    assert_kept(path, before, {1, 2})


# ── bits flipped in transcripts ──


@pytest.mark.parametrize("seed", range(size(8, 150)))
def test_a_flipped_bit_in_a_transcript_never_reaches_the_database(base: Path, folder: Path, seed: int) -> None:
    path, dice = clone(base, folder / "work"), random.Random(f"transcript {seed}")
    before, seen = everything(path), shown(path)
    file = dice.choice(sorted((path.parent / "sessions").glob("*.jsonl")))
    data = bytearray(file.read_bytes())
    data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
    file.write_bytes(bytes(data))
    left = repaired(path)
    assert everything(path) == before
    assert shown(path) == seen
    assert left == []
    for line in file.read_bytes().splitlines():
        assert json.loads(line), line


# ── attachments ──
