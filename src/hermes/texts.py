"""Texts for people and models: made harmless, put on one line, shortened, and their tokens estimated.

A message, a title or a tool's output may hold anything, and every door shows it through `harmless`: what moves the
cursor, colours, renames the window, turns the direction of a line around or can't be seen is taken away; what can be
read stays. Tokens are estimated where no endpoint has counted them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

_ESCAPES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # colours, cursor movements
    # Titles, links and other strings for the terminal. One without an end on its line hides nothing.
    r"|\x1b[\]PX^_][^\x07\x1b\n]*(?:\x07|\x1b\\)"
    r"|\x1b[ -/]*[0-~]?|\x9b[0-?]*[ -/]*[@-~]"
)
_BREAKS = re.compile("\r\n|[\r\x0b\x0c\x1c-\x1e\x85\u2028\u2029]")
# Control characters, direction overrides and isolates, invisible spaces, lone surrogates.
_UNSEEN = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    r"\ud800-\udfff]"
)


def harmless(text: str) -> str:
    """Text that can do nothing to a terminal; its line breaks and tabs stay."""
    if text.isascii() and text.isprintable():
        return text
    if "\x1b" in text or "\x9b" in text:
        text = _ESCAPES.sub("", text)
    return _UNSEEN.sub("", _BREAKS.sub("\n", text))


def readable(text: str) -> str:
    """A program's output as a terminal would have left it: without colours, of what was written over only the last state."""
    text = _ESCAPES.sub("", text.replace("\r\n", "\n"))
    while "\x08" in text and (shorter := re.sub(r"[^\n\x08]\x08", "", text)) != text:
        text = shorter
    if "\r" in text:  # a progress bar: the last state of each line counts
        states = (line.split("\r") for line in text.split("\n"))
        text = "\n".join(next((one for one in reversed(parts) if one.strip()), "") for parts in states)
    return re.sub(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]", "", text)


def one_line(text: str | None) -> str:
    """Text on one line, harmless, white space folded."""
    return " ".join(harmless(text).split()) if text else ""


def encodable(value: Any) -> Any:
    """Text that every wire can carry, also inside lists and dicts: half a surrogate pair becomes U+FFFD.

    The record keeps such text as it came; what is sent elsewhere is what UTF-8 can hold.
    """
    if isinstance(value, str):
        if value.isascii():
            return value
        try:
            value.encode()
        except UnicodeEncodeError:
            return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
        return value
    if isinstance(value, dict):
        return {encodable(key): encodable(item) for key, item in value.items()}
    return [encodable(item) for item in value] if isinstance(value, (list, tuple)) else value


def shortened(text: str, room: int) -> str:
    """The text in at most `room` characters; an ellipsis stands for what is cut off."""
    if len(text) <= room:
        return text
    return text[: max(0, room - 1)].rstrip() + "…" if room > 0 else ""


def shortened_line(text: str, room: int) -> str:
    """The text on one harmless line of at most `room` characters; three dots stand for what is cut off."""
    line = one_line(text)
    return line if len(line) <= room else line[: max(room - 3, 1)].rstrip() + "..."


def without_middle(text: str, room: int, *, first: float = 2 / 3) -> str:
    """The text in at most `room` characters: its beginning and its end (`first`: the beginning's share), and between
    them how many characters are left out. A room too small for that note holds the note alone."""
    if len(text) <= room:
        return text
    kept = max(0, room - len(f"\n[… {len(text):,} characters left out …]\n"))
    head = int(kept * first)
    note = f"\n[… {len(text) - kept:,} characters left out …]\n"
    return text[:head] + note + text[len(text) - kept + head :]


def content_text(content: Any) -> str:
    """The text of a message's content; parts without words are named in brackets: [image], [file]."""
    if content is None:
        return ""
    if isinstance(content, list):
        return "\n".join(map(content_text, content))
    if isinstance(content, dict):
        for name in ("text", "content", "refusal"):
            if isinstance(content.get(name), str):
                return str(content[name])
        return f"[{str(content.get('type') or 'attachment').removesuffix('_url').removeprefix('input_')}]"
    return str(content)


def counted(number: int, what: str, several: str | None = None) -> str:
    """`1 message`, `3 messages`, `2 entries`."""
    return f"{number:,} {what if number == 1 else several or what + 's'}"


def unfinished(message: Mapping[str, Any]) -> str:
    """Why a stored reply is not whole, for people; "" for one that is."""
    if message.get("role") != "assistant":
        return ""
    if message.get("finish_reason") == "stop" and not message.get("tool_calls"):
        return "" if content_text(message.get("content")).strip() else "the model gave an empty reply"
    return {
        "interrupted": "the reply was cut off here",
        "length": "the reply reached its length limit here",
        "content_filter": "the endpoint's content filter ended the reply here",
    }.get(str(message.get("finish_reason")), "")


def text_of_bytes(data: bytes) -> str | None:
    """The text that bytes are in UTF-8; None for a binary file."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        return None
    return None if "\0" in text else text


# Scripts written without spaces between words (Korean has spaces).
DENSE = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u2fdf\u3005-\u3007\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    "\U00020000-\U0003ffff"
)
_DENSE = re.compile(f"[{DENSE}\uac00-\ud7ff\U0001f000-\U0001faff]")
PER_MESSAGE = 4
PER_ATTACHMENT = 1_000


def text_tokens(text: str) -> int:
    """Estimate tokens: four letters of ASCII each, two of other alphabets, one character of Chinese, Japanese, Korean, Thai …"""
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
