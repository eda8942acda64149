"""Qwen Code: ~/.qwen/projects/<folder>/chats/<session>.jsonl. Lines link like Claude Code's, messages are Gemini's inside."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from hermes.interop.histories import Conversation, Message, make, reads, relink
from hermes.interop.histories.gemini import content_of, output_of
from hermes.interop.json_reading import Reading, Record, compact, first_objects, json_lines

SOURCE = "qwen"
FILES = "chats/*.jsonl"
_TOKENS = ("promptTokenCount", "candidatesTokenCount", "cachedContentTokenCount", "", "thoughtsTokenCount")
_KINDS = ("user", "assistant", "tool_result", "system")


def usual_places() -> list[Path]:
    """The folder in which Qwen Code keeps its sessions."""
    return [Path.home() / ".qwen" / "projects"]


def sniff(path: Path) -> bool:
    """Whether a file is a session of Qwen Code."""
    return any(
        "sessionId" in line and line.get("type") in _KINDS and isinstance(line.object("message").get("parts"), list)
        for line in first_objects(path, 10)
    )


@reads
def read(path: Path, reading: Reading) -> Iterator[Conversation]:
    """The session of one file, in as many parts as it was compressed into."""
    entries: dict[str, Record] = {}
    for number, line in json_lines(path, reading):
        if line.get("type") in _KINDS:
            entries.setdefault(line.text("uuid") or f"line-{number}", line)
        else:
            reading.unknown[str(line.get("type"))] += 1
    yield from _conversations(path, entries, reading)


def _conversations(path: Path, entries: dict[str, Record], reading: Reading) -> Iterator[Conversation]:
    def last(key: str) -> str | None:
        return next((found for one in reversed(entries.values()) if (found := one.text(key))), None)

    parents = {key: entry.get("parentUuid") for key, entry in entries.items()}
    relink(parents)
    cwd = next((found for one in entries.values() if (found := one.text("cwd"))), None)
    made = Conversation(SOURCE, last("sessionId") or path.stem, title=_title(entries), cwd=cwd)
    made.git_branch = last("gitBranch")
    messages = {key: _messages(key, entry, reading) for key, entry in entries.items()}
    made.show_tree(parents, messages, [key for key, one in entries.items() if one.get("subtype") == "chat_compression"])
    yield made


def _title(entries: dict[str, Record]) -> str | None:
    titles = (one.object("systemPayload").text("customTitle") for one in reversed(entries.values()))
    return next(filter(None, titles), None)


def _messages(key: str, entry: Record, reading: Reading) -> list[Message]:
    kind, at = entry.get("type"), entry.time("timestamp")
    parts = entry.object("message").get("parts")
    if kind == "system":
        return _summary(key, entry, at, reading)
    if kind == "tool_result":
        return _results(key, entry, at)
    content = content_of(parts, reading)
    if kind == "user":
        return make.spoken("user", content, at, key)
    calls = [
        make.tool_call(call.text("id") or f"{key}-{number}", call.get("name"), call.get("args"))
        for number, part in enumerate(Record.all(parts))
        if (call := part.object("functionCall"))
    ]
    thoughts = [part.text("text") for part in Record.all(parts) if part.get("thought")]
    used = entry.object("usageMetadata").counts(_TOKENS, with_cached=True)
    return make.spoken("assistant", content, at, key, thoughts=thoughts, calls=calls, model=entry.text("model"), **used)


def _results(key: str, entry: Record, at: float | None) -> list[Message]:
    """Each result of a line, joined to its call; the line names the call where the result does not."""
    beside = entry.object("toolCallResult")
    made = []
    for number, part in enumerate(entry.object("message").objects("parts")):
        if response := part.object("functionResponse"):
            call = response.text("id") or beside.text("callId")
            output = output_of([part]) or beside.text("resultDisplay") or compact(response.get("response"))
            made.append(make.result(output, at, key if not number else f"{key}-{number}", call, response.text("name")))
    return made


def _summary(key: str, entry: Record, at: float | None, reading: Reading) -> list[Message]:
    """The first message of a compressed context: the summary. Other records of the program itself say nothing."""
    if entry.get("subtype") != "chat_compression":
        return []
    history = entry.object("systemPayload").objects("compressedHistory")
    content = content_of(history[0].get("parts"), reading) if history else None
    return make.spoken("user", content, at, key, meta={"summary": True})
