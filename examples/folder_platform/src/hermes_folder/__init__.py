"""A platform as an outside package: a text file in `<path>/in` is a message, the reply is a file of that name in `<path>/out`.

The name before the first dot is the sender: `alice.1.txt` and `alice.2.txt` are two messages of one conversation. Write a
file under another name (`.part`) and rename it to `.txt`, so that no half of it is read.
"""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

from hermes.errors import PlatformRefused
from hermes.gateway.adapter import Adapter, Capabilities, Link, Setting
from hermes.gateway.events import Chat, Event, Sender


class Folder(Adapter):
    """Messages as files."""

    platform = "folder"
    title = "Folder"
    settings = (Setting(name="path", help="the folder that holds in/ and out/", required=True),)
    capabilities = Capabilities(longest=100_000, idempotent=True)  # the same nonce writes the same file

    async def check(self) -> str:
        """Who we are: the folder."""
        root = Path(self.values["path"]).expanduser()
        try:
            for name in ("in", "out", "done"):
                (root / name).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise PlatformRefused(f"{root} can't be used: {error.strerror}") from error
        return str(root)

    async def connect(self, link: Link) -> None:
        """Begin to look for files."""
        self._root = Path(await self.check())
        self._reading = asyncio.create_task(self._read(link))
        link.connected(str(self._root))

    async def disconnect(self) -> None:
        """Stop looking."""
        reading = getattr(self, "_reading", None)
        if reading is not None:
            reading.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await reading

    async def send(self, chat: Chat, text: str, *, nonce: str, reply_to: str | None = None) -> str:
        """Write a reply: the file appears whole, under the name of the message it answers."""
        name = f"{reply_to or chat.chat_id}.{nonce}.txt"
        part = self._root / "out" / f"{name}.part"
        part.write_text(text, encoding="utf-8")
        part.rename(self._root / "out" / name)
        return name

    async def _read(self, link: Link) -> None:
        while True:
            for file in sorted((self._root / "in").glob("*.txt")):
                person = file.name.partition(".")[0]
                event = Event(
                    id=file.name,  # a file that is read twice, after a crash, is one event
                    chat=Chat(platform=self.platform, chat_id=person),
                    sender=Sender(user_id=person, proven=False),  # anyone who may write there can choose the name
                    text=file.read_text(encoding="utf-8", errors="replace"),
                    message_id=file.stem,
                )
                await link.received(event)  # when this returns the message is stored; only then is the file moved
                file.rename(self._root / "done" / file.name)
            await asyncio.sleep(0.2)
