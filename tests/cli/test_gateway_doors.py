"""A missing variable, port or long enough secret of one platform disables that platform, and no other."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import program
from tests.support.echo import Echo
from tests.support.gateway_process import GatewayProcess, environment
from tests.support.labs.base import until
from tests.support.labs.plain import PlainLab
from tests.support.ports import free_port

pytest.importorskip("uvicorn")
UNSET = "NO_SUCH_VARIABLE_IS_SET"


@pytest.fixture(scope="module")
def model() -> Iterator[Echo]:
    with Echo() as echo:
        yield echo


@pytest.fixture
def lab() -> Iterator[PlainLab]:
    made = PlainLab()
    yield made
    made.close()


def platforms(home: Path) -> dict[str, dict[str, Any]]:
    """The output of `hermes gateway status`, by platform."""
    done = program.run("gateway", "status", "--json", home=home, env=environment(home))
    return {one["platform"]: one for one in json.loads(done.out)["platforms"]}


def nobody_listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


@pytest.fixture
def ports() -> list[int]:
    """Two free ports."""
    return [free_port(), free_port()]


def test_a_variable_that_is_not_set_closes_its_platform_and_no_other(
    lab: PlainLab, model: Echo, hermes_home: Path, ports: list[int]
) -> None:
    with GatewayProcess(
        hermes_home, [lab], model.base_url,
        webhooks={"port": ports[0], "routes": {"push": {"secret": f"${{{UNSET}}}", "prompt": "x"}}},
        api_server={"enabled": True, "port": ports[1], "token": f"part-${{{UNSET}}}"},
        platforms={"letters": {"port": 1, "token": f"${{{UNSET}}}"}},
    ) as gateway:  # fmt: skip
        lab.say("hello")
        until(lambda: lab.shown() == ["echo: hello"])
        found = platforms(hermes_home)
        for name, key in (
            ("webhook", "webhooks.routes.push.secret"),
            ("api-server", "api_server.token"),
            ("letters", "platforms.letters.token"),
        ):
            assert found[name]["state"] == "refused"
            assert key in found[name]["error"] and UNSET in found[name]["error"]
        assert found["plain"]["state"] == "connected"
        assert nobody_listens(ports[0]) and nobody_listens(ports[1])
        assert UNSET in gateway.output()
    checks = json.loads(program.run("doctor", "--json", home=hermes_home, env=environment(hermes_home)).out)["checks"]
    wrong = [one["text"] for one in checks if one["name"] == "config" and one["state"] == "wrong"]
    assert len(wrong) == 3 and all(UNSET in text for text in wrong)


@pytest.mark.parametrize(
    ("text", "words", "key"),
    [
        (f"store: {{url: 'postgresql://u:${{{UNSET}}}@127.0.0.1:1/x'}}", ["sessions", "list"], "store.url"),
        (f"store: {{url: '${{{UNSET}}}'}}", ["sessions", "list"], "store.url"),
        (f"store: {{url: '${{{UNSET}}}'}}", ["sessions", "import", "/dev/null"], "store.url"),
        (f"privacy: {{redact_secrets: '${{{UNSET}}}'}}", ["sessions", "list"], "privacy.redact_secrets"),
        (f"model: {{default: m, base_url: 'http://127.0.0.1:9/v1', api_key: '${{{UNSET}}}'}}", ["-q", "hi"], "model.api_key"),
        (f"webhooks: {{routes: {{a: {{secret: '${{{UNSET}}}'}}}}}}", ["gateway"], "webhooks.routes.a.secret"),
        (f"{{owner: ['email:${{{UNSET}}}'], api_server: {{enabled: true, port: 0}}}}", ["gateway"], "owner.1"),
    ],
)  # fmt: skip
def test_whatever_uses_a_variable_that_is_not_set_is_refused_in_one_line(
    hermes_home: Path, text: str, words: list[str], key: str
) -> None:
    hermes_home.mkdir()
    (hermes_home / "config.yaml").write_text(text)
    done = program.run(*words, home=hermes_home, timeout=120)
    assert done.status == 1
    (line,) = done.err.strip().splitlines()
    assert line.startswith("hermes: ") and key in line and UNSET in line
    assert not (hermes_home / "state.db").exists() or "store" not in key


def test_an_empty_default_says_that_nothing_is_meant(hermes_home: Path) -> None:
    hermes_home.mkdir()
    (hermes_home / "config.yaml").write_text(f"store: {{url: '${{{UNSET}:-}}'}}")
    assert program.run("sessions", "list", home=hermes_home).status == 0


@pytest.mark.parametrize(
    "tree",
    [
        {"api_server": {"enabled": True, "host": "0.0.0.0", "port": 0, "token": "fifteen-letters"}},
        {"webhooks": {"host": "0.0.0.0", "port": 0, "routes": {"a": {"secret": "fifteen-letters"}}}},
    ],
)
@pytest.mark.parametrize("flags", [[], ["--insecure"]])
def test_a_short_secret_is_refused_where_others_can_reach_it(
    hermes_home: Path, tree: dict[str, Any], flags: list[str]
) -> None:
    hermes_home.mkdir()
    (hermes_home / "config.yaml").write_text(json.dumps({"model": {"default": "extractive"}, **tree}))
    done = program.run("gateway", *flags, home=hermes_home, timeout=120)
    assert done.status == 1
    assert "15 characters" in done.err and "fifteen-letters" not in done.err


def test_a_taken_port_never_ends_the_others_and_is_taken_when_it_is_free(
    lab: PlainLab, model: Echo, hermes_home: Path
) -> None:
    first, second = socket.socket(), socket.socket()
    for taken in (first, second):
        taken.bind(("127.0.0.1", 0))
        taken.listen()
    try:
        with GatewayProcess(
            hermes_home, [lab], model.base_url,
            webhooks={"port": first.getsockname()[1], "routes": {"push": {"prompt": "x"}}},
            api_server={"enabled": True, "port": second.getsockname()[1]},
        ):  # fmt: skip
            lab.say("hello")
            until(lambda: lab.shown() == ["echo: hello"])
            for name in ("webhook", "api-server"):
                until(lambda name=name: platforms(hermes_home)[name]["state"] == "lost")
                assert "is taken by another program" in platforms(hermes_home)[name]["error"]
            second.close()
            until(lambda: platforms(hermes_home)["api-server"]["state"] == "connected")
    finally:
        first.close()
        second.close()
