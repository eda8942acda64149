"""Kiro CLI, whose engines keep sessions in three ways: ~/.kiro/sessions/cli/<id>.jsonl (and <id>.json), a folder
~/.kiro/sessions/<workspace>/sess_<id> with messages.jsonl (and session.json), and rows of the database data.sqlite3."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hermes.interop.histories.api_messages import ApiMessageReader
from hermes.interop.histories.conversation import (
    Conversation,
    compact,
    from_json,
    reads,
)  # fmt: skip
from hermes.interop.json_reading import Reading, first_objects, json_lines, json_object
from hermes.interop.records import Record, seconds, text

SOURCE = "kiro"
_TABLE, _FOLDERS = "conversations_v2", "messages.jsonl"
_KINDS = {"Prompt": "user", "AssistantMessage": "assistant", "ToolResults": "user"}
_PAYLOADS = ("user", "assistant", "tool_call", "tool_result")


def usual_places() -> list[Path]:
    """The places where Kiro CLI keeps its sessions."""
    data = (Path.home() / ".local" / "share", Path.home() / "Library" / "Application Support")
    return [Path.home() / ".kiro" / "sessions", *(folder / "kiro-cli" / "data.sqlite3" for folder in data)]


def sniff(path: Path) -> bool:
    """Whether a file is a session of Kiro CLI, or its database."""
    from hermes.store.engines.sqlite.foreign import tables_of

    if path.suffix == ".jsonl":
        return any(
            (str(one.get("kind")) in _KINDS and isinstance(one.get("data"), dict))
            or (path.name == _FOLDERS and one.object("payload").get("type") in _PAYLOADS)
            for one in first_objects(path)
        )
    return _TABLE in tables_of(path)


def files(folder: Path) -> Iterator[Path]:
    """The sessions and databases below a folder."""
    yield from sorted(path for path in folder.rglob("*.jsonl") if sniff(path))
    yield from sorted(path for path in folder.rglob("data.sqlite3") if sniff(path))


@reads
def read(path: Path, reading: Reading) -> Iterator[Conversation]:
    """The session of one file, or those of the database."""
    yield from (_session(path, reading),) if path.suffix == ".jsonl" else _stored(path, reading)


def _session(path: Path, reading: Reading) -> Conversation:
    is_folder = path.name == _FOLDERS
    about = json_object(path.with_name("session.json") if is_folder else path.with_suffix(".json"))
    state = about.object("session_state")
    model = state.object("rts_model_state").object("model_info").get("model_id") or about.get("modelId")
    turns = state.object("conversation_metadata").objects("user_turn_metadatas")
    counts = {to: sum(one.get(key) or 0 for one in turns if isinstance(one.get(key), int)) for to, key in
              (("input_tokens", "input_token_count"), ("output_tokens", "output_token_count"))}  # fmt: skip
    named = about.text("session_id") or about.text("id") or (path.parent.name if is_folder else path.stem)
    made = Conversation(
        SOURCE, named, title=about.text("title"), cwd=about.text("cwd"), model=text(model), tokens=counts,
        started_at=about.time("created_at"), parent=about.text("parent_session_id"), kind="subagent",
    )  # fmt: skip
    reader = ApiMessageReader(reading)
    for number, line in json_lines(path, reading):
        told, payload = line.object("data"), line.object("payload")
        name = told.text("message_id") or line.text("id") or f"line-{number}"
        if (kind := str(line.get("kind"))) in _KINDS:
            blocks = [_block(one, reading) for one in told.objects("content")]
            at = told.object("meta").time("timestamp")
            reader.take({"role": _KINDS[kind], "content": [one for one in blocks if one]}, name, at)
        elif payload.get("type") in _PAYLOADS:
            _take(reader, payload, name, line.time("timestamp"))
        elif not payload:
            reading.unknown[kind] += 1
    made.messages = reader.parts[0]
    return made


def _take(reader: ApiMessageReader, payload: Record, name: str, at: float | None) -> None:
    """An event of the newest engine."""
    kind, call = payload["type"], payload.get("toolCallId")
    content: dict[str, Any] = {"type": "text", "text": payload.get("content")}
    if kind == "tool_call":
        content = {"type": "tool_use", "id": call, "name": payload.get("toolName"), "input": payload.get("args")}
    elif kind == "tool_result":
        content = {"type": "tool_result", "tool_use_id": call, "content": payload.get("content")}
    reader.take({"role": "assistant" if kind in ("assistant", "tool_call") else "user", "content": [content]}, name, at)


def _block(one: Record, reading: Reading) -> dict[str, Any] | None:
    """A block as the Anthropic API has it."""
    kind, told = one.get("kind"), one.get("data")
    if kind == "text":
        return {"type": "text", "text": told}
    if kind == "toolUse":
        return {
            "type": "tool_use",
            "id": Record.of(told).get("toolUseId"),
            **{key: Record.of(told).get(key) for key in ("name", "input")},
        }
    if kind == "toolResult":
        return _result(Record.of(told).get("toolUseId"), Record.of(told).get("content"))
    reading.unknown[f"block {kind}"] += 1
    return None


def _result(call: Any, content: Any) -> dict[str, Any]:
    told = [one.get("Text", one.get("data", one.get("Json"))) for one in Record.all(content)]
    words = "\n".join(one if isinstance(one, str) else compact(one) for one in told if one is not None)
    return {"type": "tool_result", "tool_use_id": call, "content": words or content}


def _stored(path: Path, reading: Reading) -> Iterator[Conversation]:
    """The conversations of the oldest engine: a row each, whose key is the folder."""
    from hermes.store.engines.sqlite.foreign import ForeignDatabase

    with ForeignDatabase(path) as database:
        for row in database.rows(_TABLE, order=("created_at",)):
            value = Record.of(from_json(row.get("value")))
            if not value:
                reading.damaged(0, f"conversation {row.get('conversation_id')}: not JSON")
            made = Conversation(
                SOURCE, str(row.get("conversation_id")), cwd=text(row.get("key")), started_at=seconds(row.get("created_at")),
                model=value.object("model_info").text("model_id"),
            )  # fmt: skip
            reader = ApiMessageReader(reading)
            for number, turn in enumerate(value.objects("history")):
                _take_turn(reader, turn, str(number))
            made.messages = reader.parts[0]
            yield made


def _take_turn(reader: ApiMessageReader, turn: Record, name: str) -> None:
    user, reply = turn.object("user"), turn.object("assistant")
    said, results = (user.object("content").object(key) for key in ("Prompt", "ToolUseResults"))
    blocks = [_result(one.get("tool_use_id"), one.get("content")) for one in results.objects("tool_use_results")]
    reader.take(
        {"role": "user", "content": [*blocks, {"type": "text", "text": said.get("prompt")}]},
        name,
        user.time("timestamp"),
    )
    told = reply.object("ToolUse") or reply.object("Response")
    calls = [{"type": "tool_use", "id": one.get("id"), "name": one.get("name"), "input": one.get("args")}
             for one in told.objects("tool_uses")]  # fmt: skip
    at = turn.object("request_metadata").time("stream_end_timestamp_ms")
    reader.take(
        {"role": "assistant", "content": [{"type": "text", "text": told.get("content")}, *calls]}, f"{name}-reply", at
    )
