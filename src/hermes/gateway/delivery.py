"""Delivery: sends what the outbox holds, chat by chat and in order, until the platform has it.

Each chat (each thread of it) has its own queue, so a slow or failing chat delays no other. A platform's rate limit is
obeyed, a broken connection is waited for. A message that the platform refuses, or at which it fails (or asks to wait) for ten
minutes while it takes another one, is given up: the reason is recorded, and the person is told.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from hermes.errors import (
    Fenced,
    PlatformError,
    PlatformRefused,
    PlatformUnreachable,
    SendRefused,
    SlowDown,
    StoreClosed,
    StoreError,
)
from hermes.gateway.events import Chat, Choice, FileReference, OutgoingFile, choices_of, context_of, file_of, from_json
from hermes.gateway.splitting import split
from hermes.gateway.streaming import PATIENCE, StreamedReply, Streaming, either, given
from hermes.store import gateway_outbox
from hermes.store.gateway_outbox import SESSION
from hermes.texts import encodable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from hermes.config import Config
    from hermes.gateway.adapter import Adapter
    from hermes.store.gateway_outbox import Outgoing
    from hermes.store.gateway_writer import Writer

LONGEST_PAUSE = 60.0
AGED = 0.2  # seconds after which a part is looked up again before it is sent: its conversation may be shredded
TRIES, TRY_SECONDS = 10, 600.0  # a part is given up after so many failed tries in so many seconds, both
MISTAKES = 3  # how often an adapter may fail with an unexpected exception before a message is given up
REPEATED = "↻ Sent again after a restart or a broken connection; you may have this already.\n\n"
SHORT_REPEATED = "↻ "
LOST = "⚠️ A message, or a part of one, could not be sent here. If it does not follow, ask for it again."
UNKNOWN_LENGTH = 1500  # characters of a part for a platform that is not enabled, whose limit is unknown

Place = tuple[str, str | None]


class Delivery:
    """Sends everything for one platform. Belongs to one event loop; call `begin` and `post` there."""

    def __init__(
        self, adapter: Adapter, writer: Writer, config: Config, log: logging.Logger | logging.LoggerAdapter[Any], *,
        clock: Callable[[], float],
    ) -> None:  # fmt: skip
        self.connected = asyncio.Event()
        self.sure: Callable[[], bool] = lambda: True  # whether certainly no other gateway sends to this platform
        self.fence: Callable[[], tuple[str, int] | None] = lambda: None  # the lease that ensures it
        self.under_way: set[int] = set()  # ids of parts that are in a queue, or were until a moment ago
        self.replies: set[int] = set()  # inbox ids of the events whose replies are shown here
        self.on_trouble: Callable[[Exception], None] = lambda error: None
        self.attachment: Callable[[str], bytes | None] = lambda reference: None  # the bytes of a file in the store
        self.is_waiting: Callable[[int], bool] = lambda number: True  # whether the store still has a part to send
        self.untold: Callable[[], list[tuple[int, str, str]]] = (
            list  # the parts given up without the person's knowledge
        )
        self.retry = 0.25  # seconds before a failed message is sent again; doubled with each failure
        self.adapter, self.writer, self.config, self.log, self.clock = adapter, writer, config, log, clock
        self._streaming = Streaming(self)
        self._queues: dict[Place, deque[StreamedReply | Outgoing]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._reconnected = asyncio.Event()  # set, and replaced, whenever a connection is established
        self._through: set[int] = set()  # those of `under_way` that are finished
        self._untold: dict[Place, dict[int, str]] | None = None  # `untold` by chat (number → nonce), once it was read

    # ------------------------------------------------------------------------------------------ from the gateway

    def begin(self, reply: StreamedReply) -> None:
        """Show a reply from now on, after everything that waits for its chat already."""
        self.replies.add(reply.inbox_id)
        self._enqueue(reply.chat, reply)

    def post(self, part: Outgoing) -> None:
        """Send a part of the outbox, after everything that waits for its chat already; once, however often it is posted."""
        if part.id not in self.under_way:
            self.under_way.add(part.id)
            self._enqueue(from_json(part.chat, Chat), part)

    def post_at_once(self, part: Outgoing) -> None:
        """Send a part beside the reply that is shown in its chat: a question for which the reply's turn waits."""
        if part.id not in self.under_way:
            self.under_way.add(part.id)
            self._start(self._do(part))

    def forget_through(self) -> None:
        """Forget finished parts: a look into the outbox from now on does not find them."""
        self.under_way -= self._through
        self._through.clear()

    def stands(self) -> None:
        """The connection is established: everything that waits for it continues at once."""
        self.connected.set()
        self._reconnected.set()
        self._reconnected = asyncio.Event()

    @property
    def waiting(self) -> int:
        """How many parts and replies are unfinished."""
        return sum(map(len, self._queues.values()))

    async def idle(self) -> None:
        """Wait until everything is sent, unless there is no connection."""
        while self._tasks and self.connected.is_set():
            await asyncio.wait(self._tasks, timeout=0.1)

    async def stop(self) -> None:
        """Stop sending; unsent parts stay in the outbox."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def reset(self) -> None:
        """Stop, and forget all queues: another gateway sends from now on."""
        await self.stop()
        self._queues.clear()
        self.under_way.clear()
        self.replies.clear()
        self._through.clear()
        self._untold = None

    # ------------------------------------------------------------------------------------------ queues

    def _enqueue(self, chat: Chat, job: StreamedReply | Outgoing) -> None:
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

    async def _do(self, job: StreamedReply | Outgoing) -> None:
        try:
            if isinstance(job, StreamedReply):
                await self._streaming.show(job)
                self.replies.discard(job.inbox_id)
                await self._tell_lost(job.chat, job.context)
            else:
                chat = from_json(job.chat, Chat)
                await self.send(chat, job)
                await self._tell_lost(chat, context_of(job.chat))
        except Fenced as error:
            self.log.info("another gateway sends this message: %s", error)
        except Exception as error:  # a bug of ours, or the store is gone: it stays in the outbox, the others continue
            self.log.exception("a message could not be sent now: %s", type(error).__name__)
            self.on_trouble(error)

    # ------------------------------------------------------------------------------------------ one part

    async def send(self, chat: Chat, part: Outgoing, *, edit_after: bool | None = None) -> None:
        """Send or edit until the platform has it, or it is known that it can't be sent.

        `edit_after`: a piece of this part may have been sent under its nonce before, so it must be edited after sending.
        """
        capabilities = self.adapter.capabilities
        if edit_after is None:  # a part left by an earlier process: its reply may have been streamed
            edit_after = capabilities.idempotent and capabilities.edits and part.inbox_id is not None
        doubtful, tries, mistakes, told = part.begun_at is not None, 0, 0, False
        message_id: str | None = None
        aged = f'"{SESSION}"' in part.chat or not self.is_open or time.monotonic() - part.read_at > AGED
        while message_id is None:
            await self._ready()
            if aged and not await self._is_wanted(part):
                self.under_way.add(part.id)
                self._through.add(part.id)
                return
            aged = True
            safe = capabilities.idempotent or part.edits is not None
            if not safe and part.begun_at is None:
                part.begun_at = self.clock()
                await self._note(gateway_outbox.sending, part.id, part.begun_at, self.fence())
                await self._ready()
            try:
                async with asyncio.timeout(PATIENCE):
                    if doubtful and not safe:
                        doubtful = await self.adapter.was_sent(chat, nonce=part.nonce) is None
                    text = part.text if safe or not doubtful else self._marked(part)
                    message_id = await self._try(chat, part, text, edit_after)
            except SendRefused as error:
                if part.edits is None:
                    await self._give_up(part, error)
                    return
                # The message is gone, or too old to be edited: send a new one. Its old nonce is used up.
                part.edits, edit_after, part.nonce = None, False, f"{part.nonce}-again"
            except PlatformRefused as error:
                await self._not_sent(part, doubtful)
                self.on_trouble(error)
                await self._pause(1.0)
            except (SlowDown, PlatformUnreachable, TimeoutError, OSError) as error:
                pause = error.retry_after if isinstance(error, SlowDown) else None
                tries += pause is None
                doubtful = doubtful or (pause is None and getattr(error, "maybe_sent", True))
                await self._not_sent(part, doubtful)
                if told:  # the platform took another message, and failed at this one again
                    await self._give_up(part, error, told=True)
                    return
                told = await self._too_often(part, error) and await self._takes(chat, part.nonce, context_of(part.chat))
                if pause is not None:
                    await asyncio.sleep(max(0.05, pause))
                elif not told:
                    await self._pause(min(LONGEST_PAUSE, self.retry * 2**tries))
            except PlatformError as error:
                await self._give_up(part, error)
                return
            except Exception as error:  # a bug in the adapter; perhaps only once
                mistakes += 1
                self.log.exception("the adapter could not send")
                if mistakes >= MISTAKES:
                    await self._give_up(part, error)
                    return
                doubtful = True
                await self._pause(0.5 * mistakes)
        await self.note_sent(part, message_id)

    async def _is_wanted(self, part: Outgoing) -> bool:
        """Whether a part still waits in the store: its conversation may have been shredded since it was queued."""
        pause = 0.25
        while True:
            try:
                return await asyncio.to_thread(self.is_waiting, part.id)
            except StoreClosed:
                raise
            except StoreError as error:
                self.log.warning("a message waits for the store: %s", error)
                await asyncio.sleep(pause)
                pause = min(10.0, pause * 2)

    async def _try(self, chat: Chat, part: Outgoing, text: str, edit_after: bool) -> str:
        text = encodable(text)
        if part.edits is None:
            context = given(context_of(part.chat))
            if (file := file_of(part.chat)) is not None:
                whole = await self._file(file)
                return await self.adapter.send_file(chat, whole, caption=text, nonce=part.nonce, **context)
            if choices := self._buttons(part):
                return await self.adapter.send_choices(
                    chat, text, choices, nonce=part.nonce, reply_to=part.reply_to, **context
                )
            message_id = await self.adapter.send(chat, text, nonce=part.nonce, reply_to=part.reply_to, **context)
            if not edit_after:
                return message_id
            part.edits = message_id
        await self.adapter.edit(chat, part.edits, text)
        return part.edits

    def _buttons(self, part: Outgoing) -> list[Choice]:
        """A part's buttons, if the platform has so many of that length."""
        choices, capabilities = choices_of(part.chat), self.adapter.capabilities
        fit = all(len(one.says.encode()) <= capabilities.longest_choice for one in choices)
        return choices if len(choices) <= capabilities.choices and fit else []

    async def _file(self, file: FileReference) -> OutgoingFile:
        data = await asyncio.to_thread(self.attachment, file.attachment)
        if data is None:
            raise SendRefused(f"{file.name} is no longer in the store: its conversation was deleted")
        return OutgoingFile(kind=file.kind, name=file.name, mime=file.mime, data=data)

    async def _ready(self) -> None:
        """Wait until there is a connection, and it is certain that this gateway is the one that sends."""
        while not self.is_open:
            if self.connected.is_set():
                await asyncio.sleep(0.05)
            else:
                await self.connected.wait()

    @property
    def is_open(self) -> bool:
        """Whether a message can be sent now."""
        return self.connected.is_set() and self.sure()

    def _marked(self, part: Outgoing) -> str:
        """A part's text with the remark that it may be a duplicate, if there is room for the remark."""
        capabilities, text = self.adapter.capabilities, part.text
        longest = capabilities.longest if file_of(part.chat) is None else capabilities.longest_caption
        for mark in (REPEATED, SHORT_REPEATED):
            if capabilities.measure(mark + text) <= longest:
                return mark + text
        return text

    async def _pause(self, seconds: float) -> None:
        """Wait so long, or until a connection is established."""
        await either(self._reconnected, seconds)

    async def _note(self, step: Callable[..., Any], *given: Any, lasting: bool = True) -> None:
        """Record a step in the store, however long that takes: without it no process would know what was sent."""
        pause = 0.25
        while True:
            try:
                await self.writer(step, *given, lasting=lasting)
                return
            except (StoreClosed, Fenced):
                raise
            except StoreError as error:
                self.log.warning("the state of a delivery can't be stored yet: %s", error)
                await asyncio.sleep(pause)
                pause = min(10.0, pause * 2)

    async def _not_sent(self, part: Outgoing, doubtful: bool) -> None:
        """Record that it was certainly not sent, so that a later process need not suspect a duplicate."""
        if part.begun_at is not None and not doubtful:
            part.begun_at = None
            await self._note(gateway_outbox.sending, part.id, None)

    async def note_sent(self, part: Outgoing, message_id: str) -> None:
        """Record that a part was sent. On idempotent platforms the chat's next part does not wait for this record."""
        self.under_way.add(part.id)
        if self.adapter.capabilities.idempotent:
            self._start(self._note_soon(part, message_id))
        else:
            await self._note(gateway_outbox.sent, part.id, message_id, self.clock(), part.chat)
            self._through.add(part.id)

    async def _note_soon(self, part: Outgoing, message_id: str) -> None:
        try:
            await self._note(gateway_outbox.sent, part.id, message_id, self.clock(), part.chat, lasting=False)
            self._through.add(part.id)
        except StoreError as error:
            self.on_trouble(error)

    async def _too_often(self, part: Outgoing, error: Exception) -> bool:
        """Count a failed try, in the store; whether there were too many."""
        if not self.connected.is_set():
            return False
        part.chat, count, since = gateway_outbox.failed_again(part.chat, self.clock())
        await self._note(gateway_outbox.note_try, part.id, part.chat, lasting=False)
        if count == TRIES:
            self.log.warning("a message could not be sent %d times: %s", count, error)
            self.on_trouble(error)
        return count >= TRIES and self.clock() - since >= TRY_SECONDS

    async def _takes(self, chat: Chat, nonce: str, context: Mapping[str, Any] | None) -> bool:
        """Tell the person that something could not be sent; whether the platform took that message."""
        try:
            async with asyncio.timeout(PATIENCE):
                await self.adapter.send(chat, LOST, nonce=f"{nonce}-lost", **given(context))
        except Exception as error:  # refused, unreachable, or a bug in the adapter: one try is enough
            self.log.info("the person can't be told now that a message was not sent: %s", error)
            return False
        return True

    async def _tell_lost(self, chat: Chat, context: Mapping[str, Any] | None) -> None:
        """Tell the person of given-up parts of the chat, if they don't know; on failure again after its next message."""
        untold = self._untold
        if untold is None:
            untold = self._untold = {}
            for number, stored, nonce in await asyncio.to_thread(self.untold):
                there = from_json(stored, Chat)
                untold.setdefault((there.chat_id, there.thread_id), {})[number] = nonce
        place = (chat.chat_id, chat.thread_id)
        parts = untold.get(place)
        if parts and self.is_open and await self._takes(chat, list(parts.values())[-1], context):
            await self._note(gateway_outbox.told, list(parts), self.clock())
            untold.pop(place, None)

    async def _give_up(self, part: Outgoing, error: Exception, *, told: bool = False) -> None:
        self.log.error("a message can't be delivered: %s", error)
        self.on_trouble(error)
        from hermes.store.redact import redact

        why = redact(str(error)) or type(error).__name__
        self.under_way.add(part.id)
        now = self.clock()
        await self._note(gateway_outbox.unsendable, part.id, why, now, now if told else None)
        self._untold = None  # to be read again
        self._through.add(part.id)


def parts_of(text: str, adapter: Adapter | None) -> Sequence[str]:
    """Split a text into messages of the adapter's length; for a platform that is not enabled, of a safe length."""
    if adapter is None:
        return split(text, UNKNOWN_LENGTH, len)
    return split(text, adapter.capabilities.longest, adapter.capabilities.measure)
