"""The messages sent to a model are a conversation it can accept, whatever a crash left behind."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes.agent.prompt import LOST, TOOL_BUDGET, UNANSWERED, prepared, repaired

pytestmark = pytest.mark.mechanism


def asks(*ids: str) -> dict[str, Any]:
    calls = [{"id": one, "type": "function", "function": {"name": "f", "arguments": "{}"}} for one in ids]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def result(call_id: str, text: str = "done") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "tool_name": "f", "content": text}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def test_a_call_without_its_result_gets_one_that_says_it_was_lost() -> None:
    sent = repaired([user("go"), asks("a", "b"), result("b", "two"), user("and?")])
    assert [m["role"] for m in sent] == ["user", "assistant", "tool", "tool", "user"]
    assert (sent[2]["tool_call_id"], sent[2]["content"]) == ("a", LOST)
    assert (sent[3]["tool_call_id"], sent[3]["content"]) == ("b", "two")


def test_a_message_that_was_never_answered_is_followed_by_a_word_about_that() -> None:
    sent = repaired([user("one"), user("two")])
    assert [m["role"] for m in sent] == ["user", "assistant", "user"]
    assert sent[1]["content"] == UNANSWERED


def test_the_same_call_id_in_two_rounds_keeps_each_result_with_its_own_call() -> None:
    sent = repaired([user("go"), asks("call_0"), result("call_0", "first"), asks("call_0"), result("call_0", "second")])
    assert [m.get("content") for m in sent] == ["go", None, "first", None, "second"]


def test_a_result_nobody_asked_for_is_still_told() -> None:
    sent = repaired([result("x", "42"), user("what was it?")])
    assert sent[0]["role"] == "user"
    assert "42" in sent[0]["content"]


_MESSAGES = st.lists(
    st.one_of(
        st.builds(user, st.text(max_size=5)),
        st.builds(lambda t: {"role": "assistant", "content": t}, st.text(max_size=5)),
        st.builds(lambda ids: asks(*ids), st.lists(st.sampled_from("abc"), min_size=1, max_size=3, unique=True)),
        st.builds(result, st.sampled_from("abcd"), st.text(max_size=5)),
    ),
    max_size=12,
)


@given(_MESSAGES)
def test_every_call_is_followed_by_exactly_its_results_and_nothing_is_dropped(history: list[dict[str, Any]]) -> None:
    sent = repaired(history)
    position = 0
    while position < len(sent):
        message = sent[position]
        assert message["role"] != "tool"
        wanted = [c["id"] for c in message.get("tool_calls", ())]
        got = [m.get("tool_call_id") for m in sent[position + 1 : position + 1 + len(wanted)]]
        assert got == wanted
        position += 1 + len(wanted)
    for message in history:  # each stored message is there, as itself or (a stray result) as quoted text
        assert any(
            m is message or (message["role"] == "tool" and message["content"] in str(m["content"])) for m in sent
        )


def test_a_long_result_is_cut_to_its_budget_with_a_note_and_both_ends() -> None:
    text = "start " + "x" * 200_000 + " end"
    sent = prepared([user("go"), asks("a"), result("a", text)], system_prompt="be good")
    assert sent[0] == {"role": "system", "content": "be good"}
    shown = sent[-1]["content"]
    assert len(shown) <= TOOL_BUDGET
    assert shown.startswith("start ")
    assert shown.endswith(" end")
    assert "characters left out" in shown


def test_an_attached_picture_goes_to_the_model_as_it_came(db: Any) -> None:
    picture = b"\x89PNG\r\n\x1a\n" + bytes(range(256))
    url = "data:image/png;base64," + base64.b64encode(picture).decode()
    content = [{"type": "text", "text": "what is this?"}, {"type": "image_url", "image_url": {"url": url}}]
    db.create_session("s", "cli")
    db.append_message("s", "user", content)
    history = db.get_messages_as_conversation("s", inline_attachments=False)
    assert "base64" not in str(history)  # the record keeps the bytes elsewhere
    assert prepared(history, system_prompt=None, attachments=db.read_attachment)[0]["content"] == content
