"""Requests to an endpoint, and their errors: each is made and read in a thread of its own, so that waiting can be cancelled.

Cancelling shuts down the socket of the call, as soon as that is known: when it was made for this call, or when the
response begins. The protocol is HTTP with server-sent events, by httpx.

The many errors of the HTTP library and the servers become the few of errors.py; each message says what happened, at which
endpoint, and which key of config.yaml to check. `most_tries` and `pause` decide about retries.
"""

from __future__ import annotations

import json
import queue
import random
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from email.utils import parsedate_to_datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import msgspec

from hermes.agent.models.servers import is_near
from hermes.errors import ContextTooLong, HermesError, ModelError, ModelRefused, ModelUnreachable, RateLimited
from hermes.texts import encodable

if TYPE_CHECKING:
    from collections.abc import Generator
    from ssl import SSLContext

    from httpx import Client, Response

NOTHING_YET = object()
END = object()
_PATIENCE = 300.0  # seconds without data; a big model on a small machine processes a long prompt for minutes
_CONNECTING = 10.0
_REST = 0.2  # seconds a server has to end a reply after its last chunk


@lru_cache(maxsize=1)
def _certificates() -> SSLContext:
    """The certificates that are trusted, loaded once: it takes 20 ms."""
    import httpx

    return httpx.create_ssl_context()


def new_client(base_url: str, timeout: float | None) -> Client:
    """An HTTP client for the calls to one endpoint.

    On this machine and its network every call has a connection of its own: small servers have few, and making one costs nothing.
    """
    import httpx

    near = is_near(base_url)
    patience = timeout or _PATIENCE
    kept = httpx.Limits(max_connections=None, max_keepalive_connections=0 if near else 8, keepalive_expiry=60.0)
    return httpx.Client(
        timeout=httpx.Timeout(patience, connect=min(patience, _CONNECTING)),
        verify=_certificates(),
        trust_env=not near,  # without a proxy
        follow_redirects=True,
        limits=kept,
    )


class PendingCall:
    """One call. `start` makes it, in a thread of its own, and yields its chunks as they arrive."""

    def __init__(self, start: Callable[[PendingCall], Generator[Any]]) -> None:
        self._start = start
        self._socket: Any = None  # while this call uses it
        self._using = threading.Lock()
        self._chunks: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._whole = False
        self._stopped = threading.Event()
        running.add(self)
        self._thread = threading.Thread(target=self._read, name="hermes-model", daemon=True)
        self._thread.start()

    @contextmanager
    def post(self, client: Client, url: str, headers: dict[str, str], content: bytes) -> Iterator[Response]:
        """The response, its body not yet read."""
        extensions = {"trace": self._traced}
        request = client.build_request("POST", url, headers=headers, extensions=extensions, content=content)
        response = client.send(request, stream=True)
        try:
            self._use(response.extensions["network_stream"])
            yield response
        finally:
            with self._using:
                self._socket = None  # another call may use it from now on, which `stop` must not cut off
            response.close()

    def _traced(self, event: str, info: dict[str, Any]) -> None:
        if event.endswith(("connect_tcp.complete", "start_tls.complete")):
            self._use(info["return_value"])

    def _use(self, stream: Any) -> None:
        self._socket = stream.get_extra_info("socket")
        if self._stopped.is_set():
            self._hang_up()

    def _hang_up(self) -> None:
        """Shut the socket down: whatever waits for it fails at once."""
        with self._using, suppress(Exception):
            self._socket.shutdown(socket.SHUT_RDWR)

    def _read(self) -> None:
        try:
            with closing(self._start(self)) as chunks:
                for chunk in chunks:
                    if self._stopped.is_set() and not self._whole:
                        break
                    if chunk is END:
                        self._whole = True
                    self._chunks.put(chunk)
        except BaseException as error:  # any error must reach the turn
            self._chunks.put(error)

    def next(self, timeout: float) -> Any:
        """The next chunk, NOTHING_YET or END; an error of the call is raised here."""
        try:
            chunk = self._chunks.get(timeout=timeout)
        except queue.Empty:
            return NOTHING_YET
        if isinstance(chunk, BaseException):
            raise chunk
        return chunk

    def stop(self) -> None:
        """Hang up after the consumer is gone, unless the reply is just ending."""
        if self._whole:
            self._thread.join(_REST)
        if self._thread.is_alive():
            self._stopped.set()
            self._hang_up()


running: WeakSet[PendingCall] = WeakSet()  # the calls of this process


def events(response: Response) -> Iterator[Any]:
    """The data of server-sent events as JSON, with END where the server marks it, until the response ends.

    Lines end with a line feed only: text in another language may hold the other characters that Python takes for an end.
    """
    rest, data = b"", list[bytes]()
    for part in response.iter_bytes():
        *lines, rest = (rest + part).split(b"\n")
        for line in lines:
            line = line.removesuffix(b"\r")
            if line.startswith(b"data:"):
                data.append(line[5:].strip())
            elif not line and data:
                yield _decoded(data)
                data = []
    if rest.startswith(b"data:"):
        data.append(rest[5:].strip())
    if data:
        yield _decoded(data)


