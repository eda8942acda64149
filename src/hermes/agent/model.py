"""The interface of a model: an endpoint, a local server, the embedded model, or none."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from hermes.store.visibility import User

Message = dict[str, Any]  # an OpenAI chat message


@dataclass(slots=True)
class Usage:
    """What one call used, as the endpoint counted it. `input` excludes tokens read from or written to the cache."""

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0

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


class Model(Protocol):
    """A model that answers."""

    name: str
    kind: str  # "endpoint", "local", "embedded" or "extractive"
    context_length: int
    calls_tools: bool
    base_url: str | None
    provider: str | None

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
class LooksUp(Protocol):
    """A model that can't call tools and searches the history for the question itself."""

    def speaking_in(self, session_id: str, user: User | None) -> Model:
        """The same model for one conversation, which it leaves out of its search, limited to what the user may see.

        A light view: no mutable state is shared, so one model serves any number of conversations and threads.
        """
        ...
