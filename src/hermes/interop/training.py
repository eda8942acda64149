"""Conversations as chats for training: `{"messages": […]}` on a line each, the shape in which OpenAI takes examples.

`chats` gives any writer of training data the same messages: what the session shows, tool calls joined to their results,
and pictures as data addresses. What such a shape can't hold is counted in `Export.left_out`.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hermes.interop.formats import Export
from hermes.interop.jsonl import encoded

if TYPE_CHECKING:
    from hermes.store.rows import MessageRow

Chat = dict[str, Any]  # a message in the shape of the training data
_ROLES = frozenset(("system", "user", "assistant", "tool"))
_REFERENCE = re.compile(r"^(?:data:[^;,]*;base64,)?attachment:sha256:([0-9a-f]{64})$")


def write(export: Export) -> Iterator[bytes]:
    """A line for each session that has an answer in it."""
    for chat in chats(export):
        yield encoded({"messages": chat}) + b"\n"


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
        export.left_out["messages' reasoning"] += 1
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
    made: list[Any] = []
    for part in content:
        if isinstance(part, dict) and part.get("type") == "text":
            made.append({"type": "text", "text": str(part.get("text") or "")})
        elif pictures and isinstance(part, dict) and (url := data_url(part, export.attachments)):
            made.append({"type": "image_url", "image_url": {"url": url}})
        else:
            export.left_out["attachments"] += 1
    return made if any(part["type"] != "text" for part in made) else "\n\n".join(part["text"] for part in made)


def data_url(part: dict[str, Any], folder: Path | None) -> str | None:
    """A picture's bytes as an address."""
    picture = part.get("image_url")
    url = picture.get("url") if isinstance(picture, dict) else None
    if not isinstance(url, str) or folder is None:
        return None
    found = _REFERENCE.match(url)
    if found is None:
        return url if url.startswith(("data:image/", "https://")) else None
    try:
        data = (folder / found[1][:2] / found[1]).read_bytes()
    except OSError:
        return None
    mime = url[5 : url.index(";")] if url.startswith("data:") else _mime(data)
    return f"data:{mime};base64,{base64.b64encode(data).decode()}"


def _mime(data: bytes) -> str:
    known = {b"\x89PNG": "image/png", b"\xff\xd8\xff": "image/jpeg", b"GIF8": "image/gif", b"RIFF": "image/webp"}
    return next((mime for start, mime in known.items() if data.startswith(start)), "image/png")
