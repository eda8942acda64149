"""Messages between an editor and the record: a turn or a history as updates, and an editor's prompt as content.

A history is shown by the same events as a turn, so a session that is loaded looks as it did when it ran. A prompt's files
are put into its text and its pictures go along; nothing of a prompt is left out silently.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import suppress
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import acp
from acp import schema

from hermes.agent.attached_files import image_type, picture_part
from hermes.agent.history import message_text
from hermes.agent.recall import Recalled, recalled_by
from hermes.agent.tool_calls import read_call, succeeded
from hermes.agent.tools import files
from hermes.agent.tools.files import texts_of_call
from hermes.agent.tools.permission import visible
from hermes.agent.turn import EmptyReply, Event, Notice, Text, Thought, ToolFinished, ToolProgress, ToolStarted
from hermes.config.settings_schema import McpServer
from hermes.errors import InvalidInput
from hermes.store.records.sessions import RECALLED
from hermes.texts import content_text, shortened_line

if TYPE_CHECKING:
    from hermes.store.api.session_db import SessionDB
    from hermes.store.records.rows import MessageRow

_LARGEST_FILE = 200_000  # characters of a file that a question refers to
_LARGEST_PICTURE = 10_000_000  # bytes
_TITLE = 300  # characters
# The agent's tools, and in small letters those of other programs whose histories were imported.
_KINDS = {
    name: kind
    for kind, names in {
        "execute": "terminal process bash shell exec_command run_shell_command execute_command",
        "read": "read_file skills read read_many_files view",
        "edit": "write_file edit_file write edit multiedit apply_patch replace str_replace_based_edit_tool",
        "search": "session_search search_files grep glob search_file_content",
        "fetch": "webfetch web_fetch websearch web_search google_web_search",
        "think": "memory delegate task think",
    }.items()
    for name in names.split()
}
# The argument with the steps.
_PLANS = {"todowrite": "todos", "todo_write": "todos", "write_todos": "todos", "update_plan": "plan"}
_GIST = ("command", "query", "path", "file_path", "pattern", "task", "name", "action")  # what a title says of a call
_MOVED = re.compile(r"; now in (/[^\]\n]*)\]\Z")  # the end of a terminal's result


class Display:
    """The updates by which an editor shows one session."""

    def __init__(self, db: SessionDB, cwd: Path) -> None:
        self._db, self._cwd = db, cwd
        self._running: dict[str, ToolStarted] = {}

    def updates(self, event: Event) -> Iterator[Any]:
        """The updates for an event of a turn. A finished call is read from the record."""
        match event:
            case Text():
                yield acp.update_agent_message_text("\n\n" + event.text if event.restarted else event.text)
            case Thought():
                yield acp.update_agent_thought_text(event.text)
            case ToolStarted():
                self._running[event.call_id] = event
                yield acp.start_tool_call(event.call_id, status="in_progress", **self._about(event))
                if plan := _plan(event):
                    yield acp.update_plan(plan)
            case ToolProgress():
                yield acp.update_tool_call(event.call_id, status="in_progress", content=_text(event.text))
            case ToolFinished():
                yield self._finished(event)
            case EmptyReply():
                yield acp.update_agent_message_text(event.text)
            case Recalled():
                yield acp.start_tool_call(_card("recalled"), event.text, kind="search", status="completed")
            case Notice():
                yield acp.update_agent_thought_text(f"{event.text}\n\n")

    def stopped(self) -> Iterator[Any]:
        """The updates at the end of a turn: calls without a result have failed."""
        for call_id in self._running:
            yield acp.update_tool_call(call_id, status="failed", content=_text("No result: the turn ended before it."))
        self._running.clear()

    def message(self, row: MessageRow) -> Iterator[Any]:
        """The updates for a message of a history."""
        if row["role"] == "user":
            yield from map(acp.update_user_message, _blocks(row))
        elif row["role"] == "assistant":
            if thought := row["reasoning"] or row["reasoning_content"]:
                yield acp.update_agent_thought_text(thought)
            yield from map(acp.update_agent_message, _blocks(row))
            for number, raw in enumerate(row["tool_calls"] if isinstance(row["tool_calls"], list) else ()):
                if isinstance(raw, dict):
                    made = read_call(raw, {})
                    yield from self.updates(ToolStarted(made.id or f"{row['id']}-{number}", made.name, made.arguments))
        elif (call := self._running.get(row["tool_call_id"] or "")) is not None:
            text = content_text(row["content"])
            yield self._finished(ToolFinished(call.call_id, call.name, succeeded(row), text, 0.0))
        elif text := content_text(row["content"]):  # a note, or a result whose call is unknown
            yield from self.updates(Notice(text))

    def question(self, question: str, call_id: str) -> schema.ToolCallUpdate:
        """A question about a call, as the editor shows it: the call, why it is asked about, and a diff if there is one."""
        detail = getattr(question, "detail", "")
        content = _text(f"{question}\n\n```diff\n{detail}\n```" if detail else question)
        if (call := self._running.get(call_id)) is None:
            return schema.ToolCallUpdate(tool_call_id=_card("question"), title=question, content=content)
        return schema.ToolCallUpdate(tool_call_id=call_id, content=content, **self._about(call))

    def _about(self, call: ToolStarted) -> dict[str, Any]:
        arguments = call.arguments
        kind = _KINDS.get(call.name.lower(), "other")
        texts = {key: one for key in _GIST if isinstance(one := arguments.get(key), str) and one}
        gist, path = next(iter(texts.values()), ""), texts.get("path") or texts.get("file_path")
        title = shortened_line(visible(f"{call.name}: {gist}" if gist else call.name or "tool", lines=True), _TITLE)
        at = []
        if path is not None and kind in ("read", "edit"):
            at = [_location(self._cwd / os.path.expanduser(path), arguments.get("offset") if kind == "read" else None)]
        return {"title": title, "kind": kind, "locations": at, "raw_input": arguments}

    def _finished(self, event: ToolFinished) -> schema.ToolCallProgress:
        call = self._running.pop(event.call_id, None)
        if event.name == "terminal" and (moved := _MOVED.search(event.text)):
            self._cwd = Path(moved[1])
        content, at = _text(files.without_note(event.text)), None
        row = {"role": "tool", "tool_name": event.name, "content": event.text}
        found = texts_of_call(self._db, event.name, call.arguments, row) if call is not None and event.ok else None
        if found is not None:
            change, before, after = found
            content = [acp.tool_diff_content(str(change.path), after, None if change.was is None else before)]
            lines = enumerate(zip_longest(before.splitlines(), after.splitlines()), 1)
            at = [_location(change.path, next((number for number, (old, new) in lines if old != new), None))]
        ended: schema.ToolCallStatus = "completed" if event.ok else "failed"
        return acp.update_tool_call(event.call_id, status=ended, content=content, locations=at)


def _plan(call: ToolStarted) -> list[schema.PlanEntry]:
    """The steps of a call that states a plan; empty for any other call."""
    steps = call.arguments.get(_PLANS.get(call.name.lower(), ""))
    entries = []
    for step in steps if isinstance(steps, list) else ():
        if isinstance(step, dict) and isinstance(text := step.get("content") or step.get("step"), str):
            status = step.get("status")
            entries.append(acp.plan_entry(text, status=status if status in ("in_progress", "completed") else "pending"))
    return entries


def _location(path: Path, line: Any = None) -> schema.ToolCallLocation:
    known = isinstance(line, int) and line > 0
    return schema.ToolCallLocation(path=os.path.normpath(path), line=line if known else None)


def _text(text: str) -> list[Any]:
    return [acp.tool_content(acp.text_block(text))]


def _card(name: str) -> str:
    return f"{name}-{secrets.token_hex(8)}"


def replayed(db: SessionDB, session_id: str) -> list[Any]:
    """The updates that show a session and those it continues, with what was recalled for each message."""
    row, messages, recalled = db.get_session(session_id), db.get_messages(session_id, include_ancestors=True), {}
    for one in dict.fromkeys(message["session_id"] for message in messages):
        events = [event for event in db.get_session_events(one) if event["kind"] == RECALLED]
        recalled.update({event["after"]: found for event in events if (found := recalled_by(db, event)) is not None})
    display = Display(db, Path((row["cwd"] if row is not None else None) or "/"))
    out: list[Any] = []
    for message in messages:
        out += display.message(db.resolve_attachments(message) if isinstance(message["content"], list) else message)
        out += display.updates(recalled[message["id"]]) if message["id"] in recalled else ()
    return [*out, *display.stopped()]


def _blocks(message: MessageRow) -> Iterator[Any]:
    """The text and the pictures of a message."""
    content = message["content"]
    for part in content if isinstance(content, list) else ():
        url = part.get("image_url") if isinstance(part, dict) else None
        url = url.get("url") if isinstance(url, dict) else url
        if isinstance(url, str) and url.startswith("data:image/") and ";base64," in url:
            kind, _, data = url[len("data:") :].partition(";base64,")
            yield acp.image_block(data, kind)
    if text := message_text(message, calls=False):
        yield acp.text_block(text)


def prompt_content(prompt: list[Any], cwd: Path) -> str | list[dict[str, Any]]:
    """A prompt as the agent takes it: text, or parts with pictures. InvalidInput for a block that it can't take."""
    parts = [_part(block, cwd) for block in prompt]
    if not any(part["type"] != "text" or part["text"].strip() for part in parts):
        raise InvalidInput("the prompt is empty")
    if all(part["type"] == "text" for part in parts):
        return "\n\n".join(part["text"] for part in parts)
    return parts


