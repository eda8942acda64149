"""Which tests run, and under which marks they are found.

Every test is a `promise` (what a user was promised, through a public door) unless its file marks it as `mechanism` (a part
inside). Tests marked `thorough` run with HERMES_TEST_SIZE=all: they prove with more programs what a quick run has proved
already, a vendor's own SDK for instance. Where their file (or one of them) is named on the command line, they run at any size.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.sizes import THOROUGH

_named: list[str] = []


def installs_all() -> bool:
    """Whether this run installs whatever programs of others its tests need."""
    return THOROUGH or bool(_named)


def pytest_configure(config: pytest.Config) -> None:
    _named[:] = [word.partition("::")[0] for word in config.args if word.partition("::")[0].endswith(".py")]


@pytest.hookimpl(tryfirst=True)  # before pytest's own, which selects by marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("mechanism") is None:
            item.add_marker(pytest.mark.promise)
    if THOROUGH:
        return
    named = {Path(config.invocation_params.dir, word) for word in _named}
    left_out = {item for item in items if item.get_closest_marker("thorough") and item.path not in named}
    if left_out:
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]
