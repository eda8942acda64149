"""Conversations in Zed's database."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import zstandard

from tests.interop.importing import PIXEL, brought_in, changed, database, sessions, told, unchanged
from tests.support import program

AT, LATER = "2026-03-05T10:00:00+00:00", "2026-03-05T11:00:00+00:00"


def document(*messages: Any, **more: Any) -> dict[str, Any]:
    used = {"input_tokens": 100, "output_tokens": 9, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 40}
    model = {"provider": "anthropic", "model": "claude-sonnet-4"}
    return {"version": "0.3.0", "title": "Two", "updated_at": LATER, "messages": list(messages), "model": model,
            "cumulative_token_usage": used, **more}  # fmt: skip


def talk() -> list[Any]:
    edit = {"path": "c/a.py", "mode": "edit", "edits": [{"old_text": "width = 1", "new_text": "width = 2"}]}
    mention = {"uri": {"File": {"abs_path": "/work/c/a.py"}}, "content": "x = 1"}
    use = {"id": "t1", "name": "edit_file", "raw_input": "{}", "input": edit, "is_input_complete": True}
    result = {
        "tool_use_id": "t1",
        "tool_name": "edit_file",
        "is_error": False,
        "content": {"Text": "Edited."},
        "output": {},
    }
    shot = {
        "tool_use_id": "t2",
        "tool_name": "screenshot",
        "is_error": False,
        "content": [{"Image": {"source": PIXEL}}, {"Text": "so"}],
    }
    made = {"id": "t3", "name": "edit_file", "input": {"path": "c/b.py", "mode": "create"}}
    texts = {
        "tool_use_id": "t3",
        "tool_name": "edit_file",
        "content": {"Text": "Made."},
        "output": {"old_text": "", "new_text": "height = 3\n"},
    }
    return [
        {"User": {"id": "u1", "content": [{"Text": "make x two"}, {"Mention": mention}, {"Image": {"source": PIXEL, "size": None}}]}},
        {"Agent": {"content": [{"Thinking": {"text": "I edit.", "signature": "s"}}, {"RedactedThinking": "x"}, {"Text": "Editing."},
                               {"ToolUse": use}], "tool_results": {"t1": result, "t2": shot}}},
        "Resume", {"Agent": {"content": [{"Text": "Done."}, {"ToolUse": made}, {"Hologram": 1}], "tool_results": {"t3": texts}}},
    ]  # fmt: skip


def threads(path: Path, *rows: tuple[Any, ...]) -> Path:
    path.unlink(missing_ok=True)
    return database(
        path,
        ("CREATE TABLE threads(id TEXT PRIMARY KEY, summary TEXT, updated_at TEXT, data_type TEXT, data BLOB, parent_id TEXT,"
         " folder_paths TEXT, folder_paths_order TEXT, created_at TEXT)", []),
        ("INSERT INTO threads VALUES(?,?,?,?,?,?,?,?,?)", list(rows)),
    )  # fmt: skip


def row(name: str, whole: Any, parent: str | None = None) -> tuple[Any, ...]:
    data = zstandard.compress(json.dumps(whole).encode())
    return name, "Two", LATER, "zstd", data, parent, "/work/c\n/work/d", "0,1", AT


def test_threads(tmp_path: Path) -> None:
    home = tmp_path / "home"
    child = document({"User": {"id": "c1", "content": [{"Text": "look around"}]}})
    file = threads(
        tmp_path / ".local" / "share" / "zed" / "threads" / "threads.db",
        row("z1", document(*talk())),
        row("z2", child, "z1"),
    )
    before = unchanged(file)
    done = program.run(
        "sessions", "import", "--found", "--yes", home=home, env={"HOME": str(tmp_path), "XDG_DATA_HOME": ""}
    )
    assert done.status == 0 and "2 sessions with 7 messages imported" in done.out and "Hologram" in done.err, done
    assert unchanged(file) == before
    found = sessions(home)
    session = found["zed-z1"]
    assert (session["title"], session["cwd"], session["model"]) == ("Two", "/work/c", "claude-sonnet-4")
    assert (session["input_tokens"], session["output_tokens"], session["cache_read_tokens"]) == (100, 9, 40)
    assert session["ended_at"] - session["started_at"] == 3600
    asked, reply, edited, shot, last, _ = session["messages"]
    assert [part["type"] for part in asked["content"]] == ["text", "text", "image_url"] and "/work/c/a.py" in str(
        asked["content"]
    )
    assert (reply["content"], reply["reasoning"], edited["content"], last["content"]) == (
        "Editing.",
        "I edit.",
        "Edited.",
        "Done.",
    )
    assert json.loads(reply["tool_calls"][0]["function"]["arguments"])["edits"][0]["new_text"] == "width = 2"
    assert changed(home)["c/a.py"] == 1
    assert (edited["tool_call_id"], shot["tool_name"], shot["content"][0]["type"]) == ("t1", "screenshot", "image_url")
    assert (found["zed-z2"]["parent_session_id"], found["zed-z2"]["kind"]) == ("zed-z1", "subagent")
    more = [
        *talk(),
        {"User": {"id": "u2", "content": [{"Text": "thanks"}]}},
        {"Agent": {"content": [{"Text": "Welcome."}]}},
    ]
    threads(file, row("z1", document(*more)))
    brought_in(file, home)
    assert told(sessions(home)["zed-z1"])[-2:] == [("user", "thanks"), ("assistant", "Welcome.")]
    assert "1 session already here" in brought_in(file, home)


def test_an_older_document_and_a_damaged_one(tmp_path: Path) -> None:
    use = {"id": "t1", "name": "grep", "input": {"regex": "x"}}
    old = {"version": "0.2.0", "summary": "Old", "updated_at": LATER, "messages": [
        {"id": 0, "role": "user", "segments": [{"type": "text", "text": "find x"}], "tool_results": []},
        {"id": 1, "role": "assistant", "segments": [{"type": "thinking", "text": "hm"}, {"type": "text", "text": "Looking."}],
         "tool_uses": [use], "tool_results": [{"tool_use_id": "t1", "is_error": False, "content": "a.py"}]},
        {"id": 2, "role": "system", "segments": [{"type": "text", "text": "hidden"}]},
    ]}  # fmt: skip
    path = database(
        tmp_path / "threads.db",
        ("CREATE TABLE threads(id TEXT, summary TEXT, updated_at TEXT, data_type TEXT, data BLOB)", []),
        ("INSERT INTO threads VALUES(?,?,?,?,?)", [
            ("old", "", LATER, "json", json.dumps(old)), ("torn", "", LATER, "zstd", zstandard.compress(b"{}" * 999)[:20]),
            ("none", "", LATER, "json", "[]")]),
    )  # fmt: skip
    printed = brought_in(path, tmp_path / "home", status=1)
    assert "1 session with 3 messages imported" in printed and "thread torn" in printed
    session = sessions(tmp_path / "home")["zed-old"]
    assert session["title"] == "Old"
    assert told(session) == [("user", "find x"), ("assistant", "Looking."), ("tool", "a.py")]
    assert (session["messages"][1]["reasoning"], session["messages"][2]["tool_name"]) == ("hm", "grep")
