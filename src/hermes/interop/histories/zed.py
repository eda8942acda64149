"""Zed: threads.db, a row a conversation; what was said in it is one JSON document, compressed with zstd."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hermes.interop.histories.conversation import (
    FAILED,
    Conversation,
    Message,
    changed_lines,
    compact,
    count,
    dicts,
    image_part,
    joined,
    mapping,
    message,
    reads,
    seconds,
    text,
    tool_call,
)  # fmt: skip
from hermes.interop.json_reading import Reading, decoded, unpacked
from hermes.store.engines.sqlite.foreign import ForeignDatabase, tables_of

SOURCE = "zed"
_TOKENS = {
    "input_tokens": "input_tokens", "output_tokens": "output_tokens", "cache_read_tokens": "cache_read_input_tokens",
    "cache_write_tokens": "cache_creation_input_tokens",
}  # fmt: skip
Record = dict[str, Any]


def usual_places() -> list[Path]:
    """The places where Zed keeps its conversations, on Linux and on macOS."""
    data = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")
    return [data / "zed" / "threads", Path.home() / "Library" / "Application Support" / "Zed" / "threads"]


def sniff(path: Path) -> bool:
    """Whether a file is Zed's database."""
    if "threads" not in tables_of(path):
        return False
    with ForeignDatabase(path) as database:
        return {"summary", "data_type", "data"} <= set(database.columns["threads"])


def files(folder: Path) -> Iterator[Path]:
    """The databases below a folder."""
    yield from sorted(path for path in folder.rglob("threads*.db") if path.is_file())


@reads
def read(path: Path, reading: Reading) -> Iterator[Conversation]:
    """The conversations of a database."""
    with ForeignDatabase(path) as database:
        for row in database.rows("threads", order=("updated_at", "id")):
            data = row["data"].encode() if isinstance(row["data"], str) else bytes(row["data"] or b"")
            try:
                whole = decoded(unpacked(data) if row["data_type"] == "zstd" else data)
            except ValueError as error:
                reading.damaged(0, f"thread {row['id']}: {error}")
                continue
            yield _conversation(row, mapping(whole), reading)


def _conversation(row: Record, whole: Record, reading: Reading) -> Conversation:
    """A row's conversation. Only two times are known: when it was first saved, and when something was said last."""
    first, last = seconds(row.get("created_at")), seconds(row.get("updated_at"))
    trees = dicts(mapping(whole.get("initial_project_snapshot")).get("worktree_snapshots"))
    folder = (text(row.get("folder_paths")) or "").partition("\n")[0]
    made = Conversation(
        SOURCE, str(row["id"]), title=text(row.get("summary")) or text(whole.get("title")) or text(whole.get("summary")),
        cwd=folder or next((found for tree in trees if (found := text(tree.get("worktree_path")))), None),
        model=text(mapping(whole.get("model")).get("model")), started_at=first or last,
        parent=text(row.get("parent_id")), kind="subagent",
    )  # fmt: skip
    used = mapping(whole.get("cumulative_token_usage"))
    made.tokens = {name: number for name, key in _TOKENS.items() if (number := count(used.get(key)))}
    asked, replies = "thread", 0
    for one in whole["messages"] if isinstance(whole.get("messages"), list) else ():
        kind, told = next(iter(_newer(one).items()), ("nothing", None))
        if kind == "User" and isinstance(told, dict):
            asked, replies = text(told.get("id")) or f"{asked}+", 0
            content = joined([_user_part(part, reading) for part in dicts(told.get("content"))])
            made.messages += [message("user", content, None, asked)] if content else []
        elif kind == "Agent" and isinstance(told, dict):
            replies += 1
            made.messages += _reply(told, f"{asked}-{replies}", reading)
        elif kind not in ("Resume", "System"):  # a button that lets the model go on; the program's own words
            reading.unknown[f"message {kind}"] += 1
    for later in made.messages[1:]:
        later["timestamp"] = last
    return made


