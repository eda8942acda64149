"""DingTalk: acknowledgements, session webhooks that end, tokens that end, who a sender is, formatting, and whatever is pushed."""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes.errors import PlatformError, SendRefused, SlowDown
from hermes.gateway.events import DM, GROUP, Attachment, Chat, OutgoingFile
from hermes.gateway.platforms._shared.http import AccessToken
from hermes.gateway.platforms.dingtalk import DingTalk, event_of, is_plain, length, markdown, message_of, title_of
from tests.support.anything import anything
from tests.support.echo import Echo
from tests.support.gateway import running
from tests.support.labs.base import until
from tests.support.labs.dingtalk import CORP, TOPIC, Lab
from tests.support.labs.recording import connected

ALICE = Chat(platform="dingtalk", chat_id="staffalice")


# ------------------------------------------------------------------------------------------------ the stream


async def test_dingtalk_asks_for_another_connection(lab: Lab, tmp_path: Path) -> None:
    async with connected(DingTalk(lab.settings, tmp_path)) as link:
        frame = lab.frame({"type": "SYSTEM", "topic": "disconnect"}, '{"reason": "persistent connection is timeout"}')
        await link.until(lambda: lab.connections == 2)
        assert frame in lab.acknowledged
        lab.say("hello")
        await link.event("hello")
        assert link.losses == []


async def test_frames_that_can_not_be_read_are_acknowledged_and_skipped(lab: Lab, tmp_path: Path) -> None:
    async with connected(DingTalk(lab.settings, tmp_path)) as link:
        for data in (
            "",
            "not JSON",
            "[]",
            '{"msgId": 1}',
            '{"msgId": "m", "conversationId": "c"}',
            None,
            5,
            {"a": 1},
        ):
            lab.frame({"type": "CALLBACK", "topic": TOPIC}, data)
        lab.frame({"type": "EVENT", "topic": "*"}, "{}")
        lab.frame({"type": "CALLBACK", "topic": "/v1.0/card/instances/callback"}, "{}")
        lab.frame({"type": "NEW", "topic": "x"}, "{}")
        lab.say("after them")
        await link.event("after them")
        await link.until(lambda: len(lab.acknowledged) == 12)
        assert link.texts == ["after them"]
        assert link.losses == []


# ------------------------------------------------------------------------------------------------ sending


def test_a_reply_goes_by_the_session_webhook_and_by_the_api_after_its_end(lab: Lab, model: Echo) -> None:
    with running(lab, model):
        lab.say("in time")
        until(lambda: lab.shown() == ["echo: in time"])
        lab.webhook_seconds = 0.0
        lab.say("too late")
        lab.say("a group", where="group")
        until(lambda: lab.shown() == ["echo: in time", "echo: too late"])
        until(lambda: lab.shown("group") == ["echo: a group"])
        assert sorted(lab.by) == ["group", "person", "webhook"]


def test_a_webhook_that_ends_before_its_time_is_replaced_by_the_api(lab: Lab, model: Echo) -> None:
    with running(lab, model):
        lab.webhooks_ended = True
        lab.say("hello")
        until(lambda: lab.shown() == ["echo: hello"])
        assert lab.by == ["person"]


async def test_a_message_never_goes_to_a_webhook_that_is_not_dingtalks(lab: Lab, tmp_path: Path) -> None:
    adapter = DingTalk(lab.settings, tmp_path)
    later = int(time.time() * 1000) + 3_600_000
    async with connected(adapter):
        for address in (
            "http://127.0.0.1:1/",
            "https://dingtalk.com.example.org/",
            "http://oapi.dingtalk.com/x",
            "x",
        ):
            await adapter.send(ALICE, "secret", nonce="n", context={"webhook": address, "expires": later})
    assert lab.by == ["person"] * 4


