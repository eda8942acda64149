"""Tencent's own WeChat channel (npm @tencent-weixin/openclaw-weixin) against our lab of the iLink API, beside our adapter.

Compared: what it received with what was said, files both ways, the login by QR code, and its requests with our adapter's.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hermes.gateway.events import Chat, OutgoingFile
from hermes.gateway.platforms.weixin import Weixin
from tests.support.labs.recording import connected
from tests.support.labs.weixin import TOKEN, Lab
from tests.support.vendor_sdk import VendorSdk
from tests.support.wiretap import Call, Wiretap

pytestmark = pytest.mark.thorough

PACKAGES = ["@tencent-weixin/openclaw-weixin@2.4.9"]
PICTURE = b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 3
CHANGING = ("client_id", "run_id", "base_info")


@pytest.fixture(scope="module")
def sdk() -> Iterator[VendorSdk]:
    with VendorSdk(
        "weixin.cjs", PACKAGES, options=["--legacy-peer-deps"]
    ) as made:  # without the program that it extends
        yield made


def address(tap: Wiretap) -> str:
    return f"http://127.0.0.1:{tap.port}"


def options(tap: Wiretap, **more: Any) -> dict[str, Any]:
    return {"baseUrl": address(tap), "token": TOKEN, **more}


def adapter(tap: Wiretap, lab: Lab, home: Path) -> Weixin:
    return Weixin({**lab.settings, "base_url": address(tap), "cdn_url": f"{address(tap)}/c2c"}, home)


def test_it_receives_what_people_say_from_where_it_was(lab: Lab, tap: Wiretap, sdk: VendorSdk) -> None:
    first = lab.say("hello ☃")
    found = sdk("updates", get_updates_buf="", **options(tap))
    (message,) = found["msgs"]
    assert (message["message_id"], message["from_user_id"]) == (first, lab.user_id("alice"))  # all its digits
    assert message["item_list"] == [{"type": 1, "text_item": {"text": "hello ☃"}}]
    lab.say("more", who="bob")
    again = sdk("updates", get_updates_buf=found["get_updates_buf"], **options(tap))
    assert [one["item_list"][0]["text_item"]["text"] for one in again["msgs"]] == ["more"]


@pytest.mark.parametrize("full_urls", [False, True])
@pytest.mark.parametrize(("name", "mime"), [("a.png", "image/png"), ("a paper.pdf", "application/pdf")])
async def test_files_of_the_cdn_are_decrypted(
    lab: Lab, tap: Wiretap, sdk: VendorSdk, tmp_path: Path, name: str, mime: str, full_urls: bool
) -> None:
    lab.full_urls = full_urls
    lab.attach(PICTURE, name, mime)
    (message,) = sdk("updates", get_updates_buf="", **options(tap))["msgs"]
    item = message["item_list"][0]
    media = (item.get("image_item") or item.get("file_item"))["media"]
    cdn = f"{address(tap)}/c2c"
    theirs = sdk(
        "download", param=media["encrypt_query_param"], key=media["aes_key"], cdn=cdn, url=media.get("full_url")
    )
    made = adapter(tap, lab, tmp_path)
    async with connected(made) as link:
        await link.until(lambda: link.events)
        assert base64.b64decode(theirs) == (await made.fetch(link.events[0].attachments[0])) == PICTURE
    one, two = tap.of("GET", "/c2c/download")
    assert (one.path, one.query) == (two.path, two.query)


def compared(call: Call) -> tuple[Any, ...]:
    """The parts in which two clients' requests for one action must agree; keys, names of uploads and ids differ."""
    headers = {name.lower(): value for name, value in call.headers.items()}
    kept = {name: headers.get(name) for name in ("authorization", "authorizationtype", "ilink-app-id", "content-type")}
    body = call.json if isinstance(call.json, dict) else {"bytes": len(call.body)}
    body = {name: value for name, value in body.items() if name not in CHANGING}
    for name in ("filekey", "aeskey"):
        if name in body:
            body[name] = len(body[name])
    if "msg" in body:
        body["msg"] = {name: value for name, value in body["msg"].items() if name not in CHANGING}
        (item,) = body["msg"]["item_list"]
        for inner in item.values():
            if isinstance(inner, dict) and "media" in inner:
                inner["media"] = {name: len(str(value)) for name, value in inner["media"].items()}
    shown = sorted(name for name in headers if name.startswith(("x-wechat", "ilink", "skroute")))
    return call.method, call.path, sorted(call.query), kept, shown, body


