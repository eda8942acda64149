"""A reply while it is being written: it grows in the thread of its turn and is shown by the event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hermes.gateway.events import Chat
    from hermes.store.mail import Outgoing


class Growing:
    """A reply on its way to a chat. `write`, `restart` and `finish` may be called from any thread."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, chat: Chat, *, inbox_id: int, nonce: str, shown: Sequence[str] = (),
        resumed: bool = False, fence: tuple[str, int] | None = None, reply_to: str | None = None,
    ) -> None:  # fmt: skip
        """`shown` is what the store knows of it: ids of messages, the last one empty where it may be there or not."""
        self.chat = chat
        self.inbox_id = inbox_id
        self.fence = fence  # the lease it is written under, where several gateways share the chats
        self.nonce = nonce
        self.reply_to = reply_to  # the message that its first one quotes
        self.shown = [one for one in shown if one]  # the platform's ids of the messages it is shown in so far
        self.texts = [""] * len(self.shown)  # what each of them shows, as far as is known
        self.tried: set[int] = set()  # parts that may have been shown under their nonce with other words
        self.unsure = len(shown) > len(self.shown)  # the next message may be there already, under an id nobody knows
        self.resumed = resumed  # a process that died may have shown some of it
        self.begun = False  # whether it was given to a delivery
        self.parts: list[Outgoing] | None = None  # the finished reply; [] when there is nothing to send
        self.changed = asyncio.Event()
        self.done = asyncio.Event()
        self._loop = loop
        self._lock = threading.Lock()
        self._pieces: list[str] = []

    def part_nonce(self, number: int) -> str:
        """The name of the reply's n-th message, the same whoever sends it."""
        return f"{self.nonce}-{number}"

    def write(self, text: str) -> None:
        """The next piece."""
        with self._lock:
            self._pieces.append(text)
        if not self.changed.is_set():
            self._wake(self.changed)

    def restart(self) -> None:
        """The reply begins anew: what was written is not what will be said."""
        with self._lock:
            self._pieces.clear()

    def text(self) -> str:
        """What is written so far."""
        with self._lock:
            whole = "".join(self._pieces)
            self._pieces[:] = [whole]
        return whole

    def finish(self, parts: Sequence[Outgoing]) -> None:
        """The reply is whole and lies in the outbox as these parts."""
        self.parts = list(parts)
        self._wake(self.done)
        self._wake(self.changed)

    def abandon(self) -> None:
        """Nothing more comes, if it is not finished: what is shown of it stays as it is."""
        if self.parts is None:
            self.finish([])

    def _wake(self, event: asyncio.Event) -> None:
        try:
            self._loop.call_soon_threadsafe(event.set)
        except RuntimeError:
            pass  # the loop is closed: what was written is in the store
