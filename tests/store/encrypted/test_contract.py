"""A part of the contract on an encrypted store: what is written, exported, brought in, deleted and found again."""

from __future__ import annotations

from tests.contract.test_export_import import *  # noqa: F403
from tests.contract.test_parts import *  # noqa: F403
from tests.contract.test_trash import *  # noqa: F403
