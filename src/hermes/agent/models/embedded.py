"""The embedded model: a small language model inside this process, for when there is no key, no server and no network.

It is small, so its prompts are short: a short system prompt, the newest turns that fit and, since it can't call tools,
the best excerpts from the user's own history, quoted. The library and the file are loaded for the
first question, once per process. The library listens on a port of this machine, with a key that only this process
knows, and is an endpoint like any other.
"""

from __future__ import annotations

import atexit
import os
import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hermes.agent.models.endpoint import EndpointModel
from hermes.agent.models.files import place_of
from hermes.agent.models.model import Message, Piece, Reply
from hermes.agent.models.transport import running
from hermes.agent.room import cut_to
from hermes.errors import ContextTooLong, MissingExtra, ModelError
from hermes.store.text.index_text import plain_content
from hermes.texts import text_tokens

CONTEXT = 4096  # tokens; the file allows 8192, at twice the memory
ROOM = 1000  # tokens of a question: on one thread, reading more than this takes too long
REPLY = 300  # tokens of an answer at most


def find_model(home: Path) -> Path | None:
    """The embedded model's file, if it and its library are installed and HERMES_NO_EMBEDDED is not 1."""
    if os.environ.get("HERMES_NO_EMBEDDED", "") not in ("", "0") or find_spec("xllamacpp") is None:
        return None
    return place_of("smollm2", home)


