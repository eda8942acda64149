"""An agent some of whose tools are the caller's: such a call ends the turn, and the caller brings its result later.

The agent's own tools run here as always. A reply that calls one of the caller's is stored with its calls, those of our
own tools are run, and the turn is over; `handed` has what the caller is to do. Its results go into the record like any
others, and `go_on` takes the conversation up from there.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from hermes.agent.events import Done, Event
from hermes.agent.loop import Agent
from hermes.agent.model import Reply
from hermes.agent.tools.base import Context, Tool
from hermes.agent.turn import Events, Turn
from hermes.errors import ToolError


class ServedAgent(Agent):
    """Talks in one session for callers over HTTP."""

    _callers: frozenset[str] = frozenset()
    handed: list[dict[str, Any]] = []  # the calls that the last turn left to the caller, as the model made them

    def equip(self, own: Iterable[Tool], callers: Iterable[Tool]) -> None:
        """The tools of the next turn. A tool of the caller's takes the place of one of ours with the same name."""
        theirs = {tool.name: tool for tool in callers}
        self._callers = frozenset(theirs)
        self.tools = {**{tool.name: tool for tool in own}, **theirs}

    def _begin(self, events: Callable[[threading.Event], Events]) -> Turn:
        return super()._begin(lambda cancel: self._until_handed(events(cancel), cancel))

    def _until_handed(self, events: Events, cancel: threading.Event) -> Events:
        self.handed = []
        try:
            yield from events
        except _Handed as handed:
            yield Done(handed.text, interrupted=cancel.is_set())

    def _run_tools(self, reply: Reply) -> Iterator[Event]:
        theirs = [call for call in reply.tool_calls if _name(call) in self._callers]
        own = [call for call in reply.tool_calls if _name(call) not in self._callers]
        if own:
            yield from super()._run_tools(replace(reply, tool_calls=own))
        if theirs:
            self.handed = theirs
            raise _Handed(reply.content or "")


class _Handed(Exception):
    """The rest is the caller's."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text


def callers_tool(name: str, description: str, parameters: Mapping[str, Any]) -> Tool:
    """A tool that the caller runs."""
    return Tool(name, description, dict(parameters), _elsewhere)


def _elsewhere(context: Context, arguments: dict[str, Any]) -> str:
    raise ToolError("this tool is run by the caller")


def _name(call: Mapping[str, Any]) -> str:
    function = call.get("function")
    return str(function.get("name") or "") if isinstance(function, Mapping) else ""
