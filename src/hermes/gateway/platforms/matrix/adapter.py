"""The Matrix adapter: it follows the server's stream of events and sends messages into rooms.

It requests one sync after another; the messages of a sync are given to the gateway, and only then its end is stored. Messages
of the very first sync are older than the bot's presence.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
from nio import Event as RoomEvent  # type: ignore[import-untyped]
from nio import MatrixRoom, MegolmEvent, SyncResponse
from nio.exceptions import EncryptionError  # type: ignore[import-untyped]

from hermes.errors import HermesError, PlatformRefused, PlatformUnreachable, SendRefused, SlowDown, install_line
from hermes.gateway.adapter import Capabilities, Link, ReplyContext, Setting, utf16_units
from hermes.gateway.events import Attachment, Chat, OutgoingFile, Revision, deleted
from hermes.gateway.platforms._shared import markup
from hermes.gateway.platforms._shared.tasks import PAUSES, ApiAdapter, Recent, Retries
from hermes.gateway.platforms.matrix import incoming
from hermes.gateway.platforms.matrix.client import MatrixClient, SavedState, can_encrypt, log_in
from hermes.texts import shortened

WAIT = 30.0  # seconds a sync waits for news
START = 120.0  # seconds the first one may take
MOST_SAID = 200  # own messages whose texts are remembered
MOST_MISSED = 1000  # messages of one room that are fetched after a long absence
TYPING = 10_000  # milliseconds that "is typing" is shown

_NOTHING = {"not_types": ["*"]}
_FILTER = {
    "presence": _NOTHING,
    "account_data": _NOTHING,
    "room": {
        "ephemeral": _NOTHING,
        "account_data": _NOTHING,
        # All members, not only those who speak: their number decides between a direct chat and a group.
        "state": {"lazy_load_members": False},
        "timeline": {"limit": 50},
    },
}


class Matrix(ApiAdapter[MatrixClient]):
    """A user of a Matrix home server, in every room it is a member of."""

    platform = "matrix"
    title = "Matrix"
    extra = "matrix"
    settings = (
        Setting(
            name="homeserver", help="address of the home server, as https://matrix.org", variable="MATRIX_HOMESERVER",
            required=True,
        ),
        Setting(
            name="user_id", help="who we are there, as @hermes:matrix.org", variable="MATRIX_USER_ID",
            unless="access_token",
        ),
        Setting(
            name="password", help="that user's password", variable="MATRIX_PASSWORD", secret=True,
            unless="access_token",
        ),
        Setting(
            name="access_token", help="instead of the password: a token of a login made for Hermes alone",
            variable="MATRIX_ACCESS_TOKEN", secret=True,
        ),
        Setting(name="device_name", help="what the login is called in the list of devices", default="Hermes"),
        Setting(name="encryption", help="read and write in encrypted rooms", default=True, kind=bool),
        Setting(name="auto_join", help="accept invitations", default=True, kind=bool),
    )  # fmt: skip
    capabilities = Capabilities(
        longest=6000, measure=utf16_units, edits=True, typing=True, media=True, idempotent=True, mention_needed=True,
        tells_edits=True, tells_deletions=True, quotes=True, files=True, largest_file=50_000_000, longest_caption=6000,
    )  # fmt: skip

    pauses: Sequence[float] = PAUSES  # seconds before each attempt to sync again

    def __init__(self, values: Mapping[str, Any], home: Path) -> None:
        super().__init__(values, home)
        address = self.text("homeserver").rstrip("/")
        self._homeserver = address if "://" in address else f"https://{address}"
        self._memory: SavedState | None = None
        self._link: Link | None = None
        self._waiting: list[dict[str, Any]] = []
        self._ours: Recent[str, bool] = Recent(1_000)  # ids of answered messages → whether they are ours
        self._said: Recent[str, str] = Recent(MOST_SAID)  # ids of our own messages → their current text
        self._typing: set[str] = set()

    # ---------------------------------------------------------------------------------------------- login

    async def check(self) -> str:
        """Log in and return our name."""
        async with self.make_api(encrypted=False) as client:
            await self._log_in(client)
            return str(client.user_id)

    def make_api(self, *, encrypted: bool = True) -> MatrixClient:
        """A client that is not logged in yet."""
        self._memory = memory = SavedState(self.home, self._homeserver)
        wanted = encrypted and bool(self.setting("encryption")) and can_encrypt()
        return MatrixClient(self._homeserver, self.text("user_id"), str(memory.keys) if wanted else None)

    async def _log_in(self, client: MatrixClient) -> SavedState:
        assert self._memory is not None
        await log_in(client, self.values, self._memory)
        return self._memory

    async def begin(self, link: Link, client: MatrixClient) -> None:
        """Log in, load the rooms, and begin to follow the stream."""
        self._link = link
        if self.setting("encryption") and not can_encrypt():
            link.log.warning("encrypted rooms can't be read: encryption is not installed (%s)", install_line("matrix"))
        memory = await self._log_in(client)
        since = memory.since(client.user_id)
        self._waiting = memory.waiting(client.user_id)
        try:
            async with asyncio.timeout(START):
                first = await client.sync(sync_filter=_FILTER, since=since, full_state=True)
                await self._tend_keys(client, link)
        except TimeoutError:
            raise PlatformUnreachable(f"{self._homeserver} did not answer for {START:g} seconds") from None
        if since is None:
            memory.keep_since(client.user_id, first.next_batch)  # what comes from here on is for us, also after a kill
        link.connected(client.user_id)
        self._tasks.start(self._follow(first, since), name="matrix")

    async def disconnect(self) -> None:
        """Stop following and close everything."""
        await super().disconnect()
        self._typing.clear()

    # ---------------------------------------------------------------------------------------------- receiving

    async def _follow(self, response: SyncResponse, since: str | None) -> None:
        """Give the gateway the events, in order, until the connection can't be kept."""
        client, link, memory = self.api, self._link, self._memory
        assert link is not None and memory is not None
        retries = Retries(link, client.user_id, self.pauses)
        try:
            while True:
                await self._accept_invitations(client, link)
                await self._deliver(response, since)
                if response.next_batch != since or response.rooms.join:
                    memory.keep_since(client.user_id, response.next_batch)
                since = response.next_batch
                await self._tend_keys(client, link)
                response = await self._next_sync(client, retries)
        except HermesError as error:
            link.lost(error)
        except Exception as error:
            link.log.exception("the Matrix stream broke")
            link.lost(PlatformUnreachable(f"the Matrix stream broke: {error}"))

    async def _tend_keys(self, client: MatrixClient, link: Link) -> None:
        try:
            await client.tend_keys()
        except HermesError as error:  # retried after the next sync, and before a message that needs them
            link.log.warning("encryption keys could not be exchanged: %s", error)

    async def _next_sync(self, client: MatrixClient, retries: Retries) -> SyncResponse:
        """The next part of the stream."""
        while True:
            try:
                response = await client.sync(timeout=int(WAIT * 1000), sync_filter=_FILTER)
            except (PlatformUnreachable, SlowDown) as error:
                await retries.failed(error)
            else:
                retries.succeeded()
                return response

    async def _deliver(self, response: SyncResponse, since: str | None) -> None:
        await self._try_waiting()
        client = self.api
        for room_id, info in response.rooms.join.items() if since is not None else ():
            events = list(info.timeline.events)
            newcomer = _joined_at(events, client.user_id)
            if newcomer is None and info.timeline.limited and since is not None:
                events = await self._missed(room_id, info.timeline.prev_batch, since) + events
                newcomer = _joined_at(events, client.user_id)
            for event in events[newcomer or 0 :]:
                await self._take(room_id, event)

    async def _missed(self, room_id: str, start: str | None, since: str) -> list[RoomEvent]:
        """The messages of a room between two syncs that did not fit into the answer."""
        assert self._link is not None
        found: list[RoomEvent] = []
        while start is not None and len(found) < MOST_MISSED:
            page = await self.api.room_messages(room_id, start=start, end=since, limit=100)
            found.extend(page.chunk)
            if not page.chunk or page.end == start or _joined_at(page.chunk, self.api.user_id) is not None:
                start = None
            else:
                start = page.end
        if start is not None:
            self._link.log.warning("more than %d messages were missed in %s; skipping the oldest", len(found), room_id)
        return found[::-1]

    async def _take(self, room_id: str, event: RoomEvent) -> None:
        """Give one room event to the gateway, if it is a message for us."""
        client, link = self.api, self._link
        assert link is not None
        room = client.rooms.get(room_id)
        if room is None or getattr(event, "sender", client.user_id) == client.user_id:
            return
        if isinstance(event, MegolmEvent):
            self._wait_for_key(room_id, event)
            return
        if (gone := incoming.redacted(event.source)) is not None:
            await link.revised(deleted(gone))
            return
        if (edited := incoming.edited(event.source)) is not None:
            await self._take_edit(client, link, room, event, edited)
            return
        content = incoming.content_of(event.source)
        if content is None:
            return
        target = incoming.answered(content)
        answers_us = target is not None and room.member_count > 2 and await self._is_ours(room_id, target)
        made = incoming.event_of(room, event.source, client.user_id, answers_us=answers_us)
        if made is not None and made.reply_to is not None and made.quoted is None:
            made = msgspec.structs.replace(made, quoted=await self._words(room_id, made.reply_to))
        if made is not None:
            await link.received(made)

    async def _take_edit(
        self, client: MatrixClient, link: Link, room: MatrixRoom, event: RoomEvent, first: str
    ) -> None:
        """Apply an edit if it is by the author of the message; the server does not check that."""
        try:
            answer = await client.room_get_event(room.room_id, first)
        except (SendRefused, PlatformRefused):
            return  # there is no such message, or not for us
        if answer.event.sender != event.sender:
            link.log.warning("%s tried to edit a message of another person in %s; ignored", event.sender, room.room_id)
            return
        made = incoming.event_of(room, incoming.as_edited(event.source, answer.event.source, first), client.user_id)
        if made is not None:
            await link.revised(Revision(id=event.event_id, revises=first, event=made))

    async def _words(self, room_id: str, event_id: str) -> str | None:
        """The text of an answered message, for clients that do not repeat it; None if it can't be fetched."""
        if event_id in self._said:  # for a streamed message of ours, the server may have its beginning alone
            return self._said.get(event_id)
        try:
            answer = await self.api.room_get_event(room_id, event_id)
        except HermesError:
            return None
        self._ours.put(event_id, answer.event.sender == self.api.user_id)
        return incoming.words_of(answer.event.source)

    async def _is_ours(self, room_id: str, event_id: str) -> bool:
        """Whether an answered message is ours."""
        if event_id not in self._ours:
            await self._words(room_id, event_id)
        return bool(self._ours.get(event_id))

    # ---------------------------------------------------------------------------------------------- encrypted, no key yet

    def _wait_for_key(self, room_id: str, event: MegolmEvent) -> None:
        assert self._link is not None and self._memory is not None
        if any(waiting.get("event_id") == event.event_id for waiting in self._waiting):
            return
        self._link.log.warning(
            "a message of %s in %s can't be decrypted yet: its key is missing", event.sender, room_id
        )
        self._waiting.append({**event.source, "room_id": room_id})
        self._memory.keep_waiting(self.api.user_id, self._waiting)

    async def _try_waiting(self) -> None:
        """Read the messages whose keys have arrived since."""
        client, memory = self.api, self._memory
        if not self._waiting or memory is None or client.olm is None:
            return
        for source in list(self._waiting):
            event = RoomEvent.parse_event(dict(source))
            if isinstance(event, MegolmEvent):
                if client.olm.inbound_group_store.get(event.room_id, event.sender_key, event.session_id) is None:
                    continue
                try:
                    event = client.decrypt_event(event)
                except EncryptionError:
                    continue
            await self._take(source["room_id"], event)
            self._waiting.remove(source)
            memory.keep_waiting(client.user_id, self._waiting)

    # ---------------------------------------------------------------------------------------------- rooms

    async def _accept_invitations(self, client: MatrixClient, link: Link) -> None:
        for room_id, room in list(client.invited_rooms.items()):
            if not self.setting("auto_join"):
                link.log.info("%s invites us to %s; auto_join is off", room.inviter, room_id)
                del client.invited_rooms[room_id]
                continue
            try:
                await client.join(room_id)
            except SendRefused as error:
                link.log.warning("the invitation of %s to %s can't be accepted: %s", room.inviter, room_id, error)
                client.invited_rooms.pop(room_id, None)
            except (SlowDown, PlatformUnreachable) as error:
                link.log.warning("the invitation of %s to %s is tried again later: %s", room.inviter, room_id, error)
            else:
                client.invited_rooms.pop(room_id, None)

    # ---------------------------------------------------------------------------------------------- sending

    async def send(
        self, chat: Chat, text: str, *, nonce: str, reply_to: str | None = None, context: ReplyContext | None = None
    ) -> str:
        """Send a message into a room; the same nonce makes one message of it."""
        client = self.api
        content = text_message(text, thread=chat.thread_id, reply_to=reply_to)
        return await self._post(client, chat, content, nonce, text)

    async def send_file(
        self, chat: Chat, file: OutgoingFile, *, caption: str = "", nonce: str, context: ReplyContext | None = None
    ) -> str:
        """Upload a file, encrypted for an encrypted room, then send a message that names it. The same nonce makes one message."""
        client = self.api
        where = await client.upload_file(chat.chat_id, file)
        content = file_message(file, caption, where, thread=chat.thread_id)
        return await self._post(client, chat, content, nonce, caption or file.name)

    async def _post(self, client: MatrixClient, chat: Chat, content: dict[str, Any], nonce: str, words: str) -> str:
        event_id = await client.post(chat.chat_id, content, transaction(chat.chat_id, nonce))
        self._ours.put(event_id, True)
        self._said.put(event_id, words)
        if chat.chat_id in self._typing:
            self._typing.discard(chat.chat_id)
            with contextlib.suppress(HermesError):
                await client.room_typing(chat.chat_id, False)
        return event_id

    async def edit(self, chat: Chat, message_id: str, text: str) -> None:
        """Replace the text of one of our messages."""
        await self.api.post(chat.chat_id, replacement(text, message_id), f"hermes-{uuid4().hex}")
        self._said.put(message_id, text)

    async def typing(self, chat: Chat) -> None:
        """Show for ten seconds that a reply is being written."""
        client = self.api
        if chat.chat_id in client.rooms:
            self._typing.add(chat.chat_id)
            await client.room_typing(chat.chat_id, True, timeout=TYPING)

    async def fetch(self, attachment: Attachment) -> bytes:
        """The bytes of a file; an encrypted one is decrypted with the key in its message."""
        client, reference = self.api, attachment.reference
        if "url" in reference:
            return await client.download_file(str(reference["url"]), None)
        answer = await client.room_get_event(str(reference["room_id"]), str(reference["event_id"]))
        found = incoming.file_of(answer.event.source)
        if found is None or isinstance(answer.event, MegolmEvent):
            raise SendRefused(f"the file {attachment.name or ''} in {reference['room_id']} can no longer be read")
        return await client.download_file(*found)


