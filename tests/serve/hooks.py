"""Webhooks as they are really sent: signed by GitHub's own library and by Standard Webhooks', kept by a small gateway."""

from __future__ import annotations

import json
import logging
import subprocess
import time
from pathlib import Path
from typing import Any

import httpx

from hermes.gateway.events import Event
from hermes.gateway.platforms.webhook import Webhook
from tests.support.environments import npm

SECRET = "it's a Secret to everybody"
STANDARD_SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
PACKAGES = ["@octokit/webhooks-methods@6.0.0", "@octokit/webhooks-examples@7.6.1", "standardwebhooks@1.1.1"]

_SIGN = """
import { sign } from "@octokit/webhooks-methods";
import { createRequire } from "node:module";
const require = createRequire(import.meta.url);
const kinds = require("@octokit/webhooks-examples");
const { Webhook } = require("standardwebhooks");
const [secret, standard, now] = process.argv.slice(2);
const out = { github: [], standard: [] };
const hook = new Webhook(standard);
for (const kind of kinds) {
  const body = JSON.stringify(kind.examples[0]);
  out.github.push({ name: kind.name, body, signature: await sign(secret, body) });
}
for (const [id, offset, body] of [["msg_1", 0, '{"type":"invoice.paid"}'], ["msg_2", 0, '{"snow":"\\u2603 ☃"}'],
                                  ["msg_old", -301, "{}"], ["msg_early", 900, "{}"]]) {
  const at = new Date((Number(now) + offset) * 1000);
  out.standard.push({ id, body, timestamp: String(Number(now) + offset), signature: hook.sign(id, at, body) });
}
console.log(JSON.stringify(out));
"""


def signed() -> dict[str, list[dict[str, str]]]:
    """One delivery of every kind GitHub has, and some of Standard Webhooks', signed now by their own libraries."""
    folder = npm("webhooks", PACKAGES)
    script = folder / "sign.mjs"
    script.write_text(_SIGN)
    words = ["node", str(script), SECRET, STANDARD_SECRET, str(int(time.time()))]
    outcome = subprocess.run(words, capture_output=True, text=True, timeout=120, check=True)
    found: dict[str, list[dict[str, str]]] = json.loads(outcome.stdout)
    return found


class Kept:
    """The gateway, as the adapter sees it: everything is kept, unless it is told to fail."""

    def __init__(self) -> None:
        self.log = logging.getLogger("hermes.gateway.webhook.test")
        self.events: list[Event] = []
        self.identities: list[str] = []
        self.problems: list[Exception] = []
        self.failing: Exception | None = None

    async def received(self, event: Event) -> None:
        if self.failing is not None:
            raise self.failing
        if event.id not in {one.id for one in self.events}:  # the gateway keeps one that comes again once
            self.events.append(event)

    def connected(self, identity: str) -> None:
        self.identities.append(identity)

    def troubled(self, text: str) -> None:
        self.problems.append(Exception(text))

    def lost(self, error: Exception) -> None:
        self.problems.append(error)


class Hooked:
    """A running adapter, and a client that sends to it."""

    def __init__(
        self, loop: Any, home: Path, routes: dict[str, Any], kind: type[Webhook] = Webhook, **more: Any
    ) -> None:
        self.loop = loop
        self.link = Kept()
        self._client = httpx.Client(trust_env=False, timeout=30)
        self.adapter = kind({"host": "127.0.0.1", "port": 0, "routes": routes, **more}, home)
        loop.run(self.adapter.connect(self.link))
        self.root = f"http://127.0.0.1:{self.adapter.port}"

    def post(self, name: str, body: bytes | str, **headers: str) -> httpx.Response:
        """A delivery; underscores in header names are dashes."""
        named = {"content-type": "application/json"}
        named |= {key.replace("_", "-"): value for key, value in headers.items()}
        return self._client.post(f"{self.root}/webhooks/{name}", content=body, headers=named)

    def close(self) -> None:
        self._client.close()
        self.loop.run(self.adapter.disconnect())