def _user_part(part: Record, reading: Reading) -> Any:
    """A part of a question: words, a picture, or a file (or alike) that it mentions, with its text."""
    if text(part.get("Text")):
        return part["Text"]
    if picture := _picture(part):
        return picture
    mention = mapping(part.get("Mention"))
    kind, about = next(iter(mapping(mention.get("uri")).items()), ("Text", {}))
    label = next((found for found in mapping(about).values() if text(found)), kind)
    if not mention and "Text" not in part:
        reading.unknown[f"content {next(iter(part), None)}"] += 1
    return f"[{kind.lower()} {label}]\n{mention.get('content') or ''}".strip() if mention else ""


def _picture(part: Record) -> Any:
    source = text(mapping(part.get("Image")).get("source"))
    return image_part(source, "image/png") if source else None


def _reply(agent: Record, name: str, reading: Reading) -> list[Message]:
    """A reply, and what its tools gave back."""
    texts, thoughts, calls = list[str](), list[str](), dict[str, str]()
    asked = []
    results = mapping(agent.get("tool_results"))
    for part in dicts(agent.get("content")):
        if text(part.get("Text")):
            texts.append(part["Text"])
        elif thought := text(mapping(part.get("Thinking")).get("text")):
            thoughts.append(thought)
        elif used := mapping(part.get("ToolUse")):
            call = str(used.get("id"))
            calls[call] = str(used.get("name") or "tool")
            asked.append(
                tool_call(call, calls[call], _arguments(used.get("input"), mapping(results.get(call)).get("output")))
            )
        elif not part.keys() & {"Text", "Thinking", "RedactedThinking"}:
            reading.unknown[f"content {next(iter(part), None)}"] += 1
    said, thought = "\n\n".join(texts) or None, "\n\n".join(thoughts) or None
    made = (
        [message("assistant", said, None, name, reasoning=thought, tool_calls=asked or None)]
        if said or thought or asked
        else []
    )
    for call, result in results.items():
        tool = text(mapping(result).get("tool_name")) or calls.get(call)
        content = _output(mapping(result).get("content"))
        failed = FAILED if mapping(result).get("is_error") is True else None
        made.append(message("tool", content, None, f"{call}-result", tool_call_id=call, tool_name=tool, meta=failed))
    return made


def _arguments(given: Any, output: Any) -> Any:
    """The arguments of a call. Those of an edit may name the file alone: its result has the texts."""
    before, after = mapping(output).get("old_text"), mapping(output).get("new_text")
    if isinstance(given, dict) and isinstance(before, str) and isinstance(after, str) and "edits" not in given:
        return {**given, **changed_lines(before, after)}
    return given


def _newer(one: Any) -> Record:
    """A message in the form of 0.3.0: older ones have a role and segments."""
    if not isinstance(one, dict) or "role" not in one:
        return one if isinstance(one, dict) else {str(one): None}
    parts: list[Record] = []
    for part in dicts(one.get("segments")):
        parts.append({"Thinking": part} if part.get("type") == "thinking" else {"Text": part.get("text")})
    if one["role"] != "assistant":
        content = parts or [{"Text": one.get("context")}]
        return {"User" if one["role"] == "user" else "System": {"id": f"message-{one.get('id')}", "content": content}}
    parts += [{"ToolUse": used} for used in dicts(one.get("tool_uses"))]
    return {
        "Agent": {
            "content": parts,
            "tool_results": {str(r.get("tool_use_id")): r for r in dicts(one.get("tool_results"))},
        }
    }


def _output(content: Any) -> Any:
    """The result of a tool: a text, a picture, or several of them."""
    parts = content if isinstance(content, list) else [content]
    told = [
        part if isinstance(part, str) else mapping(part).get("Text") or _picture(mapping(part)) or compact(part)
        for part in parts
    ]
    return joined(told)
