"""Questions to the user in the middle of a turn: a reply of yes within five minutes is a yes, everything else a no.

A button carries the id of its question: a press below an old message never answers a newer question.
"""

from __future__ import annotations

import queue
import re
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from hermes.gateway.events import Choice
from hermes.gateway.notices import say

_LOOK = 0.1  # seconds between two checks whether the turn was interrupted
_YES = frozenset("yes y ok okay ja oui si sí sim да はい 是 好 예 네 👍 ✅ /yes /approve".split())
_SHADES = frozenset("\ufe0f🏻🏼🏽🏾🏿")  # skin tones of 👍
_NO = frozenset("no n nope nein non não нет いいえ 否 不 아니요 👎 ❌ /no /deny".split())


@dataclass(slots=True)
class PendingQuestion:
    """A question to one person; the turn waits for the answer."""

    asked: str | None  # the id of the person who began the turn and may answer; None: people have no ids here
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
