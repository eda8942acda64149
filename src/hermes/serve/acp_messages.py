"""Messages between an editor and the record: a turn's events and a history as updates, a question as content.

A question's files are put into it and its pictures go along; nothing of a question is left out silently.
"""

from __future__ import annotations

import base64
import mimetypes
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import acp

from hermes.agent.history_text import message_text
from hermes.agent.turn import Event, Notice, Text, Thought, ToolFinished, ToolStarted
from hermes.config.settings_schema import McpServer

if TYPE_CHECKING:
    from hermes.store.rows import ChatMessage

_LARGEST_FILE = 200_000  # characters of a file that a question refers to
_LARGEST_PICTURE = 10_000_000  # bytes
_PICTURES = ("image/png", "image/jpeg", "image/gif", "image/webp")
_KINDS = {"terminal": "execute", "session_search": "search", "memory": "other"}


def updates_of(event: Event) -> Iterator[Any]:
    """An event of a turn as the editor shows it."""
    if isinstance(event, Text):
        yield acp.update_agent_message_text(event.text)
    elif isinstance(event, Thought):
        yield acp.update_agent_thought_text(event.text)
    elif isinstance(event, ToolStarted):
        yield acp.start_tool_call(event.call_id, _title(event.name, event.arguments), kind=_kind(event.name),
                                  status="in_progress", raw_input=event.arguments)  # fmt: skip
    elif isinstance(event, ToolFinished):
        yield acp.update_tool_call(event.call_id, status="completed" if event.ok else "failed",
                                   content=[acp.tool_content(acp.text_block(event.text))])  # fmt: skip
    elif isinstance(event, Notice):
        yield acp.update_agent_thought_text(event.text + "\n")


def _kind(tool: str) -> Any:
    return _KINDS.get(tool, "other")


def _title(name: str, arguments: dict[str, Any]) -> str:
    given = arguments.get("command") or arguments.get("query") or ""
    return f"{name}: {given}" if isinstance(given, str) and given else name


def replayed(messages: list[ChatMessage]) -> Iterator[Any]:
    """A conversation as the updates an editor would have seen."""
    for number, one in enumerate(messages):
        if one["role"] == "user":
            for block in _blocks(one):
                yield acp.update_user_message(block)
        elif one["role"] == "assistant":
            if one.get("reasoning"):
                yield acp.update_agent_thought_text(one["reasoning"])
            for block in _blocks(one):
                yield acp.update_agent_message(block)
            for call in one.get("tool_calls") or ():
                function = call.get("function") or {}
                yield acp.start_tool_call(str(call.get("id") or number), str(function.get("name") or "tool"),
                                          kind=_kind(str(function.get("name"))), status="completed",
                                          raw_input=function.get("arguments"))  # fmt: skip
        elif one["role"] == "tool" and one.get("tool_call_id"):
            yield acp.update_tool_call(
                one["tool_call_id"], status="completed",
                content=[acp.tool_content(acp.text_block(message_text(one, calls=False)))],
            )  # fmt: skip
        elif text := message_text(one, calls=False):  # a note, or a result whose call is unknown
            yield acp.update_agent_thought_text(text)


def _blocks(message: ChatMessage) -> Iterator[Any]:
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


def question_of(prompt: list[Any], cwd: Path) -> Any:
    """A question as the agent takes it: text, or parts with pictures. ValueError for what it can't take."""
    parts = [_part(block, cwd) for block in prompt]
    if not any(part["type"] != "text" or part["text"].strip() for part in parts):
        raise ValueError("the prompt is empty")
    if all(part["type"] == "text" for part in parts):
        return "\n\n".join(part["text"] for part in parts)
    return parts


def _part(block: Any, cwd: Path) -> dict[str, Any]:
    kind = getattr(block, "type", "")
    if kind == "text":
        return {"type": "text", "text": block.text}
    if kind == "image":
        return _picture(block.mime_type, block.data)
    if kind == "resource":
        blob, mime = getattr(block.resource, "blob", None), block.resource.mime_type
        if blob is not None and mime in _PICTURES:
            return _picture(mime, blob)
        return {"type": "text", "text": _file(str(block.resource.uri), getattr(block.resource, "text", None))}
    if kind == "resource_link":
        return _linked(block.uri, cwd)
    raise ValueError(f"this agent takes text, pictures and files, not {kind or 'this'}")


def _picture(mime: str, data: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": f"data:{mime};base64,{data}"}}


def _linked(uri: str, cwd: Path) -> dict[str, Any]:
    """A file that the editor refers to: its text, the picture it is, or its name when it is neither or can't be read."""
    parts = urlsplit(uri)
    data = None
    if parts.scheme in ("file", ""):
        mime = mimetypes.guess_type(parts.path)[0] or ""
        data = _read(cwd / unquote(parts.path), _LARGEST_PICTURE if mime in _PICTURES else _LARGEST_FILE * 4)
        if data is not None and mime in _PICTURES and len(data) <= _LARGEST_PICTURE:
            return _picture(mime, base64.b64encode(data).decode())
    text = None if data is None or b"\0" in data[:8000] else data.decode("utf-8", "replace")
    return {"type": "text", "text": _file(uri, text)}


def _read(path: Path, most: int) -> bytes | None:
    """The beginning of a file (one byte more than `most` shows that there is more); None when it can't be read."""
    try:
        if not path.is_file():  # a pipe would wait for ever
            return None
        with open(path, "rb") as file:
            return file.read(most + 1)
    except (OSError, ValueError):
        return None


def _file(uri: str, text: str | None) -> str:
    name = unquote(urlsplit(uri).path) or uri
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
