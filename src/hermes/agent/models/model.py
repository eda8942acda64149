"""The interface of a model: an endpoint, a local server, the embedded model, or none."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from hermes.agent.models.endpoint.servers import is_near

if TYPE_CHECKING:
    from hermes.store.records.visibility import User

REASONING = ("reasoning", "reasoning_content", "reasoning_details")  # a reply's fields, as endpoints name them
Message = Mapping[str, Any]  # an OpenAI chat message; one that was read or sent is not changed


@dataclass(slots=True)
class Usage:
    """The usage of one call, as the endpoint counted it. `input` excludes tokens read from or written to the cache."""

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0
    cost_usd: float | None = None  # what the endpoint itself says that the call cost

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
    """In this block (also in the threads of side_tasks.py) `record` gets the model and the usage of each side task."""
    token = _meter.set(record)
    try:
        yield
    finally:
        _meter.reset(token)


def side_task_done(model: Model, reply: Reply) -> None:
    """Called by a model that has answered a side task."""
    record = _meter.get()
    if record is not None:
        with suppress(Exception):  # an uncounted title is no reason to lose it
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

    def complete(self, messages: Sequence[Message], *, max_tokens: int = 1000, timeout: float | None = None) -> str:
        """One answer for a side task (title, summary); the same errors."""
        ...


@runtime_checkable
class Quotes(Protocol):
    """A model that answers with passages of the history alone."""

    def speaking_in(self, session_id: str, user: User | None) -> Model:
        """A light view for one conversation, limited to what the user may see: one model serves any number of threads."""
        ...


class ReadsLittle(Protocol):
    """A model that can't call tools and chooses what it reads of a conversation."""

    def unread(self, messages: Sequence[Message]) -> str | None:
        """A line for the user when the model reads only a part of the last message; None when it reads all of it."""
        ...


# ----------------------------------------------------------------------------------------------------
# What a call costs, by a maintained table of prices. A price that the table does not have is unknown, never zero.

SOURCE = "genai-prices"


@dataclass(slots=True, frozen=True)
class Cost:
    """US dollars and where they come from: the endpoint's own count or a table; `usd` is None when it is unknown."""

    usd: float | None
    source: str | None
    version: str | None
    status: Literal["actual", "estimated", "unknown"]


UNKNOWN = Cost(None, None, None, "unknown")
_unpriced: set[tuple[str, str]] = set()  # models and places that the table does not have; looked up once
OWN = Cost(0.0, "own machine", None, "estimated")  # no provider bills it
_REQUEST_SECONDS = 0.3  # the libraries of a first request are loaded within this time
_FREE = ("local", "embedded", "extractive")  # kinds of models


def load() -> None:
    """Load the table in the background, while the reply is awaited; a moment later, since the request goes first."""

    def work() -> None:
        with suppress(ImportError):
            import_module("genai_prices")

    if "genai_prices" not in sys.modules:
        timer = threading.Timer(_REQUEST_SECONDS, work)
        timer.name, timer.daemon = "hermes-prices", True
        timer.start()


def has_price(model: Model) -> bool:
    """Whether the table may have a price: a server on this machine or its network, of no known provider, is not in it."""
    return model.kind not in _FREE and not (model.provider is None and is_near(model.base_url or ""))


def cost(model_name: str, provider: str | None, base_url: str | None, usage: Usage | None) -> Cost:
    """The price of one call: as the endpoint says, else by the table.

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
        if not value or (model_name, value) in _unpriced:
            continue
        try:
            found = genai_prices.calc_price(counts, model_name, **dict[str, Any]({place: value}))
        except LookupError:
            _unpriced.add((model_name, value))
        except (ValueError, TypeError):
            continue
        else:
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
