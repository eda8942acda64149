"""Choices of an editor's user for a session: the model that answers, and how often the agent asks before commands.

Both are offered as configuration options; the second is also a mode, for editors that only know modes. The model is kept
with the session, as /model does; the mode is for one session of the editor and ends with the process. `config.yaml` has
the defaults.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import acp
import msgspec
from acp import schema

from hermes.store.records.sessions import CONFIGURED

if TYPE_CHECKING:
    from hermes.agent.loop import Agent
    from hermes.serve.models import Models

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
    """Everything that can be chosen, with its current value."""
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
    """From the next command on, also in a turn that runs."""
    if mode not in _MODES:
        raise refusal(f"no mode {mode!r}; there are {', '.join(_MODES)}")
    terminal = msgspec.structs.replace(agent.config.terminal, approval=mode)
    agent.config = agent.context.config = msgspec.structs.replace(agent.config, terminal=terminal)


async def choose_model(agent: Agent, models: Models, name: str) -> None:
    """From the next turn on; kept with the session, for every entry point."""
    model = await models.find(name)
    if model is None:
        reason = f"no model {name!r}; the option {MODEL!r} lists those that can be chosen"
        raise refusal(reason)
    choice = CONFIGURED if model is models.main else name
    await asyncio.to_thread(agent.db.choose_model, agent.session_id, choice)
    agent.model = model
