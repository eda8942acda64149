"""What happens during a turn, told to whoever shows it (the terminal, the gateway, a server)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(slots=True, frozen=True)
class Text:
    """The next piece of the reply. `anew`: its first one after a try that broke off; the pieces of that try are void."""

    text: str
    anew: bool = False


@dataclass(slots=True, frozen=True)
class Thought:
    """The next piece of the model's reasoning, where the endpoint shows it."""

    text: str


@dataclass(slots=True, frozen=True)
class ToolStarted:
    """A tool is about to run."""

    call_id: str
    name: str
    arguments: dict[str, Any]


@dataclass(slots=True, frozen=True)
class ToolFinished:
    """A tool has run; a failure is a result as well."""

    call_id: str
    name: str
    ok: bool
    text: str
    seconds: float


@dataclass(slots=True, frozen=True)
class Notice:
    """Something the user should know, in one line."""

    text: str


@dataclass(slots=True, frozen=True)
class Restarted(Notice):
    """A notice that the reply starts over: the pieces shown so far are void."""


@dataclass(slots=True, frozen=True)
class Followed:
    """The conversation goes on in another session (it was compressed)."""

    old_session_id: str
    session_id: str


@dataclass(slots=True, frozen=True)
class Done:
    """The end of the turn, always the last event."""

    text: str
    interrupted: bool = False


Event = Text | Thought | ToolStarted | ToolFinished | Notice | Followed | Done
