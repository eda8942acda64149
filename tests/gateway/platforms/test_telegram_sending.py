"""The agent's texts arrive formatted and in the right place; every refusal has its own name; webhooks are guarded."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("telegram", reason="needs python-telegram-bot")


from hermes.errors import HermesError, PlatformRefused, PlatformUnreachable, SendRefused, SlowDown
from hermes.gateway.adapter import Listening
from hermes.gateway.events import Attachment, Chat, Event, OutgoingFile
from hermes.gateway.platforms.telegram.adapter import Telegram
from tests.support.labs.recording import Recorder, connected
from tests.support.labs.telegram import GROUP, TOPIC, Lab
from tests.support.ports import free_port

ALICE = Chat(platform="telegram", chat_id="1001", type="dm")
ROOM = Chat(platform="telegram", chat_id=str(GROUP), type="group")
IDEAS = Chat(platform="telegram", chat_id=str(GROUP), type="group", thread_id=f"topic-{TOPIC}")


def telegram(lab: Lab, **more: Any) -> Telegram:
    return Telegram({**{one.name: one.default for one in Telegram.settings}, **lab.settings, **more}, Path("unused"))


def refusal(lab: Lab, call: Any, expected: type[HermesError]) -> HermesError:
    """The error that a call ends with."""

    async def scene() -> HermesError:
        adapter = telegram(lab)
        async with connected(adapter):
            with pytest.raises(expected) as refused:
                await call(adapter)
            return refused.value

    return asyncio.run(scene())


def say(lab: Lab, *texts: str, chat: Chat = ALICE, **more: Any) -> list[str]:
    async def scene() -> list[str]:
        adapter = telegram(lab)
        async with connected(adapter):
            return [await adapter.send(chat, text, nonce=text, **more) for text in texts]

    return asyncio.run(scene())


# -------------------------------------------------------------------------------------------------------- messages


def test_messages_go_to_the_group_and_to_its_topic(lab: Lab) -> None:
    say(lab, "to all", chat=ROOM)
    say(lab, "to some", chat=IDEAS)
    say(
        lab,
        "to the general topic",
        chat=Chat(platform="telegram", chat_id=str(GROUP), type="group", thread_id="topic-1"),
    )
    assert lab.shown("group") == ["to all", "to the general topic"]
    assert lab.shown("thread") == ["to some"]


def test_an_answer_names_what_it_answers_and_is_sent_even_if_that_is_gone(lab: Lab) -> None:
    say(lab, "yes", reply_to="55")
    assert lab.calls("sendMessage")[0]["reply_parameters"] == {"message_id": 55, "allow_sending_without_reply": True}


def test_telegram_fetches_no_page_behind_a_link(lab: Lab) -> None:
    say(lab, "[here](https://example.org/?secret=1)")
    assert lab.calls("sendMessage")[0]["link_preview_options"] == {"is_disabled": True}


async def test_refused_formatting_is_sent_without(lab: Lab) -> None:
    lab.refuse_formatting = True
    adapter = telegram(lab)
    async with connected(adapter):
        number = await adapter.send(ALICE, "**Hello** [x](https://e.org)", nonce="1")
        assert lab.shown() == ["**Hello** [x](https://e.org)"]
        await adapter.edit(ALICE, number, "*changed*")
    assert lab.shown() == ["*changed*"]


async def test_typing_is_shown_where_the_answer_will_be(lab: Lab) -> None:
    adapter = telegram(lab)
    async with connected(adapter) as link:
        lab.say("so that we know it has topics", where="group")
        await link.until(lambda: link.events)
        for chat in (ALICE, ROOM, IDEAS, IDEAS):
            await adapter.typing(chat)
    assert (lab.typed(), lab.typed("group"), lab.typed("thread")) == (1, 1, 2)


# -------------------------------------------------------------------------------------------------- topics and menu


async def test_a_topic_is_made_and_written_to(lab: Lab) -> None:
    adapter = telegram(lab)
    async with connected(adapter):
        for home in (ROOM, ALICE, IDEAS):
            made = await adapter.create_thread(home, f"Trip {home.type} {home.thread_id}")
            assert made.chat_id == home.chat_id
            assert made.thread_id != home.thread_id
            await adapter.send(made, "here we go on", nonce="1")
    assert lab.threads() == ["Trip group None", "Trip dm None", "Trip group topic-7"]
    assert lab.shown("Trip dm None") == ["here we go on"]


async def test_the_name_of_a_topic_is_made_to_fit(lab: Lab) -> None:
    adapter = telegram(lab)
    async with connected(adapter):
        for name in ("x" * 500, "  two\nlines ", "", "\ud800"):
            await adapter.create_thread(ROOM, name)
    assert lab.threads() == ["x" * 128, "two lines", "Hermes", "\ufffd"]


def test_no_topic_without_the_right_to_make_one(lab: Lab) -> None:
    lab.forbidden_topics = True
    error = refusal(lab, lambda adapter: adapter.create_thread(ROOM, "x"), SendRefused)
    assert "not enough rights" in str(error).lower()


def test_a_topic_that_is_gone(lab: Lab) -> None:
    gone = Chat(platform="telegram", chat_id=str(GROUP), type="group", thread_id="topic-999")
    refusal(lab, lambda adapter: adapter.send(gone, "x", nonce="1"), SendRefused)


async def test_the_menu_has_the_names_telegram_allows(lab: Lab) -> None:
    adapter = telegram(lab)
    async with connected(adapter):
        await adapter.show_menu(
            [("new", "begin"), ("/save-as", ""), ("Größe", "no"), ("NEW", "twice"), ("long", "y" * 300)]
        )
    assert [(one["command"], len(one["description"])) for one in lab.menu] == [
        ("new", 5),
        ("save_as", 7),
        ("long", 256),
    ]


# --------------------------------------------------------------------------------------------------------- refusals


def test_slow_down_says_how_long(lab: Lab) -> None:
    lab.rate_limit(3)
    error = refusal(lab, lambda adapter: adapter.send(ALICE, "x", nonce="1"), SlowDown)
    assert isinstance(error, SlowDown)
    assert error.retry_after == 3
    say(lab, "now")
    assert lab.shown() == ["now"]


def test_a_chat_that_is_gone_or_has_blocked_us(lab: Lab) -> None:
    lab.blocked.add(1001)
    refusal(lab, lambda adapter: adapter.send(ALICE, "x", nonce="1"), SendRefused)
    nowhere = Chat(platform="telegram", chat_id="31337", type="dm")
    refusal(lab, lambda adapter: adapter.send(nowhere, "x", nonce="1"), SendRefused)
    refusal(lab, lambda adapter: adapter.send(ALICE, "   ", nonce="1"), SendRefused)


def test_a_group_that_became_a_supergroup_is_followed(lab: Lab) -> None:
    lab.moved = {-77: -1001000000077}
    old = Chat(platform="telegram", chat_id="-77", type="group")
    say(lab, "**where** are you", "there", chat=old)
    assert [(one["chat"]["id"], one["text"]) for one in lab.sent] == [
        (-1001000000077, "where are you"), (-1001000000077, "there"),
    ]  # fmt: skip
    assert len(lab.calls("sendMessage")) == 3  # asked at the old address once


def test_what_can_not_be_fetched(lab: Lab) -> None:
    big = lab.file(b"x" * (20 * 1024 * 1024 + 1), "film.mp4", "video/mp4")["video"]["file_id"]
    attachment = Attachment(kind="video", name="film.mp4", reference={"file_id": big})
    assert "20 MB" in str(refusal(lab, lambda adapter: adapter.fetch(attachment), SendRefused))
    for reference in ({"file_id": "gone"}, {}):
        lost = Attachment(kind="file", reference=reference)
        refusal(lab, lambda adapter, lost=lost: adapter.fetch(lost), SendRefused)


def test_a_lost_answer_leaves_it_open_whether_the_message_arrived(lab: Lab) -> None:
    lab.unanswered = 1
    error = refusal(lab, lambda adapter: adapter.send(ALICE, "once", nonce="1"), PlatformUnreachable)
    assert [one["text"] for one in lab.sent] == ["once"]
    assert isinstance(error, PlatformUnreachable) and error.maybe_sent


def test_what_a_failing_server_refused_has_certainly_not_arrived(lab: Lab) -> None:
    lab.fail()
    error = refusal(lab, lambda adapter: adapter.send(ALICE, "x", nonce="1"), PlatformUnreachable)
    assert isinstance(error, PlatformUnreachable) and not error.maybe_sent
    assert lab.sent == []


# --------------------------------------------------------------------------------------------------------- webhooks


def webhook(lab: Lab, port: int | None = None, webhook_secret: str | None = "s3cret-word-of-ours") -> Telegram:
    port = port or free_port()
    adapter = telegram(lab, webhook_url=f"http://127.0.0.1:{port}/telegram", webhook_secret=webhook_secret)
    adapter.webhook_place = Listening(port=port)
    return adapter


def knock(adapter: Telegram, body: bytes, **headers: str) -> int:
    """The status a stranger gets at the webhook."""
    request = urllib.request.Request(
        str(adapter.values["webhook_url"]), body, {"Content-Type": "application/json", **headers}
    )
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


@pytest.mark.parametrize("secret", [None, "", "with a space in it", "x" * 257, "ümlaut-ümlaut-ümlaut", "x" * 15])
def test_a_webhook_without_a_proper_secret_is_refused(lab: Lab, secret: str | None) -> None:
    for call in (
        webhook(lab, webhook_secret=secret).check,
        lambda: webhook(lab, webhook_secret=secret).connect(Recorder()),
    ):
        with pytest.raises(PlatformRefused, match="webhook_secret"):
            asyncio.run(call())
    assert lab.requests == []


async def test_a_webhook_brings_messages_in_order(lab: Lab) -> None:
    async with connected(webhook(lab)) as link:
        for number in range(10):
            lab.say(f"{number}", where=("dm", "group", "thread")[number % 3])
        await link.until(lambda: len(link.events) == 10 and lab.waiting() == 0)
        assert link.texts == [f"{number}" for number in range(10)]
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert lab.calls("getUpdates") == []
    assert lab.calls("setWebhook")[0]["secret_token"] == "s3cret-word-of-ours"


async def test_a_webhook_takes_only_what_is_kept(lab: Lab) -> None:
    class Full(Recorder):
        refused = 0

        async def received(self, event: Event) -> None:
            if self.refused < 3:
                self.refused += 1
                assert lab.waiting() == 1
                raise OSError("the disk is full")
            await super().received(event)

    async with connected(webhook(lab), Full()) as link:
        lab.say("keep me")
        await link.event("keep me")
        await link.until(lambda: lab.waiting() == 0, "never taken")
        assert link.texts == ["keep me"]


async def test_strangers_and_nonsense_at_the_webhook(lab: Lab) -> None:
    update = json.dumps({"update_id": 1, "message": {"message_id": 1, "date": 1, "chat": {"id": 1001, "type": "private"},
                         "from": {"id": 1001, "is_bot": False, "first_name": "Eve"}, "text": "let me in"}}).encode()  # fmt: skip
    right = {"X-Telegram-Bot-Api-Secret-Token": "s3cret-word-of-ours"}
    adapter = webhook(lab)
    async with connected(adapter) as link:
        assert await asyncio.to_thread(knock, adapter, update) == 403
        for wrong in ("", "s3cret", "s3cret-word-of-ours2"):
            told = {"X-Telegram-Bot-Api-Secret-Token": wrong}
            assert await asyncio.to_thread(lambda told=told: knock(adapter, update, **told)) == 403
        for nonsense in (b"", b"{", b"[]", b"5", b"{}", b'{"update_id": "x"}', b"\xff"):
            assert await asyncio.to_thread(lambda body=nonsense: knock(adapter, body, **right)) == 400
        assert link.events == []
        assert await asyncio.to_thread(lambda: knock(adapter, b'{"update_id": 9, "message": {}}', **right)) == 200
        assert await asyncio.to_thread(lambda: knock(adapter, update, **right)) == 200
        assert link.texts == ["let me in"]


def test_secrets_are_marked_as_such() -> None:
    secret = {one.name for one in Telegram.settings if one.secret}
    assert secret == {"token", "proxy", "webhook_secret"}
    assert {one.variable for one in Telegram.settings if one.required} == {"TELEGRAM_BOT_TOKEN"}


async def test_a_file_goes_out_by_its_kind_and_as_a_document_where_telegram_can_not_show_it(lab: Lab) -> None:
    def file(name: str, mime: str) -> OutgoingFile:
        return OutgoingFile(kind=mime.partition("/")[0], name=name, mime=mime, data=name.encode())

    async with connected(adapter := telegram(lab)):
        await adapter.send_file(ALICE, file("a.png", "image/png"), caption="**bold** `x`", nonce="1")
        await adapter.send_file(IDEAS, file("a.ogg", "audio/ogg"), nonce="2")
        await adapter.send_file(ALICE, file("a.svg", "image/svg+xml"), nonce="3")
        lab.no_pictures = True
        await adapter.send_file(ALICE, file("b.jpg", "image/jpeg"), nonce="4")
    assert lab.sent_files() == [("a.png", b"a.png", "bold x"), ("a.svg", b"a.svg", ""), ("b.jpg", b"b.jpg", "")]
    assert lab.sent_files("thread") == [("a.ogg", b"a.ogg", "")]
    sent = [name for name, _ in lab.requests if name.startswith("send")]
    assert sent == ["sendPhoto", "sendVoice", "sendDocument", "sendPhoto", "sendDocument"]


def test_a_message_with_its_formatting(lab: Lab) -> None:
    say(lab, "**Hello** 👋 `x`")
    assert lab.shown() == ["Hello 👋 x"]
    assert [(one["type"], one["offset"], one["length"]) for one in lab.sent[0]["entities"]] == [
        ("bold", 0, 5), ("code", 9, 1),
    ]  # fmt: skip


def test_an_edit_of_a_message_that_is_gone(lab: Lab) -> None:
    refusal(lab, lambda adapter: adapter.edit(ALICE, "31337", "x"), SendRefused)
