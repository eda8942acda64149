"""Discord: sending, editing, files and threads, and what happens when Discord does not want to."""

from __future__ import annotations

from pathlib import Path

import pytest

from hermes.errors import PlatformUnreachable, SendRefused, SlowDown
from hermes.gateway.events import Attachment, Chat
from tests.gateway.platforms.test_discord import Discord, connected
from tests.support.labs.discord import Lab


def chat(lab: Lab, where: str = "dm") -> Chat:
    kind = "dm" if where == "dm" else "channel"
    thread = f"thread-{lab.place('thread')}" if where == "thread" else None
    return Chat(platform="discord", chat_id=lab.chat_id(where), type=kind, thread_id=thread)


@pytest.mark.parametrize("where", ["dm", "channel", "thread"])
async def test_a_message_is_sent_changed_and_announced_by_typing(lab: Lab, tmp_path: Path, where: str) -> None:
    async with connected(lab, tmp_path) as (adapter, _):
        await adapter.typing(chat(lab, where))
        number = await adapter.send(chat(lab, where), "first **words**", nonce="1")
        await adapter.send(chat(lab, where), "another", nonce="2")
        await adapter.edit(chat(lab, where), number, "first words, and more")
    assert lab.shown(where) == ["first words, and more", "another"]
    assert lab.typed(where) == 1


async def test_an_answer_refers_to_its_question(lab: Lab, tmp_path: Path) -> None:
    async with connected(lab, tmp_path) as (adapter, link):
        asked = lab.say("why?", where="channel")
        event = (await link.heard())[0]
        number = await adapter.send(event.chat, "because", nonce="1", reply_to=event.message_id)
        assert str(lab.server.find(number)["message_reference"]["message_id"]) == asked


async def test_markdown_is_shown_as_discord_does(lab: Lab, tmp_path: Path) -> None:
    async with connected(lab, tmp_path) as (adapter, _):
        number = await adapter.send(chat(lab), "#### Sum\n\n| a | b |\n|---|---|\n| 1 | 2 |", nonce="1")
        await adapter.edit(chat(lab), number, "#### Sum\n\n__done__ || hidden")
    assert lab.shown() == ["**Sum**\n\n\\_\\_done\\_\\_ \\|\\| hidden"]


async def test_nobody_is_pinged(lab: Lab, tmp_path: Path) -> None:
    async with connected(lab, tmp_path) as (adapter, _):
        number = await adapter.send(chat(lab, "channel"), "@everyone @here", nonce="1")
        await adapter.edit(chat(lab, "channel"), number, f"@everyone <@{lab.user_id('bob')}>")
    assert len(lab.shown("channel")) == 1


async def test_no_link_is_followed_for_a_preview(lab: Lab, tmp_path: Path) -> None:
    async with connected(lab, tmp_path) as (adapter, _):
        number = await adapter.send(chat(lab), "see https://x.org/?what=secret", nonce="1")
        await adapter.edit(chat(lab), number, "see https://x.org/?what=more")
    assert int(lab.server.find(number)["flags"]) & 4


@pytest.mark.parametrize("sign", ["x", "😀", "|", "`", "é"])
async def test_the_longest_text_still_fits(lab: Lab, tmp_path: Path, sign: str) -> None:
    most = Discord.capabilities.longest // Discord.capabilities.measure(sign)
    async with connected(lab, tmp_path) as (adapter, _):
        await adapter.send(chat(lab), sign * most, nonce="1")
    assert len(lab.shown()[0]) >= most


# ------------------------------------------------------------------------------------------------ once


async def test_the_same_nonce_twice_makes_one_message_also_after_a_restart(lab: Lab, tmp_path: Path) -> None:
    nonce = "a long name of {} message, longer than Discord takes"
    sent = set()
    for _ in range(2):
        async with connected(lab, tmp_path) as (adapter, _link):
            await adapter.send(chat(lab), "another", nonce=nonce.format("another"))
            sent.add(await adapter.send(chat(lab), "once", nonce=nonce.format("this")))
    assert len(sent) == 1
    assert lab.shown() == ["another", "once"]


async def test_a_send_whose_answer_was_lost_can_be_repeated(lab: Lab, tmp_path: Path) -> None:
    async with connected(lab, tmp_path) as (adapter, _):
        lab.swallow()
        with pytest.raises(PlatformUnreachable):
            await adapter.send(chat(lab), "once", nonce="1")
        await adapter.send(chat(lab), "once", nonce="1")
    assert lab.shown() == ["once"]


# ------------------------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize("at_the_door", [False, True])
async def test_a_long_rate_limit_is_left_to_the_gateway(lab: Lab, tmp_path: Path, at_the_door: bool) -> None:
    async with connected(lab, tmp_path) as (adapter, _):
        lab.rate_limit(45, at_the_door=at_the_door)
        with pytest.raises(SlowDown) as asked:
            await adapter.send(chat(lab), "later", nonce="1")
        assert asked.value.retry_after == 45
        lab.rate_limit(45, at_the_door=at_the_door)
        with pytest.raises(SlowDown):
            await adapter.edit(chat(lab), "123", "later")


