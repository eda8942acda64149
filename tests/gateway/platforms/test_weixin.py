"""WeChat: the login by a QR code, the place in the stream, context tokens, expired sessions, encrypted files, whatever is sent."""

from __future__ import annotations

import asyncio
import base64
import json
import stat
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("cryptography")

from hermes.errors import PlatformRefused, PlatformUnreachable, SendRefused, SlowDown
from hermes.gateway.events import Attachment, Chat, Event, OutgoingFile
from hermes.gateway.platforms.weixin import ILink, Weixin, decrypted, encrypted, event_of, key_of
from tests.support.anything import anything
from tests.support.echo import Echo
from tests.support.gateway import running
from tests.support.labs.base import until
from tests.support.labs.weixin import TOKEN, Lab


def adapter_of(lab: Lab, home: Path, **more: Any) -> Weixin:
    made = Weixin({**lab.settings, **more}, home)
    made._api = made.make_api()
    return made


# ------------------------------------------------------------------------------------------ logging in


def login(lab: Lab, home: Path, *statuses: dict[str, Any], **more: Any) -> tuple[dict[str, Any], list[str]]:
    lab.statuses = list(statuses)
    shown: list[str] = []
    adapter = Weixin({"base_url": lab.base, "cdn_url": f"{lab.base}/c2c", **more}, home)
    return dict(asyncio.run(adapter.login(shown.append))), shown


def test_a_link_to_a_qr_code_is_shown_and_gives_the_settings(lab: Lab, tmp_path: Path) -> None:
    confirmed = {
        "status": "confirmed", "bot_token": TOKEN, "ilink_bot_id": "b0t@im.bot", "baseurl": "https://sh.weixin.qq.com/",
        "ilink_user_id": "o9@im.wechat",
    }  # fmt: skip
    found, shown = login(lab, tmp_path, {"status": "wait"}, {"status": "scaned"}, confirmed)
    assert found == {"token": TOKEN, "bot_id": "b0t@im.bot", "base_url": "https://sh.weixin.qq.com"}
    assert "https://liteapp.weixin.qq.com/q/" in shown[0]
    assert "o9@im.wechat" in shown[-1] and TOKEN not in "".join(shown)


def test_an_expired_code_is_replaced_and_the_login_given_up_in_the_end(lab: Lab, tmp_path: Path) -> None:
    found, _ = login(lab, tmp_path, {"status": "expired"}, {"status": "confirmed", "bot_token": TOKEN})
    assert (found, lab.codes) == ({"token": TOKEN, "bot_id": ""}, 2)
    with pytest.raises(PlatformRefused, match="no QR code was confirmed"):
        login(lab, tmp_path, {"status": "expired"}, {"status": "verify_code_blocked"}, {"status": "expired"})


