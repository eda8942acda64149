"""Messages to the bot arrive once they are stored, in order, from every kind of chat, and none is left behind."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("telegram", reason="needs python-telegram-bot")

from hermes.commands.registry import parse
from hermes.errors import PlatformRefused
from hermes.gateway.events import Chat, Event, Forwarded
from hermes.gateway.flow.turns import read_answer
from hermes.gateway.platforms.telegram.adapter import Telegram
from tests.support.labs.recording import connected
from tests.support.labs.telegram import BOT, CHANNEL, GROUP, IDS, TOPIC, Lab, person


def telegram(lab: Lab, **more: Any) -> Telegram:
    return Telegram({**{one.name: one.default for one in Telegram.settings}, **lab.settings, **more}, Path("unused"))


def heard(lab: Lab, count: int, **more: Any) -> list[Event]:
    """The events that the bot receives when it comes online."""

    async def listen() -> list[Event]:
        async with connected(telegram(lab, **more)) as link:
            await link.until(lambda: len(link.events) >= count and lab.waiting() == 0, "not everything was heard")
            return link.events

    return asyncio.run(listen())


# ------------------------------------------------------------------------------------------------ coming and going


# ----------------------------------------------------------------------------------------------- what is said where


def test_a_private_chat(lab: Lab) -> None:
    number = lab.say("héllo 👋", who="bob")
    (event,) = heard(lab, 1)
    assert event.id == f"{IDS['bob']}:{number}"
    assert event.chat == Chat(platform="telegram", chat_id="1002", type="dm", name="Bob")
    assert (event.sender.user_id, event.sender.name) == ("1002", "Bob")
    assert (event.text, event.message_id, event.reply_to, event.addressed) == ("héllo 👋", number, None, True)
    assert event.sent_at is not None and event.sent_at > 1_600_000_000


def test_a_group_and_its_general_topic(lab: Lab) -> None:
    lab.say("to you", where="group")
    lab.say("to all", where="group", addressed=False)
    first, second = heard(lab, 2)
    assert first.chat == Chat(platform="telegram", chat_id=str(GROUP), type="group", name="The Lab")
    assert (first.text, first.addressed) == ("to you", True)
    assert (second.text, second.addressed) == ("to all", False)


def test_a_topic_is_a_thread_that_is_nobodys_id(lab: Lab) -> None:
    lab.say("in here", where="thread")
    (event,) = heard(lab, 1)
    assert (event.chat.type, event.chat.thread_id) == ("group", f"topic-{TOPIC}")
    assert event.chat.name == "The Lab / Ideas"
    assert event.reply_to is None  # Telegram calls the note that the topic was made "answered"


async def test_a_topic_in_a_private_chat(lab: Lab) -> None:
    adapter = telegram(lab)
    async with connected(adapter) as link:
        home = Chat(platform="telegram", chat_id="1001", type="dm")
        made = await adapter.create_thread(home, "Trip to Rome")
        lab.say("still here?", where="Trip to Rome")
        event = await link.event("still here?")
        assert (event.chat.type, event.chat.chat_id) == ("dm", "1001")
        assert event.chat.thread_id == made.thread_id


def test_a_chain_of_answers_in_a_group_is_no_thread(lab: Lab) -> None:
    lab.post({"text": "well"}, where="group", message_thread_id=99)
    (event,) = heard(lab, 1)
    assert event.chat.thread_id is None


def test_a_channel_speaks_as_itself(lab: Lab) -> None:
    lab.say("news", where="channel", addressed=False)
    (event,) = heard(lab, 1)
    assert event.chat == Chat(platform="telegram", chat_id=str(CHANNEL), type="channel", name="News")
    assert (event.sender.user_id, event.sender.name) == (str(CHANNEL), "News")
    assert event.addressed is False


def test_an_anonymous_admin_is_the_group(lab: Lab) -> None:
    anonymous = {"id": 1087968824, "is_bot": True, "first_name": "Group", "username": "GroupAnonymousBot"}
    group = {"id": GROUP, "type": "supergroup", "title": "The Lab", "is_forum": True}
    lab.post({"text": "boss"}, where="group", **{"from": anonymous, "sender_chat": group})
    (event,) = heard(lab, 1)
    assert (event.sender.user_id, event.sender.name) == (str(GROUP), "The Lab")


def test_an_answer_to_us_is_addressed_and_names_what_it_answers(lab: Lab) -> None:
    ours = {
        "message_id": 55,
        "date": 1_700_000_000,
        "chat": {"id": GROUP, "type": "supergroup"},
        "from": BOT,
        "text": "?",
    }
    lab.post({"text": "yes"}, where="group", reply_to_message=ours)
    lab.post({"text": "no"}, where="group", reply_to_message={**ours, "from": person("bob")})
    yes, no = heard(lab, 2)
    assert (yes.reply_to, yes.quoted, yes.addressed) == ("55", ours["text"], True)
    assert (no.reply_to, no.addressed) == ("55", False)


async def test_in_a_topic_that_we_opened_everything_is_addressed(lab: Lab) -> None:
    adapter = telegram(lab)
    async with connected(adapter) as link:
        await adapter.create_thread(Chat(platform="telegram", chat_id=str(GROUP), type="group"), "Handed over")
        lab.say("go on", where="Handed over", addressed=False)
        lab.say("hm", where="thread", addressed=False)
        assert (await link.event("go on")).addressed is True
        assert (await link.event("hm")).addressed is False


@pytest.mark.parametrize(
    "said, text",
    [
        ("@hermes_lab_bot what is up", "what is up"),
        ("@Hermes_Lab_Bot, what is up", "what is up"),
        ("hey @hermes_lab_bot what is up", "hey what is up"),
        ("what is up @hermes_lab_bot", "what is up"),
        ("👩‍👩‍👧 @hermes_lab_bot 漢字", "👩‍👩‍👧 漢字"),
        ("@hermes_lab_bot @bob_bot hi", "@bob_bot hi"),
        ("@hermes_lab_bot /new now", "/new now"),
        ("@hermes_lab_bot :-)", ":-)"),
        ("line one\n@hermes_lab_bot\n  indented", "line one\nindented"),
    ],
)
def test_the_mention_of_us_is_taken_out_and_nothing_else(lab: Lab, said: str, text: str) -> None:
    lab.post({"text": said}, where="group")
    (event,) = heard(lab, 1)
    assert (event.text, event.addressed) == (text, True)


def test_a_mention_of_us_without_a_user_name(lab: Lab) -> None:
    mark = {"type": "text_mention", "offset": 3, "length": 6, "user": BOT}
    lab.post({"text": "hi Hermes there", "entities": [mark]}, where="group")
    (event,) = heard(lab, 1)
    assert (event.text, event.addressed) == ("hi there", True)


def test_text_without_a_mention_stays_as_it_was_written(lab: Lab) -> None:
    lab.say("  two  spaces\n\n\tand a tab @bob_bot  ")
    assert heard(lab, 1)[0].text == "  two  spaces\n\n\tand a tab @bob_bot  "


def test_commands(lab: Lab) -> None:
    lab.say("/sessions 5")
    lab.say("/title My trip", where="group")
    lab.post({"text": "/new"}, where="group")
    lab.post({"text": "/new@another_bot"}, where="group")
    lab.post({"text": "and /new in the middle"}, where="group")
    events = heard(lab, 4)
    assert [(one.text, one.addressed) for one in events] == [
        ("/sessions 5", True), ("/title My trip", True), ("/new", True), ("and /new in the middle", False),
    ]  # fmt: skip


async def test_a_command_from_the_menu_is_ours_again(lab: Lab) -> None:
    adapter = telegram(lab)
    async with connected(adapter) as link:
        await adapter.show_menu([("/save-as", "keep it"), ("new", "a new one")])
        lab.say("/save_as notes.md")
        await link.event("/save-as notes.md")


def test_bots_edits_and_happenings_are_no_events(lab: Lab) -> None:
    group = {"id": GROUP, "type": "supergroup", "title": "The Lab"}
    lab.post({"text": "I am a bot"}, where="group", **{"from": {"id": 77, "is_bot": True, "first_name": "Other"}})
    lab.post({"new_chat_members": [person("mallory")]}, where="group")
    lab.post({"text": "forwarded by itself", "is_automatic_forward": True}, where="group")
    edited = {
        "message_id": 9,
        "date": 1_700_000_000,
        "edit_date": 1_700_000_001,
        "chat": group,
        "from": person("bob"),
        "text": "x",
    }
    lab.announce(edited_message=edited)
    lab.announce(poll={"id": "1", "question": "?", "options": [], "total_voter_count": 0, "is_closed": True,
                       "is_anonymous": True, "type": "regular", "allows_multiple_answers": False,
                       "allows_revoting": False, "members_only": False})  # fmt: skip
    lab.say("the only one")
    assert [one.text for one in heard(lab, 1)] == ["the only one"]
    assert lab.calls("getUpdates")[0]["allowed_updates"] == [
        "message",
        "channel_post",
        "edited_message",
        "edited_channel_post",
        "callback_query",
    ]


def test_what_is_sent_instead_of_words_is_put_into_words(lab: Lab) -> None:
    sticker = {
        "file_id": "s",
        "file_unique_id": "s",
        "type": "regular",
        "width": 9,
        "height": 9,
        "is_animated": False,
        "is_video": False,
    }
    lab.post({"sticker": {**sticker, "emoji": "🎉"}})
    lab.post({"location": {"latitude": 48.2, "longitude": 16.37}})
    lab.post({"contact": {"phone_number": "+431234", "first_name": "Eve"}})
    assert [one.text for one in heard(lab, 3)] == ["🎉", "geo:48.2,16.37", "Contact: Eve +431234"]


ORIGINS: list[tuple[dict[str, Any], str]] = [
    (
        {"type": "user", "sender_user": {"id": 5, "is_bot": False, "first_name": "Eve", "last_name": "Adams"}},
        "Eve Adams",
    ),
    ({"type": "hidden_user", "sender_user_name": "Somebody"}, "Somebody"),
    ({"type": "chat", "sender_chat": {"id": -5, "type": "supergroup", "title": "The Board"}}, "The Board"),
    ({"type": "channel", "chat": {"id": -6, "type": "channel", "title": "News"}, "message_id": 3}, "News"),
]


@pytest.mark.parametrize(("origin", "author"), ORIGINS)
def test_a_forwarded_message_is_not_the_senders(lab: Lab, origin: dict[str, Any], author: str) -> None:
    lab.post({"text": "/new", "forward_origin": {**origin, "date": 1_700_000_000}})
    (event,) = heard(lab, 1)
    assert (event.text, event.forwarded) == ("", Forwarded(text="/new", author=author))


def test_forwarded_captions_albums_and_the_words_of_inline_bots_are_not_the_senders(lab: Lab) -> None:
    origin = {"type": "hidden_user", "sender_user_name": "Eve", "date": 1_700_000_000}
    picture = lab.file(b"x", "a.jpg", "image/jpeg")
    lab.post({**picture, "caption": "yes", "forward_origin": origin})
    lab.post({"text": "/new", "via_bot": {"id": 9, "is_bot": True, "first_name": "Helper", "username": "helper_bot"}})
    album = {"forward_origin": origin, "media_group_id": "77"}
    lab.post({**lab.file(b"1", "1.jpg", "image/jpeg"), **album, "caption": "yes"})
    lab.post({**lab.file(b"2", "2.jpg", "image/jpeg"), **album})
    events = heard(lab, 3)
    assert [one.text for one in events] == ["", "", ""]
    assert [one.forwarded for one in events] == [
        Forwarded(text="yes", author="Eve"),
        Forwarded(text="/new", author="@helper_bot"),
        Forwarded(text="yes", author="Eve"),
    ]
    assert [len(one.attachments) for one in events] == [1, 0, 2]


def test_a_command_in_a_forwarded_message_addresses_no_bot(lab: Lab) -> None:
    origin = {"type": "hidden_user", "sender_user_name": "Eve", "date": 1_700_000_000}
    lab.post({"text": "/new@hermes_lab_bot", "forward_origin": origin}, where="group")
    lab.post({"text": "/new@another_bot", "forward_origin": origin}, where="group")
    assert [(one.text, one.addressed) for one in heard(lab, 2)] == [("", False), ("", False)]


def test_the_name_of_a_contact_or_a_place_is_neither_a_command_nor_a_consent(lab: Lab) -> None:
    lab.post({"contact": {"phone_number": "", "first_name": "yes"}})
    place = {"latitude": 48.2, "longitude": 16.37}
    lab.post({"location": place, "venue": {"location": place, "title": "/new", "address": "Street 1"}})
    texts = [one.text for one in heard(lab, 2)]
    assert [read_answer(one) for one in texts] == [parse(one) for one in texts] == [None, None]


# ---------------------------------------------------------------------------------------------------------- files


@pytest.mark.parametrize(
    "name, mime, kind",
    [
        ("a.jpg", "image/jpeg", "image"), ("v.ogg", "audio/ogg", "audio"), ("s.mp3", "audio/mpeg", "audio"),
        ("f.mp4", "video/mp4", "video"), ("d.pdf", "application/pdf", "file"), ("p.png", "image/png", "image"),
    ],
)  # fmt: skip
async def test_a_file_can_be_fetched_also_after_a_restart(lab: Lab, name: str, mime: str, kind: str) -> None:
    data = bytes(range(256)) * 40
    lab.attach(data, name, mime, text="look", where="group")
    (event,) = await asyncio.to_thread(heard, lab, 1)
    (attachment,) = event.attachments
    assert (event.text, event.addressed) == ("look", True)
    assert (attachment.kind, attachment.mime, attachment.size) == (kind, mime, len(data))
    assert lab.token not in repr(attachment.reference)
    adapter = telegram(lab)
    async with connected(adapter):
        assert (await adapter.fetch(attachment)) == data


def test_an_album_is_one_event(lab: Lab) -> None:
    album = {"media_group_id": "7"}
    first = lab.post(
        {**lab.file(b"one", "1.jpg", "image/jpeg"), "caption": "@hermes_lab_bot these"}, where="group", **album
    )
    lab.say("meanwhile elsewhere", who="bob")
    last = lab.post(lab.file(b"two", "2.jpg", "image/jpeg"), where="group", **album)
    both, other = heard(lab, 2)
    assert (both.id, both.message_id, both.text) == (f"{GROUP}:{first}-{last}", first, "these")
    assert [one.size for one in both.attachments] == [3, 3]
    assert both.addressed is True
    assert other.text == "meanwhile elsewhere"


async def test_an_album_that_comes_bit_by_bit_is_one_event(lab: Lab) -> None:
    adapter = telegram(lab)
    adapter.album_pause = 1.0
    async with connected(adapter) as link:
        album = {"media_group_id": "8"}
        lab.post({**lab.file(b"one", "1.jpg", "image/jpeg"), "caption": "both"}, **album)
        await link.until(lambda: lab.handed_out)
        lab.post(lab.file(b"two", "2.jpg", "image/jpeg"), **album)
        event = await link.event("both")
        assert len(event.attachments) == 2
        await link.until(lambda: lab.waiting() == 0, "never confirmed")
        assert len(link.events) == 1


def test_an_album_at_the_border_of_a_hundred_updates_stays_whole(lab: Lab) -> None:
    for number in range(98):
        lab.say(f"{number}", who="bob")
    for number in range(4):
        lab.post(lab.file(b"x", f"{number}.jpg", "image/jpeg"), media_group_id="9")
    events = heard(lab, 99)
    assert [one.text for one in events[:98]] == [str(number) for number in range(98)]
    assert [len(one.attachments) for one in events[98:]] == [4]


# ------------------------------------------------------------------------------------------- nothing lost, nothing twice


def test_updates_in_the_wrong_order_are_put_right(lab: Lab) -> None:
    texts = [str(number) for number in range(20)]
    lab.shuffle()
    for text in texts:
        lab.say(text)
    assert [one.text for one in heard(lab, 20)] == texts


def test_an_update_nobody_can_read_does_not_stop_the_rest(lab: Lab) -> None:
    lab.say("before")
    lab.announce_nonsense()
    lab.say("after")
    assert [one.text for one in heard(lab, 2)] == ["before", "after"]


# ------------------------------------------------------------------------------------------------ when things go wrong


async def test_a_revoked_token_is_final(lab: Lab) -> None:
    async with connected(telegram(lab)) as link:
        lab.revoked = True
        lab.drop()
        await link.until(lambda: link.losses)
        assert isinstance(link.losses[0], PlatformRefused)
    lab.revoked = False


async def test_two_programs_with_one_bot_are_told_apart(lab: Lab) -> None:
    adapter = telegram(lab)
    adapter.poll_failures = 0
    async with connected(adapter) as first:
        await first.until(lambda: lab.calls("getUpdates"))
        async with connected(telegram(lab)):
            await first.until(lambda: first.losses)
            assert "another program" in str(first.losses[0])


def test_a_webhook_of_before_is_taken_down_for_polling(lab: Lab) -> None:
    lab._do_setWebhook("http://127.0.0.1:9/old")
    lab.say("hello")
    assert [one.text for one in heard(lab, 1)] == ["hello"]
