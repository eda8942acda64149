"""The agent inside an editor, by the Agent Client Protocol: each session of the editor is a session of the record.

The editor starts `hermes acp` and talks with it over standard input and output. A session that began in the terminal or on
the phone can be loaded (its whole history is replayed), and `hermes -r` continues one that began in the editor. What a
tool would do that could cause harm, the editor asks its user about.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import acp
import msgspec
from acp import schema

from hermes import __version__
from hermes.agent.conversations import new_session_id
from hermes.agent.history_text import message_text
from hermes.agent.loop import Agent
from hermes.agent.tools.toolbox import Toolbox
from hermes.agent.turn import Done, Event, Notice, Stop, Text, Thought, ToolFinished, ToolStarted, run_turn
from hermes.config.keys import McpServer
from hermes.errors import HermesError

if TYPE_CHECKING:
    from hermes.agent.model import Model
    from hermes.config import Config
    from hermes.store.db import SessionDB
    from hermes.store.rows import ChatMessage

SOURCE = "acp"
_PAGE = 50
_LARGEST_FILE = 200_000  # characters of a file that a question refers to
_KINDS = {"terminal": "execute", "session_search": "search", "memory": "other"}
_log = logging.getLogger("hermes.acp")


@dataclass(slots=True)
class _EditorSession:
    agent: Agent
    toolbox: Toolbox
    stop: Stop = field(default_factory=Stop)
    running: asyncio.Future[None] | None = None


class EditorAgent(acp.Agent):
    """What an editor can ask for."""

    def __init__(self, db: SessionDB, config: Config, model: Model) -> None:
        self._db, self._config, self._model = db, config, model
        self._sessions: dict[str, _EditorSession] = {}
        self._client: acp.Client

    def on_connect(self, conn: acp.Client) -> None:
        self._client = conn

    async def initialize(
        self, protocol_version: int, client_capabilities: Any = None, client_info: Any = None, **kwargs: Any
    ) -> schema.InitializeResponse:
        """What this agent can do."""
        able = schema.AgentCapabilities(
            load_session=True,
            prompt_capabilities=schema.PromptCapabilities(image=True, embedded_context=True),
            mcp_capabilities=schema.McpCapabilities(http=True),
            session_capabilities=schema.SessionCapabilities(
                list=schema.SessionListCapabilities(), fork=schema.SessionForkCapabilities(),
                resume=schema.SessionResumeCapabilities(), close=schema.SessionCloseCapabilities(),
            ),
        )  # fmt: skip
        return schema.InitializeResponse(
            protocol_version=min(protocol_version, acp.PROTOCOL_VERSION), agent_capabilities=able,
            agent_info=schema.Implementation(name="hermes", title="Hermes", version=__version__),
        )  # fmt: skip

    async def set_session_mode(self, session_id: str, mode_id: str, **kwargs: Any) -> None:
        raise acp.RequestError.method_not_found("session/set_mode")

    async def set_config_option(self, config_id: str, session_id: str, value: str | bool, **kwargs: Any) -> None:
        raise acp.RequestError.method_not_found("session/set_config_option")

    async def ext_method(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        raise acp.RequestError.method_not_found(method)

    async def ext_notification(self, method: str, params: dict[str, Any]) -> None:
        """Notifications that are no part of the protocol are ignored."""

    async def authenticate(self, method_id: str, **kwargs: Any) -> None:
        return None

    # ------------------------------------------------------------------------------------------ sessions

    async def new_session(
        self, cwd: str, additional_directories: Any = None, mcp_servers: Any = None, **kwargs: Any
    ) -> schema.NewSessionResponse:
        """A session that begins; its row is made with the first prompt."""
        session_id = new_session_id()
        await asyncio.to_thread(self._open, session_id, session_id, cwd, mcp_servers)
        return schema.NewSessionResponse(session_id=session_id)

    async def load_session(
        self, cwd: str, session_id: str, mcp_servers: Any = None, additional_directories: Any = None, **kwargs: Any
    ) -> schema.LoadSessionResponse:
        """A session of the record, wherever it began; its history is replayed to the editor."""
        tip = await asyncio.to_thread(self._tip, session_id)
        await asyncio.to_thread(self._open, session_id, tip, cwd, mcp_servers)
        for update in _replayed(await asyncio.to_thread(self._db.get_messages_as_conversation, tip, True)):
            await self._client.session_update(session_id, update)
        return schema.LoadSessionResponse()

    async def resume_session(
        self, session_id: str, cwd: str, additional_directories: Any = None, mcp_servers: Any = None, **kwargs: Any
    ) -> schema.ResumeSessionResponse:
        """The same without the replay."""
        await asyncio.to_thread(self._open, session_id, self._tip(session_id), cwd, mcp_servers)
        return schema.ResumeSessionResponse()

    async def fork_session(
        self, session_id: str, cwd: str, additional_directories: Any = None, mcp_servers: Any = None, **kwargs: Any
    ) -> schema.ForkSessionResponse:
        """A branch of a session, from its end."""
        tip = await asyncio.to_thread(self._tip, session_id)
        branch = await asyncio.to_thread(self._db.branch_session, tip, new_session_id())
        await asyncio.to_thread(self._open, branch, branch, cwd, mcp_servers)
        return schema.ForkSessionResponse(session_id=branch)

    async def list_sessions(
        self, cwd: str | None = None, cursor: str | None = None, **kwargs: Any
    ) -> schema.ListSessionsResponse:
        """The conversations of the record, the latest first; with `cwd` those of that folder."""
        offset = int(cursor) if cursor and cursor.isdigit() else 0
        rows = await asyncio.to_thread(
            self._db.list_sessions_rich, limit=_PAGE, offset=offset, order_by_last_active=True
        )
        told = [
            schema.SessionInfo(session_id=row["id"], cwd=row["cwd"] or "/", title=row["title"] or row["preview"],
                               updated_at=_iso(row["last_active"] or row["started_at"]))
            for row in rows if cwd is None or row["cwd"] == cwd
        ]  # fmt: skip
        return schema.ListSessionsResponse(
            sessions=told, next_cursor=str(offset + _PAGE) if len(rows) == _PAGE else None
        )

    async def close_session(self, session_id: str, **kwargs: Any) -> schema.CloseSessionResponse:
        """The editor is done with a session; it stays in the record."""
        if (known := self._sessions.pop(session_id, None)) is not None:
            known.stop.want()
            await asyncio.to_thread(_close, known)
        return schema.CloseSessionResponse()

    def _tip(self, session_id: str) -> str:
        found = self._db.resolve_session_id(session_id)
        if found is None:
            raise acp.RequestError.invalid_params({"session_id": f"no session matches {session_id}"})
        return self._db.get_compression_tip(found)

    def _open(self, name: str, session_id: str, cwd: str, servers: Any) -> None:
        if (known := self._sessions.pop(name, None)) is not None:
            _close(known)
        config = self._config
        if servers:
            config = msgspec.structs.replace(config, mcp_servers={**config.mcp_servers, **_mcp(servers)})
        toolbox = Toolbox(config)
        toolbox.start()
        agent = Agent(self._db, config, self._model, session_id=session_id, source=SOURCE, cwd=Path(cwd))
        self._sessions[name] = _EditorSession(agent, toolbox)

    def close(self) -> None:
        """End every session's agent."""
        for known in self._sessions.values():
            _close(known)
        self._sessions.clear()

    # ------------------------------------------------------------------------------------------ talking

    async def prompt(self, session_id: str, prompt: list[Any], **kwargs: Any) -> schema.PromptResponse:
        """One turn: its events go to the editor as they happen."""
        known = self._sessions.get(session_id)
        if known is None:
            raise acp.RequestError.invalid_params({"session_id": f"session {session_id} is not open"})
        if known.running is not None:
            raise acp.RequestError.invalid_request({"reason": "a turn is under way in this session"})
        loop = asyncio.get_running_loop()
        events: asyncio.Queue[Event | BaseException | None] = asyncio.Queue()
        known.stop = Stop()
        known.running = loop.create_future()
        agent = known.agent
        agent.confirm = lambda question: self._permitted(session_id, question, loop)

        def begin() -> Any:
            if not agent.tools and agent.model.calls_tools:
                agent.tools = {tool.name: tool for tool in known.toolbox.tools()}
            turn = agent.turn(_content(prompt, agent.cwd))
            known.stop.bind(turn)
            return turn

        def tell(event: Event | BaseException | None) -> None:
            loop.call_soon_threadsafe(events.put_nowait, event)

        run_turn(begin, tell, tell, name="hermes-acp")
        try:
            return await self._listen(session_id, events)
        finally:
            known.running.set_result(None)
            known.running = None
            await asyncio.to_thread(agent.let_go)

    async def _listen(
        self, session_id: str, events: asyncio.Queue[Event | BaseException | None]
    ) -> schema.PromptResponse:
        stop_reason: Any = "end_turn"
        while True:
            event = await events.get()
            if event is None:
                return schema.PromptResponse(stop_reason=stop_reason)
            if isinstance(event, HermesError):
                raise acp.RequestError.internal_error({"reason": str(event)})
            if isinstance(event, BaseException):
                raise event
            if isinstance(event, Done):
                stop_reason = "cancelled" if event.interrupted else "end_turn"
            for update in _updates(event):
                await self._client.session_update(session_id, update)

    async def cancel(self, session_id: str, **kwargs: Any) -> None:
        """Stop the turn; what was said is kept."""
        if (known := self._sessions.get(session_id)) is not None:
            known.stop.want()

    def _permitted(self, session_id: str, question: str, loop: asyncio.AbstractEventLoop) -> bool:
        """Ask the editor's user, from the turn's thread."""
        options = [
            schema.PermissionOption(option_id="yes", name="Allow", kind="allow_once"),
            schema.PermissionOption(option_id="no", name="Reject", kind="reject_once"),
        ]
        call = schema.ToolCallUpdate(tool_call_id="confirmation", title=question, kind="execute", status="pending")
        asked = asyncio.run_coroutine_threadsafe(self._client.request_permission(session_id, call, options), loop)
        try:
            outcome = asked.result().outcome
        except Exception as error:  # the editor is gone, or does not know how to ask: then the answer is no
            _log.warning("the editor could not ask: %s", error)
            return False
        return getattr(outcome, "option_id", None) == "yes"


