"""Codex CLI's rollouts come in once, although they tell every turn twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import zstandard

from tests.interop.importing import brought_in, hidden, lines, sessions, told

NAME = "0199aaaa-bbbb-7ccc-8ddd-eeeeeeeeeeee"


def item(minute: int, **payload: Any) -> dict[str, Any]:
    return {"timestamp": f"2026-03-02T09:{minute:02}:00.000Z", "type": "response_item", "payload": payload}


def event(minute: int, **payload: Any) -> dict[str, Any]:
    return {"timestamp": f"2026-03-02T09:{minute:02}:00.000Z", "type": "event_msg", "payload": payload}


def message(minute: int, role: str, words: str) -> dict[str, Any]:
    kind = "output_text" if role == "assistant" else "input_text"
    return item(minute, type="message", role=role, content=[{"type": kind, "text": words}])


def rollout() -> list[Any]:
    meta = {"id": NAME, "timestamp": "2026-03-02T09:00:00.000Z", "cwd": "/work/api", "cli_version": "0.50",
            "base_instructions": {"text": "You are Codex."}, "git": {"branch": "main"}}  # fmt: skip
    return [
        {"timestamp": "2026-03-02T09:00:00.000Z", "type": "session_meta", "payload": meta},
        message(0, "user", "<environment_context>\n  <cwd>/work/api</cwd>\n</environment_context>"),
        {"timestamp": "2026-03-02T09:01:00.000Z", "type": "turn_context", "payload": {"model": "gpt-5-codex", "cwd": "/work/api"}},
        message(1, "user", "run the tests"),
        event(1, type="user_message", message="run the tests"),
        item(2, type="reasoning", summary=[{"type": "summary_text", "text": "I run pytest."}], encrypted_content="zzz"),
        item(2, type="function_call", name="shell", arguments='{"command":["pytest"]}', call_id="call_1"),
        item(3, type="function_call_output", call_id="call_1", output="2 passed"),
        message(4, "assistant", "All tests pass."),
        event(4, type="agent_message", message="All tests pass."),
        event(4, type="token_count", info={"last_token_usage": {"input_tokens": 900, "cached_input_tokens": 800, "output_tokens": 30}}),
        message(5, "user", "something silly"),
        message(5, "assistant", "a silly answer"),
        event(6, type="thread_rolled_back", num_turns=1),
        message(7, "user", "thank you"),
        event(7, type="thread_name_updated", thread_name="Green tests"),
        item(7, type="teleport", where="nowhere"),
    ]  # fmt: skip


@pytest.mark.parametrize("compressed", [False, True])
def test_a_rollout(tmp_path: Path, compressed: bool) -> None:
    home = tmp_path / "home"
    folder = tmp_path / ".codex" / "sessions" / "2026" / "03" / "02"
    file = lines(folder / f"rollout-2026-03-02T09-00-00-{NAME}.jsonl", rollout())
    if compressed:
        packed = file.with_name(file.name + ".zst")
        packed.write_bytes(zstandard.ZstdCompressor().compress(file.read_bytes()))
        file.unlink()
    printed = brought_in(tmp_path / ".codex", home)
    assert "1 session with 6 messages imported" in printed and "response_item teleport" in printed
    session = sessions(home)[f"codex-{NAME}"]
    assert (session["title"], session["cwd"], session["model"]) == ("Green tests", "/work/api", "gpt-5-codex")
    assert session["system_prompt"] == "You are Codex."
    assert [role for role, _ in told(session)] == ["system", "user", "assistant", "tool", "assistant", "user"]
    call, result, answer = session["messages"][2:5]
    assert call["reasoning"] == "I run pytest." and call["tool_calls"][0]["function"]["name"] == "shell"
    assert (result["content"], result["tool_name"]) == ("2 passed", "shell")
    assert (answer["content"], answer["input_tokens"], answer["cache_read_tokens"]) == ("All tests pass.", 100, 800)
    assert hidden(session) == ["something silly", "a silly answer"]
    assert "1 session already here" in brought_in(tmp_path / ".codex", home)


def test_a_compaction_begins_a_continuation(tmp_path: Path) -> None:
    home = tmp_path / "home"
    compacted = {"timestamp": "2026-03-02T09:30:00Z", "type": "compacted", "payload": {"message": "So far: green."}}
    file = lines(
        tmp_path / f"rollout-2026-03-02T09-00-00-{NAME}.jsonl", [*rollout(), compacted, message(31, "user", "go on")]
    )
    brought_in(file, home)
    found = sessions(home)
    assert told(found[f"codex-{NAME}.2"]) == [("user", "So far: green."), ("user", "go on")]
    assert found[f"codex-{NAME}.2"]["parent_session_id"] == f"codex-{NAME}"
    assert found[f"codex-{NAME}"]["end_reason"] == "compression"


def test_a_sub_agent_an_editors_context_and_a_lost_header(tmp_path: Path) -> None:
    home, other = tmp_path / "home", NAME.replace("a", "b")
    spawned = {"subagent": {"thread_spawn": {"parent_thread_id": NAME, "depth": 1}}}
    asked = message(
        1, "user", "# Context from my IDE setup:\n\n## Open tabs: a.py\n\n## My request for Codex:\nfix a.py\n"
    )
    lines(tmp_path / f"rollout-2026-03-02T09-00-00-{NAME}.jsonl", ['{"timestamp": "2026-03', asked])
    lines(tmp_path / f"rollout-2026-03-02T09-01-00-{other}.jsonl", [
        {"timestamp": "2026-03-02T09:01:00.000Z", "type": "session_meta", "payload": {"id": other, "source": spawned}},
        message(2, "user", "look into it"),
    ])  # fmt: skip
    assert "line 1: not JSON" in brought_in(tmp_path, home, status=1)
    found = sessions(home)
    assert told(found[f"codex-{NAME}"])[1] == ("user", "fix a.py") and told(found[f"codex-{NAME}"])[0][0] == "system"
    agent = found[f"codex-{other}"]
    assert (agent["parent_session_id"], agent["kind"]) == (f"codex-{NAME}", "subagent")
