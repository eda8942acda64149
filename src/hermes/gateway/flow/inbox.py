"""The inbox: incoming events, their edits and deletions.

Each is stored before it is acknowledged to its platform, and answered once, in the order of its conversation.

The gateway that holds a connection stores its events and answers them. When it takes a connection, it begins with the events
that an earlier holder has left (`resume`).

Each sender has a rate limit, so that two programs do not answer each other without end. A round is a message sent after
everything its sender had sent before was answered; a burst of messages is one round. People make few rounds a minute; beyond
the limit, answers wait until a minute has no more rounds than it allows. Nothing is lost: delayed messages wait in the inbox.
A restarted gateway counts from the beginning.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from hermes.agent.turn import Stop
from hermes.commands.registry import parse
from hermes.errors import PlatformError, PlatformUnreachable
from hermes.gateway.chats.access import greeting, place_of, words_of
from hermes.gateway.events import DM, Event, Revision, as_json, from_json, masked, platform_of, writable
from hermes.gateway.flow.turns import PendingQuestion, Press, pressed, read_answer, start
from hermes.gateway.notices import language_of, say
from hermes.store.gateway import inbox
from hermes.store.gateway.inbox import IncomingEvent, ReceiveResult
from hermes.texts import shortened_line

if TYPE_CHECKING:
    from hermes.gateway.chats.participants import Services
    from hermes.gateway.connection import Holding
    from hermes.gateway.flow.turns import Conversation, Turns
    from hermes.store.gateway.inbox import KnownEvent, Received


_log = logging.getLogger("hermes.gateway")


@dataclass(slots=True)
class Request:
    """An event that waits in its conversation, or is being answered there."""

    inbox_id: int
    event: Event
    stored: str  # the event's JSON in the store: if that differs, the event was edited meanwhile
    fence: tuple[str, int]  # the lease under which it is answered
    begun: bool = False  # a process that died had begun to answer it
    session_id: str | None = None  # the session in which that process stored it
    message_id: int | None = None  # the message id it has there
    stops: bool = False  # it has stopped a turn
    refused: bool = False  # it tried to stop another person's turn
    is_remark: bool = False  # it is addressed to other people in a shared thread
    joined: bool = False  # the next message is answered together with this one, unless its reply is shown already
    due: float = 0.0  # when it may be answered, by the monotonic clock
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
    due: float = 0.0


def is_turn(item: Any) -> bool:
    """Whether the agent is answering: a message, or a retry of the last one. Other commands are not interrupted."""
    command = parse(item.event.text.strip()) if isinstance(item, Request) else None
    return isinstance(item, Request) and (command is None or bool(item.event.attachments) or command[0] == "retry")


def queued(event: Event) -> Event:
    """The message of `/queue TEXT`; other events unchanged."""
    command = parse(event.text.strip())
    if command is None or command[0] != "queue" or not (command[1] or event.attachments):
        return event
    text = command[1]
    if parse(text) is not None:  # the message is a text, also one that begins with a slash
        text = f"/{text}"
    return msgspec.structs.replace(event, text=text, queued=True, addressed=True)


def _is_for(question: PendingQuestion, event: Event) -> bool:
    """Whether a message is by the person whom the question is for. A forwarded text alone leaves the question open."""
    return question.person_id == event.sender.id and (bool(event.text.strip()) or event.forwarded is None)


class Inbox:
    """Stores events and hands them to their conversations. Methods run on the event loop unless they say otherwise."""

    def __init__(self, services: Services, turns: Turns, holding: Holding, limit: RateLimit) -> None:
        self._services, self._turns, self._holding, self._limit = services, turns, holding, limit
        self._store, self._router, self._outbox = services.store, services.router, services.outbox
        self.note_trouble: Callable[[str, str], None] = lambda platform, text: None  # for `hermes gateway status`
        self._requests: dict[int, Request] = {}  # events that wait in their conversation, or are being answered
        self._decision_lock = asyncio.Lock()  # as below
        self._store_lock = asyncio.Lock()  # one at a time: events are answered in the order in which they are stored
        self._tasks: set[asyncio.Task[Any]] = set()

    # ------------------------------------------------------------------------------------------ storing

    async def received(self, platform: str, event: Event) -> None:
        """Store an adapter's event, or decide that it is not for us. Returns when it is safe."""
        event = writable(event)
        if not event.words and not event.attachments:
            return
        async with self._decision_lock:
            found = await asyncio.to_thread(self._decided, platform, event)
        if found is None:
            await self._refuse(platform, event)
            return
        key, shared, is_meant, is_remark = found
        if not (pressed(event.text) or is_meant or self._is_answer(key, event)):
            return
        beside = partial(self._router.key_beside, key, event) if event.chat.type == DM else None
        event = queued(event)
        chat, sender = event.chat, event.sender
        incoming = IncomingEvent(
            key, chat.connection, event.id, self._masked(event), as_json(chat), chat.type,
            chat.name or (sender.name if chat.type == DM else None), None if shared else sender.id, shared, beside,
        )  # fmt: skip
        await self._keep(event, incoming, is_remark)

    def _decided(self, platform: str, event: Event) -> tuple[str, bool, bool, bool] | None:
        """An event's key, whether several share it, whether the event is meant for us, and whether it is a remark to others;
        None for a person without access. Reads the store, so it runs in a thread."""
        if not self._services.access.may_talk(platform, event.sender):
            return None
        key, shared = self._router.key_of(event)
        is_meant = self._router.is_meant(event, key)
        return key, shared, is_meant, is_meant and self._router.is_remark(key, event)

    async def _keep(self, event: Event, incoming: IncomingEvent, is_remark: bool = False) -> None:
        """Store an event and hand it over, also if the adapter no longer waits for that."""
        task = asyncio.create_task(self._store_event(event, incoming, is_remark))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        await asyncio.shield(task)

    async def _store_event(self, event: Event, incoming: IncomingEvent, is_remark: bool) -> None:
        fence = self._holding.fence(incoming.platform)
        if fence is None:
            raise PlatformUnreachable("another gateway has this connection; the platform sends this again there")
        async with self._store_lock:
            stored = await asyncio.to_thread(self._received, incoming, fence)
            if stored.id is not None and stored.id not in self._requests:  # else it is a redelivery
                self._start(stored.key, Request(stored.id, event, incoming.event, fence, is_remark=is_remark))

    def _received(self, incoming: IncomingEvent, fence: tuple[str, int]) -> ReceiveResult:
        with self._services.db.fenced(*fence):  # else the gateway that took the connection would not see it
            return self._store.receive(incoming)

    async def inject_event(self, key: str, event: Event, wanted: Callable[[], bool]) -> None:
        """Have the agent answer an event of the gateway's own, under a key; returns when the answer was delivered.

        When it is no longer `wanted`, the turn is stopped. PlatformError when it is not delivered.
        """
        platform = event.chat.connection
        incoming = IncomingEvent(key, platform, event.id, self._masked(event))
        await self._keep(event, incoming)
        while True:
            found = await asyncio.to_thread(self._store.read, inbox.progress, platform, event.id)
            if found is None:
                raise PlatformError("the event to be answered is no longer in the inbox")
            finished, unsent, error = found
            if error is not None:
                raise PlatformError(error)
            if finished and not unsent:
                return
            if not await asyncio.to_thread(wanted):
                for request in self._requests.values():
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
            await asyncio.to_thread(self._outbox.post, event.chat, greeting(code, event), answers=event)

    def _is_answer(self, key: str, event: Event) -> bool:
        """Whether a message answers a question of a turn."""
        talk = self._turns.get(key)
        return talk is not None and talk.question is not None and _is_for(talk.question, event)

    # ------------------------------------------------------------------------------------------ taking and giving up

    def resume(self, rows: Sequence[Received], fence: tuple[str, int]) -> None:
        """Answer the events that an earlier holder of a connection has left, the oldest first. They interrupt nothing."""
        for row in rows:
            try:
                request = Request(row.id, from_json(row.event, Event), row.event, fence)
                request.follow(row)
            except ValueError as error:
                _log.error("skipping an unreadable event: %s", error)
                start(asyncio.to_thread(self._store.finish, row.id, row.platform, ""), self._tasks)
                continue
            if pressed(request.event.text):
                self._start(row.key, request)
            else:
                self._add(row.key, request)

    def give_up(self, platform: str) -> None:
        """Interrupt the turns of a connection that another gateway has: that one answers."""
        for talk in self._turns:
            theirs = [one for one in talk.waiting if isinstance(one, Request) and one.event.chat.connection == platform]
            for item in theirs:
                talk.waiting.remove(item)
                self.done(item)
            if isinstance(talk.running, Request) and talk.running.event.chat.connection == platform:
                talk.running.stop.want()

    def answered(self, inbox_id: int) -> None:
        """Note that a reply is about to be sent; from any thread."""
        self._limit.done(inbox_id)

    def done(self, item: Any) -> None:
        """Note that an item has left its conversation."""
        if isinstance(item, Request):
            self._limit.done(item.inbox_id)
            if self._requests.get(item.inbox_id) is item:
                del self._requests[item.inbox_id]

    # ------------------------------------------------------------------------------------------ handing to a conversation

    def _start(self, key: str, request: Request) -> None:
        """Answer an event when its turn comes. Answers to questions and /stop are handled at once."""
        self._requests[request.inbox_id] = request
        if (press := pressed(request.event.text)) is not None:
            self._press(press, request)
            return
        talk = self._turns.get(key)
        if talk is not None and talk.current is not None and self._is_handled(talk, request):
            return
        event, who = request.event, request.event.sender.id
        if who is not None and parse(event.text.strip()) is None:  # people's commands are never delayed
            wait, begins = self._limit.delay(request.inbox_id, event.chat.connection, who, time.monotonic())
            if begins:
                self._slowed(event, who)
            request.due = time.monotonic() + wait if wait > 0 else 0.0
        self._add(key, request)

    def _add(self, key: str, request: Request) -> None:
        self._requests[request.inbox_id] = request
        self._turns.add(key, request)

    def _is_handled(self, talk: Conversation, request: Request) -> bool:
        """Whether a message needs no turn of its own: it answers the running turn's question, or asks what waits.

        Another one may stop the running turn first.
        """
        event, running, question = request.event, talk.current, talk.question
        command = parse(event.text.strip())
        if command == ("queue", ""):  # it leaves a question open
            self._beside(request, self._tell_queue, list(talk.waiting))
            return True
        if question is not None and _is_for(question, event) and not event.queued:
            answer = read_answer(event.text)
            question.answer.put(bool(answer))
            if answer is not None:
                self._beside(request, self._finish_answer)
                return True
        stops = command is not None and command[0] == "stop"
        speaks = (
            command is None
            and not event.queued
            and self.interrupts(event)
            and is_turn(running)
            and not request.is_remark
        )
        if (stops or speaks) and not self._may_interrupt(event, running):
            request.refused = stops
        elif stops or speaks:
            if speaks and self.continues(running, request):
                running.joined = True
            running.stop.want()
            request.stops = True
        return False

    def _press(self, press: Press, request: Request) -> None:
        """Handle a pressed button: it answers its own question alone, and only for the person whom the question is for."""
        questions = (talk.question for talk in self._turns if talk.question is not None)
        question = next((one for one in questions if one.id == press.question), None)
        if question is None:
            self._beside(request, self._tell, "question_closed")
        elif question.person_id != request.event.sender.id:
            self._beside(request, self._tell, "question_not_yours")
        else:
            question.answer.put(press.yes)
            self._beside(request, self._finish_answer)

    def _beside(self, request: Request, work: Callable[..., None], *args: Any) -> None:
        """Handle a message beside the turns of its conversation."""
        handling = asyncio.to_thread(
            self._services.persist, request.fence, place_of(request.event.chat), partial(work, request, *args)
        )
        start(handling, self._tasks).add_done_callback(lambda task: self.done(request))

    def interrupts(self, event: Event) -> bool:
        """Whether a message interrupts the reply that is being written in its chat."""
        display = self._services.config.display
        return bool(display.platforms.get(event.chat.platform, {}).get("busy", display.busy) == "interrupt")

    def _may_interrupt(self, event: Event, running: Any) -> bool:
        """Whether this person may interrupt the running turn: it answers them, it answers no person, or they are the owner."""
        asker = running.event.sender.id if isinstance(running, Request) else None
        return asker in (None, event.sender.id) or self._services.access.is_owner(event.chat.platform, event.sender)

    def continues(self, one: Any, other: Any) -> bool:
        """Whether a message and the next one are the same person's, so that one reply may answer both."""
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
        )

    def _finish_answer(self, request: Request) -> None:
        """Finish an event that was the answer to a question: it gets no reply of its own."""
        self._store.finish(request.inbox_id, request.event.chat.connection, as_json(request.event.chat))

    def _tell_queue(self, request: Request, waiting: Sequence[Any]) -> None:
        """Answer `/queue` beside the reply that is being written: the messages that wait for it."""
        texts = [one.event.words for one in waiting if isinstance(one, Request)]
        file = say("a_file", language_of(texts, request.event.sender.language))
        lines = [f"{number}. {shortened_line(text, 80) or file}" for number, text in enumerate(texts, 1)]
        self._tell(request, "queue" if lines else "queue_empty", texts, lines)

    def _tell(self, request: Request, key: str, texts: Sequence[str] = (), lines: Sequence[str] = ()) -> None:
        """Answer an event with a notice, and lines below it, beside the reply that is being written in its chat."""
        event = request.event
        text = "\n".join([say(key, language_of(texts, event.sender.language)), *(["", *lines] if lines else [])])
        self._outbox.post(event.chat, text, answers=event)
        self._finish_answer(request)

    def _slowed(self, event: Event, who: str) -> None:
        """Report, in the log and in `hermes gateway status`, that a chat may be two programs answering each other."""
        platform = event.chat.connection
        text = (
            f"{who} on {platform} writes so fast that it may be a program: no more than"
            f" {self._services.config.gateway.brake.per_minute} messages a minute are answered (gateway.brake.per_minute)"
        )
        _log.getChild(platform).warning("%s", text)
        self.note_trouble(platform, text)


