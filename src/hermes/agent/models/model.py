"""The interface of a model (an endpoint, a local server, the embedded model, or none), what its calls cost, and its side tasks.

For a side task (a summary, a title): whether the model can write it, the answer without thinking text, several calls at
once, and the usage counted for a session.
"""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from contextvars import Context, ContextVar, copy_context
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, Protocol

from hermes.agent.models.servers import is_near

if TYPE_CHECKING:
    from hermes.store.api.session_db import SessionDB

REASONING = ("reasoning", "reasoning_content", "reasoning_details")  # a reply's fields, as endpoints name them
Message = Mapping[str, Any]  # an OpenAI chat message; never changed once it was read or sent


@dataclass(slots=True)
class Usage:
    """The usage of one call, as the endpoint counted it. `input` excludes tokens read from or written to the cache."""

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0
    cost_usd: float | None = None  # the cost of the call as the endpoint reports it

    @property
    def prompt_tokens(self) -> int:
        """Everything that was sent: input and both kinds of cached tokens."""
        return self.input_tokens + self.cache_read_tokens + self.cache_write_tokens


@dataclass(slots=True)
class Piece:
    """A part of a reply as it arrives."""

    text: str = ""
    thought: str = ""


@dataclass(slots=True)
class Reply:
    """A whole reply. `tool_calls` are as OpenAI sends them; reasoning fields are unchanged, so that they can be replayed."""

    content: str | None = None
    tool_calls: list[dict[str, Any]] = field(default_factory=list)
    finish_reason: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    reasoning_details: list[Any] | None = None
    usage: Usage | None = None
    model: str | None = None


UsageMeter = Callable[["Model", "Reply"], None]
_meter: ContextVar[UsageMeter | None] = ContextVar("hermes_side_task_meter", default=None)


@contextmanager
def metered(record: UsageMeter) -> Iterator[None]:
    """In this block (and in the threads of `in_parallel`), `record` is called with the model and usage of each side task."""
    token = _meter.set(record)
    try:
        yield
    finally:
        _meter.reset(token)


def side_task_done(model: Model, reply: Reply) -> None:
    """Report the usage of a side task; called by the model that has answered it."""
    record = _meter.get()
    if record is not None:
        with suppress(Exception):  # a title must not be lost because its usage can't be counted
            record(model, reply)


