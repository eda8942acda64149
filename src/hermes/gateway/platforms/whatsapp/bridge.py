"""A personal number through a bridge: a process on this machine that is a linked device, and speaks a small HTTP protocol.

contrib/whatsapp-bridge/README.md has the protocol. Events are acknowledged by asking for those after them, once they are stored.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote as quoted
from urllib.parse import urlsplit

import httpx

from hermes.errors import PlatformError, PlatformRefused, PlatformUnreachable, SendRefused, SlowDown
from hermes.gateway.adapter import Link, ReplyContext
from hermes.gateway.events import Attachment, Chat, Choice, OutgoingFile
from hermes.gateway.platforms.connections import Retries, loss_reported
from hermes.gateway.platforms.frames import parsed
from hermes.gateway.platforms.http import HttpApi, error_text, retry_after
from hermes.gateway.platforms.intake import hand_over
from hermes.gateway.platforms.whatsapp.adapter import WhatsApp
from hermes.gateway.platforms.whatsapp.bridge_events import BridgeReader
from hermes.gateway.platforms.whatsapp.bridge_process import AlreadyRuns, BridgeProcess
from hermes.gateway.platforms.whatsapp.formatting import formatted

WAIT = 20  # seconds that the bridge waits for an event
STARTING = 60.0  # seconds for it to start and to connect
PAIRING = 180.0  # seconds for the owner to scan the code
_NOT_PAIRED = "the bridge is not paired with a phone: run `hermes gateway setup whatsapp`"


class BridgedNumber(WhatsApp["_BridgeApi"]):
    """One number behind a bridge."""

    def __init__(self, values: Mapping[str, Any], home: Path) -> None:
        super().__init__(values, home)
        self._reader = BridgeReader(home)
        self._token = self.text("bridge_token") or secrets.token_urlsafe(24)
        command, place = self.text("bridge_command"), urlsplit(self.text("bridge_url"))
        folder = home / "whatsapp" / "session"
        port = 0
        with contextlib.suppress(ValueError):
            port = place.port or 0
        self._process = BridgeProcess(command, folder, self._token, port=port) if command else None

    # ------------------------------------------------------------------------------------------ login

    def validate(self) -> None:
        """Refuse settings that can't work, or that show the token to others."""
        super().validate()
        name, address = self.connection_name, self.text("bridge_url")
        if self._process is None and not (address and self.text("bridge_token")):
            raise PlatformRefused(f"{name}: mode bridge needs bridge_command, or bridge_url and bridge_token")
        place = urlsplit(address)
        local = place.hostname in ("127.0.0.1", "localhost", "::1")
        if address and not (place.scheme == "https" or (place.scheme == "http" and local)):
            raise PlatformRefused(f"{name}: bridge_url must be on this machine (http://127.0.0.1:8645) or https")

    async def check(self) -> str:
        """Say which number we are."""
        self.validate()
        self._api = api = self.make_api()
        try:
            return await self._open(api, lambda line: None)
        except AlreadyRuns:
            return "a bridge that is already running"
        finally:
            await self.disconnect()

    async def login(self, show: Callable[[str], None]) -> Mapping[str, Any]:
        """Pair the bridge with a phone: the owner scans a QR code."""
        self.validate()
        self._api = api = self.make_api()
        shown = None
        try:
            if self._process is not None:
                await self._process.start(show)
            async with asyncio.timeout(PAIRING):
                while (status := await api.status()).get("state") != "connected":
                    code = status.get("qr_text") or status.get("qr")
                    if isinstance(code, str) and code and code != shown:
                        shown = code
                        show(
                            "On the phone: WhatsApp → Settings → Linked devices → Link a device, and scan this code:\n"
                        )
                        show(code)
                    await asyncio.sleep(0.5)
            show(f"Paired with {_identity(status)}.")
            return {}
        except TimeoutError:
            raise PlatformRefused("the code was not scanned in time; run setup again") from None
        finally:
            await self.disconnect()

    async def begin(self, link: Link, api: _BridgeApi) -> None:
        """Start the bridge where that is ours to do, and begin to receive."""
        identity = await self._open(api, lambda line: link.log.info("bridge: %s", line))
        link.connected(identity)
        self._tasks.start(self._receive(api, link, identity), name="whatsapp-events")

    async def disconnect(self) -> None:
        """Stop receiving, and end the bridge if we have started it."""
        await super().disconnect()
        if self._process is not None:
            await self._process.stop()

    def make_api(self) -> _BridgeApi:
        """The bridge's API, at the address where it is or will be."""
        port = self._process.choose_port() if self._process is not None else 0
        return _BridgeApi(self.text("bridge_url") or f"http://127.0.0.1:{port}", self._token)

    async def _open(self, api: _BridgeApi, note: Callable[[str], None]) -> str:
        """Start the bridge, and wait until it is connected to WhatsApp; our number."""
        if self._process is not None:
            await self._process.start(note)
        try:
            async with asyncio.timeout(STARTING):
                while (status := await api.status()).get("state") != "connected":
                    _check_paired(status)
                    await asyncio.sleep(0.25)
        except TimeoutError:
            raise PlatformUnreachable(f"the bridge is not connected to WhatsApp after {STARTING:g} s") from None
        self._reader.is_us(status.get("id"), status.get("lid"))
        return _identity(status)

    # ------------------------------------------------------------------------------------------ receiving

    async def _receive(self, api: _BridgeApi, link: Link, identity: str) -> None:
        retries, acknowledged = Retries(link, identity), ""
        with loss_reported(link, "the WhatsApp bridge"):  # what was not acknowledged comes again
            while True:
                try:
                    found = await api.object("GET", "/events", params={"ack": acknowledged, "wait": WAIT})
                except (PlatformUnreachable, SlowDown) as error:
                    await retries.failed(error)
                    continue
                retries.succeeded()
                _check_paired(found)
                events = found.get("events")
                for one in events if isinstance(events, list) else []:
                    if (item := self._reader.read(one)) is not None:
                        await hand_over(link, item)
                acknowledged = str(found.get("ack") or acknowledged)
                if not events:
                    await asyncio.sleep(0.05)  # a bridge that does not wait must not keep us busy

    async def fetch(self, attachment: Attachment) -> bytes:
        """The bytes of a file that a person sent."""
        name = quoted(str(attachment.reference.get("file")), safe="")
        return (await self.api.request("GET", f"/media/{name}")).content

    # ------------------------------------------------------------------------------------------ sending

    async def send(
        self, chat: Chat, text: str, *, nonce: str, reply_to: str | None = None, context: ReplyContext | None = None
    ) -> str:
        """Send a text; its id."""
        body: dict[str, Any] = {"chat": self._reader.address(chat.chat_id), "text": formatted(text), "nonce": nonce}
        if reply_to is not None and (known := self._reader.messages.get(reply_to)) is not None:
            body["quote"] = {"id": reply_to, "sender": known[0], "text": known[1]}
        return await self._sent(await self.api.object("POST", "/send", json=body))

    async def send_choices(
        self, chat: Chat, text: str, choices: Sequence[Choice], *, nonce: str, reply_to: str | None = None,
        context: ReplyContext | None = None,
    ) -> str:  # fmt: skip
        """Send the text alone: personal numbers have no buttons."""
        return await self.send(chat, text, nonce=nonce, reply_to=reply_to)

    async def send_file(
        self, chat: Chat, file: OutgoingFile, *, caption: str = "", nonce: str, context: ReplyContext | None = None
    ) -> str:
        """Send a file; the message's id."""
        about = {
            "chat": self._reader.address(chat.chat_id), "kind": file.kind, "name": file.name, "mime": file.mime, "nonce": nonce,
            "caption": formatted(caption, 1024) if caption else "",
        }  # fmt: skip
        return await self._sent(await self.api.object("POST", "/media", params=about, content=file.data))

    async def was_sent(self, chat: Chat, *, nonce: str) -> bool | None:
        """Whether the bridge has sent a message; None if it can't say."""
        try:
            found = (await self.api.object("GET", "/sent", params={"nonce": nonce})).get("sent")
        except SendRefused:  # a bridge without a memory
            return None
        return found if isinstance(found, bool) else None

    async def typing(self, chat: Chat) -> None:
        """Show that a reply is being written, and mark what was written as read."""
        await self.api.object("POST", "/typing", json={"chat": self._reader.address(chat.chat_id)})

    async def _sent(self, found: dict[str, Any]) -> str:
        if not isinstance(found.get("id"), str):
            raise PlatformUnreachable("the bridge did not say which message was sent", maybe_sent=True)
        return str(found["id"])


