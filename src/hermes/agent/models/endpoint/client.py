"""A model behind an OpenAI-compatible endpoint, remote or on this machine.

The turn (loop.py) retries and informs the user while it waits. A separate thread reads the stream (transport.py), so
that an interrupt works even while the server sends nothing.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from hermes.agent.models.endpoint.assembly import Assembler
from hermes.agent.models.endpoint.servers import OPENAI, headers_for, is_near, provider_at, without_password
from hermes.agent.models.endpoint.servers import context_length as window_of
from hermes.agent.models.endpoint.transport import (
    END,
    NOTHING_YET,
    PendingCall,
    encoded,
    events,
    explained,
    new_client,
    of_setting,
    refusal_in,
    refusal_of,
)
from hermes.agent.models.model import REASONING, Message, Piece, Reply, side_task_done, without_thinking
from hermes.errors import HermesError, ModelRefused, ModelUnreachable

if TYPE_CHECKING:
    from httpx import Client, Response


_SENT: dict[Any, tuple[str, ...]] = {  # fields sent besides role and content, by role
    "assistant": ("name", "tool_calls", "refusal", *REASONING),
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
        if context_length is not None:
            self.context_length = context_length
        self._left_out: set[str] = set()  # fields that this server rejected

    @cached_property
    def context_length(self) -> int:
        """How many tokens fit: as configured, else queried from the server (once), else known by name."""
        return window_of(self.name, self._address, self.api_key)

    @cached_property
    def _http(self) -> Client:
        return new_client(self._address, self.timeout)

    @property
    def _address(self) -> str:
        return self.base_url or OPENAI

    @property
    def where(self) -> str:
        """The endpoint for display: without its password."""
        return "the embedded model" if self.kind == "embedded" else without_password(self._address)

    def describe(self) -> str:
        """A one-line description for the user."""
        if self.kind == "local":
            return f"{self.name} on this machine ({self.provider}, {urlsplit(self.where).netloc})"
        return f"{self.name} at {urlsplit(self.where).netloc} ({self.provider or 'endpoint'})"

    def stream(
        self, messages: Sequence[Message], tools: Sequence[dict[str, Any]] = (), *, cancelled: Callable[[], bool]
    ) -> Iterator[Piece | Reply]:
        """The pieces as they arrive, then the whole Reply. When `cancelled()` turns true it ends at once with these."""
        yield from self.pieces(messages, {"tools": list(tools)} if tools else {}, cancelled)

    def complete(self, messages: Sequence[Message], *, max_tokens: int = 1000, timeout: float | None = None) -> str:
        """One answer for a side task; `timeout` is for the whole call."""
        end = time.monotonic() + (timeout or float("inf"))
        *_, reply = self.pieces(messages, {"max_tokens": max_tokens}, lambda: time.monotonic() > end)
        assert isinstance(reply, Reply)
        if reply.finish_reason == "interrupted":
            error = ModelUnreachable(f"{self.where} did not answer within {timeout:g} seconds")
            raise of_setting(error, self.setting, self.name)
        side_task_done(self, reply)
        return without_thinking(reply.content or "")

    def pieces(
        self, messages: Sequence[Message], more: dict[str, Any], cancelled: Callable[[], bool]
    ) -> Iterator[Piece | Reply]:
        """Stream a reply, with these fields added to the request."""
        body = {"stream": True, "stream_options": {"include_usage": True}, **more}
        call = PendingCall(lambda call: self._chunks(call, messages, body))
        parts = Assembler()
        with self._explained():
            try:
                while not cancelled():
                    chunk = call.next(0.05)
                    if chunk is END:
                        break
                    if chunk is not NOTHING_YET:
                        yield from parts.take(chunk)
                else:
                    yield parts.reply(interrupted=True)
                    return
            finally:
                call.stop()
            if not parts.finished:
                raise ModelUnreachable(f"the reply of {self.where} broke off in the middle")
        yield parts.reply()

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Errors as this program's own, which name the setting that chose this model."""
        try:
            yield
        except HermesError as error:
            raise of_setting(error, self.setting, self.name) from error.__cause__
        except Exception as error:
            raise of_setting(explained(error, self.where), self.setting, self.name) from error

    def transcribe(self, data: bytes, name: str, mime: str | None = None) -> str:
        """The transcription of a recording, where this is a speech-to-text model."""
        form = {"data": {"model": self.name}, "files": {"file": (name, data, mime or "application/octet-stream")}}
        with self._explained():
            response = self._http.post(
                self._url("audio/transcriptions"), headers=self._headers(), **dict[str, Any](form)
            )
            if not response.is_success:
                raise refusal_of(response, self.where, self.name)
            return str(response.json()["text"]) if "json" in _kind(response) else response.text

    def _chunks(self, call: PendingCall, messages: Sequence[Message], body: dict[str, Any]) -> Generator[Any]:
        """The chunks of a reply, and END. A field that this server rejects is left out from then on."""
        while True:
            known = self._left_out  # another thread may find out the same meanwhile
            content = encoded(self._sent(messages, body))
            with call.post(self._http, self._url("chat/completions"), self._headers(), content) as response:
                if response.is_success:
                    yield from self._replied(response)
                    return
                response.read()
                unknown = _not_understood(response, body, messages) - known
                if not unknown:
                    raise refusal_of(response, self.where, self.name)
                self._left_out = self._left_out | unknown

    def _replied(self, response: Response) -> Iterator[Any]:
        """The chunks of a response; that of a server that does not stream is the reply in one piece, or an error."""
        kind = _kind(response)
        if "html" in kind:
            raise ModelRefused(f"{self.where} is a web page, not a model's endpoint; check model.base_url")
        whole = "json" in kind and "stream" not in kind
        for chunk in [json.loads(response.read())] if whole else events(response):
            if isinstance(chunk, dict) and chunk.get("error"):
                raise refusal_in(chunk["error"], self.where, self.name)
            yield chunk
        yield END

    def _url(self, path: str) -> str:
        return f"{self._address.rstrip('/')}/{path}"

    def _headers(self) -> dict[str, str]:
        accepted = {"Accept": "application/json, text/event-stream", "User-Agent": "hermes-sessions"}
        return accepted | headers_for(self._address, self.api_key)

    def _sent(self, messages: Sequence[Message], body: dict[str, Any]) -> dict[str, Any]:
        """The body of a request."""
        sent = {key: value for key, value in body.items() if key not in self._left_out}
        if "max_tokens" in self._left_out and "max_tokens" in body:  # OpenAI's reasoning models want the newer name
            sent["max_completion_tokens"] = body["max_tokens"]
        drop = set(REASONING) if "reasoning" in self._left_out or self.provider == "openai" else set()
        return {"model": self.name, "messages": _all_as_sent(messages, drop), **sent}


