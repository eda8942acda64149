"""Assembles a reply from the pieces of a stream, in the variants of many servers.

Fields may be missing, empty or in unusual places: several tool calls may come at once or in turns, with or without
index and id, and reasoning comes under three names. Fields are stored unchanged.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from typing import Any, TypeGuard

from hermes.agent.models.model import Piece, Reply, Usage


class Assembler:
    """Takes chunks of a chat completion (as dicts), gives pieces to show, and at the end the complete reply."""

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

    def add(self, chunk: Any) -> None:
        """Take a chunk of which nothing is shown."""
        for _ in self.take(chunk):
            pass

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

    def text(self) -> str:
        """The text received so far."""
        return "".join(self._content)

    def reply(self, *, interrupted: bool = False) -> Reply:
        """The whole reply; of an interrupted one the text, but no incomplete tool calls."""
        calls = [] if interrupted else [_as_sent(call) for call in self._calls if call["name"]]
        return Reply(
            content=self.text() or None,
            tool_calls=calls,
            finish_reason="interrupted" if interrupted else self.finish_reason,
            reasoning="".join(self._reasoning["reasoning"]) or None,
            reasoning_content="".join(self._reasoning["reasoning_content"]) or None,
            reasoning_details=merged_details(self._details) or None,
            usage=self.usage,
            model=self._model,
        )


def _as_sent(call: dict[str, Any]) -> dict[str, Any]:
    """A tool call as it is stored and sent back. One without an id gets one, for its result must name it."""
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
        if (
            isinstance(item, dict)
            and isinstance(last, dict)
            and "index" in item
            and last.get("index") == item["index"]
            and last.get("type") == item.get("type")
        ):
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
    """Whether a store can hold it: an endpoint may send any JSON, and a strange count must not cost the reply."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 2**53


def _first(counts: Any, *names: str) -> int:
    if isinstance(counts, dict):
        for name in names:
            value = counts.get(name)
            if _is_amount(value):
                return int(value)
    return 0
