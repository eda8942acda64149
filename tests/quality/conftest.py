"""These tests run once on each engine."""

from __future__ import annotations

import pytest

from tests.support.postgres import ENGINES


@pytest.fixture(scope="session", params=ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)
