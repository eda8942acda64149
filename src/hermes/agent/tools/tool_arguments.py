"""Checking what a model passes to a tool: each argument where the tool reads it.

Models write numbers and booleans as text at times; where the meaning is plain, a tool takes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hermes.errors import ToolError


def text_argument(arguments: dict[str, Any], name: str, default: str | None = None) -> str:
    """A text argument; without a default it is required and must not be empty."""
    value = arguments.get(name)
    if value is None:
        value = default
    if not isinstance(value, str) or (default is None and not value.strip()):
        raise ToolError(f"{name} must be a text" + (" that is not empty" if default is None else ""))
    return value


def choice_argument(arguments: dict[str, Any], name: str, allowed: Sequence[str], default: str | None = None) -> str:
    """An argument that is one of a few words."""
    value = arguments.get(name, default)
    if value not in allowed:
        raise ToolError(f"{name} must be one of {', '.join(allowed)}, not {value!r}")
    return str(value)


def number_argument(arguments: dict[str, Any], name: str, default: float, low: float, high: float) -> float:
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


def flag_argument(arguments: dict[str, Any], name: str) -> bool:
    """A boolean argument; False by default."""
    value = arguments.get(name, False)
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    if value is not None and not isinstance(value, bool):
        raise ToolError(f"{name} must be true or false")
    return bool(value)
