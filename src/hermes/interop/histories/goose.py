"""Goose: ~/.local/share/goose/sessions/sessions.db, before 1.10 one JSON-lines file a session beside it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hermes.interop.formats import Found, Problem
from hermes.interop.histories.conversation import (
    Conversation,
    Message,
    Skipped,
    compact,
    count,
    dicts,
    first_objects,
    from_json,
    image_part,
    joined,
    json_lines,
    mapping,
    message,
    seconds,
    text,
    tool_call,
)  # fmt: skip
from hermes.store.engines.sqlite.foreign_database import ForeignDatabase, tables_of

SOURCE = "goose"
_BOOKKEEPING = frozenset(("toolConfirmationRequest", "actionRequired", "systemNotification", "redactedThinking"))


def usual_places() -> list[Path]:
    """Where Goose keeps its sessions."""
    return [Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "goose" / "sessions"]


def sniff(path: Path) -> bool:
    """Whether a file is Goose's."""
    if path.suffix == ".jsonl":
        first = first_objects(path, 2)
        return bool(first) and "working_dir" in first[0] and "role" not in first[0]
    if path.is_dir():
        return False
    with_tables = tables_of(path)
    if not {"sessions", "messages", "schema_version"} <= with_tables:
        return False
    with ForeignDatabase(path) as database:
        return "content_json" in database.columns["messages"]


def files(folder: Path) -> Iterator[Path]:
    """The databases and older files below a folder; the files that a database took over are in it already."""
    databases = sorted(path for path in folder.rglob("*.db") if sniff(path))
    yield from databases or sorted(path for path in folder.rglob("*.jsonl") if sniff(path))


def read(path: Path, folder: Path | None, problems: list[Problem]) -> Iterator[Found]:
    """The sessions of a database, or the one of an older file."""
    skipped = Skipped(path, problems)
    if path.suffix == ".jsonl":
        yield from _file(path, skipped)
    else:
        with ForeignDatabase(path) as database:
            for row in database.rows("sessions", order=("created_at", "id")):
                rows = database.rows("messages", {"session_id": row["id"]}, ("created_timestamp", "id"))
                made = _conversation(str(row["id"]), row)
                for told in rows:
                    made.messages += _stored(told, skipped)
                yield from _found(made)
    skipped.report()


def _found(made: Conversation) -> Iterator[Found]:
    session = made.session()
    if session is not None:
        yield Found(0, session)


def _conversation(name: str, row: dict[str, Any]) -> Conversation:
    title = text(row.get("name")) or text(row.get("description"))
    model = mapping(from_json(row.get("model_config_json"))).get("model_name")
    made = Conversation(
        SOURCE, name, title=None if title == name else title, cwd=text(row.get("working_dir")), model=text(model),
        started_at=seconds(row.get("created_at")),
    )  # fmt: skip
    if row.get("session_type") == "sub_agent":
        made.meta["sub_agent"] = True
    return made


def _file(path: Path, skipped: Skipped) -> Iterator[Found]:
    made: Conversation | None = None
    for number, line, _ in json_lines(path, skipped):
        if made is None:
            made = _conversation(path.stem, dict(line))
        elif "role" in line:
            made.messages += _messages(dict(line), f"{line.get('id') or f'line-{number}'}", skipped)
    if made is not None:
        yield from _found(made)


def _stored(row: dict[str, Any], skipped: Skipped) -> list[Message]:
    told = mapping(from_json(row.get("metadata_json")))
    if told.get("userVisible") is False and told.get("agentVisible") is False:
        return []
    record = {
        "role": row.get("role"),
        "content": from_json(row.get("content_json")),
        "created": row.get("created_timestamp"),
    }
    name = text(row.get("message_id")) or str(row.get("id"))
    made = _messages(record, name, skipped)
    if row.get("role") == "assistant" and made and (used := count(row.get("tokens"))):
        made[0]["output_tokens"] = used
    return made


def _messages(record: dict[str, Any], name: str, skipped: Skipped) -> list[Message]:
    at, role = seconds(record.get("created")), record.get("role")
    parts, thoughts, calls, results = list[Any](), list[str](), list[Any](), list[Message]()
    for block in dicts(record.get("content")):
        kind = block.get("type")
        if kind == "text":
            parts += [block["text"]] if text(block.get("text")) else []
        elif kind == "image" and isinstance(block.get("data"), str):
            parts.append(image_part(block["data"], str(block.get("mimeType") or "image/png")))
        elif kind == "thinking":
            thoughts += [block["thinking"]] if text(block.get("thinking")) else []
        elif kind in ("toolRequest", "frontendToolRequest"):
            asked = mapping(mapping(block.get("toolCall")).get("value"))
            calls.append(tool_call(str(block.get("id")), str(asked.get("name") or "tool"), asked.get("arguments")))
        elif kind == "toolResponse":
            call = str(block.get("id"))
            results.append(
                message("tool", _result(mapping(block.get("toolResult"))), at, f"{call}-result", tool_call_id=call)
            )
        elif kind not in _BOOKKEEPING:
            skipped.unknown[f"content {kind}"] += 1
    content = joined(parts) if parts else None
    if role == "assistant":
        if content is None and not thoughts and not calls:
            return results
        reply = message(
            "assistant", content, at, name, reasoning="\n\n".join(thoughts) or None, tool_calls=calls or None
        )
        return [reply, *results]
    return [*results, *([message("user", content, at, name)] if content else [])]


def _result(result: dict[str, Any]) -> str | None:
    if result.get("status") == "error" or "error" in result:
        return text(result.get("error")) or compact(result)
    value = result.get("value")
    blocks = dicts(mapping(value).get("content")) or dicts(value)
    told = [text(one.get("text")) or text(mapping(one.get("resource")).get("text")) for one in blocks]
    return "\n".join(filter(None, told)) or compact(value)
