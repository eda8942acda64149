"""Webhooks: other programs report events; each delivery is a conversation of its own.

hermes.serve.webhooks listens and verifies; this makes events of the deliveries. No person reads the response
of a webhook, so a reply goes where the route says (`delivers_to`), and else into the log.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from hermes.errors import ConfigError
from hermes.gateway.adapter import Adapter, Capabilities, Link, ReplyContext, Setting
from hermes.gateway.events import DM, Chat, Event, Sender
from hermes.gateway.platforms._shared.listener import Registration, listen_app
from hermes.serve.http import is_loopback
from hermes.serve.webhooks import SLOWEST, Arrived, WebhookRoute, routes_of, webhook_app
from hermes.texts import harmless, shortened

LOG = "log"
_SHOWN = 2_000  # characters of a reply in the log


class Webhook(Adapter):
    """The webhooks of the section `webhooks:`; `values` are its host, port and routes."""

    platform = "webhook"
    title = "Webhooks"
    extra = "serve"
    settings = (
        Setting(name="host", help="where to listen; beyond 127.0.0.1 every route needs a secret", default="127.0.0.1"),
        Setting(name="port", help="the port to listen on", kind=int, default=8644),
        Setting(name="routes", help="name → {secret, scheme, prompt, deliver}", kind=dict, required=True),
        Setting(name="insecure", help="listen everywhere without secrets", kind=bool, default=False),
    )
    capabilities = Capabilities(longest=100_000, idempotent=True)
    slowest = SLOWEST  # seconds a delivery may take to arrive

    def __init__(self, values: Mapping[str, Any], home: Path) -> None:
        super().__init__(values, home)
        self._registration: Registration | None = None
        self._link: Link | None = None

    @property
    def port(self) -> int:
        """The port that is listened on, once connected."""
        return self._registration.port if self._registration is not None else int(self.values.get("port") or 0)

    def _host(self) -> str:
        return str(self.values.get("host") or "127.0.0.1")

    def _routes(self) -> dict[str, WebhookRoute]:
        return routes_of(self.values.get("routes") or {}, self._host(), insecure=bool(self.values.get("insecure")))

    def _identity(self, routes: Mapping[str, WebhookRoute], port: int) -> str:
        host = f"[{self._host()}]" if ":" in self._host() else self._host()
        return f"http://{host}:{port}/webhooks/" + (
            next(iter(routes)) if len(routes) == 1 else f"{{{','.join(routes)}}}"
        )

    def validate(self) -> None:
        """Check that the routes can be used."""
        self._routes()

    async def check(self) -> str:
        """Check that the routes can be used, and return their address."""
        return self._identity(self._routes(), int(self.values.get("port") or 0))

    async def connect(self, link: Link) -> None:
        """Begin to listen."""
        await self.disconnect()
        routes = self._routes()
        self._link = link
        is_open = not is_loopback(self._host())
        app = webhook_app(routes, self._keep, log=link.log, is_open=is_open, slowest=self.slowest)
        port, shared = self.values.get("port"), self.webhook_place
        place = replace(shared, host=self._host(), port=shared.port if port is None else int(port))
        self._registration = await listen_app(place, "/webhooks", app=app, link=link)
        link.connected(self._identity(routes, self._registration.port))

    async def disconnect(self) -> None:
        """Stop listening; running deliveries are stored."""
        registration, self._registration = self._registration, None
        if registration is not None:
            await registration.close()

    async def _keep(self, arrived: Arrived) -> None:
        assert self._link is not None
        name = arrived.route.name
        thread = hashlib.sha256(arrived.id.encode()).hexdigest()[:24]
        chat = Chat(platform=self.platform, chat_id=name, type=DM, thread_id=f"delivery-{thread}", name=name)
        # A signature with the route's secret proves the program that sends; without a secret anyone may have sent it.
        sender = Sender(user_id=name, name=f"webhook {name}", proven=arrived.route.secret is not None)
        await self._link.received(
            Event(id=arrived.id, chat=chat, sender=sender, text=arrived.text, message_id=arrived.sent_as)
        )

    def delivers_to(self, chat: Chat) -> str | None:
        """The destination of the reply to a delivery ("telegram", "telegram:<chat id>"); None: only to `send`."""
        try:
            route = self._routes().get(chat.chat_id)
        except ConfigError:
            return None
        return None if route is None or route.deliver in (None, LOG) else route.deliver

    async def send(
        self, chat: Chat, text: str, *, nonce: str, reply_to: str | None = None, context: ReplyContext | None = None
    ) -> str:
        """Write the reply into the log."""
        if self._link is not None:
            self._link.log.info("webhook %s: %s", chat.chat_id, shortened(harmless(text), _SHOWN))
        return nonce