async def test_a_stranger_of_another_organisation_is_answered_by_webhook_alone(lab: Lab, tmp_path: Path) -> None:
    adapter = DingTalk(lab.settings, tmp_path)
    async with connected(adapter) as link:
        lab.say("hi", senderCorpId="another")
        event = await link.event("hi")
        assert event.chat.chat_id == event.sender.user_id == "$:LWCP_v1:$alice"
        await adapter.send(event.chat, "hello", nonce="n", context=event.reply_context)
        with pytest.raises(SendRefused, match="members of the organisation only"):
            await adapter.send(event.chat, "hello", nonce="n")
        with pytest.raises(SendRefused, match="members of the organisation only"):
            file = OutgoingFile(kind="file", name="a.txt", mime="text/plain", data=b"a")
            await adapter.send_file(event.chat, file, nonce="n")
        with pytest.raises(SendRefused, match="not a member"):
            await adapter.send(Chat(platform="dingtalk", chat_id="nobody"), "hello", nonce="n")
    assert lab.by == ["webhook", "person"]


async def test_twenty_messages_in_a_minute_are_the_limit(lab: Lab, tmp_path: Path) -> None:
    adapter = DingTalk(lab.settings, tmp_path)
    async with connected(adapter) as link:
        lab.say("hi")
        event = await link.event("hi")
        lab.limit_code = 130101
        lab.rate_limit(0)
        with pytest.raises(SlowDown) as told:
            await adapter.send(event.chat, "hello", nonce="n", context=event.reply_context)
        assert told.value.retry_after == 20
        lab.rate_limit(0)
        with pytest.raises(SlowDown) as told:
            await adapter.send(event.chat, "hello", nonce="n")
        assert told.value.retry_after == 1


# ------------------------------------------------------------------------------------------------ tokens and login


async def test_a_token_that_ends_is_renewed_once_for_all_requests(lab: Lab, tmp_path: Path) -> None:
    adapter = DingTalk(lab.settings, tmp_path)
    async with connected(adapter):
        await adapter.send(ALICE, "first", nonce="n")
        assert lab.tokens_given == 1
        lab.end_tokens()
        await asyncio.gather(*(adapter.send(ALICE, f"number {number}", nonce=str(number)) for number in range(8)))
        assert lab.tokens_given == 2
        lab.end_tokens()
        file = OutgoingFile(kind="file", name="a.txt", mime="text/plain", data=b"a")
        await adapter.send_file(ALICE, file, nonce="f")
        assert lab.tokens_given == 3
    assert len(lab.shown()) == 9


async def test_a_token_is_renewed_before_its_end() -> None:
    now, given = [0.0], iter(range(100))

    async def fetch() -> tuple[str, float]:
        await asyncio.sleep(0)
        return f"token{next(given)}", 7200.0

    token = AccessToken(fetch, clock=lambda: now[0])
    assert set(await asyncio.gather(*(token.get() for _ in range(5)))) == {"token0"}
    now[0] = 6899.0
    assert await token.get() == "token0"
    now[0] = 6901.0
    assert set(await asyncio.gather(*(token.get() for _ in range(5)))) == {"token1"}
    assert set(await asyncio.gather(*(token.get(refused="token1") for _ in range(5)))) == {"token2"}
    assert await token.get(refused="token1") == "token2"


async def test_a_renewal_that_fails_is_tried_by_the_next_request() -> None:
    answers: list[Any] = [SlowDown("wait", 1.0), ("good", 100.0)]

    async def fetch() -> tuple[str, float]:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer  # type: ignore[no-any-return]

    token = AccessToken(fetch)
    with pytest.raises(SlowDown):
        await token.get()
    assert await token.get() == "good"


ODD = ["", "null", "[]", "5", "not JSON", "{}", '{"errcode": []}', '{"errcode": "--5"}', '{"errcode": null}', '{"errcode": 1e999}',
       '{"downloadUrl": "http://["}', '{"downloadUrl": 5}', '{"media_id": null}', '{"flowControlledStaffIdList": 5}',
       '{"invalidStaffIdList": {"a": 1}, "processQueryKey": []}', '{"endpoint": "ws://[", "ticket": 5}']  # fmt: skip


