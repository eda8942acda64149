"""Mattermost's own client (npm @mattermost/client) against our lab, beside our adapter.

What the client receives is compared with what the lab delivered, and its requests with our adapter's for the same action.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hermes.gateway.events import CHANNEL, DM, Chat, OutgoingFile
from hermes.gateway.platforms.mattermost import Mattermost
from tests.support.labs.mattermost import TOKEN, Lab
from tests.support.labs.recording import connected
from tests.support.vendor_sdk import VendorSdk
from tests.support.wiretap import Call, Wiretap

pytestmark = pytest.mark.thorough

PACKAGES = ["@mattermost/client@11.9.0", "ws@8.18.3"]
PICTURE = bytes(range(256)) * 40


@pytest.fixture(scope="module")
def sdk() -> Iterator[VendorSdk]:
    with VendorSdk("mattermost.cjs", PACKAGES) as made:
        yield made


@pytest.fixture(scope="module")
def place() -> Iterator[tuple[Lab, Wiretap]]:
    lab = Lab()
    tap = Wiretap(lab.port)
    yield lab, tap
    tap.close()
    lab.close()


@pytest.fixture
def tap(place: tuple[Lab, Wiretap], sdk: VendorSdk) -> Iterator[Wiretap]:
    """The way to the lab, with the client logged in and listening."""
    lab, tap = place
    lab.reset()
    sdk("login", url=f"http://127.0.0.1:{tap.port}", token=TOKEN)
    sdk("connect", token=TOKEN)
    sdk.wait("hello")
    yield tap
    sdk("disconnect")
    sdk.forget()
    tap.forget()
    assert lab.problems() == []


@pytest.fixture
def lab(place: tuple[Lab, Wiretap], tap: Wiretap) -> Lab:
    return place[0]


def posts(sdk: VendorSdk, kind: str, count: int) -> list[dict[str, Any]]:
    """The posts of the events that the client reported, as the client's user would read them."""
    return [json.loads(one["data"]["post"]) for one in sdk.wait(kind, count)]


def test_the_client_receives_what_people_post_edit_and_delete(lab: Lab, sdk: VendorSdk) -> None:
    ids = [lab.say("hello ☃"), lab.say("in a channel", where="channel"), lab.say("in a thread", where="thread")]
    assert [one["id"] for one in posts(sdk, "posted", 3)] == ids
    assert [one["message"] for one in posts(sdk, "posted", 3)] == [
        "hello ☃",
        "@hermes in a channel",
        "@hermes in a thread",
    ]
    assert posts(sdk, "posted", 3)[2]["root_id"]
    lab.change(ids[0], "hello again")
    lab.take_back(ids[1], where="channel")
    assert [one["message"] for one in posts(sdk, "post_edited", 1)] == ["hello again"]
    assert [one["id"] for one in posts(sdk, "post_deleted", 1)] == [ids[1]]
    sequence = [data["seq"] for name, data in sdk.events if name in ("hello", "posted", "post_edited", "post_deleted")]
    assert sequence == list(range(6))  # the client itself reconnects at a gap


def test_the_client_resumes_by_number_and_notices_when_it_cannot(lab: Lab, tap: Wiretap, sdk: VendorSdk) -> None:
    lab.say("before")
    sdk.wait("posted")
    lab.drop()
    lab.say("while it was cut")
    assert [one["message"] for one in posts(sdk, "posted", 2)] == ["before", "while it was cut"]
    assert (lab.resumed, sdk.told("missed")) == (1, [])
    resumed = [one.query for one in tap.calls if one.method == "WEBSOCKET"][-1]
    assert resumed["sequence_number"] == "2" and resumed["connection_id"]
    lab.drop(forget=True)
    sdk.wait("hello", 2)
    assert len(sdk.told("missed")) == 1  # a new connection id in "hello" says that events may be lost
    lab.say("afterwards")
    assert posts(sdk, "posted", 3)[-1]["message"] == "afterwards"


def compared(call: Call) -> tuple[Any, ...]:
    """The parts in which two clients' requests for one action must agree; nonce and ids differ."""
    kind = call.headers["Content-Type"].partition(";")[0]
    scheme, _, token = call.headers["Authorization"].partition(" ")
    fields = sorted(re.findall(rb'; name="(\w+)"', call.body))  # of an upload
    body = {name: value for name, value in (call.json or {}).items() if name not in ("props", "id", "file_ids")}
    path = re.sub(r"/p\d{25}", "/POST", call.path)
    return call.method, path, scheme.lower(), token, kind, fields, body


async def test_our_adapter_asks_as_the_client_does(lab: Lab, tap: Wiretap, sdk: VendorSdk, tmp_path: Path) -> None:
    """A post, a reply in a thread, an edit, an upload: the same requests, and the same posts in the end."""
    channel, dm = lab.chat_id("channel"), lab.chat_id("dm")
    root = lab.say("a question", where="channel")
    file = {"name": "a picture.png", "mime": "image/png", "data": base64.b64encode(PICTURE).decode()}

    post = sdk("post", post={"channel_id": dm, "message": "an answer ☃"})
    sdk("post", post={"channel_id": channel, "message": "in a thread", "root_id": root})
    sdk("patch", id=post["id"], message="a longer answer")
    info = sdk("upload", channel=dm, **file)["file_infos"][0]
    sdk("post", post={"channel_id": dm, "message": "look", "file_ids": [info["id"]]})
    theirs = [one for one in tap.calls if one.method in ("POST", "PUT")]
    shown, files = lab.shown(), lab.sent_files()
    assert (shown, files) == (["a longer answer"], [("a picture.png", PICTURE, "look")])

    tap.forget()
    lab.reset()
    adapter = Mattermost({**lab.settings, "url": f"http://127.0.0.1:{tap.port}"}, tmp_path)
    async with connected(adapter):
        there = Chat(platform="mattermost", chat_id=dm, type=DM)
        sent = await adapter.send(there, "an answer ☃", nonce="1")
        thread = Chat(platform="mattermost", chat_id=channel, type=CHANNEL, thread_id=root)
        await adapter.send(thread, "in a thread", nonce="2")
        await adapter.edit(there, sent, "a longer answer")
        given = OutgoingFile(kind="image", name="a picture.png", mime="image/png", data=PICTURE)
        await adapter.send_file(there, given, caption="look", nonce="3")
    assert (lab.shown(), lab.sent_files()) == (shown, files)
    assert [compared(one) for one in tap.calls if one.method in ("POST", "PUT")] == [compared(one) for one in theirs]
