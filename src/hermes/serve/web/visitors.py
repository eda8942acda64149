"""Who may use the page, and as whom.

- The person at this machine: the link's token becomes a cookie that scripts can't read. Of other sites' requests it goes with
  links alone (SameSite=Lax), and what is no visit to a page is refused to them (Sec-Fetch-Site).
  The browser that the program starts gets a link that is good for one visit: other users can see what processes are started with.
- With `web.password`, a browser anywhere that knows it.
- With `web.user_header`, the users that a reverse proxy vouches for: only with `web.proxy_secret` in PROXY_SECRET (every user of
  a machine can connect to 127.0.0.1), only under the address `web.url`, only names in `web.users`.

Requests that change something must come from this page (Origin), and every answer forbids the browser to load anything from
elsewhere.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
from collections import Counter
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING
from urllib.parse import urlencode, urlsplit

from starlette.datastructures import Headers, QueryParams
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hermes.errors import ConfigError
from hermes.serve.authorization import SHORTEST, check_reach, from_elsewhere
from hermes.serve.http_messages import ApiError, AsciiJson, read_body

if TYPE_CHECKING:
    from hermes.config.settings_schema import WebSettings
    from hermes.store.records.visibility import User

COOKIE = "hermes_web"
VISITOR = "hermes.visitor"
PROXY_SECRET = "x-hermes-proxy-secret"  # the header in which a proxy sends `web.proxy_secret`
_WAIT = 1.0  # seconds that a wrong password of one address takes
_WAITING = 8  # passwords of one address that wait to be looked at; more are refused at once
_LONGEST_FORM, _SLOWEST = 4096, 10.0  # bytes of a password's form, and seconds it may take to arrive
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; media-src 'self'; connect-src 'self';"
    " form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS = (
    (b"content-security-policy", _POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"same-origin"),  # with no-referrer, the form of the password is sent without its origin
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
)
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>Hermes Sessions</title><link rel="icon" href="/static/icon.svg"><link rel="stylesheet" href="/static/style.css"></head>
<body><main class="login"><img src="/static/icon.svg" alt="" width="48" height="48"><h1>Hermes Sessions</h1>
{inside}</main></body></html>"""
_OF_REFUSALS = ("/static/style.css", "/static/icon.svg")  # they say nothing about anyone
_REFUSED = """<p role="alert">{problem}</p>"""
_BY_LINK = """<p role="alert">{problem}</p><p>Run <code>hermes web</code> on the machine that has your conversations, and open the
link it prints. <code>hermes web --install</code> keeps the page running, under a link that stays the same.</p>"""
_LOGIN = """<form method="post" action="/login"><label for="password">Password</label>
<input id="password" name="password" type="password" autocomplete="current-password" autofocus>
<input type="hidden" name="next" value="{next}"><button class="primary">Open</button>
<p role="alert" class="problem">{problem}</p></form>"""


@dataclass(frozen=True, slots=True)
class Visitor:
    """The sender of a request: the owner (None) or a user, and whether they may change something."""

    user: User | None = None
    read_only: bool = False
    name: str = ""  # the proxy's name for them

    @property
    def by(self) -> str:
        """The name of this visitor in the audit log."""
        return f"hermes web ({self.name})" if self.name else "hermes web"