def _close(known: _EditorSession) -> None:
    known.agent.close()
    known.toolbox.close()


def _updates(event: Event) -> Iterator[Any]:
    """An event of a turn as the editor shows it."""
    if isinstance(event, Text):
        yield acp.update_agent_message_text(event.text)
    elif isinstance(event, Thought):
        yield acp.update_agent_thought_text(event.text)
    elif isinstance(event, ToolStarted):
        yield acp.start_tool_call(event.call_id, _title(event.name, event.arguments), kind=_kind(event.name),
                                  status="in_progress", raw_input=event.arguments)  # fmt: skip
    elif isinstance(event, ToolFinished):
        yield acp.update_tool_call(event.call_id, status="completed" if event.ok else "failed",
                                   content=[acp.tool_content(acp.text_block(event.text))])  # fmt: skip
    elif isinstance(event, Notice):
        yield acp.update_agent_thought_text(event.text + "\n")


def _kind(tool: str) -> Any:
    return _KINDS.get(tool, "other")


def _title(name: str, arguments: dict[str, Any]) -> str:
    given = arguments.get("command") or arguments.get("query") or ""
    return f"{name}: {given}" if isinstance(given, str) and given else name


def _replayed(messages: list[ChatMessage]) -> Iterator[Any]:
    """A conversation as the updates an editor would have seen."""
    for number, one in enumerate(messages):
        text = message_text(one, calls=False)
        if one["role"] == "user" and text:
            yield acp.update_user_message_text(text)
        elif one["role"] == "assistant":
            if one.get("reasoning"):
                yield acp.update_agent_thought_text(one["reasoning"])
            if text:
                yield acp.update_agent_message_text(text)
            for call in one.get("tool_calls") or ():
                function = call.get("function") or {}
                yield acp.start_tool_call(str(call.get("id") or number), str(function.get("name") or "tool"),
                                          kind=_kind(str(function.get("name"))), status="completed",
                                          raw_input=function.get("arguments"))  # fmt: skip
        elif one["role"] == "tool" and one.get("tool_call_id"):
            yield acp.update_tool_call(
                one["tool_call_id"], status="completed", content=[acp.tool_content(acp.text_block(text))]
            )


