"""Attachments of a message on a platform: fetched when the turn needs them, then read as every entry point reads files."""

from __future__ import annotations

import asyncio
import logging
import mimetypes
from typing import TYPE_CHECKING, Any

import msgspec

from hermes.agent.attached_files import MOST_TEXT, AttachedFile, Reader, joined, shown_name
from hermes.errors import HermesError, PlatformUnreachable
from hermes.gateway.platforms._shared.http import TooLarge, no_more_than
from hermes.gateway.settings import retried

if TYPE_CHECKING:
    from hermes.gateway.chats.participants import Services
    from hermes.gateway.events import Attachment, Event

FETCH_SECONDS = 120.0  # for one file, retries included
MOST_QUOTED = 1_000  # characters of a quoted message
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
    return joined(spoken, notes, parts)


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
    name, most = shown_name(attachment.name, attachment.kind), services.config.gateway.media.max_mb
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
    reader = Reader(services.db, services.config, services.agents.model, owner=owner)
    return reader.read(AttachedFile(attachment.kind, attachment.name, attachment.mime, data), room)


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
