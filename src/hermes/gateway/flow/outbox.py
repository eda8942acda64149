"""The outbox: outgoing messages. Each is stored before it is sent; the connected gateway sends them in the order of their chat.

A reply enters the store as its event leaves the inbox. What another process has stored for one of our connections (another
gateway, a command in a terminal) is found there by looking now and then.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import secrets
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from hermes.errors import HermesError
from hermes.gateway.events import context_of, destination, is_same_place
from hermes.gateway.flow.delivery import Delivery, parts_of
from hermes.gateway.flow.streaming import StreamedReply
from hermes.store.gateway.outbox import QUESTION

if TYPE_CHECKING:
    from hermes.gateway.adapter import Capabilities
    from hermes.gateway.chats.router import Router
    from hermes.gateway.events import Chat, Choice, Event, FileReference
    from hermes.gateway.flow.inbox import Request
    from hermes.store.engines.base import Tx
    from hermes.store.gateway.gateway_db import GatewayDB
    from hermes.store.gateway.outbox import Outgoing, ReplyPart

LOOK_SECONDS = 1.0  # between two looks for parts that other processes have stored, and how old those are
_log = logging.getLogger("hermes.gateway")


class Outbox:
    """Accepts replies and messages from any thread; `deliveries` send them on the event loop."""

    def __init__(self, store: GatewayDB, router: Router) -> None:
        self._store, self._router = store, router
        self.loop: asyncio.AbstractEventLoop | None = None  # set before anything is sent
        self.deliveries: dict[str, Delivery] = {}  # by platform
        self._identity = store.identity()

    # ------------------------------------------------------------------------------------------ from any thread

    def reply(self, request: Request, *, resumed: bool = False) -> StreamedReply:
        """Start a reply. `resumed`: a process that died may have shown some of it."""
        event = request.event
        place = self._router.delivered_to(event.chat)
        delivery = self.deliveries.get(place.connection)
        return StreamedReply(
            place, inbox_id=request.inbox_id, nonce=f"{self._identity}-{request.inbox_id}",
            answers=event.id, shown=request.shown, resumed=resumed, fence=request.fence,
            reply_to=self._router.quoted_by(event, place),
            context=event.reply_context if is_same_place(place, event.chat) else None,
            streams=delivery is not None and delivery.streams,
        )  # fmt: skip

    def begin(self, reply: StreamedReply) -> None:
        """Show a reply while it is written; if another gateway has the platform, that one sends it when it is complete."""
        self._soon(reply.chat.connection, Delivery.begin, reply)

    def finish(self, reply: StreamedReply, text: str) -> None:
        """Complete a reply: store it in the outbox as its event leaves the inbox, unless that is done, then send it."""
        if reply.stored is None:
            reply.stored = self._store.finish(*self._finished(reply, text))
        self._soon(reply.chat.connection, Delivery.finish, reply, reply.stored)

    def finish_in(self, tx: Tx, reply: StreamedReply, text: str) -> list[Outgoing]:
        """Store a complete reply in the outbox as its event leaves the inbox, in a transaction that stores more."""
        return self._store.finish_in(tx, *self._finished(reply, text))

    def _finished(self, reply: StreamedReply, text: str) -> tuple[int, str, str, list[ReplyPart]]:
        place = reply.chat
        pieces = parts_of(text, self._router.adapters.get(place.connection))
        parts: list[ReplyPart] = [{"text": piece, "nonce": reply.part_nonce(n)} for n, piece in enumerate(pieces)]
        if parts and reply.reply_to is not None:
            parts[0]["reply_to"] = reply.reply_to
        return reply.inbox_id, place.connection, destination(place, reply.context), parts

    def abandon(self, reply: StreamedReply) -> None:
        """End a reply that is not finished: the messages shown so far stay as they are."""
        self._soon(reply.chat.connection, Delivery.finish, reply, ())

    def post(
        self, chat: Chat, text: str, *, asks: bool = False, answers: Event | None = None, choices: Sequence[Choice] = (),
        session: str | None = None,
    ) -> None:  # fmt: skip
        """Send a message that is not a reply of the agent; from any thread but the event loop's.

        `asks`: it is a question of a turn, which is cancelled with it. `answers`: the event because of which it is sent, if
        there is one. `choices`: buttons, where the platform has them.
        `session`: the session whose words it may hold: it is not sent once that is shredded.
        """
        place, stored = self.destination(chat, answers, session)
        pieces = parts_of(text, self._router.adapters.get(place.connection))
        for number, piece in enumerate(pieces):
            if choices and number == len(pieces) - 1:
                stored = destination(place, context_of(stored), choices=choices, session=session)
            nonce = f"{self._identity}{QUESTION if asks else '-n'}{secrets.token_hex(8)}"
            self.send(self._store.post(place.connection, stored, piece, nonce))

    def takes_files(self, chat: Chat) -> Capabilities | None:
        """The abilities of the platform that gets the messages for a chat, if files are among them."""
        adapter = self._router.adapters.get(self._router.delivered_to(chat).connection)
        return adapter.capabilities if adapter is not None and adapter.capabilities.files else None

    def post_file(
        self, chat: Chat, file: FileReference, caption: str, *, answers: Event | None = None, session: str | None = None
    ) -> bool:
        """Send a file after what waits for the chat and the reply that is being written; from any thread but the event loop's.

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
            self._soon(part.platform, Delivery.post, part, None if answers is None else answers.id)
        return bool(posted)

    def destination(self, chat: Chat, answers: Event | None = None, session: str | None = None) -> tuple[Chat, str]:
        """The chat that gets the messages for a chat, and the same as the outbox stores it, with the event's reply context."""
        place = self._router.delivered_to(chat)
        same = answers is not None and is_same_place(place, answers.chat)
        context = answers.reply_context if same and answers is not None else None
        return place, destination(place, context, session=session)

    def send(self, part: Outgoing) -> None:
        """Send a part that is stored in the outbox."""
        self._soon(part.platform, Delivery.post, part)

    def new_nonce(self) -> str:
        """A nonce for a message that is not a reply."""
        return f"{self._identity}-n{secrets.token_hex(8)}"

    def _soon(self, platform: str, step: Callable[..., None], *args: Any) -> None:
        """Have the platform's delivery do this on the event loop, in order, if this gateway holds the connection then.

        Otherwise, and after the loop's end, the messages are in the outbox for the gateway that takes it.
        """

        def do() -> None:
            delivery = self.deliveries.get(platform)
            if delivery is not None and delivery.held is not None:
                step(delivery, *args)

        assert self.loop is not None
        with suppress(RuntimeError):  # the loop has ended
            self.loop.call_soon_threadsafe(do)

    # ------------------------------------------------------------------------------------------ on the event loop

    async def follow(self) -> None:
        """Send what other processes have stored for our connections, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            held = {name: one for name, one in self.deliveries.items() if one.held is not None}
            known = set().union(*(one.known for one in held.values()))
            if not held:
                continue
            try:
                found = await asyncio.to_thread(self._store.parts_of_others, list(held), known, LOOK_SECONDS)
            except HermesError as error:
                _log.warning("could not look for messages to send: %s", error)
                continue
            for part in found:
                self.send(part)


def _digest(*parts: str | None) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:24]
