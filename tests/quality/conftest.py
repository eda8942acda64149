"""These tests run once on each engine; a quick run asks SQLite alone: both find the same (tests/postgres/test_ways.py)."""

from __future__ import annotations

import pytest

from tests.support.postgres import ENGINES
from tests.support.sizes import some


@pytest.fixture(scope="session", params=some(ENGINES, 1))
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)
