"""OpenCode, Goose and llm keep databases: read without a lock, and never changed."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from pathlib import Path
from typing import Any

from tests.interop.importing import PIXEL, brought_in, hidden, lines, sessions, told


def database(path: Path, *statements: tuple[str, list[tuple[Any, ...]]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    connection = sqlite3.connect(path)
    for sql, rows in statements:
        if rows:
            connection.executemany(sql, rows)
        else:
            connection.execute(sql)
    connection.commit()
    connection.close()
    return path


def unchanged(path: Path) -> tuple[str, list[str]]:
    return hashlib.sha256(path.read_bytes()).hexdigest(), sorted(one.name for one in path.parent.iterdir())


def part(name: str, message: str, **data: Any) -> tuple[Any, ...]:
    return name, message, "ses_1", json.dumps(data)


def test_opencode(tmp_path: Path) -> None:
    home = tmp_path / "home"
    tokens = {"input": 10, "output": 4, "reasoning": 0, "cache": {"read": 90, "write": 0}}
    assistant = {"role": "assistant", "modelID": "sonnet", "providerID": "x", "cost": 0.25, "tokens": tokens,
                 "time": {"created": 1772500060000}, "finish": "stop"}  # fmt: skip
    later = {"role": "user", "time": {"created": 1772500120000}}
    path = database(
        tmp_path / "opencode" / "opencode.db",
        ("CREATE TABLE session(id TEXT, project_id TEXT, parent_id TEXT, directory TEXT, title TEXT, revert TEXT,"
         " time_created INTEGER, time_updated INTEGER, time_archived INTEGER)", []),
        ("CREATE TABLE message(id TEXT, session_id TEXT, time_created INTEGER, data TEXT)", []),
        ("CREATE TABLE part(id TEXT, message_id TEXT, session_id TEXT, data TEXT)", []),
        ("INSERT INTO session VALUES(?,?,?,?,?,?,?,?,?)", [
            ("ses_1", "p", None, "/work/app", "Fix the bug", json.dumps({"messageID": "msg_3"}), 1772500000000, 0, None),
            ("ses_2", "p", "ses_1", "/work/app", "explore", None, 1772500050000, 0, None)]),
        ("INSERT INTO message VALUES(?,?,?,?)", [
            ("msg_1", "ses_1", 1772500000000, json.dumps({"role": "user", "time": {"created": 1772500000000}})),
            ("msg_2", "ses_1", 1772500060000, json.dumps(assistant)), ("msg_3", "ses_1", 1772500120000, json.dumps(later)),
            ("msg_4", "ses_2", 1772500050000, json.dumps({"role": "user", "time": {"created": 1772500050000}}))]),
        ("INSERT INTO part VALUES(?,?,?,?)", [
            part("prt_1", "msg_1", type="text", text="why does it crash?"), part("prt_2", "msg_2", type="step-start"),
            part("prt_3", "msg_2", type="reasoning", text="hm"), part("prt_4", "msg_2", type="tool", callID="c1", tool="bash",
                 state={"status": "completed", "input": {"command": "ls"}, "output": "a.py", "time": {"end": 1772500061000}}),
            part("prt_5", "msg_2", type="text", text="It divides by zero."), part("prt_6", "msg_3", type="text", text="taken back"),
            ("prt_7", "msg_4", "ses_2", json.dumps({"type": "text", "text": "explore the code"}))]),
    )  # fmt: skip
    before = unchanged(path)
    assert "2 sessions with 4 messages imported" in brought_in(tmp_path / "opencode", home)
    assert unchanged(path) == before
    found = sessions(home)
    session = found["opencode-ses_1"]
    assert (session["title"], session["cwd"], session["model"]) == ("Fix the bug", "/work/app", "sonnet")
    assert told(session) == [("user", "why does it crash?"), ("assistant", "It divides by zero."), ("tool", "a.py")]
    reply = session["messages"][1]
    assert (reply["input_tokens"], reply["cost_usd"], reply["reasoning"]) == (10, 0.25, "hm")
    assert hidden(session) == ["taken back"]
    assert (found["opencode-ses_2"]["parent_session_id"], found["opencode-ses_2"]["kind"]) == (
        "opencode-ses_1",
        "subagent",
    )


def test_opencodes_older_tree(tmp_path: Path) -> None:
    storage = tmp_path / "storage"
    for name, value in {
        "session/p/ses_1.json": {"id": "ses_1", "title": "Old", "directory": "/w", "time": {"created": 1772500000000}},
        "message/ses_1/msg_1.json": {"id": "msg_1", "role": "user", "time": {"created": 1772500000000}},
        "part/msg_1/prt_1.json": {"id": "prt_1", "type": "text", "text": "hello from files"},
    }.items():
        (storage / name).parent.mkdir(parents=True, exist_ok=True)
        (storage / name).write_text(json.dumps(value))
    home = tmp_path / "home"
    assert "1 session with 1 message imported" in brought_in(storage, home)
    assert told(sessions(home)["opencode-ses_1"]) == [("user", "hello from files")]


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
            (4, "m4", "20260304_1", "assistant", json.dumps([{"type": "text", "text": "A dot."}, {"type": "odd"}]), 1772618430, 3, "{}")]),
    )  # fmt: skip
    printed = brought_in(path, home)
    assert "1 session with 4 messages imported" in printed and "content odd" in printed
    session = sessions(home)["goose-20260304_1"]
    assert (session["title"], session["model"], session["started_at"]) == ("Pictures", "qwen3", 1772618400.0)
    assert [role for role, _ in told(session)] == ["user", "assistant", "tool", "assistant"]
    assert session["messages"][2]["tool_call_id"] == "t1" and session["messages"][1]["reasoning"] == "hm"
    old = lines(tmp_path / "20250101_1.jsonl", [
        {"working_dir": "/w", "description": "Older", "message_count": 1},
        {"role": "user", "created": 1735725600, "content": [{"type": "text", "text": "an older file"}]},
    ])  # fmt: skip
    brought_in(old, home)
    assert told(sessions(home)["goose-20250101_1"]) == [("user", "an older file")]


def test_llm_in_both_schemas(tmp_path: Path) -> None:
    home = tmp_path / "home"
    path = database(
        tmp_path / "logs.db",
        ("CREATE TABLE conversations(id TEXT, name TEXT, model TEXT)", []),
        ("CREATE TABLE responses(id TEXT, model TEXT, prompt TEXT, system TEXT, response TEXT, conversation_id TEXT,"
         " duration_ms INTEGER, datetime_utc TEXT, input_tokens INTEGER, output_tokens INTEGER)", []),
        ("CREATE TABLE threads(id TEXT, name TEXT, tip_message_hash TEXT, forked_from TEXT, datetime_utc TEXT)", []),
        ("CREATE TABLE turns(id TEXT, thread_id TEXT, tip_message_hash TEXT, model TEXT, datetime_utc TEXT, output_tokens INTEGER)", []),
        ("CREATE TABLE messages(hash TEXT, parent_hash TEXT, role TEXT)", []),
        ("CREATE TABLE parts(message_hash TEXT, position INTEGER, type TEXT, tool_name TEXT, text TEXT, payload TEXT)", []),
        ("INSERT INTO conversations VALUES(?,?,?)", [("01C", "Ten names for a pelican", "gpt-5")]),
        ("INSERT INTO responses VALUES(?,?,?,?,?,?,?,?,?,?)",
         [("01R", "gpt-5", "ten names", "Be brief.", "Percy …", "01C", 2000, "2026-03-05T07:00:00", 12, 40)]),
        ("INSERT INTO threads VALUES(?,?,?,?,?)", [("01T", "A thread", "h2", None, "2026-03-05T08:00:00")]),
        ("INSERT INTO turns VALUES(?,?,?,?,?,?)", [("01U", "01T", "h2", "claude", "2026-03-05T08:00:05", 9)]),
        ("INSERT INTO messages VALUES(?,?,?)", [("h1", None, "user"), ("h2", "h1", "assistant")]),
        ("INSERT INTO parts VALUES(?,?,?,?,?,?)",
         [("h1", 0, "text", None, "who?", None), ("h2", 0, "text", None, "me", None)]),
    )  # fmt: skip
    assert "2 sessions with 4 messages imported" in brought_in(path, home)
    found = sessions(home)
    assert told(found["llm-01C"]) == [("user", "ten names"), ("assistant", "Percy …")]
    assert (found["llm-01C"]["title"], found["llm-01C"]["system_prompt"]) == ("Ten names for a pelican", "Be brief.")
    assert found["llm-01C"]["messages"][1]["timestamp"] - found["llm-01C"]["messages"][0]["timestamp"] == 2.0
    assert told(found["llm-01T"]) == [("user", "who?"), ("assistant", "me")] and found["llm-01T"]["model"] == "claude"
