"""A model server whose every word the test decides: the OpenAI streaming protocol over a real socket.

Each question takes the next script. A script is a list of texts to send; a Gate in it holds the stream until the test
opens it, which is how a test stands in the middle of a reply without guessing at times.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

WAIT = 120.0  # a gate nobody opens lets go after this, so that a failed test ends


class Gate:
    """Holds a stream; `reached` tells that it has come this far."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.open = threading.Event()


class Call:
    """A tool call of the model's."""

    def __init__(self, name: str, /, **arguments: Any) -> None:
        self.name, self.arguments = name, arguments


class Thought:
    """A piece of the model's reasoning."""

    def __init__(self, text: str) -> None:
        self.text = text


class ModelServer:
    """Scripted replies under /v1; `requests` are the bodies it got, questions first, side tasks in `tasks`."""

    def __init__(self, *scripts: list[Any], models: tuple[str, ...] = ("test-model",)) -> None:
        self.scripts = list(scripts)
        self.models = models
        self.requests: list[dict[str, Any]] = []
        self.tasks: list[dict[str, Any]] = []
        self.task_answer: Callable[[dict[str, Any]], str] = lambda body: "Talking About Test Things"
        self.usage: dict[str, Any] = {}  # more that the server says of every call
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def config(self) -> str:
        """The part of config.yaml that leads here."""
        return f"model: {{default: {self.models[0]}, base_url: '{self.base_url}', api_key: x}}\n"

    def script_for(self, body: dict[str, Any]) -> list[Any]:
        with self._lock:
            if "max_tokens" in body or "stream_options" not in body:  # a title or a summary
                self.tasks.append(body)
                return [self.task_answer(body)]
            self.requests.append(body)
            return self.scripts.pop(0) if self.scripts else ["That is all I have to say."]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def __enter__(self) -> ModelServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                data = {"object": "list", "data": [{"id": name, "object": "model"} for name in server.models]}
                self._send(json.dumps(data).encode(), "application/json")

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                script = server.script_for(body)
                self.send_response(200)
                self.send_header("Content-Type", "text/event-stream")
                self.end_headers()
                try:
                    self._stream(script, body)
                except (BrokenPipeError, ConnectionResetError):
                    pass

            def _stream(self, script: list[Any], body: dict[str, Any]) -> None:
                calls = 0
                for part in script:
                    if isinstance(part, Gate):
                        part.reached.set()
                        part.open.wait(WAIT)
                    elif isinstance(part, Call):
                        function = {"name": part.name, "arguments": json.dumps(part.arguments)}
                        one = {"index": calls, "id": f"call_{len(server.requests)}_{calls}", "type": "function"}
                        self._chunk(body, {"tool_calls": [{**one, "function": function}]})
                        calls += 1
                    elif isinstance(part, Thought):
                        self._chunk(body, {"role": "assistant", "reasoning_content": part.text})
                    else:
                        self._chunk(body, {"role": "assistant", "content": part})
                self._chunk(body, {}, finish="tool_calls" if calls else "stop")
                usage = {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18, **server.usage}
                self._event(body, [], usage=usage)
                self.wfile.write(b"data: [DONE]\n\n")

            def _chunk(self, body: dict[str, Any], delta: dict[str, Any], finish: str | None = None) -> None:
                self._event(body, [{"index": 0, "delta": delta, "finish_reason": finish}])

            def _event(self, body: dict[str, Any], choices: list[Any], **more: Any) -> None:
                about = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": body["model"]}
                self.wfile.write(f"data: {json.dumps({**about, 'choices': choices, **more})}\n\n".encode())
                self.wfile.flush()

            def _send(self, data: bytes, kind: str) -> None:
                self.send_response(200)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *words: Any) -> None:
                pass

        return Handler
