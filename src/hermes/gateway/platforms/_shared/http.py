"""A vendor's HTTP API as adapters use it: one pool of connections, failures as errors of hermes.errors.

Error texts of a library never leave it: addresses and headers hold tokens. Redirects are not followed, except by
`download`, which sends the login to trusted hosts alone. While a file is fetched (`no_more_than`) an answer is read up to the
largest accepted file, whatever size was announced, and however it is compressed; adapters with a vendor's library read
files by `bounded`.
"""

from __future__ import annotations

import asyncio
import re
import ssl
import time
from collections.abc import AsyncIterable, Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Self, TypeVar
from urllib.parse import SplitResult, urlsplit

import httpx

from hermes.errors import PlatformError, PlatformRefused, PlatformUnreachable, SendRefused, SlowDown
from hermes.gateway.events import Attachment
from hermes.gateway.platforms._shared.receipt import text_of

_REDIRECTS = 4
_AROUND = 10_000  # bytes of JSON around a file
_ENCODED = ("content-encoding", "content-length", "transfer-encoding")
_most: ContextVar[int | None] = ContextVar("largest answer in bytes", default=None)
_KINDS = ("image", "audio", "video")


class TooLarge(SendRefused):
    """Raised when a file has more bytes than are accepted."""


async def no_more_than(most: int, fetching: Awaitable[bytes]) -> bytes:
    """Return what `fetching` gives; TooLarge as soon as one of its answers exceeds `most` bytes; the rest of it is not read."""
    _most.set(most)  # for this task alone
    return await fetching


def check_size(size: int) -> None:
    """Raise TooLarge where a file of so many bytes is being fetched and is not accepted."""
    most = _most.get()
    if most is not None and size > most:
        raise _too_large(most)


def _too_large(most: int) -> TooLarge:
    return TooLarge(f"it is larger than {most / 1_000_000:g} MB")


async def bounded(pieces: AsyncIterable[bytes]) -> bytes:
    """All pieces of a file together; TooLarge as soon as they are more than are accepted."""
    body = bytearray()
    async for piece in pieces:
        body += piece
        check_size(len(body))
    return bytes(body)


async def bounded_answer(answer: httpx.Response, request: httpx.Request) -> httpx.Response:
    """An answer that was begun (`stream=True`), read whole and decompressed; TooLarge as soon as it is too large."""
    try:
        body = await bounded(answer.aiter_bytes())
    finally:
        await answer.aclose()
    headers = [(name, value) for name, value in answer.headers.multi_items() if name.lower() not in _ENCODED]
    return httpx.Response(answer.status_code, headers=headers, content=body, request=request)


