"""Turns: one task for each conversation (session key) with work. It does its items one at a time and in order.

Conversations don't wait for each other. An item runs in a thread of its own, since a turn may take minutes; a conversation
without items is forgotten. Everything here belongs to the event loop, except what an item's thread sets on its conversation.

A turn may ask the user a question: a reply of yes within five minutes is a yes, everything else a no. A button carries the id
of its question, so a press below an old message never answers a newer question.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from hermes.gateway.events import Choice
from hermes.gateway.notices import say

_LOOK = 0.1  # seconds between two checks whether the turn was interrupted
_YES = frozenset("yes y ok okay ja oui si sí sim да はい 是 好 예 네 👍 ✅ /yes /approve".split())
_SHADES = frozenset("\ufe0f🏻🏼🏽🏾🏿")  # skin tones of 👍
_NO = frozenset("no n nope nein non não нет いいえ 否 不 아니요 👎 ❌ /no /deny".split())


@dataclass(slots=True)
class PendingQuestion:
    """A question to one person; the turn waits for the answer."""

    person_id: str | None  # the id of the person who began the turn and may answer; None: people have no ids here
    id: str = field(default_factory=lambda: secrets.token_hex(4))
    answer: queue.SimpleQueue[bool] = field(default_factory=queue.SimpleQueue)

    def wait(self, cancelled: Callable[[], bool], seconds: float) -> bool:
        """The answer; no, if none comes within so many seconds or the turn is interrupted."""
        end = time.monotonic() + seconds
        while not cancelled() and (left := end - time.monotonic()) > 0:
            try:
                return self.answer.get(timeout=min(left, _LOOK))
            except queue.Empty:
                continue
        return False


def read_answer(text: str) -> bool | None:
    """Yes, no, or None for any other text."""
    word = "".join(sign for sign in text if sign not in _SHADES).strip(" \t\n.!").casefold()
    if word in _YES:
        return True
    return False if word in _NO else None


_PRESS = re.compile(r"/(yes|no) ([0-9a-f]{8})")


class Press(NamedTuple):
    """A button that was pressed."""

    question: str  # the id of its question
    yes: bool


def buttons(question: PendingQuestion, language: str | None) -> tuple[Choice, ...]:
    """The buttons below a question."""
    return tuple(Choice(label=say(word, language), says=f"/{word} {question.id}") for word in ("yes", "no"))


def pressed(text: str) -> Press | None:
    """The button whose text this is; None for every other text."""
    found = _PRESS.fullmatch(text.strip())
    return None if found is None else Press(found[2], found[1] == "yes")


def wording(question: str, seconds: float, language: str | None) -> str:
    """A question as it is sent to a chat."""
    return say("question", language, question=question, minutes=seconds / 60)


MOST_AT_ONCE = 256  # items that run at the same time; no machine should need more
R = TypeVar("R")


class Conversation:
    """The items of one key, and the open question of the running one."""

    def __init__(self, key: str) -> None:
        self.key = key
        self.waiting: list[Any] = []
        self.running: Any = None
        self.question: PendingQuestion | None = None
        self.added = asyncio.Event()

    @property
    def current(self) -> Any:
        """The running or next item; None without one."""
        return self.running if self.running is not None else next(iter(self.waiting), None)

    def take(self) -> Any:
        """The next item whose time has come; None if all wait for theirs."""
        for number, item in enumerate(self.waiting):
            if item.due <= time.monotonic():
                self.running = self.waiting.pop(number)
                return self.running
        return None


class Turns:
    """Runs `work(conversation, item)` in threads; `done(item)` is called on the event loop afterwards."""

    def __init__(self, work: Callable[[Conversation, Any], None], done: Callable[[Any], None]) -> None:
        self._work, self._done = work, done
        self._all: dict[str, Conversation] = {}
        self._room = asyncio.Semaphore(MOST_AT_ONCE)
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopped = False
        self._log = logging.getLogger("hermes.gateway")

    def add(self, key: str, item: Any) -> None:
        """Give a conversation an item: it is done after those before it, and not before its `due` time."""
        one = self._all.get(key)
        if one is None:
            one = self._all[key] = Conversation(key)
            start(self._run(one), self._tasks)
        one.waiting.append(item)
        one.added.set()

    def get(self, key: str) -> Conversation | None:
        """The conversation of a key, if it has items."""
        return self._all.get(key)

    def __iter__(self) -> Iterator[Conversation]:
        return iter(list(self._all.values()))

    @property
    def running(self) -> list[Any]:
        """The items that run now."""
        return [one.running for one in self if one.running is not None]

    def stop(self) -> None:
        """Begin no more items; running ones continue. Waiting ones are in the store."""
        self._stopped = True

    async def _run(self, one: Conversation) -> None:
        while one.waiting and not self._stopped:
            item = one.take()
            if item is None:
                one.added.clear()
                await wait_first(one.added, min(item.due for item in one.waiting) - time.monotonic())
                continue
            try:
                async with self._room:
                    if not self._stopped:
                        await in_thread(self._work, one, item)
            except Exception:  # the next item is still done
                self._log.exception("an item of %s failed", one.key)
            finally:
                one.running = one.question = None
                self._done(item)
        if not self._stopped:
            del self._all[one.key]


async def in_thread(work: Callable[..., R], *args: Any) -> R:
    """Run this in a daemon thread of its own: it may take minutes, and must not delay the end of the process."""
    done: Future[R] = Future()

    def run() -> None:
        try:
            done.set_result(work(*args))
        except BaseException as error:
            done.set_exception(error)

    result = asyncio.wrap_future(done)
    threading.Thread(target=run, name="hermes-turn", daemon=True).start()
    return await result


def start(work: Any, tasks: set[asyncio.Task[Any]]) -> asyncio.Task[Any]:
    """Start a coroutine as a task, which this set holds until it ends; its failure goes to the log."""
    task = asyncio.create_task(work)
    tasks.add(task)
    task.add_done_callback(tasks.discard)
    task.add_done_callback(_log_failure)
    return task


def _log_failure(task: asyncio.Task[Any]) -> None:
    if not task.cancelled() and task.exception() is not None:
        logging.getLogger("hermes.gateway").error("a background task failed", exc_info=task.exception())


async def wait_first(event: asyncio.Event, seconds: float) -> None:
    """Wait for the event, at most so long."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
