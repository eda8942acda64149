"""The Telegram lab's socket side: the HTTP server, how a refusal looks, and the rules for marks on a text."""

from __future__ import annotations

import json
import re
import select
import socket
import threading
from collections.abc import Callable
from email import policy
from email.parser import BytesParser
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Protocol
from urllib.parse import parse_qsl

_ENTITY = re.compile(r"(?P<bot_command>(?<!\S)/[A-Za-z0-9_]+(?:@\w+)?)|(?P<mention>(?<!\w)@\w+)")


class Answering(Protocol):
    """The lab, as its server sees it."""

    token: str
    files: dict[str, bytes]
    uploads: dict[str, tuple[str, bytes]]
    turn: threading.Condition
    connections: set[socket.socket]
    answering: int
    unanswered: int

    def answer(self, token: str, method: str, form: dict[str, str], gone: Callable[[], bool]) -> dict[str, Any]:
        """The body of the answer to a request, of a client that may be gone before it comes."""
        ...


class Refused(Exception):
    """An answer with ok: false."""

    def __init__(self, code: int, description: str, **parameters: Any) -> None:
        super().__init__(description)
        self.body = {"ok": False, "error_code": code, "description": description}
        if parameters:
            self.body["parameters"] = parameters


def units(text: str) -> int:
    """Telegram's measure of a text."""
    return len(text.encode("utf-16-le")) // 2


def marks_of(text: str) -> list[dict[str, Any]]:
    """The marks Telegram itself would put on a text."""
    return [
        {"type": found.lastgroup, "offset": units(text[: found.start()]), "length": units(found[0])}
        for found in _ENTITY.finditer(text)
    ]


def marks_wrong(text: str, entities: list[dict[str, Any]]) -> list[str]:
    """The errors of marks by Telegram's rules: inside the text, nested or apart, nothing in or over code."""
    wrong = []
    spans = [(one["offset"], one["offset"] + one["length"], one["type"]) for one in entities]
    for start, end, kind in spans:
        if not 0 <= start < end <= units(text):
            wrong.append(f"{kind} from {start} to {end} is not inside the {units(text)} units of the text")
    for place, (start, end, kind) in enumerate(spans):
        for other_start, other_end, other in spans[place + 1 :]:
            if other_start >= end or other_end <= start:
                continue
            inside = (start <= other_start and other_end <= end) or (other_start <= start and end <= other_end)
            fixed = {kind, other} & {"code", "pre"} and "blockquote" not in (kind, other)
            if not inside or fixed or kind == other:
                wrong.append(f"{kind} {start}-{end} and {other} {other_start}-{other_end} may not share letters")
    return wrong


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, lab: Answering) -> None:
        self.lab = lab
        super().__init__(("127.0.0.1", 0), _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients go away in the middle; that is part of the tests."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def setup(self) -> None:
        super().setup()
        with self.server.lab.turn:
            self.server.lab.connections.add(self.connection)

    def finish(self) -> None:
        with self.server.lab.turn:
            self.server.lab.connections.discard(self.connection)
        super().finish()

    def log_message(self, *words: Any) -> None:
        pass

    def do_POST(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        raw = self.rfile.read(length)
        if len(raw) < length:  # the client was killed in the middle of it
            self.close_connection = True
            return None
        found = re.fullmatch(r"/bot([^/]+)/(\w+)", self.path)
        if self.headers.get_content_type() == "multipart/form-data":
            form = self._parts(raw)
        else:
            form = dict(parse_qsl(raw.decode(errors="replace"), keep_blank_values=True))
        if found is None:
            return self._say(404, Refused(404, "Not Found").body)
        lab, counted = self.server.lab, int(found[2] != "getUpdates")
        with lab.turn:
            lab.answering += counted
        try:
            answer = lab.answer(found[1], found[2], form, self._gone)
            if found[2] == "sendMessage" and lab.unanswered:
                lab.unanswered -= 1
                self.close_connection = True
                return None
            return self._say(answer.get("error_code", 200), answer)
        finally:
            with lab.turn:
                lab.answering -= counted
                lab.turn.notify_all()

    def do_GET(self) -> None:
        found = re.fullmatch(r"/file/bot([^/]+)/docs/(.+)", self.path)
        data = self.server.lab.files.get(found[2]) if found and found[1] == self.server.lab.token else None
        self._say(404, Refused(404, "Not Found").body) if data is None else self._say(200, data)

    def _parts(self, raw: bytes) -> dict[str, str]:
        """The fields of a form with files; a file's field is `attach://<name>`, its bytes are in the lab's `uploads`."""
        head = f"Content-Type: {self.headers['Content-Type']}\r\n\r\n".encode()
        form = {}
        for part in BytesParser(policy=policy.HTTP).parsebytes(head + raw).iter_parts():
            name, data = str(part.get_param("name", header="content-disposition")), part.get_payload(decode=True)
            assert isinstance(data, bytes)
            if (file := part.get_filename()) is None:
                form[name] = data.decode()
            else:
                self.server.lab.uploads[name] = (file, data)
                form[name] = f"attach://{name}"
        return form

    def _gone(self) -> bool:
        try:
            return bool(select.select([self.connection], [], [], 0)[0]) and not self.connection.recv(1, socket.MSG_PEEK)
        except (OSError, ValueError):
            return True

    def _say(self, status: int, body: Any) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        try:
            self.send_response(status)
            self.send_header(
                "Content-Type", "application/json" if not isinstance(body, bytes) else "application/octet-stream"
            )
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)
        except OSError:
            self.close_connection = True
