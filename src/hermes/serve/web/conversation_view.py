"""One conversation for the page: its columns, its relatives, its messages a piece at a time, its files, and changes of it.

Each change is in the audit log with the visitor who made it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import FileResponse, Response, StreamingResponse

from hermes.agent.attached_files import separated
from hermes.agent.conversations import new_session_id
from hermes.errors import SessionNotFound
from hermes.serve.http_messages import ApiError, AsciiJson, parse_json, read_body
from hermes.serve.web import message_html
from hermes.serve.web.finding import PAGE, PageLists, number
from hermes.serve.web.message_html import Row
from hermes.serve.web.talking import answering_here
from hermes.serve.web.visitors import Visitor, visitor_of
from hermes.store.leases import holder_name, is_gone, is_ours, session_lease, source_of
from hermes.texts import content_text, encodable, one_line
from hermes.why import files_changed

if TYPE_CHECKING:
    from datetime import tzinfo

    from hermes.serve.web.talking import Talks
    from hermes.store.api.session_db import SessionDB
    from hermes.store.records.rows import SessionRow
    from hermes.store.records.visibility import User

_EXPORTS = {"jsonl": "application/x-ndjson", "markdown": "text/markdown", "html": "application/octet-stream"}
Rows = Sequence[Row]


class ConversationView:
    """Conversations as the page shows them."""

    def __init__(self, db: SessionDB, finding: PageLists, talks: Talks, zone: tzinfo | None) -> None:
        self._db, self._finding, self._talks, self._zone = db, finding, talks, zone
        self._renderer = message_html.HtmlRenderer(self._type_of)

    def found(self, request: Request) -> SessionRow:
        """The session that a request names; SessionNotFound when its sender may not see it."""
        session_id = str(request.path_params["session_id"])
        row = self._db.get_session(session_id, visible_to=visitor_of(request).user)
        if row is None:
            raise SessionNotFound(session_id)
        return row

    def session(self, request: Request) -> Response:
        """One conversation: its columns, its lineage, its turn that runs here, and which other process is answering."""
        row, user = self.found(request), visitor_of(request).user
        session_id = row["id"]
        turn = None if visitor_of(request).read_only else self._talks.running_in(session_id)
        holder = self._db.turn_holder(self._db.get_compression_tip(session_id))
        is_other = holder is not None and not is_ours(holder) and not is_gone(holder)
        family = self._db.get_family(session_id, visible_to=user)
        known = {one["id"] for one in family}
        chain, place = self._parts(session_id, user)
        summary = None  # the message that stands for the part before
        if place:
            rows = self._db.get_messages(session_id, visible_to=user)
            summary = next((one["id"] for one in rows if one["session_id"] == session_id), None)
        for one in family:
            one["title"], one["preview"] = one_line(one["title"]), one_line(one["preview"])[:120]
        return AsciiJson({
            **self._finding.headlines([row], user)[0],
            "cost": row["actual_cost_usd"] if row["actual_cost_usd"] is not None else row["estimated_cost_usd"],
            "parent": row["parent_session_id"] if row["parent_session_id"] in known else None,
            "previous": chain[place - 1] if place else None, "next": chain[place + 1] if place + 1 < len(chain) else None,
            "part": [place + 1, len(chain)], "family": family,
            "turn": None if turn is None else turn.id, "other": source_of(holder) if is_other else None,
            "summary": summary, "files": files_changed(self._db, session_id, visible_to=user),
        })  # fmt: skip

    # ------------------------------------------------------------------------------------------ messages

    def messages(self, request: Request) -> Response:
        """A page of messages: from a place, around a message, or the last ones."""
        session_id, user = self.found(request)["id"], visitor_of(request).user
        holder, waiting = self._db.turn_holder(session_id), None
        if holder is not None and not is_gone(holder):
            turn = self._talks.running_in(session_id)
            question = None if turn is None else turn.request
            waiting = "" if question is None else question.call_id
        undone = len(self._db.get_undone_messages(session_id, visible_to=user))
        return self._piece(request, self._db.get_messages(session_id, visible_to=user), waiting, undone)

    def undone(self, request: Request) -> Response:
        """The messages that were undone last and can be brought back."""
        session_id, user = self.found(request)["id"], visitor_of(request).user
        return self._piece(request, self._undone_rows(session_id, user))

    def _undone_rows(self, session_id: str, user: User | None) -> list[Row]:
        rows = self._db.get_undone_messages(session_id, visible_to=user)
        return [{**row, "undone_in": session_id} for row in rows]

    def _parts(self, session_id: str, user: User | None) -> tuple[list[str], int]:
        """The parts of a compressed conversation that a user may see, and which of them this session is."""
        chain = self._db.get_compression_chain(session_id)
        seen = self._db.get_sessions(chain, visible_to=user)
        parts = [one for one in chain if one in seen or one == session_id]
        return parts, parts.index(session_id)

    def _piece(self, request: Request, rows: Rows, waiting: str | None = None, undone: int = 0) -> Response:
        entries, results, place_of = _entries(rows)
        query = request.query_params
        if "around" in query:
            wanted = number(query["around"])
            later = next((place for place, row in enumerate(entries) if row["id"] >= wanted), len(entries))
            start = max(0, place_of.get(wanted, later) - PAGE // 2)
        else:
            start = number(query["from"]) if "from" in query else max(0, len(entries) - PAGE)
        some = []
        for row in entries[start : start + PAGE]:  # only the last one's calls run
            some.append(self._renderer.message(row, results, waiting if row is entries[-1] else None))
        page = {"from": start, "total": len(entries), "stored": len(rows), "undone": undone, "messages": some}
        return AsciiJson(page)

    # ------------------------------------------------------------------------------------------ files

    def _message(self, request: Request) -> Row:
        user, message_id = visitor_of(request).user, number(request.path_params["message_id"])
        rows: Rows = []
        if "undone_in" in request.query_params:
            rows = self._undone_rows(request.query_params["undone_in"], user)
        elif (session_id := self._db.session_of_message(message_id, visible_to=user)) is not None:
            rows = self._db.get_messages(session_id, visible_to=user)
        row = next((one for one in rows if one["id"] == message_id), None)
        if row is None:
            raise ApiError(404, "no such message")
        return row

    def attachment(self, request: Request) -> Response:
        """A picture or recording that a browser may show, or a file to download. Other types never run in the page.

        Only as part of a message that the visitor may see.
        """
        row = self._message(request)
        digest = str(request.path_params["digest"])
        if len(digest) != 64 or f"attachment:sha256:{digest}" not in str(row["content"]):
            raise ApiError(404, "no such attachment")
        mime, file = self._type_of(digest), self._db.attachment_file(digest)
        kind, headers = mime or "application/octet-stream", {} if mime else {"content-disposition": "attachment"}
        if file is not None and file.exists():
            return FileResponse(file, media_type=kind, headers=headers)  # also a part of it: players ask for those
        try:
            return Response(self._db.read_attachment(digest), media_type=kind, headers=headers)
        except OSError:
            raise ApiError(404, "the attachment is not on this machine") from None

    def _type_of(self, digest: str) -> str | None:
        file = self._db.attachment_file(digest)
        with suppress(OSError):
            if file is None:
                return message_html.shown_type(self._db.read_attachment(digest))
            with file.open("rb") as stream:
                return message_html.shown_type(stream.read(16))
        return None

    def text(self, request: Request) -> Response:
        """The whole text of a message, to download; with `?said` what was written there alone: to copy, or to edit."""
        row = self._message(request)
        content = row["content"]
        is_whole = "said" not in request.query_params
        texts = [row.get("reasoning"), content_text(content)] if is_whole else [separated(content)[0]]
        data = "\n\n".join(str(encodable(one)) for one in texts if one).encode()
        name = f'attachment; filename="message-{row["id"]}.txt"'
        return Response(data, media_type="text/plain; charset=utf-8", headers={"content-disposition": name})

    def export(self, request: Request) -> Response:
        """The conversation as a file to download: jsonl, markdown or html."""
        from hermes.interop import formats

        row, user = self.found(request), visitor_of(request).user
        form = str(request.path_params["form"])
        if form not in _EXPORTS:
            raise ApiError(404, f"no such format; there are {', '.join(_EXPORTS)}")
        chosen, title = formats.writers()[form], row["title"] or row["id"]
        found = self._db.export_session(row["id"], visible_to=user)
        sessions = [] if found is None else [found]
        export = formats.Export(sessions=sessions, title=title, zone=self._zone, attachments=self._db.read_attachment)
        safe = re.sub(r"[^\w -]", "-", one_line(title))[:80].strip() or "session"
        headers = {"content-disposition": f"attachment; filename*=UTF-8''{quote(safe + chosen.endings[0])}"}
        return StreamingResponse(formats.written(chosen, export), media_type=_EXPORTS[form], headers=headers)


def _entries(rows: Rows) -> tuple[list[Row], dict[str, Row], dict[int, int]]:
    """The messages that stand in the page by themselves, tools' results by their call, and the place of every message.

    A result belongs to its call; one whose call is not shown stands by itself.
    """
    entries: list[Row] = []
    results: dict[str, Row] = {}
    place_of: dict[int, int] = {}
    callers: dict[str, int] = {}
    for row in rows:
        named = str(row.get("tool_call_id") or "")
        if row["role"] == "tool" and named in callers and named not in results:
            results[named] = row
            place_of[row["id"]] = callers[named]
            continue
        for call in row.get("tool_calls") or ():
            if isinstance(call, dict) and call.get("id"):
                callers.setdefault(str(call["id"]), len(entries))
        place_of[row["id"]] = len(entries)
        entries.append(row)
    return entries, results, place_of


_TEXTS = ("title", "tag", "text", "question")
_LONGEST, _SLOWEST = 1_000_000, 60.0  # bytes of a request, and seconds it may take to arrive


async def json_body(request: Request, files: int = 0) -> dict[str, Any]:
    """The JSON object in a request that changes something; ApiError for another body, or a visitor who may change nothing.

    `files`: the bytes that it may have for files.
    """
    if visitor_of(request).read_only:
        raise ApiError(403, "this page is read-only")
    body = parse_json(await read_body(request, _LONGEST + files, _SLOWEST + files / 100_000) or b"{}")
    if not isinstance(body, dict):
        raise ApiError(400, "the request is not a JSON object")
    for name in _TEXTS:
        if not isinstance(body.get(name) or "", str):
            raise ApiError(400, f"{name} is not a text")
    return body


class ConversationChanges:
    """Title, tags, pin, archive, trash, branch, and bringing back what was undone."""

    def __init__(self, db: SessionDB, talks: Talks) -> None:
        self._db, self._talks = db, talks

    async def do(self, request: Request) -> Response:
        """Change a session: title, tag, untag, pin, unpin, archive, unarchive, trash, restore, branch, redo."""
        body = await json_body(request)
        action, session_id = str(request.path_params["action"]), str(request.path_params["session_id"])
        return AsciiJson({"done": await run_in_threadpool(self._done, action, session_id, body, visitor_of(request))})

    def _done(self, action: str, session_id: str, body: dict[str, Any], visitor: Visitor) -> Any:
        db, by = self._db, visitor.by
        text = str(body.get("title" if action == "title" else "tag") or "")
        changes: dict[str, Callable[[], Any]] = {
            "title": lambda: db.set_session_title(session_id, text),
            "tag": lambda: db.tag_session(session_id, text),
            "untag": lambda: db.untag_session(session_id, text),
            "pin": lambda: db.pin_session(session_id, True),
            "unpin": lambda: db.pin_session(session_id, False),
            "archive": lambda: db.archive_session(session_id, True),
            "unarchive": lambda: db.archive_session(session_id, False),
            "trash": lambda: self._between_turns(session_id, lambda: db.trash_session(session_id, by=by, whole=True)),
            "redo": lambda: self._between_turns(session_id, lambda: db.unrewind(session_id)),
            "restore": lambda: db.restore_session(session_id, by=by, whole=True),
            "branch": lambda: self._branch(session_id, body.get("at_message")),
        }
        if action not in changes:
            raise ApiError(404, "no such action")
        if action != "restore" and db.get_session(session_id) is None:
            raise SessionNotFound(session_id)
        done = changes[action]()
        if action == "restore" and not done:
            raise SessionNotFound(session_id)
        if action not in ("trash", "restore"):  # those two the store records itself
            detail = text or (f"new session {done}" if action == "branch" else "")
            db.record_audit(action, session_id, by=by, detail=detail)
        return done

    def _between_turns(self, session_id: str, change: Callable[[], Any]) -> Any:
        """Make a change that would pull the conversation away from a turn; refused while one runs."""
        if self._talks.running_in(session_id) is not None:
            raise answering_here()
        tip = self._db.get_compression_tip(session_id)
        token = self._db.take_turn(tip, holder_name("web"), _SLOWEST)
        try:
            return change()
        finally:
            self._db.release_lease(session_lease(tip), token)

    def _branch(self, session_id: str, at_message: Any) -> str:
        return self._db.branch_session(session_id, new_session_id(), at_message=number(at_message) or None)
