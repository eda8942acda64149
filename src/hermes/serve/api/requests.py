"""A caller's request, independent of the protocol: the conversation so far, its new messages, and the tools.

Both of OpenAI's protocols (chat completions, responses) become this one shape. Chat programs send the whole conversation each
time; it is recognised by its digest, message by message.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Annotated, Any, Self

import msgspec

from hermes.agent.models.model import Message
from hermes.agent.prompt import unfit_address
from hermes.agent.tools.tool import Context, Tool
from hermes.errors import ToolError
from hermes.serve.http_messages import ApiError


@dataclass(slots=True)
class ApiRequest:
    """One request for a turn. `messages` are of users, assistants and tools, in order; the last is new."""

    messages: list[Message]
    model: str
    instructions: str | None = None
    tools: list[Tool] = field(default_factory=list)
    session_id: str | None = None  # the session the caller names
    previous: str | None = None  # the response the caller continues from
    where: str = "messages"  # the conversation's field name in the request, for error messages
    user: str | None = None  # the caller's own user (OpenAI's `user`)
    first_new: int = 0  # the index of the first new message: results of tools, then perhaps the user's message

    def __post_init__(self) -> None:
        end = len(self.messages)
        if end and self.messages[-1]["role"] == "user":
            end -= 1
        while end and self.messages[end - 1]["role"] == "tool":
            end -= 1
        if end == len(self.messages):
            raise ApiError(400, f"{self.where} must end with a user message or the result of a tool", param=self.where)
        self.first_new = end

    def names(self, *more: Message) -> list[str]:
        """A digest of the conversation after each message (and after `more`), equal for equal conversations.

        Everything counts that an answer depends on: also the user, the instructions and the tools. The same first
        message of two users begins two conversations. How a client writes the same thing (a text or a list with one text,
        spaces around it) makes no difference.
        """
        tools = sorted(json.dumps(tool.schema(), sort_keys=True) for tool in self.tools)
        context = json.dumps([self.user, (self.instructions or "").strip(), tools])
        found, running = [], hashlib.sha256(b"hermes-conversation-3" + context.encode()).digest()
        for message in [*self.messages, *more]:
            running = hashlib.sha256(running + _canonical(message)).digest()
            found.append(running.hex())
        return found

    @property
    def history(self) -> list[Message]:
        """The messages before the new ones."""
        return self.messages[: self.first_new]

    @property
    def results(self) -> list[Message]:
        """Results of the caller's tools."""
        return [message for message in self.messages[self.first_new :] if message["role"] == "tool"]

    @property
    def content(self) -> str | list[Any] | None:
        """The user's new message; None if there are only results of tools."""
        last = self.messages[-1]
        content: str | list[Any] | None = last["content"] if last["role"] == "user" else None
        return content


def _canonical(message: Message) -> bytes:
    """The text of a message, and a digest of everything in it that is not text."""
    content = message.get("content") or ""
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    words = "\n".join(part["text"] for part in parts if part["type"] == "text").replace("\r\n", "\n").strip()
    others = [json.dumps(part, sort_keys=True).encode() for part in parts if part["type"] != "text"]
    calls = [str(call.get("id")) for call in message.get("tool_calls") or ()]
    fields = [message["role"], words, [hashlib.sha256(one).hexdigest() for one in others], calls]
    return json.dumps([*fields, message.get("tool_call_id")]).encode()


# ------------------------------------------------------------------------------------------------ shapes

_PLACE = re.compile(r" - at `(?:key in )?\$\.?([^`]*)`$")


class Shape(msgspec.Struct, kw_only=True, omit_defaults=True):
    """An object in a request. Unknown fields are accepted and ignored."""

    @classmethod
    def of(cls, value: Any) -> Self:
        """A value as this shape; ApiError 400 that names the invalid field."""
        if not isinstance(value, dict):
            raise ApiError(400, "the body of the request must be a JSON object")
        try:
            return msgspec.convert(value, cls)
        except msgspec.ValidationError as error:
            text = str(error)
            place = _PLACE.search(text)
            missing = re.search(r"missing required field `([^`]*)`", text)
            param = place[1] if place else ""
            if missing:
                param = f"{param}.{missing[1]}" if param else missing[1]
            problem = _PLACE.sub("", text).replace("`", "'") + (f" ({param})" if param else "")
            raise ApiError(400, problem, param=param or None, code="invalid_type") from None


_TEXTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}  # the field with the text
_FIELDS = {
    "image_url": ("url", "detail"),
    "video_url": ("url",),
    "input_audio": ("data", "format"),
    "file": ("file_data", "filename", "file_id"),
}
Content = str | list[dict[str, Any]]  # of a message: a text, or parts in the form of either protocol


def _chat_part(part: dict[str, Any]) -> dict[str, Any] | None:
    """A part in the form of chat completions, with the known fields alone; None for an unknown or incomplete one."""
    kind = str(part.get("type"))
    if kind in _TEXTS:
        text = part.get(_TEXTS[kind])
        return {"type": "text", "text": text} if isinstance(text, str) else None
    inner = part.get(kind)
    if kind == "input_image":
        kind, inner = "image_url", {**part, "url": part.get("image_url")}
    elif kind == "input_file":
        kind, inner = "file", {**part, "file_id": None}  # an id of OpenAI's
    if kind not in _FIELDS or not isinstance(inner, dict):
        return None
    known = {name: inner[name] for name in _FIELDS[kind] if isinstance(inner.get(name), str)}
    return {"type": kind, kind: known} if known.keys() & {"url", "data", "file_data", "file_id"} else None


def chat_content(content: Content, where: str) -> Content:
    """The content of a message in the form of chat completions; `where` it is in the request, for errors.

    The model's server opens the addresses in it: those of this machine's network are not for callers to choose.
    """
    if isinstance(content, str):
        return content
    parts = []
    for number, raw in enumerate(content):
        if (part := _chat_part(raw)) is None:
            kind = str(raw.get("type"))[:40]
            problem = f"a part of type {kind!r} is not known here, or lacks its text, data or address"
        elif unfit_address(part) is not None:
            why = "send the data itself (a data: URL), or an http(s) address with a public host name"
            problem = f"this address can't be used: {why}"
        else:
            parts.append(part)
            continue
        raise ApiError(400, problem, param=f"{where}[{number}]", code="invalid_type")
    return parts


def text_of(content: Content, where: str) -> str:
    """A text, or those of its parts on lines of their own; ApiError 400 for other parts."""
    parts = chat_content(content, where)
    if isinstance(parts, str):
        return parts
    if any(part["type"] != "text" for part in parts):
        raise ApiError(400, "only a message of the user may have more than texts", param=where)
    return "\n".join(part["text"] for part in parts)


class FunctionTool(Shape):
    """A tool that the caller runs."""

    name: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_.-]{1,128}$")]
    description: str | None = None
    parameters: dict[str, Any] | None = None


def callers_tools(choice: Any, offered: Iterable[FunctionTool]) -> list[Tool]:
    """The caller's tools, if they may be used."""
    nothing = {"type": "object", "properties": {}}
    tools = () if choice == "none" else offered
    return [Tool(tool.name, tool.description or "", tool.parameters or nothing, _elsewhere) for tool in tools]


def _elsewhere(context: Context, arguments: dict[str, Any]) -> str:
    raise ToolError("this tool is run by the caller")
