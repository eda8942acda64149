"""`hermes web` as a process, and stores to look at with it."""

from __future__ import annotations

import base64
import json
import struct
import subprocess
import zlib
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

from hermes.store.api.session_db import Transactions
from hermes_state import SessionDB
from tests.support import program

HOSTILE = (
    "<script>window.hacked = 1</script> <img src=x onerror='window.hacked = 2'> [x](javascript:window.hacked=3)"
    " ![p](http://evil.test/p.png) \x1b[31mred\x1b[0m \u202ertl <svg onload='window.hacked=4'> <iframe src='javascript:window.hacked=5'>"
)
SVG = (
    b'<svg xmlns="http://www.w3.org/2000/svg" onload="parent.hacked=6"><script>parent.hacked=7</script></svg>'
    + b" " * 200
)


class Page:
    """`hermes web`, running until the end of the `with` block; `client` came by its link."""

    def __init__(self, home: Path, *options: str, env: dict[str, str] | None = None, visit: bool = True) -> None:
        """Without `visit`, nobody has come by the link yet, the client neither."""
        self._words = ("web", "--no-browser", *options)
        self._home, self._env, self._visit = home, env, visit

    def __enter__(self) -> Page:
        self.process: subprocess.Popen[str] = program.start(*self._words, home=self._home, env=self._env)
        assert self.process.stdout is not None
        self.link = self.process.stdout.readline().strip()
        assert self.link, self.process.communicate(timeout=120)[1]
        parts = urlsplit(self.link)
        self.address = f"http://{parts.netloc}"
        self.client = httpx.Client(
            base_url=self.address, timeout=30, follow_redirects=True, trust_env=False, headers={"Origin": self.address}
        )
        assert not self._visit or self.client.get(f"/?{parts.query}").status_code == 200
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()
        self.process.terminate()
        self.process.communicate(timeout=120)

    def get(self, path: str, **params: Any) -> Any:
        """The JSON of an address."""
        answer = self.client.get(path, params=params)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def do(self, path: str, **body: Any) -> httpx.Response:
        """A request that changes something."""
        return self.client.post(path, json=body)

    def turn(self, number: str) -> Iterator[dict[str, Any]]:
        """The events of a turn, as they come."""
        for _, news in self.events(turn=number):
            for event in news:
                event.pop("n", None)  # its place: for browsers that were connected again
                yield event
            if news[-1]["kind"] in ("done", "error"):
                return

    def events(self, **topics: Any) -> Generator[tuple[str, Any]]:
        """The page's stream: the news of these topics, each with the topic's name, as they come."""
        with self.client.stream("GET", "/api/events", params=topics) as stream:
            for line in stream.iter_lines():
                if line.startswith("data: "):
                    told = json.loads(line[6:])
                    yield told["topic"], told["news"]


def png() -> bytes:
    """A small picture."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = b"".join(b"\0" + bytes(x * 4 % 256 for x in range(48 * 3)) for _ in range(32))
    head = struct.pack(">IIBBBBB", 48, 32, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def wav() -> bytes:
    """A second of sound."""
    data = bytes(128 + 60 * (n // 20 % 2) for n in range(8000))
    return b"RIFF" + struct.pack("<I", 36 + len(data)) + b"WAVEfmt " + struct.pack(
        "<IHHIIHH", 16, 1, 1, 8000, 8000, 1, 8
    ) + b"data" + struct.pack("<I", len(data)) + data  # fmt: skip


def picture(data: bytes, kind: str = "image/png") -> dict[str, Any]:
    """A part of a message: a picture."""
    return {"type": "image_url", "image_url": {"url": f"data:{kind};base64,{base64.b64encode(data).decode()}"}}


def fill(home: Path, url: str | None = None) -> None:
    """Five conversations: a plain one with a tool call, a phone's with media, a compressed one with a branch, a hostile one.

    In the home's file, or in the store at this URL.
    """
    call = {"id": "c1", "type": "function", "function": {"name": "terminal", "arguments": '{"command":"<b>ls</b>"}'}}
    sound = {"type": "input_audio", "input_audio": {"data": base64.b64encode(wav()).decode(), "format": "wav"}}
    with SessionDB(home / "state.db", url=url) as db:
        db.create_session("hostile", "cli")
        db.set_session_title("hostile", "The <b>hostile</b> one \u202e")
        db.append_message("hostile", "user", HOSTILE)
        db.append_message("hostile", "user", [{"type": "text", "text": "see"}, picture(SVG, "image/svg+xml")])
        db.append_message("hostile", "assistant", "y" * 5_000_000, reasoning="<u>hm</u>")
        db.create_session("media", "telegram", user_id="42", model="gpt-5-mini")
        db.append_message(
            "media", "user", [{"type": "text", "text": "the tokenizer on the phone"}, picture(png()), sound]
        )
        db.create_session("old", "cli")
        db.set_session_title("old", "A long talk")
        ids = [db.append_message("old", "user" if n % 2 == 0 else "assistant", f"early words {n}") for n in range(12)]
        db.compress_session("old", "new", summary="They talked.", head_until=ids[1], tail_from=ids[10])
        db.append_message("new", "user", "going on")
        db.branch_session("new", "branch", title="Another way")
        db.create_session("s1", "cli", model="gpt-5-mini", cwd="/home/ann/src/parser")
        db.set_session_title("s1", "The parser")
        db.tag_session("s1", "work")
        db.append_message("s1", "user", "why does the tokenizer fail?")
        db.append_message(
            "s1", "assistant", "Let me **look**:\n\n```python\nprint('<i>')\n```", reasoning="I should look.", tool_calls=[call],
            model="gpt-5-mini", input_tokens=1200, output_tokens=80, cost_usd=0.004,
        )  # fmt: skip
        result = {"content": "<h1>out</h1>\n[exit status 2]", "tool_call_id": "c1", "meta": {"outcome": "exit 2"}}
        Transactions(db).store_message("s1", {"role": "tool", "tool_name": "terminal", **result})
        db.append_message("s1", "assistant", "It was a missing bracket.", model="gpt-5-mini")


def talkative(home: Path, base_url: str, more: str = "") -> None:
    """A configuration whose model is at this address."""
    home.mkdir(parents=True, exist_ok=True)
    (home / "config.yaml").write_text(f"model: {{default: echo, base_url: '{base_url}', api_key: key}}\n{more}")
