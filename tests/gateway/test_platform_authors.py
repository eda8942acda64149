"""The adapter on the page "How to add a platform" works as it stands there."""

from __future__ import annotations

import json
import re
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from hermes.errors import PlatformRefused, PlatformUnreachable
from hermes.gateway.events import Chat
from tests.support.labs.recording import connected

PAGE = Path(__file__).parents[2] / "docs" / "platform-authors.md"


@pytest.fixture
def acme() -> Iterator[ModuleType]:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    made = ModuleType("acme")
    sys.modules["acme"] = made
    exec(compile(code, str(PAGE), "exec"), made.__dict__)
    yield made
    del sys.modules["acme"]


class Vendor(BaseHTTPRequestHandler):
    """Acme's API: a long poll, and what was sent."""

    updates: list[dict[str, Any]]
    sent: list[dict[str, Any]]
    refusals: list[int]

    def do_GET(self) -> None:
        if self.headers.get("Authorization") != "Bearer good":
            return self._say(401, {})
        if self.path == "/me":
            return self._say(200, {"name": "acme-bot"})
        if self.refusals:
            return self._say(self.refusals.pop(), {})
        after = int(self.path.rpartition("=")[2])
        found = [one for one in self.updates if one["id"] > after]
        if not found:
            threading.Event().wait(0.02)
        return self._say(200, found)

    def do_POST(self) -> None:
        self.sent.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self._say(200, {"id": len(self.sent)})

    def _say(self, status: int, body: Any) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *words: Any) -> None:
        pass


@pytest.fixture
def vendor() -> Iterator[tuple[str, Any]]:
    kind: Any = type("Handler", (Vendor,), {"updates": [], "sent": [], "refusals": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), kind)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}", kind
    server.shutdown()
    server.server_close()


async def test_it_logs_in_receives_once_survives_a_short_break_and_sends(
    acme: ModuleType, vendor: tuple[str, Any], tmp_path: Path
) -> None:
    address, api = vendor
    said = {"chat": 7, "group": True, "user": 1, "name": "Alice"}
    api.updates += [{**said, "id": 1, "text": "@bot hello"}, {**said, "id": 2, "text": "not for you"}]
    adapter = acme.Acme({"token": "good", "base_url": address}, tmp_path)
    assert await adapter.check() == "acme-bot"
    async with connected(adapter) as link:
        assert [(await link.event(text)).addressed for text in ("@bot hello", "not for you")] == [True, False]
        api.refusals.append(502)
        await link.until(lambda: len(link.identities) == 2, "the break was not mended")
        api.updates.append({**said, "id": 3, "text": "after the break"})
        await link.event("after the break")
        assert len(link.events) == 3 and link.losses == []
        chat = Chat(platform="acme", chat_id="7", type="group")
        assert await adapter.send(chat, "**Hi** [there](https://e.org)", nonce="1") == "1"
    assert api.sent == [{"chat": "7", "text": "Hi there (https://e.org)"}]
    with pytest.raises(PlatformUnreachable):
        await adapter.send(chat, "too late", nonce="2")
    with pytest.raises(PlatformRefused):
        await acme.Acme({"token": "bad", "base_url": address}, tmp_path).check()
