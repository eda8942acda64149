"""Codex CLI: `rollout-….jsonl` (or .jsonl.zst) files under ~/.codex/sessions/, each line `{timestamp, type, payload}`.

Turns are written twice, as `response_item` and as `event_msg`: the items are imported, the events only have tokens, names
and turns that were rolled back. A compaction begins a session of its own, continued from the one before.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hermes.interop.formats import Export
from hermes.interop.histories import HERE, Conversation, Message, make, reads
from hermes.interop.json_reading import Reading, Record, compact, encoded, first_objects, json_lines
from hermes.interop.windows import BEGINS, BREAKS, CUTS, KEPT, ON
from hermes.interop.windows import Trail as BaseTrail

if TYPE_CHECKING:
    from hermes.store.records.rows import ExportedSession, MessageRow

SOURCE = "codex"
FILES = "rollout-*.jsonl*"
_SESSION, _MESSAGE = "hermes_session", "hermes_message"  # where a line comes from: an import continues that session
_TAGS = "environment_context user_instructions INSTRUCTIONS turn_aborted skill subagent_notification"
_INJECTED = ("# AGENTS.md", "<permissions", *(f"<{tag}>" for tag in _TAGS.split()))
_TOKENS = ("input_tokens", "output_tokens", "cached_input_tokens", "", "reasoning_output_tokens")
_FROM_EDITOR = "# Context from my IDE setup:"
_REQUEST = "## My request for Codex:"
_THREAD = re.compile(r"rollout-[\dT-]{19}-([\da-f]{8}(?:-[\da-f]{4}){3}-[\da-f]{12})")
_CALLS = {  # by kind, the key of the arguments
    "function_call": "arguments",
    "custom_tool_call": "input",
    "tool_search_call": "arguments",
    "web_search_call": "action",
    "local_shell_call": "action",
    "image_generation_call": "revised_prompt",
}
_RESULTS = frozenset(("function_call_output", "custom_tool_call_output", "tool_search_output"))
_KNOWN_ITEMS = frozenset((*_CALLS, *_RESULTS, "message", "reasoning", "agent_message", "compaction", "ghost_snapshot"))


def usual_places() -> list[Path]:
    """The folders in which Codex keeps its sessions."""
    home = make.program_home("CODEX_HOME", ".codex")
    return [home / "sessions", home / "archived_sessions"]


def sniff(path: Path) -> bool:
    """Whether a file is a rollout of Codex."""
    kinds = ("session_meta", "response_item", "event_msg", "turn_context")
    return any("payload" in record and record.get("type") in kinds for record in first_objects(path, 2))


@reads
def read(path: Path, reading: Reading) -> Iterator[Conversation]:
    """The session of one rollout, in as many parts as it was compacted into."""
    made = _RolloutReader(path, reading).made
    made.title = made.title or _indexed_title(path, made.foreign_id)
    if "archived_sessions" in path.parts:
        made.archived_at = path.stat().st_mtime
    yield made


class Trail(BaseTrail):
    """A window can begin with each prompt, and needs the header and the last context, which names the model."""

    has_header = True

    def take(self, record: Record) -> str:
        kind, payload = record.get("type"), record.object("payload")
        if payload.get("type") == "thread_rolled_back" and self._known is not None:
            return BREAKS
        if kind in ("compacted", "turn_context"):
            return CUTS if kind == "compacted" else KEPT
        is_prompt = kind == "response_item" and payload.get("type") == "message" and payload.get("role") == "user"
        return BEGINS if is_prompt else ON


class _RolloutReader:
    def __init__(self, path: Path, reading: Reading) -> None:
        self._path, self._reading = path, reading
        self.made = Conversation(SOURCE, _thread_id(path))
        self._is_begun = False
        self._thoughts: list[str] = []
        self._here: Any = None  # the message here that the line was written from
        for number, line in json_lines(path, reading):
            self._here = line.get(_MESSAGE)
            self._take(number, line.get("type"), line.object("payload"), line.time("timestamp"))

    def _take(self, number: int, kind: Any, payload: Record, at: float | None) -> None:
        if kind == "session_meta":
            self._begin(payload)
        elif kind == "turn_context":
            self.made.model = payload.text("model") or self.made.model
        elif kind == "response_item":
            self._item(number, payload, at)
        elif kind == "event_msg":
            self._event(payload)
        elif kind == "compacted":
            self.made.compact(payload.text("message"), at, f"summary-{number}")
        elif kind not in ("world_state", "token_usage_record"):
            self._reading.unknown[str(kind)] += 1

    def _add(self, made: Message) -> None:
        if isinstance(self._here, int):
            made[HERE] = self._here
        self.made.messages.append(made)

    def _item(self, number: int, item: Record, at: float | None) -> None:
        kind = str(item.get("type"))
        name = item.text("id") or f"line-{number}"
        if kind == "message":
            self._message(item, at, name)
        elif kind == "reasoning":
            blocks = [*item.objects("summary"), *item.objects("content")]
            self._thoughts += [block["text"] for block in blocks if block.text("text")]
        elif kind in _CALLS:
            self._call(item, at, name, kind)
        elif kind in _RESULTS:
            call = str(item.get("call_id"))
            output = _output(item.get("output", item.get("tools")))
            self._add(make.result(output, at, f"{call}-result", call))
        elif kind not in _KNOWN_ITEMS:
            self._reading.unknown[f"response_item {kind}"] += 1

    def _message(self, item: Record, at: float | None, name: str) -> None:
        parts: list[Any] = []
        for block in item.objects("content"):
            if block.get("type") in ("input_text", "output_text", "text") and block.text("text"):
                parts.append(block["text"])
            elif block.get("type") == "input_image" and block.text("image_url"):
                parts.append(make.picture(block["image_url"]))
        if not parts:
            return
        role = item.get("role")
        content = make.joined(parts)
        if role == "assistant":
            self._add(make.message("assistant", content, at, name, model=self.made.model, reasoning=self._reasoning()))
        elif role == "user" and not _injected(content):
            self._thoughts = []  # of a turn that was interrupted
            if isinstance(content, str) and content.lstrip().startswith(_FROM_EDITOR) and _REQUEST in content:
                context, _, content = content.partition(_REQUEST)
                self._add(make.message("system", context.strip(), at, f"{name}-context"))
                content = content.strip()
            self._add(make.message("user", content, at, name))
        else:
            self._add(make.message("system", content, at, name))

    def _reasoning(self) -> str | None:
        reasoning, self._thoughts = "\n\n".join(self._thoughts), []
        return reasoning or None

    def _call(self, item: Record, at: float | None, name: str, kind: str) -> None:
        call = item.text("call_id") or name
        if self._thoughts or not self.made.messages or self.made.messages[-1]["role"] != "assistant":
            thought = self._reasoning()
            self._add(make.message("assistant", None, at, f"{call}-call", model=self.made.model, reasoning=thought))
        tool = item.text("name") or kind.removesuffix("_call")
        calls = self.made.messages[-1].setdefault("tool_calls", [])
        calls.append(make.tool_call(call, tool, item.get(_CALLS[kind])))
        if kind == "image_generation_call" and item.text("result"):  # the call has its picture with it
            self._add(make.result([make.image_part(item["result"], "image/png")], at, f"{call}-result", call))

    def _event(self, event: Record) -> None:
        kind = event.get("type")
        if kind == "token_count":
            used = event.object("info").object("last_token_usage")
            last = next((message for message in reversed(self.made.messages) if message["role"] == "assistant"), None)
            if used and last is not None and "output_tokens" not in last:
                last.update(used.counts(_TOKENS, with_cached=True))
        elif kind == "thread_name_updated":
            self.made.title = event.text("thread_name") or self.made.title
        elif kind == "thread_rolled_back":
            self.made.hide_turns(event.count("num_turns") or 1)

    def _begin(self, meta: Record) -> None:
        """Read the session's fields from the first line of a rollout; a later one repeats them."""
        made = self.made
        if self._is_begun:
            return
        self._is_begun = True
        made.foreign_id = meta.text("id") or made.foreign_id
        spawned = meta.object("source").object("subagent").object("thread_spawn")
        started_by = meta.text("parent_thread_id") or spawned.text("parent_thread_id")
        made.parent, made.kind = started_by or meta.text("forked_from_id"), "subagent" if started_by else "branch"
        made.cwd, made.started_at, made.origin = meta.text("cwd"), meta.time("timestamp"), meta.text(_SESSION)
        made.system_prompt = meta.object("base_instructions").text("text")
        made.git_branch = meta.object("git").text("branch")


