"""llm (the command-line tool): its logs.db, in both schemas: `conversations` and `responses`, or `threads` and `messages`."""

from __future__ import annotations

import base64
import os
import sys
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from hermes.interop.histories import Conversation, Message, make, reads
from hermes.interop.json_reading import Reading, Record, compact, from_json, text
from hermes.store.engines.sqlite.foreign import ForeignDatabase, tables_of

SOURCE = "llm"
FILES = "*.db"
_TOKENS = ("input_tokens", "output_tokens")


def usual_places() -> list[Path]:
    """The file in which llm keeps its log."""
    if set_by := os.environ.get("LLM_USER_PATH"):
        return [Path(set_by) / "logs.db"]
    if sys.platform == "darwin":
        return [Path.home() / "Library" / "Application Support" / "io.datasette.llm" / "logs.db"]
    return [make.program_home("XDG_CONFIG_HOME", ".config") / "io.datasette.llm" / "logs.db"]


def sniff(path: Path) -> bool:
    """Whether a file is llm's log."""
    tables = tables_of(path)
    return {"conversations", "responses"} <= tables or {"threads", "turns", "parts"} <= tables


@reads
def read(path: Path, reading: Reading) -> Iterator[Conversation]:
    """The conversations of a log."""
    with ForeignDatabase(path) as database:
        yield from _conversations(database)
        yield from _threads(database, reading)


def _conversations(database: ForeignDatabase) -> Iterator[Conversation]:
    """The older schema: a response holds a prompt and what came back. One of no conversation is a conversation of its own."""
    order = ("datetime_utc", "id")
    named = (
        (row, database.rows("responses", {"conversation_id": row["id"]}, order))
        for row in database.rows("conversations", order=("id",))
    )
    alone = ((row, iter([row])) for row in database.rows("responses", {"conversation_id": None}, order))
    for row, responses in chain(named, alone):
        about = Record(row)
        made = Conversation(SOURCE, str(row["id"]), title=about.text("name"), model=about.text("model"))
        for response in map(Record, responses):
            made.system_prompt = made.system_prompt or _system(database, response)
            made.messages += _response(database, response)
        yield made


def _response(database: ForeignDatabase, row: Record) -> Iterator[Message]:
    name, asked_at = str(row["id"]), row.time("datetime_utc")
    answered_at = asked_at + (row.get("duration_ms") or 0) / 1000 if asked_at is not None else None
    for number, result in enumerate(map(Record, database.rows("tool_results", {"response_id": row["id"]}, ("id",)))):
        call = result.text("tool_call_id") or f"{name}-{number}"
        output = result.text("output") or result.text("exception")
        yield make.result(output, asked_at, f"{name}-result-{number}", call, result.text("name"))
    parts: list[Any] = _fragments(database, "prompt_fragments", row["id"])
    parts.append(row.text("prompt"))
    for link in map(Record, database.rows("prompt_attachments", {"response_id": row["id"]}, ("order",))):
        for attachment in map(Record, database.rows("attachments", {"id": link.get("attachment_id")})):
            parts.append(_attachment(attachment))
    yield from make.spoken("user", make.joined(parts), asked_at, f"{name}-prompt")
    reply = make.Parts([row.text("response")], [row.text("reasoning")])
    for number, call_row in enumerate(map(Record, database.rows("tool_calls", {"response_id": row["id"]}, ("id",)))):
        arguments = from_json(call_row.get("arguments"), call_row.get("arguments"))
        reply.call(call_row.text("tool_call_id") or f"{name}-{number}", call_row.get("name"), arguments)
    if row.text("response") or reply.calls:
        model = row.text("resolved_model") or row.text("model")
        yield from reply.messages("assistant", answered_at, name, model=model, **row.counts(_TOKENS))


def _system(database: ForeignDatabase, row: Record) -> str | None:
    parts = [*_fragments(database, "system_fragments", row["id"]), row.text("system")]
    return "\n\n".join(filter(None, parts)) or None


