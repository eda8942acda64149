"""The adapter for Slack: events in, messages, threads and files out."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import msgspec
from slack_sdk.web.async_client import AsyncWebClient
from slack_sdk.web.async_slack_response import AsyncSlackResponse

from hermes.commands.registry import ALIASES, GATEWAY, known
from hermes.errors import PlatformError, PlatformRefused, PlatformUnreachable, SendRefused, SlowDown
from hermes.gateway.adapter import Adapter, Capabilities, Link, ReplyContext, Setting
from hermes.gateway.events import (
    CHANNEL,
    DM,
    Attachment,
    Chat,
    Choice,
    Event,
    OutgoingFile,
    Reaction,
    Revision,
    Sender,
    deleted,
)
from hermes.gateway.platforms.connections import Recent, Tasks
from hermes.gateway.platforms.http import HttpApi, attachment_kind
from hermes.gateway.platforms.intake import hand_over
from hermes.gateway.platforms.slack import formatting as form
from hermes.gateway.platforms.slack.backlog import Mark, missed, slack_time
from hermes.gateway.platforms.slack.socket_mode import HEARTBEAT, Envelope, SocketMode
from hermes.gateway.platforms.slack.web_api import ChatInfo, Directory, EditLimit, Unformattable, ask, courtesy
from hermes.gateway.spool import Spool, store_mask

BASE_URL = "https://slack.com/api/"
_SPOKEN = (None, "file_share", "thread_broadcast", "me_message")  # subtypes of messages that people write
_ANSWERS = {"+1": "👍", "thumbsup": "👍", "white_check_mark": "✅", "-1": "👎", "thumbsdown": "👎", "x": "❌"}
_SILENT = logging.getLogger("hermes.gateway.slack.library")  # its debug lines would hold message texts and tickets
_SILENT.setLevel(logging.CRITICAL)


class Slack(Adapter):
    """A Slack app in one workspace."""

    platform = "slack"
    title = "Slack"
    extra = "slack"
    settings = (
        Setting(
            name="bot_token", variable="SLACK_BOT_TOKEN", secret=True, required=True,
            help="the bot token, xoxb-…: your app, OAuth & Permissions, after Install to Workspace",
        ),
        Setting(
            name="app_token", variable="SLACK_APP_TOKEN", secret=True, required=True,
            help="the app token, xapp-…: your app, Basic Information, App-Level Tokens, scope connections:write",
        ),
        Setting(
            name="base_url", variable="SLACK_BASE_URL", default=BASE_URL,
            help="where Slack's Web API is; https://slack-gov.com/api/ for GovSlack",
        ),
        Setting(
            name="reply_in_thread", variable="SLACK_REPLY_IN_THREAD", default=True, kind=bool,
            help="answer in a channel with a thread below the question; false: in the channel itself",
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
        tells_reactions=True,
        choices=25,
        longest_choice=500,
    )

    heartbeat = HEARTBEAT  # seconds between our pings
    read_again = 5.0  # seconds before missed messages are asked for again
    reads_missed = True  # a new connection reads from the conversations what was said since the last one

    def __init__(self, values: Mapping[str, Any], home: Path) -> None:
        super().__init__(values, home)
        self._base = self.text("base_url").rstrip("/") + "/"
        self._session: aiohttp.ClientSession | None = None
        self._http_files: HttpApi | None = None
        self._client: AsyncWebClient | None = None
        self._connection: SocketMode | None = None
        self._spool = Spool(home / "slack" / "unkept", partial(form.masked, mask=store_mask(home)))
        self._edits = EditLimit()
        self._us = ""
        self._tasks = Tasks()
        self._mark = Mark(home / "slack.json")
        self._now = 0.0  # by Slack's clock, at the login
        self._directory = Directory()
        self._joined: Recent[tuple[str, str | None], bool] = Recent()  # (chat, thread) in which we have written
        self._roots: Recent[tuple[str, str | None], bool] = Recent()  # … whose first message the conversation has
        self._waiting: Recent[tuple[str, str | None], bool] = (
            Recent()
        )  # … in which a person waits for our first message
        self._sent_to: Recent[tuple[str, str], Chat] = Recent(500)  # our messages (chat, ts) → where they were sent
        self._commands = {one.name for one in known(GATEWAY)} | set(ALIASES)

    # ------------------------------------------------------------------------------------------ connecting

    async def check(self) -> str:
        """Return the bot's name; both tokens are tried."""
        try:
            identity = await self._log_in()
            await self._ticket()
            return identity
        finally:
            if self._connection is None:
                await self.disconnect()

    async def connect(self, link: Link) -> None:
        """Log in and open the websocket for events."""
        await self.disconnect()
        try:
            identity = await self._log_in()

            self._connection = connection = SocketMode(
                self._http(), ticket=self._ticket, read=self._said, keep=partial(self._stored, link), spool=self._spool,
                connected=lambda: link.connected(identity), lost=link.lost, log=link.log, heartbeat=self.heartbeat,
            )  # fmt: skip
            self._connection.take_up()
            since = self._mark.begin(self._us, self._now)
            if since is not None and self.reads_missed:
                self._mark.behind = True
                connection.first = self._tasks.start(self._catch_up(link, connection, since), name="slack: missed")
            await connection.open()
        except BaseException:
            await self.disconnect()
            raise

    async def disconnect(self) -> None:
        """Close every connection. Slack sends unacknowledged events again to the next connection."""
        connection, session, files = self._connection, self._session, self._http_files
        self._connection = self._session = self._client = self._http_files = None
        await self._tasks.stop()
        if connection is not None:
            await connection.close()
        if session is not None:
            await session.close()
        if files is not None:
            await files.close()
        self._mark.save()
        self._spool.close()

    def _http(self) -> aiohttp.ClientSession:
        if self._session is None:
            # trust_env: the environment's proxies, and its exceptions from them
            self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=30), trust_env=True)
        return self._session

    def _web(self) -> AsyncWebClient:
        if self._client is None:
            # No retries by the library: a message whose answer was lost may have arrived.
            self._client = AsyncWebClient(
                token=self.text("bot_token"), base_url=self._base, session=self._http(), logger=_SILENT,
                retry_handlers=[],
            )  # fmt: skip
            self._client.proxy = None  # the session's own setting applies
        return self._client

    async def _log_in(self) -> str:
        answer = await ask(self._timed(self._web().auth_test()))
        if not answer.get("bot_id"):
            raise PlatformRefused("bot_token is not a bot token: copy the one under OAuth & Permissions (xoxb-…)")
        self._us = str(answer["user_id"])
        return f"@{answer['user']}"

    async def _timed(self, request: Awaitable[AsyncSlackResponse]) -> AsyncSlackResponse:
        answer = await request
        self._now = slack_time(answer.headers)
        return answer

    async def _ticket(self) -> str:
        """The address of a new connection; it can be used once."""
        request = self._web().apps_connections_open(app_token=self.text("app_token"))
        return str((await ask(request, token="app_token"))["url"])

    # ------------------------------------------------------------------------------------------ receiving

    async def _stored(self, link: Link, what: Event | Revision | Reaction) -> None:
        """Have the gateway store it, and note how far we are."""
        await hand_over(link, what)
        if isinstance(what, Event) and what.sent_at is not None:
            self._mark.note(what.sent_at)

    async def _catch_up(self, link: Link, connection: SocketMode, since: float) -> None:
        """Hand over what was said while no gateway was connected. Until all of it is stored, the mark stays."""
        while True:
            try:
                async for event in missed(self._asked_for(link), self._us, since):
                    await connection.take_missed({"type": "events_api", "payload": {"event": event}})
                break
            except (PlatformUnreachable, SlowDown) as error:
                pause = max(getattr(error, "retry_after", 0.0), self.read_again)
                link.log.warning("messages that were missed can't be read: %s; trying again in %g s", error, pause)
                await asyncio.sleep(pause)
            except PlatformError as error:
                link.log.warning("messages that were missed can't be read: %s", error)
                break
        self._mark.behind = False
        self._mark.save()

    def _asked_for(self, link: Link) -> Callable[..., Awaitable[dict[str, Any]]]:
        async def asked(method: str, **arguments: Any) -> dict[str, Any]:
            while True:
                try:
                    return await ask(self._web().api_call(method, http_verb="GET", params=arguments))
                except SlowDown as error:  # one request for each conversation: Slack allows about fifty in a minute
                    await asyncio.sleep(error.retry_after)
                except (SendRefused, PlatformRefused) as error:
                    if "channel" not in arguments:
                        raise
                    link.log.warning("missed messages of %s can't be read: %s", arguments["channel"], error)
                    return {}

        return asked

    async def _said(self, envelope: Envelope) -> Event | Revision | Reaction | None:
        """A person's message, an edit or deletion of one, an emoji at one of ours, or a press of a button below one."""
        if envelope.get("type") == "interactive":
            return await self._press(envelope.get("payload") or {})
        revision = await revision_of(envelope, self._us, self._message)
        return revision or self._reaction(envelope) or await self._event(envelope)

    def _reaction(self, envelope: Envelope) -> Reaction | None:
        """An emoji at a message that this process has sent; None for others, and for emoji that answer nothing."""
        event = (envelope.get("payload") or {}).get("event") or {}
        item, user = event.get("item"), event.get("user")
        if event.get("type") != "reaction_added" or not isinstance(item, dict) or user in (None, self._us):
            return None
        chat_id, ts = str(item.get("channel")), str(item.get("ts"))
        chat = self._sent_to.get((chat_id, ts))
        emoji = _ANSWERS.get(str(event.get("reaction")).partition("::")[0])  # "+1::skin-tone-3"
        if chat is None or emoji is None:
            return None
        name = f"reaction:{chat_id}:{ts}:{user}:{event.get('event_ts')}"
        return Reaction(id=name, chat=chat, sender=Sender(user_id=str(user)), emoji=emoji, message_id=ts)

    async def _press(self, payload: dict[str, Any]) -> Event | None:
        """A pressed button: what it says, by the person who pressed it; None for other interactions, and elements not ours."""
        said = form.pressed(payload)
        if said is None:
            return None
        chat_id, ts, user = said.chat_id, said.ts, said.user
        name = await self._directory.name(self._web(), user)
        chat = self._sent_to.get((chat_id, ts))
        if chat is None:  # sent by an earlier process
            chat = self._chat(chat_id, await self._directory.place(self._web(), chat_id), name, said.thread)
        return Event(
            id=f"press:{chat_id}:{ts}:{user}:{said.action_ts}",
            chat=chat,
            sender=Sender(user_id=user, name=name),
            text=said.says,
            reply_to=ts,
        )

    async def _event(self, envelope: Envelope) -> Event | None:
        """A person's message; None for bots, ourselves, and changes of other kinds."""
        payload = envelope.get("payload") or {}
        if envelope.get("type") == "slash_commands":
            return await self._command(payload)
        event = payload.get("event") or {}
        if event.get("type") not in ("message", "app_mention") or event.get("subtype") not in _SPOKEN:
            return None
        if event.get("bot_id") or event.get("hidden") or event.get("user") in (None, self._us, "USLACKBOT"):
            return None
        return await self._message(event)

    async def _message(self, event: dict[str, Any]) -> Event:
        """A person's message. A mention comes twice, as message and as app_mention: one event, with one id."""
        ts, chat_id, text = str(event["ts"]), str(event["channel"]), str(event.get("text") or "")
        user, thread = str(event["user"]), event.get("thread_ts")
        thread = None if thread == ts else thread
        place = await self._directory.place(self._web(), chat_id, event.get("channel_type"))
        name = await self._directory.name(self._web(), user)
        people = form.mentioned(text)
        names = {one: await self._directory.name(self._web(), one) or "" for one in people if one != self._us}
        typed = form.command(form.readable(text, self._us, names), self._commands)
        addressed = (
            place.type == DM
            or self._us in people
            or event.get("parent_user_id") == self._us
            or (chat_id, thread) in self._joined
        )
        quoted = await self._quoted(event, thread if addressed else None)
        if thread is None and self._opens_thread(place, typed):
            thread = ts
            if addressed:
                self._roots.put((chat_id, thread), True)
        if thread is not None:
            self._waiting.put((chat_id, thread), True)
        return Event(
            id=f"{chat_id}:{ts}",
            chat=self._chat(chat_id, place, name, thread),
            sender=Sender(user_id=user, name=name),
            text=typed,
            attachments=tuple(_attachment(file) for file in form.files(event) if _exists(file)),
            message_id=ts,
            reply_to=str(event["thread_ts"]) if quoted and event.get("thread_ts") not in (None, ts) else None,
            quoted=quoted,
            sent_at=float(ts),
            addressed=addressed,
        )

    def _opens_thread(self, place: ChatInfo, typed: str) -> bool:
        """Whether a message in a chat is answered in a thread of its own. A command opens no conversation."""
        return place.type == CHANNEL and bool(self.setting("reply_in_thread")) and not typed.startswith("/")

    async def _quoted(self, event: dict[str, Any], thread: str | None) -> str | None:
        """The text a message refers to: the messages it shares, and the thread's root when we join the thread.

        In a thread we take part in, or that one of our messages began, the conversation has the root already.
        """
        words = [await self._words(one) for one in form.shared(event)]
        where = (str(event["channel"]), thread)
        ours = event.get("parent_user_id") == self._us or where in self._joined or where in self._roots
        if thread is not None and not ours:
            found = await courtesy(self._web().conversations_replies(channel=where[0], ts=thread, limit=1))
            parent = next((one for one in found.get("messages") or () if str(one.get("ts")) == thread), None)
            if parent is not None:
                self._roots.put(where, True)
                if self._us not in (parent.get("reply_users") or ()):
                    words.insert(0, await self._words(parent))
        return "\n\n".join(one for one in words if one) or None

    async def _words(self, message: Mapping[str, Any]) -> str:
        """The text of a message as people read it."""
        text = str(message.get("text") or "")
        names = {one: await self._directory.name(self._web(), one) or "" for one in form.mentioned(text)}
        return form.readable(text, "", names)

    async def _command(self, payload: dict[str, Any]) -> Event:
        """A native command. In a chat without the bot, it is answered as a DM."""
        user, chat_id = str(payload["user_id"]), str(payload["channel_id"])
        text = form.readable(str(payload.get("text") or ""), self._us, {})
        name = await self._directory.name(self._web(), user) or payload.get("user_name")
        place = await self._directory.place(self._web(), chat_id)
        if not place.ours:
            opened = await ask(self._web().conversations_open(users=user))
            chat_id, place = str(opened["channel"]["id"]), ChatInfo(DM)
        return Event(
            id=f"command:{payload['trigger_id']}",
            chat=self._chat(chat_id, place, name, None),
            sender=Sender(user_id=user, name=name),
            text=form.slash(str(payload["command"]), text, self._commands),
        )

    def _chat(self, chat_id: str, place: ChatInfo, sender: str | None, thread: str | None) -> Chat:
        name = sender if place.type == DM else place.name
        return Chat(platform=self.platform, chat_id=chat_id, type=place.type, thread_id=thread, name=name)

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
        sent = await self._write(self._web().chat_postMessage, text, place, below)
        if chat.thread_id:
            self._joined.put((chat.chat_id, chat.thread_id), True)
            self._waiting.drop((chat.chat_id, chat.thread_id))
        self._sent_to.put((chat.chat_id, str(sent["ts"])), chat)
        return str(sent["ts"])

    async def edit(self, chat: Chat, message_id: str, text: str) -> None:
        """Replace the text of one of the bot's messages. SlowDown while Slack refuses edits, in whatever chat."""
        self._edits.take()
        try:
            await self._write(self._web().chat_update, text, {"channel": chat.chat_id, "ts": message_id})
        except SlowDown as error:
            self._edits.refused(error.retry_after)
            raise

    def edit_wait(self) -> float:
        """Seconds before a streamed reply may be edited again: all chats of the workspace share a limit."""
        return self._edits.wait()

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
        if (chat.chat_id, chat.thread_id) in self._waiting:
            await courtesy(
                self._web().assistant_threads_setStatus(
                    channel_id=chat.chat_id, thread_ts=str(chat.thread_id), status="is thinking…"
                )
            )

    async def create_thread(self, chat: Chat, name: str) -> Chat:
        """Post a message with the name; the thread begins below it."""
        sent = await ask(self._web().chat_postMessage(channel=chat.chat_id, text=form.preview(name), mrkdwn=False))
        self._joined.put((chat.chat_id, str(sent["ts"])), True)
        return msgspec.structs.replace(chat, thread_id=str(sent["ts"]))

    # ------------------------------------------------------------------------------------------ files

    async def fetch(self, attachment: Attachment) -> bytes:
        """The bytes of a file stored at Slack. The token goes to Slack's own hosts and nowhere else."""
        what = attachment.name or "the file"
        address = str(attachment.reference.get("url") or "")
        if not address:  # for a file in a channel shared with other workspaces the event has only the id
            about = await ask(self._web().files_info(file=str(attachment.reference.get("id"))))
            address = _address(about.get("file") or {})
        headers = {"Authorization": f"Bearer {self.text('bot_token')}"}
        answer = await self._files().download(address, what=what, trusted=self._trusted, headers=headers)
        if answer.headers.get("Content-Type", "").startswith("text/html") and attachment.mime != "text/html":
            raise SendRefused(f"Slack shows a login page instead of {what}: the app needs the scope files:read")
        return answer.content

    async def send_file(
        self, chat: Chat, file: OutgoingFile, *, caption: str = "", nonce: str, context: ReplyContext | None = None
    ) -> str:
        """Upload a file, then share it in the chat. Slack gives no message id for it, only the file's."""
        try:
            place = await ask(self._web().files_getUploadURLExternal(filename=file.name, length=len(file.data)))
            await self._upload(str(place["upload_url"]), file)
            more: dict[str, Any] = {"thread_ts": chat.thread_id} if chat.thread_id else {}
            if caption:
                more["initial_comment"] = form.preview(caption)
            files: list[dict[str, str | None]] = [{"id": str(place["file_id"]), "title": file.name}]
            await ask(self._web().files_completeUploadExternal(files=files, channel_id=chat.chat_id, **more))
        except PlatformRefused as error:  # the app may lack this one scope: everything else works
            if "scope" in str(error):
                raise SendRefused(str(error)) from None
            raise
        return str(place["file_id"])

    async def _upload(self, address: str, file: OutgoingFile) -> None:
        try:
            await self._files().request("POST", address, content=file.data)
        except PlatformUnreachable as error:
            raise PlatformUnreachable(str(error)) from None  # not shared yet: trying again sends nothing twice

    def _files(self) -> HttpApi:
        if self._http_files is None:
            self._http_files = HttpApi("Slack", self._base, timeout=30)
        return self._http_files

    def _trusted(self, address: str) -> bool:
        """Whether this is the Web API's own host, or one of the same domain (files.slack.com)."""
        file, base = urlsplit(address), urlsplit(self._base)
        if (file.scheme, file.netloc) == (base.scheme, base.netloc):
            return True
        return file.scheme == base.scheme == "https" and (file.hostname or "").endswith(f".{base.hostname}")


