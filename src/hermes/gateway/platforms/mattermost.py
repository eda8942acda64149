"""The Mattermost adapter: a bot account reads by the WebSocket and writes by the REST API.

https://developers.mattermost.com/api-documentation/
What was posted while no connection stood is read from each channel by time.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import ssl
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlunsplit

import httpx

from hermes.errors import PlatformError, PlatformRefused, PlatformUnreachable, SendRefused, SlowDown
from hermes.gateway.adapter import Capabilities, Link, ReplyContext, Setting
from hermes.gateway.events import CHANNEL, DM, GROUP, Attachment, Chat, Event, OutgoingFile, Revision, Sender, deleted
from hermes.gateway.platforms._shared import markup
from hermes.gateway.platforms._shared.http import (
    HttpApi,
    attachment,
    checked_address,
    error_text,
    tls_context,
)
from hermes.gateway.platforms._shared.receipt import (
    LOG,
    Log,
    SinceFile,
    dict_of,
    dicts_of,
    dropped,
    keep,
    moment_of,
    parsed,
    text_of,
)
from hermes.gateway.platforms._shared.tasks import ApiAdapter, Recent, Retries, loss_reported
from hermes.gateway.platforms._shared.websocket import WebSocketClient

_NONCE = "hermes_nonce"  # the property of our posts that finds them again
_PAGE, _PAGES = 200, 10  # posts of a channel in which a sent one is looked for, the newest first
_BY_TIME = 1000  # the most posts that Mattermost gives by time
_OVERLAP = 60_000  # milliseconds that are read again: posts of different channels may come out of order
_PING = re.compile(r"(?<![\w.])@(?=[\w.-])")


def length(text: str) -> int:
    """A text's length as it is posted: `quiet` makes it longer."""
    return len(text) + text.count("@")


