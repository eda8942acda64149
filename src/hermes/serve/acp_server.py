"""The agent inside an editor, by the Agent Client Protocol: each session of the editor is a session of the record.

The editor starts `hermes acp` and talks with it over standard input and output. A session that began in the terminal or on
the phone can be loaded (its whole history is replayed), and `hermes -r` continues one that began in the editor. What a
tool would do that could cause harm, the editor asks its user about.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import acp
import msgspec
from acp import schema

from hermes import __version__
from hermes.agent.conversations import new_session_id
from hermes.agent.loop import Agent
from hermes.agent.model_choice import model_of_choice
from hermes.agent.stream import PermissionDecided, PermissionRequest, stream_turn
from hermes.agent.tools.toolbox import Toolbox
from hermes.agent.turn import Done, Event, Notice, ToolFinished, ToolStarted, Turn
from hermes.errors import HermesError
from hermes.serve import acp_choices
from hermes.serve.acp_choices import refusal
from hermes.serve.acp_messages import mcp_servers_of, question_of, replayed, updates_of
from hermes.serve.models import Models

if TYPE_CHECKING:
    from hermes.agent.model import Model
    from hermes.config import Config
    from hermes.store.db import SessionDB

SOURCE = "acp"
_PAGE = 50
_ALLOW, _ALWAYS, _REJECT = "yes", "always", "no"
_log = logging.getLogger("hermes.acp")


@dataclass(slots=True)
class _EditorSession:
    agent: Agent
    toolbox: Toolbox
    turn: Turn | None = None  # the one that runs
    calls: dict[str, str] = field(default_factory=dict)  # the commands of the tool calls that run
    allowed: set[str] = field(default_factory=set)  # questions that the user answered with "always"


class EditorAgent(acp.Agent):
    """What an editor can ask for."""

    def __init__(self, db: SessionDB, config: Config, model: Model, *, keep_model: bool = False) -> None:
        self._db, self._config, self._model = db, config, model
        self._keep_model = keep_model  # sessions open with this model, not with the one chosen for them
        self._models = Models(model)
        self._questions = itertools.count(1)
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

    async def set_session_mode(self, session_id: str, mode_id: str, **kwargs: Any) -> schema.SetSessionModeResponse:
        """Which commands the agent asks about."""
        await self._choose_mode(session_id, mode_id)
        return schema.SetSessionModeResponse()

    async def set_config_option(
        self, config_id: str, session_id: str, value: str | bool, **kwargs: Any
    ) -> schema.SetSessionConfigOptionResponse:
        """The model that answers, or the mode."""
        agent = self._known(session_id).agent
        if config_id == acp_choices.MODEL:
            await acp_choices.choose_model(agent, self._models, str(value))
        elif config_id == acp_choices.MODE:
            await self._choose_mode(session_id, str(value))
        else:
            raise refusal(f"no option {config_id!r}; there are model and mode")
        return schema.SetSessionConfigOptionResponse(config_options=await acp_choices.options(agent, self._models))

    async def _choose_mode(self, session_id: str, mode: str) -> None:
        """An editor may show the mode, the option of the same meaning, or both: each is updated."""
        agent = self._known(session_id).agent
        acp_choices.choose_mode(agent, mode)
        options = await acp_choices.options(agent, self._models)
        for update in (
            schema.CurrentModeUpdate(session_update="current_mode_update", current_mode_id=mode),
            schema.ConfigOptionUpdate(session_update="config_option_update", config_options=options),
        ):
            await self._client.session_update(session_id, update)

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
        return schema.NewSessionResponse(session_id=session_id, **await self._choices(session_id))

    async def load_session(
        self, cwd: str, session_id: str, mcp_servers: Any = None, additional_directories: Any = None, **kwargs: Any
    ) -> schema.LoadSessionResponse:
        """A session of the record, wherever it began; its history is replayed to the editor."""
        tip = await asyncio.to_thread(self._tip, session_id)
        await asyncio.to_thread(self._open, session_id, tip, cwd, mcp_servers)
        for update in replayed(await asyncio.to_thread(self._db.get_messages_as_conversation, tip, True)):
            await self._client.session_update(session_id, update)
        return schema.LoadSessionResponse(**await self._choices(session_id))

    async def resume_session(
        self, session_id: str, cwd: str, additional_directories: Any = None, mcp_servers: Any = None, **kwargs: Any
    ) -> schema.ResumeSessionResponse:
        """The same without the replay."""
        tip = await asyncio.to_thread(self._tip, session_id)
        await asyncio.to_thread(self._open, session_id, tip, cwd, mcp_servers)
        return schema.ResumeSessionResponse(**await self._choices(session_id))

    async def fork_session(
        self, session_id: str, cwd: str, additional_directories: Any = None, mcp_servers: Any = None, **kwargs: Any
    ) -> schema.ForkSessionResponse:
        """A branch of a session, from its end."""
        tip = await asyncio.to_thread(self._tip, session_id)
        branch = await asyncio.to_thread(self._db.branch_session, tip, new_session_id())
        await asyncio.to_thread(self._open, branch, branch, cwd, mcp_servers)
        return schema.ForkSessionResponse(session_id=branch, **await self._choices(branch))

    async def list_sessions(
        self, cwd: str | None = None, cursor: str | None = None, **kwargs: Any
    ) -> schema.ListSessionsResponse:
        """The conversations of the record, the latest first; with `cwd` those of that folder."""
        if cursor is not None and not (cursor.isascii() and cursor.isdigit() and len(cursor) < 10):
            raise refusal(f"{cursor!r} is not a cursor of this agent")
        offset = int(cursor or 0)
        rows = await asyncio.to_thread(
            self._db.list_sessions_rich, limit=_PAGE, offset=offset, order_by_last_active=True, cwd=cwd, automated=False
        )
        told = [
            schema.SessionInfo(session_id=row["id"], cwd=row["cwd"] or "/", title=row["title"] or row["preview"],
                               updated_at=_iso(row["last_active"] or row["started_at"]))
            for row in rows
        ]  # fmt: skip
        return schema.ListSessionsResponse(
            sessions=told, next_cursor=str(offset + _PAGE) if len(rows) == _PAGE else None
        )

    async def close_session(self, session_id: str, **kwargs: Any) -> schema.CloseSessionResponse:
        """The editor is done with a session; it stays in the record."""
        if (known := self._sessions.pop(session_id, None)) is not None:
            if known.turn is not None:
                known.turn.interrupt()
            await asyncio.to_thread(_close, known)
        return schema.CloseSessionResponse()

    def _known(self, session_id: str) -> _EditorSession:
        known = self._sessions.get(session_id)
        if known is None:
            raise refusal(f"session {session_id} is not open")
        return known

    async def _choices(self, session_id: str) -> dict[str, Any]:
        agent = self._sessions[session_id].agent
        return {"modes": acp_choices.modes(agent), "config_options": await acp_choices.options(agent, self._models)}

    def _tip(self, session_id: str) -> str:
        found = self._db.resolve_session_id(session_id)
        if found is None:
            raise refusal(f"no session matches {session_id}")
        return self._db.get_compression_tip(found)

    def _open(self, name: str, session_id: str, cwd: str, servers: Any) -> None:
        if (known := self._sessions.pop(name, None)) is not None:
            _close(known)
        config = self._config
        if servers:
            config = msgspec.structs.replace(config, mcp_servers={**config.mcp_servers, **mcp_servers_of(servers)})
        toolbox = Toolbox(config)
        toolbox.start()
        chosen = None if self._keep_model else self._db.chosen_model(session_id)
        model = model_of_choice(config, chosen, self._model)
        agent = Agent(self._db, config, model, session_id=session_id, source=SOURCE, cwd=Path(cwd))
        self._sessions[name] = _EditorSession(agent, toolbox)

    def close(self) -> None:
        """End every session's agent."""
        for known in self._sessions.values():
            _close(known)
        self._sessions.clear()

    # ------------------------------------------------------------------------------------------ talking

    async def prompt(self, session_id: str, prompt: list[Any], **kwargs: Any) -> schema.PromptResponse:
        """One turn: its events go to the editor as they happen."""
        known = self._known(session_id)
        if known.turn is not None:
            raise refusal("a turn is under way in this session; wait for it or cancel it", -32600)
        agent = known.agent
        try:
            known.turn = agent.turn(question_of(prompt, agent.cwd))
        except ValueError as error:
            raise refusal(str(error)) from None
        try:
            return schema.PromptResponse(stop_reason=await self._show(session_id, known, known.turn))
        except HermesError as error:
            raise refusal(str(error), -32603) from None
        finally:
            known.turn = None
            await asyncio.to_thread(agent.let_go)

    async def _show(self, session_id: str, known: _EditorSession, turn: Turn) -> Any:
        """Show a turn to the editor; returns why it stopped."""
        agent, toolbox = known.agent, known.toolbox
        if not agent.tools and agent.model.calls_tools:
            agent.tools = {tool.name: tool for tool in await asyncio.to_thread(toolbox.tools)}
            for problem in toolbox.problems:
                await self._update(session_id, Notice(problem))
        interrupted = False
        asking: asyncio.Task[None] | None = None
        async for event in stream_turn(agent, turn, patience=math.inf):
            if isinstance(event, PermissionRequest):
                asking = asyncio.create_task(self._ask(session_id, known, event))
                continue
            if isinstance(event, PermissionDecided):
                if asking is not None:
                    asking.cancel()  # without an answer: the turn was stopped
                continue
            if isinstance(event, ToolStarted):
                known.calls[event.call_id] = str(event.arguments.get("command") or "")
            elif isinstance(event, ToolFinished):
                known.calls.pop(event.call_id, None)
            elif isinstance(event, Done):
                interrupted = event.interrupted
            await self._update(session_id, event)
        known.calls.clear()
        return "cancelled" if interrupted else "end_turn"

    async def _update(self, session_id: str, event: Event) -> None:
        for update in updates_of(event):
            await self._client.session_update(session_id, update)

    async def cancel(self, session_id: str, **kwargs: Any) -> None:
        """Stop the turn; what was said is kept."""
        if (known := self._sessions.get(session_id)) is not None and known.turn is not None:
            known.turn.interrupt()

    async def _ask(self, session_id: str, known: _EditorSession, request: PermissionRequest) -> None:
        """Ask the editor's user."""
        question = request.question
        if question in known.allowed:
            request.answer(True)
            return
        options = [
            schema.PermissionOption(option_id=_ALLOW, name="Allow", kind="allow_once"),
            schema.PermissionOption(option_id=_ALWAYS, name="Allow in this session", kind="allow_always"),
            schema.PermissionOption(option_id=_REJECT, name="Reject", kind="reject_once"),
        ]
        call = schema.ToolCallUpdate(tool_call_id=self._call_of(known, question), title=question, kind="execute")
        try:
            outcome = (await self._client.request_permission(session_id, call, options)).outcome
        except Exception as error:  # the editor is gone, or does not know how to ask: then the answer is no
            _log.warning("the editor could not ask: %s", error)
            request.answer(False)
            return
        answer = getattr(outcome, "option_id", None)
        if answer == _ALWAYS:
            known.allowed.add(question)  # this command, in this folder
        request.answer(answer in (_ALLOW, _ALWAYS))

    def _call_of(self, known: _EditorSession, question: str) -> str:
        """The tool call that a question is about, as the editor knows it."""
        calls = known.calls
        of_command = [one for one, command in calls.items() if command and command.strip() in question]
        if len(of_command) == 1:
            return of_command[0]
        return next(iter(calls)) if len(calls) == 1 else f"confirmation-{next(self._questions)}"


def _close(known: _EditorSession) -> None:
    known.agent.close()
    known.toolbox.close()


def _iso(at: float) -> str | None:
    """None for a time that no calendar has: an import may bring any."""
    try:
        return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")
    except (OverflowError, ValueError, OSError):
        return None


async def serve(db: SessionDB, config: Config, model: Model, *, keep_model: bool = False) -> None:
    """Serve one editor until it closes its end. `keep_model`: the model answers also where another one was chosen."""
    agent = EditorAgent(db, config, model, keep_model=keep_model)
    try:
        await acp.run_agent(agent, use_unstable_protocol=True)
    finally:
        agent.close()


__all__ = ["EditorAgent", "serve"]
