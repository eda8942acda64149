"""A caller's request, independent of the protocol: the conversation so far, its new messages, the caller and the tools.

Both of OpenAI's protocols (chat completions, responses) become this one shape. Chat programs send the whole conversation each
time; it is recognised by its digest, message by message.

The limits say what the server takes from its callers, and how long it waits.

Errors as OpenAI's clients understand them: a status and {"error": {"message", "type", "param", "code"}}.

An error of ours is sent with its own text, with secrets masked; an unexpected exception is sent as a number to look for in
the log, never with its details.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import math
import re
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse

from hermes.agent.models.model import Message
from hermes.agent.prompt import unfit_address
from hermes.agent.tools.tool import Context, Tool
from hermes.errors import (
    ContextTooLong,
    InvalidInput,
    MissingExtra,
    ModelError,
    RateLimited,
    SessionNotFound,
    StoreBusy,
    StoreError,
    ToolError,
)
from hermes.store.redact import redact

_log = logging.getLogger("hermes.serve")
_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}


class ApiError(Exception):
    """A request that fails, and the error its sender gets."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.code, self.param = status, message, code, param
        self.retry_after = retry_after

    def body(self) -> dict[str, Any]:
        """Its JSON body."""
        kind = _TYPES.get(self.status) or ("invalid_request_error" if self.status < 500 else "server_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def response(self) -> JSONResponse:
        """Its HTTP response."""
        headers = {}
        if self.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        if self.retry_after is not None:
            headers["Retry-After"] = str(max(1, math.ceil(self.retry_after)))
        return JSONResponse(self.body(), status_code=self.status, headers=headers)


def api_error_of(error: BaseException) -> ApiError:
    """The API error for an exception."""
    if isinstance(error, ApiError):
        return error
    text = redact(" ".join(str(error).split()))[:1000] or type(error).__name__
    if isinstance(error, ContextTooLong):
        return ApiError(400, text, code="context_length_exceeded", param="messages")
    if isinstance(error, RateLimited) and (error.status or 0) >= 500:
        return ApiError(502, text, code="model_error", retry_after=error.retry_after)
    if isinstance(error, RateLimited):
        return ApiError(429, text, code="rate_limit_exceeded", retry_after=error.retry_after)
    if isinstance(error, ModelError):
        return ApiError(502, text, code="model_error")
    if isinstance(error, SessionNotFound):
        return ApiError(404, text, code="session_not_found")
    if isinstance(error, InvalidInput):
        return ApiError(400, text)
    if isinstance(error, MissingExtra):
        return ApiError(500, text, code="missing_extra")
    if isinstance(error, StoreBusy):
        return ApiError(503, "the store is busy; try again", code="store_busy", retry_after=1)
    if isinstance(error, StoreError):
        return ApiError(503, f"the store can't be used; see {_logged(error)} in the server's log", code="store_error")
    return unforeseen(error)


def unforeseen(error: BaseException) -> ApiError:
    """An internal error: its details go to the log, a number to the caller."""
    return ApiError(500, f"an internal error occurred; see {_logged(error)} in the server's log", code="internal_error")


def _logged(error: BaseException) -> str:
    """Log an error; returns the number it has there."""
    number = secrets.token_hex(4)
    _log.error("request failed (%s)", number, exc_info=error)
    return number


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


# The fields of a part that are passed on to the model.
_PART_FIELDS = {
    "image_url": ("url", "detail"), "video_url": ("url",), "input_audio": ("data", "format"),
    "file": ("file_data", "filename", "file_id"),
}  # fmt: skip


def media_part(kind: Any, given: Any, where: str) -> dict[str, Any]:
    """A picture, a recording, a video or a file of a caller's message, in the form of chat completions; ApiError 400 if unfit.

    The model's server opens the addresses in it: those of this machine's network are not for callers to choose.
    """
    if not isinstance(given, dict) or kind not in _PART_FIELDS:
        raise ApiError(400, f"unsupported part of a message: {str(kind)[:40]!r}", param=f"{where}.type")
    fields = {name: given[name] for name in _PART_FIELDS[kind] if isinstance(given.get(name), str)}
    if kind.endswith("_url") and "url" not in fields:
        raise ApiError(400, f"{kind} needs its url", param=f"{where}.{kind}.url")
    if unfit_address(fields) is not None:
        why = "send the data itself (a data: URL), or an http(s) address with a public host name"
        raise ApiError(400, f"this address can't be used: {why}", param=where)
    return {"type": kind, kind: fields}


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


# ----------------------------------------------------------------------------------------------------
# Reading what a request brings: not more than allowed, not for longer than allowed, only JSON, and of the shape it
# should have; complaints name the place (`messages[2].content`).

HEAD_START, LEAST_RATE = 10.0, 5_000  # seconds, and bytes a second after them
_DEEPEST = 100  # levels of lists and objects in a request
_PATIENCE = 4  # times the limit: a client that still sends when we disconnect may never read the error


async def read_body(request: Request, limit: int, seconds: float) -> bytes:
    """The bytes of a request; ApiError 413 when there are more than `limit`, 408 when they take too long.

    A body that dribbles is cut long before `seconds`: after HEAD_START it must have brought LEAST_RATE bytes a second.
    """
    try:
        announced = int(request.headers.get("content-length") or 0)
    except ValueError:
        announced = 0
    if announced > limit and "expect" in request.headers:
        raise _too_large(limit)  # the client asked before sending (Expect: 100-continue)
    parts: list[bytes] = []
    size = 0
    begun = asyncio.get_running_loop().time()
    try:
        async with asyncio.timeout(min(seconds, HEAD_START)) as end:
            async for part in request.stream():
                size += len(part)
                end.reschedule(begun + min(seconds, HEAD_START + size / LEAST_RATE))
                if size > _PATIENCE * limit:
                    break
                if size <= limit and announced <= limit:
                    parts.append(part)
    except TimeoutError:
        raise ApiError(408, "the request arrives too slowly", code="request_timeout") from None
    except ClientDisconnect:
        raise ApiError(400, "the request was interrupted") from None
    if size > limit or announced > limit:
        raise _too_large(limit)
    return b"".join(parts)


def _too_large(limit: int) -> ApiError:
    most = f"{limit // 1_000_000} MB" if limit >= 1_000_000 else f"{limit:,} bytes"
    return ApiError(413, f"the request is larger than {most}", code="request_too_large")


def parse_json(data: bytes) -> Any:
    """Parse JSON; ApiError 400 when it is invalid, or nested so deeply that writing it again would exhaust the stack."""
    try:
        parsed = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise ApiError(400, f"the body of the request is not valid JSON ({error})", code="invalid_json") from None
    level = [parsed] if isinstance(parsed, (dict, list)) else []
    for _ in range(_DEEPEST):
        inner = (one.values() if isinstance(one, dict) else one for one in level)
        level = [one for held in inner for one in held if isinstance(one, (dict, list))]
        if not level:
            return parsed
    raise ApiError(400, f"the body of the request is nested more than {_DEEPEST} levels deep", code="invalid_json")


_PLACE = re.compile(r" - at `(?:key in )?\$\.?([^`]*)`$")
_TOOL_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")


class Shape(msgspec.Struct, kw_only=True):
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
            said = _PLACE.sub("", text).replace("`", "'") + (f" ({param})" if param else "")
            raise ApiError(400, said, param=param or None, code="invalid_type") from None


def part_text(part: dict[str, Any], where: str) -> str:
    """The text of a part that must have one."""
    text = part.get("text")
    if not isinstance(text, str):
        raise ApiError(400, "a part of this type needs a text", param=f"{where}.text")
    return text


def plain_text(content: Any, where: str) -> str:
    """The text of a field that may only contain text: a string, or a list of parts."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise ApiError(400, "a text or a list of parts is needed", param=where)
    words = []
    for number, part in enumerate(content):
        refusal = part.get("refusal") if isinstance(part, dict) else None
        known = part if isinstance(part, dict) else {}
        words.append(refusal if isinstance(refusal, str) else part_text(known, f"{where}[{number}]"))
    return "\n".join(words)


class FunctionTool(Shape, kw_only=True):
    """A tool that the caller runs."""

    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None


def callers_tools(choice: Any, given: Iterable[tuple[str, FunctionTool | None]], field: str) -> list[Tool]:
    """The caller's tools, each given with its type; `field` is where a tool has its name, for error messages."""
    made = []
    for number, (kind, tool) in enumerate(given if choice != "none" else ()):
        if kind != "function" or tool is None or tool.name is None:
            raise ApiError(400, "tools must be of the type function, with a name", param=f"tools[{number}].type")
        if not _TOOL_NAME.fullmatch(tool.name):
            said = f"invalid tool name {tool.name[:80]!r}: use letters, digits, _, - and ."
            raise ApiError(400, said, param=f"tools[{number}].{field}")
        parameters = tool.parameters or {"type": "object", "properties": {}}
        made.append(Tool(tool.name, tool.description or "", parameters, _elsewhere))
    return made


def _elsewhere(context: Context, arguments: dict[str, Any]) -> str:
    raise ToolError("this tool is run by the caller")


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiLimits:
    """A program that embeds the server can give it other ones."""

    largest: int = 50_000_000  # bytes of a request: a conversation with pictures in it
    slowest: float = 120.0  # seconds a request may take to arrive
    silence: float = 15.0  # seconds without a word, after which a stream says that the turn still runs
    queue: int = 16  # requests that wait for one session
    idle: float = 10.0  # seconds an agent stays after its turn
    first_retry: float = 1.0  # seconds before a failed call of the model is repeated; doubled each time


STANDARD = ApiLimits()
