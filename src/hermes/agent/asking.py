"""Asking a server one small question over HTTP: is someone there, which models are there, how much fits.

For this the standard library is enough; the libraries that talk to models cost ten times as much to load.
"""

from __future__ import annotations

import ipaddress
import json
from typing import Any
from urllib.parse import urlsplit, urlunsplit


def ask_json(url: str, *, key: str | None = None, body: Any = None, timeout: float = 2.0) -> Any:
    """The JSON at this address (a body makes it a POST); None when there is no such answer in time."""
    from http.client import HTTPException
    from urllib.request import ProxyHandler, Request, build_opener

    headers = {"Accept": "application/json", "Content-Type": "application/json"}
    if key:
        headers["Authorization"] = f"Bearer {key}"
    data = None if body is None else json.dumps(body).encode()
    opener = build_opener(ProxyHandler({})) if is_near(url) else build_opener()
    try:
        with opener.open(Request(url, data, headers), timeout=timeout) as answer:
            return json.loads(answer.read(8_000_000))
    except (OSError, HTTPException, ValueError):  # nobody there, not HTTP, not JSON, not an address
        return None


def listed_models(base_url: str, *, key: str | None = None, timeout: float = 2.0) -> list[dict[str, Any]] | None:
    """What the server lists under /models; None when it does not answer that."""
    answer = ask_json(f"{base_url.rstrip('/')}/models", key=key, timeout=timeout)
    items = answer.get("data") if isinstance(answer, dict) else answer
    if not isinstance(items, list):
        return None
    return [item for item in items if isinstance(item, dict) and isinstance(item.get("id"), str)]


# Parts of names that belong to models for other work than talking.
_OTHER_WORK = (
    "embed", "bge-", "bge_", "gte-", "e5-", "minilm", "rerank", "whisper", "tts", "clip", "moderation", "dall-e",
    "stable-diffusion", "sdxl", "flux", "transcribe", "realtime", "audio", "speech", "gpt-image", "sora",
)  # fmt: skip


def can_chat(model_id: str) -> bool:
    """Whether a model of this name is likely one to talk to."""
    name = model_id.lower()
    return not any(part in name for part in _OTHER_WORK)


def is_near(url: str) -> bool:
    """Whether the address is on this machine or in its own network."""
    host = urlsplit(url).hostname or ""
    if host == "localhost" or host.endswith((".localhost", ".local", ".lan")):
        return True
    try:
        return ipaddress.ip_address(host).is_private
    except ValueError:
        return False


def without_password(url: str) -> str:
    """The address as it may be shown and stored: no user, no password, no query."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, host, parts.path, "", ""))
