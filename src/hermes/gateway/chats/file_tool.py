"""The tool `send_file`: the agent sends a file, a picture or a recording to the chat it answers in."""

from __future__ import annotations

import mimetypes
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hermes.agent.tools.file_access import opened
from hermes.agent.tools.tool import Context, Tool, text_argument
from hermes.errors import ToolError
from hermes.gateway.events import FileReference
from hermes.gateway.platforms._shared.http import attachment_kind
from hermes.store.records.attachments import mime_of

if TYPE_CHECKING:
    from hermes.gateway.adapter import Capabilities
    from hermes.gateway.chats.participants import Participant, Services

_DESCRIPTION = (
    "Send a file of this machine to the chat, as a picture, a voice message or a document by its type. It arrives after your"
    " reply. Hidden files and folders can't be sent."
)
_PARAMETERS = {
    "type": "object",
    "properties": {
        "path": {"type": "string", "description": "the file; relative paths begin in the working folder"},
        "caption": {"type": "string", "description": "a short text to go with it"},
    },
    "required": ["path"],
}


def file_tool(services: Services, person: Participant) -> Tool | None:
    """The tool for the owner's turn; None where the platform takes no files, and for other people."""
    capabilities = services.outbox.takes_files(person.chat)
    if capabilities is None or not person.is_owner:
        return None

    def run(context: Context, arguments: dict[str, Any]) -> str:
        path = allowed(text_argument(arguments, "path"), folders(context), context.cwd, services.home)
        data = read_file(path, capabilities)
        mime = mimetypes.guess_type(path.name)[0] or mime_of(data)
        attachment = services.db.keep_attachment(data)
        file = FileReference(kind=attachment_kind(mime), name=path.name, mime=mime, attachment=attachment)
        caption = text_argument(arguments, "caption", "").strip()
        posted = services.outbox.post_file(
            person.chat, file, caption, answers=person.answers, session=person.session_id
        )
        what = (
            "is queued: the chat gets it after your reply" if posted else "was already sent in answer to this message"
        )
        return f"{path.name} ({mime}, {len(data):,} bytes; {attachment}) {what}."

    return Tool("send_file", _DESCRIPTION, _PARAMETERS, run)


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
