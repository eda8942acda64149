"""A personal number through a bridge: a process on this machine that is a linked device, and speaks a small HTTP protocol.

contrib/whatsapp-bridge/README.md has the protocol. The bridge's reports become events; no report makes this raise. Events are
acknowledged by requesting those after them, once they are stored.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import random
import secrets
import shlex
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote as quoted
from urllib.parse import urlsplit

import httpx

from hermes.errors import PlatformError, PlatformRefused, PlatformUnreachable, SendRefused, SlowDown
from hermes.gateway.adapter import Link, ReplyContext
from hermes.gateway.chats.router import normalize_whatsapp_identifier
from hermes.gateway.events import (
    DM,
    GROUP,
    Attachment,
    Chat,
    Choice,
    Event,
    Forwarded,
    OutgoingFile,
    Revision,
    Sender,
    deleted,
)
from hermes.gateway.platforms._shared.http import HttpApi, attachment, error_text, retry_after
from hermes.gateway.platforms._shared.receipt import dict_of, dicts_of, hand_over, parsed, text_of
from hermes.gateway.platforms._shared.tasks import Recent, Retries, Tasks, loss_reported
from hermes.gateway.platforms.whatsapp.adapter import WhatsApp, canonical, formatted, sender

GRACE = 5.0  # seconds to end by itself
_LONGEST_LINE = 300
_VARIABLES = frozenset(
    {"PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "NO_PROXY", "no_proxy"}
)
_KINDS_OF_VARIABLES = ("LC_", "NODE_", "SSL_", "HTTP_", "HTTPS_", "ALL_", "http_", "https_", "all_")


class AlreadyRuns(PlatformUnreachable):
    """Another process runs a bridge with the same files: two of them would throw each other out."""


class BridgeProcess:
    """One bridge. `folder` has its files; `note` gets its output and what happens to it, line by line."""

    def __init__(self, command: str, folder: Path, token: str, *, port: int = 0) -> None:
        self._command, self._folder, self._token, self._wanted = command, folder, token, port
        self._port = 0
        self._tasks = Tasks()
        self._process: asyncio.subprocess.Process | None = None
        self._lock: IO[str] | None = None

    @property
    def runs(self) -> bool:
        """Whether it was started and not stopped."""
        return self._lock is not None

    def choose_port(self) -> int:
        """The port it will listen on: the wanted one, else one that is free now."""
        self._port = self._wanted or _free_port()
        return self._port

    async def start(self, note: Callable[[str], None]) -> None:
        """Start it on the chosen port and look after it. AlreadyRuns, or PlatformRefused if the command does not exist."""
        if self.runs:
            return
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lock = _locked(self._folder.parent / "bridge.lock")
        try:
            process = await self._started()
        except BaseException:
            await self.stop()
            raise
        self._tasks.start(self._watch(process, note), name="whatsapp-bridge")

    async def stop(self) -> None:
        """End it, by force after some seconds; may be called twice."""
        await self._tasks.stop()
        process, self._process = self._process, None
        if process is not None:
            await _ended(process)
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.close()

    async def _started(self) -> asyncio.subprocess.Process:
        place = {
            "HERMES_BRIDGE_PORT": str(self._port), "HERMES_BRIDGE_TOKEN": self._token,
            "HERMES_BRIDGE_FOLDER": str(self._folder), "HERMES_BRIDGE_SUPERVISED": "1",
        }  # fmt: skip
        try:
            self._process = await asyncio.create_subprocess_exec(
                *shlex.split(self._command), env={**_environment(), **place}, start_new_session=True,
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
            )  # fmt: skip
        except (OSError, ValueError) as error:
            raise PlatformRefused(f"bridge_command can't be run ({self._command}): {error}") from None
        return self._process

    async def _watch(self, process: asyncio.subprocess.Process, note: Callable[[str], None]) -> None:
        """Pass on its output. The gateway reconnects when the bridge does not answer, which starts it again."""
        assert process.stdout is not None
        line: bytes | None = None
        while line != b"":
            try:
                line = await process.stdout.readline()
            except ValueError:  # a line longer than the buffer
                continue
            if text := line.decode("utf-8", "replace").strip():
                note(text[:_LONGEST_LINE])
        note(f"the bridge has ended (status {await process.wait()})")


async def _ended(process: asyncio.subprocess.Process) -> None:
    """Close its input, ask its process group to end, and end it after GRACE seconds."""
    if process.stdin is not None:
        process.stdin.close()
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), GRACE)
            if number == signal.SIGTERM:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)  # what it started
            return


def _environment() -> dict[str, str]:
    """The variables a bridge gets of our environment: no keys and tokens of others."""
    return {
        name: value for name, value in os.environ.items() if name in _VARIABLES or name.startswith(_KINDS_OF_VARIABLES)
    }


def _locked(path: Path) -> IO[str]:
    file = path.open("w")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise AlreadyRuns("another process runs this number's bridge (the gateway, or setup)") from None
    return file


def _free_port() -> int:
    """A free port below those that the system hands out: another program's connection could take one before the bridge does."""
    while True:
        with socket.socket() as one, contextlib.suppress(OSError):
            one.bind(("127.0.0.1", random.randint(10_240, 32_000)))
            return int(one.getsockname()[1])


