"""Zed: threads.db, one row per conversation; its messages are one JSON document, compressed with zstd."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hermes.interop.histories import Conversation, Message, make, reads
from hermes.interop.json_reading import Reading, Record, compact, decoded, seconds, text, unpacked
from hermes.store.engines.sqlite.foreign import ForeignDatabase, tables_of

SOURCE = "zed"
FILES = "threads*.db"
_TOKENS = ("input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")


def usual_places() -> list[Path]:
    """The places where Zed keeps its conversations, on Linux and on macOS."""
    data = make.program_home("XDG_DATA_HOME", ".local/share")
    return [data / "zed" / "threads", Path.home() / "Library" / "Application Support" / "Zed" / "threads"]


def sniff(path: Path) -> bool:
    """Whether a file is Zed's database."""
    if "threads" not in tables_of(path):
        return False
    with ForeignDatabase(path) as database:
        return {"summary", "data_type", "data"} <= set(database.columns["threads"])


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
            yield _conversation(Record(row), Record.of(whole), reading)


def _conversation(row: Record, whole: Record, reading: Reading) -> Conversation:
    """A row's conversation. Only two times are known: when it was first saved, and when something was said last."""
    first, last = seconds(row.get("created_at")), seconds(row.get("updated_at"))
    folder = (text(row.get("folder_paths")) or "").partition("\n")[0]
    title = text(row.get("summary")) or whole.text("title") or whole.text("summary")
    made = Conversation(
        SOURCE, str(row["id"]), title, folder or None, whole.object("model").text("model"), first or last
    )
    made.parent, made.kind = text(row.get("parent_id")), "subagent"
    used = whole.object("cumulative_token_usage")
    made.tokens = used.counts(_TOKENS)
    question, replies = "thread", 0
    for stored in whole["messages"] if isinstance(whole.get("messages"), list) else ():
        kind, value = next(iter(_newer(stored).items()), ("nothing", None))
        message = Record.of(value)
        if kind == "User" and message:
            question, replies = message.text("id") or f"{question}+", 0
            content = make.joined([_user_part(part, reading) for part in message.objects("content")])
            made.messages += make.spoken("user", content, None, question)
        elif kind == "Agent" and message:
            replies += 1
            made.messages += _reply(message, f"{question}-{replies}", reading)
        elif kind not in ("Resume", "System"):  # a button that lets the model go on; the program's own words
            reading.unknown[f"message {kind}"] += 1
    for later in made.messages[1:]:
        later["timestamp"] = last
    return made


def _user_part(part: Record, reading: Reading) -> Any:
    """A part of a question: words, a picture, or a file (or alike) that it mentions, with its text."""
    if part.text("Text"):
        return part["Text"]
    if picture := _picture(part):
        return picture
    mention = part.object("Mention")
    kind, about = next(iter(mention.object("uri").items()), ("Text", {}))
    label = next((found for found in Record.of(about).values() if text(found)), kind)
    if not mention and "Text" not in part:
        reading.unknown[f"content {next(iter(part), None)}"] += 1
    return f"[{kind.lower()} {label}]\n{mention.get('content') or ''}".strip() if mention else ""


def _picture(part: Record) -> Any:
    source = part.object("Image").text("source")
    return make.image_part(source, "image/png") if source else None


def _reply(agent: Record, name: str, reading: Reading) -> list[Message]:
    """A reply, and what its tools gave back."""
    made, results = make.Parts(), agent.object("tool_results")
    for part in agent.objects("content"):
        if part.text("Text"):
            made.content.append(part["Text"])
        elif thought := part.object("Thinking").text("text"):
            made.thoughts.append(thought)
        elif used := part.object("ToolUse"):
            made.call(str(used.get("id")), used.get("name"), used.get("input"))
        elif not part.keys() & {"Text", "Thinking", "RedactedThinking"}:
            reading.unknown[f"content {next(iter(part), None)}"] += 1
    for call in results:
        result = results.object(call)
        tool, failed = result.text("tool_name"), result.get("is_error") is True
        made.result(_output(result.get("content")), None, f"{call}-result", call, tool, failed=failed)
    return made.messages("assistant", None, name)


def _newer(raw: Any) -> dict[str, Any]:
    """A message in the form of 0.3.0: older ones have a role and segments."""
    if not isinstance(raw, dict) or "role" not in raw:
        return raw if isinstance(raw, dict) else {str(raw): None}
    parts: list[dict[str, Any]] = []
    raw = Record(raw)
    for part in raw.objects("segments"):
        parts.append({"Thinking": part} if part.get("type") == "thinking" else {"Text": part.get("text")})
    if raw["role"] != "assistant":
        content = parts or [{"Text": raw.get("context")}]
        return {"User" if raw["role"] == "user" else "System": {"id": f"message-{raw.get('id')}", "content": content}}
    parts += [{"ToolUse": used} for used in raw.objects("tool_uses")]
    results = {str(result.get("tool_use_id")): result for result in raw.objects("tool_results")}
    return {"Agent": {"content": parts, "tool_results": results}}


def _output(content: Any) -> Any:
    """The result of a tool: a text, a picture, or several of them."""
    parts = content if isinstance(content, list) else [content]
    texts = [
        part if isinstance(part, str) else Record.of(part).get("Text") or _picture(Record.of(part)) or compact(part)
        for part in parts
    ]
    return make.joined(texts)
