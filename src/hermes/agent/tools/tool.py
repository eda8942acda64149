"""The interface of a tool, the context it gets, and the tools of an agent.

The arguments of a tool are a msgspec Struct: what the model is told about them, and the check of what it sends. Models write
numbers and booleans as text at times, and null or nothing where they have nothing to say; where the meaning is plain, it is
taken.

All calls of a turn share the agent's `Context`. The `RunningCall` (its id, its reports, and how long it waited for the user)
is in a context variable, so that a tool several functions deep can report without passing the call along. A `Toolbox` gives
the tools that every agent has, and those of MCP servers.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

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


A = TypeVar("A", bound=msgspec.Struct)


def tool(name: str, description: str, arguments: type[A], run: Callable[[Context, A], str]) -> Tool:
    """A tool whose arguments are the fields of a Struct; those without a default are required."""
    schema = msgspec.json.schema_components([arguments])[1][arguments.__name__]
    properties = {field: _described(about) for field, about in schema["properties"].items()}
    parameters = {"type": "object", "properties": properties}
    if schema["required"]:
        parameters["required"] = schema["required"]
    return Tool(name, description, parameters, lambda context, given: run(context, read_arguments(given, arguments)))


def _described(about: dict[str, Any]) -> dict[str, Any]:
    """The schema of one argument as every endpoint takes it."""
    kind = {"type": "string"} if "enum" in about else {}
    return {**kind, **{key: value for key, value in about.items() if key != "default"}}


def read_arguments(given: Mapping[str, Any], form: type[A]) -> A:
    """The arguments of a call; ToolError when one is missing or of another kind."""
    said = {}
    for one in msgspec.structs.fields(form):
        optional = not one.required and one.default is not msgspec.UNSET
        value = given.get(one.name)
        if value is not None and not (optional and value == ""):
            said[one.name] = value
    try:
        return msgspec.convert(said, form, strict=False)
    except msgspec.ValidationError as error:
        raise ToolError(f"wrong arguments: {error}") from error


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
    """session_search, skills, terminal, process, files, cron; memory unless the configuration turns it off."""
    from hermes.agent.session_search import session_search
    from hermes.agent.tools.files import FILE_TOOLS
    from hermes.agent.tools.memory import memory, skills
    from hermes.agent.tools.scheduling import cron
    from hermes.agent.tools.terminal import process, terminal

    remembering = [memory] if config.memory.enabled else []
    return [session_search, *remembering, skills, terminal, process, *FILE_TOOLS, cron]


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
