"""Checking what a model passes to a tool: all of it by the tool's schema, then each argument where the tool reads it.

Models write numbers and booleans as text at times; where the meaning is plain, a tool takes them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from hermes.errors import ToolError

_KINDS: dict[str, tuple[type, ...]] = {
    "string": (str,), "integer": (int,), "number": (int, float), "boolean": (bool,), "array": (list,), "object": (dict,),
}  # fmt: skip


def misfit(arguments: dict[str, Any], schema: Mapping[str, Any], name: str) -> str | None:
    """What is wrong with arguments by their schema: a missing one, or one of the wrong type."""
    missing = [key for key in schema.get("required") or () if key not in arguments]
    if missing:
        return f"{name} needs {', '.join(map(str, missing))}"
    properties = schema.get("properties")
    for key, value in arguments.items():
        described = properties.get(key) if isinstance(properties, Mapping) else None
        kind = described.get("type") if isinstance(described, Mapping) else None
        kinds = _KINDS.get(kind) if isinstance(kind, str) else None
        if kinds is None or value is None:
            continue
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            return f"{key} of {name} must be of type {kind}, not {json.dumps(value, ensure_ascii=False)[:80]}"
    return None


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