def _decoded(data: list[bytes]) -> Any:
    text = b"\n".join(data)
    return END if text.startswith(b"[DONE]") else json.loads(text)


def encoded(body: dict[str, Any]) -> bytes:
    """A body as JSON that every wire can carry (see `encodable`)."""
    try:
        return msgspec.json.encode(body)
    except (TypeError, ValueError):  # half a surrogate pair, or a value of another program that is not JSON
        return json.dumps(encodable(body), ensure_ascii=False, allow_nan=False).encode()


# Too long, in the words of OpenAI, vLLM, llama.cpp, Ollama, LM Studio, Anthropic, Gemini, Mistral, Groq, Cohere …
_TOO_LONG = re.compile(
    r"context[ _-]?(length|window|size|limit)[^.]{0,80}(exceed|overflow|too|larg|small|reach|maximum)"
    r"|exceed\w*[^.]{0,80}(context|maximum (prompt|input|number of tokens)|n_ctx|token limit|max_model_len)"
    r"|maximum context length|context_length_exceeded|(prompt|input|request|messages?)[^.]{0,40} too (long|large|many tokens)"
    r"|too many (input |prompt )?tokens|reduce the length of|input token count|larger than the (context|maximum)"
    r"|longer than the (model'?s )?(maximum |context)|context shift is disabled|exceed_context_size",
    re.IGNORECASE,
)
_NO_PICTURES = re.compile(
    r"image_url|(image|vision|multi-?modal|picture)[^.]{0,60}(not support|unsupported|not (allowed|enabled)|invalid|only)"
    r"|(support|accept|allow)[^.]{0,40}(image|vision|multi-?modal|picture)|content must be a string",
    re.IGNORECASE,
)
_BAD_REQUEST = (400, 404, 415, 422, 500)  # 404 is OpenRouter's for a picture, 500 llama.cpp's
_OVERLOADED = re.compile(r"overload|over capacity|at capacity|temporarily unavailable|try again later", re.IGNORECASE)
_NO_MONEY = re.compile(r"insufficient_quota|exceeded your current quota|billing|credit balance|payment", re.IGNORECASE)


def explained(error: Exception, where: str) -> ModelError:
    """This program's error for an error of the connection or of the HTTP library."""
    import httpx

    if isinstance(error, httpx.TimeoutException):
        return ModelUnreachable(f"{where} did not answer in time; try again, or raise the timeout")
    if isinstance(error, (httpx.InvalidURL, httpx.UnsupportedProtocol)):
        return ModelRefused(f"{where!r} is not an address; check model.base_url")
    if isinstance(error, httpx.ConnectError):
        return ModelUnreachable(
            f"cannot reach {where} ({_cause(error)}); check your network connection and model.base_url"
        )
    if isinstance(error, ImportError):
        from hermes.errors import SOCKS, pip_line

        return ModelUnreachable(f"the SOCKS proxy that ALL_PROXY names needs a library: {pip_line(SOCKS)}")
    if isinstance(error, httpx.TransportError):
        return ModelUnreachable(f"the connection to {where} broke off ({_cause(error)})")
    return ModelUnreachable(f"the reply of {where} broke off ({_cause(error)})")


def refusal_of(response: Response, where: str, model: str) -> ModelError:
    """The error for a response with an HTTP error status."""
    try:
        body = response.json()
    except ValueError:
        body = "" if "<" in response.text[:20] else response.text  # a web page is no error message
    if isinstance(body, list) and body:  # Gemini's
        body = body[0]
    if isinstance(body, Mapping) and body.get("error"):
        body = body["error"]
    return refused(response.status_code, body, response.headers, where, model)


def of_setting(error: HermesError, setting: str, model: str) -> HermesError:
    """An error of a model that a part of config.yaml other than `model` names, with the name of that part."""
    if setting == "model" or not isinstance(error, ModelError) or setting in str(error):
        return error
    text = str(error).replace("model.default", f"{setting}.model")
    text = text.replace("model.base_url", f"{setting}.base_url").replace("model.api_key", f"{setting}.api_key")
    error.args = (f"the model of {setting} ({model}) failed: {text}", *error.args[1:])
    return error


def refusal_in(body: Any, where: str, model: str) -> ModelError:
    """The error for a failure without an HTTP error status: in the middle of a stream, or in a response with status 200."""
    return refused(_status_in(body), body, {}, where, model)


