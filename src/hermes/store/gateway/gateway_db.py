"""GatewayDB: the gateway's tables, in the same store and in the same transactions as the sessions.

One flat class over a SessionDB, like it. The functions of routes.py, inbox.py, outbox.py and approvals.py take a
transaction; here are those that have one of their own, and what concerns several tables.
Safe to share between threads; `SessionDB.fenced` applies here as well.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from itertools import chain, repeat
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypedDict, TypeVar

from hermes.store import leases
from hermes.store.api.session_db import SessionDB, Transactions
from hermes.store.engines.base import REDACTED, Tx, get_meta, note_meta
from hermes.store.gateway import approvals, inbox, outbox, routes
from hermes.store.gateway.inbox import IncomingEvent, Received, ReceiveResult, SourceEvent
from hermes.store.gateway.outbox import Outgoing, PendingNotice, ReplyPart
from hermes.store.gateway.routes import STATEMENTS, Route, insert, replacing
from hermes.store.records import lineage, sessions
from hermes.store.records.attachments import references
from hermes.store.records.visibility import User
from hermes.store.transcripts import replay

IDENTITY = "gateway_identity"
P = ParamSpec("P")
R = TypeVar("R")

# Events that would be taken again if their row were removed: their proof has no time in it, or an old one can be accepted,
# so that a captured one could be sent again for ever. Webhook deliveries that are identified by their bytes (<route>:<sha256>)
# or by GitLab's id, Twilio's messages, mails of proven senders (<Message-ID> <address>). Such a row has no text.
_LASTING = (("webhook", "%:" + "_" * 64), ("webhook", "%:gitlab-%"), ("sms", "%"), ("email", "%> %@%"))
_MAY_GO = " AND ".join(["NOT ((platform = ? OR platform LIKE ?) AND event_id LIKE ?)"] * len(_LASTING))
_KEPT = tuple(value for platform, ids in _LASTING for value in (platform, f"{platform}/%", ids))


class PlatformStatus(TypedDict):
    """How a platform is doing: a row of `gateway_status`."""

    platform: str
    state: str
    identity: str | None
    since: float | None
    error: str | None
    error_at: float | None
    updated_at: float


class WorkItem(NamedTuple):
    """The event to be answered, its route and its session."""

    event: Received | None  # None: it no longer waits
    route: Route | None
    session_id: str | None  # the newest session of the route's conversation
    is_member: bool  # whether the sender may see that session


def newest_session(tx: Tx, session_id: str) -> str | None:
    """The newest session of a compressed conversation; None when its session does not exist (any more)."""
    return lineage.compression_tip(tx, session_id) if sessions.is_shown(tx, session_id, None) else None


class GatewayDB:
    """The gateway's part of a store. `clock` gives the time, so that a test can set it."""

    def __init__(self, db: SessionDB, *, clock: Callable[[], float] = time.time) -> None:
        self.db, self.clock = db, clock
        self._store = Transactions(db)
        if not db.read_only and not self.exists():
            self._store.make_tables(STATEMENTS)

    def exists(self) -> bool:
        """Whether a gateway has ever used this store."""
        with self._store.read() as tx:
            return tx.has_table("gateway_aliases")

    def read(self, query: Callable[Concatenate[Tx, P], R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run a query of the modules named above in a transaction of its own."""
        with self._store.read() as tx:
            return query(tx, *args, **kwargs)

    def write(self, change: Callable[Concatenate[Tx, float, P], R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run a change of the modules named above, which gets the time as well, in a transaction of its own."""
        with self._store.write() as tx:
            return change(tx, self.clock(), *args, **kwargs)

    def write_unsynced(self, change: Callable[Concatenate[Tx, float, P], R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Like `write`, for a change that may be lost if the power fails."""
        with self._store.write(durable=False) as tx:
            return change(tx, self.clock(), *args, **kwargs)

    def identity(self) -> str:
        """A unique name of this store's gateway, for naming messages on platforms."""
        with self._store.write() as tx:
            note_meta(tx, IDENTITY, secrets.token_hex(4))
            return str(get_meta(tx, IDENTITY))

    # ------------------------------------------------------------------------------------------ connections

    def join(self, holder: str, ttl: float) -> tuple[str, int] | None:
        """Take the lease that shows that a gateway runs; its name and token."""
        with self._store.write() as tx:
            return leases.join_gateways(tx, holder, ttl)

    def take_connection(self, name: str, holder: str, ttl: float) -> tuple[int, str | None] | None:
        """Take a connection that is free or whose gateway is dead; the token of its lease, and the dead gateway.

        None while another gateway has it. Questions that wait to be sent are cancelled: the turns that asked them have ended.
        """
        lease = leases.connection_lease(name)
        with self._store.write() as tx:
            before = tx.value("SELECT holder FROM leases WHERE name = ?", (lease,))
            token = leases.acquire(tx, lease, holder, ttl)
            if token is None:
                return None
            outbox.cancel_questions(tx, self.clock(), name)
            return token, None if before in (None, holder) else str(before)

    def free_process(self, dead: str) -> int:
        """Free everything that the process of a dead gateway held, its sessions included; returns how much."""
        process = ":".join(dead.split(":")[:2])
        with self._store.write() as tx:
            names = tx.column("SELECT name FROM leases WHERE instr(holder, ?) = 1 ORDER BY name", (f"{process}:",))
            return sum(leases.release(tx, name) for name in names)

    # ------------------------------------------------------------------------------------------ routes

    def bind(self, key: str, session_id: str, *, notice: PendingNotice | None = None) -> Outgoing | None:
        """Point this key, and no other, to this session.

        A notice for the chat it was taken from enters the outbox with it; returns what is to be sent.
        """
        with self._store.write() as tx:
            routes.bind(tx, self.clock(), key, session_id)
            return None if notice is None else self._post(tx, *notice)

    def set_pending_title(self, key: str, title: str | None) -> None:
        """Set the title of the next session under this key."""
        with self._store.write() as tx:
            routes.set_pending_title(tx, self.clock(), key, self._store.masked(title))

    def move_chat(self, platform: str, old: str, new: str) -> list[str]:
        """A chat has a new id: its conversations and its role as home chat move to it. Returns the new keys."""
        with self._store.write() as tx:
            chat = json.loads(approvals.home(tx, platform) or "{}")
            if chat.get("chat_id") == old:
                approvals.set_home(tx, self.clock(), platform, json.dumps({**chat, "chat_id": new}))
            return routes.chat_moved(tx, self.clock(), platform, old, new)

    # ------------------------------------------------------------------------------------------ in and out

    def unfinished(self, platform: str) -> tuple[list[Received], list[Outgoing]]:
        """The work that waits for the gateway that takes a connection: events to answer and parts to send, the oldest first."""
        with self._store.read() as tx:
            which = "platform = ?", (platform,)
            return inbox.waiting(tx, *which), outbox.unsent(tx, *which)

    def parts_of_others(self, platforms: Sequence[str], known: Collection[int], seconds: float) -> list[Outgoing]:
        """Parts for these platforms, not among the known ones, that wait for so long: other processes have queued them."""
        with self._store.read() as tx:
            waiting = outbox.waiting_for(tx, platforms, self.clock() - seconds)
            new = [number for number in waiting if number not in known]
            return outbox.unsent(tx, *tx.among("id", new)) if new else []

    def receive(self, event: IncomingEvent) -> ReceiveResult:
        """Store an event and its route, once; returns where it is.

        The owner of a one-to-one conversation is decided here: of two people who write at once, one is the first.
        """
        key, now = event.key, self.clock()
        with self._store.write() as tx:
            route = routes.get(tx, key)
            if event.beside is not None and route is not None and (beside := event.beside(route.user_id)) != key:
                key, route = beside, routes.get(tx, beside)
            number = inbox.receive(tx, now, event.platform, event.event_id, key, event.event)
            if number is not None and event.chat_type is not None and (route is None or not event.is_shown_by(route)):
                platform = event.platform.partition("/")[0]
                what = (event.chat_type, event.chat, event.display_name, event.user_id, event.shared)
                routes.put(tx, now, key, platform, *what)
            return ReceiveResult(key, number)

    def read_work_item(self, inbox_id: int, key: str, user: User | None) -> WorkItem:
        """Read, in one snapshot, what a gateway needs before it answers an event."""
        with self._store.read() as tx:
            found = inbox.waiting(tx, "id = ?", (inbox_id,))
            route = routes.get(tx, key)
            tip = newest_session(tx, route.session_id) if route is not None and route.session_id is not None else None
            is_member = tip is not None and user is not None and sessions.is_shown(tx, tip, user)
            return WorkItem(found[0] if found else None, route, tip, is_member)

    def append_user_message(
        self, inbox_id: int, key: str, session_id: str, content: str | list[Any], source: SourceEvent, *,
        notice: PendingNotice | None = None, with_it: Callable[[Tx], None] = lambda tx: None,
    ) -> tuple[int, Outgoing | None]:  # fmt: skip
        """Store an event's text as the user's message; returns its id. The event and its route are updated with it.

        `with_it` is called in the same transaction. A notice for the user enters the outbox with it, so that it is sent once.
        `Revised` when the event was edited or deleted meanwhile: nothing is stored then.
        """
        posted: list[Outgoing] = []

        def also(tx: Tx, message_id: int) -> None:
            with_it(tx)
            inbox.check_unrevised(tx, inbox_id, source.texts)
            inbox.begin(tx, self.clock(), inbox_id, session_id, message_id)
            routes.spoken(tx, self.clock(), key, session_id)
            if notice is not None:
                posted.append(self._post(tx, *notice))

        meta = None if source.words is None else {"words": source.words}
        message = {"role": "user", "content": content, "platform_message_id": source.event_id, "meta": meta}
        message_id = self._store.store_message(session_id, message, also)
        return message_id, posted[-1] if posted else None

    def content_of(self, message_id: int) -> tuple[Any, Any] | None:
        """A message's content and its meta."""
        with self._store.read() as tx:
            known = tx.row("SELECT 1 FROM messages WHERE id = ?", (message_id,)) is not None
            found = replay.message(tx, message_id) if known else None
        return None if found is None else (found["content"], found["meta"])

    def is_redacted(self, message_id: int) -> bool:
        """Whether a message was redacted."""
        with self._store.read() as tx:
            return tx.row(f"SELECT 1 FROM messages WHERE id = ? AND hidden = {REDACTED}", (message_id,)) is not None

    def finish(self, inbox_id: int, platform: str, chat: str, parts: Sequence[ReplyPart] = ()) -> list[Outgoing]:
        """Finish an event: it leaves the inbox and its reply enters the outbox, atomically.

        A part is {"text", "nonce"}. The messages that show the reply as it grew are replaced by its parts. When it was
        already finished: returns the unsent parts of that reply.

        This alone is not synced to the disk. The next send is: if its platform can't recognise a repetition, the
        send is recorded and synced before it is made. If the power fails in between, the event is answered from the store.
        """
        with self._store.write(durable=False) as tx:
            return self.finish_in(tx, inbox_id, platform, chat, parts)

    def finish_in(self, tx: Tx, inbox_id: int, platform: str, chat: str, parts: Sequence[ReplyPart]) -> list[Outgoing]:
        """Finish an event as `finish` does, in a transaction that stores more."""
        now = self.clock()
        shown = inbox.finish(tx, now, inbox_id)
        if shown is None:
            return outbox.unsent(tx, "inbox_id = ?", (inbox_id,))
        return [
            self._post(
                tx, platform, chat, inbox_id=inbox_id, edits=old or None, begun_at=now if old == "" else None, **part
            )
            for part, old in zip(parts, chain(shown, repeat(None)), strict=False)
        ]  # fmt: skip

    def _post(self, tx: Tx, platform: str, chat: str, text: str, nonce: str, **more: Any) -> Outgoing:
        return outbox.post(tx, platform, chat, text, nonce, self.clock(), mask=self.db.masked, **more)

    def post(self, platform: str, chat: str, text: str, nonce: str) -> Outgoing:
        """Queue a message that answers no event."""
        with self._store.write() as tx:
            return self._post(tx, platform, chat, text, nonce)

    def post_file(self, platform: str, attachment: str, parts: Sequence[tuple[str, str, str]]) -> list[Outgoing]:
        """Queue a file and its message: each part its chat, text and nonce. [] if the first was queued before."""
        with self._store.write() as tx:
            if tx.row("SELECT 1 FROM gateway_outbox WHERE nonce = ?", (parts[0][2],)) is not None:
                return []
            return [self._post(tx, platform, *part) for part in parts]

    def attachment(self, reference: str) -> bytes | None:
        """The bytes of an attachment; None when they are gone, with the messages that held it."""
        for digest, _, _ in references(reference):
            with suppress(OSError):
                return self._store.attachments.read(digest)
        return None

    def mail_counts(self) -> dict[str, dict[str, int]]:
        """How much waits ("waiting", "unsent") and how much could not be sent ("failed"), by platform."""
        if not self.exists():
            return {}
        found: dict[str, dict[str, int]] = {}
        with self._store.read() as tx:
            for platform, what, number in tx.rows(
                "SELECT platform || '', 'waiting', count(*) FROM gateway_inbox WHERE finished_at IS NULL GROUP BY platform || ''"
                " UNION ALL SELECT platform, CASE WHEN error IS NULL THEN 'unsent' ELSE 'failed' END, count(*)"
                " FROM gateway_outbox WHERE sent_at IS NULL OR error IS NOT NULL GROUP BY platform, error IS NULL"
            ):
                found.setdefault(str(platform), {})[str(what)] = int(number)
        return found

    def forget_mail(self, older_than_days: float = 7, last_days: float = 1) -> int:
        """Remove rows finished longer ago; returns how many.

        Redeliveries older than this are not recognised, except webhook deliveries and short messages that are signed without a
        time, mails of proven senders, and the events of each platform's last day with any, however long ago that was: after a
        quiet month an adapter asks its platform for what came after its last message, and a little before it. (No adapter asks
        for edits and deletions, which have no key.) The newest row of each box stays: the next one gets the number after it, and
        no number is used twice.
        """
        before = self.clock() - older_than_days * 86400
        events = (
            "DELETE FROM gateway_inbox WHERE platform = ? AND finished_at < ? AND (key = '' OR received_at < ?)"
            f" AND id < (SELECT max(id) FROM gateway_inbox) AND {_MAY_GO}"
        )
        parts = (
            f"DELETE FROM gateway_outbox WHERE NOT ({outbox.WAITS}) AND created_at < ?"
            " AND id < (SELECT max(id) FROM gateway_outbox)"
        )
        newest = (
            "SELECT platform, max(CASE WHEN key <> '' THEN received_at ELSE 0 END) FROM gateway_inbox GROUP BY platform"
        )
        with self._store.write() as tx:
            since = [(platform, before, last - last_days * 86400, *_KEPT) for platform, last in tx.rows(newest)]
            return sum(tx.run(events, one) for one in since) + tx.run(parts, (before,))

    # ------------------------------------------------------------------------------------------ people and homes

    def approve_pairing(self, code: str, welcome: Callable[[str], str]) -> approvals.Person | None:
        """Approve the user with this code, and queue the message that tells them; None when no user has it (any more).

        `welcome` makes that message for the chat (as JSON) where they asked for it.
        StoreBusy after five tries in a minute.
        """
        nonce = f"{self.identity()}-p{approvals.digest(code)[:16]}"
        with self._store.write() as tx:
            found = approvals.approve(tx, self.clock(), code)
            if found is not None:
                self._post(tx, found["platform"], found["chat"], welcome(found["chat"]), nonce)
            return found

    # ------------------------------------------------------------------------------------------ status, aliases

    def set_status(self, platform: str, state: str, *, identity: str | None = None, error: str | None = None) -> None:
        """The state of a platform: "connecting", "connected", "lost", "refused" or "stopped"."""
        now = self.clock()
        with self._store.write() as tx:
            insert(
                tx, "gateway_status",
                "ON CONFLICT(platform) DO UPDATE SET state = excluded.state, updated_at = excluded.updated_at,"
                " since = CASE WHEN gateway_status.state = excluded.state THEN gateway_status.since ELSE excluded.since END,"
                " identity = coalesce(excluded.identity, gateway_status.identity), error = coalesce(excluded.error,"
                " gateway_status.error), error_at = coalesce(excluded.error_at, gateway_status.error_at)",
                platform=platform, state=state, identity=identity, since=now, error=self._store.masked(error),
                error_at=None if error is None else now, updated_at=now,
            )  # fmt: skip

    def statuses(self) -> list[PlatformStatus]:
        """The state of all platforms."""
        with self._store.read() as tx:
            return tx.dicts("SELECT * FROM gateway_status ORDER BY platform") if self.exists() else []

    def get_alias(self, digest: str) -> str | None:
        """The session of the conversation with this digest."""
        with self._store.read() as tx:
            found = tx.value("SELECT session_id FROM gateway_aliases WHERE digest = ?", (digest,))
        return None if found is None else str(found)

    def set_alias(self, digest: str, session_id: str) -> None:
        """Record the session of the conversation with this digest."""
        with self._store.write() as tx:
            self._note_alias(tx, digest, session_id)

    def keep_with_alias(
        self, session_id: str, message: dict[str, Any], digest: str, with_it: Callable[[Tx], None]
    ) -> int:
        """Store a message and, in the same transaction, that the conversation with this digest is at it (`session@id`), and
        what `with_it` does."""

        def note(tx: Tx, message_id: int) -> None:
            with_it(tx)
            self._note_alias(tx, digest, f"{session_id}@{message_id}")

        return self._store.store_message(session_id, message, note)

    def _note_alias(self, tx: Tx, digest: str, session_id: str) -> None:
        known = replacing("digest", "session_id")
        insert(tx, "gateway_aliases", known, digest=digest, session_id=session_id, made_at=self.clock())
