"""Who may talk to a server: those with the token; without one, programs on this machine, and no web page.

A page in a browser can send requests to this machine too. Two signs give it away where no token would: the name it was
told for this machine (Host; DNS rebinding), and where it comes from (Origin).
"""

from __future__ import annotations

import hmac
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from hermes.errors import ConfigError
from hermes.serve.problems import Problem
from hermes.serve.server import is_loopback

_OPEN = frozenset({"/health"})  # says nothing but that somebody is there


SHORTEST = 16  # characters of a secret that guards what others can reach: shorter ones are guessed


def check_reach(host: str, secret: str | None, insecure: bool, *, what: str, hint: str) -> None:
    """ConfigError when a server could be reached from elsewhere without a secret, or with one that can be guessed.

    `insecure` allows no secret at all; a short one only pretends to be safe, and is refused all the same.
    """
    if is_loopback(host) or (insecure and not secret):
        return
    where = f"{what} would listen on {host or 'all addresses'}, where others can reach it,"
    if not secret:
        raise ConfigError(f"{where} without a secret: {hint}")
    if len(secret) < SHORTEST:
        raise ConfigError(
            f"{where} with a secret of {len(secret)} characters; it needs {SHORTEST} or more (openssl rand -hex 32): {hint}"
        )


def check_api(host: str, token: str | None, *, insecure: bool = False) -> None:
    """ConfigError when the API server would let strangers in, listening there with this token."""
    check_reach(
        host, (token or "").strip() or None, insecure, what="the API server",
        hint="set api_server.token, or listen on 127.0.0.1 (or say --insecure)",
    )  # fmt: skip


class Guard:
    """An application behind a bearer token; without a token only local programs get in (or anybody: `strangers`)."""

    def __init__(self, app: ASGIApp, token: str | None, *, strangers: bool = False) -> None:
        self._app = app
        self._token = token.encode() if token else None
        self._strangers = strangers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in _OPEN:
            problem = self._refusal(Headers(scope=scope))
            if problem is not None:
                await problem.response()(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _refusal(self, headers: Headers) -> Problem | None:
        if self._token is None:
            return None if self._strangers else from_elsewhere(headers)
        kind, _, shown = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and same(shown.strip().encode("latin-1", "replace"), self._token):
            return None
        if not shown:
            return Problem(401, "a token is needed: Authorization: Bearer <api_server.token>", code="missing_api_key")
        return Problem(401, "that is not the token of this server", code="invalid_api_key")


def same(one: bytes, other: bytes) -> bool:
    """Whether two secrets are equal, in a time that does not tell how far they are."""
    return hmac.compare_digest(one, other)


def from_elsewhere(headers: Headers) -> Problem | None:
    """What is wrong with a request that should come from a program on this machine; None when nothing is."""
    if not is_loopback(_host_of(headers.get("host", ""))):
        return Problem(403, "this server answers to localhost only; others need a token", code="wrong_host")
    origin = headers.get("origin")
    if origin is not None and not is_loopback(_origin_host(origin)):
        return Problem(403, "web pages may not use this server without a token", code="wrong_origin")
    return None


def _host_of(value: str) -> str:
    value = value.strip()
    if value.startswith("["):
        return value.partition("]")[0][1:]
    return value.partition(":")[0]


def _origin_host(value: str) -> str:
    try:
        return urlsplit(value).hostname or ""
    except ValueError:
        return ""
