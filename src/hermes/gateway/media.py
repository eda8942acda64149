"""What comes with a message besides its text: pictures, voice, documents. Each is an input of one turn.

A picture goes to the model as it is, or is described in words first where a vision model is configured; speech is
written down where a speech model is; text files are read in; everything else is a saved path and a note. The bytes lie
in the attachments folder by their hash; paths and derived text stay in the conversation.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hermes.errors import HermesError, ModelError

if TYPE_CHECKING:
    from hermes.gateway.events import Attachment, Event
    from hermes.gateway.runner import Gateway

FETCH_SECONDS = 120.0
MOST_TEXT = 60_000  # characters of a text file that are read in
_TEXT_TYPES = (
    "text/",
    "application/json",
    "application/xml",
    "application/yaml",
    "application/x-yaml",
    "application/toml",
)
_TEXT_ENDINGS = frozenset(
    ".txt .md .rst .csv .tsv .json .jsonl .yaml .yml .toml .ini .cfg .conf .log .xml .html .htm .css .js .ts .py .sh .sql .c .h"
    " .cpp .rs .go .java .rb .php .tex .diff .patch".split()
)
_IMAGES = ("image/png", "image/jpeg", "image/gif", "image/webp")
_MARK = re.compile(r"<(?=[\W_]{0,20}attached[\W_]{0,5}file)", re.IGNORECASE)
_log = logging.getLogger("hermes.gateway")


def content_of(gateway: Gateway, event: Event, text: str, sender: str | None) -> str | list[Any]:
    """What the model is told: the text, who said it where several talk, and what came with it."""
    spoken = f"[{sender}] {text}" if sender else text
    if not event.attachments:
        return spoken
    parts: list[Any] = []
    notes: list[str] = []
    for attachment in event.attachments:
        note, part = _taken(gateway, event, attachment)
        notes.append(note)
        if part is not None:
            parts.append(part)
    words = "\n\n".join(one for one in (spoken.strip(), *notes) if one)
    return [{"type": "text", "text": words}, *parts] if parts else words


def _taken(gateway: Gateway, event: Event, attachment: Attachment) -> tuple[str, Any]:
    """The note about one attachment, and the part the model sees of it, if any."""
    name = _shown_name(attachment)
    limit = gateway.config.gateway.media.max_mb * 1_000_000
    if attachment.size is not None and attachment.size > limit:
        return (
            f"[{name} was sent, but is larger than {gateway.config.gateway.media.max_mb:g} MB and was not fetched]",
            None,
        )
    try:
        data = gateway.fetch(event.chat.platform, attachment, FETCH_SECONDS)
    except (HermesError, TimeoutError, asyncio.CancelledError) as error:
        _log.warning("an attachment could not be fetched: %s", error)
        return f"[{name} was sent, but could not be fetched: {error}]", None
    if len(data) > limit:
        return (
            f"[{name} was sent, but is larger than {gateway.config.gateway.media.max_mb:g} MB and was not kept]",
            None,
        )
    path = _kept(gateway, data)
    mime = attachment.mime or ""
    if attachment.kind == "image" and (mime in _IMAGES or _looks_like_image(data)):
        return _picture(gateway, name, mime, data, path)
    if attachment.kind == "audio":
        return _speech(gateway, name, attachment, data, path), None
    if _is_text(attachment, data):
        return _document(name, data, path), None
    return f"[File {name} ({mime or 'unknown kind'}, {len(data):,} bytes), saved as {path}]", None


def _kept(gateway: Gateway, data: bytes) -> str:
    """Where the bytes lie now, in words that also keep them there as long as the message lives."""
    reference = gateway.db.keep_attachment(data)
    digest = reference.rpartition(":")[2]
    return f"{gateway.db.attachments_dir / digest[:2] / digest} ({reference})"


def _shown_name(attachment: Attachment) -> str:
    name = " ".join((attachment.name or attachment.kind).split())
    return "".join(sign for sign in name if sign.isprintable() and sign not in "[]")[:120] or attachment.kind


def _enclosed(text: str) -> str:
    """Text of a file between marks that nothing in it can close: it is material, whatever it asks for."""
    inner = _MARK.sub("(", text)
    return f"<attached-file>\n{inner}\n</attached-file>"


def _picture(gateway: Gateway, name: str, mime: str, data: bytes, path: str) -> tuple[str, Any]:
    model, vision = gateway.agents.model, gateway.config.gateway.media.vision_model
    url = f"data:{mime if mime in _IMAGES else _image_type(data)};base64,{base64.b64encode(data).decode()}"
    part = {"type": "image_url", "image_url": {"url": url}}
    if vision is None:
        if model.kind in ("endpoint", "local"):
            return f"[Picture {name}, saved as {path}]", part
        return f"[Picture {name}, saved as {path}; the model here can't see pictures]", None
    try:
        described = gateway.side_model(vision).complete(
            [
                {
                    "role": "user",
                    "content": [
                        {
                            "type": "text",
                            "text": "Describe this picture for somebody who can't see it. Write out any text in it.",
                        },
                        part,
                    ],
                }
            ],
            max_tokens=800,
        )
    except ModelError as error:
        return f"[Picture {name}, saved as {path}; it could not be described: {error}]", None
    return f"[Picture {name}, saved as {path}. {vision} describes it:]\n{_enclosed(described)}", None


def _speech(gateway: Gateway, name: str, attachment: Attachment, data: bytes, path: str) -> str:
    model = gateway.config.gateway.media.stt_model
    if model is None:
        return f"[Recording {name}, saved as {path}; no speech model is configured (gateway.media.stt_model)]"
    try:
        heard = gateway.side_model(model).transcribe(data, attachment.name or "voice.ogg", attachment.mime)
    except ModelError as error:
        return f"[Recording {name}, saved as {path}; it could not be written down: {error}]"
    return f"[Recording {name}, saved as {path}; written down by {model}:]\n{heard.strip()}"


def _document(name: str, data: bytes, path: str) -> str:
    text = data.decode("utf-8", errors="replace").removeprefix("\ufeff")
    more = f" (its first {MOST_TEXT:,} characters of {len(text):,})" if len(text) > MOST_TEXT else ""
    return f"[File {name}, saved as {path}{more}:]\n{_enclosed(text[:MOST_TEXT])}"


def _is_text(attachment: Attachment, data: bytes) -> bool:
    named = Path(attachment.name or "").suffix.lower() in _TEXT_ENDINGS
    if not named and not (attachment.mime or "").startswith(_TEXT_TYPES):
        return False
    head = data[:4096]
    if b"\0" in head:
        return False
    try:
        head.decode("utf-8")
    except UnicodeDecodeError as error:
        return error.start > len(head) - 4  # cut inside a character
    return True


def _looks_like_image(data: bytes) -> bool:
    return _image_type(data) != "application/octet-stream"


def _image_type(data: bytes) -> str:
    if data.startswith(b"\x89PNG"):
        return "image/png"
    if data.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if data.startswith(b"GIF8"):
        return "image/gif"
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    return "application/octet-stream"
