"""The API server: this agent for any program that speaks OpenAI's protocol.

Each request is one turn. It continues the session named by the header X-Hermes-Session-Id, else the one that the
conversation in the request belongs to (request_sessions.py). The token is the owner's; every other key (`api_server.keys`)
is a separate user, who sees their own sessions and has no tools that reach into the machine.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from hermes.agent.model import Model
from hermes.agent.tools.toolbox import Toolbox
from hermes.errors import HermesError
from hermes.serve import completions, responses
from hermes.serve.api_errors import ApiError, api_error_of, unforeseen
from hermes.serve.api_limits import STANDARD, ApiLimits
from hermes.serve.api_requests import ApiRequest, parse_json, read_body
from hermes.serve.ascii_json import AsciiJson
from hermes.serve.authorization import CALLER, Guard, check_api
from hermes.serve.event_stream import EventStream
from hermes.serve.models import Models
from hermes.serve.served_conversations import ServedConversations
from hermes.serve.served_turn import Item, Outcome, ServedTurn
from hermes.serve.server import is_loopback

if TYPE_CHECKING:
    from hermes.agent.tools.tool import Tool
    from hermes.config import Config
    from hermes.store.db import SessionDB

SESSION = "X-Hermes-Session-Id"
_GONE = 499  # the client has disconnected


def api_app(
    db: SessionDB,
    config: Config,
    *,
    model: Model,
    home: Path,
    token: str | None,
    insecure: bool = False,
    tools: Callable[[], list[Tool]] | None = None,
    limits: ApiLimits = STANDARD,
) -> Starlette:
    """The application, for HttpServer(app, config.api_server.host, config.api_server.port).

    ConfigError when others could reach it without a token. `tools` gives the agent's tools (called once, in a thread);
    None stands for the built-in ones and those of the MCP servers.
    """
    secrets = check_api(config.api_server.host, token, config.api_server.keys, insecure=insecure)
    api = _ApiRoutes(db, config, model, home, tools, limits)
    return Starlette(
        routes=[
            Route("/health", api.health, methods=["GET"]),
            Route("/v1/models", api.models, methods=["GET"]),
            Route("/v1/models/{name:path}", api.model, methods=["GET"]),
            Route("/v1/chat/completions", api.chat, methods=["POST"]),
            Route("/v1/responses", api.respond, methods=["POST"]),
        ],
        middleware=[Middleware(Guard, secrets=secrets, strangers=not is_loopback(config.api_server.host))],
        exception_handlers={ApiError: _told, HermesError: _told, HTTPException: _plain, Exception: _unforeseen},
        lifespan=api.lifespan,
    )


class _ApiRoutes:
    """The routes. What needs an event loop is created when the server starts."""

    def __init__(
        self, db: SessionDB, config: Config, model: Model, home: Path, tools: Callable[[], list[Tool]] | None, limits: ApiLimits
    ) -> None:  # fmt: skip
        self._db, self._config, self._model, self._home = db, config, model, home
        self._given, self._limits = tools, limits
        self._turns: ServedConversations
        self._models: Models

    @asynccontextmanager
    async def lifespan(self, app: Starlette) -> AsyncIterator[None]:
        """Runs from the start of the server to its end."""
        toolbox = Toolbox(self._config) if self._given is None else None
        made: asyncio.Future[list[Tool]] | None = None

        async def tools() -> list[Tool]:
            nonlocal made  # the first request creates them, concurrent ones wait for it
            if made is None:
                made = asyncio.ensure_future(asyncio.to_thread(toolbox.tools if toolbox else self._given or list))
            return await asyncio.shield(made)

        self._models = Models(self._model)
        self._turns = await asyncio.to_thread(
            ServedConversations, self._db, self._config, self._home, tools, self._limits
        )
        try:
            yield
        finally:
            await self._turns.close()
            if toolbox is not None:
                toolbox.close()

    async def health(self, request: Request) -> Response:
        """Report that the server runs."""
        return AsciiJson({"status": "ok"})

    async def models(self, request: Request) -> Response:
        """All models."""
        names = await self._models.names()
        return AsciiJson({"object": "list", "data": [await self._models.described(name) for name in names]})

    async def model(self, request: Request) -> Response:
        """One model."""
        return AsciiJson(await self._models.described(request.path_params["name"]))

    async def chat(self, request: Request) -> Response:
        """A turn, requested as a chat completion."""
        body = await _json_of(request, self._limits)
        ask, wanted = completions.read(body, _session_of(request))
        ask.caller = request.scope.get(CALLER)
        answer = completions.CompletionAnswer(wanted)

        def streamed(turn: ServedTurn, first: Item | None) -> AsyncIterator[str]:
            return answer.pieces(turn, first)

        return await self._answer(request, ask, streamed if wanted.stream else None, answer.whole)

    async def respond(self, request: Request) -> Response:
        """A turn, requested as a response."""
        body = await _json_of(request, self._limits)
        ask, wanted = responses.read(body, _session_of(request))
        ask.caller = request.scope.get(CALLER)
        answer = responses.ResponseAnswer(body, wanted)

        async def remember(outcome: Outcome) -> None:
            if wanted.store is not False:
                places = self._turns.places
                await asyncio.to_thread(places.remember_response, answer.id, outcome.session_id, outcome.message_id)

        def streamed(turn: ServedTurn, first: Item | None) -> AsyncIterator[str]:
            return answer.pieces(turn, first, remember)

        return await self._answer(request, ask, streamed if wanted.stream else None, answer.whole, remember)

    # ------------------------------------------------------------------------------------------ one turn

    async def _answer(
        self,
        request: Request,
        ask: ApiRequest,
        streamed: Callable[[ServedTurn, Item | None], AsyncIterator[str]] | None,
        whole: Callable[[Outcome], dict[str, Any]],
        remember: Callable[[Outcome], Awaitable[None]] | None = None,
    ) -> Response:
        async def work() -> Response:
            model = await self._models.find(ask.model)
            turn = await self._turns.begin(ask, model)
            try:
                if streamed is not None:
                    first = await turn.next(self._limits.silence)
                    if isinstance(first, Outcome) and first.error is not None:
                        raise api_error_of(first.error)
                    return EventStream(streamed(turn, first), turn, _named(turn.session_id))
                outcome = await _end_of(turn)
                if outcome.error is not None:
                    raise api_error_of(outcome.error)
                if remember is not None:
                    await remember(outcome)
                return AsciiJson(whole(outcome), headers=_named(outcome.session_id))
            except BaseException:
                turn.stop()
                raise

        return await _unless_gone(request, work())


async def _json_of(request: Request, limits: ApiLimits) -> Any:
    data = await read_body(request, limits.largest, limits.slowest)
    return parse_json(data) if len(data) < 100_000 else await asyncio.to_thread(parse_json, data)


async def _end_of(turn: ServedTurn) -> Outcome:
    while True:
        item = await turn.next()
        if isinstance(item, Outcome):
            return item


async def _unless_gone(request: Request, work: Any) -> Response:
    """The response, computed as long as the client stays connected."""
    task: asyncio.Task[Response] = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        return Response(status_code=_GONE)
    finally:
        gone.cancel()
        if not task.done():
            task.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await task


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


async def _told(request: Request, error: Exception) -> Response:
    return api_error_of(error).response()


async def _plain(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 404:
        return ApiError(404, f"there is no route {request.method} {request.url.path[:200]}").response()
    return ApiError(error.status_code, error.detail).response()


async def _unforeseen(request: Request, error: Exception) -> Response:
    """Starlette raises the error again after this, for the server's log; the caller gets this response."""
    return unforeseen(error).response()
