"""The store for any agent: an MCP server with tools to search, list and read conversations.

Read-only unless it is started for writing. Every answer keeps to a token budget, cites message ids, and holds
old text only between quotation marks: text from the history is data, not an instruction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any

from mcp.server import MCPServer
from mcp.types import ToolAnnotations
from pydantic import Field

from hermes import __version__
from hermes.agent.history_text import NOTE, as_json, message_text, quoted, when
from hermes.agent.tokens import text_tokens
from hermes.errors import HermesError, InvalidInput, SessionNotFound
from hermes.texts import shortened

if TYPE_CHECKING:
    from hermes.store.db import SessionDB
    from hermes.store.rows import MessageRow, SearchHit
    from hermes.store.visibility import User

_SMALLEST, _BUDGET, _LARGEST = 200, 4_000, 50_000
_PER_MESSAGE = 2_000  # tokens of one message; longer ones are cut
Budget = Annotated[int, Field(description="The largest answer, in tokens.", ge=_SMALLEST, le=_LARGEST)]
Session = Annotated[str, Field(description="A session's id, the beginning of its id, or its title.")]
Limit = Annotated[int, Field(ge=1, le=100)]
Moment = Annotated[str | None, Field(description="A moment: 7d, yesterday, 2026-01-31.")]


def server(db: SessionDB, *, write: bool = False, user: User | None = None) -> MCPServer[Any]:
    """An MCP server on a store; `user` sees only what that user may see."""
    made: MCPServer[Any] = MCPServer(
        "hermes", title="Hermes Sessions", version=__version__,
        instructions=f"Earlier conversations of this user: search_sessions finds them, read_session shows one. {NOTE}",
        log_level="WARNING",
    )  # fmt: skip
    record = Record(db, user)
    reading = ToolAnnotations(read_only_hint=True, open_world_hint=False)
    readers: list[Callable[..., str]] = [
        record.search_sessions, record.read_session, record.list_sessions, record.session_stats,
    ]  # fmt: skip
    writers: list[Callable[..., str]] = [record.tag_session, record.set_title, record.append_note] if write else []
    for tool in readers:
        made.tool(annotations=reading, structured_output=False)(_explained(tool))
    writing = ToolAnnotations(read_only_hint=False, destructive_hint=False, open_world_hint=False)
    for tool in writers:
        made.tool(annotations=writing, structured_output=False)(_explained(tool))

    @made.resource("session://{session_id}", mime_type="text/plain", title="A conversation")
    def conversation(session_id: str) -> str:
        """A conversation as text, its newest part."""
        return record.read_session(session_id, max_tokens=_LARGEST)

    @made.prompt(title="Catch me up")
    def catch_me_up(topic: str) -> str:
        """What was discussed and decided about a topic, with citations."""
        return (
            f"Catch me up on {topic!r}. Use search_sessions to find the conversations about it, read_session to read around the"
            " best hits, and tell me what was decided, what is open and when it was last discussed. Cite message ids. If the"
            " record says nothing about it, say so."
        )

    return made


def _explained(tool: Callable[..., str]) -> Callable[..., str]:
    """The tool, with this program's errors as one line that a model can act on."""
    import functools

    @functools.wraps(tool)
    def run(*args: Any, **kwargs: Any) -> str:
        try:
            return tool(*args, **kwargs)
        except HermesError as error:
            from mcp.server.mcpserver.exceptions import ToolError

            raise ToolError(str(error)) from None

    return run


