"""Slack's limit of edits: all growing replies of a workspace share it, "wait" is obeyed, and the last edit arrives."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes.errors import SlowDown
from hermes.gateway.platforms.slack.client import A_MINUTE, EditLimit
from tests.support.echo import Echo
from tests.support.gateway import running
from tests.support.labs.base import until
from tests.support.labs.slack import Lab
from tests.support.labs.slack_scenes import chat, connected, fresh_lab, one_workspace  # noqa: F401


@given(pauses=st.lists(st.floats(0, 30), max_size=200), finals=st.sets(st.integers(0, 200), max_size=10))
def test_in_no_minute_are_there_more_edits_than_slack_takes(pauses: list[float], finals: set[int]) -> None:
    now = 1000.0
    budget = EditLimit(lambda: now)
    edits: list[float] = []
    for number, pause in enumerate(pauses):
        now += pause
        if (
            number in finals or budget.wait() == 0
        ):  # at most ten finished replies, which are edited whatever the budget says
            budget.take()
            edits.append(now)
        else:
            now += budget.wait()
    assert all(sum(begin <= one < begin + 60 for one in edits) <= A_MINUTE + 1 + 10 for begin in edits)
    assert A_MINUTE + 1 + 10 <= 50


def test_after_a_wait_finished_replies_come_first() -> None:
    now = 1000.0
    budget = EditLimit(lambda: now)
    budget.refused(30)
    assert budget.wait() >= 30
    with pytest.raises(SlowDown) as slow:
        budget.take()
    assert slow.value.retry_after == 30
    now += 30
    budget.take()
    assert budget.wait() > 0


def test_growing_replies_of_several_chats_stay_within_the_limit_and_all_end_whole(lab: Lab, model: Echo) -> None:
    streaming = {"enabled": True, "edit_interval": 0.01, "buffer_threshold": 1, "cursor": " ▉"}
    begun = time.monotonic()
    with running(lab, model, gateway={"streaming": streaming}):
        for who in ("alice", "bob"):
            lab.say("slow=2 long=600", who=who)
        for who in ("alice", "bob"):
            until(lambda who=who: [len(one) for one in lab.shown(who=who)] == [600])
    edits = sum(1 for method, _ in lab.state.calls if method == "chat.update")
    assert edits <= 1 + 2 + (time.monotonic() - begun) * A_MINUTE / 60  # 2: the finished ones


async def test_wait_is_obeyed_for_every_chat_and_the_last_edit_arrives(lab: Lab) -> None:
    async with connected(lab) as (adapter, _):
        places = [chat(lab, where) for where in ("dm", "channel")]
        ids = [await adapter.send(place, "begun", nonce="1") for place in places]
        lab.rate_limit(30)
        with pytest.raises(SlowDown):
            await adapter.edit(places[0], ids[0], "growing")
        before = len(lab.state.calls)
        with pytest.raises(SlowDown):  # another chat of the same workspace: not even asked
            await adapter.edit(places[1], ids[1], "growing, too")
        assert len(lab.state.calls) == before
        assert adapter.edit_wait() > 20


def test_a_finished_reply_arrives_after_the_wait(lab: Lab, model: Echo) -> None:
    with running(lab, model):
        lab.say("slow=1 long=600")
        until(lambda: lab.shown())
        lab.rate_limit(1)
        until(lambda: [len(one) for one in lab.shown()] == [600])
