"""The log of llm in both schemas: read without a lock, and never changed."""

from __future__ import annotations

from pathlib import Path

from tests.interop.importing import brought_in, database, sessions, told


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
         [("01R", "gpt-5", "ten names", "Be brief.", "Percy …", "01C", 2000, "2026-03-05T07:00:00", 12, 40),
          ("01X", "gpt-5", "alone", None, "It is.", None, 2000, "2026-03-05T07:10:00", 1, 2)]),
        ("INSERT INTO threads VALUES(?,?,?,?,?)", [("01T", "A thread", "h2", None, "2026-03-05T08:00:00")]),
        ("INSERT INTO turns VALUES(?,?,?,?,?,?)", [("01U", "01T", "h2", "claude", "2026-03-05T08:00:05", 9)]),
        ("INSERT INTO messages VALUES(?,?,?)", [("h1", None, "user"), ("h2", "h1", "assistant")]),
        ("INSERT INTO parts VALUES(?,?,?,?,?,?)",
         [("h1", 0, "text", None, "who?", None), ("h2", 0, "text", None, "me", None)]),
    )  # fmt: skip
    assert "3 sessions with 6 messages imported" in brought_in(path, home)
    found = sessions(home)
    assert told(found["llm-01C"]) == [("user", "ten names"), ("assistant", "Percy …")]
    assert told(found["llm-01X"]) == [("user", "alone"), ("assistant", "It is.")]
    assert (found["llm-01C"]["title"], found["llm-01C"]["system_prompt"]) == ("Ten names for a pelican", "Be brief.")
    assert found["llm-01C"]["messages"][1]["timestamp"] - found["llm-01C"]["messages"][0]["timestamp"] == 2.0
    assert told(found["llm-01T"]) == [("user", "who?"), ("assistant", "me")] and found["llm-01T"]["model"] == "claude"
