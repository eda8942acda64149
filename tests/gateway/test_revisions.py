"""A message that its author edits or deletes changes where it is by then: in the inbox, or in the record."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hermes.store.api.session_db import SessionDB
from hermes.store.gateway import inbox
from hermes.store.gateway.gateway_db import GatewayDB
from hermes.store.gateway.inbox import Revised, SourceEvent
from tests.gateway.test_conformance import PNG
from tests.support.echo import Echo
from tests.support.gateway import received, running
from tests.support.labs.base import until
from tests.support.labs.plain import PlainLab

QUEUE = {"display": {"busy": "queue"}}


def said(gateway: Any) -> list[Any]:
    (row,) = gateway.db.list_sessions_rich(source="plain")
    return [m["content"] for m in gateway.db.get_messages(row["id"]) if m["role"] == "user"]


def taken(lab: PlainLab) -> None:
    """Everything that was told is safe."""
    until(lambda: not lab.unacknowledged)


def test_what_waits_is_answered_as_it_was_edited_and_not_at_all_once_deleted(lab: PlainLab, model: Echo) -> None:
    with running(lab, model, **QUEUE) as gateway:
        lab.say("pause=2 first")
        until(lambda: any("pause=2" in str(one["messages"][-1]) for one in model.requests))
        second, third, command = lab.say("second"), lab.say("third"), lab.say("/title never")
        taken(lab)
        lab.change(second, "second, mended")
        lab.change(second, "words in her mouth", who="bob")
        lab.take_back(third)
        lab.take_back(command)
        taken(lab)
        lab.say("fourth")
        until(lambda: len(lab.shown()) == 3 and not any("▉" in one for one in lab.shown()), str(lab.shown()))
        assert [one.strip() for one in lab.shown()][1:] == ["echo: second, mended", "echo: fourth"]
        assert said(gateway) == ["pause=2 first", "second, mended", "fourth"]
        assert gateway.db.search_messages("third") == []
        (row,) = gateway.db.list_sessions_rich(source="plain")
        assert row["title"] != "never"
        assert gateway.store.read(inbox.waiting) == []


def test_a_message_that_is_being_answered_changes_in_the_record_and_its_answer_comes_once(
    lab: PlainLab, model: Echo
) -> None:
    with running(lab, model, **QUEUE) as gateway:
        number = lab.say("pause=1 osprey")
        until(lambda: any("osprey" in str(one["messages"][-1]) for one in model.requests))
        lab.take_back(number)
        taken(lab)
        until(lambda: len(lab.shown()) == 1 and "▉" not in lab.shown()[0])
        assert said(gateway) == []
        lab.say("go on")
        until(lambda: any("go on" in one for one in lab.shown()))
        (*_, last) = [one for one in model.requests if "go on" in str(one["messages"][-1])]
        assert not any("osprey" in str(one["content"]) for one in last["messages"] if one["role"] == "user")


def test_an_answered_message_is_not_edited_by_a_person_who_does_not_see_it(lab: PlainLab, model: Echo) -> None:
    """Nor by the owner, who sees everything: the words would be in another's mouth."""
    with running(lab, model) as gateway:
        number = lab.say("his own words", who="bob")
        until(lambda: lab.shown(who="bob"))
        for who in ("alice", "mallory"):
            lab.change(number, "words in his mouth", who=who)
        taken(lab)
        assert said(gateway) == ["his own words"]
        lab.change(number, "his newer words", who="bob")
        taken(lab)
        assert said(gateway) == ["his newer words"]


def test_an_edit_that_comes_again_changes_nothing(lab: PlainLab, model: Echo) -> None:
    with running(lab, model) as gateway:
        number = lab.say("one")
        until(lambda: lab.shown())
        lab.change(number, "two")
        taken(lab)
        (edit,) = [name for name in lab.events if name.startswith("c")]
        lab.change(number, "three")
        taken(lab)
        lab.unacknowledged[edit] = lab.events[edit]
        lab.redeliver(edit)
        taken(lab)
        assert said(gateway) == ["three"]
    with running(lab, model) as gateway:
        lab.unacknowledged[edit] = lab.events[edit]
        lab.redeliver(edit)
        taken(lab)
        assert said(gateway) == ["three"]
        assert len(gateway.db.sql("SELECT id FROM messages WHERE hidden = -4")) == 2


