"""The embedded model: a small language model inside this process, for when there is no key, no server and no network.

It is small, so its prompts are short (embedded_prompt.py): a short system prompt, the newest turns that fit, and, since it
can't call tools, the best excerpts from the user's own history, quoted. The library and the file are loaded for the
first question, once per process; one separate thread does the work, so that a reply can be cancelled.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hermes.agent.embedded_prompt import fitted, in_circles, looked_up, question_of, question_read
from hermes.agent.endpoint.assembly import Assembler
from hermes.agent.model import Message, Piece, Reply
from hermes.agent.model_files import place_of
from hermes.errors import ContextTooLong, HermesError, MissingExtra, ModelError, ModelUnreachable
from hermes.texts import encodable

if TYPE_CHECKING:
    from hermes.store.db import SessionDB
    from hermes.store.visibility import User

CONTEXT = 4096  # tokens; the file allows 8192, at twice the memory
ROOM = 1000  # tokens of a question: on one thread, reading more than this takes too long
REPLY = 300  # tokens of an answer at most

Chunk = dict[str, Any]


def find_model(home: Path) -> Path | None:
    """The embedded model's file, when it can be used: it and its library are installed, and HERMES_NO_EMBEDDED is not 1."""
    if os.environ.get("HERMES_NO_EMBEDDED", "") not in ("", "0") or find_spec("xllamacpp") is None:
        return None
    return place_of("smollm2", home)


