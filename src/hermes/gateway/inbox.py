"""The inbox: what came in. Each event is stored before its platform is told so, and answered once, in the order of its chat.

Of several gateways on one store the one that is connected to a platform stores its events; the instance that serves the
chat answers them (store/instances.py). Usually both are this one: then the event goes to its lane at once. All else that
waits for us in the store is found by looking there (`follow`).
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
from hermes.gateway.confirmations import Question, read_answer
from hermes.gateway.events import DM, Chat, Event, as_json, from_json, writable
from hermes.gateway.workers import tell_failure
from hermes.store.gateway_db import Arrival, Kept

if TYPE_CHECKING:
    from hermes.gateway.brake import Brake
    from hermes.gateway.cluster import Cluster
    from hermes.gateway.participants import Services
    from hermes.gateway.workers import Workers
    from hermes.store.gateway_db import Received
    from hermes.store.gateway_writer import Writer

BRAKE = "gateway_brake"  # where the store keeps whose answers wait
_log = logging.getLogger("hermes.gateway")


@dataclass(slots=True)
class Request:
    """An event that waits in a lane, or is answered in it."""

    inbox_id: int
    event: Event
    stored: str  # the event's JSON in the store: if that differs, the event was edited meanwhile
    fence: tuple[str, int]  # the lease it is answered under
    begun: bool = False  # a process that died had begun with it
    session_id: str | None = None  # and had stored it there
    message_id: int | None = None  # under this id
    stops: bool = False  # it has stopped a turn
    refused: bool = False  # it wanted to stop another person's turn
    joined: bool = False  # the next message is answered together with this one
    at: float = field(default_factory=time.monotonic)  # when it came
    shown: tuple[str, ...] = ()
    stop: Stop = field(default_factory=Stop)  # ends its turn, also one that has not begun

    def follow(self, row: Received) -> None:
        """Be what the store knows by now. The text stays as it was said, unless it was edited: the store masks secrets."""
        if row.event != self.stored:
            self.event, self.stored = from_json(row.event, Event), row.event
        self.begun, self.session_id, self.message_id = row.begun_at is not None, row.session_id, row.message_id
        self.shown = () if row.shown is None else tuple(row.shown.split("\n"))


@dataclass(slots=True)
class Reset:
    """A conversation may have to begin anew."""

    fence: tuple[str, int]
    stop: Stop = field(default_factory=Stop)


def is_turn(item: Any) -> bool:
    """Whether the agent answers something just now: a message, or the last one again. Other commands are not cut short."""
    command = parse(item.event.text.strip()) if isinstance(item, Request) else None
    return isinstance(item, Request) and (command is None or bool(item.event.attachments) or command[0] == "retry")


class Inbox:
    """Stores events and hands them to the workers. For the event loop, unless something else is said."""

    def __init__(self, services: Services, workers: Workers, cluster: Cluster, writer: Writer, brake: Brake) -> None:
        self._services, self._workers, self._cluster, self._writer, self._brake = (
            services,
            workers,
            cluster,
            writer,
            brake,
        )
        self._store, self._router, self._outbox = services.store, services.router, services.outbox
        self.note_trouble: Callable[[str, str], None] = lambda platform, text: None  # for `hermes gateway status`
        self._began = 0.0
        self._in_hand: set[int] = set()  # events that are in a lane, or were until a moment ago
        self._done: set[int] = set()  # of them those that are in none any more
        self._tasks: set[asyncio.Task[None]] = set()

    # ------------------------------------------------------------------------------------------ storing

    async def received(self, platform: str, event: Event) -> None:
        """An adapter has an event: store it, or decide that it is not for us. Returns when it is safe."""
        event = writable(event)
        if not event.text.strip() and not event.attachments:
            return
        if not self._services.access.may_talk(platform, event.sender):
            await self._refuse(platform, event)
            return
        key, shared = self._router.key_of(event)
        if not (self._router.is_meant(event, key) or self._is_answer(key, event)):
            return
        chat, sender = event.chat, event.sender
        arrival = Arrival(
            key, chat.platform, event.id, self._masked(event), as_json(chat), chat.type,
            chat.name or (sender.name if chat.type == DM else None), None if shared else sender.id, shared,
            partial(self._router.key_beside, key, event) if chat.type == DM else None,
        )  # fmt: skip
        await self._writer(self._store.keep, arrival, then=partial(self._kept, event, arrival.event))

    async def speak(self, key: str, event: Event) -> None:
        """Have the agent answer something nobody typed, under a key; returns when the answer has arrived there."""
        platform = event.chat.platform
        arrival = Arrival(key, platform, event.id, self._masked(event))
        await self._writer(self._store.keep, arrival, then=partial(self._kept, event, arrival.event))
        while True:
            found = await asyncio.to_thread(self._store.progress, platform, event.id)
            if found is None:
                raise PlatformError("what was to be said is no longer there")
            finished, unsent, error = found
            if error is not None:
                raise PlatformError(error)
            if finished and not unsent:
                return
            await asyncio.sleep(0.1)

    def _masked(self, event: Event) -> str:
        masked = self._services.db.masked
        quoted = None if event.quoted is None else masked(event.quoted)
        return as_json(msgspec.structs.replace(event, text=masked(event.text), quoted=quoted))

    async def _refuse(self, platform: str, event: Event) -> None:
        """Someone who may not talk: in a conversation of two they get a pairing code."""
        _log.getChild(platform).info("not let in: %s in %s", event.sender.id, place_of(event.chat))
        code = await asyncio.to_thread(self._services.access.pairing_code, event)
        if code is not None:
            await asyncio.to_thread(self._outbox.post, event.chat, greeting(code))

    def _is_answer(self, key: str, event: Event) -> bool:
        """Whether a message answers a question of a turn, here or in another gateway."""
        lane = self._workers.get(key)
        if lane is not None and isinstance(lane.data, Question) and lane.data.asked == event.sender.id:
            return True
        return read_answer(event.text) is not None and self._store.served_elsewhere(key, self._cluster.name)

    def _kept(self, event: Event, stored: str, kept: Kept) -> None:
        """An event is safe. This happens in the order they came, even if the adapter did not wait for it."""
        number, fence = kept.id, self._cluster.fence
        if number is None or number in self._in_hand:
            return  # a redelivery
        if kept.serving != self._cluster.name or not fence[1] or not self._in_hand.issuperset(kept.before):
            self._cluster.wake()  # if it is ours, it is found in its order
            return
        self._in_hand.add(number)
        self._start(kept.key, Request(number, event, stored, fence))

    # ------------------------------------------------------------------------------------------ looking into the store

    async def follow(self) -> None:
        """Take up what waits for us in the store, in the order it came, and send what others have to say; until cancelled."""
        cluster = self._cluster
        while True:
            cluster.looks()
            fence, held = cluster.fence, cluster.held()
            self._in_hand -= self._done
            self._done.clear()
            sending, left = self._outbox.under_way(list(held))
            known = frozenset(self._in_hand)
            try:
                rows, parts = await asyncio.to_thread(self._store.find_work, cluster.name, known, sending)
            except HermesError as error:
                _log.warning("what there is to do could not be looked for: %s", error)
            else:
                same = [platform for platform, one in held.items() if cluster.held().get(platform) is one]
                if fence == cluster.fence and not self._services.stopping:
                    sent = [part for part in parts if part.platform in same]
                    waiting = self._outbox.take(sent, left, self._in_hand)  # first: they were said before
                    self._take(rows, fence)
                    for platform in same:
                        held[platform].ready = platform not in waiting
            await cluster.woken()

    def _take(self, rows: Sequence[Received], fence: tuple[str, int]) -> None:
        for row in rows:
            if row.id in self._in_hand:
                continue
            self._in_hand.add(row.id)
            try:
                request = Request(row.id, from_json(row.event, Event), row.event, fence)
                request.follow(row)
            except ValueError as error:
                _log.error("an event can't be read and is left out: %s", error)
                self._in_thread(self._store.finish, row.id, row.platform, "")
                continue
            if row.received_at >= self._began:
                self._start(row.key, request)
            else:  # what an earlier process left interrupts nothing, and was counted by the brake
                wait = self._brake.wait(row.platform, request.event.sender.id or "", time.monotonic())
                self._add_later(wait, row.key, request)

    def begin(self) -> None:
        """Know when this process began, and whose answers waited when the one before it ended; from any thread."""
        self._began = self._services.clock()
        self._brake.restore(str(self._services.db.get_meta(BRAKE) or "[]"), time.monotonic(), time.time())

    def answered(self, inbox_id: int) -> None:
        """A reply is about to be sent; from any thread."""
        self._brake.done(inbox_id)

    def done(self, inbox_id: int) -> None:
        """An event is no longer in a lane; from any thread."""
        self._brake.done(inbox_id)
        self._services.calls(self._done.add, inbox_id)  # after what it has to send was handed over there

    # ------------------------------------------------------------------------------------------ into a lane

    def _start(self, key: str, request: Request) -> None:
        """Answer it, in its turn. What can't wait for its turn: an answer to a question, and /stop."""
        lane = self._workers.get(key)
        running = None if lane is None else self._workers.current(lane)
        if lane is not None and running is not None:
            event = request.event
            question = lane.data
            if isinstance(question, Question) and question.asked == event.sender.id:
                answer = read_answer(event.text)
                question.answer.put(bool(answer))
                if answer is not None:
                    self._in_thread(self._is_heard, request)
                    return
            command = parse(event.text.strip())
            stops = command is not None and command[0] == "stop"
            speaks = (
                command is None
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

    def interrupts(self, event: Event) -> bool:
        """Whether a message ends the reply that is being written where it arrives."""
        display = self._services.config.display
        return bool(display.platforms.get(event.chat.platform, {}).get("busy", display.busy) == "interrupt")

    def _may_interrupt(self, event: Event, running: Any) -> bool:
        """Whether this person may end what runs: it answers them, or nobody, or they are the owner."""
        asker = running.event.sender.id if isinstance(running, Request) else None
        return asker in (None, event.sender.id) or self._services.access.is_owner(event.chat.platform, event.sender)

    def is_quick(self, one: Any, other: Any) -> bool:
        """Whether one message follows another of the same person so soon that both are answered together."""
        if not (isinstance(one, Request) and isinstance(other, Request) and self.interrupts(one.event)):
            return False
        who = one.event.sender.id
        return (
            who is not None
            and who == other.event.sender.id
            and not one.begun
            and parse(one.event.text.strip()) is None
            and parse(other.event.text.strip()) is None
            and other.at - one.at <= self._services.config.gateway.debounce_seconds
        )

    def _is_heard(self, request: Request) -> None:
        """An event was the answer to a question; that is all."""
        try:
            with self._services.db.fenced(*request.fence):
                self._store.finish(request.inbox_id, request.event.chat.platform, as_json(request.event.chat))
        finally:
            self.done(request.inbox_id)

    def _when_due(self, key: str, request: Request) -> None:
        """Give a message to its lane, now or when the brake lets it pass. Commands of people don't wait."""
        event = request.event
        who = event.sender.id
        if who is None or parse(event.text.strip()) is not None:
            self._workers.add(key, request)
            return
        wait, begins = self._brake.delay(request.inbox_id, event.chat.platform, who, event.text, time.monotonic())
        if begins:
            self._braked(event, who)
        if wait > 0:
            kept = self._brake.kept(time.monotonic(), time.time())  # a restart does not set them free
            self._in_thread(self._services.db.set_meta, BRAKE, kept)
        self._add_later(wait, key, request)

    def _add_later(self, wait: float, key: str, request: Request) -> None:
        if wait > 0:
            asyncio.get_running_loop().call_later(wait, self._workers.add, key, request)
        else:
            self._workers.add(key, request)

    def _braked(self, event: Event, who: str) -> None:
        """Tell the owner that a conversation seems to run by itself."""
        platform = event.chat.platform
        text = (
            f"{who} on {platform} writes so fast, or so often the same, that it may be a program: answers wait longer and"
            " longer from now on (gateway.brake in config.yaml)"
        )
        _log.getChild(platform).warning("%s", text)
        self.note_trouble(platform, text)
        for name in self._router.adapters:
            self._in_thread(self._tell_home, name, event.chat, f"⚠️ {text}.")

    def _tell_home(self, platform: str, about: Chat, text: str) -> None:
        """Say something in a platform's home chat, unless that is where it happens."""
        home = self._router.home_chat(platform)
        if home is not None and (home.platform, home.chat_id) != (about.platform, about.chat_id):
            self._outbox.post(home, text)

    def _in_thread(self, work: Callable[..., Any], *arguments: Any) -> None:
        task = asyncio.create_task(asyncio.to_thread(work, *arguments))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(tell_failure)
