"""The outbox: outgoing messages. Each is stored before it is sent; the connected gateway sends them in the order of their chat.

`Outbox` stores them: a reply enters the store as its event leaves the inbox. What another process has stored for one of our
connections (another gateway, a command in a terminal) is found there by looking now and then.

`Delivery` sends them, until the platform has them. Each chat (each thread of it) has its own queue, so a slow or failing chat
delays no other. A reply that is still being written is in no queue: it is shown beside it (streaming.py), and joins it when it is
complete, so no one waits for another person's turn. A platform's rate limit is obeyed, a broken connection is waited for. A
message that the platform refuses, or at which it fails (or asks to wait) for ten minutes while it takes another one, is given
up: the reason is recorded, the person notified.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import secrets
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
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
from hermes.gateway.events import (
    Chat,
    Choice,
    FileReference,
    OutgoingFile,
    choices_of,
    context_of,
    destination,
    file_of,
    from_json,
    is_same_place,
)
from hermes.gateway.flow.splitting import limited, split
from hermes.gateway.flow.streaming import PATIENCE, StreamedReply, Streaming, context_arg
from hermes.gateway.flow.turns import start, wait_first
from hermes.gateway.notices import language_of, say
from hermes.store.gateway import outbox
from hermes.store.gateway.outbox import OWN_ID, QUESTION
from hermes.texts import encodable

if TYPE_CHECKING:
    from hermes.config import Config
    from hermes.gateway.adapter import Adapter, Capabilities
    from hermes.gateway.chats.router import Router
    from hermes.gateway.connection import Held
    from hermes.gateway.events import Event
    from hermes.gateway.flow.inbox import Request
    from hermes.store.engines.base import Tx
    from hermes.store.gateway.gateway_db import GatewayDB
    from hermes.store.gateway.outbox import Outgoing, ReplyPart

LONGEST_PAUSE = 60.0
TRIES, TRY_SECONDS = 10, 600.0  # a part is given up after so many failed tries in so many seconds, both
MISTAKES = 3  # how often an adapter may fail with an unexpected exception before a message is given up
SHORT_REPEATED = "↻ "
REMEMBERED = 4096  # parts that are sent; one that another look finds a moment later is not sent again
UNKNOWN_LENGTH = 1500  # characters of a part for a platform that is not enabled, whose limit is unknown

Place = tuple[str, str | None]


def _place(chat: Chat) -> Place:
    return chat.chat_id, chat.thread_id


@dataclass(slots=True)
class Job:
    """A place in a queue."""

    what: StreamedReply | Outgoing
    is_done: bool = False


class Delivery:
    """Sends everything for one platform. Belongs to one event loop; call `begin`, `finish` and `post` there."""

    def __init__(
        self, adapter: Adapter, store: GatewayDB, config: Config, log: logging.Logger | logging.LoggerAdapter[Any],
        on_trouble: Callable[[Exception], None], retry: float,
    ) -> None:  # fmt: skip
        """`retry`: seconds before a failed message is sent again; doubled with each failure."""
        self.connected = asyncio.Event()
        self.held: Held | None = None  # the lease under which this gateway sends
        self.adapter, self.config, self.log, self.on_trouble = adapter, config, log, on_trouble
        self.store, self.clock, self._retry = store, store.clock, retry
        self._streaming = Streaming(self)
        self._queues: dict[Place, deque[Job]] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._reconnected = asyncio.Event()  # set, and replaced, whenever a connection is established
        self._growing: dict[str | None, StreamedReply] = {}  # by the event they answer
        self._queued: set[int] = set()  # ids of parts that are in a queue
        self._finished: deque[int] = deque(maxlen=REMEMBERED)  # ids of parts that were
        self._unreported: dict[Place, str] = {}  # chats that don't know of a part that was given up: its nonce

    # ------------------------------------------------------------------------------------------ from the gateway

    def begin(self, reply: StreamedReply) -> None:
        """Show a reply from now on, while it is written, after everything that waits for its chat already."""
        queue = self._queues.get(_place(reply.chat))
        if queue:
            reply.after = queue[-1]
        self._growing[reply.answers] = reply
        reply.growing = start(self._streaming.grow(reply), self._tasks)

    def finish(self, reply: StreamedReply, parts: Sequence[Outgoing]) -> None:
        """Complete a reply: these parts replace what was shown of it, after everything that waits for its chat already."""
        reply.complete(parts)
        if new := [part.id for part in parts if not self.knows(part.id)]:
            self._queued.update(new)
            self._enqueue(reply.chat, reply)
        if self._growing.get(reply.answers) is reply:
            del self._growing[reply.answers]
        later, reply.later = reply.later, []
        for part in later:
            self._enqueue(from_json(part.chat, Chat), part)

    def post(self, part: Outgoing, answers: str | None = None) -> None:
        """Send a part of the outbox, after everything that waits for its chat already; once, however often it is posted.

        `answers`: after the reply to the event of this id, if that is being written.
        """
        if self.knows(part.id):
            return
        self._queued.add(part.id)
        if answers in self._growing:
            self._growing[answers].later.append(part)
        else:
            self._enqueue(from_json(part.chat, Chat), part)

    def knows(self, part_id: int) -> bool:
        """Whether a part was posted."""
        return part_id in self._queued or part_id in self._finished

    @property
    def known(self) -> set[int]:
        """The ids of the parts that were posted."""
        return {*self._queued, *self._finished}

    def on_connected(self) -> None:
        """The connection is established: everything that waits for it continues at once."""
        self.connected.set()
        self._reconnected.set()
        self._reconnected = asyncio.Event()

    async def idle(self) -> None:
        """Wait until everything is sent, unless there is no connection."""
        while self._tasks and self.connected.is_set():
            await asyncio.wait(self._tasks, timeout=0.1)

    async def stop(self) -> None:
        """Stop sending, and forget all queues: unsent parts are in the outbox, for the gateway that takes the connection."""
        self.connected.clear()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._queues.clear()
        self._growing.clear()
        self._queued.clear()
        self._finished.clear()
        self._unreported.clear()

    # ------------------------------------------------------------------------------------------ queues

    def _enqueue(self, chat: Chat, what: StreamedReply | Outgoing) -> None:
        place = _place(chat)
        queue = self._queues.get(place)
        if queue is not None:
            queue.append(Job(what))
            return
        self._queues[place] = deque([Job(what)])
        start(self._work(place), self._tasks)

    async def _work(self, place: Place) -> None:
        queue = self._queues[place]
        while queue:
            await self._do(queue[0].what)
            queue.popleft().is_done = True
        del self._queues[place]

    async def _do(self, job: StreamedReply | Outgoing) -> None:
        parts = (job.parts or []) if isinstance(job, StreamedReply) else [job]
        try:
            if isinstance(job, StreamedReply):
                await self._streaming.complete(job)
                if job.answers.startswith(OWN_ID):  # a handoff that fails is reported where it was requested
                    self._unreported.pop(_place(job.chat), None)
                await self._tell_lost(job.chat, job.text(), job.context)
            else:
                chat = from_json(job.chat, Chat)
                await self.send(chat, job)
                await self._tell_lost(chat, job.text, context_of(job.chat))
        except Fenced as error:
            self.log.info("another gateway sends this message: %s", error)
        except Exception as error:  # a bug of ours, or the store is gone: it stays in the outbox, the others continue
            self.log.exception("a message could not be sent now: %s", type(error).__name__)
            self.on_trouble(error)
        for part in parts:
            self._queued.discard(part.id)
            self._finished.append(part.id)

    # ------------------------------------------------------------------------------------------ one part

    async def send(self, chat: Chat, part: Outgoing, *, edit_after: bool | None = None) -> None:
        """Send or edit until the platform has it, or it is known that it can't be sent.

        `edit_after`: a piece of this part may have been sent under its nonce before, so it must be edited after sending.
        """
        capabilities = self.adapter.capabilities
        if edit_after is None:  # a part left by an earlier process: its reply may have been streamed
            edit_after = capabilities.idempotent and capabilities.edits and part.inbox_id is not None
        doubtful, tries, mistakes, is_notified = part.begun_at is not None, 0, 0, False
        failures: list[float] = []  # when it failed while there was a connection
        message_id: str | None = None
        while message_id is None:
            await self._ready()
            if not await self._patiently(self.store.read, outbox.is_waiting, part.id):
                return  # its conversation was shredded since it was queued
            safe = capabilities.idempotent or part.edits is not None
            if not safe and part.begun_at is None:
                part.begun_at = self.clock()
                await self._note(outbox.sending, part.id, None if self.held is None else self.held.fence)
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
                if is_notified:  # the platform took another message, and failed at this one again
                    await self._give_up(part, error, is_notified=True)
                    return
                is_notified = self._too_often(failures, error) and await self._send_lost_notice(
                    chat, part.nonce, part.text, context_of(part.chat)
                )
                if pause is not None:
                    await asyncio.sleep(max(0.05, pause))
                elif not is_notified:
                    await self._pause(min(LONGEST_PAUSE, self._retry * 2**tries))
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

    async def _try(self, chat: Chat, part: Outgoing, text: str, edit_after: bool) -> str:
        text = encodable(text)
        if part.edits is None:
            context = context_arg(context_of(part.chat))
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
        data = await asyncio.to_thread(self.store.attachment, file.attachment)
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
    def streams(self) -> bool:
        """Whether replies are shown while they are written."""
        return self.config.gateway.streaming.enabled and self.adapter.capabilities.edits

    @property
    def is_open(self) -> bool:
        """Whether a message can be sent now."""
        return self.connected.is_set() and (self.held is None or self.held.is_sure)

    def _marked(self, part: Outgoing) -> str:
        """A part's text with the remark that it may be a duplicate, if there is room for the remark."""
        capabilities, text = self.adapter.capabilities, part.text
        longest = capabilities.longest if file_of(part.chat) is None else capabilities.longest_caption
        for mark in (f"{say('repeated', language_of([text]))}\n\n", SHORT_REPEATED):
            if capabilities.measure(mark + text) <= longest:
                return mark + text
        return text

    async def _pause(self, seconds: float) -> None:
        """Wait so long, or until a connection is established."""
        await wait_first(self._reconnected, seconds)

    async def _note(self, step: Callable[..., Any], *args: Any, synced: bool = True) -> None:
        """Record a step in the store: without it no process would know what was sent."""
        await self._patiently(self.store.write if synced else self.store.write_unsynced, step, *args)

    async def _patiently(self, work: Callable[..., Any], *args: Any) -> Any:
        """Read or write the store, however long that takes."""
        pause = 0.25
        while True:
            try:
                return await asyncio.to_thread(work, *args)
            except (StoreClosed, Fenced):
                raise
            except StoreError as error:
                self.log.warning("a delivery waits for the store: %s", error)
                await asyncio.sleep(pause)
                pause = min(10.0, pause * 2)

    async def _not_sent(self, part: Outgoing, doubtful: bool) -> None:
        """Record that it was certainly not sent, so that a later process need not suspect a duplicate."""
        if part.begun_at is not None and not doubtful:
            part.begun_at = None
            await self._note(outbox.not_sent, part.id)

    async def note_sent(self, part: Outgoing, message_id: str) -> None:
        """Record that a part was sent. Where a repetition is recognised, the record may be lost if the power fails."""
        idempotent = self.adapter.capabilities.idempotent
        await self._note(outbox.sent, part.id, message_id, part.chat, synced=not idempotent)

    def _too_often(self, failures: list[float], error: Exception) -> bool:
        """Note a failed try; returns whether there were too many."""
        if not self.connected.is_set():
            return False
        failures.append(self.clock())
        if len(failures) == TRIES:
            self.log.warning("a message could not be sent %d times: %s", TRIES, error)
            self.on_trouble(error)
        return len(failures) >= TRIES and failures[-1] - failures[0] >= TRY_SECONDS

    async def _send_lost_notice(self, chat: Chat, nonce: str, text: str, context: Mapping[str, Any] | None) -> bool:
        """Notify the person, in the language of a text, that a message could not be sent; whether the platform took that."""
        try:
            async with asyncio.timeout(PATIENCE):
                await self.adapter.send(
                    chat, say("lost", language_of([text])), nonce=f"{nonce}-lost", **context_arg(context)
                )
        except Exception as error:  # refused, unreachable, or a bug in the adapter: one try is enough
            self.log.info("the person can't be notified now that a message was not sent: %s", error)
            return False
        return True

    async def _tell_lost(self, chat: Chat, text: str, context: Mapping[str, Any] | None) -> None:
        """Notify the person of a part that was given up in the chat, unless they know; on failure again after its next message.

        `text` was sent there last: its language is that of the notice.
        """
        place = _place(chat)
        nonce = self._unreported.get(place)
        if nonce is not None and self.is_open and await self._send_lost_notice(chat, nonce, text, context):
            self._unreported.pop(place, None)

    async def _give_up(self, part: Outgoing, error: Exception, *, is_notified: bool = False) -> None:
        self.log.error("a message can't be delivered: %s", error)
        self.on_trouble(error)
        from hermes.store.redact import redact

        why = redact(str(error)) or type(error).__name__
        await self._note(outbox.unsendable, part.id, why)
        if not is_notified and QUESTION not in part.nonce:  # no one waits for a question any more
            self._unreported[_place(from_json(part.chat, Chat))] = part.nonce


