"""Amp: ~/.local/share/amp/threads/T-<id>.json, a thread a file, written anew each time."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hermes.interop.histories.api_messages import ApiMessageReader
from hermes.interop.histories.conversation import (
    Conversation,
    compact,
    dicts,
    local_path,
    mapping,
    reads,
    seconds,
    text,
)
from hermes.interop.json_reading import Reading, json_object, top_keys

SOURCE = "amp"


def usual_places() -> list[Path]:
    """The places where Amp keeps its threads."""
    return [Path(os.environ.get("AMP_DATA_DIR") or Path.home() / ".local" / "share" / "amp") / "threads"]


def sniff(path: Path) -> bool:
    """Whether a file is a thread of Amp."""
    if path.suffix != ".json" or not path.is_file():
        return False
    with path.open("rb") as stream:
        begin = stream.read(4096)
    return top_keys(begin) >= {"v", "id", "created", "messages"} and b'"T-' in begin


def files(folder: Path) -> Iterator[Path]:
    """The threads below a folder."""
    yield from sorted(folder.rglob("T-*.json"))


@reads
def read(path: Path, reading: Reading) -> Iterator[Conversation]:
    """The thread of one file."""
    thread = json_object(path)
    if not thread:
        reading.damaged(0, "not JSON")
    trees = dicts(mapping(mapping(thread.get("env")).get("initial")).get("trees"))
    made = Conversation(
        SOURCE, text(thread.get("id")) or path.stem, title=text(thread.get("title")), started_at=seconds(thread.get("created")),
        cwd=next(filter(None, (local_path(one.get("uri")) for one in trees)), None),
    )  # fmt: skip
    reader = ApiMessageReader(reading)
    for number, one in enumerate(dicts(thread.get("messages"))):
        blocks = [_as_result(block) for block in dicts(one.get("content"))]
        at = seconds(mapping(one.get("meta")).get("sentAt")) or seconds(mapping(one.get("usage")).get("timestamp"))
        reader.take({**one, "content": blocks or one.get("content")}, str(one.get("messageId", number)), at)
    made.messages, made.keeps_lost = reader.parts[0], True
    yield made


def _as_result(block: dict[str, Any]) -> dict[str, Any]:
    """A tool result as the API has it; Amp tells what the tool's run gave, or why it failed."""
    run = mapping(block.get("run"))
    if block.get("type") != "tool_result" or not run:
        return block
    told = run.get("result")
    words = next((one for key in ("output", "content", "diff") if (one := text(mapping(told).get(key)))), None)
    failed = text(mapping(run.get("error")).get("message")) or (f"[{run.get('status')}]" if told is None else None)
    return {**block, "content": failed or words or (told if isinstance(told, str) else compact(told))}
