"""Stopped for too long: a process that wakes up after another has taken over stores nothing that is out of date.

Real processes are stopped (SIGSTOP) at every moment of a write and in the middle of turns, on every engine. On a server the
two have folders of their own, as two hosts have.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from hermes.agent.loop import Agent
from hermes.agent.models.endpoint import EndpointModel
from hermes.agent.turn import Done
from hermes.config import Auxiliary, Config
from hermes_state import SessionDB
from tests.faults import Refused, Remote, size
from tests.support import postgres
from tests.support.postgres import ENGINES
from tests.support.sizes import some
from tests.support.waiting import until
from tests.support.wire import Wire, call, delta, end, said, sse

from .clusters import words_of

Store = Callable[[str], dict[str, Any]]


@pytest.fixture(params=ENGINES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """store(host) → how a host opens the one store there is."""
    if request.param == "sqlite":
        yield lambda host: {"db_path": str(tmp_path / "state.db")}
        return
    server = postgres.server(request.param.removeprefix("postgres"))
    url = server.store(str(tmp_path))
    yield lambda host: {"db_path": str(tmp_path / host / "state.db"), "url": url}
    server.forget(str(tmp_path))


def opened_by(process: Remote, place: dict[str, Any]) -> None:
    path = place.pop("db_path")
    process.open(path, **place)


def answer_of(process: Remote) -> Any:
    """The result of a step that was begun, or its refusal."""
    try:
        return process.answer()
    except Refused as error:
        return error


class Taking(threading.Thread):
    """Takes the session over, as soon as that is possible, and looks what is there then."""

    def __init__(self, db: SessionDB) -> None:
        super().__init__(daemon=True)
        self.db = db
        self.token = 0
        self.seen: list[int] = []
        self.start()

    def run(self) -> None:
        self.token = until(lambda: self.db.hold_session("s", "b", ttl=60))
        self.seen = [row["id"] for row in self.db.get_messages("s")]


def test_at_whatever_moment_a_writer_is_stopped_it_is_before_the_taking_over_or_refused(store: Store) -> None:
    refused = before = more = 0
    with SessionDB(**store("b")) as db, Remote() as late:
        opened_by(late, store("a"))
        db.create_session("s", "cli")
        token = late.hold_session("s", "a", ttl=60)
        for _ in range(4):  # until nothing of it is new to the server, so that each has the same moments
            late.count(10**9, int(signal.SIGSTOP))
            late.fenced("session:s", token, "append_message", "s", "assistant", "the same words")
            moments = late.counted()
        late.release_lease("session:s", token)
        assert moments > 10
        for moment in range(1, moments + 1, size(3, 1)):
            token = late.hold_session("s", "a", ttl=0.01)
            late.count(moment, int(signal.SIGSTOP))
            late.begin("fenced", "session:s", token, "append_message", "s", "assistant", "the same words")
            if not late.stops():  # the last moments of a longer write: it had finished
                assert isinstance(outcome := answer_of(late), int), outcome
                more += 1
                late.counted()
                late.release_lease("session:s", token)
                continue
            taking = Taking(db)
            taking.join(0.4)  # or it waits for a lock of the one who is stopped, which is as good
            late.signal(signal.SIGCONT)
            outcome = answer_of(late)
            taking.join(60)
            if isinstance(outcome, Refused):
                assert outcome.kind == "Fenced", outcome
                refused += 1
            else:
                assert outcome in taking.seen, "it was stored after another had taken over"
                before += 1
            late.counted()
            db.release_lease("session:s", taking.token)
        assert refused and before
        assert len(words_of(db, "s")) == 4 + before + more
        assert db.check() == []


def test_a_claimer_who_was_stopped_cannot_complete_what_another_claimed(store: Store) -> None:
    with SessionDB(**store("b")) as db, Remote() as late:
        opened_by(late, store("a"))
        db.create_session("s", "cli")
        db.request_handoff("s", "telegram")
        token = late.take_handoff("s", lease=0.05)
        late.signal(signal.SIGSTOP)
        late.stopped()
        mine = until(lambda: db.take_handoff("s", lease=60))
        late.signal(signal.SIGCONT)
        for name, args in (("complete_handoff", ["s"]), ("fail_handoff", ["s", "late"]), ("heartbeat_handoff", ["s"])):
            with pytest.raises(Refused, match="another process has taken over the handoff of session s"):
                late.fenced("job:handoff:s", token, name, *args)
        assert db.get_handoff_state("s") == {"state": "running", "platform": "telegram", "error": None}
        with db.fenced("job:handoff:s", mine):
            assert db.complete_handoff("s")


# ------------------------------------------------------------------ turns

# Leases are the engines' (above, on each); a turn asks for them in the same way wherever its store is.
on_one = pytest.mark.parametrize("store", some(ENGINES[::-1], 1), indirect=True)

# A turn in a process of its own, whose leases last a moment. After its first words, and in its tool, it waits for a file.
CHILD = """
import json, sys, time
from pathlib import Path
from hermes.agent.models.endpoint import EndpointModel
from hermes.agent.turn import Text
from hermes.agent.loop import Agent
from hermes.agent.tools.tool import Tool
from hermes.config import Config
from hermes.errors import HermesError
from hermes_state import SessionDB

