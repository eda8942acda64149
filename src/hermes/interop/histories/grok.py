"""Grok Build: ~/.grok/sessions/<folder>/<session>/updates.jsonl, updates of the Agent Client Protocol; summary.json beside."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hermes.interop.histories import Conversation, make, reads
from hermes.interop.json_reading import Reading, Record, compact, first_objects, json_lines, json_object

SOURCE = "grok"
FILES = "updates.jsonl"
_CHUNKS = {"user_message_chunk": "user", "agent_message_chunk": "assistant", "agent_thought_chunk": "assistant"}
_BOOKKEEPING = frozenset(
    "plan available_commands_update current_mode_update config_option_update background_tasks subagent_spawned"
    " subagent_finished auto_compact_completed session_info_update usage_update".split()
)
_TOKENS = ("inputTokens", "outputTokens", "cachedReadTokens", "cacheCreationTokens", "reasoningTokens")
_SUMMARY = "compaction_meta"


def usual_places() -> list[Path]:
    """The places where Grok Build keeps its sessions."""
    return [make.program_home("GROK_HOME", ".grok") / "sessions"]


def sniff(path: Path) -> bool:
    """Whether a file holds the updates of a session of Grok Build."""
    return any(
        str(record.get("method")).endswith("session/update")
        and "sessionUpdate" in record.object("params").object("update")
        for record in first_objects(path)
    )


@reads
def read(path: Path, reading: Reading) -> Iterator[Conversation]:
    """The session of one file, in as many parts as it was compacted into."""
    yield _UpdateReader(path, reading).made


def _conversation(path: Path) -> Conversation:
    about = json_object(path.with_name("summary.json"))
    info = about.object("info")
    title = about.text("title") or about.text("generated_title") or about.text("session_summary")
    name, model = info.text("id") or path.parent.name, about.text("current_model_id")
    made = Conversation(SOURCE, name, title, info.text("cwd"), model, about.time("created_at"))
    made.parent, made.kind = about.text("parent_session_id"), "branch"
    if about.get("session_kind") == "subagent":
        made.kind = "subagent"
    made.git_branch = about.text("head_branch")
    return made


class _UpdateReader:
    """The updates of a file as messages: chunks of one reply are joined, a tool call takes several updates."""

    def __init__(self, path: Path, reading: Reading) -> None:
        self._path, self._reading = path, reading
        self.made = _conversation(path)
        self._model: str | None = None
        self._turns = 0  # that have ended
        self._turn: tuple[int, str | None] = (0, None)  # the one that the last chunk belongs to
        self._calls: dict[str, tuple[str, dict[str, Any]]] = {}  # of each open call, its tool and the call as stored
        for number, line in json_lines(path, reading):
            params = line.object("params")
            about, update = params.object("_meta"), params.object("update")
            at = about.time("agentTimestampMs") or line.time("timestamp")
            # Its numbers begin again when the session is resumed: with the time they are unique.
            event = about.text("eventId")
            name = f"{event}@{about.get('agentTimestampMs')}" if event else f"line-{number}"
            self._take(update, about, at, name)

    def _take(self, update: Record, about: Record, at: float | None, name: str) -> None:
        kind = str(update.get("sessionUpdate"))
        if kind in _CHUNKS:
            self._chunk(kind, update, (self._turns, about.text("promptId")), at, name)
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

    def _chunk(self, kind: str, update: Record, turn: tuple[int, str | None], at: float | None, name: str) -> None:
        content, about = update.object("content"), update.object("_meta")
        role = _CHUNKS[kind]
        if about.get("hideFromScrollback"):
            role = "system"  # a note of the program
        self._model = about.text("modelId") or self._model
        last = self.made.messages[-1] if self.made.messages else {}
        goes_on = last.get("role") == role and not last.get("tool_calls") and not last.get("meta")
        if not goes_on or turn != self._turn or (kind == "agent_thought_chunk" and last.get("content")):
            last = make.message(role, None, at, name, model=self._model if role == "assistant" else None)
            self.made.messages.append(last)
        self._turn = turn
        if kind == "agent_thought_chunk":
            last["reasoning"] = (last.get("reasoning") or "") + str(content.get("text") or "")
        elif content.text("text") is None and content.get("type") != "text":
            last["content"] = make.joined([*([last["content"]] if last["content"] else []), _part(content)])
        elif isinstance(last["content"], list):
            last["content"].append({"type": "text", "text": str(content.get("text"))})
        else:
            last["content"] = (last["content"] or "") + str(content.get("text") or "")

    def _call(self, update: Record, at: float | None, name: str) -> None:
        call = update.text("toolCallId") or f"{name}-call"
        tool = update.object("_meta").object("x.ai/tool").text("name") or update.text("title")
        made = make.tool_call(call, tool or "tool", update.get("rawInput"))
        self._calls[call] = (tool or "tool", made)
        make.add_call(self.made.messages, made, at, name, model=self._model)

    def _result(self, update: Record, at: float | None, name: str) -> None:
        """The end of a tool call; updates before it only repeat its arguments in other words."""
        call = str(update.get("toolCallId"))
        if update.get("status") not in ("completed", "failed") or call not in self._calls:
            return
        tool, _ = self._calls.pop(call)
        blocks = update.objects("content")
        parts = [_part(one.object("content")) if one.get("type") == "content" else compact(one) for one in blocks]
        raw = update.get("rawOutput")
        output = make.joined([part for part in parts if part]) or (compact(raw) if raw is not None else None)
        self.made.messages.append(make.result(output, at, name, call, tool, failed=update["status"] == "failed"))

    def _end(self, update: Record) -> None:
        """The end of a turn. Its tokens are counted together: the last reply has them."""
        self._turns += 1
        reply = next((message for message in reversed(self.made.messages) if message["role"] == "assistant"), None)
        used = update.object("usage")
        if reply is None or not used or "output_tokens" in reply:
            return
        reply |= used.counts(_TOKENS, with_cached=True)

    def _compact(self, update: Record, at: float | None, name: str) -> None:
        """A compaction: the summary stands in a file of its own."""
        file = Path(str(update.get("checkpoint_file")))
        beside = self._path.parent / "compaction_checkpoints" / file.name
        history = json_object(beside).objects("compacted_history")
        notes = [note for note in history if note.get("synthetic_reason") == _SUMMARY]
        texts = [block.text("text") for note in notes[-1:] for block in note.objects("content")]
        self.made.compact(next(filter(None, texts), None), at, name)


def _part(content: Record) -> Any:
    if content.get("type") == "image" and (shown := make.picture_in(content)):
        return shown
    resource = content.object("resource")
    return content.text("text") or resource.text("text") or content.text("uri") or compact(content)
