"""Questions to the user in the middle of a turn: a reply of yes within five minutes is a yes, everything else a no."""

from __future__ import annotations

import queue
from dataclasses import dataclass, field

PATIENCE = 300.0  # seconds
_YES = frozenset("yes y ok okay ja oui si sí sim да はい 是 好 예 네 👍 ✅ /yes /approve".split())
_NO = frozenset("no n nope nein non não нет いいえ 否 不 아니요 👎 ❌ /no /deny".split())


@dataclass(slots=True)
class Question:
    """Something that one person is asked; the turn waits for the answer."""

    asked: str | None  # whose word counts: the id of who began the turn; None where people can't be told apart
    answer: queue.SimpleQueue[bool] = field(default_factory=queue.SimpleQueue)

    def wait(self, seconds: float = PATIENCE) -> bool:
        """The answer; no, if none comes."""
        try:
            return self.answer.get(timeout=seconds)
        except queue.Empty:
            return False


def read_answer(text: str) -> bool | None:
    """Yes, no, or None: it is something else."""
    word = text.strip().strip(".!").casefold()
    if word in _YES:
        return True
    return False if word in _NO else None


def wording(question: str) -> str:
    """A question as it is put in a chat."""
    return f"{question}\n\nReply **yes** or **no** (no answer within 5 minutes is a no)."