def visitor_of(request: Request) -> Visitor:
    """The visitor who sent this request."""
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
    if settings.proxy_secret is not None and len(settings.proxy_secret) < SHORTEST:
        raise ConfigError(f"web.proxy_secret needs {SHORTEST} characters or more (openssl rand -hex 32)")
    if settings.user_header:
        for value, needed in (
            (settings.url, "web.url, the address under which the proxy serves the page"),
            (settings.proxy_secret, "web.proxy_secret, which the proxy sends as X-Hermes-Proxy-Secret"),
            (settings.users, "web.users: {name: owner} or {name: telegram:42}"),
        ):
            if not value:
                raise ConfigError(f"web.user_header needs {needed}")
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
            name: Visitor(None if user == "owner" else user_named(user), visitor.read_only or user != "owner", name)
            for name, user in settings.users.items()
        }
        self._guesses: Counter[str] = Counter()  # passwords that are being looked at, by address

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                others = [pair for pair in message["headers"] if pair[0] not in dict(_HEADERS)]
                message["headers"] = [*others, *_HEADERS]
            await send(message)

        headers = Headers(scope=scope)
        answer: ASGIApp | None
        if self._settings.password and scope["path"] == "/login" and scope["method"] == "POST":
            answer = self._not_ours(scope, headers) or await self._login(Request(scope, receive))
        elif scope["method"] == "HEAD" and scope["path"].startswith("/api/"):
            answer = _refused(scope, 405, "use GET")  # the head of a stream of events would never end
        else:
            answer = self._refusal(scope, headers)
        await (answer or self._app)(scope, receive, guarded)

    # ------------------------------------------------------------------------------------------ refusing

    def _refusal(self, scope: Scope, headers: Headers) -> Response | None:
        vouched = self._vouched(scope, headers)
        if vouched is not None:
            if vouched not in self._users:
                return _refused(scope, 403, "this user has no access; the owner names users in web.users")
            scope[VISITOR] = self._users[vouched]
            return self._not_ours(scope, headers)
        if self._local and from_elsewhere(headers) is not None and not self._is_site(headers):
            return _refused(scope, 403, "this page answers to localhost only")
        query = QueryParams(scope["query_string"])
        if "token" in query:
            return self._by_link(scope, query)
        if scope["path"] in _OF_REFUSALS:
            scope[VISITOR] = Visitor(("", ""), True)
            return None
        if not hmac.compare_digest(Request(scope).cookies.get(_cookie_name(scope), "").encode(), self._cookie.encode()):
            return self._entrance(scope)
        scope[VISITOR] = self._visitor
        return self._not_ours(scope, headers)

    def _vouched(self, scope: Scope, headers: Headers) -> str | None:
        """The name of the user that the proxy vouches for; None when the request is not from the proxy."""
        header = self._settings.user_header
        if not header or not self._is_proxy(headers) or not self._is_site(headers):
            return None
        named = headers.getlist(header)
        return named[0].strip() if len(named) == 1 else None

    def _is_proxy(self, headers: Headers) -> bool:
        secret = (self._settings.proxy_secret or "").encode()
        return bool(secret) and hmac.compare_digest(headers.get(PROXY_SECRET, "").encode("latin-1"), secret)

    def _is_site(self, headers: Headers) -> bool:
        return bool(self._site.netloc) and headers.get("host", "").lower() == self._site.netloc.lower()

    def _not_ours(self, scope: Scope, headers: Headers) -> Response | None:
        """The refusal of another page's request: for a change, or for more than a visit."""
        if scope["method"] in ("GET", "HEAD"):
            is_visit = headers.get("sec-fetch-dest") == "document" and not scope["path"].startswith(_NO_PAGES)
            if is_visit or headers.get("sec-fetch-site", "none") in ("same-origin", "none"):
                return None
            return _refused(scope, 403, "other pages may link to the pages here, and nothing else")
        expected = self._site.netloc if self._is_site(headers) else headers.get("host")
        origin = headers.get("origin")
        if origin is None or origin.partition("://")[2].lower() != (expected or "").lower():
            return _refused(scope, 403, "requests that change something come from this page alone")
        return None

    # ------------------------------------------------------------------------------------------ letting in

    def _by_link(self, scope: Scope, query: QueryParams) -> Response:
        if self._once is not None and hmac.compare_digest(query["token"].encode(), self._once.encode()):
            self._once = None
        elif not hmac.compare_digest(query["token"].encode(), self._token.encode()):
            return _refused(scope, 401, "This link is not, or no longer, the one of this page.", _BY_LINK)
        rest = urlencode([pair for pair in query.multi_items() if pair[0] != "token"])
        return self._let_in(scope, _path(scope) + (f"?{rest}" if rest else ""))

    def _let_in(self, scope: Scope, path: str) -> Response:
        answer = RedirectResponse("/" + path.lstrip("/\\"), 303)
        secure = self._site.scheme == "https" and self._is_site(Headers(scope=scope))
        answer.set_cookie(_cookie_name(scope), self._cookie, httponly=True, samesite="lax", path="/", secure=secure)
        return answer

    def _entrance(self, scope: Scope) -> Response:
        if not self._settings.password:
            return _refused(scope, 401, "This page opens with the link that belongs to it.", _BY_LINK)
        query = scope["query_string"].decode("latin-1")
        there = escape(_path(scope) + (f"?{query}" if query else ""), quote=True)
        return _refused(scope, 401, "open the page and enter the password", _LOGIN.format(next=there, problem=""))

    async def _login(self, request: Request) -> Response:
        """The answer to a password. Passwords of one address are checked one a second; no address waits for another."""
        scope = request.scope
        try:
            form = QueryParams(await read_body(request, _LONGEST_FORM, _SLOWEST))
        except ApiError as error:
            return _refused(scope, error.status, error.message)
        address = self._address(request)
        if (before := self._guesses[address]) >= _WAITING:
            return _refused(scope, 429, "too many wrong passwords at once; try again in a few seconds")
        self._guesses[address] += 1
        try:
            await asyncio.sleep(before * _WAIT)
            if hmac.compare_digest(form.get("password", "").encode(), (self._settings.password or "").encode()):
                return self._let_in(scope, form.get("next", "/"))
            await asyncio.sleep(_WAIT)
        finally:
            self._guesses[address] -= 1
            self._guesses += Counter()  # drops the zeros
        there = escape(form.get("next", "/"), quote=True)
        return _refused(scope, 401, "", _LOGIN.format(next=there, problem="That is not the password."))

    def _address(self, request: Request) -> str:
        """The address that a password comes from, as the proxy reports it; of IPv6 the network, which has many addresses."""
        hop = request.headers.get("x-forwarded-for", "").rpartition(",")[2].strip()
        shown = hop if hop and self._is_proxy(request.headers) else request.client.host if request.client else ""
        try:
            address = ipaddress.ip_address(shown)
        except ValueError:
            return shown[:100]
        return str(ipaddress.ip_network((address, 64), strict=False)) if address.version == 6 else shown


_NO_PAGES = ("/api/", "/attachment/", "/text/", "/export/", "/static/")


def _refused(scope: Scope, status: int, problem: str, page: str = _REFUSED) -> Response:
    """A refusal: a page for people, JSON for scripts."""
    if scope["path"].startswith(_NO_PAGES) and "text/html" not in Headers(scope=scope).get("accept", ""):
        return AsciiJson({"error": problem}, status)
    return HTMLResponse(_PAGE.format(inside=page.replace("{problem}", problem)), status)


def _path(scope: Scope) -> str:
    """The path as it was requested, still quoted: a question mark in a session's id does not begin a query."""
    return str((scope.get("raw_path") or scope["path"].encode()).decode("latin-1"))


def _cookie_name(scope: Scope) -> str:
    """The name of this page's own cookie: browsers send a cookie to every port of a machine."""
    return f"{COOKIE}_{(scope.get('server') or ('', ''))[1]}"
