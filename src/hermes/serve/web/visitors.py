"""Who may use the page, and as whom.

- The person at this machine: the link's token becomes a cookie that scripts can't read and other sites' requests don't carry.
  The browser that the program starts gets a link that is good for one visit: other users can see what processes are started with.
- With `web.password`, a browser anywhere that knows it.
- With `web.user_header`, the users that a reverse proxy vouches for: only connections from `web.proxies`, only under the address
  `web.url` (a page of another site that resolves its own name to this machine uses another), only names in `web.users`.

Requests that change something must come from this page (Origin), and every answer forbids the browser to load anything from
elsewhere.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING
from urllib.parse import urlencode, urlsplit

from starlette.datastructures import Headers, QueryParams
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hermes.errors import ConfigError
from hermes.serve.api_errors import ApiError
from hermes.serve.api_requests import read_body
from hermes.serve.authorization import check_reach, from_elsewhere
from hermes.serve.server import is_loopback

if TYPE_CHECKING:
    from hermes.config.settings_schema import WebSettings
    from hermes.store.visibility import User

COOKIE = "hermes_web"
VISITOR = "hermes.visitor"
_WAIT = 1.0  # seconds after a wrong password before the next one is looked at
_WAITING = 8  # passwords that wait to be looked at; more are refused at once
_LONGEST_FORM, _SLOWEST = 4096, 10.0  # bytes of a password's form, and seconds it may take to arrive
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; media-src 'self'; connect-src 'self';"
    " form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS = (
    (b"content-security-policy", _POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
)
_LOGIN = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>Hermes Sessions</title><link rel="stylesheet" href="/static/style.css"></head>
<body><main class="login"><h1>Hermes Sessions</h1><form method="post" action="/login">
<label for="password">Password</label>
<input id="password" name="password" type="password" autocomplete="current-password" autofocus>
<input type="hidden" name="next" value="{next}"><button class="primary">Open</button><p role="alert">{problem}</p>
</form></main></body></html>"""


@dataclass(frozen=True, slots=True)
class Visitor:
    """Who asks: the owner (None) or a user, and whether they may change something."""

    user: User | None = None
    read_only: bool = False
    name: str = ""  # the proxy's name for them

    @property
    def by(self) -> str:
        """For the audit log."""
        return f"hermes web ({self.name})" if self.name else "hermes web"


def visitor_of(request: Request) -> Visitor:
    """Who sent this request."""
    found: Visitor = request.scope[VISITOR]
    return found


def user_named(name: str) -> User:
    """SOURCE:ID as a user; ConfigError when it is none."""
    source, _, user_id = name.partition(":")
    if not source or not user_id:
        raise ConfigError(f"web.users: expected owner or SOURCE:ID, such as telegram:42, got {name!r}")
    return source, user_id


def check_settings(settings: WebSettings, host: str) -> None:
    """ConfigError when strangers could use the page on this address."""
    if settings.user_header:
        if not settings.url:
            raise ConfigError("web.user_header needs web.url, the address under which the proxy serves the page")
        if not settings.users:
            raise ConfigError("web.user_header needs web.users: {name: owner} or {name: telegram:42}")
        for name in settings.users.values():
            if name != "owner":
                user_named(name)
        if not settings.password:
            return  # others than the proxy get in by nothing
    check_reach(
        host, settings.password, False, what="the page",
        hint="set web.password, or web.user_header behind a reverse proxy, or listen on 127.0.0.1",
    )  # fmt: skip


