"""Goose: ~/.local/share/goose/sessions/sessions.db."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from hermes.interop.histories import Conversation, Message, make, reads
from hermes.interop.json_reading import Reading, Record, compact, from_json, text
from hermes.store.engines.sqlite.foreign import ForeignDatabase, tables_of

SOURCE = "goose"
FILES = "sessions.db"
_TOKENS = ("accumulated_input_tokens", "accumulated_output_tokens")
_BOOKKEEPING = frozenset(("toolConfirmationRequest", "actionRequired", "systemNotification", "redactedThinking"))


def usual_places() -> list[Path]:
    """The folder in which Goose keeps its sessions."""
    return [make.program_home("XDG_DATA_HOME", ".local/share") / "goose" / "sessions"]


def sniff(path: Path) -> bool:
    """Whether a file is Goose's."""
    with_tables = tables_of(path)
    if not {"sessions", "messages", "schema_version"} <= with_tables:
        return False
    with ForeignDatabase(path) as database:
        return "content_json" in database.columns["messages"]


@reads
def read(path: Path, reading: Reading) -> Iterator[Conversation]:
    """The sessions of a database."""
    with ForeignDatabase(path) as database:
        for row in database.rows("sessions", order=("created_at", "id")):
            rows = database.rows("messages", {"session_id": row["id"]}, ("created_timestamp", "id"))
            made = _conversation(str(row["id"]), Record(row))
            _add(made, map(Record, rows), reading)
            yield made


def _add(made: Conversation, rows: Iterable[Record], reading: Reading) -> None:
    """Add the messages of a session, cut where a compaction put its summary.

    A compaction keeps what was said for the person only, and adds a summary that only the model reads. The next compaction
    takes that from the model as well.
    """
    inside = compacted = False  # inside a summary; whether what came last is kept from the model
    for row in rows:
        seen = Record.of(from_json(row.get("metadata_json")))
        for_person, for_model = seen.get("userVisible") is not False, seen.get("agentVisible") is not False
        if not for_person and not inside and compacted:
            made.compact(None, None, None)
        inside, compacted = not for_person, not for_model
        made.messages += _stored(row, reading)


def _conversation(name: str, row: Record) -> Conversation:
    title = row.text("name") or row.text("description")
    model = Record.of(from_json(row.get("model_config_json"))).get("model_name")
    made = Conversation(SOURCE, name, None if title == name else title, row.text("working_dir"), text(model))
    made.started_at = row.time("created_at")
    made.tokens = row.counts(_TOKENS)
    made.cost = row.number("accumulated_cost")
    if row.get("session_type") == "sub_agent":
        made.meta["sub_agent"] = True
    return made


def _stored(row: Record, reading: Reading) -> list[Message]:
    name = row.text("message_id") or str(row.get("id"))
    content = from_json(row.get("content_json"))
    if not isinstance(content, list):
        reading.damaged(0, f"message {name}: no JSON list")
    record = Record({"role": row.get("role"), "content": content, "created": row.get("created_timestamp")})
    made = _messages(record, name, reading)
    if row.get("role") == "assistant" and made and (used := row.count("tokens")):
        made[0]["output_tokens"] = used
    return made


def _messages(record: Record, name: str, reading: Reading) -> list[Message]:
    at, made = record.time("created"), make.Parts()
    for block in record.objects("content"):
        kind = block.get("type")
        if kind == "text":
            made.content.append(block.text("text"))
        elif kind == "image" and (shown := make.picture_in(block)):
            made.content.append(shown)
        elif kind == "thinking":
            made.thoughts.append(block.text("thinking"))
        elif kind in ("toolRequest", "frontendToolRequest"):
            requested = block.object("toolCall").object("value")
            made.call(str(block.get("id")), requested.get("name"), requested.get("arguments"))
        elif kind == "toolResponse":
            call, result = str(block.get("id")), block.object("toolResult")
            is_error = result.get("status") == "error" or result.object("value").get("isError") is True
            made.result(_result(result), at, f"{call}-result", call, failed=is_error)
        elif str(kind) not in _BOOKKEEPING:
            reading.unknown[f"content {kind}"] += 1
    return made.messages("assistant" if record.get("role") == "assistant" else "user", at, name)


def _result(result: Record) -> Any:
    if result.get("status") == "error" or "error" in result:
        return result.text("error") or compact(result)
    value = result.get("value")
    blocks = Record.of(value).objects("content") or Record.all(value)
    texts = [block.text("text") or block.object("resource").text("text") for block in blocks]
    if pictures := [shown for block in blocks if block.get("type") == "image" and (shown := make.picture_in(block))]:
        return make.joined([*texts, *pictures])
    return "\n".join(filter(None, texts)) or compact(value)
