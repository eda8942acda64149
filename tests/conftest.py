"""Fixtures of every test: a home of its own, and a way to open fresh stores.

Stores are SQLite files, but where a folder's conftest says otherwise: the contract suite and the search-quality set run
once per name in ENGINES (HERMES_TEST_ENGINES=sqlite,… runs these and no others; pgbouncer is PostgreSQL behind a pooler).
How much a test does is chosen in tests/support/sizes.py.
"""

from __future__ import annotations

import asyncio
import gc
import inspect
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings

from hermes.agent.models.servers import PROVIDERS
from tests.support.sizes import THOROUGH
from tests.support.stores import FILES, opener, server_of

pytest_plugins = [
    "tests.support.leftovers",
    "tests.support.selection",
    "tests.support.sharing_out",
]

# Hundreds of processes load the same modules: what Python compiled is kept, in every process of the run.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# No key of the developer's and no model server on their machine takes part in a test.
for _name in ("OPENAI_BASE_URL", "HERMES_MODEL", "OLLAMA_HOST"):
    os.environ.pop(_name, None)
for _provider in PROVIDERS.values():
    for _name in _provider.variables:
        os.environ.pop(_name, None)
os.environ["HERMES_NO_LOCAL"] = "1"

# Started in the background, a process ignores Ctrl-C, and so do all it starts: some tests press it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Fixtures are shared by the examples of one test on purpose: each example makes its own session.
_COMMON: dict[str, Any] = {
    "deadline": None,
    "suppress_health_check": [
        HealthCheck.function_scoped_fixture,
        HealthCheck.too_slow,
        HealthCheck.data_too_large,
        HealthCheck.large_base_example,
    ],
}
# The same examples each time: what lands must not depend on luck. "dev" looks for new ones. A failing example is printed
# as it was found: making it smaller can take minutes. "shrink" finds the same one as "ci" and makes it smaller.
_CI: dict[str, Any] = {"max_examples": 200, "derandomize": True, "print_blob": True, **_COMMON}
_AS_FOUND = (Phase.explicit, Phase.reuse, Phase.generate)
settings.register_profile("dev", max_examples=12, phases=_AS_FOUND, **_COMMON)
settings.register_profile("ci", phases=_AS_FOUND, **_CI)
settings.register_profile("shrink", **_CI)
settings.load_profile(os.environ.get("HERMES_HYPOTHESIS_PROFILE", "ci" if THOROUGH else "dev"))


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """A test that is a coroutine runs on an event loop of its own, and fails when it hangs."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None

    async def limited() -> None:
        async with asyncio.timeout(600):
            await pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames})

    asyncio.run(limited())
    return True


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Reading the tests makes a million objects that stay: no garbage is looked for among them, then or at any time later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(autouse=True)
def hermes_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No test can touch a real home."""
    home = tmp_path / "home"
    monkeypatch.setenv("HERMES_HOME", str(home))
    return home


@pytest.fixture(scope="session")
def engine() -> str:
    return "sqlite"


@pytest.fixture
def open_store(engine: str) -> Callable[..., Any]:
    """open_store(folder, **kw) → the store of that folder on this engine.

    Made for each test: a folder's own `engine` is another fixture, which pytest does not see when it keeps this one.
    """
    return opener(engine)


@pytest.fixture
def make_db(engine: str, open_store: Callable[..., Any], tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """make_db(**kw) → a fresh SessionDB; the same `name=` opens the same store again; all are closed."""
    opened: list[Any] = []
    folders: set[Path] = set()

    def make(name: str | None = None, **kw: Any) -> Any:
        folder = tmp_path / (f"store-{name}" if name is not None else f"fresh-{len(opened)}")
        folders.add(folder)
        db = open_store(folder, **kw)
        opened.append(db)
        return db

    yield make
    for db in reversed(opened):
        db.close()
    for folder in folders if engine not in FILES else ():
        server_of(engine).forget(str(folder))


@pytest.fixture
def db(make_db: Callable[..., Any]) -> Any:
    return make_db()


@pytest.fixture
def sqlite_only(engine: str) -> None:
    """For the few promises that are about the file itself."""
    if engine != "sqlite":
        pytest.skip("a promise about the SQLite file")
