"""Slack's limit of edits: all growing replies of a workspace share it, "wait" is obeyed, and the last edit arrives."""

from __future__ import annotations

import time

import pytest

from hermes.errors import SlowDown
from hermes.gateway.platforms.slack.adapter import EDIT_PAUSE
from tests.support.echo import Echo
from tests.support.gateway import running
from tests.support.labs.base import until
from tests.support.labs.slack import Lab
from tests.support.labs.slack_scenes import chat, connected, fresh_lab, one_workspace  # noqa: F401


def test_growing_replies_of_several_chats_stay_within_the_limit_and_all_end_whole(lab: Lab, model: Echo) -> None:
    streaming = {"enabled": True, "edit_interval": 0.01, "buffer_threshold": 1, "cursor": " ▉"}
    begun = time.monotonic()
    with running(lab, model, gateway={"streaming": streaming}):
        for who in ("alice", "bob"):
            lab.say("slow=2 long=600", who=who)
        for who in ("alice", "bob"):
            until(lambda who=who: [len(one) for one in lab.shown(who=who)] == [600])
    edits = sum(1 for method, _ in lab.state.calls if method == "chat.update")
    assert edits <= 1 + 2 + (time.monotonic() - begun) / EDIT_PAUSE  # 2: the finished ones


async def test_streamed_replies_of_every_chat_obey_a_wait(lab: Lab) -> None:
    async with connected(lab) as (adapter, _):
        sent = await adapter.send(chat(lab, "dm"), "begun", nonce="1")
        lab.rate_limit(30)
        with pytest.raises(SlowDown):
            await adapter.edit(chat(lab, "dm"), sent, "growing")
        assert adapter.edit_wait() > 20


def test_a_finished_reply_arrives_after_the_wait(lab: Lab, model: Echo) -> None:
    with running(lab, model):
        lab.say("slow=1 long=600")
        until(lambda: lab.shown())
        lab.rate_limit(1)
        until(lambda: [len(one) for one in lab.shown()] == [600])