LID, PERSON, GROUPS = "@lid", "@s.whatsapp.net", "@g.us"


class BridgeReader:
    """Reads a bridge's events for one number."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._ourselves: set[str] = set()
        self.messages: Recent[str, tuple[str, str]] = Recent(1_000)  # id → who wrote it, and how it begins: for quotes

    def is_us(self, *ids: Any) -> None:
        """Our own ids: the number and the LID."""
        found = {normalize_whatsapp_identifier(one) for one in ids if isinstance(one, str)}
        self._ourselves = {*found, *(canonical(one, self._home) for one in found)} - {""}

    def read(self, found: Any) -> Event | Revision | None:
        """An event of the bridge; None where it is none of ours."""
        if not isinstance(found, dict):
            return None
        number, where, who = found.get("id"), text_of(found.get("chat")), text_of(found.get("sender"))
        if not isinstance(number, str) or not number or not where or not who:
            return None
        person, place = self._person(who, found.get("name")), self._chat(where, found)
        if person is None or place is None or self._is_ours(who):
            return None
        mine = f"{place.chat_id}:{person.id}:"  # a message is named by its author: no user can change another's
        target = text_of(found.get("target"))
        match found.get("type"):
            case "message":
                return self._event(found, f"{mine}{number}", number, place, person)
            case "edit" if target:
                event = self._event(found, f"{mine}{target}", target, place, person)
                return Revision(id=f"{mine}edit:{number}", revises=f"{mine}{target}", event=event)
            case "delete" if target:
                return deleted(f"{mine}{target}")
        return None

    def address(self, chat_id: str) -> str:
        """The bridge's address of a chat."""
        return chat_id if "@" in chat_id else f"{chat_id.removeprefix('+')}{PERSON}"

    def _resolved(self, jid: str) -> str:
        """A person's id: digits for a number, digits and @lid for a LID without a known number."""
        bare, found = normalize_whatsapp_identifier(jid), canonical(jid, self._home)
        is_lid = jid.endswith(LID)
        if found != bare:  # it is the person's other id
            is_lid = not is_lid
        return f"{found}{LID}" if is_lid else found

    def _person(self, jid: str, name: Any) -> Sender | None:
        found = self._resolved(jid)
        if not found:
            return None
        return sender(found, text_of(name) or None)

    def _chat(self, jid: str, found: dict[str, Any]) -> Chat | None:
        if jid.endswith(GROUPS):
            return Chat(platform="whatsapp", chat_id=jid, type=GROUP, name=text_of(found.get("chat_name")) or None)
        if jid.endswith((LID, PERSON)):
            return Chat(
                platform="whatsapp", chat_id=self._resolved(jid), type=DM, name=text_of(found.get("name")) or None
            )
        return None  # a broadcast, a channel, a status

    def _event(self, found: dict[str, Any], name: str, number: str, chat: Chat, person: Sender) -> Event:
        text = text_of(found.get("text"))
        quoted, mentions = dict_of(found.get("quoted")), found.get("mentions")
        named = [one for one in mentions if isinstance(one, str)] if isinstance(mentions, list) else []
        about_us = [one for one in named if self._is_ours(one)]
        addressed = chat.type == DM or bool(about_us) or self._is_ours(quoted.get("sender"))
        for one in about_us:
            text = text.replace(f"@{normalize_whatsapp_identifier(one)}", "").strip()
        self.messages.put(number, (text_of(found.get("sender")), text[:300]))
        forwarded = None
        if found.get("forwarded"):  # without its author
            forwarded, text, addressed = Forwarded(text=text_of(found.get("text"))), "", chat.type == DM
        stamp = found.get("timestamp")
        return Event(
            id=name, chat=chat, sender=person, text=text, message_id=number, addressed=addressed, forwarded=forwarded,
            attachments=tuple(_attachment(one) for one in dicts_of(found.get("files")) if one.get("id")),
            reply_to=text_of(quoted.get("id")) or None, quoted=text_of(quoted.get("text")) or None,
            sent_at=float(stamp) if isinstance(stamp, int) and 0 < stamp < 10**11 else None,
        )  # fmt: skip

    def _is_ours(self, jid: Any) -> bool:
        return isinstance(jid, str) and bool(
            {normalize_whatsapp_identifier(jid), canonical(jid, self._home)} & self._ourselves
        )


def _attachment(file: dict[str, Any]) -> Attachment:
    mime = text_of(file.get("mime")).partition(";")[0].strip()
    return attachment(file.get("name"), mime, file.get("size"), file=str(file["id"]))


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
