"""HTTP requests and responses of the servers: the body of a request, errors, JSON, and server-sent events.

A body is read up to a size and for a time. An error is a status and {"error": {"message", "type", "param", "code"}}, as OpenAI's
clients understand it: one of ours is sent with its own text, with secrets masked; an unexpected exception is sent as a number
to look for in the log, never with its details.

JSON is sent in ASCII: half a surrogate pair, which the record may hold in any text, is escaped, since UTF-8 can't carry it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import secrets
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse

from hermes.errors import (
    ContextTooLong,
    InvalidInput,
    MissingExtra,
    ModelError,
    RateLimited,
    SessionBusy,
    SessionNotFound,
    StoreBusy,
    StoreError,
)
from hermes.store.redact import redact

_log = logging.getLogger("hermes.serve")
_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}


@dataclass(eq=False)
class ApiError(Exception):
    """A request that fails, and the error its sender gets."""

    status: int
    message: str
    code: str | None = None
    param: str | None = None
    retry_after: float | None = None

    def __str__(self) -> str:
        return self.message

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


_STATUSES: tuple[tuple[type[Exception], int, str | None], ...] = (
    (ContextTooLong, 400, "context_length_exceeded"),
    (ModelError, 502, "model_error"),
    (SessionNotFound, 404, "session_not_found"),
    (SessionBusy, 409, "session_busy"),
    (InvalidInput, 400, None),
    (MissingExtra, 500, "missing_extra"),
)


def api_error_of(error: BaseException) -> ApiError:
    """The API error for an exception."""
    if isinstance(error, ApiError):
        return error
    text = redact(" ".join(str(error).split()))[:1000] or type(error).__name__
    if isinstance(error, StoreBusy):
        return ApiError(503, "the store is busy; try again", code="store_busy", retry_after=1)
    if isinstance(error, StoreError):
        return ApiError(503, f"the store can't be used; see {_logged(error)} in the server's log", code="store_error")
    if isinstance(error, RateLimited) and (error.status or 0) < 500:
        return ApiError(429, text, code="rate_limit_exceeded", retry_after=error.retry_after)
    for kind, status, code in _STATUSES:
        if isinstance(error, kind):
            return ApiError(status, text, code=code, retry_after=getattr(error, "retry_after", None))
    return unforeseen(error)


def unforeseen(error: BaseException) -> ApiError:
    """An internal error: its details go to the log, a number to the caller."""
    return ApiError(500, f"an internal error occurred; see {_logged(error)} in the server's log", code="internal_error")


def _logged(error: BaseException) -> str:
    """Log an error; returns the number it has there."""
    number = secrets.token_hex(4)
    _log.error("request failed (%s)", number, exc_info=error)
    return number


# ------------------------------------------------------------------------------------------------ requests

HEAD_START, LEAST_RATE = 10.0, 5_000  # seconds, and bytes a second after them
_DEEPEST = 100  # levels of lists and objects in a request
_PATIENCE = 4  # times the limit: a client that still sends when we disconnect may never read the error


async def read_body(request: Request, limit: int, seconds: float) -> bytes:
    """The bytes of a request; ApiError 413 when there are more than `limit`, 408 when they take too long.

    A body that dribbles is cut long before `seconds`: after HEAD_START it must have brought LEAST_RATE bytes a second.
    """
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
                if size <= limit:
                    parts.append(part)
    except TimeoutError:
        raise ApiError(408, "the request arrives too slowly", code="request_timeout") from None
    except ClientDisconnect:
        raise ApiError(400, "the request was interrupted") from None
    if size > limit:
        most = f"{limit // 1_000_000} MB" if limit >= 1_000_000 else f"{limit:,} bytes"
        raise ApiError(413, f"the request is larger than {most}", code="request_too_large")
    return b"".join(parts)


def parse_json(data: bytes) -> Any:
    """Parse JSON; ApiError 400 when it is invalid, or nested so deeply that writing it again would exhaust the stack."""
    too_deep = ApiError(400, f"the body of the request is nested more than {_DEEPEST} levels deep", code="invalid_json")
    try:
        parsed = msgspec.json.decode(data)
    except RecursionError:
        raise too_deep from None
    except ValueError as error:  # also msgspec's and UnicodeDecodeError
        raise ApiError(400, f"the body of the request is not valid JSON ({error})", code="invalid_json") from None
    level = [parsed] if isinstance(parsed, (dict, list)) else []
    for _ in range(_DEEPEST):
        inner = (one.values() if isinstance(one, dict) else one for one in level)
        level = [one for children in inner for one in children if isinstance(one, (dict, list))]
        if not level:
            return parsed
    raise too_deep


# ------------------------------------------------------------------------------------------------ responses


class AsciiJson(JSONResponse):
    """A JSON response that may contain any text of the record or of a model."""

    def render(self, content: Any) -> bytes:
        return json.dumps(content, separators=(",", ":")).encode("ascii")


T = TypeVar("T")
DONE = "data: [DONE]\n\n"
STILL_HERE = ": still working\n\n"  # a comment: keeps proxies from closing a silent connection


def data(value: Any, event: str | None = None) -> str:
    """One event."""
    text = json.dumps(value, separators=(",", ":"))  # ASCII: lone surrogates can be sent as well
    return f"event: {event}\ndata: {text}\n\n" if event else f"data: {text}\n\n"


async def with_pings(events: AsyncGenerator[T], seconds: float = 20.0) -> AsyncGenerator[T | str]:
    """Events, and a comment after each silence. When this generator ends, for any reason, it closes `events`."""
    waiting = asyncio.ensure_future(anext(events))
    try:
        while True:
            done, _ = await asyncio.wait({waiting}, timeout=seconds)
            if not done:
                yield STILL_HERE
                continue
            try:
                event = waiting.result()
            except StopAsyncIteration:
                return
            yield event
            waiting = asyncio.ensure_future(anext(events))
    finally:
        waiting.cancel()
        await asyncio.wait({waiting})
        await events.aclose()
