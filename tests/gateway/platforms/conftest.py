"""The lab of a platform: one for all tests of a module, which imports it as `Lab`, and as new for each of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.labs.base import Lab


@pytest.fixture(scope="module")
def place(request: pytest.FixtureRequest) -> Iterator[Lab]:
    made: Lab = request.module.Lab()
    yield made
    made.close()


@pytest.fixture
def lab(place: Lab) -> Iterator[Lab]:
    place.reset()
    yield place
    assert place.problems() == []
