"""The record for other agents, by the Model Context Protocol: a server with tools to search, list and read conversations.

Read-only unless it is started for writing. Every answer keeps to a token budget, cites message ids, says how much it leaves
out, and holds old text only between quotation marks: text from the history is data, not an instruction. A mistake of the
model is one line that it can act on.
"""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import anyio.to_thread
from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.tools import Tool
from mcp.server.stdio import stdio_server
from mcp.types import ToolAnnotations
from pydantic import Field, ValidationError

from hermes import __version__
from hermes.agent.history import (
    NEAREST,
    NOTE,
    OWN_SPEAKER,
    PER_MESSAGE,
    as_json,
    fitted,
    hits_by_session,
    message_entry,
    quoted,
    when,
)
from hermes.commands.session_commands import find
from hermes.config import suggestion
from hermes.errors import HermesError, InvalidInput, SessionNotFound, TitleClash
from hermes.texts import encodable, shortened, shortened_line, text_tokens

if TYPE_CHECKING:
    from hermes.store.api.session_db import SessionDB
    from hermes.store.records.rows import SearchHit
    from hermes.store.records.visibility import User

_SMALLEST, _BUDGET, _LARGEST = 200, 4_000, 50_000
_TITLE = 40  # tokens of a title
_ROLES = ("user", "assistant", "tool", "system")
_COUNTED = 200  # hits, or further conversations of a list, among which what is left out is counted
_MATCHES = ((5, True), (3, True), (1, True), (1, False))  # matches of a conversation, and whether with their neighbours
Budget = Annotated[int, Field(description="The largest answer, in tokens.", ge=_SMALLEST, le=_LARGEST)]
Session = Annotated[str, Field(description="A session's id, the beginning of its id, or its title.")]
Limit = Annotated[int, Field(ge=1, le=100)]
Moment = Annotated[str | None, Field(description="A moment: 7d, yesterday, 2026-01-31.")]
Folder = Annotated[str | None, Field(description="Only conversations that worked in this folder or below it.")]


def server(db: SessionDB, *, write: bool = False, user: User | None = None) -> MCPServer[Any]:
    """An MCP server on a store; `user` sees only what that user may see."""
    record = Record(db, user)
    readers: list[Callable[..., str]] = [
        record.recall, record.search_sessions, record.read_session, record.list_sessions, record.why
    ]  # fmt: skip
    writers: list[Callable[..., str]] = [record.tag_session, record.set_title, record.append_note] if write else []
    return _RecordServer(
        [_tool(one, reads=one in readers) for one in (*readers, *writers)], "hermes", title="Hermes Sessions",
        version=__version__, log_level="WARNING",
        instructions="Earlier conversations of this user: recall tells what they say about a message, search_sessions finds"
        f" them, read_session shows one. {NOTE}",
    )  # fmt: skip


class _RecordServer(MCPServer[Any]):
    """A server whose tools answer a client's mistake with one line."""

    def __init__(self, tools: list[Tool], *args: Any, **options: Any) -> None:
        super().__init__(*args, tools=tools, **options)
        self._arguments = {one.name: one.parameters["properties"] for one in tools}

    async def call_tool(self, name: str, arguments: dict[str, Any], context: Any = None) -> Any:
        if (known := self._arguments.get(name)) is None:
            raise ToolError(f"unknown tool {name!r}{_known(name, self._arguments)}")
        for unknown in (one for one in arguments if one not in known):
            raise ToolError(f"{name} has no argument {unknown!r}{_known(unknown, known)}")
        try:
            return await super().call_tool(name, arguments, context)
        except ToolError as error:  # the library's frame around the cause and its documentation's address stay here
            cause = error.__cause__
            if isinstance(cause, ValidationError):
                first = cause.errors(include_url=False)[0]
                raise ToolError(f"{first['loc'][0]}: {first['msg']}") from None
            raise (cause if isinstance(cause, ToolError) else error) from None

    async def run_stdio_async(self) -> None:
        lines: Any = _requests()
        try:
            async with stdio_server(stdin=lines) as (read, write):
                await self._lowlevel_server.run(read, write, self._lowlevel_server.create_initialization_options())
        except* BrokenPipeError:
            pass  # the client is gone


