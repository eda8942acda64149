"""GatewayDB: what the gateway keeps beside the sessions, in the same store and in the same transactions.

One flat class over a SessionDB, like it; each method is a transaction and a call into routes.py, mail.py or people.py.
Safe to share between threads; `SessionDB.fenced` counts here, too. Small writes of the gateway's event loop can be
gathered into one (`together`).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from hermes.store import instances, lineage, mail, people, recovery, routes, sessions
from hermes.store.engines.base import REDACTED, Tx
from hermes.store.gateway_tables import statements
from hermes.store.mail import Known, Outgoing, Received
from hermes.store.routes import Route

if TYPE_CHECKING:
    from hermes.store.db import SessionDB
    from hermes.store.visibility import User

__all__ = ["GatewayDB", "Name", "Notice", "Outgoing", "Placed", "Received", "Route"]

T = TypeVar("T")
IDENTITY = "gateway_identity"


@dataclass(slots=True, frozen=True)
class Notice:
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
class Placed:
    """A session that was brought to a place, and what was before."""

    key: str
    session_id: str
    before: str | None  # the session that was talked in under the key
    came_from: str | None  # the key the session was talked in under


class GatewayDB:
    """The gateway's part of a store. `clock` tells the time, so that a test can move it."""

    def __init__(self, db: SessionDB, *, clock: Callable[[], float] = time.time) -> None:
        self.db = db
        self.clock = clock
        self._engine = db._engine
        if db.read_only:
            return
        if not self.is_there():
            self._engine.make_tables(statements(shared=db.is_shared))
        elif not db.is_shared:
            self._lighten()

    def is_there(self) -> bool:
        """Whether a gateway has ever used this store."""
        with self._engine.read() as tx:
            return self._engine.has_table(tx, "gateway_serving")

    def _lighten(self) -> None:
        """A file of an older version: its boxes had counters and indexes that made every message dearer to keep."""
        with self._engine.read() as tx:
            heavy = mail.is_heavy(tx)
        if heavy:
            with self.db._changing() as tx:
                mail.lighten(tx)

    def together(self, steps: Sequence[Callable[[Tx], Any]]) -> list[Any]:
        """Do several small things in one transaction; what each returned."""
        with self.db._changing() as tx:
            return [step(tx) for step in steps]

    def look(self, question: Callable[[Tx], T]) -> T:
        """Ask something in one transaction that changes nothing; what it returned."""
        with self._engine.read() as tx:
            return question(tx)

    def identity(self) -> str:
        """A name of this store's gateway that no other has, for naming messages on platforms."""
        import secrets

        known = self.db.get_meta(IDENTITY)
        if known is None:
            with self.db._changing() as tx:
                tx.run(
                    "INSERT INTO state_meta(key, value) VALUES(?, ?) ON CONFLICT(key) DO NOTHING",
                    (IDENTITY, secrets.token_hex(4)),
                )
            known = self.db.get_meta(IDENTITY)
        return str(known)

    # ------------------------------------------------------------------------------------------ routes

    def route(self, key: str) -> Route | None:
        """What a key leads to."""
        with self._engine.read() as tx:
            return routes.get(tx, key)

    def may_see(self, session_id: str, user: User) -> bool:
        """Whether a session is there and this user is one of those who may see it."""
        with self._engine.read() as tx:
            return sessions.is_shown(tx, session_id, user)

    def end_of_chain(self, session_id: str) -> str | None:
        """Where a conversation has got to by compressions; None when its session is not there (any more)."""
        with self._engine.read() as tx:
            return lineage.compression_tip(tx, session_id) if sessions.is_shown(tx, session_id, None) else None

    def route_of_session(self, session_id: str) -> Route | None:
        """Under which key a session is talked in."""
        with self._engine.read() as tx:
            return routes.of_session(tx, session_id)

    def put_route(
        self, key: str, *, platform: str, chat_type: str, chat: str, display_name: str | None, user_id: str | None, shared: bool
    ) -> Route:  # fmt: skip
        """Make a key known, or bring what is shown of it up to date; what it leads to."""
        known = self.route(key)
        if known is not None and (known.chat, known.display_name) == (chat, display_name or known.display_name):
            return known
        with self.db._changing() as tx:
            return routes.put(
                tx, key, platform=platform, chat_type=chat_type, chat=chat, display_name=display_name, user_id=user_id,
                shared=shared, now=self.clock(),
            )  # fmt: skip

    def place(
        self, key: str, session_id: str, *, platform: str, chat_type: str, chat: str, display_name: str | None, shared: bool
    ) -> Placed:  # fmt: skip
        """A session is brought to a place: the key is known and leads to it, both or neither. What was before."""
        now = self.clock()
        with self.db._changing() as tx:
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
        with self.db._changing() as tx:
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

    def bind(self, key: str, session_id: str, *, notice: Notice | None = None) -> Outgoing | None:
        """From now on this session is talked in under this key, and under no other.

        A notice for whom it was taken from enters the outbox with it; what is to be sent.
        """
        now = self.clock()
        with self.db._changing() as tx:
            routes.bind(tx, key, session_id, now)
            if notice is None:
                return None
            return mail.post(tx, notice.platform, notice.chat, notice.text, notice.nonce, now, mask=self.db.masked)

    def let_go(self, key: str, *, previous: str | None = None, reason: str | None = None) -> None:
        """The next message under this key begins a session; after a reset it links to the previous one."""
        with self.db._changing() as tx:
            routes.let_go(tx, key, self.clock(), previous=previous, reason=reason)

    def set_pending_title(self, key: str, title: str | None) -> None:
        """The session that begins next under this key is to be called so."""
        with self.db._changing() as tx:
            routes.set_pending_title(tx, key, self.db._masked(title), self.clock())

    def follow(self, old: str, new: str) -> None:
        """A conversation goes on in another session: it was compressed."""
        with self.db._changing() as tx:
            routes.follow(tx, old, new, self.clock())

    def move_chat(self, platform: str, old: str, new: str) -> list[str]:
        """A chat has another id from now on: its conversations and its being the home go along. The new keys."""
        with self.db._changing() as tx:
            home = people.home(tx, platform)
            chat = None if home is None else json.loads(home)
            if chat is not None and chat.get("chat_id") == old:
                people.set_home(tx, platform, json.dumps({**chat, "chat_id": new}), None, self.clock())
            return routes.chat_moved(tx, platform, old, new, self.clock())

    def bound_routes(self, *, quiet_since: float | None = None) -> list[Route]:
        """All keys with a session (where nobody has said anything since then)."""
        with self._engine.read() as tx:
            return routes.bound(tx, quiet_since=quiet_since)

    def index(self) -> list[dict[str, Any]]:
        """Every key with what sessions.json tells of it."""
        with self._engine.read() as tx:
            return routes.index(tx)

    # ------------------------------------------------------------------------------------------ in and out

    def receive(self, platform: str, event_id: str, key: str, event: str) -> int | None:
        """Keep an event; its number, also when it was kept before and waits. None when it was answered before."""
        with self.db._changing() as tx:
            return mail.receive(tx, platform, event_id, key, event, self.clock())

    def unanswered(self) -> list[Received]:
        """What waits to be answered, in the order it came."""
        with self._engine.read() as tx:
            return mail.unanswered(tx)

    def still(self, inbox_id: int) -> Received | None:
        """An event as the store knows it, if it still waits to be answered."""
        with self._engine.read() as tx:
            return mail.still(tx, inbox_id)

    def progress(self, platform: str, event_id: str) -> tuple[bool, int, str | None] | None:
        """How far an event is: finished, parts not sent yet, what could not be sent; None when it was never kept."""
        with self._engine.read() as tx:
            return mail.progress(tx, platform, event_id)

    def begin(self, inbox_id: int, session_id: str | None = None) -> None:
        """A process works on an event (by answering in that session)."""
        with self.db._changing() as tx:
            mail.begin(tx, inbox_id, self.clock(), session_id)

    def say(
        self, inbox_id: int, key: str, session_id: str, content: str | list[Any], *, notice: Notice | None = None,
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
                mail.check_unrevised(tx, inbox_id, name.texts)
            mail.link(tx, inbox_id, session_id, message_id, now)
            routes.spoken(tx, key, session_id, now)
            if notice is not None:
                posted.append(
                    mail.post(tx, notice.platform, notice.chat, notice.text, notice.nonce, now, mask=self.db.masked)
                )

        called: dict[str, Any] = {} if name is None else {"platform_message_id": name.event_id}
        if name is not None and name.words is not None:
            called["meta"] = {"words": name.words}
        ready = self.db._ready({"role": "user", "content": content, **called})
        message_id = self.db._append(session_id, ready, also=also)
        return message_id, posted[-1] if posted else None

    def find_said(self, platform: str, event_id: str) -> Known | None:
        """What became of an event; None when there is nothing of it that could be shown or answered."""
        with self._engine.read() as tx:
            return mail.find_said(tx, platform, event_id)

    def content_of(self, message_id: int) -> tuple[Any, Any] | None:
        """A message's content and its meta."""
        with self._engine.read() as tx:
            if tx.row("SELECT 1 FROM messages WHERE id = ?", (message_id,)) is None:
                return None
            found = recovery.message(tx, message_id)
        return found["content"], found["meta"]

    def is_redacted(self, message_id: int) -> bool:
        """Whether a message was hidden for good."""
        with self._engine.read() as tx:
            return tx.row(f"SELECT 1 FROM messages WHERE id = ? AND hidden = {REDACTED}", (message_id,)) is not None

    def revise(self, inbox_id: int | None, event: str | None) -> bool:
        """What waits says something else (None: nothing); False when it does not wait any more, or became a message."""
        with self.db._changing() as tx:
            return inbox_id is not None and mail.revise(tx, inbox_id, event, self.clock())

    def keep_early(self, platform: str, revision_id: str, event_id: str, edited: str | None) -> bool:
        """An event that has not come yet was edited or deleted (None); False when it has come meanwhile."""
        with self.db._changing() as tx:
            if mail.find_said(tx, platform, event_id) is not None:
                return False
            mail.keep_early(tx, platform, event_id, edited, self.clock())
            mail.note(tx, platform, revision_id, None, self.clock())
            return True

    def is_noted(self, platform: str, event_id: str) -> bool:
        """Whether something of this name was done before (within a week)."""
        with self._engine.read() as tx:
            return mail.is_noted(tx, platform, event_id)

    def note(self, platform: str, event_id: str, message_id: int | None = None) -> None:
        """Something that needs no answer was done (to this message): if it comes again, it is recognised."""
        with self.db._changing() as tx:
            mail.note(tx, platform, event_id, message_id, self.clock())

    def finish(self, inbox_id: int, platform: str, chat: str, parts: Sequence[dict[str, Any]] = ()) -> list[Outgoing]:
        """An event is answered: it leaves the inbox and its reply enters the outbox, both or neither.

        A part is {"text", "nonce"}. The messages that show the reply as it grew are replaced by its parts. When it was
        finished before, what of that reply is not sent yet.

        It is not synced to the disk by itself. What is sent next is: if its platform would take a repetition for another
        message, that is noted, and synced, before. If the power fails in between, the event is answered from the record.
        """
        now = self.clock()
        with self.db._changing(lasting=False) as tx:
            shown = mail.finish(tx, inbox_id, now)
            if shown is None:
                return mail.unsent(tx, inbox_id)
            return [
                mail.post(
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
        with self.db._changing() as tx:
            return mail.post(tx, platform, chat, text, nonce, self.clock(), mask=self.db.masked, reply_to=reply_to)

    def unsent(self, inbox_id: int | None = None) -> list[Outgoing]:
        """What waits to be sent, in order (of the reply to one event, if it is named)."""
        with self._engine.read() as tx:
            return mail.unsent(tx, inbox_id)

    def leave_unsent(self, outbox_id: int, why: str) -> None:
        """Something is not to be sent any more."""
        with self.db._changing() as tx:
            mail.unsendable(tx, outbox_id, self.db.masked(why), self.clock())

    def mail_counts(self) -> dict[str, dict[str, int]]:
        """How much waits ("waiting", "unsent") and how much could not be sent ("failed"), by platform."""
        with self._engine.read() as tx:
            return mail.counts(tx) if self.is_there() else {}

    def forget_mail(self, older_than_days: float = 7) -> int:
        """Remove what was done with longer ago; how many rows.

        Redeliveries older than this are not recognised, except webhook deliveries that are signed without a time.
        """
        with self.db._changing() as tx:
            instances.forget_served(tx)
            return mail.forget(tx, self.clock() - older_than_days * 86400)

    # ------------------------------------------------------------------------------------------ people and homes

    def may_talk(self, platform: str, user_id: str) -> bool:
        """Whether somebody was let in by pairing."""
        with self._engine.read() as tx:
            return people.may_talk(tx, platform, user_id)

    def people(self) -> list[dict[str, Any]]:
        """All who were let in by pairing."""
        with self._engine.read() as tx:
            return people.everyone(tx)

    def shut_out(self, platform: str, user_id: str) -> bool:
        """Somebody may no longer talk; False when they were not let in by pairing."""
        with self.db._changing() as tx:
            return people.shut_out(tx, platform, user_id)

    def make_pairing(self, code: str, platform: str, user_id: str, name: str | None, chat: str) -> bool:
        """Note a code for somebody; False while they have one that holds, or too many wait."""
        with self.db._changing() as tx:
            return people.make_pairing(tx, code, platform, user_id, name, chat, self.clock())

    def waiting_pairings(self) -> list[dict[str, Any]]:
        """Who has a code that nobody has approved yet."""
        with self._engine.read() as tx:
            return people.waiting(tx, self.clock())

    def approve_pairing(self, code: str) -> dict[str, Any] | None:
        """Let in whoever has this code; None when nobody has it. StoreBusy after five tries in a minute."""
        from hermes.errors import StoreBusy

        with self.db._changing() as tx:  # of its own: a try counts whatever becomes of it
            allowed = people.try_counts(tx, self.clock())
        if not allowed:
            raise StoreBusy("too many codes were tried; wait a minute")
        with self.db._changing() as tx:
            return people.approve(tx, code, self.clock())

    def welcome(self, text: str) -> list[Outgoing]:
        """Tell everybody who was let in and does not know it yet; what is to be sent, once for each."""
        with self._engine.read() as tx:
            if not people.newcomers(tx):
                return []
        nonce, now = self.identity(), self.clock()
        with self.db._changing() as tx:
            return [
                mail.post(
                    tx, one["platform"], one["chat"], text, f"{nonce}-p{one['name'][:16]}", now, mask=self.db.masked
                )
                for one in people.newcomers(tx)
                if people.told(tx, one["name"])
            ]

    def set_home(self, platform: str, chat: str, by: str | None = None) -> None:
        """Where handoffs and deliveries to a platform go (a chat as JSON)."""
        with self.db._changing() as tx:
            people.set_home(tx, platform, chat, by, self.clock())

    def home(self, platform: str) -> str | None:
        """A platform's home chat as JSON, if /sethome was said there."""
        with self._engine.read() as tx:
            return people.home(tx, platform)

    # ------------------------------------------------------------------------------------------ status, aliases

    def set_status(self, platform: str, state: str, *, identity: str | None = None, error: str | None = None) -> None:
        """How a platform is doing: "connecting", "connected", "lost", "refused" or "stopped"."""
        with self.db._changing() as tx:
            self.note_status(tx, platform, state, identity=identity, error=error)

    def note_status(
        self, tx: Tx, platform: str, state: str, *, identity: str | None = None, error: str | None = None
    ) -> None:
        """The same within a transaction."""
        now = self.clock()
        tx.run(
            "INSERT INTO gateway_status(platform, state, identity, since, error, error_at, updated_at)"
            " VALUES(?, ?, ?, ?, ?, ?, ?) ON CONFLICT(platform) DO UPDATE SET state = excluded.state,"
            " identity = coalesce(excluded.identity, gateway_status.identity),"
            " since = CASE WHEN gateway_status.state = excluded.state THEN gateway_status.since ELSE excluded.since END,"
            " error = coalesce(excluded.error, gateway_status.error),"
            " error_at = coalesce(excluded.error_at, gateway_status.error_at), updated_at = excluded.updated_at",
            (platform, state, identity, now, self.db._masked(error), None if error is None else now, now),
        )

    def statuses(self) -> list[dict[str, Any]]:
        """How all platforms are doing."""
        if not self.is_there():
            return []
        with self._engine.read() as tx:
            return tx.dicts("SELECT * FROM gateway_status ORDER BY platform")

    def get_alias(self, digest: str) -> str | None:
        """The session that a conversation with this digest is."""
        with self._engine.read() as tx:
            found = tx.value("SELECT session_id FROM gateway_aliases WHERE digest = ?", (digest,))
        return None if found is None else str(found)

    def set_alias(self, digest: str, session_id: str) -> None:
        """A conversation with this digest is that session."""
        with self.db._changing() as tx:
            tx.run(
                "INSERT INTO gateway_aliases(digest, session_id, made_at) VALUES(?, ?, ?)"
                " ON CONFLICT(digest) DO UPDATE SET session_id = excluded.session_id",
                (digest, session_id, self.clock()),
            )
