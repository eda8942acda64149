"""A model behind an OpenAI-compatible endpoint, remote or on this machine.

The turn (loop.py) retries and informs the user while it waits. A separate thread reads the stream (transport.py), so
that an interrupt works even while the server sends nothing.

A reply is assembled from the pieces of a stream, in the variants of many servers: fields may be missing, empty or in unusual
places, several tool calls may come at once or in turns, with or without index and id, and reasoning comes under three names.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeGuard
from urllib.parse import urlsplit

from hermes.agent.models.model import REASONING, Message, Piece, Reply, Usage, side_task_done, without_thinking
from hermes.agent.models.servers import OPENAI, headers_for, is_near, provider_at, without_password
from hermes.agent.models.servers import context_length as window_of
from hermes.agent.models.transport import (
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
from hermes.errors import HermesError, ModelError, ModelRefused, ModelUnreachable

if TYPE_CHECKING:
    from httpx import Client, Response


_SENT: dict[Any, tuple[str, ...]] = {  # fields sent besides role and content, by role
    "assistant": ("name", "tool_calls", "refusal", *REASONING),
    "tool": ("tool_call_id",),
}


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
        """The pieces as they arrive, then the whole Reply. When `cancelled()` turns true it ends with the pieces so far."""
        yield from self.pieces(messages, {"tools": list(tools)} if tools else {}, cancelled)

    def complete(
        self, messages: Sequence[Message], *, max_tokens: int = 1000, timeout: float | None = None,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> str:  # fmt: skip
        """One answer for a side task; `timeout` is for the whole call."""
        end = time.monotonic() + (timeout or float("inf"))
        *_, reply = self.pieces(messages, {"max_tokens": max_tokens}, lambda: cancelled() or time.monotonic() > end)
        assert isinstance(reply, Reply)
        if reply.finish_reason == "interrupted":
            if cancelled():
                raise ModelError("it was interrupted")
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
        """Convert errors of this block to this program's own, which name the setting that chose this model."""
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
            known = self._left_out  # another thread may notice the same meanwhile
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
        """The chunks of a response; a server that does not stream sends the whole reply, or an error, as one."""
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
        return {"model": self.name, "messages": [_as_sent(one, drop) for one in messages], **sent}


def _kind(response: Response) -> str:
    return str(response.headers.get("content-type", ""))


def _as_sent(message: Message, drop: set[str]) -> Message:
    """A message with the fields that endpoints accept; reasoning is sent back unchanged, except where it is rejected (`drop`)."""
    role, content = message.get("role"), message.get("content")
    sent: dict[str, Any] = {"role": role, "content": content}
    if content is None and not message.get("tool_calls"):
        sent["content"] = ""
    if recalled := message.get("recalled"):
        parts = [{"type": "text", "text": recalled}]
        sent["content"] = [*parts, *content] if isinstance(content, list) else f"{recalled}\n\n{content}"
    for field in _SENT.get(role, ("name",)):
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


class Assembler:
    """Turns the chunks of a chat completion (dicts) into pieces to show and, at the end, the complete reply."""

    def __init__(self) -> None:
        self._content: list[str] = []
        self._reasoning: dict[str, list[str]] = {"reasoning": [], "reasoning_content": []}
        self._details: list[Any] = []
        self._calls: list[dict[str, Any]] = []
        self._model: str | None = None
        self.finish_reason: str | None = None
        self.usage: Usage | None = None

    @property
    def finished(self) -> bool:
        """Whether the server marked the end. A stream that ends without that mark has broken off."""
        return self.finish_reason is not None or self.usage is not None

    def take(self, chunk: Any) -> Iterator[Piece]:
        """The pieces to show of one chunk."""
        if not isinstance(chunk, dict):
            return
        if isinstance(chunk.get("model"), str) and chunk["model"]:
            self._model = chunk["model"]
        if isinstance(chunk.get("usage"), dict) and chunk["usage"]:
            self.usage = usage_in(chunk["usage"])
        choices = chunk.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
        delta = choice.get("delta") or choice.get("message")
        if isinstance(delta, dict):
            yield from self._delta(delta)
        if isinstance(choice.get("finish_reason"), str) and choice["finish_reason"]:
            self.finish_reason = choice["finish_reason"]

    def _delta(self, delta: dict[str, Any]) -> Iterator[Piece]:
        thought = ""
        for name, parts in self._reasoning.items():
            if isinstance(delta.get(name), str) and delta[name]:
                parts.append(delta[name])
                thought = thought or delta[name]  # some servers send it twice, under both names
        details = delta.get("reasoning_details")
        if isinstance(details, list):
            self._details += details
            thought = thought or "".join(
                str(item.get("text") or item.get("summary") or "") for item in details if isinstance(item, dict)
            )
        text = _plain(delta.get("content"))
        if text:
            self._content.append(text)
        if text or thought:
            yield Piece(text=text, thought=thought)
        calls = delta.get("tool_calls")
        for call in calls if isinstance(calls, list) else [calls] if isinstance(calls, dict) else []:
            if isinstance(call, dict):
                self._call(call)
        if isinstance(delta.get("function_call"), dict):  # the older form, still sent by some
            self._call({"index": 0, "function": delta["function_call"]})

    def _call(self, delta: dict[str, Any]) -> None:
        function = delta.get("function")
        name, arguments = (
            (function.get("name"), function.get("arguments")) if isinstance(function, dict) else (None, None)
        )
        call = self._which(delta.get("index"), delta.get("id"), name)
        if isinstance(delta.get("id"), str) and delta["id"]:
            call["id"] = call["id"] or delta["id"]
        if isinstance(name, str) and name and call["name"] != name:
            call["name"] += name
        if isinstance(arguments, str):
            call["arguments"] += arguments
        elif arguments is not None:  # Ollama's own form: an object instead of its text
            call["arguments"] = json.dumps(arguments, ensure_ascii=False)
        for field, value in delta.items():
            if field not in ("index", "id", "type", "function") and value is not None:
                call["more"][field] = value  # a provider's own mark (Gemini's thought signature), to be sent back

    def _which(self, index: Any, call_id: Any, name: Any) -> dict[str, Any]:
        """The call a delta belongs to: by its index, else by its id; without both, a new name begins a new call."""
        if isinstance(index, int):
            same = [call for call in self._calls if call["index"] == index]
            # Some servers number every call 0: another id under the same number is another call.
            if same and (not call_id or not same[-1]["id"] or same[-1]["id"] == call_id):
                return same[-1]
        elif call_id:
            same = [call for call in self._calls if call["id"] == call_id]
            if same:
                return same[-1]
        elif self._calls and not name:
            return self._calls[-1]
        call = {"index": index, "id": "", "name": "", "arguments": "", "more": {}}
        self._calls.append(call)
        return call

    def reply(self, *, interrupted: bool = False) -> Reply:
        """The whole reply; of an interrupted one the text, but no incomplete tool calls."""
        calls = [] if interrupted else [_stored_call(call) for call in self._calls if call["name"]]
        return Reply(
            content="".join(self._content) or None,
            tool_calls=calls,
            finish_reason="interrupted" if interrupted else self.finish_reason,
            reasoning="".join(self._reasoning["reasoning"]) or None,
            reasoning_content="".join(self._reasoning["reasoning_content"]) or None,
            reasoning_details=merged_details(self._details) or None,
            usage=self.usage,
            model=self._model,
        )


