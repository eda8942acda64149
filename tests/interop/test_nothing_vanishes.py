"""No later line takes away what an earlier one had, unless it says so: the rule for every importer, over its own sample."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hermes.interop.histories import (
    antigravity,
    claude_code,
    cline,
    codex,
    copilot,
    gemini,
    grok,
    kimi,
    pi,
    qwen,
    vscode_copilot,
)
from tests.interop import (
    test_antigravity,
    test_claude_code,
    test_cline,
    test_codex,
    test_copilot,
    test_gemini,
    test_grok,
    test_kimi,
    test_qwen,
    test_vscode_copilot,
)
from tests.interop.importing import lines

AT = "2026-03-07T10:00:00.000Z"


def entry(number: int, **more: Any) -> dict[str, Any]:
    parent = f"{number - 1}" if number > 1 else None
    return {"type": "message", "id": f"{number}", "parentId": parent, "timestamp": AT, **more}


REPLY = {"role": "assistant", "model": "sonnet", "stopReason": "toolUse", "usage": {"input": 1, "output": 2},
         "content": [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "I look."},
                     {"type": "toolCall", "id": "t1", "name": "bash", "arguments": {"c": "ls"}}]}  # fmt: skip
RESULT = {"role": "toolResult", "toolCallId": "t1", "toolName": "bash", "content": [{"type": "text", "text": "a"}]}
PI = [
    {"type": "session", "version": 3, "id": "p", "timestamp": AT, "cwd": "/w"},
    entry(1, message={"role": "user", "content": "ls please"}), entry(2, message=REPLY), entry(3, message=RESULT),
]  # fmt: skip
CLAUDE = [one for one in test_claude_code.conversation() if not isinstance(one, str)]
CODEX = test_codex.rollout()[:11]

# Of each importer: its sample, the name of its file, and lines that may be written after it.
SAMPLES: dict[str, tuple[Any, str, list[Any], list[list[Any]]]] = {
    "claude-code": (claude_code, f"{test_claude_code.NAME}.jsonl", CLAUDE, [
        [CLAUDE[4]], CLAUDE,  # the same again
        [{**CLAUDE[5], "message": {**CLAUDE[5]["message"], "content": [], "usage": {}, "model": None}}],
        [test_claude_code.replied("a9", "a5", "msg_1", [], 9, 0)],
        [test_claude_code.said("u9", None, "without a parent", 9)],
        [test_claude_code.said("u9", "lost", "after a lost line", 9)],
        [{"type": "summary", "summary": "", "leafUuid": "a5"}, {"type": "ai-title", "aiTitle": ""}, {"type": "custom-title"}],
        [{"type": "last-prompt", "lastPrompt": "x", "leafUuid": "nowhere"}, {"type": "user", "uuid": "u1"}],
        [{"type": "system", "subtype": "compact_boundary", "uuid": "b9", "parentUuid": None, "timestamp": AT}],
    ]),
    "codex": (codex, f"rollout-2026-03-02T09-00-00-{test_codex.NAME}.jsonl", CODEX, [
        CODEX[:1], CODEX,
        [{"timestamp": AT, "type": "session_meta", "payload": {"id": "another", "cwd": None}}],
        [{"timestamp": AT, "type": "turn_context", "payload": {"model": None}}],
        [test_codex.event(9, type="thread_name_updated", thread_name="")],
        [test_codex.event(9, type="token_count", info=None), test_codex.event(9, type="token_count", info={"last_token_usage": {}})],
        [{"timestamp": AT, "type": "compacted", "payload": {"message": "So far."}}],
    ]),
    "gemini": (gemini, "chats/session-1.jsonl", test_gemini.TALK, [
        test_gemini.resumed("of the API"), test_gemini.resumed("of the file"), test_gemini.TALK,
        [{"$set": {"messages": []}}], [{"$set": {"startTime": None, "sessionId": None, "summary": None}}],
        [{"id": "m2", "type": "gemini", "content": "", "toolCalls": [], "tokens": None}], [{"$rewindTo": "nothing"}],
        [{"id": "m2", "type": "gemini"}], [{"id": "m1", "type": "info", "content": "saved"}],
        [{"sessionId": "another", "projectHash": "x"}], [{"$set": {"directories": [], "kind": "main"}}],
    ]),
    "pi": (pi, "p.jsonl", PI, [
        [PI[2]], PI, [PI[0] | {"id": "another"}],
        [entry(9, parentId="lost", message={"role": "user", "content": "after a lost line"})],
        [{"type": "session_info", "id": "9", "parentId": "3", "name": ""}], [{"type": "label", "id": "9", "label": "x"}],
        [{"type": "label", "id": "9", "parentId": None, "label": "x"}], [{"type": "custom", "id": "9"}],
        [entry(2, message={"role": "assistant", "content": []})], [{"type": "message"}],
    ]),
    "qwen": (qwen, f"{test_qwen.NAME}.jsonl", test_qwen.talk(), [
        test_qwen.talk()[:1], test_qwen.talk(), [test_qwen.record(9, None, "user", "user", [{"text": "without a parent"}])],
        [test_qwen.record(2, 1, "assistant", "model", [])], [test_qwen.record(9, 99, "system", subtype="ui_telemetry")],
        [test_qwen.record(9, 7, "system", subtype="custom_title", systemPayload={"customTitle": ""})],
        [{"type": "user"}], [{"type": "system", "sessionId": "", "cwd": None}],
    ]),
    "copilot": (copilot, "events.jsonl", test_copilot.talk(), [
        [test_copilot.event(9, "session.start", sessionId="another", context={})], [test_copilot.event(9, "session.resume")],
        [test_copilot.event(9, "tool.execution_complete", result=None)], [test_copilot.event(9, "assistant.message", content="")],
        [test_copilot.event(9, "session.model_change", newModel=None)], [{"type": "user.message"}],
    ]),
    "kimi": (kimi, "wire.jsonl", test_kimi.talk(), [
        test_kimi.talk()[:1], [test_kimi.event(9, "step.end", uuid="s2", usage={})], [{"type": "config.update", "modelAlias": None}],
        [test_kimi.event(9, "content.part", stepUuid="s2", part={"type": "text", "text": ""})], [{"type": "context.clear"}],
        [{"type": "context.undo", "count": 0}], [{"type": "context.apply_compaction", "summary": "So far."}], [{"type": "context.append_message"}],
    ]),
    "grok": (grok, "updates.jsonl", test_grok.talk(), [
        [test_grok.update(9, "turn_completed", usage={})], [test_grok.update(9, "tool_call_update", toolCallId="c1", status="failed")],
        [test_grok.chunk(9, "agent_message_chunk", "", "p2")], [test_grok.update(9, "compaction_checkpoint", checkpoint_file="gone")],
        [{"method": "session/update"}], [test_grok.chunk(9, "user_message_chunk", "", hideFromScrollback=True)],
    ]),
    "vscode-copilot": (vscode_copilot, "c.jsonl", test_vscode_copilot.log(test_vscode_copilot.agent_request(), customTitle="Two"), [
        [{"kind": 1, "k": ["requests", 0, "followups"], "v": []}], [{"kind": 2, "k": ["requests"]}], [{"kind": 1, "k": ["inputState"]}],
        [{"kind": 2, "k": ["requests"], "v": [test_vscode_copilot.request(9, "", [])]}], [{"kind": 1, "k": ["requests", 9, "vote"], "v": 1}],
    ]),
    "antigravity": (antigravity, "logs/transcript.jsonl", test_antigravity.talk(), [
        [test_antigravity.step(7, "MODEL", "PLANNER_RESPONSE", "")], test_antigravity.talk(), [test_antigravity.step(0, "USER_EXPLICIT", "USER_INPUT")],
        [test_antigravity.step(9, "SYSTEM", "CHECKPOINT")], [{"step_index": 3, "tool_calls": []}], [{"content": "?"}],
    ]),
}  # fmt: skip


def read(importer: Any, file: Path) -> list[dict[str, Any]]:
    return [dict(one.session) for one in importer.read(file, None, [])]


def facts(session: dict[str, Any]) -> set[str]:
    """The facts shown of a session: every message and every field of it, the title, folder and model."""
    found = {json.dumps([name, session.get(name)]) for name in ("cwd", "model", "title", "id") if session.get(name)}
    for one in session["messages"]:
        name = one.get("platform_message_id")
        found |= {
            json.dumps([name, key, value])
            for key, value in one.items()
            if value is not None and key not in ("id", "tool_calls")
        }
        found |= {json.dumps([name, call]) for call in one.get("tool_calls") or ()}
    return found


CASES = [(name, number) for name, (*_, more) in SAMPLES.items() for number in range(len(more))]


@pytest.mark.parametrize(("name", "number"), CASES)
def test_what_was_written_before_is_there_after_any_later_line(tmp_path: Path, name: str, number: int) -> None:
    importer, file_name, sample, more = SAMPLES[name]
    file = lines(tmp_path / file_name, sample)
    before = read(importer, file)
    known = facts(before[0])
    assert len(known) > 10
    lines(file, [*sample, *more[number]])
    after = read(importer, file)
    assert known - set().union(*map(facts, after)) == set()
    assert [one["id"] for one in before] == [one["id"] for one in after][: len(before)]
    assert after[0]["started_at"] <= before[0]["started_at"]
    counted = [sum(one.get("output_tokens") or 0 for one in some) for some in (before, after)]
    assert counted[0] <= counted[1]


# Samples of the others, for which values of any type cost nothing: JSON lines, or one value.
OTHERS: dict[str, tuple[Any, str, Any]] = {
    "cline": (cline, "api_conversation_history.json", test_cline.history()),
}
EVERY = {name: (importer, file, sample) for name, (importer, file, sample, _) in SAMPLES.items()} | OTHERS


def places(value: Any, way: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to each value inside of one."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inside:
        yield (*way, key)
        yield from places(one, (*way, key))


def replaced(value: Any, way: tuple[Any, ...], by: Any) -> Any:
    if not way:
        return by
    changed = value.copy()
    changed[way[0]] = replaced(value[way[0]], way[1:], by)
    return changed


@pytest.mark.parametrize("name", EVERY)
def test_values_of_any_type_cost_no_more_than_themselves(tmp_path: Path, name: str) -> None:
    importer, file_name, sample = EVERY[name]
    file = tmp_path / file_name
    file.parent.mkdir(parents=True, exist_ok=True)
    for way in places(sample):
        for value in (7, "x", [[]], {"a": None}):
            changed = replaced(sample, way, value)
            lines(file, changed) if file.suffix == ".jsonl" else file.write_text(json.dumps(changed))
            importer.sniff(file)
            assert isinstance(read(importer, file), list), (way, value)