def test_a_code_of_the_phone_is_asked_for(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("builtins.input", lambda question: " 4711 ")
    found, _ = login(
        lab, tmp_path, {"status": "need_verifycode"}, {"status": "confirmed", "bot_token": TOKEN, "wants": "4711"}
    )
    assert found["token"] == TOKEN


def test_an_account_that_is_logged_in_keeps_its_token(lab: Lab, tmp_path: Path) -> None:
    assert login(lab, tmp_path, {"status": "binded_redirect"}, token=TOKEN)[0] == {}
    with pytest.raises(PlatformRefused, match="has a bot already"):
        login(lab, tmp_path, {"status": "binded_redirect"})


def test_the_token_goes_to_tencent_alone(lab: Lab, tmp_path: Path) -> None:
    with pytest.raises(PlatformRefused, match="not Tencent's"):
        login(
            lab, tmp_path, {"status": "confirmed", "bot_token": TOKEN, "baseurl": "https://weixin.qq.com.evil.example"}
        )
    api = ILink(lab.base, cdn_url="https://cdn.example/c2c")
    for address in ("https://a.weixin.qq.com/x", "https://cdn.example/c2c/download", f"{lab.base}/x"):
        assert api.is_tencents(address)
    for address in ("http://a.weixin.qq.com/", "https://evilqq.com/", "https://qq.com@evil.example/", "https://[", ""):
        assert not api.is_tencents(address)
    asyncio.run(api.close())


# ------------------------------------------------------------------------------------------ the stream


def test_after_a_restart_it_goes_on_where_it_was(lab: Lab, model: Echo) -> None:
    with running(lab, model) as gateway:
        lab.say("before")
        until(lambda: lab.shown() == ["echo: before"])
        home = gateway.connections["weixin"].adapter.home
    assert stat.S_IMODE((home / "weixin.json").stat().st_mode) == 0o600
    lab.say("while it was down")
    since = len(lab.cursors)
    with running(lab, model):
        until(lambda: lab.shown() == ["echo: before", "echo: while it was down"])
    assert lab.cursors[since].endswith(":1")
    assert lab.notified[:2] == ["msg/notifystart", "msg/notifystop"]


def test_a_broken_file_or_another_login_begins_anew(lab: Lab, tmp_path: Path) -> None:
    for text in (
        "[1",
        "[]",
        '["another", {"buffer": "x", "contexts": {"a": "b"}}]',
        '["another", {"buffer": 2}]',
    ):
        (tmp_path / "weixin.json").write_text(text)
        state = Weixin(lab.settings, tmp_path)._mark.state
        assert (state.buffer, state.contexts) == ("", {})


def test_messages_in_groups_are_skipped(lab: Lab, model: Echo) -> None:
    with running(lab, model) as gateway:
        lab.say("in a group", group_id="g1@chatroom")
        lab.say("hello")
        until(lambda: lab.shown() == ["echo: hello"])
        assert gateway.db.search_messages("group") == []


# ------------------------------------------------------------------------------------------ context tokens


def test_a_reply_carries_the_token_of_its_message(lab: Lab, model: Echo) -> None:
    with running(lab, model, display={"busy": "queue"}):
        for number in range(3):
            lab.say(f"number {number}")
        until(lambda: len(lab.shown()) == 3)
        tokens = [f"context-{one}" for one in lab._said]
        assert [one["context_token"] for one in lab._sent] == tokens


async def test_a_message_that_answers_nothing_uses_the_newest_token_of_the_person(lab: Lab, tmp_path: Path) -> None:
    lab.say("hello")
    adapter = adapter_of(lab, tmp_path)
    with pytest.raises(SendRefused, match="no context token"):
        await adapter.send(Chat(platform="weixin", chat_id=lab.user_id("alice")), "good morning", nonce="0")
    with pytest.raises(SendRefused, match="no context token"):
        file = OutgoingFile(kind="file", name="a.txt", mime="text/plain", data=b"a")
        await adapter.send_file(Chat(platform="weixin", chat_id=lab.user_id("alice")), file, nonce="0")
    adapter._mark.state.contexts[lab.user_id("alice")] = lab.context("alice")
    adapter._mark.write()
    await adapter.disconnect()
    again = adapter_of(lab, tmp_path)
    await again.send(Chat(platform="weixin", chat_id=lab.user_id("alice")), "good **morning**", nonce="1")
    await again.disconnect()
    assert lab.shown() == ["good morning"]
    assert [one["client_id"] for one in lab._sent] == ["hermes-1"]


async def test_too_often_is_waited_for_and_given_up_in_the_end(lab: Lab, tmp_path: Path) -> None:
    lab.say("hello")
    adapter = adapter_of(lab, tmp_path)
    chat, context = Chat(platform="weixin", chat_id=lab.user_id("alice")), {"context_token": lab.context("alice")}
    lab.refuses = [(-2, "freq limit")] * 5
    for _ in range(4):
        with pytest.raises(SlowDown):
            await adapter.send(chat, "x", nonce="1", context=context)
    with pytest.raises(SendRefused, match="freq limit"):
        await adapter.send(chat, "x", nonce="1", context=context)
    lab.refuses = [(-3, "blocked")]
    with pytest.raises(SendRefused, match="blocked"):
        await adapter.send(chat, "x", nonce="2", context=context)
    lab.lost_answers = 1
    with pytest.raises(PlatformUnreachable) as caught:
        await adapter.send(chat, "x", nonce="3", context=context)
    assert caught.value.maybe_sent
    await adapter.disconnect()


# ------------------------------------------------------------------------------------------ files

# FIPS 197, appendix C.1
FIPS_KEY = bytes.fromhex("000102030405060708090a0b0c0d0e0f")
FIPS_PLAIN, FIPS_CIPHER = bytes.fromhex("00112233445566778899aabbccddeeff"), "69c4e0d86a7b0430d8cdb78070b4c55a"


def test_files_are_encrypted_as_in_fips_197() -> None:
    whole = encrypted(FIPS_PLAIN, FIPS_KEY)
    assert whole[:16].hex() == FIPS_CIPHER
    assert len(whole) == 32
    assert decrypted(whole, FIPS_KEY) == FIPS_PLAIN
    for damaged in (b"", whole[:-1], whole[:16]):
        with pytest.raises(SendRefused, match="can't be decrypted"):
            decrypted(damaged, FIPS_KEY)


@given(st.binary(max_size=100), st.binary(min_size=16, max_size=16))
def test_a_file_comes_back_whole(data: bytes, key: bytes) -> None:
    assert decrypted(encrypted(data, key), key) == data
    for written in (key.hex(), base64.b64encode(key).decode(), base64.b64encode(key.hex().encode()).decode()):
        assert key_of(written) == key


@given(st.text(max_size=50))
def test_whatever_is_given_as_a_key_is_one_or_none(text: str) -> None:
    found = key_of(text)
    assert found is None or len(found) == 16


async def test_addresses_that_the_server_gives_are_used_and_others_are_not(
    lab: Lab, model: Echo, hermes_home: Path
) -> None:
    lab.full_urls = True
    with running(lab, model):
        lab.attach(b"the word is heron", "note.txt", "text/plain", text="read it")
        until(lambda: any("heron" in text for text in lab.shown()), str(lab.shown()))
    adapter = adapter_of(lab, hermes_home)
    with pytest.raises(SendRefused, match="not stored at"):
        await adapter.fetch(Attachment(kind="file", reference={"url": "http://169.254.169.254/", "key": "0" * 32}))
    with pytest.raises(SendRefused, match="no longer has"):
        await adapter.fetch(Attachment(kind="file", reference={"param": "gone", "key": "0" * 32}))
    await adapter.disconnect()


# ------------------------------------------------------------------------------------------ messages


def message(*items: Any, **more: Any) -> Any:
    return {"message_id": 7_000_000_000_000_000_001, "from_user_id": "a@im.wechat", "item_list": list(items), **more}


def test_a_number_of_64_bits_stays_what_it_is() -> None:
    event = event_of(json.loads(json.dumps(message({"type": 1, "text_item": {"text": "hi"}}, context_token="c"))))
    assert event is not None
    assert (event.id, event.reply_context) == ("7000000000000000001", {"context_token": "c"})


def test_a_transcribed_voice_message_is_text_and_another_one_a_file() -> None:
    media = {"encrypt_query_param": "p", "aes_key": "k"}
    event = event_of(message({"type": 3, "voice_item": {"media": media, "encode_type": 6, "text": "hello"}}))
    assert event is not None and (event.text, event.attachments) == ("hello", ())
    event = event_of(message({"type": 3, "voice_item": {"media": media, "encode_type": 6}}))
    assert event is not None and (event.attachments[0].kind, event.attachments[0].mime) == ("audio", "audio/silk")


def test_a_quoted_message_is_told() -> None:
    quoted = {"message_item": {"type": 1, "msg_id": "99", "text_item": {"text": "the question"}}, "title": "the que…"}
    event = event_of(message({"type": 1, "text_item": {"text": "why?"}, "ref_msg": quoted}))
    assert event is not None and (event.text, event.reply_to, event.quoted) == ("why?", "99", "the question")


def test_a_message_without_a_number_has_an_id_all_the_same() -> None:
    one = message({"type": 1, "text_item": {"text": "hi"}}, message_id=None)
    first, again, other = event_of(one), event_of(dict(one)), event_of({**one, "seq": 2})
    assert first is not None and again is not None and other is not None
    assert first.id == again.id != other.id


def test_our_own_and_empty_messages_are_not_events() -> None:
    assert event_of(message({"type": 1, "text_item": {"text": "hi"}}, message_type=2)) is None
    assert event_of(message({"type": 11, "tool_call_start_item": {}})) is None


any_json = anything("type", "text_item", "image_item", "media", "full_url", "text", "ref_msg", "len", floats=True)
names = st.sampled_from("message_id from_user_id group_id message_type item_list context_token create_time_ms".split())


@given(any_json | st.dictionaries(names, any_json) | st.lists(any_json, max_size=3).map(lambda items: message(*items)))
def test_whatever_is_sent_is_read_or_skipped(found: Any) -> None:
    assert event_of(found) is None or isinstance(event_of(found), Event)
