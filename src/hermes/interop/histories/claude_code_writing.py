"""A session as a file that Claude Code resumes."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hermes.interop.formats import Export
from hermes.interop.histories.conversation import (
    as_uuid,
    iso,
    only_session,
    written_parts,
)  # fmt: skip
from hermes.interop.json_reading import decoded
from hermes.interop.jsonl import encoded
from hermes.interop.records import Record

if TYPE_CHECKING:
    from hermes.store.records.rows import ExportedSession, MessageRow

SOURCE = "claude-code"
SESSION, MESSAGE = "hermesSession", "hermesMessage"  # where a line comes from: an import continues that session
REASONING = "hermesReasoning"  # a block of thinking without its signature would be refused when it goes on there


def write(export: Export) -> Iterator[bytes]:
    """One session as a file that Claude Code resumes: `<folder of the project>/<session's uuid>.jsonl`."""
    for session in only_session(export, "claude-code"):
        yield from _written(session, export)


def kept_at(name: str, session: ExportedSession) -> Path:
    """The file in which Claude Code looks for a session of the folder."""
    home = Path(os.environ.get("CLAUDE_CONFIG_DIR") or Path.home() / ".claude")
    return home / "projects" / re.sub("[^a-zA-Z0-9]", "-", session["cwd"] or "/")[:200] / f"{name}.jsonl"


def _written(session: ExportedSession, export: Export) -> Iterator[bytes]:
    name = export.name or as_uuid(str(session["id"]).removeprefix(f"{SOURCE}-"))
    base = {
        "sessionId": name,
        "cwd": session.get("cwd") or "/",
        "version": "2.0.0",
        "isSidechain": False,
        "userType": "external",
        SESSION: session["id"],
    }
    if session.get("title"):
        yield encoded({"type": "custom-title", "customTitle": session["title"], "sessionId": name}) + b"\n"
    if session.get("rewound_messages"):
        export.left_out["hidden messages"] = len(session["rewound_messages"])
    if session.get("system_prompt"):
        export.left_out["system prompts"] += 1
    model = session.get("model") or "unknown"
    parent = None
    for one in session.get("messages") or ():
        uuid = as_uuid(
            f"{name}/{one['id']}"
        )  # its own: with the uuids it came with, it would be a fork of that session
        line = {"uuid": uuid, "parentUuid": parent, "timestamp": iso(one["timestamp"]), **base, MESSAGE: one["id"]}
        if one["role"] == "assistant":
            if one.get("reasoning"):
                line[REASONING] = one["reasoning"]
                export.left_out["reasoning of messages"] += 1
            yield encoded({"type": "assistant", **line, "message": _reply(one, model, export)}) + b"\n"
        elif one["role"] == "tool":
            block = {
                "type": "tool_result",
                "tool_use_id": one.get("tool_call_id") or uuid,
                "content": _blocks_of(one, export),
            }
            yield encoded({"type": "user", **line, "message": {"role": "user", "content": [block]}}) + b"\n"
        else:
            meta = {"isMeta": True} if one["role"] == "system" else {}
            yield (
                encoded(
                    {"type": "user", **line, **meta, "message": {"role": "user", "content": _blocks_of(one, export)}}
                )
                + b"\n"
            )
        parent = uuid


def _reply(one: MessageRow, model: str, export: Export) -> dict[str, Any]:
    blocks: list[dict[str, Any]] = []
    content = _blocks_of(one, export)
    blocks += [{"type": "text", "text": content}] if isinstance(content, str) and content else content or []
    for call in one.get("tool_calls") or ():
        asked = Record.of(call.get("function"))
        try:
            given = decoded(str(asked.get("arguments") or "{}").encode())
        except ValueError:
            given = {"arguments": asked.get("arguments")}
        blocks.append({"type": "tool_use", "id": call.get("id"), "name": asked.get("name"), "input": given})
    cached, wrote = one.get("cache_read_tokens") or 0, one.get("cache_write_tokens") or 0
    usage = {"input_tokens": one.get("input_tokens") or 0,
             "output_tokens": one.get("output_tokens") or 0, "cache_read_input_tokens": cached,
             "cache_creation_input_tokens": wrote}  # fmt: skip
    ended = {"tool_calls": "tool_use", "length": "max_tokens"}.get(str(one.get("finish_reason")), "end_turn")
    stop = "tool_use" if one.get("tool_calls") else ended
    return {"id": one.get("platform_message_id") or f"msg_{one['id']}", "type": "message", "role": "assistant",
            "model": one.get("model") or model, "content": blocks, "stop_reason": stop, "usage": usage}  # fmt: skip


def _blocks_of(one: MessageRow, export: Export) -> Any:
    content = one.get("content")
    if not isinstance(content, list):
        return content or ""
    return [
        {"type": "text", "text": data} if mime is None
        else {"type": "image", "source": {"type": "base64", "media_type": mime, "data": data}}
        for mime, data in written_parts(content, export)
    ]  # fmt: skip
