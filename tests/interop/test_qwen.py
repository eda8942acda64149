"""Sessions of Qwen Code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.interop.importing import PIXEL, brought_in, hidden, lines, sessions, told
from tests.support import program

NAME = "33333333-2222-4333-8444-555555555555"


def record(
    number: int, parent: int | None, kind: str, role: str = "", parts: list[Any] | None = None, **more: Any
) -> dict[str, Any]:
    line = {"uuid": f"q{number}", "parentUuid": None if parent is None else f"q{parent}", "sessionId": NAME, "type": kind,
            "timestamp": f"2026-03-08T10:{number:02}:00.000Z", "cwd": "/work/q", "version": "0.5.0", "gitBranch": "main"}  # fmt: skip
    return {**line, **({"message": {"role": role, "parts": parts}} if parts is not None else {}), **more}


def talk() -> list[Any]:
    call = {"functionCall": {"id": "c1", "name": "list_directory", "args": {"path": "."}}}
    answer = {"functionResponse": {"id": "c1", "name": "list_directory", "response": {"output": "a.py"}}}
    used = {"promptTokenCount": 50, "cachedContentTokenCount": 40, "candidatesTokenCount": 5, "thoughtsTokenCount": 3}
    picture = {"inlineData": {"mimeType": "image/png", "data": PIXEL}}
    return [
        record(1, None, "user", "user", [{"text": "which files?"}, picture]),
        record(2, 1, "assistant", "model", [{"text": "I list them.", "thought": True}, {"text": "Looking."}, call],
               model="qwen3-coder", usageMetadata=used),
        record(3, 2, "tool_result", "user", [answer], toolCallResult={"callId": "c1", "status": "success"}),
        record(4, 3, "system", subtype="ui_telemetry", systemPayload={"uiEvent": {}}),
        record(5, 4, "user", "user", [{"text": "a mistake"}]),
        record(6, 4, "assistant", "model", [{"text": "One file."}], model="qwen3-coder"),
        record(7, 6, "system", subtype="custom_title", systemPayload={"customTitle": "Listing"}),
    ]  # fmt: skip


def test_a_session_with_a_tool_a_thought_and_a_branch(tmp_path: Path) -> None:
    home = tmp_path / "home"
    lines(tmp_path / ".qwen" / "projects" / "-work-q" / "chats" / f"{NAME}.jsonl", talk())
    done = program.run("sessions", "import", "--found", "--yes", home=home, env={"HOME": str(tmp_path)})
    assert done.status == 0 and "1 session with 4 messages imported" in done.out, done
    session = sessions(home)[f"qwen-{NAME}"]
    assert (session["source"], session["title"], session["cwd"], session["model"]) == (
        "qwen",
        "Listing",
        "/work/q",
        "qwen3-coder",
    )
    assert [role for role, _ in told(session)] == ["user", "assistant", "tool", "assistant"]
    asked, reply, result, answer = session["messages"]
    assert "attachment:sha256:" in str(asked["content"])
    assert (reply["content"], reply["reasoning"]) == ("Looking.", "I list them.")
    assert (reply["input_tokens"], reply["cache_read_tokens"], reply["output_tokens"]) == (10, 40, 5)
    assert (result["content"], result["tool_call_id"], result["tool_name"]) == ("a.py", "c1", "list_directory")
    assert answer["content"] == "One file." and hidden(session) == ["a mistake"]
    assert "1 session already here" in brought_in(tmp_path / ".qwen", home)


def test_a_compression_a_damaged_line_and_an_unknown_kind(tmp_path: Path) -> None:
    home = tmp_path / "home"
    history = [
        {"role": "user", "parts": [{"text": "Summary: files."}]},
        {"role": "model", "parts": [{"text": "Got it."}]},
    ]
    file = lines(tmp_path / f"{NAME}.jsonl", [
        *talk(), '{"uuid": "q8', record(9, 8, "user", "user", [{"text": "after a damaged line"}]), {"type": "hologram", "sessionId": NAME},
        record(10, 9, "system", subtype="chat_compression", systemPayload={"info": {}, "compressedHistory": history}),
        record(11, 10, "user", "user", [{"text": "go on"}]), record(12, None, "user", "user", [{"text": "without a parent"}]),
    ])  # fmt: skip
    printed = brought_in(file, home, status=1)
    assert "line 8: not JSON" in printed and "unknown type: hologram" in printed
    found = sessions(home)
    assert told(found[f"qwen-{NAME}"])[-1] == ("user", "after a damaged line")
    assert [text for _, text in told(found[f"qwen-{NAME}.2"])] == ["Summary: files.", "go on", "without a parent"]
    assert found[f"qwen-{NAME}"]["end_reason"] == "compression"
