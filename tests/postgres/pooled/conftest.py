"""These tests run on PostgreSQL behind PgBouncer (all of the contract suite does with HERMES_TEST_ENGINES=pgbouncer)."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session")
def engine() -> str:
    return "pgbouncer"
