"""Goose's database and its older files: read without a lock, and never changed."""

from __future__ import annotations

import json
from pathlib import Path

from tests.interop.importing import PIXEL, brought_in, database, sessions, told


def test_goose(tmp_path: Path) -> None:
    home = tmp_path / "home"
    asked = [{"type": "text", "text": "look at this"}, {"type": "image", "data": PIXEL, "mimeType": "image/png"}]
    call = {
        "type": "toolRequest",
        "id": "t1",
        "toolCall": {"status": "success", "value": {"name": "shell", "arguments": {"c": 1}}},
    }
    result = {"type": "toolResponse", "id": "t1", "toolResult": {"status": "success", "value": {"content": [{"type": "text", "text": "done"}]}}}  # fmt: skip
    path = database(
        tmp_path / "sessions" / "sessions.db",
        ("CREATE TABLE schema_version(version INTEGER)", []),
        ("CREATE TABLE sessions(id TEXT, name TEXT, description TEXT, working_dir TEXT, created_at TEXT, session_type TEXT,"
         " model_config_json TEXT)", []),
        ("CREATE TABLE messages(id INTEGER, message_id TEXT, session_id TEXT, role TEXT, content_json TEXT,"
         " created_timestamp INTEGER, tokens INTEGER, metadata_json TEXT)", []),
        ("INSERT INTO sessions VALUES(?,?,?,?,?,?,?)",
         [("20260304_1", "Pictures", "", "/work/g", "2026-03-04 10:00:00", "user", '{"model_name":"qwen3"}')]),
        ("INSERT INTO messages VALUES(?,?,?,?,?,?,?,?)", [
            (1, "m1", "20260304_1", "user", json.dumps(asked), 1772618400, None, "{}"),
            (2, "m2", "20260304_1", "assistant", json.dumps([{"type": "thinking", "thinking": "hm"}, call]), 1772618410, 12, "{}"),
            (3, "m3", "20260304_1", "user", json.dumps([result]), 1772618420, None, "{}"),
            (4, "m4", "20260304_1", "assistant", json.dumps([{"type": "text", "text": "A dot."}, {"type": "odd"}]), 1772618430, 3, "{}"),
            (5, "m5", "20260304_1", "assistant", "[{torn", 1772618440, 3, "{}")]),
    )  # fmt: skip
    printed = brought_in(path, home, status=1)
    assert "1 session with 4 messages imported" in printed and "content odd" in printed
    assert "message m5: no JSON list" in printed
    session = sessions(home)["goose-20260304_1"]
    assert (session["title"], session["model"], session["started_at"]) == ("Pictures", "qwen3", 1772618400.0)
    assert [role for role, _ in told(session)] == ["user", "assistant", "tool", "assistant"]
    assert session["messages"][2]["tool_call_id"] == "t1" and session["messages"][1]["reasoning"] == "hm"
