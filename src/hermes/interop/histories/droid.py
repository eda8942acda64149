"""Droid (Factory): ~/.factory/sessions/<folder>/<session>.jsonl, a record a line, and <session>.settings.json beside it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from hermes.interop.histories.api_messages import ApiMessageReader
from hermes.interop.histories.conversation import (
    Conversation,
    continued,
    reads,
)  # fmt: skip
from hermes.interop.json_reading import Reading, first_objects, json_lines, json_object

SOURCE = "droid"
_BOOKKEEPING = ("todo_state", "session_settings", "agent_turn_outcome", "session_end")
_TOKENS = {"input_tokens": "inputTokens", "output_tokens": "outputTokens", "cache_read_tokens": "cacheReadTokens",
           "cache_write_tokens": "cacheCreationTokens", "reasoning_tokens": "thinkingTokens"}  # fmt: skip


def usual_places() -> list[Path]:
    """The places where Droid keeps its sessions."""
    return [Path.home() / ".factory" / "sessions"]


def sniff(path: Path) -> bool:
    """Whether a file is a session of Droid."""
    return any(one.get("type") == "session_start" and isinstance(one.get("id"), str) for one in first_objects(path, 1))


def files(folder: Path) -> Iterator[Path]:
    """The sessions below a folder."""
    yield from sorted(path for path in folder.rglob("*.jsonl") if sniff(path))


@reads
def read(path: Path, reading: Reading) -> Iterator[Conversation]:
    """The session of one file, in as many parts as it was compacted into."""
    reader, made = ApiMessageReader(reading), Conversation(SOURCE, path.stem)
    settings = json_object(path.with_suffix(".settings.json"))
    made.model = settings.text("model")
    used = settings.object("tokenUsage")
    made.tokens = used.counts(_TOKENS)
    for number, line in json_lines(path, reading):
        kind, at = line.get("type"), line.time("timestamp")
        name = line.text("id") or f"line-{number}"
        if kind == "session_start" and number == 1:
            made.foreign_id, made.title, made.cwd = name, line.text("title"), line.text("cwd")
            made.parent, made.kind = line.text("parent"), "subagent"
        elif kind == "message":
            reader.take(line.object("message"), name, at)
        elif kind == "compaction_state":
            reader.summarize(line.text("summaryText"), name, at)
        elif kind not in (*_BOOKKEEPING, "session_start"):
            reading.unknown[str(kind)] += 1
    yield from continued(made, reader.parts)
