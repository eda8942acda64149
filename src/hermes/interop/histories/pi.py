"""Pi, Oh My Pi, and OpenClaw before 2026.7.2: one JSON-lines file per session, a header and entries in a tree by parentId."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hermes.interop.histories import Conversation, Message, make, reads, relink
from hermes.interop.json_reading import Reading, Record, compact, first_objects, json_lines

SOURCE = "pi"
FILES = "*.jsonl"
_SOURCES = {".openclaw": "openclaw", ".omp": "omp"}  # by the folder that a file is in
_BOOKKEEPING = frozenset(
    "model_change thinking_level_change custom label session_info session_init mode_change ttsr_injection".split()
)
_TOKENS = ("input", "output", "cacheRead", "cacheWrite")
_BLOB = "blob:sha256:"  # Oh My Pi keeps large pictures beside the sessions


def usual_places() -> list[Path]:
    """The places where Pi, Oh My Pi and OpenClaw keep their sessions."""
    agents = [Path.home() / folder / "agent" / "sessions" for folder in (".pi", ".omp")]
    return [*agents, Path.home() / ".openclaw" / "agents"]


def sniff(path: Path) -> bool:
    """Whether a file is a session of Pi."""
    first = first_objects(path, 1)
    return bool(first) and first[0].get("type") == "session" and "session" not in first[0] and "timestamp" in first[0]


@reads
def read(path: Path, reading: Reading) -> Iterator[Conversation]:
    """The session of one file, in as many parts as it was compacted into."""
    header = Record()
    entries: dict[str, Record] = {}
    for number, line in json_lines(path, reading):
        if line.get("type") == "session":
            header = header or line
        else:
            entries.setdefault(line.text("id") or f"line-{number}", _with_blobs(line, path))
    yield from _conversations(path, header, entries, reading)


def _with_blobs(entry: Record, path: Path) -> Record:
    """An entry with the pictures that Oh My Pi keeps as files of their own."""
    for block in (*entry.object("message").objects("content"), *entry.objects("content")):
        if isinstance(data := block.get("data"), str) and data.startswith(_BLOB):
            name = data.removeprefix(_BLOB)
            places = (above / "blobs" / name for above in path.parents) if name.isalnum() else ()
            if (found := next((place for place in places if place.is_file()), None)) is not None:
                block["data"] = base64.b64encode(found.read_bytes()).decode()
            else:
                block |= {"type": "text", "text": "[picture]"}
    return entry


def _conversations(path: Path, header: Record, entries: dict[str, Record], reading: Reading) -> Iterator[Conversation]:
    name = header.text("id") or path.stem
    # A message that follows none (`parentId` is null) starts the conversation again; the first version had no tree.
    parents = {key: entry.get("parentId") for key, entry in entries.items()}
    relink(parents, lambda key: "parentId" in entries[key] and str(entries[key].get("type")) not in _BOOKKEEPING)
    named = (one.text("name") for one in reversed(entries.values()) if one.get("type") == "session_info")
    title = next(filter(None, named), None) or header.text("title")
    started = next((one for one in entries.values() if one.get("type") == "session_init"), None)  # of a sub-agent
    parent = header.text("parentSession")
    source = next((_SOURCES[folder] for folder in path.parts if folder in _SOURCES), SOURCE)
    first = Conversation(source, name, title, header.text("cwd"), header.text("modelId"), header.time("timestamp"))
    first.parent, first.kind = _session_id_in(Path(parent)) if parent else None, "subagent" if started else "branch"
    first.system_prompt = (started or Record()).text("systemPrompt")
    messages = {key: _messages(key, entry, reading) for key, entry in entries.items()}
    cuts = [key for key, entry in entries.items() if entry.get("type") == "compaction"]
    shown = first.show_tree(parents, messages, cuts)
    earlier: list[Conversation] = []
    for made in first.split():
        if earlier:
            began = shown.index(made.messages[0]["platform_message_id"])
            summary = next(key for key in reversed(shown[: began + 1]) if key in cuts)
            made.carry(earlier, set(_kept(entries, shown, summary)), summary if messages[summary] else None)
        earlier.append(made)
        yield made


def _kept(entries: dict[str, Record], shown: list[str], compaction: str) -> list[str]:
    """The entries before a compaction that stay in the context: from the first one it names on."""
    entry, before = entries[compaction], shown[: shown.index(compaction)]
    first, place = entry.get("firstKeptEntryId"), entry.get("firstKeptEntryIndex")
    if first is None and isinstance(place, int) and 0 <= place - 1 < len(entries):  # older versions count, header first
        first = list(entries)[place - 1] if place else None
    return before[before.index(first) :] if first in before else []


def _session_id_in(path: Path) -> str:
    """The id of the session in a file: its header has it, and its name `<time>_<id>.jsonl` where the file is gone."""
    first = first_objects(path, 1)
    return (first[0].text("id") if first else None) or path.stem.rpartition("_")[2]


def _messages(key: str, entry: Record, reading: Reading) -> list[Message]:
    kind, at = entry.get("type"), entry.time("timestamp")
    if kind == "message":
        return _message(key, entry.object("message"), at, reading)
    if kind == "custom_message":
        return make.spoken("system", _content(entry.get("content")), at, key)
    if kind in ("compaction", "branch_summary"):
        return make.spoken("user", entry.text("summary"), at, key, meta={"summary": True})
    if str(kind) not in _BOOKKEEPING:
        reading.unknown[str(kind)] += 1
    return []


def _message(key: str, message: Record, at: float | None, reading: Reading) -> list[Message]:
    role, at, content = message.get("role"), message.time("timestamp") or at, _content(message.get("content"))
    if role == "user":
        return make.spoken("user", content, at, key)
    if role == "toolResult":
        failed = message.get("isError") is True
        return [make.result(content, at, key, message.text("toolCallId"), message.text("toolName"), failed=failed)]
    if role in ("bashExecution", "pythonExecution"):
        typed = f"$ {message.get('command')}" if role == "bashExecution" else f">>> {message.get('code')}"
        return [make.message("user", f"{typed}\n{message.get('output') or ''}", at, key)]
    if role in ("custom", "hookMessage", "developer"):
        return make.spoken("system", content, at, key)
    if role != "assistant":
        reading.unknown[f"message {role}"] += 1
        return []
    made, used = make.Parts(), message.object("usage")
    for block in message.objects("content"):
        if block.get("type") == "toolCall":
            made.call(str(block.get("id")), block.get("name"), block.get("arguments"))
        elif block.get("type") == "thinking":
            made.thoughts.append(block.text("thinking"))
    about: dict[str, Any] = {
        "model": message.text("model"),
        "finish_reason": make.finish_of(message.text("stopReason")),
    }
    about |= {"cost_usd": used.object("cost").number("total"), **used.counts(_TOKENS)}
    words = content or message.text("errorMessage")
    thought, calls = "\n\n".join(filter(None, made.thoughts)) or None, made.calls or None
    return [make.message("assistant", words, at, key, reasoning=thought, tool_calls=calls, **about)]


def _content(content: Any) -> Any:
    if isinstance(content, str):
        return content or None
    parts: list[Any] = []
    for block in Record.all(content):
        if block.get("type") == "text" and block.text("text"):
            parts.append(block["text"])
        elif block.get("type") == "image" and (shown := make.picture_in(block)):
            parts.append(shown)
        elif block.get("type") not in ("text", "thinking", "toolCall"):
            parts.append(compact(block))
    return make.joined(parts)
