"""Signal without Signal: a daemon of our own that speaks signal-cli's HTTP API (JSON-RPC and server-sent events).

No account can be registered here, so the real daemon shows only its manners (tests/real/test_signal.py); messages flow
through this one. Every request is checked against METHODS, the parameters that signal-cli 0.13 documents; the real test
compares that table with signal-cli's own manual.
"""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import queue
import re
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote_plus, urlsplit

from tests.support.labs.base import PEOPLE, before_the_last
from tests.support.labs.base import Lab as Base

ACCOUNT = "+4915100000001"
ACCOUNT_UUID = "0a0a0a0a-0000-4000-8000-000000000001"
GROUP = "R3JvdXAgb2YgZnJpZW5kcywgMzIgYnl0ZXMgbG9uZyE="
VERSION = "0.13.19"
STYLES = {"BOLD", "ITALIC", "SPOILER", "STRIKETHROUGH", "MONOSPACE"}

# method → parameter → whether it takes several values (None: a switch)
METHODS: dict[str, dict[str, bool | None]] = {
    "version": {},
    "listAccounts": {},
    "getUserStatus": {"recipient": True, "username": True},
    "send": {
        **dict.fromkeys(("recipient", "groupId", "username", "attachment", "mention", "textStyle"), True),
        **dict.fromkeys(("quoteMention", "quoteTextStyle", "quoteAttachment"), True),
        **dict.fromkeys(
            ("message", "sticker", "quoteTimestamp", "quoteAuthor", "quoteMessage", "editTimestamp"), False
        ),
        **dict.fromkeys(("previewUrl", "previewTitle", "previewDescription", "previewImage"), False),
        **dict.fromkeys(("storyTimestamp", "storyAuthor"), False),
        **dict.fromkeys(("noteToSelf", "messageFromStdin", "viewOnce", "endSession"), None),
    },
    "sendTyping": {"recipient": True, "groupId": True, "stop": None},
    "getAttachment": {"id": False, "recipient": False, "groupId": False},
}
ADDRESS = re.compile(r"data:([^/;,]+/[^;,]+);filename=([^;,=]+);base64,([A-Za-z0-9+/]+=*)")
LONGEST_TEXT = 20_000_000  # of the JSON reader in signal-cli
NUMBERS = {"quoteTimestamp", "editTimestamp", "storyTimestamp"}
NO_ACCOUNT_NEEDED = {"version", "listAccounts"}


class RpcError(Exception):
    """An error of JSON-RPC, as signal-cli numbers them."""

    def __init__(self, code: int, message: str, response: Any = None) -> None:
        super().__init__(message)
        self.error = {"code": code, "message": message, "data": None if response is None else {"response": response}}


def problems_of(method: str, params: dict[str, Any]) -> list[str]:
    """The errors in a request, by signal-cli's documentation."""
    known = METHODS.get(method)
    if known is None:
        return [f"there is no method {method}"]
    found = [] if method in NO_ACCOUNT_NEEDED or params.get("account") else [f"{method} needs an account"]
    for name, value in params.items():
        if name == "account":
            continue
        if name not in known:
            found.append(f"{method} has no parameter {name}")
        elif known[name] is None and not isinstance(value, bool):
            found.append(f"{method}.{name} is a switch")
        elif name in NUMBERS:
            if not isinstance(value, int):
                found.append(f"{method}.{name} is a number")
        elif known[name] is False and not isinstance(value, str):
            found.append(f"{method}.{name} is one text")
        elif known[name] and not all(isinstance(one, str) for one in (value if isinstance(value, list) else [value])):
            found.append(f"{method}.{name} are texts")
    if method in ("send", "sendTyping") and bool(params.get("recipient")) == bool(params.get("groupId")):
        found.append(f"{method} needs a recipient or a group")
    if method == "send":
        found += _style_problems(params)
        found += [f"attachment {one[:40]} is not understood" for one in _files(params) if not ADDRESS.fullmatch(one)]
        if "message" not in params and not _files(params):
            found.append("send needs a message or an attachment")
    return found


def _files(params: dict[str, Any]) -> list[str]:
    given = params.get("attachment") or []
    return given if isinstance(given, list) else [given]


