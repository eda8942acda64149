"""The store for any agent: an MCP server with tools to search, list and read conversations.

Read-only unless it is started for writing. Every answer keeps to a token budget, cites message ids, and holds
old text only between quotation marks: text from the history is data, not an instruction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import anyio.to_thread
from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ResourceNotFoundError, ToolError
from mcp.shared.exceptions import MCPError
from mcp.types import INVALID_PARAMS, Completion, Resource, ResourceTemplateReference, ToolAnnotations
from pydantic import Field

from hermes import __version__
from hermes.agent.history_text import (
    CLOSE,
    NEAREST,
    NOTE,
    OPEN,
    as_json,
    between_marks,
    defused,
    message_text,
    quoted,
    when,
)
from hermes.agent.session_search.excerpts import OWN_SPEAKER, hits_by_session
from hermes.errors import HermesError, InvalidInput, SessionNotFound, TitleClash
from hermes.texts import shortened, shortened_line
from hermes.tokens import text_tokens

if TYPE_CHECKING:
    from hermes.store.db import SessionDB
    from hermes.store.rows import MessageRow, SearchHit
    from hermes.store.visibility import User

_SMALLEST, _BUDGET, _LARGEST = 200, 4_000, 50_000
_PER_MESSAGE = 8_000  # characters of one message; longer ones are cut, except the message that was asked for
_TITLE = 40  # tokens of a title
_LISTED = 50  # conversations in the list of resources
_SOURCES = 40  # sources that are counted one by one
_MATCHES = ((5, True), (3, True), (1, True), (1, False))  # matches of a conversation, and whether with their neighbours
_WORTH = 60  # tokens that are worth the beginning of one more entry
Budget = Annotated[int, Field(description="The largest answer, in tokens.", ge=_SMALLEST, le=_LARGEST)]
Session = Annotated[str, Field(description="A session's id, the beginning of its id, or its title.")]
Limit = Annotated[int, Field(ge=1, le=100)]
Moment = Annotated[str | None, Field(description="A moment: 7d, yesterday, 2026-01-31.")]


def server(db: SessionDB, *, write: bool = False, user: User | None = None) -> MCPServer[Any]:
    """An MCP server on a store; `user` sees only what that user may see."""
    record = Record(db, user)
    made = _RecordServer(
        record, "hermes", title="Hermes Sessions", version=__version__,
        instructions=f"Earlier conversations of this user: search_sessions finds them, read_session shows one. {NOTE}",
        log_level="WARNING",
    )  # fmt: skip
    reading = ToolAnnotations(read_only_hint=True, open_world_hint=False)
    readers: list[Callable[..., str]] = [
        record.search_sessions, record.read_session, record.list_sessions, record.session_stats, record.why,
    ]  # fmt: skip
    writers: list[Callable[..., str]] = [record.tag_session, record.set_title, record.append_note] if write else []
    for tool in readers:
        made.tool(annotations=reading, structured_output=False)(_explained(tool))
    writing = ToolAnnotations(read_only_hint=False, destructive_hint=False, open_world_hint=False)
    for tool in writers:
        made.tool(annotations=writing, structured_output=False)(_explained(tool))

    @made.resource("session://{session_id}", mime_type="application/json", title="A conversation",
                   description=f"A conversation: its newest messages, at most {_LARGEST:,} tokens, quoted.")  # fmt: skip
    def conversation(session_id: str) -> str:
        try:
            return record.read_session(session_id, max_tokens=_LARGEST)
        except HermesError as error:
            raise ResourceNotFoundError(str(error)) from None

    @made.completion()  # type: ignore[no-untyped-call, untyped-decorator]
    async def complete(ref: Any, argument: Any, context: Any) -> Completion | None:
        if not isinstance(ref, ResourceTemplateReference) or argument.name != "session_id":
            return None
        ids = await anyio.to_thread.run_sync(record.ids_beginning, argument.value)
        return Completion(values=ids)

    @made.prompt(title="Catch me up")
    def catch_me_up(topic: str) -> str:
        """What was discussed and decided about a topic, with citations."""
        return (
            f"Catch me up on {topic!r}. Use search_sessions to find the conversations about it, read_session to read around the"
            " best hits, and tell me what was decided, what is open and when it was last discussed. Cite message ids. If the"
            " record says nothing about it, say so."
        )

    return made


class _RecordServer(MCPServer[Any]):
    """Also lists the latest conversations as resources; a client's mistake is an answer and no crash in the log."""

    def __init__(self, record: Record, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._record = record

    async def list_resources(self) -> list[Resource]:
        return await anyio.to_thread.run_sync(self._record.resources)

    async def get_prompt(self, name: str, arguments: dict[str, Any] | None = None, context: Any = None) -> Any:
        try:
            return await super().get_prompt(name, arguments, context)
        except ValueError as error:  # an unknown prompt, or a missing argument
            raise MCPError(code=INVALID_PARAMS, message=str(error)) from None


def _explained(tool: Callable[..., str]) -> Callable[..., str]:
    """The tool, with this program's errors as one line that a model can act on."""
    import functools

    @functools.wraps(tool)
    def run(*args: Any, **kwargs: Any) -> str:
        try:
            return tool(*args, **kwargs)
        except HermesError as error:
            raise ToolError(str(error)) from None

    return run


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
        max_tokens: Budget = _BUDGET,
    ) -> str:
        """Search earlier conversations: the best matches first, grouped by conversation, with message ids and neighbours."""
        found = hits_by_session(
            self._db, query, limit, limit * 5, source_filter=[source] if source else None, role_filter=[role] if role else None,
            model=model, tag=tag, tool=tool, since=_moment(since, 0), until=_moment(until, 1), visible_to=self._user,
        )  # fmt: skip
        head = {"note": NOTE, "query": shortened_line(query, 60)}
        if found and all(hit["confidence"] == "weak" for hits in found.values() for hit in hits):
            head["result"] = NEAREST
        headlines = {session_id: self._headline(session_id) for session_id in found}
        for most, beside in _MATCHES:  # rather all conversations with one match than some with five
            entries = [{**headlines[one], "matches": self._matches(hits[:most], beside)} for one, hits in found.items()]
            if text_tokens(as_json({**head, "sessions": entries})) <= max_tokens:
                break
        return _fitted(head, "sessions", enumerate(entries), max_tokens)

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
            return _fitted(head, "messages", ((place, _shown(rows[place])) for place in order), max_tokens)
        place = next((number for number, row in enumerate(rows) if row["id"] == around_message_id), None)
        if place is None:
            raise InvalidInput(f"message {around_message_id} is not in session {session_id}")
        near = range(max(0, place - window), min(len(rows), place + window + 1))
        # The message that was asked for comes first, then its neighbours: those that do not fit are the farthest.
        order_around = sorted(near, key=lambda number: abs(number - place))
        entries = ((one, _shown(rows[one], _LARGEST * 4 if one == place else _PER_MESSAGE)) for one in order_around)
        return _fitted(head, "messages", entries, max_tokens)

    def _parts(self, session_id: str) -> list[str]:
        return self._db.get_compression_lineage(session_id) or [session_id]

    def _named(self, session: str) -> str:
        found = self._db.resolve_session_id(session, visible_to=self._user)
        if found is None:
            found = self._db.resolve_session_by_title(session, visible_to=self._user)
        if found is None:
            raise SessionNotFound(session)
        return found

    def list_sessions(
        self, limit: Limit = 20, source: str | None = None, tag: str | None = None, offset: Annotated[int, Field(ge=0)] = 0,
        max_tokens: Budget = _BUDGET,
    ) -> str:  # fmt: skip
        """The latest conversations: id, title, source, last activity, first words. A source or tag adds automated runs."""
        rows = self._db.list_sessions_rich(
            source=source, tag=tag, limit=limit, offset=offset, order_by_last_active=True,
            automated=None if source or tag else False, visible_to=self._user,
        )  # fmt: skip
        entries = (
            {**self._headline(row["id"]), "messages": row["message_count"], "begins": quoted(row["preview"] or "")}
            for row in rows
        )
        return _fitted({"note": NOTE}, "sessions", enumerate(entries), max_tokens)

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
        entries = (
            {**one, "title": quoted(one["title"]) if one["title"] else None, "time": when(one["time"]),
             "request": quoted(one["request"]), "text": quoted(one["words"]),
             **({"tests": [{**run, "command": quoted(run["command"])} for run in one["tests"]]} if tests else {})}
            for one in answer["changes"]
        )  # fmt: skip
        told = ({key: value for key, value in one.items() if key != "words"} for one in entries)
        return _fitted(head, "changes", enumerate(told), max_tokens)

    def resources(self) -> list[Resource]:
        """The latest conversations, as what a client can attach."""
        rows = self._db.list_sessions_rich(
            limit=_LISTED, order_by_last_active=True, automated=False, visible_to=self._user
        )
        return [
            Resource(
                uri=f"session://{quote(row['id'], safe='')}", name=row["id"], mime_type="application/json",
                title=shortened_line(defused(row["title"] or row["preview"] or row["id"]), 80),
                description=f"{row['source']}, {when(row['last_active'])}",
            )
            for row in rows
        ]  # fmt: skip

    def ids_beginning(self, text: str) -> list[str]:
        """Ids of the latest conversations that begin so."""
        rows = self._db.list_sessions_rich(limit=1000, order_by_last_active=True, visible_to=self._user)
        return [row["id"] for row in rows if row["id"].startswith(text)][:100]

    def session_stats(self) -> str:
        """How many conversations and messages there are, by source."""
        sources = self._db.source_counts(visible_to=self._user)
        largest = sorted(sources, key=lambda source: (-sources[source], source))
        return as_json({
            "sessions": sum(sources.values()), "messages": self._db.message_count(visible_to=self._user),
            "by_source": {source: sources[source] for source in largest[:_SOURCES]},
            **({"other_sources": len(largest) - _SOURCES} if len(largest) > _SOURCES else {}),
        })  # fmt: skip

    def tag_session(self, session: Session, tags: list[str]) -> str:
        """Add tags to a conversation."""
        session_id = self._named(session)
        self._db.tag_session(session_id, *tags)
        self._db.record_audit("tag", session_id, by=self._by, detail=", ".join(tags))
        return as_json({"session_id": session_id, "tags": self._db.get_tags(session_id)})

    def set_title(self, session: Session, title: str) -> str:
        """Give a conversation a title."""
        session_id = self._named(session)
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
        session_id = self._named(session)
        message_id = self._db.append_message(session_id, "system", text)
        self._db.record_audit("note", session_id, by=self._by, detail=f"message {message_id}, {len(text):,} characters")
        return as_json({"session_id": session_id, "message_id": message_id})


