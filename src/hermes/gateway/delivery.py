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

from hermes.errors import (
    Fenced,
    HermesError,
    PlatformError,
    PlatformRefused,
    PlatformUnreachable,
    SendRefused,
    SlowDown,
    StoreClosed,
    StoreError,
)
from hermes.gateway.events import Chat, from_json
from hermes.gateway.growing import Growing
from hermes.gateway.splitting import split, with_cursor
from hermes.harmless import encodable
from hermes.store import leases, mail

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hermes.config import Config
    from hermes.gateway.adapter import Adapter
    from hermes.gateway.writer import Writer
    from hermes.store.engines.base import Tx
    from hermes.store.mail import Outgoing

TYPING_AFTER = 0.25  # seconds: a reply that is there at once needs no "is typing"
TYPING_SECONDS = 4.0
LONGEST_PAUSE = 60.0
PATIENCE = 120.0  # seconds an adapter may take for one message
MISTAKES = 3  # how often an adapter may fail in a way that is its own mistake before a message is given up
REPEATED = "↻ Sent again after a restart or a broken connection; you may have this already.\n\n"
SHORT_REPEATED = "↻ "
UNKNOWN_LENGTH = 1500  # characters of a part for a platform that is not enabled and can't be asked

Place = tuple[str, str | None]


