"""Messages that arrive while a reply is written: they interrupt or wait, each is answered, and nobody waits for another."""

from __future__ import annotations

from typing import Any

import pytest

from hermes.store.gateway import inbox
from tests.support.echo import Echo
from tests.support.gateway import running
from tests.support.labs.base import until
from tests.support.labs.plain import PlainLab
from tests.support.notices import NOT_YOURS, STOPPED

SLOW = "slow=30 " + "x " * 200  # half a minute, if nobody stops it


def whole(lab: PlainLab, number: int, **where: Any) -> list[str]:
    """So many messages, none of which grows any more."""

    def there() -> bool:
        shown = lab.shown(**where)
        return len(shown) == number and not any("▉" in one for one in shown)

    until(there, str(lab.shown(**where)))
    return lab.shown(**where)


def begun(model: Echo, words: str) -> None:
    until(lambda: any(words in str(one["messages"][-1]) for one in model.requests))


def said(gateway: Any) -> list[str]:
    (row,) = gateway.db.list_sessions_rich(source="plain")
    return [m["content"] for m in gateway.db.get_messages(row["id"]) if m["role"] == "user"]


def test_a_message_interrupts_the_reply_and_is_answered(lab: PlainLab, model: Echo) -> None:
    with running(lab, model) as gateway:
        lab.say(SLOW)
        until(lambda: any("x x x" in one for one in lab.shown()))
        lab.say("rather this")
        first, second = whole(lab, 2)
        assert first.startswith("echo: slow=30")
        assert first.endswith(STOPPED)
        assert second == "echo: rather this"
        assert said(gateway) == [SLOW.strip(), "rather this"]


@pytest.mark.parametrize(
    "display", [{"busy": "queue"}, {"busy": "interrupt", "platforms": {"plain": {"busy": "queue"}}}]
)
def test_a_message_waits_where_that_is_wanted(lab: PlainLab, model: Echo, display: dict[str, Any]) -> None:
    with running(lab, model, display=display):
        lab.say("slow=1.5 take your time")
        begun(model, "take your time")
        lab.say("then this")
        assert whole(lab, 2) == ["echo: slow=1.5 take your time", "echo: then this"]


@pytest.mark.parametrize("busy", ["interrupt", "queue"])
def test_what_arrives_meanwhile_keeps_its_order_and_is_all_answered(lab: PlainLab, model: Echo, busy: str) -> None:
    with running(lab, model, display={"busy": busy}) as gateway:
        lab.say("pause=1 first")
        begun(model, "first")
        numbers = [f"number {number}" for number in range(5)]
        for one in numbers:
            lab.say(one)
        until(lambda: any("number 4" in one for one in lab.shown()))
        until(lambda: not gateway.store.read(inbox.waiting))
        if busy == "queue":  # else one reply may answer several
            until(lambda: lab.shown() == [f"echo: {one}" for one in ["pause=1 first", *numbers]])
        assert said(gateway) == ["pause=1 first", *numbers]


def test_stop_ends_the_reply_and_the_conversation_goes_on(lab: PlainLab, model: Echo) -> None:
    with running(lab, model, display={"busy": "queue"}) as gateway:
        lab.say(SLOW)
        until(lambda: any("x x x" in one for one in lab.shown()))
        lab.say("/stop")
        first, second = whole(lab, 2)
        assert first.endswith(STOPPED)
        assert "Stopped" in second
        lab.say("go on")
        assert whole(lab, 3)[2] == "echo: go on"
        assert said(gateway) == [SLOW.strip(), "go on"]


def test_other_commands_wait_for_the_reply(lab: PlainLab, model: Echo) -> None:
    with running(lab, model):
        lab.say("pause=1 the reply")
        begun(model, "the reply")
        lab.say("/title about it")
        shown = whole(lab, 2)
        assert shown[0] == "echo: pause=1 the reply"
        assert 'now called "about it"' in shown[1]


def test_a_long_turn_blocks_no_other_person_and_no_other_chat(lab: PlainLab, model: Echo) -> None:
    with running(lab, model):
        lab.say("pause=60 for alice", who="alice")
        begun(model, "for alice")
        lab.say("for bob", who="bob")
        lab.say("from alice elsewhere", where="group")
        lab.say("from bob elsewhere", where="group", who="bob")
        assert whole(lab, 1, who="bob") == ["echo: for bob"]
        assert sorted(whole(lab, 2, where="group")) == ["echo: from alice elsewhere", "echo: from bob elsewhere"]
        assert lab.shown() == []
        lab.say("/stop")
        until(lambda: any(STOPPED in one for one in lab.shown()))


