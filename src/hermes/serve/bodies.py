"""Reading what a request brings: not more than allowed, not for longer than allowed, and only if it is JSON."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from starlette.requests import ClientDisconnect, Request

from hermes.serve.problems import Problem

_PATIENCE = 4  # times the limit: who still sends when we hang up may never read why


async def read_body(request: Request, limit: int, seconds: float) -> bytes:
    """The bytes of a request; Problem 413 when there are more than `limit`, 408 when they take too long."""
    try:
        announced = int(request.headers.get("content-length") or 0)
    except ValueError:
        announced = 0
    if announced > limit and "expect" in request.headers:
        raise _too_large(limit)  # it asked before sending
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
        raise Problem(408, f"the request did not arrive within {seconds:g} seconds", code="request_timeout") from None
    except ClientDisconnect:
        raise Problem(400, "the request broke off") from None
    if size > limit or announced > limit:
        raise _too_large(limit)
    return b"".join(parts)


def _too_large(limit: int) -> Problem:
    return Problem(413, f"the request is larger than {limit // 1_000_000} MB", code="request_too_large")


def parse_json(data: bytes) -> Any:
    """The JSON in bytes; Problem 400 when it is none."""
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise Problem(400, f"the body of the request is not valid JSON ({error})", code="invalid_json") from None
