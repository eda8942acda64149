"""A model that says back what it was told: an OpenAI-compatible endpoint on a real socket, light enough for thousands of turns.

    with Echo(latency=0.05) as model: EndpointModel("echo", model.base_url, None)

The reply to "hello" is "echo: hello". Words in the last message steer it: `pause=2` waits before it answers, `long=5000`
makes a reply of so many characters, `slow=3` spreads it over seconds, `fail=500` answers with that status once,
`call=tool {"a": 1}` calls a tool first. A question for a title gets "Echo talk".

A test can have it call a tool when certain words are said (`calls`), see pictures (a model called "eyes" tells what it is
shown), hear (`hears` is what it writes down of every recording), and refuse (`refuses`: a status for a model's name).
"""

from __future__ import annotations

import asyncio
import json
import re
import threading
from types import TracebackType
from typing import Any


class Echo:
    def __init__(self, *, latency: float = 0.0) -> None:
        self.latency = latency
        self.models = ["echo"]  # those it lists
        self.hurry = False  # `slow` is not obeyed, or no longer
        self.requests: list[dict[str, Any]] = []
        self.answered = 0
        self.connections = 0
        self.hung_up = 0  # connections that ended before their reply had begun
        self.drop_next = False  # the next request on a kept connection is not answered: it is closed
        self.calls: dict[str, tuple[str, dict[str, Any]]] = {}
        self.hears = "these were spoken words"
        self.recordings: list[tuple[str, bytes]] = []
        self.refuses: dict[str, int] = {}
        self._failed: set[str] = set()
        self._loop = asyncio.new_event_loop()
        ready = threading.Event()
        self._thread = threading.Thread(target=self._serve, args=(ready,), daemon=True)
        self._thread.start()
        assert ready.wait(120)

    def _serve(self, ready: threading.Event) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._client, "127.0.0.1", 0, backlog=2048))
        self.port = server.sockets[0].getsockname()[1]
        self.base_url = f"http://127.0.0.1:{self.port}/v1"
        ready.set()
        self._loop.run_forever()
        server.close()
        self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.close()

    def close(self) -> None:
        async def end() -> None:
            others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)
            self._loop.stop()

        asyncio.run_coroutine_threadsafe(end(), self._loop)
        self._thread.join(120)

    def __enter__(self) -> Echo:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def _client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        used = False
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                length = re.search(r"content-length: *(\d+)", head, re.IGNORECASE)
                body = await reader.readexactly(int(length[1])) if length else b""
                if self.drop_next and used:
                    self.drop_next = False
                    break
                used = True
                answering = asyncio.ensure_future(self._answer(head.split(" ", 2)[1], body, writer))
                while not answering.done():
                    await asyncio.wait([answering], timeout=0.2)
                    if reader.at_eof() and not answering.done():
                        answering.cancel()
                        self.hung_up += 1
                        return
                await answering
                if "connection: close" in head.lower():
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _answer(self, path: str, body: bytes, writer: asyncio.StreamWriter) -> None:
        if path.endswith("/audio/transcriptions"):
            self._listen(body, writer)
            return
        if not path.endswith("/chat/completions"):
            listed = [{"id": name, "object": "model"} for name in self.models]
            self._json(writer, 200, {"object": "list", "data": listed})
            return
        asked = json.loads(body)
        self.requests.append(asked)
        text = _said(asked["messages"])
        await asyncio.sleep(self.latency + float(_word(text, "pause") or 0))
        status = _word(text, "fail")
        if refused := self.refuses.get(asked["model"]):
            self._json(writer, refused, {"error": {"message": "as configured", "type": "invalid_request_error"}})
            return
        if status and text not in self._failed:
            self._failed.add(text)
            self._json(writer, int(status), {"error": {"message": "as asked", "type": "server_error"}})
            return
        if not asked.get("stream"):
            message = {"role": "assistant", "content": self._words(asked, text)}
            self._json(writer, 200, {"id": "e", "model": "echo", "choices": [{"index": 0, "message": message}]})
            self.answered += 1
            return
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        call = self._called(text)
        if call and asked["messages"][-1]["role"] == "user" and asked.get("tools"):
            function = {"name": call[0], "arguments": call[1]}
            self._piece(
                writer, {"tool_calls": [{"index": 0, "id": "call_1", "type": "function", "function": function}]}
            )
            self._end(writer, "tool_calls")
        else:
            await self._reply(writer, asked, text)
        await writer.drain()
        self.answered += 1

    def _called(self, text: str) -> tuple[str, str] | None:
        for words, (tool, arguments) in self.calls.items():
            if words in text:
                return tool, json.dumps(arguments)
        call = re.search(r"call=(\w+) ?(\{.*\})?", text, re.DOTALL)
        return (call[1], call[2] or "{}") if call else None

    def _listen(self, body: bytes, writer: asyncio.StreamWriter) -> None:
        found = re.search(rb'filename="([^"]*)"\r\n(?:[^\r]+\r\n)*\r\n(.*?)\r\n--', body, re.DOTALL)
        model = re.search(rb'name="model"\r\n\r\n([^\r]*)', body)
        assert found and model, body[:500]
        self.recordings.append((found[1].decode(), found[2]))
        if refused := self.refuses.get(model[1].decode()):
            self._json(writer, refused, {"error": {"message": "as configured", "type": "invalid_request_error"}})
        else:
            self._json(writer, 200, {"text": self.hears})

    def _words(self, asked: dict[str, Any], text: str) -> str:
        if asked["messages"][-1]["role"] == "tool":
            return f"the tool said: {asked['messages'][-1]['content']}"
        if "title" in str(asked["messages"][0].get("content", ""))[:400].lower() and asked.get("max_tokens"):
            return "Echo talk"
        if asked["model"] == "eyes":
            return f"I see {' '.join(_pictures(asked['messages']))}"
        return reply_to(text)

    async def _reply(self, writer: asyncio.StreamWriter, asked: dict[str, Any], text: str) -> None:
        reply = self._words(asked, text)
        pieces = [reply[n : n + 40] for n in range(0, len(reply), 40)] or [""]
        pause = 0.0 if self.hurry else float(_word(text, "slow") or 0) / len(pieces)
        for piece in pieces:
            self._piece(writer, {"content": piece})
            if pause:
                await writer.drain()
                until = self._loop.time() + pause
                while not self.hurry and (left := until - self._loop.time()) > 0:
                    await asyncio.sleep(min(0.05, left))
        self._end(writer, "stop")

    def _piece(self, writer: asyncio.StreamWriter, delta: dict[str, Any]) -> None:
        self._chunk(writer, {"id": "e", "model": "echo", "choices": [{"index": 0, "delta": delta}]})

    def _end(self, writer: asyncio.StreamWriter, reason: str) -> None:
        usage = {"prompt_tokens": 10, "completion_tokens": 5}
        end = {"id": "e", "choices": [{"index": 0, "delta": {}, "finish_reason": reason}], "usage": usage}
        self._chunk(writer, end)
        data = b"data: [DONE]\n\n"
        writer.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(data), data))

    def _chunk(self, writer: asyncio.StreamWriter, event: dict[str, Any]) -> None:
        data = b"data: " + json.dumps(event).encode() + b"\n\n"
        writer.write(b"%x\r\n%b\r\n" % (len(data), data))

    def _json(self, writer: asyncio.StreamWriter, status: int, body: Any) -> None:
        data = json.dumps(body).encode()
        head = f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
        writer.write(head.encode() + data)


def reply_to(text: str) -> str:
    """The model's reply to a prompt."""
    if size := _word(text, "long"):
        return "\n\n".join(f"Paragraph {n}: " + "word " * 30 for n in range(int(size) // 160 + 1))[: int(size)]
    return f"echo: {text}"


def _said(messages: list[dict[str, Any]]) -> str:
    content = next((m["content"] for m in reversed(messages) if m["role"] == "user"), "")
    if isinstance(content, str) and content.startswith("[Recalled "):  # it answers what was typed
        content = content.rpartition("</quoted-history>\n\n")[2]
    if isinstance(content, list):
        content = " ".join(part.get("text", f"<{part.get('type')}>") for part in content)
    return str(content)


def _pictures(messages: list[dict[str, Any]]) -> list[str]:
    """The beginnings of the pictures in the last message."""
    content = messages[-1]["content"]
    return [str(part["image_url"]["url"])[:40] for part in content if part.get("type") == "image_url"]


def _word(text: str, name: str) -> str | None:
    found = re.search(rf"\b{name}=([\d.]+)", text)
    return found[1] if found else None
