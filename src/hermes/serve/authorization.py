"""Who may use a server: callers with the token; without a token, programs on this machine, but no web page.

A page in a browser can send requests to this machine too. Two headers reveal it where no token would: the host name it
used for this machine (Host; DNS rebinding), and the page's origin (Origin).
"""

from __future__ import annotations

import hmac
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from hermes.errors import ConfigError
from hermes.serve.http import is_loopback
from hermes.serve.http_messages import ApiError

_OPEN = frozenset({"/health"})  # reveals only that the server runs


SHORTEST = 16  # characters of a secret for servers that others can reach: shorter ones can be guessed


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


def check_api(host: str, token: str | None, *, insecure: bool = False) -> str:
    """The token of the API server, "" for none; ConfigError when strangers could use it on this address."""
    secret = (token or "").strip()
    hint = "set api_server.token, or listen on 127.0.0.1 (or pass --insecure)"
    check_reach(host, secret or None, insecure, what="the API server", hint=hint)
    return secret


class Guard:
    """An application behind a bearer token; without one only local programs have access (or everyone: `is_open`)."""

    def __init__(self, app: ASGIApp, token: str, *, is_open: bool = False) -> None:
        self._app, self._token, self._is_open = app, token.encode(), is_open

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in _OPEN:
            try:
                self._check(Headers(scope=scope))
            except ApiError as problem:
                await problem.response()(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _check(self, headers: Headers) -> None:
        """ApiError without access."""
        kind, _, shown = headers.get("authorization", "").partition(" ")
        if not self._token:
            if not self._is_open and (problem := from_elsewhere(headers)) is not None:
                raise problem
        elif not shown:
            raise ApiError(401, "a token is needed: Authorization: Bearer TOKEN", code="missing_api_key")
        elif kind.lower() != "bearer" or not hmac.compare_digest(
            shown.strip().encode("latin-1", "replace"), self._token
        ):
            raise ApiError(401, "wrong token", code="invalid_api_key")


def from_elsewhere(headers: Headers) -> ApiError | None:
    """The error for a request that should come from a program on this machine and does not; None if it does."""
    if not is_loopback(_host_of(f"//{headers.get('host', '')}")):
        return ApiError(403, "this server answers to localhost only; others need a token", code="wrong_host")
    origin = headers.get("origin")
    if origin is not None and not is_loopback(_host_of(origin)):
        return ApiError(403, "web pages may not use this server without a token", code="wrong_origin")
    return None


def _host_of(address: str) -> str:
    try:
        return urlsplit(address).hostname or ""
    except ValueError:
        return ""
