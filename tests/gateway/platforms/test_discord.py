"""Discord: logging in, hearing what is said, and losing none of it."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from hermes.errors import PlatformRefused, PlatformUnreachable
from hermes.gateway.events import Event, Forwarded, as_json, from_json
from hermes.gateway.platforms import adapter_class
from tests.support.labs import recording
from tests.support.labs.discord import Lab
from tests.support.labs.recording import Recorder
from tests.support.waiting import until_async

Discord = adapter_class("discord")


@asynccontextmanager
async def connected(lab: Lab, home: Path, link: Recorder | None = None) -> Any:
    """An adapter that stands, with its recorder; everything is gone afterwards."""
    adapter, link = Discord(lab.settings, home), link or Recorder()
    async with recording.connected(adapter, link):
        yield adapter, link


# ------------------------------------------------------------------------------------------------ logging in


async def test_without_the_message_content_intent_the_user_is_told_what_to_click(lab: Lab, tmp_path: Path) -> None:
    lab.server.content_allowed = False
    adapter = Discord(lab.settings, tmp_path)
    for attempt in (adapter.check(), adapter.connect(Recorder())):
        with pytest.raises(PlatformRefused, match="Message Content Intent"):
            await attempt


# ------------------------------------------------------------------------------------------------ hearing


async def test_every_kind_of_place_is_told_apart(lab: Lab, tmp_path: Path) -> None:
    async with connected(lab, tmp_path) as (_, link):
        for where in ("dm", "channel", "thread"):
            lab.say(f"in the {where}", where=where)
        await until_async(lambda: len(link.events) == 3)
        dm, channel, thread = link.events
    assert (dm.chat.type, dm.chat.chat_id, dm.chat.thread_id) == ("dm", lab.chat_id("dm"), None)
    assert (channel.chat.type, channel.chat.chat_id, channel.chat.thread_id) == (
        "channel",
        lab.chat_id("channel"),
        None,
    )
    assert (thread.chat.type, thread.chat.chat_id) == ("channel", lab.chat_id("channel"))
    assert thread.chat.thread_id is not None
    assert not thread.chat.thread_id.isdecimal()  # or it could be somebody's id
    assert (dm.chat.name, channel.chat.name, thread.chat.name) == ("Alice", "#general", "#general › plans")
    assert [one.text for one in (dm, channel, thread)] == ["in the dm", "in the channel", "in the thread"]
    assert {one.sender.id for one in (dm, channel, thread)} == {lab.user_id("alice")}
    assert dm.sender.name == "Alice"
    assert from_json(as_json(thread), Event) == thread


async def test_what_people_write_arrives_as_they_saw_it(lab: Lab, tmp_path: Path) -> None:
    bot, role = lab.server.bot["id"], lab.server.bot_role
    bob = lab.user_id("bob")
    channel = lab.chat_id("channel")
    written = {
        f"<@{bot}> what is up": "what is up",
        f"hey <@!{bot}> what is up": "hey what is up",
        f"<@&{role}> /new": "/new",
        f"ask <@{bob}> in <#{channel}> <:party:123456>": "ask @Bob in #general :party:",
        "two\n\nparagraphs  with **marks** and `code`": "two\n\nparagraphs  with **marks** and `code`",
    }
    async with connected(lab, tmp_path) as (_, link):
        for text in written:
            mentions = [lab.server.bot] if bot in text else [lab.person_object("bob")] if bob in text else []
            lab.announce(text, kind=0, mentions=mentions, mention_roles=[role] if role in text else [])
        await until_async(lambda: len(link.events) == len(written))
        assert list(link.texts) == list(written.values())


async def test_addressed_is_who_mentions_us_or_answers_us(lab: Lab, tmp_path: Path) -> None:
    async with connected(lab, tmp_path) as (adapter, link):
        asked = lab.say("with a mention", where="channel")
        (first,) = await until_async(lambda: link.events)
        ours = await adapter.send(first.chat, "our answer", nonce="1")
        lab.say("without", where="channel", addressed=False)
        lab.reply("to us", ours, where="channel")
        lab.reply("to somebody else", asked, where="channel")
        lab.announce("to our role", kind=0, mention_roles=[lab.server.bot_role])
        lab.announce("to everyone", kind=0, mention_everyone=True)
        lab.say("alone with us", where="dm", addressed=False)
        await until_async(lambda: len(link.events) == 7)
        assert {event.text: event.addressed for event in link.events} == {
            "with a mention": True, "without": False, "to us": True, "to somebody else": False,
            "to our role": True, "to everyone": False, "alone with us": True,
        }  # fmt: skip
        assert {event.reply_to for event in link.events} == {None, ours, asked}


async def test_bots_announcements_edits_and_empty_messages_are_no_events(lab: Lab, tmp_path: Path) -> None:
    async with connected(lab, tmp_path) as (adapter, link):
        number = lab.say("first")
        await until_async(lambda: link.events)
        await adapter.send(link.events[0].chat, "we said this", nonce="1")
        lab.change(number, "first, edited")
        lab.announce(kind=7)
        lab.announce("a webhook", kind=0, webhook_id="42")
        lab.announce("another bot", kind=0, author={**lab.person_object("bob"), "bot": True})
        lab.announce("", kind=0)
        lab.say("last")
        await until_async(lambda: "last" in link.texts)
        assert link.texts == ["first", "last"]


async def test_edits_and_deletions_are_told_and_previews_are_not(lab: Lab, tmp_path: Path) -> None:
    async with connected(lab, tmp_path) as (_, link):
        numbers = [lab.say(f"message {n}", where="channel") for n in range(4)]
        await until_async(lambda: len(link.events) == 4)
        lab.redeliver_as_update(numbers[0])  # a preview was added: nobody edited it
        lab.change(numbers[0], "message zero")
        lab.take_back(numbers[1])
        lab.take_back_all(numbers[2:])
        await until_async(lambda: len(link.revisions) == 4)
        edit, *gone = link.revisions
        assert (edit.revises, edit.event.text) == (link.events[0].id, "message zero")
        assert [one.event for one in gone] == [None] * 3
        assert [one.revises for one in gone] == [event.id for event in link.events[1:]]


async def test_a_forwarded_message_is_read(lab: Lab, tmp_path: Path) -> None:
    async with connected(lab, tmp_path) as (_, link):
        lab.forward("said elsewhere")
        (event,) = await until_async(lambda: link.events)
        assert (event.text, event.forwarded) == ("", Forwarded(text="said elsewhere"))


async def test_a_thread_out_of_the_archive_is_known_by_its_parent(lab: Lab, tmp_path: Path) -> None:
    async with connected(lab, tmp_path) as (_, link):
        number = lab.open_thread("forgotten", told=False)
        lab.say("anybody here?", where="thread:forgotten")
        (event,) = await until_async(lambda: link.events)
        assert (event.chat.chat_id, event.chat.thread_id) == (lab.chat_id("channel"), f"thread-{number}")


# ------------------------------------------------------------------------------------------------ losing nothing


async def test_a_message_that_could_not_be_kept_is_held_until_it_can(lab: Lab, tmp_path: Path) -> None:
    tries: list[str] = []

    async def full_disk(event: Event) -> None:
        tries.append(event.text)
        if len(tries) == 1:
            raise OSError("no space left")

    async with connected(lab, tmp_path, Recorder(full_disk)) as (_, link):
        lab.say("first")
        lab.say("second")
        await until_async(lambda: len(link.events) == 2)
        assert tries == ["first", "first", "second"]
        assert not link.losses


async def test_what_was_said_while_we_were_away_is_fetched_in_order(lab: Lab, tmp_path: Path) -> None:
    async with connected(lab, tmp_path) as (_, link):
        for where in ("dm", "channel"):
            lab.say("before", where=where)
        await until_async(lambda: len(link.events) == 2)
        known = {event.id for event in link.events}
    for number in range(3):
        for where in ("dm", "channel", "thread"):
            lab.say(f"{where} {number}", where=where)
    async with connected(lab, tmp_path) as (_, link):
        lab.say("dm 3")

        def fresh() -> list[str]:
            return list({event.id: event.text for event in link.events if event.id not in known}.values())

        await until_async(lambda: len(fresh()) == 10)
        for where, count in (("dm", 4), ("channel", 3), ("thread", 3)):
            assert [text for text in fresh() if text.startswith(where)] == [f"{where} {n}" for n in range(count)]


async def test_the_first_connection_ever_does_not_dig_up_the_past(lab: Lab, tmp_path: Path) -> None:
    lab.say("long ago", where="channel")
    async with connected(lab, tmp_path) as (_, link):
        lab.say("now", where="channel")
        await until_async(lambda: link.events)
        assert link.texts == ["now"]


@pytest.mark.parametrize("garbage", ["", "{", "[]", '{"bot": 1, "last": "x", "direct": []}'])
async def test_a_damaged_note_of_what_was_seen_costs_only_the_past(lab: Lab, tmp_path: Path, garbage: str) -> None:
    (tmp_path / "discord").mkdir()
    (tmp_path / "discord" / "seen.json").write_text(garbage)
    async with connected(lab, tmp_path) as (_, link):
        lab.say("hello")
        await until_async(lambda: link.texts == ["hello"])


async def test_a_dropped_connection_is_resumed_without_a_loss(lab: Lab, tmp_path: Path) -> None:
    async with connected(lab, tmp_path) as (_, link):
        lab.say("before")
        await until_async(lambda: link.events)
        before, resumed = lab.server.identified, lab.server.resumed
        lab.drop()
        lab.say("while it was cut")
        await until_async(lambda: len(link.identities) == 2)
        lab.say("after")
        await until_async(lambda: len(link.events) == 3)
        assert link.texts == ["before", "while it was cut", "after"]
        assert (lab.server.identified, lab.server.resumed) == (before, resumed + 1)
        assert not link.losses


async def test_when_a_session_can_not_be_resumed_what_was_missed_is_fetched(lab: Lab, tmp_path: Path) -> None:
    async with connected(lab, tmp_path) as (_, link):
        lab.say("before", where="channel")
        lab.say("before, alone")
        await until_async(lambda: len(link.events) == 2)
        lab.drop(forget=True)
        lab.say("missed", where="channel")
        lab.say("missed, alone")
        await until_async(lambda: len(link.identities) == 2)  # discord.py waits 5 seconds before it identifies again
        lab.say("after", where="channel")
        await until_async(lambda: {"after", "missed", "missed, alone"} <= set(link.texts))
        once = list({event.id: event.text for event in link.events}.values())
        assert sorted(once) == sorted(["before", "before, alone", "missed", "missed, alone", "after"])
        assert [text for text in once if "alone" not in text] == ["before", "missed", "after"]


async def test_a_server_that_throws_us_out_again_and_again_is_left_alone(lab: Lab, tmp_path: Path) -> None:
    async with connected(lab, tmp_path) as (_, link):
        lab.server.moody = True
        lab.drop()
        (error,) = await until_async(lambda: link.losses)
        assert isinstance(error, PlatformUnreachable)


# ------------------------------------------------------------------------------------------------ slash commands


@pytest.mark.parametrize("where", ["dm", "channel", "thread"])
async def test_a_command_of_the_menu_becomes_its_text_and_is_acknowledged(lab: Lab, tmp_path: Path, where: str) -> None:
    async with connected(lab, tmp_path) as (_, link):
        tokens = [lab.command("title", "My plan", where=where), lab.command("new", where=where)]
        lab.say("as if typed", where=where)
        await until_async(lambda: len(link.events) == 3)
        assert link.texts == ["/title My plan", "/new", "as if typed"]
        assert link.events[0].chat == link.events[2].chat
        assert link.events[0].sender == link.events[2].sender
        assert link.events[0].addressed
        assert link.events[0].id != link.events[1].id
        await until_async(lambda: [lab.interaction(token) for token in tokens] == ["gone", "gone"])


def test_a_command_that_the_store_refuses_is_not_acknowledged(lab: Lab, tmp_path: Path) -> None:
    seen: list[str] = []

    async def story() -> None:
        async def full_disk(event: Event) -> None:
            seen.append(lab.interaction(token) if event.text == "/new" else "")
            if event.text == "/new":
                raise OSError("no space left")

        async with connected(lab, tmp_path, Recorder(full_disk)) as (_, link):
            nonlocal token
            token = lab.command("new")
            other = lab.command("status")
            await until_async(lambda: lab.interaction(other) == "gone")
            assert lab.interaction(token) == "waiting"
            assert (seen, link.texts) == (["waiting", ""], ["/status"])

    token = ""
    asyncio.run(story())


async def test_the_menu_is_written_when_it_changes_and_only_then(lab: Lab, tmp_path: Path) -> None:
    def written() -> int:
        return sum(1 for name, _ in lab.server.requests if name == "bulk_set_application_commands")

    before = written()
    async with connected(lab, tmp_path) as (adapter, _):
        menu = [("new", "Start anew"), ("title", "x" * 300), ("Not For Discord", "a name it does not take")]
        await adapter.show_menu(menu)
        await adapter.show_menu(menu)
        assert written() == before + 1
        assert [(one["name"], len(one["description"])) for one in lab.server.commands] == [
            ("new", 10),
            ("title", 100),
        ]
        assert [one["name"] for one in lab.server.commands[0]["options"]] == ["arguments"]
        await adapter.show_menu(menu[:1])
        assert written() == before + 2
        assert [one["name"] for one in lab.server.commands] == ["new"]
