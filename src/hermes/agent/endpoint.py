"""A model behind an OpenAI-compatible endpoint, far away or on this machine.

The SDK does the talking; its own retries are off, because the turn (loop.py) knows better what to tell the user while it
waits. The stream is read in a thread of its own, so that an interruption is heard even while the server says nothing.
"""

from __future__ import annotations

import json
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from hermes.agent.asking import is_near, without_password
from hermes.agent.assembling import Assembler
from hermes.agent.model import Message, Piece, Reply
from hermes.agent.refusals import explained, refusal_in
from hermes.errors import HermesError, MissingExtra, ModelRefused, ModelUnreachable
from hermes.harmless import encodable

if TYPE_CHECKING:
    from openai import OpenAI

OPENAI = "https://api.openai.com/v1"
OPENROUTER = "https://openrouter.ai/api/v1"
_PATIENCE = 300.0  # seconds without a sign of life; a big model on a small machine reads a long prompt for minutes
_REASONING = ("reasoning", "reasoning_content", "reasoning_details")
_SENT = {
    "system": ("content", "name"),
    "user": ("content", "name"),
    "assistant": ("content", "name", "tool_calls", "refusal", *_REASONING),
    "tool": ("content", "tool_call_id"),
}


class EndpointModel:
    """Speaks with `name` at `base_url` (None: OpenAI). `timeout` is the longest silence, in seconds."""

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
    ) -> None:
        self.name = name
        self.kind = kind
        self.base_url: str | None = base_url or OPENAI
        self.api_key = api_key
        self.timeout = timeout
        self.provider: str | None = provider or provider_of(base_url or OPENAI)
        self._context_length = context_length
        self._client: OpenAI | None = None
        self._making = threading.Lock()
        self._left_out: set[str] = set()  # what this server turned out not to understand

    @property
    def context_length(self) -> int:
        """How many tokens fit: as configured, else asked of the server (once), else known by name."""
        if self._context_length is None:
            from hermes.agent.windows import context_length

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
        """The endpoint as it may be shown: without the password it may hold."""
        return without_password(self._address)

    def describe(self) -> str:
        """One line that says plainly what this is."""
        if self.kind == "local":
            return f"{self.name} on this machine ({self.provider}, {urlsplit(self.where).netloc})"
        return f"{self.name} at {urlsplit(self.where).netloc} ({self.provider or 'endpoint'})"

    def stream(
        self, messages: Sequence[Message], tools: Sequence[dict[str, Any]] = (), *, cancelled: Callable[[], bool]
    ) -> Iterator[Piece | Reply]:
        """Pieces as they come, then the whole Reply. When `cancelled()` turns true it ends at once with what there is."""
        body: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}
        if tools:
            body["tools"] = list(tools)
        parts = Assembler()
        reader = _Reader(lambda: self._open(messages, body))
        try:
            while not cancelled():
                chunk = reader.next(0.05)
                if chunk is _NOTHING_YET:
                    continue
                if chunk is _END:
                    break
                yield from parts.take(chunk)
            else:
                yield parts.reply(interrupted=True)
                return
        except HermesError:
            raise
        except Exception as error:
            raise explained(error, self.where, self.name) from error
        finally:
            reader.stop()
        if not parts.finished:
            raise ModelUnreachable(f"the reply of {self.where} broke off in the middle")
        yield parts.reply()

    def complete(self, messages: Sequence[Message], *, max_tokens: int = 1000, timeout: float | None = None) -> str:
        """One answer for a side task; `timeout` is for the whole of it."""
        body = {"stream": True, "max_tokens": max_tokens}
        end = None if timeout is None else time.monotonic() + timeout
        parts = Assembler()
        reader = _Reader(lambda: self._open(messages, body))
        try:
            while (chunk := reader.next(0.25)) is not _END:
                if end is not None and time.monotonic() > end:
                    raise ModelUnreachable(f"{self.where} did not answer within {timeout:g} seconds")
                if chunk is not _NOTHING_YET:
                    for _ in parts.take(chunk):
                        pass
        except HermesError:
            raise
        except Exception as error:
            raise explained(error, self.where, self.name) from error
        finally:
            reader.stop()
        if not parts.finished:
            raise ModelUnreachable(f"the reply of {self.where} broke off in the middle")
        return without_thoughts(parts.text())

    def transcribe(self, data: bytes, name: str, mime: str | None = None) -> str:
        """What is said in a recording, where this model is one that writes down speech."""
        try:
            heard = self._sdk().audio.transcriptions.create(
                model=self.name, file=(name, data, mime or "application/octet-stream")
            )
        except HermesError:
            raise
        except Exception as error:
            raise explained(error, self.where, self.name) from error
        return str(getattr(heard, "text", heard))

    def _open(self, messages: Sequence[Message], body: dict[str, Any]) -> Any:
        """The stream of chunks. A field this server does not know is left out from then on."""
        openai = _library()
        while True:
            known = self._left_out  # another thread may learn the same meanwhile
            try:
                stream = self._request(messages, body)
                return self._unless_stream(stream.response) or stream
            except (openai.BadRequestError, openai.UnprocessableEntityError) as error:
                unknown = _not_understood(str(error), body, messages) - known
                if not unknown:
                    raise
                self._left_out = self._left_out | unknown

    def _unless_stream(self, response: Any) -> list[Any] | None:
        """What a server says that answers in another way than asked: the reply in one piece, or a refusal as one."""
        kind = response.headers.get("content-type", "")
        if "html" in kind:
            raise ModelRefused(f"{self.where} is a web page, not a model's endpoint; look at model.base_url")
        if "json" not in kind or "stream" in kind:
            return None
        whole = json.loads(response.read())
        if isinstance(whole, dict) and whole.get("error"):
            raise refusal_in(whole["error"], self.where, self.name)
        return [whole]

    def _request(self, messages: Sequence[Message], body: dict[str, Any]) -> Any:
        openai = _library()
        sent = {key: value for key, value in body.items() if key not in self._left_out}
        if "max_tokens" in self._left_out and "max_tokens" in body:  # OpenAI's reasoning models want the newer name
            sent["max_completion_tokens"] = body["max_tokens"]
        sent = {"model": self.name, "messages": [self._as_sent(message) for message in messages], **sent}
        return self._sdk().post(
            "/chat/completions", body=encodable(sent), cast_to=object, stream=True, stream_cls=openai.Stream[object]
        )

    def _as_sent(self, message: Message) -> Message:
        """A message with the fields endpoints know; reasoning goes back as it came, except where it is unknown."""
        role = message.get("role")
        fields = _SENT.get(str(role), ("content", "name"))
        drop = set(_REASONING) if "reasoning" in self._left_out or self.provider == "openai" else set()
        sent: Message = {"role": role}
        for field in fields:
            value = message.get(field)
            if field == "content":
                sent["content"] = value if value is not None or message.get("tool_calls") else ""
            elif field == "reasoning_details" and field not in drop and isinstance(value, list):
                sent[field] = [one for one in value if not _is_masked(one)]
            elif value is not None and field not in drop:
                sent[field] = value
        return sent

    def _sdk(self) -> OpenAI:
        with self._making:  # one model serves many threads
            return self._made()

    def _made(self) -> OpenAI:
        if self._client is None:
            openai = _library()
            timeout = openai.Timeout(self.timeout or _PATIENCE, connect=min(self.timeout or 10.0, 10.0))
            more: dict[str, Any] = {}
            if is_near(self._address):  # not through a proxy, and on a line of its own that can be hung up
                more["default_headers"] = {"Connection": "close"}
                more["http_client"] = openai.DefaultHttpxClient(
                    trust_env=False, timeout=timeout, event_hooks={"request": [_watch]}
                )
            key = self.api_key or "none"  # servers without keys ignore it, the SDK insists on one
            try:
                self._client = openai.OpenAI(
                    api_key=key, base_url=self._address, max_retries=0, timeout=timeout, **more
                )
            except Exception as error:  # an address that is none
                raise ModelRefused(f"{self.where!r} is not an address; look at model.base_url ({error})") from error
        return self._client


