"""The size of the tests: `make test` proves each promise once, HERMES_TEST_SIZE=all tries many more cases of the same ones.

Everything that depends on the size asks here: how many examples, deaths and damages, and which engines.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeVar

_SIZE = os.environ.get("HERMES_TEST_SIZE", "quick")
if _SIZE not in ("quick", "all"):
    raise SystemExit(f"HERMES_TEST_SIZE is {_SIZE!r}: it can be quick or all")

THOROUGH = _SIZE == "all"

T = TypeVar("T")


def size(quick: int, thorough: int) -> int:
    """The number for the size of this run."""
    return thorough if THOROUGH else quick


def some(cases: Sequence[T], quick: int) -> list[T]:
    """All cases, or for a quick run so many of them, spread over the list with its first and last."""
    if THOROUGH or quick >= len(cases):
        return list(cases)
    step = (len(cases) - 1) / max(1, quick - 1)
    return [cases[round(n * step)] for n in range(quick)]
