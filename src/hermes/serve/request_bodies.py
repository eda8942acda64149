"""Reading request bodies: limited in size and time, only JSON, and of the right shape; errors name the
place (`messages[2].content`)."""

from __future__ import annotations

import asyncio
import re
from typing import Any, TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request

from hermes.serve.api_errors import ApiError

_PATIENCE = 4  # times the limit: a client that still sends when we disconnect may never read the error


async def read_body(request: Request, limit: int, seconds: float) -> bytes:
    """The bytes of a request; ApiError 413 when there are more than `limit`, 408 when they take too long."""
    try:
        announced = int(request.headers.get("content-length") or 0)
    except ValueError:
        announced = 0
    if announced > limit and "expect" in request.headers:
        raise _too_large(limit)  # the client asked before sending (Expect: 100-continue)
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(seconds):
            async for part in request.stream():
                size += len(part)
                if size > _PATIENCE * limit:
                    break
                if size <= limit and announced <= limit:
                    parts.append(part)
    except TimeoutError:
        raise ApiError(408, f"the request did not arrive within {seconds:g} seconds", code="request_timeout") from None
    except ClientDisconnect:
        raise ApiError(400, "the request was interrupted") from None
    if size > limit or announced > limit:
        raise _too_large(limit)
    return b"".join(parts)


def _too_large(limit: int) -> ApiError:
    return ApiError(413, f"the request is larger than {limit // 1_000_000} MB", code="request_too_large")


def parse_json(data: bytes) -> Any:
    """Parse JSON; ApiError 400 when it is invalid."""
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise ApiError(400, f"the body of the request is not valid JSON ({error})", code="invalid_json") from None


Kind = TypeVar("Kind")
_PLACE = re.compile(r" - at `(?:key in )?\$\.?([^`]*)`$")
_TOOL_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")


class Shape(msgspec.Struct, kw_only=True):
    """An object in a request. Unknown fields are accepted and ignored."""


def checked(value: Any, kind: type[Kind]) -> Kind:
    """A value as this shape; ApiError 400 that names the invalid field."""
    if not isinstance(value, dict):
        raise ApiError(400, "the body of the request must be a JSON object")
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        text = str(error)
        place = _PLACE.search(text)
        missing = re.search(r"missing required field `([^`]*)`", text)
        param = place[1] if place else ""
        if missing:
            param = f"{param}.{missing[1]}" if param else missing[1]
        reason = _PLACE.sub("", text).replace("`", "'")
        raise ApiError(
            400, f"{reason}{f' ({param})' if param else ''}", param=param or None, code="invalid_type"
        ) from None


def tool_name(name: str, where: str) -> str:
    """A tool's name, if endpoints accept it."""
    if not _TOOL_NAME.fullmatch(name):
        raise ApiError(400, f"invalid tool name {name[:80]!r}: use letters, digits, _, - and .", param=where)
    return name


def part_text(part: dict[str, Any], where: str) -> str:
    """The text of a part that must have one."""
    text = part.get("text")
    if not isinstance(text, str):
        raise ApiError(400, "a part of this type needs a text", param=f"{where}.text")
    return text
