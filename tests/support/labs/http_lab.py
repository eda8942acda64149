"""A lab on http.server: the vendor's HTTP API on a port of its own, and deliveries to the webhooks of the gateway."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests.support.labs.base import Lab
from tests.support.labs.deliveries import Deliveries


class Handler(BaseHTTPRequestHandler):
    """One request at a time of a connection; nothing is logged."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def body(self) -> bytes:
        """The body of the request."""
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def answer(self, status: int, body: bytes, mime: str = "application/json", **headers: str) -> None:
        """Answer the request."""
        self.send_response(status)
        for name, value in {"Content-Type": mime, "Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


class HttpLab(Lab):
    """Subclasses give the handler of requests, and forget what was said (`_forget`). Their `__init__` ends with `_begin`."""

    _deliveries: Deliveries
    _problems: list[str]

    def _handler(self) -> type[Handler]:
        raise NotImplementedError

    def _forget(self) -> None:
        raise NotImplementedError

    def _begin(self) -> None:
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def problems(self) -> list[str]:
        return list(self._problems)

    def reset(self) -> None:
        self._forget()

    def close(self) -> None:
        self._deliveries.close()
        self._server.shutdown()
        self._server.server_close()