WORDS = "words"  # in a message's meta: the length of the person's own text; the rest describes attachments


class Revisions:
    """Applies edits and deletions, each once: a message that its author changes on a platform is changed in the record, too.

    If the message still waits for its answer, the new text is answered, and a deleted one is not answered at all. If the
    answer has begun, the record is changed and nothing is answered again. A message that is deleted before it arrives (a
    platform may send again what could not be stored) is not answered.
    """

    def __init__(self, services: Services) -> None:
        self._services, self._store = services, services.store

    async def take(self, platform: str, revision: Revision) -> None:
        """Apply an adapter's edit or deletion. Returns when it is stored."""
        event = None if revision.event is None else queued(writable(revision.event))
        if event is not None and not event.words and not event.attachments:
            return
        await asyncio.to_thread(self._apply, platform, revision, event)

    def _apply(self, platform: str, revision: Revision, event: Event | None) -> None:
        store = self._store
        if store.read(inbox.is_noted, platform, revision.id):
            return
        while (known := store.read(inbox.find_event, platform, revision.revises)) is None:
            if event is not None or store.write(inbox.keep_deletion, platform, revision.revises):
                return
        if event is not None and not self._is_author(known, platform, event):
            log = logging.getLogger(f"hermes.gateway.{platform}")
            log.warning("a person other than the author tried to edit a message; it is unchanged")
            return
        if known.inbox_id is not None and not known.message_ids:
            if self._waits(known, event):
                store.write(inbox.note, platform, revision.id)
                return
            known = store.read(inbox.find_event, platform, revision.revises)  # its answer began a moment ago
        ids = known.message_ids if known is not None else []
        for message_id in ids:
            self._in_record(message_id, event)
        store.write(inbox.note, platform, revision.id, ids[-1] if ids else None)
        self._services.index.touched()

    def _is_author(self, known: KnownEvent, platform: str, event: Event) -> bool:
        """Whether the author edits it, as far as we know. An answered message is not changed by a person who does not see its
        conversation; between those who talk there the adapter has checked it."""
        who = event.sender.id
        if known.event is not None:
            return from_json(known.event, Event).sender.id == who
        user = (platform_of(platform), who or "")
        return who is None or all(
            self._services.db.session_of_message(one, visible_to=user) is not None for one in known.message_ids
        )

    def _waits(self, known: KnownEvent, event: Event | None) -> bool:
        """Change the waiting event in the inbox; False when it does not wait there any more."""
        revised = None
        if event is not None and known.event is not None:
            text = self._services.db.masked(event.text)
            revised = as_json(msgspec.structs.replace(from_json(known.event, Event), text=text))
        return known.inbox_id is not None and self._store.write(inbox.revise, known.inbox_id, revised)

    def _in_record(self, message_id: int, event: Event | None) -> None:
        db = self._services.db
        if event is None:
            db.redact_message(message_id)
            return
        found = self._store.content_of(message_id)
        if found is None:
            return
        shared = self._services.router.key_of(event)[1]
        content = with_words(*found, words_of(db, event, shared=shared))
        if content is not None:
            db.edit_message(message_id, content)


