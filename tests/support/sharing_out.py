"""Share tests out among the processes of pytest-xdist: those that need one server, or what their file prepares, go to one process.

A file is a unit, so that what it prepares for all its tests is made once. The tests of a platform with a real server are
one unit, wherever they stand: each process that ran one of them would start a Synapse (or the like) of its own. Files
whose tests take long and share nothing are given out test by test. What takes longest begins first.
"""

from __future__ import annotations

from typing import Any

import pytest

_SERVERS = ("matrix", "homeassistant", "email", "signal")
_CONFORMANCE = "tests/gateway/test_conformance.py"
# files of which each test is a unit, and then whole files, in the order they begin
_ALONE = (
    "tests/gateway/test_load.py",
    "tests/gateway/test_handoff.py",
    "tests/gateway/test_crash.py",
    "tests/chat/test_talking.py",
)
_EARLY = (
    "platform",
    _CONFORMANCE,
    *_ALONE,
    "tests/faults/",
    "tests/postgres/",
    "tests/chat/",
    "tests/agent/test_embedded.py",
    "tests/agent/tools/test_mcp.py",
    "tests/docs/",
    "tests/serve/test_web_browser.py",
    "tests/store/test_migrations.py",
    "tests/quality/",
    "tests/cli/test_main.py",
)


def unit(nodeid: str) -> str:
    """The unit a test belongs to."""
    file, _, test = nodeid.partition("::")
    if file == _CONFORMANCE:
        platform = test.rpartition("[")[2].rstrip("]").partition("-")[0]
        return f"platform {platform}" if platform in _SERVERS else f"{file} {platform}"
    for name in _SERVERS:
        if file.endswith(f"/test_{name}.py") or file.startswith(f"tests/gateway/platforms/test_{name}_"):
            return f"platform {name}"
    return nodeid if file in _ALONE else file


def _place(unit: str) -> int:
    return next((n for n, start in enumerate(_EARLY) if unit.startswith(start)), len(_EARLY))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):  # units are given out in the order of their first tests
        items.sort(key=lambda item: _place(unit(item.nodeid)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    if config.getoption("dist") != "loadscope":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class Units(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return unit(nodeid)

    config.option.loadscopereorder = False
    return Units(config, log)
