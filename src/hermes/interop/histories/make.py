"""Messages and their parts, made of other programs' records; and parts of messages in the form of other programs."""

from __future__ import annotations

import base64
import os
import re
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hermes.errors import InvalidInput
from hermes.interop.formats import Export
from hermes.interop.json_reading import FIRST, LAST, TOKENS, Record, compact, from_json, text

if TYPE_CHECKING:
    from hermes.store.records.attachments import Read
    from hermes.store.records.rows import ExportedSession, MessageRow

Message = dict[str, Any]
_REFERENCE = re.compile("attachment:sha256:([0-9a-f]{64})")


def program_home(variable: str, folder: str) -> Path:
    """The folder that a program keeps its files in: as an environment variable has it, else this one in the user's home."""
    return Path(os.environ.get(variable) or Path.home() / folder)


def message(role: str, content: Any, at: float | None, foreign_id: str | None, **fields: Any) -> Message:
    """A message as append_message takes it; fields that are None are left out."""
    made = {"role": role, "content": content, "timestamp": at, "platform_message_id": foreign_id, **fields}
    return {name: value for name, value in made.items() if value is not None or name in ("content", "timestamp")}


def spoken(
    role: str,
    content: Any,
    at: float | None,
    foreign_id: str | None,
    *,
    thoughts: Iterable[str | None] = (),
    calls: list[dict[str, Any]] | None = None,
    **fields: Any,
) -> list[Message]:
    """A message with these thoughts and calls, in a list; an empty list where nothing is said, thought or called."""
    thought = "\n\n".join(filter(None, thoughts)) or None
    if not (content or thought or calls):
        return []
    return [message(role, content or None, at, foreign_id, reasoning=thought, tool_calls=calls or None, **fields)]


def result(
    content: Any,
    at: float | None,
    foreign_id: str | None,
    call: str | None,
    tool: str | None = None,
    *,
    failed: bool = False,
) -> Message:
    """A call's result as a message; its tool is known from the call, too. `failed`: it is an error, or the call was declined."""
    meta = {"failed": True} if failed else None
    return message("tool", content, at, foreign_id, tool_call_id=call, tool_name=tool, meta=meta)


def add_call(messages: list[Message], call: dict[str, Any], at: float | None, foreign_id: str, **fields: Any) -> None:
    """Add a call to the reply that messages end with, or as a reply of its own."""
    if messages and messages[-1]["role"] == "assistant":
        messages[-1].setdefault("tool_calls", []).append(call)
    else:
        messages.append(message("assistant", None, at, foreign_id, tool_calls=[call], **fields))


_FINISHES = {
    "tool_use": "tool_calls",
    "toolUse": "tool_calls",
    "end_turn": "stop",
    "max_tokens": "length",
    "aborted": "interrupted",
}


def finish_of(reason: str | None) -> str | None:
    """How a reply ended, in our words; a reason that is not known stays as it is."""
    return _FINISHES.get(reason or "", reason)


def tool_call(call_id: str, name: Any, arguments: Any) -> dict[str, Any]:
    """A tool call as chat endpoints write it; a tool without a name is "tool"."""
    text = arguments if isinstance(arguments, str) else compact(arguments if arguments is not None else {})
    return {"id": call_id, "type": "function", "function": {"name": str(name or "tool"), "arguments": text}}


@dataclass(slots=True)
class Parts:
    """A message that a file has in blocks: its words and pictures, its thoughts and calls, and the results beside it."""

    content: list[Any] = field(default_factory=list)
    thoughts: list[str | None] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)
    results: list[Message] = field(default_factory=list)

    def call(self, call_id: str, name: Any, arguments: Any) -> None:
        """Add a tool call."""
        self.calls.append(tool_call(call_id, name, arguments))

    def result(self, content: Any, *about: Any, failed: bool = False) -> None:
        """Add the result of a call, as `result` makes it."""
        self.results.append(result(content, *about, failed=failed))

    def messages(self, role: str, at: float | None, foreign_id: str | None, **fields: Any) -> list[Message]:
        """A reply and the results that follow it; or the results that came with a person's message, and the message."""
        content = joined(self.content)
        if role == "assistant":
            reply = spoken(role, content, at, foreign_id, thoughts=self.thoughts, calls=self.calls, **fields)
            return [*reply, *self.results]
        return [*self.results, *spoken(role, content, at, foreign_id, **fields)]


def image_part(data: str, mime: str) -> dict[str, Any]:
    """A picture as a part of a message; its bytes become an attachment when it is stored."""
    return {"type": "image_url", "image_url": {"url": f"data:{mime};base64,{data}"}}


