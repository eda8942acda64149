"""Messages cut to fit into a model's window, where leaving out the middle of the conversation is not enough.

Only the copy that is sent is cut; the record keeps every message whole. Long texts keep their beginning and their end, and
between them how much is missing. A call's arguments stay valid JSON: the texts in them are cut.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from operator import is_not
from typing import Any

from hermes.agent.model import Message
from hermes.texts import without_middle
from hermes.tokens import PER_ATTACHMENT, estimate_tokens, is_attachment, text_tokens

LEAST = 40  # tokens of a message: cut further, it would say nothing any more
UNSEEN = "the model takes no {}s"
UNFIT = "it does not fit into the model's window"
_REASONING = ("reasoning", "reasoning_content", "reasoning_details")


def fitted(messages: list[Message], room: int) -> tuple[list[Message], int]:
    """The messages in `room` tokens, as far as that is possible, and how many of them were cut: the longest ones, to one length.

    Attachments are left out only where the texts would not fit beside them. The system prompt stays whole.
    """
    sizes = [estimate_tokens((message,)) for message in messages]
    if sum(sizes) <= room:
        return messages, 0
    files = [PER_ATTACHMENT * attachments_in(message) for message in messages]
    prompt = sum(size for size, message in zip(sizes, messages, strict=True) if message.get("role") == "system")
    texts = [
        0 if message.get("role") == "system" else size - held
        for message, size, held in zip(messages, sizes, files, strict=True)
    ]
    cap = max(_cap(texts, room - prompt - sum(files)), 0 if any(files) else LEAST)
    if cap < LEAST:
        sent, _ = fitted([without_attachments(message, UNFIT) for message in messages], room)
    else:
        sent = [
            message if text <= cap else shortened(message, cap + held)
            for message, text, held in zip(messages, texts, files, strict=True)
        ]
    return sent, sum(map(is_not, messages, sent))


def longest_part(messages: Sequence[Message], tools: int) -> str:
    """The part of a prompt that takes the most room, with its tokens (`tools` are those of the tools)."""
    parts = [(tools, "the description of the tools")]
    for number, message in enumerate(messages):
        role = message.get("role")
        name = "the system prompt" if role == "system" else f"message {number} of {len(messages) - 1} ({role})"
        parts.append((estimate_tokens((message,)), name))
    tokens, name = max(parts)
    return f"{name}, about {tokens:,} tokens"


def _cap(sizes: Sequence[int], room: int) -> int:
    """The length to which the longest have to be cut so that all together take `room`."""
    for number, size in enumerate(sorted(sizes)):
        share = room // (len(sizes) - number)
        if size > share:
            return share
        room -= size
    return max(sizes, default=0)


def shortened(message: Message, tokens: int) -> Message:
    """A message in about `tokens`: without its reasoning, then with its long texts cut in the middle."""
    slim = {name: value for name, value in message.items() if name not in _REASONING}
    if estimate_tokens((slim,)) <= tokens:
        return slim
    sizes: list[int] = []

    def measure(text: str) -> str:
        sizes.append(text_tokens(text))
        return ""

    bare = estimate_tokens((_rewritten(slim, measure),))
    cap = _cap(sizes, max(0, tokens - bare))
    return _rewritten(slim, lambda text: cut_to(text, cap))


def cut_to(text: str, tokens: int) -> str:
    """The text in at most `tokens`, cut in the middle; a few more if they are not enough to say what is missing."""
    size, kept = text_tokens(text), text
    length = len(text)
    while size > tokens and length > 40:
        length = min(length * 9 // 10, length * tokens // size)
        kept = without_middle(text, max(length, 40))
        size = text_tokens(kept)
    return kept


def without_attachments(message: Message, why: str) -> Message:
    """A message with a note in place of each picture, recording or file; as plain text, which every endpoint accepts."""
    content = message.get("content")
    if not attachments_in(message) or not isinstance(content, list):
        return message
    from hermes.agent.prompt_messages import left_out
    from hermes.texts import content_text

    return {
        **message,
        "content": content_text([left_out(part, why) if is_attachment(part) else part for part in content]),
    }


def attachments_in(message: Message) -> int:
    """How many parts of a message are pictures, recordings or files."""
    content = message.get("content")
    return sum(map(is_attachment, content)) if isinstance(content, list) else 0


def _rewritten(message: Message, cut: Callable[[str], str]) -> dict[str, Any]:
    """A copy of a message with each of its texts passed through `cut`."""
    out = {**message, "content": _each_text(message.get("content"), cut)}
    if calls := message.get("tool_calls"):
        out["tool_calls"] = [_cut_call(call, cut) for call in calls]
    return out


def _each_text(value: Any, cut: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return cut(value)
    if isinstance(value, list):
        return [_each_text(item, cut) for item in value]
    if isinstance(value, dict) and not is_attachment(value):
        return {name: item if name == "type" else _each_text(item, cut) for name, item in value.items()}
    return value


def _cut_call(call: Any, cut: Callable[[str], str]) -> Any:
    function = call.get("function") if isinstance(call, dict) else None
    raw = function.get("arguments") if isinstance(function, dict) else None
    if function is None or not isinstance(raw, str):
        return call
    try:
        values = json.loads(raw)
    except ValueError:
        values = {"arguments": raw}
    arguments = json.dumps(_each_text(values, cut), ensure_ascii=False)
    return {**call, "function": {**function, "arguments": arguments}}
