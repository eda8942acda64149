"""A vendor's HTTP API: what each failure means for the message that was sent, and where a login may go."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest

from hermes.errors import PlatformRefused, PlatformUnreachable, SendRefused, SlowDown
from hermes.gateway.platforms._shared.http import (
    HttpApi,
    TooLarge,
    attachment_kind,
    error_text,
    no_more_than,
    retry_after,
)

pytestmark = pytest.mark.mechanism

LOGIN = {"Authorization": "Bearer secret"}


class Vendor(BaseHTTPRequestHandler):
    """Answers /<status>; cuts the connection at /cut; sends /to?<address> elsewhere; counts logins it saw."""

    logins: list[str]
    elsewhere: str

    def do_GET(self) -> None:
        self.logins.append(self.headers.get("Authorization", ""))
        if self.path == "/cut":
            self.close_connection = True
            return
        if self.path in ("/bomb", "/endless", "/packed"):
            self._large(self.path)
            return
        status = {"/file": 200, "/away": 302, "/around": 302}.get(self.path) or int(self.path[1:])
        self.send_response(status)
        if self.path == "/away":
            self.send_header("Location", self.elsewhere)
        if self.path == "/around":
            self.send_header("Location", "/file")
        self.send_header("Retry-After", "7")
        self.send_header("Content-Length", "4")
        self.end_headers()
        self.wfile.write(b"data")

    def _large(self, path: str) -> None:
        """A file that is packed, one that is a thousand times as large as what is sent, and one without an end."""
        self.close_connection = True
        self.send_response(200)
        if path != "/endless":
            self.send_header("Content-Encoding", "gzip")
        self.end_headers()
        part = (
            gzip.compress(b"packed" if path == "/packed" else bytes(5_000_000)) if path != "/endless" else bytes(50_000)
        )
        with suppress(OSError):
            self.wfile.write(part)
            while path == "/endless":
                self.wfile.write(part)

    do_POST = do_GET

    def log_message(self, *words: Any) -> None:
        pass


@contextmanager
def vendor(elsewhere: str = "") -> Iterator[tuple[str, list[str]]]:
    kind = type("Handler", (Vendor,), {"logins": [], "elsewhere": elsewhere})
    server = ThreadingHTTPServer(("127.0.0.1", 0), kind)
    Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}", kind.logins  # type: ignore[attr-defined]
    server.shutdown()
    server.server_close()


def api(base_url: str, work: Callable[[HttpApi], Awaitable[Any]]) -> Any:
    async def scene() -> Any:
        made = HttpApi("Acme", base_url, trust_env=False)
        try:
            return await work(made)
        finally:
            await made.close()

    return asyncio.run(scene())


def test_a_cut_answer_leaves_open_what_no_connection_rules_out() -> None:
    with vendor() as (address, _), pytest.raises(PlatformUnreachable) as cut:
        api(address, lambda one: one.request("POST", "/cut"))
    assert cut.value.maybe_sent
    with pytest.raises(PlatformUnreachable) as nobody:
        api(address, lambda one: one.request("POST", "/200"))
    assert not nobody.value.maybe_sent


@pytest.mark.parametrize(
    ("status", "error"), [(429, SlowDown), (500, PlatformUnreachable), (401, PlatformRefused), (404, SendRefused)]
)
def test_each_status_has_its_error(status: int, error: type[Exception]) -> None:
    with vendor() as (address, _), pytest.raises(error) as caught:
        api(address, lambda one: one.request("GET", f"/{status}"))
    assert getattr(caught.value, "retry_after", 7) == 7


def test_a_file_is_fetched_over_redirects_and_the_login_goes_to_trusted_hosts_alone() -> None:
    with vendor() as (foreign, seen), vendor(f"{foreign}/file") as (address, logins):

        def fetch(path: str) -> bytes:
            def work(one: HttpApi) -> Awaitable[Any]:
                return one.download(
                    address + path, what="a file", headers=LOGIN, trusted=lambda url: url.startswith(address)
                )

            return bytes(api(address, work).content)

        assert fetch("/around") == b"data"
        for path in ("/away", "/404"):
            with pytest.raises(SendRefused):
                fetch(path)
    assert logins == ["Bearer secret"] * 4
    assert seen == []


@pytest.mark.parametrize("way", ["request", "download"])
def test_a_file_is_read_up_to_the_largest_that_is_kept(way: str) -> None:
    def fetch(address: str, path: str) -> bytes:
        async def work(one: HttpApi) -> bytes:
            if way == "request":
                return (await one.request("GET", path)).content
            return (await one.download(address + path, what="a file", trusted=lambda _: True)).content

        return bytes(api(address, lambda one: no_more_than(100_000, work(one))))

    with vendor() as (address, _):
        assert fetch(address, "/file") == b"data"
        assert fetch(address, "/packed") == b"packed"
        for path in ("/bomb", "/endless"):
            with pytest.raises(TooLarge, match=r"larger than 0\.1 MB"):
                fetch(address, path)


def test_small_helpers() -> None:
    assert [retry_after({"Retry-After": text}, 5) for text in ("3", "-1", "soon", "")] == [3, 0, 5, 5]
    assert [attachment_kind(mime) for mime in ("image/png", "Audio/ogg; x", "text/plain", "", None)] == [
        "image", "audio", "file", "file", "file",
    ]  # fmt: skip
    assert error_text("a\n  token x " + "y" * 400, "token", "")[:9] == "a *** x y"