def _thread_id(path: Path) -> str:
    """The thread's id as the name of the file has it, for a file whose first line is damaged."""
    found = _THREAD.match(path.name)
    return found[1] if found else path.name.removesuffix(".zst").removesuffix(".jsonl")


def _injected(content: Any) -> bool:
    return isinstance(content, str) and content.lstrip().startswith(_INJECTED)


def _output(output: Any) -> Any:
    """A tool's result: text, or the text inside the object that older versions wrote."""
    if isinstance(output, str):
        return output
    if isinstance(output, list):
        texts = [block["text"] for block in Record.all(output) if isinstance(block.get("text"), str)]
        pictures = [block for block in Record.all(output) if block.get("type") == "input_image"]
        if pictures:
            return make.joined([*filter(None, texts), *(make.picture(block.get("image_url")) for block in pictures)])
        return "\n".join(texts) or compact(output)
    inside = Record.of(output).get("content")
    return inside if isinstance(inside, str) else None if output is None else compact(output)


def _indexed_title(path: Path, name: str) -> str | None:
    """The name that the person gave a thread, in session_index.jsonl; the last line counts."""
    for parent in path.parents:
        if (index := parent / "session_index.jsonl").is_file():
            found = None
            for _, line in json_lines(index, Reading(index)):
                if line.get("id") == name:
                    found = line.text("thread_name") or found
            return found
        if parent.name == ".codex":
            break
    return None


