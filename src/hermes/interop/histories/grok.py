"""Grok Build: ~/.grok/sessions/<folder>/<session>/updates.jsonl, updates of the Agent Client Protocol; summary.json beside."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hermes.interop.histories.conversation import (
    FAILED,
    Conversation,
    Message,
    compact,
    continued,
    count,
    dicts,
    image_part,
    joined,
    mapping,
    message,
    reads,
    seconds,
    text,
    tool_call,
    without_cached,
    without_copies,
)  # fmt: skip
from hermes.interop.json_reading import Reading, first_objects, json_lines, json_object

SOURCE = "grok"
_CHUNKS = {"user_message_chunk": "user", "agent_message_chunk": "assistant", "agent_thought_chunk": "assistant"}
_BOOKKEEPING = (
    "plan", "available_commands_update", "current_mode_update", "config_option_update", "background_tasks",
    "subagent_spawned", "subagent_finished", "auto_compact_completed", "session_info_update", "usage_update",
)  # fmt: skip
_SUMMARY = "compaction_meta"


def usual_places() -> list[Path]:
    """The places where Grok Build keeps its sessions."""
    return [Path(os.environ.get("GROK_HOME") or Path.home() / ".grok") / "sessions"]


def sniff(path: Path) -> bool:
    """Whether a file holds the updates of a session of Grok Build."""
    return any(
        str(one.get("method")).endswith("session/update") and "sessionUpdate" in mapping(mapping(one.get("params")).get("update"))
        for one in first_objects(path)
    )  # fmt: skip


def files(folder: Path) -> Iterator[Path]:
    """The sessions below a folder."""
    yield from sorted(path for path in folder.rglob("updates.jsonl") if sniff(path))


@reads
def read(path: Path, reading: Reading) -> Iterator[Conversation]:
    """The session of one file, in as many parts as it was compacted into."""
    reader = _UpdateReader(path, reading)
    made = _conversation(path, reader.name)
    parts = without_copies(made, reader.parts, reader.copied) if reader.copied and made.parent else reader.parts
    yield from continued(made, parts)


def _conversation(path: Path, name: str | None) -> Conversation:
    about = json_object(path.with_name("summary.json"))
    info = mapping(about.get("info"))
    name = text(info.get("id")) or name or path.parent.name
    made = Conversation(
        SOURCE, name, cwd=text(info.get("cwd")), model=text(about.get("current_model_id")),
        title=text(about.get("title")) or text(about.get("generated_title")) or text(about.get("session_summary")),
        started_at=seconds(about.get("created_at")), parent=text(about.get("parent_session_id")), kind="branch",
    )  # fmt: skip
    if about.get("session_kind") == "subagent":
        started = next(path.parent.parent.glob(f"*/subagents/{name}/meta.json"), None) if "/" not in name else None
        above = text(json_object(started).get("parent_session_id")) if started else None
        made.parent, made.kind = made.parent or above, "subagent"
    if branch := text(about.get("head_branch")):
        made.meta["git_branch"] = branch
    return made


class _UpdateReader:
    """The updates of a file as messages: chunks of one reply are joined, a tool call is told by several updates."""

    def __init__(self, path: Path, reading: Reading) -> None:
        self._path, self._reading = path, reading
        self.name: str | None = None
        self.parts: list[list[Message]] = [[]]
        self.copied: set[str] = set()  # what was said in the session that this one was forked from
        self._model: str | None = None
        self._turns = 0  # that have ended
        self._turn: tuple[int, str | None] = (0, None)  # the one that the last chunk belongs to
        self._calls: dict[str, tuple[str, dict[str, Any]]] = {}  # of each open call, its tool and how it is told
        for number, line in json_lines(path, reading):
            told = mapping(line.get("params"))
            about, update = mapping(told.get("_meta")), mapping(told.get("update"))
            self.name = self.name or text(told.get("sessionId"))
            at = seconds(about.get("agentTimestampMs")) or seconds(line.get("timestamp"))
            # Its numbers begin again when the session is resumed: with the time they are unique.
            event = text(about.get("eventId"))
            name = f"{event}@{about.get('agentTimestampMs')}" if event else f"line-{number}"
            if event and not event.startswith(str(self.name)):
                self.copied.add(name)
            self._take(update, about, at, name)

    def _take(self, update: dict[str, Any], about: dict[str, Any], at: float | None, name: str) -> None:
        kind = str(update.get("sessionUpdate"))
        if kind in _CHUNKS:
            self._chunk(kind, update, (self._turns, text(about.get("promptId"))), at, name)
        elif kind == "tool_call":
            self._call(update, at, name)
        elif kind == "tool_call_update":
            self._result(update, at, name)
        elif kind == "turn_completed":
            self._end(update)
        elif kind == "compaction_checkpoint":
            self._compact(update, at, name)
        elif kind not in _BOOKKEEPING:
            self._reading.unknown[kind] += 1

    def _chunk(
        self, kind: str, update: dict[str, Any], turn: tuple[int, str | None], at: float | None, name: str
    ) -> None:
        content, about = mapping(update.get("content")), mapping(update.get("_meta"))
        role = _CHUNKS[kind]
        if about.get("hideFromScrollback"):
            role = "system"  # a note of the program
        self._model = text(about.get("modelId")) or self._model
        last = self.parts[-1][-1] if self.parts[-1] else {}
        goes_on = last.get("role") == role and not last.get("tool_calls") and not last.get("meta")
        if not goes_on or turn != self._turn or (kind == "agent_thought_chunk" and last.get("content")):
            last = message(role, None, at, name, model=self._model if role == "assistant" else None)
            self.parts[-1].append(last)
        self._turn = turn
        if kind == "agent_thought_chunk":
            last["reasoning"] = (last.get("reasoning") or "") + str(content.get("text") or "")
        elif text(content.get("text")) is None and content.get("type") != "text":
            last["content"] = joined([*([last["content"]] if last["content"] else []), _part(content)])
        elif isinstance(last["content"], list):
            last["content"].append({"type": "text", "text": str(content.get("text"))})
        else:
            last["content"] = (last["content"] or "") + str(content.get("text") or "")

    def _call(self, update: dict[str, Any], at: float | None, name: str) -> None:
        call = text(update.get("toolCallId")) or f"{name}-call"
        tool = text(mapping(mapping(update.get("_meta")).get("x.ai/tool")).get("name")) or text(update.get("title"))
        made = tool_call(call, tool or "tool", update.get("rawInput"))
        self._calls[call] = (tool or "tool", made)
        last = self.parts[-1][-1] if self.parts[-1] else {}
        if last.get("role") == "assistant":
            last.setdefault("tool_calls", []).append(made)
        else:
            self.parts[-1].append(message("assistant", None, at, name, model=self._model, tool_calls=[made]))

    def _result(self, update: dict[str, Any], at: float | None, name: str) -> None:
        """The end of a tool call; updates before it only repeat its arguments in other words."""
        call = str(update.get("toolCallId"))
        if update.get("status") not in ("completed", "failed") or call not in self._calls:
            return
        tool, _ = self._calls.pop(call)
        blocks = dicts(update.get("content"))
        parts = [_part(mapping(one.get("content"))) if one.get("type") == "content" else compact(one) for one in blocks]
        raw = update.get("rawOutput")
        output = joined([part for part in parts if part]) or (compact(raw) if raw is not None else None)
        self.parts[-1].append(message("tool", output, at, name, tool_call_id=call, tool_name=tool,
                                      meta=FAILED if update["status"] == "failed" else None))  # fmt: skip

    def _end(self, update: dict[str, Any]) -> None:
        """The end of a turn. Its tokens are counted together: the last reply has them."""
        self._turns += 1
        reply = next((one for one in reversed(self.parts[-1]) if one["role"] == "assistant"), None)
        used = mapping(update.get("usage"))
        if reply is None or not used or "output_tokens" in reply:
            return
        cached = used.get("cachedReadTokens")
        told = {"input_tokens": without_cached(used.get("inputTokens"), cached), "cache_read_tokens": count(cached),
                "cache_write_tokens": count(used.get("cacheCreationTokens")), "output_tokens": count(used.get("outputTokens")),
                "reasoning_tokens": count(used.get("reasoningTokens"))}  # fmt: skip
        reply |= {key: value for key, value in told.items() if value is not None}

    def _compact(self, update: dict[str, Any], at: float | None, name: str) -> None:
        """A compaction: the summary stands in a file of its own."""
        file = Path(str(update.get("checkpoint_file")))
        beside = self._path.parent / "compaction_checkpoints" / file.name
        history = dicts(json_object(beside).get("compacted_history"))
        notes = [one for one in history if one.get("synthetic_reason") == _SUMMARY]
        told = [text(block.get("text")) for one in notes[-1:] for block in dicts(one.get("content"))]
        summary = next(filter(None, told), None)
        self.parts.append([message("user", summary, at, name, meta={"summary": True})] if summary else [])


def _part(content: dict[str, Any]) -> Any:
    if content.get("type") == "image" and isinstance(content.get("data"), str):
        return image_part(content["data"], str(content.get("mimeType") or "image/png"))
    resource = mapping(content.get("resource"))
    return text(content.get("text")) or text(resource.get("text")) or text(content.get("uri")) or compact(content)
