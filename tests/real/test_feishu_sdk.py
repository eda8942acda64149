"""Feishu's own SDK (npm @larksuiteoapi/node-sdk) against our lab, beside our adapter.

The SDK reads the long connection's frames by Feishu's own protobuf schema, and
sends what our adapter sends. Compared: events received with events delivered, and requests with our adapter's requests.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hermes.gateway.events import DM, GROUP, Chat, OutgoingFile
from hermes.gateway.platforms.feishu.adapter import Feishu, card
from hermes.gateway.platforms.feishu.client import decode, encode
from tests.support.labs.base import until
from tests.support.labs.feishu import APP_ID, APP_SECRET, BOT, Lab
from tests.support.labs.recording import connected
from tests.support.vendor_sdk import VendorSdk
from tests.support.wiretap import Call, Wiretap

pytestmark = pytest.mark.thorough

PACKAGES = ["@larksuiteoapi/node-sdk@1.74.0"]
LOGIN = {"app": APP_ID, "secret": APP_SECRET}
SAID, RECALLED, PRESSED = "im.message.receive_v1", "im.message.recalled_v1", "card.action.trigger"
PICTURE = bytes(range(256)) * 40


@pytest.fixture(scope="module")
def started() -> Iterator[VendorSdk]:
    with VendorSdk("feishu.cjs", PACKAGES) as made:
        yield made


@pytest.fixture
def sdk(started: VendorSdk) -> VendorSdk:
    started.forget()
    return started


@pytest.fixture
def listening(lab: Lab, tap: Wiretap, sdk: VendorSdk) -> Iterator[VendorSdk]:
    """The SDK with its long connection open."""
    sdk("connect", url=f"http://127.0.0.1:{tap.port}", **LOGIN)
    yield sdk
    sdk("disconnect")


def words(event: dict[str, Any]) -> str:
    return str(json.loads(event["message"]["content"])["text"])


@pytest.mark.parametrize("parts", [1, 3])
def test_the_long_connection_brings_each_event_and_takes_its_acknowledgement(
    lab: Lab, listening: VendorSdk, parts: int
) -> None:
    lab.parts = parts
    first = lab.say("hello ☃")
    lab.say("in the group", where="group")
    lab.take_back(first)
    events = listening.wait(SAID, 2)
    assert [words(one) for one in events] == ["hello ☃", "@_user_1 in the group"]
    assert [one["sender"]["sender_id"] for one in events] == [lab.ids("alice")] * 2
    assert events[1]["message"]["mentions"][0]["id"]["open_id"] == BOT
    assert listening.wait(RECALLED)[0]["message_id"] == first
    until(lambda: lab.acknowledged == [200, 200, 200])
    assert lab._waiting == {}


async def test_our_frames_are_the_sdks_frames(lab: Lab, tap: Wiretap, listening: VendorSdk, tmp_path: Path) -> None:
    """The ping and the acknowledgement of the SDK and of our adapter: field for field, and read back byte for byte."""

    def sent() -> list[bytes]:
        return [one.data for one in tap.frames if one.way == "up" and isinstance(one.data, bytes)]

    lab.say("hello")
    until(lambda: lab.acknowledged == [200])
    theirs = sent()
    assert len(theirs) == 2
    assert [encode(decode(one)) for one in theirs] == theirs
    listening("disconnect")
    until(lambda: not lab._sockets)
    tap.forget()
    adapter = Feishu({**lab.settings, "base_url": f"http://127.0.0.1:{tap.port}"}, tmp_path)
    async with connected(adapter) as link:
        lab.say("hello")
        await link.event("hello")
        await link.until(lambda: len(sent()) == 2)
    changing = ("message_id", "biz_rt")

    def fields(data: bytes) -> Any:
        frame = decode(data)
        headers = [(name, "" if name in changing else value) for name, value in frame.headers]
        # JavaScript's numbers have 53 bits
        others = [
            (number, float(one) if isinstance(one, int) else one)
            for number, one in frame.fields
            if number not in (5, 8)
        ]
        return others, headers, json.loads(frame.payload or b"null")

    assert [fields(one) for one in sent()] == [fields(one) for one in theirs]
    listening("connect", url=f"http://127.0.0.1:{tap.port}", **LOGIN)


def compared(call: Call) -> tuple[Any, ...]:
    """The parts in which two clients' requests for one action must agree; the uuid and ids differ."""
    path = re.sub(r"om_\w+", "MESSAGE", call.path)
    kind = call.headers.get("Content-Type", "").partition(";")[0]
    fields = sorted(re.findall(rb'; name="(\w+)"', call.body)) if kind.startswith("multipart") else []
    body = {name: value for name, value in (call.json or {}).items() if name != "uuid"}
    if "_key" in body.get("content", ""):
        body["content"] = sorted(json.loads(body["content"]))
    return call.method, path, call.query, call.headers.get("Authorization"), kind, fields, body


def sent(tap: Wiretap) -> list[tuple[Any, ...]]:
    return [compared(one) for one in tap.calls if one.method in ("POST", "PATCH") and "/im/" in one.path]


async def test_our_adapter_asks_as_the_sdk_does(lab: Lab, tap: Wiretap, sdk: VendorSdk, tmp_path: Path) -> None:
    """A message, a quoting reply, one in a thread, an edit, a picture and a file: the same requests."""
    url = f"http://127.0.0.1:{tap.port}"
    assert sdk("login", url=url, **LOGIN)["bot"]["open_id"] == BOT
    dm, question, topic = lab.chat_id("dm"), lab.say("a question"), lab.say("a topic", where="group")
    encoded = base64.b64encode(PICTURE).decode()

    def data(kind: str, content: str, **more: Any) -> dict[str, Any]:
        return {"msg_type": kind, "content": content, "uuid": str(len(tap.calls)), **more}

    answer = sdk("create", data=data("interactive", card("an answer ☃"), receive_id=dm))["data"]["message_id"]
    sdk("reply", id=question, data=data("interactive", card("yes"), reply_in_thread=False))
    sdk("reply", id=topic, data=data("interactive", card("no"), reply_in_thread=True))
    assert sdk("patch", id=answer, content=card("a longer answer"))["code"] == 0
    key = sdk("image", data=encoded)["image_key"]
    sdk("create", data=data("image", json.dumps({"image_key": key}), receive_id=dm))
    key = sdk("file", kind="pdf", name="a paper.pdf", data=encoded)["file_key"]
    sdk("create", data=data("file", json.dumps({"file_key": key}), receive_id=dm))
    theirs, shown = sent(tap), lab.shown()
    assert shown == ["a longer answer", "yes"]
    assert len(theirs) == 8
    tap.forget()
    lab.sent.clear()
    adapter = Feishu({**lab.settings, "base_url": url}, tmp_path)
    async with connected(adapter):
        there = Chat(platform="feishu", chat_id=dm, type=DM)
        mine = await adapter.send(there, "an answer ☃", nonce="1")
        await adapter.send(there, "yes", nonce="2", reply_to=question)
        thread = Chat(platform="feishu", chat_id=lab.chat_id("group"), type=GROUP, thread_id=topic)
        await adapter.send(thread, "no", nonce="3")
        await adapter.edit(there, mine, "a longer answer")
        picture = OutgoingFile(kind="image", name="a.png", mime="image/png", data=PICTURE)
        await adapter.send_file(there, picture, nonce="4")
        paper = OutgoingFile(kind="file", name="a paper.pdf", mime="application/pdf", data=PICTURE)
        await adapter.send_file(there, paper, nonce="5")
    assert lab.shown() == shown
    assert sent(tap) == theirs
