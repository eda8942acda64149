"""Webhook deliveries as vendors make them: in order, again until they are acknowledged (or as often as the vendor tries)."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import Any

import httpx


class Deliveries:
    """Sends requests to a gateway's port, one after the other, each until it is answered with 2xx.

    `once`: whatever the answer is, as vendors do it that do not repeat a delivery.
    """

    def __init__(self, pause: float = 0.05, *, once: bool = False) -> None:
        self.statuses: list[int] = []  # of all tries
        # How often one request is tried; None: until it is acknowledged.
        self.tries: int | None = 1 if once else None
        self.acknowledged: list[str] = []  # the names of the requests that were answered with 2xx
        self._pause = pause
        self._waiting: queue.Queue[tuple[str, Callable[[httpx.Client], httpx.Response]] | None] = queue.Queue()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def post(self, url: str, *, name: str = "", **request: Any) -> None:
        """Have a request delivered; options are those of httpx."""
        self._waiting.put((name, lambda client: client.post(url, **request)))

    def close(self) -> None:
        """End; what was not acknowledged is dropped."""
        self._over = True
        self._waiting.put(None)

    _over = False

    def _work(self) -> None:
        alone = httpx.Limits(max_keepalive_connections=0)  # no connection to a gateway that has ended
        with httpx.Client(timeout=20, trust_env=False, limits=alone) as client:
            while (waiting := self._waiting.get()) is not None:
                (name, deliver), tried = waiting, 0
                while not self._over and (self.tries is None or tried < self.tries):
                    tried += 1
                    try:
                        status = deliver(client).status_code
                    except httpx.HTTPError:
                        status = 0
                    self.statuses.append(status)
                    if 200 <= status < 300:
                        self.acknowledged.append(name)
                    if 200 <= status < 500:
                        break
                    time.sleep(self._pause)
