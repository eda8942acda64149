"""A lab on http.server: the vendor's HTTP API on a port of its own, and deliveries to the webhooks of the gateway."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

from tests.support.labs.base import ServerLab
from tests.support.labs.deliveries import Deliveries
from tests.support.ports import free_port


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


class HttpLab(ServerLab):
    """Subclasses give the handler of requests."""

    once: ClassVar[bool] = False  # a delivery is not repeated, whatever its answer is

    def __init__(self) -> None:
        self.listens_at = free_port()
        self._deliveries = Deliveries(once=self.once)
        super().__init__()

    @property
    def address(self) -> str:
        """Of the vendor's API."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def statuses(self) -> list[int]:
        """The answers to all deliveries."""
        return self._deliveries.statuses

    def _handler(self) -> type[Handler]:
        raise NotImplementedError

    def _begin(self) -> None:
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._deliveries.close()
        self._server.shutdown()
        self._server.server_close()
