"""The interface of a tool, the context it gets, and the tools of an agent.

Arguments are checked where the tool reads them. Models write numbers and booleans as text at times; where the meaning is
plain, a tool takes them.

All calls of a turn share the agent's `Context`. The `RunningCall` (its id, its reports, and how long it waited for the user)
is in a context variable, so that a tool several functions deep can report without passing the call along. A `Toolbox` gives
the tools that every agent has, and those of MCP servers.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hermes.errors import HermesError, ToolError

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
    """The JSON Schema of a tool's arguments: a string describes a text argument, any other argument has its own schema."""
    properties = {
        name: {"type": "string", "description": about} if isinstance(about, str) else about
        for name, about in described.items()
    }
    made = {"type": "object", "properties": properties}
    return {**made, "required": list(required)} if required else made


def argument(kind: str, description: str | None = None, **more: Any) -> dict[str, Any]:
    """The schema of one argument: "integer", "number", "boolean", or a "string" that is one of a few words (`enum`)."""
    return {"type": kind, **({"description": description} if description else {}), **more}


@dataclass(slots=True, frozen=True)
class Tool:
    """A tool that the model can call. `run` returns the text of the result; ToolError (errors.py) is a failed result.

    A `Reported` text is the result of something that ran, unchanged; its outcome says whether it succeeded.
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
        with suppress(ValueError):
            value = float(value)
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
    """Show the user the last output of the running call; does nothing if no call runs."""
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


def builtin_tools(config: Config) -> list[Tool]:
    """session_search, skills, terminal, process, files, cron, delegate; memory unless the configuration turns it off."""
    from hermes.agent.session_search import session_search
    from hermes.agent.tools.delegation import cron, delegate
    from hermes.agent.tools.files import FILE_TOOLS
    from hermes.agent.tools.memory import memory, skills
    from hermes.agent.tools.terminal import process, terminal

    return [
        session_search,
        *([memory] if config.memory.enabled else []),
        skills,
        terminal,
        process,
        *FILE_TOOLS,
        cron,
        delegate,
    ]


FOR_EVERYONE = frozenset(("session_search", "memory", "skills"))


class Toolbox:
    """Gives the tools. The servers are connected on the first call, or in the background from `start` on."""

    def __init__(self, config: Config) -> None:
        self.problems: list[str] = []  # servers that could not be reached, and why
        self._config = config
        self._mcp: Any = None
        self._lock = threading.Lock()
        self._tried = not config.mcp_servers

    def start(self) -> None:
        """Begin to connect to the servers, without waiting for them."""
        if not self._tried:
            threading.Thread(target=self._reach, name="hermes-mcp", daemon=True).start()

    def _reach(self) -> None:
        with self._lock:
            if self._tried:
                return
            self._tried = True
            from hermes.agent.tools.mcp_client import connect

            try:
                self._mcp = connect(self._config)
                self.problems = list(self._mcp.problems)
            except HermesError as error:
                self.problems = [str(error)]

    def tools(self, *, owner: bool = True) -> list[Tool]:
        """All tools, once the servers answered or failed; for users other than the owner those without machine access."""
        self._reach()
        return [tool for tool in self.known() if owner or tool.name in FOR_EVERYONE]

    def known(self) -> list[Tool]:
        """The owner's tools known so far, without those of servers that have not answered yet."""
        return [*builtin_tools(self._config), *(self._mcp.tools if self._mcp is not None else [])]

    def close(self) -> None:
        """End the servers; those that are still starting notice the end of the program themselves."""
        if self._lock.acquire(timeout=2):
            self._lock.release()
        if self._mcp is not None:
            self._mcp.close()
