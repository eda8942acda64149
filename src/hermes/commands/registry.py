"""Slash commands: one list for the terminal, the gateway and editors.

A line that begins with a slash and a word is a command; `//` sends a text that begins with a slash, and so does a first
word with a second slash in it (a path). A command does its work through a Host: the terminal, the gateway or an editor.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from hermes.errors import HermesError

if TYPE_CHECKING:
    from hermes.agent.loop import Agent
    from hermes.agent.models.model import Model
    from hermes.agent.turn import Stop, Turn
    from hermes.config import Config
    from hermes.store.api.session_db import SessionDB
    from hermes.store.records.visibility import User

TERMINAL = "cli"
GATEWAY = "gateway"
EDITOR = "acp"
EVERYWHERE = frozenset({TERMINAL, GATEWAY, EDITOR})
NOT_IN_EDITORS = frozenset({TERMINAL, GATEWAY})  # an editor has its own list of sessions, and opens them itself
TERMINAL_ONLY, CHATS_ONLY = frozenset({TERMINAL}), frozenset({GATEWAY})
_ORDER = (
    "new clear title resume sessions search why recall branch undo retry compress handoff sethome model context history show"
    " reasoning status usage allowed tag pin stop queue quit help"
).split()
_COMMAND = re.compile(r"/([^\s/]*)(?:\s+(.*))?", re.DOTALL)


class Host(Protocol):
    """The place where a command was typed, and what it may do there."""

    where: str  # TERMINAL, GATEWAY or EDITOR
    platform: str  # the source of the sessions made here: "cli", "telegram", …
    config: Config
    db: SessionDB
    pending_title: str | None  # a title given before the first message
    stop: Stop | None  # stops the command's work, where the user can do that meanwhile

    @property
    def user(self) -> User | None:
        """The user whose sessions may be seen; None: the owner, who sees all."""

    @property
    def is_owner(self) -> bool:
        """Whether the user owns this machine."""

    @property
    def agent(self) -> Agent:
        """The agent of this conversation."""

    @property
    def stopped(self) -> bool:
        """Whether typing the command has stopped a reply (in the terminal, Ctrl-C stops it)."""

    @property
    def place(self) -> str | None:
        """This chat, as the store stores it; None in the terminal."""

    @property
    def model(self) -> Model:
        """The model that answers here."""

    @property
    def default_model(self) -> Model:
        """The model that answers where none was chosen."""

    def choose_model(self, name: str | None) -> None:
        """Keep the choice of a model with this conversation, also before its first message; None: the configured one."""

    @property
    def session_id(self) -> str:
        """The current session; its row exists from the first message on."""

    def say(self, text: str) -> None:
        """Show the user a text."""

    def ask(self, question: str) -> bool:
        """Ask yes or no; no when the user can't be asked."""

    def choose(self, question: str, options: Sequence[str], says: Sequence[str] = ()) -> int | None:
        """Let the user choose one of these; None for none, or where a list can only be shown.

        `says` has the line that chooses each option, for places with buttons.
        """

    def show(self, turn: Turn) -> None:
        """Show a turn as it happens."""

    def switch(self, session_id: str | None, *, ending: str | None) -> None:
        """Switch to another session (None: a new one). `ending` is the end reason of the current one; None: it does not end."""

    def follow(self, session_id: str) -> None:
        """Continue the same conversation in another session: it was compressed."""

    def clear(self) -> None:
        """Clear the screen, where there is one."""

    def leave(self, *, ending: bool = True) -> None:
        """The user leaves; unless `ending`, the session continues elsewhere."""


@dataclass(slots=True, frozen=True)
class Command:
    """A slash command. `complete` offers its arguments. One without a `help` works and is not listed."""

    name: str
    arguments: str
    help: str
    where: frozenset[str]
    run: Callable[[Host, str], None]
    complete: Callable[[Host], Sequence[str]] | None = None


REGISTRY: dict[str, Command] = {}
# Names that people type from habit: those of other programs, and shorter ones.
ALIASES = {
    "exit": "quit", "q": "quit", "bye": "quit", "?": "help", "reset": "new", "h": "help", "commands": "help", "cost": "usage",
    "tokens": "context", "models": "model", "compact": "compress", "summarize": "compress", "fork": "branch",
    "rewind": "undo", "rename": "title", "continue": "resume", "load": "resume", "ls": "sessions", "list": "sessions",
    "find": "search", "info": "status", "regenerate": "retry", "log": "history", "output": "show", "permissions": "allowed",
}  # fmt: skip


def command(
    name: str,
    arguments: str,
    help: str,
    where: frozenset[str] = EVERYWHERE,
    *,
    complete: Callable[[Host], Sequence[str]] | None = None,
) -> Callable[[Callable[[Host, str], None]], Callable[[Host, str], None]]:
    """Put a function into the registry."""

    def register(run: Callable[[Host, str], None]) -> Callable[[Host, str], None]:
        REGISTRY[name] = Command(name, arguments, help, where, run, complete)
        return run

    return register


def load() -> dict[str, Command]:
    """The registry, filled."""
    from hermes.commands import chat_commands, info_commands, model_commands, session_commands  # noqa: F401 - they register

    return REGISTRY


def known(where: str) -> list[Command]:
    """The commands that work there, in the order of help: beginning, finding, changing, showing, leaving."""
    place = {name: number for number, name in enumerate(_ORDER)}
    here = [one for one in load().values() if where in one.where and one.help]
    return sorted(here, key=lambda one: place.get(one.name, len(place)))


def is_known(name: str, where: str) -> bool:
    """Whether a command of this name (or alias) works there."""
    found = load().get(ALIASES.get(name, name))
    return found is not None and where in found.where


def parse(line: str) -> tuple[str, str] | None:
    """(name, arguments) of a command; None for a text to send."""
    if line.startswith("//"):
        return None
    match = _COMMAND.fullmatch(line)
    return None if match is None else (match[1].casefold(), (match[2] or "").strip())


def sent_text(line: str) -> str:
    """The text of a line that is not a command: `//x` is the text `/x`."""
    return line[1:] if line.startswith("//") else line


def run_command(host: Host, line: str) -> bool:
    """Run the command in a line; False when it is none, but a text to send (see sent_text)."""
    parsed = parse(line)
    if parsed is None:
        return False
    name, arguments = parsed
    found = load().get(ALIASES.get(name, name))
    if found is None:
        host.say(_unknown(name, host.where))
    elif host.where not in found.where:
        host.say(f"/{found.name} does not work here; it works in {_places(found.where)}.")
    else:
        try:
            found.run(host, arguments)
        except HermesError as error:  # a failed command prints a line and does not end the conversation
            host.say(f"/{found.name}: {error}")
    return True


def _unknown(name: str, where: str) -> str:
    from difflib import get_close_matches

    names = [one.name for one in known(where)]
    close = get_close_matches(name, names, n=1, cutoff=0.5) or [one for one in names if name and one.startswith(name)]
    hint = f"did you mean /{close[0]}?" if close else "/help lists them."
    return f"There is no command /{name}; {hint} To send text that begins with a slash, type //{name}."


def _places(where: frozenset[str]) -> str:
    return " and ".join(
        {TERMINAL: "the terminal", GATEWAY: "chat apps", EDITOR: "editors"}[place] for place in sorted(where)
    )
