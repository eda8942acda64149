"""The inbox: incoming events. Each is stored before it is acknowledged to its platform, and answered once, in its chat's order.

Of several gateways on one store, the one connected to a platform stores its events; the instance that serves the
chat answers them (store/instances.py). Usually both are this one: then the event goes to its lane at once. Other events
that wait for this gateway are found by polling the store (`follow`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from hermes.agent.turn import Stop
from hermes.commands.registry import parse
from hermes.errors import HermesError, PlatformError
from hermes.gateway.access import greeting, place_of
from hermes.gateway.confirmations import CLOSED, NOT_YOURS, PendingQuestion, Press, pressed, read_answer
from hermes.gateway.events import DM, Chat, Event, as_json, from_json, masked, writable
from hermes.gateway.keys import background_key
from hermes.gateway.workers import log_failure
from hermes.store import gateway_inbox, gateway_outbox, instances
from hermes.store.gateway_inbox import IncomingEvent, ReceiveResult
from hermes.texts import shortened_line

if TYPE_CHECKING:
    from hermes.gateway.brake import Brake
    from hermes.gateway.cluster import Cluster
    from hermes.gateway.participants import Services
    from hermes.gateway.workers import Workers
    from hermes.store.gateway_inbox import Received
    from hermes.store.gateway_writer import Writer

BRAKE = "gateway_brake"  # the meta row with the chats whose answers are delayed
_STEP = 0.001  # seconds between two delayed messages of a chat: the event loop does not order equal times
_LOOKS, _LOOK = 10, 0.1  # how often, and after how many seconds, the message of a reaction is looked up
_log = logging.getLogger("hermes.gateway")


@dataclass(slots=True)
class Request:
    """An event that waits in a lane, or is being answered in it."""

    inbox_id: int
    event: Event
    stored: str  # the event's JSON in the store: if that differs, the event was edited meanwhile
    fence: tuple[str, int]  # the lease under which it is answered
    begun: bool = False  # a process that died had begun to answer it
    session_id: str | None = None  # the session in which that process stored it
    message_id: int | None = None  # the message id it has there
    stops: bool = False  # it has stopped a turn
    refused: bool = False  # it tried to stop another person's turn
    joined: bool = False  # the next message is answered together with this one
    at: float = field(default_factory=time.monotonic)  # when it arrived
    shown: tuple[str, ...] = ()
    stop: Stop = field(default_factory=Stop)  # interrupts its turn, also one that has not begun

    def follow(self, row: Received) -> None:
        """Update this from the store's row. The text stays unmasked, unless it was edited: the store masks secrets."""
        if row.event != self.stored:
            self.event, self.stored = from_json(row.event, Event), row.event
        self.begun, self.session_id, self.message_id = row.begun_at is not None, row.session_id, row.message_id
        self.shown = () if row.shown is None else tuple(row.shown.split("\n"))


@dataclass(slots=True)
class Reset:
    """A conversation that may be due for a reset."""

    fence: tuple[str, int]
    stop: Stop = field(default_factory=Stop)


def is_turn(item: Any) -> bool:
    """Whether the agent is answering: a message, or a retry of the last one. Other commands are not interrupted."""
    command = parse(item.event.text.strip()) if isinstance(item, Request) else None
    return isinstance(item, Request) and (command is None or bool(item.event.attachments) or command[0] == "retry")


def asked_by_command(event: Event) -> tuple[str, Event] | None:
    """The command and the message of `/queue TEXT` and `/background TEXT`, which are messages to the agent; None for others."""
    command = parse(event.text.strip())
    if command is None or command[0] not in ("queue", "background") or not (command[1] or event.attachments):
        return None
    name, text = command
    if parse(text) is not None:  # what is asked is a text, also one that begins with a slash
        text = f"/{text}"
    return name, msgspec.structs.replace(event, text=text, queued=name == "queue", addressed=True)


def _is_for(question: PendingQuestion, event: Event) -> bool:
    """Whether a message is by the person who was asked. One that only forwards others' words leaves the question open."""
    return question.asked == event.sender.id and (bool(event.text.strip()) or event.forwarded is None)


