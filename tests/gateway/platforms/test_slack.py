"""Slack: coming and going, who is heard, what is kept, and what happens when the connection breaks."""

from __future__ import annotations

import asyncio
import logging

import pytest
from aiohttp import web

from hermes.errors import PlatformRefused, PlatformUnreachable
from hermes.gateway.events import Event
from tests.support.labs.slack import BOT, FOREIGN, STRANGE, Lab
from tests.support.labs.slack_scenes import Recorder, chat, connected, fresh_lab, made, one_workspace  # noqa: F401
from tests.support.waiting import until_async

# ------------------------------------------------------------------------------------------------ coming and going


async def test_a_token_that_is_no_bots_is_refused(lab: Lab) -> None:
    person = {"ok": True, "user": "alice", "user_id": lab.user_id("alice")}
    lab.answer_next("auth.test", lambda: web.json_response(person))
    with pytest.raises(PlatformRefused, match="xoxb"):
        await made(lab).check()


# ------------------------------------------------------------------------------------------------ hearing


@pytest.mark.parametrize(
    ("where", "type", "name"),
    [
        ("dm", "dm", "Alice A."),
        ("group", "group", "alice, bob, hermes"),
        ("channel", "channel", "#general"),
        ("private", "channel", "#secret"),
        ("thread", "channel", "#general"),
    ],
)
async def test_a_message_is_heard_in_every_kind_of_place(lab: Lab, where: str, type: str, name: str) -> None:
    async with connected(lab) as (_, link):
        ts = lab.say("is 1 < 2 & 3 > 2?", where=where)
        event = (await link.heard())[0]
    assert event.text == "is 1 < 2 & 3 > 2?"
    assert (event.chat.type, event.chat.name, event.chat.chat_id) == (type, name, lab.chat_id(where))
    assert (event.chat.thread_id is not None) == (where == "thread")
    assert (event.sender.user_id, event.sender.name) == (lab.user_id("alice"), "Alice A.")
    assert (event.id, event.message_id, event.sent_at) == (f"{event.chat.chat_id}:{ts}", ts, float(ts))
    assert event.addressed


async def test_without_a_mention_nobody_addresses_us_in_a_channel(lab: Lab) -> None:
    async with connected(lab) as (_, link):
        lab.say("just between us", where="channel", addressed=False)
        lab.say("and us", where="group", addressed=False)
        assert [event.addressed for event in await link.heard(2)] == [False, False]


async def test_in_a_thread_of_ours_no_mention_is_needed(lab: Lab) -> None:
    async with connected(lab) as (adapter, link):
        mine = await adapter.create_thread(chat(lab, "channel"), "Plans")
        lab.say("go on", where="channel", addressed=False, thread=mine.thread_id)
        lab.say("do you hear?", where="thread", addressed=False)
        root = (await link.heard(2))[1].chat
        await adapter.send(root, "Yes.", nonce="1")
        lab.say("good", where="thread", addressed=False)
        assert [event.addressed for event in await link.heard(3)] == [True, False, True]
        assert link.events[0].chat.thread_id == mine.thread_id


async def test_a_thread_that_hangs_on_our_message_is_ours_after_a_restart_too(lab: Lab) -> None:
    async with connected(lab) as (adapter, _):
        mine = await adapter.create_thread(chat(lab, "channel"), "Plans")
    async with connected(lab) as (_, link):
        lab.say("go on", where="channel", addressed=False, thread=mine.thread_id)
        assert (await link.heard())[0].addressed


