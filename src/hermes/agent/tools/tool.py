"""The interface of a tool, and the context it gets.

Arguments are checked where the tool reads them. Models write numbers and booleans as text at times; where the meaning is
plain, a tool takes them.

The running call has an id, what it reports, and how long it waited for the user. A tool gets the agent's context, which all
calls of a turn share. What belongs to one call alone is kept here, in a context variable, so that a tool several functions
deep can report without passing the call along.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hermes.errors import ToolError

if TYPE_CHECKING:
    from hermes.agent.tools.permission import Answer
    from hermes.config import Config
    from hermes.store.api.session_db import SessionDB
    from hermes.store.records.visibility import User


STOPPED, DECLINED, TIMED_OUT, FAILED = "stopped", "declined", "timed out", "failed"


@dataclass(slots=True)
class Context:
    """The context that a tool gets besides its arguments."""

    db: SessionDB
    config: Config
    session_id: str
    home: Path
    cwd: Path
    confirm: Callable[[str], bool | Answer]  # asks the user about one thing, in one line; False means no
    cancelled: Callable[[], bool]
    user: User | None = None  # the user whose sessions may be seen; None: the owner, who sees all
    root: Path | None = None  # the folder the conversation began in, where files are free; None: nowhere
    state: dict[str, Any] = field(default_factory=dict)  # lives as long as the agent: background processes


class Reported(str):
    """The text of a result for the model, with what the user's screen shows of it.

    `outcome` says in a word or two how a call ended that was no success; `shown` is a program's output, or a diff.
    """

    __slots__ = ("outcome", "shown")
    outcome: str
    shown: str

    def __new__(cls, text: str, *, outcome: str = "", shown: str = "") -> Reported:
        made = super().__new__(cls, text)
        made.outcome, made.shown = outcome, shown
        return made


def parameters(*required: str, **described: str | dict[str, Any]) -> dict[str, Any]:
    """The JSON Schema of a tool's arguments: a text describes one that is a text, anything else has a schema of its own."""
    properties = {
        name: {"type": "string", "description": about} if isinstance(about, str) else about
        for name, about in described.items()
    }
    made = {"type": "object", "properties": properties}
    return {**made, "required": list(required)} if required else made


def argument(kind: str, description: str | None = None, **more: Any) -> dict[str, Any]:
    """The schema of one argument: "integer", "number" or "boolean"; a text, if it is one of a few words (`enum`)."""
    return {"type": kind, **({"description": description} if description else {}), **more}


@dataclass(slots=True, frozen=True)
class Tool:
    """A tool that the model can call. `run` returns the text of the result; ToolError (errors.py) is a failed result.

    A `Reported` text is a result the model gets as it is, of something that ran; its outcome says whether it succeeded.
    """

    name: str
    description: str
    parameters: dict[str, Any]  # JSON Schema of the arguments
    run: Callable[[Context, dict[str, Any]], str]

    def schema(self) -> dict[str, Any]:
        """The tool's declaration for the endpoint."""
        return {
            "type": "function",
            "function": {"name": self.name, "description": self.description, "parameters": self.parameters},
        }


def text_argument(arguments: dict[str, Any], name: str, default: str | None = None, *, empty: bool = False) -> str:
    """A text argument; without a default it is required, and must not be empty unless `empty` is set."""
    value = arguments.get(name)
    if value is None:
        value = default
    empty = empty or default is not None
    if not isinstance(value, str) or not (empty or value.strip()):
        raise ToolError(f"{name} must be a text" + ("" if empty else " that is not empty"))
    return value


def choice_argument(arguments: dict[str, Any], name: str, allowed: Sequence[str], default: str | None = None) -> str:
    """An argument that is one of a few words."""
    value = arguments.get(name, default)
    if value not in allowed:
        raise ToolError(f"{name} must be one of {', '.join(allowed)}, not {value!r}")
    return str(value)


def number_argument(arguments: dict[str, Any], name: str, default: float, low: float, high: float) -> float:
    """A number argument, clamped to its bounds."""
    value = arguments.get(name)
    if value is None:
        return default
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            pass
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        raise ToolError(f"{name} must be a number")
    return float(min(max(value, low), high))


def flag_argument(arguments: dict[str, Any], name: str) -> bool:
    """A boolean argument; False by default."""
    value = arguments.get(name, False)
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    if value is not None and not isinstance(value, bool):
        raise ToolError(f"{name} must be true or false")
    return bool(value)


class RunningCall:
    """One call while it runs. `waited` is the time it spent on questions to the user, in seconds."""

    def __init__(self, tell: Callable[[str], None], call_id: str) -> None:
        self.tell, self.id = tell, call_id
        self.waited = 0.0


_current: ContextVar[RunningCall | None] = ContextVar("hermes_running_call", default=None)


@contextmanager
def running_call(tell: Callable[[str], None], call_id: str) -> Iterator[RunningCall]:
    """In this block, this thread runs a call whose reports go to `tell`."""
    call = RunningCall(tell, call_id)
    token = _current.set(call)
    try:
        yield call
    finally:
        _current.reset(token)


def current_id() -> str:
    """The id of the running call; "" where no call runs."""
    call = _current.get()
    return call.id if call is not None else ""


def report(text: str) -> None:
    """Show the user what the running call has printed last; nothing where no call runs."""
    call = _current.get()
    if call is not None:
        call.tell(text)


@contextmanager
def waiting_for_user() -> Iterator[None]:
    """In this block the call waits for the user; that time is not part of its duration."""
    begun = time.monotonic()
    try:
        yield
    finally:
        call = _current.get()
        if call is not None:
            call.waited += time.monotonic() - begun