class Model(Protocol):
    """A model that answers."""

    name: str
    kind: str  # "endpoint", "local", "embedded" or "extractive"
    calls_tools: bool
    base_url: str | None
    provider: str | None

    @property
    def context_length(self) -> int:
        """How many tokens fit."""
        ...

    def describe(self) -> str:
        """A one-line description for the user."""
        ...

    def stream(
        self, messages: Sequence[Message], tools: Sequence[dict[str, Any]] = (), *, cancelled: Callable[[], bool]
    ) -> Iterator[Piece | Reply]:
        """The pieces as they arrive, then the whole Reply. When `cancelled()` turns true it ends with what has arrived.

        Raises ModelError (errors.py): ContextTooLong, ModelRefused, ModelUnreachable, RateLimited.
        """
        ...

    def complete(
        self, messages: Sequence[Message], *, max_tokens: int = 1000, timeout: float | None = None,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> str:  # fmt: skip
        """One answer for a side task (title, summary); ModelError after `timeout` seconds, or when `cancelled()` turns true."""
        ...


# ----------------------------------------------------------------------------------------------------
# What a call costs, by a maintained table of prices. A price that the table does not have is unknown, never zero.

SOURCE = "genai-prices"


@dataclass(slots=True, frozen=True)
class Cost:
    """A cost in US dollars and its source: the endpoint's own count or a table; `usd` is None when it is unknown."""

    usd: float | None
    source: str | None
    version: str | None
    status: Literal["actual", "estimated", "unknown"]


UNKNOWN = Cost(None, None, None, "unknown")
OWN = Cost(0.0, "own machine", None, "estimated")  # no provider bills it
_REQUEST_SECONDS = 0.3  # the libraries of a first request are loaded within this time
_FREE = ("local", "embedded", "extractive")  # kinds of models


def load() -> None:
    """Load the price table in the background while the reply is awaited, a moment after the request."""

    def work() -> None:
        with suppress(ImportError):
            import_module("genai_prices")

    if "genai_prices" not in sys.modules:
        timer = threading.Timer(_REQUEST_SECONDS, work)
        timer.name, timer.daemon = "hermes-prices", True
        timer.start()


def has_price(model: Model) -> bool:
    """Whether the table may have a price: it has none for servers on this machine or its network."""
    return model.kind not in _FREE and not (model.provider is None and is_near(model.base_url or ""))


def cost(model_name: str, provider: str | None, base_url: str | None, usage: Usage | None) -> Cost:
    """The cost of one call: as the endpoint reports it, else by the table.

    The endpoint must be in the table: the same model costs differently elsewhere.
    """
    if usage is not None and usage.cost_usd is not None:
        return Cost(usage.cost_usd, provider or "the endpoint", None, "actual")
    if usage is None or not (usage.prompt_tokens or usage.output_tokens):
        return UNKNOWN
    try:
        import genai_prices
    except ImportError:
        return UNKNOWN
    counts = genai_prices.Usage(
        input_tokens=usage.prompt_tokens,  # in that table, cached tokens are part of the input
        output_tokens=usage.output_tokens,
        cache_read_tokens=usage.cache_read_tokens or None,
        cache_write_tokens=usage.cache_write_tokens or None,
    )
    for place, value in (("provider_api_url", base_url), ("provider_id", provider)):
        if not value:
            continue
        try:
            found = genai_prices.calc_price(counts, model_name, **dict[str, Any]({place: value}))
        except (LookupError, ValueError, TypeError):
            continue
        return Cost(float(found.total_price), SOURCE, genai_prices.__version__, "estimated")
    return UNKNOWN


def price_of(model: Model, reply: Reply) -> Cost:
    """The cost by the model name in the endpoint's answer, else by the requested name."""
    if model.kind in _FREE:
        return OWN
    if not has_price(model) and (reply.usage is None or reply.usage.cost_usd is None):
        return UNKNOWN
    names = dict.fromkeys((reply.model or model.name, model.name))
    prices = [cost(name, model.provider, model.base_url, reply.usage) for name in names]
    return next((price for price in prices if price.usd is not None), UNKNOWN)


COUNTED = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens")


def usage_of(reply: Reply, price: Cost) -> dict[str, Any]:
    """Arguments of SessionDB.update_token_counts: the tokens and cost that one call adds to a session."""
    used = reply.usage or Usage()
    return {
        **{name: getattr(used, name) for name in COUNTED}, "reasoning_tokens": used.reasoning_tokens, "api_call_count": 1,
        "estimated_cost_usd": price.usd, "actual_cost_usd": price.usd if price.status == "actual" else None,
        "cost_status": price.status, "cost_source": price.source, "pricing_version": price.version,
    }  # fmt: skip


_THINKING = re.compile(r"(?is)<(think|thinking|thought|reasoning|scratchpad)\b[^>]*>.*?</\1\s*>")
_THINKING_LEFT = re.compile(r"(?is)^.*</(?:think|thinking|thought|reasoning|scratchpad)\s*>")
_THINKING_OPEN = re.compile(r"(?is)<(?:think|thinking|thought|reasoning|scratchpad)\b[^>]*>.*$")


def counted_for(db: SessionDB, session_id: str) -> AbstractContextManager[None]:
    """In this block the usage of side tasks is added to the sums of this session."""
    return metered(lambda model, reply: db.update_token_counts(session_id, **usage_of(reply, price_of(model, reply))))


def can_write(model: Model | None) -> bool:
    """Whether side tasks may go to this model.

    The extractive assistant writes nothing, and the small embedded model is reserved for the conversation itself: what it
    would write about a long text is worse than the text's own sentences, and it would delay the next reply.
    """
    return model is not None and model.kind not in ("extractive", "embedded")


def without_thinking(text: str) -> str:
    """A model's answer without the thinking text that some models include."""
    text = _THINKING_LEFT.sub("", _THINKING.sub("", text))
    return _THINKING_OPEN.sub("", text).strip()


def in_parallel(jobs: Sequence[Callable[[], str]], *, workers: int) -> list[str | Exception]:
    """Run the jobs, at most `workers` at a time; returns their answers, or errors in their places.

    A job ends by itself when it takes too long, or is cancelled (`Model.complete`).
    """

    def answer(job: Callable[[], str], context: Context) -> str | Exception:
        try:
            return context.run(job)
        except Exception as error:  # the caller decides what an error means for its part
            return error

    with ThreadPoolExecutor(max(1, workers), "hermes-side-task") as crew:
        return list(crew.map(answer, jobs, [copy_context() for _ in jobs]))
