"""Running the tools of one message: side by side, each failure a result, none of them able to stop the turn."""

from __future__ import annotations

import json
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hermes.agent.events import ToolFinished, ToolStarted
from hermes.agent.tools.base import Context, Tool
from hermes.errors import ToolError

INTERRUPTED = "error: interrupted by the user before it had finished"
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
    calls: Sequence[Call], tools: Mapping[str, Tool], context: Context, store: Callable[[Result], None]
) -> Iterator[ToolStarted | ToolFinished]:
    """Run all calls at once. `store` gets each result, in the order of the calls, as soon as it and those before exist."""
    done: queue.SimpleQueue[tuple[int, Result]] = queue.SimpleQueue()
    results: list[Result | None] = [None] * len(calls)
    stored = 0
    try:
        for number, call in enumerate(calls):
            yield ToolStarted(call.id, call.name, call.arguments)
            if context.cancelled():
                done.put((number, Result(call, INTERRUPTED, False, 0.0)))
            else:
                _start(number, call, tools, context, done)
        deadline: float | None = None
        while any(result is None for result in results):
            try:
                number, result = done.get(timeout=0.05)
            except queue.Empty:
                if context.cancelled():
                    deadline = deadline or time.monotonic() + _GRACE
                    if time.monotonic() > deadline:
                        break
                continue
            if results[number] is not None:
                continue
            results[number] = result
            while stored < len(results) and (ready := results[stored]) is not None:
                store(ready)
                stored += 1
            yield ToolFinished(result.call.id, result.call.name, result.ok, result.text, result.seconds)
    finally:  # also when the one who shows all this has gone: no call stays without a result
        for number in range(stored, len(calls)):
            late = results[number]
            store(late if late is not None else Result(calls[number], INTERRUPTED, False, 0.0))
    for number, call in enumerate(calls):
        if results[number] is None:
            yield ToolFinished(call.id, call.name, False, INTERRUPTED, 0.0)


def _start(
    number: int, call: Call, tools: Mapping[str, Tool], context: Context, done: queue.SimpleQueue[tuple[int, Result]]
) -> None:
    def work() -> None:
        begun = time.monotonic()
        text, ok = run_one(call, tools, context)
        done.put((number, Result(call, text, ok, time.monotonic() - begun)))

    threading.Thread(target=work, name=f"hermes-tool-{call.name}", daemon=True).start()


def run_one(call: Call, tools: Mapping[str, Tool], context: Context) -> tuple[str, bool]:
    """The text of a result, and whether it is one of success."""
    if call.problem is not None:
        return f"error: {call.problem}", False
    try:
        return str(tools[call.name].run(context, call.arguments)), True
    except ToolError as error:
        text = str(error) or f"{call.name} failed"
    except BaseException as error:  # a tool may do anything; the conversation goes on
        text = f"{call.name} failed: {type(error).__name__}: {error}"
    return (text if text.startswith("error:") else f"error: {text}"), False