async def test_a_place_that_is_gone_or_closed_to_us_refuses_the_message(lab: Lab, tmp_path: Path) -> None:
    async with connected(lab, tmp_path) as (adapter, _):
        lab.forbid("channel")
        nowhere = Chat(platform="discord", chat_id="4711", type="channel")
        nonsense = Chat(platform="discord", chat_id="#general", type="channel")
        for place, reason in (
            (chat(lab, "channel"), "Missing Permissions"), (nowhere, "Unknown Channel"), (nonsense, "not the id"),
        ):  # fmt: skip
            with pytest.raises(SendRefused, match=reason):
                await adapter.send(place, "hello", nonce="1")
        with pytest.raises(SendRefused, match="empty"):
            await adapter.send(chat(lab), "  \n", nonce="2")
        with pytest.raises(SendRefused, match="Unknown Message"):
            await adapter.edit(chat(lab), "4711", "hello")
        with pytest.raises(SendRefused):
            await adapter.edit(chat(lab), "not a number", "hello")


# ------------------------------------------------------------------------------------------------ files


async def test_files_arrive_with_what_is_known_of_them(lab: Lab, tmp_path: Path) -> None:
    async with connected(lab, tmp_path) as (adapter, link):
        kinds = {"a.png": "image/png", "b.ogg": "audio/ogg", "c.mp4": "video/mp4", "d.txt": "text/plain; charset=utf-8"}
        for name, mime in kinds.items():
            lab.attach(name.encode(), name, mime, text=f"see {name}")
        found = await link.heard(len(kinds))
        assert [event.text for event in found] == [f"see {name}" for name in kinds]
        attachments = [event.attachments[0] for event in found]
        assert [one.kind for one in attachments] == ["image", "audio", "video", "file"]
        assert [one.mime for one in attachments] == ["image/png", "audio/ogg", "video/mp4", "text/plain"]
        assert [(one.name, one.size) for one in attachments] == [(name, len(name)) for name in kinds]
        assert [await adapter.fetch(one) for one in attachments] == [name.encode() for name in kinds]


async def test_a_file_without_words_is_an_event(lab: Lab, tmp_path: Path) -> None:
    async with connected(lab, tmp_path) as (_, link):
        lab.attach(b"data", "a.bin", "application/octet-stream", where="thread")
        event = (await link.heard())[0]
        assert (event.text, len(event.attachments), event.addressed) == ("", 1, True)


async def test_a_file_can_be_had_after_a_restart_when_its_address_has_expired(lab: Lab, tmp_path: Path) -> None:
    async with connected(lab, tmp_path) as (_, link):
        lab.attach(b"the picture", "a.png", "image/png", where="channel")
        attachment = (await link.heard())[0].attachments[0]
    lab.expire_links()
    async with connected(lab, tmp_path) as (adapter, _):
        assert await adapter.fetch(attachment) == b"the picture"


async def test_a_file_whose_message_was_deleted_is_gone(lab: Lab, tmp_path: Path) -> None:
    async with connected(lab, tmp_path) as (adapter, link):
        number = lab.attach(b"data", "a.txt", "text/plain")
        attachment = (await link.heard())[0].attachments[0]
        lab.forget(number)
        with pytest.raises(SendRefused):
            await adapter.fetch(attachment)
        with pytest.raises(SendRefused):
            await adapter.fetch(Attachment(kind="file"))


# ------------------------------------------------------------------------------------------------ threads


@pytest.mark.parametrize("where", ["channel", "thread", "forum"])
async def test_a_thread_is_opened_and_talked_in(lab: Lab, tmp_path: Path, where: str) -> None:
    async with connected(lab, tmp_path) as (adapter, link):
        made = await adapter.create_thread(chat(lab, where), "Trip to\nOslo " + "x" * 200)
        await adapter.send(made, "here we are", nonce="1")
        lab.say("good", where=f"thread:{lab.threads()[0]}")
        event = (await link.heard())[0]
        assert (event.chat.chat_id, event.chat.thread_id) == (made.chat_id, made.thread_id)
    (name,) = lab.threads()
    assert name == ("Trip to Oslo " + "x" * 200)[:100]
    assert made.chat_id == lab.chat_id(where)
    assert lab.shown(f"thread:{name}")[-1] == "here we are"
    (thread,) = [one for one in lab.server.channels.values() if one.get("made")]
    assert thread["thread_metadata"]["auto_archive_duration"] == 1440


async def test_where_there_can_be_no_thread_it_is_refused(lab: Lab, tmp_path: Path) -> None:
    async with connected(lab, tmp_path) as (adapter, _):
        with pytest.raises(SendRefused, match="no threads"):
            await adapter.create_thread(chat(lab, "dm"), "x")
        lab.forbid("channel")
        with pytest.raises(SendRefused, match="Missing Permissions"):
            await adapter.create_thread(chat(lab, "channel"), "x")
    assert lab.threads() == []


# ------------------------------------------------------------------------------------------------ the lab itself
