"""A model behind an OpenAI-compatible endpoint, remote or on this machine.

The SDK makes the requests; its own retries are off, because the turn (loop.py) retries and informs the user while it
waits. A separate thread reads the stream (transport.py), so that an interrupt works even while the server sends nothing.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from hermes.agent.endpoint.assembly import Assembler
from hermes.agent.endpoint.failures import explained, of_setting, refusal_in
from hermes.agent.endpoint.servers import is_near, without_password
from hermes.agent.endpoint.transport import END, FAR, NEAR, NOTHING_YET, EndpointConnections, Requests, kept_stream
from hermes.agent.model import Message, Piece, Reply, side_task_done
from hermes.errors import HermesError, MissingExtra, ModelRefused, ModelUnreachable

if TYPE_CHECKING:
    from openai import OpenAI

    from hermes.agent.endpoint.transport import PendingCall


OPENAI = "https://api.openai.com/v1"
OPENROUTER = "https://openrouter.ai/api/v1"
_PATIENCE = 300.0  # seconds without data; a big model on a small machine processes a long prompt for minutes
_REASONING = ("reasoning", "reasoning_content", "reasoning_details")
_SENT: dict[Any, tuple[str, ...]] = {  # fields sent besides role and content, by role
    "assistant": ("name", "tool_calls", "refusal", *_REASONING),
    "tool": ("tool_call_id",),
}
_ANY = ("name",)


class EndpointModel:
    """The model `name` at `base_url` (None: OpenAI). `timeout` is the longest time without data, in seconds."""

    calls_tools = True

    def __init__(
        self,
        name: str,
        base_url: str | None,
        api_key: str | None,
        context_length: int | None = None,
        kind: str = "endpoint",
        timeout: float | None = None,
        *,
        provider: str | None = None,
        setting: str = "model",
    ) -> None:
        """`setting` is the part of config.yaml that names this model: errors tell to look there."""
        self.name = name
        self.setting = setting
        self.kind = kind
        self.base_url: str | None = base_url or OPENAI
        self.api_key = api_key
        self.timeout = timeout
        self.provider: str | None = provider or provider_of(base_url or OPENAI)
        self._context_length = context_length
        self._client: OpenAI | None = None
        self._making = threading.Lock()
        self._lines = EndpointConnections(self._client_of_a_line, NEAR if is_near(self._address) else FAR)
        self._stream_class: Any = None
        self._certificates: Any = None
        self._loading = threading.Lock()
        self._left_out: set[str] = set()  # fields that this server rejected

    @property
    def context_length(self) -> int:
        """How many tokens fit: as configured, else queried from the server (once), else known by name."""
        if self._context_length is None:
            from hermes.agent.endpoint.servers import context_length

            self._context_length = context_length(self.name, self._address, self.api_key)
        return self._context_length

    @context_length.setter
    def context_length(self, tokens: int) -> None:
        self._context_length = tokens

    @property
    def _address(self) -> str:
        return self.base_url or OPENAI

    @property
    def where(self) -> str:
        """The endpoint for display: without its password."""
        return without_password(self._address)

    def describe(self) -> str:
        """A one-line description for the user."""
        if self.kind == "local":
            return f"{self.name} on this machine ({self.provider}, {urlsplit(self.where).netloc})"
        return f"{self.name} at {urlsplit(self.where).netloc} ({self.provider or 'endpoint'})"

    def stream(
        self, messages: Sequence[Message], tools: Sequence[dict[str, Any]] = (), *, cancelled: Callable[[], bool]
    ) -> Iterator[Piece | Reply]:
        """The pieces as they arrive, then the whole Reply. When `cancelled()` turns true it ends at once with these."""
        body: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}
        if tools:
            body["tools"] = list(tools)
        parts = Assembler()
        with self._reading(messages, body) as reader:
            while not cancelled():
                chunk = reader.next(0.05)
                if chunk is NOTHING_YET:
                    continue
                if chunk is END:
                    break
                yield from parts.take(chunk)
            else:
                yield parts.reply(interrupted=True)
                return
        if not parts.finished:
            raise ModelUnreachable(f"the reply of {self.where} broke off in the middle")
        yield parts.reply()

    def complete(self, messages: Sequence[Message], *, max_tokens: int = 1000, timeout: float | None = None) -> str:
        """One answer for a side task; `timeout` is for the whole call."""
        body = {"stream": True, "stream_options": {"include_usage": True}, "max_tokens": max_tokens}
        end = None if timeout is None else time.monotonic() + timeout
        parts = Assembler()
        with self._reading(messages, body) as reader:
            while (chunk := reader.next(0.25)) is not END:
                if end is not None and time.monotonic() > end:
                    raise ModelUnreachable(f"{self.where} did not answer within {timeout:g} seconds")
                if chunk is not NOTHING_YET:
                    for _ in parts.take(chunk):
                        pass
        if not parts.finished:
            raise ModelUnreachable(f"the reply of {self.where} broke off in the middle")
        side_task_done(self, parts.reply())
        return without_thoughts(parts.text())

    @contextmanager
    def _reading(self, messages: Sequence[Message], body: dict[str, Any]) -> Iterator[PendingCall]:
        """A reply that is being read; its errors name the setting that chose this model."""
        reader = self._lines.call(lambda line: self._open(line, messages, body))
        try:
            yield reader
        except HermesError as error:
            raise of_setting(error, self.setting, self.name) from error.__cause__
        except Exception as error:
            raise of_setting(explained(error, self.where, self.name), self.setting, self.name) from error
        finally:
            reader.stop()

    def transcribe(self, data: bytes, name: str, mime: str | None = None) -> str:
        """The transcription of a recording, where this is a speech-to-text model."""
        try:
            heard = self._sdk().audio.transcriptions.create(
                model=self.name, file=(name, data, mime or "application/octet-stream")
            )
        except HermesError as error:
            raise of_setting(error, self.setting, self.name) from error.__cause__
        except Exception as error:
            raise of_setting(explained(error, self.where, self.name), self.setting, self.name) from error
        return str(getattr(heard, "text", heard))

    def _open(self, line: Any, messages: Sequence[Message], body: dict[str, Any]) -> Any:
        """The stream of chunks. A field that this server rejects is left out from then on."""
        openai = _library()
        while True:
            known = self._left_out  # another thread may find out the same meanwhile
            try:
                stream = self._request(line.client(), messages, body)
                return self._unless_stream(stream.response) or stream
            except openai.APITimeoutError:
                raise
            except openai.APIConnectionError:
                if line.fresh or line.current.stopped.is_set():
                    raise
                line.fresh = True  # the server had closed the reused connection: retry once on a new one
            except (openai.BadRequestError, openai.UnprocessableEntityError) as error:
                unknown = _not_understood(str(error), body, messages) - known
                if not unknown:
                    raise
                self._left_out = self._left_out | unknown

    def _unless_stream(self, response: Any) -> list[Any] | None:
        """The answer of a server that does not stream: the reply in one piece, or an error as one."""
        kind = response.headers.get("content-type", "")
        if "html" in kind:
            raise ModelRefused(f"{self.where} is a web page, not a model's endpoint; check model.base_url")
        if "json" not in kind or "stream" in kind:
            return None
        whole = json.loads(response.read())
        if isinstance(whole, dict) and whole.get("error"):
            raise refusal_in(whole["error"], self.where, self.name)
        return [whole]

    def _request(self, requests: Requests, messages: Sequence[Message], body: dict[str, Any]) -> Any:
        if self._stream_class is None:
            self._stream_class = kept_stream(_library())
        sent = {key: value for key, value in body.items() if key not in self._left_out}
        if "max_tokens" in self._left_out and "max_tokens" in body:  # OpenAI's reasoning models want the newer name
            sent["max_completion_tokens"] = body["max_tokens"]
        drop = set(_REASONING) if "reasoning" in self._left_out or self.provider == "openai" else set()
        sent = {"model": self.name, "messages": _all_as_sent(messages, drop), **sent}
        return requests.post("/chat/completions", sent, self._stream_class)

    def _sdk(self) -> OpenAI:
        with self._making:  # one model serves many threads
            if self._client is None:
                self._client, _ = self._made_with({})
            return self._client

    def _client_of_a_line(self, trace: Callable[[str, dict[str, Any]], None]) -> Requests:
        def watch(request: Any) -> None:
            request.extensions = {**request.extensions, "trace": trace}
            requests.noted(request)

        openai = _library()
        limits = _http(openai).Limits(keepalive_expiry=self._lines.linger)
        sdk, client = self._made_with({"limits": limits, "event_hooks": {"request": [watch]}})
        requests = Requests(openai, _http(openai), sdk, client)
        return requests

    def _made_with(self, more: dict[str, Any]) -> tuple[OpenAI, Any]:
        """The SDK, and the HTTP client it has."""
        openai = _library()
        timeout = openai.Timeout(self.timeout or _PATIENCE, connect=min(self.timeout or 10.0, 10.0))
        if is_near(self._address):  # without a proxy
            more["trust_env"] = False
        with self._loading:
            if self._certificates is None:  # loading all of them takes a while
                self._certificates = _http(openai).create_ssl_context()
        key = self.api_key or "none"  # servers without keys ignore it, the SDK insists on one
        try:
            client = openai.DefaultHttpxClient(timeout=timeout, verify=self._certificates, **more)
            made: OpenAI = openai.OpenAI(
                api_key=key, base_url=self._address, max_retries=0, timeout=timeout, http_client=client
            )
        except Exception as error:  # an invalid address
            raise ModelRefused(f"{self.where!r} is not an address; check model.base_url") from error
        return made, client


def _all_as_sent(messages: Sequence[Message], drop: set[str]) -> list[Message]:
    """Messages as sent; one with a text alone, like most users' messages, is sent as it is."""
    return [
        message if len(message) == 2 and type(message.get("content")) is str else _as_sent(message, drop)
        for message in messages
    ]


