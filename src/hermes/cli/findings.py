"""One line of `hermes doctor`: what it is about, how it stands, and what to do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check found."""

    name: str
    state: str  # "well", "remark" or "wrong"
    text: str
    hint: str = ""


Found = Iterator[Finding]


def well(name: str, text: str) -> Finding:
    """All is as it should be."""
    return Finding(name, "well", text)


def remark(name: str, text: str, hint: str) -> Finding:
    """It works, but deserves a look."""
    return Finding(name, "remark", text, hint)


def wrong(name: str, text: str, hint: str) -> Finding:
    """It keeps something from working."""
    return Finding(name, "wrong", text, hint)
