"""The page's routes, and the one event stream of a browser: what it shows comes from SessionDB with the visibility of its
visitor, and what it changes is audited.

The stream has the changes of the conversations that the tabs show, changes of the list, and turns. An event names a state, not
what changed: the page reads that itself.
"""

from __future__ import annotations

import asyncio
import logging
from base64 import b64decode
from collections.abc import AsyncGenerator, AsyncIterator, Collection
from contextlib import aclosing, asynccontextmanager
from importlib import resources
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from hermes.agent.attached_files import AttachedFile
from hermes.errors import HermesError, SessionBusy, SessionNotFound
from hermes.serve.http_messages import ApiError, AsciiJson, data, with_pings
from hermes.serve.web.conversation_view import ConversationChanges, ConversationView, json_body
from hermes.serve.web.finding import HEADLINE, PageLists, number
from hermes.serve.web.talking import PageTurn, Prompt, Talks
from hermes.serve.web.visitors import Visitor, VisitorsOnly, visitor_of
from hermes.texts import one_line
from hermes.times import zone_of

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from hermes.config import Config
    from hermes.store.api.session_db import SessionDB
    from hermes.store.records.visibility import User

_PAGES = ("/", "/s/{session_id:path}", "/new", "/trash", "/insights")
LOOK_SECONDS = 0.5
_SEEN = 100  # conversations at the head of the list whose changes are noticed
_log = logging.getLogger("hermes.web")
Source = AsyncGenerator[tuple[str, Any]]  # a topic and its news, None for a topic that does not exist


def app(
    db: SessionDB, config: Config, token: str, visitor: Visitor, *, local: bool = True, once: str | None = None
) -> ASGIApp:
    """The whole page, behind its access rules; `visitor` is who comes by the link or the password."""
    zone = zone_of(config.timezone)
    finding, talks = PageLists(db, zone), Talks(db, config)
    reading, changing = ConversationView(db, finding, talks, zone), ConversationChanges(db, talks)
    talking, watching = _TalkRoutes(db, config, talks, reading), PageWatch(db, talks)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        await talks.close()

    routes = [
        *(Route(path, index) for path in _PAGES),
        Mount("/static", StaticFiles(packages=[("hermes.serve.web", "static")])),
        Route("/attachment/{message_id:int}/{digest}", reading.attachment),
        Route("/text/{message_id:int}", reading.text),
        Route("/export/{form}/{session_id:path}", reading.export),
        Route("/api/sessions", finding.sessions),
        Route("/api/search", finding.search),
        Route("/api/facets", finding.facets),
        Route("/api/insights", finding.insights),
        Route("/api/trash", finding.trash),
        Route("/api/session/{session_id:path}", reading.session),
        Route("/api/messages/{session_id:path}", reading.messages),
        Route("/api/undone/{session_id:path}", reading.undone),
        Route("/api/events", watching.events),
        Route("/api/models", talking.models),
        Route("/api/models/{session_id:path}", talking.models, methods=["GET", "POST"]),
        Route("/api/talk", talking.talk, methods=["POST"]),
        Route("/api/talk/{session_id:path}", talking.talk, methods=["POST"]),
        Route("/api/stop/{turn_id}", talking.stop, methods=["POST"]),
        Route("/api/answer/{turn_id}", talking.answer, methods=["POST"]),
        Route("/api/do/{action}/{session_id:path}", changing.do, methods=["POST"]),
    ]
    handlers = dict.fromkeys((HermesError, ApiError), _error_response)
    made = Starlette(routes=routes, exception_handlers=handlers, lifespan=lifespan)
    return VisitorsOnly(made, token, config.web, visitor, local=local, once=once)


async def _error_response(request: Request, error: Exception) -> Response:
    if isinstance(error, ApiError):
        return AsciiJson({"error": error.message}, error.status)
    status = 404 if isinstance(error, SessionNotFound) else 409 if isinstance(error, SessionBusy) else 400
    return AsciiJson({"error": str(error)}, status)


def index(request: Request) -> Response:
    """The page itself; its script asks for the rest."""
    data = resources.files("hermes.serve.web").joinpath("static", "index.html").read_text("utf-8")
    visitor = visitor_of(request)
    for name, on in (("read_only", visitor.read_only), ("owner", visitor.user is None)):
        data = data.replace("{{" + name + "}}", "true" if on else "false")
    return HTMLResponse(data)


