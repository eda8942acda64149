"""Side tasks of a model (a summary, a title): whether the model can write, its answer without thinking
text, and several such calls at once."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING

from hermes.agent.models.model import Usage, metered, price_of
from hermes.errors import ModelError

if TYPE_CHECKING:
    from hermes.agent.models.model import Message, Model, Reply
    from hermes.store.api.session_db import SessionDB

_THINKING = re.compile(r"(?is)<(think|thinking|thought|reasoning|scratchpad)\b[^>]*>.*?</\1\s*>")
_THINKING_LEFT = re.compile(r"(?is)^.*</(?:think|thinking|thought|reasoning|scratchpad)\s*>")
_THINKING_OPEN = re.compile(r"(?is)<(?:think|thinking|thought|reasoning|scratchpad)\b[^>]*>.*$")


def counted_for(db: SessionDB, session_id: str) -> AbstractContextManager[None]:
    """In this block the usage of side tasks is counted for this session (SessionDB.get_side_usage)."""

    def record(model: Model, reply: Reply) -> None:
        used, price = reply.usage or Usage(), price_of(model, reply)
        db.add_side_usage(
            session_id, input_tokens=used.prompt_tokens, output_tokens=used.output_tokens, cost_usd=price.usd
        )

    return metered(record)


def can_write(model: Model | None) -> bool:
    """Whether side tasks may go to this model.

    The extractive assistant writes nothing, and the small embedded model is reserved for the conversation itself: what it
    would write about a long text is worse than the text's own sentences, and it would delay the next reply.
    """
    return model is not None and model.kind not in ("extractive", "embedded")


def without_thinking(text: str) -> str:
    """A model's answer without the thinking some write into it."""
    text = _THINKING_LEFT.sub("", _THINKING.sub("", text))
    return _THINKING_OPEN.sub("", text).strip()


def asked_aside(
    model: Model, messages: Sequence[Message], *, max_tokens: int, timeout: float, cancelled: Callable[[], bool]
) -> str:
    """One answer of `model.complete`, with its errors; ModelError as soon as `cancelled()` turns true."""
    job = partial(model.complete, messages, max_tokens=max_tokens, timeout=timeout)
    (answer,) = in_parallel([job], workers=1, seconds=timeout + 5, cancelled=cancelled)
    if isinstance(answer, Exception):
        raise answer
    if answer is None:
        raise ModelError(
            "it was interrupted" if cancelled() else f"{model.name} did not answer within {timeout:g} seconds"
        )
    return answer


def in_parallel(
    jobs: Sequence[Callable[[], str]],
    *,
    workers: int,
    seconds: float,
    cancelled: Callable[[], bool] | None = None,
) -> list[str | Exception | None]:
    """The answers of the jobs, at most `workers` at a time; an error in its place, None where there was no time left.

    Threads that don't return in time are abandoned: they are daemons and start nothing new.
    """
    answers: list[str | Exception | None] = [None] * len(jobs)
    waiting = list(range(len(jobs)))[::-1]
    lock, stopped = threading.Lock(), threading.Event()

    def work() -> None:
        while not stopped.is_set():
            with lock:
                if not waiting:
                    return
                number = waiting.pop()
            try:
                answer: str | Exception = jobs[number]()
            except Exception as error:  # the caller decides what an error means for its part
                answer = error
            answers[number] = answer

    threads = [
        threading.Thread(target=copy_context().run, args=(work,), daemon=True, name=f"hermes-side-task-{n}")
        for n in range(max(1, min(workers, len(jobs))))
    ]
    for thread in threads:
        thread.start()
    end = time.monotonic() + seconds
    for thread in threads:
        while thread.is_alive() and time.monotonic() < end and not (cancelled is not None and cancelled()):
            thread.join(min(0.1, max(0.0, end - time.monotonic())))
    stopped.set()
    return list(answers)
