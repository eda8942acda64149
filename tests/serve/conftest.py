"""Fixtures of the server tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hermes.agent.models.endpoint import EndpointModel
from hermes.agent.tools.tool import Toolbox
from hermes.config import Auxiliary, Config
from hermes.serve.api.app import api_app
from hermes.serve.api.turns import ServedAgent
from hermes.serve.http import HttpServer
from tests.serve.running import NOBODY, Loop, Served
from tests.support.browser import Browser
from tests.support.echo import Echo
from tests.support.page import Page, fill, talkative


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests to servers of the test take no proxy."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")


@pytest.fixture(scope="module")
def model() -> Iterator[Echo]:
    with Echo() as echo:
        yield echo


@pytest.fixture(scope="module")
def home(model: Echo, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with some conversations, where that model answers."""
    home = tmp_path_factory.mktemp("page") / "home"
    talkative(home, model.base_url)
    fill(home)
    return home


@pytest.fixture(scope="module")
def page(home: Path) -> Iterator[Page]:
    with Page(home) as page:
        yield page


@pytest.fixture(scope="module")
def window(page: Page) -> Iterator[Browser]:
    with Browser() as browser:
        browser.open(page.link, 1280)
        yield browser


@pytest.fixture
def browser(window: Browser) -> Iterator[Browser]:
    """A browser that came by the link; at the end, the page has complained about nothing."""
    window.value("localStorage.clear()")  # the drafts of other tests
    yield window
    assert window.problems() == []


@pytest.fixture
def loop() -> Iterator[Loop]:
    made = Loop()
    yield made
    made.close()


@pytest.fixture
def serve(
    loop: Loop, make_db: Callable[..., Any], hermes_home: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Served]]:
    """serve(model_server, …) → a running API server whose agent asks that model."""
    monkeypatch.setattr(ServedAgent, "first_wait", 0.01)
    running: list[Served] = []

    def start(
        server: Any,
        *,
        db: Any = None,
        token: str | None = None,
        tools: Any = (),
        config: Config | None = None,
        **more: Any,
    ) -> Served:
        config = config or Config()
        config.auxiliary.title = Auxiliary(model="nobody", base_url=NOBODY)  # the model hears only what the test says
        model = more.pop("model", None) or EndpointModel("fake", server.base_url, "key", 100_000, timeout=60)
        db = db if db is not None else make_db()
        app = api_app(
            db,
            config,
            model=model,
            home=hermes_home,
            token=token,
            tools=Toolbox(config).tools if tools is None else lambda: list(tools),
            **more,
        )
        http = HttpServer(app, "127.0.0.1", 0)
        loop.run(http.start())
        running.append(Served(loop, http, db, config))
        return running[-1]

    yield start
    for one in running:
        one.close()