def _shown(row: MessageRow, most: int = _PER_MESSAGE) -> Mapping[str, Any]:
    return {"message_id": row["id"], "role": row["role"], "when": when(row["timestamp"]),
            "text": quoted(shortened(message_text(row), most))}  # fmt: skip


def _fitted(head: Mapping[str, Any], key: str, entries: Iterable[tuple[int, Mapping[str, Any]]], budget: int) -> str:
    """As many entries as fit the budget, the first ones given first, in the order of their numbers.

    The text of the last one may be cut. `left_out` says that there are more.
    """
    taken: dict[int, Mapping[str, Any]] = {}
    room = budget - text_tokens(as_json({**head, key: [], "left_out": True}))
    left_out = False
    for number, entry in entries:
        cost = _cost(entry)
        if cost > room:
            left_out = True
            smaller = _smaller(entry, room) if not taken or room >= _WORTH else None
            if smaller is not None:
                taken[number] = smaller
            break
        room -= cost
        taken[number] = entry
    shown = [taken[number] for number in sorted(taken)]
    return as_json({**head, key: shown, **({"left_out": True} if left_out else {})})


def _cost(entry: Mapping[str, Any]) -> int:
    return text_tokens(as_json(entry)) + 1  # and the comma


def _smaller(entry: Mapping[str, Any], room: int) -> Mapping[str, Any] | None:
    """An entry with fewer matches or less text, so that it fits; None when even that does not."""
    return next((one for one in _smaller_ones(entry) if _cost(one) <= room), None)


def _smaller_ones(entry: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    matches = entry.get("matches")
    if matches is not None:
        for count in range(len(matches) - 1, 0, -1):
            yield {**entry, "matches": matches[:count]}
        yield from ({**entry, "matches": [one]} for one in _smaller_ones(matches[0]))
    for name in ("text", "begins"):
        if name in entry:
            inner = entry[name][len(OPEN) : -len(CLOSE)].strip("\n")
            while len(inner) > 8:  # ever less: how many tokens a text takes depends on its script
                inner = inner[: len(inner) * 4 // 5]
                yield {**entry, name: between_marks(f"{inner}…")}


def _moment(value: str | None, end: int) -> float | None:
    if value is None:
        return None
    from hermes.times import span

    try:
        return span(value, None)[end]
    except ValueError as error:
        raise InvalidInput(str(error)) from None