def _exists(file: dict[str, Any]) -> bool:
    """Whether the file still exists: for deleted ones, and beyond a free workspace's limit, Slack sends a stub."""
    return bool(file.get("id")) and file.get("mode") not in ("tombstone", "hidden_by_limit")


def _address(file: dict[str, Any]) -> str:
    return str(file.get("url_private_download") or file.get("url_private") or "")


def _attachment(file: dict[str, Any]) -> Attachment:
    mime = str(file.get("mimetype") or "")
    return Attachment(
        kind=attachment_kind(mime),
        name=file.get("name") or file.get("title"),
        mime=mime or None,
        size=file.get("size"),
        reference={"id": file["id"], "url": _address(file)},
    )


async def revision_of(
    envelope: dict[str, Any], us: str, read: Callable[[dict[str, Any]], Awaitable[Event]]
) -> Revision | None:
    """An edit or a deletion of a person's message, which Slack sends as messages with their own subtypes."""
    event = (envelope.get("payload") or {}).get("event") or {}
    if event.get("type") != "message" or not isinstance(event.get("channel"), str):
        return None
    chat_id = event["channel"]
    if event.get("subtype") == "message_deleted" and event.get("deleted_ts"):
        return deleted(f"{chat_id}:{event['deleted_ts']}")
    message = event.get("message")
    if event.get("subtype") != "message_changed" or not isinstance(message, dict) or not message.get("ts"):
        return None
    if message.get("subtype") == "tombstone":  # a thread's root: its place stays
        return deleted(f"{chat_id}:{message['ts']}")
    edit = message.get("edited")
    author = message.get("user")
    if not isinstance(edit, dict) or message.get("bot_id") or author in (None, us, "USLACKBOT"):
        return None  # a preview was added, a thread got an answer …
    if edit.get("user") not in (None, author):
        return None
    made = await read({**message, "channel": chat_id, "channel_type": event.get("channel_type")})
    when = event.get("event_ts") or event.get("ts")  # the edit's own time has only seconds
    return Revision(id=f"edited:{made.id}:{when}", revises=made.id, event=made)
