"""Home Assistant as a chat platform: events of the house come in, notifications and events go out.

A message to the agent is an event (`hermes_message`) that automations, scripts and dashboards fire. Events are sent once, so
that one that can't be stored at once is handed over again until it is, with all later ones behind it.

Its WebSocket API is one connection, numbered requests, and pushed events.
https://developers.home-assistant.io/docs/api/websocket
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import re
import ssl
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlsplit, urlunsplit

import aiohttp

from hermes.errors import HermesError, PlatformRefused, PlatformUnreachable, SendRefused
from hermes.gateway.adapter import Capabilities, Link, ReplyContext, Setting
from hermes.gateway.events import Chat, Event, Sender
from hermes.gateway.platforms._shared import markup
from hermes.gateway.platforms._shared.http import error_text, tls_context
from hermes.gateway.platforms._shared.receipt import iso_moment, keep, read_object
from hermes.gateway.platforms._shared.tasks import ApiAdapter
from hermes.gateway.platforms._shared.websocket import WebSocketClient

_PATIENCE = 20.0  # seconds for an answer
_HEARTBEAT = 25.0  # seconds between heartbeats
# the error codes for which a retry is useless
_FINAL = {"not_found", "invalid_format", "not_allowed", "not_supported", "service_validation_error", "unknown_command"}


class WebSocketApi(WebSocketClient):
    """An authenticated connection. `happened` gets every event, `ended` the end."""

    def __init__(self, url: str, token: str, context: ssl.SSLContext | None) -> None:
        super().__init__("Home Assistant")
        self.where = f"Home Assistant at {url}"
        self._url, self._token, self._context = url, token, context
        self._numbers = itertools.count(1)
        self.version = ""

    async def open(self, happened: Callable[[dict[str, Any]], None], ended: Callable[[Exception], None]) -> None:
        """Connect and log in."""
        async with self.opening(_PATIENCE):
            await self._log_in()
        self._tasks.start(self._read(happened, ended))

    async def ask(self, kind: str, **fields: Any) -> Any:
        """The result of a command."""
        number = next(self._numbers)
        answer = await self.exchange(number, {"id": number, "type": kind, **fields}, _PATIENCE)
        if not answer.get("success"):
            raise self._refusal(answer.get("error") or {})
        return answer.get("result")

    # ------------------------------------------------------------------------------------------ internals

    async def _log_in(self) -> None:
        trust = self._context if self._context is not None else True
        socket = await self.connect(self._url, heartbeat=_HEARTBEAT, ssl=trust)
        first = await socket.receive_json()
        if first.get("type") == "auth_required":
            await socket.send_json({"type": "auth", "access_token": self._token})
            first = await socket.receive_json()
        if first.get("type") == "auth_invalid":
            raise PlatformRefused("Home Assistant does not accept the token: make a new long-lived access token")
        if first.get("type") != "auth_ok":
            raise PlatformRefused("the server at this url is not Home Assistant's WebSocket API; check url")
        self.version = str(first.get("ha_version", ""))

    async def _read(self, happened: Callable[[dict[str, Any]], None], ended: Callable[[Exception], None]) -> None:
        socket = self._socket
        assert socket is not None
        why: Exception = PlatformUnreachable("Home Assistant has closed the connection")
        try:
            async for message in socket:
                if message.type is not aiohttp.WSMsgType.TEXT:
                    continue
                payload = read_object(message.data, self.title, self.log, parse=_several)
                for one in payload["items"] if payload is not None else ():
                    self._on_event(one, happened)
        except (aiohttp.ClientError, OSError) as error:
            why = self.explained(error)
        self.unanswered()
        ended(why)

    def _on_event(self, payload: dict[str, Any], happened: Callable[[dict[str, Any]], None]) -> None:
        if payload.get("type") == "event" and isinstance(payload.get("event"), dict):
            happened(payload["event"])
        elif payload.get("type") == "result":
            self.answered(payload.get("id"), payload)

    def _refusal(self, error: dict[str, Any]) -> HermesError:
        code, text = str(error.get("code", "")), self._masked(str(error.get("message", "")))
        if code == "unauthorized":
            return PlatformRefused("Home Assistant: the token's user is not an administrator, and must be one")
        if code in _FINAL:
            return SendRefused(f"Home Assistant refuses it: {text or code}")
        return PlatformUnreachable(f"Home Assistant could not do it: {text or code}")

    def explained(self, error: Exception) -> HermesError:
        """The error, with what Home Assistant means by a 403."""
        if isinstance(error, aiohttp.WSServerHandshakeError) and error.status == 403:
            return PlatformRefused(
                f"Home Assistant at {self._url} has banned this machine (403); check its ip_bans.yaml"
            )
        if isinstance(error, aiohttp.InvalidURL | ValueError | TypeError) and not isinstance(error, OSError):
            return PlatformRefused(f"{self._url} does not answer as Home Assistant does; check url")
        return super().explained(error)

    def _masked(self, text: str) -> str:
        return error_text(text, self._token)


def _several(text: str) -> dict[str, Any]:
    """The objects of a frame: Home Assistant may send several in one. ValueError where it has anything else."""
    payload = json.loads(text)
    items = payload if isinstance(payload, list) else [payload]
    if not all(isinstance(one, dict) for one in items):
        raise ValueError("no object")
    return {"items": items}


HOME = "home"  # the conversation of events that name none
HOUSE = "home-assistant"  # the sender when no person is
_OWN_NOTIFICATION = "persistent_notification.create"
_LAYOUT = markup.Layout(bullet="- ")
_HIDDEN = "\u200b"  # takes no room, and keeps two characters from meaning something together


class HomeAssistant(ApiAdapter[WebSocketApi]):
    """Home Assistant, by its WebSocket API."""

    platform: ClassVar[str] = "homeassistant"
    title: ClassVar[str] = "Home Assistant"
    extra: ClassVar[str | None] = "homeassistant"
    local_ids: ClassVar[bool] = True
    capabilities: ClassVar[Capabilities] = Capabilities(longest=10_000)
    variables = "HASS"
    settings = (
        Setting("url", "its address, as http://homeassistant.local:8123", required=True),
        Setting("token", "a long-lived access token of an administrator", secret=True, required=True),
        Setting("event_type", "the event with a message to the agent", default="hermes_message"),
        Setting("reply_event", "the event that carries a reply", default="hermes_reply"),
        Setting(
            "notify_service", "what shows a reply, as notify.mobile_app_phone; none: only the event",
            default=_OWN_NOTIFICATION,
        ),
        Setting("notify_target", "the entity to notify, where notify_service is notify.send_message"),
        Setting("notify_title", "the heading of notifications", default="Hermes"),
        Setting("ca_file", "certificates to trust beside the usual ones (PEM)"),
    )  # fmt: skip

    def __init__(self, values: Mapping[str, Any], home: Path) -> None:
        super().__init__(values, home)
        self._link: Link | None = None
        self._is_connected = False
        self._names: dict[str, str] = {}  # people, by the id of their login
        self._place: str | None = None

    # ------------------------------------------------------------------------------------------ connection

    async def check(self) -> str:
        """Log in, and check that we may listen."""
        connection = self.make_api()
        try:
            await connection.open(lambda event: None, lambda error: None)
            await connection.ask("subscribe_events", event_type=self.text("event_type"))
            config = await connection.ask("get_config")
            return f"{config.get('location_name') or 'Home Assistant'} ({connection.version})"
        finally:
            await connection.close()

    async def begin(self, link: Link, connection: WebSocketApi) -> None:
        """Log in and listen."""
        self._link = link
        connection.log = link.log
        waiting: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        await connection.open(waiting.put_nowait, self._ended)
        config = await connection.ask("get_config")
        self._place = str(config.get("location_name") or "") or None
        await self._learn_names(connection)
        await connection.ask("subscribe_events", event_type=self.text("event_type"))
        self._is_connected = True
        self._tasks.start(self._work(link, waiting))
        link.connected(f"{self._place or 'Home Assistant'} ({connection.version})")

    async def disconnect(self) -> None:
        """Disconnect."""
        self._is_connected = False
        await super().disconnect()

    def _ended(self, error: Exception) -> None:
        if self._link is not None and self._is_connected:  # before that, connect itself raises it
            self._link.lost(error)

    async def _learn_names(self, connection: WebSocketApi) -> None:
        for state in await connection.ask("get_states"):
            attributes = state.get("attributes") or {}
            if str(state.get("entity_id", "")).startswith("person.") and attributes.get("user_id"):
                self._names[str(attributes["user_id"])] = str(attributes.get("friendly_name") or state["entity_id"])

    # ------------------------------------------------------------------------------------------ receiving

    async def _work(self, link: Link, waiting: asyncio.Queue[dict[str, Any]]) -> None:
        """Hand over events, one after the other."""
        while True:
            raw = await waiting.get()
            try:
                event = self._understood(raw, link)
            except Exception as error:  # an event can hold data of any shape
                link.log.warning("skipping an event that can't be read (%s)", type(error).__name__)
                continue
            if event is not None:
                await keep(link, event)

    def _understood(self, raw: dict[str, Any], link: Link) -> Event | None:
        data = raw.get("data") or {}
        text = data.get("text")
        if not isinstance(text, str) or not text.strip():
            link.log.warning("an event %s without a text was ignored", raw.get("event_type"))
            return None
        return Event(
            id=_identity(raw),
            chat=self._chat(data.get("conversation_id")),
            sender=self._sender((raw.get("context") or {}).get("user_id"), data.get("user")),
            text=text,
            sent_at=iso_moment(raw.get("time_fired")),
        )

    def _sender(self, logged_in: Any, named: Any) -> Sender:
        """The author. Home Assistant authenticates the user of an event's context. The data of an event is what an automation
        wrote there, perhaps from outside: a user it names is not proven, and sees nothing of the genuine one's."""
        if logged_in:
            return Sender(user_id=str(logged_in), name=self._names.get(str(logged_in), str(logged_in)), proven=True)
        if named and str(named) != HOUSE:
            return Sender(user_id=str(named), stable_id=f"unproven:{named}", name=str(named), proven=False)
        return Sender(user_id=HOUSE, name="Home Assistant", proven=False)  # any automation

    def _chat(self, conversation: object) -> Chat:
        chat_id = str(conversation) if conversation not in (None, "") else HOME
        return Chat(platform=self.platform, chat_id=chat_id, name=self._place if chat_id == HOME else chat_id)

    # ------------------------------------------------------------------------------------------ sending

    async def send(
        self, chat: Chat, text: str, *, nonce: str, reply_to: str | None = None, context: ReplyContext | None = None
    ) -> str:
        """Show the text as a notification, then fire the event for automations. A repeated notification replaces the first."""
        message_id = "hermes_" + hashlib.sha256(nonce.encode("utf-8", "replace")).hexdigest()[:24]
        connection = self.api
        if service := self._service():
            await connection.ask("call_service", **self._call(service, text, message_id))
        payload = {"text": text.encode("utf-8", "replace").decode(), "conversation_id": chat.chat_id}
        await connection.ask(
            "fire_event", event_type=self.text("reply_event"), event_data={**payload, "message_id": message_id}
        )
        return message_id

    def _call(self, service: str, text: str, message_id: str) -> dict[str, Any]:
        domain, _, name = service.partition(".")
        data: dict[str, Any] = {"title": self.text("notify_title"), "message": plain(text) or " "}
        if service == _OWN_NOTIFICATION:
            data |= {"message": without_html(text) or " ", "notification_id": message_id}
        elif name.startswith("mobile_app_"):
            data["data"] = {"tag": message_id}
        call: dict[str, Any] = {"domain": domain, "service": name, "service_data": data}
        if target := self.text("notify_target"):
            call["target"] = {"entity_id": target}
        return call

    def _service(self) -> str | None:
        service = self.text("notify_service").lower()
        return None if service in ("", "none") else service

    # ------------------------------------------------------------------------------------------ settings

    def make_api(self) -> WebSocketApi:
        """A connection with these settings."""
        if not self.text("token"):
            raise PlatformRefused("homeassistant needs token in config.yaml (or HASS_TOKEN)")
        if self.text("event_type") == self.text("reply_event"):
            raise PlatformRefused("event_type and reply_event must differ, or the agent would talk to itself")
        service = self._service()
        if service and service.count(".") != 1:
            raise PlatformRefused(f"notify_service must be a service like notify.mobile_app_phone, not {service!r}")
        return WebSocketApi(self._address(), self.text("token"), tls_context(self.text("ca_file")))

    def _address(self) -> str:
        parts = urlsplit(self.text("url"))
        if parts.scheme not in ("http", "https", "ws", "wss") or not parts.hostname:
            raise PlatformRefused("homeassistant needs url in config.yaml, as http://homeassistant.local:8123")
        scheme = "wss" if parts.scheme in ("https", "wss") else "ws"
        path = parts.path.rstrip("/").removesuffix("/websocket").removesuffix("/api")
        return urlunsplit((scheme, parts.netloc.rpartition("@")[2], f"{path}/api/websocket", "", ""))


def _identity(raw: dict[str, Any]) -> str:
    """An id for an event, which has none of its own: events of one automation share their context."""
    content = json.dumps([raw.get("event_type"), raw.get("data")], sort_keys=True, default=str)
    context = (raw.get("context") or {}).get("id") or ""
    return (
        f"{context}:{raw.get('time_fired') or ''}:{hashlib.sha256(content.encode('utf-8', 'replace')).hexdigest()[:16]}"
    )


def without_html(text: str) -> str:
    """Markdown for Home Assistant's own page, which would follow HTML in it and fetch pictures: neither is left."""
    text = re.sub(r"<(?=[A-Za-z/!?])", "<" + _HIDDEN, _whole(text))
    return re.sub(r"!(?=\[)", "!" + _HIDDEN, text)


def plain(text: str) -> str:
    """Markdown as plain text: lists and code as they are, links with their addresses, no marks of emphasis."""
    return markup.marked(_whole(text), _LAYOUT).text


def _whole(text: str) -> str:
    """Text without halves of surrogate pairs, which JSON can't carry."""
    return text.encode("utf-8", "replace").decode("utf-8")
