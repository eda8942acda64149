"""The page's routes. What it shows comes from SessionDB with the visibility of its user; what it changes, SessionDB audits."""

from __future__ import annotations

import asyncio
import json
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from importlib import resources
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from hermes.errors import HermesError, SessionNotFound
from hermes.serve.web import render
from hermes.serve.web.access import Access
from hermes.store.attachments import read_attachment

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from hermes.store.db import SessionDB
    from hermes.store.visibility import User

_PAGE = 100  # messages or sessions that are sent at once
_LOOK_SECONDS = 0.5
_STATIC = {"app.js": "text/javascript", "style.css": "text/css"}
_TYPES = {"q": str, "source": str, "role": str, "model": str, "tag": str, "tool": str}


def app(db: SessionDB, token: str, *, user: User | None = None, read_only: bool = False) -> ASGIApp:
    """The whole page, behind its token."""
    pages = _Pages(db, user, read_only)
    routes = [
        Route("/", pages.index),
        Route("/s/{session_id:path}", pages.index),
        Route("/insights", pages.index),
        Route("/static/{name}", static),
        Route("/attachment/{digest}", pages.attachment),
        Route("/api/sessions", pages.sessions),
        Route("/api/search", pages.search),
        Route("/api/insights", pages.insights),
        Route("/api/session/{session_id:path}", pages.session),
        Route("/api/messages/{session_id:path}", pages.messages),
        Route("/api/live/{session_id:path}", pages.live),
        Route("/api/do/{action}/{session_id:path}", pages.do, methods=["POST"]),
    ]
    made = Starlette(routes=routes, exception_handlers={HermesError: _explained, HTTPException: _explained})
    return Access(made, token)


async def _explained(request: Request, error: Exception) -> Response:
    status = (
        error.status_code if isinstance(error, HTTPException) else 404 if isinstance(error, SessionNotFound) else 400
    )
    text = error.detail if isinstance(error, HTTPException) else str(error)
    return JSONResponse({"error": text}, status)


def static(request: Request) -> Response:
    """The page's script and style."""
    name = request.path_params["name"]
    if name not in _STATIC:
        raise HTTPException(404, "no such file")
    data = resources.files("hermes.serve.web").joinpath("static", name).read_bytes()
    return Response(data, media_type=_STATIC[name])


