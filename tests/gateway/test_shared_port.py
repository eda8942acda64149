"""Webhooks of several platforms on one port, with the real gateway: stored before they are acknowledged, none in another's way."""

from __future__ import annotations

import hashlib
import hmac
import json
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest

pytest.importorskip("uvicorn")

from hermes.gateway.adapter import Adapter, Capabilities, Link, ReplyContext, Setting
from hermes.gateway.events import Chat, Event, Sender
from hermes.gateway.platforms._shared.listener import PlatformRequest, PlatformResponse, Registration, is_signed
from hermes.gateway.settings import Timings
from hermes.gateway.startup import webhook
from tests.support.echo import Echo
from tests.support.gateway import configured, running
from tests.support.labs.base import Lab, until
from tests.support.labs.plain import PlainLab
from tests.support.ports import free_port


class Posted(Adapter):
    """A vendor that posts signed messages, and gets replies by a call that this test reads."""

    platform = "posted"
    title = "Posted"
    settings = (Setting(name="secret", help="the signing secret", secret=True, required=True),)
    capabilities = Capabilities(longest=1000, idempotent=True)
    sent: list[tuple[str, str, Any]]

    def __init__(self, values: Mapping[str, Any], home: Path) -> None:
        super().__init__(values, home)
        self._registration: Registration | None = None

    async def check(self) -> str:
        return str(self.webhook_address)

    async def connect(self, link: Link) -> None:
        await self.disconnect()

        async def delivered(call: PlatformRequest) -> PlatformResponse:
            said = json.loads(call.body)
            chat = Chat(platform=self.platform, chat_id=said["from"])
            sender = Sender(user_id=said["from"], proven=True)
            context = {"request": said["id"]}
            await link.received(
                Event(id=said["id"], chat=chat, sender=sender, text=said["text"], reply_context=context)
            )
            return PlatformResponse(body="<Response/>", mime="text/xml")

        self._registration = await self.listen(link, delivered, signed=self._is_posted, seconds=3)
        link.connected(str(self.webhook_address))

    def _is_posted(self, call: PlatformRequest) -> bool:
        return is_signed(self.text("secret"), call.url.encode() + call.body, call.headers.get("X-Signature", ""))

    async def disconnect(self) -> None:
        registration, self._registration = self._registration, None
        if registration is not None:
            await registration.close()

    async def send(
        self, chat: Chat, text: str, *, nonce: str, reply_to: str | None = None, context: ReplyContext | None = None
    ) -> str:
        self.sent.append((chat.chat_id, text, context))
        return nonce


class PostedLab(Lab):
    platform = "posted"

    def __init__(self, port: int) -> None:
        self.sent: list[tuple[str, str, Any]] = []
        self.adapter = type("Posted", (Posted,), {"sent": self.sent})
        self.url = f"http://127.0.0.1:{port}/posted"

    @property
    def settings(self) -> dict[str, Any]:
        return {"secret": "s3cret"}

    def user_id(self, who: str) -> str:
        return who

    def say(self, text: str, **more: Any) -> Any:
        body = json.dumps({"id": str(len(self.sent)) + text, "from": "alice", "text": text}).encode()
        signed = b"https://bots.example.org/in/posted" + body
        signature = hmac.new(b"s3cret", signed, hashlib.sha256).hexdigest()
        return httpx.post(self.url, content=body, headers={"X-Signature": signature}, trust_env=False, timeout=30)


@pytest.fixture
def plain() -> Iterator[PlainLab]:
    made = PlainLab()
    yield made
    made.close()


def test_a_delivery_is_acknowledged_when_it_is_stored_however_slow_the_model_is(model: Echo) -> None:
    port = free_port()
    lab = PostedLab(port)
    shared = {"listen": {"port": port, "public_url": "https://bots.example.org/in"}}
    with running(lab, model, gateway=shared) as gateway:
        model.latency = 2.0
        answer = lab.say("hello")
        assert (answer.status_code, answer.text, answer.headers["content-type"]) == (
            200,
            "<Response/>",
            "text/xml; charset=utf-8",
        )
        assert lab.sent == []  # the model is still thinking
        assert lab.say("hello").status_code == 200  # a redelivery
        until(lambda: lab.sent)
        model.latency = 0.0
        assert lab.sent == [("alice", "echo: hello", {"request": "0hello"})]
        assert httpx.post(lab.url, content=b"{}", trust_env=False).status_code == 403
        lab.url = lab.url.replace("/posted", "/another/path")  # which a proxy in front may use
        assert lab.say("by a proxy").status_code == 200
        # right after the start it may be for a platform that is not connected yet: 403 would end the vendor's tries
        assert httpx.post(lab.url, content=b"{}", trust_env=False).status_code == 503
        assert gateway.connections["posted"].identity == "https://bots.example.org/in/posted"


def test_a_taken_port_ends_no_other_platform_and_is_tried_again(plain: PlainLab, model: Echo) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        lab = PostedLab(port)
        shared = {"listen": {"port": port, "public_url": "https://bots.example.org/in"}}
        with running([plain, lab], model, timings=Timings(reconnect=0.05), gateway=shared, stands_by=True) as gateway:
            plain.say("are you there")
            until(lambda: plain.shown() == ["echo: are you there"])
            until(lambda: "taken by another program" in str(gateway.store.statuses()), str(gateway.store.statuses()))
            taken.close()
            until(lambda: gateway.connections["posted"].delivery.connected.is_set())
            assert lab.say("and now").status_code == 200
            until(lambda: [text for _, text, _ in lab.sent] == ["echo: and now"])


def test_the_webhooks_section_follows_the_shared_port_unless_it_has_its_own(hermes_home: Path) -> None:
    routes = {"build": {"secret": "x" * 32}}
    shared = configured([], gateway={"listen": {"port": 9123}}, webhooks={"routes": routes})
    own = configured([], gateway={"listen": {"port": 9123}}, webhooks={"port": 9124, "routes": routes})
    neither = configured([], webhooks={"routes": routes})
    made = [webhook(config, hermes_home, insecure=False)[0] for config in (shared, own, neither)]
    assert [adapter.port for adapter in made] == [9123, 9124, 8644]