def test_what_is_deleted_before_it_comes_is_not_answered(lab: PlainLab, model: Echo) -> None:
    """A platform that sends again what could not be stored may send the deletion first."""
    with running(lab, model, **QUEUE):
        alice = lab.events[lab.say("hello")]
        until(lambda: lab.shown())
        lab.revise("d2", {"id": "late2", "gone": True})
        taken(lab)
    with running(lab, model, **QUEUE) as gateway:
        for number in (2, 3):
            event = {**alice, "id": f"late{number}", "text": f"number {number}"}
            lab.events[event["id"]] = lab.unacknowledged[event["id"]] = event
            lab.redeliver(event["id"])
        until(lambda: "number 3" in str(lab.shown()), str(lab.shown()))
        assert said(gateway) == ["hello", "number 3"]


def test_a_message_is_found_long_after_its_event_was_forgotten(lab: PlainLab, model: Echo) -> None:
    with running(lab, model) as gateway:
        number = lab.say("my number is 555-0199")
        until(lambda: lab.shown())
        lab.say("and what is yours?")  # the newest event is never forgotten
        until(lambda: len(lab.shown()) == 2)
        assert gateway.store.forget_mail(older_than_days=-1, last_days=-1) > 0
        lab.take_back(number)
        taken(lab)
        assert said(gateway) == ["and what is yours?"]


def test_pictures_stay_when_the_words_beside_them_are_edited(lab: PlainLab, model: Echo) -> None:
    with running(lab, model) as gateway:
        number = lab.attach(PNG, "dot.png", "image/png", text="look at the heron")
        until(lambda: lab.shown())
        before = said(gateway)[0]
        lab.change(number, "look at the stork instead")
        taken(lab)
        after = said(gateway)[0]
        assert after[1:] == before[1:] and len(after) > 1
        assert after[0]["text"] == before[0]["text"].replace("look at the heron", "look at the stork instead")
        note = lab.attach(b"the secret word is plover", "note.txt", "text/plain", text="read it")
        until(lambda: any("plover" in one for one in lab.shown()))
        lab.change(note, "read this")
        taken(lab)
        assert said(gateway)[1].startswith("read this\n\n") and "plover" in said(gateway)[1]


def test_where_several_talk_the_name_stays_before_the_words(lab: PlainLab, model: Echo) -> None:
    with running(lab, model) as gateway:
        number = lab.say("one", where="thread")
        until(lambda: lab.shown("thread"))
        lab.change(number, "two [Bob] three", where="thread")
        taken(lab)
        assert said(gateway) == ["[Alice] two [Bob] three"]


def test_what_is_edited_in_the_very_moment_it_is_taken_up_is_not_stored_as_it_was(hermes_home: Path) -> None:
    with SessionDB(hermes_home / "state.db") as db:
        store = GatewayDB(db)
        db.create_session("s", "plain")
        number = received(store, "plain", "e1", "key", '{"text": "old"}')
        assert number is not None
        assert store.write(inbox.revise, number, '{"text": "new"}')
        for texts in (("old", "old"), ("", "")):
            with pytest.raises(Revised):
                store.append_user_message(number, "key", "s", "old", SourceEvent("e1", texts))
        assert db.get_messages("s") == []
        message, _ = store.append_user_message(number, "key", "s", "new", SourceEvent("e1", ("new", "new")))
        known = store.read(inbox.find_event, "plain", "e1")
        assert known is not None and known.message_ids == [message]
        assert store.write(inbox.revise, number, None) is False, "it is a message by now"
        later = received(store, "plain", "e2", "key", '{"text": "gone"}')
        assert later is not None and store.write(inbox.revise, later, None)
        with pytest.raises(Revised):
            store.append_user_message(later, "key", "s", "gone", SourceEvent("e2", ("gone", "gone")))
        assert [m["content"] for m in db.get_messages("s")] == ["new"]
