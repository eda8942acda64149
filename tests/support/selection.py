"""Tests marked `thorough` run with HERMES_TEST_SIZE=all: they prove with more programs what a quick run has proved already.

A vendor's own SDK from npm or PyPI, for instance, beside an adapter that every run tries. Where their file (or one of
them) is named on the command line, they run at any size.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.sizes import THOROUGH


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if THOROUGH:
        return
    named = {Path(config.invocation_params.dir, word.partition("::")[0]) for word in config.args}
    left_out = {item for item in items if item.get_closest_marker("thorough") and item.path not in named}
    if left_out:
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]
