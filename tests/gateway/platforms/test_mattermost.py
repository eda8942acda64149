"""Mattermost: threads, what was missed, sends whose answer was lost, formatting, and whatever a server may push."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes.gateway.events import CHANNEL, Chat
from hermes.gateway.platforms.mattermost import Mattermost, PostReader, length, post_of, quiet
from hermes.store.gateway import inbox, outbox
from tests.support.anything import anything
from tests.support.echo import Echo
from tests.support.gateway import running
from tests.support.labs.base import until
from tests.support.labs.mattermost import BOT, Lab
from tests.support.labs.recording import Recorder, connected


def test_a_mention_in_a_channel_is_answered_in_a_thread_of_its_own(lab: Lab, model: Echo) -> None:
    lab.reply_in_thread = True
    with running(lab, model, platforms={"mattermost": {"require_mention": True}}) as gateway:
        post = lab.say("hello", where="channel")
        until(lambda: any(one["root_id"] == post for one in lab._posts.values()))
        (row,) = gateway.db.list_sessions_rich(source="mattermost")
        assert lab.shown("channel") == []
        lab.say("not for the agent", where="channel", addressed=False)
        lab.say("and more", where="channel", addressed=False, root_id=post)  # in our thread no mention is needed
        until(lambda: sum(one["root_id"] == post and one["user_id"] == BOT for one in lab._posts.values()) == 2)
        assert gateway.db.session_count() == 1
        assert "not for the agent" not in str(gateway.db.get_messages(row["id"]))


def test_what_was_posted_while_nobody_listened_is_answered_once(lab: Lab, model: Echo) -> None:
    with running(lab, model, display={"busy": "queue"}):
        lab.say("before")
        until(lambda: lab.shown() == ["echo: before"])
    lab.drop(forget=True)
    lab.say("while it was down")
    lab.say("also this")
    with running(lab, model, display={"busy": "queue"}):
        until(lambda: len(lab.shown()) == 3)
        lab.cut_off(True)
        lab.say("during a cut")
        lab.cut_off(False)
        until(lambda: len(lab.shown()) == 4)
    assert lab.shown() == [f"echo: {text}" for text in ("before", "while it was down", "also this", "during a cut")]


def test_history_from_before_the_bot_is_not_answered(lab: Lab, model: Echo) -> None:
    lab.say("years ago")
    with running(lab, model):
        lab.say("now")
        until(lambda: lab.shown())
        assert lab.shown() == ["echo: now"]


def test_a_post_whose_answer_was_lost_is_not_posted_again(lab: Lab, model: Echo) -> None:
    with running(lab, model) as gateway:
        lab.lost_answers = 1
        lab.say("hello")
        until(
            lambda: lab.shown() and not gateway.store.read(inbox.waiting) and not gateway.store.read(outbox.unsent),
        )
        lab.say("again", who="bob")
        until(lambda: lab.shown(who="bob") == ["echo: again"])
        until(lambda: lab.shown() == ["echo: hello"])
        assert lab.shown() == ["echo: hello"]


async def test_a_sent_post_is_found_below_many_later_ones_and_a_search_that_is_too_long_says_so(
    lab: Lab, tmp_path: Path
) -> None:
    """A gateway that was away for long: before, only the latest 60 posts were read, and an older reply was posted again."""
    adapter, chat = Mattermost(lab.settings, tmp_path), Chat(platform="mattermost", chat_id=lab.chat_id("dm"))
    async with connected(adapter, Recorder()):
        await adapter.send(chat, "hello", nonce="n")
        for number in range(500):
            lab._made(lab.user_id("alice"), lab.chat_id("dm"), f"later {number}")
        assert await adapter.was_sent(chat, nonce="n") is True
        assert await adapter.was_sent(chat, nonce="another") is False
        for number in range(2000):
            lab._made(lab.user_id("alice"), lab.chat_id("dm"), f"much later {number}")
        assert await adapter.was_sent(chat, nonce="n") is None


@pytest.mark.parametrize(
    ("text", "sent"),
    [("@all look", "@\u200ball look"), ("mail a@b.org", "mail a@b.org"), ("`@property`", "`@property`"),
     ("```\n@decorated\n```\n@here", "```\n@decorated\n```\n@\u200bhere"), ("5 @ 3", "5 @ 3"), ("```\n@open", "```\n@open")],
)  # fmt: skip
def test_the_agent_notifies_no_one(text: str, sent: str) -> None:
    assert quiet(text) == sent


@given(st.text())
def test_a_text_is_as_long_as_it_is_measured_at_most(text: str) -> None:
    assert len(quiet(text)) <= length(text)
    assert quiet(text).replace("\u200b", "") == text.replace("\u200b", "")


any_json = anything()
fields = st.sampled_from(
    ["id", "user_id", "channel_id", "root_id", "message", "props", "file_ids", "metadata", "type", "create_at"]
)


@given(st.dictionaries(fields, any_json), any_json)
def test_whatever_a_server_pushes_is_read_or_skipped(post: dict[str, Any], mentions: Any) -> None:
    reader = PostReader(BOT, "hermes", thread_replies=True)
    found = post_of({"post": json.dumps(post)})
    if found is None:
        return
    event = reader.event(found, {"type": "O"}, None, mentions if isinstance(mentions, list) else [])
    assert event is None or (event.id == post["id"] and event.chat.type == CHANNEL)


@pytest.mark.parametrize(
    ("text", "addressed", "left"),
    [("@hermes do it", True, "do it"), ("@Hermes: do it", True, "do it"), ("do it @hermes", True, "do it"),
     ("@hermes2 do it", False, "@hermes2 do it"), ("@hermes.old do it", False, "@hermes.old do it"),
     ("mail x@hermes", False, "mail x@hermes")],
)  # fmt: skip
def test_who_is_mentioned(text: str, addressed: bool, left: str) -> None:
    reader = PostReader(BOT, "hermes", thread_replies=False)
    event = reader.event({"id": "p1", "user_id": "u", "channel_id": "c", "message": text}, {"type": "O"}, "alice")
    assert event is not None
    assert (event.addressed, event.text) == (addressed, left)


@pytest.mark.parametrize(
    "post",
    [
        {"props": {"from_bot": "true"}},
        {"props": {"from_webhook": "true"}},
        {"type": "system_join_channel"},
        {"user_id": BOT},
    ],
)
def test_programs_and_notices_are_not_answered(post: dict[str, Any]) -> None:
    whole = {"id": "p1", "user_id": "u", "channel_id": "c", "message": "hi", **post}
    assert PostReader(BOT, "hermes", thread_replies=False).event(whole, {"type": "D"}, None) is None


def test_threads_are_for_channels(tmp_path: Path) -> None:
    from hermes.errors import SendRefused

    adapter = Mattermost({"url": "http://127.0.0.1:1", "token": "x"}, tmp_path)
    with pytest.raises(SendRefused, match="channels only"):
        asyncio.run(adapter.create_thread(Chat(platform="mattermost", chat_id="c"), "a name"))
