"""The outbox: outgoing messages. Each is stored before it is sent; the connected gateway sends them in the order of their chat.

A reply enters the store as its event leaves the inbox. If another gateway is connected to the platform, it finds it there.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from hermes.gateway.delivery import parts_of
from hermes.gateway.events import context_of, destination, is_same_place
from hermes.gateway.streaming import StreamedReply
from hermes.store.gateway_outbox import QUESTION
from hermes.store.instances import question_mark

if TYPE_CHECKING:
    from hermes.gateway.adapter import Capabilities
    from hermes.gateway.cluster import Cluster
    from hermes.gateway.delivery import Delivery
    from hermes.gateway.events import Chat, Choice, Event, FileReference
    from hermes.gateway.inbox import Request
    from hermes.gateway.router import Router
    from hermes.gateway.workers import LoopCalls
    from hermes.store.gateway_db import GatewayDB
    from hermes.store.gateway_outbox import Outgoing, ReplyPart


class Outbox:
    """Accepts replies and messages from any thread; `deliveries` send them on the event loop."""

    def __init__(self, store: GatewayDB, router: Router, cluster: Cluster, calls: LoopCalls) -> None:
        self._store, self._router, self._cluster, self._calls = store, router, cluster, calls
        self.deliveries: dict[str, Delivery] = {}  # by platform
        self._identity = store.identity()
        self._left: dict[int, str] = {}  # part id → platform, for parts that the next poll of the store picks up

    # ------------------------------------------------------------------------------------------ from any thread

    def reply(self, request: Request, *, resumed: bool = False) -> StreamedReply:
        """Start a reply. `resumed`: a process that died may have shown some of it."""
        event = request.event
        place = self._router.delivered_to(event.chat)
        return StreamedReply(
            self._calls, place, inbox_id=request.inbox_id, nonce=f"{self._identity}-{request.inbox_id}", shown=request.shown,
            resumed=resumed, fence=request.fence, reply_to=self._router.quoted_by(event, place),
            context=event.reply_context if is_same_place(place, event.chat) else None,
        )  # fmt: skip

    def begin(self, reply: StreamedReply) -> None:
        """Show a reply while it is written; if another gateway has the platform, that one sends it when it is complete."""
        self._calls(self._begin, reply)

    def finish(self, reply: StreamedReply, text: str) -> None:
        """Complete a reply: store it in the outbox as its event leaves the inbox, then send it."""
        place = reply.chat
        pieces = parts_of(text, self._router.adapters.get(place.connection))
        parts: list[ReplyPart] = [{"text": piece, "nonce": reply.part_nonce(n)} for n, piece in enumerate(pieces)]
        if parts and reply.reply_to is not None:
            parts[0]["reply_to"] = reply.reply_to
        kept = self._store.finish(reply.inbox_id, place.connection, destination(place, reply.context), parts)
        self._calls(self._finished, reply, kept)  # while it is still being shown, if this gateway shows it
        reply.finish(kept)

    def post(
        self, chat: Chat, text: str, *, at_once: bool = False, answers: Event | None = None, choices: Sequence[Choice] = (),
        session: str | None = None,
    ) -> None:  # fmt: skip
        """Send a message that is not a reply of the agent; from any thread but the event loop's.

        `at_once`: a turn waits for the answer to this question, so it is sent before that turn's own reply.
        `answers`: the event because of which it is sent, if there is one. `choices`: buttons, where the platform has them.
        `session`: the session whose words it may hold: it is not sent once that is shredded.
        """
        place, stored = self.destination(chat, answers, session)
        pieces = parts_of(text, self._router.adapters.get(place.connection))
        for number, piece in enumerate(pieces):
            if choices and number == len(pieces) - 1:
                stored = destination(place, context_of(stored), choices=choices, session=session)
            mark = question_mark(self._cluster.name) if at_once else "-n"
            nonce = f"{self._identity}{mark}{secrets.token_hex(8)}"
            part = self._store.post(place.connection, stored, piece, nonce)
            self._calls(self._post, part, at_once)

    def takes_files(self, chat: Chat) -> Capabilities | None:
        """What the platform that gets the messages for a chat can do, if files are among that."""
        adapter = self._router.adapters.get(self._router.delivered_to(chat).connection)
        return adapter.capabilities if adapter is not None and adapter.capabilities.files else None

    def post_file(
        self, chat: Chat, file: FileReference, caption: str, *, answers: Event | None = None, session: str | None = None
    ) -> bool:
        """Send a file after what waits for the chat; from any thread but the event loop's.

        The same file in answer to the same event is sent once, also when its turn is resumed after a crash: False then.
        `session` is that of `post`; the file is shredded with it.
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
        posted = self._store.post_file(place.connection, file.attachment, parts, session)
        for part in posted:
            self._calls(self._post, part)
        return bool(posted)

    def destination(self, chat: Chat, answers: Event | None = None, session: str | None = None) -> tuple[Chat, str]:
        """The chat that gets the messages for a chat, and the same as the outbox stores it, with the event's reply context."""
        place = self._router.delivered_to(chat)
        same = answers is not None and is_same_place(place, answers.chat)
        context = answers.reply_context if same and answers is not None else None
        return place, destination(place, context, session=session)

    def send(self, part: Outgoing) -> None:
        """Send a part that is stored in the outbox."""
        self._calls(self._post, part)

    def new_nonce(self) -> str:
        """A nonce for a message that is not a reply."""
        return f"{self._identity}-n{secrets.token_hex(8)}"

    # ------------------------------------------------------------------------------------------ on the event loop

    def _begin(self, reply: StreamedReply) -> None:
        delivery = self._ready(reply.chat.connection)
        if delivery is not None and not reply.begun and reply.fence == self._cluster.fence:
            reply.begun = True
            delivery.begin(reply)

    def _finished(self, reply: StreamedReply, parts: Sequence[Outgoing]) -> None:
        """A reply is stored: show it here, or leave it to the connected gateway, which finds it in the store."""
        self._begin(reply)
        delivery = self.deliveries.get(reply.chat.connection)
        if delivery is None or reply.inbox_id not in delivery.replies:
            self._leave(parts)

    def _post(self, part: Outgoing, at_once: bool = False) -> None:
        delivery = self._ready(part.platform)
        if delivery is None:
            self._leave([part])
        elif at_once:
            delivery.post_at_once(part)
        else:
            delivery.post(part)

    def _leave(self, parts: Sequence[Outgoing]) -> None:
        self._left.update({part.id: part.platform for part in parts})
        self._cluster.wake()

    def _ready(self, platform: str) -> Delivery | None:
        """The platform's delivery, if new messages may be sent at once: all older ones are queued already."""
        return self.deliveries.get(platform) if self._cluster.ready(platform) else None

    def under_way(self, platforms: Sequence[str]) -> tuple[dict[str, set[int]], set[int]]:
        """The parts that are being sent to these platforms, and the parts that were left for polling.

        Parts that are sent by now are forgotten: a later look into the store does not find them.
        """
        sending = {}
        for platform in platforms:
            delivery = self.deliveries[platform]
            delivery.forget_through()
            sending[platform] = set(delivery.under_way)
        return sending, set(self._left)

    def take(self, parts: Sequence[Outgoing], left: Collection[int], answering: Collection[int]) -> set[str]:
        """Send parts that were found in the store; those that had been `left` for polling are removed from that list.

        Replies to events that we are `answering` are skipped. Returns the platforms with parts left since then.
        """
        for part in parts:
            delivery = self.deliveries[part.platform]
            if (part.inbox_id in answering or part.inbox_id in delivery.replies) and part.id not in self._left:
                continue
            if QUESTION in part.nonce:  # another gateway's turn waits for the answer
                delivery.post_at_once(part)
            else:
                delivery.post(part)
        for number in left:
            self._left.pop(number, None)
        return set(self._left.values())


def _digest(*parts: str | None) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:24]
