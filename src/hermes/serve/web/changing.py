"""Changes that the page makes in a conversation. Each change is in the audit log with who asked for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from hermes.agent.conversations import new_session_id
from hermes.errors import SessionNotFound
from hermes.serve.api.requests import parse_json, read_body
from hermes.serve.event_stream import AsciiJson
from hermes.serve.web.finding import number
from hermes.serve.web.visitors import Visitor, visitor_of
from hermes.store.coordination.leases import holder_name, session_lease

if TYPE_CHECKING:
    from hermes.store.api.session_db import SessionDB

_TEXTS = ("title", "tag", "text", "question")
_LONGEST, _SLOWEST = 1_000_000, 60.0  # bytes of a request, and seconds it may take to arrive


async def told_in(request: Request, files: int = 0) -> dict[str, Any]:
    """The JSON object in a request that changes something; HTTPException or ApiError when the visitor may not, or it is none.

    `files`: the bytes that it may have for files.
    """
    if visitor_of(request).read_only:
        raise HTTPException(403, "this page is read-only")
    told = parse_json(await read_body(request, _LONGEST + files, _SLOWEST + files / 100_000) or b"{}")
    if not isinstance(told, dict):
        raise HTTPException(400, "the request is not a JSON object")
    for name in _TEXTS:
        if not isinstance(told.get(name) or "", str):
            raise HTTPException(400, f"{name} is not a text")
    return told


class ConversationChanges:
    """Title, tags, pin, archive, trash, branch, and bringing back what was undone."""

    def __init__(self, db: SessionDB) -> None:
        self._db = db

    async def do(self, request: Request) -> Response:
        """Change a session: title, tag, untag, pin, unpin, archive, unarchive, trash, restore, branch, redo."""
        told = await told_in(request)
        action, session_id = str(request.path_params["action"]), str(request.path_params["session_id"])
        return AsciiJson({"done": await run_in_threadpool(self._done, action, session_id, told, visitor_of(request))})

    def _done(self, action: str, session_id: str, told: dict[str, Any], visitor: Visitor) -> Any:
        db, by = self._db, visitor.by
        text = str(told.get("title" if action == "title" else "tag") or "")
        changes: dict[str, Callable[[], Any]] = {
            "title": lambda: db.set_session_title(session_id, text),
            "tag": lambda: db.tag_session(session_id, text),
            "untag": lambda: db.untag_session(session_id, text),
            "pin": lambda: db.pin_session(session_id, True),
            "unpin": lambda: db.pin_session(session_id, False),
            "archive": lambda: db.archive_session(session_id, True),
            "unarchive": lambda: db.archive_session(session_id, False),
            "trash": lambda: self._alone(session_id, lambda: db.trash_session(session_id, by=by, whole=True)),
            "redo": lambda: self._alone(session_id, lambda: db.unrewind(session_id)),
            "restore": lambda: db.restore_session(session_id, by=by, whole=True),
            "branch": lambda: self._branch(session_id, told.get("at_message")),
        }
        if action not in changes:
            raise HTTPException(404, "no such action")
        if action != "restore" and db.get_session(session_id) is None:
            raise SessionNotFound(session_id)
        done = changes[action]()
        if action == "restore" and not done:
            raise SessionNotFound(session_id)
        if action not in ("trash", "restore"):  # those two the store records itself
            detail = text or (f"new session {done}" if action == "branch" else "")
            db.record_audit(action, session_id, by=by, detail=detail)
        return done

    def _alone(self, session_id: str, change: Callable[[], Any]) -> Any:
        """Make a change that would pull the conversation away from a turn; SessionBusy while one runs."""
        tip = self._db.get_compression_tip(session_id)
        token = self._db.take_turn(tip, holder_name("web"), _SLOWEST)
        try:
            return change()
        finally:
            self._db.release_lease(session_lease(tip), token)

    def _branch(self, session_id: str, at_message: Any) -> str:
        return self._db.branch_session(session_id, new_session_id(), at_message=number(at_message) or None)