class Mattermost(ApiAdapter["_MattermostApi"]):
    """A bot account on a Mattermost server."""

    platform = "mattermost"
    title = "Mattermost"
    extra = "mattermost"
    local_ids = True
    settings = (
        Setting("url", "the server's address, as https://chat.example.org", required=True),
        Setting("token", "the bot account's access token", secret=True, required=True),
        Setting("reply_in_thread", "answer a mention in a channel in a thread", default=True, kind=bool),
        Setting("ca_file", "a certificate to trust besides the usual ones"),
    )
    capabilities = Capabilities(
        longest=16_383, measure=length, edits=True, typing=True, threads=True, media=True, files=True, largest_file=50_000_000,
        longest_caption=16_383, tells_edits=True, tells_deletions=True, mention_needed=True,
    )  # fmt: skip

    def __init__(self, values: Mapping[str, Any], home: Path) -> None:
        super().__init__(values, home)
        self._socket: EventSocket | None = None
        self._reader: PostReader | None = None
        self._user_id = ""
        self._channels: Recent[str, dict[str, Any]] = Recent()
        self._names: Recent[str, str] = Recent()
        self._posted: Recent[str, str] = Recent()  # nonce → post that `was_sent` has found
        self._mark: SinceFile | None = None

    # ------------------------------------------------------------------------------------------ login

    def validate(self) -> None:
        """Refuse an address that is none."""
        self._address("http")

    async def check(self) -> str:
        """Log in and say who we are."""
        async with self.make_api() as api:
            return f"@{(await api.get('/users/me'))['username']}"

    async def begin(self, link: Link, api: _MattermostApi) -> None:
        """Log in, open the WebSocket and read what was missed."""
        me = await api.get("/users/me")
        self._user_id = str(me["id"])
        self._mark = SinceFile(self.home / "mattermost.json", self._user_id)
        self._reader = PostReader(
            self._user_id, str(me["username"]), thread_replies=bool(self.setting("reply_in_thread"))
        )
        context = tls_context(self.text("ca_file"))
        self._socket = self.closing(EventSocket(self._address("ws"), self.text("token"), context, link.log))
        await self._socket.open()
        identity = f"@{me['username']}"
        link.connected(identity)
        self._tasks.start(self._receive(link, identity), name="mattermost")

    async def disconnect(self) -> None:
        """Stop receiving and close everything."""
        await super().disconnect()
        if self._mark is not None:
            self._mark.save()

    def make_api(self) -> _MattermostApi:
        """The API, with our login."""
        headers = {"Authorization": f"Bearer {self.text('token')}"}
        return _MattermostApi(
            self.title, f"{self._address('http')}", headers=headers, timeout=40, verify=tls_context(self.text("ca_file"))
        )  # fmt: skip

    def _address(self, kind: str) -> str:
        parts = checked_address(self.text("url"), "mattermost: url", "https://chat.example.org")
        base = f"{parts.path.rstrip('/').removesuffix('/api/v4')}/api/v4"
        scheme = parts.scheme if kind == "http" else {"http": "ws", "https": "wss"}[parts.scheme]
        path = base if kind == "http" else f"{base}/websocket"
        return urlunsplit((scheme, parts.netloc.rpartition("@")[2], path, "", ""))

    # ------------------------------------------------------------------------------------------ receiving

    async def _receive(self, link: Link, identity: str) -> None:
        """Hand over posts in order until the connection can't be opened any more."""
        retries = Retries(link, identity)
        socket = self._socket
        assert socket is not None
        with loss_reported(link, "Mattermost"):
            while True:
                try:
                    async for item in socket.events():
                        retries.succeeded()
                        await (self._catch_up(link) if item["event"] == "hello" else self._happened(link, item))
                except (PlatformUnreachable, SlowDown) as error:
                    await retries.failed(error)
                    await retries.opened(socket.open)

    async def _happened(self, link: Link, item: dict[str, Any]) -> None:
        kind, data = item.get("event"), item.get("data")
        if kind not in ("posted", "post_edited", "post_deleted"):
            return
        post = post_of(data) if isinstance(data, dict) else None
        if post is None or not isinstance(data, dict):
            dropped(json.dumps(item), self.title, "it has no post, or one without an id", link.log)
            return
        try:
            what = await self._understood(str(kind), post, data)
        except SendRefused as error:  # the channel or the author is gone
            link.log.warning("a post is skipped: %s", error)
            return
        if what is not None:
            await keep(link, what)
        if kind == "posted" and self._mark is not None:
            self._mark.note(post.get("create_at"))

    async def _understood(self, kind: str, post: dict[str, Any], data: dict[str, Any]) -> Event | Revision | None:
        assert self._reader is not None
        if kind == "post_deleted":
            return deleted(str(post["id"])) if post.get("user_id") != self._user_id else None
        channel = await self._channel(str(post.get("channel_id")), data.get("channel_type"))
        name = str(data.get("sender_name") or "").lstrip("@") or await self._name(str(post.get("user_id") or ""))
        event = self._reader.event(post, channel, name, _mentions(data.get("mentions")))
        if event is None or kind == "posted":
            return event
        at = post.get("edit_at") or post.get("update_at")
        return Revision(id=f"edit:{post['id']}:{at}", revises=event.id, event=event)

    async def _catch_up(self, link: Link) -> None:
        """Hand over what was posted since we last were up to date; on the very first connection nothing."""
        api, mark = self._api, self._mark
        if api is None or mark is None:
            return
        since = mark.state.since
        if since is None:
            newest = max((int(one.get("last_post_at") or 0) for one in await self._own_channels(api)), default=0)
            mark.note(newest)
            return
        since -= _OVERLAP
        posts: list[dict[str, Any]] = []
        for channel in await self._own_channels(api):
            if int(channel.get("last_post_at") or 0) > since:
                posts += await self._posts_since(api, link, str(channel["id"]), since)
        for post in sorted(posts, key=lambda one: int(one.get("create_at") or 0)):
            made, edited = int(post.get("create_at") or 0) > since, bool(post.get("edit_at"))
            kinds = ["post_deleted"] if post.get("delete_at") else ["posted"] * made + ["post_edited"] * edited
            for kind in kinds:
                await self._happened(link, {"event": kind, "data": {"post": json.dumps(post)}})

    async def _posts_since(self, api: _MattermostApi, link: Link, channel_id: str, since: int) -> list[dict[str, Any]]:
        """A channel's posts since a moment; of more than a thousand the newest."""
        posts = _posts(await api.get(f"/channels/{channel_id}/posts", since=since))
        if len(posts) >= _BY_TIME:
            link.log.warning(
                "more than %d posts of the channel %s were missed; skipping the oldest", _BY_TIME, channel_id
            )
        return posts

    async def _own_channels(self, api: _MattermostApi) -> list[dict[str, Any]]:
        return [one for one in dicts_of(await api.get(f"/users/{self._user_id}/channels")) if one.get("id")]

    async def _channel(self, channel_id: str, kind: Any) -> dict[str, Any]:
        known = self._channels.get(channel_id)
        if known is None:
            known = self._channels.put(channel_id, await self.api.get(f"/channels/{channel_id}"))
        return known if kind is None else {**known, "type": kind}

    async def _name(self, user_id: str) -> str | None:
        if not user_id or user_id == self._user_id:
            return None
        known = self._names.get(user_id)
        if known is None:
            known = self._names.put(user_id, str((await self.api.get(f"/users/{user_id}")).get("username") or user_id))
        return known

    async def fetch(self, attachment: Attachment) -> bytes:
        """The bytes of a file."""
        return (await self.api.request("GET", f"/files/{attachment.reference.get('id')}")).content

    # ------------------------------------------------------------------------------------------ sending

    async def send(
        self, chat: Chat, text: str, *, nonce: str, reply_to: str | None = None, context: ReplyContext | None = None
    ) -> str:
        """Post a message; it carries its nonce as a property."""
        return await self._post(chat, text, nonce)

    async def send_file(
        self, chat: Chat, file: OutgoingFile, *, caption: str = "", nonce: str, context: ReplyContext | None = None
    ) -> str:
        """Upload a file, and post it."""
        known, _ = await self._found(chat, nonce)
        if known is not None:
            return known
        upload = {"files": (file.name, file.data, file.mime or "application/octet-stream")}
        answer = await self.api.request("POST", "/files", data={"channel_id": chat.chat_id}, files=upload)
        try:
            file_id = str(answer.json()["file_infos"][0]["id"])
        except (ValueError, KeyError, IndexError, TypeError):
            raise PlatformUnreachable("Mattermost did not take the file") from None
        return await self._post(chat, caption, nonce, [file_id])

    async def _post(self, chat: Chat, text: str, nonce: str, files: list[str] | None = None) -> str:
        known = self._posted.get(nonce)
        if known is not None:  # it may show the beginning of a reply that was being written
            await self.edit(chat, known, text)
            return known
        body: dict[str, Any] = {"channel_id": chat.chat_id, "message": quiet(text), "props": {_NONCE: nonce}}
        if chat.thread_id is not None:
            body["root_id"] = chat.thread_id
        if files:
            body["file_ids"] = files
        return str((await self.api.request("POST", "/posts", json=body)).json()["id"])

    async def edit(self, chat: Chat, message_id: str, text: str) -> None:
        """Replace the text of one of our posts."""
        await self.api.request("PUT", f"/posts/{message_id}/patch", json={"message": quiet(text)})

    async def was_sent(self, chat: Chat, *, nonce: str) -> bool | None:
        """Look for the nonce among the posts of the chat; None when there are too many since to say no."""
        found, whole = await self._found(chat, nonce)
        if found is not None:
            self._posted.put(nonce, found)
            return True
        return False if whole else None

    async def _found(self, chat: Chat, nonce: str) -> tuple[str | None, bool]:
        """The post with the nonce, and whether the search reached the channel's first post."""
        for page in range(_PAGES):
            found = await self.api.get(f"/channels/{chat.chat_id}/posts", page=page, per_page=_PAGE)
            posts = found.get("posts") or {}
            for post in posts.values():
                if post.get("user_id") == self._user_id and (post.get("props") or {}).get(_NONCE) == nonce:
                    return str(post["id"]), True
            if len(found.get("order") or ()) < _PAGE:
                return None, True
        return None, False

    async def typing(self, chat: Chat) -> None:
        """Show that a reply is being written."""
        if self._socket is not None:
            await self._socket.act("user_typing", channel_id=chat.chat_id, parent_id=chat.thread_id or "")

    async def create_thread(self, chat: Chat, name: str) -> Chat:
        """Begin a thread with a post that names it."""
        if chat.type != CHANNEL:
            raise SendRefused("Mattermost has threads in channels only")
        root = await self._post(
            Chat(platform=self.platform, chat_id=chat.chat_id), f"**{name}**", f"thread:{name}:{os.urandom(6).hex()}"
        )
        return Chat(platform=self.platform, chat_id=chat.chat_id, type=CHANNEL, thread_id=root, name=chat.name)


