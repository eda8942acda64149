"""Sessions of Kiro CLI, in the three ways its engines keep them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.interop.importing import brought_in, database, lines, sessions, told
from tests.support import program

SHOWN = [("user", "which files?"), ("assistant", "Looking."), ("tool", "a.py"), ("assistant", "One file.")]


def line(kind: str, *content: tuple[str, Any], **more: Any) -> dict[str, Any]:
    blocks = [{"kind": name, "data": data} for name, data in content]
    return {"version": "v1", "kind": kind, "data": {"content": blocks, **more}}


def talk() -> list[Any]:
    call = {"toolUseId": "c1", "name": "execute_bash", "input": {"command": "ls"}}
    result = {"toolUseId": "c1", "status": "success", "content": [{"kind": "text", "data": "a.py"}]}
    return [
        line("Prompt", ("text", "which files?"), meta={"timestamp": 1772359200}),
        line("AssistantMessage", ("text", "Looking."), ("toolUse", call), message_id="m2"),
        line("ToolResults", ("toolResult", result)),
        line("AssistantMessage", ("text", "One file.")),
    ]


def test_files_of_the_second_engine(tmp_path: Path) -> None:
    home, folder = tmp_path / "home", tmp_path / ".kiro" / "sessions" / "cli"
    lines(folder / "k1.jsonl", [*talk(), line("Hologram"), line("Prompt", ("hologram", 1))])
    turns = {"user_turn_metadatas": [{"input_token_count": 100, "output_token_count": 7}, {"input_token_count": None}]}
    state = {"rts_model_state": {"model_info": {"model_id": "sonnet"}}, "conversation_metadata": turns}
    about = {
        "session_id": "k1",
        "cwd": "/work/k",
        "title": "Listing",
        "created_at": "2026-03-01T10:00:00Z",
        "session_state": state,
    }
    (folder / "k1.json").write_text(json.dumps(about))
    lines(folder / "k2.jsonl", talk()[:1])
    (folder / "k2.json").write_text(json.dumps({"session_id": "k2", "parent_session_id": "k1"}))
    done = program.run("sessions", "import", "--found", "--yes", home=home, env={"HOME": str(tmp_path)})
    assert done.status == 0 and "2 sessions with 5 messages imported" in done.out, done
    assert "Hologram" in done.err and "block hologram" in done.err
    found = sessions(home)
    session = found["kiro-k1"]
    assert (session["title"], session["cwd"], session["model"], session["input_tokens"]) == (
        "Listing",
        "/work/k",
        "sonnet",
        100,
    )
    assert told(session) == SHOWN
    function = session["messages"][1]["tool_calls"][0]["function"]
    assert (function["name"], json.loads(function["arguments"])) == ("execute_bash", {"command": "ls"})
    assert (session["messages"][2]["tool_call_id"], session["messages"][2]["tool_name"]) == ("c1", "execute_bash")
    assert (found["kiro-k2"]["kind"], found["kiro-k2"]["parent_session_id"]) == ("subagent", "kiro-k1")
    assert "2 sessions already here" in brought_in(tmp_path / ".kiro", home)


def test_a_folder_of_the_third_engine(tmp_path: Path) -> None:
    home, folder = tmp_path / "home", tmp_path / "w" / "sess_k3"
    payloads = [
        {"type": "user", "content": "which files?"}, {"type": "assistant", "operationType": "Say", "content": "Looking."},
        {"type": "tool_call", "toolCallId": "c1", "toolName": "shell", "args": {"command": "ls"}},
        {"type": "tool_result", "toolCallId": "c1", "content": "a.py", "success": True},
        {"type": "assistant", "operationType": "Say", "content": "One file."}, {"type": "usage_summary", "promptTurnSummaries": []},
    ]  # fmt: skip
    stamped = [
        {"id": f"e{n}", "timestamp": f"2026-03-01T10:0{n}:00Z", "payload": one} for n, one in enumerate(payloads)
    ]
    lines(folder / "messages.jsonl", stamped)
    (folder / "session.json").write_text(json.dumps({"id": "k3", "modelId": "sonnet"}))
    brought_in(tmp_path / "w", home)
    session = sessions(home)["kiro-k3"]
    assert [one for one in told(session) if one[1]] == SHOWN and session["model"] == "sonnet"
    assert [one["tool_name"] for one in session["messages"] if one["role"] == "tool"] == ["shell"]


def test_rows_of_the_database(tmp_path: Path) -> None:
    home = tmp_path / "home"
    used = {"content": "Looking.", "tool_uses": [{"id": "c1", "name": "execute_bash", "args": {"command": "ls"}}]}
    result = {"tool_use_id": "c1", "content": [{"Text": "a.py"}], "status": "Success"}
    value = {"model_info": {"model_id": "opus"}, "history": [
        {"user": {"content": {"Prompt": {"prompt": "which files?"}}, "timestamp": "2026-03-01T10:00:00Z"}, "assistant": {"ToolUse": used},
         "request_metadata": {"stream_end_timestamp_ms": 1772359260000}},
        {"user": {"content": {"ToolUseResults": {"tool_use_results": [result]}}}, "assistant": {"Response": {"content": "One file."}}},
    ]}  # fmt: skip
    path = database(
        tmp_path / "data.sqlite3",
        ("CREATE TABLE conversations_v2(key TEXT, conversation_id TEXT, value TEXT, created_at INTEGER, updated_at INTEGER)", []),
        ("INSERT INTO conversations_v2 VALUES(?, ?, ?, 1772359200000, 0)", [("/work/k", "k4", json.dumps(value)), ("/w", "k5", "{")]),
    )  # fmt: skip
    assert "k5: not JSON" in brought_in(path, home, status=1)
    session = sessions(home)["kiro-k4"]
    assert told(session) == SHOWN and (session["cwd"], session["model"]) == ("/work/k", "opus")
