"""Servers of a test's own, that it may stop, crash, fill and promote; and a wire to one that it may cut.

with cluster("18") as server:                      # synchronous_commit is on: what is acknowledged survives a crash
    with Wire(server.port) as wire: …              # SessionDB(url=wire.url(server)) speaks through it
"""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.support.postgres import NOBODY, SETTINGS, VERSIONS, Cluster

__all__ = ["VERSIONS", "Wire", "cluster", "folder", "words_of"]


@contextmanager
def cluster(version: str, **settings: str) -> Iterator[Cluster]:
    """A running server with an empty database."""
    with folder() as place:
        server = Cluster(version, place, {**SETTINGS, "synchronous_commit": "on", "max_connections": "60", **settings})
        server.make()
        server.start()
        try:
            yield server
        finally:
            server.stop("immediate")


@contextmanager
def folder() -> Iterator[Path]:
    """A folder the user who runs servers can get at."""
    place = Path(tempfile.mkdtemp(prefix="hermes-own-"))
    place.chmod(0o755)
    if os.getuid() == 0:
        os.chown(place, NOBODY, NOBODY)
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


class Wire:
    """A proxy on loopback in front of a server. All connections can be cut, now or at a moment that was named before."""

    def __init__(self, target: int) -> None:
        self.target = target
        self._lock = threading.Lock()
        self._pairs: set[tuple[socket.socket, socket.socket]] = set()
        self._lose: bytes | None = None  # cut instead of passing on an answer that has this in it
        self._for_good = False
        self._hold: bytes | None = None
        self._after = b""
        self._meant: set[tuple[socket.socket, socket.socket]] = set()  # connections on which that was said
        self.held = threading.Event()
        self._released = threading.Event()
        self._left: int | None = None  # bytes that still pass from the client before a cut
        self.passed = 0  # bytes that came from clients
        self.cuts = 0
        self.port = 0
        self.open()

    def url(self, server: Cluster, **more: str) -> str:
        """The URL of the server's database through this wire."""
        asked = "&".join(f"{key}={value}" for key, value in more.items())
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres{f'?{asked}' if asked else ''}"

    def lose_answer(self, words: bytes, *, for_good: bool = False, after: bytes = b"") -> None:
        """The next answer of the server with these words in it is lost, and the connection (all of them) with it.

        `after` are words that the client must have said on that connection before, from now on.
        """
        with self._lock:
            self._lose, self._for_good, self._after, self._meant = words, for_good, after, set()

    def hold_back(self, words: bytes, *, after: bytes) -> None:
        """Pass on what a client sends after the words `after` up to `words`; hold these and what follows on that connection."""
        with self._lock:
            self._hold, self._after, self._meant = words, after, set()
            self._released.clear()

    def pass_on(self) -> None:
        """Send what was held back to the server."""
        self._released.set()

    def cut_after(self, count: int | None) -> None:
        """Cut when so many more bytes have come from clients: in the middle of whatever they say then (None: not)."""
        with self._lock:
            self._left = count

    def cut(self) -> None:
        """Cut every connection now."""
        with self._lock:
            pairs, self._pairs = self._pairs, set()
        for pair in pairs:
            self._end(pair)

    def open(self) -> None:
        """Let clients in."""
        self._listener = socket.create_server(("127.0.0.1", self.port))
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._listen, args=(self._listener,), daemon=True, name="wire").start()

    def shut(self) -> None:
        """Nobody gets through any more, and those who had are cut."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes who waits for the next one
        self._listener.close()
        self.cut()

    def __enter__(self) -> Wire:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shut()

    def _end(self, pair: tuple[socket.socket, socket.socket]) -> None:
        for one in pair:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _listen(self, listener: socket.socket) -> None:
        while True:
            try:
                client = listener.accept()[0]
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self.target))
            except OSError:
                client.close()
                continue
            pair = (client, server)
            with self._lock:
                self._pairs.add(pair)
            for source, sink in (pair, pair[::-1]):
                with suppress(OSError):  # cut in this moment
                    source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=self._pass_on, args=(pair, source, sink), daemon=True).start()

    def _pass_on(self, pair: tuple[socket.socket, socket.socket], source: socket.socket, sink: socket.socket) -> None:
        from_client = source is pair[0]
        with suppress(OSError):
            while data := source.recv(1 << 16):
                if from_client and self._after in data:
                    self._meant.add(pair)
                keep, cut = self._looked_at(pair, data, from_client)
                if cut and self._for_good:
                    self.shut()
                if from_client and self._holds(pair, data):
                    self.held.set()
                    self._released.wait(60)
                sink.sendall(data[:keep])
                if cut:
                    break
        with self._lock:
            self._pairs.discard(pair)
        self._end(pair)

    def _holds(self, pair: tuple[socket.socket, socket.socket], data: bytes) -> bool:
        with self._lock:
            found = self._hold is not None and self._hold in data and pair in self._meant
            if found:
                self._hold = None
            return found

    def _looked_at(self, pair: tuple[socket.socket, socket.socket], data: bytes, from_client: bool) -> tuple[int, bool]:
        """How much of it passes, and whether it is the last."""
        with self._lock:
            if not from_client:
                if self._lose is not None and self._lose in data and (not self._after or pair in self._meant):
                    self._lose = None
                    self.cuts += 1
                    return 0, True
                return len(data), False
            self.passed += len(data)
            if self._left is None or len(data) < self._left:
                self._left = None if self._left is None else self._left - len(data)
                return len(data), False
            keep, self._left = self._left, None
            self.cuts += 1
            return keep, True


def words_of(db: Any, session_id: str) -> list[str]:
    """The contents of a session's messages."""
    return [row["content"] for row in db.get_messages(session_id)]
