"""These tests run once on each engine.

A quick run tries every case of a test on SQLite, and a few of them on the server: what reads and checks the cases is the
same code. Named by itself (file::test, -k), a test runs with all its cases.
"""

from __future__ import annotations

from collections import defaultdict

import pytest

from tests.support.postgres import ENGINES
from tests.support.sizes import THOROUGH, some

_ON_A_SERVER = 4  # cases of a test


@pytest.fixture(scope="session", params=ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if THOROUGH or config.option.keyword or any("::" in word for word in config.args):
        return
    cases: dict[tuple[str, str], list[pytest.Item]] = defaultdict(list)
    for item in items:
        parameters = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
        engine = str(parameters.get("engine", ""))
        if item.path.parent.name == "contract" and engine.startswith("postgres"):
            cases[engine, item.nodeid.partition("[")[0]].append(item)
    left_out = {one for all_ in cases.values() for one in set(all_) - set(some(all_, _ON_A_SERVER))}
    if left_out:
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]
