"""Checking what callers send, with complaints that name the place: `messages[2].content` is not what it should be."""

from __future__ import annotations

import re
from typing import Any, TypeVar

import msgspec

from hermes.serve.problems import Problem

Kind = TypeVar("Kind")
_PLACE = re.compile(r" - at `(?:key in )?\$\.?([^`]*)`$")
_TOOL_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")


class Shape(msgspec.Struct, kw_only=True):
    """Something in a request. Fields nobody here knows are accepted and have no effect."""


def checked(value: Any, kind: type[Kind]) -> Kind:
    """A value as this shape; Problem 400 that names what does not fit."""
    if not isinstance(value, dict):
        raise Problem(400, "the body of the request must be a JSON object")
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        text = str(error)
        place = _PLACE.search(text)
        missing = re.search(r"missing required field `([^`]*)`", text)
        param = place[1] if place else ""
        if missing:
            param = f"{param}.{missing[1]}" if param else missing[1]
        said = _PLACE.sub("", text).replace("`", "'")
        raise Problem(
            400, f"{said}{f' ({param})' if param else ''}", param=param or None, code="invalid_type"
        ) from None


def tool_name(name: str, where: str) -> str:
    """A tool's name, if endpoints accept it."""
    if not _TOOL_NAME.fullmatch(name):
        raise Problem(400, f"{name[:80]!r} can't be the name of a tool: letters, digits, _, - and .", param=where)
    return name


def part_text(part: dict[str, Any], where: str) -> str:
    """The text of a part that must have one."""
    text = part.get("text")
    if not isinstance(text, str):
        raise Problem(400, "a part of this type needs a text", param=f"{where}.text")
    return text
