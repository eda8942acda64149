"""The parts of the contract that lie on transactions and locks, behind a pooler."""

from __future__ import annotations

from tests.contract.test_leases import *  # noqa: F403
from tests.contract.test_threads import *  # noqa: F403
