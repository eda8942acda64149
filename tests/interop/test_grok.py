"""Sessions of Grok Build."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.interop.importing import PIXEL, brought_in, lines, sessions, told
from tests.support import program

NAME = "01a1ee88-3bc1-7b21-9a57-bc5a39450842"
FORK = "01a1ee89-3bc1-7b21-9a57-bc5a39450842"


def update(number: int, kind: str, prompt: str | None = None, owner: str = NAME, **more: Any) -> dict[str, Any]:
    at = 1795003200000 + number * 1000
    meta = {"eventId": f"{owner}-{number % 5}", "agentTimestampMs": at, **({"promptId": prompt} if prompt else {})}
    told = {"sessionId": NAME, "update": {"sessionUpdate": kind, **more}, "_meta": meta}
    return {"timestamp": at // 1000, "method": "session/update", "params": told}


def chunk(number: int, kind: str, text: str, prompt: str | None = None, **meta: Any) -> dict[str, Any]:
    content = {"type": "text", "text": text}
    return update(number, kind, prompt, content=content, **({"_meta": meta} if meta else {}))


def talk() -> list[Any]:
    tool = {"x.ai/tool": {"name": "run_terminal_command", "kind": "execute"}}
    output = [{"type": "content", "content": {"type": "text", "text": "a.py\n"}}]
    used = {"inputTokens": 240, "outputTokens": 14, "cachedReadTokens": 40, "reasoningTokens": 3}
    return [
        chunk(1, "user_message_chunk", "which files?", modelId="grok-4", promptIndex=0),
        chunk(2, "agent_thought_chunk", "I list ", "p1"), chunk(3, "agent_thought_chunk", "them.", "p1"),
        chunk(4, "agent_message_chunk", "Look", "p1"), chunk(5, "agent_message_chunk", "ing.", "p1"),
        update(6, "tool_call", "p1", toolCallId="c1", title="run_terminal_command", rawInput={"command": "ls"}, _meta=tool),
        update(7, "tool_call_update", "p1", toolCallId="c1", title="Execute `ls`", rawInput={"variant": "Bash", "command": "ls"}),
        update(8, "tool_call_update", "p1", toolCallId="c1", status="completed", content=output, rawOutput={"type": "Bash"}),
        chunk(9, "agent_thought_chunk", "Now I answer.", "p1"), chunk(10, "agent_message_chunk", "One file.", "p1"),
        update(11, "turn_completed", prompt_id="p1", stop_reason="end_turn", usage=used),
    ]  # fmt: skip


def placed(root: Path, records: list[Any], name: str = NAME, **more: Any) -> Path:
    folder = root / "sessions" / "%2Fwork%2Fg" / name
    lines(folder / "updates.jsonl", records)
    about = {
        "info": {"id": name, "cwd": "/work/g"},
        "created_at": "2026-11-18T12:00:00Z",
        "current_model_id": "grok-4",
        **more,
    }
    (folder / "summary.json").write_text(json.dumps(about))
    return folder


def test_a_session_with_a_tool_reasoning_and_a_sub_agent(tmp_path: Path) -> None:
    home, child = tmp_path / "home", FORK
    placed(tmp_path / ".grok", talk(), generated_title="Listing", head_branch="main")
    about = {"session_kind": "subagent", "parent_session_id": NAME}
    placed(tmp_path / ".grok", [chunk(1, "user_message_chunk", "look")], child, **about)
    done = program.run("sessions", "import", "--found", "--yes", home=home, env={"HOME": str(tmp_path)})
    assert done.status == 0 and "2 sessions with 5 messages imported" in done.out, done
    found = sessions(home)
    session = found[f"grok-{NAME}"]
    assert (session["source"], session["title"], session["cwd"], session["model"]) == (
        "grok",
        "Listing",
        "/work/g",
        "grok-4",
    )
    assert told(session) == [
        ("user", "which files?"),
        ("assistant", "Looking."),
        ("tool", "a.py\n"),
        ("assistant", "One file."),
    ]
    _, reply, result, answer = session["messages"]
    assert (reply["reasoning"], reply["model"]) == ("I list them.", "grok-4")
    call = reply["tool_calls"][0]["function"]
    assert (call["name"], json.loads(call["arguments"])) == ("run_terminal_command", {"command": "ls"})
    assert (result["tool_call_id"], result["tool_name"]) == ("c1", "run_terminal_command")
    assert (answer["input_tokens"], answer["cache_read_tokens"], answer["output_tokens"]) == (200, 40, 14)
    assert (found[f"grok-{child}"]["kind"], found[f"grok-{child}"]["parent_session_id"]) == (
        "subagent",
        f"grok-{NAME}",
    )
    assert "2 sessions already here" in brought_in(tmp_path / ".grok", home)


def test_a_compaction_a_picture_and_an_unknown_kind(tmp_path: Path) -> None:
    home = tmp_path / "home"
    picture = {"type": "image", "data": PIXEL, "mimeType": "image/png"}
    folder = placed(tmp_path / "g", [
        *talk(), chunk(12, "user_message_chunk", "a note", hideFromScrollback=True), update(13, "hologram"),
        update(14, "compaction_checkpoint", checkpoint_file="compaction_checkpoints/x.json"),
        chunk(15, "user_message_chunk", "/compact", hostTurn=True), update(16, "turn_completed", stop_reason="end_turn"),
        chunk(17, "user_message_chunk", "go on"), update(18, "user_message_chunk", content=picture),
    ])  # fmt: skip
    summary = {"type": "user", "content": [{"type": "text", "text": "Summary."}], "synthetic_reason": "compaction_meta"}
    lines(folder / "compaction_checkpoints" / "x.json", [{"compacted_history": [{"type": "system"}, summary]}])
    assert "unknown type: hologram" in brought_in(folder / "updates.jsonl", home)
    found = sessions(home)
    assert told(found[f"grok-{NAME}"])[-1] == ("system", "a note")
    first, command, last = found[f"grok-{NAME}.2"]["messages"]
    assert [first["content"], command["content"], last["content"][0]["text"]] == ["Summary.", "/compact", "go on"]
    assert "attachment:sha256:" in str(last["content"][1])


def test_a_fork_is_a_branch_and_a_grown_file_goes_on(tmp_path: Path) -> None:
    home = tmp_path / "home"
    placed(tmp_path / "g", talk())
    placed(tmp_path / "g", [chunk(20, "user_message_chunk", "in the fork")], FORK, parent_session_id=NAME)
    brought_in(tmp_path / "g", home)
    fork = sessions(home)[f"grok-{FORK}"]
    assert (fork["kind"], fork["parent_session_id"]) == ("branch", f"grok-{NAME}")
    placed(tmp_path / "g", [*talk(), chunk(30, "user_message_chunk", "later")])
    assert "1 session updated" in brought_in(tmp_path / "g", home)
    assert told(sessions(home)[f"grok-{NAME}"])[-1] == ("user", "later")
