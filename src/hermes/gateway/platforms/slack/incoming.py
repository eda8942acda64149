"""Slack's events as ours: messages, commands, pressed buttons, emoji, edits and deletions, with the names of people and chats.

Slack delivers messages sent while no gateway was connected for a few minutes only, but keeps them in its channels. A small
file has the time of the newest stored message, by Slack's clock. A new connection reads what came after it from the
conversations that the bot is in, direct messages first. Of threads, those are read whose first message is at most a day
older, and which the bot takes part in. Commands of Slack's own menu (/hermes) are not messages, and can't be read.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

import msgspec
from slack_sdk.web.async_client import AsyncWebClient

from hermes.commands.registry import ALIASES, GATEWAY, known
from hermes.gateway.events import CHANNEL, DM, Attachment, Chat, Event, Forwarded, Revision, Sender, deleted
from hermes.gateway.platforms._shared.http import attachment_kind, seconds
from hermes.gateway.platforms._shared.receipt import MarkFile
from hermes.gateway.platforms._shared.tasks import Recent
from hermes.gateway.platforms.slack import outgoing as form
from hermes.gateway.platforms.slack.client import ChatInfo, Directory, Envelope, ask, courtesy

_SPOKEN = (None, "file_share", "thread_broadcast", "me_message")  # subtypes of messages that people write
Place = tuple[str, str | None]  # a chat, and a thread in it


class EventReader:
    """Reads what Slack pushes. It knows the threads that we take part in, which address us without a mention.

    `web` gives the connection to the Web API; `reply_in_thread`: a message in a channel is answered in a thread of its own.
    """

    def __init__(self, web: Callable[[], AsyncWebClient], *, reply_in_thread: bool) -> None:
        self._web, self._reply_in_thread = web, reply_in_thread
        self.us = ""  # our user id, known after the login
        self._directory = Directory()
        self.joined: Recent[Place, bool] = Recent()  # where we have written
        self._roots: Recent[Place, bool] = Recent()  # … whose first message the conversation has
        self.waiting: Recent[Place, bool] = Recent()  # … in which a person waits for our first message
        self.sent_to: Recent[tuple[str, str], Chat] = Recent(500)  # our messages (chat, ts) → where they were sent
        self._commands = {one.name for one in known(GATEWAY)} | set(ALIASES)

    async def read(self, envelope: Envelope) -> Event | Revision | None:
        """A person's message, an edit or deletion of one, or a press of a button below one."""
        if envelope.get("type") == "interactive":
            return await self._press(envelope.get("payload") or {})
        revision = await revision_of(envelope, self.us, self._message)
        return revision or await self._event(envelope)

    async def _press(self, payload: dict[str, Any]) -> Event | None:
        """A pressed button: what it says, by the person who pressed it; None for other interactions, and elements not ours."""
        press = form.pressed(payload)
        if press is None:
            return None
        chat_id, ts, user = press.chat_id, press.ts, press.user
        name = await self._directory.name(self._web(), user)
        chat = self.sent_to.get((chat_id, ts))
        if chat is None:  # sent by an earlier process
            chat = self._chat(chat_id, await self._directory.place(self._web(), chat_id), name, press.thread)
        return Event(
            id=f"press:{chat_id}:{ts}:{user}:{press.action_ts}",
            chat=chat,
            sender=_sender(user, name),
            text=press.says,
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
        if event.get("bot_id") or event.get("hidden") or event.get("user") in (None, self.us, "USLACKBOT"):
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
        names = {one: await self._directory.name(self._web(), one) or "" for one in people if one != self.us}
        typed = form.command(form.readable(text, self.us, names), self._commands)
        addressed = (
            place.type == DM
            or self.us in people
            or event.get("parent_user_id") == self.us
            or (chat_id, thread) in self.joined
        )
        quoted = await self._quoted(event, thread if addressed else None)
        if thread is None and self._opens_thread(place, typed):
            thread = ts
            if addressed:
                self._roots.put((chat_id, thread), True)
        if thread is not None:
            self.waiting.put((chat_id, thread), True)
        return Event(
            id=f"{chat_id}:{ts}",
            chat=self._chat(chat_id, place, name, thread),
            sender=_sender(user, name),
            text=typed,
            attachments=tuple(attachment_of(file) for file in form.files(event) if _exists(file)),
            message_id=ts,
            reply_to=str(event["thread_ts"]) if quoted and event.get("thread_ts") not in (None, ts) else None,
            quoted=quoted,
            forwarded=await self._forwarded(event),
            sent_at=float(ts),
            addressed=addressed,
        )

    def _opens_thread(self, place: ChatInfo, typed: str) -> bool:
        """Whether a message in a chat is answered in a thread of its own. A command opens no conversation."""
        return place.type == CHANNEL and self._reply_in_thread and not typed.startswith("/")

    async def _quoted(self, event: dict[str, Any], thread: str | None) -> str | None:
        """The text of the thread's root when we join the thread.

        In a thread we take part in, or that one of our messages began, the conversation has the root already.
        """
        where = (str(event["channel"]), thread)
        ours = event.get("parent_user_id") == self.us or where in self.joined or where in self._roots
        if thread is not None and not ours:
            found = await courtesy(self._web().conversations_replies(channel=where[0], ts=thread, limit=1))
            parent = next((one for one in found.get("messages") or () if str(one.get("ts")) == thread), None)
            if parent is not None:
                self._roots.put(where, True)
                if self.us not in (parent.get("reply_users") or ()):
                    return await self._words(parent) or None
        return None

    async def _forwarded(self, event: dict[str, Any]) -> Forwarded | None:
        """The messages that a message shares."""
        shared = form.shared(event)
        if not shared:
            return None
        words = [await self._words(one) for one in shared]
        authors = {str(one.get("author_name") or "") for one in shared}
        text = "\n\n".join(one for one in words if one)
        return Forwarded(text=text, author=authors.pop() or None if len(authors) == 1 else None)

    async def _words(self, message: Mapping[str, Any]) -> str:
        """The text of a message as people read it."""
        text = str(message.get("text") or "")
        names = {one: await self._directory.name(self._web(), one) or "" for one in form.mentioned(text)}
        return form.readable(text, "", names)

    async def _command(self, payload: dict[str, Any]) -> Event:
        """A native command. In a chat without the bot, it is answered as a DM."""
        user, chat_id = str(payload["user_id"]), str(payload["channel_id"])
        text = form.readable(str(payload.get("text") or ""), self.us, {})
        name = await self._directory.name(self._web(), user) or payload.get("user_name")
        place = await self._directory.place(self._web(), chat_id)
        if not place.ours:
            opened = await ask(self._web().conversations_open(users=user))
            chat_id, place = str(opened["channel"]["id"]), ChatInfo(DM)
        return Event(
            id=f"command:{payload['trigger_id']}",
            chat=self._chat(chat_id, place, name, None),
            sender=_sender(user, name),
            text=form.slash(str(payload["command"]), text, self._commands),
        )

    def _chat(self, chat_id: str, place: ChatInfo, sender: str | None, thread: str | None) -> Chat:
        name = sender if place.type == DM else place.name
        return Chat(platform="slack", chat_id=chat_id, type=place.type, thread_id=thread, name=name)


def _sender(user: str, name: str | None = None) -> Sender:
    # Slack authenticated the account, and the connection is ours.
    return Sender(user_id=user, name=name, proven=True)


def _exists(file: dict[str, Any]) -> bool:
    """Whether the file still exists: for deleted ones, and beyond a free workspace's limit, Slack sends a stub."""
    return bool(file.get("id")) and file.get("mode") not in ("tombstone", "hidden_by_limit")


def address_of(file: dict[str, Any]) -> str:
    """The address a file is fetched from; "" if Slack does not say."""
    return str(file.get("url_private_download") or file.get("url_private") or "")


def attachment_of(file: dict[str, Any]) -> Attachment:
    mime = str(file.get("mimetype") or "")
    return Attachment(
        kind=attachment_kind(mime),
        name=file.get("name") or file.get("title"),
        mime=mime or None,
        size=file.get("size"),
        reference={"id": file["id"], "url": address_of(file)},
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


_OVERLAP = 60.0  # seconds that are read again: events of two conversations may come out of order
_THREADS = 86_400.0
_TYPES = "im,mpim,private_channel,public_channel"

Ask = Callable[..., Awaitable[dict[str, Any]]]


class _State(msgspec.Struct):
    until: float = 0.0


class Mark:
    """The time up to which all messages are stored, in a file of its own."""

    def __init__(self, file: Path, bot: str) -> None:
        self._mark = MarkFile(file, bot, _State)
        self._newest = self._mark.state.until
        self.behind = False  # earlier messages are still being read: the file keeps its time

    def begin(self, now: float) -> float | None:
        """The time to read from; None at the very first start of this bot, which sets the mark."""
        if self._newest:
            return self._newest - _OVERLAP
        self.note(now)
        return None

    def note(self, moment: float) -> None:
        """Note that a message of this time is stored."""
        self._newest = max(self._newest, moment)
        if not self.behind:
            self._mark.state.until = self._newest
            self._mark.changed()

    def caught_up(self) -> None:
        """Note that all earlier messages are read."""
        self.behind = False
        self.note(0.0)

    def save(self) -> None:
        """Write the file, if it is outdated."""
        self._mark.save()


def slack_time(headers: Any) -> float:
    """The time by Slack's clock, of an answer; ours where it has none."""
    with suppress(AttributeError, ValueError, TypeError):
        return parsedate_to_datetime(headers.get("Date")).timestamp()
    return time.time()


async def missed(ask: Ask, us: str, since: float) -> AsyncIterator[dict[str, Any]]:
    """The messages of people since then, as events, in order within each conversation. Raises what `ask` raises.

    `ask` takes a method's name and its arguments.
    """
    chats = [one async for one in _listed(ask, "users.conversations", "channels", types=_TYPES, exclude_archived=True)]
    chats = [one for one in chats if isinstance(one.get("id"), str)]
    for chat in sorted(chats, key=lambda one: not one.get("is_im")):
        async for message in _in_chat(ask, chat["id"], us, since):
            yield {**message, "type": "message", "channel": chat["id"], "channel_type": _type(chat)}


async def _in_chat(ask: Ask, chat_id: str, us: str, since: float) -> AsyncIterator[dict[str, Any]]:
    oldest = f"{max(0.0, since - _THREADS):.6f}"
    roots = [one async for one in _listed(ask, "conversations.history", "messages", channel=chat_id, oldest=oldest)]
    found = [one for one in roots if seconds(one.get("ts"), 0.0) > since]
    for root in roots:
        users = root.get("reply_users") or ()
        ours = us in users or len(users) < int(root.get("reply_users_count") or 0) or root.get("user") == us
        if ours and seconds(root.get("latest_reply"), 0.0) > since:
            arguments = {"channel": chat_id, "ts": root["ts"], "oldest": f"{since:.6f}"}
            replies = [one async for one in _listed(ask, "conversations.replies", "messages", **arguments)]
            found += [one for one in replies if one.get("ts") != root["ts"] and seconds(one.get("ts"), 0.0) > since]
    for message in sorted(found, key=lambda one: seconds(one.get("ts"), 0.0)):
        yield message


async def _listed(ask: Ask, method: str, what: str, **arguments: Any) -> AsyncIterator[dict[str, Any]]:
    cursor = ""
    while True:
        answer = await ask(method, **arguments, limit=200, **({"cursor": cursor} if cursor else {}))
        for one in answer.get(what) or ():
            if isinstance(one, dict):
                yield one
        about = answer.get("response_metadata")
        cursor = str(about.get("next_cursor") or "") if isinstance(about, dict) else ""
        if not cursor:
            return


def _type(chat: dict[str, Any]) -> str:
    if chat.get("is_im"):
        return "im"
    return "mpim" if chat.get("is_mpim") else "group" if chat.get("is_private") else "channel"
