"""The gateway: every enabled platform in one process, each message answered once, nothing lost at a kill.

The event loop belongs to the adapters: receiving and sending. Turns run in threads, one at a time in each lane. What
they tell each other goes through the store, so that a gateway that is started again goes on where the last one was.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from hermes.agent.model_choice import named_model
from hermes.commands.registry import GATEWAY, is_known, known, parse
from hermes.errors import HermesError, PlatformError, PlatformUnreachable, StoreGone
from hermes.gateway import hooks, renewal, resets
from hermes.gateway.access import WELCOME, Access, greeting, is_answered, place_of
from hermes.gateway.agents import Agents
from hermes.gateway.brake import Brake
from hermes.gateway.connection import Connection
from hermes.gateway.delivery import parts_of
from hermes.gateway.events import DM, Chat, Event, as_json, from_json, writable
from hermes.gateway.growing import Growing
from hermes.gateway.handoff import Handoffs, place_key
from hermes.gateway.index import Index
from hermes.gateway.keys import build_session_key, is_shared, key_beside, source_of
from hermes.gateway.lanes import Lanes
from hermes.gateway.questions import Question, read_answer
from hermes.gateway.revisions import Revisions
from hermes.gateway.sharing import Sharing
from hermes.gateway.stopping import wind_down
from hermes.gateway.turns import Expired, Said, Turns, is_turn, said_of
from hermes.gateway.writer import Writer
from hermes.store import instances, mail, routes
from hermes.store.gateway_db import GatewayDB

if TYPE_CHECKING:
    from hermes.agent.endpoint.client import EndpointModel
    from hermes.agent.model import Model
    from hermes.config import Config
    from hermes.gateway.adapter import Adapter
    from hermes.gateway.events import Attachment
    from hermes.gateway.settings import PlatformSettings
    from hermes.store.db import SessionDB
    from hermes.store.engines.base import Tx

RESET_SECONDS = 30.0
FORGET_SECONDS = 3600.0
BRAKE = "gateway_brake"  # where the store keeps whose answers wait
WELCOME_SECONDS = 2.0
_log = logging.getLogger("hermes.gateway")


class Gateway:
    """Runs platforms. Made with open stores and made adapters; `run` lives on an event loop until `stop`."""

    def __init__(
        self, db: SessionDB, config: Config, model: Model, adapters: Sequence[tuple[Adapter, PlatformSettings]], home: Path, *,
        clock: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        self.db, self.config, self.home, self.clock = db, config, home, clock
        self.store = GatewayDB(db, clock=clock)
        self.zone = resets.time_zone(config.timezone)
        self.halted = threading.Event()  # the gateway is stopping
        self.access = Access(self.store, config.owner, {settings.platform: settings for _, settings in adapters})
        self.agents = Agents(db, config, model, home)
        self.lanes = Lanes(Turns(self).work)
        self.brake = Brake(config.gateway.brake.per_minute, config.gateway.brake.alike)
        self.connections: dict[str, Connection] = {}
        self._adapters = adapters
        self._nonce = self.store.identity()
        self._in_hand: set[int] = set()  # events that are in a lane, or were until a moment ago
        self.revised: set[int] = set()  # events whose text was changed, or that were deleted, while they waited
        self._done: set[int] = set()  # of them those that are in none any more
        self._left: dict[int, str] = {}  # parts, and their platforms, that are left for a look into the outbox to find
        names = [adapter.platform for adapter, _ in adapters]
        self.sharing = Sharing(self, names) if db.is_shared else None  # other gateways may serve the same chats
        self._index = Index(self.store, db.sessions_dir)
        self._stop = asyncio.Event()
        self._gone: StoreGone | None = None

    @property
    def stopping(self) -> bool:
        """Whether the gateway is about to end."""
        return self.halted.is_set()

    # ------------------------------------------------------------------------------------------ life

    async def run(self) -> None:
        """Connect everything and go on until `stop` is called."""
        self.loop = asyncio.get_running_loop()
        self.writer = Writer(self.store, gone=self._store_gone)
        self.connections = {
            adapter.platform: Connection(
                adapter, settings, self.store, self.writer, self.config, self._received, Revisions(self).take
            )
            for adapter, settings in self._adapters
        }
        await asyncio.to_thread(self.agents.toolbox.tools)  # reaches the MCP servers
        for problem in self.agents.toolbox.problems:
            _log.warning("%s", problem)
        menu = [(one.name, one.help) for one in known(GATEWAY)]
        if self.sharing is None:
            await asyncio.to_thread(self._take_up)
            work = [connection.run() for connection in self.connections.values()]
        else:
            work = await self._take_part(self.sharing)
        work += [connection.show_menu(menu) for connection in self.connections.values()]
        work += [Handoffs(self).run(), self._watch_resets(), self._index.follow(), self._welcome()]
        tasks = [asyncio.create_task(one) for one in work]
        for task in tasks:
            task.add_done_callback(_tell_failure)
        try:
            await self._stop.wait()
        finally:
            self.halted.set()
            await wind_down(self, tasks)
        if self._gone is not None:
            raise self._gone

    def _store_gone(self, error: StoreGone) -> None:
        """The store's file is no longer there, and does not come back by itself: end, with that error."""
        if self._gone is None:
            self._gone = error
            _log.error("the gateway ends: %s", error)
            self.stop()

    def stop(self) -> None:
        """End soon, and orderly. To be called on the event loop."""
        self._stop.set()

    async def _take_part(self, sharing: Sharing) -> list[Coroutine[Any, Any, None]]:
        """Be one of several gateways; what there is to do for it all the time."""
        for platform, connection in self.connections.items():
            connection.delivery.followed = True
            connection.delivery.sure = partial(sharing.sure, platform)
            connection.delivery.fence = partial(sharing.platform_fence, platform)
        await sharing.join()
        return [sharing.run(), sharing.follow(), *(sharing.keep(one) for one in self.connections.values())]

    def known_work(self, platforms: Sequence[str]) -> tuple[set[int], dict[str, set[int]], set[int]]:
        """What is in hand: events, and what is being sent to these platforms; and the parts that were left to be found.

        What was done with until now is forgotten.

        Whoever looks into the store after this finds nothing of that there; what is done with later may still be found.
        """
        self._in_hand -= self._done
        self._done.clear()
        sending = {}
        for platform in platforms:
            delivery = self.connections[platform].delivery
            delivery.forget_through()
            sending[platform] = set(delivery.under_way)
        return set(self._in_hand), sending, set(self._left)

    def take_work(
        self, rows: Sequence[mail.Received], parts: Sequence[mail.Outgoing], left: set[int], fence: tuple[str, int]
    ) -> set[str]:
        """Parts to send and events to answer that were found in the store. The parts come first: they were said before.

        Of the parts that had been left to be found none is any more. The platforms for which others were left since then.
        """
        for part in parts:
            delivery = self.connections[part.platform].delivery
            in_hand = part.inbox_id in self._in_hand or part.inbox_id in delivery.replies
            if in_hand and part.id not in self._left:
                continue  # whoever answers it sends it, too
            if part.nonce.startswith(self._question_nonce):
                delivery.post_at_once(part)
            else:
                delivery.post(part)
        for number in left:
            self._left.pop(number, None)
        for row in rows:
            if row.id in self._in_hand:
                continue
            self._in_hand.add(row.id)
            said = self._readable(row)
            if said is None:
                self._in_thread(self.store.finish, row.id, row.platform, "")
            else:
                said.fence = fence
                self._put_into_lane(row.key, said)
        return set(self._left.values())

    def _readable(self, row: mail.Received) -> Said | None:
        """An event as the store has it; None when it can't be read."""
        try:
            return said_of(row)
        except ValueError as error:
            _log.error("an event can't be read and is left out: %s", error)
            return None

    def _take_up(self) -> None:
        """What an earlier process left: parts to send, and events to answer."""
        self.brake.restore(str(self.db.get_meta(BRAKE) or "[]"), time.monotonic(), time.time())
        for part in self.store.unsent():
            if part.nonce.startswith(self._question_nonce):  # whoever asked is gone, and nobody waits for the answer
                self.store.leave_unsent(part.id, "the turn that asked this has ended")
            else:
                self._on_loop(self._post_now, part)
        for row in self.store.unanswered():
            if row.platform not in self.connections:
                _log.warning("%s is not enabled; a message from it waits", row.platform)
                continue
            said = self._readable(row)
            if said is None:
                self.store.finish(row.id, row.platform, "")
            else:
                self._in_hand.add(row.id)
                wait = self.brake.wait(row.platform, said.event.sender.id or "", time.monotonic())
                if wait > 0:
                    self._on_loop(self.loop.call_later, wait, self.lanes.add, row.key, said)
                else:
                    self.lanes.add(row.key, said)

    # ------------------------------------------------------------------------------------------ coming in

    async def _received(self, connection: Connection, event: Event) -> None:
        """An adapter has an event: keep it, or decide that it is not for us. Returns when it is safe."""
        event = writable(event)
        if not event.text.strip() and not event.attachments:
            return
        if not self.access.may_talk(connection.platform, event.sender):
            await self._stranger(connection, event)
            return
        key, shared = self.key_of(event)
        if not self._is_for_us(connection, event, key):
            return
        await self.writer(lambda tx: self._keep(tx, key, event, shared), lambda kept: self._kept(*kept, event))

    def _kept(self, key: str, number: int | None, event: Event) -> None:
        """An event is safe. This happens in the order they came, even if the adapter did not wait for it."""
        if self.sharing is not None:
            self.sharing.wake()  # it may be another's to answer; if it is ours, it comes in its order
        elif number is not None and number not in self._in_hand:  # else it is a redelivery
            self._in_hand.add(number)
            self._put_into_lane(key, Said(number, event))

    def done_with(self, inbox_id: int) -> None:
        """An event is no longer in a lane; from any thread."""
        self.brake.done(inbox_id)
        self.revised.discard(inbox_id)
        if self.sharing is None:
            self._in_hand.discard(inbox_id)
        else:
            self._on_loop(self._done.add, inbox_id)  # after what it has to send was handed over there

    def _keep(self, tx: Tx, key: str, event: Event, shared: bool) -> tuple[str, int | None]:
        """In one transaction: the event, and the route it belongs to; that route's key and the event's number.

        Whose a conversation of two is, is looked at here: of two people who write at once, only one can be the first.
        """
        chat, sender, now = event.chat, event.sender, self.clock()
        if chat.type == DM and (route := routes.get(tx, key)) is not None:
            key = key_beside(key, source_of(event), route.user_id, home=self.home)
        fresh = self._receive(tx, key, event)
        if fresh is not None:
            routes.put(
                tx, key, platform=chat.platform, chat_type=chat.type, chat=as_json(chat),
                display_name=chat.name or (sender.name if chat.type == DM else None),
                user_id=None if shared else sender.id, shared=shared, now=now,
            )  # fmt: skip
        return key, fresh

    def _receive(self, tx: Tx, key: str, event: Event) -> int | None:
        if self.sharing is not None:
            instances.assign(tx, key, event.chat.platform)
        quoted = None if event.quoted is None else self.db.masked(event.quoted)
        kept = msgspec.structs.replace(event, text=self.db.masked(event.text), quoted=quoted)
        return mail.receive(tx, event.chat.platform, event.id, key, as_json(kept), self.clock())

    async def _stranger(self, connection: Connection, event: Event) -> None:
        connection.log.info("not let in: %s in %s", event.sender.id, place_of(event.chat))
        code = await asyncio.to_thread(self.access.pairing_code, event)
        if code is not None:
            await asyncio.to_thread(self.post, event.chat, greeting(code))

    def key_of(self, event: Event) -> tuple[str, bool]:
        """The key an event belongs to, and whether several share it. A place a session was handed to keeps its key."""
        source, config = source_of(event), self.config
        shared = is_shared(source, config.group_sessions_per_user, config.thread_sessions_per_user)
        key = build_session_key(
            source, group_sessions_per_user=config.group_sessions_per_user,
            thread_sessions_per_user=config.thread_sessions_per_user, home=self.home,
        )  # fmt: skip
        if event.chat.type == DM:
            return key, shared
        handed, for_all = place_key(self, event.chat)
        if handed != key and (event.chat.thread_id is not None or self.access.is_owner(source.platform, event.sender)):
            route = self.store.route(handed)
            if route is not None and route.session_id is not None:
                return handed, for_all
        return key, shared

    def _is_for_us(self, connection: Connection, event: Event, key: str) -> bool:
        needed = self._needs_mention(connection)
        takes_part = needed and event.chat.thread_id is not None and self.store.route(key) is not None
        if is_answered(event, needs_mention=needed, takes_part=bool(takes_part)):
            return True
        command, lane = parse(event.text.strip()), self.lanes.get(key)
        asked = lane is not None and isinstance(lane.data, Question) and lane.data.asked == event.sender.id
        if self.sharing is not None and not asked and read_answer(event.text) is not None:  # another may have asked
            name = self.sharing.name
            asked = self.store.look(lambda tx: instances.served_elsewhere(tx, key, name))
        return asked or (command is not None and is_known(command[0], GATEWAY))  # others' commands are for other bots

    def _put_into_lane(self, key: str, said: Said) -> None:
        """Answer it, in its turn. What can't wait for its turn: an answer to a question, and /stop."""
        lane = self.lanes.get(key)
        running = None if lane is None else self.lanes.current(lane)
        if lane is not None and running is not None:
            event = said.event
            question = lane.data
            if isinstance(question, Question) and question.asked == event.sender.id:
                answer = read_answer(event.text)
                question.answer.put(bool(answer))
                if answer is not None:
                    self._in_thread(self._heard, said)
                    return
            command = parse(event.text.strip())
            stops = command is not None and command[0] == "stop"
            speaks = command is None and self.interrupts(event) and is_turn(running) and not self.is_remark(key, event)
            if (stops or speaks) and not self._may_interrupt(event, running):
                said.refused = stops
            elif stops or speaks:
                if speaks and self.is_quick(running, said):
                    running.joined = True
                running.stop.want()
                said.stops = True
        self._when_due(key, said)

    def interrupts(self, event: Event) -> bool:
        """Whether a message ends the reply that is being written where it arrives."""
        display = self.config.display
        return bool(display.platforms.get(event.chat.platform, {}).get("busy", display.busy) == "interrupt")

    def _may_interrupt(self, event: Event, running: Any) -> bool:
        """Whether this person may end what runs: it answers them, or nobody, or they are the owner."""
        asker = running.event.sender.id if isinstance(running, Said) else None
        return asker in (None, event.sender.id) or self.access.is_owner(event.chat.platform, event.sender)

    def is_quick(self, one: Any, other: Any) -> bool:
        """Whether one message follows another of the same person so soon that both are answered together."""
        if not (isinstance(one, Said) and isinstance(other, Said) and self.interrupts(one.event)):
            return False
        who = one.event.sender.id
        return (
            who is not None
            and who == other.event.sender.id
            and not one.begun
            and parse(one.event.text.strip()) is None
            and parse(other.event.text.strip()) is None
            and other.at - one.at <= self.config.gateway.debounce_seconds
        )

    def is_remark(self, key: str, event: Event) -> bool:
        """Whether something is said to the others in a thread that several people share, and not to the agent."""
        connection, who = self.connections.get(event.chat.platform), event.sender.id
        if (
            event.addressed
            or event.chat.thread_id is None
            or event.chat.type == DM
            or connection is None
            or who is None
        ):
            return False
        if not self._needs_mention(connection) or parse(event.text.strip()) is not None:
            return False
        return self.store.look(lambda tx: routes.others_take_part(tx, key, event.chat.platform, who))

    @staticmethod
    def _needs_mention(connection: Connection) -> bool:
        wanted = connection.settings.require_mention
        return connection.adapter.capabilities.mention_needed if wanted is None else wanted

    def _when_due(self, key: str, said: Said) -> None:
        """Give a message to its lane, now or when the brake lets it pass. Commands of people don't wait."""
        event = said.event
        who = event.sender.id
        if who is None or parse(event.text.strip()) is not None:
            self.lanes.add(key, said)
            return
        wait, begins = self.brake.delay(said.inbox_id, event.chat.platform, who, event.text, time.monotonic())
        if begins:
            self._braked(event, who)
        if wait > 0:
            self._in_thread(self._keep_brake)
            self.loop.call_later(wait, self.lanes.add, key, said)
        else:
            self.lanes.add(key, said)

    def _keep_brake(self) -> None:
        """Note whose answers wait: a restart does not set them free."""
        if self.sharing is None:  # of several gateways each has a brake of its own
            self.db.set_meta(BRAKE, self.brake.kept(time.monotonic(), time.time()))

    def _braked(self, event: Event, who: str) -> None:
        """Tell the owner that a conversation seems to run by itself."""
        platform = event.chat.platform
        text = (
            f"{who} on {platform} writes so fast, or so often the same, that it may be a program: answers wait longer and"
            " longer from now on (gateway.brake in config.yaml)"
        )
        connection = self.connections[platform]
        connection.log.warning("%s", text)
        connection.troubled(text)
        for name in self.connections:
            self._in_thread(self._tell_home, name, event.chat, f"⚠️ {text}.")

    def _tell_home(self, platform: str, about: Chat, text: str) -> None:
        """Say something in a platform's home chat, unless that is where it happens."""
        home = self.home_chat(platform)
        if home is not None and (home.platform, home.chat_id) != (about.platform, about.chat_id):
            self.post(home, text)

    def _heard(self, said: Said) -> None:
        """An event was the answer to a question; that is all."""
        try:
            with self.fenced(said.fence):
                self.store.finish(said.inbox_id, said.event.chat.platform, as_json(said.event.chat))
        finally:
            self.done_with(said.inbox_id)

    def fenced(self, fence: tuple[str, int] | None) -> AbstractContextManager[None]:
        """In this block, what this thread stores is stored only while that lease is ours (see SessionDB.fenced)."""
        return nullcontext() if fence is None else self.db.fenced(*fence)

    async def speak(self, key: str, event: Event) -> None:
        """Have the agent answer something nobody typed, under a key; returns when the answer has arrived there."""
        platform = event.chat.platform
        await self.writer(
            lambda tx: self._receive(tx, key, event),
            lambda number: self._kept(key, number, event),
        )
        while True:
            found = await asyncio.to_thread(self.store.progress, platform, event.id)
            if found is None:
                raise PlatformError("what was to be said is no longer there")
            finished, unsent, error = found
            if error is not None:
                raise PlatformError(error)
            if finished and not unsent:
                return
            await asyncio.sleep(0.1)

    # ------------------------------------------------------------------------------------------ going out

    def growing(self, chat: Chat, said: Said, *, resumed: bool = False) -> Growing:
        """A reply that is about to be written."""
        place = self.delivered_to(chat) or chat
        nonce = f"{self._nonce}-{said.inbox_id}"
        return Growing(
            self.loop, place, inbox_id=said.inbox_id, nonce=nonce, shown=said.shown, resumed=resumed, fence=said.fence,
            reply_to=self._question(said.event, place),
        )  # fmt: skip

    def _question(self, event: Event, place: Chat) -> str | None:
        """What a reply quotes: the message it answers, where the platform can, several talk, and it is sent there."""
        adapter = self.adapter(place.platform)
        if adapter is None or not adapter.capabilities.quotes or place != event.chat:
            return None
        return event.message_id if event.chat.type != DM or not adapter.capabilities.edits else None

    def begin(self, reply: Growing) -> None:
        """Show a reply from now on; where another gateway has the platform, that one sends it when it is whole."""
        self._on_loop(self._begin, reply)

    def _begin(self, reply: Growing) -> None:
        connection = self._connected(reply.chat.platform)
        if connection is not None and not reply.begun:
            reply.begun = True
            connection.delivery.begin(reply)

    def _finished(self, reply: Growing, parts: Sequence[mail.Outgoing]) -> None:
        """A reply lies in the outbox: it is shown here, or is found there by whoever is connected, perhaps by us later."""
        self._begin(reply)
        connection = self.connections.get(reply.chat.platform)
        if self.sharing is None or (connection is not None and reply.inbox_id in connection.delivery.replies):
            return
        self._left.update({part.id: part.platform for part in parts})

    def finish(self, inbox_id: int, reply: Growing, text: str) -> None:
        """A reply is whole: it enters the outbox as its event leaves the inbox; then it is sent."""
        place = reply.chat
        pieces = parts_of(text, self.adapter(place.platform))
        parts: list[dict[str, Any]] = [{"text": piece, "nonce": reply.part_nonce(n)} for n, piece in enumerate(pieces)]
        if parts and reply.reply_to is not None:
            parts[0]["reply_to"] = reply.reply_to
        kept = self.store.finish(inbox_id, place.platform, as_json(place), parts)
        self.brake.done(inbox_id)  # before it is sent: what comes next may answer it
        reply.finish(kept)
        self._on_loop(self._finished, reply, kept)

    def new_nonce(self) -> str:
        """A name for a message that is no reply."""
        return f"{self._nonce}-n{secrets.token_hex(8)}"

    @property
    def _question_nonce(self) -> str:
        return f"{self._nonce}-q"

    def post(self, chat: Chat, text: str, *, at_once: bool = False) -> None:
        """Send something that is no reply of the agent's; from any thread but the event loop's.

        `at_once`: it is a question that a turn waits for; it does not wait behind that turn's own reply.
        """
        place = self.delivered_to(chat) or chat
        for piece in parts_of(text, self.adapter(place.platform)):
            nonce = f"{self._question_nonce}{secrets.token_hex(8)}" if at_once else self.new_nonce()
            part = self.store.post(place.platform, as_json(place), piece, nonce)
            self._on_loop(self._post_now, part, at_once)

    def send(self, part: mail.Outgoing) -> None:
        """Send what is in the outbox; from any thread."""
        self._on_loop(self._post_now, part)

    def _connected(self, platform: str) -> Connection | None:
        """A platform we are to send to."""
        return self.connections.get(platform) if self.sharing is None or self.sharing.ready(platform) else None

    def _post_now(self, part: mail.Outgoing, at_once: bool = False) -> None:
        connection = self._connected(part.platform)
        if connection is None:
            if self.sharing is None:
                _log.warning("%s is not enabled; a message to it waits in the outbox", part.platform)
            else:
                self._left[part.id] = part.platform  # whoever has the platform finds it in the outbox
        elif at_once:
            connection.delivery.post_at_once(part)
        else:
            connection.delivery.post(part)

    def adapter(self, platform: str) -> Adapter | None:
        """The adapter of a platform that is enabled."""
        connection = self.connections.get(platform)
        return None if connection is None else connection.adapter

    def delivered_to(self, chat: Chat) -> Chat | None:
        """Where what is said in a chat goes: there, or where its platform delivers to; None: nowhere."""
        adapter = self.adapter(chat.platform)
        where = getattr(adapter, "delivers_to", None)
        if where is None:
            return chat
        wanted = where(chat)
        if not wanted or wanted == "log":
            return chat  # the adapter itself notes it
        platform, _, chat_id = str(wanted).partition(":")
        if chat_id:
            return Chat(platform=platform, chat_id=chat_id)
        return self.home_chat(platform) or chat

    def home_chat(self, platform: str) -> Chat | None:
        """Where handoffs and deliveries to a platform go: as /sethome said, else as configured."""
        kept = self.store.home(platform)
        if kept is not None:
            return from_json(kept, Chat)
        connection = self.connections.get(platform)
        configured = connection.settings.home_channel if connection is not None else None
        return None if configured is None else read_home(platform, configured)

    def fetch(self, platform: str, attachment: Attachment, seconds: float) -> bytes:
        """The bytes of an attachment; from a lane's thread."""
        adapter = self.adapter(platform)
        if adapter is None:
            raise PlatformUnreachable(f"{platform} is not enabled")
        waiting: Future[bytes] = asyncio.run_coroutine_threadsafe(adapter.fetch(attachment), self.loop)
        try:
            return waiting.result(seconds)
        except TimeoutError:
            waiting.cancel()
            raise

    def side_model(self, name: str) -> EndpointModel:
        """A model for pictures or speech, beside the one that answers."""
        return named_model(name, self.agents.model)

    # ------------------------------------------------------------------------------------------ by the way

    def ended(self, session_id: str, reason: str) -> None:
        """A session has ended: the user's hooks hear of it."""
        session = self.db.get_session(session_id)
        hooks.run_hook(self.config, hooks.FINALIZE, session, reason=reason)
        if reason in (resets.IDLE, resets.DAILY):
            hooks.run_hook(self.config, hooks.RESET, session, reason=reason)

    def touched(self) -> None:
        """The routing table has changed: sessions.json follows."""
        self._index.touched()

    async def _welcome(self) -> None:
        """Tell people whom the owner has let in that they are; `hermes pairing approve` is another process."""
        while True:
            try:
                for part in await asyncio.to_thread(self.store.welcome, WELCOME):
                    self._post_now(part)
            except HermesError as error:
                _log.warning("newcomers could not be looked for: %s", error)
            await asyncio.sleep(WELCOME_SECONDS)

    async def _watch_resets(self) -> None:
        """Have quiet conversations begin anew in time; those somebody speaks in first are looked at then."""
        forget_at = self.loop.time()
        while True:
            try:
                for key in await asyncio.to_thread(renewal.expired, self):
                    self.lanes.add(key, Expired(None if self.sharing is None else self.sharing.fence))
                if self.loop.time() >= forget_at:
                    forget_at += FORGET_SECONDS
                    await asyncio.to_thread(self.store.forget_mail)
            except HermesError as error:
                _log.warning("resets could not be looked for: %s", error)
            await asyncio.sleep(RESET_SECONDS)

    # ------------------------------------------------------------------------------------------ between threads

    def _on_loop(self, work: Callable[..., Any], *arguments: Any) -> None:
        try:
            self.loop.call_soon_threadsafe(work, *arguments)
        except RuntimeError:
            pass  # the loop is over: what was to be sent is in the outbox

    def _in_thread(self, work: Callable[..., Any], *arguments: Any) -> None:
        task = self.loop.create_task(asyncio.to_thread(work, *arguments))
        task.add_done_callback(_tell_failure)


def read_home(platform: str, text: str) -> Chat:
    """A home chat as people write it: its id; a thread after a slash; `group:` or `channel:` before it, where it is one."""
    kind, sep, rest = text.partition(":")
    chat_type = kind if sep and kind in ("dm", "group", "channel") else DM
    chat_id = rest if sep and kind in ("dm", "group", "channel") else text
    return Chat(platform=platform, chat_id=chat_id, type=chat_type)


def _tell_failure(task: asyncio.Task[Any]) -> None:
    if not task.cancelled() and task.exception() is not None:
        _log.error("something the gateway was doing has failed", exc_info=task.exception())
