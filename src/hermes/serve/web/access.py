"""Who may use the page: a browser that came by the link with the token, on this machine, and no page of another site.

The link's token becomes a cookie that scripts can't read and other sites' requests don't carry. Requests that change something
must come from this page (Origin), and every answer forbids the browser to load anything from elsewhere.
"""

from __future__ import annotations

import hashlib
import hmac
from urllib.parse import urlencode

from starlette.datastructures import Headers, QueryParams
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hermes.serve.authorization import from_elsewhere

COOKIE = "hermes_web"
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; media-src 'self'; connect-src 'self';"
    " form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS = (
    (b"content-security-policy", _POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
)


class Access:
    """An application that only the owner's browser reaches."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app, self._token = app, token
        self._cookie = hashlib.sha256(f"hermes web {token}".encode()).hexdigest()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                kept = [pair for pair in message["headers"] if pair[0] not in dict(_HEADERS)]
                message["headers"] = [*kept, *_HEADERS]
            await send(message)

        refused = self._refusal(scope)
        await (refused or self._app)(scope, receive, guarded)

    def _refusal(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        if from_elsewhere(headers) is not None:
            return PlainTextResponse("this page answers to localhost only", 403)
        query = QueryParams(scope["query_string"])
        if "token" in query:
            if not hmac.compare_digest(query["token"].encode(), self._token.encode()):
                return PlainTextResponse(
                    "that is not the token of this page; use the link that `hermes web` printed", 401
                )
            rest = urlencode([pair for pair in query.multi_items() if pair[0] != "token"])
            answer = RedirectResponse(scope["path"] + (f"?{rest}" if rest else ""), 303)
            answer.set_cookie(COOKIE, self._cookie, httponly=True, samesite="strict", path="/")
            return answer
        if not hmac.compare_digest(_cookie(headers).encode(), self._cookie.encode()):
            return PlainTextResponse("open the link that `hermes web` printed: it has the token", 401)
        if scope["method"] not in ("GET", "HEAD"):
            origin = headers.get("origin")
            if origin is None or origin.partition("://")[2] != headers.get("host"):
                return PlainTextResponse("requests that change something come from this page alone", 403)
        return None


def _cookie(headers: Headers) -> str:
    for part in headers.get("cookie", "").split(";"):
        name, _, value = part.strip().partition("=")
        if name == COOKIE:
            return value
    return ""
