"""Slash commands in an editor, and the choices of its user: the model, and how often the agent asks before commands.

Sessions are opened, left and deleted by the editor's own means, so commands for that are not offered there. The output of a
command is shown like a reply and is no part of the record.

Model and mode are configuration options; the mode is also offered as a mode, for editors that know only modes. The model is
stored with the session, as /model does; the mode is for one session of the editor and ends with the process. `config.yaml`
has the defaults.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import acp
import msgspec
from acp import schema

from hermes.commands.registry import EDITOR, Command, known
from hermes.store.records.sessions import CONFIGURED

if TYPE_CHECKING:
    from hermes.agent.loop import Agent
    from hermes.agent.models.model import Model
    from hermes.agent.tools.tool import Toolbox
    from hermes.agent.turn import Stop, Turn
    from hermes.config import Config
    from hermes.serve.acp.messages import Display
    from hermes.serve.models import Models
    from hermes.store.api.session_db import SessionDB
    from hermes.store.records.visibility import User


def offered() -> schema.AvailableCommandsUpdate:
    """The commands that work in an editor."""
    commands = [
        schema.AvailableCommand(name=one.name, description=one.help, input=_input(one)) for one in known(EDITOR)
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


MODEL, MODE = "model", "mode"
# The values of terminal.approval.
_MODES = {
    "ask": ("Ask", "Asks before every command that is not known to only read."),
    "all": ("Ask always", "Asks before every command."),
    "never": ("Never ask", "Runs every command without asking."),
}
_MOST = 200  # models in the list; some endpoints have thousands


def refusal(text: str, code: int = -32602) -> acp.RequestError:
    """An error whose message an editor shows as it is; without another code, the request's own fault."""
    return acp.RequestError(code, text)


def modes(agent: Agent) -> schema.SessionModeState:
    """The modes, and the current one."""
    known = [schema.SessionMode(id=one, name=name, description=text) for one, (name, text) in _MODES.items()]
    return schema.SessionModeState(current_mode_id=agent.config.terminal.approval, available_modes=known)


async def options(
    agent: Agent, models: Models
) -> list[schema.SessionConfigOptionSelect | schema.SessionConfigOptionBoolean]:
    """The options of a session, each with its current value."""
    names = (await models.names())[:_MOST]
    return [
        schema.SessionConfigOptionSelect(
            type="select", id=MODEL, name="Model", category="model", current_value=agent.model.name,
            options=[schema.SessionConfigSelectOption(value=name, name=name)
                     for name in dict.fromkeys([*names, agent.model.name])],
        ),
        schema.SessionConfigOptionSelect(
            type="select", id=MODE, name="Commands", category="mode", current_value=agent.config.terminal.approval,
            options=[schema.SessionConfigSelectOption(value=one, name=name, description=text)
                     for one, (name, text) in _MODES.items()],
        ),
    ]  # fmt: skip


def choose_mode(agent: Agent, mode: str) -> None:
    """Set the mode from the next command on, also in a turn that runs."""
    if mode not in _MODES:
        raise refusal(f"no mode {mode!r}; there are {', '.join(_MODES)}")
    terminal = msgspec.structs.replace(agent.config.terminal, approval=mode)
    agent.config = agent.context.config = msgspec.structs.replace(agent.config, terminal=terminal)


async def choose_model(agent: Agent, models: Models, name: str) -> None:
    """Set the model from the next turn on; it is stored with the session, for every entry point."""
    model = await models.find(name)
    if model is None:
        reason = f"no model {name!r}; the option {MODEL!r} lists those that can be chosen"
        raise refusal(reason)
    choice = CONFIGURED if model is models.main else name
    await asyncio.to_thread(agent.db.choose_model, agent.session_id, choice)
    agent.model = model
