"""/queue: a message that waits for the running reply."""

from __future__ import annotations

from pathlib import Path

from hermes.gateway.settings import Timings
from hermes.store.api.session_db import SessionDB
from hermes.store.gateway import inbox
from tests.gateway.test_busy import begun, whole
from tests.support.echo import Echo
from tests.support.gateway import running
from tests.support.labs.base import until
from tests.support.labs.plain import PlainLab


def said(db: SessionDB) -> list[list[str]]:
    """The user messages of each session, the oldest session first."""
    rows = sorted(db.list_sessions_rich(source="plain"), key=lambda row: row["started_at"])
    return [[m["content"] for m in db.get_messages(row["id"]) if m["role"] == "user"] for row in rows]


def test_a_queued_message_waits_and_stops_nothing(lab: PlainLab, model: Echo) -> None:
    with running(lab, model) as gateway:
        lab.say("slow=1.5 take your time")
        begun(model, "take your time")
        lab.say("/queue then this")
        lab.say("/queue /title is what I mean")
        shown = whole(lab, 3)
        assert shown == ["echo: slow=1.5 take your time", "echo: then this", "echo: /title is what I mean"]
        assert said(gateway.db) == [["slow=1.5 take your time", "then this", "/title is what I mean"]]


def test_a_queued_message_is_no_answer_to_a_question(lab: PlainLab, model: Echo, tmp_path: Path) -> None:
    precious = tmp_path / "precious.txt"
    precious.write_text("do not lose me")
    with running(lab, model) as gateway:
        lab.say(f'call=terminal {{"command": "rm {precious}"}}')
        until(lambda: any("yes" in text for text in lab.shown()))
        lab.say("/queue yes")
        until(lambda: len(gateway.store.read(inbox.waiting)) == 2)
        lab.say("no")
        until(lambda: any("echo: yes" in text for text in lab.shown()), str(lab.shown()))
        assert precious.exists()


def test_queue_alone_tells_what_waits_at_once(lab: PlainLab, model: Echo) -> None:
    with running(lab, model) as gateway:
        lab.say("/queue")
        until(lambda: lab.shown() and "Nothing is waiting" in lab.shown()[0])
        lab.say("pause=60 for a while")
        begun(model, "for a while")
        lab.say("/queue")
        until(lambda: any("a reply is being written" in text for text in lab.shown()))
        lab.say("/queue buy milk")
        lab.say("/queue and bread")
        until(lambda: len(gateway.store.read(inbox.waiting)) == 3)
        lab.say("/queue")
        until(lambda: any("1. buy milk\n2. and bread" in text for text in lab.shown()), str(lab.shown()))
        lab.say("/stop")
        until(lambda: any("echo: and bread" in text for text in lab.shown()), str(lab.shown()))
        assert said(gateway.db) == [["pause=60 for a while", "buy milk", "and bread"]]


def test_what_is_queued_survives_a_restart(lab: PlainLab, model: Echo) -> None:
    with running(lab, model, timings=Timings(turns_end=0.2)) as gateway:
        lab.say("slow=2 the first " + "x " * 20)
        begun(model, "the first")
        lab.say("/queue the second")
        until(lambda: len(gateway.store.read(inbox.waiting)) == 2)
    with running(lab, model) as gateway:
        until(lambda: any(text == "echo: the second" for text in lab.shown()), str(lab.shown()))
        assert [text.split()[-1] for text in said(gateway.db)[0]] == ["x", "second"]
        assert sum("the second" in text for text in lab.shown()) == 1


def test_an_edit_of_a_queued_message_is_what_is_asked(lab: PlainLab, model: Echo) -> None:
    with running(lab, model) as gateway:
        lab.say("slow=1.5 take your time")
        begun(model, "take your time")
        number = lab.say("/queue buy milk")
        until(lambda: len(gateway.store.read(inbox.waiting)) == 2)
        lab.change(number, "/queue buy bread")
        assert whole(lab, 2)[1] == "echo: buy bread"
        assert said(gateway.db) == [["slow=1.5 take your time", "buy bread"]]
