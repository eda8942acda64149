"""Attachments of a message: pictures, voice, documents. Each is an input of one turn.

A picture goes to the model as it is, or is described first if a vision model is configured; speech is transcribed if a
speech model is configured; text files are read; everything else becomes a saved path and a note. The bytes lie
in the attachments folder by their hash; paths and derived text stay in the conversation.
"""

from __future__ import annotations

import asyncio
import base64
import codecs
import logging
import mimetypes
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from hermes.agent.model_choice import named_model
from hermes.errors import HermesError, PlatformUnreachable
from hermes.gateway.platforms.http import TooLarge, no_more_than
from hermes.gateway.timings import retried
from hermes.store.attachments import mime_of

if TYPE_CHECKING:
    from hermes.gateway.events import Attachment, Event
    from hermes.gateway.participants import Services

FETCH_SECONDS = 120.0  # for one file, retries included
MOST_QUOTED = 1_000  # characters of a quoted message
MOST_TEXT = 60_000  # characters read from the text files of one message
_TEXT_TYPES = ("text/", *(f"application/{kind}" for kind in ("json", "xml", "yaml", "x-yaml", "toml")))
_TEXT_ENDINGS = frozenset(
    ".txt .md .rst .csv .tsv .json .jsonl .yaml .yml .toml .ini .cfg .conf .log .xml .html .htm .css .js .ts .py .sh .sql .c .h"
    " .cpp .rs .go .java .rb .php .tex .diff .patch".split()
)
_MARKED = (
    (codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF32_LE, "utf-32"), (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"),
)  # fmt: skip
_CHARSET = re.compile(r"charset=[\"']?([\w.:-]+)", re.IGNORECASE)
_MARK = re.compile(r"<(?=[\W_]{0,20}attached[\W_]{0,5}file)", re.IGNORECASE)
_DESCRIBE = "Describe this picture for a person who can't see it. Write out any text in it."
_SEEN = ("image/png", "image/jpeg", "image/gif", "image/webp")  # pictures that models can see
_log = logging.getLogger("hermes.gateway")


def content_of(services: Services, event: Event, spoken: str) -> str | list[Any] | None:
    """The content for the model: the message text, and its attachments.

    None when the gateway stops before everything was fetched: the next process does it.
    """
    if not event.attachments:
        return spoken
    parts: list[Any] = []
    notes: list[str] = []
    room = MOST_TEXT // max(1, sum(one.kind == "file" for one in event.attachments))
    for attachment in event.attachments:
        note, part = _taken(services, event, attachment, room)
        notes.append(note)
        if part is not None:
            parts.append(part)
    if services.stopping:
        return None
    words = "\n\n".join(one for one in (spoken.strip(), *notes) if one)
    return [{"type": "text", "text": words}, *parts] if parts else words


def quotation(quoted: str | None, most: int | None = MOST_QUOTED) -> str:
    """A quoted message as the model sees it: each line marked, and no more than `most` characters (None: all)."""
    if not quoted or not quoted.strip():
        return ""
    words = quoted.strip()
    if most is not None and len(words) > most:
        words = f"{words[:most].rstrip()} …"
    return "".join(f"> {line}\n" for line in words.splitlines()) + "\n"


def _taken(services: Services, event: Event, attachment: Attachment, room: int) -> tuple[str, Any]:
    """The note about one attachment, and the content part for the model, if any."""
    name, most = _shown_name(attachment), services.config.gateway.media.max_mb
    too_large = f"[{name} was sent, but is larger than {most:g} MB and was not kept]"
    if attachment.size is not None and attachment.size > most * 1_000_000:
        return too_large, None
    try:
        data = _fetched(services, event.chat.connection, attachment)
    except TooLarge:
        return too_large, None
    except Exception as error:  # also a bug in the adapter: the message itself is answered all the same
        _log.warning("%s could not be fetched: %s", name, error, exc_info=not isinstance(error, (HermesError, OSError)))
        why = "it took too long" if isinstance(error, TimeoutError) else "it failed"
        why = str(error) if isinstance(error, HermesError) else why
        return f"[{name} was sent, but could not be fetched: {why}]", None
    if len(data) > most * 1_000_000:
        return too_large, None
    attachment = _named(services, event.chat.connection, attachment)
    owner = services.access.is_owner(event.chat.connection, event.sender)
    name, path = _shown_name(attachment), _kept(services, data, owner=owner)
    if attachment.kind in ("image", "file") and (mime := image_type(data)):
        return _picture(services, name, mime, data, path)
    if attachment.kind == "audio":
        return _speech(services, name, attachment, data, path), None
    if (read := text_in(attachment.name, attachment.mime, data)) is not None:
        return _document(name, *read, path, room), None
    return f"[File {name} ({attachment.mime or 'unknown kind'}, {len(data):,} bytes), saved as {path}]", None


def _fetched(services: Services, platform: str, attachment: Attachment) -> bytes:
    """The bytes. A broken connection or a rate limit is retried, so that no file is lost."""
    adapter, loop = services.router.adapters.get(platform), services.outbox.loop
    if adapter is None or loop is None:
        raise PlatformUnreachable(f"{platform} is not enabled")
    most = int(services.config.gateway.media.max_mb * 1_000_000)
    work = retried(
        lambda: no_more_than(most, adapter.fetch(attachment)), FETCH_SECONDS, lambda error: not services.stopping
    )
    return asyncio.run_coroutine_threadsafe(work, loop).result(FETCH_SECONDS + 1)


def _named(services: Services, platform: str, attachment: Attachment) -> Attachment:
    """The attachment with the name that came with its bytes, if the message had none: its ending says how it is read."""
    adapter = services.router.adapters.get(platform)
    name = adapter.fetched_name(attachment) if adapter is not None and not attachment.name else None
    if not name:
        return attachment
    return msgspec.structs.replace(attachment, name=name, mime=attachment.mime or mimetypes.guess_type(name)[0])


def _kept(services: Services, data: bytes, *, owner: bool) -> str:
    """The path of the saved bytes, with the reference that keeps them there as long as the message lives.

    Other people than the owner have no tools for files, and do not learn where this machine has what.
    """
    reference = services.db.keep_attachment(data)
    if not owner:
        return reference
    digest = reference.rpartition(":")[2]
    path = services.db.attachment_file(digest)
    if path is None:
        return f"{reference} (encrypted: `hermes sessions decrypt --print {digest}` prints it)"
    return f"{path} ({reference})"


def _shown_name(attachment: Attachment) -> str:
    name = " ".join((attachment.name or attachment.kind).split())
    return "".join(sign for sign in name if sign.isprintable() and sign not in "[]")[:120] or attachment.kind


def _enclosed(text: str) -> str:
    """Text of a file between marks that nothing in it can close: it is data, whatever it asks for."""
    inner = _MARK.sub("(", text)
    return f"<attached-file>\n{inner}\n</attached-file>"


def _picture(services: Services, name: str, mime: str, data: bytes, path: str) -> tuple[str, Any]:
    model, vision = services.agents.model, services.config.gateway.media.vision_model
    part = {"type": "image_url", "image_url": {"url": f"data:{mime};base64,{base64.b64encode(data).decode()}"}}
    if vision is None:
        if model.kind in ("endpoint", "local"):
            return f"[Picture {name}, saved as {path}]", part
        why = "the model here can't see pictures (gateway.media.vision_model)"
        return f"[Picture {name}, saved as {path}; {why}]", None
    question = {"role": "user", "content": [{"type": "text", "text": _DESCRIBE}, part]}
    try:
        described = named_model(vision, model).complete([question], max_tokens=800, timeout=FETCH_SECONDS)
    except HermesError as error:
        return f"[Picture {name}, saved as {path}; it could not be described: {error}]", None
    return f"[Picture {name}, saved as {path}. {vision} describes it:]\n{_enclosed(described.strip())}", None


def _speech(services: Services, name: str, attachment: Attachment, data: bytes, path: str) -> str:
    model = services.config.gateway.media.stt_model
    if model is None:
        return f"[Recording {name}, saved as {path}; no speech model is configured (gateway.media.stt_model)]"
    try:
        listener = named_model(model, services.agents.model)
        heard = listener.transcribe(data, _file_name(attachment), attachment.mime).strip()
    except HermesError as error:
        return f"[Recording {name}, saved as {path}; it could not be transcribed: {error}]"
    if not heard:
        return f"[Recording {name}, saved as {path}; {model} heard no words in it]"
    return f"[Recording {name}, saved as {path}; transcribed by {model}:]\n{heard}"


def _file_name(attachment: Attachment) -> str:
    """A file name whose extension shows a speech server the kind of recording."""
    name = Path(attachment.name or "voice").name or "voice"
    if Path(name).suffix:
        return name
    kind = (attachment.mime or "").partition(";")[0].strip()
    return name + ({"audio/ogg": ".ogg"}.get(kind) or mimetypes.guess_extension(kind) or ".ogg")


# ------------------------------------------------------------------------------------------------ recognising bytes


def _document(name: str, text: str, encoding: str, path: str, room: int) -> str:
    more = f" (its first {room:,} characters of {len(text):,})" if len(text) > room else ""
    read = "" if encoding == "utf-8" else f", read as {encoding}"
    return f"[File {name}, saved as {path}{read}{more}:]\n{_enclosed(text[:room])}"


def text_in(name: str | None, mime: str | None, data: bytes) -> tuple[str, str] | None:
    """The text of a text file, and its encoding; None for other files, whatever they are called."""
    if Path(name or "").suffix.lower() not in _TEXT_ENDINGS and not (mime or "").lower().startswith(_TEXT_TYPES):
        return None
    declared = _CHARSET.search(mime or "")
    marked = next((encoding for mark, encoding in _MARKED if data.startswith(mark)), None)
    for encoding in (marked, "utf-8", declared[1] if declared else None, _without_mark(data), "windows-1252"):
        try:
            text = data.decode(encoding) if encoding else None
        except (UnicodeDecodeError, LookupError):
            continue
        if text is not None and not any(sign < " " and sign not in "\t\n\r\f\x1b" for sign in text[:4096]):
            return text.replace("\0", "\ufffd"), "utf-8" if encoding == "utf-8-sig" else str(encoding)
    return None


def _without_mark(data: bytes) -> str | None:
    """UTF-16 without a byte order mark: every other byte of plain letters is zero."""
    head = data[:400]
    if len(head) < 4 or len(data) % 2:
        return None
    even, odd = head[::2].count(0), head[1::2].count(0)
    if max(even, odd) * 4 < len(head):
        return None
    return "utf-16-le" if odd > even else "utf-16-be"


def image_type(data: bytes) -> str | None:
    """The type of a picture, if models can see it, by its bytes; the type the sender gives does not count."""
    found = mime_of(data)
    return found if found in _SEEN else None
