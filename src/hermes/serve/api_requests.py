"""A caller's request, independent of the protocol: the conversation so far, its new messages, the caller and the tools.

Both of OpenAI's protocols (chat completions, responses) become this one shape. Chat programs send the whole conversation each
time; it is recognised by its digest, message by message.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from hermes.agent.model import Message
from hermes.agent.tools.base import Tool
from hermes.serve.api_errors import ApiError


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
    caller: str | None = None  # the name of the key it came with; None: the owner
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
        """A digest of the conversation after each message (and after `more`), see `digests`.

        Two conversations have the same digest only if everything is equal that an answer depends on: also the key, the user,
        the instructions and the tools. The same first message of two callers begins two conversations.
        """
        tools = sorted(json.dumps(tool.schema(), sort_keys=True) for tool in self.tools)
        context = json.dumps([self.caller, self.user, (self.instructions or "").strip(), tools])
        return digests([*self.messages, *more], context)

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


def digests(messages: Sequence[Message], context: str = "") -> list[str]:
    """A digest of the conversation after each message: equal for equal conversations with the same context (`told`).

    How a client writes the same thing (a text or a list with one text, spaces around it) makes no difference.
    """
    names: list[str] = []
    running = hashlib.sha256(b"hermes-conversation-2" + context.encode("utf-8", "surrogatepass")).digest()
    for message in messages:
        running = hashlib.sha256(running + _canonical(message)).digest()
        names.append(running.hex())
    return names


def _canonical(message: Message) -> bytes:
    calls = [str(call.get("id")) for call in message.get("tool_calls") or () if isinstance(call, dict)]
    fields = [message["role"], *_text_and_rest(message.get("content")), calls, message.get("tool_call_id")]
    return json.dumps(fields, sort_keys=True).encode()


def _text_and_rest(content: Any) -> tuple[str, list[str]]:
    """The text of a message, and a digest of everything in it that is not text."""
    parts = content if isinstance(content, list) else [] if content is None else [content]
    words, others = [], []
    for part in parts:
        if isinstance(part, str):
            words.append(part)
        elif isinstance(part, dict) and isinstance(part.get("text"), str):
            words.append(part["text"])
        else:
            others.append(hashlib.sha256(json.dumps(part, sort_keys=True).encode()).hexdigest())
    return "\n".join(words).replace("\r\n", "\n").strip(), others
