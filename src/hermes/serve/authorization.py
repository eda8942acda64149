"""Who may use a server: callers with the token; without a token, programs on this machine, but no web page.

A page in a browser can send requests to this machine too. Two headers reveal it where no token would: the host name it
used for this machine (Host; DNS rebinding), and the page's origin (Origin).
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from hermes.errors import ConfigError
from hermes.serve.http import is_loopback
from hermes.serve.http_messages import ApiError

CALLER = "hermes.caller"
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


def check_api(
    host: str, token: str | None, keys: Mapping[str, str] | None = None, *, insecure: bool = False
) -> dict[str | None, str]:
    """The secrets of the API server by the name of their key (None: the owner's token).

    ConfigError when strangers could use it on this address, or two callers could not be distinguished.
    """
    secrets: dict[str | None, str] = {
        None: (token or "").strip(),
        **{name: one.strip() for name, one in (keys or {}).items()},
    }
    hint = "set api_server.token, or listen on 127.0.0.1 (or pass --insecure)"
    for name, secret in secrets.items():
        if name is not None and (not secret or not name.strip()):
            raise ConfigError(f"api_server.keys.{name} is empty: every key has a name and a token")
        if secret or (name is None and len(secrets) == 1):
            check_reach(
                host, secret or None, insecure, what="the API server",
                hint=hint if name is None else f"make api_server.keys.{name} longer",
            )  # fmt: skip
    found = {name: secret for name, secret in secrets.items() if secret}
    if len(set(found.values())) < len(found):
        raise ConfigError(
            "two of api_server.token and api_server.keys are the same, so callers could not be distinguished"
        )
    return found


class Guard:
    """An application behind bearer tokens; without tokens only local programs have access (or everyone: `is_open`).

    The name of the key a request came with is in its scope, as CALLER; None is the owner.
    """

    def __init__(self, app: ASGIApp, secrets: Mapping[str | None, str], *, is_open: bool = False) -> None:
        self._app = app
        self._secrets = {name: secret.encode() for name, secret in secrets.items()}
        self._is_open = is_open

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in _OPEN:
            try:
                scope[CALLER] = self._caller(Headers(scope=scope))
            except ApiError as problem:
                await problem.response()(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _caller(self, headers: Headers) -> str | None:
        """The caller's key; ApiError without access."""
        if not self._secrets:
            if not self._is_open and (problem := from_elsewhere(headers)) is not None:
                raise problem
            return None
        kind, _, shown = headers.get("authorization", "").partition(" ")
        token = shown.strip().encode("latin-1", "replace")
        # All are always compared: the time taken reveals nothing.
        matching = [name for name, secret in self._secrets.items() if hmac.compare_digest(token, secret)]
        if kind.lower() == "bearer" and matching:
            return matching[0]
        if not shown:
            raise ApiError(401, "a token is needed: Authorization: Bearer TOKEN", code="missing_api_key")
        raise ApiError(401, "wrong token", code="invalid_api_key")


def from_elsewhere(headers: Headers) -> ApiError | None:
    """The error for a request that should come from a program on this machine and does not; None if it does."""
    if not is_loopback(_host_of(headers.get("host", ""))):
        return ApiError(403, "this server answers to localhost only; others need a token", code="wrong_host")
    origin = headers.get("origin")
    if origin is not None and not is_loopback(_origin_host(origin)):
        return ApiError(403, "web pages may not use this server without a token", code="wrong_origin")
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
