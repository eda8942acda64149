"""Estimates the number of tokens of a text, for when no endpoint has counted them, and how many a prompt may have."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

# Scripts written without spaces between words (Korean has spaces).
DENSE = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u2fdf\u3005-\u3007\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    "\U00020000-\U0003ffff"
)
_DENSE = re.compile(f"[{DENSE}\uac00-\ud7ff\U0001f000-\U0001faff]")
PER_MESSAGE = 4
PER_ATTACHMENT = 1_000


def text_tokens(text: str) -> int:
    """Four letters of ASCII a token, two of other alphabets, one character of Chinese, Japanese, Korean, Thai …"""
    if text.isascii():
        return -(-len(text) // 4)
    dense = len(_DENSE.findall(text))
    plain = sum(map(len, re.findall(r"[\x00-\x7f]+", text)))
    return dense + -(-plain // 4) + -(-(len(text) - dense - plain) // 2)


def estimate_tokens(messages: Iterable[Mapping[str, Any]], tools: Iterable[Mapping[str, Any]] = ()) -> int:
    """How many tokens the messages (and the tools offered with them) take."""
    total = sum(text_tokens(json.dumps(tool)) for tool in tools)
    for message in messages:
        content = message.get("content")
        if type(content) is str and content.isascii():  # most of them, and there may be thousands
            total += PER_MESSAGE - (-len(content) // 4)
        else:
            total += PER_MESSAGE + _content_tokens(content)
        for name in ("recalled", "tool_calls", "reasoning_content", "reasoning"):
            if message.get(name):
                total += _value_tokens(message[name])
                if name == "reasoning_content":
                    break  # `reasoning` has the same text
    return total


def _content_tokens(content: Any) -> int:
    if isinstance(content, list):
        return sum(PER_ATTACHMENT if is_attachment(part) else _value_tokens(part) for part in content)
    return _value_tokens(content)


def is_attachment(part: Any) -> bool:
    """Whether a part holds bytes: their number does not determine the number of tokens."""
    kind = part.get("type") if isinstance(part, Mapping) else None
    return isinstance(kind, str) and any(sign in kind for sign in ("image", "audio", "video", "file"))


def _value_tokens(value: Any) -> int:
    if isinstance(value, str):
        return text_tokens(value)
    if isinstance(value, Mapping):
        return sum(1 + _value_tokens(item) for item in value.values())
    if isinstance(value, (list, tuple)):
        return sum(map(_value_tokens, value))
    return 0 if value is None else 1


def limits(threshold: float, window: int, fixed: int) -> tuple[int, int]:
    """(soft, hard): the prompt sizes at which a conversation is compressed, and beyond which it is not sent uncut.

    The soft one is that share of the window; where the system prompt and the tools (`fixed` tokens) fill much of
    it, most of that share of the rest. The hard one leaves room for the reply.
    """
    window = window or 1 << 30  # not known: no limit until the endpoint refuses something
    soft = max(threshold * window, fixed + 0.8 * threshold * (window - fixed))
    return int(soft), window - min(window // 8, 4_096)