def _as_sent(message: Message, drop: set[str]) -> Message:
    """A message with the fields that endpoints accept; reasoning is sent back unchanged, except where it is rejected (`drop`)."""
    role, content = message.get("role"), message.get("content")
    sent: dict[str, Any] = {"role": role, "content": content}
    if content is None and not message.get("tool_calls"):
        sent["content"] = ""
    for field in _SENT.get(role, _ANY) if len(message) > 2 else ():
        value = message.get(field)
        if value is None or field in drop:
            continue
        if field == "reasoning_details" and isinstance(value, list):
            value = [one for one in value if not _is_masked(one)]
        sent[field] = value
    return sent


def _library() -> Any:
    """Import the SDK on demand: it takes most of a second to load."""
    try:
        import openai
    except ImportError as error:
        raise MissingExtra("talking to an endpoint", "chat") from error
    return openai


def _http(openai: Any) -> Any:
    """The HTTP library that the SDK is built on."""
    return import_module(type(openai.DEFAULT_CONNECTION_LIMITS).__module__.partition(".")[0])


def provider_of(base_url: str) -> str | None:
    """A short name of the endpoint's provider: `openai`, `openrouter`, `groq`; None on this machine."""
    if is_near(base_url):
        return None
    host = (urlsplit(base_url).hostname or "").split(".")
    return host[-2] if len(host) >= 2 else None


def without_thoughts(text: str) -> str:
    """An answer without the `<think>…</think>` some small models put before it."""
    if text.lstrip().startswith("<think>"):
        text = text.partition("</think>")[2]
    return text.strip()


def _is_masked(detail: Any) -> bool:
    """Whether the store masked a secret in a signed piece of reasoning: its signature is invalid now, and endpoints reject it."""
    return isinstance(detail, dict) and bool(detail.get("signature")) and "[masked:" in str(detail)


def _not_understood(said: str, body: dict[str, Any], messages: Sequence[Message]) -> set[str]:
    """The optional field of the request that an error message seems to be about."""
    out: set[str] = {name for name in ("stream_options", "max_tokens") if name in body and name in said}
    if "reasoning" in said and any(field in message for message in messages for field in _REASONING):
        out.add("reasoning")
    return out