def _content(prompt: list[Any], cwd: Path) -> Any:
    """A question as the agent takes it: text, or parts with pictures; files that it refers to are put into it."""
    parts: list[Any] = []
    for block in prompt:
        kind = getattr(block, "type", "")
        if kind == "text":
            parts.append({"type": "text", "text": block.text})
        elif kind == "image":
            parts.append({"type": "image_url", "image_url": {"url": f"data:{block.mime_type};base64,{block.data}"}})
        elif kind == "resource":
            text = getattr(block.resource, "text", None)
            parts.append({"type": "text", "text": _file(str(block.resource.uri), text)})
        elif kind == "resource_link":
            parts.append({"type": "text", "text": _file(block.uri, _read(block.uri, cwd))})
    if all(part["type"] == "text" for part in parts):
        return "\n\n".join(part["text"] for part in parts)
    return parts


def _file(uri: str, text: str | None) -> str:
    name = unquote(urlsplit(uri).path) or uri
    if text is None:
        return f"[file {name}]"
    cut = "" if len(text) <= _LARGEST_FILE else "\n[cut here]"
    return f"<file path={name!r}>\n{text[:_LARGEST_FILE]}{cut}\n</file>"


def _read(uri: str, cwd: Path) -> str | None:
    """The text of a file that the editor refers to; None when it is none."""
    parts = urlsplit(uri)
    if parts.scheme not in ("file", ""):
        return None
    try:
        data = (cwd / unquote(parts.path)).read_bytes()[: _LARGEST_FILE * 4]
    except OSError:
        return None
    return None if b"\0" in data[:8000] else data.decode("utf-8", "replace")


def _mcp(servers: list[Any]) -> dict[str, McpServer]:
    found: dict[str, McpServer] = {}
    for server in servers:
        if getattr(server, "command", None):
            env = {one.name: one.value for one in server.env or ()}
            found[server.name] = McpServer(command=server.command, args=list(server.args or ()), env=env)
        elif getattr(server, "url", None):
            headers = {one.name: one.value for one in server.headers or ()}
            found[server.name] = McpServer(url=server.url, headers=headers)
    return found


def _iso(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")


async def serve(db: SessionDB, config: Config, model: Model) -> None:
    """Serve one editor until it closes its end."""
    agent = EditorAgent(db, config, model)
    try:
        await acp.run_agent(agent, use_unstable_protocol=True)
    finally:
        agent.close()


__all__ = ["EditorAgent", "serve"]