def _style_problems(params: dict[str, Any]) -> list[str]:
    length = len(params.get("message", "").encode("utf-16-le")) // 2
    found = []
    for style in params.get("textStyle", []):
        parts = re.fullmatch(r"(\d+):(\d+):(\w+)", style)
        if parts is None or parts[3] not in STYLES:
            found.append(f"textStyle {style} is not understood")
        elif int(parts[2]) == 0 or int(parts[1]) + int(parts[2]) > length:
            found.append(f"textStyle {style} is outside of the text")
    return found


class Lab(Base):
    """A daemon with one account, three people and a group."""

    platform = "signal"
    keeps = False  # signal-cli has acknowledged a message to Signal before it writes it to the stream
    places = frozenset({"dm", "group"})
    can = frozenset("redeliver rate_limit fail drop attach change take_back files".split())

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._clock = itertools.count(int(time.time() * 1000))
        self._newest: dict[str, str] = {}  # of a message that was edited, the name of its newest version
        self._streams: dict[queue.Queue[str | None], socket.socket] = {}
        self._runs: dict[
            queue.Queue[str | None], list[str]
        ] = {}  # of each stream, also of those that ended: the messages
        self._closed = False
        self.numbers = {name: f"+49151000001{index:02}" for index, name in enumerate(PEOPLE)}
        self.uuids = {name: f"0b0b0b0b-0000-4000-8000-0000000000{index:02}" for index, name in enumerate(PEOPLE)}
        self.files: dict[str, bytes] = {}
        self.blocked: set[str] = set()
        self.single = False  # started with -a: it has no listAccounts
        self.untrusted = False
        self.late = False  # as some versions: nothing is answered before there is something to say
        self._clear()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.02,), name="signal lab", daemon=True).start()

    def _clear(self) -> None:
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self._said: dict[str, dict[int, str]] = {}  # chat → time → text
        self._sent: dict[str, list[tuple[str, bytes, str]]] = {}  # chat → files: name, bytes, caption
        self._typed: list[str] = []
        self._envelopes: dict[str, dict[str, Any]] = {}
        self._problems: list[str] = []
        self._backlog: list[tuple[str, str]] = []
        self._refusals: list[tuple[str, float]] = []

    # ------------------------------------------------------------------------------------------ the lab

    @property
    def base_url(self) -> str:
        """The address where the daemon listens."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def settings(self) -> dict[str, Any]:
        return {"base_url": self.base_url, "account": ACCOUNT}

    def user_id(self, who: str) -> str:
        return self.uuids[who]

    def chat_id(self, where: str, who: str = "alice") -> str:
        return self.uuids[who] if where == "dm" else GROUP

    def say(self, text: str, *, who: str = "alice", where: str = "dm", addressed: bool = True, **message: Any) -> str:
        """`message` adds to or replaces fields of the data message."""
        if where == "group" and addressed:
            text = f"\ufffc {text}"
            message["mentions"] = [{"name": ACCOUNT, "number": ACCOUNT, "uuid": ACCOUNT_UUID, "start": 0, "length": 1}]
        return self.deliver(who, {"message": text, "expiresInSeconds": 0, "viewOnce": False, **message}, where)

    def deliver(self, who: str, message: dict[str, Any], where: str = "dm", kind: str = "dataMessage") -> str:
        """Send an envelope of any kind to whoever listens; the message's id."""
        stamp = next(self._clock)
        whole = {"timestamp": stamp, **message}
        if where == "group":
            whole["groupInfo"] = {"groupId": GROUP, "groupName": "The team", "revision": 1, "type": "DELIVER"}
        envelope = {
            "source": self.numbers[who],
            "sourceNumber": self.numbers[who],
            "sourceUuid": self.uuids[who],
            "sourceName": who.capitalize(),
            "sourceDevice": 1,
            "timestamp": stamp,
            "serverReceivedTimestamp": stamp,
            "serverDeliveredTimestamp": stamp,
            kind: whole,
        }
        name = f"{stamp}:{self.uuids[who]}"
        self._envelopes[name] = {"envelope": envelope, "account": ACCOUNT}
        self.redeliver(name)
        return name

    def change(self, message_id: str, text: str, *, who: str = "alice", where: str = "dm") -> None:
        """An edit has a time of its own, in which the next edit names it."""
        target = self._newest.get(message_id, message_id)
        message = {"message": text, "expiresInSeconds": 0, "viewOnce": False}
        if where == "group":
            message["groupInfo"] = {"groupId": GROUP, "groupName": "The team", "revision": 1, "type": "DELIVER"}
        about = {
            "targetSentTimestamp": int(target.partition(":")[0]),
            "dataMessage": {**message, "timestamp": next(self._clock)},
        }
        name = self.deliver(who, about, kind="editMessage")
        self._newest[message_id] = f"{about['dataMessage']['timestamp']}:{name.partition(':')[2]}"

    def take_back(self, message_id: str, *, who: str = "alice", where: str = "dm") -> None:
        target = self._newest.get(message_id, message_id)
        about = {"message": None, "remoteDelete": {"timestamp": int(target.partition(":")[0])}}
        self.deliver(who, about, where)

    def redeliver(self, message_id: str) -> None:
        self.emit(f"event:receive\ndata:{json.dumps(self._envelopes[message_id])}\n\n", message_id)

    def emit(self, text: str, name: str = "") -> None:
        """Write to every open stream; with none, it waits for the next (--receive-mode=on-connection)."""
        with self._lock:
            if not self._streams:
                self._backlog.append((text, name))
            for stream in self._streams:
                stream.put(text)
                self._runs[stream].append(name)

    def owed(self, kept: set[str]) -> set[str]:
        with self._lock:
            return before_the_last(list(self._runs.values()), kept)

    def listen(self, connection: socket.socket) -> queue.Queue[str | None]:
        """A new stream, with what has waited for it."""
        events: queue.Queue[str | None] = queue.Queue()
        with self._lock:
            for text, _ in self._backlog:
                events.put(text)
            self._runs[events] = [name for _, name in self._backlog]
            self._backlog.clear()
            self._streams[events] = connection
            if self._closed:
                events.put(None)
        return events

    def attach(
        self, data: bytes, name: str, mime: str, *, who: str = "alice", where: str = "dm", text: str = ""
    ) -> str:
        key = f"{len(self.files)}.bin"
        self.files[key] = data
        file = {"contentType": mime, "filename": name, "id": key, "size": len(data), "caption": None}
        return self.say(text, who=who, where=where, attachments=[file])

    def shown(self, where: str = "dm", *, who: str = "alice") -> list[str]:
        with self._lock:
            return list(self._said.get(self.chat_id(where, who), {}).values())

    def sent_files(self, where: str = "dm", *, who: str = "alice") -> list[tuple[str, bytes, str]]:
        with self._lock:
            return list(self._sent.get(self.chat_id(where, who), []))

    def rate_limit(self, seconds: float, times: int = 1) -> None:
        self._refusals += [("rate", seconds)] * times

    def fail(self, times: int = 1) -> None:
        self._refusals += [("fail", 0.0)] * times

    def drop(self) -> None:
        with self._lock:
            streams = list(self._streams.items())
            self._streams.clear()
        for stream, connection in streams:
            stream.put(None)
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def listeners(self) -> int:
        """How many streams are open."""
        with self._lock:
            return len(self._streams)

    def typed(self, where: str = "dm", *, who: str = "alice") -> int:
        with self._lock:
            return self._typed.count(self.chat_id(where, who))

    def threads(self) -> list[str]:
        return []

    def problems(self) -> list[str]:
        return list(self._problems)

    def reset(self) -> None:
        with self._lock:
            self._clear()
            self.blocked.clear()
            self.single = self.untrusted = self.late = False

    def close(self) -> None:
        self._closed = True
        self.drop()
        self._server.shutdown()
        self._server.server_close()
        self.drop()  # who came back in the meantime

    # ------------------------------------------------------------------------------------------ the daemon

    def answer(self, request: Any) -> dict[str, Any]:
        """One JSON-RPC request."""
        if not isinstance(request, dict) or not isinstance(request.get("method"), str):
            self._problems.append(f"no request of JSON-RPC: {request!r}")
            return {"jsonrpc": "2.0", "error": {"code": -32600, "message": "method field must be set"}, "id": None}
        method, params = request["method"], request.get("params") or {}
        with self._lock:
            self.requests.append((method, params))
            if request.get("jsonrpc") != "2.0" or "id" not in request:
                self._problems.append(f"{method} is no request of JSON-RPC 2.0")
            self._problems += problems_of(method, params)
            try:
                return {"jsonrpc": "2.0", "result": self._do(method, params), "id": request.get("id")}
            except RpcError as error:
                return {"jsonrpc": "2.0", "error": error.error, "id": request.get("id")}

    def _do(self, method: str, params: dict[str, Any]) -> Any:
        if method not in METHODS or (self.single and method == "listAccounts"):
            raise RpcError(-32601, "Method not implemented")
        if method == "version":
            return {"version": VERSION}
        if method == "listAccounts":
            return [{"number": ACCOUNT}]
        if params.get("account") != ACCOUNT:
            raise RpcError(-32602, "Specified account does not exist")
        if method == "getUserStatus":
            return [{"recipient": ACCOUNT, "number": ACCOUNT, "uuid": ACCOUNT_UUID, "isRegistered": True}]
        if method == "getAttachment":
            if params["id"] not in self.files:
                raise RpcError(-32603, f"An error occurred reading attachment: {params['id']}")
            return {"data": base64.b64encode(self.files[params["id"]]).decode()}
        recipient = params.get("recipient")
        chat = params.get("groupId") or (recipient[0] if isinstance(recipient, list) else recipient)
        if method == "sendTyping":
            self._typed += [] if params.get("stop") else [chat]
            return {"timestamp": next(self._clock), "results": []}
        return self._send(chat, params)

    def _send(self, chat: str, params: dict[str, Any]) -> Any:
        stamp = next(self._clock)

        def result(kind: str, **more: Any) -> dict[str, Any]:
            address = {"uuid": chat, "number": None}
            return {"timestamp": stamp, "results": [{"recipientAddress": address, "type": kind, **more}]}

        if self._refusals:
            kind, seconds = self._refusals.pop(0)
            if kind == "fail":
                raise RpcError(-32603, "Failed to send message: Connection reset (IOException)")
            response = result("RATE_LIMIT_FAILURE", retryAfterSeconds=seconds)
            raise RpcError(-5, "Failed to send message due to rate limiting", response)
        if self.untrusted:
            raise RpcError(-4, "Failed to send message due to untrusted identities", result("IDENTITY_FAILURE"))
        if chat in self.blocked or (chat != GROUP and chat not in self.uuids.values()):
            raise RpcError(-1, "Failed to send message", result("UNREGISTERED_FAILURE"))
        said = self._said.setdefault(chat, {})
        said[stamp] = params.get("message", "")
        for one in _files(params):
            if len(one) > LONGEST_TEXT:
                raise RpcError(-32700, "String value length exceeds the maximum allowed")
            _, name, data = ADDRESS.fullmatch(one).groups()  # type: ignore[union-attr]
            sent = (unquote_plus(name), base64.b64decode(data), params.get("message", ""))
            self._sent.setdefault(chat, []).append(sent)
        return result("SUCCESS")