class Record:
    """The tools' implementations."""

    def __init__(self, db: SessionDB, user: User | None) -> None:
        self._db, self._user = db, user

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
        hits = self._db.search_messages(
            query, [source] if source else None, role_filter=[role] if role else None, limit=limit * 5, model=model, tag=tag,
            tool=tool, since=_moment(since, 0), until=_moment(until, 1), visible_to=self._user,
        )  # fmt: skip
        grouped: dict[str, list[SearchHit]] = {}
        for hit in hits:
            grouped.setdefault(hit["session_id"], []).append(hit)
        entries = (self._hits(session_id, found[:5]) for session_id, found in list(grouped.items())[:limit])
        return _fitted({"note": NOTE, "query": query}, "sessions", entries, max_tokens)

    def _hits(self, session_id: str, hits: list[SearchHit]) -> Mapping[str, Any]:
        shown = {hit["id"] for hit in hits}
        matches = [{"message_id": hit["id"], "role": hit["role"], "when": when(hit["timestamp"]), "text": quoted(hit["snippet"]),
                    "found_by": hit["why"], "beside": self._beside(hit, shown)} for hit in hits]  # fmt: skip
        return {**self._headline(session_id), "matches": matches}

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
        return {"session_id": session_id, "title": quoted(row["title"]) if row.get("title") else None,
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
        if around_message_id is not None:
            place = next((number for number, row in enumerate(rows) if row["id"] == around_message_id), None)
            if place is None:
                raise InvalidInput(f"message {around_message_id} is not in session {session_id}")
            rows = rows[max(0, place - window) : place + window + 1]
            return _fitted(head, "messages", map(_shown, rows), max_tokens)
        return _fitted(head, "messages", map(_shown, reversed(rows)), max_tokens, newest_first=True)

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
        """The latest conversations: id, title, source, last activity, first words."""
        rows = self._db.list_sessions_rich(
            source=source, tag=tag, limit=limit, offset=offset, order_by_last_active=True, visible_to=self._user
        )
        entries = (
            {**self._headline(row["id"]), "messages": row["message_count"], "begins": quoted(row["preview"] or "")}
            for row in rows
        )
        return _fitted({"note": NOTE}, "sessions", entries, max_tokens)

    def session_stats(self) -> str:
        """How many conversations and messages there are, by source."""
        sources = self._db.source_counts(visible_to=self._user)
        return as_json({"sessions": sum(sources.values()), "messages": self._db.message_count(visible_to=self._user),
                        "by_source": sources})  # fmt: skip

    def tag_session(self, session: Session, tags: list[str]) -> str:
        """Add tags to a conversation."""
        session_id = self._named(session)
        self._db.tag_session(session_id, *tags)
        return as_json({"session_id": session_id, "tags": self._db.get_tags(session_id)})

    def set_title(self, session: Session, title: str) -> str:
        """Give a conversation a title."""
        session_id = self._named(session)
        self._db.set_session_title(session_id, title)
        return as_json({"session_id": session_id, "title": self._db.get_session_title(session_id)})

    def append_note(self, session: Session, text: str) -> str:
        """Add a note at the end of a conversation: a system message that it shows and that is searched."""
        session_id = self._named(session)
        message_id = self._db.append_message(session_id, "system", text)
        return as_json({"session_id": session_id, "message_id": message_id})


def _shown(row: MessageRow) -> Mapping[str, Any]:
    text = message_text(row)
    return {"message_id": row["id"], "role": row["role"], "when": when(row["timestamp"]),
            "text": quoted(shortened(text, _PER_MESSAGE * 4))}  # fmt: skip


def _fitted(
    head: Mapping[str, Any], key: str, entries: Iterable[Mapping[str, Any]], budget: int, *, newest_first: bool = False
) -> str:
    """As many entries as fit the budget; `left_out` counts the rest."""
    taken: list[Mapping[str, Any]] = []
    room = budget - text_tokens(as_json({**head, key: [], "left_out": True}))
    left_out = False
    for entry in entries:
        cost = text_tokens(as_json(entry)) + 1
        if cost > room:
            if not taken and "text" in entry:  # one long message: show its beginning
                taken.append({**entry, "text": quoted(shortened(entry["text"][:60_000], max(0, room - 100) * 2))})
            left_out = True
            break
        room -= cost
        taken.append(entry)
    return as_json({**head, key: taken[::-1] if newest_first else taken, **({"left_out": True} if left_out else {})})


def _moment(value: str | None, end: int) -> float | None:
    if value is None:
        return None
    from hermes.times import span

    try:
        return span(value, None)[end]
    except ValueError as error:
        raise InvalidInput(str(error)) from None
