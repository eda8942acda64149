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
    assert done.status == 0 and "1 session with 4 messages" in done.out and "hologram" in done.err, done
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


def test_names_tokens_prompt_and_sub_agents_as_copilot_cli_1_0_102_writes_them(tmp_path: Path) -> None:
    def of_agent(made: dict[str, Any]) -> dict[str, Any]:
        return {**made, "agentId": "a1"}

    def used(minute: int, call: str, **tokens: int) -> dict[str, Any]:
        return event(minute, "session.usage_record", usage={"apiCallId": call, "cacheReadTokens": 0, **tokens})

    asked = [{"toolCallId": "t1", "name": "task", "arguments": {"prompt": "look around"}}]
    file = lines(tmp_path / NAME / "events.jsonl", [
        talk()[0], event(1, "user.message", content="delegate"), event(2, "system.message", role="system", content="You are Copilot."),
        used(3, "c1", inputTokens=100, outputTokens=9), event(4, "assistant.message", content="Delegating.", toolRequests=asked, apiCallId="c1"),
        of_agent(event(5, "subagent.started", toolCallId="t1", agentDisplayName="looker", agentDescription="look", model="gpt-mini")),
        of_agent(event(6, "user.message", content="look around")), of_agent(used(7, "c2", inputTokens=50, outputTokens=3, cacheReadTokens=20)),
        of_agent(event(8, "assistant.message", content="Nothing there.", apiCallId="c2")),
        event(9, "tool.execution_complete", toolCallId="t1", success=True, result={"content": "Nothing there."}),
    ])  # fmt: skip
    (file.parent / "workspace.yaml").write_text(f"id: {NAME}\nname: 'Look: around'\nuser_named: true\n")
    brought_in(file, tmp_path / "home")
    found = sessions(tmp_path / "home")
    session, agent = found[f"copilot-{NAME}"], found["copilot-a1"]
    assert (session["title"], session["system_prompt"]) == ("Look: around", "You are Copilot.")
    assert told(session) == [("user", "delegate"), ("assistant", "Delegating."), ("tool", "Nothing there.")]
    assert (session["input_tokens"], session["output_tokens"]) == (100, 9)
    assert (agent["parent_session_id"], agent["kind"], agent["title"]) == (session["id"], "subagent", "look")
    assert told(agent) == [("user", "look around"), ("assistant", "Nothing there.")]
    assert (agent["input_tokens"], agent["cache_read_tokens"], agent["model"], agent["cwd"]) == (
        30,
        20,
        "gpt-mini",
        "/work/c",
    )