def _joined_at(events: list[RoomEvent], me: str) -> int | None:
    """The position in a timeline where we joined: the invitation, else the join; None if we were there all along."""
    found: int | None = None
    for place, event in enumerate(events):
        source = getattr(event, "source", {})
        if source.get("type") != "m.room.member" or source.get("state_key") != me:
            continue
        unsigned = source.get("unsigned") or {}
        before = (unsigned.get("prev_content") or {}).get("membership")
        now = (source.get("content") or {}).get("membership")
        joined_anew = now == "join" and (before not in ("join", "invite") or (found is None and before == "invite"))
        if now == "invite" or joined_anew:
            found = place
    return found


LARGEST = 44_000  # of an event's 65,536 bytes: encryption adds a third, and signatures come on top
_UNSENDABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")
_EVERYONE = re.compile("@(?=room)", re.IGNORECASE)


def clean(text: str) -> str:
    """The text without characters that can't be sent, and without pings of a whole room."""
    return _EVERYONE.sub("@\u200b", _UNSENDABLE.sub("\ufffd", text))


def html_of(markdown: str) -> str | None:
    """The text as Matrix HTML; None where it would look the same as the plain text."""
    html, differs = markup.html(clean(markdown), styles=False)  # a table's alignment is not in the specification
    return _EVERYONE.sub("@\u200b", html) if differs else None  # "&#64;room" has become one only now


