"""Slack's threads: where mentions are answered, under which key, and which words come along with a message."""

from __future__ import annotations

import pytest

from hermes.gateway.events import Forwarded
from tests.support.echo import Echo
from tests.support.gateway import running
from tests.support.labs.base import until
from tests.support.labs.slack import BOT, Lab
from tests.support.labs.slack_scenes import connected, fresh_lab, one_workspace  # noqa: F401

THREADS = {"slack": {"reply_in_thread": True, "require_mention": True}}  # as it is where nothing is configured


def asked(model: Echo) -> list[str]:
    said = [str(one["messages"][-1]["content"]) for one in model.requests]
    return [one for one in said if "<quoted-history>" not in one]  # requests for a title


# ------------------------------------------------------------------------------------------------ reply_in_thread


def test_a_mention_in_a_channel_is_answered_in_a_thread_that_is_one_conversation(lab: Lab, model: Echo) -> None:
    with running(lab, model, platforms=THREADS) as gateway:
        root = lab.say("what is this?", where="channel")
        until(lambda: lab.shown("channel", thread=root) == ["echo: [Alice A.] what is this?"])
        lab.say("and that?", who="bob", where="channel", addressed=False, thread=root)
        until(lambda: len(lab.shown("channel", thread=root)) == 2)
        assert lab.shown("channel") == []
        (row,) = gateway.db.list_sessions_rich(source="slack")
        said = [one["content"] for one in gateway.db.get_messages(row["id"]) if one["role"] == "user"]
        assert said == ["[Alice A.] what is this?", "[Bob B.] and that?"]


def test_a_second_mention_in_the_channel_is_another_conversation(lab: Lab, model: Echo) -> None:
    with running(lab, model, platforms=THREADS) as gateway:
        roots = [lab.say(f"question {number}", where="channel") for number in range(2)]
        until(lambda: all(lab.shown("channel", thread=root) for root in roots))
        assert len(gateway.db.list_sessions_rich(source="slack")) == 2


@pytest.mark.parametrize("where", ["dm", "group"])
async def test_direct_and_group_messages_open_no_thread(lab: Lab, where: str) -> None:
    async with connected(lab, reply_in_thread=True) as (_, link):
        lab.say("hello", where=where)
        assert (await link.heard())[0].chat.thread_id is None


async def test_a_command_opens_no_thread(lab: Lab) -> None:
    async with connected(lab, reply_in_thread=True) as (_, link):
        lab.say("!title My trip", where="channel", addressed=False)
        lab.slash("title My trip", where="channel")
        assert [event.chat.thread_id for event in await link.heard(2)] == [None, None]


async def test_a_mention_that_comes_twice_is_one_event_in_one_thread(lab: Lab) -> None:
    async with connected(lab, reply_in_thread=True) as (_, link):
        root = lab.say("hello", where="channel")
        first, second = await link.heard(2)
        assert first == second
        assert (first.chat.thread_id, first.chat.type) == (root, "channel")


# ------------------------------------------------------------------------------------------------ quotes


def test_mentioned_in_a_thread_of_others_the_model_reads_what_it_hangs_on(lab: Lab, model: Echo) -> None:
    with running(lab, model, platforms=THREADS):
        root = lab.say_raw("we meet at 5 &amp; <@UBOB00001> brings cake", who="bob", where="channel")
        lab.say("when?", where="channel", thread=root)
        until(lambda: lab.shown("channel", thread=root))
        assert asked(model)[-1] == "[Alice A.] > we meet at 5 & @Bob B. brings cake\n\nwhen?"
        lab.say("really?", where="channel", thread=root)
        until(lambda: len(lab.shown("channel", thread=root)) == 2)
        assert asked(model)[-1] == "[Alice A.] really?"


async def test_after_a_restart_what_the_conversation_has_is_not_quoted_again(lab: Lab) -> None:
    async with connected(lab) as (adapter, link):
        lab.say("when?", where="thread")
        event = (await link.heard())[0]
        assert (event.quoted, event.reply_to) == ("Let us talk about it here", event.chat.thread_id)
        await adapter.send(event.chat, "At 5.", nonce="1")
    async with connected(lab) as (_, link):
        lab.say("thanks", where="thread")
        assert (await link.heard())[0].quoted is None


async def test_a_parent_that_can_not_be_had_costs_the_quote_alone(lab: Lab) -> None:
    lab.refuse("missing_scope", method="conversations.replies", needed="channels:history", times=2)
    async with connected(lab) as (_, link):
        lab.say("when?", where="thread")
        event = (await link.heard())[0]
        assert (event.text, event.quoted) == ("when?", None)


async def test_what_nobody_asks_us_about_is_not_looked_up(lab: Lab) -> None:
    async with connected(lab) as (_, link):
        lab.say("just between us", where="thread", addressed=False)
        await link.heard()
    assert "conversations.replies" not in [method for method, _ in lab.state.calls]


async def test_a_shared_message_comes_with_its_words_and_files(lab: Lab) -> None:
    file = lab.keep_file(b"%PDF-", "plan.pdf", "application/pdf")
    share = {"is_share": True, "author_name": "Bob B.", "text": "the plan: 1 &lt; 2", "files": [file]}
    preview = {"title": "Example", "text": "a page", "from_url": "https://example.com"}
    async with connected(lab) as (_, link):
        lab.say_raw(f"<@{BOT}> what of this?", where="channel", attachments=[share, preview])
        event = (await link.heard())[0]
    assert (event.text, event.quoted) == ("what of this?", None)
    assert event.forwarded == Forwarded(text="the plan: 1 < 2", author="Bob B.")
    assert [one.name for one in event.attachments] == ["plan.pdf"]
