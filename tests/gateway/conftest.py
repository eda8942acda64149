"""A model that says back what it was told, and the plainest platform. A file with another `lab` or `model` has its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.echo import Echo
from tests.support.labs.plain import ForgetfulLab, LettersLab, PlainLab


@pytest.fixture
def model() -> Iterator[Echo]:
    with Echo() as echo:
        yield echo


@pytest.fixture
def lab() -> Iterator[PlainLab]:
    made = PlainLab()
    yield made
    made.close()


@pytest.fixture
def plain() -> Iterator[PlainLab]:
    """The plainest platform, where `lab` is several."""
    made = PlainLab()
    yield made
    made.close()


@pytest.fixture
def forgetful() -> Iterator[ForgetfulLab]:
    made = ForgetfulLab()
    yield made
    made.close()


@pytest.fixture
def letters() -> Iterator[LettersLab]:
    made = LettersLab()
    yield made
    made.close()
