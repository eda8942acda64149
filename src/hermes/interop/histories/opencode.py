"""OpenCode: ~/.local/share/opencode/opencode.db, and what `opencode export` writes."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote_to_bytes

from hermes.interop.histories import Conversation, Message, make, reads
from hermes.interop.json_reading import Reading, Record, compact, decoded, from_json, json_object, text
from hermes.store.engines.sqlite.foreign import ForeignDatabase, tables_of

SOURCE = "opencode"
FILES = "opencode*.db"
_TOKENS, _CACHE = ("input", "output", "", "", "reasoning"), ("", "", "read", "write")
_BOOKKEEPING = frozenset(("snapshot", "patch", "step-start", "step-finish", "agent", "retry", "subtask", "compaction"))


def usual_places() -> list[Path]:
    """The folders in which OpenCode keeps its sessions."""
    return [make.program_home("XDG_DATA_HOME", ".local/share") / "opencode"]


def sniff(path: Path) -> bool:
    """Whether a file is OpenCode's."""
    if whole := json_object(path, "info"):
        return str(whole.object("info").get("id")).startswith("ses") and isinstance(whole.get("messages"), list)
    return {"session", "message", "part"} <= tables_of(path)


@reads
def read(path: Path, reading: Reading) -> Iterator[Conversation]:
    """The sessions of a database or an export."""
    if whole := json_object(path, "info"):
        messages = [(message.object("info"), message.objects("parts")) for message in whole.objects("messages")]
        yield _conversation(whole.object("info"), messages, reading)
    else:
        with ForeignDatabase(path) as database:
            yield from _database(database, reading)


def _database(database: ForeignDatabase, reading: Reading) -> Iterator[Conversation]:
    for session in database.rows("session", order=("time_created", "id")):
        parts: dict[str, list[Record]] = {}
        for row in database.rows("part", {"session_id": session["id"]}, ("id",)):
            if (part := _data(row, reading)) is not None:
                parts.setdefault(row["message_id"], []).append(part)
        messages = [
            (record, parts.get(row["id"], []))
            for row in database.rows("message", {"session_id": session["id"]}, ("time_created", "id"))
            if (record := _data(row, reading)) is not None
        ]
        times = {"created": session.get("time_created"), "archived": session.get("time_archived")}
        info = Record({**session, "parentID": session.get("parent_id"), "time": times})
        yield _conversation(info, messages, reading)


def _data(row: dict[str, Any], reading: Reading) -> Record | None:
    """The message or part in a row; None where it is damaged."""
    try:
        value = decoded(row["data"].encode() if isinstance(row["data"], str) else bytes(row["data"] or b""))
    except (ValueError, TypeError):
        value = None
    if not isinstance(value, dict):
        reading.damaged(0, f"{row.get('id')}: no JSON object")
        return None
    return Record({**value, "id": row["id"]})


def _conversation(info: Record, messages: list[tuple[Record, list[Record]]], reading: Reading) -> Conversation:
    times = info.object("time")
    made = Conversation(SOURCE, str(info.get("id")), title=info.text("title"), cwd=info.text("directory"))
    made.started_at, made.archived_at = times.time("created"), times.time("archived")
    made.parent, made.kind = info.text("parentID"), "subagent"
    reverted = Record.of(from_json(info.get("revert"))).text("messageID")
    cut: int | None = None
    for record, parts in messages:
        entries = _messages(record, parts, reading)
        if reverted is not None and str(record.get("id")) == reverted:  # taken back, but not yet written over
            cut = len(made.messages)
        # of a compaction; a person's message has an object there
        if entries and record.get("summary") is True and cut is None:
            made.compact(None, None, None)
            entries[0]["role"] = "user"  # as every continuation begins: the summary is sent to the model
        made.messages += entries
    if cut is not None:
        made.hide_from(cut)
    return made


def _messages(record: Record, parts: list[Record], reading: Reading) -> list[Message]:
    name, at = str(record.get("id")), record.object("time").time("created")
    made = make.Parts()
    for part in parts:
        kind = str(part.get("type"))
        if kind == "tool":
            _tool(part, at, made)
        elif kind == "text":
            made.content.append(None if part.get("synthetic") else part.text("text"))
        elif kind == "reasoning":
            made.thoughts.append(part.text("text"))
        elif kind == "file":
            made.content.append(_file(part))
        elif kind not in _BOOKKEEPING:
            reading.unknown[f"part {kind}"] += 1
    if record.get("role") == "user":
        return make.spoken("user", make.joined(made.content), at, name)
    if (failed := record.object("error")) and make.joined(made.content) is None:
        made.content.append(failed.object("data").text("message") or failed.text("name"))
    used = record.object("tokens")
    about: dict[str, Any] = used.counts(_TOKENS) | used.object("cache").counts(_CACHE)
    about |= {"cost_usd": record.number("cost"), "finish_reason": "error" if failed else record.text("finish")}
    return made.messages("assistant", at, name, model=record.text("modelID"), **about)


def _tool(part: Record, at: float | None, made: make.Parts) -> None:
    state = part.object("state")
    call, name = part.text("callID") or str(part.get("id")), str(part.get("tool") or "tool")
    made.call(call, name, state.get("input"))
    if state.get("status") in ("completed", "error"):
        output = state.get("output") if state.get("status") == "completed" else state.get("error")
        if files := [_file(one) for one in state.objects("attachments")]:
            output = make.joined([text(output), *files])
        ended = state.object("time").time("end") or at
        output = output if isinstance(output, (str, list)) else compact(output)
        made.result(output, ended, f"{call}-result", call, name, failed=state.get("status") == "error")


def _file(part: Record) -> Any:
    """A file of a message: its text where it is one (as `-f` adds it), else the bytes that the part has, else its name."""
    url, label = part.text("url") or "", part.text("filename")
    text_in_file = _text_of(url) if url.startswith("data:text/") else None
    if text_in_file is None:
        named = part.object("source").object("text").text("value")
        text_in_file = None if (named or "").startswith("@") else named  # @name: where the prompt mentions the file
    if text_in_file is not None:
        return f"[file {label or 'text'}]\n{text_in_file}"
    if url.startswith("data:"):
        return {"type": "image_url", "image_url": {"url": url}}
    return f"[file {label or url}]"


def _text_of(url: str) -> str | None:
    """The text in a data URL; None where it is none."""
    head, comma, data = url.partition(",")
    try:
        content = base64.b64decode(data, validate=True) if head.endswith(";base64") else unquote_to_bytes(data)
        return content.decode() if comma else None
    except ValueError:
        return None