def _library() -> Any:
    """The SDK, which takes most of a second to load: when it is needed."""
    try:
        import openai
    except ImportError as error:
        raise MissingExtra("talking to an endpoint", "chat") from error
    return openai


def provider_of(base_url: str) -> str | None:
    """A short name for whoever runs the endpoint: `openai`, `openrouter`, `groq`; None on this machine."""
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
    """Whether the record masked a secret in a signed piece of reasoning: its signature no longer fits, nobody takes it."""
    return isinstance(detail, dict) and bool(detail.get("signature")) and "[masked:" in str(detail)


def _not_understood(said: str, body: dict[str, Any], messages: Sequence[Message]) -> set[str]:
    """What in the request a complaint seems to be about, among the things that can be done without."""
    out: set[str] = {name for name in ("stream_options", "max_tokens") if name in body and name in said}
    if "reasoning" in said and any(field in message for message in messages for field in _REASONING):
        out.add("reasoning")
    return out


_NOTHING_YET = object()
_END = object()


class _Reader:
    """Reads a stream in a thread and hands over its chunks, so that waiting for the next one can be given up."""

    here = threading.local()  # .reader: the one whose thread this is

    def __init__(self, start: Callable[[], Any]) -> None:
        self._start = start
        self._chunks: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._stopped = threading.Event()
        self._stream: Any = None
        self._socket: Any = None
        threading.Thread(target=self._read, name="hermes-model", daemon=True).start()

    def _read(self) -> None:
        self.here.reader = self
        try:
            self._stream = self._start()
            for chunk in self._stream:
                if self._stopped.is_set():
                    break
                self._chunks.put(chunk)
            self._chunks.put(_END)
        except BaseException as error:  # whatever it is, the turn must hear of it
            self._chunks.put(error)
        finally:
            with suppress(Exception):
                if self._stream is not None:
                    self._stream.close()

    def next(self, timeout: float) -> Any:
        """The next chunk, _NOTHING_YET or _END; an error of the stream is raised here."""
        try:
            chunk = self._chunks.get(timeout=timeout)
        except queue.Empty:
            return _NOTHING_YET
        if isinstance(chunk, BaseException):
            raise chunk
        return chunk

    def connected(self, event: str, info: dict[str, Any]) -> None:
        """What the connection reports about itself; its socket is worth knowing."""
        if event == "connection.connect_tcp.complete":
            self._socket = info["return_value"].get_extra_info("socket")

    def stop(self) -> None:
        """Nobody listens any more: hang up, which also wakes the thread that waits for a silent server."""
        self._stopped.set()
        response = getattr(self._stream, "response", None)
        if response is not None and response.is_closed:
            return
        with suppress(Exception):
            stream = None if response is None else response.extensions["network_stream"]
            line = self._socket if stream is None else stream.get_extra_info("socket")
            line.shutdown(socket.SHUT_RDWR)


def _watch(request: Any) -> None:
    """Have a request report its connection to the reader that makes it."""
    reader = getattr(_Reader.here, "reader", None)
    if reader is not None:
        request.extensions = {**request.extensions, "trace": reader.connected}
