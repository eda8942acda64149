"""POST /v1/chat/completions: parsing requests, and writing responses, whole or streamed."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from typing import Annotated, Any, Literal

import msgspec

from hermes.agent.models.model import Message
from hermes.agent.turn import StreamEvent, Text, Thought
from hermes.serve.api.requests import ApiRequest, Content, FunctionTool, Shape, callers_tools, chat_content, text_of
from hermes.serve.api.turns import Outcome
from hermes.serve.http_messages import DONE, ApiError, data


class Function(Shape):
    name: str
    arguments: str = "{}"


class CompletionCall(Shape):
    id: str
    function: Function


class ChatMessage(Shape):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Content | None = None
    tool_calls: list[CompletionCall] | None = None
    tool_call_id: str | None = None


class ChatTool(Shape, tag="function"):
    function: FunctionTool


class StreamOptions(Shape):
    include_usage: bool | None = None


class ChatRequest(Shape):
    """The fields that matter here; sampling parameters and the like are accepted and ignored."""

    model: str
    messages: list[ChatMessage]
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    tools: list[ChatTool] | None = None
    tool_choice: str | dict[str, Any] | None = None
    n: Annotated[int, msgspec.Meta(ge=1, le=1)] | None = None  # one reply at a time
    user: str | None = None


def read(body: Any, session_id: str | None) -> tuple[ApiRequest, ChatRequest]:
    """Parse a request; ApiError 400 for an invalid one."""
    request = ChatRequest.of(body)
    instructions: list[str] = []
    messages: list[Message] = []
    for number, message in enumerate(request.messages):
        where = f"messages[{number}]"
        if message.role in ("system", "developer"):
            instructions.append(text_of(message.content or "", f"{where}.content"))
        else:
            messages.append(_message(message, where))
    ask = ApiRequest(
        messages, request.model, instructions="\n\n".join(text for text in instructions if text.strip()) or None,
        tools=callers_tools(request.tool_choice, [tool.function for tool in request.tools or ()]),
        session_id=session_id, user=request.user,
    )  # fmt: skip
    return ask, request


def _message(message: ChatMessage, where: str) -> Message:
    if message.role == "user" and message.content is not None:
        return {"role": "user", "content": chat_content(message.content, f"{where}.content")}
    text = None if message.content is None else text_of(message.content, f"{where}.content")
    if message.role == "tool" and message.tool_call_id is not None:
        return {"role": "tool", "tool_call_id": message.tool_call_id, "content": text or ""}
    if message.role != "assistant" or (text is None and not message.tool_calls):
        lacks = "tool_call_id" if message.role == "tool" else "content"
        raise ApiError(400, f"a message of role {message.role!r} needs {lacks}", param=f"{where}.{lacks}")
    result: dict[str, Any] = {"role": "assistant", "content": text}
    if message.tool_calls:
        result["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.function.name, "arguments": call.function.arguments}}
            for call in message.tool_calls
        ]  # fmt: skip
    return result


# ------------------------------------------------------------------------------------------------ answers


class CompletionAnswer:
    """The response to one request."""

    def __init__(self, request: ChatRequest) -> None:
        self._request = request
        self._about = {"id": f"chatcmpl-{secrets.token_hex(12)}", "created": int(time.time()), "model": request.model}

    async def remember(self, outcome: Outcome) -> None:
        """Do nothing: a client sends the whole conversation, which is recognised."""

    def whole(self, outcome: Outcome) -> dict[str, Any]:
        """The completion as one JSON object."""
        message: dict[str, Any] = {"role": "assistant", "content": outcome.text, "refusal": None}
        if outcome.calls:
            message["content"] = outcome.text or None
            message["tool_calls"] = outcome.calls
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": outcome.finish_reason}
        return {
            **self._about,
            "object": "chat.completion",
            "choices": [choice],
            "usage": _usage(outcome),
        }

    def begun(self) -> Iterator[str]:
        """The beginning of the completion as a stream."""
        yield self._piece({"role": "assistant", "content": ""})

    def piece(self, event: StreamEvent) -> Iterator[str]:
        """The part of an event of the turn that the stream shows."""
        if isinstance(event, Text):
            yield self._piece({"content": event.text})
        elif isinstance(event, Thought):
            yield self._piece({"reasoning_content": event.text})

    def failed(self, problem: ApiError) -> Iterator[str]:
        """The end of a stream by an error in the middle."""
        yield data(problem.body())

    def ended(self, outcome: Outcome) -> Iterator[str]:
        """The end of a stream."""
        if outcome.calls:
            yield self._piece({"tool_calls": [{"index": n, **call} for n, call in enumerate(outcome.calls)]})
        yield self._piece({}, outcome.finish_reason)
        options = self._request.stream_options
        if options is not None and options.include_usage:
            yield data(
                {
                    **self._about,
                    "object": "chat.completion.chunk",
                    "choices": [],
                    "usage": _usage(outcome),
                }
            )
        yield DONE

    def _piece(self, delta: dict[str, Any], finish_reason: str | None = None) -> str:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        return data({**self._about, "object": "chat.completion.chunk", "choices": [choice]})


def _usage(outcome: Outcome) -> dict[str, Any]:
    return outcome.used.told("prompt", "completion")
