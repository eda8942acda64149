"""Files that come with a message, as the model gets them: a note in the text, and a part of the content for a picture.

A picture goes to the model as it is, or is described first if a vision model is configured; speech is transcribed if a speech
model is configured; text files are read; everything else becomes a saved path and a note. The bytes lie in the attachments
folder, named by their hash; paths and derived text stay in the conversation.
"""

from __future__ import annotations

import base64
import codecs
import mimetypes
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from hermes.agent.models.choice import named_model
from hermes.errors import HermesError
from hermes.store.records.attachments import mime_of
from hermes.texts import content_text

if TYPE_CHECKING:
    from hermes.agent.models.model import Model
    from hermes.config import Config
    from hermes.store.api.session_db import SessionDB

MOST_TEXT = 60_000  # characters read from the text files of one message
_SIDE_SECONDS = 120.0  # seconds for the description of a picture
# A note about a file, and what was read from it: the kind, the name, the hash, and the text of a document or a description.
NOTE = re.compile(
    r"^\[(Picture|Recording|File) ([^\n\[\]]{1,160}?)(?: \([^\n()\[\]]*\))?, saved as "
    r"[^\n]*?attachment:sha256:([0-9a-f]{64})[^\n]*\]"
    r"(?:\n<attached-file>\n(.*?)\n</attached-file>)?$",
    re.MULTILINE | re.DOTALL,
)
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


class AttachedFile(NamedTuple):
    """A file whose bytes are here. `kind` is "image", "audio", "video" or "file"."""

    kind: str
    name: str | None
    mime: str | None
    data: bytes


class Reader:
    """Turns files into notes and parts, for one message to one model."""

    def __init__(self, db: SessionDB, config: Config, model: Model, *, owner: bool = True) -> None:
        self._db, self._media, self._model, self._owner = db, config.gateway.media, model, owner

    def read(self, file: AttachedFile, room: int) -> tuple[str, Any]:
        """The note about a file, and the part of the content for the model, if any; `room`: characters of its text."""
        name, path = shown_name(file.name, file.kind), self._stored_path(file.data)
        if file.kind in ("image", "file") and (mime := image_type(file.data)):
            return self._picture(name, mime, file.data, path)
        if file.kind == "audio":
            return self._speech(name, file, path), None
        if (text := text_in(file.name, file.mime, file.data)) is not None:
            return _document(name, *text, path, room), None
        return f"[File {name} ({file.mime or 'unknown kind'}, {len(file.data):,} bytes), saved as {path}]", None

    def _stored_path(self, data: bytes) -> str:
        """The path of the saved bytes, with the reference that keeps them there as long as the message lives.

        Users other than the owner have no file tools, and do not learn paths of this machine.
        """
        reference = self._db.keep_attachment(data)
        if not self._owner:
            return reference
        digest = reference.rpartition(":")[2]
        path = self._db.attachment_file(digest)
        if path is None:
            return f"{reference} (encrypted: `hermes sessions decrypt --print {digest}` prints it)"
        return f"{path} ({reference})"

    def _picture(self, name: str, mime: str, data: bytes, path: str) -> tuple[str, Any]:
        model, vision = self._model, self._media.vision_model
        part = picture_part(mime, data)
        if vision is None:
            if model.kind in ("endpoint", "local"):
                return f"[Picture {name}, saved as {path}]", part
            why = "the model here can't see pictures (gateway.media.vision_model)"
            return f"[Picture {name}, saved as {path}; {why}]", None
        question = {"role": "user", "content": [{"type": "text", "text": _DESCRIBE}, part]}
        try:
            described = named_model(vision, model).complete([question], max_tokens=800, timeout=_SIDE_SECONDS)
        except HermesError as error:
            return f"[Picture {name}, saved as {path}; it could not be described: {error}]", None
        return f"[Picture {name}, saved as {path}. {vision} describes it:]\n{_enclosed(described.strip())}", None

    def _speech(self, name: str, file: AttachedFile, path: str) -> str:
        model = self._media.stt_model
        if model is None:
            return f"[Recording {name}, saved as {path}; no speech model is configured (gateway.media.stt_model)]"
        try:
            listener = named_model(model, self._model)
            heard = listener.transcribe(file.data, _file_name(file), file.mime).strip()
        except HermesError as error:
            return f"[Recording {name}, saved as {path}; it could not be transcribed: {error}]"
        if not heard:
            return f"[Recording {name}, saved as {path}; {model} heard no words in it]"
        return f"[Recording {name}, saved as {path}; transcribed by {model}:]\n{heard}"