class _MattermostApi(HttpApi):
    async def get(self, path: str, **query: Any) -> Any:
        """The JSON of an answer."""
        try:
            return (await self.request("GET", path, params=query)).json()
        except ValueError:
            raise PlatformRefused("the server at url is not Mattermost's API; check url") from None

    def check(self, answer: httpx.Response) -> None:
        """Check an answer as usual, with Mattermost's own header for how long to wait."""
        reset = answer.headers.get("X-RateLimit-Reset")
        if answer.status_code == 429 and "Retry-After" not in answer.headers and reset:
            raise SlowDown(
                "Mattermost asks us to wait", max(1.0, float(reset) if reset.replace(".", "").isdigit() else 30.0)
            )
        super().check(answer)

    def failure(self, answer: httpx.Response) -> PlatformError:
        """The error by Mattermost's own code."""
        reason = error_text(parsed(answer.content).get("message") or f"HTTP {answer.status_code}")
        if answer.status_code == 401:
            return PlatformRefused("Mattermost does not accept the token; create a new one for the bot")
        return SendRefused(f"Mattermost refuses: {reason}")


def _posts(answer: Any) -> list[dict[str, Any]]:
    return [one for one in dict_of(dict_of(answer).get("posts")).values() if dict_of(one).get("id")]


def _mentions(value: Any) -> list[str]:
    try:
        found = json.loads(value) if isinstance(value, str) else value
    except ValueError:
        return []
    return [str(one) for one in found] if isinstance(found, list) else []


