"""Claude.ai's data export: a zip with conversations.json, or that file alone (as an array, or a conversation a line)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hermes.interop.formats import Found, Problem
from hermes.interop.histories.conversation import (
    Conversation,
    Message,
    compact,
    dicts,
    joined,
    message,
    seconds,
    text,
    tool_call,
)  # fmt: skip
from hermes.interop.histories.exports import ExportFiles, conversation_files, read_conversations, whose
from hermes.interop.json_reading import Skipped

SOURCE = "claude-ai"
_ROOT = "00000000-0000-4000-8000-000000000000"  # what first messages hang on
_KNOWN = frozenset(("text", "thinking", "tool_use", "tool_result", "voice_note", "token_budget", "flag"))


def usual_places() -> list[Path]:
    """Exports lie wherever they were downloaded to."""
    return []


def sniff(path: Path) -> bool:
    """Whether a file is an export of Claude.ai."""
    return whose(path) == SOURCE


def files(folder: Path) -> Iterator[Path]:
    """The exports below a folder."""
    yield from (path for path in conversation_files(folder) if sniff(path))


def read(path: Path, folder: Path | None, problems: list[Problem]) -> Iterator[Found]:
    """The conversations of an export, one by one."""
    return read_conversations(path, problems, _conversation)


def _conversation(told: dict[str, Any], export: ExportFiles, skipped: Skipped) -> Conversation | None:
    if not isinstance(told.get("chat_messages"), list):
        return None
    made = Conversation(
        SOURCE, text(told.get("uuid")) or str(told.get("created_at")), title=text(told.get("name")),
        started_at=seconds(told.get("created_at")),
    )  # fmt: skip
    if text(told.get("summary")):
        made.meta["summary"] = told["summary"]
    if text(told.get("project_uuid")):
        made.meta["project"] = told["project_uuid"]
    records = dicts(told["chat_messages"])
    shown, left = _paths(records, told.get("current_leaf_message_uuid"))
    made.messages = [one for record in shown for one in _messages(record, skipped)]
    stored = {one["platform_message_id"] for one in made.messages}
    for after, branch in left:
        entries = [one for record in branch for one in _messages(record, skipped)]
        if entries:
            made.branches.append((after if after in stored else None, entries))
    return made


def _paths(
    records: list[dict[str, Any]], leaf: Any
) -> tuple[list[dict[str, Any]], list[tuple[str | None, list[dict[str, Any]]]]]:
    """What is shown, and the versions beside it. Exports without parents are one path, in their order."""
    by_name = {record["uuid"]: record for record in records if isinstance(record.get("uuid"), str)}
    parents = {name: record.get("parent_message_uuid") for name, record in by_name.items()}
    if not any(parent in by_name for parent in parents.values()):
        return records, []
    before = None
    for name, parent in parents.items():
        if parent not in by_name and parent not in (None, _ROOT):  # the export lacks it
            parents[name] = before
        before = name
    at: Any = leaf if leaf in by_name else next(reversed(by_name))
    on_path: dict[str, None] = {}
    while at in by_name and at not in on_path:
        on_path[at] = None
        at = parents[at]
    path = [*reversed(on_path)]
    groups: dict[str, tuple[str | None, list[dict[str, Any]]]] = {}
    root_of: dict[str, str] = {}
    for name, record in by_name.items():
        if name in on_path:
            continue
        root = root_of[name] = root_of.get(str(parents[name]), name)
        if root == name:
            groups[root] = (parents[name] if parents[name] in on_path else None, [])
        groups[root][1].append(record)
    return [by_name[name] for name in path], list(groups.values())


def _messages(record: dict[str, Any], skipped: Skipped) -> list[Message]:
    name, at = text(record.get("uuid")), seconds(record.get("created_at"))
    texts, thoughts, calls, results = list[Any](), list[str](), list[Any](), list[Message]()
    for number, block in enumerate(dicts(record.get("content"))):
        kind = block.get("type")
        if kind in ("text", "voice_note") and text(block.get("text")):
            texts.append(block["text"])
        elif kind == "thinking" and text(block.get("thinking")):
            thoughts.append(block["thinking"])
        elif kind == "tool_use":
            call = text(block.get("id")) or f"{name}-{len(calls)}"
            calls.append(tool_call(call, str(block.get("name") or "tool"), block.get("input")))
        elif kind == "tool_result":
            asked = text(block.get("tool_use_id")) or (calls[len(results)]["id"] if len(results) < len(calls) else None)
            results.append(message("tool", _result(block.get("content")), at, f"{name}-result-{number}", tool_call_id=asked,
                                   tool_name=text(block.get("name"))))  # fmt: skip
        elif kind not in _KNOWN:
            skipped.unknown[f"block {kind}"] += 1
    if not texts and text(record.get("text")):
        texts.append(record["text"])
    elif not texts and record.get("text") is not None and not isinstance(record["text"], str):
        skipped.unknown["message whose text is no text"] += 1
    for attached in (*dicts(record.get("attachments")), *dicts(record.get("files"))):
        held = text(attached.get("extracted_content"))
        label = text(attached.get("file_name")) or "file"
        texts.append(f"[file {label}]" + (f"\n{held}" if held else ""))
    content = joined(texts) if texts else None
    if record.get("sender") == "human":
        return [message("user", content, at, name)] if content else []
    if content is None and not thoughts and not calls:
        return []
    reply = message("assistant", content, at, name, reasoning="\n\n".join(thoughts) or None, tool_calls=calls or None)
    return [reply, *results]


def _result(content: Any) -> str | None:
    if isinstance(content, str):
        return content
    told = [text(one.get("text")) for one in dicts(content)]
    return "\n".join(filter(None, told)) or (compact(content) if content else None)