class _BridgeApi(HttpApi):
    def __init__(self, address: str, token: str) -> None:
        super().__init__(
            "the WhatsApp bridge",
            address,
            headers={"Authorization": f"Bearer {token}"},
            timeout=WAIT + 40,
            trust_env=False,
        )
        self._token = token

    async def status(self) -> dict[str, Any]:
        """How it is doing; {} while it does not answer yet."""
        try:
            return await self.object("GET", "/status")
        except (PlatformUnreachable, SlowDown):
            return {}

    def check(self, answer: httpx.Response) -> None:
        """Raise the error of an unsuccessful answer."""
        if answer.status_code == 429:
            raise SlowDown("WhatsApp asks the bridge to wait", retry_after(answer.headers))
        if answer.status_code >= 500:
            maybe = answer.status_code == 504  # the bridge does not know either
            raise PlatformUnreachable(f"the bridge can't do it now ({self._why(answer)})", maybe_sent=maybe)
        if answer.status_code >= 300:
            raise self.failure(answer)

    def failure(self, answer: httpx.Response) -> PlatformError:
        """The error for an answer of 300 to 499."""
        if answer.status_code in (401, 403):
            return PlatformRefused("the bridge does not accept bridge_token")
        return SendRefused(f"the bridge refuses: {self._why(answer)}")

    def _why(self, answer: httpx.Response) -> str:
        return error_text(parsed(answer.content).get("error") or f"HTTP {answer.status_code}", self._token)


def _check_paired(found: dict[str, Any]) -> None:
    if found.get("state") in ("pairing", "logged_out"):
        raise PlatformRefused(_NOT_PAIRED)


def _identity(status: dict[str, Any]) -> str:
    number = str(status.get("id") or "").partition("@")[0].partition(":")[0]
    return f"+{number}" if number else str(status.get("name") or "a number")
