"""The WeChat adapter: Tencent's iLink API for bots of personal accounts, polled.

A reply needs the context token of a message that it answers. The newest one of each person is kept besides the place in the
stream of messages, so that messages that answer nothing can be sent.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from hermes.errors import HermesError, PlatformRefused, PlatformUnreachable, SendRefused, SlowDown
from hermes.gateway.adapter import Adapter, Capabilities, Link, ReplyContext, Setting
from hermes.gateway.events import Attachment, Chat, OutgoingFile
from hermes.gateway.platforms import markup
from hermes.gateway.platforms.connections import Recent, Retries, Tasks, loss_reported
from hermes.gateway.platforms.intake import keep
from hermes.gateway.platforms.weixin.client import TOO_OFTEN, ILink, Refused
from hermes.gateway.platforms.weixin.file_encryption import decrypted, key_of
from hermes.gateway.platforms.weixin.incoming import CONTEXT, FILE, IMAGE, TEXT, VIDEO, event_of, is_in_group
from hermes.whole_files import write_whole

_LAYOUT = markup.Layout(bullet="• ")
_PATIENCE = 5  # how often a message is sent again after the code for "too often", which may also mean an old context
_UPLOADS = {"image": 1, "video": 2}  # media_type; everything else is a file
_SHORTEST = 1.0  # seconds of a poll that brings nothing
_MOST_CONTEXTS = 5_000  # people whose newest context token is kept


class Weixin(Adapter):
    """A bot of a personal WeChat account."""

    platform = "weixin"
    title = "WeChat"
    extra = "weixin"
    logs_in = True
    settings = (
        Setting(
            name="token", help="the bot's token, which the login by QR code gives", variable="WEIXIN_TOKEN", secret=True,
            required=True,
        ),
        Setting(name="bot_id", help="the bot's id, which the login gives"),
        Setting(name="base_url", help="where the API is; the login may give another one", default="https://ilinkai.weixin.qq.com"),
        Setting(name="cdn_url", help="where files are", default="https://novac2c.cdn.weixin.qq.com/c2c"),
        Setting(name="app_id", help="the application's name for the API", default="bot"),
        Setting(name="protocol_version", help="the version of the protocol that is announced", default="2.4.8"),
    )  # fmt: skip
    capabilities = Capabilities(longest=4_000, typing=True, media=True, files=True, largest_file=25_000_000)

    def __init__(self, values: Mapping[str, Any], home: Path) -> None:
        super().__init__(values, home)
        self._api: ILink | None = None
        self._tasks = Tasks()
        self._file = home / "weixin.json"
        self._state: dict[str, Any] | None = None
        self._tickets: Recent[str, str] = Recent()
        self._refusals: Recent[str, int] = Recent()

    # ------------------------------------------------------------------------------------------ login

    def validate(self) -> None:
        """Refuse addresses that are none."""
        for name in ("base_url", "cdn_url"):
            parts = urlsplit(self.text(name))
            if parts.scheme not in ("http", "https") or not parts.hostname:
                raise PlatformRefused(f"weixin: {name} must be an address, as https://…")

    async def login(self, show: Callable[[str], None]) -> Mapping[str, Any]:
        """Show a QR code until it is confirmed on the phone."""
        from hermes.gateway.platforms.weixin.qr import drawn

        async with self._made() as api:
            found = await api.log_in(show, _asked, drawn, self.text("token"))
        if not found:
            if not self.text("token"):
                raise PlatformRefused("this WeChat account has a bot already; remove it on the phone, and log in again")
            show("This account is logged in already.")
            return {}
        token, base = found.get("bot_token"), found.get("baseurl")
        if not isinstance(token, str) or not token:
            raise PlatformRefused("WeChat has given no token; log in again")
        given: dict[str, Any] = {"token": token, "bot_id": str(found.get("ilink_bot_id") or "")}
        if isinstance(base, str) and base:
            base = base if "://" in base else f"https://{base}"
            if not api.is_tencents(base):
                raise PlatformRefused("WeChat has named an address that is not Tencent's; log in again")
            given["base_url"] = base.rstrip("/")
        if found.get("ilink_user_id"):
            show(f"Your own user id is {found['ilink_user_id']}")
        return given

    async def check(self) -> str:
        """Ask for the bot's configuration: the token must be accepted."""
        async with self._made() as api:
            with suppress(SendRefused):  # it is about a person whom we do not name
                await api.call("getconfig", ilink_user_id="")
        return self._identity

    async def connect(self, link: Link) -> None:
        """Announce ourselves, and begin to poll."""
        await self.disconnect()
        self._api = api = self._made()
        try:
            with suppress(SendRefused):
                await api.call("msg/notifystart")
        except BaseException:
            await self.disconnect()
            raise
        link.connected(self._identity)
        self._tasks.start(self._receive(link, api), name="weixin")

    async def disconnect(self) -> None:
        """Stop polling and close everything."""
        await self._tasks.stop()
        api, self._api = self._api, None
        if api is not None:
            with suppress(HermesError):
                await api.call("msg/notifystop", seconds=2.0)
            await api.close()

    @property
    def _identity(self) -> str:
        return self.text("bot_id") or "a WeChat bot"

    def _made(self) -> ILink:
        return ILink(
            self.text("base_url"), token=self.text("token"), cdn_url=self.text("cdn_url"), app_id=self.text("app_id"),
            version=self.text("protocol_version"),
        )  # fmt: skip

    # ------------------------------------------------------------------------------------------ receiving

    async def _receive(self, link: Link, api: ILink) -> None:
        """Poll, and go on to the next place when everything before it is stored."""
        retries = Retries(link, self._identity)
        with loss_reported(link, "WeChat", "messages could not be handled"):
            while True:
                asked = time.monotonic()
                try:
                    found = await api.updates(str(self._kept().get("buffer") or ""))
                except (PlatformUnreachable, SlowDown) as error:
                    await retries.failed(error)
                    continue
                retries.succeeded()
                await self._take(link, found)
                if not found.get("msgs") and time.monotonic() - asked < _SHORTEST:
                    await asyncio.sleep(_SHORTEST)  # a server that does not wait is not asked all the time

    async def _take(self, link: Link, found: dict[str, Any]) -> None:
        messages, contexts = found.get("msgs"), dict(self._kept()["contexts"])
        for message in messages if isinstance(messages, list) else ():
            event = event_of(message)
            if event is None:
                if isinstance(message, dict) and is_in_group(message):
                    link.log.warning("a message in a group is skipped: the API can't reply there")
                continue
            await keep(link, event)
            if event.reply_context:
                contexts.pop(event.chat.chat_id, None)  # the newest come last
                contexts[event.chat.chat_id] = event.reply_context[CONTEXT]
        buffer = found.get("get_updates_buf")
        buffer = buffer if isinstance(buffer, str) and buffer else self._kept()["buffer"]
        if (buffer, contexts) != (self._kept()["buffer"], self._kept()["contexts"]):
            self._keep(buffer, contexts)

    def _kept(self) -> dict[str, Any]:
        """The place in the stream and the context tokens of this login; those of another one are of no use."""
        if self._state is None:
            try:
                found = json.loads(self._file.read_text("utf-8"))
            except (OSError, ValueError):
                found = {}  # messages that come again are recognised by their numbers
            found = found if isinstance(found, dict) and found.get("login") == self._login else {}
            contexts, buffer = found.get("contexts"), found.get("buffer")
            self._state = {
                "login": self._login, "buffer": buffer if isinstance(buffer, str) else "",
                "contexts": contexts if isinstance(contexts, dict) else {},
            }  # fmt: skip
        return self._state

    @property
    def _login(self) -> str:
        return hashlib.sha256(self.text("token").encode()).hexdigest()[:16]

    def _keep(self, buffer: str, contexts: dict[str, str]) -> None:
        """Write it to the disk; the tokens are for the owner alone."""
        state = {"login": self._login, "buffer": buffer, "contexts": dict(list(contexts.items())[-_MOST_CONTEXTS:])}
        self._file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(self._file, json.dumps(state))
        self._state = state

    async def fetch(self, attachment: Attachment) -> bytes:
        """The bytes of a file, decrypted."""
        about = attachment.reference
        data = await self._asked().file(str(about.get("url") or ""), str(about.get("param") or ""))
        if not about.get("key"):
            return data
        key = key_of(str(about["key"]))
        if key is None:
            raise SendRefused("WeChat's file can't be decrypted: its key has an unknown form")
        return await asyncio.to_thread(decrypted, data, key)

    # ------------------------------------------------------------------------------------------ sending

    async def send(
        self, chat: Chat, text: str, *, nonce: str, reply_to: str | None = None, context: ReplyContext | None = None
    ) -> str:
        """Send a message; the id that we give it."""
        words = markup.marked(text, _LAYOUT).text or text
        return await self._send(chat, {"type": TEXT, "text_item": {"text": words}}, nonce, context)

    async def send_file(
        self, chat: Chat, file: OutgoingFile, *, caption: str = "", nonce: str, context: ReplyContext | None = None
    ) -> str:
        """Put a file into the CDN, and send a message that refers to it."""
        self._token_for(chat, context)
        kind = _UPLOADS.get(file.kind, 3)
        media = await self._asked().upload(file.data, kind, chat.chat_id)
        size = len(file.data) // 16 * 16 + 16  # encrypted
        if kind == 1:
            item: dict[str, Any] = {"type": IMAGE, "image_item": {"media": media, "mid_size": size}}
        elif kind == 2:
            item = {"type": VIDEO, "video_item": {"media": media, "video_size": size}}
        else:
            about = {"media": media, "file_name": file.name, "len": str(len(file.data))}
            item = {"type": FILE, "file_item": about}
        return await self._send(chat, item, nonce, context)

    async def _send(self, chat: Chat, item: dict[str, Any], nonce: str, context: ReplyContext | None) -> str:
        name = f"hermes-{nonce}"
        message = {
            "from_user_id": "", "to_user_id": chat.chat_id, "client_id": name, "message_type": 2, "message_state": 2,
            "item_list": [item], CONTEXT: self._token_for(chat, context),
        }  # fmt: skip
        try:
            await self._asked().call("sendmessage", msg=message)
        except Refused as error:
            tries = self._refusals.put(nonce, (self._refusals.get(nonce) or 0) + 1)
            if error.code == TOO_OFTEN and tries < _PATIENCE:
                raise SlowDown("WeChat asks us to wait", 2.0 * tries) from None
            raise
        self._refusals.drop(nonce)
        return name

    def _token_for(self, chat: Chat, context: ReplyContext | None) -> str:
        found = (context or {}).get(CONTEXT) or self._kept()["contexts"].get(chat.chat_id)
        if not isinstance(found, str) or not found:
            raise SendRefused(
                "WeChat takes messages only to people who have written: there is no context token for this one"
            )
        return found

    async def typing(self, chat: Chat) -> None:
        """Show that a reply is being written."""
        api, who = self._asked(), chat.chat_id
        ticket = self._tickets.get(who)
        if ticket is None:
            token = self._kept()["contexts"].get(who)
            found = await api.call("getconfig", ilink_user_id=who, **({CONTEXT: token} if token else {}))
            ticket = self._tickets.put(who, str(found.get("typing_ticket") or ""))
        if ticket:
            try:
                await api.call("sendtyping", ilink_user_id=who, typing_ticket=ticket, status=1)
            except SendRefused:
                self._tickets.drop(who)  # it has expired: the next time brings a new one
                raise

    def _asked(self) -> ILink:
        if self._api is None:
            raise PlatformUnreachable("not connected to WeChat")
        return self._api


def _asked(question: str) -> str:
    """What the owner types in the terminal, in setup."""
    try:
        return input(question).strip()
    except EOFError:
        raise PlatformRefused("WeChat wants the code that it shows on the phone") from None
