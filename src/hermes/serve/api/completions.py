"""POST /v1/chat/completions: parsing requests, and writing responses, whole or streamed."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator
from typing import Any

from hermes.agent.models.model import Message
from hermes.agent.turn import StreamEvent, Text, Thought
from hermes.serve.api.requests import (
    ApiError,
    ApiRequest,
    FunctionTool,
    Shape,
    api_error_of,
    callers_tools,
    media_part,
    part_text,
    plain_text,
)
from hermes.serve.api.turn import Outcome, ServedTurn, Used
from hermes.serve.event_stream import DONE, data

_SYSTEM = ("system", "developer")


class Function(Shape):
    name: str
    arguments: str = "{}"


class CompletionCall(Shape):
    id: str
    function: Function


class CompletionMessage(Shape):
    role: str
    content: str | list[dict[str, Any]] | None = None
    tool_calls: list[CompletionCall] | None = None
    tool_call_id: str | None = None


class ChatTool(Shape):
    type: str
    function: FunctionTool | None = None


class StreamOptions(Shape):
    include_usage: bool | None = None


class ChatRequest(Shape):
    """The fields that matter here; sampling parameters and the like are accepted and ignored."""

    model: str
    messages: list[CompletionMessage]
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    tools: list[ChatTool] | None = None
    tool_choice: str | dict[str, Any] | None = None
    n: int | None = None
    user: str | None = None


def read(body: Any, session_id: str | None) -> tuple[ApiRequest, ChatRequest]:
    """Parse a request; ApiError 400 for an invalid one."""
    request = ChatRequest.of(body)
    if request.n is not None and request.n != 1:
        raise ApiError(400, "one reply at a time: n must be 1", param="n")
    instructions: list[str] = []
    messages: list[Message] = []
    for number, message in enumerate(request.messages):
        where = f"messages[{number}]"
        if message.role in _SYSTEM:
            instructions.append(plain_text(message.content or "", f"{where}.content"))
        else:
            messages.append(_message(message, where))
    given = [(tool.type, tool.function) for tool in request.tools or ()]
    tools = callers_tools(request.tool_choice, given, "function.name")
    ask = ApiRequest(
        messages, request.model, instructions="\n\n".join(text for text in instructions if text.strip()) or None,
        tools=tools, session_id=session_id, user=request.user,
    )  # fmt: skip
    return ask, request


def _message(message: CompletionMessage, where: str) -> Message:
    content = message.content
    if isinstance(content, list):
        content = [_part(part, f"{where}.content[{number}]") for number, part in enumerate(content)]
    if message.role == "user":
        if content is None:
            raise ApiError(400, "a user message needs content", param=f"{where}.content")
        return {"role": "user", "content": content}
    if message.role == "assistant":
        if content is None and not message.tool_calls:
            raise ApiError(400, "an assistant message needs content or tool_calls", param=f"{where}.content")
        result: dict[str, Any] = {
            "role": "assistant",
            "content": None if content is None else plain_text(content, f"{where}.content"),
        }
        if message.tool_calls:
            result["tool_calls"] = [
                _call(call.id, call.function.name, call.function.arguments) for call in message.tool_calls
            ]
        return result
    if message.role == "tool":
        if message.tool_call_id is None:
            raise ApiError(400, "the result of a tool needs its tool_call_id", param=f"{where}.tool_call_id")
        return {
            "role": "tool",
            "tool_call_id": message.tool_call_id,
            "content": plain_text(content or "", f"{where}.content"),
        }
    raise ApiError(
        400,
        f"unknown role {message.role[:40]!r}: use system, developer, user, assistant or tool",
        param=f"{where}.role",
    )


def _call(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _part(part: dict[str, Any], where: str) -> dict[str, Any]:
    kind = part.get("type")
    if kind in ("text", "refusal"):
        return {
            "type": "text",
            "text": part["refusal"] if isinstance(part.get("refusal"), str) else part_text(part, where),
        }
    return media_part(kind, part.get(kind) if isinstance(kind, str) else None, where)


# ------------------------------------------------------------------------------------------------ answers


class CompletionAnswer:
    """The response to one request."""

    def __init__(self, request: ChatRequest) -> None:
        self._request = request
        self._about = {"id": f"chatcmpl-{secrets.token_hex(12)}", "created": int(time.time()), "model": request.model}

    async def remember(self, outcome: Outcome) -> None:
        """Nothing: a client sends the whole conversation, which is recognised."""

    def whole(self, outcome: Outcome) -> dict[str, Any]:
        """As one JSON object."""
        message: dict[str, Any] = {"role": "assistant", "content": outcome.text, "refusal": None}
        if outcome.calls:
            message["content"] = outcome.text or None
            message["tool_calls"] = outcome.calls
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": outcome.finish_reason}
        return {**self._about, "object": "chat.completion", "choices": [choice], "usage": usage(outcome.used)}

    async def pieces(self, turn: ServedTurn, events: AsyncIterator[StreamEvent | str]) -> AsyncIterator[str]:
        """As a stream. An error in the middle is the last event."""
        yield self._piece({"role": "assistant", "content": ""})
        try:
            async for event in events:
                if isinstance(event, str):
                    yield event
                elif isinstance(event, Text):
                    yield self._piece({"content": event.text})
                elif isinstance(event, Thought):
                    yield self._piece({"reasoning_content": event.text})
        except Exception as error:
            yield data(api_error_of(error).body())
            return
        outcome = turn.outcome
        if outcome.calls:
            yield self._piece({"tool_calls": [{"index": n, **call} for n, call in enumerate(outcome.calls)]})
        yield self._piece({}, outcome.finish_reason)
        options = self._request.stream_options
        if options is not None and options.include_usage:
            yield data({**self._about, "object": "chat.completion.chunk", "choices": [], "usage": usage(outcome.used)})
        yield DONE

    def _piece(self, delta: dict[str, Any], finish_reason: str | None = None) -> str:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        return data({**self._about, "object": "chat.completion.chunk", "choices": [choice]})


def usage(used: Used) -> dict[str, Any]:
    """Token counts, in the fields of chat completions."""
    return {
        "prompt_tokens": used.input,
        "completion_tokens": used.output,
        "total_tokens": used.input + used.output,
        "prompt_tokens_details": {"cached_tokens": used.cached},
        "completion_tokens_details": {"reasoning_tokens": used.reasoning},
    }
