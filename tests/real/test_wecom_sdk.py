"""WeCom's own SDK (npm @wecom/aibot-node-sdk) against our lab of bots, beside our adapter.

Compared: what the SDK received with what was said, and its frames with our adapter's for the same action.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hermes.gateway.events import DM, Chat, OutgoingFile
from hermes.gateway.platforms.wecom import WeCom
from tests.support.labs.recording import connected
from tests.support.labs.wecom import BOT, GROUP, SECRET, Lab
from tests.support.vendor_sdk import VendorSdk
from tests.support.wiretap import Wiretap

pytestmark = pytest.mark.thorough

PACKAGES = ["@wecom/aibot-node-sdk@1.0.7"]
LARGE = bytes(range(256)) * 5_000  # three parts of an upload


@pytest.fixture(scope="module")
def started() -> Iterator[VendorSdk]:
    with VendorSdk("wecom.cjs", PACKAGES) as made:
        yield made


@pytest.fixture
def sdk(started: VendorSdk, tap: Wiretap) -> Iterator[VendorSdk]:
    """The SDK, subscribed."""
    started.forget()
    started("connect", url=f"ws://127.0.0.1:{tap.port}", bot=BOT, secret=SECRET)
    yield started
    started("disconnect")


def adapter(tap: Wiretap, lab: Lab, home: Path) -> WeCom:
    return WeCom({**lab.settings, "websocket_url": f"ws://127.0.0.1:{tap.port}"}, home)


def test_the_sdk_receives_what_people_say(lab: Lab, sdk: VendorSdk) -> None:
    ids = [lab.say("hello ☃"), lab.say("in the group", where="group")]
    first, second = sdk.wait("message", 2)
    assert [one["body"]["msgid"] for one in (first, second)] == ids
    assert (first["body"]["text"]["content"], first["body"]["chattype"]) == ("hello ☃", "single")
    assert (second["body"]["chatid"], second["body"]["from"]["userid"]) == (GROUP, lab.user_id("alice"))
    lab.drop()
    sdk.wait("authenticated", 2)
    lab.say("after a cut")
    assert sdk.wait("message", 3)[2]["body"]["text"]["content"] == "after a cut"


def said(frames: list[dict[str, Any]]) -> list[tuple[str, Any]]:
    """Commands and bodies; stream ids, uploads and media are named by either side."""
    found = []
    for frame in frames:
        body = dict(frame.get("body") or {})
        if "stream" in body:
            body["stream"] = {**body["stream"], "id": ""}
        for name in ("upload_id", "chat_type"):
            body.pop(name, None)
        kind = body.get("msgtype")
        if kind in ("image", "file"):
            body[kind] = sorted(body[kind])
        found.append((frame["cmd"], body))
    return sorted(found, key=lambda one: one[1].get("chunk_index", 0) if "chunk" in one[0] else 0)


async def test_our_adapter_says_what_the_sdk_says(lab: Lab, tap: Wiretap, sdk: VendorSdk, tmp_path: Path) -> None:
    """The subscription, an answer that grows, a pushed message, an upload in parts: the same frames."""
    alice = lab.user_id("alice")
    lab.say("a question")
    request = sdk.wait("message")[0]["headers"]["req_id"]
    sdk("stream", request=request, id="s1", content="an answer ▉", finish=False)
    sdk("stream", request=request, id="s1", content="an answer", finish=True)
    sdk("push", chat=alice, body={"msgtype": "markdown", "markdown": {"content": "more"}})
    encoded = base64.b64encode(LARGE).decode()
    media = sdk("upload", name="a paper.pdf", kind="file", data=encoded)
    assert media["type"] == "file"
    sdk("media", chat=alice, kind="file", id=media["media_id"])
    shown, files = lab.shown(), lab.sent_files()
    assert (shown, [one[:2] for one in files]) == (["an answer", "more"], [("a paper.pdf", LARGE)])
    theirs = said([one for one in tap.up() if one["cmd"] != "ping"])
    sdk("disconnect")
    lab.reset()
    tap.forget()
    made = adapter(tap, lab, tmp_path)
    made.cursor = " ▉"
    async with connected(made) as link:
        lab.say("a question")
        event = await link.event("a question")
        sent = await made.send(event.chat, "an answer ▉", nonce="1", context=event.reply_context)
        await made.edit(event.chat, sent, "an answer")
        await made.send(event.chat, "more", nonce="2", context=event.reply_context)
        there = Chat(platform="wecom", chat_id=alice, type=DM)
        paper = OutgoingFile(kind="file", name="a paper.pdf", mime="application/pdf", data=LARGE)
        await made.send_file(there, paper, nonce="3")
    assert (lab.shown(), lab.sent_files()) == (shown, files)
    assert said([one for one in tap.up() if one["cmd"] != "ping"]) == theirs


async def test_files_are_decrypted_and_named_as_the_sdk_does(
    lab: Lab, tap: Wiretap, sdk: VendorSdk, tmp_path: Path
) -> None:
    name = "Bericht über 雪.pdf"
    lab.attach(LARGE, name, "application/pdf")
    file = sdk.wait("message")[0]["body"]["file"]
    assert set(file) == {"url", "aeskey"}
    theirs = sdk("download", url=file["url"], key=file["aeskey"])
    assert (theirs["name"], base64.b64decode(theirs["data"])) == (name, LARGE)
    sdk("disconnect")
    made = adapter(tap, lab, tmp_path)
    async with connected(made) as link:
        lab.attach(LARGE, name, "application/pdf")
        await link.until(lambda: link.events)
        attachment = link.events[0].attachments[0]
        assert (await made.fetch(attachment), made.fetched_name(attachment)) == (LARGE, name)


async def test_a_message_with_control_characters_is_not_lost(
    lab: Lab, tap: Wiretap, sdk: VendorSdk, tmp_path: Path
) -> None:
    """They come unescaped, which is no JSON: the SDK removes them before it parses a frame, and so reads the message."""
    lab.say("one\x0btwo")
    assert sdk.wait("message")[0]["body"]["text"]["content"] == "onetwo"
    sdk("disconnect")
    async with connected(adapter(tap, lab, tmp_path)) as link:
        lab.say("one\x0btwo")
        await link.until(lambda: link.events, "the message is lost")
        assert link.events[0].text in ("onetwo", "one\x0btwo")
