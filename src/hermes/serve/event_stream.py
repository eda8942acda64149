"""Server-sent events: a turn as it happens, for streaming clients, and connections that stay open in long silences.

JSON is sent in ASCII: half a surrogate pair, which the record may hold in any text, is escaped, since UTF-8 can't carry it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any, TypeVar

from starlette.responses import JSONResponse, StreamingResponse
from starlette.types import Receive, Scope, Send

from hermes.serve.api.turn import ServedTurn

T = TypeVar("T")
DONE = "data: [DONE]\n\n"
STILL_HERE = ": still working\n\n"  # a comment: keeps proxies from closing a silent connection


def data(value: Any, event: str | None = None) -> str:
    """One event."""
    text = json.dumps(value, separators=(",", ":"))  # ASCII: lone surrogates can be sent as well
    return f"event: {event}\ndata: {text}\n\n" if event else f"data: {text}\n\n"


async def with_pings(events: AsyncGenerator[T], seconds: float = 20.0) -> AsyncGenerator[T | str]:
    """Events, and a comment after each silence. When this ends, for whatever reason, so do they."""
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


class EventStream(StreamingResponse):
    """A streamed response. When it ends, for whatever reason, so does the turn."""

    def __init__(self, pieces: AsyncIterator[str], turn: ServedTurn, headers: dict[str, str]) -> None:
        super().__init__(
            pieces,
            media_type="text/event-stream",
            headers={**headers, "Cache-Control": "no-cache", "X-Accel-Buffering": "no"},
        )
        self._turn = turn

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._turn.stop()


class AsciiJson(JSONResponse):
    """A JSON response that may contain any text of the record or of a model."""

    def render(self, content: Any) -> bytes:
        return json.dumps(content, separators=(",", ":")).encode("ascii")