async def test_what_changes_or_bots_say_is_no_event_and_is_acknowledged(lab: Lab) -> None:
    common = {
        "type": "message",
        "channel": lab.chat_id("dm"),
        "channel_type": "im",
        "ts": "1.1",
        "user": "UALICE001",
    }
    async with connected(lab) as (adapter, link):
        for extra in (
            {"subtype": "message_changed", "hidden": True, "message": {"text": "new"}},
            {"subtype": "message_deleted"},
            {"subtype": "channel_join", "text": "joined"},
            {"subtype": "bot_message", "bot_id": "B1", "user": None},
            {"bot_id": "B1", "text": "beep"},
            {"user": BOT, "text": "me"},
            {"user": "USLACKBOT", "text": "tip of the day"},
        ):
            lab.announce(common | extra)
        lab.announce({"type": "reaction_added", "user": "UALICE001", "item": {"channel": "C1", "ts": "1.1"}})
        await adapter.send(chat(lab), "said by us", nonce="1")
        lab.say("said by Alice")
        await until_async(lambda: len(lab.state.acknowledged) == 10)
        assert [event.text for event in link.events] == ["said by Alice"]


async def test_an_edit_of_its_author_and_a_deletion_are_told_and_nothing_else_is(lab: Lab) -> None:
    async with connected(lab) as (_, link):
        first, root = lab.say("first", where="channel"), lab.say("root", where="channel")
        await until_async(lambda: len({event.id for event in link.events}) == 2)
        place = lab.chat_id("channel")
        preview = {"type": "message", "user": "UALICE001", "ts": first, "text": "first", "attachments": [{"id": 1}]}
        tombstone = {"type": "message", "subtype": "tombstone", "user": "USLACKBOT", "ts": root, "text": "deleted"}
        about = {"type": "message", "subtype": "message_changed", "hidden": True, "channel": place, "ts": "9.1"}
        lab.announce(about | {"message": preview})
        lab.change(first, "words in her mouth", by="UBOB00001")
        lab.change(first, "first, mended")
        lab.announce(about | {"message": tombstone})
        lab.take_back(first)
        await until_async(lambda: len(link.revisions) == 3)
        assert [one.revises for one in link.revisions] == [
            f"{place}:{first}",
            f"{place}:{root}",
            f"{place}:{first}",
        ]
        assert [one.event and one.event.text for one in link.revisions] == ["first, mended", None, None]


async def test_people_channels_and_links_are_spelled_as_they_were_typed(lab: Lab) -> None:
    async with connected(lab) as (_, link):
        lab.say_raw(
            f"<@{BOT}> ask <@UBOB00001> in <#C1|random>, <!here>: <http://example.com|example.com> or"
            " <https://a.example/x?a=1&amp;b=2> or <https://b.example|this one>",
            where="channel",
        )
        assert (await link.heard())[0].text == (
            "ask @Bob B. in #random, @here: example.com or https://a.example/x?a=1&b=2 or [this one](https://b.example)"
        )


async def test_a_message_is_heard_also_where_slack_tells_no_names(lab: Lab) -> None:
    lab.refuse("missing_scope", method="users.info", needed="users:read")
    lab.answer_next("conversations.info", lambda: web.Response(status=500))
    async with connected(lab) as (_, link):
        lab.say("hello", where="group", addressed=False)
        event = (await link.heard())[0]
    assert (event.text, event.sender.name, event.chat.name, event.chat.type) == ("hello", None, None, "group")


# ------------------------------------------------------------------------------------------------ commands


@pytest.mark.parametrize(
    ("typed", "text"),
    [
        ("title My trip", "/title My trip"),
        ("sessions", "/sessions"),
        ("", "/help"),
        ("is 1 < 2 & 3?", "is 1 < 2 & 3?"),
        ("!title x", "/title x"),
    ],
)
async def test_the_native_command_becomes_one_of_ours(lab: Lab, typed: str, text: str) -> None:
    async with connected(lab) as (_, link):
        lab.slash(typed, where="channel")
        event = (await link.heard())[0]
    assert (event.text, event.chat.type, event.chat.name, event.sender.name) == (
        text,
        "channel",
        "#general",
        "Alice A.",
    )


async def test_a_command_that_has_our_name_for_it_is_that_command(lab: Lab) -> None:
    async with connected(lab) as (_, link):
        lab.slash("My trip", command="/title")
        event = (await link.heard())[0]
    assert (event.text, event.chat.type, event.chat.chat_id) == ("/title My trip", "dm", lab.chat_id("dm"))


