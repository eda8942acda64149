"""Conversations as chats for training, in three shapes: OpenAI's, ChatML and ShareGPT.

`chats` gives each writer the same messages: what the session shows, tool calls joined to their results,
and pictures as data addresses. What a shape can't hold is counted in `Export.left_out`.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from hermes.interop.formats import Export
from hermes.interop.json_reading import decoded
from hermes.interop.jsonl import encoded
from hermes.store.records.attachments import Read

if TYPE_CHECKING:
    from hermes.store.records.rows import MessageRow

Chat = dict[str, Any]  # a message in the shape of the training data
_MARKS = ("<|im_start|>", "<|im_end|>")  # of ChatML
_FROM = {"user": "human", "assistant": "gpt", "system": "system", "tool": "tool"}  # of ShareGPT
_ROLES = frozenset(("system", "user", "assistant", "tool"))
_REFERENCE = re.compile(r"^(?:data:[^;,]*;base64,)?attachment:sha256:([0-9a-f]{64})$")


def write(export: Export) -> Iterator[bytes]:
    """OpenAI: `{"messages": […]}` on a line for each session that has an answer in it."""
    for chat in chats(export):
        yield encoded({"messages": chat}) + b"\n"


def write_chatml(export: Export) -> Iterator[bytes]:
    """ChatML: each message between <|im_start|>role and <|im_end|>, conversations parted by an empty line. Text only."""
    for chat in chats(export, pictures=False):
        text = ""
        for one in chat:
            said = one.get("content") or ""
            if any(mark in said for mark in _MARKS):  # it would end the message
                export.left_out["marks inside messages"] += 1
                for mark in _MARKS:
                    said = said.replace(mark, mark.replace("|", "¦"))
            calls = [f"<tool_call>\n{_called(call)}\n</tool_call>" for call in one.get("tool_calls", ())]
            whole = "\n".join(filter(None, (said, *calls)))
            text += f"<|im_start|>{one['role']}\n{whole}<|im_end|>\n"
        yield (text + "\n").encode("utf-8", "replace")


def write_sharegpt(export: Export) -> Iterator[bytes]:
    """ShareGPT: `{"id", "conversations": [{"from": "human"|"gpt"|"system"|"tool", "value"}]}` on a line each. Text only."""
    for number, chat in enumerate(chats(export, pictures=False), 1):
        turns: list[dict[str, Any]] = []
        for one in chat:
            if one.get("content"):
                turns.append({"from": _FROM[one["role"]], "value": one["content"]})
            for call in one.get("tool_calls", ()):
                turns.append({"from": "function_call", "value": _called(call)})
        yield encoded({"id": f"hermes-{number}", "conversations": turns}) + b"\n"


def _called(call: dict[str, Any]) -> str:
    """A tool call as models write it in text: the arguments are an object, not JSON inside a text."""
    asked = call.get("function")
    if not isinstance(asked, dict) or not isinstance(asked.get("arguments"), str):
        return encoded(asked).decode()
    try:
        given = decoded(asked["arguments"].encode("utf-8", "surrogatepass"))
    except ValueError:
        given = asked["arguments"]
    return encoded({**asked, "arguments": given}).decode()


def chats(export: Export, *, pictures: bool = True) -> Iterator[list[Chat]]:
    """The messages of each session; one without an answer teaches nothing and is left out."""
    for session in export.sessions:
        made: list[Chat] = []
        if session.get("system_prompt"):
            made.append({"role": "system", "content": session["system_prompt"]})
        for one in session.get("messages") or ():
            if one["role"] in _ROLES:
                made.append(_message(one, export, pictures))
        export.left_out["hidden messages"] += len(session.get("rewound_messages") or ())
        if any(one["role"] == "assistant" for one in made):
            yield made
        else:
            export.left_out["sessions without an answer"] += 1
    for what in [what for what, times in export.left_out.items() if not times]:
        del export.left_out[what]


def _message(one: MessageRow, export: Export, pictures: bool) -> Chat:
    if one.get("reasoning") or one.get("reasoning_content"):
        export.left_out["reasoning of messages"] += 1
    made: Chat = {"role": one["role"], "content": _content(one.get("content"), export, pictures)}
    if one["role"] == "tool" and one.get("tool_call_id"):
        made["tool_call_id"] = one["tool_call_id"]
    if one.get("tool_calls"):
        made["tool_calls"] = one["tool_calls"]
        if made["content"] is None:
            del made["content"]
    elif made["content"] is None:
        made["content"] = ""
    return made


def _content(content: Any, export: Export, pictures: bool) -> Any:
    if not isinstance(content, list):
        return content
    told = [*parts_of(content, export, pictures=pictures)]
    if all(kind == "text" for kind, _ in told):
        return "\n\n".join(words for _, words in told)
    return [
        {"type": "text", "text": value} if kind == "text" else {"type": "image_url", "image_url": {"url": value}}
        for kind, value in told
    ]


def parts_of(content: Any, export: Export, *, pictures: bool = True) -> Iterator[tuple[str, str]]:
    """The parts of a message to write: ("text", words) or ("picture", its address); others are counted as left out."""
    for part in content if isinstance(content, list) else [{"type": "text", "text": content}] if content else []:
        url = _data_url(part, export.attachments) if isinstance(part, dict) and pictures else None
        if isinstance(part, dict) and part.get("type") == "text":
            yield "text", str(part.get("text") or "")
        elif url is not None:
            yield "picture", url
        else:
            export.left_out["attachments"] += 1


def _data_url(part: dict[str, Any], read: Read | None) -> str | None:
    """A picture's bytes as an address."""
    picture = part.get("image_url")
    url = picture.get("url") if isinstance(picture, dict) else None
    if not isinstance(url, str) or read is None:
        return None
    found = _REFERENCE.match(url)
    if found is None:
        return url if url.startswith(("data:image/", "https://")) else None
    try:
        data = read(found[1])
    except OSError:
        return None
    mime = url[5 : url.index(";")] if url.startswith("data:") else _mime(data)
    return f"data:{mime};base64,{base64.b64encode(data).decode()}"


def _mime(data: bytes) -> str:
    known = {b"\x89PNG": "image/png", b"\xff\xd8\xff": "image/jpeg", b"GIF8": "image/gif", b"RIFF": "image/webp"}
    return next((mime for start, mime in known.items() if data.startswith(start)), "image/png")