def _handler(lab: Lab) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *args: Any) -> None:
            pass

        def reply(self, status: int, body: bytes = b"") -> None:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = self.rfile.read(length)
            if len(body) < length:  # the client was killed in the middle of it
                self.close_connection = True
                return
            if self.path != "/api/v1/rpc":
                lab._problems.append(f"POST {self.path}")
                self.reply(404)
                return
            self.reply(200, json.dumps(lab.answer(json.loads(body))).encode())

        def do_GET(self) -> None:
            address = urlsplit(self.path)
            if address.path == "/api/v1/check":
                self.reply(200)
            elif address.path != "/api/v1/events":
                lab._problems.append(f"GET {self.path}")
                self.reply(404)
            elif parse_qs(address.query).get("account", [ACCOUNT]) != [ACCOUNT]:
                self.reply(400)
            else:
                self.stream()

        def stream(self) -> None:
            """Events as they come, and a sign of life from time to time; `drop` ends it."""
            events = lab.listen(self.connection)
            first = events.get() if lab.late else ":\n"
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            self.close_connection = True
            try:
                self.chunk(first or ":\n")
                while True:
                    try:
                        text = events.get(timeout=0.5)
                    except queue.Empty:
                        text = ":\n"
                    if text is None:
                        return
                    self.chunk(text)
            except OSError:
                pass
            finally:
                with lab._lock:
                    lab._streams.pop(events, None)

        def chunk(self, text: str) -> None:
            data = text.encode()
            self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
            self.wfile.flush()

    return Handler
