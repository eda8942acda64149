"""Outgoing messages: Markdown as a Matrix message, with HTML for clients that show it and the Markdown for those that don't.

The HTML is made from the Markdown alone (HTML inside it is shown, not used) and has only tags and links that the Matrix
specification lists. A model's text pings no person: `m.mentions` is empty, and "@room" is broken up for old
clients that look at the text.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

from hermes.gateway.events import OutgoingFile
from hermes.gateway.platforms._shared import markup
from hermes.texts import shortened

LARGEST = 44_000  # of an event's 65,536 bytes: encryption adds a third, and signatures come on top
_UNSENDABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")
_EVERYONE = re.compile("@(?=room)", re.IGNORECASE)


def clean(text: str) -> str:
    """The text without characters that can't be sent, and without pings of a whole room."""
    return _EVERYONE.sub("@\u200b", _UNSENDABLE.sub("\ufffd", text))


def html_of(markdown: str) -> str | None:
    """The text as Matrix HTML; None where it would look the same as the plain text."""
    html, differs = markup.html(clean(markdown), styles=False)  # a table's alignment is not in the specification
    return _EVERYONE.sub("@\u200b", html) if differs else None  # "&#64;room" has become one only now


def message(text: str, *, thread: str | None = None, reply_to: str | None = None) -> dict[str, Any]:
    """The content of a new message."""
    return _fitting(_placed(_content(text), thread, reply_to))


def file_message(
    file: OutgoingFile, caption: str, where: dict[str, Any], *, thread: str | None = None
) -> dict[str, Any]:
    """The content of a message with a file, which is `where` the upload says."""
    kind = file.kind if file.kind in ("image", "audio", "video") else "file"
    name = clean(file.name)
    about = {"mimetype": file.mime, "size": len(file.data)}
    content = {**_content(caption or name), "msgtype": f"m.{kind}", "filename": name, "info": about, **where}
    if not caption:
        content = {key: value for key, value in content.items() if key not in ("format", "formatted_body")}
    return _fitting(_placed(content, thread))


def _placed(content: dict[str, Any], thread: str | None, reply_to: str | None = None) -> dict[str, Any]:
    if thread is not None:
        content["m.relates_to"] = {
            "rel_type": "m.thread",
            "event_id": thread,
            "is_falling_back": reply_to is None,  # for clients without threads it then looks like a reply to the root
            "m.in_reply_to": {"event_id": reply_to or thread},
        }
    elif reply_to is not None:
        content["m.relates_to"] = {"m.in_reply_to": {"event_id": reply_to}}
    return content


def replacement(text: str, message_id: str) -> dict[str, Any]:
    """The content that replaces an earlier message's."""
    content = _content(text)
    short = shortened(content["body"], 200)
    return _fitting(
        {
            "msgtype": "m.text",
            "body": f"* {short}",  # only for clients that know no edits
            "m.mentions": {},
            "m.new_content": content,
            "m.relates_to": {"rel_type": "m.replace", "event_id": message_id},
        }
    )


def transaction(room_id: str, nonce: str) -> str:
    """The transaction id of a message: the same for the same nonce, so that the server makes one message of it."""
    return "hermes-" + hashlib.sha256(f"{room_id}\n{nonce}".encode("utf-8", "surrogatepass")).hexdigest()[:40]


def _content(text: str) -> dict[str, Any]:
    content: dict[str, Any] = {"msgtype": "m.text", "body": clean(text), "m.mentions": {}}
    html = html_of(text)
    if html is not None:
        content["format"] = "org.matrix.custom.html"
        content["formatted_body"] = html
    return content


def _fitting(content: dict[str, Any]) -> dict[str, Any]:
    """The content, without its HTML where the event would become too large."""
    if len(json.dumps(content)) > LARGEST:
        for part in (content, content.get("m.new_content", {})):
            part.pop("format", None)
            part.pop("formatted_body", None)
    return content