def quiet(text: str) -> str:
    """The text with a zero-width space after each @ outside code, so that it notifies no one."""
    return markup.outside_code(text, lambda part: _PING.sub("@\u200b", part))


# ------------------------------------------------------------
# The WebSocket pushes events. Each connection begins with the event "hello": then the adapter reads the missed posts.

_HEARTBEAT = 25.0


class EventSocket(WebSocketClient):
    """One login. `open` connects (again), `events` are what the server pushes until the connection breaks."""

    def __init__(self, url: str, token: str, context: ssl.SSLContext, log: Log = LOG) -> None:
        super().__init__("Mattermost", log)
        self._url, self._token, self._context = url, token, context
        self._numbers = itertools.count(1)
        self._early: list[dict[str, Any]] = []  # events that came before the answer to our login

    async def open(self) -> None:
        """Connect and log in."""
        await self.close()
        async with self.opening():
            await self.connect(self._url, heartbeat=_HEARTBEAT, ssl=self._context)
            self._early = []
            await self.act("authentication_challenge", token=self._token)
            await self._let_in()

    async def _let_in(self) -> None:
        """Wait for the answer to our login; events may come before it."""
        while True:
            item = await self.receive()
            if "event" in item:
                self._early.append(item)
            elif item.get("status") == "FAIL":
                raise PlatformRefused("Mattermost does not accept the token; create a new one for the bot")
            elif item.get("status") == "OK":
                return

    async def events(self) -> AsyncIterator[dict[str, Any]]:
        """The pushed events in order; PlatformUnreachable when the connection breaks."""
        while True:
            item = self._early.pop(0) if self._early else await self.receive()
            if "event" in item:
                yield item

    async def act(self, action: str, **data: Any) -> None:
        """Send an action; its answer is not awaited."""
        socket = self._socket
        if socket is None or socket.closed:
            raise PlatformUnreachable("there is no connection to Mattermost")
        await socket.send_json({"seq": next(self._numbers), "action": action, "data": data})


