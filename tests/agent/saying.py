"""Small helpers for the tests about recall, titles and compression: conversations in a store, and a model of few words."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from hermes.agent.compress import compress as compress_session
from hermes.agent.leases import SessionLease
from hermes.agent.models.model import Message, Piece, Reply


class Canned:
    """A model that stands for a service far away: it gives `answer` (a text, an error, or a function of the messages)."""

    name = "canned"
    calls_tools = True
    base_url: str | None = "http://far.away/v1"
    provider: str | None = None

    def __init__(self, answer: Any, *, kind: str = "endpoint", context_length: int = 100_000) -> None:
        self.answer, self.kind, self.context_length = answer, kind, context_length
        self.asked: list[list[Message]] = []
        self.timeouts: list[float | None] = []
        self._lock = threading.Lock()

    def describe(self) -> str:
        return "canned"

    def stream(
        self, messages: Sequence[Message], tools: Sequence[dict[str, Any]] = (), *, cancelled: Callable[[], bool]
    ) -> Iterator[Piece | Reply]:
        yield Reply(content=self.complete(messages))

    def complete(
        self, messages: Sequence[Message], *, max_tokens: int = 1000, timeout: float | None = None,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> str:  # fmt: skip
        with self._lock:
            self.asked.append(list(messages))
            self.timeouts.append(timeout)
            answer = self.answer
            if isinstance(answer, list):
                answer = answer.pop(0) if len(answer) > 1 else answer[0]
        if callable(answer):
            answer = answer(messages)
        if isinstance(answer, Exception):
            raise answer
        return str(answer)

    def prompts(self) -> list[str]:
        """All that it was shown, one text a call."""
        return ["\n".join(str(message["content"]) for message in messages) for messages in self.asked]


def compress(db: Any, session_id: str, model: Any, config: Any, **more: Any) -> str:
    """Compress a session with a lease of its own, unless one is given."""
    lease = SessionLease(db)
    try:
        return compress_session(db, session_id, model, config, **{"lease": lease, **more})
    finally:
        lease.release()


def talk(
    db: Any, session_id: str, *texts: str, source: str = "cli", title: str | None = None, **columns: Any
) -> list[int]:
    """A session in which user and assistant take turns; the ids of its messages."""
    db.create_session(session_id, source, **columns)
    ids = [db.append_message(session_id, ("user", "assistant")[n % 2], text) for n, text in enumerate(texts)]
    if title is not None:
        db.set_session_title(session_id, title)
    return ids


def everything(db: Any) -> Any:
    """All that the store holds, to compare."""
    return db.export_all()
