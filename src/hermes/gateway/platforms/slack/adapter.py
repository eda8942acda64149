"""The adapter for Slack: events in, messages, threads and files out."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import msgspec
from slack_sdk.web.async_client import AsyncWebClient
from slack_sdk.web.async_slack_response import AsyncSlackResponse

from hermes.errors import PlatformError, PlatformRefused, PlatformUnreachable, SendRefused, SlowDown
from hermes.gateway.adapter import Capabilities, Link, ReplyContext, Setting
from hermes.gateway.events import (
    Attachment,
    Chat,
    Choice,
    Event,
    OutgoingFile,
    Revision,
)
from hermes.gateway.platforms._shared.http import HttpApi, is_at
from hermes.gateway.platforms._shared.receipt import keep
from hermes.gateway.platforms._shared.tasks import ApiAdapter, close_each
from hermes.gateway.platforms.slack import outgoing as form
from hermes.gateway.platforms.slack.client import HEARTBEAT, SocketMode, Unformattable, ask, courtesy
from hermes.gateway.platforms.slack.incoming import EventReader, Mark, address_of, missed, slack_time

BASE_URL = "https://slack.com/api/"
# Slack takes about fifty edits a minute of all chats of a workspace together (chat.update, Tier 3). Streamed replies make 36 of
# them; the others are left for finished replies, which are edited without a wait.
EDIT_PAUSE = 60 / 36  # seconds
_SILENT = logging.getLogger("hermes.gateway.slack.library")  # its debug lines would hold message texts and tickets
_SILENT.setLevel(logging.CRITICAL)


class Slack(ApiAdapter["SlackApi"]):
    """A Slack app in one workspace."""

    platform = "slack"
    title = "Slack"
    extra = "slack"
    settings = (
        Setting(
            "bot_token", "the bot token, xoxb-…: your app, OAuth & Permissions, after Install to Workspace",
            secret=True, required=True,
        ),
        Setting(
            "app_token", "the app token, xapp-…: your app, Basic Information, App-Level Tokens, scope connections:write",
            secret=True, required=True,
        ),
        Setting("base_url", "where Slack's Web API is; https://slack-gov.com/api/ for GovSlack", default=BASE_URL),
        Setting(
            "reply_in_thread", "answer in a channel with a thread below the question; false: in the channel itself",
            default=True, kind=bool,
        ),
    )  # fmt: skip
    capabilities = Capabilities(
        longest=4_000,  # what Slack recommends; a markdown block takes 12,000, and form.without_pings adds a fifth at most
        edits=True,
        typing=True,  # in threads; elsewhere Slack has nothing to show it with
        threads=True,
        media=True,
        mention_needed=True,
        tells_edits=True,
        tells_deletions=True,
        files=True,
        largest_file=100_000_000,
        longest_caption=1_000,
        choices=25,
        longest_choice=500,
    )

    heartbeat = HEARTBEAT  # seconds between our pings
    read_again = 5.0  # seconds before missed messages are requested again
    reads_missed = True  # a new connection reads the messages since the last one from the conversations

    def __init__(self, values: Mapping[str, Any], home: Path) -> None:
        super().__init__(values, home)
        self._base = self.text("base_url").rstrip("/") + "/"
        self._now = 0.0  # by Slack's clock, at the login
        self._next_edit = 0.0  # when a streamed reply may be edited
        self._mark: Mark | None = None
        self._events = EventReader(lambda: self.api.web, reply_in_thread=bool(self.setting("reply_in_thread")))

    # ------------------------------------------------------------------------------------------ connecting

    async def check(self) -> str:
        """Return the bot's name; both tokens are tried."""
        api = self.make_api()
        try:
            identity = await self._log_in(api)
            await self._ticket(api)
            return identity
        finally:
            await api.close()

    def make_api(self) -> SlackApi:
        """The Web API, with our token."""
        return SlackApi(self.text("bot_token"), self._base)

    async def begin(self, link: Link, api: SlackApi) -> None:
        """Log in and open the websocket for events."""
        identity = await self._log_in(api)
        connection = SocketMode(
            api.session, ticket=partial(self._ticket, api), read=self._events.read, keep=partial(self._stored, link),
            connected=lambda: link.connected(identity), lost=link.lost, log=link.log, heartbeat=self.heartbeat,
        )  # fmt: skip
        self.closing(connection)
        self._mark = Mark(self.home / "slack.json", self._events.us)
        since = self._mark.begin(self._now)
        if since is not None and self.reads_missed:
            self._mark.behind = True
            connection.first = self._tasks.start(self._catch_up(link, connection, since), name="slack: missed")
        await connection.open()

    async def disconnect(self) -> None:
        """Close every connection. Slack sends unacknowledged events again to the next connection."""
        await super().disconnect()
        if self._mark is not None:
            self._mark.save()

    async def _log_in(self, api: SlackApi) -> str:
        answer = await ask(self._timed(api.web.auth_test()))
        if not answer.get("bot_id"):
            raise PlatformRefused("bot_token is not a bot token: copy the one under OAuth & Permissions (xoxb-…)")
        self._events.us = str(answer["user_id"])
        return f"@{answer['user']}"

    async def _timed(self, request: Awaitable[AsyncSlackResponse]) -> AsyncSlackResponse:
        answer = await request
        self._now = slack_time(answer.headers)
        return answer

    async def _ticket(self, api: SlackApi) -> str:
        """The address of a new connection; it can be used once."""
        request = api.web.apps_connections_open(app_token=self.text("app_token"))
        return str((await ask(request, token="app_token"))["url"])

    # ------------------------------------------------------------------------------------------ receiving

    async def _stored(self, link: Link, what: Event | Revision) -> None:
        """Have the gateway store it, and note how far we are."""
        await keep(link, what)
        if isinstance(what, Event) and what.sent_at is not None and self._mark is not None:
            self._mark.note(what.sent_at)

    async def _catch_up(self, link: Link, connection: SocketMode, since: float) -> None:
        """Hand over the messages sent while no gateway was connected. Until all of them are stored, the mark stays."""
        while True:
            try:
                async for event in missed(self._patient_call(link), self._events.us, since):
                    await connection.take_missed({"type": "events_api", "payload": {"event": event}})
                break
            except (PlatformUnreachable, SlowDown) as error:
                pause = max(getattr(error, "retry_after", 0.0), self.read_again)
                link.log.warning("messages that were missed can't be read: %s; trying again in %g s", error, pause)
                await asyncio.sleep(pause)
            except PlatformError as error:
                link.log.warning("messages that were missed can't be read: %s", error)
                break
        if self._mark is not None:
            self._mark.caught_up()

    def _patient_call(self, link: Link) -> Callable[..., Awaitable[dict[str, Any]]]:
        async def call(method: str, **arguments: Any) -> dict[str, Any]:
            while True:
                try:
                    return await ask(self.api.web.api_call(method, http_verb="GET", params=arguments))
                except SlowDown as error:  # one request for each conversation: Slack allows about fifty in a minute
                    await asyncio.sleep(error.retry_after)
                except (SendRefused, PlatformRefused) as error:
                    if "channel" not in arguments:
                        raise
                    link.log.warning("missed messages of %s can't be read: %s", arguments["channel"], error)
                    return {}

        return call

    # ------------------------------------------------------------------------------------------ sending

    async def send(
        self, chat: Chat, text: str, *, nonce: str, reply_to: str | None = None, context: ReplyContext | None = None
    ) -> str:
        """Send a message into the chat, or its thread. Slack has no nonces, and no replies but those in threads."""
        return await self._post(chat, text)

    async def send_choices(
        self, chat: Chat, text: str, choices: Sequence[Choice], *, nonce: str, reply_to: str | None = None,
        context: ReplyContext | None = None,
    ) -> str:  # fmt: skip
        """Send a message with buttons. What they say is in the message itself: a press works after a restart, too."""
        return await self._post(chat, text, [form.buttons(choices)])

    async def _post(self, chat: Chat, text: str, below: Sequence[dict[str, Any]] = ()) -> str:
        """Post a message, with blocks below its text."""
        place: dict[str, Any] = {"channel": chat.chat_id, "unfurl_links": False, "unfurl_media": False}
        if chat.thread_id:
            place["thread_ts"] = chat.thread_id
        sent = await self._write(self.api.web.chat_postMessage, text, place, below)
        if chat.thread_id:
            self._events.joined.put((chat.chat_id, chat.thread_id), True)
            self._events.waiting.pop((chat.chat_id, chat.thread_id), None)
        self._events.sent_to.put((chat.chat_id, str(sent["ts"])), chat)
        return str(sent["ts"])

    async def edit(self, chat: Chat, message_id: str, text: str) -> None:
        """Replace the text of one of the bot's messages."""
        self._next_edit = max(self._next_edit, time.monotonic()) + EDIT_PAUSE
        try:
            await self._write(self.api.web.chat_update, text, {"channel": chat.chat_id, "ts": message_id})
        except SlowDown as error:
            self._next_edit = time.monotonic() + error.retry_after + EDIT_PAUSE  # finished replies come first
            raise

    def edit_wait(self) -> float:
        """Seconds before a streamed reply may be edited again: all chats of the workspace share a limit."""
        return max(0.0, self._next_edit - time.monotonic())

    async def _write(
        self, method: Callable[..., Awaitable[AsyncSlackResponse]], text: str, place: dict[str, Any],
        below: Sequence[dict[str, Any]] = (),
    ) -> dict[str, Any]:  # fmt: skip
        """Post with formatting, else as plain text."""
        try:
            return await ask(method(text=form.preview(text), blocks=[*form.formatted(text), *below], **place))
        except Unformattable:
            return await ask(method(text=form.preview(text), blocks=[*form.plain(text), *below], **place))

    async def typing(self, chat: Chat) -> None:
        """In a thread: "is thinking…", until Slack removes it at our first message there."""
        if (chat.chat_id, chat.thread_id) in self._events.waiting:
            await courtesy(
                self.api.web.assistant_threads_setStatus(
                    channel_id=chat.chat_id, thread_ts=str(chat.thread_id), status="is thinking…"
                )
            )

    async def create_thread(self, chat: Chat, name: str) -> Chat:
        """Post a message with the name; the thread begins below it."""
        sent = await ask(self.api.web.chat_postMessage(channel=chat.chat_id, text=form.preview(name), mrkdwn=False))
        self._events.joined.put((chat.chat_id, str(sent["ts"])), True)
        return msgspec.structs.replace(chat, thread_id=str(sent["ts"]))

    # ------------------------------------------------------------------------------------------ files

    async def fetch(self, attachment: Attachment) -> bytes:
        """The bytes of a file stored at Slack. The token goes to Slack's own hosts and nowhere else."""
        what = attachment.name or "the file"
        address = str(attachment.reference.get("url") or "")
        if not address:  # for a file in a channel shared with other workspaces the event has only the id
            about = await ask(self.api.web.files_info(file=str(attachment.reference.get("id"))))
            address = address_of(about.get("file") or {})
        headers = {"Authorization": f"Bearer {self.text('bot_token')}"}
        answer = await self.api.files.download(address, what=what, trusted=self._trusted, headers=headers)
        if answer.headers.get("Content-Type", "").startswith("text/html") and attachment.mime != "text/html":
            raise SendRefused(f"Slack shows a login page instead of {what}: the app needs the scope files:read")
        return answer.content

    async def send_file(
        self, chat: Chat, file: OutgoingFile, *, caption: str = "", nonce: str, context: ReplyContext | None = None
    ) -> str:
        """Upload a file, then share it in the chat. Slack gives no message id for it, only the file's."""
        try:
            place = await ask(self.api.web.files_getUploadURLExternal(filename=file.name, length=len(file.data)))
            await self._upload(str(place["upload_url"]), file)
            more: dict[str, Any] = {"thread_ts": chat.thread_id} if chat.thread_id else {}
            if caption:
                more["initial_comment"] = form.preview(caption)
            files: list[dict[str, str | None]] = [{"id": str(place["file_id"]), "title": file.name}]
            await ask(self.api.web.files_completeUploadExternal(files=files, channel_id=chat.chat_id, **more))
        except PlatformRefused as error:  # the app may lack this one scope: everything else works
            if "scope" in str(error):
                raise SendRefused(str(error)) from None
            raise
        return str(place["file_id"])

    async def _upload(self, address: str, file: OutgoingFile) -> None:
        try:
            await self.api.files.request("POST", address, content=file.data)
        except PlatformUnreachable as error:
            raise PlatformUnreachable(str(error)) from None  # not shared yet: trying again sends nothing twice

    def _trusted(self, address: str) -> bool:
        """Whether this is the Web API's own host, or one of the same domain (files.slack.com)."""
        base = urlsplit(self._base)
        return is_at(address, (f".{base.hostname}",) if base.scheme == "https" else (), self._base)


class SlackApi:
    """Requests to one workspace, and to where its files are."""

    def __init__(self, token: str, base: str) -> None:
        # trust_env: the environment's proxies, and its exceptions from them
        self.session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=30), trust_env=True)
        # No retries by the library: a message whose answer was lost may have arrived.
        self.web = AsyncWebClient(token=token, base_url=base, session=self.session, logger=_SILENT, retry_handlers=[])
        self.web.proxy = None  # the session's own setting applies
        self.files = HttpApi("Slack", base, timeout=30)

    async def close(self) -> None:
        """Close all connections."""
        await close_each(self.session, self.files)
