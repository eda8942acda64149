"""WeCom: bots (one answer to a request, pushes, files) and apps (signatures, encryption, tokens), and whatever is pushed."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("uvicorn")

from hermes.errors import PlatformError, SendRefused, SlowDown
from hermes.gateway.events import DM, GROUP, Attachment, Chat, OutgoingFile
from hermes.gateway.platforms.wecom.adapter import WeCom, _file_name, bot_event, bot_markdown, decrypted, key_of, length
from hermes.gateway.platforms.wecom.app import (
    LONGEST,
    app_event,
    encrypted_part,
    fields_of,
    is_signed,
    opened,
    plain,
    signature,
)
from tests.support.anything import anything
from tests.support.echo import Echo
from tests.support.gateway import running
from tests.support.gateway_process import GatewayProcess
from tests.support.labs import wecom_app
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


@pytest.fixture(scope="module")
def app_place() -> Iterator[wecom_app.Lab]:
    made = wecom_app.Lab()
    yield made
    made.close()


@pytest.fixture
def app(app_place: wecom_app.Lab) -> Iterator[wecom_app.Lab]:
    app_place.reset()
    yield app_place
    assert app_place.problems() == []


# ------------------------------------------------------------------------------------------------ the vendor's test vectors

# From the samples that WeCom publishes with WXBizMsgCrypt.
TOKEN, KEY, CORP = "QDG6eK", "jWmYm7qr5nMoAUwZRjGtBxmz3KA1tkAj3ykkR6q2B2C", "wx5823bf96d3bd56c7"
ECHO = "P9nAzCzyDtyTWESHep1vC5X9xho/qYX3Zpb4yKa9SKld1DsH3Iyt3tP3zNdtp+4RPcs8TgAE7OaBO+FZXvnaqQ=="
MESSAGE = (
    "RypEvHKD8QQKFhvQ6QleEB4J58tiPdvo+rtK1I9qca6aM/wvqnLSV5zEPeusUiX5L5X/0lWfrf0QADHHhGd3QczcdCUpj911L3vg3W/sYYvuJTs3TUUkSUXxa"
    "ccAS0qhxchrRYt66wiSpGLYL42aM6A8dTT+6k4aSknmPj48kzJs8qLjvd4Xgpue06DOdnLxAUHzM6+kDZ+HMZfJYuR+LtwGc2hgf5gsijff0ekUNXZiqATP7P"
    "F5mZxZ3Izoun1s4zG4LUMnvw2r+KqCKIw+3IQH03v+BCA9nMELNqbSf6tiWSrXJB3LAVGUcallcrw8V2t9EL4EhzJWrQUax5wLVMNS0+rUPA3k22Ncx4XXZS9"
    "o0MBH27Bo6BpNelZpS+/uh9KsNlY6bHCmJU9p8g7m3fVKn28H3KDYA5Pl/T8Z1ptDAVe0lXdQ2YoyyH2uyPIGHBZZIs2pDBS8R07+qN+E7Q=="
)


def test_the_signatures_are_those_of_wecoms_samples() -> None:
    assert signature(TOKEN, "1409659589", "263014780", ECHO) == "5c45ff5e21c57e6ad56bac8758b79b1d9ac89fd3"
    assert signature(TOKEN, "1409659813", "1372623149", MESSAGE) == "477715d11cdb4164915debcba66cb864d751f3e6"
    assert not is_signed("477715d11cdb4164915debcba66cb864d751f3e7", TOKEN, "1409659813", "1372623149", MESSAGE)
    assert not is_signed("é\ud800", TOKEN, "1", "2", MESSAGE)


def test_wecoms_samples_are_decrypted() -> None:
    assert opened(ECHO, key_of(KEY), CORP) == b"1616140317555161061"
    event = app_event(fields_of(opened(MESSAGE, key_of(KEY), CORP)))
    assert event is not None
    assert (event.id, event.sender.user_id, event.text, event.sent_at) == (
        "4561255354251345929", "mycreate", "hello", 1409659813.0
    )  # fmt: skip


@pytest.mark.parametrize(
    ("sealed", "key", "corp"),
    [(MESSAGE, KEY, "wx5823bf96d3bd56c8"), (MESSAGE, KEY[::-1][:42] + "A", CORP), (MESSAGE[4:], KEY, CORP), ("", KEY, CORP), ("é", KEY, CORP),
     (base64.b64encode(b"short").decode(), KEY, CORP)],
)  # fmt: skip
def test_what_is_not_for_us_is_not_decrypted(sealed: str, key: str, corp: str) -> None:
    with pytest.raises(ValueError):
        opened(sealed, key_of(key), corp)


@given(st.binary(max_size=200), st.binary(min_size=32, max_size=32))
def test_files_are_decrypted(data: bytes, key: bytes) -> None:
    assert decrypted(encrypted(data, key), key_of(base64.b64encode(key).decode().rstrip("="))) == data


@given(st.binary(max_size=200))
def test_whatever_is_not_encrypted_is_refused(data: bytes) -> None:
    try:
        opened(base64.b64encode(data).decode(), bytes(32), CORP)
    except ValueError:
        return
    raise AssertionError("random bytes were accepted")


# ------------------------------------------------------------------------------------------------ an app's callbacks


def test_the_address_is_verified_when_it_is_saved(app: wecom_app.Lab, model: Echo) -> None:
    with running(app, model):
        sealed = wecom_app.seal(b"1616140317555161061")
        query = wecom_app.signed(sealed)
        good = httpx.get(app.webhook, params={**query, "echostr": sealed})
        assert (good.status_code, good.text) == (200, "1616140317555161061")
        for wrong in ({"msg_signature": "0" * 40}, {"nonce": "1"}, {"echostr": ""}, {"timestamp": "x"}):
            assert httpx.get(app.webhook, params={**query, "echostr": sealed, **wrong}).status_code == 403
        assert httpx.get(app.webhook).status_code == 403


def test_the_signature_is_checked_before_anything_is_read(app: wecom_app.Lab, model: Echo) -> None:
    with running(app, model) as gateway:
        app.say("mine")
        until(lambda: app.shown() == ["echo: mine"])
        for body in (
            b"", b"not xml", b"<xml><Encrypt>AAAA</Encrypt></xml>", b"<xml><Encrypt><![CDATA[" + b"A" * 100_000,
            b"<Encrypt>" + b" " * 1_900_000, b"<Encrypt>" * 200_000, b"<xml><Encrypt>" + b"A" * 1_800_000 + b"</Encrypt>",
        ):  # fmt: skip
            assert httpx.post(app.webhook, params=wecom_app.signed("other"), content=body).status_code == 403
        (xml,) = app._said.values()
        forged = xml.replace("<Content><![CDATA[mine]]>", "<Content><![CDATA[forged]]>")
        app.deliver(forged, signature="0" * 40)
        app.deliver(forged, when=time.time() - 400)  # well signed, long ago
        app.deliver(forged, corp="wwanother")
        app.say("after")
        until(lambda: app.shown() == ["echo: mine", "echo: after"])
        assert app.statuses[-4:] == [403, 403, 400, 200]
        assert gateway.db.search_messages("forged") == []


@pytest.mark.parametrize(
    "xml",
    ['<!DOCTYPE x [<!ENTITY a "aaaa">]><xml><MsgId>1</MsgId><FromUserName>AliceZhang</FromUserName><MsgType>text</MsgType>'
     "<Content>&a;forged</Content></xml>",
     '<!DOCTYPE x SYSTEM "file:///etc/passwd"><xml/>', "<xml>", "", "<xml><a></b></xml>", "<xml>&undefined;</xml>"],
)  # fmt: skip
def test_a_callback_that_is_no_plain_xml_is_refused(
    xml: str, app: wecom_app.Lab, model: Echo, hermes_home: Path
) -> None:
    with pytest.raises(ValueError):
        fields_of(xml.encode())


def test_people_may_write_about_document_types(app: wecom_app.Lab, model: Echo) -> None:
    with running(app, model) as gateway:
        app.say('<!DOCTYPE html> & <!ENTITY x "y"> &amp;')
        until(lambda: app.shown())
        (row,) = gateway.db.list_sessions_rich(source="wecom")
        assert gateway.db.get_messages(row["id"])[0]["content"] == '<!DOCTYPE html> & <!ENTITY x "y"> &amp;'


def test_events_and_other_apps_are_acknowledged_and_not_answered(app: wecom_app.Lab, model: Echo) -> None:
    with running(app, model) as gateway:
        app.push("<MsgType><![CDATA[event]]></MsgType><Event><![CDATA[enter_agent]]></Event>")
        app.push("<MsgType><![CDATA[text]]></MsgType><Content>other</Content>", agent="1000009")
        app.say("hello")
        until(lambda: app.shown() == ["echo: hello"])
        assert app.statuses[-3:] == [200, 200, 200]
        assert gateway.db.session_count() == 1


async def test_an_access_token_that_ends_is_renewed_once_for_all(app: wecom_app.Lab, tmp_path: Path) -> None:
    adapter = WeCom(app.settings, tmp_path)
    async with connected(adapter):
        await adapter.send(ALICE, "first", nonce="n")
        app.end_tokens()
        await asyncio.gather(*(adapter.send(ALICE, f"number {number}", nonce=str(number)) for number in range(8)))
        assert app.tokens_given == 2
        app._media["m"] = ("file", "a.json", b'{"errcode": 42001}')
        app.end_tokens()
        assert await adapter.fetch(Attachment(kind="file", reference={"media_id": "m"})) == b'{"errcode": 42001}'
        assert app.tokens_given == 3
        with pytest.raises(SendRefused, match="invalid media_id"):
            await adapter.fetch(Attachment(kind="file", reference={"media_id": "old"}))
        with pytest.raises(SendRefused, match="not a member"):
            await adapter.send(Chat(platform="wecom", chat_id="Nobody"), "hello", nonce="n")
    assert len(app.shown()) == 9


async def test_replies_of_an_app_are_plain_text(app: wecom_app.Lab, tmp_path: Path) -> None:
    adapter = WeCom(app.settings, tmp_path)
    async with connected(adapter):
        await adapter.send(ALICE, "# **bold** and [a link](https://x.org)", nonce="n")
    assert app.kinds == ["text"]
    assert app.shown() == ["bold and a link (https://x.org)"]


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


async def test_whatever_wecom_answers_becomes_an_error_of_ours(bot: Lab, app: wecom_app.Lab, tmp_path: Path) -> None:
    files = Attachment(kind="file", reference={"media_id": "m", "url": "http://[", "key": "k"})
    for lab in (bot, app):
        adapter = WeCom(lab.settings, tmp_path)
        async with connected(adapter):
            for odd in ODD:
                bot.odd, app.odd = odd, json.dumps(odd)
                for work in (
                    adapter.send(ALICE, "x", nonce="n"), adapter.send_file(ALICE, TEXT, nonce="n"), adapter.fetch(files)
                ):  # fmt: skip
                    with suppress(PlatformError):
                        await work
            for odd_text in ("", "null", "[]", "not JSON"):
                app.odd = odd_text
                with suppress(PlatformError):
                    await adapter.send(ALICE, "x", nonce="n")
            bot.odd = app.odd = None
            await adapter.send(ALICE, "as before", nonce="m")
            assert lab.shown()[-1] == "as before"


# ------------------------------------------------------------------------------------------------ settings


def test_an_app_needs_a_public_address(app: wecom_app.Lab, bot: Lab, tmp_path: Path) -> None:
    assert "public_url" in str(WeCom(app.settings, tmp_path).doubts())
    assert WeCom(bot.settings, tmp_path).doubts() is None


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


def test_the_words_of_a_link_are_not_the_senders() -> None:
    card = {"Title": "/new", "Description": "yes", "Url": "https://example.org"}
    event = app_event({"MsgId": "1", "FromUserName": "alice", "MsgType": "link", **card})
    assert event is not None and event.forwarded is not None
    assert (event.text, event.forwarded.text) == ("", "/new\nyes\nhttps://example.org")


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


@given(st.binary(max_size=80) | st.text(alphabet="<>xml/ !?[]CDATAMsgId&;#1\"'", max_size=60).map(str.encode))
def test_whatever_is_decrypted_is_read_or_refused(data: bytes) -> None:
    encrypted_part(data)
    try:
        fields = fields_of(data)
    except ValueError:
        return
    event = app_event(fields)
    assert event is None or event.chat.chat_id == event.sender.user_id


@given(st.dictionaries(st.sampled_from(["MsgId", "FromUserName", "MsgType", "Content", "MediaId", "CreateTime", "Label"]), st.text(max_size=20)))  # fmt: skip
def test_whatever_fields_a_message_has_it_is_read_or_skipped(fields: dict[str, str]) -> None:
    event = app_event({"MsgId": "1", "FromUserName": "u", "MsgType": "text", **fields})
    assert event is None or event.chat.chat_id == event.sender.user_id


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


@given(st.text(alphabet=st.sampled_from("ab *_`#-|[]()\n1.>é"), min_size=1, max_size=200))
def test_an_apps_message_fits(text: str) -> None:
    whole = (text * (1900 // len(text.encode()) + 1)).encode()[:1900].decode(errors="ignore")
    assert len(plain(whole).encode()) <= LONGEST
