"""Model servers on this machine: found by themselves on their usual ports.

A port nobody listens on answers at once, so all are tried together in a fraction of a second.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from hermes.agent.asking import can_chat, listed_models


@dataclass(slots=True, frozen=True)
class Server:
    """A kind of server and where it usually listens."""

    name: str
    port: int
    host: str = "127.0.0.1"

    @property
    def base_url(self) -> str:
        """Its OpenAI-compatible address."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}/v1"


USUAL = (Server("Ollama", 11434), Server("LM Studio", 1234), Server("vLLM", 8000), Server("llama.cpp", 8080))


@dataclass(slots=True, frozen=True)
class Found:
    """A server that answers, and the models it lists that one can talk to."""

    server: Server
    models: tuple[str, ...]


def usual_servers(variables: Mapping[str, str] | None = None) -> tuple[Server, ...]:
    """Where to look: the usual places, with Ollama's moved to where OLLAMA_HOST says."""
    moved = (os.environ if variables is None else variables).get("OLLAMA_HOST", "")
    if not moved:
        return USUAL
    parts = urlsplit(moved if "://" in moved else f"http://{moved}")
    try:
        port = parts.port or 11434
    except ValueError:
        return USUAL
    host = parts.hostname or "127.0.0.1"
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # it listens everywhere; we need one place to ask
    return (Server("Ollama", port, host), *USUAL[1:])


def find_servers(servers: Sequence[Server] | None = None, *, timeout: float = 1.0) -> list[Found]:
    """Every server that answers /v1/models and has a model to talk to, in the order given. HERMES_NO_LOCAL: none."""
    if os.environ.get("HERMES_NO_LOCAL"):
        return []
    servers = usual_servers() if servers is None else servers
    found: list[Found | None] = [None] * len(servers)

    def look(number: int) -> None:
        found[number] = _look(servers[number], timeout)

    threads = [threading.Thread(target=look, args=(n,), daemon=True) for n in range(len(servers))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * timeout + 1)
    return [one for one in found if one is not None]


def _look(server: Server, timeout: float) -> Found | None:
    try:
        socket.create_connection((server.host, server.port), timeout=min(timeout, 0.5)).close()
    except OSError:
        return None
    listed = listed_models(server.base_url, timeout=timeout)
    models = tuple(str(item["id"]) for item in listed or () if can_chat(str(item["id"])))
    return Found(server, models) if models else None
