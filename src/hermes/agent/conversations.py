"""The conversations of one process: the agent of each, cached for the next turn, and a queue of callers.

A conversation has a name that outlives its sessions: the key of a chat, the first session of a chain. Its agent holds the
session's lease, its background processes and its open tools; it is replaced when the conversation moves to another
session, and closed after a long idle time or when too many others were used since. Callers of one
conversation take turns, in the order they came (`enter` or `queue`, then `leave`).
"""

from __future__ import annotations

import math
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from concurrent.futures import Future

    from hermes.agent.loop import Agent
    from hermes.store.api.session_db import SessionDB


KEPT = 256  # agents cached between turns
A = TypeVar("A", bound="Agent")


@dataclass(slots=True, eq=False)
class _AgentSlot(Generic[A]):
    name: str
    agent: A | None = None
    queue: deque[Future[None]] = field(default_factory=deque)  # the first has the conversation; the others wait
    used_at: float = 0.0  # by the monotonic clock

    def users(self) -> int:
        """How many callers have the conversation or wait for it."""
        return sum(not ticket.cancelled() for ticket in self.queue)

    def is_idle(self) -> bool:
        """Whether its agent can be closed: it runs no turn and has no background processes."""
        agent = self.agent
        return not self.queue and agent is not None and not agent.busy and not agent.background_running()


class Conversations(Generic[A]):
    """Agents by the name of their conversation. From any thread."""

    def __init__(self, *, kept: int = KEPT, idle_seconds: float = math.inf, patience: float = 0.0) -> None:
        """When one is taken, those that were unused for `idle_seconds` are closed, and the longest unused of more than `kept`.

        `patience` is how long closing one waits for its title; a process that keeps running need not wait.
        """
        self._kept, self._idle_seconds, self._patience = kept, idle_seconds, patience
        self._changed = threading.Condition()
        self._all: dict[str, _AgentSlot[A]] = {}  # the longest unused first
        self._closed = False

    # ------------------------------------------------------------------------------------------ order

    def queue(self, name: str) -> Future[None]:
        """Queue for a conversation; the future is done when the caller has it, until `leave`. Cancelling it leaves the queue.

        (A caller that can't cancel it has the conversation, and calls `leave`.)
        """
        from concurrent.futures import Future

        ticket: Future[None] = Future()
        with self._changed:
            slot = self._all.setdefault(name, _AgentSlot(name))
            slot.queue.append(ticket)
            if slot.queue[0] is ticket:
                ticket.set_result(None)
        return ticket

    async def enter(self, name: str) -> None:
        """Wait in the queue, on an event loop, until the caller has the conversation: until `leave`."""
        import asyncio

        ticket = self.queue(name)
        try:
            await asyncio.wrap_future(ticket)
        except BaseException:
            if not ticket.cancel():  # it was assigned at this very moment
                self.leave(name)
            raise

    def leave(self, name: str) -> None:
        """Pass the conversation to the next caller in the queue. From any thread."""
        with self._changed:
            slot = self._all[name]
            slot.queue.popleft()
            slot.used_at = time.monotonic()
            while slot.queue and not slot.queue[0].set_running_or_notify_cancel():
                slot.queue.popleft()
            following = slot.queue[0] if slot.queue else None
            if following is None and slot.agent is None:
                del self._all[name]
            if self._closed:
                self._changed.notify_all()
        if following is not None:
            following.set_result(None)

    def users(self, name: str | None = None) -> int:
        """How many callers have this conversation or wait for it; without a name: any conversation."""
        with self._changed:
            slots = self._all.values() if name is None else [self._all[name]] if name in self._all else []
            return sum(slot.users() for slot in slots)

    # ------------------------------------------------------------------------------------------ agents

    def get(self, name: str) -> A | None:
        """The agent of a conversation, if one is cached."""
        with self._changed:
            return self._all[name].agent if name in self._all else None

    def take(self, name: str, session_id: str | None, make: Callable[[], A]) -> A:
        """The agent of a conversation, created if there is none; an agent of another session is replaced."""
        with self._changed:
            one = self._all.pop(name, None) or _AgentSlot(name)
            self._all[name] = one  # as the newest
            agent = one.agent
            if agent is not None and session_id is not None and agent.session_id != session_id:
                one.agent = None
        if agent is not None and one.agent is None:
            agent.close(patience=self._patience)
            agent = None
        if agent is None:
            agent = make()
        with self._changed:
            one.agent, one.used_at = agent, time.monotonic()
            self._all[name] = one
        self._close_unused()
        return agent

    def drop(self, name: str) -> None:
        """Close a conversation's agent and its background processes."""
        with self._changed:
            one = self._all.get(name)
            agent = None if one is None else one.agent
            if one is not None:
                one.agent = None
                if not one.queue:
                    del self._all[name]
        if agent is not None:
            agent.close(patience=self._patience)

    def _close_unused(self) -> None:
        """Close agents that were idle for long, and the longest unused of too many. Callers that queue meanwhile wait."""
        with self._changed:
            over, now = len(self._all) - self._kept, time.monotonic()
            idle = [one for one in self._all.values() if one.is_idle()]
            gone = [
                (one, one.agent) for at, one in enumerate(idle) if at < over or one.used_at + self._idle_seconds <= now
            ]
            for one, _ in gone:
                one.agent = None
                self.queue(one.name)
        for one, agent in gone:
            if agent is not None:
                with suppress(Exception):  # a closed store: its lease expires
                    agent.close(patience=0)
            self.leave(one.name)

    def close(self, seconds: float = 5.0) -> None:
        """Wait up to this time until no conversation is in use, then close the unused agents, in as much time."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: not any(one.queue for one in self._all.values()), seconds)
            end = time.monotonic() + seconds
            idle = [one for one in self._all.values() if not one.queue]
            agents = [one.agent for one in idle if one.agent is not None]
            for one in idle:
                del self._all[one.name]
        for agent in agents:
            with suppress(Exception):
                agent.close(patience=max(0.0, end - time.monotonic()))


def new_session_id(*, gateway: bool = False) -> str:
    """`YYYYMMDD_HHMMSS_` and six random hex digits; eight for a session of the gateway."""
    return f"{time.strftime('%Y%m%d_%H%M%S')}_{secrets.token_hex(4 if gateway else 3)}"


def folder_of(db: SessionDB, session_id: str) -> Path:
    """The folder that a session worked in; the current one where it is unknown or gone."""
    row = db.get_session(session_id)
    folder = Path(row["cwd"]) if row is not None and row["cwd"] else Path.cwd()
    return folder if folder.is_dir() else Path.cwd()
