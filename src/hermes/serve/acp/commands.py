"""Slash commands in an editor: the Host they work through, and the list that an editor offers to its user.

Sessions are opened, left and deleted by the editor's own means, so commands for that are not offered there. The output of a
command is shown like a reply and is no part of the record.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from acp import schema

from hermes.commands.registry import EDITOR, Command, known
from hermes.store.records.sessions import CONFIGURED

if TYPE_CHECKING:
    from hermes.agent.loop import Agent
    from hermes.agent.models.model import Model
    from hermes.agent.turn import Stop, Turn
    from hermes.config import Config
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
class EditorHost:
    """An editor's session as a slash command sees it (see commands.registry.Host); used in a thread."""

    agent: Agent
    db: SessionDB
    config: Config
    default_model: Model
    say: Callable[[str], None]
    ask: Callable[[str], bool]
    show: Callable[[Turn], None]
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

    def name_it(self) -> None:
        """Give the session the title that was chosen before it existed."""
        if self.pending_title is not None and self.db.get_session(self.session_id) is not None:
            from hermes.agent.titler import set_chosen_title

            wanted, self.pending_title = self.pending_title, None
            set_chosen_title(self.db, self.session_id, wanted, None)