def _part(block: Any, cwd: Path) -> dict[str, Any]:
    kind = getattr(block, "type", "")
    if kind == "text":
        return {"type": "text", "text": block.text}
    if kind == "image":
        return _picture(block.data, block.mime_type)
    if kind == "resource":
        blob, mime = getattr(block.resource, "blob", None), block.resource.mime_type or ""
        if blob is not None and mime.startswith("image/"):
            return _picture(blob, mime)
        return {"type": "text", "text": _file(str(block.resource.uri), getattr(block.resource, "text", None))}
    if kind == "resource_link":
        return _linked(block.uri, cwd)
    raise InvalidInput(f"this agent takes text, pictures and files, not {kind or 'this'}")


def _picture(encoded: str, named: str) -> dict[str, Any]:
    """A picture that came with the prompt, with the type that its bytes show."""
    try:
        data = base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidInput("a picture is not base64; send the bytes of a file in base64") from None
    return _picture_part(data, f"a picture of type {shortened_line(named, 60)}")


def _picture_part(data: bytes, name: str) -> dict[str, Any]:
    mime = image_type(data)
    if mime is None:
        raise InvalidInput(f"{name} can't be read; send it as PNG, JPEG, GIF or WebP")
    if len(data) > _LARGEST_PICTURE:
        raise InvalidInput(f"{name} has {len(data):,} bytes, more than {_LARGEST_PICTURE:,}; send a smaller one")
    return picture_part(mime, data)


