"""Claude.ai's data export: a zip with conversations.json, or that file alone (as an array, or a conversation a line)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hermes.interop.histories import make
from hermes.interop.histories.conversation import Conversation, Message, off_path, path_to, reads, relink
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
    made = Conversation(
        SOURCE,
        data.text("uuid") or str(data.get("created_at")),
        title=data.text("name"),
        started_at=data.time("created_at"),
    )
    if data.text("summary"):
        made.meta["summary"] = data["summary"]
    if data.text("project_uuid"):
        made.meta["project"] = data["project_uuid"]
    records = Record.all(data["chat_messages"])
    shown, beside = _paths(records, data.get("current_leaf_message_uuid"))
    made.messages = [message for record in shown for message in _messages(record, reading)]
    stored = {message["platform_message_id"] for message in made.messages}
    for after, branch in beside:
        entries = [message for record in branch for message in _messages(record, reading)]
        if entries:
            made.branches.append((after if after in stored else None, entries))
    return made


def _paths(records: list[Record], leaf: Any) -> tuple[list[Record], list[tuple[str | None, list[Record]]]]:
    """The messages that are shown, and the versions beside them. Exports without parents are one path, in their order."""
    by_name = {record["uuid"]: record for record in records if isinstance(record.get("uuid"), str)}
    parents = {name: record.get("parent_message_uuid") for name, record in by_name.items()}
    if not any(parent in by_name for parent in parents.values()):
        return records, []
    parents = {name: None if parent == _ROOT else parent for name, parent in parents.items()}
    relink(parents, lambda name: True)
    shown = path_to(leaf if leaf in by_name else next(reversed(by_name)), parents.get)
    beside = [(after, [by_name[name] for name in names]) for after, names in off_path(by_name, set(shown), parents.get)]
    return [by_name[name] for name in shown], beside


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