def text_message(text: str, *, thread: str | None = None, reply_to: str | None = None) -> dict[str, Any]:
    """The content of a new message."""
    return _fitting(_placed(_content(text), thread, reply_to))


def file_message(
    file: OutgoingFile, caption: str, where: dict[str, Any], *, thread: str | None = None
) -> dict[str, Any]:
    """The content of a message with a file, which is `where` the upload says."""
    kind = file.kind if file.kind in ("image", "audio", "video") else "file"
    name = clean(file.name)
    about = {"mimetype": file.mime, "size": len(file.data)}
    content = {**_content(caption or name), "msgtype": f"m.{kind}", "filename": name, "info": about, **where}
    if not caption:
        content = {key: value for key, value in content.items() if key not in ("format", "formatted_body")}
    return _fitting(_placed(content, thread))


def _placed(content: dict[str, Any], thread: str | None, reply_to: str | None = None) -> dict[str, Any]:
    if thread is not None:
        content["m.relates_to"] = {
            "rel_type": "m.thread",
            "event_id": thread,
            "is_falling_back": reply_to is None,  # for clients without threads it then looks like a reply to the root
            "m.in_reply_to": {"event_id": reply_to or thread},
        }
    elif reply_to is not None:
        content["m.relates_to"] = {"m.in_reply_to": {"event_id": reply_to}}
    return content


