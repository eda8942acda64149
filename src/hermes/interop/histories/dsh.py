"""DeepSeek Harness: ~/.dsh/sessions/<folder>/session-<id>/session.jsonl.zstd, a header and an event a line, in frames of zstd."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hermes.interop.histories.api_messages import ApiMessageReader
from hermes.interop.histories.conversation import (
    Conversation,
    from_json,
    reads,
)  # fmt: skip
from hermes.interop.json_reading import Reading, first_objects, json_lines
from hermes.interop.records import Record, text

SOURCE = "dsh"
_SAID = ("user/message", "assistant/message", "tool/result")
_OTHER = (
    "turn/",
    "step/",
    "tool/",
    "todo/",
    "session/",
    "model/",
    "context/",
    "permission/",
    "plugin/",
    "assistant/",
    "user/",
)


def usual_places() -> list[Path]:
    """The places where DeepSeek Harness keeps its sessions."""
    return [Path(os.environ.get("DSH_HOME") or Path.home() / ".dsh") / "sessions"]


def sniff(path: Path) -> bool:
    """Whether a file is a session of DeepSeek Harness."""
    first = first_objects(path, 1)
    return bool(first) and first[0].get("type") == "session" and {"createdAt", "cwd"} <= first[0].keys()


def files(folder: Path) -> Iterator[Path]:
    """The newest version of each session below a folder: an upgrade leaves the older one beside it."""
    found = sorted(path for path in folder.rglob("session*.jsonl*") if ".jsonl" in path.suffixes and sniff(path))
    yield from {path.parent: path for path in found}.values()


@reads
def read(path: Path, reading: Reading) -> Iterator[Conversation]:
    """The session of one file."""
    reader, made = ApiMessageReader(reading), Conversation(SOURCE, path.parent.name)
    for number, line in json_lines(path, reading):
        kind, data = str(line.get("type")), line.object("data")
        if kind == "session" and number == 1:
            made.foreign_id, made.cwd = line.text("id") or made.foreign_id, line.text("cwd")
            made.started_at = line.time("createdAt")
        elif kind == "session/title":
            made.title = data.text("title") or made.title
        elif kind in _SAID:
            told = data.object("message") or data
            role = "assistant" if kind == "assistant/message" else "user"
            said = {
                "role": role,
                "content": _blocks(told, reading),
                "usage": data.get("usage"),
                "modelInfo": _model(told),
            }
            if kind != "user/message" or told.object("source").get("kind") in (None, "user"):
                reader.take(said, told.text("id") or f"seq-{line.get('seq', number)}", line.time("time"))
        elif kind != "session" and not kind.startswith(_OTHER):
            reading.unknown[kind] += 1
    made.messages = reader.parts[0]
    yield made


def _model(told: Record) -> dict[str, Any]:
    return {"id": told.object("source").get("model")}


def _blocks(told: Record, reading: Reading) -> list[dict[str, Any]]:
    """The blocks of a message, as the Anthropic API has them."""
    content = told.get("content")
    found: list[dict[str, Any]] = [{"type": "text", "text": content}] if text(content) else []
    for block in Record.all(content):
        kind = block.get("type")
        if kind == "text":
            found.append(block)
        elif kind in ("reasoning", "thinking"):
            found.append({"type": "thinking", "thinking": block.get("text") or block.get("thinking")})
        elif kind == "tool-call":
            call = block.text("id") or block.text("toolCallId")
            found.append(
                {"type": "tool_use", "id": call, "name": block.get("name"), "input": from_json(block.get("arguments"))}
            )
        elif kind == "tool-result":
            found.append(
                {"type": "tool_result", "tool_use_id": block.get("toolCallId"), "content": block.get("content")}
            )
        else:
            reading.unknown[f"block {kind}"] += 1
    return found
