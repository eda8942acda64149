"""POST /v1/responses: OpenAI's newer protocol. `previous_response_id` continues where a response ended."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Iterator
from typing import Any, Literal

from hermes.agent.models.model import Message
from hermes.agent.turn import StreamEvent, Text
from hermes.serve.api.requests import ApiRequest, Content, FunctionTool, Shape, callers_tools, chat_content, text_of
from hermes.serve.api.sessions import RequestSessions
from hermes.serve.api.turns import Outcome
from hermes.serve.http_messages import ApiError, data

_INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}


class MessageItem(Shape, tag="message"):
    role: Literal["system", "developer", "user", "assistant"]
    content: Content


class CallItem(Shape, tag="function_call"):
    call_id: str
    name: str
    arguments: str


class ResultItem(Shape, tag="function_call_output"):
    call_id: str
    output: Content


class ReasoningItem(Shape, tag="reasoning"):
    """The model's reasoning, which is only for its endpoint."""


class ResponseTool(FunctionTool, tag="function"):
    pass


class ResponseRequest(Shape):
    """The fields that matter here; sampling parameters and the like are accepted and ignored."""

    model: str
    input: str | list[MessageItem | CallItem | ResultItem | ReasoningItem]
    instructions: str | None = None
    previous_response_id: str | None = None
    stream: bool | None = None
    store: bool | None = None
    background: bool | None = None
    tools: list[ResponseTool] | None = None
    tool_choice: str | dict[str, Any] | None = None
    metadata: dict[str, str] | None = None
    user: str | None = None
    max_output_tokens: int | None = None
    conversation: Any = None
    prompt: Any = None


def read(body: Any, session_id: str | None) -> tuple[ApiRequest, ResponseRequest]:
    """Parse a request; ApiError 400 for an invalid one."""
    raw = body.get("input") if isinstance(body, dict) else None
    for item in raw if isinstance(raw, list) else ():
        if isinstance(item, dict):
            item.setdefault("type", "message")
    request = ResponseRequest.of(body)
    for name in ("conversation", "prompt", "background"):  # stored or run at OpenAI
        if getattr(request, name):
            raise ApiError(400, f"{name} is not supported; previous_response_id continues a response", param=name)
    instructions = [request.instructions] if request.instructions else []
    items = [MessageItem(role="user", content=request.input)] if isinstance(request.input, str) else request.input
    messages: list[Message] = []
    for number, item in enumerate(items):
        where = f"input[{number}]"
        if isinstance(item, CallItem):
            _take_call(item, messages)
        elif isinstance(item, ResultItem):
            text = text_of(item.output, f"{where}.output")
            messages.append({"role": "tool", "tool_call_id": item.call_id, "content": text})
        elif isinstance(item, MessageItem):
            if item.role == "user":
                messages.append({"role": "user", "content": chat_content(item.content, f"{where}.content")})
            elif item.role == "assistant":
                messages.append({"role": "assistant", "content": text_of(item.content, f"{where}.content")})
            else:
                instructions.append(text_of(item.content, f"{where}.content"))
    ask = ApiRequest(
        messages, request.model, instructions="\n\n".join(instructions) or None,
        tools=callers_tools(request.tool_choice, request.tools or ()), session_id=session_id,
        previous=request.previous_response_id, where="input", user=request.user,
    )  # fmt: skip
    return ask, request


def _take_call(item: CallItem, messages: list[Message]) -> None:
    """A call the model made: part of the assistant message before it."""
    call = {"id": item.call_id, "type": "function", "function": {"name": item.name, "arguments": item.arguments}}
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": None})
    last = messages[-1]
    messages[-1] = {**last, "tool_calls": [*last.get("tool_calls", ()), call]}


# ------------------------------------------------------------------------------------------------ answers


