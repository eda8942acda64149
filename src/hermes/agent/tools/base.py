"""The interface of a tool, and the context it gets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hermes.errors import ToolError

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
    user: User | None = None  # the user whose sessions may be seen; None: the owner, who sees all
    state: dict[str, Any] = field(default_factory=dict)  # lives as long as the agent: background processes


@dataclass(slots=True, frozen=True)
class Tool:
    """A tool that the model can call. `run` returns the text of the result; ToolError (errors.py) is a failed result."""

    name: str
    description: str
    parameters: dict[str, Any]  # JSON Schema of the arguments
    run: Callable[[Context, dict[str, Any]], str]

    def schema(self) -> dict[str, Any]:
        """The tool's declaration for the endpoint."""
        return {
            "type": "function",
            "function": {"name": self.name, "description": self.description, "parameters": self.parameters},
        }


def text_of(arguments: dict[str, Any], name: str, default: str | None = None) -> str:
    """A text argument; without a default it is required and must not be empty."""
    value = arguments.get(name)
    if value is None:
        value = default
    if not isinstance(value, str) or (default is None and not value.strip()):
        raise ToolError(f"{name} must be a text" + (" that is not empty" if default is None else ""))
    return value


def choice_of(arguments: dict[str, Any], name: str, allowed: Sequence[str], default: str | None = None) -> str:
    """An argument that is one of a few words."""
    value = arguments.get(name, default)
    if value not in allowed:
        raise ToolError(f"{name} must be one of {', '.join(allowed)}, not {value!r}")
    return str(value)


def number_of(arguments: dict[str, Any], name: str, default: float, low: float, high: float) -> float:
    """A number argument, clamped to its bounds."""
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
    """A boolean argument; False by default."""
    value = arguments.get(name, False)
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    if value is not None and not isinstance(value, bool):
        raise ToolError(f"{name} must be true or false")
    return bool(value)
