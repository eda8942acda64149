"""A WhatsApp bridge without WhatsApp, in Python: it speaks the protocol of contrib/whatsapp-bridge/README.md.

As a process (`python -m tests.support.labs.whatsapp_bridge`) it is started by the gateway: it then says what the file `say` in
its folder holds, writes what is sent to `sent`, and is paired once a file `scanned` is there.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from tests.support.labs.base import Lab as Base

TOKEN = "token-of-the-bridge-0123456789"
OURS, OUR_LID = "15550783881:7@s.whatsapp.net", "201122334455667:7@lid"
GROUP = "120363041234567890@g.us"
_NUMBERS = {"alice": "15005550101", "bob": "15005550102", "mallory": "15005550103"}
_SEND = {"chat", "text", "nonce", "quote"}
_MEDIA = {"chat", "kind", "name", "mime", "caption", "nonce"}


class Bridge:
    """The protocol's other side. Events are kept until they are acknowledged."""

    def __init__(self, token: str, port: int = 0) -> None:
        self.token = token
        self.state = "connected"
        self.qr: str | None = None
        self.problems: list[str] = []
        self.forget()
        self.server = ThreadingHTTPServer(("127.0.0.1", port), self._handler())
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def forget(self) -> None:
        self.stream = f"{time.time_ns():x}"
        self.news = threading.Condition()
        self.numbers = itertools.count(1)
        self.events: list[tuple[int, dict[str, Any]]] = []
        self.sent: list[dict[str, Any]] = []
        self.media: dict[str, tuple[bytes, str]] = {}
        self.typings: list[str] = []
        self.refusals: list[tuple[int, str, dict[str, str]]] = []  # the next sends are refused so
        self.problems.clear()

    def report(self, event: dict[str, Any]) -> None:
        with self.news:
            self.events.append((next(self.numbers), event))
            self.news.notify_all()

    def status(self) -> dict[str, Any]:
        return {"protocol": 1, "state": self.state, "id": OURS, "lid": OUR_LID, "name": "The Lab", "qr_text": self.qr}

    def polled(self, acknowledged: str, wait: float) -> dict[str, Any]:
        stream, _, number = acknowledged.partition(":")
        with self.news:
            if stream == self.stream:
                self.events = [one for one in self.events if one[0] > int(number)]
            mine = self.news
            mine.wait_for(lambda: self.events or self.state != "connected", min(wait, 2))
            last = self.events[-1][0] if self.events else 0
            found = [{"seq": place, **event} for place, event in self.events]
            return {"events": found, "ack": f"{self.stream}:{last}" if last else acknowledged, "state": self.state}

    def taken(
        self, about: dict[str, Any], known: set[str], data: bytes | None = None
    ) -> tuple[int, dict[str, Any], dict[str, str]]:
        if set(about) - known or not {"chat", "nonce"} <= set(about) or "@" not in about["chat"]:
            self.problems.append(f"not of the protocol: {about}")
            return 400, {"error": "not of the protocol"}, {}
        if data is None and not 1 <= len(about.get("text", "")) <= 4096:
            self.problems.append(f"a text of {len(about.get('text', ''))} characters")
        if self.refusals:
            status, error, headers = self.refusals.pop(0)
            return status, {"error": error}, headers
        before = next((one for one in self.sent if one["nonce"] == about["nonce"]), None)
        if before is not None:
            return 200, {"id": before["id"]}, {}
        number = f"3EB0{next(self.numbers):018X}"
        self.sent.append({**about, "data": data, "id": number})
        return 200, {"id": number}, {}

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        bridge = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                pass

            def _answer(self, status: int, found: Any, headers: dict[str, str] | None = None) -> None:
                body = found if isinstance(found, bytes) else json.dumps(found).encode()
                self.send_response(status)
                for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            def _allowed(self) -> bool:
                if self.headers.get("Authorization") == f"Bearer {bridge.token}":
                    return True
                self._answer(401, {"error": "wrong token"})
                return False

            def do_GET(self) -> None:
                url, asked = urlsplit(self.path), dict(parse_qsl(urlsplit(self.path).query))
                if not self._allowed():
                    return
                if url.path == "/status":
                    self._answer(200, bridge.status())
                elif url.path == "/events":
                    with contextlib.suppress(OSError):
                        self._answer(200, bridge.polled(asked.get("ack", ""), float(asked["wait"])))
                elif url.path == "/sent":
                    self._answer(200, {"sent": any(one["nonce"] == asked["nonce"] for one in bridge.sent)})
                elif (name := unquote(url.path).removeprefix("/media/")) in bridge.media:
                    self._answer(200, bridge.media[name][0])
                else:
                    self._answer(404, {"error": "no such file"})

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                if not self._allowed():
                    return
                url = urlsplit(self.path)
                if url.path == "/typing":
                    bridge.typings.append(json.loads(body)["chat"])
                    self._answer(200, {})
                elif url.path == "/send":
                    self._answer(*bridge.taken(json.loads(body), _SEND))
                elif url.path == "/media":
                    self._answer(*bridge.taken(dict(parse_qsl(url.query, keep_blank_values=True)), _MEDIA, body))
                else:
                    bridge.problems.append(f"unknown path {url.path}")
                    self._answer(404, {"error": "unknown path"})

        return Handler


