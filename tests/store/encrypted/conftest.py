"""These tests run on an encrypted store (all of the contract suite does with HERMES_TEST_ENGINES=encrypted)."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session")
def engine() -> str:
    return "encrypted"