def with_words(content: Any, meta: Any, words: str) -> Any:
    """A message's content with a new text; its attachments stay. None when text and attachments can't be separated."""
    length = meta.get(WORDS) if isinstance(meta, dict) else None
    if isinstance(content, str):
        return words if length is None else f"{words.strip()}{content[length:]}".strip()
    if not isinstance(content, list) or not isinstance(length, int):
        return None
    first, *rest = content
    if not isinstance(first, dict) or not isinstance(first.get("text"), str):
        return None
    return [{**first, "text": f"{words.strip()}{first['text'][length:]}".strip()}, *rest]


MINUTE = 60.0
_SENDERS = 5000  # remembered at most; then those whose last round is a minute old are forgotten


@dataclass(slots=True)
class _Sender:
    answers: deque[float]  # when the last rounds were, or will be, answered
    open: set[int] = field(default_factory=set)  # messages without an answer so far
    is_slowed: bool = False


class RateLimit:
    """How long answers wait. `per_minute` rounds of one sender are free; 0: no limit."""

    def __init__(self, per_minute: int) -> None:
        self._per_minute = per_minute
        self._senders: dict[tuple[str, str], _Sender] = {}
        self._open: dict[int, _Sender] = {}

    def delay(self, number: int, platform: str, who: str, now: float) -> tuple[float, bool]:
        """How many seconds the answer to a message waits, and whether the delay begins with this round."""
        if not self._per_minute:
            return 0.0, False
        if len(self._senders) > _SENDERS:
            self._senders = {key: one for key, one in self._senders.items() if now - one.answers[-1] < MINUTE}
        sender = self._senders.setdefault((platform, who), _Sender(deque(maxlen=self._per_minute)))
        answers, was_slowed = sender.answers, sender.is_slowed
        if not sender.open:
            free_at = answers[0] + MINUTE if len(answers) == self._per_minute else now
            answers.append(max(now, free_at))
            sender.is_slowed = free_at > now
        sender.open.add(number)
        self._open[number] = sender
        return max(0.0, answers[-1] - now), sender.is_slowed and not was_slowed

    def done(self, number: int) -> None:
        """Note that a message is answered; from any thread."""
        if (sender := self._open.pop(number, None)) is not None:
            sender.open.discard(number)
