"""GatewayDB: what the gateway keeps beside the sessions, in the same store and in the same transactions.

One flat class over a SessionDB, like it; each method is a transaction and a call into routes.py, gateway_queues.py, approvals.py
or instances.py, which say what it promises.
Safe to share between threads; `SessionDB.fenced` counts here, too. Small writes of the gateway's event loop can be
gathered into one (`together`).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, NotRequired, ParamSpec, TypedDict, TypeVar

from hermes.store import approvals, gateway_queues, instances, lineage, routes, sessions, transcript_replay
from hermes.store.db import transactions
from hermes.store.engines.base import REDACTED, Tx
from hermes.store.gateway_queues import Outgoing, Received
from hermes.store.gateway_tables import statements
from hermes.store.instances import Instance
from hermes.store.routes import Route

if TYPE_CHECKING:
    from hermes.store.db import SessionDB
    from hermes.store.visibility import User

__all__ = [
    "Arrival",
    "GatewayDB",
    "Instance",
    "Kept",
    "Name",
    "Outgoing",
    "PendingNotice",
    "Placed",
    "PlatformStatus",
    "Received",
    "ReplyPart",
    "Route",
    "TakenUp",
]

IDENTITY = "gateway_identity"
AT_ONCE = 1000  # events or parts that are fetched at once


class PlatformStatus(TypedDict):
    """How a platform is doing: a row of `gateway_status`."""

    platform: str
    state: str
    identity: str | None
    since: float | None
    error: str | None
    error_at: float | None
    updated_at: float


class ReplyPart(TypedDict):
    """A part of a reply, sent as one message."""

    text: str
    nonce: str
    reply_to: NotRequired[str | None]


@dataclass(slots=True, frozen=True)
class PendingNotice:
    """Something to be told beside a reply."""

    platform: str
    chat: str  # JSON
    text: str
    nonce: str


@dataclass(slots=True, frozen=True)
class Name:
    """What a message is called on its platform, and what it is stored with, so that an edit or a deletion finds it."""

    event_id: str
    texts: tuple[str, str]  # what it is taken up with, as it is and masked: if the inbox says another, it is not stored
    words: int | None = None  # how much of the content was said, where the rest tells of what came with it


@dataclass(slots=True, frozen=True)
class Arrival:
    """An event as it is to be stored, and what its route shows of its chat (`chat_type` None: the route stays as it is)."""

    key: str
    platform: str
    event_id: str
    event: str  # JSON, masked
    chat: str = ""  # JSON
    chat_type: str | None = None
    display_name: str | None = None
    user_id: str | None = None  # whose conversation it becomes if it is nobody's
    shared: bool = False
    beside: Callable[[str | None], str] | None = None  # of a conversation of two: its key, given whose the route is

    def is_shown_by(self, route: Route) -> bool:
        """Whether a route tells all this already."""
        owned = route.shared or self.user_id is None or route.user_id is not None
        return owned and (route.chat, route.display_name) == (self.chat, self.display_name or route.display_name)


@dataclass(slots=True, frozen=True)
class Kept:
    """Where an event is stored."""

    key: str
    id: int | None  # None: it was answered before
    serving: str | None  # the instance that answers it
    before: tuple[int, ...]  # what else waits in that chat and came earlier


@dataclass(slots=True, frozen=True)
class TakenUp:
    """What there is to know before an event is answered."""

    event: Received | None  # None: it does not wait any more, or another instance serves its chat
    route: Route | None
    session_id: str | None  # where the route's conversation has got to by compressions
    is_member: bool  # whether the user who speaks may see that session


@dataclass(slots=True, frozen=True)
class Placed:
    """A session that was brought to a place, and what was before."""

    key: str
    session_id: str
    before: str | None  # the session that was talked in under the key
    came_from: str | None  # the key the session was talked in under


P = ParamSpec("P")
R = TypeVar("R")


def reading(question: Callable[Concatenate[Tx, P], R]) -> Callable[Concatenate[GatewayDB, P], R]:
    """The method that asks this in a transaction of its own."""

    @wraps(question)
    def method(self: GatewayDB, /, *given: P.args, **named: P.kwargs) -> R:
        with self._store.read() as tx:
            return question(tx, *given, **named)

    return method


def writing(change: Callable[Concatenate[Tx, P], R]) -> Callable[Concatenate[GatewayDB, P], R]:
    """The method that changes this in a transaction of its own."""

    @wraps(change)
    def method(self: GatewayDB, /, *given: P.args, **named: P.kwargs) -> R:
        with self._store.write() as tx:
            return change(tx, *given, **named)

    return method


class GatewayDB:
    """The gateway's part of a store. `clock` tells the time, so that a test can move it."""

    def __init__(self, db: SessionDB, *, clock: Callable[[], float] = time.time) -> None:
        self.db = db
        self.clock = clock
        self._store = transactions(db)
        self._oldest = gateway_queues.Oldest()  # of a file: what waits is not looked for below this
        if db.read_only:
            return
        if not self.is_there():
            self._store.make_tables(statements(shared=db.is_shared))
        elif not db.is_shared:
            self._lighten()

    def is_there(self) -> bool:
        """Whether a gateway has ever used this store."""
        with self._store.read() as tx:
            return tx.has_table("gateway_serving")

    def _lighten(self) -> None:
        """A file of an older version: its boxes had counters and indexes that made every message dearer to keep."""
        with self._store.read() as tx:
            heavy = gateway_queues.is_heavy(tx)
        if heavy:
            with self._store.write() as tx:
                gateway_queues.lighten(tx)

    def together(self, steps: Sequence[Callable[[Tx], Any]], *, lasting: bool = True) -> list[Any]:
        """Do several small things in one transaction; what each returned. (`lasting`: see Engine.write.)"""
        with self._store.write(lasting=lasting) as tx:
            return [step(tx) for step in steps]

    def identity(self) -> str:
        """A name of this store's gateway that no other has, for naming messages on platforms."""
        import secrets

        known = self.db.get_meta(IDENTITY)
        if known is None:
            with self._store.write() as tx:
                tx.run(
                    "INSERT INTO state_meta(key, value) VALUES(?, ?) ON CONFLICT(key) DO NOTHING",
                    (IDENTITY, secrets.token_hex(4)),
                )
            known = self.db.get_meta(IDENTITY)
        return str(known)

    # ------------------------------------------------------------------------------------------ routes

    route = reading(routes.get)

    def may_see(self, session_id: str, user: User) -> bool:
        """Whether a session is there and this user is one of those who may see it."""
        with self._store.read() as tx:
            return sessions.is_shown(tx, session_id, user)

    def end_of_chain(self, session_id: str) -> str | None:
        """Where a conversation has got to by compressions; None when its session is not there (any more)."""
        with self._store.read() as tx:
            return lineage.compression_tip(tx, session_id) if sessions.is_shown(tx, session_id, None) else None

    route_of_session = reading(routes.of_session)

    def put_route(
        self, key: str, *, platform: str, chat_type: str, chat: str, display_name: str | None, user_id: str | None, shared: bool
    ) -> Route:  # fmt: skip
        """Make a key known, or bring what is shown of it up to date; what it leads to."""
        known = self.route(key)
        if known is not None and (known.chat, known.display_name) == (chat, display_name or known.display_name):
            return known
        with self._store.write() as tx:
            return routes.put(
                tx, key, platform=platform, chat_type=chat_type, chat=chat, display_name=display_name, user_id=user_id,
                shared=shared, now=self.clock(),
            )  # fmt: skip

    def place(
        self, key: str, session_id: str, *, platform: str, chat_type: str, chat: str, display_name: str | None, shared: bool
    ) -> Placed:  # fmt: skip
        """A session is brought to a place: the key is known and leads to it, both or neither. What was before."""
        now = self.clock()
        with self._store.write() as tx:
            known, came_from = routes.get(tx, key), routes.of_session(tx, session_id)
            routes.put(
                tx, key, platform=platform, chat_type=chat_type, chat=chat, display_name=display_name, user_id=None,
                shared=shared, now=now,
            )  # fmt: skip
            routes.bind(tx, key, session_id, now)
        return Placed(
            key, session_id, None if known is None else known.session_id, None if came_from is None else came_from.key
        )

    def take_back(self, placed: Placed) -> None:
        """A session was not brought there after all: both places lead to what they led to, unless they moved on."""
        now = self.clock()
        with self._store.write() as tx:
            there = routes.get(tx, placed.key)
            if there is None or there.session_id != placed.session_id:
                return
            if placed.before is not None and placed.before != placed.session_id:
                routes.bind(tx, placed.key, placed.before, now)
            else:
                routes.let_go(tx, placed.key, now)
            origin = routes.get(tx, placed.came_from) if placed.came_from not in (None, placed.key) else None
            if origin is not None and origin.session_id is None:
                routes.bind(tx, origin.key, placed.session_id, now)

    def bind(self, key: str, session_id: str, *, notice: PendingNotice | None = None) -> Outgoing | None:
        """From now on this session is talked in under this key, and under no other.

        A notice for whom it was taken from enters the outbox with it; what is to be sent.
        """
        now = self.clock()
        with self._store.write() as tx:
            routes.bind(tx, key, session_id, now)
            if notice is None:
                return None
            return gateway_queues.post(
                tx, notice.platform, notice.chat, notice.text, notice.nonce, now, mask=self.db.masked
            )

    def let_go(self, key: str, *, previous: str | None = None, reason: str | None = None) -> None:
        """The next message under this key begins a session; after a reset it links to the previous one."""
        with self._store.write() as tx:
            routes.let_go(tx, key, self.clock(), previous=previous, reason=reason)

    def set_pending_title(self, key: str, title: str | None) -> None:
        """The session that begins next under this key is to be called so."""
        with self._store.write() as tx:
            routes.set_pending_title(tx, key, self._store.masked(title), self.clock())

    def follow(self, old: str, new: str) -> None:
        """A conversation goes on in another session: it was compressed."""
        with self._store.write() as tx:
            routes.follow(tx, old, new, self.clock())

    def move_chat(self, platform: str, old: str, new: str) -> list[str]:
        """A chat has another id from now on: its conversations and its being the home go along. The new keys."""
        with self._store.write() as tx:
            home = approvals.home(tx, platform)
            chat = None if home is None else json.loads(home)
            if chat is not None and chat.get("chat_id") == old:
                approvals.set_home(tx, platform, json.dumps({**chat, "chat_id": new}), None, self.clock())
            return routes.chat_moved(tx, platform, old, new, self.clock())

    bound_routes = reading(routes.bound)
    index = reading(routes.index)
    others_take_part = reading(routes.others_take_part)
    # ------------------------------------------------------------------------------------------ gateways of one store

    join = writing(instances.join)
    bury = writing(instances.bury)
    give = writing(instances.give)
    served_elsewhere = reading(instances.served_elsewhere)

    def instances(self, platforms: Sequence[str] = ()) -> tuple[list[Instance], bool]:
        """All instances; and whether something of these platforms waits that none of them serves."""
        with self._store.read() as tx:
            oldest = self._oldest.event if platforms else 0
            return instances.everyone(tx), bool(platforms) and instances.astray(tx, platforms, oldest)

    def find_work(
        self, name: str, known: Collection[int], sending: Mapping[str, Collection[int]]
    ) -> tuple[list[Received], list[Outgoing]]:
        """Events for this instance and parts for these platforms that it does not know of yet, the oldest first.

        Both are seen at one moment, and all parts: what was said in a chat before an event there is among them.
        """
        with self._store.read() as tx:
            if not self.db.is_shared:
                self._oldest = gateway_queues.oldest(tx, self._oldest)
            given = instances.given(tx, name, self._oldest.event)
            events = [number for number in given if number not in known][:AT_ONCE]
            waiting = gateway_queues.waiting_for(tx, list(sending), self._oldest.part)
            parts = [number for number, platform in waiting if number not in sending[platform]]
            bundles = [parts[start : start + AT_ONCE] for start in range(0, len(parts), AT_ONCE)]
            return gateway_queues.some(tx, events) if events else [], [
                part for some in bundles for part in gateway_queues.parts(tx, some)
            ]

    # ------------------------------------------------------------------------------------------ in and out

    def keep(self, tx: Tx, arrival: Arrival) -> Kept:
        """A step of `together`: store an event, and the route it belongs to, once; where it is, and who answers it.

        Whose a conversation of two is, is looked at here: of two people who write at once, only one can be the first.
        """
        key, now = arrival.key, self.clock()
        route = routes.get(tx, key)
        if arrival.beside is not None and route is not None:
            beside = arrival.beside(route.user_id)
            if beside != key:
                key, route = beside, routes.get(tx, beside)
        serving = instances.assign(tx, key, arrival.platform)
        if not self.db.is_shared:
            self._oldest = gateway_queues.oldest_event(tx, self._oldest)
        number, fresh = gateway_queues.receive(tx, arrival.platform, arrival.event_id, key, arrival.event, now)
        if number is None:
            return Kept(key, None, serving, ())
        if arrival.chat_type is not None and (route is None or not arrival.is_shown_by(route)):
            routes.put(
                tx, key, platform=arrival.platform, chat_type=arrival.chat_type, chat=arrival.chat,
                display_name=arrival.display_name, user_id=arrival.user_id, shared=arrival.shared, now=now,
            )  # fmt: skip
        return Kept(
            key,
            number,
            serving,
            tuple(gateway_queues.waiting_before(tx, key, number, self._oldest.event)) if fresh else (),
        )

    def take_up(self, inbox_id: int, key: str, name: str, user: User | None) -> TakenUp:
        """What there is to know before an event is answered by this instance, seen at one moment."""
        with self._store.read() as tx:
            waits = instances.serves(tx, name, key)
            route, event = routes.get(tx, key), gateway_queues.still(tx, inbox_id) if waits else None
            known = None if route is None else route.session_id
            tip = lineage.compression_tip(tx, known) if known and sessions.is_shown(tx, known, None) else None
            return TakenUp(event, route, tip, tip is not None and user is not None and sessions.is_shown(tx, tip, user))

    def receive(self, platform: str, event_id: str, key: str, event: str) -> int | None:
        """Keep an event; its number, also when it was kept before and waits. None when it was answered before."""
        with self._store.write() as tx:
            return gateway_queues.receive(tx, platform, event_id, key, event, self.clock())[0]

    unanswered = reading(gateway_queues.unanswered)
    progress = reading(gateway_queues.progress)

    def begin(self, inbox_id: int, session_id: str | None = None) -> None:
        """A process works on an event (by answering in that session)."""
        with self._store.write() as tx:
            gateway_queues.begin(tx, inbox_id, self.clock(), session_id)

    def say(
        self, inbox_id: int, key: str, session_id: str, content: str | list[Any], *, notice: PendingNotice | None = None,
        name: Name | None = None,
    ) -> tuple[int, Outgoing | None]:  # fmt: skip
        """Store what an event says as the user's message; its id. The event and its route know of it at once.

        A notice for the user enters the outbox with it, so that it is told once. mail.Revised when the event was edited or
        deleted meanwhile: nothing is stored then.
        """
        now = self.clock()
        posted: list[Outgoing] = []

        def also(tx: Tx, message_id: int) -> None:
            if name is not None:
                gateway_queues.check_unrevised(tx, inbox_id, name.texts)
            gateway_queues.link(tx, inbox_id, session_id, message_id, now)
            routes.spoken(tx, key, session_id, now)
            if notice is not None:
                posted.append(
                    gateway_queues.post(
                        tx, notice.platform, notice.chat, notice.text, notice.nonce, now, mask=self.db.masked
                    )
                )

        called: dict[str, object] = {} if name is None else {"platform_message_id": name.event_id}
        if name is not None and name.words is not None:
            called["meta"] = {"words": name.words}
        message_id = self._store.store_message(session_id, {"role": "user", "content": content, **called}, also)
        return message_id, posted[-1] if posted else None

    find_said = reading(gateway_queues.find_said)

    def content_of(self, message_id: int) -> tuple[Any, Any] | None:
        """A message's content and its meta."""
        with self._store.read() as tx:
            if tx.row("SELECT 1 FROM messages WHERE id = ?", (message_id,)) is None:
                return None
            found = transcript_replay.message(tx, message_id)
        return found["content"], found["meta"]

    def is_redacted(self, message_id: int) -> bool:
        """Whether a message was hidden for good."""
        with self._store.read() as tx:
            return tx.row(f"SELECT 1 FROM messages WHERE id = ? AND hidden = {REDACTED}", (message_id,)) is not None

    def revise(self, inbox_id: int | None, event: str | None) -> bool:
        """What waits says something else (None: nothing); False when it does not wait any more, or became a message."""
        with self._store.write() as tx:
            return inbox_id is not None and gateway_queues.revise(tx, inbox_id, event, self.clock())

    def keep_early(self, platform: str, revision_id: str, event_id: str, edited: str | None) -> bool:
        """An event that has not come yet was edited or deleted (None); False when it has come meanwhile."""
        with self._store.write() as tx:
            if gateway_queues.find_said(tx, platform, event_id) is not None:
                return False
            gateway_queues.keep_early(tx, platform, event_id, edited, self.clock())
            gateway_queues.note(tx, platform, revision_id, None, self.clock())
            return True

    is_noted = reading(gateway_queues.is_noted)

    def note(self, platform: str, event_id: str, message_id: int | None = None) -> None:
        """Something that needs no answer was done (to this message): if it comes again, it is recognised."""
        with self._store.write() as tx:
            gateway_queues.note(tx, platform, event_id, message_id, self.clock())

    def finish(self, inbox_id: int, platform: str, chat: str, parts: Sequence[ReplyPart] = ()) -> list[Outgoing]:
        """An event is answered: it leaves the inbox and its reply enters the outbox, both or neither.

        A part is {"text", "nonce"}. The messages that show the reply as it grew are replaced by its parts. When it was
        finished before, what of that reply is not sent yet.

        It is not synced to the disk by itself. What is sent next is: if its platform would take a repetition for another
        message, that is noted, and synced, before. If the power fails in between, the event is answered from the record.
        """
        now = self.clock()
        with self._store.write(lasting=False) as tx:
            shown = gateway_queues.finish(tx, inbox_id, now)
            if shown is None:
                return gateway_queues.unsent(tx, inbox_id)
            return [
                gateway_queues.post(
                    tx,
                    platform,
                    chat,
                    now=now,
                    mask=self.db.masked,
                    inbox_id=inbox_id,
                    edits=shown[n] or None if n < len(shown) else None,
                    begun_at=now if n < len(shown) and not shown[n] else None,
                    **part,
                )  # fmt: skip
                for n, part in enumerate(parts)
            ]

    def post(self, platform: str, chat: str, text: str, nonce: str, *, reply_to: str | None = None) -> Outgoing:
        """Something is to be sent that answers nothing."""
        with self._store.write() as tx:
            return gateway_queues.post(
                tx, platform, chat, text, nonce, self.clock(), mask=self.db.masked, reply_to=reply_to
            )

    unsent = reading(gateway_queues.unsent)

    def mail_counts(self) -> dict[str, dict[str, int]]:
        """How much waits ("waiting", "unsent") and how much could not be sent ("failed"), by platform."""
        with self._store.read() as tx:
            return gateway_queues.counts(tx) if self.is_there() else {}

    def forget_mail(self, older_than_days: float = 7) -> int:
        """Remove what was done with longer ago; how many rows.

        Redeliveries older than this are not recognised, except webhook deliveries that are signed without a time.
        """
        with self._store.write() as tx:
            instances.forget_served(tx)
            return gateway_queues.forget(tx, self.clock() - older_than_days * 86400)

    # ------------------------------------------------------------------------------------------ people and homes

    may_talk = reading(approvals.may_talk)
    shut_out = writing(approvals.shut_out)
    home = reading(approvals.home)

    def people(self) -> list[approvals.Person]:
        """All who were let in by pairing."""
        with self._store.read() as tx:
            return approvals.everyone(tx)

    def make_pairing(self, code: str, platform: str, user_id: str, name: str | None, chat: str) -> bool:
        """Note a code for somebody; False while they have one that holds, or too many wait."""
        with self._store.write() as tx:
            return approvals.make_pairing(tx, code, platform, user_id, name, chat, self.clock())

    def waiting_pairings(self) -> list[approvals.WaitingPairing]:
        """Who has a code that nobody has approved yet."""
        with self._store.read() as tx:
            return approvals.waiting(tx, self.clock())

    def approve_pairing(self, code: str) -> approvals.ApprovedPairing | None:
        """Let in whoever has this code; None when nobody has it. StoreBusy after five tries in a minute."""
        from hermes.errors import StoreBusy

        with self._store.write() as tx:  # of its own: a try counts whatever becomes of it
            allowed = approvals.try_counts(tx, self.clock())
        if not allowed:
            raise StoreBusy("too many codes were tried; wait a minute")
        with self._store.write() as tx:
            return approvals.approve(tx, code, self.clock())

    def welcome(self, text: str) -> list[Outgoing]:
        """Tell everybody who was let in and does not know it yet; what is to be sent, once for each."""
        with self._store.read() as tx:
            if not approvals.newcomers(tx):
                return []
        nonce, now = self.identity(), self.clock()
        with self._store.write() as tx:
            return [
                gateway_queues.post(
                    tx, one["platform"], one["chat"], text, f"{nonce}-p{one['name'][:16]}", now, mask=self.db.masked
                )
                for one in approvals.newcomers(tx)
                if approvals.told(tx, one["name"])
            ]

    def set_home(self, platform: str, chat: str, by: str | None = None) -> None:
        """Where handoffs and deliveries to a platform go (a chat as JSON)."""
        with self._store.write() as tx:
            approvals.set_home(tx, platform, chat, by, self.clock())

    # ------------------------------------------------------------------------------------------ status, aliases

    def set_status(self, platform: str, state: str, *, identity: str | None = None, error: str | None = None) -> None:
        """How a platform is doing: "connecting", "connected", "lost", "refused" or "stopped"."""
        with self._store.write() as tx:
            self.note_status(tx, platform, state, identity, error)

    def note_status(
        self, tx: Tx, platform: str, state: str, identity: str | None = None, error: str | None = None
    ) -> None:
        """The same as a step of `together`."""
        now = self.clock()
        tx.run(
            "INSERT INTO gateway_status(platform, state, identity, since, error, error_at, updated_at)"
            " VALUES(?, ?, ?, ?, ?, ?, ?) ON CONFLICT(platform) DO UPDATE SET state = excluded.state,"
            " identity = coalesce(excluded.identity, gateway_status.identity),"
            " since = CASE WHEN gateway_status.state = excluded.state THEN gateway_status.since ELSE excluded.since END,"
            " error = coalesce(excluded.error, gateway_status.error),"
            " error_at = coalesce(excluded.error_at, gateway_status.error_at), updated_at = excluded.updated_at",
            (platform, state, identity, now, self._store.masked(error), None if error is None else now, now),
        )

    def statuses(self) -> list[PlatformStatus]:
        """How all platforms are doing."""
        if not self.is_there():
            return []
        with self._store.read() as tx:
            return tx.dicts("SELECT * FROM gateway_status ORDER BY platform")

    def get_alias(self, digest: str) -> str | None:
        """The session that a conversation with this digest is."""
        with self._store.read() as tx:
            found = tx.value("SELECT session_id FROM gateway_aliases WHERE digest = ?", (digest,))
        return None if found is None else str(found)

    def set_alias(self, digest: str, session_id: str) -> None:
        """A conversation with this digest is that session."""
        with self._store.write() as tx:
            tx.run(
                "INSERT INTO gateway_aliases(digest, session_id, made_at) VALUES(?, ?, ?)"
                " ON CONFLICT(digest) DO UPDATE SET session_id = excluded.session_id",
                (digest, session_id, self.clock()),
            )