async def test_whatever_the_api_answers_becomes_an_error_of_ours(lab: Lab, tmp_path: Path) -> None:
    adapter = DingTalk(lab.settings, tmp_path)
    picture = Attachment(kind="image", reference={"code": "c"})
    file = OutgoingFile(kind="file", name="a.txt", mime="text/plain", data=b"some text")
    async with connected(adapter) as link:
        lab.say("hi")
        context = (await link.event("hi")).reply_context
        for odd in ODD:
            lab.odd = odd
            for work in (
                adapter.send(ALICE, "x", nonce="n"), adapter.send(ALICE, "x", nonce="n", context=context),
                adapter.send_file(ALICE, file, nonce="n"), adapter.fetch(picture),
                adapter.send(ALICE, "x", nonce="n", context={"webhook": "https://[", "expires": 1 << 60}),
            ):  # fmt: skip
                with suppress(PlatformError):
                    await work
            with suppress(PlatformError):
                await DingTalk(lab.settings, tmp_path).connect(link)
    lab.odd = None


async def test_a_file_is_fetched_from_dingtalks_stores_without_our_token(lab: Lab, tmp_path: Path) -> None:
    adapter = DingTalk(lab.settings, tmp_path)
    async with connected(adapter) as link:
        lab.attach(b"bytes", "a.pdf", "application/pdf")
        await link.until(lambda: link.events)
        (attachment,) = link.events[0].attachments
        assert (attachment.kind, attachment.name, attachment.mime) == ("file", "a.pdf", "application/pdf")
        assert await adapter.fetch(attachment) == b"bytes"
        elsewhere = Attachment(kind="file", reference={"code": "http://127.0.0.1:1/x"})
        with pytest.raises(SendRefused, match="not stored at DingTalk"):
            await adapter.fetch(elsewhere)
        with pytest.raises(SendRefused):
            await adapter.fetch(Attachment(kind="file", reference={"code": "old"}))
    assert [token for _, token in lab.downloads] == [None]


# ------------------------------------------------------------------------------------------------ reading


def message(**more: Any) -> dict[str, Any]:
    return {
        "msgId": "m1", "conversationId": "c1", "conversationType": "1", "senderId": "$:LWCP_v1:$x", "senderStaffId": "staff1",
        "chatbotCorpId": CORP, "senderCorpId": CORP, "msgtype": "text", "text": {"content": " hi "}, **more,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("more", "user_id"),
    [({}, "staff1"), ({"senderStaffId": ""}, "$:LWCP_v1:$x"), ({"senderStaffId": None}, "$:LWCP_v1:$x"),
     ({"senderCorpId": "other"}, "$:LWCP_v1:$x"), ({"senderStaffId": "", "senderId": "staff1"}, "$:staff1"),
     ({"senderCorpId": "other", "senderId": ""}, "$:staff1")],
)  # fmt: skip
def test_who_a_sender_is(more: dict[str, Any], user_id: str) -> None:
    """A user id is good in its own organisation only: nobody else can have one that `allowed_users` has."""
    event = event_of(message(**more))
    assert event.sender.user_id == event.chat.chat_id == user_id


@pytest.mark.parametrize(
    ("kind", "at", "addressed", "chat"),
    [("1", False, True, ("staff1", DM)), ("2", True, True, ("c1", GROUP)), ("2", False, False, ("c1", GROUP))],
)  # fmt: skip
def test_where_a_message_was_said(kind: str, at: bool, addressed: bool, chat: tuple[str, str]) -> None:
    event = event_of(message(conversationType=kind, isInAtList=at))
    assert (event.addressed, (event.chat.chat_id, event.chat.type), event.text) == (addressed, chat, "hi")


