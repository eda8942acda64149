"""`hermes cron`: made by the program, run by a gateway, once whatever happens."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hermes.store.api.session_db import SessionDB
from hermes.store.gateway.cron import CronDB
from tests.chat.server import Call
from tests.jobs.conftest import AnsweringServer
from tests.support.echo import Echo
from tests.support.gateway import Clock, running
from tests.support.gateway_process import GatewayProcess
from tests.support.labs.base import until
from tests.support.labs.plain import PlainLab
from tests.support.program import run, start

HOME = {"platforms": {"plain": {"home_channel": "group:group-1"}}}


@pytest.fixture
def lab() -> Iterator[PlainLab]:
    made = PlainLab()
    yield made
    made.close()


@pytest.fixture
def model() -> Iterator[Echo]:
    with Echo() as echo:
        yield echo


def job(home: Path, **more: Any) -> str:
    """A job that was due a moment ago."""
    settings: dict[str, Any] = {"deliver": "plain", "session_id": None, "model": None, **more}
    home.mkdir(parents=True, exist_ok=True)
    with SessionDB(home / "state.db") as db:
        store = CronDB(db)
        due = settings.pop("next_at", store.clock() - 1)
        return store.add("job1", "0 9 * * *", "UTC", settings.pop("prompt", "what is new?"), next_at=due, **settings).id


def log(home: Path) -> list[tuple[str, str | None]]:
    with SessionDB(home / "state.db") as db:
        return [(one.status, one.text) for one in CronDB(db).log()]


def ended_all(home: Path) -> bool:
    return all(status != "running" for status, _ in log(home))


def ended(home: Path) -> bool:
    return any(status != "running" for status, _ in log(home))


def sessions(home: Path) -> list[list[tuple[str, str]]]:
    with SessionDB(home / "state.db") as db:
        rows = db.list_sessions_rich(source="cron", limit=50)
        return [[(one["role"], one["content"]) for one in db.get_messages(row["id"])] for row in rows]


# ── the command ──


def test_a_job_is_made_listed_paused_resumed_and_removed(server: AnsweringServer, home: Path) -> None:
    made = run("cron", "create", "0  9 * * 1-5", "what is new?", "--timezone", "Europe/Berlin", home=home)
    assert made.status == 0 and "09:00 (Europe/Berlin)" in made.out and "hermes gateway" in made.err
    name = made.out.split()[0]
    (listed,) = json.loads(run("cron", "list", "--json", home=home).out)
    assert (listed["id"], listed["schedule"], listed["prompt"]) == (name, "0 9 * * 1-5", "what is new?")
    assert "what is new?" in run("cron", "list", home=home).out
    assert run("cron", "pause", name[:4], home=home).out == f"{name} is paused.\n"
    assert "paused" in run("cron", "list", home=home).out
    assert run("cron", "resume", name, home=home).out.startswith(f"{name}  next ")
    assert "no gateway is running" in run("cron", "run", name, home=home).err
    assert run("cron", "log", home=home).out == "No runs yet.\n"
    assert run("cron", "remove", name, home=home).status == 0
    assert json.loads(run("cron", "list", "--json", home=home).out) == []
    assert run("cron", "remove", name, home=home).status == 1


@pytest.mark.parametrize(
    "words",
    [("soon", "hi"), ("0 0 30 2 *", "hi"), ("0 9 * * *", " "), ("0 9 * * *", "hi", "--deliver", "pigeon"),
     ("0 9 * * *", "hi", "--timezone", "Mars/Olympus")],
)  # fmt: skip
def test_what_makes_no_job_is_refused(home: Path, words: tuple[str, ...]) -> None:
    done = run("cron", "create", *words, home=home)
    assert done.status in (1, 2) and len(done.err.splitlines()) == 1


def test_a_platform_that_takes_only_answers_gets_no_job(server: AnsweringServer, home: Path) -> None:
    done = run("cron", "create", "0 9 * * *", "hi", "--deliver", "qqbot", home=home)
    assert done.status == 2 and "a bot can only answer there" in done.err
    with (home / "config.yaml").open("a") as config:
        config.write("platforms: {qqbot: {app_id: '1', client_secret: s}}\n")
    server.special["now"] = [Call("cron", action="add", schedule="0 9 * * *", prompt="hi", deliver="qqbot")]
    assert run("-q", "now", "--yes", home=home).status == 0
    assert "a bot can only answer there" in server.requests[-1]["messages"][-1]["content"]
    assert json.loads(run("cron", "list", "--json", home=home).out) == []


def test_a_job_follows_the_rules_and_is_refused_the_rest(server: AnsweringServer, home: Path, tmp_path: Path) -> None:
    job(home, deliver="none")
    for rules, told, is_made in (
        ("", "permissions.allow", False),
        ("permissions: {allow: [touch]}\n", "exit status 0", True),
    ):
        with (home / "config.yaml").open("a") as config:
            config.write(rules)
        server.special["what is new?"] = [Call("terminal", command=f"touch {tmp_path}/made")]
        before = len(log(home))
        with start("gateway", home=home) as gateway:
            if before:
                until(lambda: run("cron", "run", "job1", home=home).status == 0, "no gateway")
            until(lambda before=before: len(log(home)) > before and ended_all(home), "no run")
            gateway.terminate()
            assert gateway.wait(120) == 0
        assert any(told in str(content) for talk in sessions(home) for _, content in talk)
        assert (tmp_path / "made").exists() is is_made


def test_the_agent_makes_a_job_after_the_user_agreed(server: AnsweringServer, home: Path) -> None:
    add = Call("cron", action="add", schedule="0 9 * * 1-5", prompt="what is new?", timezone="Europe/Berlin")
    server.special["every morning"] = [add]
    assert run("-q", "every morning", home=home).status == 0  # nobody can be asked
    assert json.loads(run("cron", "list", "--json", home=home).out) == []
    server.special["every morning"] = [add]
    assert run("-q", "every morning", "--yes", home=home).status == 0
    (made,) = json.loads(run("cron", "list", "--json", home=home).out)
    assert (made["schedule"], made["prompt"], made["timezone"]) == ("0 9 * * 1-5", "what is new?", "Europe/Berlin")
    told = json.loads(server.requests[-1]["messages"][-1]["content"])
    assert told["id"] == made["id"] and told["next"].endswith("09:00")
    server.special["no more"] = [Call("cron", action="remove", job=made["id"])]
    assert run("-q", "no more", "--yes", home=home).status == 0
    assert json.loads(run("cron", "list", "--json", home=home).out) == []


@pytest.mark.parametrize(
    "wrong",
    [{"action": "add", "schedule": "soon", "prompt": "hi"}, {"action": "remove", "job": "x"},
     {"action": "add", "schedule": "0 9 * * *", "prompt": "hi", "deliver": "pigeon"}],
)  # fmt: skip
def test_the_agent_learns_what_is_wrong_with_a_job(server: AnsweringServer, home: Path, wrong: dict[str, str]) -> None:
    server.special["now"] = [Call("cron", **wrong)]
    assert run("-q", "now", "--yes", home=home).status == 0
    assert "rror" in server.requests[-1]["messages"][-1]["content"]
    assert json.loads(run("cron", "list", "--json", home=home).out) == []


# ── the gateway ──


def test_a_gateway_without_platforms_runs_jobs(server: AnsweringServer, home: Path) -> None:
    refused = run("gateway", home=home)
    assert refused.status == 1 and "no platform is enabled" in refused.err
    job(home, deliver="file")
    with start("gateway", home=home) as gateway:
        until(lambda: ended(home), "no run")
        gateway.terminate()
        assert gateway.wait(120) == 0
    assert log(home) == [("done", None)]
    assert [file.read_text() for file in (home / "cron" / "job1").iterdir()] == ["re: what is new?\n"]


def test_the_gateway_runs_what_is_due_and_delivers_it_home(lab: PlainLab, model: Echo, hermes_home: Path) -> None:
    job(hermes_home)
    with running(lab, model, **HOME):
        until(lambda: lab.shown("group"), "nothing was delivered")
    assert [text for text in lab.shown("group") if "what is new?" in text] == lab.shown("group")
    assert log(hermes_home) == [("done", None)] and len(sessions(hermes_home)) == 1


def test_runs_of_one_session_know_the_ones_before(lab: PlainLab, model: Echo, hermes_home: Path) -> None:
    clock = Clock()
    job(hermes_home, session_id="20260101_000000_aabbccdd", deliver="none")
    with running(lab, model, clock=clock, **HOME):
        until(lambda: log(hermes_home) == [("done", None)], "no run")
        with SessionDB(hermes_home / "state.db") as db:
            CronDB(db).run_soon("job1")
        until(lambda: log(hermes_home) == [("done", None)] * 2, "no second run")
    (said,) = sessions(hermes_home)
    assert [role for role, _ in said] == ["user", "assistant"] * 2


def test_missed_times_are_made_up_for_once(lab: PlainLab, model: Echo, hermes_home: Path) -> None:
    job(hermes_home, deliver="none", next_at=1_700_000_000.0)
    with running(lab, model, **HOME):
        until(lambda: ended(hermes_home), "nothing happened")
    assert [status for status, _ in log(hermes_home)] == ["done"]
    assert len(sessions(hermes_home)) == 1


def test_a_failure_is_reported_where_it_would_be_delivered(lab: PlainLab, hermes_home: Path) -> None:
    job(hermes_home)
    from tests.support.wire import Wire, error

    with Wire([error(401, "wrong key")]) as wire, running(lab, wire, **HOME):
        until(lambda: lab.shown("group"), "nothing was delivered")
    assert len(lab.shown("group")) == 1 and "failed: " in lab.shown("group")[0]
    ((status, why),) = log(hermes_home)
    assert status == "failed" and why


def test_a_killed_gateway_s_run_is_taken_up_and_said_once(lab: PlainLab, hermes_home: Path) -> None:
    from tests.chat.server import Gate

    held = Gate()
    with AnsweringServer() as server:
        server.special["what is new?"] = ["half a re", held]
        job(hermes_home)
        with GatewayProcess(hermes_home, [lab], server.base_url, **HOME) as gateway:
            if gateway.process is None:
                gateway.start()
            assert held.reached.wait(60)
            gateway.kill()
            held.open.set()
            assert lab.shown("group") == []
            gateway.start()
            until(lambda: lab.shown("group"), "nothing was delivered")
            until(lambda: ended(hermes_home), "it has no end")
        assert lab.shown("group") == ["re: what is new?"]
    assert sessions(hermes_home) == [[("user", "what is new?"), ("assistant", "re: what is new?")]]
    assert log(hermes_home) == [("done", None)]


def test_a_platform_without_a_home_is_a_failure_in_the_log(lab: PlainLab, model: Echo, hermes_home: Path) -> None:
    job(hermes_home)
    with running(lab, model):
        until(lambda: ended(hermes_home), "nothing happened")
    ((status, why),) = log(hermes_home)
    assert status == "failed" and "has no home chat" in str(why)
    assert len(sessions(hermes_home)[0]) == 2  # the reply is in the record
