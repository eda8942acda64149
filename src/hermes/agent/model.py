"""What a model is to the rest of the program, whoever answers: an endpoint, a local server, the embedded model, or none."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from hermes.store.visibility import User

Message = Mapping[str, Any]  # an OpenAI chat message; one that was read or sent is not changed


@dataclass(slots=True)
class Usage:
    """What one call used, as the endpoint counted it. Input is what did not come from the cache or go into it."""

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
    """A whole reply. `tool_calls` are as OpenAI sends them; reasoning fields are as they came, so that they can be replayed."""

    content: str | None = None
    tool_calls: list[dict[str, Any]] = field(default_factory=list)
    finish_reason: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    reasoning_details: list[Any] | None = None
    usage: Usage | None = None
    model: str | None = None


class Model(Protocol):
    """Someone who answers."""

    name: str
    kind: str  # "endpoint", "local", "embedded" or "extractive"
    context_length: int
    calls_tools: bool
    base_url: str | None
    provider: str | None

    def describe(self) -> str:
        """One line that says plainly what this is."""
        ...

    def stream(
        self, messages: Sequence[Message], tools: Sequence[dict[str, Any]] = (), *, cancelled: Callable[[], bool]
    ) -> Iterator[Piece | Reply]:
        """Pieces as they come, then the whole Reply. When `cancelled()` turns true it ends with what there is.

        Raises ModelError (errors.py): ContextTooLong, ModelRefused, ModelUnreachable, RateLimited.
        """
        ...

    def complete(self, messages: Sequence[Message], *, max_tokens: int = 1000, timeout: float | None = None) -> str:
        """One answer for a side task (title, summary); the same errors."""
        ...


@runtime_checkable
class LooksUp(Protocol):
    """A model that can't call tools and looks the question up in the history by itself."""

    def speaking_in(self, session_id: str, user: User | None) -> Model:
        """The same model for one conversation, which is no news to it, with a user who is told what they may see.

        A light view: nothing is shared that changes, so one model serves any number of conversations and threads.
        """
        ...