class _Pages:
    def __init__(self, db: SessionDB, user: User | None, read_only: bool) -> None:
        self._db, self._user, self._read_only = db, user, read_only or user is not None
        self._rendered: OrderedDict[tuple[str, int, int], list[dict[str, Any]]] = OrderedDict()
        self._lookouts: dict[str, _Lookout] = {}

    def index(self, request: Request) -> Response:
        """The page itself; its script asks for the rest."""
        data = resources.files("hermes.serve.web").joinpath("static", "index.html").read_text("utf-8")
        return HTMLResponse(data.replace("{{read_only}}", "true" if self._read_only else "false"))

    def sessions(self, request: Request) -> Response:
        """A page of conversations, the latest first."""
        query = request.query_params
        offset = _number(query.get("offset"))
        rows = self._db.list_sessions_rich(
            source=query.get("source") or None, tag=query.get("tag") or None, limit=_PAGE, offset=offset,
            order_by_last_active=True, include_archived=query.get("archived") == "1", visible_to=self._user,
        )  # fmt: skip
        told = [self._headline(dict(row)) for row in rows]
        sources = self._db.source_counts(visible_to=self._user) if not offset else {}
        return JSONResponse({"sessions": told, "more": len(rows) == _PAGE, "sources": sources})

    def _headline(self, row: dict[str, Any]) -> dict[str, Any]:
        names = (
            "id",
            "title",
            "preview",
            "source",
            "model",
            "message_count",
            "last_active",
            "pinned_at",
            "archived_at",
            "cwd",
            "kind",
        )
        return {**{name: row.get(name) for name in names}, "tags": self._db.get_tags(row["id"], visible_to=self._user)}

    def search(self, request: Request) -> Response:
        """Hits grouped by conversation, in the order of the best of each."""
        asked = {name: request.query_params.get(name) or None for name in _TYPES}
        if not asked["q"]:
            return JSONResponse({"groups": [], "ms": 0})
        started = time.perf_counter()
        hits = self._db.search_messages(
            asked["q"], [asked["source"]] if asked["source"] else None, role_filter=[asked["role"]] if asked["role"] else None,
            limit=60, model=asked["model"], tag=asked["tag"], tool=asked["tool"], since=_moment(request, "since", 0),
            until=_moment(request, "until", 1), visible_to=self._user,
        )  # fmt: skip
        groups: dict[str, dict[str, Any]] = {}
        for hit in hits:
            if hit["session_id"] not in groups:
                row = self._db.get_session(hit["session_id"], visible_to=self._user)
                groups[hit["session_id"]] = {
                    "session": self._headline(dict(row or {"id": hit["session_id"]})),
                    "hits": [],
                }
            groups[hit["session_id"]]["hits"].append(
                {"id": hit["id"], "role": hit["role"], "at": hit["timestamp"], "html": render.marked(hit["snippet"])}
            )
        taken = round((time.perf_counter() - started) * 1000, 1)
        sources = self._db.source_counts(visible_to=self._user)
        return JSONResponse({"groups": list(groups.values()), "ms": taken, "sources": sources})

    def _found(self, request: Request) -> str:
        session_id = request.path_params["session_id"]
        if self._db.get_session(session_id, visible_to=self._user) is None:
            raise SessionNotFound(session_id)
        return str(session_id)

    def session(self, request: Request) -> Response:
        """One conversation: its columns, and what comes before and after it in its lineage."""
        session_id = self._found(request)
        row = dict(self._db.get_session(session_id, visible_to=self._user) or {})
        chain = self._db.get_compression_lineage(session_id) or [session_id]
        place = chain.index(session_id) if session_id in chain else 0
        return JSONResponse({
            **self._headline(row), "started_at": row["started_at"], "ended_at": row["ended_at"],
            "cost": row["estimated_cost_usd"],
            "input_tokens": row["input_tokens"], "output_tokens": row["output_tokens"], "parent": row["parent_session_id"],
            "previous": chain[place - 1] if place else None, "next": chain[place + 1] if place + 1 < len(chain) else None,
            "part": [place + 1, len(chain)], "messages": len(self._shown(session_id)),
        })  # fmt: skip

    def _shown(self, session_id: str) -> list[dict[str, Any]]:
        """The messages of a session as the page shows them; rendered once for each state of the session."""
        rows = self._db.get_messages(session_id, visible_to=self._user)
        key = (session_id, len(rows), rows[-1]["id"] if rows else 0)
        if key not in self._rendered:
            results = {
                str(row["tool_call_id"]): dict(row) for row in rows if row["role"] == "tool" and row["tool_call_id"]
            }
            self._rendered[key] = [_Lazy(dict(row), results) for row in rows]
            while len(self._rendered) > 8:
                self._rendered.popitem(last=False)
        return self._rendered[key]

    def messages(self, request: Request) -> Response:
        """A page of messages: from a place, around a message, or the last ones."""
        rows = self._shown(self._found(request))
        query = request.query_params
        if "around" in query:
            wanted = _number(query["around"])
            place = next((number for number, row in enumerate(rows) if row["id"] >= wanted), len(rows))
            start = max(0, place - _PAGE // 2)
        else:
            start = _number(query["from"]) if "from" in query else max(0, len(rows) - _PAGE)
        some = [row.html() for row in rows[start : start + _PAGE]]  # type: ignore[attr-defined]
        return JSONResponse({"from": start, "total": len(rows), "messages": some})

    async def live(self, request: Request) -> Response:
        """Server-sent events: how many messages the session has now, whenever that changes."""
        session_id = await run_in_threadpool(self._found, request)
        lookout = self._lookouts.setdefault(session_id, _Lookout(lambda: self._db.message_count(session_id)))

        async def events() -> AsyncIterator[bytes]:
            async for count in lookout.changes():
                yield f"data: {count}\n\n".encode()

        return StreamingResponse(events(), media_type="text/event-stream")

    def insights(self, request: Request) -> Response:
        """The sums that `hermes insights --json` prints."""
        return JSONResponse(json.loads(json.dumps(
            self._db.insights(days=_number(request.query_params.get("days")) or 30, visible_to=self._user), default=str
        )))  # fmt: skip

    def attachment(self, request: Request) -> Response:
        """A picture that a browser may show, or a file to download. Other types never run in the page."""
        digest = request.path_params["digest"]
        if self._user is not None or len(digest) != 64 or not all(c in "0123456789abcdef" for c in digest):
            raise HTTPException(404, "no such attachment")
        try:
            data = read_attachment(self._db.attachments_dir, digest)
        except OSError:
            raise HTTPException(404, "the attachment is not on this machine") from None
        mime = render.picture_type(data)
        headers = {} if mime else {"content-disposition": f'attachment; filename="{digest[:12]}"'}
        return Response(data, media_type=mime or "application/octet-stream", headers=headers)

    async def do(self, request: Request) -> Response:
        """Change a session: title, tag, untag, pin, unpin, archive, unarchive, trash, restore, branch."""
        if self._read_only:
            raise HTTPException(403, "this page is read-only")
        told = await request.json() if await request.body() else {}
        action, session_id = request.path_params["action"], request.path_params["session_id"]
        changes: dict[str, Callable[[], Any]] = {
            "title": lambda: self._db.set_session_title(session_id, str(told.get("title", ""))),
            "tag": lambda: self._db.tag_session(session_id, str(told.get("tag", ""))),
            "untag": lambda: self._db.untag_session(session_id, str(told.get("tag", ""))),
            "pin": lambda: self._db.pin_session(session_id, True),
            "unpin": lambda: self._db.pin_session(session_id, False),
            "archive": lambda: self._db.archive_session(session_id, True),
            "unarchive": lambda: self._db.archive_session(session_id, False),
            "trash": lambda: self._db.trash_session(session_id, by="hermes web", whole=True),
            "restore": lambda: self._db.restore_session(session_id, whole=True),
            "branch": lambda: self._branch(session_id, told.get("at_message")),
        }
        if action not in changes:
            raise HTTPException(404, "no such action")
        return JSONResponse({"done": await run_in_threadpool(changes[action])})

    def _branch(self, session_id: str, at_message: Any) -> str:
        from hermes.agent.conversations import new_session_id

        return self._db.branch_session(session_id, new_session_id(), at_message=_number(at_message) or None)


class _Lazy(dict[str, Any]):
    """A message that becomes HTML when it is first asked for."""

    def __init__(self, row: dict[str, Any], results: dict[str, dict[str, Any]]) -> None:
        super().__init__(id=row["id"])
        self._row, self._results = row, results
        self._made: dict[str, Any] | None = None

    def html(self) -> dict[str, Any]:
        if self._made is None:
            self._made = render.message(self._row, self._results)
        return self._made


class _Lookout:
    """One look at a session for all who watch it."""

    def __init__(self, look: Callable[[], int]) -> None:
        self._look = look
        self._count = -1
        self._changed = asyncio.Condition()
        self._watchers = 0
        self._task: asyncio.Task[None] | None = None

    async def changes(self) -> AsyncIterator[int]:
        self._watchers += 1
        if self._task is None:
            self._task = asyncio.create_task(self._run())
        seen = -1
        try:
            while True:
                async with self._changed:
                    await self._changed.wait_for(lambda last=seen: self._count not in (-1, last))  # type: ignore[misc]
                    seen = self._count
                yield seen
        finally:
            self._watchers -= 1

    async def _run(self) -> None:
        while self._watchers:
            count = await run_in_threadpool(self._look)
            if count != self._count:
                async with self._changed:
                    self._count = count
                    self._changed.notify_all()
            await asyncio.sleep(_LOOK_SECONDS)
        self._task = None


def _number(value: Any) -> int:
    try:
        return max(0, int(value or 0))
    except (TypeError, ValueError):
        return 0


def _moment(request: Request, name: str, end: int) -> float | None:
    value = request.query_params.get(name)
    if not value:
        return None
    from hermes.times import span

    try:
        return span(value, None)[end]
    except ValueError as error:
        raise HTTPException(400, str(error)) from None
