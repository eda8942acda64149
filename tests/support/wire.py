"""A server that says on the wire exactly what a test writes down: for what the fake model (aimock) has no words for.

    with Wire([sse(delta(content="Hel"), CUT), sse(delta(content="Hello"), end())]) as wire: …

Each answer is used for one POST, the last one for all that follow; a function gets the body and gives the answer. GET answers
come from `get`, by path.
"""

from __future__ import annotations

import json
import select
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

CUT = object()  # the connection breaks here
STALL = object()  # nothing more comes, until the test ends


@dataclass(slots=True)
class Answer:
    """A status, headers, and what follows: dicts and texts are events, numbers are pauses in seconds."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    parts: tuple[Any, ...] = ()
    json: Any = None
    late: float = 0  # seconds of silence before even the status
    close: bool = False  # no length, no chunks: the end of the connection is the end of the reply


def delta(*, model: str = "wire-1", **fields: Any) -> dict[str, Any]:
    return {"id": "x", "object": "chat.completion.chunk", "model": model, "choices": [{"index": 0, "delta": fields}]}


def end(reason: str = "stop", **more: Any) -> dict[str, Any]:
    return {"id": "x", "choices": [{"index": 0, "delta": {}, "finish_reason": reason}], **more}


def call(name: str | None, arguments: str | None, **more: Any) -> dict[str, Any]:
    function = {key: value for key, value in (("name", name), ("arguments", arguments)) if value is not None}
    return {"type": "function", "function": function, **more}


def sse(*parts: Any, close: bool = False) -> Answer:
    return Answer(parts=parts, close=close)


def said(text: str, **usage: Any) -> Answer:
    return sse(delta(content=text), end(usage=usage or {"prompt_tokens": 7, "completion_tokens": 3}), "[DONE]")


def error(status: int, body: Any, **headers: str) -> Answer:
    return Answer(status=status, headers={k.replace("_", "-"): v for k, v in headers.items()}, json=body)


class Wire:
    def __init__(
        self,
        answers: Sequence[Answer] | Callable[[dict[str, Any]], Answer] = (),
        *,
        get: Mapping[str, Any] | None = None,
    ) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.hung_up = threading.Event()  # a client went away while it was being answered
        self._answer = answers if callable(answers) else None
        self._answers = [] if callable(answers) else list(answers)
        self._get = dict(get or {})
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        self.base_url = f"http://127.0.0.1:{self.port}/v1"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def answer_next(self, *answers: Answer) -> None:
        """Forget what was to be said; say this from now on."""
        with self._lock:
            self._answers = list(answers)

    def close(self) -> None:
        self._over.set()
        self._server.shutdown()
        self._server.server_close()

    def __enter__(self) -> Wire:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _handler(wire) -> type[BaseHTTPRequestHandler]:  # noqa: N805
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *words: Any) -> None:
                pass

            def do_GET(self) -> None:
                found = wire._get.get(self.path)
                self._json(200 if found is not None else 404, found if found is not None else {"error": "no"}, {})

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])) or b"{}")
                if self.path in wire._get:
                    return self._json(200, wire._get[self.path], {})
                with wire._lock:
                    wire.bodies.append(body)
                    wire.headers.append({key.lower(): value for key, value in self.headers.items()})
                    if wire._answer is not None:
                        answer = wire._answer(body)
                    else:
                        answer = wire._answers.pop(0) if len(wire._answers) > 1 else wire._answers[0]
                if answer.late and not self._patient(answer.late):
                    return None
                if answer.json is not None:
                    return self._json(answer.status, answer.json, answer.headers)
                try:
                    self._stream(answer)
                except OSError:
                    wire.hung_up.set()
                    self.close_connection = True

            def _patient(self, seconds: float) -> bool:
                """Wait without a word; False when the client hangs up meanwhile."""
                until = time.monotonic() + seconds
                while time.monotonic() < until and not wire._over.is_set():
                    if select.select([self.connection], [], [], 0.02)[0] and not self.connection.recv(
                        1, socket.MSG_PEEK
                    ):
                        wire.hung_up.set()
                        self.close_connection = True
                        return False
                return True

            def _json(self, status: int, body: Any, headers: dict[str, str]) -> None:
                data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
                self.send_response(status)
                for name, value in {"Content-Type": "application/json", **headers}.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def _stream(self, answer: Answer) -> None:
                self.send_response(answer.status)
                self.send_header("Content-Type", "text/event-stream")
                self.send_header("Connection", "close")
                if not answer.close:
                    self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                self.close_connection = True
                for part in answer.parts:
                    if part is CUT:
                        self.connection.shutdown(socket.SHUT_RDWR)
                        return
                    if part is STALL:
                        while not wire._over.wait(0.02):
                            self._piece(b": still there\n\n", answer.close)
                        return
                    if isinstance(part, (int, float)):
                        wire._over.wait(part)
                        continue
                    text = part if isinstance(part, str) else json.dumps(part)
                    self._piece(f"data: {text}\n\n".encode(), answer.close)
                if not answer.close:
                    self.wfile.write(b"0\r\n\r\n")

            def _piece(self, data: bytes, bare: bool) -> None:
                self.wfile.write(data if bare else f"{len(data):x}\r\n".encode() + data + b"\r\n")
                self.wfile.flush()

        return Handler
