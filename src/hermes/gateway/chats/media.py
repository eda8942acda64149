"""Files of a chat. Attachments of a message are fetched when the turn needs them, then read as every entry point reads files;
by the tool `send_file` the agent sends a file, a picture or a recording to the chat it answers in.
"""

from __future__ import annotations

import asyncio
import logging
import mimetypes
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from hermes.agent.attached_files import MOST_TEXT, AttachedFile, Reader, joined, shown_name
from hermes.agent.tools.files import opened
from hermes.agent.tools.tool import Context, Tool, tool
from hermes.errors import HermesError, PlatformUnreachable, ToolError
from hermes.gateway.events import FileReference
from hermes.gateway.platforms._shared.http import TooLarge, attachment_kind, no_more_than
from hermes.gateway.settings import retried
from hermes.store.records.attachments import mime_of

if TYPE_CHECKING:
    from hermes.gateway.adapter import Capabilities
    from hermes.gateway.chats.participants import Participant, Services
    from hermes.gateway.events import Attachment, Event

FETCH_SECONDS = 120.0  # for one file, retries included
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
        note, part = _note_and_part(services, event, attachment, room)
        notes.append(note)
        if part is not None:
            parts.append(part)
    if services.stopping:
        return None
    return joined(spoken, notes, parts)


def _note_and_part(services: Services, event: Event, attachment: Attachment, room: int) -> tuple[str, Any]:
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


# ------------------------------------------------------------------------------------------------ sending

_DESCRIPTION = (
    "Send a file of this machine to the chat, as a picture, a voice message or a document by its type. It arrives after your"
    " reply. Hidden files and folders can't be sent."
)


class _FileToSend(msgspec.Struct):
    path: Annotated[str, msgspec.Meta(description="the file; relative paths begin in the working folder")]
    caption: Annotated[str, msgspec.Meta(description="a short text to go with it")] = ""


def file_tool(services: Services, person: Participant) -> Tool | None:
    """The tool for the owner's turn; None where the platform takes no files, and for other people."""
    capabilities = services.outbox.takes_files(person.chat)
    if capabilities is None or not person.is_owner:
        return None

    def run(context: Context, arguments: _FileToSend) -> str:
        path = allowed(arguments.path, folders(context), context.cwd, services.home)
        data = read_file(path, capabilities)
        mime = mimetypes.guess_type(path.name)[0] or mime_of(data)
        attachment = services.db.keep_attachment(data)
        file = FileReference(kind=attachment_kind(mime), name=path.name, mime=mime, attachment=attachment)
        caption = arguments.caption.strip()
        posted = services.outbox.post_file(
            person.chat, file, caption, answers=person.answers, session=person.session_id
        )
        what = (
            "is queued: the chat gets it after your reply" if posted else "was already sent in answer to this message"
        )
        return f"{path.name} ({mime}, {len(data):,} bytes; {attachment}) {what}."

    return tool("send_file", _DESCRIPTION, _FileToSend, run)


def folders(context: Context) -> list[Path]:
    """The folders that files may be sent from: the working folder and that of temporary files."""
    return [context.cwd, Path(tempfile.gettempdir())]


def allowed(name: str, roots: list[Path], cwd: Path, home: Path) -> Path:
    """The real path of a file inside one of these folders; ToolError for others, and for hidden ones (keys, tokens).

    So it is for everything in our own home (the record, config.yaml), wherever that lies. A user whose home folder is the root
    of the file system has no working folder: /proc and /etc lie there.
    """
    path = Path(os.path.realpath(cwd / Path(name).expanduser()))
    if path.is_relative_to(os.path.realpath(home)):
        raise ToolError(f"{name} belongs to Hermes itself and is not sent")
    for root in roots:
        inside = Path(os.path.realpath(root))
        if inside != Path(inside.anchor) and path.is_relative_to(inside):
            if any(part.startswith(".") for part in path.relative_to(inside).parts):
                raise ToolError(f"{name} is hidden, or in a hidden folder, and is not sent")
            return path
    raise ToolError(f"{name} is not inside {' or '.join(map(str, roots))}; only files there can be sent")


def read_file(path: Path, capabilities: Capabilities) -> bytes:
    """The bytes of a file that the platform takes; ToolError for others."""
    try:
        with opened(path) as file:
            data = file.read(capabilities.largest_file + 1)
    except OSError as error:
        raise ToolError(f"{path}: {error.strerror or error}") from error
    if len(data) > capabilities.largest_file:
        raise ToolError(
            f"{path.name} is larger than the {capabilities.largest_file / 1_000_000:g} MB that can be sent there"
        )
    if not data:
        raise ToolError(f"{path.name} is empty")
    return data