# ------------------------------------------------------------
# Mattermost's posts as events. A post is named by its id, which is unique on a server.

_TYPES = {"D": DM, "G": GROUP, "O": CHANNEL, "P": CHANNEL}


def post_of(data: dict[str, Any]) -> dict[str, Any] | None:
    """The post of a pushed event: it is JSON in a text."""
    post = parsed(data.get("post"))
    return post if text_of(post.get("id")) else None


class PostReader:
    """Reads posts for one bot. `thread_replies`: a mention in a channel begins a thread."""

    def __init__(self, user_id: str, username: str, *, thread_replies: bool) -> None:
        self._user_id, self._thread_replies = user_id, thread_replies
        self._mention = re.compile(rf"(?<![\w@.])@{re.escape(username)}(?![\w.-]*\w)[:,]?\s*", re.IGNORECASE)

    def event(
        self, post: dict[str, Any], channel: dict[str, Any], sender_name: str | None, mentions: Any = ()
    ) -> Event | None:
        """A post as an event; None for our own posts, other bots' and the server's notices."""
        user_id, props = str(post.get("user_id") or ""), dict_of(post.get("props"))
        from_program = any(str(props.get(name)) == "true" for name in ("from_bot", "from_webhook"))
        if user_id in ("", self._user_id) or from_program or str(post.get("type") or ""):
            return None
        text = str(post.get("message") or "")
        kind = _TYPES.get(str(channel.get("type")), CHANNEL)
        root = str(post.get("root_id") or "") or None
        mentioned = self._user_id in mentions or self._mention.search(text) is not None
        if kind == CHANNEL and root is None and mentioned and self._thread_replies:
            root = post["id"]
        chat = Chat(
            platform="mattermost", chat_id=str(post.get("channel_id")), type=kind, thread_id=root if kind != DM else None,
            name=str(channel.get("display_name") or "") or None,
        )  # fmt: skip
        return Event(
            id=post["id"],
            chat=chat,
            # The server authenticated the account; posts of webhooks and bots, which may bear another name, are left out.
            sender=Sender(user_id=user_id, name=sender_name, proven=True),
            text=self._mention.sub("", text, count=1).strip() if kind != DM else text,
            attachments=_attachments(post),
            message_id=post["id"],
            reply_to=str(post.get("root_id") or "") or None,
            sent_at=moment_of(post.get("create_at")),
            addressed=kind == DM or mentioned,
        )


def _attachments(post: dict[str, Any]) -> tuple[Attachment, ...]:
    metadata = post.get("metadata")
    described = metadata.get("files") if isinstance(metadata, dict) else None
    known = {str(one.get("id")): one for one in described or () if isinstance(one, dict)}
    ids = post.get("file_ids")
    found = []
    for file_id in map(str, ids if isinstance(ids, list) else known):
        about = known.get(file_id, {})
        found.append(attachment(about.get("name"), about.get("mime_type"), about.get("size"), id=file_id))
    return tuple(found)
