"""The messages sent to a model: the stored messages of a session, made valid for endpoints.

A crash can leave a call without its result or a question without its reply; endpoints refuse such conversations. They
are fixed in the copy that is sent. The store is never rewritten.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Sequence
from typing import Any

from hermes.agent.models.model import Message
from hermes.agent.recall.history_text import SUMMARY_MARK
from hermes.store.records.attachments import Read, mime_of
from hermes.texts import content_text, one_line, without_middle

LOST = "error: the result of this call was lost (the program was stopped while it ran); it may or may not have taken effect"
NOTED = "(I have read these notes.)"  # the reply to a summary, which needs none of its own
SUMMED_UP = "(The notes that follow say how I worked on this.)"  # in place of replies that a summary stands for
OWN_COMMAND = "[I ran a command myself]"  # begins a message with the command and what it printed
UNANSWERED = "(This was not answered: the reply was interrupted before it began.)"
TOOL_BUDGET = 50_000  # characters of one tool result that the model gets; the store has all of it


def prepared(
    history: Iterable[Message], *, system_prompt: str | None, attachments: Read | None = None
) -> list[Message]:
    """The messages to send, from those that get_messages_as_conversation gave.

    Unchanged messages are not copied. Attachments (`attachments` reads one by its hash) are sent with messages from the
    user's last message on, the one to answer; earlier ones are only mentioned.
    """
    messages = repaired(list(history))
    turn = last_question(messages)
    made = [
        message  # unchanged, like most messages
        if type(message.get("content")) is str and message.get("role") != "tool"
        else shown(message, attachments=attachments, earlier=turn is not None and number < turn)
        for number, message in enumerate(messages)
    ]
    return [{"role": "system", "content": system_prompt}, *made] if system_prompt else made


def last_question(messages: Sequence[Message]) -> int | None:
    """The place of the user's last message."""
    for number in range(len(messages) - 1, -1, -1):
        if messages[number].get("role") == "user" and not _is_stray(messages[number]):
            return number
    return None


def repaired(history: Sequence[Message]) -> list[Message]:
    """Every call followed by its results, in the order of the calls; every result by a call; no two questions in a row."""
    out: list[Message] = []
    position = 0
    while position < len(history):
        message = history[position]
        position += 1
        role = message.get("role")
        if role == "tool":
            out.append(_stray(message))
            continue
        last = out[-1] if out else None
        if role == "user" and last is not None and last.get("role") == "user" and not _is_stray(last):
            missing = NOTED if _is_note(last) else SUMMED_UP if _is_note(message, SUMMARY_MARK) else UNANSWERED
            out.append({"role": "assistant", "content": missing})
        out.append(message)
        calls = message.get("tool_calls")
        if role == "assistant" and isinstance(calls, list) and calls:
            position = _results(history, position, calls, out)
    return out


def _is_note(message: Message, *marks: str) -> bool:
    """Whether this is a summary, or a command of the user's own with its output: neither is a question."""
    content = message.get("content")
    return isinstance(content, str) and content.startswith(marks or (SUMMARY_MARK, OWN_COMMAND))


def _stray(result: Message) -> Message:
    """A tool result without its call (which was cut off), as a user message."""
    name = result.get("tool_name") or "a tool"
    return {"role": "user", "content": f"[result of {name}]\n{content_text(result.get('content'))}"}


def _is_stray(message: Message) -> bool:
    return isinstance(message.get("content"), str) and message["content"].startswith("[result of ")


def _results(history: Sequence[Message], position: int, calls: list[Any], out: list[Message]) -> int:
    """Put the results behind their calls; returns the position after them."""
    results: dict[str, Message] = {}
    strays: list[Message] = []
    wanted = [str(call.get("id")) for call in calls if isinstance(call, dict)]
    while position < len(history) and history[position].get("role") == "tool":
        call_id = str(history[position].get("tool_call_id"))
        if call_id in wanted and call_id not in results:
            results[call_id] = history[position]
        else:
            strays.append(_stray(history[position]))
        position += 1
    for call_id in wanted:
        out.append(results.get(call_id) or {"role": "tool", "tool_call_id": call_id, "content": LOST})
    out += strays
    return position


def shown(message: Message, *, attachments: Read | None = None, earlier: bool = False) -> Message:
    """One message as the model sees it: long results shortened, attachments inlined or, of an earlier turn, named."""
    content = message.get("content")
    if message.get("role") == "tool":
        return {**message, "content": without_middle(content_text(content), TOOL_BUDGET)}
    if isinstance(content, dict):
        content = [content]
    if isinstance(content, list) and earlier:
        content = [mentioned(part) for part in content]
    elif isinstance(content, list) and attachments is not None:
        content = [restored(part, attachments) for part in content]
    if isinstance(content, list):
        content = [
            part if unfit_address(part) is None else told(part, "at an address that the model may not open")
            for part in content
        ]
    return {**message, "content": content}


_REFERENCE = "attachment:sha256:"
_KINDS = (("image", "picture"), ("audio", "recording"), ("video", "video"))
_DEEPEST = 20


def restored(part: Any, read: Read) -> Any:
    """A part of the message to answer, its bytes in place of the reference; a note where they are missing."""
    whole = _filled(part, read, 0)
    reference = _bytes_in(whole)
    return told(part, "which is no longer there") if reference and reference.startswith(_REFERENCE) else whole