@contextmanager
def in_base64() -> Iterator[None]:
    """The file is fetched as base64 inside JSON, which is a third larger; its own size is checked afterwards."""
    most = _most.get()
    token = _most.set(None if most is None else most * 4 // 3 + _AROUND)
    try:
        yield
    except TooLarge:
        raise _too_large(most or 0) from None
    finally:
        _most.reset(token)


class HttpApi:
    """One vendor's API. `title` is what its errors call it; other options are those of httpx.AsyncClient."""

    def __init__(self, title: str, base_url: str, **options: Any) -> None:
        self.title, self.base_url = title, base_url.rstrip("/")
        self._http = httpx.AsyncClient(base_url=base_url, **options)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections."""
        await self._http.aclose()

    async def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        """The answer to a request; the error that `failure` makes of it where it is not a success."""
        try:
            answer = await self.fetch(method, path, **options)
        except httpx.HTTPError as error:
            raise self.unreachable(error) from None
        self.check(answer)
        return answer

    async def fetch(self, method: str, path: str | httpx.URL, **options: Any) -> httpx.Response:
        """The answer to a request, with any status; httpx.HTTPError without one."""
        most = _most.get()
        if most is None:
            return await self._http.request(method, path, **options)
        auth = options.pop("auth", httpx.USE_CLIENT_DEFAULT)
        request = self._http.build_request(method, path, **options)
        return await bounded_answer(await self._http.send(request, auth=auth, stream=True), request)

    async def object(self, method: str, path: str, **options: Any) -> dict[str, Any]:
        """The JSON object of a successful answer; PlatformUnreachable where it is none."""
        found = json_object(await self.request(method, path, **options))
        if found is None:
            raise PlatformUnreachable(f"{self.title}'s answer can't be read", maybe_sent=method != "GET")
        return found

    def check(self, answer: httpx.Response) -> None:
        """Raise the error of an unsuccessful answer."""
        if answer.status_code == 429:
            raise SlowDown(f"{self.title} asks us to wait", retry_after(answer.headers))
        if answer.status_code >= 500:
            raise PlatformUnreachable(f"{self.title} answers HTTP {answer.status_code}")
        if answer.status_code >= 300:
            raise self.failure(answer)

    def failure(self, answer: httpx.Response) -> PlatformError:
        """The error for an answer of 300 to 499; adapters override it for the vendor's error codes."""
        if answer.status_code == 401:
            return PlatformRefused(f"{self.title} does not accept our login (HTTP 401)")
        return SendRefused(f"{self.title} refuses (HTTP {answer.status_code})")

    def unreachable(self, error: httpx.HTTPError) -> PlatformUnreachable:
        """The error for a request without an answer."""
        why = f"{self.title} can't be reached: {connection_trouble(error)}"
        return PlatformUnreachable(why, maybe_sent=may_have_arrived(error))

    async def download(
        self, address: str, *, what: str, trusted: Callable[[str], bool], headers: Mapping[str, str] | None = None
    ) -> httpx.Response:
        """Download a file over at most four redirects. Only `trusted` addresses are requested, and get `headers`.

        A user name and password of ours go to the API's own host alone.
        """
        try:
            url = httpx.URL(address)
        except httpx.InvalidURL:
            raise SendRefused(f"{what} has no address that can be used") from None
        for _ in range(_REDIRECTS):
            if not trusted(str(url)):
                raise SendRefused(f"{what} is not stored at {self.title}, and we have no login for its server")
            try:
                own = address_parts(str(url))[:2] == address_parts(self.base_url)[:2]
                answer = await self.fetch("GET", url, headers=headers, auth=httpx.USE_CLIENT_DEFAULT if own else None)
            except httpx.HTTPError as error:
                raise PlatformUnreachable(
                    f"{what} could not be fetched from {self.title} ({type(error).__name__})"
                ) from None
            if not answer.has_redirect_location:
                break
            url = url.join(answer.headers["Location"])
        if answer.status_code != 200:
            if answer.status_code == 429 or answer.status_code >= 500:
                self.check(answer)
            raise SendRefused(f"{self.title} no longer has {what} (HTTP {answer.status_code})")
        return answer


def json_object(answer: httpx.Response) -> dict[str, Any] | None:
    """The JSON object of an answer; None if it has none."""
    try:
        found = answer.json()
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def address_parts(address: str) -> SplitResult:
    """The parts of a vendor's address; all are empty where it is none."""
    try:
        parts = urlsplit(address)
        _ = parts.hostname, parts.port
    except ValueError:
        return urlsplit("")
    return parts


def is_at(address: str, hosts: tuple[str, ...], *own: str, schemes: tuple[str, ...] = ("https",)) -> bool:
    """Whether a request of ours may go to an address: one with the origin of an `own` one, or at `hosts` (".example.org")."""
    parts = address_parts(address)
    if not parts.hostname or "@" in parts.netloc or "\\" in address:  # programs read such an address differently
        return False
    if parts[:2] in [address_parts(one)[:2] for one in own]:
        return True
    return parts.scheme in schemes and f".{parts.hostname}".endswith(hosts)


def checked_address(address: str, name: str, example: str) -> SplitResult:
    """The parts of an address in the settings; PlatformRefused, with the setting's name, where it is none."""
    parts = address_parts(address)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise PlatformRefused(f"{name} must be an address, as {example}")
    return parts


def may_have_arrived(error: httpx.HTTPError) -> bool:
    """Whether a failed request may have been carried out, its answer lost. Not if there was no connection."""
    return not isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout)


def retry_after(headers: Mapping[str, str], default: float = 30.0) -> float:
    """The seconds to wait that a `Retry-After` header asks for; `default` where it has no number."""
    return seconds(headers.get("Retry-After") or headers.get("retry-after"), default)


