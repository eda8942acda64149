"""Sessions of GitHub Copilot CLI."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.interop.importing import brought_in, lines, sessions, told
from tests.support import program

NAME = "44444444-2222-4333-8444-555555555555"


def event(minute: int, kind: str, **data: Any) -> dict[str, Any]:
    return {
        "type": kind,
        "data": data,
        "id": f"e{minute}",
        "timestamp": f"2026-03-09T10:{minute:02}:00.000Z",
        "parentId": None,
    }


def talk() -> list[Any]:
    context = {"cwd": "/work/c", "branch": "main"}
    asked = [{"toolCallId": "t1", "name": "bash", "arguments": {"command": "ls"}}]
    return [
        event(0, "session.start", sessionId=NAME, startTime="2026-03-09T10:00:00.000Z", context=context, selectedModel="gpt-5"),
        event(1, "user.message", content="which files?", attachments=[{"type": "file", "path": "/work/c/a.py", "displayName": "a.py"}]),
        event(2, "assistant.turn_start", turnId="0"),
        event(3, "assistant.message", messageId="m1", content="Looking.", reasoningText="I list them.", toolRequests=asked, outputTokens=7),
        event(4, "tool.execution_start", toolCallId="t1", toolName="bash", arguments={"command": "ls"}),
        event(5, "tool.execution_complete", toolCallId="t1", success=True, result={"content": "a.py"}),
        event(6, "assistant.message", messageId="m2", content="One file.", toolRequests=[]),
        event(7, "session.shutdown", shutdownType="routine", codeChanges={"filesModified": []}),
    ]  # fmt: skip


def test_a_session_with_a_tool_and_reasoning(tmp_path: Path) -> None:
    home = tmp_path / "home"
    lines(
        tmp_path / ".copilot" / "session-state" / "a-folder" / "events.jsonl",
        [*talk(), event(8, "hologram", where="here")],
    )
    done = program.run("sessions", "import", "--found", "--yes", home=home, env={"HOME": str(tmp_path)})
    assert (
        done.status == 0 and "1 session with 4 messages imported" in done.out and "unknown type: hologram" in done.err
    ), done
    session = sessions(home)[f"copilot-{NAME}"]
    assert (session["source"], session["cwd"], session["model"]) == ("copilot", "/work/c", "gpt-5")
    shown = [
        ("user", "which files?\n\n[file a.py]"),
        ("assistant", "Looking."),
        ("tool", "a.py"),
        ("assistant", "One file."),
    ]
    assert told(session) == shown
    reply, result = session["messages"][1:3]
    assert (reply["reasoning"], reply["output_tokens"], len(reply["tool_calls"])) == ("I list them.", 7, 1)
    assert (result["tool_call_id"], result["tool_name"]) == ("t1", "bash")
    assert "1 session already here" in brought_in(tmp_path / ".copilot", home)


def test_calls_that_only_events_name_and_a_compaction(tmp_path: Path) -> None:
    file = lines(tmp_path / "events.jsonl", [
        *talk()[:2], event(3, "assistant.message", content="Both."),
        event(4, "tool.execution_start", toolName="view", arguments={"path": "a"}),
        event(5, "tool.execution_start", toolName="bash", arguments={}),
        event(6, "tool.execution_complete", result={"content": "of view"}, success=True),
        event(7, "tool.execution_complete", error={"message": "no such command"}, success=False),
        event(8, "session.compaction_complete", success=True, summaryContent="Summary."), event(9, "user.message", content="go on"),
    ])  # fmt: skip
    brought_in(file, tmp_path / "home")
    found = sessions(tmp_path / "home")
    first = found[f"copilot-{NAME}"]["messages"]
    calls = [call["id"] for call in first[1]["tool_calls"]]
    results = [(one["tool_call_id"], one["tool_name"], one["content"]) for one in first[2:]]
    assert results == [(calls[0], "view", "of view"), (calls[1], "bash", "no such command")]
    assert told(found[f"copilot-{NAME}.2"]) == [("user", "Summary."), ("user", "go on")]
