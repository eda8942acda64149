"""Receiving updates: by long polling, or by a webhook.

Both acknowledge a message to Telegram only when it is stored. To polling, Telegram repeats every update until a later one
is asked for; to a webhook, it repeats a delivery until it is answered with 200.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import msgspec
from telegram import Bot, CallbackQuery, Update
from telegram.error import TelegramError

from hermes.errors import PlatformError
from hermes.gateway.adapter import Link
from hermes.gateway.events import Revision
from hermes.gateway.platforms.connections import Retries, Tasks
from hermes.gateway.platforms.frames import dropped
from hermes.gateway.platforms.telegram.client import our_errors, read_update
from hermes.gateway.platforms.telegram.incoming import (
    Albums,
    conversations,
    edits,
    migration,
    press_event,
    presses,
    reactions,
)

if TYPE_CHECKING:
    from hermes.gateway.adapter import Listening
    from hermes.gateway.platforms.listener import PlatformRequest, Registration

# The updates we ask for: no joins and the like. Telegram does not report deletions to bots.
KINDS = ("message", "channel_post", "edited_message", "edited_channel_post", "callback_query", "message_reaction")
_MOST = 100  # updates at once, Telegram's own limit
_WAIT = 25  # seconds that Telegram waits for an update before it answers with none
ALBUM_PAUSE, _ALBUM_ROUNDS = 0.3, 4  # seconds between, and number of, polls for more pictures of an album
FAILURES = 5  # in a row, before the connection counts as lost
_SECRET_HEADER = "X-Telegram-Bot-Api-Secret-Token"


class PollingReceiver:
    """Polls for messages until it is stopped, or until too many polls in a row have failed (`Link.lost`)."""

    def __init__(
        self, bot: Bot, link: Link, identity: str, albums: Albums, *, failures: int, album_pause: float
    ) -> None:
        self._bot, self._link, self._identity, self._albums = bot, link, identity, albums
        self._failures, self._album_pause = failures, album_pause
        self._offset: int | None = None  # the first update that is not stored yet
        self._tasks = Tasks()

    async def start(self) -> None:
        with our_errors(login=True):
            await self._bot.delete_webhook()  # with a webhook set, polling is refused
        self._tasks.start(self._run(), name="telegram: receiving")

    async def stop(self) -> None:
        await self._tasks.stop()

    async def _run(self) -> None:
        pauses = [min(0.25 * 2**number, 5.0) for number in range(1, self._failures + 1)]
        retries = Retries(self._link, self._identity, pauses)
        try:
            while True:
                try:
                    with our_errors():
                        updates = await self._whole_albums(await self._updates(_WAIT))
                except PlatformError as error:
                    await retries.failed(error)
                    continue
                retries.succeeded()
                await self._keep(updates)
        except Exception as error:
            self._link.lost(error)  # unconfirmed updates are sent again

    async def _updates(self, seconds: int) -> Sequence[Update]:
        try:
            return await self._bot.get_updates(self._offset, _MOST, seconds, KINDS)
        except TelegramError:
            raise
        except Exception:  # the library can't read one of them: parse them one by one
            asked = {"offset": self._offset, "limit": _MOST, "allowed_updates": list(KINDS)}
            raw = await self._bot.do_api_request("getUpdates", asked)
            return [read_update(one, self._bot, self._link.log) for one in raw]

    async def _whole_albums(self, updates: Sequence[Update]) -> Sequence[Update]:
        """The updates, with the rest of an album whose first pictures just arrived. Confirms nothing."""
        for _ in range(_ALBUM_ROUNDS):
            if _open_album(updates) is None or len(updates) >= _MOST:
                break
            await asyncio.sleep(self._album_pause)
            more = await self._updates(0)
            if len(more) <= len(updates):
                break
            updates = more
        start = _open_album(updates)
        if start and len(updates) >= _MOST:
            return updates[:start]  # its rest is in the next hundred: leave the whole album for then
        return updates

    async def _keep(self, updates: Sequence[Update]) -> None:
        await _take(self._link, self._albums, updates)
        for update in updates:
            self._offset = max(self._offset or 0, update.update_id + 1)


async def _take(link: Link, albums: Albums, updates: Sequence[Update]) -> None:
    """Have the gateway store the updates, in order."""
    for query in presses(updates):
        event = press_event(query)
        if event is not None:
            await link.received(event)
        await _confirm_press(query)
    for reaction in reactions(updates):
        await link.reacted(reaction)
    for messages in conversations(updates):
        moved = migration(messages[0])
        if moved is not None:
            await link.moved(*moved)
            continue
        event = albums.event(messages)
        if event is not None:
            await link.received(event)
    for name, message in edits(updates):
        event = albums.edited(message)
        if event is not None:
            await link.revised(Revision(id=name, revises=event.id, event=event))


async def _confirm_press(query: CallbackQuery) -> None:
    """End the waiting sign on a button; in a private chat the buttons go, too: one is pressed once. A failure harms nothing."""
    try:
        await query.answer()
        if query.message is not None and query.message.chat.type == "private":
            await query.edit_message_reply_markup(None)
    except TelegramError:
        pass


def _open_album(updates: Sequence[Update]) -> int | None:
    """The start of the first album that may be incomplete: no other message in its chat has followed it."""
    last: dict[int, str | None] = {}
    for update in updates:
        message = update.message or update.channel_post
        if message is not None:
            last[message.chat.id] = message.media_group_id
    for place, update in enumerate(updates):
        message = update.message or update.channel_post
        if message is not None and message.media_group_id and last[message.chat.id] == message.media_group_id:
            return place
    return None


class WebhookReceiver:
    """Listens on a port of this machine for the updates Telegram sends to the public address in front of it."""

    def __init__(
        self, bot: Bot, link: Link, albums: Albums, *, url: str, secret: str, place: Listening
    ) -> None:  # fmt: skip
        self._bot, self._link, self._albums = bot, link, albums
        self._url, self._secret, self._place = url, secret, place
        self._registration: Registration | None = None
        self._one_by_one = asyncio.Lock()

    async def start(self) -> None:
        from hermes.gateway.platforms.listener import listen

        path = urlsplit(self._url).path or "/"
        self._registration = await listen(
            self._place, path, verify=self._is_telegram, handler=self._delivered, link=self._link
        )
        with our_errors(login=True):
            await self._bot.set_webhook(self._url, secret_token=self._secret, allowed_updates=KINDS)

    async def stop(self) -> None:
        """Stop listening. The webhook stays set: Telegram delivers later what arrives meanwhile."""
        if self._registration is not None:
            await self._registration.close()

    def _is_telegram(self, headers: Mapping[str, str]) -> bool:
        given = headers.get(_SECRET_HEADER, "")
        return hmac.compare_digest(given.encode("utf-8", "replace"), self._secret.encode())

    async def _delivered(self, call: PlatformRequest) -> int:
        try:
            update = read_update(msgspec.json.decode(call.body), self._bot, self._link.log)
        except (ValueError, RecursionError, PlatformError):
            dropped(call.body, "Telegram", "it is not an update", self._link.log)
            return 400
        # Telegram delivers the messages of a chat one after the other, each when the one before it was accepted; so the
        # rest of an album can't be waited for here, and each of its pictures is an event of its own.
        async with self._one_by_one:
            await _take(self._link, self._albums, [update])
        return 200