async def test_our_adapter_asks_as_it_does(lab: Lab, tap: Wiretap, sdk: VendorSdk, tmp_path: Path) -> None:
    """The beginning and the end, a reply, "is typing", a picture and a file: the same requests."""
    alice, cdn, encoded = lab.user_id("alice"), f"{address(tap)}/c2c", base64.b64encode(PICTURE).decode()
    lab.say("a question")
    token = lab.context("alice")
    sdk("notifyStart", **options(tap))
    config = sdk("config", ilinkUserId=alice, contextToken=token, **options(tap))
    sdk("typing", body={"ilink_user_id": alice, "typing_ticket": config["typing_ticket"], "status": 1}, **options(tap))
    opts = options(tap, contextToken=token)
    sdk("text", to=alice, text="an answer ☃", opts=opts)
    sdk("picture", to=alice, data=encoded, opts=opts, cdn=cdn)
    sdk("file", to=alice, data=encoded, name="a paper.pdf", opts=opts, cdn=cdn)
    sdk("notifyStop", **options(tap))
    shown, files, notified = lab.shown(), lab.sent_files(), list(lab.notified)
    assert (shown, lab.typed()) == (["an answer ☃"], 1)
    assert [one[:2] for one in files] == [("dot.png", PICTURE), ("a paper.pdf", PICTURE)]
    theirs = [compared(one) for one in tap.calls if "getupdates" not in one.path]
    tap.forget()
    lab._sent.clear()
    lab.notified.clear()
    made = adapter(tap, lab, tmp_path)
    async with connected(made) as link:
        event = await link.event("a question")
        await link.until(lambda: made._mark.state.contexts)
        there, context = Chat(platform="weixin", chat_id=alice), event.reply_context
        await made.typing(there)
        await made.send(there, "an answer ☃", nonce="1", context=context)
        picture = OutgoingFile(kind="image", name="a.png", mime="image/png", data=PICTURE)
        await made.send_file(there, picture, nonce="2", context=context)
        paper = OutgoingFile(kind="file", name="a paper.pdf", mime="application/pdf", data=PICTURE)
        await made.send_file(there, paper, nonce="3", context=context)
    assert (lab.shown(), lab.sent_files(), lab.notified) == (shown, files, notified)
    assert [compared(one) for one in tap.calls if "getupdates" not in one.path] == theirs


def test_the_login_by_a_qr_code_is_the_same(lab: Lab, tap: Wiretap, sdk: VendorSdk, tmp_path: Path) -> None:
    given = {
        "status": "confirmed", "bot_token": "new-token", "ilink_bot_id": "b0t@im.bot", "baseurl": address(tap),
        "ilink_user_id": lab.user_id("alice"),
    }  # fmt: skip
    lab.statuses = [{"status": "wait"}, {"status": "scaned"}, dict(given)]
    theirs = sdk("login", url=address(tap))
    assert (theirs["connected"], theirs["botToken"], theirs["accountId"]) == (True, "new-token", "b0t@im.bot")

    def asked() -> list[Any]:
        found = []
        for one in tap.calls:
            if "qrcode" not in one.path:
                continue  # an earlier test's question for messages
            headers = {name.lower() for name in one.headers if name.lower().startswith(("ilink", "x-wechat", "author"))}
            found.append((one.method, one.path, sorted(one.query), sorted(headers), one.json))
        return found

    requests = asked()
    tap.forget()
    lab.statuses = [{"status": "wait"}, {"status": "scaned"}, dict(given)]
    shown: list[str] = []
    values = {**lab.settings, "token": "", "base_url": address(tap), "cdn_url": f"{address(tap)}/c2c"}
    mine = asyncio.run(Weixin(values, tmp_path).login(shown.append))
    assert (mine["token"], mine["bot_id"], mine["base_url"]) == ("new-token", "b0t@im.bot", theirs["baseUrl"])
    assert asked() == requests
    link = theirs["begun"]["qrcodeUrl"]
    assert any(link.replace("code-1", "code-2") in text for text in shown)
