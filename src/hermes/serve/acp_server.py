"""The agent inside an editor, by the Agent Client Protocol: each session of the editor is a session of the record.

The editor starts `hermes acp` and talks with it over standard input and output. A session that began in the terminal or on
the phone can be loaded (its whole history is replayed), and `hermes -r` continues one that began in the editor. What a
tool would do that could cause harm, the editor asks its user about.

Sessions are opened, left and deleted by the editor's own means, so commands for that are not offered there. The output of a
command is shown like a reply and is no part of the record. The model is chosen by /model and stored with the session; the mode
is for one session of the editor and ends with the process. `config.yaml` has the defaults.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import acp
import msgspec
from acp import schema
from acp.agent.router import build_agent_router
from acp.connection import Connection
from acp.utils import notify_model, request_model
from pydantic import ValidationError

from hermes import __version__
from hermes.agent.conversations import new_session_id
from hermes.agent.loop import Agent
from hermes.agent.models.choice import model_of_choice
from hermes.agent.tools.permission import Answer
from hermes.agent.tools.tool import Toolbox
from hermes.agent.turn import Done, Event, Notice, PermissionDecided, PermissionRequest, Stop, Turn, stream_turn
from hermes.commands import registry
from hermes.commands.registry import EDITOR, Command, parse, run_command, sent_text
from hermes.errors import Fenced, HermesError, InvalidInput, SessionNotFound
from hermes.serve.acp_messages import Display, mcp_servers_of, prompt_content, replayed
from hermes.store.records.sessions import CONFIGURED
from hermes.texts import encodable

if TYPE_CHECKING:
    from hermes.agent.models.model import Model
    from hermes.config import Config
    from hermes.store.api.session_db import SessionDB
    from hermes.store.records.visibility import User

SOURCE = "acp"
_PAGE = 50
_LONGEST_LINE = 50_000_000  # bytes of one message of the editor
_ALLOW, _ALWAYS, _REJECT = "yes", "always", "no"
_log = logging.getLogger("hermes.acp")


class _Lines:
    """JSON-RPC messages, one a line; an invalid line gets an error and is skipped."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def receive(self) -> dict[str, Any] | None:
        while True:
            try:
                if not (line := await self._reader.readline()):
                    return None
                if isinstance(message := json.loads(line), dict):
                    return message
            except (ValueError, RecursionError):  # no JSON, or too long
                pass
            error = {"code": -32700, "message": "a line is not a JSON-RPC message; it was skipped"}
            await self.send({"jsonrpc": "2.0", "id": None, "error": error})

    async def send(self, message: dict[str, Any]) -> None:
        self._writer.write(json.dumps(encodable(message)).encode() + b"\n")
        await self._writer.drain()

    async def close(self) -> None:
        """Do nothing: the streams are those of the program."""