class ResponseAnswer:
    """The response to one request."""

    def __init__(self, body: dict[str, Any], request: ResponseRequest, places: RequestSessions) -> None:
        self._places = places
        self.id = f"resp_{secrets.token_hex(16)}"
        self._message_id = f"msg_{secrets.token_hex(16)}"
        self._place = {"item_id": self._message_id, "output_index": 0, "content_index": 0}  # of the text in a stream
        self._number = 0
        self._text: list[str] = []
        self._base = {
            "id": self.id, "object": "response", "created_at": int(time.time()), "model": request.model,
            "instructions": request.instructions, "previous_response_id": request.previous_response_id,
            "metadata": request.metadata or {}, "parallel_tool_calls": True, "store": request.store is not False,
            "tool_choice": request.tool_choice or "auto", "tools": body.get("tools") or [],
            "temperature": None, "top_p": None, "max_output_tokens": body.get("max_output_tokens"),
            "text": {"format": {"type": "text"}},
            "truncation": "disabled", "error": None, "incomplete_details": None, "usage": None,
        }  # fmt: skip

    async def remember(self, outcome: Outcome) -> None:
        """Store the response's id, before a caller can continue from it."""
        if self._base["store"]:
            await asyncio.to_thread(self._places.remember_response, self.id, outcome.session_id, outcome.message_id)

    def whole(self, outcome: Outcome) -> dict[str, Any]:
        """The response as one JSON object."""
        output = [self._message(outcome.text, "completed")] if outcome.text or not outcome.calls else []
        return self._response(outcome, output + [_call_item(call) for call in outcome.calls])

    def _response(self, outcome: Outcome, output: list[dict[str, Any]]) -> dict[str, Any]:
        reason = _INCOMPLETE.get(outcome.finish_reason)
        return {
            **self._base,
            "status": "incomplete" if reason else "completed",
            "incomplete_details": {"reason": reason} if reason else None,
            "output": output,
            "usage": outcome.used.told("input", "output"),
        }

    def _message(self, text: str, status: str) -> dict[str, Any]:
        content = [_text_part(text)] if status == "completed" else []
        return {"id": self._message_id, "type": "message", "role": "assistant", "status": status, "content": content}

    # -------------------------------------------------------------------------------------------- streaming

    def begun(self) -> Iterator[str]:
        """The beginning of the response as a stream."""
        begun = {**self._base, "status": "in_progress", "output": []}
        yield self._event("response.created", response=begun)
        yield self._event("response.in_progress", response=begun)

    def piece(self, event: StreamEvent) -> Iterator[str]:
        """The part of an event of the turn that the stream shows."""
        if isinstance(event, Text):
            yield from self._text_events(event.text)

    def failed(self, problem: ApiError) -> Iterator[str]:
        """The end of a stream by an error in the middle."""
        details = {"code": problem.code or "server_error", "message": problem.message}
        failed = {**self._base, "status": "failed", "output": [], "error": details}
        yield self._event("response.failed", response=failed)

    def _text_events(self, text: str) -> Iterator[str]:
        if not self._text:
            yield self._event("response.output_item.added", output_index=0, item=self._message("", "in_progress"))
            yield self._event("response.content_part.added", **self._place, part=_text_part(""))
        self._text.append(text)
        yield self._event("response.output_text.delta", **self._place, delta=text, logprobs=[])

    def ended(self, outcome: Outcome) -> Iterator[str]:
        """The end of a stream."""
        if not self._text and not outcome.calls:
            yield from self._text_events("")
        output: list[dict[str, Any]] = []
        if self._text:
            whole = "".join(self._text)
            output.append(self._message(whole, "completed"))
            yield self._event("response.output_text.done", **self._place, text=whole, logprobs=[])
            yield self._event("response.content_part.done", **self._place, part=_text_part(whole))
            yield self._event("response.output_item.done", output_index=0, item=output[0])
        for call in outcome.calls:
            item = _call_item(call)
            yield from self._called(item, len(output))
            output.append(item)
        response = self._response(outcome, output)
        yield self._event(f"response.{response['status']}", response=response)

    def _called(self, item: dict[str, Any], index: int) -> Iterator[str]:
        place, arguments = {"item_id": item["id"], "output_index": index}, item["arguments"]
        begun = {**item, "arguments": "", "status": "in_progress"}
        yield self._event("response.output_item.added", output_index=index, item=begun)
        yield self._event("response.function_call_arguments.delta", **place, delta=arguments)
        yield self._event("response.function_call_arguments.done", **place, arguments=arguments, name=item["name"])
        yield self._event("response.output_item.done", output_index=index, item=item)

    def _event(self, kind: str, **fields: Any) -> str:
        number = self._number
        self._number += 1
        return data({"type": kind, "sequence_number": number, **fields}, event=kind)


def _text_part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _call_item(call: dict[str, Any]) -> dict[str, Any]:
    function = call.get("function") or {}
    return {
        "id": f"fc_{secrets.token_hex(16)}", "type": "function_call", "status": "completed", "call_id": str(call.get("id")),
        "name": str(function.get("name")), "arguments": str(function.get("arguments") or "{}"),
    }  # fmt: skip
