"""Streamed replies: a reply grows in the thread of its turn and is shown by the event loop, by edits where the platform has them.

Its first message waits for what was queued for its chat before it began; its final parts replace what was shown.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hermes.errors import (
    HermesError,
    PlatformError,
    PlatformRefused,
    PlatformUnreachable,
    SendRefused,
    SlowDown,
    StoreError,
)
from hermes.gateway.flow.splitting import split, with_cursor
from hermes.gateway.flow.turns import wait_first
from hermes.store.gateway import inbox
from hermes.texts import encodable

if TYPE_CHECKING:
    from hermes.gateway.events import Chat
    from hermes.gateway.flow.outbox import Delivery, Job
    from hermes.store.gateway.outbox import Outgoing

TICK = 0.1  # seconds between two looks for new text, at least
TYPING_AFTER = 0.25  # seconds: a reply that is ready at once needs no "is typing"
TYPING_SECONDS = 4.0
PATIENCE = 120.0  # seconds an adapter may take for one message


class StreamedReply:
    """A reply on its way to a chat. `write`, `restart` and `text` may be called from any thread."""

    def __init__(
        self, chat: Chat, *, inbox_id: int, nonce: str, fence: tuple[str, int],
        answers: str = "", shown: Sequence[str] = (), resumed: bool = False, reply_to: str | None = None,
        context: Mapping[str, Any] | None = None, streams: bool = False,
    ) -> None:  # fmt: skip
        """`shown` has the message ids that the store knows; the last one is empty where it is unknown if it was sent."""
        self.chat = chat
        self.inbox_id = inbox_id
        self.answers = answers  # the id of the event it answers
        self.fence = fence  # the lease under which it is written
        self.nonce = nonce
        self.reply_to = reply_to  # the message that its first part quotes
        self.context = context  # the reply context of the event it answers
        self.shown = [one for one in shown if one]  # the platform's ids of its messages so far
        self.texts = [""] * len(self.shown)  # the text of each of them, as far as it is known
        self.tried: set[int] = set()  # parts that may have been sent under their nonce with another text
        self.unsure = len(shown) > len(self.shown)  # the next message may have been sent already, under an unknown id
        self.resumed = resumed  # a process that died may have shown some of it
        self.later: list[Outgoing] = []  # files that are sent after it
        self.after: Job | None = None  # what was queued for its chat before it began
        self.growing: asyncio.Task[None] | None = None  # shows it
        self.streams = streams  # its text is shown while it is written
        self.stored: list[Outgoing] | None = (
            None  # its parts in the outbox, if they were stored together with the message
        )
        self.parts: list[Outgoing] | None = None  # the complete reply; [] when there is nothing to send
        self.done = asyncio.Event()
        self._lock = threading.Lock()
        self._pieces: list[str] = []

    def part_nonce(self, number: int) -> str:
        """The nonce of the reply's n-th message, the same in every process."""
        return f"{self.nonce}-{number}"

    def write(self, text: str) -> None:
        """Append the next piece."""
        with self._lock:
            self._pieces.append(text)

    def restart(self) -> None:
        """Start the reply over: the text so far is discarded."""
        with self._lock:
            self._pieces.clear()

    def text(self) -> str:
        """The text so far."""
        with self._lock:
            whole = "".join(self._pieces)
            self._pieces[:] = [whole]
        return whole

    def complete(self, parts: Sequence[Outgoing]) -> None:
        """End the text. The reply is stored in the outbox as these parts; none: the messages shown stay as they are."""
        if self.parts is None:
            self.parts = list(parts)
            self.done.set()


