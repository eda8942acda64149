"""DingTalk's own SDKs (npm dingtalk-stream and @alicloud/dingtalk) against our lab, beside our adapter.

Compared: what the stream brought with what was said, acknowledgements and requests with our adapter's for the same action.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hermes.gateway.events import DM, Attachment, Chat
from hermes.gateway.events import GROUP as IN_GROUP
from hermes.gateway.platforms.dingtalk import DingTalk
from tests.support.labs.base import until
from tests.support.labs.dingtalk import CLIENT, GROUP, SECRET, TOPIC, Lab
from tests.support.labs.recording import connected
from tests.support.vendor_sdk import VendorSdk
from tests.support.wiretap import Call, Wiretap

pytestmark = pytest.mark.thorough

PACKAGES = ["dingtalk-stream@2.1.5", "@alicloud/dingtalk@2.2.27"]
LOGIN = {"id": CLIENT, "secret": SECRET}


@pytest.fixture(scope="module")
def started() -> Iterator[VendorSdk]:
    with VendorSdk("dingtalk.cjs", PACKAGES) as made:
        yield made


@pytest.fixture
def sdk(started: VendorSdk, tap: Wiretap) -> VendorSdk:
    """The SDK, logged in."""
    started.forget()
    address = f"http://127.0.0.1:{tap.port}"
    given = started("login", address=address, oldAddress=f"{address}/old", **LOGIN)
    assert given["expireIn"] == 7200 and given["accessToken"]
    return started


@pytest.fixture
def listening(sdk: VendorSdk) -> Iterator[VendorSdk]:
    """The SDK with its stream open."""
    assert sdk("connect", **LOGIN) is True
    yield sdk
    sdk("disconnect")


def adapter(tap: Wiretap, lab: Lab, home: Path, **more: Any) -> DingTalk:
    address = f"http://127.0.0.1:{tap.port}"
    return DingTalk({**lab.settings, "base_url": address, "old_url": f"{address}/old", **more}, home)


def test_the_stream_brings_each_message_until_it_is_acknowledged(lab: Lab, listening: VendorSdk) -> None:
    ids = [lab.say("hello ☃"), lab.say("in the group", where="group")]
    first, second = listening.wait("message", 2)
    assert [one["msgId"] for one in (first, second)] == ids
    assert [one["text"]["content"] for one in (first, second)] == ["hello ☃", " in the group "]
    assert (first["conversationType"], second["conversationType"]) == ("1", "2")
    listening("acknowledge", id=first["id"])
    until(lambda: lab.acknowledged == [first["id"]])
    lab.drop()
    again = listening.wait("message", 3)[2]  # the SDK has connected again, with a new ticket
    assert again["msgId"] == ids[1]
    listening("acknowledge", id=again["id"])
    until(lambda: lab.acknowledged == [first["id"], again["id"]])


async def test_our_stream_is_opened_and_acknowledged_as_the_sdks_is(
    lab: Lab, tap: Wiretap, listening: VendorSdk, tmp_path: Path
) -> None:
    def said(frames: list[Any]) -> list[Any]:
        return [(one["code"], one["message"], sorted(one["headers"]), one["data"]) for one in frames]

    def opened() -> tuple[Call, Call]:
        (asked,), (socket,) = tap.of("POST", "/connections/open"), tap.of("WEBSOCKET", "")
        return asked, socket

    lab.say("hello")
    (message,) = listening.wait("message")
    listening("acknowledge", id=message["id"])
    until(lambda: lab.acknowledged)
    (asked, socket), theirs = opened(), said(tap.up())
    listening("disconnect")
    tap.forget()
    async with connected(adapter(tap, lab, tmp_path)) as link:
        lab.say("hello")
        await link.event("hello")
        await link.until(lambda: len(lab.acknowledged) == 2)
    (my_call, my_socket), mine = opened(), said(tap.up())
    assert [(code, text, headers, json.loads(data)) for code, text, headers, data in mine] == [
        (code, text, headers, json.loads(data)) for code, text, headers, data in theirs
    ]
    assert set(my_call.json) == set(asked.json)
    assert {"type": "CALLBACK", "topic": TOPIC} in asked.json["subscriptions"]
    assert my_call.headers["Accept"] == asked.headers["Accept"] == "application/json"
    assert (my_socket.path, set(my_socket.query)) == (socket.path, set(socket.query))
    assert listening("connect", **LOGIN) is True


def compared(call: Call) -> tuple[Any, ...]:
    """The parts in which two clients' requests for one action must agree."""
    kind = call.headers["Content-Type"].partition(";")[0]
    body = dict(call.json)
    if "msgParam" in body:
        body["msgParam"] = json.loads(body["msgParam"])
    return call.method, call.path, kind, "x-acs-dingtalk-access-token" in {one.lower() for one in call.headers}, body


