"""A platform with nothing in between: JSON lines over a socket. For the gateway itself, and for many messages.

The server keeps every event until it is acknowledged and sends what is not again on the next connection; a nonce makes a
repeated send one message. The adapter here is a real one, on the same interface as all others.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import threading
from collections.abc import Awaitable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from hermes.errors import PlatformRefused, PlatformUnreachable, SendRefused, SlowDown
from hermes.gateway.adapter import Adapter, Capabilities, Link, ReplyContext, Setting
from hermes.gateway.events import Attachment, Chat, Choice, Event, Forwarded, OutgoingFile, Revision, Sender
from tests.support.labs.base import Lab as Base


class Plain(Adapter):
    """Speaks with a PlainLab."""

    platform = "plain"
    title = "Plain"
    settings = (
        Setting(name="port", help="the port", kind=int, required=True),
        Setting(name="token", help="the token", secret=True, default="right"),
    )
    capabilities = Capabilities(
        longest=1000, edits=True, typing=True, threads=True, media=True, menu=True, idempotent=True, quotes=True,
        tells_edits=True, tells_deletions=True, files=True, largest_file=100_000, longest_caption=200,
        choices=10,
    )  # fmt: skip

    def __init__(self, values: Mapping[str, Any], home: Path) -> None:
        super().__init__(values, home)
        self._writer: asyncio.StreamWriter | None = None
        self._task: asyncio.Task[None] | None = None
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}

    async def check(self) -> str:
        return "plain"

    async def connect(self, link: Link) -> None:
        try:
            reader, self._writer = await asyncio.open_connection("127.0.0.1", self.values["port"], limit=1 << 26)
        except OSError as error:
            raise PlatformUnreachable(f"no connection: {error}") from error
        self._say({"hello": self.values["token"]})
        welcome = await reader.readline()
        if not welcome:
            raise PlatformUnreachable("the server hung up")
        if json.loads(welcome or b"{}").get("welcome") is None:
            raise PlatformRefused("the token is wrong")
        self._task = asyncio.create_task(self._listen(reader, link))
        link.connected("plain-bot")

    async def _listen(self, reader: asyncio.StreamReader, link: Link) -> None:
        queue: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        keeping = asyncio.create_task(self._keep(queue, link))
        try:
            while line := await reader.readline():
                item = json.loads(line)
                if "event" in item:
                    queue.put_nowait(item["event"])
                elif (waiting := self._waiting.pop(item["answer"], None)) and not waiting.done():
                    waiting.set_result(item)
            raise ConnectionResetError("the server hung up")
        except OSError as error:
            self._fail_all()
            link.lost(PlatformUnreachable(f"the connection broke: {error}"))
        finally:
            keeping.cancel()

    async def _keep(self, queue: asyncio.Queue[dict[str, Any]], link: Link) -> None:
        while True:
            await asyncio.gather(*[self._keep_one(link, raw) for raw in [await queue.get(), *_rest(queue)]])

    async def _keep_one(self, link: Link, raw: dict[str, Any]) -> None:
        if raw.get("gone"):
            await self._safe(link, raw, link.revised(Revision(id=raw["id"], revises=raw["revises"])))
            return
        chat = Chat(platform=self.platform, **raw["chat"])
        files = tuple(Attachment(**one) for one in raw.get("files", ()))
        sender = Sender(user_id=raw["user"], name=raw["name"], proven=raw.get("proven", True))
        event = Event(
            id=raw.get("revises", raw["id"]), chat=chat, sender=sender, text=raw["text"], attachments=files, message_id=raw["id"],
            addressed=raw.get("addressed", True), reply_to=raw.get("reply_to"), quoted=raw.get("quoted"),
            reply_context=raw.get("context"), forwarded=Forwarded(**raw["forwarded"]) if "forwarded" in raw else None,
        )  # fmt: skip
        if "revises" in raw:
            await self._safe(link, raw, link.revised(Revision(id=raw["id"], revises=event.id, event=event)))
        else:
            await self._safe(link, raw, link.received(event))

    async def _safe(self, link: Link, raw: dict[str, Any], keeping: Awaitable[None]) -> None:
        try:
            await keeping
        except Exception as error:
            link.log.info("not kept: %s", error)
        else:
            self._say({"ack": raw["id"]})

    def _say(self, item: dict[str, Any]) -> None:
        if self._writer is None or self._writer.is_closing():
            raise PlatformUnreachable("there is no connection")
        self._writer.write(json.dumps(item).encode() + b"\n")

    def _fail_all(self) -> None:
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(PlatformUnreachable("the connection broke", maybe_sent=True))
        self._waiting.clear()

    async def _ask(self, **request: Any) -> dict[str, Any]:
        number = next(self._numbers)
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        self._say({"number": number, **request})
        found = await answer
        if "wait" in found:
            raise SlowDown("too fast", found["wait"])
        if "refused" in found:
            raise SendRefused(found["refused"])
        if "broken" in found:
            raise PlatformUnreachable("the server has a problem")
        return found

    async def disconnect(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await self._task
        self._task = None
        if self._writer is not None:
            self._writer.close()
        self._writer = None
        self._fail_all()

    async def send(
        self, chat: Chat, text: str, *, nonce: str, reply_to: str | None = None, context: ReplyContext | None = None
    ) -> str:
        place = [chat.chat_id, chat.thread_id]
        found = await self._ask(send=text, chat=place, nonce=nonce, reply_to=reply_to, context=context)
        return str(found["id"])

    async def send_file(
        self, chat: Chat, file: OutgoingFile, *, caption: str = "", nonce: str, context: ReplyContext | None = None
    ) -> str:
        data = {"name": file.name, "kind": file.kind, "mime": file.mime, "data": base64.b64encode(file.data).decode()}
        place = [chat.chat_id, chat.thread_id]
        found = await self._ask(send=caption, chat=place, nonce=nonce, context=context, file=data)
        return str(found["id"])

    async def send_choices(
        self, chat: Chat, text: str, choices: Sequence[Choice], *, nonce: str, reply_to: str | None = None,
        context: ReplyContext | None = None,
    ) -> str:  # fmt: skip
        place, buttons = [chat.chat_id, chat.thread_id], [[one.label, one.says] for one in choices]
        found = await self._ask(send=text, chat=place, nonce=nonce, reply_to=reply_to, context=context, choices=buttons)
        return str(found["id"])

    async def edit(self, chat: Chat, message_id: str, text: str) -> None:
        await self._ask(edit=text, id=message_id)

    async def typing(self, chat: Chat) -> None:
        await self._ask(typing=[chat.chat_id, chat.thread_id])

    async def fetch(self, attachment: Attachment) -> bytes:
        return base64.b64decode((await self._ask(fetch=attachment.reference["id"]))["data"])

    async def create_thread(self, chat: Chat, name: str) -> Chat:
        found = await self._ask(thread=name, chat=[chat.chat_id, None])
        return Chat(platform=self.platform, chat_id=chat.chat_id, type=chat.type, thread_id=found["id"], name=name)

    async def show_menu(self, commands: Sequence[tuple[str, str]]) -> None:
        await self._ask(menu=[list(one) for one in commands])


def _rest(queue: asyncio.Queue[dict[str, Any]]) -> list[dict[str, Any]]:
    found = []
    while not queue.empty():
        found.append(queue.get_nowait())
    return found


class PlainLab(Base):
    """The server, in a thread of its own."""

    platform = "plain"
    places = frozenset({"dm", "group", "channel", "thread"})
    can = frozenset(
        {
            "redeliver",
            "rate_limit",
            "fail",
            "drop",
            "attach",
            "edits",
            "thread",
            "change",
            "take_back",
            "files",
            "choices",
            "forward",
        }
    )
    adapter: type[Plain] = Plain
    knows_nonces = True

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._lock = threading.RLock()
        self._clients: set[asyncio.StreamWriter] = set()
        self._forget()
        ready = threading.Event()
        threading.Thread(target=self._serve, args=(ready,), daemon=True).start()
        assert ready.wait(10)

    def _forget(self) -> None:
        self.events: dict[str, dict[str, Any]] = {}
        self.unacknowledged: dict[str, dict[str, Any]] = {}
        self.messages: dict[str, dict[str, Any]] = {}  # id → {"place", "text", "nonce"}
        self._by_nonce: dict[str, str] = {}
        self._files: dict[str, bytes] = {}
        self._numbers = itertools.count(1)
        self._threads: list[str] = []
        self._typed: list[tuple[str, str | None]] = []
        self._waits: list[float] = []
        self._failures = 0
        self.menu: list[list[str]] = []
        self.refuses: str | None = None  # every send is refused for this reason
        self.dislikes: str | None = None  # a text with these words is refused
        self.stumbles: str | None = None  # … or answered with a failure of the server
        self.stumbled = 0
        self.failure: dict[str, Any] = {"broken": True}  # … which is this one
        self.no_threads = False
        self.fetch_failures = 0  # so many files can't be had at first
        self.swallows = 0  # so many sends arrive, but the connection breaks before they are answered
        self.hides = False  # nobody is let in
        self.deaf = False  # sends are not answered at all
        self.sends = 0

    def reset(self) -> None:
        with self._lock:
            self._forget()

    def _serve(self, ready: threading.Event) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._client, "127.0.0.1", 0, limit=1 << 26))
        self.port = server.sockets[0].getsockname()[1]
        ready.set()
        self._loop.run_forever()
        server.close()
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self._loop.close()

    async def _client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if self.hides:
                return
            hello = json.loads(await reader.readline() or b"{}")
            if hello.get("hello") != "right":
                writer.write(b"{}\n")
                return
            writer.write(b'{"welcome": true}\n')
            with self._lock:
                self._clients.add(writer)
                for event in self.unacknowledged.values():
                    writer.write(json.dumps({"event": event}).encode() + b"\n")
            while line := await reader.readline():
                item = json.loads(line)
                with self._lock:
                    if "ack" in item:
                        self.unacknowledged.pop(item["ack"], None)
                        continue
                    if self.deaf and "send" in item:
                        continue
                    answer = {"answer": item["number"], **self._done(item)}
                    if "send" in item and self.swallows:
                        self.swallows -= 1
                        writer.transport.abort()
                        return
                writer.write(json.dumps(answer).encode() + b"\n")
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            self._clients.discard(writer)
            writer.close()

    def _done(self, item: dict[str, Any]) -> dict[str, Any]:
        if "typing" in item:
            self._typed.append(tuple(item["typing"]))
            return {}
        if "menu" in item:
            self.menu = item["menu"]
            return {}
        if "fetch" in item:
            if self.fetch_failures:
                self.fetch_failures -= 1
                return {"broken": True}
            data = self._files.get(item["fetch"])
            return {"refused": "it is no longer there"} if data is None else {"data": base64.b64encode(data).decode()}
        if self._waits:
            return {"wait": self._waits.pop(0)}
        if self._failures:
            self._failures -= 1
            return {"broken": True}
        if self.refuses is not None:
            return {"refused": self.refuses}
        text = str(item.get("send") or item.get("edit") or "")
        if self.stumbles and self.stumbles in text:
            self.stumbled += 1
            return self.failure
        if self.dislikes and self.dislikes in text:
            return {"refused": "these words are not allowed"}
        if "edit" in item:
            if item["id"] not in self.messages:
                return {"refused": "there is no such message"}
            self.messages[item["id"]]["text"] = item["edit"]
            return {}
        if "thread" in item:
            if self.no_threads:
                return {"refused": "no threads here"}
            self._threads.append(item["thread"])
            return {"id": f"thread-{next(self._numbers)}"}
        self.sends += 1
        if self.knows_nonces and item["nonce"] in self._by_nonce:
            return {"id": self._by_nonce[item["nonce"]]}
        number = f"m{next(self._numbers)}"
        self._by_nonce[item["nonce"]] = number
        self.messages[number] = {"place": tuple(item["chat"]), "text": item["send"], "nonce": item["nonce"]}
        self.messages[number] |= {"reply_to": item.get("reply_to"), "context": item.get("context")}
        self.messages[number] |= {"file": item.get("file"), "choices": item.get("choices") or []}
        return {"id": number}

    # ------------------------------------------------------------------------------------------ for tests

    @property
    def settings(self) -> dict[str, Any]:
        return {"port": self.port}

    def user_id(self, who: str) -> str:
        return f"u-{who}"

    def chat_id(self, where: str, who: str = "alice") -> str:
        return f"dm-{who}" if where == "dm" else {"thread": "group-1"}.get(where, f"{where}-1")

    def _chat(self, where: str, who: str) -> dict[str, Any]:
        kind = "group" if where == "thread" else where
        chat: dict[str, Any] = {"chat_id": self.chat_id(where, who), "type": kind}
        if where == "thread":
            chat["thread_id"] = "thread-0"
        return chat

    def say(
        self, text: str, *, who: str = "alice", where: str = "dm", addressed: bool = True, chat: dict[str, Any] | None = None,
        files: Sequence[dict[str, Any]] = (), **more: Any,
    ) -> str:  # fmt: skip
        with self._lock:
            number = f"e{next(self._numbers)}"
            event = {
                "id": number, "chat": chat or self._chat(where, who), "user": self.user_id(who), "name": who.capitalize(),
                "text": text, "addressed": addressed, "files": list(files), **more,
            }  # fmt: skip
            self.events[number] = event
            self.unacknowledged[number] = event
        self._deliver(event)
        return number

    def forward(self, text: str, *, who: str = "alice", where: str = "dm") -> str:
        return self.say("", who=who, where=where, forwarded={"text": text, "author": "Bob"})

    def _deliver(self, event: dict[str, Any]) -> None:
        data = json.dumps({"event": event}).encode() + b"\n"

        def write() -> None:
            for client in list(self._clients):
                client.write(data)

        self._loop.call_soon_threadsafe(write)

    def attach(
        self, data: bytes, name: str, mime: str, *, who: str = "alice", where: str = "dm", text: str = ""
    ) -> str:
        with self._lock:
            number = f"f{next(self._numbers)}"
            self._files[number] = data
        kind = {"image": "image", "audio": "audio", "video": "video"}.get(mime.split("/")[0], "file")
        file = {"kind": kind, "name": name, "mime": mime, "size": len(data), "reference": {"id": number}}
        return self.say(text, who=who, where=where, files=[file])

    def shown(self, where: str = "dm", *, who: str = "alice") -> list[str]:
        chat = self._chat(where, who)
        return self.shown_in(chat["chat_id"], chat.get("thread_id"))

    def shown_in(self, chat_id: str, thread_id: str | None = None) -> list[str]:
        with self._lock:
            there = [one for one in self.messages.values() if one["place"] == (chat_id, thread_id)]
            return [one["text"] for one in there if one.get("file") is None]

    def sent_files(self, where: str = "dm", *, who: str = "alice") -> list[tuple[str, bytes, str]]:
        chat = self._chat(where, who)
        place = (chat["chat_id"], chat.get("thread_id"))
        with self._lock:
            sent = [one for one in self.messages.values() if one["place"] == place and one.get("file") is not None]
            return [(one["file"]["name"], base64.b64decode(one["file"]["data"]), one["text"]) for one in sent]

    def _there(self, where: str, who: str) -> list[dict[str, Any]]:
        chat = self._chat(where, who)
        place = (chat["chat_id"], chat.get("thread_id"))
        return [one for one in self.messages.values() if one["place"] == place]

    def buttons(self, where: str = "dm", *, who: str = "alice") -> list[str]:
        with self._lock:
            return [label for one in self._there(where, who) for label, _ in one["choices"]]

    def press(self, label: str, *, who: str = "alice", where: str = "dm", which: int = -1) -> None:
        with self._lock:
            found = [says for one in self._there(where, who) for name, says in one["choices"] if name == label]
        self.say(found[which], who=who, where=where)

    def _newest(self, where: str, who: str) -> str:
        chat = self._chat(where, who)
        place = (chat["chat_id"], chat.get("thread_id"))
        return str(next((number for number, one in reversed(self.messages.items()) if one["place"] == place), "m"))

    def change(self, message_id: str, text: str, *, who: str = "alice", where: str = "dm") -> None:
        self.revise(f"c{next(self._numbers)}", {**self.events[message_id], "user": self.user_id(who), "text": text})

    def take_back(self, message_id: str, *, who: str = "alice", where: str = "dm") -> None:
        self.revise(f"d{next(self._numbers)}", {"id": message_id, "gone": True})

    def revise(self, number: str, about: dict[str, Any]) -> None:
        """An edit or a deletion, under a name of its own."""
        event = {**about, "id": number, "revises": about["id"]}
        with self._lock:
            self.events[number] = self.unacknowledged[number] = event
        self._deliver(event)

    def redeliver(self, message_id: str) -> None:
        self._deliver(self.events[message_id])

    def rate_limit(self, seconds: float, times: int = 1) -> None:
        with self._lock:
            self._waits += [seconds] * times

    def fail(self, times: int = 1) -> None:
        with self._lock:
            self._failures += times

    def drop(self) -> None:
        def cut() -> None:
            for client in list(self._clients):
                client.transport.abort()

        self._loop.call_soon_threadsafe(cut)

    def typed(self, where: str = "dm", *, who: str = "alice") -> int:
        chat = self._chat(where, who)
        with self._lock:
            return self._typed.count((chat["chat_id"], chat.get("thread_id")))

    def delete(self, message_id: str) -> None:
        """Somebody removes a message of the agent's."""
        with self._lock:
            del self.messages[message_id]

    @property
    def connected(self) -> bool:
        """Whether an adapter is there."""
        return bool(self._clients)

    def threads(self) -> list[str]:
        with self._lock:
            return list(self._threads)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)


class Forgetful(Plain):
    """A platform that takes every send for a new message."""

    platform = "forgetful"
    title = "Forgetful"
    capabilities = Capabilities(longest=1000, edits=True, typing=True, threads=True, files=True, longest_caption=200)


class ForgetfulLab(PlainLab):
    """Its server."""

    platform = "forgetful"
    adapter = Forgetful
    knows_nonces = False


class Letters(Plain):
    """A platform like e-mail: nothing can be changed, every send is a new message."""

    platform = "letters"
    title = "Letters"
    capabilities = Capabilities(longest=1000)


class LettersLab(PlainLab):
    """Its server."""

    platform = "letters"
    adapter = Letters
    knows_nonces = False


class Stubborn(Plain):
    """An adapter that does not let go, and can't be talked into it."""

    platform = "stubborn"
    title = "Stubborn"

    async def disconnect(self) -> None:
        while True:
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(60)


class StubbornLab(PlainLab):
    """Its server."""

    platform = "stubborn"
    adapter = Stubborn


Lab = PlainLab