class Streaming:
    """Shows the replies of one platform while they are written. Runs on its delivery's event loop."""

    def __init__(self, delivery: Delivery) -> None:
        self._delivery, self._adapter, self._log = delivery, delivery.adapter, delivery.log
        self._streaming = delivery.config.gateway.streaming

    async def grow(self, reply: StreamedReply) -> None:
        """Show a reply as it is written, until it is complete."""
        begun, never = time.monotonic(), float("inf")
        next_look = begun if reply.streams and not reply.unsure else never
        next_typing = begun + TYPING_AFTER if self._adapter.capabilities.typing else never
        while reply.parts is None and min(next_look, next_typing) < never:
            now, is_open = time.monotonic(), self._delivery.is_open
            if is_open and now >= next_typing:
                next_typing = now + TYPING_SECONDS
                await self._type(reply.chat)
            if is_open and now >= next_look and (reply.after is None or reply.after.is_done):
                wait = await self._grow(reply)
                next_look = never if wait is None else time.monotonic() + wait
            pause = min(next_look, next_typing) - time.monotonic()
            await wait_first(reply.done, min(max(TICK, pause), TYPING_SECONDS))

    async def _type(self, chat: Chat) -> None:
        try:
            async with asyncio.timeout(TYPING_SECONDS):
                await self._adapter.typing(chat)
        except (HermesError, OSError) as error:  # a TimeoutError is an OSError
            self._log.debug("typing can't be shown: %s", error)
        except Exception:
            self._log.exception("the adapter could not show typing")

    async def _grow(self, reply: StreamedReply) -> float | None:
        """Show the new text; returns the seconds to wait before the next time, None when streaming does not work here."""
        settings, text = self._streaming, reply.text()
        if len(text) - sum(map(len, reply.texts)) < settings.buffer_threshold:
            return 0.0
        capabilities = self._adapter.capabilities
        parts = split(with_cursor(text, settings.cursor), capabilities.longest, capabilities.measure)
        without = split(text, capabilities.longest, capabilities.measure)
        if len(parts) > len(without):  # no message for the cursor alone: the complete reply will not have it
            parts = without
        try:
            for number, shown in enumerate(parts):
                if number >= len(reply.shown):
                    await self._show_next(reply, shown)
                elif reply.texts[number] != shown:
                    if (wait := self._adapter.edit_wait()) > 0:
                        return max(settings.edit_interval, wait)
                    self._only_if_open()
                    async with asyncio.timeout(PATIENCE):
                        await self._adapter.edit(reply.chat, reply.shown[number], encodable(shown))
                    reply.texts[number] = shown
        except SlowDown as error:
            return max(settings.edit_interval, error.retry_after)
        except (PlatformUnreachable, OSError):
            return None if reply.unsure else max(settings.edit_interval, 1.0)
        except PlatformError as error:
            self._log.debug("a streamed reply can't be shown: %s", error)
            return None
        except StoreError:
            return None
        except Exception:
            self._log.exception("the adapter could not show a streamed reply")
            return None
        return settings.edit_interval

    async def _show_next(self, reply: StreamedReply, shown: str) -> None:
        """Begin the reply's next message. On platforms without nonces, a record that it may exist is stored before."""
        nonce = reply.part_nonce(len(reply.shown))
        twice_is_once = self._adapter.capabilities.idempotent
        if not twice_is_once:
            await self._note(reply, [*reply.shown, ""], nonce)
        self._only_if_open()
        again, reply.unsure = reply.unsure, True
        try:
            async with asyncio.timeout(PATIENCE):
                question = None if reply.shown else reply.reply_to
                message_id = await self._adapter.send(
                    reply.chat, encodable(shown), nonce=nonce, reply_to=question, **context_arg(reply.context)
                )
        except (SlowDown, SendRefused, PlatformRefused):
            reply.unsure = again
            raise
        except PlatformUnreachable as error:
            if not error.maybe_sent:
                reply.unsure = again
            elif twice_is_once:
                reply.tried.add(len(reply.shown))
                reply.unsure = False
            raise
        reply.unsure = False
        # an earlier process or attempt may have sent another text under this nonce
        known = not reply.resumed and len(reply.shown) not in reply.tried
        reply.texts.append(shown if known else "")
        reply.shown.append(message_id)
        await self._note(reply, list(reply.shown), nonce)

    async def _note(self, reply: StreamedReply, message_ids: list[str], nonce: str) -> None:
        """Record the reply's message ids, if this gateway still writes it."""
        write = self._delivery.store.write
        await asyncio.to_thread(write, inbox.show, reply.inbox_id, message_ids, nonce, reply.fence)

    def _only_if_open(self) -> None:
        if not self._delivery.is_open:
            raise PlatformUnreachable("it is not certain that this gateway may send now")

    async def complete(self, reply: StreamedReply) -> None:
        """Make sure that the parts of a complete reply were sent."""
        if reply.growing is not None:
            await asyncio.wait([reply.growing])
        capabilities = self._adapter.capabilities
        parts = reply.parts or []
        for number, part in enumerate(parts):
            known = number < len(reply.shown)
            perhaps = number == len(reply.shown) and reply.unsure
            if known:
                part.edits = reply.shown[number]
                if reply.texts[number] == part.text:
                    await self._delivery.note_sent(part, reply.shown[number])
                    continue
            part.begun_at = self._delivery.clock() if perhaps else None  # what is known by now
            unclear = reply.resumed or perhaps or number in reply.tried
            again = unclear and capabilities.idempotent and capabilities.edits
            await self._delivery.send(reply.chat, part, edit_after=again)
        for message_id in reply.shown[len(parts) :] if parts else []:  # it was longer before it started over
            try:
                self._only_if_open()
                await self._adapter.edit(reply.chat, message_id, "…")
            except PlatformError:
                pass


def context_arg(context: Mapping[str, Any] | None) -> dict[str, Any]:
    """The argument `context` of Adapter.send, if there is one: adapters that set no reply context need not take it."""
    return {"context": context} if context else {}
