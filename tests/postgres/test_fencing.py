"""Stopped for too long: a process that wakes up after another has taken over stores nothing that is out of date.

Real processes are stopped (SIGSTOP) at every moment of a write and in the middle of turns, on every engine. On a server the
two have folders of their own, as two hosts have.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hermes_state import SessionDB
from tests.faults import Refused, Remote, size
from tests.support import postgres
from tests.support.postgres import ENGINES
from tests.support.waiting import until

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