def refused(status: int | None, body: Any, headers: Mapping[str, str], where: str, model: str) -> ModelError:
    """The error for an HTTP status and the server's message."""
    text, code = _text(body), str((body.get("code") if isinstance(body, Mapping) else None) or "")
    text = " ".join(text.split())[:300] or f"status {status}"
    if code == "context_length_exceeded" or status == 413 or (status not in (429, 401, 403) and _TOO_LONG.search(text)):
        return ContextTooLong(f"the conversation no longer fits into {model}: {text}")
    if status == 402 or (status == 429 and _NO_MONEY.search(f"{code} {text}")):
        return ModelRefused(f"{where} reports a billing problem: {text}; check the account of model.api_key")
    if status in _BAD_REQUEST and _NO_PICTURES.search(text):
        error = ModelRefused(
            f"{where} refused the request ({status}): {text}; if {model} can't see pictures, set one that can as"
            " gateway.media.vision_model, or ask without the picture"
        )
        error.pictures = True
        return error
    if status in (408, 409, 425, 429) or (status or 0) >= 500 or _OVERLOADED.search(f"{code} {text}"):
        how = f"failed (HTTP {status})" if (status or 0) >= 500 else f"is busy ({status or code or 'overloaded'})"
        return RateLimited(f"{where} {how}: {text}", _wait(headers), status)
    if status in (401, 403):
        return ModelRefused(f"{where} does not accept the key ({status}): {text}; check model.api_key")
    if status == 404:
        return ModelRefused(f"{where} has no {model} (404): {text}; check model.default and model.base_url")
    if status is None:
        return ModelUnreachable(f"the reply of {where} broke off: {text}")
    return ModelRefused(f"{where} refused the request ({status}): {text}; check model.default and model.base_url")


def _wait(headers: Mapping[str, str]) -> float | None:
    """Seconds the server asks to wait: retry-after-ms, or Retry-After as seconds or as a date."""
    for name, unit in (("retry-after-ms", 1000), ("retry-after", 1)):
        with suppress(KeyError, ValueError):
            return max(0.0, float(headers[name]) / unit)
    with suppress(KeyError, ValueError, TypeError):
        return max(0.0, parsedate_to_datetime(headers["retry-after"]).timestamp() - time.time())
    return None


def _text(body: Any) -> str:
    """The server's error message, from any of the usual fields."""
    if isinstance(body, str):
        return body
    if isinstance(body, Mapping):
        for field in ("message", "detail", "error", "error_description"):
            if body.get(field):
                return _text(body[field])
    if isinstance(body, list) and body:
        return _text(body[0])
    return ""


def _status_in(body: Any) -> int | None:
    """The status that some servers put into the error itself (OpenRouter, llama.cpp)."""
    if isinstance(body, Mapping):
        for field in ("code", "status", "status_code"):
            value = body.get(field)
            if isinstance(value, (int, str)) and str(value).isdigit() and 400 <= int(value) < 600:
                return int(value)
    return None


# What the system and the libraries below say, in our words; the libraries' own texts are for their authors.
_CAUSES = (
    (r"refused", "the connection was refused"),
    (r"name or service|nodename|name resolution|getaddrinfo|no address associated", "the host name is not known"),
    (r"certificate|ssl|tls", "no secure connection could be made"),
    (r"unreachable|no route", "the network is unreachable"),
    (r"reset by peer|broken pipe|without sending|incomplete|disconnected|closed", "the server closed the connection"),
    (r"timed? ?out", "no answer in time"),
    (r"decod|json|utf|unexpected|expecting|illegal|protocol", "the server sent something else than a reply"),
)


def _cause(error: BaseException) -> str:
    """The innermost reason, in a few words."""
    while error.__cause__ is not None:
        error = error.__cause__
    text = f"{type(error).__name__} {error}".casefold()
    return next((words for pattern, words in _CAUSES if re.search(pattern, text)), "the reason is not known")


TRIES = 5  # tries in all
_TRIES_IN_VAIN = 3  # tries of a server that has sent nothing yet: it is more likely down than busy
_LONGEST = 30.0
_LONGEST_WAIT = 120.0  # beyond this the user should retry later


def most_tries(error: ModelError, *, heard: bool) -> int:
    """How many times a call with this error is tried in all. `heard`: a part of the reply had arrived."""
    return TRIES if isinstance(error, RateLimited) or heard else _TRIES_IN_VAIN


def pause(tries: int, error: ModelError, *, first: float, heard: bool) -> float | None:
    """Seconds to wait before try number `tries` + 1, or None for no further retry.

    The server's Retry-After counts (never less than that); else twice as long each time, with a
    little jitter so that many clients don't retry at one moment. `heard`: a part of the reply had arrived.
    """
    if tries >= most_tries(error, heard=heard):
        return None
    requested = error.retry_after if isinstance(error, RateLimited) else None
    if requested is not None:
        return None if requested > _LONGEST_WAIT else requested * random.uniform(1.0, 1.1)
    return min(_LONGEST, first * float(2 ** (tries - 1))) * random.uniform(0.75, 1.25)
