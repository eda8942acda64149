"""The tool call that the current thread runs: its id, what it reports, and how long it waited for the user.

A tool gets the agent's context, which all calls of a turn share. What belongs to one call alone is kept here, in a
context variable, so that a tool several functions deep can report without passing the call along.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar


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
