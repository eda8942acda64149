"""/queue and /background: a message that waits for the running reply, and one that is answered beside the conversation."""

from __future__ import annotations

from pathlib import Path

import pytest

from hermes.gateway.settings import Timings
from hermes.store.api.session_db import SessionDB
from hermes.store.gateway import inbox, outbox
from tests.gateway.test_busy import begun, whole
from tests.support.echo import Echo
from tests.support.gateway import running
from tests.support.labs.base import until
from tests.support.labs.plain import PlainLab
from tests.support.notices import STOPPED


def said(db: SessionDB) -> list[list[str]]:
    """The user messages of each session, the oldest session first."""
    rows = sorted(db.list_sessions_rich(source="plain"), key=lambda row: row["started_at"])
    return [[m["content"] for m in db.get_messages(row["id"]) if m["role"] == "user"] for row in rows]


# ------------------------------------------------------------------------------------------------ /queue


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


# ------------------------------------------------------------------------------------------------ /background


def test_a_background_question_has_a_session_of_its_own_and_the_conversation_goes_on(
    lab: PlainLab, model: Echo
) -> None:
    with running(lab, model) as gateway:
        lab.say("hello")
        whole(lab, 1)
        lab.say("/background slow=3 the long one")
        begun(model, "the long one")
        lab.say("meanwhile")
        until(lambda: "echo: meanwhile" in lab.shown(), str(lab.shown()))
        assert not any("the long one" in text for text in lab.shown())
        answer = whole(lab, 3)[2]
        assert answer.startswith("↪ slow=3 the long one\n\necho: slow=3 the long one\n\n")
        assert said(gateway.db) == [["hello", "meanwhile"], ["slow=3 the long one"]]
        number = answer.rpartition("/resume ")[2].partition("`")[0]
        lab.say(f"/resume {number}")
        until(lambda: any("Continuing" in text for text in lab.shown()))
        lab.say("more of it")
        until(lambda: "echo: more of it" in lab.shown())
        assert said(gateway.db) == [["hello", "meanwhile"], ["slow=3 the long one", "more of it"]]
        assert not any("elsewhere" in text for text in lab.shown())
        assert gateway.db.check() == []


def test_stop_and_messages_stop_nothing_in_the_background_and_it_asks_nobody(
    lab: PlainLab, model: Echo, tmp_path: Path
) -> None:
    precious = tmp_path / "precious.txt"
    precious.write_text("do not lose me")
    with running(lab, model):
        lab.say(f'/background call=terminal {{"command": "rm {precious}"}}')
        lab.say("/background slow=1.5 keep going")
        begun(model, "keep going")
        lab.say("/stop")
        lab.say("yes")
        until(lambda: sum("continues this here" in text for text in lab.shown()) == 2, str(lab.shown()))
        assert precious.exists() and any("can be asked" in text for text in lab.shown())
        assert not any(STOPPED in text or "Reply **yes**" in text for text in lab.shown())
        lab.say("/background")
        until(lambda: any("want to ask" in text for text in lab.shown()))


@pytest.mark.parametrize("twice", [False, True])
def test_the_answer_comes_once_also_after_a_restart(lab: PlainLab, model: Echo, hermes_home: Path, twice: bool) -> None:
    with running(lab, model, timings=Timings(turns_end=0.2)) as gateway:
        number = lab.say("/background slow=1.5 the long one")
        begun(model, "the long one")
        if twice:
            lab.redeliver(number)
        lab.say("meanwhile")
        until(lambda: "echo: meanwhile" in lab.shown())
    for _ in range(2):
        with running(lab, model, timings=Timings(turns_end=0.2)) as gateway:
            until(lambda: any("continues this here" in text for text in lab.shown()), str(lab.shown()))
            until(lambda: not gateway.store.read(outbox.unsent))
            if twice:
                lab.redeliver(number)
    assert sum("the long one" in text for text in lab.shown()) == 1
    with SessionDB(hermes_home / "state.db") as db:
        assert sorted(said(db)) == [["meanwhile"], ["slow=1.5 the long one"]]
        assert db.check() == []


def test_a_background_question_of_another_person_is_theirs(lab: PlainLab, model: Echo) -> None:
    with running(lab, model) as gateway:
        lab.say("/background from bob", who="bob", where="group")
        until(lambda: any("echo: from bob" in text for text in lab.shown("group")), str(lab.shown("group")))
        (row,) = gateway.db.list_sessions_rich(source="plain")
        assert row["user_id"] == lab.user_id("bob")
        assert gateway.db.list_sessions_rich(visible_to=("plain", "somebody else")) == []
        lab.say("/background let me in", who="mallory")
        lab.say("hello", who="bob", where="group")
        until(lambda: any("echo: hello" in text for text in lab.shown("group")))
        assert gateway.db.session_count() == 2