def _linked(uri: str, cwd: Path) -> dict[str, Any]:
    """A file that the editor refers to: its text, the picture it is, or its name when it is neither or can't be read."""
    path, data = _local_path(uri), None
    with suppress(OSError, ValueError):
        if path and (cwd / path).is_file():  # a pipe would wait for ever
            with open(cwd / path, "rb") as file:
                data = file.read(_LARGEST_PICTURE + 1)  # one byte more shows that it is too large
    if data is not None and image_type(data):
        return _picture_part(data, path)
    text = None if data is None or b"\0" in data[:8000] else data.decode("utf-8", "replace")
    return {"type": "text", "text": _file(uri, text)}


def _local_path(uri: str) -> str:
    """The path that a file's address names; "" for other addresses."""
    try:
        parts = urlsplit(uri)
    except ValueError:
        return ""
    return unquote(parts.path) if parts.scheme in ("file", "") else ""


def _file(uri: str, text: str | None) -> str:
    name = _local_path(uri) or uri
    if text is None:
        return f"[file {name}]"
    cut = "" if len(text) <= _LARGEST_FILE else "\n[cut here]"
    return f"<file path={name!r}>\n{text[:_LARGEST_FILE]}{cut}\n</file>"


def mcp_servers_of(servers: list[Any]) -> dict[str, McpServer]:
    """The MCP servers that an editor names, as the configuration has them."""
    found: dict[str, McpServer] = {}
    for server in servers:
        if getattr(server, "command", None):
            env = {one.name: one.value for one in server.env or ()}
            found[server.name] = McpServer(command=server.command, args=list(server.args or ()), env=env)
        elif getattr(server, "url", None):
            headers = {one.name: one.value for one in server.headers or ()}
            found[server.name] = McpServer(url=server.url, headers=headers)
    return found
