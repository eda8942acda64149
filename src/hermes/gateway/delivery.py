"""Sending: what the outbox holds goes out place by place, in order, until the platform has it.

Each chat (each thread of it) has a queue of its own, so that a slow or failing one holds up nobody else. A growing
reply is shown by edits where the platform has them; its final parts replace what was shown. "Wait" is obeyed, a broken
connection is waited for, and what can't be sent at all is noted with the reason.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from hermes.errors import HermesError, PlatformError, PlatformRefused, PlatformUnreachable, SendRefused, SlowDown
from hermes.gateway.events import Chat, from_json
from hermes.gateway.growing import Growing
from hermes.gateway.splitting import split
from hermes.store import mail

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hermes.config import Config
    from hermes.gateway.adapter import Adapter
    from hermes.gateway.writer import Writer
    from hermes.store.mail import Outgoing

TYPING_SECONDS = 4.0
LONGEST_PAUSE = 60.0
REPEATED = "↻ Sent again after a restart or a broken connection; you may have this already.\n\n"

Place = tuple[str, str | None]


class Delivery:
    """Everything one platform has to send. For one event loop; `begin` and `post` are called there."""

    def __init__(
        self, adapter: Adapter, writer: Writer, config: Config, log: logging.Logger | logging.LoggerAdapter[Any], *,
        clock: Callable[[], float],
    ) -> None:  # fmt: skip
        self.connected = asyncio.Event()
        self.on_trouble: Callable[[Exception], None] = lambda error: None
        self._adapter = adapter
        self._writer = writer
        self._streaming = config.gateway.streaming
        self._log = log
        self._clock = clock
        self._queues: dict[Place, deque[Growing | Outgoing]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    # ------------------------------------------------------------------------------------------ from the gateway

    def begin(self, reply: Growing) -> None:
        """Show a reply from now on, after what waits for that place already."""
        self._enqueue(reply.chat, reply)

    def post(self, part: Outgoing) -> None:
        """Send a part of the outbox, after what waits for that place already."""
        self._enqueue(from_json(part.chat, Chat), part)

    def post_at_once(self, part: Outgoing) -> None:
        """Send a part beside whatever is being shown there: a question that the reply itself waits for."""
        task = asyncio.create_task(self._send(from_json(part.chat, Chat), part))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    @property
    def waiting(self) -> int:
        """How many parts and replies are not through yet."""
        return sum(map(len, self._queues.values()))

    async def idle(self) -> None:
        """Wait until everything was sent."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def stop(self) -> None:
        """Send nothing more; what waits is in the outbox."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # ------------------------------------------------------------------------------------------ queues

    def _enqueue(self, chat: Chat, job: Growing | Outgoing) -> None:
        place = (chat.chat_id, chat.thread_id)
        queue = self._queues.get(place)
        if queue is not None:
            queue.append(job)
            return
        self._queues[place] = deque([job])
        task = asyncio.create_task(self._work(place))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _work(self, place: Place) -> None:
        queue = self._queues[place]
        while queue:
            job = queue[0]
            try:
                if isinstance(job, Growing):
                    await self._show(job)
                else:
                    await self._send(from_json(job.chat, Chat), job)
            except (
                Exception
            ) as error:  # a mistake of ours or an adapter's: this one stays in the outbox, the others go on
                self._log.exception("could not send to %s: %s", place, type(error).__name__)
                self.on_trouble(error)
            queue.popleft()
        del self._queues[place]

    # ------------------------------------------------------------------------------------------ one part

    async def _send(self, chat: Chat, part: Outgoing, *, edit_after: bool = False) -> None:
        """Send or edit until it is through, or known not to be sendable."""
        doubtful = part.begun_at is not None
        tries = 0
        while True:
            await self.connected.wait()
            safe = self._adapter.capabilities.idempotent or part.edits is not None
            text = part.text if safe or not doubtful else REPEATED + part.text
            if not safe and part.begun_at is None:
                part.begun_at = self._clock()
                await self._writer(lambda tx: mail.sending(tx, part.id, part.begun_at or 0.0))
            try:
                message_id = await self._try(chat, part, text, edit_after)
            except SlowDown as error:
                await asyncio.sleep(max(0.05, error.retry_after))
            except SendRefused as error:
                if part.edits is not None:  # the message is gone, or too old to be changed: say it anew
                    part.edits, edit_after = None, False
                    continue
                await self._give_up(part, error)
                return
            except PlatformRefused as error:
                self.on_trouble(error)
                await asyncio.sleep(1.0)
            except PlatformUnreachable as error:
                tries += 1
                doubtful = doubtful or bool(getattr(error, "maybe_sent", False))
                await asyncio.sleep(min(LONGEST_PAUSE, 0.25 * 2**tries))
            else:
                await self._note_sent(part, message_id)
                return

    async def _try(self, chat: Chat, part: Outgoing, text: str, edit_after: bool) -> str:
        if part.edits is not None:
            await self._adapter.edit(chat, part.edits, text)
            return part.edits
        message_id = await self._adapter.send(chat, text, nonce=part.nonce, reply_to=part.reply_to)
        if edit_after:  # under this name a part of it may have been sent before
            await self._adapter.edit(chat, message_id, text)
        return message_id

    async def _note_sent(self, part: Outgoing, message_id: str) -> None:
        await self._writer(lambda tx: mail.sent(tx, part.id, message_id, self._clock()))

    async def _give_up(self, part: Outgoing, error: Exception) -> None:
        self._log.error("a message can't be delivered: %s", error)
        self.on_trouble(error)
        await self._writer(lambda tx: mail.unsendable(tx, part.id, str(error), self._clock()))

    # ------------------------------------------------------------------------------------------ growing replies

    async def _show(self, reply: Growing) -> None:
        """Show a reply as it grows, then see to it that its final parts are there."""
        texts: list[str] = [""] * len(reply.shown)
        capabilities = self._adapter.capabilities
        streams = self._streaming.enabled and capabilities.edits
        typing, pause = 0.0, time.monotonic()
        while reply.parts is None:
            now = time.monotonic()
            if capabilities.typing and now - typing >= TYPING_SECONDS and self.connected.is_set():
                typing = now
                await self._type(reply.chat)
            if streams and now >= pause and self.connected.is_set():
                wait = await self._grow(reply, texts)
                streams, pause = wait is not None, time.monotonic() + (wait or 0.0)
            reply.changed.clear()
            if streams and pause > time.monotonic():
                await _either(reply.done, min(pause - time.monotonic(), TYPING_SECONDS))
            elif reply.parts is None:
                await _either(reply.changed if streams else reply.done, TYPING_SECONDS)
        await self._complete(reply, texts)

    async def _type(self, chat: Chat) -> None:
        try:
            await self._adapter.typing(chat)
        except (HermesError, OSError) as error:
            self._log.debug("typing can't be shown: %s", error)

    async def _grow(self, reply: Growing, texts: list[str]) -> float | None:
        """Show what is new; seconds to wait before the next time, None when growing does not work here."""
        settings, text = self._streaming, reply.text()
        already = sum(map(len, texts))
        if len(text) - already < settings.buffer_threshold:
            return 0.05
        capabilities = self._adapter.capabilities
        room = capabilities.longest - capabilities.measure(settings.cursor)
        parts = split(text, room, capabilities.measure)
        try:
            for number, part in enumerate(parts):
                shown = part + settings.cursor if number == len(parts) - 1 else part
                if number >= len(reply.shown):
                    nonce = reply.part_nonce(number)
                    reply.shown.append(await self._adapter.send(reply.chat, shown, nonce=nonce))
                    texts.append(shown)
                    if reply.inbox_id is not None:
                        await self._writer(lambda tx: mail.show(tx, reply.inbox_id or 0, list(reply.shown)))
                elif texts[number] != shown:
                    await self._adapter.edit(reply.chat, reply.shown[number], shown)
                    texts[number] = shown
        except SlowDown as error:
            return max(settings.edit_interval, error.retry_after)
        except PlatformUnreachable:
            return max(settings.edit_interval, 1.0)
        except PlatformError as error:
            self._log.debug("a growing reply can't be shown: %s", error)
            return None
        return settings.edit_interval

    async def _complete(self, reply: Growing, texts: list[str]) -> None:
        parts = reply.parts or []
        again = reply.resumed and self._adapter.capabilities.idempotent and self._adapter.capabilities.edits
        for number, part in enumerate(parts):
            if number < len(reply.shown):
                part.edits = reply.shown[number]
                if texts[number] == part.text:
                    await self._note_sent(part, reply.shown[number])
                    continue
            await self._send(reply.chat, part, edit_after=again)
        for message_id in reply.shown[len(parts) :] if parts else []:  # it had grown longer before it began anew
            try:
                await self._adapter.edit(reply.chat, message_id, "…")
            except PlatformError:
                pass


async def _either(event: asyncio.Event, seconds: float) -> None:
    """Wait for the event, at most so long."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        pass


def parts_of(text: str, adapter: Adapter) -> Sequence[str]:
    """A text in messages of the adapter's length."""
    return split(text, adapter.capabilities.longest, adapter.capabilities.measure)
