"""Runs the tool calls of one message in parallel; a failure is a result too, and none can stop the turn."""

from __future__ import annotations

import json
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hermes.agent.tools.arguments import misfit
from hermes.agent.tools.base import DECLINED, FAILED, STOPPED, Context, Tool, Unsuccessful
from hermes.agent.turn import ToolFinished, ToolStarted
from hermes.errors import ToolDeclined, ToolError

INTERRUPTED = "error: interrupted by the user before it had finished"
AT_ONCE = 16  # calls of one message that run in parallel; the others wait
_GRACE = 2.0  # seconds an interrupted tool has to return


@dataclass(slots=True)
class Call:
    """One call as the model made it."""

    id: str
    name: str
    arguments: dict[str, Any]
    problem: str | None = None  # what is wrong with the call itself


@dataclass(slots=True)
class Result:
    """The outcome of a call."""

    call: Call
    text: str
    ok: bool
    seconds: float
    outcome: str = ""  # how it ended, in a word or two, when it is no success


def read_call(raw: Mapping[str, Any], tools: Mapping[str, Tool]) -> Call:
    """A call from a reply, with its problem, if any."""
    function = raw.get("function")
    function = function if isinstance(function, Mapping) else {}
    name, text = str(function.get("name") or ""), function.get("arguments")
    call = Call(str(raw.get("id") or ""), name, {})
    if name not in tools:
        call.problem = f"there is no tool called {name!r}; available: {', '.join(sorted(tools)) or 'none'}"
        return call
    try:
        arguments = json.loads(text) if isinstance(text, str) and text.strip() else text or {}
    except ValueError as error:
        call.problem = f"the arguments of {name} are not JSON ({error})"
        return call
    if not isinstance(arguments, dict):
        call.problem = f"the arguments of {name} are an object, not {type(arguments).__name__}"
        return call
    call.arguments = arguments
    call.problem = misfit(arguments, tools[name].parameters, name)
    return call


def run_calls(
    calls: Sequence[Call],
    tools: Mapping[str, Tool],
    context: Context,
    store: Callable[[Result], None],
    *,
    stop: Callable[[], None] = lambda: None,
) -> Iterator[ToolStarted | ToolFinished]:
    """Run the calls in parallel. `store` gets each result, in their order, as soon as it and those before it exist.

    When the consumer is gone, `stop` is called, which must make `context.cancelled()` true: no tool continues
    for a turn that is over.
    """
    crew = _Crew(tools, context)
    results: list[Result | None] = [None] * len(calls)
    stored = 0
    try:
        for number, call in enumerate(calls):
            yield ToolStarted(call.id, call.name, call.arguments)
            crew.give(number, call)
        for number, result in crew.done(len(calls)):
            results[number] = result
            while stored < len(results) and (ready := results[stored]) is not None:
                store(ready)
                stored += 1
            yield ToolFinished(result.call.id, result.call.name, result.ok, result.text, result.seconds, result.outcome)
    except BaseException:
        stop()
        for number, result in crew.done(sum(result is None for result in results[: crew.given])):
            results[number] = result
        raise
    finally:  # also when the consumer is gone: no call stays without a result
        crew.dismiss()
        for number in range(stored, len(calls)):
            late = results[number]
            store(late if late is not None else Result(calls[number], INTERRUPTED, False, 0.0))
    for number, call in enumerate(calls):
        if results[number] is None:
            yield ToolFinished(call.id, call.name, False, INTERRUPTED, 0.0, STOPPED)


class _Crew:
    """A few threads that run calls; each result has the number of its call."""

    def __init__(self, tools: Mapping[str, Tool], context: Context) -> None:
        self._tools, self._context = tools, context
        self._waiting: queue.SimpleQueue[tuple[int, Call] | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[tuple[int, Result]] = queue.SimpleQueue()
        self.given = 0

    def give(self, number: int, call: Call) -> None:
        """Run a call as soon as a thread is free."""
        self._waiting.put((number, call))
        self.given += 1
        if self.given <= AT_ONCE:
            threading.Thread(target=self._work, name=f"hermes-tool-{call.name}", daemon=True).start()

    def done(self, count: int) -> Iterator[tuple[int, Result]]:
        """The next `count` results as they arrive; fewer when interrupted calls do not end soon."""
        deadline: float | None = None
        while count:
            try:
                yield self._done.get(timeout=0.05)
                count -= 1
            except queue.Empty:
                if self._context.cancelled():
                    deadline = deadline or time.monotonic() + _GRACE
                    if time.monotonic() > deadline:
                        return

    def dismiss(self) -> None:
        """Signal that there are no more calls."""
        for _ in range(min(self.given, AT_ONCE)):
            self._waiting.put(None)

    def _work(self) -> None:
        for number, call in iter(self._waiting.get, None):
            begun = time.monotonic()
            text, outcome = INTERRUPTED, STOPPED
            if not self._context.cancelled():
                text, outcome = run_one(call, self._tools, self._context)
            self._done.put((number, Result(call, text, not outcome, time.monotonic() - begun, outcome)))


def run_one(call: Call, tools: Mapping[str, Tool], context: Context) -> tuple[str, str]:
    """The text of a result, and how it ended; "" for a success."""
    if call.problem is not None:
        return f"error: {call.problem}", FAILED
    outcome = FAILED
    try:
        result = tools[call.name].run(context, call.arguments)
        return str(result), result.outcome if isinstance(result, Unsuccessful) else ""
    except ToolError as error:
        text = str(error) or f"{call.name} failed"
        outcome = DECLINED if isinstance(error, ToolDeclined) else FAILED
    except BaseException as error:  # a tool may raise anything; the conversation continues
        text = f"{call.name} failed: {type(error).__name__}: {error}"
    outcome = STOPPED if context.cancelled() else outcome
    return (text if text.startswith("error:") else f"error: {text}"), outcome