def seconds(value: Any, default: float) -> float:
    """A vendor's number of seconds; `default` if it is not a number."""
    try:
        return max(0.0, float(value))
    except (TypeError, ValueError):
        return default


def tls_context(ca_file: Any) -> ssl.SSLContext:
    """The usual certificates, and those of a file beside them; PlatformRefused where it can't be read."""
    context = ssl.create_default_context()
    if ca_file:
        try:
            context.load_verify_locations(str(Path(str(ca_file)).expanduser()))
        except (OSError, ssl.SSLError) as error:
            raise PlatformRefused(f"ca_file {ca_file} can't be used: {error}") from error
    return context


def connection_trouble(error: BaseException) -> str:
    """Why a request got no answer, in words; httpx and aiohttp name their errors alike."""
    names = " ".join(kind.__name__ for kind in type(error).__mro__)
    cause = error.__cause__ or error.__context__
    if "DNS" in names or "gaierror" in f"{names} {type(cause).__name__}" or re.search(r"Errno -\d", str(error)):
        return "its address can't be looked up; is this machine online?"
    if "Timeout" in names:
        return "no answer in time"
    if "Connect" in type(error).__name__ and "Disconnect" not in type(error).__name__:
        return "no connection"
    return "the connection broke"


def error_text(error: object, *secrets: str) -> str:
    """A server's or library's error text on one short line without our secrets."""
    text = " ".join(str(error).split())[:300]
    for secret in filter(None, secrets):
        text = text.replace(secret, "***")
    return text


def attachment_kind(mime: str | None) -> str:
    """The kind of an attachment (events.Attachment.kind) of this MIME type."""
    kind = (mime or "").partition("/")[0].strip().lower()
    return kind if kind in _KINDS else "file"


def attachment(name: Any, mime: Any, size: Any = None, *, kind: str = "file", **reference: Any) -> Attachment:
    """A vendor's file: what is no text or no number counts as missing. The MIME type of a "file" says its kind."""
    name, mime = text_of(name) or None, text_of(mime) or None
    size = size if isinstance(size, int) and not isinstance(size, bool) else None
    kind = attachment_kind(mime) if kind == "file" else kind
    return Attachment(kind=kind, name=name, mime=mime, size=size, reference=reference)


# ---------------------------------------------------------------- access tokens that expire

EARLY = 300.0  # seconds before its end at which a token is renewed
_SHORTEST = 30.0  # a token is used for so long at least, whatever the vendor says about its end

Result = TypeVar("Result")


class TokenRefused(PlatformError):
    """The vendor no longer accepts the access token of a request."""


class AccessToken:
    """A vendor's token. `fetch` asks for a new one: the token, and the seconds until it ends."""

    def __init__(
        self,
        fetch: Callable[[], Awaitable[tuple[str, float]]],
        *,
        refusal: str = "a new access token is not accepted: {}",
        early: float = EARLY,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`refusal` is the error's text if a new token is refused, too, with `{}` for the vendor's reason."""
        self._fetch, self._refusal, self._early, self._clock = fetch, refusal, early, clock
        self._token, self._until = "", 0.0
        self._busy = asyncio.Lock()

    @property
    def value(self) -> str:
        """The token as it is, to mask it in texts; "" before the first one."""
        return self._token

    async def get(self, refused: str | None = None) -> str:
        """The token; a new one if it is about to end, or if it is the one that the vendor has `refused`."""
        if not self._is_good(refused):
            async with self._busy:
                if not self._is_good(refused):  # another request may have renewed it meanwhile
                    token, life = await self._fetch()
                    self._token = token
                    self._until = self._clock() + max(life - self._early, life / 2, _SHORTEST)
        return self._token

    async def call(self, request: Callable[[str], Awaitable[Result]]) -> Result:
        """Make a request with the token; if it raises TokenRefused, once more with a new one."""
        token = await self.get()
        try:
            return await request(token)
        except TokenRefused:
            token = await self.get(refused=token)
        try:
            return await request(token)
        except TokenRefused as error:
            raise PlatformRefused(self._refusal.format(error)) from None

    def _is_good(self, refused: str | None) -> bool:
        return bool(self._token) and self._token != refused and self._clock() < self._until