def test_a_quoted_message_comes_with_the_answer() -> None:
    replied = {"msgId": "m0", "msgType": "text", "content": {"text": "what was asked"}}
    event = event_of(message(text={"content": "yes", "isReplyMsg": True, "repliedMsg": replied}))
    assert (event.text, event.reply_to, event.quoted) == ("yes", "m0", "what was asked")


@pytest.mark.parametrize(
    ("kind", "content", "text", "kinds"),
    [("picture", {"downloadCode": "a"}, "", ["image"]), ("audio", {"downloadCode": "a", "recognition": "spoken"}, "spoken", ["audio"]),
     ("video", {"downloadCode": "a", "videoType": "mp4"}, "", ["video"]), ("file", {"downloadCode": "a", "fileName": "x.png"}, "", ["image"]),
     ("richText", {"richText": [{"text": "a "}, {"text": "b"}, {"downloadCode": "c", "type": "picture"}]}, "a b", ["image"]),
     ("chatRecord", {"summary": "two messages"}, "[chatRecord that can't be read here] two messages", [])],
)  # fmt: skip
def test_kinds_of_messages(kind: str, content: dict[str, Any], text: str, kinds: list[str]) -> None:
    event = event_of(message(msgtype=kind, content=content, text=None))
    assert (event.text, [one.kind for one in event.attachments]) == (text, kinds)


any_json = anything(floats=True)
fields = st.sampled_from(
    ["msgId", "conversationId", "conversationType", "senderStaffId", "senderId", "text", "content", "msgtype", "createAt",
     "sessionWebhook", "sessionWebhookExpiredTime", "atUsers", "senderCorpId", "originalMsgId"]
)  # fmt: skip


@given(st.dictionaries(fields, any_json))
def test_whatever_dingtalk_pushes_is_read_or_skipped(more: dict[str, Any]) -> None:
    found = message_of({"data": json.dumps(message(**more))})
    if found is not None:
        event = event_of(found)
        assert event.id == found["msgId"]
        assert event.sender.user_id


# ------------------------------------------------------------------------------------------------ formatting


@pytest.mark.parametrize(
    ("text", "shown"),
    [("one\ntwo", "one  \ntwo"), ("one\n\ntwo", "one\n\ntwo"), ("```\na\nb\n```", "```\na\nb\n```"),
     ("![a cat](https://x.org/c.png)", "[a cat](https://x.org/c.png)"), ("`![a](b)`", "`![a](b)`"),
     ("![](https://x.org/c.png)", "https://x.org/c.png"),
     ("| a | b |\n|---|---|\n| 1 | 2 |", "```\n| a | b |\n|---|---|\n| 1 | 2 |\n```"), ("```\n| a |\n|---|\n```", "```\n| a |\n|---|\n```"),
     ("a | b\n--|--\n1 | 2\nafter", "```\na | b\n--|--\n1 | 2\n```\nafter")],
)  # fmt: skip
def test_markdown_as_dingtalk_shows_it(text: str, shown: str) -> None:
    assert markdown(text) == shown


@pytest.mark.parametrize(("text", "plain"), [("2 * 3 = 6", True), ("one\ntwo", True), ("**b**", False), ("- a", False)])
def test_a_text_without_markup_is_sent_as_text(text: str, plain: bool) -> None:
    assert is_plain(text) is plain


@given(st.text(alphabet=st.sampled_from('a|-:`~!()[] \n\\*é😀"' + "\x00"), max_size=60) | st.text(max_size=60))
def test_a_message_is_as_long_as_it_is_measured_at_most(text: str) -> None:
    sent = json.dumps(markdown(text), ensure_ascii=False).encode("utf-8", "surrogatepass")
    assert len(sent) - 2 <= length(text)
    assert len(title_of(text)) <= 40


@given(st.text(max_size=40), st.text(max_size=40))
def test_lengths_add_up(one: str, other: str) -> None:
    assert length(one + other) == length(one) + length(other)