# ------------------------------------------------------------------------------------------------ several people


def test_one_reply_answers_messages_that_come_before_anything_is_shown(lab: PlainLab, model: Echo) -> None:
    with running(lab, model) as gateway:
        lab.say("pause=20 the first")
        begun(model, "the first")
        lab.say("pause=20 and the second")
        begun(model, "and the second")
        lab.say("and the third")
        assert whole(lab, 1) == ["echo: and the third"]
        assert said(gateway) == ["pause=20 the first", "pause=20 and the second", "and the third"]
        asked = [one for one in model.requests if "and the third" in str(one["messages"][-1])]
        assert "and the second" in str(asked[0]["messages"])  # a request for a title may follow
        assert not gateway.store.read(inbox.waiting)


@pytest.mark.parametrize("line", ["what about plums?", "/stop"])
def test_nobody_stops_another_ones_answer_in_a_shared_thread(lab: PlainLab, model: Echo, line: str) -> None:
    with running(lab, model, owner=["plain:u-carol"]):
        lab.say("pause=1.5 for alice", where="thread")
        begun(model, "for alice")
        lab.say(line, who="bob", where="thread")
        first, second = whole(lab, 2, where="thread")
        assert first == "echo: [Alice] pause=1.5 for alice"
        assert second == (NOT_YOURS if line == "/stop" else "echo: [Bob] what about plums?")


@pytest.mark.parametrize("line", ["enough of that", "/stop"])
def test_the_owner_stops_anyones_answer(lab: PlainLab, model: Echo, line: str) -> None:
    with running(lab, model):
        lab.say("pause=60 for bob", who="bob", where="thread")
        begun(model, "for bob")
        lab.say(line, where="thread")
        assert whole(lab, 2, where="thread")[0] == STOPPED


def test_a_question_is_answered_although_a_remark_to_others_follows_it(lab: PlainLab, model: Echo) -> None:
    mention = {"plain": {"require_mention": True}}
    with running(lab, model, platforms=mention, owner=["plain:u-carol"]):
        for number, who in enumerate(("alice", "bob"), 1):
            lab.say("hello", who=who, where="thread")
            whole(lab, number, where="thread")
        lab.say("pause=1.5 for bob", who="bob", where="thread")
        begun(model, "for bob")
        lab.say("what now?", where="thread")
        lab.say("Bob, wait", where="thread", addressed=False)
        assert whole(lab, 4, where="thread")[3] == "echo: [Alice] what now?"


def test_what_people_say_to_each_other_in_a_thread_is_context(lab: PlainLab, model: Echo) -> None:
    mention = {"plain": {"require_mention": True}}
    with running(lab, model, platforms=mention) as gateway:
        lab.say("let us bake", where="thread")
        whole(lab, 1, where="thread")
        lab.say("with plums", where="thread", addressed=False)  # nobody else is there: it is for the agent
        assert whole(lab, 2, where="thread")[1] == "echo: [Alice] with plums"
        lab.say("hello agent", who="bob", where="thread")
        whole(lab, 3, where="thread")
        lab.say("pause=1 and cinnamon?", where="thread")
        begun(model, "and cinnamon")
        lab.say("Alice, I have no cinnamon", who="bob", where="thread", addressed=False)
        lab.say("then without", where="thread", addressed=False)
        assert whole(lab, 4, where="thread")[3] == "echo: [Alice] pause=1 and cinnamon?"
        until(lambda: not gateway.store.read(inbox.waiting))
        lab.say("so what do we need?", where="thread")
        assert whole(lab, 5, where="thread")[4] == "echo: [Alice] so what do we need?"
        asked = [[str(m["content"]) for m in one["messages"] if m["role"] == "user"] for one in model.requests]
        told = next(one for one in reversed(asked) if one[-1].endswith("so what do we need?"))  # no title's
        assert "[Bob] Alice, I have no cinnamon" in "\n".join(told)
        assert "[Alice] then without" in "\n".join(told)
