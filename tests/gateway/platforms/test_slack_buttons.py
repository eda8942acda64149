"""Slack's buttons: where a press belongs, also to a process that did not send them, and whatever an interaction may hold."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes.gateway.events import Chat, Choice
from hermes.gateway.platforms.slack import outgoing as form
from tests.support.anything import anything
from tests.support.labs.slack import Lab
from tests.support.labs.slack_scenes import connected, fresh_lab, one_workspace  # noqa: F401
from tests.support.labs.slack_schema import problems_of
from tests.support.waiting import until_async

pytestmark = pytest.mark.mechanism

CHOICES = [Choice(label="Yes", says="/yes 0123abcd"), Choice(label="No", says="/no 0123abcd")]


async def test_a_press_after_a_restart_belongs_to_the_thread_of_its_message(lab: Lab) -> None:
    place = Chat(platform="slack", chat_id=lab.chat_id("thread"), type="channel", thread_id=lab._root)
    async with connected(lab) as (adapter, _):
        ts = await adapter.send_choices(place, "Really?", CHOICES, nonce="n")
    lab.press("No", where="thread", who="bob")  # nobody is there: it waits
    async with connected(lab) as (_, link):
        (event,) = await link.heard()
        assert (event.text, event.sender.user_id, event.reply_to) == ("/no 0123abcd", lab.user_id("bob"), ts)
        assert (event.chat.chat_id, event.chat.thread_id) == (place.chat_id, place.thread_id)
        assert event.addressed


async def test_a_press_that_comes_twice_has_one_id_and_two_presses_have_two(lab: Lab) -> None:
    place = Chat(platform="slack", chat_id=lab.chat_id("dm"))
    async with connected(lab) as (adapter, link):
        await adapter.send_choices(place, "Really?", CHOICES, nonce="n")
        lab.press("Yes")
        (first,) = await link.heard()
        await until_async(lambda: lab.state.acknowledged)
        (envelope,) = [one for key, sent in lab.state.sent.items() if key.endswith(".trigger") for one in sent]
        lab.server.do(lambda: lab.server.deliver({**envelope, "retry_attempt": 1}))
        lab.press("Yes")
        _, again, other = await link.heard(3)
        assert again.id == first.id and other.id != first.id


@given(
    st.lists(st.tuples(st.text(min_size=1, max_size=200), st.text(min_size=1, max_size=500)), min_size=1, max_size=25)
)
def test_every_row_of_buttons_is_one_that_slack_takes(labels: list[tuple[str, str]]) -> None:
    block = form.buttons([Choice(label=label, says=says) for label, says in labels])
    assert not problems_of("chat.postMessage", {"channel": "C1", "text": "x", "blocks": [block]}, as_json=True)


JSON = anything()
FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "type": st.just("block_actions") | JSON,
        "actions": st.lists(
            st.fixed_dictionaries({}, optional={"action_id": st.just("says:0") | JSON, "value": JSON, "action_ts": JSON}) | JSON,
            max_size=2,
        )
        | JSON,
        "container": st.fixed_dictionaries(
            {}, optional={"channel_id": st.text(max_size=4) | JSON, "message_ts": JSON, "thread_ts": JSON}
        )
        | JSON,
        "user": st.fixed_dictionaries({}, optional={"id": JSON}) | JSON,
        "message": JSON,
    },
)  # fmt: skip


@given(FIELDS)
def test_any_interaction_is_a_press_or_nothing(payload: dict[str, Any]) -> None:
    found = form.pressed(payload)
    assert found is None or (isinstance(found.says, str) and found.user and found.chat_id and found.ts)