def parts_of(text: str, adapter: Adapter | None) -> Sequence[str]:
    """Split a text into messages of the adapter's length; for a platform that is not enabled, of a safe length."""
    if adapter is None:
        return split(text, UNKNOWN_LENGTH, len)
    can = adapter.capabilities
    parts = split(text, can.longest, can.measure)
    return limited(parts, can.most_parts, can.longest, can.measure, partial(say, "left_out", language_of([text])))


LOOK_SECONDS = 1.0  # between two looks for parts that other processes have stored, and how old those are
_log = logging.getLogger("hermes.gateway")


class Outbox:
    """Accepts replies and messages from any thread; `deliveries` send them on the event loop."""

    def __init__(self, store: GatewayDB, router: Router) -> None:
        self._store, self._router = store, router
        self.loop: asyncio.AbstractEventLoop | None = None  # set before anything is sent
        self.deliveries: dict[str, Delivery] = {}  # by platform
        self._identity = store.identity()

    # ------------------------------------------------------------------------------------------ from any thread

    def reply(self, request: Request, *, resumed: bool = False) -> StreamedReply:
        """Start a reply. `resumed`: a process that died may have shown some of it."""
        event = request.event
        place = self._router.delivered_to(event.chat)
        delivery = self.deliveries.get(place.connection)
        return StreamedReply(
            place, inbox_id=request.inbox_id, nonce=f"{self._identity}-{request.inbox_id}",
            answers=event.id, shown=request.shown, resumed=resumed, fence=request.fence,
            reply_to=self._router.quoted_by(event, place),
            context=event.reply_context if is_same_place(place, event.chat) else None,
            streams=delivery is not None and delivery.streams,
        )  # fmt: skip

    def begin(self, reply: StreamedReply) -> None:
        """Show a reply while it is written; if another gateway has the platform, that one sends it when it is complete."""
        self._soon(reply.chat.connection, Delivery.begin, reply)

    def finish(self, reply: StreamedReply, text: str) -> None:
        """Complete a reply: store it in the outbox as its event leaves the inbox, unless that is done, then send it."""
        if reply.stored is None:
            reply.stored = self._store.finish(*self._finished(reply, text))
        self._soon(reply.chat.connection, Delivery.finish, reply, reply.stored)

    def finish_in(self, tx: Tx, reply: StreamedReply, text: str) -> list[Outgoing]:
        """Store a complete reply in the outbox as its event leaves the inbox, in a transaction that stores more."""
        return self._store.finish_in(tx, *self._finished(reply, text))

    def _finished(self, reply: StreamedReply, text: str) -> tuple[int, str, str, list[ReplyPart]]:
        place = reply.chat
        pieces = parts_of(text, self._router.adapters.get(place.connection))
        parts: list[ReplyPart] = [{"text": piece, "nonce": reply.part_nonce(n)} for n, piece in enumerate(pieces)]
        if parts and reply.reply_to is not None:
            parts[0]["reply_to"] = reply.reply_to
        return reply.inbox_id, place.connection, destination(place, reply.context), parts

    def abandon(self, reply: StreamedReply) -> None:
        """End a reply that is not finished: the messages shown so far stay as they are."""
        self._soon(reply.chat.connection, Delivery.finish, reply, ())

    def post(
        self, chat: Chat, text: str, *, asks: bool = False, answers: Event | None = None, choices: Sequence[Choice] = (),
        session: str | None = None,
    ) -> None:  # fmt: skip
        """Send a message that is not a reply of the agent; from any thread but the event loop's.

        `asks`: it is a question of a turn, which is cancelled with it. `answers`: the event because of which it is sent, if
        there is one. `choices`: buttons, where the platform has them.
        `session`: the session whose words it may hold: it is not sent once that is shredded.
        """
        place, stored = self.destination(chat, answers, session)
        pieces = parts_of(text, self._router.adapters.get(place.connection))
        for number, piece in enumerate(pieces):
            if choices and number == len(pieces) - 1:
                stored = destination(place, context_of(stored), choices=choices, session=session)
            nonce = f"{self._identity}{QUESTION if asks else '-n'}{secrets.token_hex(8)}"
            self.send(self._store.post(place.connection, stored, piece, nonce))

    def takes_files(self, chat: Chat) -> Capabilities | None:
        """The abilities of the platform that gets the messages for a chat, if files are among them."""
        adapter = self._router.adapters.get(self._router.delivered_to(chat).connection)
        return adapter.capabilities if adapter is not None and adapter.capabilities.files else None

    def post_file(self, chat: Chat, file: FileReference, caption: str, *, answers: Event | None, session: str) -> bool:
        """Send a file after what waits for the chat and the reply that is being written; from any thread but the event loop's.

        The same file in answer to the same event is sent once, also when its turn is resumed after a crash: False then.
        `session` is that of `post`.
        """
        place, spoken = self.destination(chat, answers, session)
        adapter = self._router.adapters[place.connection]
        where = [place.connection, place.chat_id, place.thread_id, answers.id if answers else secrets.token_hex(8)]
        nonce = f"{self._identity}-f{_digest(*where, file.attachment)}"
        context = context_of(spoken)
        fits = adapter.capabilities.measure(caption) <= adapter.capabilities.longest_caption
        parts = [(destination(place, context, file, session=session), caption if fits else "", nonce)]
        if caption and not fits:  # a message of its own
            pieces = parts_of(caption, adapter)
            parts += [(spoken, piece, f"{nonce}-{number}") for number, piece in enumerate(pieces)]
        posted = self._store.post_file(place.connection, file.attachment, parts)
        for part in posted:
            self._soon(part.platform, Delivery.post, part, None if answers is None else answers.id)
        return bool(posted)

    def destination(self, chat: Chat, answers: Event | None = None, session: str | None = None) -> tuple[Chat, str]:
        """The chat that gets the messages for a chat, and the same as the outbox stores it, with the event's reply context."""
        place = self._router.delivered_to(chat)
        same = answers is not None and is_same_place(place, answers.chat)
        context = answers.reply_context if same and answers is not None else None
        return place, destination(place, context, session=session)

    def send(self, part: Outgoing) -> None:
        """Send a part that is stored in the outbox."""
        self._soon(part.platform, Delivery.post, part)

    def new_nonce(self) -> str:
        """A nonce for a message that is not a reply."""
        return f"{self._identity}-n{secrets.token_hex(8)}"

    def _soon(self, platform: str, step: Callable[..., None], *args: Any) -> None:
        """Have the platform's delivery do this on the event loop, in order, if this gateway holds the connection then.

        Otherwise, and after the loop's end, the messages are in the outbox for the gateway that takes it.
        """

        def do() -> None:
            delivery = self.deliveries.get(platform)
            if delivery is not None and delivery.held is not None:
                step(delivery, *args)

        assert self.loop is not None
        with suppress(RuntimeError):  # the loop has ended
            self.loop.call_soon_threadsafe(do)

    # ------------------------------------------------------------------------------------------ on the event loop

    async def follow(self) -> None:
        """Send what other processes have stored for our connections, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            held = {name: one for name, one in self.deliveries.items() if one.held is not None}
            known = set().union(*(one.known for one in held.values()))
            if not held:
                continue
            try:
                found = await asyncio.to_thread(self._store.parts_of_others, list(held), known, LOOK_SECONDS)
            except HermesError as error:
                _log.warning("could not look for messages to send: %s", error)
                continue
            for part in found:
                self.send(part)


def _digest(*parts: str | None) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:24]