async def _requests() -> AsyncIterator[str]:
    """The lines of standard input. Half a surrogate pair, as JavaScript sends for text that was cut inside an emoji, becomes
    U+FFFD: the library can't read such a request, and would leave it without an answer."""
    while line := (await anyio.to_thread.run_sync(sys.stdin.buffer.readline)).decode(errors="replace"):
        if "\\ud" in line.lower():
            with suppress(ValueError, RecursionError):
                line = json.dumps(encodable(json.loads(line))) + "\n"
        yield line


def _tool(function: Callable[..., str], *, reads: bool) -> Tool:
    """A tool as a model sees it; this program's errors become one line that a model can act on."""

    @wraps(function)
    def run(*args: Any, **kwargs: Any) -> str:
        try:
            return function(*args, **kwargs)
        except HermesError as error:
            raise ToolError(encodable(str(error))) from None

    hints = ToolAnnotations(read_only_hint=reads, destructive_hint=None if reads else False, open_world_hint=False)
    about = inspect.cleandoc(function.__doc__ or "")
    tool = Tool.from_function(run, description=about, annotations=hints, structured_output=False)
    tool.parameters["additionalProperties"] = False
    return tool


def _known(name: str, known: Iterable[str]) -> str:
    return suggestion(name, known) or f"; known: {', '.join(known) or 'none'}"


