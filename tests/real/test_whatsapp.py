"""WhatsApp's Cloud API as others read it: npm whatsapp-api-js as a client of the lab, and two packages' types as a schema."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

pytest.importorskip("uvicorn")

from hermes.gateway.adapter import Listening
from hermes.gateway.events import Chat, Choice, OutgoingFile
from hermes.gateway.platforms.whatsapp.adapter import WhatsApp
from tests.support.labs import whatsapp as stub
from tests.support.labs.recording import Recorder, connected
from tests.support.node import npm_folder, run_script
from tests.support.ports import free_port
from tests.support.typed import TYPESCRIPT, type_errors

PACKAGES = ["whatsapp-api-js@6.3.0", "@whatsapp-cloudapi/types@4.2.0", "@types/node@24.10.1", TYPESCRIPT]
ALICE = "15005550101"


class Lab(stub.Lab):
    """A lab whose deliveries wait until the test gives them to a client."""

    def __init__(self) -> None:
        self.waiting: list[dict[str, str]] = []
        super().__init__()

    def deliver_bytes(self, body: bytes, signature: str | None = None) -> None:
        self.waiting.append({"body": body.decode(), "signature": signature or stub.signed(body)})

    @property
    def values(self) -> list[dict[str, Any]]:
        return [json.loads(one["body"]) for one in self.waiting]


@pytest.fixture(scope="module")
def folder() -> Path:
    return npm_folder("whatsapp", PACKAGES)


@pytest.fixture
def lab() -> Iterator[Lab]:
    made = Lab()
    yield made
    made.close()


def foreign(folder: Path, lab: Lab, **more: Any) -> dict[str, Any]:
    given = {
        "base": lab.address, "token": stub.TOKEN, "secret": stub.SECRET, "word": stub.WORD, "version": stub.VERSION,
        "number": stub.NUMBER_ID, "template": stub.TEMPLATE, **more,
    }  # fmt: skip
    found: dict[str, Any] = run_script(folder, Path(__file__).with_name("whatsapp_side.mjs"), given)
    return found


def adapter(lab: Lab, home: Path, **values: Any) -> WhatsApp:
    made = WhatsApp({**lab.settings, **values}, home)
    made.webhook_place = Listening(port=free_port())
    return made


async def deliver(whatsapp: WhatsApp, waiting: dict[str, str]) -> int:
    url = f"http://127.0.0.1:{whatsapp.webhook_place.port}/whatsapp"
    async with httpx.AsyncClient(trust_env=False) as client:
        headers = {"X-Hub-Signature-256": waiting["signature"], "Content-Type": "application/json"}
        return (await client.post(url, content=waiting["body"].encode(), headers=headers)).status_code


def ours(lab: Lab, home: Path) -> tuple[list[int], Recorder]:
    """The statuses that our adapter answers to the waiting deliveries, and what it hands over."""

    async def work() -> tuple[list[int], Recorder]:
        whatsapp = adapter(lab, home)
        async with connected(whatsapp) as link:
            return [await deliver(whatsapp, one) for one in lab.waiting], link

    return asyncio.run(work())


@pytest.mark.thorough
def test_both_accept_and_understand_the_same(folder: Path, lab: Lab, tmp_path: Path) -> None:
    lab.say("hello ☃ 😀")
    lab.say("in the group", who="bob", where="group")
    lab.attach(b"x", "a.pdf", "application/pdf", text="a file")
    lab.attach(b"x", "a.ogg", "audio/ogg")
    good = len(lab.waiting)
    body = lab.waiting[0]["body"]
    lab.waiting.append({"body": body.replace("hello", "hallo"), "signature": lab.waiting[0]["signature"]})
    lab.waiting.append({"body": body, "signature": "sha256=" + "0" * 64})
    theirs = foreign(folder, lab, deliveries=lab.waiting)["deliveries"]
    statuses, link = ours(lab, tmp_path)
    assert [one["status"] for one in theirs] == [200] * good + [401] * 2
    assert statuses == [200] * good + [403] * 2
    for event, other in zip(link.events, theirs, strict=False):
        seen = other["seen"]
        message = seen["message"]
        assert event.message_id == message["id"] and event.sender.name == seen["contact"]["profile"]["name"]
        assert event.chat.chat_id == (seen["recipient"].get("group") or seen["recipient"]["phone"])
        said = message.get("text", {}).get("body") or message[message["type"]].get("caption", "")
        assert event.text == said.replace(f"@{stub.NUMBER} ", "")
        assert [one.reference["id"] for one in event.attachments] == [
            message[kind]["id"] for kind in ("document", "audio") if kind in message
        ]
    assert len(link.events) == good


def sending(lab: Lab, home: Path, quote: str) -> None:
    """Our adapter sends what the other client sends, in the same order."""
    chat = Chat(platform="whatsapp", chat_id=ALICE)

    async def work() -> None:
        whatsapp = adapter(lab, home, template=stub.TEMPLATE)
        async with connected(whatsapp):
            await whatsapp.send(chat, "hello", nonce="1", reply_to=quote)
            for kind, name, mime, caption in (
                ("image", "a.png", "image/png", "look"), ("file", "a.pdf", "application/pdf", "read"),
                ("audio", "a.ogg", "audio/ogg", ""),
            ):  # fmt: skip
                file = OutgoingFile(kind=kind, name=name, mime=mime, data=b"x")
                await whatsapp.send_file(chat, file, caption=caption, nonce=name)
            words = ["one", "two", "three", "four"]
            few = [Choice(label=label, says=says) for label, says in (("Yes", "1"), ("No", "2"))]
            await whatsapp.send_choices(chat, "really?", few, nonce="2")
            many = [Choice(label=word, says=str(at)) for at, word in enumerate(words)]
            await whatsapp.send_choices(chat, "which?", many, nonce="3")
            lab.closed.add(ALICE)
            await whatsapp.send(chat, "later", nonce="4")
            lab.closed.clear()

    asyncio.run(work())


def bare(message: dict[str, Any]) -> dict[str, Any]:
    """A sent message without what differs each time, and with the defaults that the reference names."""
    inside = {**message[message["type"]]}
    inside = {**inside, "id": "media"} if "id" in inside else inside
    if message["type"] == "text":
        inside.setdefault("preview_url", False)
    if message["type"] == "template":
        inside["language"] = {"policy": "deterministic", **inside["language"]}
    return {**{key: value for key, value in message.items() if key != "id"}, message["type"]: inside}


@pytest.mark.thorough
def test_both_send_the_same_and_it_is_of_the_types(folder: Path, lab: Lab, tmp_path: Path) -> None:
    quote = lab.say("a question")
    media = lab.store("a.txt", b"the content", "text/plain")
    found = foreign(folder, lab, send=ALICE, quote=quote, media=media)
    theirs, lab.sent = lab.sent, []
    assert found["sent"] == [one["id"] for one in theirs] and found["media"] == "the content"
    sending(lab, tmp_path, quote)
    assert [bare(one) for one in lab.sent] == [bare(one) for one in theirs]
    assert lab.problems() == []
    values = [("Sent", {key: value for key, value in one.items() if key != "id"}) for one in lab.sent]
    wrong = [
        ("Sent", {**values[0][1], "txt": 1}),
        ("Sent", {"messaging_product": "whatsapp", "to": "1", "type": "text"}),
    ]
    errors = type_errors(folder, _SENT, [*values, *wrong], tmp_path / "types")
    assert {int(one.partition(":")[0]) for one in errors} == {len(values), len(values) + 1}, errors


_SENT = """import type { CloudAPIRequest } from "@whatsapp-cloudapi/types/cloudapi";
type Sent = CloudAPIRequest & { context?: { message_id: string } };"""


@pytest.mark.thorough
async def test_files_of_every_type_are_uploaded_as_a_type_that_is_taken(folder: Path, lab: Lab, tmp_path: Path) -> None:
    """The other client and Meta's endpoint take a short list of types. A file of another one is sent all the same."""
    types = ["application/pdf", "text/plain", "application/zip", "application/json", "image/gif", "text/csv"]
    assert foreign(folder, lab, types=types)["types"] == [True, True, False, False, False, False]
    chat = Chat(platform="whatsapp", chat_id=ALICE)
    data = {f"a{at}.x": f"content {at}".encode() for at, _ in enumerate(types)}
    data["large.png"] = b"x" * 5_000_001
    whatsapp = adapter(lab, tmp_path)
    async with connected(whatsapp):
        for (name, content), mime in zip(data.items(), [*types, "image/png"], strict=True):
            await whatsapp.send_file(chat, OutgoingFile(kind="file", name=name, mime=mime, data=content), nonce=name)
    assert [(name, content) for name, content, _ in lab.sent_files()] == list(data.items())
    assert lab.problems() == []


