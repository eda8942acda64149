"""QQ's own SDK (PyPI qq-botpy) against our lab, beside our adapter.

Compared: what the SDK received with what was said, how both log in and resume, and their requests for the same replies.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hermes.gateway.events import OutgoingFile
from hermes.gateway.platforms.qqbot import INTENTS, QQBot
from tests.support.labs.base import until
from tests.support.labs.qqbot import APP, SECRET, Lab
from tests.support.labs.recording import connected
from tests.support.vendor_sdk import SdkError, VendorSdk
from tests.support.wiretap import Call, Wiretap

pytestmark = pytest.mark.thorough

PICTURE = b"\x89PNG\r\n\x1a\n" + bytes(range(256))


@pytest.fixture(scope="module")
def started() -> Iterator[VendorSdk]:
    with VendorSdk("qqbot.py", ["qq-botpy==1.2.1"]) as made:
        yield made


@pytest.fixture
def sdk(started: VendorSdk, tap: Wiretap) -> Iterator[VendorSdk]:
    """The SDK, connected to the gateway."""
    started.forget()
    started("connect", url=f"http://127.0.0.1:{tap.port}", app=APP, secret=SECRET)
    assert started.wait("ready to talk") == ["hermes"]
    yield started
    started("disconnect")


def adapter(tap: Wiretap, lab: Lab, home: Path) -> QQBot:
    base = f"http://127.0.0.1:{tap.port}"
    return QQBot({**lab.settings, "base_url": base, "token_url": f"{base}/app/getAppAccessToken"}, home)


async def test_a_session_is_resumed_at_the_next_number(lab: Lab, tap: Wiretap, sdk: VendorSdk, tmp_path: Path) -> None:
    """Both sides log in, are cut, and resume: the same frames, and no message is lost."""

    def spoken() -> list[tuple[int, Any]]:
        frames = [one for one in tap.up() if one["op"] in (2, 6)]
        changing = {"token": "", "session_id": ""}
        return [
            (one["op"], {name: value for name, value in {**one["d"], **changing}.items() if name != "properties"})
            for one in frames
        ]

    lab.say("before")
    sdk.wait("c2c")
    lab.drop()
    lab.say("while it was cut")
    assert [one["content"] for one in sdk.wait("c2c", 2)] == ["before", "while it was cut"]
    sdk.wait("resumed")
    theirs = spoken()
    sdk("disconnect")
    lab.reset()
    tap.forget()
    async with connected(adapter(tap, lab, tmp_path)) as link:
        lab.say("before")
        await link.event("before")
        lab.drop()
        lab.say("while it was cut")
        await link.event("while it was cut")
        assert link.texts == ["before", "while it was cut"]
    mine = spoken()
    assert [one[0] for one in mine] == [one[0] for one in theirs] == [2, 6]
    assert set(mine[0][1]) <= set(theirs[0][1]) | {"session_id"}
    assert mine[0][1]["shard"] == theirs[0][1]["shard"]
    assert mine[0][1]["intents"] == theirs[0][1]["intents"] == INTENTS
    assert mine[1] == theirs[1]


def compared(call: Call) -> tuple[Any, ...]:
    """The parts in which two clients' requests for one action must agree; the SDK writes null for what it does not send."""
    own = ("openid", "group_openid", "msg_seq", "file_data", "url")
    body = {name: value for name, value in call.json.items() if value is not None and name not in own}
    if "media" in body:
        body["media"] = ["file_info"] if body["media"]["file_info"] else []
    scheme = call.headers["Authorization"].partition(" ")[0]
    return call.method, call.path, scheme, call.headers["Content-Type"], isinstance(call.json.get("msg_seq"), int), body


def sent(tap: Wiretap) -> list[tuple[Any, ...]]:
    return [compared(one) for one in tap.of("POST", "/v2/")]


async def test_our_adapter_asks_as_the_sdk_does(lab: Lab, tap: Wiretap, sdk: VendorSdk, tmp_path: Path) -> None:
    """Two replies to one message, one in the group, a picture: the same requests."""
    lab.say("a question")
    (question,) = sdk.wait("c2c")
    lab.say("another", where="group")
    (topic,) = sdk.wait("group")
    assert sdk("reply", id=question["id"], content="an answer ☃", msg_seq=1)["id"]
    sdk("reply", id=question["id"], content="more", msg_seq=2)
    sdk("reply", id=topic["id"], content="in the group")
    media = sdk("file", openid=lab.user_id("alice"), url="http://example.org/a.png")
    sdk("reply", id=question["id"], content=" ", msg_type=7, media=media, msg_seq=3)
    with pytest.raises(SdkError, match="消息被去重"):  # a number of a reply is used once
        sdk("reply", id=question["id"], content="more", msg_seq=2)
    shown = (lab.shown(), lab.shown("group"))
    assert shown == (["an answer ☃", "more"], ["in the group"])
    names = {question["id"]: "QUESTION", topic["id"]: "TOPIC"}
    theirs = sent(tap)[:-1]
    sdk("disconnect")
    lab.reset()
    tap.forget()
    made = adapter(tap, lab, tmp_path)
    async with connected(made) as link:
        lab.say("a question")
        asked = await link.event("a question")
        lab.say("another", where="group")
        other = await link.event("another")
        names[str(asked.message_id)], names[str(other.message_id)] = "QUESTION", "TOPIC"
        await made.send(asked.chat, "an answer ☃", nonce="1", context=asked.reply_context)
        await made.send(asked.chat, "more", nonce="2", context=asked.reply_context)
        await made.send(other.chat, "in the group", nonce="3", context=other.reply_context)
        picture = OutgoingFile(kind="image", name="a.png", mime="image/png", data=PICTURE)
        await made.send_file(asked.chat, picture, nonce="4", context=asked.reply_context)
    assert (lab.shown(), lab.shown("group")) == shown
    assert lab.pictures() == [PICTURE]

    def renamed(found: list[tuple[Any, ...]]) -> list[Any]:
        return [(*one[:5], {**one[5], "msg_id": names.get(one[5].get("msg_id"), "")}) for one in found]

    assert renamed(sent(tap)) == renamed(theirs)
    until(lambda: lab.renewals)