# ------------------------------------------------------------------------------------------------------- writing


def write(export: Export) -> Iterator[bytes]:
    """One session as a rollout that Codex resumes."""
    for session, name in make.only_session(export, SOURCE):
        yield from _written(session, name, export)


def kept_at(name: str, session: ExportedSession) -> Path:
    """The file in which Codex looks for a session: in the folder of the day on which it began."""
    began = datetime.fromtimestamp(session["started_at"])
    return usual_places()[0] / f"{began:%Y/%m/%d}" / f"rollout-{began:%Y-%m-%dT%H-%M-%S}-{name}.jsonl"


def _written(session: ExportedSession, name: str, export: Export) -> Iterator[bytes]:
    began = make.iso(session["started_at"])
    meta: dict[str, Any] = {"id": name, "timestamp": began, "cwd": session.get("cwd") or "/", _SESSION: session["id"]}
    meta |= {"originator": "hermes", "cli_version": "0.0.0", "source": "cli"}
    if session.get("system_prompt") and session["source"] == SOURCE:
        meta["base_instructions"] = {"text": session["system_prompt"]}
        del export.left_out["system prompts"]
    yield _line(began, "session_meta", meta)
    if session.get("model"):
        yield _line(began, "turn_context", {"cwd": meta["cwd"], "model": session["model"]})
    for row in session.get("messages") or ():
        for kind, payload in _items(row, export):
            yield _line(make.iso(row["timestamp"]), kind, payload, **{_MESSAGE: row["id"]})
    if session.get("title"):
        ended = make.iso(session.get("ended_at") or session["started_at"])
        yield _line(ended, "event_msg", {"type": "thread_name_updated", "thread_name": session["title"]})


def _line(at: str, kind: str, payload: dict[str, Any], **more: Any) -> bytes:
    return encoded({"timestamp": at, "type": kind, "payload": payload, **more}) + b"\n"


def _items(row: MessageRow, export: Export) -> Iterator[tuple[str, dict[str, Any]]]:
    """A message as the items (and the events that repeat them) of a rollout."""
    content, role = row.get("content"), row["role"]
    name = {"id": row["platform_message_id"]} if row.get("platform_message_id") else {}
    if role == "tool":
        words = [words for _, words in make.written_parts(content, export, pictures=False)]
        output = {"type": "function_call_output", "call_id": row.get("tool_call_id"), "output": "\n\n".join(words)}
        yield "response_item", output
        return
    if row.get("reasoning"):
        yield "response_item", {"type": "reasoning", "summary": [{"type": "summary_text", "text": row["reasoning"]}]}
    spoken = "output_text" if role == "assistant" else "input_text"
    blocks = []
    for mime, data in make.written_parts(content, export):
        image = {"type": "input_image", "image_url": f"data:{mime};base64,{data}"}
        blocks.append({"type": spoken, "text": data} if mime is None else image)
    if not (blocks or row.get("reasoning") or row.get("tool_calls")):
        export.left_out["empty messages"] += 1
    said_there = "\n\n".join(block["text"] for block in blocks if "text" in block)
    if blocks:
        item_role = "developer" if role == "system" else role
        yield "response_item", {"type": "message", **name, "role": item_role, "content": blocks}
        if role in ("user", "assistant") and said_there:
            yield "event_msg", {"type": "user_message" if role == "user" else "agent_message", "message": said_there}
    for call in row.get("tool_calls") or ():
        function = Record.of(call.get("function"))
        asked = {"name": function.get("name"), "arguments": function.get("arguments"), "call_id": call.get("id")}
        yield "response_item", {"type": "function_call", **asked}
    if role == "assistant" and row.get("output_tokens") is not None:
        used = make.written_tokens(row, _TOKENS[:3])
        used["input_tokens"] += used["cached_input_tokens"]
        yield "event_msg", {"type": "token_count", "info": {"last_token_usage": used}}
