"""`hermes doctor` about the gateway: each platform's library, token, people and home, in lines that tell what to do."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from hermes.gateway.chats.access import welcome
from hermes.store.api.session_db import SessionDB
from hermes.store.gateway import approvals
from hermes.store.gateway.gateway_db import GatewayDB
from tests.support import program
from tests.support.labs.telegram import Lab

pytest.importorskip("telegram")
QUIET = {
    "HERMES_NO_LOCAL": "1",
    "OPENAI_API_KEY": "",
    "OPENAI_BASE_URL": "",
    "OPENROUTER_API_KEY": "",
    "HERMES_MODEL": "",
}


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    made = Lab()
    yield made
    made.close()


def lines(home: Path, name: str, section: dict[str, Any] | None = None, **more: Any) -> list[tuple[str, str]]:
    """The doctor's lines about something: state, and text with hint. No secret is in any of them."""
    home.mkdir(mode=0o700, exist_ok=True)
    tree = {"model": {"default": "extractive"}, **more}
    if section is not None:
        tree["platforms"] = {"telegram": section}
    (home / "config.yaml").write_text(yaml.safe_dump(tree))
    done = program.run("doctor", "--json", home=home, env=QUIET)
    token = (section or {}).get("token")
    assert token is None or token not in done.out
    return [
        (one["state"], f"{one['text']} → {one['hint']}")
        for one in json.loads(done.out)["checks"]
        if one["name"] == name
    ]


def test_a_platform_where_all_is_well(lab: Lab, hermes_home: Path) -> None:
    owner = f"telegram:{lab.user_id('alice')}"
    found = lines(
        hermes_home, "telegram", {**lab.settings, "allowed_users": [1, 2], "home_channel": 1001}, owner=[owner]
    )
    assert [state for state, _ in found] == ["well", "well"]
    assert "@hermes_lab_bot" in found[0][1]
    assert "1 owner, 2 allowed" in found[1][1]


def test_a_missing_token_and_a_setting_nobody_knows(hermes_home: Path) -> None:
    ((state, text),) = lines(hermes_home, "telegram", {})
    assert (state, "TELEGRAM_BOT_TOKEN" in text) == ("wrong", True)
    ((state, text),) = lines(hermes_home, "telegram", {"tokn": "x"})
    assert (state, "did you mean token" in text) == ("wrong", True)
    ((state, text),) = lines(hermes_home, "telegramm", None, platforms={"telegramm": {}})
    assert (state, "did you mean telegram" in text) == ("wrong", True)


def test_everybody_nobody_no_owner_and_no_home_deserve_a_look(lab: Lab, hermes_home: Path) -> None:
    found = lines(hermes_home, "telegram", {**lab.settings, "allow_all": True})
    assert any(state == "remark" and "everyone" in text for state, text in found)
    found = lines(hermes_home, "telegram", lab.settings)
    assert [state for state, _ in found] == ["well", "remark", "remark", "remark"]
    for word, (_, text) in zip(("no one is allowed to talk", "owner", "/sethome"), found[1:], strict=True):
        assert word in text


def test_who_was_paired_and_where_home_is_come_from_the_record(lab: Lab, hermes_home: Path) -> None:
    hermes_home.mkdir(mode=0o700)
    with SessionDB(hermes_home / "state.db") as db:
        store = GatewayDB(db)
        store.write(approvals.make_pairing, "CODE", "telegram", "7", None, "{}")
        store.approve_pairing(welcome=welcome, code="CODE")
        store.write(approvals.set_home, "telegram", "{}")
    found = lines(hermes_home, "telegram", lab.settings, owner=["telegram:1"])
    assert [state for state, _ in found] == ["well", "well"]
    assert "1 owner, 1 paired" in found[1][1]


@pytest.mark.thorough
def test_a_platform_that_does_not_answer_holds_nobody_up(lab: Lab, hermes_home: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        held: list[socket.socket] = []
        threading.Thread(target=lambda: held.append(silent.accept()[0]), daemon=True).start()
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        ((state, text),) = lines(hermes_home, "telegram", {**lab.settings, "base_url": address})
        held[0].close()
    assert state == "wrong"
    assert "network" in text


def test_a_library_that_is_not_there(lab: Lab, hermes_home: Path) -> None:
    blocked = hermes_home / "blocked" / "telegram"
    blocked.mkdir(parents=True)
    (blocked / "__init__.py").write_text("raise ImportError('as if it were not there')")
    (hermes_home / "config.yaml").write_text(yaml.safe_dump({"platforms": {"telegram": lab.settings}}))
    paths = os.pathsep.join([str(blocked.parent), program.environment(hermes_home)["PYTHONPATH"]])
    done = program.run("doctor", home=hermes_home, env={**QUIET, "PYTHONPATH": paths})
    (line,) = [one for one in done.out.splitlines() if one.startswith("✗ telegram")]
    assert 'pip install -e ".[telegram]"' in line


def test_the_gateway_has_a_line_when_there_is_something_to_run(lab: Lab, hermes_home: Path) -> None:
    assert lines(hermes_home, "gateway") == []
    ((state, text),) = lines(hermes_home, "gateway", lab.settings)
    assert (state, "hermes gateway" in text) == ("remark", True)
    from hermes.gateway.startup import announced

    with SessionDB(hermes_home / "state.db") as db, announced(db):
        ((state, text),) = lines(hermes_home, "gateway", lab.settings)
    assert (state, f"process {os.getpid()}" in text) == ("well", True)


def test_webhooks_are_looked_at(hermes_home: Path) -> None:
    pytest.importorskip("uvicorn")
    open_door = {"host": "0.0.0.0", "routes": {"push": {"prompt": "x"}}}
    ((state, text),) = lines(hermes_home, "webhooks", webhooks=open_door)
    assert (state, "secret" in text) == ("wrong", True)
    ((state, text),) = lines(
        hermes_home, "webhooks", webhooks={"routes": {"push": {"prompt": "x", "secret": "long-one"}}}
    )
    assert (state, "/webhooks/push" in text) == ("well", True)
    assert "long-one" not in text
