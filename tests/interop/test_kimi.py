"""Sessions of Kimi Code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.interop.importing import PIXEL, brought_in, hidden, lines, sessions, told
from tests.support import program

NAME = "session_11111111-2222-4333-8444-555555555555"


def said(minute: int, text: str, origin: str = "user", *parts: Any) -> dict[str, Any]:
    message = {"role": "user", "content": [{"type": "text", "text": text}, *parts], "id": f"msg_{minute}", "toolCalls": [],
               "origin": {"kind": origin}}  # fmt: skip
    return {"type": "context.append_message", "message": message, "time": 1795003200000 + minute * 1000}


def event(minute: int, kind: str, **more: Any) -> dict[str, Any]:
    return {
        "type": "context.append_loop_event",
        "event": {"type": kind, **more},
        "time": 1795003200000 + minute * 1000,
    }


def talk() -> list[Any]:
    used = {"inputOther": 100, "output": 7, "inputCacheRead": 20, "inputCacheCreation": 3}
    return [
        {"type": "metadata", "protocol_version": "1.5", "created_at": 1795003200000},
        {"type": "profile.bind", "modelAlias": "k2", "systemPrompt": "You are Kimi.", "time": 1795003200000},
        {"type": "turn.prompt", "input": [{"type": "text", "text": "which files?"}], "time": 1795003201000},
        said(1, "which files?", "user", {"type": "image_url", "imageUrl": {"url": f"data:image/png;base64,{PIXEL}"}}),
        said(2, "<system-reminder>today</system-reminder>", "injection"),
        event(3, "step.begin", uuid="s1", turnId="0"),
        {"type": "llm.request", "model": "kimi-k2", "time": 1795003203000},
        event(3, "content.part", stepUuid="s1", part={"type": "think", "think": "I list them."}),
        event(3, "content.part", stepUuid="s1", part={"type": "text", "text": "Looking."}),
        event(4, "tool.call", stepUuid="s1", toolCallId="c1", name="Bash", args={"command": "ls"}),
        event(5, "tool.result", toolCallId="c1", result={"output": "a.py\n"}),
        event(5, "step.end", uuid="s1", finishReason="tool_use", usage=used),
        event(6, "content.part", stepUuid="s2", part={"type": "text", "text": "One file."}),
        event(6, "step.end", uuid="s2", finishReason="end_turn", usage=used),
    ]  # fmt: skip


def placed(root: Path, agent: str, records: list[Any], name: str = NAME, **state: Any) -> Path:
    folder = root / "sessions" / "wd_work" / name
    lines(folder / "agents" / agent / "wire.jsonl", records)
    about = {"id": name, "version": 2, "cwd": "/work/k", "createdAt": 1795003199000, "updatedAt": 1795003300000}
    (folder / "state.json").write_text(json.dumps({**about, **state}))
    return folder


def test_a_session_with_a_tool_reasoning_a_picture_and_a_sub_agent(tmp_path: Path) -> None:
    home = tmp_path / "home"
    placed(tmp_path / ".kimi-code", "agent-0", [said(4, "look around", "system_trigger"), *talk()[5:]])
    agents = {"agent-0": {"type": "sub", "parentAgentId": "main"}}
    placed(tmp_path / ".kimi-code", "main", talk(), title="Listing", archived=True, agents=agents)
    done = program.run("sessions", "import", "--found", "--yes", home=home, env={"HOME": str(tmp_path)})
    assert done.status == 0 and "2 sessions with 9 messages imported" in done.out, done
    found = sessions(home)
    session, child = found[f"kimi-{NAME}"], found[f"kimi-{NAME}-agent-0"]
    assert (session["source"], session["title"], session["cwd"], session["model"], session["system_prompt"]) == (
        "kimi",
        "Listing",
        "/work/k",
        "kimi-k2",
        "You are Kimi.",
    )
    asked, note, reply, result, answer = session["messages"]
    assert "attachment:sha256:" in str(asked["content"]) and note["role"] == "system"
    assert (reply["content"], reply["reasoning"], reply["finish_reason"]) == ("Looking.", "I list them.", "tool_calls")
    assert json.loads(reply["tool_calls"][0]["function"]["arguments"]) == {"command": "ls"}
    assert (reply["input_tokens"], reply["cache_read_tokens"], reply["cache_write_tokens"], reply["output_tokens"]) == (
        100,
        20,
        3,
        7,
    )
    assert (result["content"], result["tool_call_id"], result["tool_name"]) == ("a.py\n", "c1", "Bash")
    assert answer["content"] == "One file." and session["archived_at"] == 1795003300.0
    assert (child["kind"], child["parent_session_id"], told(child)[0]) == (
        "subagent",
        f"kimi-{NAME}",
        ("user", "look around"),
    )
    assert "2 sessions already here" in brought_in(tmp_path / ".kimi-code", home)


def test_an_undone_turn_a_compaction_an_unknown_kind_and_what_is_said_later(tmp_path: Path) -> None:
    home, undone = tmp_path / "home", [said(7, "a mistake"), {"type": "context.undo", "count": 1}]
    file = lines(tmp_path / "wire.jsonl", [*talk(), *undone, said(8, "kept"), {"type": "hologram"}, '{"type": "cont'])
    printed = brought_in(file, home, status=1)
    assert "unknown type: hologram" in printed and "line 19: not JSON" in printed
    session = sessions(home)["kimi-wire"]
    assert told(session)[-1] == ("user", "kept") and hidden(session) == ["a mistake"]
    later = [{"type": "context.apply_compaction", "summary": "Summary.", "time": 1795003210000}, said(11, "go on")]
    lines(file, [*talk(), *undone, said(8, "kept"), said(9, "more"), *later])
    assert "1 session with 3 messages imported, 1 session updated" in brought_in(file, home)
    found = sessions(home)
    assert told(found["kimi-wire"])[-1] == ("user", "more") and found["kimi-wire"]["end_reason"] == "compression"
    assert told(found["kimi-wire.2"]) == [("user", "Summary."), ("user", "go on")]