def picture_in(block: Record) -> dict[str, Any] | None:
    """The picture whose bytes a block has in base64; None where it has none."""
    data = block.get("data")
    mime = block.text("mimeType") or block.text("media_type") or block.text("mediaType") or "image/png"
    return image_part(data, mime) if isinstance(data, str) else None


def block_parts(content: Any) -> list[Any]:
    """The parts of a message of the Anthropic API: texts as text, pictures as pictures, anything else as its JSON."""
    parts: list[Any] = [content] if text(content) else []
    for block in Record.all(content):
        shown = picture_in(block.object("source"))
        if block.get("type") == "text":
            parts += [block["text"]] if block.text("text") else []
        elif block.get("type") in ("image", "document") and shown:
            parts.append(shown)
        elif block.get("type") not in ("thinking", "redacted_thinking", "fallback"):
            parts.append(compact(block))
    return parts


def picture(url: Any) -> Any:
    """A picture by its address: a part of the message where the address has its bytes, else a note that it was there."""
    if isinstance(url, str) and url.startswith("data:"):
        return {"type": "image_url", "image_url": {"url": url}}
    return f"[picture {url}]" if text(url) else "[picture]"


def joined(parts: list[Any]) -> Any:
    """Parts of a message: one text where all are texts, else the list of parts. None is no part."""
    parts = [part for part in parts if part is not None]
    if all(isinstance(part, str) for part in parts):
        return "\n\n".join(parts) or None
    return [{"type": "text", "text": part} if isinstance(part, str) else part for part in parts]


def as_uuid(name: str) -> str:
    """A name that is a UUID as it is, any other as a UUID made of it, always the same one."""
    try:
        return str(uuid.UUID(name))
    except ValueError:
        return str(uuid.uuid5(uuid.NAMESPACE_URL, f"hermes:{name}"))


def only_session(export: Export, program: str) -> Iterator[tuple[ExportedSession, str]]:
    """The session of an export in a format that holds one a file, and its id there; InvalidInput at a second one.

    Hidden messages are left out, and a system prompt, by which that program would be instructed instead of by its own.
    """
    for number, session in enumerate(export.sessions):
        if number:
            raise InvalidInput(f"{program} holds one session a file; name it with --session-id")
        if session.get("rewound_messages"):
            export.left_out["hidden messages"] = len(session["rewound_messages"])
        if session.get("system_prompt"):
            export.left_out["system prompts"] += 1
        yield session, export.name or as_uuid(str(session["id"]).removeprefix(f"{program}-"))


def written_calls(message: MessageRow) -> Iterator[tuple[Any, Any, Any]]:
    """The id, the tool and the arguments (as an object) of each tool call of a message to write."""
    for call in message.get("tool_calls") or ():
        function = Record.of(call.get("function"))
        arguments = function.get("arguments")
        yield call.get("id"), function.get("name"), from_json(arguments or "{}", {"arguments": arguments})


def written_tokens(message: MessageRow, keys: Sequence[str]) -> dict[str, int]:
    """The token counts of a message to write; `keys` are the program's, as `Record.counts` takes them."""
    counts: dict[str, Any] = dict(message)
    return {key: counts.get(name) or 0 for name, key in zip(TOKENS, keys)}


def written_parts(content: Any, export: Export, *, pictures: bool = True) -> Iterator[tuple[str | None, str]]:
    """The parts of a message to write: a text (None, text) or a picture (media type, base64); others are counted as left out."""
    for part in content if isinstance(content, list) else [{"type": "text", "text": content}] if content else []:
        if isinstance(part, dict) and part.get("type") == "text":
            yield None, str(part.get("text") or "")
        elif pictures and (found := _picture_bytes(part, export.attachments)) is not None:
            yield found
        else:
            export.left_out["attachments"] += 1


def _picture_bytes(part: Any, read: Read | None) -> tuple[str, str] | None:
    """A picture's media type and its bytes in base64; None where the record has no bytes of it."""
    url = Record.of(part).object("image_url").text("url") or ""
    mime, _, data = url.removeprefix("data:").partition(";base64,")
    reference = _REFERENCE.fullmatch(data or url)
    if reference is None or read is None:
        return (mime, data) if data and reference is None else None
    try:
        return (mime if data else "image/png"), base64.b64encode(read(reference[1])).decode()
    except OSError:
        return None


def iso(at: float) -> str:
    """A time as other programs write it; the first or the last one they have for what is before or after."""
    return (
        datetime.fromtimestamp(min(max(at, FIRST), LAST), UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    )


def tagged(value: str, *tags: str) -> str:
    """The part of a prompt between these tags, where a program wraps a person's words among its own; else all of it."""
    for tag in tags:
        _, opened, rest = value.partition(f"<{tag}>")
        if opened:
            value = rest.partition(f"</{tag}>")[0].strip()
    return value