def replacement(text: str, message_id: str) -> dict[str, Any]:
    """The content that replaces an earlier message's."""
    content = _content(text)
    short = shortened(content["body"], 200)
    return _fitting(
        {
            "msgtype": "m.text",
            "body": f"* {short}",  # only for clients that know no edits
            "m.mentions": {},
            "m.new_content": content,
            "m.relates_to": {"rel_type": "m.replace", "event_id": message_id},
        }
    )


def transaction(room_id: str, nonce: str) -> str:
    """The transaction id of a message: the same for the same nonce, so that the server makes one message of it."""
    return "hermes-" + hashlib.sha256(f"{room_id}\n{nonce}".encode("utf-8", "surrogatepass")).hexdigest()[:40]


def _content(text: str) -> dict[str, Any]:
    content: dict[str, Any] = {"msgtype": "m.text", "body": clean(text), "m.mentions": {}}
    html = html_of(text)
    if html is not None:
        content["format"] = "org.matrix.custom.html"
        content["formatted_body"] = html
    return content


def _fitting(content: dict[str, Any]) -> dict[str, Any]:
    """The content, without its HTML where the event would become too large."""
    if len(json.dumps(content)) > LARGEST:
        for part in (content, content.get("m.new_content", {})):
            part.pop("format", None)
            part.pop("formatted_body", None)
    return content
