"""How messages come in: by asking for them (long polling), or by Telegram bringing them (a webhook).

Both tell Telegram that a message has arrived only when it is kept. Asked, Telegram repeats everything until it is asked
for what comes after; a webhook's delivery is repeated until it is answered with 200.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Callable, Sequence
from typing import Any

from aiohttp import web
from telegram import Bot, Message, Update
from telegram.error import TelegramError

from hermes.errors import PlatformError, PlatformUnreachable
from hermes.gateway.adapter import Link
from hermes.gateway.events import Event, Revision
from hermes.gateway.platforms.connections import Retries, Tasks
from hermes.gateway.platforms.telegram.guard import Guarded
from hermes.gateway.platforms.telegram.incoming import conversations, edits, migration
from hermes.gateway.platforms.telegram.wire import our_errors, read_update
from hermes.serve.connections import Door, Limits

# Of updates: joins, reactions and the like are not sent to us at all. Of deletions no bot is told.
KINDS = ("message", "channel_post", "edited_message", "edited_channel_post")
_Reading = Callable[[Sequence[Message]], Event | None]

_MOST = 100  # updates at once, Telegram's own limit
_WAIT = 25  # seconds that Telegram waits for something to happen before it answers "nothing"
_ALBUM_PAUSE, _ALBUM_ROUNDS = 0.3, 4  # how long, and how often, more pictures of an album are waited for
_FAILURES = 5  # in a row, before the gateway is told that the connection is lost
_BODY_SECONDS = 10.0  # for an update to arrive whole
_KEEP_ALIVE = 30.0  # seconds a connection is held between two updates
_SECRET_HEADER = "X-Telegram-Bot-Api-Secret-Token"


class Polling:
    """Asks for messages until it is stopped, or until it has asked in vain too often (`Link.lost`)."""

    def __init__(self, bot: Bot, link: Link, identity: str, reading: _Reading) -> None:
        self._bot, self._link, self._identity, self._reading = bot, link, identity, reading
        self._offset: int | None = None  # the first update that is not kept yet
        self._tasks = Tasks()

    async def start(self) -> None:
        with our_errors(login=True):
            await self._bot.delete_webhook()  # while there is one, asking is refused
        self._tasks.start(self._run(), name="telegram: receiving")

    async def stop(self) -> None:
        await self._tasks.stop()

    async def _run(self) -> None:
        pauses = [min(0.25 * 2**number, 5.0) for number in range(1, _FAILURES + 1)]
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
            self._link.lost(error)  # what was not confirmed comes again

    async def _updates(self, seconds: int) -> Sequence[Update]:
        try:
            return await self._bot.get_updates(self._offset, _MOST, seconds, KINDS)
        except TelegramError:
            raise
        except Exception:  # one of them is beyond the library: take them one by one
            asked = {"offset": self._offset, "limit": _MOST, "allowed_updates": list(KINDS)}
            raw = await self._bot.do_api_request("getUpdates", asked)
            return [read_update(one, self._bot, self._link.log) for one in raw]

    async def _whole_albums(self, updates: Sequence[Update]) -> Sequence[Update]:
        """The same, with the rest of an album whose first pictures came just now. Nothing is confirmed by this."""
        for _ in range(_ALBUM_ROUNDS):
            if _open_album(updates) is None or len(updates) >= _MOST:
                break
            await asyncio.sleep(_ALBUM_PAUSE)
            more = await self._updates(0)
            if len(more) <= len(updates):
                break
            updates = more
        start = _open_album(updates)
        if start and len(updates) >= _MOST:
            return updates[:start]  # the rest of it is in the next hundred: leave it whole for then
        return updates

    async def _keep(self, updates: Sequence[Update]) -> None:
        await _take(self._link, self._reading, updates)
        for update in updates:
            self._offset = max(self._offset or 0, update.update_id + 1)


async def _take(link: Link, reading: _Reading, updates: Sequence[Update]) -> None:
    """Have the gateway keep what was said, in its order."""
    for messages in conversations(updates):
        moved = migration(messages[0])
        if moved is not None:
            await link.moved(*moved)
            continue
        event = reading(messages)
        if event is not None:
            await link.received(event)
    for name, message in edits(updates):
        event = reading([message])
        if event is not None:
            await link.revised(Revision(id=name, revises=event.id, event=event))


def _open_album(updates: Sequence[Update]) -> int | None:
    """Where the first album begins that may go on: nothing else was said in its chat since."""
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


class Webhook:
    """Listens on a port of this machine for what Telegram brings to a public address in front of it."""

    def __init__(
        self,
        bot: Bot,
        link: Link,
        reading: _Reading,
        *,
        url: str,
        secret: str,
        host: str,
        port: int,
        limits: Limits | None = None,
    ) -> None:
        self._bot, self._link, self._reading = bot, link, reading
        self._url, self._secret, self._host, self._port = url, secret, host, port
        self._runner: web.AppRunner | None = None
        self._listener: asyncio.Server | None = None
        self._one_by_one = asyncio.Lock()
        self._limits = limits or Limits()

    async def start(self) -> None:
        application = web.Application()
        application.router.add_post("/{path:.*}", self._delivered)
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=1.0, keepalive_timeout=_KEEP_ALIVE)
        await self._runner.setup()
        make, door = self._runner.server, Door(self._limits, "Telegram's webhook", self._link.troubled)
        assert make is not None
        try:
            loop = asyncio.get_running_loop()
            self._listener = await loop.create_server(lambda: Guarded(door, make), self._host, self._port, backlog=128)
        except OSError as error:
            await self.stop()
            raise PlatformUnreachable(f"no webhook on {self._host}:{self._port}: {error.strerror or error}") from error
        with our_errors(login=True):
            await self._bot.set_webhook(self._url, secret_token=self._secret, allowed_updates=KINDS)

    async def stop(self) -> None:
        """Stop listening. The webhook stays set: what comes meanwhile is brought later."""
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.close()
        if self._runner is not None:
            runner, self._runner = self._runner, None
            await runner.cleanup()

    async def _delivered(self, request: web.Request) -> web.Response:
        given = request.headers.get(_SECRET_HEADER, "")
        if not hmac.compare_digest(given.encode("utf-8", "replace"), self._secret.encode()):
            return web.Response(status=403)
        try:
            async with asyncio.timeout(_BODY_SECONDS):
                raw: Any = await request.json()
            update = read_update(raw, self._bot, self._link.log)
        except TimeoutError:
            return web.Response(status=408)
        except (ValueError, PlatformError):
            return web.Response(status=400)
        try:
            # Telegram brings the messages of a chat one after the other, each when the one before it was taken; so an
            # album can't be waited for here, and each of its pictures is an event of its own.
            async with self._one_by_one:
                await _take(self._link, self._reading, [update])
        except Exception as error:
            self._link.log.error("Telegram: a message could not be kept (%s); it comes again", type(error).__name__)
            return web.Response(status=503)
        return web.Response()
