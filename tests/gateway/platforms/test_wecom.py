"""WeCom: one answer to a request, pushes, files, and whatever is pushed."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("uvicorn")

from hermes.errors import PlatformError, SendRefused, SlowDown
from hermes.gateway.events import DM, GROUP, Attachment, Chat, OutgoingFile
from hermes.gateway.platforms.wecom import WeCom, _file_name, bot_event, bot_markdown, decrypted, key_of, length
from tests.support.anything import anything
from tests.support.echo import Echo
from tests.support.gateway import running
from tests.support.gateway_process import GatewayProcess
from tests.support.labs.base import until
from tests.support.labs.recording import connected
from tests.support.labs.wecom import GROUP as GROUP_ID
from tests.support.labs.wecom import Lab, encrypted
from tests.support.program import run

ALICE = Chat(platform="wecom", chat_id="AliceZhang")
TEXT = OutgoingFile(kind="file", name="a.txt", mime="text/plain", data=b"some text")


@pytest.fixture(scope="module")
def bot_place() -> Iterator[Lab]:
    made = Lab()
    yield made
    made.close()


@pytest.fixture
def bot(bot_place: Lab) -> Iterator[Lab]:
    bot_place.reset()
    yield bot_place
    assert bot_place.problems() == []


@given(st.binary(max_size=200), st.binary(min_size=32, max_size=32))
def test_files_are_decrypted(data: bytes, key: bytes) -> None:
    assert decrypted(encrypted(data, key), key_of(base64.b64encode(key).decode().rstrip("="))) == data


# ------------------------------------------------------------------------------------------------ a bot's WebSocket


async def test_a_request_is_answered_once_and_the_rest_is_pushed(bot: Lab, tmp_path: Path) -> None:
    adapter = WeCom(bot.settings, tmp_path)
    async with connected(adapter) as link:
        bot.say("hi", where="group")
        event = await link.event("hi")
        for number in range(3):
            await adapter.send(event.chat, f"part {number}", nonce=str(number), context=event.reply_context)
        await adapter.send(event.chat, "on our own account", nonce="n")
    assert bot.shown("group") == ["part 0", "part 1", "part 2", "on our own account"]
    assert bot.by == ["answer", "push", "push", "push"]


async def test_a_request_that_has_expired_or_is_of_another_connection_is_not_used(bot: Lab, tmp_path: Path) -> None:
    adapter = WeCom(bot.settings, tmp_path)
    async with connected(adapter) as link:
        bot.say("one")
        first = await link.event("one")
        bot.requests_ended = True
        await adapter.send(first.chat, "to one", nonce="1", context=first.reply_context)
        bot.requests_ended = False
        bot.say("two")
        second = await link.event("two")
        bot.drop()
        await link.until(lambda: bot.connections == 2)
        bot.say("three")  # the new connection works
        await link.event("three")
        await adapter.send(second.chat, "to two", nonce="2", context=second.reply_context)
    again = WeCom(bot.settings, tmp_path)  # another process, with what the store has
    async with connected(again):
        await again.send(first.chat, "later", nonce="3", context=first.reply_context)
    assert bot.shown() == ["to one", "to two", "later"]
    assert bot.by == ["push"] * 3


def test_a_limited_request_is_answered_by_its_request_afterwards(bot: Lab, model: Echo) -> None:
    with running(bot, model):
        bot.fail(times=2)
        bot.say("hello")
        until(lambda: bot.shown() == ["echo: hello"])
        assert bot.by == ["answer"]


GROWING = {"streaming": {"edit_interval": 0.1, "buffer_threshold": 5}}


def test_a_growing_answer_is_finished(bot: Lab, model: Echo) -> None:
    with running(bot, model, gateway=GROWING):
        bot.say("slow=1 " + "grow " * 30)
        until(lambda: bot.shown() and bot.shown()[0].endswith("▉"))
        until(lambda: bot.shown() and bot.shown()[0].count("grow") == 30 and not bot._streams)
        assert len(bot.shown()) == 1 and "▉" not in bot.shown()[0]
        assert bot.by == ["answer"]


@pytest.mark.parametrize("how", ["ended", "cut"])
def test_an_answer_that_can_not_grow_any_more_is_followed_by_the_whole_one(how: str, bot: Lab, model: Echo) -> None:
    with running(bot, model, gateway=GROWING):
        bot.say("slow=1 " + "grow " * 30)
        until(lambda: bot.shown() and bot.shown()[0].endswith("▉"))
        if how == "ended":
            bot.streams_ended = True
        else:
            bot.drop()
        until(lambda: len(bot.shown()) == 2 and bot.shown()[1].count("grow") == 30)
        assert "▉" not in bot.shown()[1]
        assert bot.by == ["answer", "push"]


def test_what_is_pushed_does_not_grow(bot: Lab, model: Echo) -> None:
    with running(bot, model, gateway=GROWING):
        bot.requests_ended = True
        bot.say("slow=1 " + "grow " * 30)
        until(lambda: bot.shown())
        assert bot.shown()[0].count("grow") == 30
        assert bot.by == ["push"]


def test_without_a_cursor_replies_do_not_grow(bot: Lab, model: Echo) -> None:
    streaming = {"streaming": {**GROWING["streaming"], "cursor": ""}}  # type: ignore[dict-item]
    with running(bot, model, gateway=streaming) as gateway:
        assert not gateway.connections["wecom"].adapter.capabilities.edits
        bot.say("slow=1 " + "grow " * 30)
        until(lambda: bot.shown())
        assert bot.shown()[0].count("grow") == 30


async def test_another_program_with_the_same_bot_is_reported(bot: Lab, tmp_path: Path) -> None:
    async with connected(WeCom(bot.settings, tmp_path)) as link:
        assert await WeCom(bot.settings, tmp_path).check() == bot.settings["bot_id"]
        await link.until(lambda: link.losses)
        assert "another program" in str(link.losses[0])
        assert len(link.troubles) == 1


async def test_two_programs_with_one_bot_do_not_end_each_others_connection_for_ever(bot: Lab, tmp_path: Path) -> None:
    """The first time (a check of the setup) we connect again soon, then after longer and longer pauses."""
    adapter, pauses = WeCom(bot.settings, tmp_path), []
    for _ in range(4):
        async with connected(adapter) as link:
            await WeCom(bot.settings, tmp_path / "other").check()
            await link.until(lambda: link.losses)
            assert isinstance(link.losses[0], SlowDown)
            pauses.append(link.losses[0].retry_after)
    assert pauses == [0, 60, 120, 240]


def test_doctor_leaves_the_connection_of_a_running_gateway_alone(bot: Lab, hermes_home: Path) -> None:
    with Echo() as model:
        gateway = GatewayProcess(hermes_home, [bot], model.base_url)  # type: ignore[list-item]
        gateway.start(connected=False)
        try:
            until(lambda: bot.connections == 1)
            until(lambda: "connected as" in gateway.output())
            asked = run("doctor", home=hermes_home)
            assert f"logged in to WeCom as {bot.settings['bot_id']}" in asked.out
            assert bot.connections == 1
        finally:
            gateway.stop()


async def test_frames_that_can_not_be_read_are_skipped(bot: Lab, tmp_path: Path) -> None:
    async with connected(WeCom(bot.settings, tmp_path)) as link:
        bodies: list[Any] = [
            None,
            1,
            [],
            {},
            {"msgid": "m"},
            {"msgid": "m", "from": {"userid": "u"}, "chattype": "group"},
        ]
        for body in bodies:
            bot.frame({"cmd": "aibot_msg_callback", "headers": {"req_id": "r"}, "body": body})
            bot.frame({"cmd": "aibot_event_callback", "headers": None, "body": body})
        for frame in ([], 1, "x", {"headers": 5}, {"headers": {"req_id": []}}, {"cmd": ["x"]}, {"cmd": "new"}):
            bot.frame(frame)
        bot.say("after them")
        await link.event("after them")
        assert link.texts == ["after them"]
        assert link.losses == []


async def test_a_file_is_sent_in_parts(bot: Lab, tmp_path: Path) -> None:
    adapter = WeCom(bot.settings, tmp_path)
    large = OutgoingFile(kind="file", name="big.bin", mime="application/octet-stream", data=os.urandom(1_200_000))
    async with connected(adapter):
        await adapter.send_file(ALICE, large, nonce="n")
        await adapter.send_file(Chat(platform="wecom", chat_id=GROUP_ID, type=GROUP), TEXT, nonce="m")
    assert bot.sent_files() == [("big.bin", large.data, "")]
    assert bot.sent_files("group") == [("a.txt", b"some text", "")]


async def test_a_file_is_fetched_from_wecoms_stores_and_decrypted(bot: Lab, tmp_path: Path) -> None:
    adapter = WeCom(bot.settings, tmp_path)
    async with connected(adapter) as link:
        bot.attach(b"bytes", "a.pdf", "application/pdf")
        await link.until(lambda: link.events)
        (attachment,) = link.events[0].attachments
        assert (attachment.kind, attachment.name, adapter.fetched_name(attachment)) == ("file", None, None)
        assert await adapter.fetch(attachment) == b"bytes"
        assert adapter.fetched_name(attachment) == "a.pdf"  # it comes with the bytes alone
        good = dict(attachment.reference)
        for wrong in (
            {"url": "http://127.0.0.1:1/x"},
            {"key": "AAAA"},
            {"key": "A" * 43},
            {"url": good["url"] + "x"},
        ):
            with pytest.raises(SendRefused):
                await adapter.fetch(Attachment(kind="file", reference={**good, **wrong}))


@pytest.mark.parametrize(
    ("header", "name"),
    [("", ""), ("attachment", ""), ("attachment; filename=a.txt", "a.txt"), ('attachment; filename="a b.txt"', "a b.txt"),
     ("attachment; filename=%E9%9B%AA.txt", "雪.txt"), ("attachment; filename=x; filename*=utf-8''%E9%9B%AA.txt", "雪.txt"),
     ('attachment; filename="../../etc/passwd"', "passwd"), ("attachment; filename*=UTF-8''..%2F..%5Ca.txt", "a.txt")],
)  # fmt: skip
def test_the_name_of_a_download(header: str, name: str) -> None:
    assert _file_name(header) == name


ODD: list[dict[str, Any]] = [
    {}, {"errcode": []}, {"errcode": "x"}, {"errcode": None}, {"errcode": 0, "body": 5}, {"errcode": 0, "body": {"upload_id": 5}},
    {"errcode": 0, "body": {"upload_id": "u", "media_id": []}}, {"errcode": 1, "errmsg": []}, {"media_id": 5}, {"invaliduser": [1]},
    {"errcode": 1e300},
]  # fmt: skip


async def test_whatever_wecom_answers_becomes_an_error_of_ours(bot: Lab, tmp_path: Path) -> None:
    files = Attachment(kind="file", reference={"media_id": "m", "url": "http://[", "key": "k"})
    adapter = WeCom(bot.settings, tmp_path)
    async with connected(adapter):
        for bot.odd in ODD:
            for work in (
                adapter.send(ALICE, "x", nonce="n"), adapter.send_file(ALICE, TEXT, nonce="n"), adapter.fetch(files)
            ):  # fmt: skip
                with suppress(PlatformError):
                    await work
        bot.odd = None
        await adapter.send(ALICE, "as before", nonce="m")
        assert bot.shown()[-1] == "as before"


# ------------------------------------------------------------------------------------------------ reading


def pushed(**more: Any) -> dict[str, Any]:
    body = {"msgid": "m1", "chattype": "single", "from": {"userid": "u1"}, "msgtype": "text", "text": {"content": "hi"}}
    return {"cmd": "aibot_msg_callback", "headers": {"req_id": "r1"}, "body": {**body, **more}}


@pytest.mark.parametrize(
    ("text", "left"),
    [("@Hermes do it", "do it"), ("@Hermes", ""), ("please @Hermes", "please @Hermes"), ("@Carol @Hermes hi", "@Carol @Hermes hi")],
)  # fmt: skip
def test_mentions(text: str, left: str) -> None:
    event = bot_event(pushed(chattype="group", chatid="g1", text={"content": text}))
    assert event is not None
    assert (event.text, event.chat.chat_id, event.chat.type, event.addressed) == (left, "g1", GROUP, True)
    direct = bot_event(pushed(text={"content": text}))
    assert direct is not None and (direct.text, direct.chat.chat_id, direct.chat.type) == (text, "u1", DM)


def test_people_of_other_organisations_have_other_ids() -> None:
    event = bot_event(pushed(**{"from": {"userid": "u1", "corpid": "ww2"}}))
    assert event is not None and event.sender.user_id == event.chat.chat_id == "ww2:u1"


@pytest.mark.parametrize(
    ("content", "text", "kinds"),
    [({"msgtype": "voice", "voice": {"content": "spoken"}}, "spoken", []),
     ({"msgtype": "image", "image": {"url": "https://x", "aeskey": "k"}}, "", ["image"]),
     ({"msgtype": "video", "video": {"url": "https://x", "aeskey": "k"}}, "", ["video"]),
     ({"msgtype": "new"}, "[new that can't be read here]", []),
     ({"quote": {"msgtype": "text", "text": {"content": "asked"}}}, "hi", [])],
)  # fmt: skip
def test_kinds_of_messages(content: dict[str, Any], text: str, kinds: list[str]) -> None:
    event = bot_event(pushed(**content))
    assert event is not None
    assert (event.text, [one.kind for one in event.attachments]) == (text, kinds)
    assert event.quoted == ("asked" if "quote" in content else None)


any_json = anything(floats=True)
keys = st.sampled_from(
    ["msgid", "chattype", "chatid", "from", "msgtype", "text", "mixed", "image", "file", "quote", "create_time"]
)


@given(st.dictionaries(keys, any_json), any_json)
def test_whatever_wecom_pushes_is_read_or_skipped(more: dict[str, Any], headers: Any) -> None:
    frame = json.loads(json.dumps({**pushed(**more), "headers": headers}))
    event = bot_event(frame)
    assert event is None or (event.id == frame["body"]["msgid"] and event.sender.user_id)


# ------------------------------------------------------------------------------------------------ formatting


@pytest.mark.parametrize(
    ("text", "shown"),
    [("![cat](https://x.org/c.png)", "[cat](https://x.org/c.png)"), ("![](https://x.org/c.png)", "https://x.org/c.png"),
     ("`![a](b)`", "`![a](b)`"), ("<@AliceZhang> hi", "<\u200b@AliceZhang> hi"), ("a <@ b", "a <@ b"),
     ("```\n![a](b)\n```", "```\n![a](b)\n```"), ("| a |\n|---|\n| 1 |", "| a |\n|---|\n| 1 |")],
)  # fmt: skip
def test_a_bots_markdown_fetches_nothing_and_mentions_no_one(text: str, shown: str) -> None:
    assert bot_markdown(text) == shown


@given(st.text(max_size=60), st.text(max_size=60))
def test_lengths(one: str, other: str) -> None:
    assert length(one + other) == length(one) + length(other)
    assert len(bot_markdown(one).encode("utf-8", "surrogatepass")) <= length(one)