def _stored_call(call: dict[str, Any]) -> dict[str, Any]:
    """A tool call as it is stored and sent back. A missing id is made, since the result must name it."""
    return {
        "id": call["id"] or f"call_{secrets.token_hex(8)}",
        "type": "function",
        "function": {"name": call["name"], "arguments": call["arguments"] or "{}"},
        **call["more"],
    }


def _plain(content: Any) -> str:
    """The text of a delta's content, which a few servers send as a list of parts."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(str(part.get("text") or "") for part in content if isinstance(part, dict))
    return ""


def merged_details(details: list[Any]) -> list[Any]:
    """Fragments of one reasoning block joined (as OpenRouter asks for when they are sent back); everything else unchanged."""
    out: list[Any] = []
    for item in details:
        last = out[-1] if out else None
        block = (item.get("index"), item.get("type")) if isinstance(item, dict) else (None, None)
        if block[0] is not None and isinstance(last, dict) and block == (last.get("index"), last.get("type")):
            for key, value in item.items():
                if key in ("text", "summary", "data") and isinstance(value, str) and isinstance(last.get(key), str):
                    last[key] += value
                elif value is not None:
                    last[key] = value
        else:
            out.append(dict(item) if isinstance(item, dict) else item)
    return out


def usage_in(counts: dict[str, Any]) -> Usage:
    """The endpoint's own count. Output includes reasoning; input does not include the cache.

    OpenAI's prompt_tokens (and input_tokens with details) do, so the cached ones are subtracted; Anthropic's input_tokens,
    next to cache_read_input_tokens, don't.
    """
    prompt = counts.get("prompt_tokens_details") or counts.get("input_tokens_details")
    completion = counts.get("completion_tokens_details") or counts.get("output_tokens_details")
    read = _first(prompt, "cached_tokens") or _first(
        counts, "prompt_cache_hit_tokens", "cache_read_input_tokens", "cached_tokens"
    )
    written = _first(prompt, "cache_write_tokens", "cache_creation_tokens") or _first(
        counts, "cache_creation_input_tokens"
    )
    sent = _first(counts, "prompt_tokens", "input_tokens")
    with_cache = "prompt_tokens" in counts or isinstance(prompt, dict)
    return Usage(
        input_tokens=max(0, sent - read - written) if with_cache else sent,
        output_tokens=_first(counts, "completion_tokens", "output_tokens"),
        cache_read_tokens=read,
        cache_write_tokens=written,
        reasoning_tokens=_first(completion, "reasoning_tokens") or _first(counts, "reasoning_tokens"),
        cost_usd=float(counts["cost"]) if _is_amount(counts.get("cost")) else None,  # OpenRouter, LiteLLM and others
    )


def _is_amount(value: Any) -> TypeGuard[int | float]:
    """Whether a store can hold this count: an endpoint may send any JSON, and an invalid count must not lose the reply."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 2**53


def _first(counts: Any, *names: str) -> int:
    if isinstance(counts, dict):
        for name in names:
            value = counts.get(name)
            if _is_amount(value):
                return int(value)
    return 0
