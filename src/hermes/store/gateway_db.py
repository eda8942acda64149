"""GatewayDB: the gateway's tables, in the same store and in the same transactions as the sessions.

One flat class over a SessionDB, like it; each method is a transaction and a call into routes.py, gateway_queues.py, approvals.py
or instances.py, which say what it promises.
Safe to share between threads; `SessionDB.fenced` applies here as well. Small writes of the gateway's event loop can be
gathered into one (`together`).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from hermes.store import (
    approvals,
    gateway_inbox,
    gateway_outbox,
    gateway_queues,
    instances,
    lineage,
    routes,
    sessions,
    transcript_replay,
)
from hermes.store.attachments import references
from hermes.store.db import transactions
from hermes.store.engines.base import REDACTED, Tx
from hermes.store.gateway_inbox import Received
from hermes.store.gateway_outbox import Outgoing
from hermes.store.gateway_rows import Arrival, Kept, Name, PendingNotice, Placed, PlatformStatus, ReplyPart, TakenUp
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


P = ParamSpec("P")
R = TypeVar("R")


def reading(question: Callable[Concatenate[Tx, P], R]) -> Callable[Concatenate[GatewayDB, P], R]:
    """A method that runs this query in its own transaction."""

    @wraps(question)
    def method(self: GatewayDB, /, *given: P.args, **named: P.kwargs) -> R:
        with self._store.read() as tx:
            return question(tx, *given, **named)

    return method


def writing(change: Callable[Concatenate[Tx, P], R]) -> Callable[Concatenate[GatewayDB, P], R]:
    """A method that runs this change in its own transaction."""

    @wraps(change)
    def method(self: GatewayDB, /, *given: P.args, **named: P.kwargs) -> R:
        with self._store.write() as tx:
            return change(tx, *given, **named)

    return method


class GatewayDB:
    """The gateway's part of a store. `clock` gives the time, so that a test can set it."""

    def __init__(self, db: SessionDB, *, clock: Callable[[], float] = time.time) -> None:
        self.db = db
        self.clock = clock
        self._store = transactions(db)
        self._oldest = gateway_queues.Oldest()  # of a file: no row below this waits
        if not db.read_only and not self.is_there():
            self._store.make_tables(statements(shared=db.is_shared))

    def is_there(self) -> bool:
        """Whether a gateway has ever used this store."""
        with self._store.read() as tx:
            return tx.has_table("gateway_serving")

    def together(self, steps: Sequence[Callable[[Tx], Any]], *, lasting: bool = True) -> list[Any]:
        """Run several small steps in one transaction; returns the result of each. (`lasting`: see Engine.write.)"""
        with self._store.write(lasting=lasting) as tx:
            return [step(tx) for step in steps]

    def identity(self) -> str:
        """A unique name of this store's gateway, for naming messages on platforms."""
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
        """Whether a session exists and this user may see it."""
        with self._store.read() as tx:
            return sessions.is_shown(tx, session_id, user)

    def end_of_chain(self, session_id: str) -> str | None:
        """The newest session of a compressed conversation; None when its session does not exist (any more)."""
        with self._store.read() as tx:
            return lineage.compression_tip(tx, session_id) if sessions.is_shown(tx, session_id, None) else None

    route_of_session = reading(routes.of_session)

    def place(
        self, key: str, session_id: str, *, platform: str, chat_type: str, chat: str, display_name: str | None, shared: bool
    ) -> Placed:  # fmt: skip
        """Move a session to a chat: create the key's route to it, atomically. Returns the previous state."""
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
        """Undo such a move: both keys get their previous session, unless they changed since."""
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
        """Point this key, and no other, to this session.

        A notice for the chat it was taken from enters the outbox with it; returns what is to be sent.
        """
        now = self.clock()
        with self._store.write() as tx:
            routes.bind(tx, key, session_id, now)
            if notice is None:
                return None
            return gateway_outbox.post(
                tx, notice.platform, notice.chat, notice.text, notice.nonce, now, mask=self.db.masked
            )

    def let_go(self, key: str, *, previous: str | None = None, reason: str | None = None) -> None:
        """The next message under this key begins a session; after a reset it links to the previous one."""
        with self._store.write() as tx:
            routes.let_go(tx, key, self.clock(), previous=previous, reason=reason)

    def set_pending_title(self, key: str, title: str | None) -> None:
        """Set the title of the next session under this key."""
        with self._store.write() as tx:
            routes.set_pending_title(tx, key, self._store.masked(title), self.clock())

    def follow(self, old: str, new: str) -> None:
        """A conversation continues in another session: it was compressed."""
        with self._store.write() as tx:
            routes.follow(tx, old, new, self.clock())

    def move_chat(self, platform: str, old: str, new: str) -> list[str]:
        """A chat has a new id: its conversations and its role as home chat move to it. Returns the new keys."""
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
    remove_dead = writing(instances.remove_dead)
    give = writing(instances.give)
    served_elsewhere = reading(instances.served_elsewhere)

    def instances(self, platforms: Sequence[str] = ()) -> tuple[list[Instance], bool]:
        """All instances; and whether an event of these platforms waits that none of them serves."""
        with self._store.read() as tx:
            oldest = self._oldest.event if platforms else 0
            return instances.everyone(tx), bool(platforms) and instances.astray(tx, platforms, oldest)

    def find_work(
        self, name: str, known: Collection[int], sending: Mapping[str, Collection[int]]
    ) -> tuple[list[Received], list[Outgoing]]:
        """Events for this instance and parts for these platforms that are new to it, the oldest first.

        Both are read in one snapshot, with all parts: those sent to a chat before an event there are included.
        """
        with self._store.read() as tx:
            if not self.db.is_shared:
                self._oldest = gateway_queues.oldest(tx, self._oldest)
            given = instances.given(tx, name, self._oldest.event)
            events = [number for number in given if number not in known][:AT_ONCE]
            waiting = gateway_outbox.waiting_for(tx, list(sending), self._oldest.part)
            parts = [number for number, platform in waiting if number not in sending[platform]]
            bundles = [parts[start : start + AT_ONCE] for start in range(0, len(parts), AT_ONCE)]
            return gateway_inbox.some(tx, events) if events else [], [
                part for some in bundles for part in gateway_outbox.parts(tx, some)
            ]

    # ------------------------------------------------------------------------------------------ in and out

    def keep(self, tx: Tx, arrival: Arrival) -> Kept:
        """A step of `together`: store an event and its route, once; returns its place and the instance that answers it.

        The owner of a one-to-one conversation is decided here: of two people who write at once, one is the first.
        """
        key, now = arrival.key, self.clock()
        route = routes.get(tx, key)
        if arrival.beside is not None and route is not None:
            beside = arrival.beside(route.user_id)
            if beside != key:
                key, route = beside, routes.get(tx, beside)
        serving, moved = instances.assign(tx, key, arrival.platform)
        if not self.db.is_shared:
            self._oldest = gateway_queues.oldest_event(tx, self._oldest)
        number, fresh = gateway_inbox.receive(tx, arrival.platform, arrival.event_id, key, arrival.event, now)
        if number is None:
            return Kept(key, None, serving)
        if arrival.chat_type is not None and (route is None or not arrival.is_shown_by(route)):
            routes.put(
                tx, key, platform=arrival.platform.partition("/")[0], chat_type=arrival.chat_type, chat=arrival.chat,
                display_name=arrival.display_name, user_id=arrival.user_id, shared=arrival.shared, now=now,
            )  # fmt: skip
        before = tuple(gateway_inbox.waiting_before(tx, key, number, self._oldest.event)) if fresh else ()
        return Kept(key, number, serving, before, moved)

    def take_up(self, inbox_id: int, key: str, name: str, user: User | None) -> TakenUp:
        """What this instance needs before it answers an event, read in one snapshot."""
        with self._store.read() as tx:
            waits = instances.serves(tx, name, key)
            route, event = routes.get(tx, key), gateway_inbox.still(tx, inbox_id) if waits else None
            known = None if route is None else route.session_id
            tip = lineage.compression_tip(tx, known) if known and sessions.is_shown(tx, known, None) else None
            return TakenUp(event, route, tip, tip is not None and user is not None and sessions.is_shown(tx, tip, user))

    def receive(self, platform: str, event_id: str, key: str, event: str) -> int | None:
        """Store an event; returns its number, also when it is already stored and waits. None when it was already answered."""
        with self._store.write() as tx:
            return gateway_inbox.receive(tx, platform, event_id, key, event, self.clock())[0]

    unanswered = reading(gateway_inbox.unanswered)
    progress = reading(gateway_inbox.progress)

    def begin(self, inbox_id: int, session_id: str | None = None) -> None:
        """Record that a process works on an event (by a turn in that session)."""
        with self._store.write() as tx:
            gateway_inbox.begin(tx, inbox_id, self.clock(), session_id)

    def say(
        self, inbox_id: int, key: str, session_id: str, content: str | list[Any], *, notice: PendingNotice | None = None,
        name: Name | None = None,
    ) -> tuple[int, Outgoing | None]:  # fmt: skip
        """Store an event's text as the user's message; returns its id. The event and its route are updated with it.

        A notice for the user enters the outbox with it, so that it is sent once. `Revised` when the event was edited or
        deleted meanwhile: nothing is stored then.
        """
        now = self.clock()
        posted: list[Outgoing] = []

        def also(tx: Tx, message_id: int) -> None:
            if name is not None:
                gateway_inbox.check_unrevised(tx, inbox_id, name.texts)
            gateway_inbox.link(tx, inbox_id, session_id, message_id, now)
            routes.spoken(tx, key, session_id, now)
            if notice is not None:
                posted.append(
                    gateway_outbox.post(
                        tx, notice.platform, notice.chat, notice.text, notice.nonce, now, mask=self.db.masked
                    )
                )

        called: dict[str, object] = {} if name is None else {"platform_message_id": name.event_id}
        if name is not None and name.words is not None:
            called["meta"] = {"words": name.words}
        message_id = self._store.store_message(session_id, {"role": "user", "content": content, **called}, also)
        return message_id, posted[-1] if posted else None

    find_said = reading(gateway_inbox.find_said)

    def content_of(self, message_id: int) -> tuple[Any, Any] | None:
        """A message's content and its meta."""
        with self._store.read() as tx:
            if tx.row("SELECT 1 FROM messages WHERE id = ?", (message_id,)) is None:
                return None
            found = transcript_replay.message(tx, message_id)
        return found["content"], found["meta"]

    def is_redacted(self, message_id: int) -> bool:
        """Whether a message was redacted."""
        with self._store.read() as tx:
            return tx.row(f"SELECT 1 FROM messages WHERE id = ? AND hidden = {REDACTED}", (message_id,)) is not None

    def revise(self, inbox_id: int | None, event: str | None) -> bool:
        """Replace the text of a waiting event (None: delete it); False when it no longer waits, or became a message."""
        with self._store.write() as tx:
            return inbox_id is not None and gateway_inbox.revise(tx, inbox_id, event, self.clock())

    def keep_early(self, platform: str, revision_id: str, event_id: str, edited: str | None) -> bool:
        """Record an edit or a deletion (None) of an event that has not arrived yet; False when it has arrived meanwhile."""
        with self._store.write() as tx:
            if gateway_inbox.find_said(tx, platform, event_id) is not None:
                return False
            gateway_inbox.keep_early(tx, platform, event_id, edited, self.clock())
            gateway_inbox.note(tx, platform, revision_id, None, self.clock())
            return True

    is_noted = reading(gateway_inbox.is_noted)

    def note(self, platform: str, event_id: str, message_id: int | None = None) -> None:
        """Record that an event without an answer was handled (on this message): a redelivery is recognised."""
        with self._store.write() as tx:
            gateway_inbox.note(tx, platform, event_id, message_id, self.clock())

    def finish(self, inbox_id: int, platform: str, chat: str, parts: Sequence[ReplyPart] = ()) -> list[Outgoing]:
        """Finish an event: it leaves the inbox and its reply enters the outbox, atomically.

        A part is {"text", "nonce"}. The messages that show the reply as it grew are replaced by its parts. When it was
        already finished: returns the unsent parts of that reply.

        This alone is not synced to the disk. The next send is: if its platform can't recognise a repetition, the
        send is recorded and synced before it is made. If the power fails in between, the event is answered from the store.
        """
        now = self.clock()
        with self._store.write(lasting=False) as tx:
            shown = gateway_inbox.finish(tx, inbox_id, now)
            if shown is None:
                return gateway_outbox.unsent(tx, inbox_id)
            return [
                gateway_outbox.post(
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
        """Queue a message that answers no event."""
        with self._store.write() as tx:
            return gateway_outbox.post(
                tx, platform, chat, text, nonce, self.clock(), mask=self.db.masked, reply_to=reply_to
            )

    def post_file(
        self, platform: str, attachment: str, parts: Sequence[tuple[str, str, str]], session_id: str | None = None
    ) -> list[Outgoing]:
        """Queue a file and what is said with it: each part its chat, text and nonce. [] if the first was queued before.

        `session_id`: the session whose words are in it; the file is shredded with that session.
        """
        with self._store.write() as tx:
            for digest, _, _ in references(attachment) if session_id is not None else ():
                gateway_outbox.note_file(tx, str(session_id), digest)
            self._store.attachments.secure(tx, references(attachment))
            if gateway_outbox.is_posted(tx, parts[0][2]):
                return []
            return [
                gateway_outbox.post(tx, platform, place, text, nonce, self.clock(), mask=self.db.masked)
                for place, text, nonce in parts
            ]

    def attachment(self, reference: str) -> bytes | None:
        """The bytes of an attachment; None when they are gone, with the messages that held it."""
        for digest, _, _ in references(reference):
            try:
                return self._store.attachments.read(digest)
            except OSError:
                return None
        return None

    unsent = reading(gateway_outbox.unsent)
    is_waiting = reading(gateway_outbox.is_waiting)
    untold = reading(gateway_outbox.untold)
    is_question = reading(gateway_outbox.is_question)

    def mail_counts(self) -> dict[str, dict[str, int]]:
        """How much waits ("waiting", "unsent") and how much could not be sent ("failed"), by platform."""
        with self._store.read() as tx:
            return gateway_queues.counts(tx) if self.is_there() else {}

    def forget_mail(self, older_than_days: float = 7, last_days: float = 1) -> int:
        """Remove rows finished longer ago; returns how many.

        Redeliveries older than this are not recognised, except webhook deliveries and short messages that are signed without a
        time, mails of proven senders, and the events of each platform's last day with any.
        """
        with self._store.write() as tx:
            instances.forget_served(tx)
            return gateway_queues.forget(tx, self.clock() - older_than_days * 86400, last_days * 86400)

    # ------------------------------------------------------------------------------------------ people and homes

    may_talk = reading(approvals.may_talk)
    shut_out = writing(approvals.shut_out)
    home = reading(approvals.home)

    def people(self) -> list[approvals.Person]:
        """All users approved by pairing."""
        with self._store.read() as tx:
            return approvals.everyone(tx)

    def make_pairing(self, code: str, platform: str, user_id: str, name: str | None, chat: str) -> bool:
        """Store a pairing code for a user; False while the user has a valid one, or too many wait."""
        with self._store.write() as tx:
            return approvals.make_pairing(tx, code, platform, user_id, name, chat, self.clock())

    def waiting_pairings(self) -> list[approvals.WaitingPairing]:
        """The users with a code that is not approved yet."""
        with self._store.read() as tx:
            return approvals.waiting(tx, self.clock())

    def approve_pairing(self, code: str) -> approvals.ApprovedPairing | None:
        """Approve the user with this code; None when no user has it. StoreBusy after five tries in a minute."""
        from hermes.errors import StoreBusy

        with self._store.write() as tx:  # separate: a try counts in any case
            allowed = approvals.try_counts(tx, self.clock())
        if not allowed:
            raise StoreBusy("too many codes were tried; wait a minute")
        with self._store.write() as tx:
            return approvals.approve(tx, code, self.clock())

    def welcome(self, text: str) -> list[Outgoing]:
        """Notify every approved user who was not notified yet; returns what is to be sent, once for each."""
        with self._store.read() as tx:
            if not approvals.newcomers(tx):
                return []
        nonce, now = self.identity(), self.clock()
        with self._store.write() as tx:
            return [
                gateway_outbox.post(
                    tx, one["platform"], one["chat"], text, f"{nonce}-p{one['name'][:16]}", now, mask=self.db.masked
                )
                for one in approvals.newcomers(tx)
                if approvals.mark_notified(tx, one["name"])
            ]

    def set_home(self, platform: str, chat: str, by: str | None = None) -> None:
        """The home chat for handoffs and deliveries to a platform (a chat as JSON)."""
        with self._store.write() as tx:
            approvals.set_home(tx, platform, chat, by, self.clock())

    # ------------------------------------------------------------------------------------------ status, aliases

    def set_status(self, platform: str, state: str, *, identity: str | None = None, error: str | None = None) -> None:
        """The state of a platform: "connecting", "connected", "lost", "refused" or "stopped"."""
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
        """The state of all platforms."""
        if not self.is_there():
            return []
        with self._store.read() as tx:
            return tx.dicts("SELECT * FROM gateway_status ORDER BY platform")

    def get_alias(self, digest: str) -> str | None:
        """The session of the conversation with this digest."""
        with self._store.read() as tx:
            found = tx.value("SELECT session_id FROM gateway_aliases WHERE digest = ?", (digest,))
        return None if found is None else str(found)

    def set_alias(self, digest: str, session_id: str) -> None:
        """Record the session of the conversation with this digest."""
        with self._store.write() as tx:
            tx.run(
                "INSERT INTO gateway_aliases(digest, session_id, made_at) VALUES(?, ?, ?)"
                " ON CONFLICT(digest) DO UPDATE SET session_id = excluded.session_id",
                (digest, session_id, self.clock()),
            )
