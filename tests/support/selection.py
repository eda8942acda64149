"""Select the tests that run, and mark each as a promise or a mechanism.

Every test is a `promise` (what a user was promised, through a public door) unless its file marks it as `mechanism` (a part
inside). Tests marked `thorough` run with HERMES_TEST_SIZE=all: they prove with more programs what a quick run has proved
already, a vendor's own SDK for instance. Where their file (or one of them) is named on the command line, they run at any size.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import environments
from tests.support.sizes import THOROUGH


def _named(config: pytest.Config) -> set[Path]:
    words = [word.partition("::")[0] for word in config.args]
    return {Path(config.invocation_params.dir, word) for word in words if word.endswith(".py")}


def pytest_configure(config: pytest.Config) -> None:
    environments.installs_all = THOROUGH or bool(_named(config))


@pytest.hookimpl(tryfirst=True)  # before pytest's own, which selects by marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("mechanism") is None:
            item.add_marker(pytest.mark.promise)
    if THOROUGH:
        return
    named = _named(config)
    left_out = {item for item in items if item.get_closest_marker("thorough") and item.path not in named}
    if left_out:
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]
