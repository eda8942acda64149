"""The interface of a platform for the conformance suite: a place where people talk to the agent, and where things can go wrong.

A lab is a server the real adapter connects to. Three people are there: alice and bob may talk to the agent, mallory may
not. `where` names a chat: "dm" (with `who`), "group", "channel" or "thread" (a thread of the group or channel).
"""

from __future__ import annotations

import itertools
from typing import Any, ClassVar

from tests.support.waiting import until as until  # a lab's tests take it from here

PEOPLE = ("alice", "bob", "mallory")


class Lab:
    """A running platform. Made once for a module of tests; `reset` makes it as new for the next test."""

    platform: ClassVar[str]
    places: ClassVar[frozenset[str]] = frozenset({"dm"})  # of dm, group, channel, thread
    can: ClassVar[frozenset[str]] = (
        frozenset()
    )  # of redeliver, rate_limit, fail, drop, attach, edits, change, take_back, files, choices, forward

    listens_at: int | None = None  # the port that the gateway listens on for this platform's webhooks, if it has them
    account: str | None = None  # which of several accounts of the platform this lab plays

    keeps: ClassVar[bool] = True  # the vendor delivers a message until it is acknowledged, or has it when it is asked

    @property
    def settings(self) -> dict[str, Any]:
        """The settings below platforms.<name> in config.yaml, so that the adapter talks to this lab."""
        raise NotImplementedError

    def user_id(self, who: str) -> str:
        """The id of a person, as `allowed_users` has it."""
        raise NotImplementedError

    def chat_id(self, where: str, who: str = "alice") -> str:
        """The id of a chat, as `home_channel` has it."""
        raise NotImplementedError

    def say(self, text: str, *, who: str = "alice", where: str = "dm", addressed: bool = True) -> str:
        """A person says something; the platform's id of the message. In groups it mentions the agent if `addressed`."""
        raise NotImplementedError

    def shown(self, where: str = "dm", *, who: str = "alice") -> list[str]:
        """The agent's messages in that chat as people see them now (after edits), in order, as plain text."""
        raise NotImplementedError

    def attach(
        self, data: bytes, name: str, mime: str, *, who: str = "alice", where: str = "dm", text: str = ""
    ) -> str:
        """A person sends a file (can: attach)."""
        raise NotImplementedError

    def sent_files(self, where: str = "dm", *, who: str = "alice") -> list[tuple[str, bytes, str]]:
        """The files the agent has sent there: name, bytes, caption (can: files)."""
        raise NotImplementedError

    def buttons(self, where: str = "dm", *, who: str = "alice") -> list[str]:
        """The labels of the buttons that are shown there (can: choices)."""
        raise NotImplementedError

    def press(self, label: str, *, who: str = "alice", where: str = "dm", which: int = -1) -> None:
        """A person presses a button with this label, the newest or another one (0: the oldest) (can: choices)."""
        raise NotImplementedError

    def forward(self, text: str, *, who: str = "alice", where: str = "dm") -> str:
        """A person passes on what another has written, without a comment (can: forward)."""
        raise NotImplementedError

    def owed(self, kept: set[str]) -> set[str]:
        """The ids of the messages that the gateway must answer, given those it has kept (of a vendor that does not keep them)."""
        raise NotImplementedError

    def redeliver(self, message_id: str) -> None:
        """The platform sends an event again (can: redeliver)."""
        raise NotImplementedError

    def change(self, message_id: str, text: str, *, who: str = "alice", where: str = "dm") -> None:
        """A person edits a message (can: change)."""
        raise NotImplementedError

    def take_back(self, message_id: str, *, who: str = "alice", where: str = "dm") -> None:
        """A person deletes a message (can: take_back)."""
        raise NotImplementedError

    def rate_limit(self, seconds: float, times: int = 1) -> None:
        """The next sends are refused with "wait `seconds`" (can: rate_limit)."""
        raise NotImplementedError

    def fail(self, times: int = 1) -> None:
        """The next sends get a server error (can: fail)."""
        raise NotImplementedError

    def drop(self) -> None:
        """Cut every connection now; the adapter may connect again at once (can: drop)."""
        raise NotImplementedError

    def typed(self, where: str = "dm", *, who: str = "alice") -> int:
        """How often "is typing" was shown there."""
        raise NotImplementedError

    def threads(self) -> list[str]:
        """Names of the threads the agent has created."""
        raise NotImplementedError

    def problems(self) -> list[str]:
        """Requests that broke the vendor's published schema; [] is expected at the end of every test."""
        return []

    def reset(self) -> None:
        """Forget what was said; the people and chats stay."""

    def close(self) -> None:
        """End the server."""


class ServerLab(Lab):
    """A lab that plays the vendor's server: it begins with the lab (`_begin`) and forgets what was said (`_forget`)."""

    first_id: ClassVar[int] = 1

    def __init__(self) -> None:
        self._ids = itertools.count(self.first_id)
        self.reset()
        self._begin()

    def _begin(self) -> None:
        raise NotImplementedError

    def _forget(self) -> None:
        raise NotImplementedError

    def reset(self) -> None:
        self._problems: list[str] = []
        self._limited = self._failing = 0  # how many of the next sends are refused, and how
        self._seconds = 0.0  # how long to wait, where the server says it
        self.lost_answers = 0  # the next sends are taken, and the connection is cut before the answer
        self._forget()

    def problems(self) -> list[str]:
        return list(self._problems)

    def rate_limit(self, seconds: float, times: int = 1) -> None:
        self._seconds, self._limited = seconds, times

    def fail(self, times: int = 1) -> None:
        self._failing = times


def before_the_last(runs: list[list[str]], kept: set[str]) -> set[str]:
    """The writes to connections (in order) that can't be lost: each one stored, and all before it on its connection."""
    found: set[str] = set()
    for run in runs:
        last = max((place for place, name in enumerate(run) if name in kept), default=-1)
        found.update(run[: last + 1])
    return found
