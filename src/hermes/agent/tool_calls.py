"""Running the tools of one message: side by side, each failure a result, none of them able to stop the turn."""

from __future__ import annotations

import json
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hermes.agent.tools.base import DECLINED, FAILED, STOPPED, Context, Tool, Unsuccessful
from hermes.agent.turn import ToolFinished, ToolStarted
from hermes.errors import ToolDeclined, ToolError

INTERRUPTED = "error: interrupted by the user before it had finished"
AT_ONCE = 16  # calls of one message that run side by side; the others wait their turn
_GRACE = 2.0  # seconds an interrupted tool has to come back by itself
_KINDS: dict[str, tuple[type, ...]] = {
    "string": (str,), "integer": (int,), "number": (int, float), "boolean": (bool,), "array": (list,), "object": (dict,),
}  # fmt: skip


@dataclass(slots=True)
class Call:
    """One call as the model made it."""

    id: str
    name: str
    arguments: dict[str, Any]
    problem: str | None = None  # what is wrong with the call itself


@dataclass(slots=True)
class Result:
    """What came of a call."""

    call: Call
    text: str
    ok: bool
    seconds: float
    outcome: str = ""  # how it ended, in a word or two, when it is no success


def read_call(raw: Mapping[str, Any], tools: Mapping[str, Tool]) -> Call:
    """A call from a reply, with what is wrong with it."""
    function = raw.get("function")
    function = function if isinstance(function, Mapping) else {}
    name, text = str(function.get("name") or ""), function.get("arguments")
    call = Call(str(raw.get("id") or ""), name, {})
    if name not in tools:
        call.problem = f"there is no tool called {name!r}; there are: {', '.join(sorted(tools)) or 'none'}"
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
    call.problem = _misfit(arguments, tools[name].parameters, name)
    return call


def _misfit(arguments: dict[str, Any], schema: Mapping[str, Any], name: str) -> str | None:
    """What is wrong with arguments by their schema: something missing, something of another kind."""
    missing = [key for key in schema.get("required") or () if key not in arguments]
    if missing:
        return f"{name} needs {', '.join(map(str, missing))}"
    properties = schema.get("properties")
    for key, value in arguments.items():
        described = properties.get(key) if isinstance(properties, Mapping) else None
        kind = described.get("type") if isinstance(described, Mapping) else None
        kinds = _KINDS.get(kind) if isinstance(kind, str) else None
        if kinds is None or value is None:
            continue
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            return f"{key} of {name} is of the kind {kind}, not {json.dumps(value, ensure_ascii=False)[:80]}"
    return None


def run_calls(
    calls: Sequence[Call],
    tools: Mapping[str, Tool],
    context: Context,
    store: Callable[[Result], None],
    *,
    stop: Callable[[], None] = lambda: None,
) -> Iterator[ToolStarted | ToolFinished]:
    """Run the calls side by side. `store` gets each result, in their order, as soon as it and those before exist.

    When nobody listens any more, `stop` is called, which is to make `context.cancelled()` true: no tool shall work on
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
    finally:  # also when the one who shows all this has gone: no call stays without a result
        crew.dismiss()
        for number in range(stored, len(calls)):
            late = results[number]
            store(late if late is not None else Result(calls[number], INTERRUPTED, False, 0.0))
    for number, call in enumerate(calls):
        if results[number] is None:
            yield ToolFinished(call.id, call.name, False, INTERRUPTED, 0.0, STOPPED)


class _Crew:
    """A few threads that run calls; each result comes back with the number of its call."""

    def __init__(self, tools: Mapping[str, Tool], context: Context) -> None:
        self._tools, self._context = tools, context
        self._waiting: queue.SimpleQueue[tuple[int, Call] | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[tuple[int, Result]] = queue.SimpleQueue()
        self.given = 0

    def give(self, number: int, call: Call) -> None:
        """Have a call run as soon as there is a hand free."""
        self._waiting.put((number, call))
        self.given += 1
        if self.given <= AT_ONCE:
            threading.Thread(target=self._work, name=f"hermes-tool-{call.name}", daemon=True).start()

    def done(self, count: int) -> Iterator[tuple[int, Result]]:
        """The next so many results as they come; fewer when an interruption does not bring them in a moment."""
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
        """There are no more calls."""
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
    except BaseException as error:  # a tool may do anything; the conversation goes on
        text = f"{call.name} failed: {type(error).__name__}: {error}"
    outcome = STOPPED if context.cancelled() else outcome
    return (text if text.startswith("error:") else f"error: {text}"), outcome