@pytest.mark.parametrize("where", [STRANGE, FOREIGN])
async def test_a_command_typed_where_we_are_not_is_answered_as_a_direct_message(lab: Lab, where: str) -> None:
    async with connected(lab) as (_, link):
        lab.slash("status", chat=where)
        event = (await link.heard())[0]
    assert (event.chat.type, event.chat.chat_id) == ("dm", lab.chat_id("dm"))


@pytest.mark.parametrize(
    ("typed", "text"),
    [
        ("!title My trip", "/title My trip"),
        ("!Help", "/Help"),
        (" /title x", "/title x"),
        ("!important news", "!important news"),
        ("!", "!"),
        ("!!title", "!!title"),
    ],
)
async def test_a_bang_and_the_word_of_a_command_are_a_command(lab: Lab, typed: str, text: str) -> None:
    async with connected(lab) as (_, link):
        lab.say(typed, where="thread")
        assert (await link.heard())[0].text == text


# ------------------------------------------------------------------------------------------------ keeping


async def test_an_event_is_acknowledged_only_when_it_is_kept(lab: Lab) -> None:
    kept = asyncio.Event()
    async with connected(lab) as (_, link):

        async def slowly(event: Event) -> None:
            await kept.wait()

        link.before = slowly
        lab.say("hello")
        lab.say("from elsewhere", who="bob")
        await until_async(lambda: len(lab.state.unacknowledged) == 2)
        assert lab.state.acknowledged == []
        kept.set()
        await until_async(lambda: len(lab.state.acknowledged) == 2)


# ------------------------------------------------------------------------------------------------ the connection


async def test_a_connection_that_no_longer_answers_is_found_dead(lab: Lab) -> None:
    lab.state.deaf = True
    async with connected(lab, heartbeat=0.1) as (_, link):
        await until_async(lambda: link.losses)
        assert isinstance(link.losses[0], PlatformUnreachable)


@pytest.mark.parametrize("reason", ["refresh_requested", "warning"])
async def test_when_slack_renews_a_connection_nothing_is_lost_and_nobody_is_told_of_a_loss(
    lab: Lab, reason: str
) -> None:
    async with connected(lab) as (_, link):
        for number in range(30):
            lab.say(str(number))
            if number in (5, 15):
                before = lab.server.connections
                lab.refresh(reason)
                await until_async(lambda before=before: lab.server.connections > before)
        await link.heard(30)
        await until_async(lambda: len(lab.server._sockets) == 1)
        assert link.losses == []
        assert {event.text for event in link.events} == {str(number) for number in range(30)}
        lab.say("still there?")
        await until_async(lambda: link.events[-1].text == "still there?")


async def test_turning_socket_mode_off_is_said_as_such(lab: Lab) -> None:
    async with connected(lab) as (_, link):
        lab.refresh("link_disabled")
        await until_async(lambda: link.losses)
        assert isinstance(link.losses[0], PlatformRefused)
        assert "Socket Mode" in str(link.losses[0])


async def test_a_renewal_that_fails_is_a_loss(lab: Lab) -> None:
    async with connected(lab) as (_, link):
        lab.refuse("internal_error", method="apps.connections.open")
        lab.refresh()
        await until_async(lambda: link.losses)
        assert isinstance(link.losses[0], PlatformUnreachable)
        await until_async(lambda: not lab.server._sockets)
        assert len(link.losses) == 1


async def test_a_connection_that_does_not_open_is_worth_another_try_and_its_ticket_is_told_nobody(
    lab: Lab, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    stale = {"ok": True, "url": f"ws://127.0.0.1:{lab.server.port}/link?ticket=ticket-of-mine"}
    lab.answer_next("apps.connections.open", lambda: web.json_response(stale))
    adapter = made(lab)
    with pytest.raises(PlatformUnreachable) as failed:
        await adapter.connect(Recorder())
    assert "ticket-of-mine" not in str(failed.value) + caplog.text
    assert failed.value.__suppress_context__