class EditorAgent:
    """The requests of an editor."""

    def __init__(self, db: SessionDB, config: Config, model: Model, *, keep_model: bool = False) -> None:
        self._db, self._config, self._model = db, config, model
        self._keep_model = keep_model  # sessions open with this model, not with the one chosen for them
        self._sessions: dict[str, EditorSession] = {}
        self._router = build_agent_router(cast("acp.Agent", self), use_unstable_protocol=True)

    async def listen(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve the editor at the other end until it closes its end."""
        self._loop = asyncio.get_running_loop()
        self._editor = Connection(self._handle, _Lines(reader, writer), listening=False)
        try:
            await self._editor.main_loop()
        finally:
            await asyncio.shield(self._editor.close())

    async def _handle(self, method: str, params: Any, is_notification: bool) -> Any:
        """Handle a message; an error reaches the editor as one line."""
        try:
            return await self._router(method, params, is_notification)
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(map(str, first["loc"]))
            wrong = f"{place} is {'missing' if first['type'] == 'missing' else 'not valid'}"
            raise refusal(f"{method}: {wrong if place else 'the parameters are not valid'}") from None
        except HermesError as error:
            raise refusal(str(error), -32602 if isinstance(error, InvalidInput) else -32603) from None

    async def _send(self, session_id: str, update: Any) -> None:
        notification = schema.SessionNotification(session_id=session_id, update=update)
        await notify_model(self._editor, "session/update", notification)

    async def initialize(self, protocol_version: int, **kwargs: Any) -> schema.InitializeResponse:
        """Tell what this agent can do."""
        able = schema.AgentCapabilities(
            load_session=True,
            prompt_capabilities=schema.PromptCapabilities(image=True, embedded_context=True),
            mcp_capabilities=schema.McpCapabilities(http=True),
            session_capabilities=schema.SessionCapabilities(
                list=schema.SessionListCapabilities(), close=schema.SessionCloseCapabilities()
            ),
        )  # fmt: skip
        return schema.InitializeResponse(
            protocol_version=min(protocol_version, acp.PROTOCOL_VERSION), agent_capabilities=able,
            agent_info=schema.Implementation(name="hermes", title="Hermes", version=__version__),
        )  # fmt: skip

    async def set_session_mode(self, session_id: str, mode_id: str, **kwargs: Any) -> schema.SetSessionModeResponse:
        """Choose which commands the agent asks about, from the next command on, also in a turn that runs."""
        agent = self._known(session_id).agent
        if mode_id not in _MODES:
            raise refusal(f"no mode {mode_id!r}; there are {', '.join(_MODES)}")
        terminal = msgspec.structs.replace(agent.config.terminal, approval=mode_id)
        agent.config = agent.context.config = msgspec.structs.replace(agent.config, terminal=terminal)
        return schema.SetSessionModeResponse()

    # ------------------------------------------------------------------------------------------ sessions

    async def new_session(self, cwd: str, mcp_servers: Any = None, **kwargs: Any) -> schema.NewSessionResponse:
        """A session that begins; its row is made with the first prompt."""
        session_id = new_session_id()
        await asyncio.to_thread(self._open, session_id, session_id, cwd, mcp_servers)
        return schema.NewSessionResponse(session_id=session_id, modes=self._modes(session_id))

    async def load_session(
        self, session_id: str, cwd: str, mcp_servers: Any = None, **kwargs: Any
    ) -> schema.LoadSessionResponse:
        """A session of the record, wherever it began; its history is replayed to the editor."""
        tip = await asyncio.to_thread(self._reopen, session_id, cwd, mcp_servers)
        for update in await asyncio.to_thread(replayed, self._db, tip):
            await self._send(session_id, update)
        return schema.LoadSessionResponse(modes=self._modes(session_id))

    async def list_sessions(
        self, cwd: str | None = None, cursor: str | None = None, **kwargs: Any
    ) -> schema.ListSessionsResponse:
        """The conversations of the record, the latest first; with `cwd` those of that folder."""
        if cursor is not None and not (cursor.isascii() and cursor.isdigit() and len(cursor) < 10):
            raise refusal(f"{cursor!r} is not a cursor of this agent")
        if cwd is not None:
            _folder(cwd)
        offset = int(cursor or 0)
        rows = await asyncio.to_thread(
            self._db.list_sessions_rich, limit=_PAGE, offset=offset, order_by_last_active=True, cwd=cwd, automated=False
        )
        sessions = [
            schema.SessionInfo(session_id=row["id"], cwd=row["cwd"] or "/", title=row["title"] or row["preview"],
                               updated_at=_iso(row["last_active"] or row["started_at"]))
            for row in rows
        ]  # fmt: skip
        following = str(offset + _PAGE) if len(rows) == _PAGE else None
        return schema.ListSessionsResponse(sessions=sessions, next_cursor=following)

    async def close_session(self, session_id: str, **kwargs: Any) -> schema.CloseSessionResponse:
        """Close a session that the editor has finished with; it stays in the record."""
        if (known := self._sessions.pop(session_id, None)) is not None:
            if known.stop is not None:
                known.stop.want()
            await asyncio.to_thread(known.close)
        return schema.CloseSessionResponse()

    def _known(self, session_id: str) -> EditorSession:
        known = self._sessions.get(session_id)
        if known is None:
            raise refusal(f"session {session_id} is not open")
        return known

    def _modes(self, session_id: str) -> schema.SessionModeState:
        """The modes of a session that was opened; its commands are announced after the answer, which tells its id."""
        known = self._sessions[session_id]
        known.announcing = asyncio.create_task(self._send(session_id, offered()))
        return modes(known.agent)

    def _reopen(self, session_id: str, cwd: str, servers: Any) -> str:
        if (found := self._db.resolve_session_id(session_id)) is None:
            raise refusal(f"no session matches {session_id}")
        tip = self._db.get_compression_tip(found)
        self._open(session_id, tip, cwd, servers)
        return tip

    def _open(self, name: str, session_id: str, cwd: str, servers: Any) -> None:
        folder = _folder(cwd)
        if (known := self._sessions.get(name)) is not None:
            if known.stop is not None:
                raise refusal(f"a turn is under way in session {name}; wait for it or cancel it", -32600)
            self._sessions.pop(name).close()
        config = self._config
        if servers:
            config = msgspec.structs.replace(config, mcp_servers={**config.mcp_servers, **mcp_servers_of(servers)})
        toolbox = Toolbox(config)
        toolbox.start()
        chosen = None if self._keep_model else self._db.chosen_model(session_id)
        model = model_of_choice(config, chosen, self._model)
        agent = Agent(self._db, config, model, session_id=session_id, source=SOURCE, cwd=folder)
        agent.expected_tools = toolbox.known
        made = self._sessions[name] = EditorSession(
            name, agent, toolbox, Display(self._db, folder), self._db, self._config, self._model,
            say=lambda text: self._wait_for(self._send(name, acp.update_agent_message_text(f"{text}\n\n"))),
            ask=lambda question: bool(self._wait_for(self._answer(made, question))),
            show=lambda turn: self._wait_for(self._show(made, turn)),
        )  # fmt: skip

    def _wait_for(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def close(self) -> None:
        """End every session's agent."""
        for known in self._sessions.values():
            known.close()
        self._sessions.clear()

    # ------------------------------------------------------------------------------------------ talking

    async def prompt(self, session_id: str, prompt: list[Any], **kwargs: Any) -> schema.PromptResponse:
        """One turn, or a slash command: what it shows goes to the editor as it happens."""
        known = self._known(session_id)
        if known.stop is not None:
            raise refusal("a turn is under way in this session; wait for it or cancel it", -32600)
        stop, agent = Stop(), known.agent
        known.stop = stop
        try:
            content = await asyncio.to_thread(prompt_content, prompt, agent.cwd)
            line = content.strip() if isinstance(content, str) and len(prompt) == 1 else ""
            if parse(line) is not None:
                await asyncio.to_thread(run_command, known, line)
            else:
                await self._show(known, agent.turn(sent_text(line) if line else content))
            await asyncio.to_thread(known.name_it)
            return schema.PromptResponse(stop_reason="cancelled" if stop.wanted else "end_turn")
        except (Fenced, SessionNotFound):
            if await asyncio.to_thread(self._db.get_session, agent.session_id) is None:
                reason = f"session {agent.session_id} was deleted, or moved to the trash, by another process; begin a new one"
                raise refusal(reason, -32603) from None
            raise
        finally:
            known.stop = None
            await asyncio.to_thread(agent.lease.release)

    async def _show(self, known: EditorSession, turn: Turn) -> None:
        """Show a turn to the editor."""
        agent, toolbox = known.agent, known.toolbox
        if known.stop is not None:
            known.stop.bind(turn)
        if not agent.tools and agent.model.calls_tools:
            agent.tools = {tool.name: tool for tool in await asyncio.to_thread(toolbox.tools)}
            for problem in toolbox.problems:
                await self._update(known, Notice(problem))
        asking: asyncio.Task[None] | None = None
        try:
            async for event in stream_turn(agent, turn, patience=math.inf):
                if isinstance(event, PermissionRequest):
                    asking = asyncio.create_task(self._ask(known, event))
                elif isinstance(event, PermissionDecided):
                    if asking is not None:
                        asking.cancel()  # without an answer: the turn was stopped
                elif not isinstance(event, Done):
                    await self._update(known, event)
        finally:
            for update in known.display.stopped():
                await self._send(known.name, update)

    async def _update(self, known: EditorSession, event: Event) -> None:
        for update in known.display.updates(event):
            await self._send(known.name, update)

    async def cancel(self, session_id: str, **kwargs: Any) -> None:
        """Stop the turn; the reply so far is stored."""
        if (known := self._sessions.get(session_id)) is not None and known.stop is not None:
            known.stop.want()

    async def _ask(self, known: EditorSession, request: PermissionRequest) -> None:
        request.answer(await self._answer(known, request.question, request.call_id))

    async def _answer(self, known: EditorSession, question: str, call_id: str = "") -> bool | Answer:
        """Ask the editor's user."""
        if question in known.allowed:
            return True
        options = [
            schema.PermissionOption(option_id=_ALLOW, name="Allow", kind="allow_once"),
            schema.PermissionOption(option_id=_ALWAYS, name="Allow in this session", kind="allow_always"),
            schema.PermissionOption(option_id=_REJECT, name="Reject", kind="reject_once"),
        ]
        request = schema.RequestPermissionRequest(
            session_id=known.name, tool_call=known.display.question(question, call_id), options=options
        )
        try:
            reply = request_model(self._editor, "session/request_permission", request, schema.RequestPermissionResponse)
            outcome = (await reply).outcome
        except Exception as error:  # the editor is gone, or does not know how to ask: then the answer is no
            _log.warning("the editor could not ask: %s", error)
            return False
        if isinstance(outcome, schema.DeniedOutcome):  # the protocol's word for: the user stopped the turn
            await self.cancel(known.name)
            return False
        if outcome.option_id == _ALWAYS:
            known.allowed.add(question)  # this command, in this folder
        reason = str((outcome.field_meta or {}).get("reason") or "")
        return Answer(outcome.option_id in (_ALLOW, _ALWAYS), reason=reason)


# ------------------------------------------------------------------------------------------------ commands and choices


def offered() -> schema.AvailableCommandsUpdate:
    """The commands that work in an editor."""
    commands = [
        schema.AvailableCommand(name=one.name, description=one.help, input=_input(one))
        for one in registry.known(EDITOR)
    ]
    return schema.AvailableCommandsUpdate(session_update="available_commands_update", available_commands=commands)


def _input(command: Command) -> schema.AvailableCommandInput | None:
    hint = schema.UnstructuredCommandInput(hint=command.arguments)
    return schema.AvailableCommandInput(hint) if command.arguments else None


@dataclass(slots=True)
class EditorSession:
    """A session of the editor, also as a slash command sees it in its thread (see commands.registry.Host)."""

    name: str  # its id in the editor, which stays when it is compressed
    agent: Agent
    toolbox: Toolbox
    display: Display
    db: SessionDB
    config: Config
    default_model: Model
    say: Callable[[str], None]
    ask: Callable[[str], bool]
    show: Callable[[Turn], None]
    announcing: asyncio.Task[None] | None = None
    allowed: set[str] = field(default_factory=set)  # questions that the user answered with "always"
    stop: Stop | None = None  # of the prompt that is worked on
    pending_title: str | None = None
    user: User | None = None
    where = platform = EDITOR
    place = None
    is_owner = True
    stopped = False

    @property
    def model(self) -> Model:
        return self.agent.model

    @property
    def session_id(self) -> str:
        return self.agent.session_id

    def choose_model(self, name: str | None) -> None:
        self.db.choose_model(self.session_id, name or CONFIGURED)

    def choose(self, question: str, options: Sequence[str], says: Sequence[str] = ()) -> int | None:
        return None

    def switch(self, session_id: str | None, *, ending: str | None) -> None:
        raise NotImplementedError("commands that switch to another session are not offered in editors")

    def follow(self, session_id: str) -> None:
        self.agent.session_id = session_id

    def clear(self) -> None:
        """Do nothing: the editor shows the conversation."""

    def leave(self, *, ending: bool = True) -> None:
        """Do nothing: the editor closes its sessions."""

    def close(self) -> None:
        """End the agent and its tools."""
        self.agent.close()
        self.toolbox.close()

    def name_it(self) -> None:
        """Give the session the title that was chosen before it existed."""
        if self.pending_title is not None and self.db.get_session(self.session_id) is not None:
            from hermes.agent.titler import set_chosen_title

            wanted, self.pending_title = self.pending_title, None
            set_chosen_title(self.db, self.session_id, wanted, None)


# The values of terminal.approval.
_MODES = {
    "ask": ("Ask", "Asks before every command that is not known to only read."),
    "all": ("Ask always", "Asks before every command."),
    "never": ("Never ask", "Runs every command without asking."),
}


def refusal(text: str, code: int = -32602) -> acp.RequestError:
    """An error whose message an editor shows as it is; without another code, the request's own fault."""
    return acp.RequestError(code, text)


def modes(agent: Agent) -> schema.SessionModeState:
    """The modes, and the current one."""
    known = [schema.SessionMode(id=one, name=name, description=text) for one, (name, text) in _MODES.items()]
    return schema.SessionModeState(current_mode_id=agent.config.terminal.approval, available_modes=known)


# ------------------------------------------------------------------------------------------------ the program


def _folder(cwd: str) -> Path:
    if not Path(cwd).is_absolute():
        raise refusal(f"cwd must be an absolute path, not {cwd!r}")
    return Path(cwd)


def _iso(at: float) -> str | None:
    """A time in ISO 8601; None for one that no calendar has: an import may bring any."""
    try:
        return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")
    except (OverflowError, ValueError, OSError):
        return None


async def serve(db: SessionDB, config: Config, model: Model, *, keep_model: bool = False) -> None:
    """Serve one editor until it closes its end. `keep_model`: the model answers also where another one was chosen."""
    agent = EditorAgent(db, config, model, keep_model=keep_model)
    reader, writer = await acp.stdio_streams(limit=_LONGEST_LINE)
    try:
        await agent.listen(reader, writer)
    finally:
        agent.close()
