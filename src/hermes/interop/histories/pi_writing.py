"""A session as a file that Pi resumes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hermes.interop.formats import Export
from hermes.interop.histories.conversation import as_uuid, from_json, iso, mapping, only_session, written_parts
from hermes.interop.jsonl import encoded

if TYPE_CHECKING:
    from hermes.store.rows import ExportedSession, MessageRow

SESSION, MESSAGE = "hermesSession", "hermesMessage"  # where an entry comes from: an import continues that session
_ENDS = {"tool_calls": "toolUse", "interrupted": "aborted", "length": "length", "error": "error"}


def kept_at(name: str, session: ExportedSession) -> Path:
    """The file in which Pi looks for a session of the folder."""
    folder = str(session["cwd"] or "/").strip("/").replace("/", "-")
    began = iso(session["started_at"]).replace(":", "-").replace(".", "-")
    return Path.home() / ".pi" / "agent" / "sessions" / f"--{folder}--" / f"{began}_{name}.jsonl"


def write(export: Export) -> Iterator[bytes]:
    """One session as Pi writes it: a header, and entries that follow each other."""
    for session in only_session(export, "pi"):
        name = export.name or as_uuid(str(session["id"]).removeprefix("pi-"))
        header = {"type": "session", "version": 3, "id": name, "timestamp": iso(session["started_at"])}
        yield encoded({**header, "cwd": session.get("cwd") or "/", SESSION: session["id"]}) + b"\n"
        if session.get("rewound_messages"):
            export.left_out["hidden messages"] = len(session["rewound_messages"])
        if session.get("system_prompt"):
            export.left_out["system prompts"] += 1
        parent = None
        for one in session["messages"]:
            entry = {
                "id": f"{one['id']:08x}",
                "parentId": parent,
                "timestamp": iso(one["timestamp"]),
                MESSAGE: one["id"],
            }
            yield encoded({**_entry(one, session.get("model"), export), **entry}) + b"\n"
            parent = entry["id"]
        if session.get("title"):
            last = {"id": "00000000", "parentId": parent, "timestamp": iso(session["started_at"])}
            yield encoded({"type": "session_info", **last, "name": session["title"]}) + b"\n"


def _entry(one: MessageRow, model: str | None, export: Export) -> dict[str, Any]:
    blocks = _blocks(one, export)
    if one["role"] == "system":
        return {"type": "custom_message", "customType": "hermes", "content": blocks, "display": False}
    told: dict[str, Any] = {"role": one["role"], "content": blocks, "timestamp": int(one["timestamp"] * 1000)}
    if one["role"] == "tool":
        told |= {"role": "toolResult", "toolCallId": one.get("tool_call_id"), "toolName": one.get("tool_name") or "tool",
                 "isError": False}  # fmt: skip
    if one["role"] == "assistant":
        if one.get("reasoning"):
            blocks.insert(0, {"type": "thinking", "thinking": one["reasoning"]})
        for call in one.get("tool_calls") or ():
            asked = mapping(call.get("function"))
            given = from_json(asked.get("arguments") or "{}", {})
            blocks.append({"type": "toolCall", "id": call.get("id"), "name": asked.get("name"), "arguments": given})
        used = {"input": one.get("input_tokens") or 0, "output": one.get("output_tokens") or 0,
                "cacheRead": one.get("cache_read_tokens") or 0, "cacheWrite": one.get("cache_write_tokens") or 0}  # fmt: skip
        cost = {**dict.fromkeys(used, 0), "total": one.get("cost_usd") or 0}
        usage = {**used, "totalTokens": sum(used.values()), "cost": cost}
        told |= {"api": "openai-completions", "provider": "hermes", "model": one.get("model") or model or "unknown",
                 "usage": usage, "stopReason": _ENDS.get(str(one.get("finish_reason")), "stop")}  # fmt: skip
        if one.get("tool_calls"):
            told["stopReason"] = "toolUse"
    return {"type": "message", "message": told}


def _blocks(one: MessageRow, export: Export) -> list[dict[str, Any]]:
    return [
        {"type": "text", "text": data} if mime is None else {"type": "image", "data": data, "mimeType": mime}
        for mime, data in written_parts(one.get("content"), export)
    ]
