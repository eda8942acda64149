"""Fixtures of the PostgreSQL tests: a server's store, made for one test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support import postgres

from .houses import VERSIONS, House, built


@pytest.fixture
def new_store(tmp_path: Path) -> Iterator[Callable[[], str]]:
    """new_store() → the URL of an empty store; all of them are gone after the test."""
    names: list[str] = []

    def make() -> str:
        names.append(f"{tmp_path} {len(names)}")
        return postgres.server().store(names[-1])

    yield make
    for name in names:
        postgres.server().forget(name)


@pytest.fixture
def url(new_store: Callable[[], str]) -> str:
    return new_store()


@pytest.fixture(params=VERSIONS, scope="module")
def house(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """One that tests only look at."""
    with built(request.param, str(tmp_path_factory.mktemp("house"))) as made:
        yield made


@pytest.fixture(params=VERSIONS)
def fresh(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[House]:
    """One that a test changes."""
    with built(request.param, str(tmp_path)) as made:
        yield made