KINDS: list[tuple[dict[str, Any], str]] = [
    ({"type": "location", "location": {"latitude": "52.5", "longitude": "13.4", "name": "Berlin"}}, "Berlin"),
    ({"type": "contacts", "contacts": [{"name": {"formatted_name": "Ada"}, "phones": [{"phone": "+49 1"}]}]}, "Ada"),
    ({"type": "button", "button": {"text": "Yes please", "payload": "yes"}}, "Yes please"),
    (
        {"type": "interactive", "interactive": {"type": "nfm_reply", "nfm_reply": {
            "name": "flow", "body": "Sent", "response_json": '{"size": "large", "flow_token": "x"}'}}},
        "large",
    ),
    (
        {"type": "interactive", "interactive": {"type": "call_permission_reply", "call_permission_reply": {
            "response": "accept", "is_permanent": False, "expiration_timestamp": 1, "response_source": "user_action"}}},
        "accept",
    ),
    (
        {"type": "order", "order": {"catalog_id": "1", "text": "quickly please", "product_items": [
            {"product_retailer_id": "tea-7", "quantity": 2, "item_price": 3.5, "currency": "EUR"}]}},
        "quickly please",
    ),
    ({"type": "sticker", "sticker": {"animated": False, "mime_type": "image/webp", "sha256": "x", "id": "1", "url": "https://x"}}, ""),
    (
        {"type": "unsupported", "unsupported": {"type": "poll"}, "errors": [{
            "code": 131051, "title": "Message type unknown", "message": "Message type unknown",
            "error_data": {"details": "Message type is currently not supported."}}]},
        "not supported",
    ),
]  # fmt: skip


@pytest.mark.thorough
def test_every_kind_of_message_that_the_types_know_reaches_the_agent(folder: Path, lab: Lab, tmp_path: Path) -> None:
    """No kind is handed over empty: what a person sent is in the text, or is a file."""
    for message, _ in KINDS:
        lab.tell(message)
    imports = 'import type { PostData } from "whatsapp-api-js/types";'
    assert type_errors(folder, imports, [("PostData", one) for one in lab.values], tmp_path / "types") == []
    statuses, link = ours(lab, tmp_path)
    assert statuses == [200] * len(KINDS) and len(link.events) == len(KINDS)
    for event, (message, word) in zip(link.events, KINDS, strict=True):
        assert word in event.text and (event.text or event.attachments), message
    assert "tea-7" in link.texts[5] and "EUR" in link.texts[5]


def test_that_a_chat_was_opened_is_no_message(lab: Lab, tmp_path: Path) -> None:
    lab.tell({"type": "request_welcome"})
    statuses, link = ours(lab, tmp_path)
    assert statuses == [200] and link.events == []
