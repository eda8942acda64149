"""A server of ours that really listens, in an event loop in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any

from openai import OpenAI

from hermes.config import Config
from hermes.serve.http import HttpServer

NOBODY = "http://127.0.0.1:9/v1"
NOT_PUBLIC = (  # addresses that a caller must not have opened by the model's server
    "file:///etc/passwd", "FILE:/etc/passwd", " file:///etc/passwd", "/etc/passwd", "//10.0.0.1/a.png", "ftp://pictures.example/a.png",
    "http://127.0.0.1/a.png", "http://localhost:8000/", "http://LOCALHOST./", "http://printer/a.png", "http://nas.local/a.png",
    "http://a.localhost/", "http://metadata.google.internal/", "http://169.254.169.254/latest/meta-data/", "http://10.1.2.3/",
    "http://192.168.0.1./", "http://2130706433/", "http://0x7f000001/", "http://0x7f.1/", "http://0177.0.0.1/", "http://127.1/",
    "http://[::1]/", "http://[::ffff:127.0.0.1]/", "http://[fe80::1%25eth0]/", "http://１２７.0.0.1/", "http://127。0。0。1/",
    "http://%31%32%37.0.0.1/", "http://pictures.example@127.0.0.1/", "http://127.0.0.1\\@pictures.example/",
    "http://pictures.example\\@127.0.0.1/", "http:127.0.0.1/a.png", "http:///127.0.0.1/", "https://pictures.example:80:80/",
    "http://pictures.example\n@127.0.0.1/", "attachment:sha256:" + "0" * 64,
)  # fmt: skip


class Loop:
    """An event loop in a thread, as the gateway has one."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="test-loop", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, Any], timeout: float = 30) -> Any:
        """Do something there and wait for it."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(timeout)

    def tasks(self) -> list[str]:
        """The names of what runs there besides this question."""

        async def look() -> list[str]:
            return [task.get_name() for task in asyncio.all_tasks() if task is not asyncio.current_task()]

        found: list[str] = self.run(look())
        return found

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(120)
        self.loop.close()


class Served:
    """A running API server."""

    def __init__(self, loop: Loop, server: HttpServer, db: Any, config: Config) -> None:
        self.loop, self.server, self.db, self.config = loop, server, db, config
        self.root = f"http://127.0.0.1:{server.port}"
        self.base_url = f"{self.root}/v1"
        self._clients: list[OpenAI] = []

    def client(self, token: str = "none", **more: Any) -> OpenAI:
        """OpenAI's own client, pointed at it."""
        self._clients.append(OpenAI(api_key=token, base_url=self.base_url, **{"max_retries": 0, "timeout": 30, **more}))
        return self._clients[-1]

    def sessions(self) -> list[str]:
        """All sessions, the oldest first."""
        rows = self.db.list_sessions_rich(limit=1000, include_children=True, project_compression_tips=False)
        return [row["id"] for row in sorted(rows, key=lambda row: row["started_at"])]

    def said(self, session_id: str) -> list[tuple[str, Any]]:
        """The roles and contents of a session's messages."""
        return [(row["role"], row["content"]) for row in self.db.get_messages(session_id)]

    def close(self) -> None:
        """End it at once, and the clients that were made for it."""
        self.stop(0.2)
        for client in self._clients:
            client.close()

    def stop(self, grace: float = 1.0) -> None:
        self.loop.run(self.server.stop(grace))
