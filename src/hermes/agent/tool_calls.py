"""Runs the tool calls of one message in parallel; a failure is a result as well and never stops the turn."""

from __future__ import annotations

import json
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from hermes.agent.tools.tool import DECLINED, FAILED, STOPPED, Context, Reported, Tool, running_call
from hermes.agent.turn import ToolFinished, ToolProgress, ToolStarted
from hermes.errors import ToolDeclined, ToolError

INTERRUPTED = "error: interrupted by the user before it had finished"
OUTCOME = "outcome"  # the key in a stored result's `meta`: how the call ended, when it was no success
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
    shown: str = ""  # what a screen shows of it

    def event(self) -> ToolFinished:
        """The event that reports it."""
        return ToolFinished(
            self.call.id, self.call.name, self.ok, self.text, self.seconds, self.outcome, shown=self.shown
        )


def read_call(raw: Mapping[str, Any], tools: Mapping[str, Tool]) -> Call:
    """A call from a reply, with its problem, if any."""
    function = raw.get("function")
    function = function if isinstance(function, Mapping) else {}
    name, text = str(function.get("name") or ""), function.get("arguments")
    call = Call(str(raw.get("id") or ""), name, {})
    try:
        arguments = json.loads(text) if isinstance(text, str) and text.strip() else text or {}
    except ValueError as error:
        call.problem = f"the arguments of {name} are not JSON ({error})"
    else:
        if isinstance(arguments, dict):
            call.arguments = arguments
        else:
            call.problem = f"the arguments of {name} are an object, not {type(arguments).__name__}"
    if name not in tools:
        call.problem = f"there is no tool called {name!r}; available: {', '.join(sorted(tools)) or 'none'}"
    return call


def succeeded(row: Mapping[str, Any]) -> bool:
    """Whether a stored result is of a call that succeeded; judged by its text if the row has no outcome."""
    meta, text = row.get("meta") or {}, row.get("content")
    return not (meta.get(OUTCOME) or meta.get("failed") or (isinstance(text, str) and text.startswith("error: ")))


def run_calls(
    calls: Sequence[Call],
    tools: Mapping[str, Tool],
    context: Context,
    store: Callable[[Result], None],
    *,
    stop: Callable[[], None] = lambda: None,
) -> Iterator[ToolStarted | ToolProgress | ToolFinished]:
    """Run the calls in parallel. `store` gets each result, in their order, as soon as it and those before it exist.

    When the consumer is gone, `stop` is called, which must make `context.cancelled()` true: no tool continues
    for a turn that is over.
    """
    crew = _Crew(tools, context)
    results: list[Result | None] = [None] * len(calls)
    stored = started = 0
    try:
        for number, call in enumerate(calls):
            yield ToolStarted(call.id, call.name, call.arguments)
            started += 1  # before it begins: an interrupt at this moment waits for it
            threading.Thread(target=crew.run, args=(number, call), name=f"hermes-tool-{call.name}", daemon=True).start()
        for number, result in crew.done(len(calls)):
            if isinstance(result, str):
                yield ToolProgress(calls[number].id, result)
                continue
            results[number] = result
            while stored < len(results) and (ready := results[stored]) is not None:
                store(ready)
                stored += 1
            yield result.event()
    except BaseException:
        stop()
        for number, result in crew.done(sum(result is None for result in results[:started])):
            if isinstance(result, Result):
                results[number] = result
        raise
    finally:  # also when the consumer is gone: no call stays without a result
        crew.over.set()
        for number in range(stored, len(calls)):
            late = results[number]
            store(late if late is not None else Result(calls[number], INTERRUPTED, False, 0.0))
    for number, call in enumerate(calls):
        if results[number] is None:
            yield ToolFinished(call.id, call.name, False, INTERRUPTED, 0.0, STOPPED)


class _Crew:
    """The calls of one message while they run, each in a thread of its own; each result has the number of its call."""

    def __init__(self, tools: Mapping[str, Tool], context: Context) -> None:
        self._tools, self._context = tools, context
        self._places = threading.Semaphore(AT_ONCE)
        self._done: queue.SimpleQueue[tuple[int, Result | str]] = queue.SimpleQueue()
        self.over = threading.Event()  # no further call may begin

    def done(self, count: int) -> Iterator[tuple[int, Result | str]]:
        """The next `count` results as they arrive, and between them, as texts, what running calls print.

        Fewer when interrupted calls do not end soon.
        """
        deadline: float | None = None
        while count:
            try:
                number, result = self._done.get(timeout=0.05)
                count -= isinstance(result, Result)
                yield number, result
            except queue.Empty:
                if self._context.cancelled():
                    deadline = deadline or time.monotonic() + _GRACE
                    if time.monotonic() > deadline:
                        return

    def run(self, number: int, call: Call) -> None:
        """Run a call as soon as there is a place for it."""
        with self._places:
            begun = time.monotonic()
            result = Reported(INTERRUPTED, outcome=STOPPED)
            waited = 0.0
            if not (self.over.is_set() or self._context.cancelled()):
                with running_call(partial(self._report, number), call.id) as running:
                    result = run_one(call, self._tools, self._context)
                waited = running.waited
            seconds = max(0.0, time.monotonic() - begun - waited)
        made = Result(call, str(result), not result.outcome, seconds, result.outcome, result.shown)
        self._done.put((number, made))

    def _report(self, number: int, text: str) -> None:
        self._done.put((number, text))


def run_one(call: Call, tools: Mapping[str, Tool], context: Context) -> Reported:
    """Run a call; returns the text of its result and its outcome, "" for a success."""
    if call.problem is not None:
        return Reported(f"error: {call.problem}", outcome=FAILED, shown=call.problem)
    outcome = FAILED
    try:
        result = tools[call.name].run(context, call.arguments)
        return result if isinstance(result, Reported) else Reported(result)
    except ToolError as error:
        text = str(error) or f"{call.name} failed"
        outcome = DECLINED if isinstance(error, ToolDeclined) else FAILED
    except BaseException as error:  # a tool may raise anything; the conversation continues
        text = f"{call.name} failed: {type(error).__name__}: {error}"
    outcome = STOPPED if context.cancelled() else outcome
    why = text.removeprefix("error:").strip() if outcome == FAILED else ""
    return Reported(text if text.startswith("error:") else f"error: {text}", outcome=outcome, shown=why)