place, base_url, gate = json.loads(sys.argv[1]), sys.argv[2], Path(sys.argv[3])

def tell(*words):
    print(*words, flush=True)

def wait(*_):
    if not gate.exists():
        tell("waiting")
    while not gate.exists():
        time.sleep(0.01)
    return "a result"

tool = Tool("wait", "waits", {"type": "object", "properties": {}}, wait)
db = SessionDB(**place)
agent = Agent(db, Config(), EndpointModel("fake", base_url, "key", 100_000), session_id="s", tools=[tool])
agent.lease.ttl = 0.6
try:
    for event in agent.turn("the question"):
        if isinstance(event, Text):
            wait()
    tell("over")
except HermesError as error:
    tell(type(error).__name__, str(error))
"""
HALF = sse(delta(content="Half of "), delta(content="an answer."), end())
TOOL = sse(delta(tool_calls=[call("wait", "{}", index=0, id="c")]), end("tool_calls"))


def others_can_write(place: dict[str, Any]) -> bool:
    """Whether no process is in the middle of a write to the leases of this store."""
    try:
        if "url" in place:
            with psycopg.connect(place["url"]) as connection:
                connection.execute("SET lock_timeout = '200ms'")
                connection.execute("LOCK TABLE leases IN SHARE ROW EXCLUSIVE MODE")
        else:
            with closing(sqlite3.connect(place["db_path"], timeout=0.2, isolation_level=None)) as connection:
                connection.execute("BEGIN IMMEDIATE")
    except (psycopg.errors.LockNotAvailable, sqlite3.OperationalError):
        return False
    return True


class Child:
    def __init__(self, place: dict[str, Any], wire: Wire, gate: Path) -> None:
        import json

        self.gate, self.place = gate, place
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(part for part in sys.path if part)}
        self.process = subprocess.Popen(
            [sys.executable, "-c", CHILD, json.dumps(place), wire.base_url, str(gate)],
            stdout=subprocess.PIPE, text=True, env=environment,
        )  # fmt: skip

    def says(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def stop(self) -> None:
        """Stop it where it waits; when it goes on, it need not wait any more.

        Its leases are renewed beside that: in the middle of such a write it would keep everybody else from writing.
        """
        assert self.says() == "waiting"
        while True:
            self.process.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WNOWAIT)
            if others_can_write(self.place):
                break
            self.go_on()
        self.gate.touch()

    def go_on(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


def agent_on(db: SessionDB, wire: Wire) -> Agent:
    config = Config()
    config.auxiliary.title = Auxiliary(model="nobody", base_url="http://127.0.0.1:9/v1")
    return Agent(db, config, EndpointModel("fake", wire.base_url, "key", 100_000), session_id="s")


@on_one
@pytest.mark.parametrize(
    ("script", "stays"),
    some(
        [
            pytest.param(HALF, True, id="in a reply, while the other holds it"),
            pytest.param(HALF, False, id="in a reply, after the other has gone"),
            pytest.param(TOOL, True, id="in a tool, while the other holds it"),
            pytest.param(TOOL, False, id="in a tool, after the other has gone"),
        ],
        2,
    ),
)
def test_a_turn_that_was_stopped_ends_when_another_has_answered_meanwhile(
    store: Store, tmp_path: Path, script: Any, stays: bool
) -> None:
    with Wire([script, said("Late.")]) as first, Wire([said("The answer."), said("And on.")]) as second:
        with Child(store("a"), first, tmp_path / "gate") as child, SessionDB(**store("b")) as db:
            child.stop()
            until(lambda: not db.is_live("s"))
            agent = agent_on(db, second)
            assert list(agent.resume())[-1] == Done("The answer.")
            told = words_of(db, "s")
            assert told[-1] == "The answer."
            if not stays:
                agent.lease.release()
            child.go_on()
            outcome = child.says()
            assert outcome.startswith("Fenced another process has taken over session s"), outcome
            assert words_of(db, "s") == told, "nothing was stored by the one who was late"
            assert len(first.bodies) == 1, "and it asked for nothing more"
            child.process.wait(60)
            assert list(agent.turn("next"))[-1] == Done("And on.")
            agent.close()
            assert words_of(db, "s") == [*told, "next", "And on."], "nor by whoever found its draft"
            assert db.check() == []


@on_one
def test_a_turn_that_was_stopped_goes_on_when_nobody_came(store: Store, tmp_path: Path) -> None:
    """The lease ran out, but nobody took it: nothing is out of date."""
    with Wire([TOOL, said("Done.")]) as wire, Child(store("a"), wire, tmp_path / "gate") as child:
        with SessionDB(**store("b")) as db:
            child.stop()
            until(lambda: not db.is_live("s"))
            child.go_on()
            assert child.says() == "over"
            assert [words for words in words_of(db, "s") if words] == ["the question", "a result", "Done."]


@on_one
def test_what_a_fenced_turn_had_heard_is_in_its_draft_until_it_is_answered(store: Store, tmp_path: Path) -> None:
    place = store("a")
    with Wire([HALF]) as wire, Child(place, wire, tmp_path / "gate") as child, SessionDB(**store("b")) as db:
        child.stop()
        until(lambda: not db.is_live("s"))
        token = db.hold_session("s", "elsewhere:1:x")
        child.go_on()
        assert child.says().startswith("Fenced")
        child.process.wait(60)
        assert words_of(db, "s") == ["the question"]
        db.release_lease("session:s", token)
        with Wire([said("At last.")]) as other, SessionDB(**place) as again:
            agent = agent_on(again, other)
            assert words_of(db, "s") == ["the question", "Half of an answer."], "the next one has it"
            assert list(agent.resume())[-1] == Done("At last.")
            agent.close()
        assert words_of(db, "s") == ["the question", "At last."]
        with SessionDB(**place) as again, again.drafts.left_behind("s") as draft:
            assert draft is None


@on_one
def test_the_killed_holder_of_another_host_is_replaced_when_its_lease_runs_out(store: Store, tmp_path: Path) -> None:
    with Wire([TOOL]) as first, Wire([said("Taken over.")]) as second, SessionDB(**store("b")) as db:
        with Child(store("a"), first, tmp_path / "gate") as child:
            assert child.says() == "waiting"
            assert db.is_live("s")
        until(lambda: not db.is_live("s"))
        agent = agent_on(db, second)
        assert list(agent.resume())[-1] == Done("Taken over.")
        agent.close()
        assert words_of(db, "s")[0] == "the question" and words_of(db, "s")[-1] == "Taken over."
        assert db.check() == []