def _file_name(file: AttachedFile) -> str:
    """A file name whose extension shows a speech server the kind of recording."""
    name = Path(file.name or "voice").name or "voice"
    if Path(name).suffix:
        return name
    kind = (file.mime or "").partition(";")[0].strip()
    return name + ({"audio/ogg": ".ogg"}.get(kind) or mimetypes.guess_extension(kind) or ".ogg")


def shown_name(name: str | None, kind: str) -> str:
    """A file's name as a note gives it: on one line, without brackets; its kind where it has none."""
    name = " ".join((name or kind).split())
    return "".join(sign for sign in name if sign.isprintable() and sign not in "[]")[:120] or kind


def joined(spoken: str, notes: list[str], parts: list[Any]) -> str | list[Any]:
    """The content of a message: its text with the notes, then the parts."""
    words = "\n\n".join(one for one in (spoken.strip(), *notes) if one)
    return [{"type": "text", "text": words}, *parts] if parts else words


def separated(content: Any) -> tuple[str, list[str]]:
    """Split a message's text into what the user wrote and the notes about its files."""
    parts = content if isinstance(content, list) else [{"text": content_text(content)}]
    text = "\n\n".join(str(part["text"]) for part in parts if isinstance(part, dict) and part.get("text"))
    notes = [found[0] for found in NOTE.finditer(text)]
    return (re.sub(r"\n{3,}", "\n\n", NOTE.sub("", text)).strip(), notes) if notes else (text, [])


def _enclosed(text: str) -> str:
    """The text of a file between marks that nothing in it can close: it is data, never an instruction."""
    inner = _MARK.sub("(", text)
    return f"<attached-file>\n{inner}\n</attached-file>"


# ------------------------------------------------------------------------------------------------ recognising bytes


def _document(name: str, text: str, encoding: str, path: str, room: int) -> str:
    more = f" (its first {room:,} characters of {len(text):,})" if len(text) > room else ""
    read = "" if encoding == "utf-8" else f", read as {encoding}"
    return f"[File {name}, saved as {path}{read}{more}:]\n{_enclosed(text[:room])}"


def text_in(name: str | None, mime: str | None, data: bytes) -> tuple[str, str] | None:
    """The text of a text file, and its encoding; None for other files, regardless of their names."""
    if Path(name or "").suffix.lower() not in _TEXT_ENDINGS and not (mime or "").lower().startswith(_TEXT_TYPES):
        return None
    declared = _CHARSET.search(mime or "")
    marked = next((encoding for mark, encoding in _MARKED if data.startswith(mark)), None)
    for encoding in (marked, "utf-8", declared[1] if declared else None, "windows-1252"):
        try:
            text = data.decode(encoding) if encoding else None
        except (UnicodeDecodeError, LookupError):
            continue
        if text is not None and not any(sign < " " and sign not in "\t\n\r\f\x1b" for sign in text[:4096]):
            return text.replace("\0", "\ufffd"), "utf-8" if encoding == "utf-8-sig" else str(encoding)
    return None


def picture_part(mime: str, data: bytes) -> dict[str, Any]:
    """A picture as a part of a message's content."""
    return {"type": "image_url", "image_url": {"url": f"data:{mime};base64,{base64.b64encode(data).decode()}"}}


def image_type(data: bytes) -> str | None:
    """The type of a picture that models can see, detected from its bytes; the type the sender gives is ignored."""
    found = mime_of(data)
    return found if found in _SEEN else None