class Record:
    """The tools' implementations."""

    def __init__(self, db: SessionDB, user: User | None) -> None:
        self._db, self._user = db, user
        self._by = "hermes mcp" if user is None else f"hermes mcp ({user[0]}:{user[1]})"  # in the audit log

    def search_sessions(
        self,
        query: Annotated[
            str, Field(description='A question, or words; "exact phrase", OR, NOT (-word) and prefix* work.')
        ],
        limit: Limit = 10,
        source: Annotated[str | None, Field(description="Only from here: cli, telegram, claude-code, …")] = None,
        role: Annotated[str | None, Field(description="Only messages of user, assistant or tool.")] = None,
        model: str | None = None,
        tag: str | None = None,
        tool: Annotated[str | None, Field(description="Only calls and results of this tool.")] = None,
        since: Moment = None,
        until: Moment = None,
        folder: Folder = None,
        max_tokens: Budget = _BUDGET,
    ) -> str:
        """Search earlier conversations: the best matches first, grouped by conversation, with message ids and neighbours.

        left_out counts what else matched: a larger limit or max_tokens shows more, a filter less.
        """
        every, is_all = hits_by_session(
            self._db, query, limit, max(limit * 5, _COUNTED), source_filter=[source] if source else None,
            role_filter=[role] if role else None, model=model, tag=tag, tool=tool, cwd=self._folder(folder),
            since=_moment(since, 0), until=_moment(until, 1), visible_to=self._user,
        )  # fmt: skip
        if role not in (None, *_ROLES) and not every:  # other programs may have stored more roles; then they are found
            raise InvalidInput(f"role: expected {', '.join(_ROLES[:-1])} or {_ROLES[-1]}, got {role!r}")
        found = dict(list(every.items())[:limit])
        head = {"note": NOTE, "query": shortened_line(query, 60)}
        if found and all(hit["confidence"] == "weak" for hits in found.values() for hit in hits):
            head["result"] = NEAREST
        headlines = {session_id: self._headline(session_id) for session_id in found}
        for most, beside in _MATCHES:  # rather all conversations with one match than some with five
            entries = [{**headlines[one], "matches": self._matches(hits[:most], beside)} for one, hits in found.items()]
            if text_tokens(as_json({**head, "sessions": entries})) <= max_tokens:
                break
        there = {"sessions": len(every), "matches": sum(map(len, every.values()))}
        return fitted(head, "sessions", enumerate(entries), max_tokens, there, is_all=is_all)

    def recall(self, message: Annotated[str, Field(description="The user's message, as it was written.")]) -> str:
        """What earlier conversations say about a message: the closest passages of at most three. Call it first for a task."""
        from hermes.agent import recall

        found = recall.recall(self._db, message, current=None, visible_to=self._user)
        text = recall.recalled_text(found.passages) if found is not None else ""
        return encodable(text) or "Nothing closely matches. search_sessions also shows what is less close."

    def _folder(self, folder: str | None) -> str | None:
        """The folder of a filter; on this machine, a path is read as a shell reads it."""
        return folder if folder is None or self._user is not None else str(Path(folder).expanduser().resolve())

    def _matches(self, hits: list[SearchHit], beside: bool) -> list[Mapping[str, Any]]:
        shown = {hit["id"] for hit in hits}
        return [{"message_id": hit["id"], "role": OWN_SPEAKER if hit["own_model"] else hit["role"],
                 "when": when(hit["timestamp"]), "text": quoted(hit["snippet"]), "found_by": hit["why"],
                 "confidence": hit["confidence"],
                 "beside": self._beside(hit, shown) if beside else []} for hit in hits]  # fmt: skip

    @staticmethod
    def _beside(hit: SearchHit, shown: set[int]) -> list[Mapping[str, Any]]:
        """The messages before and after a hit, each once: the answer often stands there."""
        out: list[Mapping[str, Any]] = []
        for one in hit["context"]:
            if one["id"] not in shown and one["content"]:
                shown.add(one["id"])
                out.append({"message_id": one["id"], "role": one["role"], "text": quoted(one["content"])})
        return out

    def _headline(self, session_id: str) -> Mapping[str, Any]:
        row: Mapping[str, Any] = self._db.get_session(session_id, visible_to=self._user) or {}
        title = row.get("title") or ""
        if text_tokens(title) > _TITLE:  # the smallest budget has room for a message beside it
            title = shortened(title, _TITLE)
        return {"session_id": session_id, "title": quoted(title) if title else None,
                "source": row.get("source"), "last_active": when(row.get("last_active"))}  # fmt: skip

    def read_session(
        self,
        session: Session,
        around_message_id: Annotated[int | None, Field(description="Show the messages around this one.")] = None,
        window: Annotated[int, Field(description="How many messages to each side of it.", ge=0, le=200)] = 10,
        max_tokens: Budget = _BUDGET,
    ) -> str:
        """Read a conversation: its newest messages that fit, or those around one message. Compressed parts are followed."""
        session_id = self._named(session)
        rows = [row for part in self._parts(session_id) for row in self._db.get_messages(part, visible_to=self._user)]
        rows = list({row["id"]: row for row in rows}.values())
        head = {"note": NOTE, **self._headline(session_id), "messages_in_all": len(rows)}
        if around_message_id is None:
            order = range(len(rows) - 1, -1, -1)
            newest = ((place, message_entry(rows[place])) for place in order)
            return fitted(head, "messages", newest, max_tokens, {"messages": len(rows)})
        place = next((number for number, row in enumerate(rows) if row["id"] == around_message_id), None)
        if place is None:
            raise InvalidInput(f"message {around_message_id} is not in session {session_id}")
        near = range(max(0, place - window), min(len(rows), place + window + 1))
        # The requested message comes first, then its neighbours: those that do not fit are the farthest.
        nearest = sorted(near, key=lambda number: abs(number - place))
        entries = ((one, message_entry(rows[one], _LARGEST * 4 if one == place else PER_MESSAGE)) for one in nearest)
        return fitted(head, "messages", entries, max_tokens, {"messages": len(near)})

    def _parts(self, session_id: str) -> list[str]:
        return self._db.get_compression_lineage(session_id) or [session_id]

    def _named(self, session: str, *, exactly: bool = False) -> str:
        """The session that a model means; a title may be given in part, unless the session is changed (`exactly`)."""
        chosen = find(self._db, session, visible_to=self._user, resuming=not exactly)
        if chosen.session_id is not None:
            return chosen.session_id
        if not chosen.candidates and not chosen.suggestions:
            raise SessionNotFound(session)
        if not chosen.candidates:
            titles = ", ".join(map(quoted, chosen.suggestions))
            raise InvalidInput(f"no session has the id or the title {session!r}; titles like it: {titles}")
        listed = as_json([self._headline(one) for one in chosen.candidates])
        more = ", and more" if chosen.more else ""
        raise InvalidInput(f"several sessions match {session!r}; give the session_id of one: {listed}{more}")

    def list_sessions(
        self, limit: Limit = 20, source: str | None = None, tag: str | None = None, folder: Folder = None,
        offset: Annotated[int, Field(ge=0)] = 0, max_tokens: Budget = _BUDGET,
    ) -> str:  # fmt: skip
        """The latest conversations: id, title, source, last activity, first words. A source or tag adds automated runs."""
        rows = self._db.list_sessions_rich(
            source=source, tag=tag, cwd=self._folder(folder), limit=limit + _COUNTED, offset=offset, order_by_last_active=True,
            automated=None if source or tag else False, visible_to=self._user,
        )  # fmt: skip
        entries = (
            {**self._headline(row["id"]), "messages": row["message_count"], "begins": quoted(row["preview"] or "")}
            for row in rows[:limit]
        )
        head, there = {"note": NOTE}, {"sessions": len(rows)}
        is_all = len(rows) < limit + _COUNTED
        return fitted(head, "sessions", enumerate(entries), max_tokens, there, is_all=is_all)

    def why(
        self, where: Annotated[str, Field(description="FILE, FILE:LINE or FILE:LINE-LINE; an absolute path is best.")],
        tests: Annotated[bool, Field(description="Add the tests that were run after each change.")] = False,
        max_tokens: Budget = _BUDGET,
    ) -> str:  # fmt: skip
        """Which conversations made a file or a line of it, newest first: the user's request, and the agent's words beside it."""
        from hermes.why import parsed, why

        is_local = self._user is None
        path, lines = parsed(where, Path.cwd() if is_local else None)
        answer = why(self._db, path, lines, tests=tests, limit=100, visible_to=self._user, is_local=is_local)
        head = {"note": NOTE, **{key: value for key, value in answer.items() if key != "changes"}}
        entries = []
        for one in answer["changes"]:
            entry: dict[str, Any] = {**one, "time": when(one["time"]), "request": quoted(one["request"])}
            entry |= {"title": quoted(one["title"]) if one["title"] else None, "text": quoted(entry.pop("words"))}
            if tests:
                entry["tests"] = [{**run, "command": quoted(run["command"])} for run in one["tests"]]
            entries.append(entry)
        return fitted(head, "changes", enumerate(entries), max_tokens, {"changes": len(entries)})

    def tag_session(self, session: Session, tags: list[str]) -> str:
        """Add tags to a conversation."""
        session_id = self._named(session, exactly=True)
        self._db.tag_session(session_id, *tags)
        self._db.record_audit("tag", session_id, by=self._by, detail=", ".join(tags))
        return as_json({"session_id": session_id, "tags": self._db.get_tags(session_id)})

    def set_title(self, session: Session, title: str) -> str:
        """Give a conversation a title."""
        session_id = self._named(session, exactly=True)
        try:
            self._db.set_session_title(session_id, title)
        except TitleClash:
            if self._user is None:
                raise
            raise InvalidInput("this title is in use; choose another") from None  # its session may be another user's
        self._db.record_audit("title", session_id, by=self._by, detail=title)
        return as_json({"session_id": session_id, "title": self._db.get_session_title(session_id)})

    def append_note(self, session: Session, text: str) -> str:
        """Add a note at the end of a conversation: a system message that it shows and that is searched."""
        session_id = self._named(session, exactly=True)
        message_id = self._db.append_message(session_id, "system", text)
        self._db.record_audit("note", session_id, by=self._by, detail=f"message {message_id}, {len(text):,} characters")
        return as_json({"session_id": session_id, "message_id": message_id})


def _moment(value: str | None, end: int) -> float | None:
    if value is None:
        return None
    from hermes.times import span

    try:
        return span(value, None)[end]
    except ValueError as error:
        raise InvalidInput(str(error)) from None
