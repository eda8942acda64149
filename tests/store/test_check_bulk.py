"""`check` compares rows, index and transcripts in bulk: one value, one digit or one line that is wrong is still found."""

from __future__ import annotations

import base64
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hermes_state import SessionDB


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store whose second session uses every column, the first only a few."""
    path = tmp_path / "state.db"
    images = [base64.b64encode(bytes([n]) * 900).decode() for n in (9, 7, 8)]
    with SessionDB(db_path=path) as db:
        db.create_session("plain", "cli", system_prompt="Be brief.")
        for number in range(6):
            db.append_message("plain", "user", f"question {number} — ü", timestamp=100.0 - number)
        db.append_message("plain", "tool", "output " * 900, tool_call_id="c1", tool_name="terminal")
        db.append_message("plain", "user", '\0json:[{"type": "text"}]')
        db.create_session("full", "telegram", user_id="u")
        db.append_message(
            "full", "assistant", None, tool_calls=[{"id": "c", "function": {"name": "f"}}] * 2, reasoning="r",
            reasoning_details=[{"a": 1}], model="m", input_tokens=1, output_tokens=2, cost_usd=0.5,
            finish_reason="stop", token_count=3, platform_message_id="p", meta={"crc": "x", "n": [1]},
        )  # fmt: skip
        album = [{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{one}"}} for one in images]
        db.append_message("full", "user", [{"type": "text", "text": "three"}, *album])
        db.append_message("full", "user", "lone \ud800 surrogate")
        db.record_event("full", "model_error", "no answer")
        db.set_session_title("full", "A title in between")
        db.append_message("full", "assistant", "last")
        db.catch_up()
    return path


def found(path: Path) -> list[tuple[str, str]]:
    with SessionDB(db_path=path) as db:
        return sorted((one["kind"], one["where"]) for one in db.check())


def with_sql(path: Path, sql: str, *params: Any) -> None:
    db = sqlite3.connect(path)
    with db:
        assert db.execute(sql, params).rowcount == 1
    db.close()


def in_transcript(path: Path, session_id: str, change: Callable[[list[bytes]], list[bytes]]) -> None:
    file = path.parent / "sessions" / f"{session_id}.jsonl"
    file.write_bytes(b"".join(change(file.read_bytes().splitlines(keepends=True))))


def test_a_store_with_all_kinds_of_messages_is_sound(path: Path) -> None:
    assert found(path) == []


@pytest.mark.parametrize(("column", "value"), [("token_count", "many"), ("model", b"bytes"), ("role", b"user")])
def test_a_value_of_a_wrong_type_is_found(path: Path, column: str, value: object) -> None:
    with_sql(path, f"UPDATE messages SET {column} = ? WHERE content = 'question 2 — ü'", value)
    assert any(kind == "damaged-row" for kind, _ in found(path))


@pytest.mark.parametrize("change", ["doubled", "dropped", "cut"])
def test_a_line_too_many_or_too_few_is_found(path: Path, change: str) -> None:
    def work(lines: list[bytes]) -> list[bytes]:
        last = {"doubled": [lines[-1]] * 2, "dropped": [], "cut": [lines[-1][:-30]]}[change]
        return [*lines[:-1], *last]

    in_transcript(path, "full", work)
    assert found(path) == [("transcript", "session full")]


@pytest.mark.parametrize("column", ["message_count", "tool_call_count", "active_at"])
def test_a_wrong_counter_is_found(path: Path, column: str) -> None:
    with_sql(path, f"UPDATE sessions SET {column} = 1 WHERE id = 'full'")
    assert found(path) == [("counters", "session full")]
