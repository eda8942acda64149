"""Claude.ai's data export: a zip with conversations.json, or that file alone (as an array, or a conversation a line)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hermes.interop.histories import Conversation, Message, make, reads, relink
from hermes.interop.histories.exports import ExportFiles, conversation_files, export_source, read_conversations
from hermes.interop.json_reading import Reading, Record, compact

SOURCE = "claude-ai"
files = conversation_files
_ROOT = "00000000-0000-4000-8000-000000000000"  # what first messages hang on
_CONTENT = frozenset(("text", "voice_note", "thinking", "tool_use"))
_KNOWN = _CONTENT | {"tool_result", "token_budget", "flag"}


def sniff(path: Path) -> bool:
    """Whether a file is an export of Claude.ai."""
    return export_source(path) == SOURCE


@reads
def read(path: Path, reading: Reading) -> Iterator[Conversation]:
    """The conversations of an export, one by one."""
    return read_conversations(path, reading, _conversation)


def _conversation(data: Record, export: ExportFiles, reading: Reading) -> Conversation | None:
    if not isinstance(data.get("chat_messages"), list):
        return None
    name = data.text("uuid") or str(data.get("created_at"))
    made = Conversation(SOURCE, name, title=data.text("name"), started_at=data.time("created_at"))
    if data.text("summary"):
        made.meta["summary"] = data["summary"]
    if data.text("project_uuid"):
        made.meta["project"] = data["project_uuid"]
    records = {one.text("uuid") or f"message-{n}": one for n, one in enumerate(Record.all(data["chat_messages"]))}
    named = {name: record.text("parent_message_uuid") for name, record in records.items()}
    parents: dict[str, Any] = {name: None if parent == _ROOT else parent for name, parent in named.items()}
    is_tree = any(parent in records for parent in parents.values())  # older exports are one path, in their order
    relink(parents, lambda name: is_tree)
    messages = {name: _messages(record, reading) for name, record in records.items()}
    made.show_tree(parents, messages, leaf=data.text("current_leaf_message_uuid"))
    return made


def _messages(record: Record, reading: Reading) -> list[Message]:
    name, at = record.text("uuid"), record.time("created_at")
    steps = _steps(record, name, at, reading)
    last = steps[-1]
    if not any(step.content for step in steps):
        if record.text("text"):
            last.content.append(record["text"])
        elif record.get("text") is not None and not isinstance(record["text"], str):
            reading.unknown["message whose text is no text"] += 1
    for attached in (*record.objects("attachments"), *record.objects("files")):
        extracted = attached.text("extracted_content")
        label = attached.text("file_name") or "file"
        last.content.append(f"[file {label}]" + (f"\n{extracted}" if extracted else ""))
    if record.get("sender") == "human":
        return make.spoken("user", make.joined([one for step in steps for one in step.content]), at, name)
    names = [name, *(f"{name}-{number}" for number in range(1, len(steps)))]
    return [one for step, each in zip(steps, names, strict=True) for one in step.messages("assistant", at, each)]


def _steps(record: Record, name: str | None, at: float | None, reading: Reading) -> list[make.Parts]:
    """A reply, cut after the results of its calls: what is said after them is another message, as it was another answer."""
    steps = [make.Parts()]
    call_ids: list[str] = []  # the ids of all calls
    answered = 0
    for number, block in enumerate(record.objects("content")):
        kind, step = str(block.get("type")), steps[-1]
        if kind in _CONTENT and step.results and len(step.results) >= len(step.calls):
            steps.append(step := make.Parts())
        if kind in ("text", "voice_note") and block.text("text"):
            step.content.append(block["text"])
        elif kind == "thinking" and block.text("thinking"):
            step.thoughts.append(block["thinking"])
        elif kind == "tool_use":
            call_ids.append(block.text("id") or f"{name}-{len(call_ids)}")
            step.call(call_ids[-1], block.get("name"), block.get("input"))
        elif kind == "tool_result":
            call_id = block.text("tool_use_id") or (call_ids[answered] if answered < len(call_ids) else None)
            answered += 1
            step.result(_result(block.get("content")), at, f"{name}-result-{number}", call_id, block.text("name"))
        elif kind not in _KNOWN:
            reading.unknown[f"block {kind}"] += 1
    return [step for step in steps if step.content or step.thoughts or step.calls or step.results] or steps


def _result(content: Any) -> str | None:
    if isinstance(content, str):
        return content
    texts = [block.text("text") for block in Record.all(content)]
    return "\n".join(filter(None, texts)) or (compact(content) if content else None)