class Delivery:
    """Everything one platform has to send. For one event loop; `begin` and `post` are called there."""

    def __init__(
        self, adapter: Adapter, writer: Writer, config: Config, log: logging.Logger | logging.LoggerAdapter[Any], *,
        clock: Callable[[], float],
    ) -> None:  # fmt: skip
        self.connected = asyncio.Event()
        self.sure: Callable[[], bool] = lambda: True  # that nobody else sends to this platform in this moment
        self.fence: Callable[[], tuple[str, int] | None] = lambda: None  # the lease that makes sure of it
        self.followed = False  # whether somebody looks into the outbox all the time, and posts what is there
        self.under_way: set[int] = set()  # parts that are in a queue, or were until a moment ago
        self.replies: set[int] = set()  # the events whose replies are shown here
        self.on_trouble: Callable[[Exception], None] = lambda error: None
        self._adapter = adapter
        self._writer = writer
        self._streaming = config.gateway.streaming
        self._log = log
        self._clock = clock
        self._queues: dict[Place, deque[Growing | Outgoing]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._anew = asyncio.Event()  # set, and replaced, whenever a connection stands
        self._through: set[int] = set()  # of those under way the ones that are done with

    # ------------------------------------------------------------------------------------------ from the gateway

    def begin(self, reply: Growing) -> None:
        """Show a reply from now on, after what waits for that place already."""
        self.replies.add(reply.inbox_id)
        self._enqueue(reply.chat, reply)

    def post(self, part: Outgoing) -> None:
        """Send a part of the outbox, after what waits for that place already; once, however often it is posted."""
        if part.id not in self.under_way:
            self.under_way.add(part.id)
            self._enqueue(from_json(part.chat, Chat), part)

    def post_at_once(self, part: Outgoing) -> None:
        """Send a part beside whatever is being shown there: a question that the reply itself waits for."""
        if part.id not in self.under_way:
            self.under_way.add(part.id)
            self._start(self._do(part))

    def forget_through(self) -> None:
        """Forget the parts that are done with: whoever looks into the outbox from now on does not find them there."""
        self.under_way -= self._through
        self._through.clear()

    def stands(self) -> None:
        """There is a connection: whatever waits for one goes on at once."""
        self.connected.set()
        self._anew.set()
        self._anew = asyncio.Event()

    @property
    def waiting(self) -> int:
        """How many parts and replies are not through yet."""
        return sum(map(len, self._queues.values()))

    async def idle(self) -> None:
        """Wait until everything was sent, unless there is nobody to send it to."""
        while self._tasks and self.connected.is_set():
            await asyncio.wait(self._tasks, timeout=0.1)

    async def stop(self) -> None:
        """Send nothing more; what waits is in the outbox."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def reset(self) -> None:
        """The same, and forget everything: another gateway sends it from now on."""
        await self.stop()
        self._queues.clear()
        self.under_way.clear()
        self.replies.clear()
        self._through.clear()

    # ------------------------------------------------------------------------------------------ queues

    def _enqueue(self, chat: Chat, job: Growing | Outgoing) -> None:
        place = (chat.chat_id, chat.thread_id)
        queue = self._queues.get(place)
        if queue is not None:
            queue.append(job)
            return
        self._queues[place] = deque([job])
        self._start(self._work(place))

    def _start(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _work(self, place: Place) -> None:
        queue = self._queues[place]
        while queue:
            await self._do(queue[0])
            queue.popleft()
        del self._queues[place]

    async def _do(self, job: Growing | Outgoing) -> None:
        try:
            if isinstance(job, Growing):
                await self._show(job)
                self.under_way.update(part.id for part in job.parts or ())
                self._through.update(part.id for part in job.parts or ())
                self.replies.discard(job.inbox_id)
            else:
                await self._send(from_json(job.chat, Chat), job)
                self._through.add(job.id)
            if not self.followed:
                self.forget_through()
        except Fenced as error:
            self._log.info("something is for another gateway to send: %s", error)
        except Exception as error:  # a mistake of ours, or the store is gone: it stays in the outbox, the others go on
            self._log.exception("something could not be sent now: %s", type(error).__name__)
            self.on_trouble(error)

    # ------------------------------------------------------------------------------------------ one part

    async def _send(self, chat: Chat, part: Outgoing, *, edit_after: bool | None = None) -> None:
        """Send or edit until it is through, or known not to be sendable.

        `edit_after`: under this part's nonce a piece of it may have been sent before, so that sending is not enough.
        """
        capabilities = self._adapter.capabilities
        if edit_after is None:  # what an earlier process left: its reply may have begun to grow
            edit_after = capabilities.idempotent and capabilities.edits and part.inbox_id is not None
        doubtful, tries, mistakes = part.begun_at is not None, 0, 0
        message_id: str | None = None
        while message_id is None:
            await self._ready()
            safe = capabilities.idempotent or part.edits is not None
            if not safe and part.begun_at is None:
                await self._note(self._sending(part))
                await self._ready()
            try:
                async with asyncio.timeout(PATIENCE):
                    if doubtful and not safe:
                        doubtful = await self._adapter.was_sent(chat, nonce=part.nonce) is None
                    text = part.text if safe or not doubtful else self._marked(part.text)
                    message_id = await self._try(chat, part, text, edit_after)
            except SlowDown as error:
                await self._not_sent(part, doubtful)
                await asyncio.sleep(max(0.05, error.retry_after))
            except SendRefused as error:
                if part.edits is None:
                    await self._give_up(part, error)
                    return
                # The message is gone, or too old to be changed: say it anew. Under its name it is known already.
                part.edits, edit_after, part.nonce = None, False, f"{part.nonce}-again"
            except PlatformRefused as error:
                await self._not_sent(part, doubtful)
                self.on_trouble(error)
                await self._pause(1.0)
            except (PlatformUnreachable, TimeoutError, OSError) as error:
                tries += 1
                doubtful = doubtful or getattr(error, "maybe_sent", True)
                await self._not_sent(part, doubtful)
                await self._pause(min(LONGEST_PAUSE, 0.25 * 2**tries))
            except PlatformError as error:
                await self._give_up(part, error)
                return
            except Exception as error:  # an adapter's mistake; perhaps only once
                mistakes += 1
                self._log.exception("the adapter could not send")
                if mistakes >= MISTAKES:
                    await self._give_up(part, error)
                    return
                doubtful = True
                await self._pause(0.5 * mistakes)
        await self._note_sent(part, message_id)

    async def _try(self, chat: Chat, part: Outgoing, text: str, edit_after: bool) -> str:
        text = encodable(text)
        if part.edits is None:
            message_id = await self._adapter.send(chat, text, nonce=part.nonce, reply_to=part.reply_to)
            if not edit_after:
                return message_id
            part.edits = message_id
        await self._adapter.edit(chat, part.edits, text)
        return part.edits

    async def _ready(self) -> None:
        """Wait until there is a connection, and it is certain that sending there is for us to do."""
        while not self._open:
            if self.connected.is_set():
                await asyncio.sleep(0.05)
            else:
                await self.connected.wait()

    @property
    def _open(self) -> bool:
        return self.connected.is_set() and self.sure()

    def _sending(self, part: Outgoing) -> Callable[[Tx], None]:
        """What notes that a part is about to be sent, if that is still for us to do."""
        part.begun_at, fence = self._clock(), self.fence()

        def step(tx: Tx) -> None:
            leases.check(tx, [] if fence is None else [fence])
            mail.sending(tx, part.id, part.begun_at)

        return step

    def _marked(self, text: str) -> str:
        """A text with the remark that it may be there already, as far as there is room for one."""
        capabilities = self._adapter.capabilities
        for mark in (REPEATED, SHORT_REPEATED):
            if capabilities.measure(mark + text) <= capabilities.longest:
                return mark + text
        return text

    async def _pause(self, seconds: float) -> None:
        """Wait so long, or until a connection stands anew."""
        await _either(self._anew, seconds)

    async def _note(self, step: Callable[[Tx], Any]) -> None:
        """Write something down, however long the store takes: without it nobody would know what was sent."""
        pause = 0.25
        while True:
            try:
                await self._writer(step)
                return
            except (StoreClosed, Fenced):
                raise
            except StoreError as error:
                self._log.warning("what is being sent can't be noted yet: %s", error)
                await asyncio.sleep(pause)
                pause = min(10.0, pause * 2)

    async def _not_sent(self, part: Outgoing, doubtful: bool) -> None:
        """It was certainly not sent: a process that comes after us need not doubt it."""
        if part.begun_at is not None and not doubtful:
            part.begun_at = None
            await self._note(lambda tx: mail.sending(tx, part.id, None))

    async def _note_sent(self, part: Outgoing, message_id: str) -> None:
        await self._note(lambda tx: mail.sent(tx, part.id, message_id, self._clock()))

    async def _give_up(self, part: Outgoing, error: Exception) -> None:
        self._log.error("a message can't be delivered: %s", error)
        self.on_trouble(error)
        from hermes.store.redact import redact

        why = redact(str(error)) or type(error).__name__
        await self._note(lambda tx: mail.unsendable(tx, part.id, why, self._clock()))

    # ------------------------------------------------------------------------------------------ growing replies

    async def _show(self, reply: Growing) -> None:
        """Show a reply as it grows, then see to it that its final parts are there."""
        capabilities = self._adapter.capabilities
        streams = self._streaming.enabled and capabilities.edits and not reply.unsure
        typing = next_look = time.monotonic()
        typing += TYPING_AFTER
        while reply.parts is None:
            now = time.monotonic()
            if capabilities.typing and now >= typing and self._open:
                typing = now + TYPING_SECONDS
                await self._type(reply.chat)
            if streams and now >= next_look and self._open:
                reply.changed.clear()
                wait = await self._grow(reply)
                streams, next_look = wait is not None, time.monotonic() + (wait or 0.0)
            until_typing = typing - time.monotonic() if capabilities.typing else TYPING_SECONDS
            if until_typing <= 0:  # there is no connection to show it on
                until_typing = 1.0
            if streams and next_look > time.monotonic():
                await _either(reply.done, min(next_look - time.monotonic(), until_typing))
            elif reply.parts is None:
                await _either(reply.changed if streams else reply.done, until_typing)
        await self._complete(reply)

    async def _type(self, chat: Chat) -> None:
        try:
            async with asyncio.timeout(TYPING_SECONDS):
                await self._adapter.typing(chat)
        except (HermesError, OSError) as error:  # a TimeoutError is an OSError
            self._log.debug("typing can't be shown: %s", error)
        except Exception:
            self._log.exception("the adapter could not show typing")

    async def _grow(self, reply: Growing) -> float | None:
        """Show what is new; seconds to wait before the next time, None when growing does not work here."""
        settings, text = self._streaming, reply.text()
        if len(text) - sum(map(len, reply.texts)) < settings.buffer_threshold:
            return 0.0
        capabilities = self._adapter.capabilities
        parts = split(with_cursor(text, settings.cursor), capabilities.longest, capabilities.measure)
        without = split(text, capabilities.longest, capabilities.measure)
        if len(parts) > len(without):  # no message for the cursor alone: the whole reply will not have it
            parts = without
        try:
            for number, shown in enumerate(parts):
                if number >= len(reply.shown):
                    await self._show_next(reply, shown)
                elif reply.texts[number] != shown:
                    if (wait := self._adapter.edit_wait()) > 0:
                        return max(settings.edit_interval, wait)
                    self._only_if_open()
                    async with asyncio.timeout(PATIENCE):
                        await self._adapter.edit(reply.chat, reply.shown[number], encodable(shown))
                    reply.texts[number] = shown
        except SlowDown as error:
            return max(settings.edit_interval, error.retry_after)
        except (PlatformUnreachable, OSError):
            return None if reply.unsure else max(settings.edit_interval, 1.0)
        except PlatformError as error:
            self._log.debug("a growing reply can't be shown: %s", error)
            return None
        except StoreError:
            return None
        except Exception:
            self._log.exception("the adapter could not show a growing reply")
            return None
        return settings.edit_interval

    async def _show_next(self, reply: Growing, shown: str) -> None:
        """Begin the reply's next message. Where a nonce does not help, that it may be there is noted before it is sent."""
        nonce = reply.part_nonce(len(reply.shown))
        twice_is_once = self._adapter.capabilities.idempotent
        if not twice_is_once:
            await self._writer(lambda tx: self._note_shown(tx, reply, [*reply.shown, ""], nonce))
        self._only_if_open()
        again, reply.unsure = reply.unsure, True
        try:
            async with asyncio.timeout(PATIENCE):
                question = None if reply.shown else reply.reply_to
                message_id = await self._adapter.send(reply.chat, encodable(shown), nonce=nonce, reply_to=question)
        except (SlowDown, SendRefused, PlatformRefused):
            reply.unsure = again
            raise
        except PlatformUnreachable as error:
            if not error.maybe_sent:
                reply.unsure = again
            elif twice_is_once:
                reply.tried.add(len(reply.shown))
                reply.unsure = False
            raise
        reply.unsure = False
        # what an earlier process, or try, has sent under this name may be other words
        known = not reply.resumed and len(reply.shown) not in reply.tried
        reply.texts.append(shown if known else "")
        reply.shown.append(message_id)
        await self._writer(lambda tx: self._note_shown(tx, reply, list(reply.shown), nonce))

    def _note_shown(self, tx: Tx, reply: Growing, message_ids: list[str], nonce: str) -> None:
        """Where a reply grows, if it is still ours: whoever has taken it over shows it elsewhere."""
        leases.check(tx, [] if reply.fence is None else [reply.fence])
        mail.show(tx, reply.inbox_id, message_ids, nonce)

    def _only_if_open(self) -> None:
        if not self._open:
            raise PlatformUnreachable("sending is not for us to do in this moment")

    async def _complete(self, reply: Growing) -> None:
        capabilities = self._adapter.capabilities
        parts = reply.parts or []
        for number, part in enumerate(parts):
            known = number < len(reply.shown)
            perhaps = number == len(reply.shown) and reply.unsure
            if known:
                part.edits = reply.shown[number]
                if reply.texts[number] == part.text:
                    await self._note_sent(part, reply.shown[number])
                    continue
            part.begun_at = self._clock() if perhaps else None  # as is known by now
            unclear = reply.resumed or perhaps or number in reply.tried
            again = unclear and capabilities.idempotent and capabilities.edits
            await self._send(reply.chat, part, edit_after=again)
        for message_id in reply.shown[len(parts) :] if parts else []:  # it had grown longer before it began anew
            try:
                self._only_if_open()
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


def parts_of(text: str, adapter: Adapter | None) -> Sequence[str]:
    """A text in messages of the adapter's length; of a platform that is not enabled nobody can tell it."""
    if adapter is None:
        return split(text, UNKNOWN_LENGTH, len)
    return split(text, adapter.capabilities.longest, adapter.capabilities.measure)
