"""Feishu: both ways of receiving, tokens, frames, cards, quotes, and whatever Feishu may send."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("uvicorn")
pytest.importorskip("cryptography")

from hermes.errors import PlatformError, PlatformUnreachable, SendRefused
from hermes.gateway.events import DM, GROUP, Attachment, Chat, OutgoingFile
from hermes.gateway.platforms.feishu.adapter import LONGEST, EventReader, Feishu, card, length, quoted_text, shown
from hermes.gateway.platforms.feishu.client import Frame, decode, encode, ping
from tests.support.anything import anything
from tests.support.echo import Echo
from tests.support.gateway import running
from tests.support.labs.base import until
from tests.support.labs.feishu import BOT, LARGEST_CARD, Lab
from tests.support.labs.feishu_wire import data_frame, parse_frame
from tests.support.labs.recording import Recorder, connected

DIRECT = Chat(platform="feishu", chat_id="oc_dm_alice")


# ---------------------------------------------------------------------------------------------- the long connection


def test_an_event_in_several_frames_is_one(lab: Lab, model: Echo) -> None:
    lab.parts = 3
    with running(lab, model):
        lab.say("cut into three")
        until(lambda: lab.shown() == ["echo: cut into three"])
        assert lab.acknowledged == [200]
        until(lambda: lab.pings >= 1)


async def test_a_server_that_hangs_up_at_once_is_not_called_for_ever(lab: Lab, tmp_path: Path) -> None:
    lab.hangs_up = 100
    link = Recorder()
    async with connected(Feishu(lab.settings, tmp_path), link):
        await link.until(lambda: link.losses)
        assert [type(one) for one in link.losses] == [PlatformUnreachable]
        assert lab.hangs_up >= 94


async def test_names_that_may_not_be_read_are_left_out(lab: Lab, tmp_path: Path) -> None:
    lab.names = False
    link = Recorder()
    async with connected(Feishu(lab.settings, tmp_path), link):
        await asyncio.to_thread(lab.say, "hello")
        await link.until(lambda: link.events)
        assert link.events[0].sender.name is None


_FIELD = st.tuples(st.integers(1, 4), st.integers(0, 2**64 - 1)) | st.tuples(st.integers(5, 9), st.binary(max_size=300))


@given(st.lists(_FIELD, max_size=9))
def test_a_frame_is_read_as_it_was_written(fields: list[tuple[int, int | bytes]]) -> None:
    assert decode(encode(Frame(fields))).fields == fields


@given(st.binary(max_size=60))
def test_bytes_that_are_no_frame_are_refused(data: bytes) -> None:
    try:
        frame = decode(data)
    except ValueError:
        return
    assert isinstance(frame.payload, bytes)
    assert frame.number("sum", 1) >= 0


def test_frames_are_those_of_the_published_schema() -> None:
    assert parse_frame(ping(7)) == {
        "seq": 0, "log": 0, "service": 7, "method": 0, "headers": {"type": "ping"}, "payload": b"",
    }  # fmt: skip
    frame = decode(data_frame("m1", b"payload", 2, 1))
    assert [value for number, value in frame.fields if number < 5] == [1, 2**63 + 5, 33554678, 1]
    assert (frame.header("message_id"), frame.number("sum", 0), frame.number("seq", 9)) == ("m1", 2, 1)
    assert (frame.payload, frame.fields[-1]) == (b"payload", (9, b"log"))
    answer = decode(encode(frame.answer(("biz_rt", "5"), b"{}")))
    assert (answer.payload, answer.header("biz_rt"), answer.header("message_id")) == (b"{}", "5", "m1")


# ---------------------------------------------------------------------------------------------- tokens and refusals


async def test_an_expired_token_is_renewed_once_for_many_messages(lab: Lab, tmp_path: Path) -> None:
    adapter = Feishu(lab.settings, tmp_path)
    async with connected(adapter):
        assert lab.tokens_issued == 1
        lab.token = ""
        sent = await asyncio.gather(*(adapter.send(DIRECT, f"number {n}", nonce=str(n)) for n in range(10)))
        assert len(set(sent)) == 10
        assert (lab.tokens_issued, lab.logins) == (2, 2)


async def test_the_same_nonce_makes_one_message(lab: Lab, tmp_path: Path) -> None:
    adapter = Feishu(lab.settings, tmp_path)
    async with connected(adapter):
        assert await adapter.send(DIRECT, "one", nonce="n" * 200) == await adapter.send(DIRECT, "one", nonce="n" * 200)
        assert len(lab.sent) == 1


async def test_a_quoted_text_is_known(lab: Lab, tmp_path: Path) -> None:
    link = Recorder()
    adapter = Feishu(lab.settings, tmp_path)
    async with connected(adapter, link):
        answer = await adapter.send(DIRECT, "the answer", nonce="1")
        said = await asyncio.to_thread(lab.say, "the question")
        for parent in (answer, said, "om_unknown"):
            await asyncio.to_thread(lambda parent=parent: lab.say("what?", parent_id=parent, root_id=parent))  # type: ignore[misc]
        await link.until(lambda: len(link.events) == 4)
        assert [one.quoted for one in link.events] == [None, "the answer", "the question", None]
        assert [one.reply_to for one in link.events] == [None, answer, said, "om_unknown"]


def test_a_quote_of_a_recalled_message_is_left_out(lab: Lab, model: Echo) -> None:
    with running(lab, model):
        asked = lab.say("hello", where="group")
        until(lambda: lab.shown("group") == ["echo: hello"])
        assert next(iter(lab.sent.values()))["reply_to"] == asked
        gone = lab.say("pause=1 recalled", where="group")
        lab._recalled.add(gone)
        until(lambda: len(lab.shown("group")) == 2)
        assert list(lab.sent.values())[1]["reply_to"] is None


async def test_a_card_that_is_refused_is_sent_as_plain_text(lab: Lab, tmp_path: Path) -> None:
    lab.refuses_markdown = True
    adapter = Feishu(lab.settings, tmp_path)
    async with connected(adapter):
        message = await adapter.send(DIRECT, "**bold**", nonce="1")
        assert lab.shown() == ["**bold**"]
        await adapter.edit(DIRECT, message, "**bolder**")
        assert lab.shown() == ["**bolder**"]


async def test_files_of_every_kind_go_out(lab: Lab, tmp_path: Path) -> None:
    adapter = Feishu(lab.settings, tmp_path)
    async with connected(adapter):
        for number, (kind, name, mime) in enumerate(
            [("image", "a.svg", "image/svg+xml"), ("audio", "a.ogg", "audio/ogg"), ("audio", "a.mp3", "audio/mpeg"), ("file", "a.pdf", "application/pdf")]
        ):  # fmt: skip
            await adapter.send_file(DIRECT, OutgoingFile(kind=kind, name=name, mime=mime, data=b"x"), nonce=str(number))
        assert [one["msg_type"] for one in lab.sent.values()] == ["file", "audio", "file", "file"]
        with pytest.raises(SendRefused, match="no empty files"):
            await adapter.send_file(DIRECT, OutgoingFile(kind="file", name="x", mime="", data=b""), nonce="e")
        with pytest.raises(PlatformError):
            await adapter.fetch(Attachment(kind="file", reference={"message": "om_1", "key": "../x", "type": "file"}))
        lab._problems.clear()
        with pytest.raises(SendRefused, match="groups only"):
            await adapter.create_thread(DIRECT, "a name")


async def test_a_file_that_is_json_is_not_taken_for_an_error(lab: Lab, tmp_path: Path) -> None:
    link = Recorder()
    adapter = Feishu(lab.settings, tmp_path)
    async with connected(adapter, link):
        await asyncio.to_thread(lab.attach, b'{"code": 99991663}', "a.json", "application/json")
        await link.until(lambda: link.events)
        (file,) = link.events[0].attachments
        assert (file.name, file.mime, file.kind) == ("a.json", "application/json", "file")
        assert await adapter.fetch(file) == b'{"code": 99991663}'


# ---------------------------------------------------------------------------------------------- texts


@pytest.mark.parametrize(
    ("text", "sent"),
    [("<at id=all></at> look", "&#60;at id=all>&#60;/at> look"), ("`<at id=all>`", "`<\u200bat id=all>`"), ("a < b", "a < b"),
     ("![a dot](https://x.org/a.png)", "[a dot](https://x.org/a.png)"), ("<https://x.org>", "<https://x.org>"),
     ("```html\n<b>![x](y)</b>\n```", "```html\n<b>![x](y)</b>\n```"), ("<font color='red'>x", "&#60;font color='red'>x")],
)  # fmt: skip
def test_the_agent_calls_no_one_and_shows_no_foreign_picture(text: str, sent: str) -> None:
    assert shown(text) == sent


def test_more_tables_than_a_card_may_have_are_code() -> None:
    table = "| a | b |\n|---|---|\n| 1 | 2 |"
    assert "```" not in shown("\n\n".join([table] * 5))
    seven = shown("\n\n".join([table] * 7))
    assert seven.count("```") == 4
    assert seven.count(table) == 7


def _request(text: str) -> int:
    body = {"content": card(text), "msg_type": "interactive", "uuid": "0" * 40, "receive_id": "o" * 64}
    return len(json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode())


PIECES = [
    "a", '"', "\\", "\n", "<a", "<at", "`<at`", "é", "漢", "🎉", "\t", "\x01", "![", "a|b\n-|-\n\n", "|\n-\n", "```\n",
    "`",
]  # fmt: skip


@given(st.lists(st.sampled_from(PIECES), max_size=40).map("".join))
def test_a_card_is_as_long_as_it_is_measured_at_most(text: str) -> None:
    assert _request(text) - _request("") <= length(text) + 12
    assert length(text + text) == 2 * length(text)


@pytest.mark.parametrize("piece", PIECES)
def test_the_longest_text_fits_into_a_card(piece: str) -> None:
    assert _request(piece * (LONGEST // length(piece))) <= LARGEST_CARD


@pytest.mark.parametrize(
    ("kind", "content", "text", "files"),
    [("text", {"text": "@_user_1 do @_user_10 it"}, "do @Bob it", 0),
     ("post", {"title": "T", "content": [[{"tag": "text", "text": "see "}, {"tag": "a", "href": "https://x.org", "text": "here"}], [{"tag": "at", "user_id": "@_user_10", "user_name": "Bob"}, {"tag": "img", "image_key": "img_1"}]]}, "T\nsee here (https://x.org)\n@Bob", 1),
     ("audio", {"file_key": "file_1", "duration": 2000}, "", 1), ("media", {"file_key": "file_2", "file_name": "a.mp4"}, "", 1),
     ("location", {"name": "Tower", "longitude": "1.5", "latitude": "2.5"}, "[location: Tower 2.5, 1.5]", 0),
     ("sticker", {"file_key": "x"}, "[a message of the type sticker, which can't be shown here]", 0)],
)  # fmt: skip
def test_messages_of_every_type_are_read(kind: str, content: Any, text: str, files: int) -> None:
    mentions = [{"key": "@_user_1", "id": {"open_id": BOT}, "name": "Hermes"}, {"key": "@_user_10", "id": {"open_id": "ou_bob"}, "name": "Bob"}]  # fmt: skip
    message = {
        "message_id": "om_1", "chat_id": "oc_1", "chat_type": "group", "message_type": kind, "content": json.dumps(content),
        "mentions": mentions, "create_time": "1700000000000",
    }  # fmt: skip
    event = EventReader(BOT).event(
        {"sender": {"sender_id": {"open_id": "ou_a"}, "sender_type": "user"}, "message": message}
    )
    assert event is not None
    assert (event.text, len(event.attachments), event.addressed, event.chat.type) == (text, files, True, GROUP)
    assert event.sent_at == 1_700_000_000


def test_threads_are_named_by_their_first_message_and_programs_not_answered() -> None:
    message = {
        "message_id": "om_2",
        "chat_id": "oc_1",
        "chat_type": "group",
        "message_type": "text",
        "content": '{"text": "x"}',
    }
    whole = {
        "sender": {"sender_id": {"open_id": "ou_a", "union_id": "on_a"}, "sender_type": "user"},
        "message": message,
    }
    reader = EventReader(BOT)
    assert reader.event(whole).chat.thread_id is None  # type: ignore[union-attr]
    message |= {"root_id": "om_1", "parent_id": "om_1"}
    assert reader.event(whole).chat.thread_id is None  # type: ignore[union-attr]  # a quote alone
    assert reader.event(whole).reply_to == "om_1"  # type: ignore[union-attr]
    message |= {"thread_id": "omt_1"}
    assert reader.event(whole).chat.thread_id == "om_1"  # type: ignore[union-attr]
    assert reader.event(whole).addressed is False  # type: ignore[union-attr]
    assert reader.event(whole, own=True).addressed is True  # type: ignore[union-attr]
    whole["sender"]["sender_type"] = "app"
    assert reader.event(whole) is None


any_json = anything("open_id", "union_id", "tag", "text", "content", "key", "value", "says", "x")
fields = st.sampled_from(
    [
        "message_id", "chat_id", "chat_type", "thread_id", "root_id", "parent_id", "mentions", "create_time",
        "message_type",
    ]
)  # fmt: skip


@given(
    st.dictionaries(fields, any_json),
    st.sampled_from(["text", "post", "image", "file", "audio", "media", "location", "odd"]),
    any_json,
    st.dictionaries(st.sampled_from(["message_id", "operator", "action", "context", "user_id"]), any_json),
)
def test_whatever_feishu_sends_is_read_or_skipped(message: Any, kind: str, content: Any, other: Any) -> None:
    async def scenario() -> None:
        link, adapter = Recorder(), Feishu({}, Path("/nonexistent"))
        quoted_text({"msg_type": kind, "body": {"content": json.dumps(content)}, "mentions": content})
        quoted_text({"msg_type": "interactive", "body": {"content": json.dumps({"elements": content})}})
        whole = {
            "message_type": kind,
            "content": json.dumps(content),
            "message_id": "om_1",
            "chat_id": "oc_1",
            **message,
        }
        sender = {"sender_id": {"open_id": "ou_a"}, "sender_type": "user"}
        await adapter._happened(link, {"header": {"event_type": "im.message.receive_v1"}, "event": {"sender": sender, "message": whole}})  # type: ignore[arg-type]  # fmt: skip
        assert len(link.events) <= 1
        for name in ("im.message.recalled_v1", "card.action.trigger", "x"):
            for event in (other, content):
                await adapter._happened(link, {"header": {"event_type": name, "event_id": "1"}, "event": event})  # type: ignore[arg-type]
        assert link.losses == []

    asyncio.run(scenario())


def test_a_press_names_the_chat() -> None:
    reader = EventReader(BOT)
    press = {
        "operator": {"open_id": "ou_a", "union_id": "on_a"}, "context": {"open_chat_id": "oc_1"},
        "action": {"value": {"says": "yes", "type": "dm", "thread": ""}},
    }  # fmt: skip
    event = reader.press(press, "e1")
    assert event is not None
    assert (event.id, event.text, event.chat.type, event.sender.id) == ("press:e1", "yes", DM, "on_a")
