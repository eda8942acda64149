"""The outbox: what goes out. It is stored before it is sent, and sent in the order of its chat by the gateway that is connected.

A reply enters the store as its event leaves the inbox. Where another gateway has the platform, that one finds it there.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from hermes.gateway.delivery import parts_of
from hermes.gateway.events import as_json
from hermes.gateway.streaming import StreamedReply
from hermes.store.gateway_queues import QUESTION
from hermes.store.instances import question_mark

if TYPE_CHECKING:
    from hermes.gateway.cluster import Cluster
    from hermes.gateway.delivery import Delivery
    from hermes.gateway.events import Chat
    from hermes.gateway.inbox import Request
    from hermes.gateway.router import Router
    from hermes.gateway.workers import LoopCalls
    from hermes.store.gateway_db import GatewayDB, Outgoing, ReplyPart


class Outbox:
    """Takes replies and messages from any thread; `deliveries` send them on the event loop."""

    def __init__(self, store: GatewayDB, router: Router, cluster: Cluster, calls: LoopCalls) -> None:
        self._store, self._router, self._cluster, self._calls = store, router, cluster, calls
        self.deliveries: dict[str, Delivery] = {}  # by platform
        self._identity = store.identity()
        self._left: dict[int, str] = {}  # parts, and their platforms, that are left for a look into the store to find

    # ------------------------------------------------------------------------------------------ from any thread

    def reply(self, request: Request, *, resumed: bool = False) -> StreamedReply:
        """A reply that is about to be written. `resumed`: a process that died may have shown some of it."""
        event = request.event
        place = self._router.delivered_to(event.chat)
        return StreamedReply(
            self._calls, place, inbox_id=request.inbox_id, nonce=f"{self._identity}-{request.inbox_id}", shown=request.shown,
            resumed=resumed, fence=request.fence, reply_to=self._router.quoted_by(event, place),
        )  # fmt: skip

    def begin(self, reply: StreamedReply) -> None:
        """Show a reply from now on; where another gateway has the platform, that one sends it when it is whole."""
        self._calls(self._begin, reply)

    def finish(self, reply: StreamedReply, text: str) -> None:
        """A reply is whole: it enters the outbox as its event leaves the inbox; then it is sent."""
        place = reply.chat
        pieces = parts_of(text, self._router.adapters.get(place.platform))
        parts: list[ReplyPart] = [{"text": piece, "nonce": reply.part_nonce(n)} for n, piece in enumerate(pieces)]
        if parts and reply.reply_to is not None:
            parts[0]["reply_to"] = reply.reply_to
        kept = self._store.finish(reply.inbox_id, place.platform, as_json(place), parts)
        self._calls(self._finished, reply, kept)  # while it is still being shown, if it is shown here
        reply.finish(kept)

    def post(self, chat: Chat, text: str, *, at_once: bool = False) -> None:
        """Send something that is no reply of the agent's; from any thread but the event loop's.

        `at_once`: it is a question that a turn waits for; it does not wait behind that turn's own reply.
        """
        place = self._router.delivered_to(chat)
        for piece in parts_of(text, self._router.adapters.get(place.platform)):
            mark = question_mark(self._cluster.name) if at_once else "-n"
            nonce = f"{self._identity}{mark}{secrets.token_hex(8)}"
            part = self._store.post(place.platform, as_json(place), piece, nonce)
            self._calls(self._post, part, at_once)

    def send(self, part: Outgoing) -> None:
        """Send what is stored in the outbox."""
        self._calls(self._post, part)

    def new_nonce(self) -> str:
        """A name for a message that is no reply."""
        return f"{self._identity}-n{secrets.token_hex(8)}"

    # ------------------------------------------------------------------------------------------ on the event loop

    def _begin(self, reply: StreamedReply) -> None:
        delivery = self._ready(reply.chat.platform)
        if delivery is not None and not reply.begun:
            reply.begun = True
            delivery.begin(reply)

    def _finished(self, reply: StreamedReply, parts: Sequence[Outgoing]) -> None:
        """A reply is stored: it is shown here, or is found by the gateway that is connected, perhaps by us later."""
        self._begin(reply)
        delivery = self.deliveries.get(reply.chat.platform)
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
        """The delivery of a platform where what is said now may be sent at once: what was said before is queued."""
        return self.deliveries.get(platform) if self._cluster.ready(platform) else None

    def under_way(self, platforms: Sequence[str]) -> tuple[dict[str, set[int]], set[int]]:
        """The parts that are being sent to these platforms, and the parts that were left to be found in the store.

        What was sent until now is forgotten: a look into the store after this does not find it.
        """
        sending = {}
        for platform in platforms:
            delivery = self.deliveries[platform]
            delivery.forget_through()
            sending[platform] = set(delivery.under_way)
        return sending, set(self._left)

    def take(self, parts: Sequence[Outgoing], left: Collection[int], answering: Collection[int]) -> set[str]:
        """Send parts that were found in the store; of those that had been `left` to be found none is any more.

        A reply to an event that we are `answering` is sent by that. The platforms for which parts were left since then.
        """
        for part in parts:
            delivery = self.deliveries[part.platform]
            if (part.inbox_id in answering or part.inbox_id in delivery.replies) and part.id not in self._left:
                continue
            if QUESTION in part.nonce:  # a turn of another gateway waits for the answer
                delivery.post_at_once(part)
            else:
                delivery.post(part)
        for number in left:
            self._left.pop(number, None)
        return set(self._left.values())
