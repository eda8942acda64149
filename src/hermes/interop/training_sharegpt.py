"""ShareGPT: `{"id", "conversations": [{"from": "human"|"gpt"|"system"|"tool", "value"}]}` on a line each. Text only."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hermes.interop.formats import Export
from hermes.interop.jsonl import encoded
from hermes.interop.training import chats

_FROM = {"user": "human", "assistant": "gpt", "system": "system", "tool": "tool"}


def write(export: Export) -> Iterator[bytes]:
    """Exported sessions as ShareGPT's conversations."""
    for number, chat in enumerate(chats(export, pictures=False), 1):
        turns: list[dict[str, Any]] = []
        for one in chat:
            if one.get("content"):
                turns.append({"from": _FROM[one["role"]], "value": one["content"]})
            for call in one.get("tool_calls", ()):
                turns.append({"from": "function_call", "value": encoded(call.get("function")).decode()})
        yield encoded({"id": f"hermes-{number}", "conversations": turns}) + b"\n"
