"""The lines of a transcript that agrees with the rows of its session.

They are made from the rows in bulk and compared byte for byte with the file: only a transcript with other lines is parsed
line by line (transcript_comparison.py).
"""

from __future__ import annotations

import zlib
from functools import lru_cache
from itertools import starmap
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from hermes.errors import StoreCorrupt
from hermes.store import codec, message_reading, sealed_files
from hermes.store.engines.base import MessageColumns, Tx
from hermes.store.transcript import SEAL, Entry, decoded

if TYPE_CHECKING:
    from hermes.store.rows import AttachmentEntry

Attached: TypeAlias = "dict[int, list[AttachmentEntry]]"
_START = b'{"type":"message",'
_NAMES = tuple(name for name in message_reading.SHOWN if name != "session_id")
_ROW = (*message_reading.SHOWN, "content_format", "content_rest")
_SEAL_BYTES = len(SEAL) + 10  # eight hex digits, the quote and the brace
_encoder = msgspec.json.Encoder()


@lru_cache(maxsize=8)
def _line_type(names: tuple[str, ...]) -> Any:
    """A line with these fields, of which those that are None are left out."""
    fields = [(name, Any, None) for name in names]
    return msgspec.defstruct("Line", fields, tag_field="type", tag="message", omit_defaults=True)


def message_columns(tx: Tx, session_id: str) -> MessageColumns | None:
    """A session's own messages by column; None where some can't be read, or hold values that a line encodes differently."""
    try:
        rows = tx.rows(f"SELECT {message_reading.ROW} FROM messages m WHERE m.session_id = ?", (session_id,))
        columns: MessageColumns = dict(zip(_ROW, zip(*rows, strict=True), strict=False))
        if not rows or any(bytes in map(type, columns[name]) for name in message_reading.SHOWN):
            return None
        columns["content"] = list(map(codec.joined, columns["content"], columns["content_rest"]))
    except (StoreCorrupt, UnicodeDecodeError):
        return None
    return columns


def expected_lines(columns: MessageColumns, attached: Attached) -> bytes | None:
    """The line of each message without its checksum; None where one can't be made from its row alone."""
    told = {name: columns[name] for name in _NAMES if name in columns}
    texts, forms = columns["content"], columns["content_format"]
    nul = [form for text, form in zip(texts, forms, strict=True) if text is not None and text[:1] == "\0"]
    if None in nul:  # parts as another program stores them, maybe
        return None
    if forms.count(None) != len(forms):
        told["content"] = [
            msgspec.Raw(text or "") if form == "json" else text for text, form in zip(texts, forms, strict=True)
        ]
    for name in codec.JSON_FIELDS:
        if name in told and told[name].count(None) != len(texts):
            told[name] = [None if text is None else msgspec.Raw(text) for text in told[name]]
    if attached:
        told["attachments"] = [_in_order(attached.get(one), text) for one, text in zip(told["id"], texts, strict=True)]
    try:
        return _encoder.encode_lines(starmap(_line_type(tuple(told)), zip(*told.values(), strict=True)))
    except (TypeError, ValueError, OverflowError):
        return None  # lone surrogates, numbers beyond 64 bits


def _in_order(files: list[AttachmentEntry] | None, text: str | None) -> list[AttachmentEntry] | None:
    """A message's attachments in the order of its text, which is how its line lists them."""
    if files is None or len(files) == 1 or text is None:
        return files
    return sorted(files, key=lambda file: text.find(file["hash"]))


def other_lines(path: Path, expected: bytes) -> list[Entry] | None:
    """The other lines of a transcript that has exactly these message lines, each once; None when its message lines differ."""
    lines = sealed_files.content(path).split(b"\n")
    if not lines[-1]:
        lines.pop()
    found = [line for line in lines if line.startswith(_START)]
    bare = [line[:-_SEAL_BYTES] for line in found]
    seals = (SEAL + b'%08x"}') * len(bare) % tuple(map(zlib.crc32, bare))
    if b"".join([line[-_SEAL_BYTES:] for line in found]) != seals:
        return None
    if b"}\n".join([*bare, b""]) != expected and sorted(bare) != sorted(expected.split(b"}\n")[:-1]):
        return None
    if len(found) == len(lines):
        return []
    entries = [decoded(line) for line in lines if not line.startswith(_START)]
    return None if None in entries else entries  # type: ignore[return-value]
