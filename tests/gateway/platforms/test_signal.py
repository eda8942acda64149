"""The Signal adapter against a daemon of our own that speaks signal-cli's API."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

from hermes.errors import PlatformRefused, PlatformUnreachable, SendRefused, SlowDown
from hermes.gateway.adapter import utf16_units
from hermes.gateway.events import Attachment, Chat, OutgoingFile
from hermes.gateway.platforms import signal as signal_adapter
from hermes.gateway.platforms.signal import Signal, styled
from tests.support.labs.recording import Recorder, connected
from tests.support.labs.signal import ACCOUNT, ACCOUNT_UUID, GROUP, LONGEST_TEXT, Lab, problems_of
from tests.support.markdown import MARKDOWN


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(work, 60))


def signal(lab: Lab, home: Path, **values: Any) -> Signal:
    return Signal({**lab.settings, **values}, home)


def dm(lab: Lab) -> Chat:
    return Chat(platform="signal", chat_id=lab.chat_id("dm"))


# ---------------------------------------------------------------------------------------------------- login


def test_check_finds_the_account_in_both_kinds_of_daemons(lab: Lab, tmp_path: Path) -> None:
    assert run(signal(lab, tmp_path).check()) == ACCOUNT
    lab.single = True
    assert run(signal(lab, tmp_path).check()) == ACCOUNT


@pytest.mark.parametrize("single", [False, True])
def test_an_account_the_daemon_does_not_have_is_refused_with_what_to_do(lab: Lab, tmp_path: Path, single: bool) -> None:
    lab.single = single
    with pytest.raises(PlatformRefused, match=r"\+49999"):
        run(signal(lab, tmp_path, account="+49999").connect(Recorder()))
    assert lab.listeners() == 0


def test_no_account_no_daemon_and_another_server_are_told_apart(lab: Lab, tmp_path: Path) -> None:
    with pytest.raises(PlatformRefused, match="account"):
        run(signal(lab, tmp_path, account="").check())
    with pytest.raises(PlatformUnreachable):
        run(signal(lab, tmp_path, base_url="http://127.0.0.1:9").check())
    with pytest.raises(PlatformRefused):
        run(signal(lab, tmp_path, base_url=f"{lab.base_url}/elsewhere").check())
    assert lab.problems() == ["POST /elsewhere/api/v1/rpc"]
    lab.reset()


def test_a_password_in_the_address_is_in_no_error(lab: Lab, tmp_path: Path) -> None:
    with pytest.raises(PlatformUnreachable) as error:
        run(signal(lab, tmp_path, base_url="http://me:s3cret@127.0.0.1:9").check())
    assert "s3cret" not in str(error.value)
    assert run(signal(lab, tmp_path, base_url=lab.base_url.replace("//", "//me:s3cret@")).check()) == ACCOUNT


# ---------------------------------------------------------------------------------------------------- receiving


async def test_messages_come_from_people_and_groups(lab: Lab, tmp_path: Path) -> None:
    async with connected(signal(lab, tmp_path)) as link:
        assert link.identities == [ACCOUNT]
        said = lab.say("in private")
        event = await link.event("in private")
        assert (event.chat.type, event.chat.chat_id, event.chat.name) == ("dm", lab.uuids["alice"], "Alice")
        assert (event.sender.id, event.sender.user_id) == (lab.uuids["alice"], lab.numbers["alice"])
        assert (event.sender.name, event.message_id, event.addressed) == ("Alice", said, True)
        lab.say("in the group", who="bob", where="group")
        event = await link.event("in the group")
        assert (event.chat.type, event.chat.chat_id, event.chat.name) == ("group", GROUP, "The team")
        assert (event.sender.id, event.addressed) == (lab.uuids["bob"], True)
        lab.say("among people", where="group", addressed=False)
        assert not (await link.event("among people")).addressed


async def test_a_person_without_a_number_is_their_uuid(lab: Lab, tmp_path: Path) -> None:
    async with connected(signal(lab, tmp_path)) as link:
        lab.numbers["mallory"], number = None, lab.numbers["mallory"]  # type: ignore[assignment]
        try:
            lab.say("no number", who="mallory")
            event = await link.event("no number")
        finally:
            lab.numbers["mallory"] = number
        assert (event.sender.user_id, event.sender.id) == (lab.uuids["mallory"], lab.uuids["mallory"])


async def test_mentions_are_names_and_ours_is_left_out(lab: Lab, tmp_path: Path) -> None:
    def mention(start: int, **who: str | None) -> dict[str, Any]:
        return {"name": None, "number": None, "uuid": None, "start": start, "length": 1, **who}

    async with connected(signal(lab, tmp_path)) as link:
        lab.say(
            "😀 \ufffc, ask \ufffc",
            where="group",
            addressed=False,
            mentions=[mention(3, uuid=ACCOUNT_UUID), mention(10, name="Bob"), mention(99, name="Nobody")],
        )
        event = await link.event("😀 , ask @Bob")
        assert event.addressed


async def test_an_answer_to_us_addresses_us(lab: Lab, tmp_path: Path) -> None:
    quote = {"id": 5, "author": ACCOUNT, "authorNumber": ACCOUNT, "authorUuid": ACCOUNT_UUID, "text": "before"}
    async with connected(signal(lab, tmp_path)) as link:
        lab.say("yes", where="group", addressed=False, quote=quote)
        event = await link.event("yes")
        assert (event.addressed, event.reply_to, event.quoted) == (True, f"5:{ACCOUNT_UUID}", "before")


async def test_receipts_typing_edits_reactions_and_our_own_devices_are_no_events(lab: Lab, tmp_path: Path) -> None:
    async with connected(signal(lab, tmp_path)) as link:
        lab.deliver("alice", {"when": 1, "isDelivery": True}, kind="receiptMessage")
        lab.deliver("alice", {"action": "STARTED"}, kind="typingMessage")
        lab.deliver("alice", {"targetSentTimestamp": 1, "dataMessage": {"message": "new"}}, kind="editMessage")
        lab.deliver("alice", {"sentMessage": {"message": "from my phone"}}, kind="syncMessage")
        lab.say("", reaction={"emoji": "👍", "isRemove": False})
        lab.say("x", remoteDelete={"timestamp": 1})
        lab.emit("data:nonsense\n\nevent:receive\ndata:[1]\n\nevent:receive\ndata:{\n\n:\nevent:other\ndata:{}\n\n")
        lab.emit('event:receive\ndata:{"envelope": {"dataMessage": {"message": 7, "attachments": 3}}}\n\n')
        lab.say("at last")
        await link.event("at last")
        assert link.texts == ["at last"]


async def test_a_file_is_fetched_from_the_daemon(lab: Lab, tmp_path: Path) -> None:
    data = bytes(range(256)) * 100
    adapter = signal(lab, tmp_path)
    async with connected(adapter) as link:
        for where in ("dm", "group"):
            lab.attach(data, "voice.aac", "audio/aac", where=where, text=f"listen in {where}")
            attachment = (await link.event(f"listen in {where}")).attachments[0]
            assert (attachment.kind, attachment.name, attachment.mime) == ("audio", "voice.aac", "audio/aac")
            assert (attachment.size, await adapter.fetch(attachment)) == (len(data), data)
        lab.attach(b"x", "a.txt", "text/plain")
        assert (await link.event("")).attachments[0].kind == "file"
        gone = Attachment(kind="file", reference={"id": "gone", "chat_id": GROUP})
        with pytest.raises(SendRefused):
            await adapter.fetch(gone)


# ---------------------------------------------------------------------------------------------------- sending


async def test_a_message_is_styled_and_quotes_its_question(lab: Lab, tmp_path: Path) -> None:
    adapter = signal(lab, tmp_path)
    async with connected(adapter) as link:
        lab.say("what?")
        event = await link.event("what?")
        await adapter.send(event.chat, "😀 **this**", nonce="1", reply_to=event.message_id)
        params = lab.requests[-1][1]
        assert (params["message"], params["textStyle"]) == ("😀 this", ["3:4:BOLD"])
        assert (params["quoteAuthor"], params["quoteMessage"]) == (lab.uuids["alice"], "what?")
        assert params["recipient"] == [lab.uuids["alice"]]
        lab.say("and?", where="group")
        await adapter.send((await link.event("and?")).chat, "here", nonce="2")
        assert (lab.requests[-1][1]["groupId"], lab.shown("group")) == (GROUP, ["here"])


@pytest.mark.parametrize(
    ("name", "mime"),
    [
        ("a.pdf", "application/pdf"),
        ("Zürich; a=b, 50%+1.txt", "text/plain"),
        ("x", "text/plain; charset=utf-8"),
        ("y", ""),
    ],
)
async def test_a_file_goes_with_its_name_to_people_and_groups(lab: Lab, tmp_path: Path, name: str, mime: str) -> None:
    file = OutgoingFile(kind="file", name=name, mime=mime, data=bytes(range(256)))
    adapter = signal(lab, tmp_path)
    async with connected(adapter):
        await adapter.send_file(dm(lab), file, nonce="1")
        await adapter.send_file(Chat(platform="signal", chat_id=GROUP), file, caption="**see**", nonce="2")
    assert lab.sent_files() == [(name, file.data, "")]
    assert lab.sent_files("group") == [(name, file.data, "see")]
    assert [params.get("message") for method, params in lab.requests if method == "send"] == [None, "see"]


def test_the_largest_file_fits_into_what_the_daemon_reads() -> None:
    largest = Signal.capabilities.largest_file
    file = OutgoingFile(kind="file", name="ü" * 255, mime="application/pdf", data=bytes(largest))
    assert len(signal_adapter._data_address(file)) < LONGEST_TEXT


async def test_every_kind_of_failure_is_told_apart(lab: Lab, tmp_path: Path) -> None:
    adapter = signal(lab, tmp_path)
    async with connected(adapter):
        lab.rate_limit(7)
        with pytest.raises(SlowDown) as slow:
            await adapter.send(dm(lab), "x", nonce="1")
        assert slow.value.retry_after == 7
        lab.fail()
        with pytest.raises(PlatformUnreachable):
            await adapter.send(dm(lab), "x", nonce="1")
        lab.blocked.add(lab.uuids["alice"])
        with pytest.raises(SendRefused, match="UNREGISTERED"):
            await adapter.send(dm(lab), "x", nonce="1")
        lab.blocked.clear()
        lab.untrusted = True
        with pytest.raises(SendRefused, match="safety number"):
            await adapter.send(dm(lab), "x", nonce="1")
        lab.untrusted = False
        await adapter.send(dm(lab), "x", nonce="1")
        assert lab.shown() == ["x"]
    with pytest.raises(PlatformUnreachable):
        await adapter.send(dm(lab), "x", nonce="1")


# ---------------------------------------------------------------------------------------------------- breaking


async def test_a_daemon_that_answers_late_is_listened_to(lab: Lab, tmp_path: Path) -> None:
    adapter = signal(lab, tmp_path)
    adapter.opening = 0.2
    lab.late = True
    async with connected(adapter) as link:
        await link.until(lab.listeners, "nobody listens")
        lab.say("heard at once")
        await link.event("heard at once")
        assert link.identities == [ACCOUNT]


# ---------------------------------------------------------------------------------------------------- text


def parts(markdown: str) -> tuple[str, list[tuple[str, str]]]:
    """The text, and (what, style) for every range."""
    text, styles = styled(markdown)
    units = text.encode("utf-16-le")
    found = []
    for style in styles:
        start, length, name = style.split(":")
        found.append((units[int(start) * 2 : (int(start) + int(length)) * 2].decode("utf-16-le"), name))
    return text, found


def test_what_language_models_write_is_readable_and_styled() -> None:
    text, styles = parts(
        "# Plan\n\nSome **bold *and soft*** `code`.\nNext line.\n\n- one\n- two\n  1. deep\n\n> quoted\n> twice\n\n"
        "| a | b |\n|---|---|\n| 1 | 2 |\n\n```python\nprint('😀')\n```\n\n[docs](https://x.test) <https://y.test> ~~old~~"
    )
    assert text == (
        "Plan\n\nSome bold and soft code.\nNext line.\n\n• one\n• two\n  1. deep\n\n> quoted\n> twice\n\n"
        "| a | b |\n|---|---|\n| 1 | 2 |\n\nprint('😀')\n\ndocs (https://x.test) https://y.test old"
    )
    assert styles == [
        ("Plan", "BOLD"),
        ("and soft", "ITALIC"),
        ("bold and soft", "BOLD"),
        ("code", "MONOSPACE"),
        ("| a | b |\n|---|---|\n| 1 | 2 |", "MONOSPACE"),
        ("print('😀')", "MONOSPACE"),
        ("old", "STRIKETHROUGH"),
    ]


@pytest.mark.parametrize(
    ("markdown", "text"),
    [
        ("just words", "just words"),
        ("1. a\n2. b", "1. a\n2. b"),
        ("3. c\n\n4. d", "3. c\n4. d"),
        ("- a\n\n  more\n- b", "• a\n\n  more\n• b"),
        ("> - a\n> - b", "> • a\n> • b"),
        ("**", "**"),
        ("---", "———"),
        ("a\n\n---\n\nb", "a\n\n———\n\nb"),
        ("![cat](https://x.test/c.png)", "cat (https://x.test/c.png)"),
        ("<b>raw</b>", "<b>raw</b>"),
    ],
)
def test_text_stays_readable(markdown: str, text: str) -> None:
    assert styled(markdown)[0] == text


@given(MARKDOWN)
def test_whatever_is_written_its_styles_are_inside_the_text_and_it_does_not_grow(source: str) -> None:
    text, styles = styled(source)
    params = {"account": ACCOUNT, "recipient": [ACCOUNT_UUID], "message": text, "textStyle": styles}
    assert problems_of("send", params) == []
    text.encode()
    assert utf16_units(text) <= max(utf16_units(source), 200)
    assert bool(text) == bool(source)
    assert "\ufffc" not in text