class _TalkRoutes:
    """The routes of turns. Only who may change something reaches them."""

    def __init__(self, db: SessionDB, config: Config, talks: Talks, reading: ConversationView) -> None:
        self._db, self._talks, self._reading = db, talks, reading
        self._most = int(config.gateway.media.max_mb * 1_000_000)

    async def talk(self, request: Request) -> Response:
        """Begin a turn: in a new conversation, or in the one that is named."""
        body = await json_body(request, self._most * 3 // 2)  # base64 takes four bytes for three
        session_id = await self._named(request)
        again = body.get("again") is True and session_id is not None
        prompt = Prompt(
            str(body.get("text") or ""), await run_in_threadpool(self._files, body.get("files") or []), again,
            number(body.get("instead_of")), str(body.get("model") or ""),
        )  # fmt: skip
        turn = await self._talks.begin(session_id, prompt, visitor_of(request).by)
        return AsciiJson({"turn": turn.id, "session": turn.session_id})

    async def models(self, request: Request) -> Response:
        """The models that can be chosen for a conversation, or the choice of one."""
        body = await json_body(request)
        if (session_id := await self._named(request)) is not None:
            session_id = await run_in_threadpool(self._db.get_compression_tip, session_id)
            if body:
                await self._talks.choose(session_id, str(body.get("model") or ""), visitor_of(request).by)
        return AsciiJson(await self._talks.models(session_id))

    async def _named(self, request: Request) -> str | None:
        """The session that a request names; None for a new one."""
        if "session_id" not in request.path_params:
            return None
        return (await run_in_threadpool(self._reading.found, request))["id"]

    def _files(self, files: Any) -> list[AttachedFile]:
        """The files in a request; ApiError when they are malformed or too large."""
        found = []
        try:
            for one in files:
                mime, data = one_line(str(one.get("type") or ""))[:100], b64decode(one["data"], validate=True)
                kind = "audio" if mime.startswith("audio/") else "file"
                found.append(AttachedFile(kind, str(one["name"])[:200], mime or None, data))
        except (AttributeError, TypeError, KeyError, ValueError):
            raise ApiError(400, "a file is a JSON object with name, type and data (base64)") from None
        if sum(len(one.data) for one in found) > self._most:
            raise ApiError(413, f"the files have more than {self._most // 1_000_000} MB (gateway.media.max_mb)")
        return found

    async def stop(self, request: Request) -> Response:
        """End a turn soon; what has arrived of the reply is kept."""
        await json_body(request)
        self._turn(request).turn.interrupt()
        return AsciiJson({"done": True})

    async def answer(self, request: Request) -> Response:
        """Answer the question that a turn asks."""
        body = await json_body(request)
        turn, yes = self._turn(request), body.get("yes") is True
        if not await self._talks.answer(turn, str(body.get("question") or ""), yes):
            raise ApiError(409, "this question is not asked any more")
        return AsciiJson({"done": True})

    def _turn(self, request: Request) -> PageTurn:
        turn = self._talks.turn(str(request.path_params["turn_id"]))
        if turn is None or visitor_of(request).read_only:
            raise ApiError(404, "no such turn")
        return turn


class PageWatch:
    """Looks at the store twice a second for each browser that watches something."""

    def __init__(self, db: SessionDB, talks: Talks) -> None:
        self._db, self._talks = db, talks

    async def events(self, request: Request) -> Response:
        """Server-sent events of the topics asked for: `list`, `session=ID`, `turn=ID`, each as often as tabs show one."""
        query, visitor = request.query_params, visitor_of(request)
        ids = query.getlist("session")
        visible = await run_in_threadpool(self._db.get_sessions, ids, visible_to=visitor.user)
        sources = [self._states(ids, visible, "list" in query, visitor.user)]
        for one in query.getlist("turn"):
            sources.append(_turn_events(f"turn={one}", None if visitor.read_only else self._talks.turn(one)))
        return StreamingResponse(with_pings(_merged(sources)), media_type="text/event-stream")

    async def _states(self, ids: list[str], visible: Collection[str], with_list: bool, user: User | None) -> Source:
        """The states of sessions, and of a user's list, as numbers: at once, and again after each change."""
        for one in ids:
            if one not in visible:
                yield f"session={one}", None
        seen: dict[str, int] = {}
        while visible or with_list:
            try:
                found = await run_in_threadpool(self._look, visible, with_list, user)
            except HermesError as error:  # a busy store: the next look may succeed
                _log.warning("could not look for new messages: %s", error)
                found = {}
            for topic, state in found.items():
                if seen.get(topic) != state:
                    yield topic, state
            seen |= found
            await asyncio.sleep(LOOK_SECONDS)

    def _look(self, session_ids: Collection[str], with_list: bool, user: User | None) -> dict[str, int]:
        states = self._db.session_states([*session_ids])  # one that is gone has a state, too: its page finds out
        found = {f"session={one}": hash(states.get(one)) for one in session_ids}
        if with_list:
            rows = self._db.list_sessions_rich(limit=_SEEN, order_by_last_active=True, automated=False, visible_to=user)
            tags = self._db.tags_of([row["id"] for row in rows], visible_to=user)
            found["list"] = hash(repr(([[row.get(name) for name in HEADLINE] for row in rows], tags)))
        return found


async def _turn_events(topic: str, turn: PageTurn | None) -> Source:
    """The events of a turn, some at a time."""
    if turn is None:
        yield topic, None
        return
    async with aclosing(turn.follow()) as events:
        async for some in events:
            yield topic, some


async def _merged(sources: list[Source]) -> AsyncGenerator[str]:
    """The news of several sources as events, as they come."""
    queue: asyncio.Queue[str] = asyncio.Queue()

    async def drain(source: Source) -> None:
        async with aclosing(source):
            async for topic, news in source:
                queue.put_nowait(data({"topic": topic, "news": news}))

    tasks = [asyncio.create_task(drain(one)) for one in sources]
    try:
        while True:
            yield await queue.get()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