class Inbox:
    """Stores events and hands them to the workers. Methods run on the event loop unless they say otherwise."""

    def __init__(self, services: Services, workers: Workers, cluster: Cluster, writer: Writer, brake: Brake) -> None:
        self._services, self._workers, self._cluster = services, workers, cluster
        self._writer, self._brake = writer, brake
        self._store, self._router, self._outbox = services.store, services.router, services.outbox
        self.note_trouble: Callable[[str, str], None] = lambda platform, text: None  # for `hermes gateway status`
        self._began = 0.0
        self._in_hand: dict[int, Request] = {}  # events that are in a lane, or were until a moment ago
        self._done: set[int] = set()  # those of them that have left their lane
        self._due: dict[str, float] = {}  # by key: when the last delayed message goes to its lane
        self._tasks: set[asyncio.Task[None]] = set()

    # ------------------------------------------------------------------------------------------ storing

    async def received(self, platform: str, event: Event) -> None:
        """Store an adapter's event, or decide that it is not for us. Returns when it is safe."""
        event = writable(event)
        if not event.words and not event.attachments:
            return
        if not self._services.access.may_talk(platform, event.sender):
            await self._refuse(platform, event)
            return
        key, shared = self._router.key_of(event)
        if not (pressed(event.text) or self._router.is_meant(event, key) or self._is_answer(key, event)):
            return
        beside = partial(self._router.key_beside, key, event) if event.chat.type == DM else None
        if (said := asked_by_command(event)) is not None:
            name, event = said
            if name == "background":
                key, beside = background_key(key, event.id), None
        chat, sender = event.chat, event.sender
        incoming = IncomingEvent(
            key, chat.connection, event.id, self._masked(event), as_json(chat), chat.type,
            chat.name or (sender.name if chat.type == DM else None), None if shared else sender.id, shared, beside,
        )  # fmt: skip
        await self._writer(self._store.receive, incoming, then=partial(self._on_stored, event, incoming.event))

    async def reacted(self, platform: str, event: Event) -> None:
        """Take an emoji as the answer to the question that waits in its chat, if it is at that question's message and by the
        person who was asked."""
        key, _ = self._router.key_of(event)
        if not self._services.access.may_talk(platform, event.sender) or not self._is_answer(key, event):
            return
        lane = self._workers.get(key)
        since = lane.data.since if lane is not None and isinstance(lane.data, PendingQuestion) else 0.0
        for _ in range(_LOOKS):
            if event.reply_to is None or await asyncio.to_thread(
                self._store.read, gateway_outbox.is_question, platform, event.chat.chat_id, event.reply_to, since
            ):
                await self.received(platform, event)
                return
            await asyncio.sleep(_LOOK)  # the message's id is noted a moment after it was sent

    async def speak(self, key: str, event: Event, wanted: Callable[[], bool]) -> None:
        """Have the agent answer an event of the gateway's own, under a key; returns when the answer was delivered.

        When it is no longer `wanted`, the turn is stopped. PlatformError when it is not delivered.
        """
        platform = event.chat.connection
        incoming = IncomingEvent(key, platform, event.id, self._masked(event))
        await self._writer(self._store.receive, incoming, then=partial(self._on_stored, event, incoming.event))
        while True:
            found = await asyncio.to_thread(self._store.read, gateway_inbox.progress, platform, event.id)
            if found is None:
                raise PlatformError("the event to be answered is no longer in the inbox")
            finished, unsent, error = found
            if error is not None:
                raise PlatformError(error)
            if finished and not unsent:
                return
            if not await asyncio.to_thread(wanted):
                for request in self._in_hand.values():
                    if request.event.id == event.id:
                        request.stop.want()
                raise PlatformError("the request was withdrawn")
            await asyncio.sleep(0.1)

    def _masked(self, event: Event) -> str:
        return as_json(masked(event, self._services.db.masked))

    async def _refuse(self, platform: str, event: Event) -> None:
        """Handle a person without access: in a direct chat they get a pairing code."""
        _log.getChild(platform).info("no access: %s in %s", event.sender.id, place_of(event.chat))
        code = await asyncio.to_thread(self._services.access.pairing_code, event)
        if code is not None:
            await asyncio.to_thread(self._outbox.post, event.chat, greeting(code), answers=event)

    def _is_answer(self, key: str, event: Event) -> bool:
        """Whether a message answers a question of a turn, here or in another gateway."""
        lane = self._workers.get(key)
        if lane is not None and isinstance(lane.data, PendingQuestion) and _is_for(lane.data, event):
            return True
        return read_answer(event.text) is not None and self._store.read(
            instances.served_elsewhere, key, self._cluster.name
        )

    def _on_stored(self, event: Event, stored: str, kept: ReceiveResult) -> None:
        """An event is stored. Called in order of arrival, even if the adapter did not wait for it."""
        number, fence = kept.id, self._cluster.fence
        answering = self._answering(fence)
        if number is None or number in answering:
            return  # a redelivery
        # An event that left its lane unanswered is taken up again by `follow`. So is the first event of a chat that another
        # instance served until now: replies of that instance may wait in the outbox, and `follow` sends them first.
        ahead = all(one in answering and one not in self._done for one in kept.before)
        if kept.serving != self._cluster.name or kept.moved or not fence[1] or not ahead:
            self._cluster.wake()  # if it is ours, `follow` finds it in its order
            return
        request = self._in_hand[number] = Request(number, event, stored, fence)
        self._start(kept.key, request)

    def _answering(self, fence: tuple[str, int]) -> frozenset[int]:
        """The events in a lane under this lease. The requests of an earlier lease end without an answer."""
        return frozenset(number for number, request in self._in_hand.items() if request.fence == fence)

    # ------------------------------------------------------------------------------------------ polling the store

    async def follow(self) -> None:
        """Take up events that wait for us in the store, oldest first, and send other gateways' messages; until cancelled."""
        cluster = self._cluster
        while True:
            cluster.looks()
            fence, held = cluster.fence, cluster.held()
            for number in self._done:
                self._in_hand.pop(number, None)
            self._done.clear()
            sending, left = self._outbox.under_way(list(held))
            try:
                rows, parts = await asyncio.to_thread(
                    self._store.find_work, cluster.name, self._answering(fence), sending
                )
            except HermesError as error:
                _log.warning("could not look for waiting events: %s", error)
            else:
                same = [platform for platform, one in held.items() if cluster.held().get(platform) is one]
                if fence == cluster.fence and fence[1] and not self._services.stopping:
                    sent = [part for part in parts if part.platform in same]
                    answering = self._answering(fence)
                    waiting = self._outbox.take(sent, left, answering)  # first: they are older than these events
                    self._take([row for row in rows if row.id not in answering], fence)
                    for platform in same:
                        held[platform].ready = platform not in waiting
            await cluster.woken()

    def _take(self, rows: Sequence[Received], fence: tuple[str, int]) -> None:
        for row in rows:
            try:
                request = Request(row.id, from_json(row.event, Event), row.event, fence)
                request.follow(row)
            except ValueError as error:
                _log.error("skipping an unreadable event: %s", error)
                self._in_thread(self._store.finish, row.id, row.platform, "")
                continue
            self._in_hand[row.id] = request
            if row.received_at >= self._began or pressed(request.event.text):
                self._start(row.key, request)
            else:  # an event left by an earlier process interrupts nothing; the brake has counted it
                wait = self._brake.wait(row.platform, request.event.sender.id or "", time.monotonic())
                self._add_later(wait, row.key, request)

    def begin(self) -> None:
        """Record when this process began, and load the delays of the previous process; from any thread."""
        self._began = self._services.clock()
        self._brake.restore(str(self._services.db.get_meta(BRAKE) or "[]"), time.monotonic(), time.time())

    def answered(self, inbox_id: int) -> None:
        """Note that a reply is about to be sent; from any thread."""
        self._brake.done(inbox_id)

    def done(self, request: Request) -> None:
        """Note that a request has left its lane; from any thread."""
        self._brake.done(request.inbox_id)
        self._services.calls(self._left, request)  # queued there after the calls that send its reply

    def _left(self, request: Request) -> None:
        if self._in_hand.get(request.inbox_id) is request:  # not taken up again under a newer lease
            self._done.add(request.inbox_id)

    # ------------------------------------------------------------------------------------------ handing to a lane

    def _start(self, key: str, request: Request) -> None:
        """Answer an event when its turn comes. Answers to questions and /stop are handled at once."""
        lane = self._workers.get(key)
        running = None if lane is None else self._workers.current(lane)
        if (press := pressed(request.event.text)) is not None:
            self._press(press, request)
            return
        if lane is not None and running is not None:
            event = request.event
            question = lane.data
            if isinstance(question, PendingQuestion) and _is_for(question, event) and not event.queued:
                answer = read_answer(event.text)
                question.answer.put(bool(answer))
                if answer is not None:
                    self._in_thread(self._is_heard, request)
                    return
            command = parse(event.text.strip())
            if command == ("queue", ""):
                self._in_thread(self._tell_queue, request, self._workers.waiting(lane))
                return
            stops = command is not None and command[0] == "stop"
            speaks = (
                command is None
                and not event.queued
                and self.interrupts(event)
                and is_turn(running)
                and not self._router.is_remark(key, event)
            )
            if (stops or speaks) and not self._may_interrupt(event, running):
                request.refused = stops
            elif stops or speaks:
                if speaks and self.is_quick(running, request):
                    running.joined = True
                running.stop.want()
                request.stops = True
        self._when_due(key, request)

    def _press(self, press: Press, request: Request) -> None:
        """A button was pressed: it answers its own question, by the person who was asked, and no other one."""
        open_ones = (one for one in self._workers.data() if isinstance(one, PendingQuestion))
        question = next((one for one in open_ones if one.id == press.question), None)
        if question is None:
            self._in_thread(self._tell, request, CLOSED)
        elif question.asked != request.event.sender.id:
            self._in_thread(self._tell, request, NOT_YOURS)
        else:
            question.answer.put(press.yes)
            self._in_thread(self._is_heard, request)

    def interrupts(self, event: Event) -> bool:
        """Whether a message interrupts the reply that is being written in its chat."""
        display = self._services.config.display
        return bool(display.platforms.get(event.chat.platform, {}).get("busy", display.busy) == "interrupt")

    def _may_interrupt(self, event: Event, running: Any) -> bool:
        """Whether this person may interrupt the running turn: it answers them, it answers no person, or they are the owner."""
        asker = running.event.sender.id if isinstance(running, Request) else None
        return asker in (None, event.sender.id) or self._services.access.is_owner(event.chat.platform, event.sender)

    def is_quick(self, one: Any, other: Any) -> bool:
        """Whether one message follows another of the same person so quickly that one reply answers both."""
        if not (isinstance(one, Request) and isinstance(other, Request) and self.interrupts(one.event)):
            return False
        who = one.event.sender.id
        return (
            who is not None
            and who == other.event.sender.id
            and not one.begun
            and not (one.event.queued or other.event.queued)
            and parse(one.event.text.strip()) is None
            and parse(other.event.text.strip()) is None
            and other.at - one.at <= self._services.config.gateway.debounce_seconds
        )

    def _is_heard(self, request: Request) -> None:
        """Finish an event that was the answer to a question: it gets no reply of its own."""
        try:
            with self._services.db.fenced(*request.fence):
                self._store.finish(request.inbox_id, request.event.chat.connection, as_json(request.event.chat))
        finally:
            self.done(request)

    def _tell_queue(self, request: Request, waiting: Sequence[Any]) -> None:
        """Answer `/queue` beside the reply that is being written: the messages that wait for it."""
        texts = [one.event.words for one in waiting if isinstance(one, Request)]
        lines = [f"{number}. {shortened_line(text, 80) or 'a file'}" for number, text in enumerate(texts, 1)]
        self._tell(
            request, "\n".join(["Waiting:", "", *lines]) if lines else "Nothing waits; a reply is being written."
        )

    def _tell(self, request: Request, text: str) -> None:
        """Answer an event beside the reply that is being written in its chat."""
        event = request.event
        try:
            with self._services.db.fenced(*request.fence):
                self._outbox.post(event.chat, text, at_once=True, answers=event)
                self._store.finish(request.inbox_id, event.chat.connection, as_json(event.chat))
        finally:
            self.done(request)

    def _when_due(self, key: str, request: Request) -> None:
        """Give a message to its lane, now or when the brake lets it pass. People's commands are never delayed."""
        event = request.event
        who = event.sender.id
        if who is None or parse(event.text.strip()) is not None:
            self._workers.add(key, request)
            return
        wait, begins = self._brake.delay(request.inbox_id, event.chat.connection, who, event.words, time.monotonic())
        if begins:
            self._braked(event, who)
        if wait > 0:
            kept = self._brake.kept(time.monotonic(), time.time())  # delays survive a restart
            self._in_thread(self._services.db.set_meta, BRAKE, kept)
        self._add_later(wait, key, request)

    def _add_later(self, wait: float, key: str, request: Request) -> None:
        """Give a message to its lane after a wait, and not before the messages of its chat that wait already."""
        loop = asyncio.get_running_loop()
        due = max(loop.time() + wait, self._due.get(key, 0.0) + _STEP)
        if wait <= 0 and key not in self._due:
            self._workers.add(key, request)
            return
        self._due[key] = due
        loop.call_at(due, self._is_due, key, request, due)

    def _is_due(self, key: str, request: Request, due: float) -> None:
        if self._due.get(key) == due:
            del self._due[key]
        self._workers.add(key, request)

    def _braked(self, event: Event, who: str) -> None:
        """Report to the owner that a chat may be two programs answering each other."""
        platform = event.chat.connection
        text = (
            f"{who} on {platform} writes so fast, or repeats itself so often, that it may be a program: answers are delayed"
            " more and more from now on (gateway.brake in config.yaml)"
        )
        _log.getChild(platform).warning("%s", text)
        self.note_trouble(platform, text)
        for name in self._router.adapters:
            self._in_thread(self._tell_home, name, event.chat, f"⚠️ {text}.")

    def _tell_home(self, platform: str, about: Chat, text: str) -> None:
        """Post to a platform's home chat, unless the event comes from that chat."""
        home = self._router.home_chat(platform)
        if home is not None and (home.connection, home.chat_id) != (about.connection, about.chat_id):
            self._outbox.post(home, text)

    def _in_thread(self, work: Callable[..., Any], *arguments: Any) -> None:
        task = asyncio.create_task(asyncio.to_thread(work, *arguments))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(log_failure)