def _fragments(database: ForeignDatabase, table: str, response: Any) -> list[Any]:
    """The texts that `llm -f` put before a prompt: they are kept once, in a table of their own."""
    links = list(database.rows(table, {"response_id": response}, ("order",)))
    fragments = (row for link in links for row in database.rows("fragments", {"id": link.get("fragment_id")}))
    return [row["content"] for row in fragments if text(row.get("content"))]


def _attachment(row: Record) -> Any:
    data = row.get("content")
    if isinstance(data, bytes) and data:
        return make.image_part(base64.b64encode(data).decode(), row.text("type") or "application/octet-stream")
    return f"[file {row.text('path') or row.text('url') or row.get('id')}]"


def _threads(database: ForeignDatabase, reading: Reading) -> Iterator[Conversation]:
    """The newer schema: messages linked by hash; a thread names its last one."""
    if "threads" not in database.columns:
        return
    for thread in map(Record, database.rows("threads", order=("datetime_utc", "id"))):
        made = Conversation(SOURCE, str(thread["id"]), title=thread.text("name"))
        made.started_at, made.parent, made.kind = thread.time("datetime_utc"), thread.text("forked_from"), "branch"
        turns = {
            row.get("tip_message_hash"): row
            for row in map(Record, database.rows("turns", {"thread_id": thread["id"]}, ("id",)))
        }
        waiting: list[Message] = []
        for row in _chain(database, thread.get("tip_message_hash")):
            waiting += _message(database, row, reading)
            turn = turns.get(row["hash"])
            if turn is None:
                continue
            at = turn.time("datetime_utc")
            for message in waiting:
                message["timestamp"] = message["timestamp"] or at
                if message["role"] == "assistant":
                    message["model"] = turn.text("resolved_model") or turn.text("model")
            last = waiting[-1] if waiting else {}
            if last.get("role") == "assistant":
                last |= turn.counts(_TOKENS)
            made.messages += waiting
            waiting = []
        made.messages += waiting
        yield made


def _chain(database: ForeignDatabase, tip: Any) -> list[Record]:
    found: list[Record] = []
    seen: set[Any] = set()
    while tip is not None and tip not in seen:
        seen.add(tip)
        row = next(map(Record, database.rows("messages", {"hash": tip})), None)
        if row is None:
            break
        found.append(row)
        tip = row.get("parent_hash")
    return found[::-1]


def _message(database: ForeignDatabase, row: Record, reading: Reading) -> list[Message]:
    name, role = str(row["hash"]), str(row.get("role"))
    made = make.Parts()
    for number, part in enumerate(map(Record, database.rows("parts", {"message_hash": row["hash"]}, ("position",)))):
        kind, payload = str(part.get("type")), Record.of(from_json(part.get("payload")))
        if kind == "text":
            made.content.append(part.text("text"))
        elif kind == "reasoning":
            made.thoughts.append(part.text("text"))
        elif kind == "tool_call":
            call = payload.text("tool_call_id") or payload.text("id") or f"{name}-{number}"
            made.call(call, part.get("tool_name"), payload.get("arguments"))
        elif kind == "tool_result":
            call_id = payload.text("tool_call_id") or payload.text("id")
            output = part.text("text") or payload.get("output")
            output = output if isinstance(output, str) else compact(output)
            made.result(output, None, f"{name}-{number}", call_id, part.text("tool_name"))
        elif kind == "attachment":
            payload = payload.object("attachment") or payload  # so since 0.36
            attachment_id = payload.get("attachment_id") or payload.get("id")
            rows = database.rows("attachments", {"id": attachment_id}) if attachment_id is not None else ()
            made.content.append(_attachment(next(map(Record, rows), payload)))
        else:
            reading.unknown[f"part {kind}"] += 1
    return made.messages(role if role in ("assistant", "system") else "user", None, name)
