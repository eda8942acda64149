"""A store that answers late holds up the message that needs it, and nothing else in the gateway."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import psycopg
import pytest

from tests.support.echo import Echo
from tests.support.gateway_process import GatewayProcess
from tests.support.labs.base import until
from tests.support.labs.plain import PlainLab
from tests.support.ports import free_port
from tests.support.postgres import server


@pytest.fixture
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    name = request.node.nodeid
    yield server("18").store(name)
    server("18").forget(name)


def answers(address: str) -> bool:
    try:
        return httpx.get(address, timeout=5).status_code == 200
    except httpx.HTTPError:
        return False


@pytest.mark.parametrize(
    ("table", "who", "where"), [("gateway_people", "mallory", "dm"), ("gateway_routes", "alice", "group")]
)
def test_other_callers_are_answered_while_a_message_waits_for_the_store(
    url: str, lab: PlainLab, hermes_home: Path, table: str, who: str, where: str
) -> None:
    port = free_port()
    with Echo() as model:
        gateway = GatewayProcess(hermes_home, [lab], model.base_url, api_server={"enabled": True, "port": port})
        gateway.variables = {"HERMES_STORE_URL": url}
        with gateway, psycopg.connect(url) as lock, psycopg.connect(url, autocommit=True) as look:
            until(lambda: answers(f"http://127.0.0.1:{port}/health"))
            lock.execute(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE")
            lab.say("hello", where=where, who=who)
            query = "SELECT 1 FROM pg_locks WHERE relation = %s::regclass AND NOT granted"
            until(lambda: look.execute(query, (table,)).fetchone(), "the message does not wait for the store")
            assert answers(f"http://127.0.0.1:{port}/health")
            lock.rollback()
            until(lambda: lab.shown(where=where, who=who))