class EmbeddedModel:
    """SmolLM2 in this process: one instance for all conversations and threads, which it answers one after the other.

    `session_id` is the conversation to leave out of the history search, `user` the owner of the history (None: all of it).
    """

    name = "smollm2"
    kind = "embedded"
    context_length = CONTEXT
    calls_tools = False
    base_url: str | None = None
    provider: str | None = "embedded"

    def __init__(
        self, path: Path, db: SessionDB | None, session_id: str | None = None, *, user: User | None = None
    ) -> None:
        self.path, self.db, self._session_id, self._user = path, db, session_id, user

    def speaking_in(self, session_id: str, user: User | None) -> EmbeddedModel:
        """The same model (its file is loaded once) for one conversation and user."""
        return EmbeddedModel(self.path, self.db, session_id, user=user)

    def unread(self, messages: Sequence[Message]) -> str | None:
        """A line about a question of which the model gets only the beginning and the end."""
        asked, read = question_of(messages), question_read(messages, ROOM)
        if len(read) >= len(asked):
            return None
        return (
            f"Your message has {len(asked):,} characters, and the embedded model reads about {len(read):,} of such a text:"
            " it gets the beginning and the end."
        )

    def describe(self) -> str:
        """A one-line description for the user."""
        return "SmolLM2 (135M), a small embedded model: offline, no tools, simple answers; it gets excerpts of your history"

    def stream(
        self, messages: Sequence[Message], tools: Sequence[dict[str, Any]] = (), *, cancelled: Callable[[], bool]
    ) -> Iterator[Piece | Reply]:
        """The pieces as they arrive, then the whole Reply; the tools are not used."""
        try:
            notes = looked_up(self.db, messages, self._session_id, self._user)
        except HermesError:  # no excerpts are better than no answer
            notes = ""
        parts = Assembler()
        for chunk in self._asked(messages, notes, REPLY, lambda: cancelled() or in_circles(parts.text())):
            yield from parts.take(chunk)
        reply = parts.reply()
        reply.content, reply.model = parts.text(), self.name
        if reply.finish_reason is None and not cancelled():
            reply.finish_reason = "stop"  # it repeated itself: the reply ends here
        yield reply

    def complete(self, messages: Sequence[Message], *, max_tokens: int = 1000, timeout: float | None = None) -> str:
        """One answer for a side task; ModelUnreachable when it takes longer than `timeout` seconds."""
        end = time.monotonic() + (timeout or float("inf"))
        parts = Assembler()
        for chunk in self._asked(messages, None, min(max_tokens, REPLY), lambda: time.monotonic() > end):
            parts.add(chunk)
        if timeout is not None and parts.finish_reason is None:
            raise ModelUnreachable(f"the embedded model did not finish in {timeout:g} seconds")
        return parts.text().strip()

    def _asked(
        self, messages: Sequence[Message], notes: str | None, reply_tokens: int, cancelled: Callable[[], bool]
    ) -> Iterator[Chunk]:
        """The chunks of an answer. Where the estimate was wrong and the text does not fit, half of it is used."""
        engine = _engine(self.path)
        try:
            yield from engine.answer(_request(fitted(messages, ROOM, notes), reply_tokens), cancelled)
        except ContextTooLong:  # raised before the first chunk
            yield from engine.answer(_request(fitted(messages, ROOM // 2, notes), reply_tokens), cancelled)


def _request(messages: list[Message], reply_tokens: int) -> Chunk:
    return {
        "messages": [{"role": message["role"], "content": encodable(message["content"])} for message in messages],
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": reply_tokens,
        "temperature": 0.1,  # no penalty for repetition: it would punish the words of the question and the notes
    }


# ---------------------------------------------------------------------------------------------- the engine

_engines: dict[Path, _Engine] = {}
_engines_lock = threading.Lock()


def _engine(path: Path) -> _Engine:
    """One engine per file and process, shared by all models."""
    with _engines_lock:
        return _engines.setdefault(path, _Engine(path))


class _Engine:
    """The library with the file loaded; one question at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._busy = threading.Lock()
        self._server: Any = None

    def answer(self, request: Chunk, cancelled: Callable[[], bool]) -> Iterator[Chunk]:
        """The chunks of an answer as they arrive. Ends at once when `cancelled()`; the thread stops at its next word."""
        arrived: queue.SimpleQueue[Chunk | Exception | None] = queue.SimpleQueue()
        abandoned = threading.Event()
        # No daemon, even if the caller is one: the interpreter must not exit under the library, which would abort.
        # It stops when the main thread has ended.
        work = threading.Thread(
            target=self._work, args=(request, arrived, abandoned), name="embedded-model", daemon=False
        )
        work.start()
        try:
            while not cancelled():
                try:
                    item = arrived.get(timeout=0.05)
                except queue.Empty:
                    continue
                if item is None:
                    return
                if isinstance(item, Exception):
                    raise item
                yield item
        finally:
            abandoned.set()

    def _work(
        self, request: Chunk, arrived: queue.SimpleQueue[Chunk | Exception | None], abandoned: threading.Event
    ) -> None:
        def stopped() -> bool:
            return abandoned.is_set() or not threading.main_thread().is_alive()

        def take(chunk: Chunk) -> bool:
            """Called by the library; True makes it stop."""
            error = chunk.get("error") if isinstance(chunk, dict) else None
            arrived.put(_refusal(error) if error else chunk)
            return bool(error) or stopped()

        try:
            with self._busy:  # others may have been answered first, and this one cancelled meanwhile
                if not stopped():
                    self._loaded().handle_chat_completions(request, take)
        except HermesError as error:
            arrived.put(error)
        except Exception as error:  # the library raises RuntimeError for everything
            arrived.put(ModelError(f"the embedded model failed: {error}"))
        arrived.put(None)

    def _loaded(self) -> Any:
        if self._server is None:
            try:
                xllamacpp: Any = import_module("xllamacpp")
            except ImportError as error:
                raise MissingExtra("the embedded model", "embedded") from error
            try:
                self._server = xllamacpp.Server(_parameters(xllamacpp.CommonParams(), self.path))
            except RuntimeError as error:
                raise ModelError(
                    f"{self.path} can't be loaded; fetch it again: `hermes model remove smollm2 && hermes model install smollm2`"
                ) from error
        return self._server


def _refusal(error: Any) -> ModelError:
    kind = str(error.get("type")) if isinstance(error, dict) else ""
    if kind == "exceed_context_size_error":
        return ContextTooLong("the question is too long for the embedded model")
    said = error.get("message") if isinstance(error, dict) else error
    return ModelError(f"the embedded model failed: {said}")


def _parameters(settings: Any, path: Path) -> Any:
    """The library's settings: one thread, small, silent."""
    import secrets

    settings.model.path = str(path)
    settings.model_alias = {EmbeddedModel.name}
    settings.n_ctx = CONTEXT
    settings.n_parallel = 1
    settings.cpuparams.n_threads = settings.cpuparams_batch.n_threads = 1
    settings.cache_ram_mib = 0
    settings.warmup = False
    settings.verbosity = -1
    # The library also listens on a free port of this machine; its key is not shared.
    settings.hostnames = ["127.0.0.1"]
    settings.port = 0
    settings.api_keys = [secrets.token_hex(32)]
    settings.n_threads_http = 1
    settings.ui = False
    return settings