class Lab(Base):
    """A bridge, three people and a group. Alice is known by her LID, too, in the group."""

    platform = "whatsapp"
    places = frozenset({"dm", "group"})
    can = frozenset({"redeliver", "rate_limit", "fail", "attach", "files", "change", "take_back", "forward"})

    def __init__(self) -> None:
        self.bridge = Bridge(TOKEN)
        self._ids = itertools.count(1)
        self._said: dict[str, dict[str, Any]] = {}

    @property
    def settings(self) -> dict[str, Any]:
        address = f"http://127.0.0.1:{self.bridge.server.server_address[1]}"
        return {"mode": "bridge", "bridge_url": address, "bridge_token": TOKEN}

    def user_id(self, who: str) -> str:
        return _NUMBERS[who]

    def chat_id(self, where: str, who: str = "alice") -> str:
        return GROUP if where == "group" else _NUMBERS[who]

    def say(self, text: str, *, who: str = "alice", where: str = "dm", addressed: bool = True, **more: Any) -> str:
        if where == "group" and addressed:
            return self.tell(
                {"text": f"@201122334455667 {text}", "mentions": ["201122334455667@lid"], **more}, who=who, where=where
            )
        return self.tell({"text": text, **more}, who=who, where=where)

    def forward(self, text: str, *, who: str = "alice", where: str = "dm") -> str:
        return self.tell({"text": text, "forwarded": True}, who=who, where=where)

    def tell(self, event: dict[str, Any], *, who: str = "alice", where: str = "dm") -> str:
        """A bridge's event of any type."""
        number, jid = f"3A{next(self._ids):018X}", f"{_NUMBERS[who]}@s.whatsapp.net"
        chat = GROUP if where == "group" else jid
        self._said[number] = {
            "type": "message", "id": number, "chat": chat, "sender": jid, "name": who.title(), "timestamp": int(time.time()), **event,
        }  # fmt: skip
        self.redeliver(number)
        return number

    def redeliver(self, message_id: str) -> None:
        self.bridge.report(self._said[message_id])

    def attach(
        self, data: bytes, name: str, mime: str, *, who: str = "alice", where: str = "dm", text: str = ""
    ) -> str:
        file = f"file/{next(self._ids)}"
        self.bridge.media[file] = (data, mime)
        about = {"id": file, "kind": "file", "mime": mime, "name": name, "size": len(data)}
        return self.tell({"text": text, "files": [about]}, who=who, where=where)

    def change(self, message_id: str, text: str, *, who: str = "alice", where: str = "dm") -> None:
        self.tell({"type": "edit", "target": message_id, "text": text}, who=who, where=where)

    def take_back(self, message_id: str, *, who: str = "alice", where: str = "dm") -> None:
        self.tell({"type": "delete", "target": message_id}, who=who, where=where)

    def _to(self, where: str, who: str) -> list[dict[str, Any]]:
        chat = GROUP if where == "group" else f"{_NUMBERS[who]}@s.whatsapp.net"
        return [one for one in list(self.bridge.sent) if one["chat"] == chat]

    def shown(self, where: str = "dm", *, who: str = "alice") -> list[str]:
        return [one["text"] for one in self._to(where, who) if "text" in one]

    def sent_files(self, where: str = "dm", *, who: str = "alice") -> list[tuple[str, bytes, str]]:
        return [(one["name"], one["data"], one["caption"]) for one in self._to(where, who) if one["data"] is not None]

    def typed(self, where: str = "dm", *, who: str = "alice") -> int:
        return self.bridge.typings.count(GROUP if where == "group" else f"{_NUMBERS[who]}@s.whatsapp.net")

    def rate_limit(self, seconds: float, times: int = 1) -> None:
        self.bridge.refusals = [(429, "rate-overlimit", {"Retry-After": str(seconds)})] * times

    def fail(self, times: int = 1) -> None:
        self.bridge.refusals = [(503, "not connected to WhatsApp", {})] * times

    def problems(self) -> list[str]:
        return list(self.bridge.problems)

    def reset(self) -> None:
        self.bridge.forget()

    def close(self) -> None:
        self.bridge.server.shutdown()
        self.bridge.server.server_close()


def main() -> None:
    """The process: it ends when its input is closed."""
    folder = Path(os.environ["HERMES_BRIDGE_FOLDER"])
    bridge = Bridge(os.environ["HERMES_BRIDGE_TOKEN"], int(os.environ["HERMES_BRIDGE_PORT"]))
    bridge.state = "connected" if (folder / "scanned").exists() else "pairing"
    bridge.qr = None if bridge.state == "connected" else "█▀▀▀█ a code"
    (folder / "pid").write_text(str(os.getpid()))
    print("the bridge is ready", flush=True)

    def work() -> None:
        said = 0
        while True:
            if bridge.state == "pairing" and (folder / "scanned").exists():
                bridge.state, bridge.qr = "connected", None
            lines = (folder / "say").read_text().splitlines() if (folder / "say").exists() else []
            for number, text in enumerate(lines[said:], said):
                jid = f"{_NUMBERS['alice']}@s.whatsapp.net"
                bridge.report({"type": "message", "id": f"3A{number}", "chat": jid, "sender": jid, "text": text})
            said = len(lines)
            texts = [one["text"] for one in bridge.sent]
            if texts:
                (folder / f"sent-{os.getpid()}").write_text("\n".join(texts))
            time.sleep(0.05)

    threading.Thread(target=work, daemon=True).start()
    sys.stdin.read()


if __name__ == "__main__":
    main()
