"""Fixtures of the tests in which a vendor's SDK talks to our lab: the lab of the module, and what goes over the wire to it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.wiretap import Wiretap


@pytest.fixture(scope="module")
def place(request: pytest.FixtureRequest) -> Iterator[tuple[Any, Wiretap]]:
    """The `Lab` that the module names, and a proxy in front of it."""
    lab = request.module.Lab()
    tap = Wiretap(lab.port)
    yield lab, tap
    tap.close()
    lab.close()


@pytest.fixture
def lab(place: tuple[Any, Wiretap]) -> Iterator[Any]:
    """The lab as new; at the end, it has refused nothing it should not have."""
    place[0].reset()
    yield place[0]
    assert place[0].problems() == []


@pytest.fixture
def tap(place: tuple[Any, Wiretap], lab: Any) -> Wiretap:
    """The proxy, which has seen nothing yet."""
    place[1].forget()
    return place[1]
