"""Sessions of Droid."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.interop.importing import PIXEL, brought_in, lines, sessions, told
from tests.support import program

NAME = "55555555-2222-4333-8444-555555555555"


def message(minute: int, role: str, *blocks: Any) -> dict[str, Any]:
    at = f"2026-03-10T10:{minute:02}:00.000Z"
    return {"type": "message", "id": f"m{minute}", "timestamp": at, "message": {"role": role, "content": list(blocks)}}


def text(words: str) -> dict[str, str]:
    return {"type": "text", "text": words}


def talk() -> list[Any]:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL}}
    call = {"type": "tool_use", "id": "c1", "name": "Execute", "input": {"command": "ls"}}
    return [
        {"type": "session_start", "id": NAME, "title": "Listing", "owner": "me", "version": 2, "cwd": "/work/d"},
        message(1, "user", text("<system-reminder>\ntoday\n</system-reminder>"), text("which files?"), image),
        message(2, "assistant", {"type": "thinking", "thinking": "I list them.", "signature": "x"}, text("Looking."), call),
        message(3, "user", {"type": "tool_result", "tool_use_id": "c1", "content": "a.py"}),
        message(4, "assistant", text("One file.")),
        {"type": "todo_state", "id": "t", "todos": []},
    ]  # fmt: skip


def test_a_session_with_a_tool_reasoning_and_a_picture(tmp_path: Path) -> None:
    home = tmp_path / "home"
    file = lines(tmp_path / ".factory" / "sessions" / "-work-d" / f"{NAME}.jsonl", talk())
    used = {"inputTokens": 100, "outputTokens": 9, "cacheReadTokens": 20, "cacheCreationTokens": 3, "thinkingTokens": 2}
    file.with_suffix(".settings.json").write_text(json.dumps({"model": "sonnet", "tokenUsage": used}))
    done = program.run("sessions", "import", "--found", "--yes", home=home, env={"HOME": str(tmp_path)})
    assert done.status == 0 and "1 session with 5 messages imported" in done.out, done
    session = sessions(home)[f"droid-{NAME}"]
    assert (session["source"], session["title"], session["cwd"], session["model"]) == (
        "droid",
        "Listing",
        "/work/d",
        "sonnet",
    )
    assert (session["input_tokens"], session["output_tokens"], session["reasoning_tokens"]) == (100, 9, 2)
    note, asked, reply, result, _ = session["messages"]
    assert note["role"] == "system" and "attachment:sha256:" in str(asked["content"])
    assert (reply["reasoning"], reply["tool_calls"][0]["function"]["name"]) == ("I list them.", "Execute")
    assert (result["content"], result["tool_call_id"], result["tool_name"]) == ("a.py", "c1", "Execute")
    assert "1 session already here" in brought_in(file, home)


def test_a_compaction_a_damaged_line_and_an_unknown_kind(tmp_path: Path) -> None:
    home, file = tmp_path / "home", tmp_path / f"{NAME}.jsonl"
    compaction = {
        "type": "compaction_state",
        "id": "k",
        "timestamp": "2026-03-10T11:00:00.000Z",
        "summaryText": "Summary.",
    }
    lines(file, [*talk(), compaction, message(59, "user", text("go on")), {"type": "hologram"}, "{"])
    printed = brought_in(file, home, status=1)
    assert "unknown type: hologram" in printed and "line 10: not JSON" in printed
    assert told(sessions(home)[f"droid-{NAME}.2"]) == [("user", "Summary."), ("user", "go on")]
