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
    local_path,
    reads,
)  # fmt: skip
from hermes.interop.json_reading import Reading, json_object, top_keys
from hermes.interop.records import Record

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
    trees = thread.object("env").object("initial").objects("trees")
    made = Conversation(
        SOURCE, thread.text("id") or path.stem, title=thread.text("title"), started_at=thread.time("created"),
        cwd=next(filter(None, (local_path(one.get("uri")) for one in trees)), None),
    )  # fmt: skip
    reader = ApiMessageReader(reading)
    for number, one in enumerate(thread.objects("messages")):
        blocks = [_as_result(block) for block in one.objects("content")]
        at = one.object("meta").time("sentAt") or one.object("usage").time("timestamp")
        reader.take({**one, "content": blocks or one.get("content")}, str(one.get("messageId", number)), at)
    made.messages, made.keeps_lost = reader.parts[0], True
    yield made


def _as_result(block: Record) -> dict[str, Any]:
    """A tool result as the API has it; Amp tells what the tool's run gave, or why it failed."""
    run = block.object("run")
    if block.get("type") != "tool_result" or not run:
        return block
    told = run.get("result")
    words = next((one for key in ("output", "content", "diff") if (one := Record.of(told).text(key))), None)
    failed = run.object("error").text("message") or (f"[{run.get('status')}]" if told is None else None)
    return {**block, "content": failed or words or (told if isinstance(told, str) else compact(told))}