class EmbeddedModel:
    """SmolLM2 in this process: one instance serves all conversations and threads, one after the other."""

    name = "smollm2"
    kind = "embedded"
    context_length = CONTEXT
    calls_tools = False
    base_url: str | None = None
    provider: str | None = "embedded"

    def __init__(self, path: Path) -> None:
        self.path = path

    def unread(self, messages: Sequence[Message]) -> str | None:
        """A line about a question of which the model gets only the beginning and the end."""
        question, read = question_of(messages), question_read(messages, ROOM)
        if len(read) >= len(question):
            return None
        return (
            f"Your message has {len(question):,} characters, and the embedded model reads about {len(read):,} of such a text:"
            " it gets the beginning and the end."
        )

    def describe(self) -> str:
        """A one-line description for the user."""
        return "SmolLM2 (135M), a small embedded model: offline, no tools, simple answers; it gets excerpts of your history"

    def stream(
        self, messages: Sequence[Message], tools: Sequence[dict[str, Any]] = (), *, cancelled: Callable[[], bool]
    ) -> Iterator[Piece | Reply]:
        """The pieces as they arrive, then the whole Reply; the tools are not used."""
        endpoint = _loaded(self.path, cancelled)
        if endpoint is None:
            yield Reply(finish_reason="interrupted", model=self.name)
            return
        texts: list[str] = []

        def stopped() -> bool:
            return cancelled() or in_circles("".join(texts))

        # If the estimate was wrong and the text does not fit (noticed before the first piece), the second try uses half the room.
        for room in (ROOM, ROOM // 2):
            try:
                for item in endpoint.pieces(fitted(messages, room), _LIMITS, stopped):
                    if isinstance(item, Piece):
                        texts.append(item.text)
                    elif item.finish_reason == "interrupted" and not cancelled():
                        item.finish_reason = "stop"  # it repeated itself: the reply ends here
                    yield item
                return
            except ContextTooLong:
                if room < ROOM:
                    raise

    def complete(
        self, messages: Sequence[Message], *, max_tokens: int = 1000, timeout: float | None = None,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> str:  # fmt: skip
        """One answer for a side task; ModelUnreachable when it takes longer than `timeout` seconds."""
        endpoint = _loaded(self.path, lambda: False)
        assert endpoint is not None
        return endpoint.complete(
            fitted(messages, ROOM), max_tokens=min(max_tokens, REPLY), timeout=timeout, cancelled=cancelled
        )


_LIMITS = {"max_tokens": REPLY, "temperature": 0.1}  # a penalty for repetition would punish the words of the question
_loading: dict[Path, Future[tuple[Any, EndpointModel]]] = {}  # the server of each file, once it is loaded
_lock = threading.Lock()


def _loaded(path: Path, cancelled: Callable[[], bool]) -> EndpointModel | None:
    """The file as an endpoint of this process, loaded by the first caller; None if `cancelled()` turns true meanwhile."""
    with _lock:
        if path not in _loading:
            _loading[path] = Future()
            threading.Thread(target=_load, args=(path, _loading[path]), name="embedded-model", daemon=True).start()
        future = _loading[path]
    while not cancelled():
        with suppress(TimeoutError):
            return future.result(0.05)[1]
    return None


def _stop_calls() -> None:
    with suppress(RuntimeError):  # a call begins at this moment
        for call in list(running):
            call.stop()


def _load(path: Path, future: Future[tuple[Any, EndpointModel]]) -> None:
    try:
        try:
            xllamacpp: Any = import_module("xllamacpp")
        except ImportError as error:
            raise MissingExtra("the embedded model", "embedded") from error
        key = secrets.token_hex(32)
        try:
            server = xllamacpp.Server(_parameters(xllamacpp.CommonParams(), path, key))
        except RuntimeError as error:
            raise ModelError(
                f"{path} can't be loaded; fetch it again: `hermes model remove smollm2 && hermes model install smollm2`"
            ) from error
        endpoint = EndpointModel(EmbeddedModel.name, f"{server.listening_address}/v1", key, CONTEXT, EmbeddedModel.kind)
        atexit.register(_stop_calls)  # else the library, which ends its calls first, holds up the exit
        future.set_result((server, endpoint))
    except Exception as error:
        with _lock:
            del _loading[path]  # the next question tries again
        future.set_exception(error)


def _parameters(settings: Any, path: Path, key: str) -> Any:
    """The library's settings: one thread, small, silent, on a free port of this machine."""
    settings.model.path = str(path)
    settings.model_alias = {EmbeddedModel.name}
    settings.n_ctx = CONTEXT
    settings.n_parallel = 1
    settings.cpuparams.n_threads = settings.cpuparams_batch.n_threads = 1
    settings.cache_ram_mib = 0
    settings.warmup = False
    settings.verbosity = -1
    settings.hostnames = ["127.0.0.1"]
    settings.port = 0
    settings.api_keys = [key]
    settings.n_threads_http = 1
    settings.ui = False
    return settings


# ----------------------------------------------------------------------------------------------------
# The prompt for a small model: short enough for it, newest turns first. The beginning (who it is, the turns so far) stays the
# same from turn to turn, so the model need not process it again; what was found in the history is put next to the question,
# at the end.

SYSTEM = 400  # characters of a system prompt that are used
_WHO = "You are a helpful assistant."  # longer prompts give worse answers; called Hermes, it plays the god
_CIRCLE = 40  # characters
_OWN = "You are Hermes,"  # how this program's own prompts begin (prompt.py)


def question_of(messages: Sequence[Message]) -> str:
    """The last question of the user."""
    return next(
        (plain_content(message.get("content")) for message in reversed(messages) if message.get("role") == "user"), ""
    )


def question_read(messages: Sequence[Message], room: int) -> str:
    """The part of the user's last question that fits in a prompt of `room` tokens."""
    return plain_content(fitted([*messages[:-1], {**messages[-1], "recalled": ""}], room)[-1]["content"])


def fitted(messages: Sequence[Message], room: int) -> list[Message]:
    """The conversation in at most `room` tokens (as estimated): system prompt shortened, newest turns included.

    Text that was recalled for the question is included if it fits. Tool calls and their results are left out: this model has no
    tools. The last message is the user's.
    """
    prompt = next(
        (plain_content(message.get("content")) for message in messages if message.get("role") == "system"), ""
    ).strip()
    # A small model follows a short prompt: the first paragraph, or the short one where it is this program's own.
    own = not prompt or prompt.startswith(_OWN)
    system = _WHO if own else cut_to(prompt.partition("\n\n")[0], SYSTEM // 3)
    turns = [
        {"role": message["role"], "content": plain_content(message.get("content"))}
        for message in messages
        if message.get("role") in ("user", "assistant") and plain_content(message.get("content")).strip()
    ]
    while turns and turns[-1]["role"] != "user":
        turns.pop()
    last = turns.pop()["content"] if turns else ""
    recalled = next((str(one.get("recalled") or "") for one in reversed(messages) if one.get("role") == "user"), "")
    left = room - text_tokens(system) - 32
    question = cut_to(last, max(16, left * 2 // 3))
    left -= text_tokens(question) + 8
    if recalled and text_tokens(recalled) + 8 < left:
        question = f"{recalled}\n\n{question}"
        left -= text_tokens(recalled) + 8
    kept: list[Message] = []
    for turn in reversed(turns):
        left -= text_tokens(turn["content"]) + 8
        if left < 0:
            break
        kept.insert(0, turn)
    while kept and kept[0]["role"] != "user":  # an answer without its question is useless
        kept.pop(0)
    first = [{"role": "system", "content": system}] if system else []
    return [*first, *kept, {"role": "user", "content": question}]


def in_circles(text: str) -> bool:
    """Whether the model repeats itself: it would continue to the token limit."""
    tail = text[-_CIRCLE:]
    return len(tail) == _CIRCLE and text.count(tail) >= 3
