"""A stop is orderly and takes no longer than ten seconds, whatever hangs; what was cut short is whole in the end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hermes.gateway.runner import STOP_SECONDS
from hermes.gateway.settings import Timings
from hermes.store.api.session_db import SessionDB
from hermes.store.gateway import inbox, outbox
from hermes.store.gateway.gateway_db import GatewayDB
from tests.support.echo import Echo, reply_to
from tests.support.gateway import running
from tests.support.gateway_process import GatewayProcess
from tests.support.labs.base import until
from tests.support.labs.plain import ForgetfulLab, PlainLab, StubbornLab

STREAMING = {"streaming": {"edit_interval": 0.1, "buffer_threshold": 20}}
BRISK = Timings(turns_end=0.3)  # turns are interrupted sooner; the order is the same


@pytest.mark.parametrize("kind", [PlainLab, ForgetfulLab])
def test_a_reply_cut_short_by_a_stop_is_one_whole_answer_in_the_end(
    kind: type[PlainLab], model: Echo, hermes_home: Path
) -> None:
    lab = kind()
    text = "slow=20 " + "grow " * 60
    try:
        with running(lab, model, timings=BRISK, gateway=STREAMING):
            lab.say(text)
            until(lambda: lab.shown() and "grow" in lab.shown()[0])
        (partial,) = lab.shown()
        assert partial.endswith("▉")
        with SessionDB(hermes_home / "state.db") as db:
            assert len(GatewayDB(db).read(inbox.waiting)) == 1
            assert db.check() == []
        model.hurry = True
        with running(lab, model, timings=BRISK, gateway=STREAMING) as gateway:
            until(
                lambda: not gateway.store.read(inbox.waiting) and not gateway.store.read(outbox.unsent),
            )
            assert [one.split() for one in lab.shown()] == [reply_to(text).split()]
            (row,) = gateway.db.list_sessions_rich(source=lab.platform)
            said = [(m["role"], m["content"].strip()) for m in gateway.db.get_messages(row["id"])]
            assert said == [("user", text.strip()), ("assistant", reply_to(text.strip()))]
    finally:
        lab.close()


def test_a_retry_cut_short_by_a_stop_is_answered_in_the_end(lab: PlainLab, model: Echo) -> None:
    text = "slow=20 again " + "x " * 30
    with running(lab, model, timings=BRISK):
        model.hurry = True
        lab.say(text)
        until(lambda: lab.shown() and "▉" not in lab.shown()[0])
        model.hurry = False
        lab.say("/retry")
        until(lambda: len(lab.shown()) == 2)
    model.hurry = True
    with running(lab, model, timings=BRISK) as gateway:
        until(lambda: not gateway.store.read(inbox.waiting) and not gateway.store.read(outbox.unsent))
        assert [one.split() for one in lab.shown()] == [reply_to(text).split()] * 2


def test_what_waits_behind_a_turn_is_answered_after_the_next_start(lab: PlainLab, model: Echo) -> None:
    with running(lab, model, display={"busy": "queue"}):
        for n in range(5):
            lab.say(f"pause=0.4 n{n}")
        until(lambda: not lab.unacknowledged)
    with running(lab, model, display={"busy": "queue"}):
        until(lambda: lab.shown() == [f"echo: pause=0.4 n{n}" for n in range(5)], str(lab.shown()))


def test_a_platform_that_is_gone_holds_up_no_stop(lab: PlainLab, model: Echo) -> None:
    with running(lab, model, timings=BRISK) as gateway:
        lab.hides = True
        lab.say("hello")
        lab.drop()
        until(lambda: not gateway.connections["plain"].delivery.connected.is_set())
    lab.hides = False
    with running(lab, model, timings=BRISK):
        until(lambda: lab.shown() == ["echo: hello"])


def ends_in_time(gateway: GatewayProcess) -> None:
    """The process stops in time, with status 0, although something in it hangs for ever."""
    assert gateway.stop(6 * STOP_SECONDS) == 0, gateway.output()


def test_a_process_ends_in_time_whatever_hangs_and_loses_nothing(lab: PlainLab, model: Echo, hermes_home: Path) -> None:
    """A silent model, a command that ignores signals, a platform that answers no send, an adapter that never lets go."""
    command = "trap '' TERM INT HUP; sleep 60"
    labs = [lab, StubbornLab()]
    with GatewayProcess(hermes_home, labs, model.base_url, terminal={"approval": "never"}) as gateway:
        lab.say("pause=300 think", chat={"chat_id": "c1", "type": "dm"})
        lab.say(f'call=terminal {{"command": "{command}"}}', chat={"chat_id": "c2", "type": "dm"})
        lab.say("hello", chat={"chat_id": "c3", "type": "dm"})
        until(lambda: lab.shown_in("c3"))
        until(lambda: len(model.requests) >= 3)
        lab.deaf = True
        lab.say("hello again", chat={"chat_id": "c4", "type": "dm"})
        until(lambda: not lab.unacknowledged)
        ends_in_time(gateway)
        lab.deaf = False
        labs[1].close()
    with SessionDB(hermes_home / "state.db") as db:
        assert db.check() == []
        waiting: Any = {row.event.split('"chat_id":"')[1][:2] for row in GatewayDB(db).read(inbox.waiting)}
        assert {"c1", "c2"} <= waiting


def test_a_gateway_whose_store_is_gone_ends_with_one_line_and_a_failure(
    lab: PlainLab, model: Echo, hermes_home: Path
) -> None:
    with GatewayProcess(hermes_home, [lab], model.base_url) as gateway:
        for file in hermes_home.glob("state.db*"):
            file.unlink()
        lab.say("hello?")
        assert gateway.process is not None
        assert gateway.process.wait(120) == 1
        told = [line for line in gateway.output().splitlines() if line.startswith("hermes: ")]
        assert len(told) == 1 and "state.db" in told[0], gateway.output()
        assert "nothing was lost" not in gateway.output()
        assert "Traceback" not in gateway.output()
