"""The API server: this agent for any program that speaks OpenAI's protocol.

Each request is one turn. It continues the session named by the header X-Hermes-Session-Id, else the one that the
conversation in the request belongs to (sessions.py). Callers are the owner: they show
the token, or are programs on this machine.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from hermes.agent.models.model import Model
from hermes.agent.turn import StreamEvent
from hermes.errors import HermesError
from hermes.serve.api import completions, responses
from hermes.serve.api.requests import ApiRequest
from hermes.serve.api.turns import ServedTurn, ServedTurns
from hermes.serve.authorization import Guard, check_api
from hermes.serve.http import is_loopback
from hermes.serve.http_messages import ApiError, AsciiJson, api_error_of, parse_json, read_body, with_pings
from hermes.serve.models import Models

if TYPE_CHECKING:
    from hermes.agent.tools.tool import Tool
    from hermes.config import Config
    from hermes.store.api.session_db import SessionDB

SESSION = "X-Hermes-Session-Id"
MAIN = "hermes"  # the name of the configured model for callers
LARGEST = 50_000_000  # bytes of a request: a conversation with pictures in it
SLOWEST = 120.0  # seconds a request may take to arrive
SILENCE = 15.0  # seconds without a word, after which a stream says that the turn still runs
_GONE = 499  # the client has disconnected
Answer = completions.CompletionAnswer | responses.ResponseAnswer
T = TypeVar("T")


def api_app(
    db: SessionDB,
    config: Config,
    *,
    model: Model,
    home: Path,
    token: str | None,
    tools: Callable[[], list[Tool]],
    insecure: bool = False,
) -> Starlette:
    """The application, for HttpServer(app, config.api_server.host, config.api_server.port).

    ConfigError when others could reach it without a token. `tools` gives the agent's tools; it is called in threads.
    """
    secret = check_api(config.api_server.host, token, insecure=insecure)
    turns = ServedTurns(db, config, home, tools)
    api = _ApiRoutes(Models(model), turns)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        await turns.close()

    return Starlette(
        routes=[
            Route("/health", api.health, methods=["GET"]),
            Route("/v1/models", api.models, methods=["GET"]),
            Route("/v1/chat/completions", api.chat, methods=["POST"]),
            Route("/v1/responses", api.respond, methods=["POST"]),
        ],
        middleware=[Middleware(Guard, token=secret, is_open=not is_loopback(config.api_server.host))],
        exception_handlers={ApiError: _failed, HermesError: _failed, HTTPException: _plain, Exception: _failed},
        lifespan=lifespan,
    )


class _ApiRoutes:
    def __init__(self, models: Models, turns: ServedTurns) -> None:
        self._models, self._turns, self._since = models, turns, int(time.time())

    async def health(self, request: Request) -> Response:
        """Report that the server runs."""
        return AsciiJson({"status": "ok"})

    async def models(self, request: Request) -> Response:
        """All models."""
        names = dict.fromkeys([MAIN, *await self._models.names()])
        return AsciiJson({"object": "list", "data": [self._described(name) for name in names]})

    def _described(self, name: str) -> dict[str, Any]:
        owner = "hermes" if name == MAIN else "endpoint"
        return {"id": name, "object": "model", "created": self._since, "owned_by": owner}

    async def _model_of(self, name: str) -> Model:
        """The model that a caller names; ApiError 404 when there is none."""
        model = self._models.main if name == MAIN else await self._models.find(name)
        if model is None:
            text = f"The model {name!r} does not exist here; /v1/models lists those that do."
            raise ApiError(404, text, code="model_not_found", param="model")
        return model

    async def chat(self, request: Request) -> Response:
        """A turn, requested as a chat completion."""
        body = await _json_of(request)
        ask, wanted = completions.read(body, _session_of(request))
        return await self._answer(request, ask, completions.CompletionAnswer(wanted), wanted.stream)

    async def respond(self, request: Request) -> Response:
        """A turn, requested as a response."""
        body = await _json_of(request)
        ask, wanted = responses.read(body, _session_of(request))
        answer = responses.ResponseAnswer(body, wanted, self._turns.places)
        return await self._answer(request, ask, answer, wanted.stream)

    # ------------------------------------------------------------------------------------------ one turn

    async def _answer(self, request: Request, ask: ApiRequest, answer: Answer, stream: bool | None) -> Response:
        async def work() -> Response:
            model = await self._model_of(ask.model)
            turn = await self._turns.begin(ask, model)
            try:
                if stream:
                    events = with_pings(turn.events, SILENCE)
                    first = await anext(events, "")  # an error before it is the response's
                    return EventStream(_pieces(answer, turn, _chained(first, events)), turn, _named(turn.session_id))
                async for _ in turn.events:
                    pass
                await answer.remember(turn.outcome)
                return AsciiJson(answer.whole(turn.outcome), headers=_named(turn.outcome.session_id))
            except BaseException:
                turn.stop()
                raise

        return await _unless_gone(request, work())


class EventStream(StreamingResponse):
    """A streamed response. When it ends, for any reason, so does the turn."""

    def __init__(self, pieces: AsyncIterator[str], turn: ServedTurn, headers: dict[str, str]) -> None:
        lasting = {**headers, "Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        super().__init__(pieces, media_type="text/event-stream", headers=lasting)
        self._turn = turn

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._turn.stop()


async def _pieces(answer: Answer, turn: ServedTurn, events: AsyncIterator[StreamEvent | str]) -> AsyncIterator[str]:
    """A reply as a stream, in the caller's protocol. An error in the middle ends it."""
    yield "".join(answer.begun())
    try:
        async for event in events:
            yield event if isinstance(event, str) else "".join(answer.piece(event))
        await answer.remember(turn.outcome)
    except Exception as error:
        yield "".join(answer.failed(api_error_of(error)))
    else:
        yield "".join(answer.ended(turn.outcome))


async def _chained(first: T, rest: AsyncIterator[T]) -> AsyncIterator[T]:
    yield first
    async for one in rest:
        yield one


async def _json_of(request: Request) -> Any:
    data = await read_body(request, LARGEST, SLOWEST)
    return parse_json(data) if len(data) < 100_000 else await asyncio.to_thread(parse_json, data)


async def _unless_gone(request: Request, work: Coroutine[Any, Any, Response]) -> Response:
    """The response, computed as long as the client stays connected."""
    task = asyncio.create_task(work)
    gone = asyncio.create_task(_disconnected(request))
    gone.add_done_callback(lambda _: task.cancel())
    try:
        return await task
    except asyncio.CancelledError:
        if not gone.done():  # the server stops
            raise
        return Response(status_code=_GONE)
    finally:
        gone.cancel()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _session_of(request: Request) -> str | None:
    """The session id in the request's header."""
    named = request.headers.get(SESSION, "").strip()
    try:
        named = named.encode("latin-1").decode()  # ids of any script; a header is bytes
    except UnicodeDecodeError:
        pass
    return named or None


def _named(session_id: str) -> dict[str, str]:
    """The header with the session id of the response."""
    return {SESSION: session_id.encode().decode("latin-1")}


# ------------------------------------------------------------------------------------------------ errors


async def _failed(request: Request, error: Exception) -> Response:
    return api_error_of(error).response()


async def _plain(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    text = f"there is no route {request.method} {request.url.path[:200]}" if error.status_code == 404 else error.detail
    return ApiError(error.status_code, text).response()