def sent(tap: Wiretap) -> list[tuple[Any, ...]]:
    return [compared(one) for one in tap.calls if "/robot" in one.path and "/old/" not in one.path]


async def test_our_adapter_asks_as_the_sdk_does(lab: Lab, tap: Wiretap, sdk: VendorSdk, tmp_path: Path) -> None:
    """Messages to a person and to a group, and a file that comes in: the same requests."""
    text, code = {"content": "an answer ☃"}, "a code"
    lab._files[code] = ("a.bin", b"bytes", "application/octet-stream")

    def robot(key: str, parameters: dict[str, str], **more: Any) -> dict[str, Any]:
        return {"robotCode": CLIENT, "msgKey": key, "msgParam": json.dumps(parameters), **more}

    answer = sdk("person", request=robot("sampleText", text, userIds=["staffalice"]))
    assert answer["processQueryKey"] and answer["invalidStaffIdList"] == []
    sdk("group", request=robot("sampleText", text, openConversationId=GROUP))
    assert sdk("file", request={"downloadCode": code, "robotCode": CLIENT})["downloadUrl"].endswith(f"/stored/{code}")
    theirs, shown = sent(tap), (lab.shown(), lab.shown("group"))
    assert shown == (["an answer ☃"], ["an answer ☃"])
    lab.reset()
    lab._files[code] = ("a.bin", b"bytes", "application/octet-stream")
    tap.forget()
    made = adapter(tap, lab, tmp_path)
    async with connected(made):
        alice = Chat(platform="dingtalk", chat_id="staffalice", type=DM)
        await made.send(alice, "an answer ☃", nonce="1")
        await made.send(Chat(platform="dingtalk", chat_id=GROUP, type=IN_GROUP), "an answer ☃", nonce="2")
        assert await made.fetch(Attachment(kind="file", reference={"code": code})) == b"bytes"
    assert (lab.shown(), lab.shown("group")) == shown
    found = sent(tap)
    assert [one[:4] for one in found] == [one[:4] for one in theirs]
    assert [one[4] for one in found] == [one[4] for one in theirs]


async def test_a_reply_by_the_session_webhook(lab: Lab, tap: Wiretap, listening: VendorSdk, tmp_path: Path) -> None:
    lab.say("a question")
    (message,) = listening.wait("message")
    url = str(message["sessionWebhook"]).replace(str(lab.port), str(tap.port))
    assert listening("webhook", url=url, body={"msgtype": "text", "text": {"content": "an answer"}})["errcode"] == 0
    listening("acknowledge", id=message["id"])
    (theirs,) = tap.of("POST", "/sendBySession")
    assert listening("oldToken")  # the older login is there, too
    listening("disconnect")
    tap.forget()
    made = adapter(tap, lab, tmp_path)
    async with connected(made) as link:
        lab.say("another question")
        event = await link.event("another question")
        await made.send(event.chat, "an answer", nonce="1", context=event.reply_context)
    (mine,) = tap.of("POST", "/sendBySession")
    assert (mine.path, mine.json, set(mine.query)) == (theirs.path, theirs.json, set(theirs.query))
    assert (lab.shown(), lab.by) == (["an answer", "an answer"], ["webhook", "webhook"])
    assert listening("connect", **LOGIN) is True


# ------------------------------------------------------------------------------------------------ the SDK for Python
