"""What a tool is, and what it may use."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hermes.errors import ToolError

STOPPED, DECLINED, TIMED_OUT, FAILED = "stopped", "declined", "timed out", "failed"

if TYPE_CHECKING:
    from hermes.config import Config
    from hermes.store.db import SessionDB
    from hermes.store.visibility import User


@dataclass(slots=True)
class Context:
    """What a tool gets besides its arguments."""

    db: SessionDB
    config: Config
    session_id: str
    home: Path
    cwd: Path
    confirm: Callable[[str], bool]  # asks the user about one thing, in one line; False means no
    cancelled: Callable[[], bool]
    user: User | None = None  # whose sessions may be seen; None: the owner's, all
    state: dict[str, Any] = field(default_factory=dict)  # lives as long as the agent: background processes


class Unsuccessful(str):
    """The text of a result that is no success; `outcome` says in a word or two how it ended, for the user's screen."""

    __slots__ = ("outcome",)
    outcome: str

    def __new__(cls, text: str, outcome: str) -> Unsuccessful:
        made = super().__new__(cls, text)
        made.outcome = outcome
        return made


@dataclass(slots=True, frozen=True)
class Tool:
    """A thing the model can call. `run` returns the text of the result; ToolError (errors.py) is a failed result.

    An `Unsuccessful` text is a result the model gets as it is, of something that ran and did not succeed.
    """

    name: str
    description: str
    parameters: dict[str, Any]  # JSON Schema of the arguments
    run: Callable[[Context, dict[str, Any]], str]

    def schema(self) -> dict[str, Any]:
        """The tool as the endpoint is told of it."""
        return {
            "type": "function",
            "function": {"name": self.name, "description": self.description, "parameters": self.parameters},
        }


def text_of(arguments: dict[str, Any], name: str, default: str | None = None) -> str:
    """A text; without a default it must be there and not be empty."""
    value = arguments.get(name)
    if value is None:
        value = default
    if not isinstance(value, str) or (default is None and not value.strip()):
        raise ToolError(f"{name} must be a text" + (" that is not empty" if default is None else ""))
    return value


def choice_of(arguments: dict[str, Any], name: str, allowed: Sequence[str], default: str | None = None) -> str:
    """One of a few words."""
    value = arguments.get(name, default)
    if value not in allowed:
        raise ToolError(f"{name} must be one of {', '.join(allowed)}, not {value!r}")
    return str(value)


def number_of(arguments: dict[str, Any], name: str, default: float, low: float, high: float) -> float:
    """A number, brought between its bounds."""
    value = arguments.get(name)
    if value is None:
        return default
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            pass
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        raise ToolError(f"{name} must be a number")
    return float(min(max(value, low), high))


def flag_of(arguments: dict[str, Any], name: str) -> bool:
    """Yes or no; no when it is not said."""
    value = arguments.get(name, False)
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    if value is not None and not isinstance(value, bool):
        raise ToolError(f"{name} must be true or false")
    return bool(value)
