"""`hermes gateway` as a process: started, talked to, looked at, stopped, killed, started again."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from hermes.store.api.session_db import SessionDB
from tests.gateway.platforms import conftest as fixtures
from tests.support import program
from tests.support.echo import Echo
from tests.support.labs.base import until
from tests.support.labs.telegram import Lab

pytest.importorskip("telegram")
WRONG = "4242:wrong-0123456789abcdef0123456789abcdef"


@pytest.fixture(scope="module")
def model() -> Iterator[Echo]:
    with Echo() as echo:
        yield echo


lab, place = fixtures.lab, fixtures.place


def configure(home: Path, lab: Lab, model: Echo, *, telegram: dict[str, Any] | None = None, **more: Any) -> None:
    home.mkdir(mode=0o700, exist_ok=True)
    section = {**lab.settings, "allowed_users": [lab.user_id("alice"), int(lab.user_id("bob"))], **(telegram or {})}
    tree = {
        "model": {"default": "echo", "base_url": model.base_url},
        "owner": [f"telegram:{lab.user_id('alice')}"],
        "platforms": {"telegram": section},
        **more,
    }
    (home / "config.yaml").write_text(yaml.safe_dump(tree))


def status(home: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(program.run("gateway", "status", "--json", home=home).out)
    return found


def state(home: Path, platform: str = "telegram") -> str:
    return str(next(one["state"] for one in status(home)["platforms"] if one["platform"] == platform))


@contextmanager
def gateway(home: Path, *words: str, connected: bool = True) -> Iterator[subprocess.Popen[str]]:
    """A running `hermes gateway`; its output goes to files, so that it never waits for a reader."""
    with (home / "gateway.out").open("a") as out:
        process = program.start("gateway", *words, home=home, stdout=out, stderr=out)
    try:
        if connected:
            until(lambda: process.poll() is not None or state(home) == "connected")
            assert process.poll() is None, (home / "gateway.out").read_text()
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(120)


def said(home: Path) -> str:
    return (home / "gateway.out").read_text()


def test_start_talk_look_and_stop(lab: Lab, model: Echo, hermes_home: Path) -> None:
    configure(hermes_home, lab, model)
    with gateway(hermes_home) as process:
        lab.say("hello from the phone")
        until(lambda: lab.shown() == ["echo: hello from the phone"], said(hermes_home))
        found = status(hermes_home)
        assert (found["running"], found["process"], found["host"]) == (True, process.pid, socket.gethostname())
        (one,) = found["platforms"]
        assert (one["platform"], one["identity"], one["sessions"], one["waiting"], one["unsent"], one["error"]) == (
            "telegram", "@hermes_lab_bot", 1, 0, 0, None,
        )  # fmt: skip
        looked = program.run("gateway", "status", home=hermes_home)
        assert looked.status == 0
        assert f"The gateway runs (process {process.pid} on " in looked.out
        assert "@hermes_lab_bot" in looked.out
        ended = program.run("gateway", "stop", home=hermes_home)
        assert (ended.status, ended.out) == (0, "The gateway has stopped.\n")
        assert process.wait(120) == 0
    assert "nothing was lost" in said(hermes_home)
    assert lab.token not in said(hermes_home)
    looked = program.run("gateway", "status", home=hermes_home)
    assert looked.status == 1
    assert "No gateway is running" in looked.out
    assert state(hermes_home) == "stopped"
    nothing = program.run("gateway", "stop", home=hermes_home)
    assert (nothing.status, nothing.err) == (1, "hermes: no gateway is running; `hermes gateway` starts it\n")
    with SessionDB(hermes_home / "state.db") as db:
        assert db.check() == []


def test_a_second_gateway_is_refused_with_one_line(lab: Lab, model: Echo, hermes_home: Path) -> None:
    configure(hermes_home, lab, model)
    with gateway(hermes_home) as process:
        second = program.run("gateway", home=hermes_home)
        assert second.status == 1
        assert f"hermes: a gateway is already running (process {process.pid} on " in second.err
        assert "hermes gateway stop" in second.err
        assert "Traceback" not in second.err
        lab.say("still there?")
        until(lambda: lab.shown() == ["echo: still there?"])


def test_a_killed_gateway_is_replaced_at_once_and_its_turn_taken_up(lab: Lab, model: Echo, hermes_home: Path) -> None:
    configure(hermes_home, lab, model, display={"busy": "queue"})  # else "meanwhile" may end the turn before it asks
    with gateway(hermes_home) as process:
        lab.say("slow=20 " + "take your time " * 10)
        until(lambda: any("slow" in str(one["messages"][-1]) for one in model.requests))
        process.kill()
        process.wait(120)
        assert not status(hermes_home)["running"]  # though its lease has not run out
        lab.say("meanwhile")
    model.requests.clear()
    model.hurry = True
    with gateway(hermes_home) as process:
        assert status(hermes_home)["process"] == process.pid
        until(lambda: any("echo: meanwhile" in text for text in lab.shown()), str(lab.shown()))
        assert any("slow=20" in str(one["messages"][-1]) for one in model.requests)
    model.hurry = False
    with SessionDB(hermes_home / "state.db") as db:
        (row,) = db.list_sessions_rich()
        users = [m["content"] for m in db.get_messages(row["id"]) if m["role"] == "user"]
        assert [text.split()[0] for text in users] == ["slow=20", "meanwhile"]


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_asked_to_end_in_the_middle_of_a_turn_it_ends_soon_and_goes_on_later(
    lab: Lab, model: Echo, hermes_home: Path, how: signal.Signals
) -> None:
    configure(hermes_home, lab, model)
    model.requests.clear()
    with gateway(hermes_home) as process:
        lab.say("slow=60 a long story " + "word " * 30)
        until(lambda: any("slow" in str(one["messages"][-1]) for one in model.requests))
        process.send_signal(how)
        assert process.wait(120) == 0
    model.requests.clear()
    with gateway(hermes_home):
        until(lambda: any("slow" in str(one["messages"][-1]) for one in model.requests))
    with SessionDB(hermes_home / "state.db") as db:
        (row,) = db.list_sessions_rich()
        assert sum(m["role"] == "user" for m in db.get_messages(row["id"])) == 1


def test_a_wrong_token_is_told_by_status_and_never_shown(lab: Lab, model: Echo, hermes_home: Path) -> None:
    configure(hermes_home, lab, model, telegram={"token": WRONG})
    with gateway(hermes_home, "--verbose", connected=False) as process:
        until(lambda: state(hermes_home) == "refused", said(hermes_home))
        looked = program.run("gateway", "status", home=hermes_home, width=80)
        assert looked.status == 0
        assert "refused" in looked.out
        assert "token" in looked.out
        assert max(map(len, looked.out.splitlines())) <= 80
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 0
    everything = looked.out + said(hermes_home) + (hermes_home / "logs" / "gateway.jsonl").read_text()
    assert WRONG not in everything
    assert WRONG.partition(":")[2] not in everything


def test_the_servers_run_beside_the_platforms(lab: Lab, model: Echo, hermes_home: Path) -> None:
    pytest.importorskip("uvicorn")
    route = {"secret": "a-secret-of-a-route", "prompt": "somebody pushed", "deliver": "log"}
    configure(
        hermes_home, lab, model, api_server={"enabled": True, "port": 0, "token": "a-token-of-the-server"},
        webhooks={"port": 0, "routes": {"push": route}},
    )  # fmt: skip
    import httpx

    with gateway(hermes_home):
        found = {one["platform"]: one for one in status(hermes_home)["platforms"]}
        assert set(found) == {"telegram", "webhook", "api-server"}
        until(lambda: {one["state"] for one in status(hermes_home)["platforms"]} == {"connected"})
        found = {one["platform"]: one for one in status(hermes_home)["platforms"]}
        address = found["api-server"]["identity"]
        refused = httpx.get(f"{address}/models")
        assert refused.status_code == 401
        asked = httpx.get(f"{address}/models", headers={"Authorization": "Bearer a-token-of-the-server"})
        assert asked.status_code == 200
        hook = httpx.post(found["webhook"]["identity"], json={"zen": "practice"})
        assert hook.status_code in (400, 401, 403)
        lab.say("and telegram")
        until(lambda: lab.shown() == ["echo: and telegram"])
    log = (hermes_home / "logs" / "gateway.jsonl").read_text() + said(hermes_home)
    assert "a-secret-of-a-route" not in log
    assert "a-token-of-the-server" not in log


@pytest.mark.parametrize(
    ("tree", "words"),
    [
        ({}, ["no platform is enabled", "hermes gateway setup"]),
        ({"platforms": {"telegram": {"enabled": False}}}, ["no platform is enabled"]),
        ({"platforms": {"telegramm": {"token": "x"}}}, ["telegramm", "did you mean telegram"]),
        ({"platforms": {"telegram": {"tokn": "x"}}}, ["platforms.telegram.tokn", "did you mean token"]),
        ({"platforms": {"telegram": {}}}, ["platforms.telegram.token is missing", "TELEGRAM_BOT_TOKEN", "setup telegram"]),
        ({"platforms": {"email": {"address": "a@b.example", "password": "x", "imap_host": "h", "smtp_host": "h", "imap_port": "abc"}}}, ["imap_port", "a whole number"]),
        ({"platforms": {"telegram": {"token": "x", "webhook_url": "https://a.example"}}}, ["webhook_secret"]),
        ({"platforms": {"telegram": {"token": "x", "allowed_users": ["*"]}}}, ["allow_all: true"]),
        ({"api_server": {"enabled": True, "host": "0.0.0.0"}}, ["token", "--insecure"]),
        ({"webhooks": {"host": "0.0.0.0", "routes": {"a": {"prompt": "x"}}}}, ["secret"]),
    ],
)  # fmt: skip
def test_what_is_wrong_in_the_configuration_is_one_line_with_a_hint(
    hermes_home: Path, tree: dict[str, Any], words: list[str]
) -> None:
    hermes_home.mkdir()
    (hermes_home / "config.yaml").write_text(yaml.safe_dump({"model": {"default": "extractive"}, **tree}))
    variables = {name: "" for name in os.environ if name.startswith("TELEGRAM_")}
    done = program.run("gateway", home=hermes_home, env=variables, timeout=120)
    assert done.status == 1
    last = done.err.strip().splitlines()[-1]
    assert last.startswith("hermes: ")
    for word in words:
        assert word in last
    assert "Traceback" not in done.err


def test_status_without_anything_set_up(hermes_home: Path) -> None:
    looked = program.run("gateway", "status", home=hermes_home)
    assert looked.status == 1
    assert "No gateway is running" in looked.out
    assert "hermes gateway setup" in looked.out
    assert status(hermes_home)["platforms"] == []


def test_status_says_what_is_lost_while_no_gateway_is_connected(hermes_home: Path) -> None:
    hermes_home.mkdir()
    platforms = {"signal": {"account": "+491"}, "wecom": {"accounts": {"work": {}}}, "telegram": {"token": "x"}}
    (hermes_home / "config.yaml").write_text(yaml.safe_dump({"platforms": platforms}))
    SessionDB(hermes_home / "state.db").close()
    shown = program.run("gateway", "status", home=hermes_home).out
    assert "signal: while no gateway is connected" in shown and "--receive-mode=on-connection" in shown
    assert "wecom/work: what people write while no gateway is connected is lost" in shown
    assert "telegram: " not in shown
    told = {one["platform"]: bool(one["lost_while_down"]) for one in status(hermes_home)["platforms"]}
    assert told == {"signal": True, "wecom/work": True, "telegram": False}