class VisitorsOnly:
    """An application that only its visitors reach."""

    def __init__(
        self,
        app: ASGIApp,
        token: str,
        settings: WebSettings,
        visitor: Visitor,
        *,
        local: bool = True,
        once: str | None = None,
    ) -> None:
        """`visitor` is who comes by the link or the password; `local`: the page listens on this machine alone.

        `once` lets in the first who shows it, in place of the token.
        """
        self._once = once
        self._app, self._token, self._settings, self._visitor, self._local = app, token, settings, visitor, local
        self._cookie = hashlib.sha256(f"hermes web {token}".encode()).hexdigest()
        self._site = urlsplit(settings.url or "")
        self._users = {
            name: Visitor(None if told == "owner" else user_named(told), visitor.read_only or told != "owner", name)
            for name, told in settings.users.items()
        }
        self._one_guess, self._guesses = asyncio.Lock(), 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                kept = [pair for pair in message["headers"] if pair[0] not in dict(_HEADERS)]
                message["headers"] = [*kept, *_HEADERS]
            await send(message)

        headers = Headers(scope=scope)
        answer: ASGIApp | None
        if self._settings.password and scope["path"] == "/login" and scope["method"] == "POST":
            answer = self._not_ours(scope, headers) or await self._login(Request(scope, receive))
        else:
            answer = self._refusal(scope, headers)
        await (answer or self._app)(scope, receive, guarded)

    # ------------------------------------------------------------------------------------------ refusing

    def _refusal(self, scope: Scope, headers: Headers) -> Response | None:
        vouched = self._vouched(scope, headers)
        if vouched is not None:
            if vouched not in self._users:
                return PlainTextResponse("this user has no access; the owner names users in web.users", 403)
            scope[VISITOR] = self._users[vouched]
            return self._not_ours(scope, headers)
        if self._local and from_elsewhere(headers) is not None and not self._is_site(headers):
            return PlainTextResponse("this page answers to localhost only", 403)
        query = QueryParams(scope["query_string"])
        if "token" in query:
            return self._by_link(scope, query)
        if self._settings.password and scope["path"].startswith("/static/"):
            scope[VISITOR] = Visitor(("", ""), True)  # the login page's style says nothing about anyone
            return None
        if not hmac.compare_digest(Request(scope).cookies.get(_cookie_name(scope), "").encode(), self._cookie.encode()):
            return self._stranger(scope)
        scope[VISITOR] = self._visitor
        return self._not_ours(scope, headers)

    def _vouched(self, scope: Scope, headers: Headers) -> str | None:
        """The name of the user that the proxy says this is; None when it is not the proxy that asks."""
        settings, client = self._settings, scope.get("client")
        if (
            not settings.user_header
            or client is None
            or client[0] not in settings.proxies
            or not self._is_site(headers)
        ):
            return None
        named = headers.getlist(settings.user_header)
        return named[0].strip() if len(named) == 1 else None

    def _is_site(self, headers: Headers) -> bool:
        return bool(self._site.netloc) and headers.get("host", "").lower() == self._site.netloc.lower()

    def _not_ours(self, scope: Scope, headers: Headers) -> Response | None:
        """The refusal of a change that another page asks for."""
        if scope["method"] in ("GET", "HEAD"):
            return None
        expected = self._site.netloc if self._is_site(headers) else headers.get("host")
        origin = headers.get("origin")
        if origin is None or origin.partition("://")[2].lower() != (expected or "").lower():
            return PlainTextResponse("requests that change something come from this page alone", 403)
        return None

    # ------------------------------------------------------------------------------------------ letting in

    def _by_link(self, scope: Scope, query: QueryParams) -> Response:
        if self._once is not None and hmac.compare_digest(query["token"].encode(), self._once.encode()):
            self._once = None
        elif not hmac.compare_digest(query["token"].encode(), self._token.encode()):
            return PlainTextResponse("that is not the token of this page; use the link that `hermes web` printed", 401)
        rest = urlencode([pair for pair in query.multi_items() if pair[0] != "token"])
        return self._let_in(scope, scope["path"] + (f"?{rest}" if rest else ""))

    def _let_in(self, scope: Scope, path: str) -> Response:
        answer = RedirectResponse("/" + path.lstrip("/\\"), 303)
        secure = self._site.scheme == "https" and not self._local
        answer.set_cookie(_cookie_name(scope), self._cookie, httponly=True, samesite="strict", path="/", secure=secure)
        return answer

    def _stranger(self, scope: Scope) -> Response:
        if not self._settings.password:
            return PlainTextResponse("open the link that `hermes web` printed: it has the token", 401)
        if scope["path"].startswith(("/api/", "/attachment/")):
            return PlainTextResponse("open the page and enter the password", 401)
        return HTMLResponse(_LOGIN.format(next=escape(scope["path"], quote=True), problem=""), 401)

    async def _login(self, request: Request) -> Response:
        """The answer to a password. Wrong ones are checked one a second, from all addresses together."""
        try:
            form = QueryParams(await read_body(request, _LONGEST_FORM, _SLOWEST))
        except ApiError as error:
            return PlainTextResponse(error.message, error.status)
        if self._guesses >= _WAITING:
            return PlainTextResponse("too many wrong passwords at once; try again in a few seconds", 429)
        self._guesses += 1
        try:
            async with self._one_guess:
                if hmac.compare_digest(form.get("password", "").encode(), (self._settings.password or "").encode()):
                    return self._let_in(request.scope, form.get("next", "/"))
                await asyncio.sleep(_WAIT)
        finally:
            self._guesses -= 1
        problem = "That is not the password."
        return HTMLResponse(_LOGIN.format(next=escape(form.get("next", "/"), quote=True), problem=problem), 401)


def _cookie_name(scope: Scope) -> str:
    """Browsers give a cookie to every port of a machine: each page has its own."""
    return f"{COOKIE}_{(scope.get('server') or ('', ''))[1]}"


__all__ = ["Visitor", "VisitorsOnly", "check_settings", "is_loopback", "user_named", "visitor_of"]
