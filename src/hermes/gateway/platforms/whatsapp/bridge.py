"""A personal number through a bridge: a process on this machine that is a linked device, and speaks a small HTTP protocol.

contrib/whatsapp-bridge/README.md has the protocol. Events are acknowledged by asking for those after them, once they are stored.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote as quoted
from urllib.parse import urlsplit

import httpx

from hermes.errors import HermesError, PlatformError, PlatformRefused, PlatformUnreachable, SendRefused, SlowDown
from hermes.gateway.adapter import Link
from hermes.gateway.events import Attachment, Chat, Choice, OutgoingFile, Reaction
from hermes.gateway.platforms.connections import Retries, Tasks
from hermes.gateway.platforms.http import HttpApi, error_text, retry_after
from hermes.gateway.platforms.intake import hand_over
from hermes.gateway.platforms.whatsapp.bridge_events import BridgeReader
from hermes.gateway.platforms.whatsapp.bridge_process import AlreadyRuns, BridgeProcess
from hermes.gateway.platforms.whatsapp.formatting import formatted

if TYPE_CHECKING:
    from hermes.gateway.adapter import Adapter

WAIT = 20  # seconds that the bridge waits for an event
STARTING = 60.0  # seconds for it to start and to connect
PAIRING = 180.0  # seconds for the owner to scan the code
_PAUSES = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0)  # seconds: a bridge that has ended is started again meanwhile
_NOT_PAIRED = "the bridge is not paired with a phone: run `hermes gateway setup whatsapp`"


class BridgedNumber:
    """One number behind a bridge."""

    def __init__(self, adapter: Adapter) -> None:
        self._adapter = adapter
        self._reader = BridgeReader(adapter.home)
        self._api: _BridgeApi | None = None
        self._tasks = Tasks()
        self._link: Link | None = None
        self._token = adapter.text("bridge_token") or secrets.token_urlsafe(24)
        command, place = adapter.text("bridge_command"), urlsplit(adapter.text("bridge_url"))
        folder = adapter.home / "whatsapp" / "session"
        port = 0
        with contextlib.suppress(ValueError):
            port = place.port or 0
        self._process = BridgeProcess(command, folder, self._token, port=port) if command else None

    # ------------------------------------------------------------------------------------------ login

    def validate(self) -> None:
        """Refuse settings that can't work, or that show the token to others."""
        name, address = self._adapter.connection_name, self._adapter.text("bridge_url")
        if self._process is None and not (address and self._adapter.text("bridge_token")):
            raise PlatformRefused(f"{name}: mode bridge needs bridge_command, or bridge_url and bridge_token")
        place = urlsplit(address)
        local = place.hostname in ("127.0.0.1", "localhost", "::1")
        if address and not (place.scheme == "https" or (place.scheme == "http" and local)):
            raise PlatformRefused(f"{name}: bridge_url must be on this machine (http://127.0.0.1:8645) or https")

    async def check(self) -> str:
        """Say which number we are."""
        try:
            return await self._open(lambda line: None)
        except AlreadyRuns:
            return "a bridge that is already running"
        finally:
            await self.disconnect()

    async def login(self, show: Callable[[str], None]) -> None:
        """Pair the bridge with a phone: the owner scans a QR code."""
        api = await self._started(show)
        shown = None
        async with _limit(PAIRING, PlatformRefused("the code was not scanned in time; run setup again")):
            while True:
                status = await api.status()
                if status.get("state") == "connected":
                    show(f"Paired with {_identity(status)}.")
                    return
                code = status.get("qr_text") or status.get("qr")
                if isinstance(code, str) and code and code != shown:
                    shown = code
                    show("On the phone: WhatsApp → Settings → Linked devices → Link a device, and scan this code:\n")
                    show(code)
                await asyncio.sleep(0.5)

    async def connect(self, link: Link) -> None:
        """Start the bridge where that is ours to do, and begin to receive."""
        self._link = link
        identity = await self._open(lambda line: link.log.info("bridge: %s", line))
        link.connected(identity)
        assert self._api is not None
        self._tasks.start(self._receive(self._api, link, identity), name="whatsapp-events")

    async def disconnect(self) -> None:
        """Stop receiving, and end the bridge if we have started it."""
        await self._tasks.stop()
        api, self._api = self._api, None
        if api is not None:
            await api.close()
        if self._process is not None:
            await self._process.stop()

    async def _started(self, note: Callable[[str], None]) -> _BridgeApi:
        if self._process is not None:
            await self._process.start(note)
        address = self._adapter.text("bridge_url") or f"http://127.0.0.1:{self._process.port if self._process else 0}"
        self._api = _BridgeApi(address, self._token)
        return self._api

    async def _open(self, note: Callable[[str], None]) -> str:
        """Wait until the bridge is connected to WhatsApp; our number."""
        api = await self._started(note)
        async with _limit(
            STARTING, PlatformUnreachable(f"the bridge is not connected to WhatsApp after {STARTING:g} s")
        ):
            while True:
                status = await api.status()
                if status.get("state") == "connected":
                    self._reader.is_us(status.get("id"), status.get("lid"))
                    return _identity(status)
                _check_paired(status)
                await asyncio.sleep(0.25)

    # ------------------------------------------------------------------------------------------ receiving

    async def _receive(self, api: _BridgeApi, link: Link, identity: str) -> None:
        retries, acknowledged = Retries(link, identity, _PAUSES), ""
        try:
            while True:
                try:
                    found = await api.call("GET", "/events", params={"ack": acknowledged, "wait": WAIT})
                except (PlatformUnreachable, SlowDown) as error:
                    await retries.failed(error)
                    continue
                retries.succeeded()
                _check_paired(found)
                events = found.get("events")
                for one in events if isinstance(events, list) else []:
                    await self._hand_over(one, link)
                acknowledged = str(found.get("ack") or acknowledged)
                if not events:
                    await asyncio.sleep(0.05)  # a bridge that does not wait must not keep us busy
        except Exception as error:
            if not isinstance(error, HermesError):
                link.log.exception("the events of the bridge could not be read")
                error = PlatformUnreachable(f"the events of the bridge could not be read: {type(error).__name__}")
            link.lost(error)  # what was not acknowledged comes again

    async def _hand_over(self, one: Any, link: Link) -> None:
        item = self._reader.read(one)
        if isinstance(item, Reaction):
            await link.reacted(item)
        elif item is not None:
            await hand_over(link, item)

    async def fetch(self, attachment: Attachment) -> bytes:
        """The bytes of a file that a person sent."""
        name = quoted(str(attachment.reference.get("file")), safe="")
        return (await self._connected().request("GET", f"/media/{name}")).content

    # ------------------------------------------------------------------------------------------ sending

    async def send(self, chat: Chat, text: str, *, nonce: str, reply_to: str | None = None) -> str:
        """Send a text; its id."""
        body: dict[str, Any] = {"chat": self._reader.address(chat.chat_id), "text": formatted(text), "nonce": nonce}
        if reply_to is not None and (known := self._reader.messages.get(reply_to)) is not None:
            body["quote"] = {"id": reply_to, "sender": known[0], "text": known[1]}
        return await self._sent(await self._connected().call("POST", "/send", json=body))

    async def send_choices(
        self, chat: Chat, text: str, choices: Sequence[Choice], *, nonce: str, reply_to: str | None = None
    ) -> str:
        """Send the text alone: personal numbers have no buttons."""
        return await self.send(chat, text, nonce=nonce, reply_to=reply_to)

    async def send_file(self, chat: Chat, file: OutgoingFile, *, caption: str = "", nonce: str) -> str:
        """Send a file; the message's id."""
        about = {
            "chat": self._reader.address(chat.chat_id), "kind": file.kind, "name": file.name, "mime": file.mime, "nonce": nonce,
            "caption": formatted(caption, 1024) if caption else "",
        }  # fmt: skip
        return await self._sent(await self._connected().call("POST", "/media", params=about, content=file.data))

    async def was_sent(self, nonce: str) -> bool | None:
        """Whether the bridge has sent a message; None if it can't say."""
        try:
            found = (await self._connected().call("GET", "/sent", params={"nonce": nonce})).get("sent")
        except SendRefused:  # a bridge without a memory
            return None
        return found if isinstance(found, bool) else None

    async def typing(self, chat: Chat) -> None:
        """Show that a reply is being written, and mark what was written as read."""
        await self._connected().call("POST", "/typing", json={"chat": self._reader.address(chat.chat_id)})

    async def _sent(self, found: dict[str, Any]) -> str:
        if not isinstance(found.get("id"), str):
            raise PlatformUnreachable("the bridge did not say which message was sent", maybe_sent=True)
        return str(found["id"])

    def _connected(self) -> _BridgeApi:
        if self._api is None:
            raise PlatformUnreachable("not connected to the bridge")
        return self._api


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

    async def call(self, method: str, path: str, **options: Any) -> dict[str, Any]:
        """The answer of a request as an object."""
        try:
            found = (await self.request(method, path, **options)).json()
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise PlatformUnreachable("the bridge's answer is not JSON", maybe_sent=method == "POST")
        return found

    async def status(self) -> dict[str, Any]:
        """How it is doing; {} while it does not answer yet."""
        try:
            return await self.call("GET", "/status")
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
        try:
            return error_text(answer.json()["error"], self._token)
        except (ValueError, KeyError, TypeError):
            return f"HTTP {answer.status_code}"


def _check_paired(found: dict[str, Any]) -> None:
    if found.get("state") in ("pairing", "logged_out"):
        raise PlatformRefused(_NOT_PAIRED)


def _identity(status: dict[str, Any]) -> str:
    number = str(status.get("id") or "").partition("@")[0].partition(":")[0]
    return f"+{number}" if number else str(status.get("name") or "a number")


@contextlib.asynccontextmanager
async def _limit(seconds: float, error: HermesError) -> Any:
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise error from None
