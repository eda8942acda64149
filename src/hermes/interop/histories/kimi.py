"""Kimi Code: ~/.kimi-code/sessions/<key>/<session>/agents/<agent>/wire.jsonl, one record per line; the state.json above."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hermes.interop.histories import Conversation, Message, make, reads
from hermes.interop.json_reading import Reading, Record, first_objects, json_lines, json_object, text

SOURCE = "kimi"
FILES = "wire.jsonl"  # of each session's main agent and sub-agents
_TOKENS = ("inputOther", "output", "inputCacheRead", "inputCacheCreation")
_BOOKKEEPING = tuple(  # how the types of such records begin
    "agent. config. context.clear cron. forked file_history. full_compaction. goal. llm. metadata micro_compaction. permission."
    " plan plugin. profile. prompt. runtime. skill. subagent. swarm task. todo token_counting. tools. turn. usage.".split()
)


def usual_places() -> list[Path]:
    """The places where Kimi Code keeps its sessions."""
    return [make.program_home("KIMI_CODE_HOME", ".kimi-code") / "sessions"]


def sniff(path: Path) -> bool:
    """Whether a file is what an agent of Kimi Code wrote."""
    return any(
        (record.get("type") == "context.append_message" and isinstance(record.object("message").get("content"), list))
        or record.get("type") == "context.append_loop_event"
        for record in first_objects(path, 20)
    )


@reads
def read(path: Path, reading: Reading) -> Iterator[Conversation]:
    """The conversation of one agent, in as many parts as it was compacted into."""
    yield _WireReader(path, reading).made


def _conversation(path: Path) -> Conversation:
    """The session as its state.json describes it; a sub-agent's is a child of its parent's."""
    is_placed = path.parent.parent.name == "agents"
    folder = path.parents[2] if is_placed else path.parent
    state = json_object(folder / "state.json")
    name = state.text("id") or (folder.name if is_placed else path.stem)
    made = Conversation(SOURCE, name, state.text("title"), state.text("cwd") or state.text("workDir"))
    made.started_at, made.parent, made.kind = state.time("createdAt"), state.text("forkedFrom"), "branch"
    made.archived_at = state.time("updatedAt") if state.get("archived") is True else None
    if is_placed and path.parent.name != "main":
        above = state.object("agents").object(path.parent.name).text("parentAgentId") or "main"
        made.foreign_id, made.title, made.archived_at, made.started_at = f"{name}-{path.parent.name}", None, None, None
        made.parent, made.kind = name if above == "main" else f"{name}-{above}", "subagent"
    return made


class _WireReader:
    """The records of a file as messages."""

    def __init__(self, path: Path, reading: Reading) -> None:
        self.made, self._reading = _conversation(path), reading
        self._model: str | None = None
        self._steps: dict[str, Message] = {}
        for number, line in json_lines(path, reading):
            self._take(str(line.get("type")), line, line.time("time"), f"line-{number}")

    def _take(self, kind: str, line: Record, at: float | None, name: str) -> None:
        if kind == "context.append_message":
            self._add_message(line.object("message"), at, name)
        elif kind == "context.append_loop_event":
            self._step(line.object("event"), at, name)
        elif kind == "context.apply_compaction" and line.text("summary"):
            self.made.compact(line["summary"], at, name)
        elif kind == "context.undo":
            self.made.hide_turns(line.count("count") or 0)
        elif kind.startswith(_BOOKKEEPING):
            self._model = line.text("model") or line.text("modelAlias") or self._model
            self.made.system_prompt = self.made.system_prompt or line.text("systemPrompt")
        else:
            self._reading.unknown[kind] += 1

    def _add_message(self, message: Record, at: float | None, name: str) -> None:
        role, content = message.get("role"), self._content(message.get("content"))
        name = message.text("id") or name
        if role == "tool":
            self._result(message.get("toolCallId"), content, at, name)
        elif role == "assistant":
            reply = self._reply(name, at)
            reply["content"] = content
            for part in message.objects("content"):
                self._add_thought(reply, part)
            for call in message.objects("toolCalls"):
                self._call(reply, call.get("id"), call.get("name"), call.get("arguments"), name)
        elif content:
            is_injected = message.object("origin").get("kind") == "injection"
            self.made.messages.append(make.message("system" if is_injected else str(role or "user"), content, at, name))

    def _step(self, event: Record, at: float | None, name: str) -> None:
        """One event of a reply: its beginning and end, its parts, a tool call, the result of one."""
        kind = event.get("type")
        step = event.text("stepUuid") or event.text("uuid") or name
        if kind == "content.part":
            reply, part = self._reply(step, at), event.object("part")
            self._add_thought(reply, part)
            if content := self._content([part]):
                reply["content"] = make.joined([*_parts(reply["content"]), *_parts(content)])
        elif kind == "tool.call":
            self._call(self._reply(step, at), event.get("toolCallId"), event.get("name"), event.get("args"), name)
        elif kind == "tool.result":
            result = event.object("result")
            output = result["output"] if isinstance(result.get("output"), str) else self._content(result.get("output"))
            self._result(event.get("toolCallId"), output, at, name)
        elif kind == "step.end" and step in self._steps:
            self._steps[step] |= event.object("usage").counts(_TOKENS)
            if finish := make.finish_of(event.text("finishReason")):
                self._steps[step]["finish_reason"] = finish
        elif kind not in ("step.begin", "step.end"):
            self._reading.unknown[f"event {kind}"] += 1

    def _reply(self, name: str, at: float | None) -> Message:
        if name not in self._steps:
            self._steps[name] = make.message("assistant", None, at, name, model=self._model)
            self.made.messages.append(self._steps[name])
        return self._steps[name]

    def _add_thought(self, reply: Message, part: Record) -> None:
        if part.get("type") == "think" and part.text("think"):
            reply["reasoning"] = "\n\n".join(filter(None, (reply.get("reasoning"), part["think"])))

    def _call(self, reply: Message, call: Any, tool: Any, arguments: Any, name: str) -> None:
        reply.setdefault("tool_calls", []).append(make.tool_call(text(call) or f"{name}-call", tool, arguments))

    def _result(self, call: Any, output: Any, at: float | None, name: str) -> None:
        self.made.messages.append(make.result(output, at, name, text(call)))

    def _content(self, content: Any) -> Any:
        parts: list[Any] = [content] if text(content) else []
        for part in Record.all(content):
            if part.get("type") == "text":
                parts.append(part.text("text"))
            elif part.get("type") == "image_url":
                parts.append(make.picture(Record.of(part.get("imageUrl") or part.get("image_url")).get("url")))
            elif part.get("type") != "think":
                self._reading.unknown[f"part {part.get('type')}"] += 1
        return make.joined(parts)


def _parts(content: Any) -> list[Any]:
    """The parts that a message has so far."""
    return content if isinstance(content, list) else [content] if content else []