def mentioned(part: Any) -> Any:
    """A part of an earlier message: attachments are only mentioned."""
    held = _bytes_in(part)
    if held is None:
        return part
    digest = held.removeprefix(_REFERENCE)
    return told(part, "sent earlier" if digest == held else f"sent earlier: attachments/{digest[:2]}/{digest}")


# The model's server opens these addresses, and it may stand in the network of this machine: only names of the public
# internet are passed on, no numbers (in any notation) and no names that only a local network knows.
_PUBLIC = re.compile(
    r"data:.*|https?://(?!\S*\\)(?:[a-z0-9_](?:[a-z0-9_-]*[a-z0-9])?\.)+"
    r"(?!(?:localhost|local|localdomain|internal|intranet|private|lan|home|corp|arpa)\b)[a-z](?:[a-z0-9-]*[a-z0-9])?"
    r"\.?(?::\d+)?(?:[/?#]\S*)?",
    re.IGNORECASE | re.DOTALL,
)
_SCHEME = re.compile(r"\s*[a-z][a-z0-9+.-]*:", re.IGNORECASE)
_ADDRESS_FIELDS = ("url", "image_url", "video_url", "file_url")
_BYTES_FIELDS = ("data", "file_data")  # base64, or an address


def unfit_address(part: Any, depth: int = 0) -> str | None:
    """The first address in a part of a message that a model may not open: neither a data: URL nor at a public host name."""
    is_text = isinstance(part, dict) and str(part.get("type")).endswith("text")  # links in it are not opened
    if depth >= _DEEPEST or not isinstance(part, dict | list) or is_text:
        return None
    for name, value in part.items() if isinstance(part, dict) else (("", one) for one in part):
        if isinstance(value, str) and (name in _ADDRESS_FIELDS or (name in _BYTES_FIELDS and _SCHEME.match(value))):
            found = None if _PUBLIC.fullmatch(value) else value
        else:
            found = unfit_address(value, depth + 1)
        if found is not None:
            return found
    return None


def told(part: Any, words: str) -> dict[str, str]:
    """A text in place of a part that is not sent: what it is, and why it is missing."""
    return {"type": "text", "text": f"[{_kind(part)}, {words}]"}


def left_out(part: Any, why: str) -> dict[str, str]:
    """A text in place of a part that the model can't take: its name, if it has one, and why (`{}` stands for its kind)."""
    name, why = _name(part), why.format(_kind(part))
    return {"type": "text", "text": f"[{_kind(part)} left out: {f'{name}, ' if name else ''}{why}]"}


def _kind(part: Any) -> str:
    kind = str(part.get("type") or "") if isinstance(part, dict) else ""
    return next((name for sign, name in _KINDS if sign in kind), "file")


def _name(part: Any) -> str:
    """The name of a file in a message: as it is given, else the end of its address, else what its bytes are."""
    if not isinstance(part, dict):
        return ""
    inner = next((value for value in part.values() if isinstance(value, dict)), {})
    for field in ("name", "filename"):
        if isinstance(found := part.get(field) or inner.get(field), str):
            return one_line(found)[:120]
    address = str(inner.get("url") or part.get("image_url") or part.get("url") or "")
    return one_line(address[5:].partition(";")[0] if address.startswith("data:") else address.rpartition("/")[2])[:120]


def _bytes_in(part: Any, depth: int = 0) -> str | None:
    """The first text in a part that stands for bytes: a reference, a data: address, or base64 next to its format."""
    if isinstance(part, str):
        return part if _digest(part) or (part.startswith("data:") and ";base64," in part[:200]) else None
    if depth >= _DEEPEST:
        return None
    if isinstance(part, list):
        return next((held for item in part if (held := _bytes_in(item, depth + 1))), None)
    if not isinstance(part, dict) or part.get("type") == "text":
        return None
    raw = part.get("data")
    if isinstance(raw, str) and raw and (part.get("format") or part.get("media_type")):
        return raw
    return next((held for item in part.values() if (held := _bytes_in(item, depth + 1))), None)


def _filled(part: Any, read: Read, depth: int) -> Any:
    if isinstance(part, str):
        data = _bytes_of(part, read)
        return part if data is None else f"data:{mime_of(data)};base64,{base64.b64encode(data).decode()}"
    if depth >= _DEEPEST:
        return part
    if isinstance(part, list):
        return [_filled(item, read, depth + 1) for item in part]
    if not isinstance(part, dict):
        return part
    raw = part.get("data")
    if isinstance(raw, str) and (data := _bytes_of(raw, read)) is not None:  # audio and sources: bare base64
        part = {**part, "data": base64.b64encode(data).decode()}
    return {key: _filled(value, read, depth + 1) for key, value in part.items()}


def _digest(text: str) -> str | None:
    digest = text.removeprefix(_REFERENCE)
    return digest if digest != text and len(digest) == 64 and digest.isalnum() else None


def _bytes_of(text: str, read: Read) -> bytes | None:
    digest = _digest(text)
    if digest is None:
        return None
    try:
        return read(digest)
    except OSError:
        return None
