"""The models without a server: the embedded model, and the assistant that only quotes the user's history.

The embedded model is small, so its prompts are short: a short system prompt, the newest turns that fit and, since it can't
call tools, the best excerpts from the user's own history, quoted. The library and the file are loaded for the
first question, once per process. The library listens on a port of this machine, with a key that only this process
knows, and is an endpoint like any other.

The extractive assistant answers with quoted passages. It states what it is, and how to get a model.
"""

from __future__ import annotations

import atexit
import os
import re
import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hermes.agent.history import EXTRACTIVE, Excerpt, when
from hermes.agent.models.endpoint import EndpointModel
from hermes.agent.models.files import place_of
from hermes.agent.models.model import Message, Piece, Reply
from hermes.agent.models.transport import running
from hermes.agent.room import cut_to
from hermes.errors import ContextTooLong, MissingExtra, ModelError
from hermes.store.text.index_text import fold, plain_content
from hermes.texts import harmless, shortened, text_tokens

if TYPE_CHECKING:
    from hermes.store.api.session_db import SessionDB
    from hermes.store.records.visibility import User

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
            raise ModelError(f"{path} can't be loaded; fetch it again: `hermes model install smollm2`") from error
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


WHAT = "no language model: answers are passages from your own history"
I_AM = "I'm not a language model; I can only quote your own history."
HOW = (
    "For a model that answers: `hermes model install smollm2` (small, offline), or"
    " `hermes config set model.base_url URL` (a server that speaks OpenAI's protocol)."
)
# Greetings, and questions for help: both are answered with what this assistant can do.
_GREETING = re.compile(
    r"^(?:hi+|hello|hey+|hiya|yo|greetings|good (?:morning|afternoon|evening|day)|hallo|moin|servus|guten (?:tag|morgen|abend)|"
    r"hola|buenos dias|buenas(?: tardes| noches)?|bonjour|bonsoir|salut|ciao|salve|ola|oi|привет|здравствуйте|добрый день|"
    r"你好|您好|嗨|こんにちは|おはよう(?:ございます)?|"
    r"안녕(?:하세요)?|xin chao|chao|merhaba|selam|czesc|مرحبا|السلام عليكم|สวัสดี|"
    r"help|help me|what can you do|who are you|what are you|how does this work|"
    r"hilfe|ayuda|aide|aiuto|помощь|帮助|ヘルプ|도움말)?(?: there| you| hermes| all| everyone)?$"
)


class ExtractiveModel:
    """Quotes your history; one instance for all conversations and threads.

    `session_id` is its conversation, `user` the one whose sessions may be quoted (None: the owner, who sees all). In a
    conversation that is not `private`, only that conversation is quoted.
    """

    name = EXTRACTIVE
    kind = "extractive"
    context_length = 1_000_000  # it reads the question only: no conversation is too long for it
    calls_tools = False
    base_url: str | None = None
    provider: str | None = None

    def __init__(
        self, db: SessionDB, session_id: str | None = None, *, user: User | None = None, private: bool = True
    ) -> None:
        self.db, self._session_id, self._user = db, session_id, user
        self._within = session_id if not private else None

    def speaking_in(self, session_id: str, user: User | None, *, private: bool = True) -> ExtractiveModel:
        """A copy for one conversation and user."""
        return ExtractiveModel(self.db, session_id, user=user, private=private)

    def unread(self, messages: Sequence[Message]) -> str | None:
        """None: the whole question is searched for."""
        return None

    def describe(self) -> str:
        """A one-line description for the user."""
        return f"{self.name}: {WHAT}"

    def stream(
        self, messages: Sequence[Message], tools: Sequence[dict[str, Any]] = (), *, cancelled: Callable[[], bool]
    ) -> Iterator[Piece | Reply]:
        """The answer in one piece."""
        text = self.answer(question_of(messages))
        yield Piece(text=text)
        yield Reply(content=text, finish_reason="stop", model=self.name)

    def complete(
        self, messages: Sequence[Message], *, max_tokens: int = 1000, timeout: float | None = None,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> str:  # fmt: skip
        """The answer to the last question: side tasks are not given to this model."""
        return self.answer(question_of(messages))

    def answer(self, question: str) -> str:
        """The answer to a question."""
        folded = fold(" ".join(question.split())).strip(" .!,?¡¿。！？、")
        if _GREETING.match(folded):
            return (
                f"Hello! {I_AM} Ask in your own words, for example: what did we decide about the parser?\n\n"
                "`hermes sessions search WORDS` finds every place, and `hermes sessions list` lists all sessions."
                f"\n\n{HOW}"
            )
        from hermes.agent.recall import recall

        # It does not get its own conversation, so that is searched as well.
        found = recall(self.db, question, current=None, visible_to=self._user, weak=True, within=self._within)
        if found is None:
            return self._nothing(question)
        listed = "\n\n".join(_shown(number, excerpt) for number, excerpt in enumerate(found.passages, 1))
        return f"{I_AM} These passages fit best:\n\n{listed}\n\n{HOW}"

    def _nothing(self, question: str) -> str:
        about = shortened(" ".join(harmless(question).split()), 80)
        if self._within is not None:
            return f"I found nothing about “{about}” in this conversation, and quote no other one here. {I_AM}\n\n{HOW}"
        others = self.db.session_count(visible_to=self._user) - (1 if self._session_id is not None else 0)
        searched = (
            "there are no other conversations to search yet"
            if others <= 0
            else f"I searched {others} other conversation{'s' * (others != 1)} for it"
        )
        return f"I found nothing about “{about}” in your history: {searched}. {I_AM}\n\n{HOW}"


def _shown(number: int, excerpt: Excerpt) -> str:
    title = " ".join(harmless(excerpt.title or "").split()) or "no title"
    passage = "\n".join(f"> {line}" for line in excerpt.text.splitlines() if line.strip())
    who = {"user": "you", "assistant": "the assistant"}.get(excerpt.role, excerpt.role)
    return f"{number}. **{title}** · {when(excerpt.when)} · {who} · `{excerpt.session_id}`\n\n{passage}"
