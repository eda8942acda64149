"""A turn that a killed process left is taken up by another: answered once, no tool run twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hermes.agent.prompt import LOST
from hermes.agent.tools.tool import Tool
from hermes.agent.turn import Done, Followed, Notice, Text
from hermes.agent.turn_session import WENT_ON
from hermes.errors import InvalidInput
from hermes_state import SessionDB
from tests.support.wire import STALL, Wire, call, delta, end, said, sse

from .saying import Canned, talk
from .test_killed_turns import Child, database, rows

__all__ = ["database"]


def asked(db: Any, *messages: dict[str, Any]) -> list[int]:
    db.create_session("s1", "telegram")
    return [db.append_message("s1", **message) for message in ({"role": "user", "content": "how far?"}, *messages)]


def calls(*ids: str) -> dict[str, Any]:
    made = [{"id": one, "type": "function", "function": {"name": "look", "arguments": "{}"}} for one in ids]
    return {"role": "assistant", "content": "", "tool_calls": made, "finish_reason": "tool_calls"}


def result(call_id: str) -> dict[str, Any]:
    return {"role": "tool", "content": f"result {call_id}", "tool_call_id": call_id, "tool_name": "look"}


def test_a_question_whose_reply_never_began_is_answered(db: Any, make_agent: Any) -> None:
    asked(db)
    with Wire([said("Far.")]) as wire:
        events = list(make_agent(wire, db=db).resume())
        assert [type(event) for event in events] == [Text, Done]
        assert events[-1] == Done("Far.")
        assert [m["content"] for m in wire.bodies[0]["messages"][1:]] == ["how far?"]
    assert rows(db) == [("user", "how far?"), ("assistant", "Far.")]


def test_what_is_answered_already_is_not_answered_again(db: Any, make_agent: Any) -> None:
    asked(db, {"role": "assistant", "content": "Far.", "finish_reason": "stop"})
    db.end_session("s1", "idle")
    with Wire([said("again")]) as wire:
        assert list(make_agent(wire, db=db).resume()) == [Done("Far.")]
        assert wire.bodies == []
    assert rows(db) == [("user", "how far?"), ("assistant", "Far.")]
    assert db.get_session("s1")["end_reason"] == "idle"  # looking does not open it


@pytest.mark.parametrize("stored", [True, False])
def test_a_reply_that_was_cut_off_begins_anew(db: Any, make_agent: Any, stored: bool) -> None:
    ids = asked(db)
    if stored:
        db.append_message("s1", "assistant", "Fa", finish_reason="interrupted")
    else:
        draft = db.drafts.begin("s1", after=ids[0], model="fake")
        draft.write("Fa")
        draft.close(keep=True)
    with Wire([said("Far.")]) as wire:
        events = list(make_agent(wire, db=db).resume())
        assert events[-1] == Done("Far.")
        notices = [event.text for event in events if isinstance(event, Notice)]
        assert notices == ([] if stored else ["a crash cut the reply off; it starts over"])
        assert [m["content"] for m in wire.bodies[0]["messages"][1:]] == ["how far?"]
    assert rows(db) == [("user", "how far?"), ("assistant", "Far.")]


def test_tools_that_ran_are_not_run_again_and_lost_results_are_said_to_be_lost(db: Any, make_agent: Any) -> None:
    asked(db, calls("a", "b"), result("a"))
    ran: list[Any] = []
    look = Tool("look", "looks", {"type": "object"}, lambda context, arguments: str(ran.append(arguments)))
    with Wire([said("Far.")]) as wire:
        assert list(make_agent(wire, db=db, tools=[look]).resume())[-1] == Done("Far.")
        sent = wire.bodies[0]["messages"][3:]
        assert [(m["tool_call_id"], m["content"]) for m in sent] == [("a", "result a"), ("b", LOST)]
    assert ran == []
    assert [role for role, _ in rows(db)] == ["user", "assistant", "tool", "assistant"]


def test_of_a_turn_with_tools_only_the_words_that_were_cut_off_are_taken_back(db: Any, make_agent: Any) -> None:
    asked(db, calls("a"), result("a"), {"role": "assistant", "content": "It i", "finish_reason": "interrupted"})
    with Wire([said("It is far.")]) as wire:
        agent = make_agent(wire, db=db)
        assert list(agent.resume())[-1] == Done("It is far.")
        assert [m["role"] for m in wire.bodies[0]["messages"]] == ["system", "user", "assistant", "tool"]
        assert list(agent.resume()) == [Done("It is far.")]
    assert [role for role, _ in rows(db)] == ["user", "assistant", "tool", "assistant"]


def test_it_goes_on_where_the_conversation_was_compressed_to(db: Any, make_agent: Any) -> None:
    ids = talk(db, "s1", *(f"message {number}" for number in range(9)))
    db.compress_session("s1", "s2", summary="notes", head_until=ids[1], tail_from=ids[6])
    with Wire([said("Here.")]) as wire:
        agent = make_agent(wire, db=db)
        events = list(agent.resume())
        assert (events[0], events[-1]) == (Followed("s1", "s2"), Done("Here."))
        assert agent.session_id == "s2"
        assert list(make_agent(wire, db=db).resume()) == [Done("Here.")]


WHOLE = {"role": "assistant", "content": "Far.", "finish_reason": "stop"}
CUT = {"role": "assistant", "content": "Fa", "finish_reason": "interrupted"}


@pytest.mark.parametrize(
    ("meanwhile", "told"), [([WHOLE], "Far."), ([CUT], WENT_ON), ([], WENT_ON), ([calls("a"), result("a")], WENT_ON)]
)
def test_if_another_process_went_on_meanwhile_its_reply_is_not_taken_for_ours(
    db: Any, make_agent: Any, meanwhile: list[dict[str, Any]], told: str
) -> None:
    more = [{"role": "user", "content": "and from here?"}, {"role": "assistant", "content": "Near."}]
    first, *_ = asked(db, *meanwhile, *more)
    before = rows(db)
    with Wire([said("again")]) as wire:
        assert list(make_agent(wire, db=db).resume(first)) == [Done(told)]
        assert list(make_agent(wire, db=db).resume()) == [Done("Near.")]
        assert wire.bodies == []
    assert rows(db) == before


def test_there_is_nothing_to_go_on_with_before_the_first_message(db: Any, make_agent: Any) -> None:
    with pytest.raises(InvalidInput, match="nothing to answer"):
        list(make_agent(None, db=db, model=Canned("x")).resume())
    assert db.get_session("s1") is None
    db.create_session("s1", "cli")
    with pytest.raises(InvalidInput, match="nothing to answer"):
        list(make_agent(None, db=db, model=Canned("x")).resume())


def test_killed_in_the_middle_of_a_reply_another_process_finishes_it(make_agent: Any, database: Path) -> None:
    with Wire([sse(delta(content="Once "), delta(content="upon"), STALL), said("Once upon a time.")]) as wire:
        child = Child(database, wire.base_url, "tell")
        child.wait_for("Text", 2)
        child.kill()
        with SessionDB(db_path=database) as db:
            assert list(make_agent(wire, db=db).resume())[-1] == Done("Once upon a time.")
            assert rows(db) == [("user", "tell"), ("assistant", "Once upon a time.")]
            assert db.check() == []


def test_killed_while_a_tool_ran_another_process_finishes_the_turn(make_agent: Any, database: Path) -> None:
    long = delta(tool_calls=[call("sleep", '{"long": true}', index=0, id="c0")])
    with Wire([sse(long, end("tool_calls")), said("It was stopped.")]) as wire:
        child = Child(database, wire.base_url, "rest")
        child.wait_for("ToolStarted")
        child.kill()
        with SessionDB(db_path=database) as db:
            assert list(make_agent(wire, db=db).resume())[-1] == Done("It was stopped.")
            assert [role for role, _ in rows(db)] == ["user", "assistant", "assistant"]
        assert wire.bodies[-1]["messages"][-1] == {"role": "tool", "tool_call_id": "c0", "content": LOST}
