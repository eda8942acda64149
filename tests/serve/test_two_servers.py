"""Two API servers, processes of their own, on one PostgreSQL store behind a balancer that sends each request to the next one."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import cycle
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from hermes.store.api.session_db import SessionDB
from tests.support.echo import Echo
from tests.support.gateway_process import GatewayProcess
from tests.support.labs.base import until
from tests.support.ports import free_port
from tests.support.postgres import server

TOKEN = "a-token-of-some-length-for-tests"


@pytest.fixture(scope="module")
def model() -> Iterator[Echo]:
    with Echo() as echo:
        yield echo


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    yield server("18").store(__name__)
    server("18").forget(__name__)


@pytest.fixture(scope="module")
def clients(model: Echo, url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[openai.OpenAI]]:
    """OpenAI's own client for each of the two servers."""
    with SessionDB(tmp_path_factory.mktemp("first") / "state.db", url=url):
        pass  # the tables
    ports = [free_port(), free_port()]
    servers = []
    for number, port in enumerate(ports):
        home = tmp_path_factory.mktemp(f"host{number}") / "home"
        made = GatewayProcess(home, [], model.base_url, api_server={"enabled": True, "port": port, "token": TOKEN})
        made.variables = {"HERMES_STORE_URL": url}
        servers.append(made)
        made.start()
    try:
        for made, port in zip(servers, ports, strict=True):
            until(lambda made=made, port=port: made._ended() or _listens(port), "does not listen")
            assert not made._ended(), made.output()
        with ExitStack() as clients:
            yield [
                clients.enter_context(
                    openai.OpenAI(api_key=TOKEN, base_url=f"http://127.0.0.1:{port}/v1", max_retries=0)
                )
                for port in ports
            ]
    finally:
        for made in servers:
            if not made._ended():
                made.stop()


def _listens(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/health").status_code < 500
    except httpx.HTTPError:
        return False


@pytest.fixture
def db(url: str, tmp_path: Path) -> Iterator[Any]:
    with SessionDB(tmp_path / "state.db", url=url, read_only=True) as one:
        yield one


def ask(client: openai.OpenAI, text: str, session_id: str | None = None, before: Any = ()) -> tuple[str, str]:
    """The reply, and the session it was given in."""
    headers = {} if session_id is None else {"X-Hermes-Session-Id": session_id}
    answer = client.chat.completions.with_raw_response.create(
        model="echo", messages=[*before, {"role": "user", "content": text}], extra_headers=headers
    )
    return str(answer.parse().choices[0].message.content), str(answer.headers["X-Hermes-Session-Id"])


def test_a_named_conversation_goes_round_both_servers_without_a_refusal(clients: Any, db: Any) -> None:
    turn = cycle(clients)
    reply, session_id = ask(next(turn), "n0")
    assert reply == "echo: n0"
    for number in range(1, 8):
        assert ask(next(turn), f"n{number}", session_id) == (f"echo: n{number}", session_id)
    assert [row["content"] for row in db.get_messages(session_id)] == [
        text for number in range(8) for text in (f"n{number}", f"echo: n{number}")
    ]


def test_a_conversation_that_is_recognised_stays_in_its_session_on_both_servers(clients: Any, db: Any) -> None:
    said: list[dict[str, str]] = []
    sessions = set()
    for number, client in zip(range(6), cycle(clients), strict=False):
        text = f"recognised {number}"
        reply, session_id = ask(client, text, before=said)
        said += [{"role": "user", "content": text}, {"role": "assistant", "content": reply}]
        sessions.add(session_id)
    assert len(sessions) == 1
    assert [row["content"] for row in db.get_messages(sessions.pop())] == [one["content"] for one in said]


def test_a_turn_that_runs_on_the_other_server_is_not_disturbed(clients: Any, db: Any, model: Echo) -> None:
    _, session_id = ask(clients[0], "the first")
    replies: list[str] = []
    slow = threading.Thread(target=lambda: replies.append(ask(clients[0], "pause=2 slowly", session_id)[0]))
    slow.start()
    until(lambda: any("slowly" in str(one) for one in model.requests), "the turn does not begin")
    with pytest.raises(openai.ConflictError):
        ask(clients[1], "meanwhile", session_id)
    slow.join(120)
    assert ask(clients[1], "after that", session_id)[0] == "echo: after that"
    texts = [row["content"] for row in db.get_messages(session_id)]
    assert [text for text in texts if not text.startswith("echo:")] == ["the first", "pause=2 slowly", "after that"]
    assert texts[3].startswith("echo:") and texts[4] == "after that" and len(texts) == 6


def test_a_session_that_a_terminal_has_open_is_still_refused(clients: Any, url: str, tmp_path: Path) -> None:
    _, session_id = ask(clients[0], "hello there")
    with SessionDB(tmp_path / "state.db", url=url) as other:
        until(lambda: other.session_holder(session_id) is None, "it is not given back")
        token = other.hold_session(session_id, "elsewhere:1:abc:cli")
        assert token is not None
        with pytest.raises(openai.ConflictError):
            ask(clients[1], "and now", session_id)
        other.release_lease(f"session:{session_id}", token)
    assert ask(clients[1], "and now", session_id)[0] == "echo: and now"
