"""Slack sends again what was not acknowledged: nothing is, before the store has it, and each message is kept once and in order."""

from __future__ import annotations

import asyncio

import pytest
from aiohttp import web

from hermes.gateway.events import Event
from tests.support.labs.slack import Lab
from tests.support.labs.slack_scenes import HOME, connected, fresh_lab, one_workspace  # noqa: F401
from tests.support.waiting import until_async


async def never(event: Event) -> None:
    await asyncio.Event().wait()


async def test_what_the_store_did_not_take_is_not_acknowledged_and_the_next_start_has_it(lab: Lab) -> None:
    seen: list[str] = []

    async def notes(event: Event) -> None:
        seen.append(event.text)
        await never(event)

    async with connected(lab) as (_, link):
        link.before = notes
        lab.say("first")
        lab.say("second")
        await until_async(lambda: seen)
    assert (link.events, lab.state.acknowledged) == ([], [])
    lab.say("third")
    async with connected(lab) as (_, link):
        assert [event.text for event in await link.heard(3)] == ["first", "second", "third"]
        await until_async(lambda: len(lab.state.acknowledged) == 3)


async def test_a_store_that_wakes_up_keeps_each_message_once_and_in_order(lab: Lab) -> None:
    awake = asyncio.Event()

    async def slowly(event: Event) -> None:
        await awake.wait()

    async with connected(lab) as (_, link):
        link.before = slowly
        for number in range(5):
            lab.say(str(number))
        assert lab.state.acknowledged == []
        awake.set()
        await link.heard(5)
        await until_async(lambda: len(lab.state.acknowledged) == 5)
        assert [event.text for event in link.events] == list("01234")


async def test_a_store_that_refuses_is_asked_again_without_slacks_help(lab: Lab) -> None:
    tries: list[str] = []

    async def fails_twice(event: Event) -> None:
        tries.append(event.text)
        if len(tries) < 3:
            raise OSError("the disk is full")

    async with connected(lab) as (_, link):
        link.before = fails_twice
        lab.say("hello")
        await link.heard(1)
        await until_async(lambda: lab.state.acknowledged)
    assert tries == ["hello"] * 3


async def test_a_command_is_acknowledged_when_slack_has_told_where_it_belongs(lab: Lab) -> None:
    lab.answer_next("conversations.open", lambda: web.Response(status=503), times=2)
    async with connected(lab) as (_, link):
        lab.slash("how are you?", chat="CFOREIGN1")
        await until_async(lambda: lab.state.acknowledged)
        assert (await link.heard(1))[0].text == "how are you?"


async def test_an_envelope_that_can_not_be_read_is_not_acknowledged_and_holds_up_no_other(
    lab: Lab, caplog: pytest.LogCaptureFixture
) -> None:
    async with connected(lab) as (_, link):
        lab.announce({"type": "message", "channel": lab.chat_id("dm"), "channel_type": "im", "user": "UALICE001"})
        lab.say("hello")
        assert [event.text for event in await link.heard(1)] == ["hello"]
        await until_async(lambda: len(lab.state.acknowledged) == 1)
        assert len(lab.state.unacknowledged) == 1
    assert "can't be read" in caplog.text