def _kind(response: Response) -> str:
    return str(response.headers.get("content-type", ""))


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
    if recalled := message.get("recalled"):
        parts = [{"type": "text", "text": recalled}]
        sent["content"] = [*parts, *content] if isinstance(content, list) else f"{recalled}\n\n{content}"
    for field in _SENT.get(role, _ANY) if len(message) > 2 else ():
        value = message.get(field)
        if value is None or field in drop:
            continue
        if field == "reasoning_details" and isinstance(value, list):
            value = [one for one in value if not _is_masked(one)]
        sent[field] = value
    return sent


def provider_of(base_url: str) -> str | None:
    """A short name of the endpoint's provider: `openai`, `openrouter`, `groq`; None on this machine."""
    if is_near(base_url):
        return None
    known = provider_at(base_url)
    host = (urlsplit(base_url).hostname or "").split(".")
    return known.name if known else host[-2] if len(host) >= 2 else None


def _is_masked(detail: Any) -> bool:
    """Whether the store masked a secret in a signed piece of reasoning: its signature is invalid now, and endpoints reject it."""
    return isinstance(detail, dict) and bool(detail.get("signature")) and "[masked:" in str(detail)


def _not_understood(response: Response, body: dict[str, Any], messages: Sequence[Message]) -> set[str]:
    """The optional field of the request that a refusal seems to be about."""
    if response.status_code not in (400, 422):
        return set()
    out: set[str] = {name for name in ("stream_options", "max_tokens") if name in body and name in response.text}
    if "reasoning" in response.text and any(field in message for message in messages for field in REASONING):
        out.add("reasoning")
    return out
