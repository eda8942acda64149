"""`hermes pairing`: the owner's side of letting people in."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hermes.store.api.session_db import SessionDB
from hermes.store.gateway import approvals
from hermes.store.gateway.gateway_db import GatewayDB
from tests.support import program


@pytest.fixture
def home(hermes_home: Path) -> Path:
    """Somebody waits with the code ABCD-EFGH."""
    hermes_home.mkdir(mode=0o700)
    with SessionDB(hermes_home / "state.db") as db:
        GatewayDB(db).write(approvals.make_pairing, "ABCD-EFGH", "telegram", "1003", "Mallory \x1b[31m\u202e", "{}")
    return hermes_home


def test_approve_list_and_revoke(home: Path) -> None:
    listed = program.run("pairing", "list", home=home)
    assert "telegram:1003" in listed.out
    assert "min left" in listed.out
    assert "ABCD" not in listed.out
    assert not {"\x1b", "\u202e"} & set(listed.out)
    done = program.run("pairing", "approve", "abcd efgh", home=home)
    assert (done.status, done.out) == (0, "Mallory (telegram:1003) may talk now.\n")
    again = program.run("pairing", "approve", "ABCD-EFGH", home=home)
    assert again.status == 1
    assert "unknown or expired code" in again.err
    people = json.loads(program.run("pairing", "list", "--json", home=home).out)
    assert [(one["platform"], one["user_id"]) for one in people["people"]] == [("telegram", "1003")]
    assert people["waiting"] == []
    assert "since" in program.run("pairing", "list", home=home).out
    assert program.run("pairing", "revoke", "telegram:1003", home=home).status == 0
    gone = program.run("pairing", "revoke", "telegram:1003", home=home)
    assert gone.status == 1
    assert "config.yaml" in gone.err
    assert program.run("pairing", "revoke", "1003", home=home).status == 2
    assert "No one" in program.run("pairing", "list", home=home).out


def test_guessing_stops_after_five_tries(home: Path) -> None:
    for number in range(5):
        assert "unknown or expired code" in program.run("pairing", "approve", f"WRONG{number}", home=home).err
    stopped = program.run("pairing", "approve", "ABCD-EFGH", home=home)
    assert stopped.status == 1
    assert "wait a minute" in stopped.err
    with SessionDB(home / "state.db") as db:
        assert GatewayDB(db).read(approvals.everyone) == []


def test_the_owner_lets_themselves_in(home: Path) -> None:
    (home / "config.yaml").write_text("# mine\nowner: [discord:7]  # keep\n")
    done = program.run("pairing", "approve", "--owner", "ABCD-EFGH", home=home)
    assert done.status == 0
    assert "owner" in done.out
    text = (home / "config.yaml").read_text()
    assert "# mine" in text
    assert "telegram:1003" in text
    assert "discord:7" in text
