"""Half a surrogate pair in the record: the session goes on, the model is sent a replacement, the record keeps it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes.agent.models.endpoint import EndpointModel
from hermes.texts import encodable
from tests.support.wire import Wire, said

pytestmark = pytest.mark.mechanism

HALF = "half \ud83d of it"
SENT = "half � of it"


def test_a_session_with_half_a_character_everywhere_is_resumed(db: Any, make_agent: Any) -> None:
    calls = [{"id": "c1", "type": "function", "function": {"name": "look", "arguments": f'{{"at": "{HALF}"}}'}}]
    db.create_session("s1", "cli", system_prompt=HALF)
    db.append_message("s1", "user", [{"type": "text", "text": HALF}])
    db.append_message("s1", "assistant", HALF, tool_calls=calls, reasoning_content=HALF, finish_reason="tool_calls")
    db.append_message("s1", "tool", HALF, tool_call_id="c1", tool_name="look")
    db.append_message("s1", "assistant", HALF, finish_reason="stop")
    before = db.get_messages("s1")
    with Wire([said("Whole.")]) as wire:
        agent = make_agent(wire, db=db)
        list(agent.turn(HALF))
        heard = wire.bodies[0]["messages"]
    assert [m["content"] for m in heard[1:]] == [[{"type": "text", "text": SENT}], SENT, SENT, SENT, SENT]
    assert SENT in heard[2]["tool_calls"][0]["function"]["arguments"]
    assert db.get_messages("s1")[: len(before)] == before
    assert [m["content"] for m in db.get_messages("s1")[len(before) :]] == [HALF, "Whole."]


def test_side_tasks_are_asked_as_well() -> None:
    with Wire([said("A title")]) as wire:
        model = EndpointModel("fake", wire.base_url, "key", 1000, timeout=30)
        assert model.complete([{"role": "user", "content": HALF}]) == "A title"
        assert wire.bodies[0]["messages"] == [{"role": "user", "content": SENT}]


@given(st.text(st.characters(), max_size=20))
def test_only_what_no_wire_can_carry_is_replaced(text: str) -> None:
    sent = encodable(text)
    sent.encode()
    assert encodable(sent) == sent
    assert encodable({"a": [text], text: 1}) == {"a": [sent], sent: 1}
    try:
        text.encode()
    except UnicodeEncodeError:
        assert "\ufffd" in sent or len(sent) < len(text)  # halves that met are one character
    else:
        assert sent == text
