"""Attachments: bytes are stored once, by their hash: in files, or in a table of a store that is shared or encrypted.

A base64 payload inside a message is lifted out when the message is stored; a reference replaces it,
`attachment:sha256:<hex>`. The table `attachments` records which messages refer to which bytes, so these are deleted when the
last of them is.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from hermes.home import make_private, write_whole
from hermes.store.engines.base import Engine
from hermes.store.records.codec import Blob
from hermes.store.records.rows import AttachmentEntry

PREFIX = "attachment:sha256:"
_DATA_URL = re.compile(
    r"data:([\w.+/-]{0,100}(?:;[\w.=+-]{1,80}){0,4});base64,([A-Za-z0-9+/_=-]{128,}|[A-Za-z0-9+/_=-]+$)"
)
Lifted = tuple[tuple[str, str, int], ...]
Read = Callable[[str], bytes]  # the bytes with a SHA-256; OSError when they are not there


_REFERENCE = re.compile(re.escape(PREFIX) + "([0-9a-f]{64})")
DIGEST = re.compile("[0-9a-f]{64}")


def references(text: str | None) -> Lifted:
    """The attachments a stored text refers to."""
    if not text or PREFIX not in text:
        return ()
    return tuple((digest, "", 0) for digest in dict.fromkeys(_REFERENCE.findall(text)))


def parse_listed(listed: Any) -> Lifted:
    """The attachments of a message as a transcript or an export lists them."""
    out = []
    for one in listed if isinstance(listed, list) else ():
        if isinstance(one, dict) and DIGEST.fullmatch(str(one.get("hash"))):
            size = one.get("bytes")
            out.append((str(one["hash"]), str(one.get("mime") or ""), size if isinstance(size, int) else 0))
    return tuple(out)


def listed(lifted: Lifted) -> list[AttachmentEntry]:
    """The inverse of parse_listed()."""
    return [{"hash": digest, "mime": mime, "bytes": size} for digest, mime, size in lifted]


_MAGIC = (
    (b"\x89PNG", "image/png"), (b"\xff\xd8\xff", "image/jpeg"), (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"), (b"%PDF", "application/pdf"), (b"OggS", "audio/ogg"), (b"ID3", "audio/mpeg"), (b"BM", "image/bmp"),
    (b"\xff\xfb", "audio/mpeg"), (b"\xff\xf3", "audio/mpeg"), (b"fLaC", "audio/flac"), (b"\x1aE\xdf\xa3", "video/webm"),
)  # fmt: skip


def mime_of(data: bytes) -> str:
    """The MIME type of bytes, detected from their beginning, where no message gives it."""
    unknown = "application/octet-stream"
    if data[:4] == b"RIFF":
        return {b"WEBP": "image/webp", b"WAVE": "audio/wav"}.get(data[8:12], unknown)
    if data[4:8] == b"ftyp":
        return "audio/mp4" if data[8:11] in (b"M4A", b"M4B") else "video/mp4"
    return next((mime for magic, mime in _MAGIC if data.startswith(magic)), unknown)


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _decoded(encoded: str) -> bytes | None:
    """The bytes of base64 with or without padding, also in its form for addresses; None when it is none."""
    try:
        padded = encoded.rstrip("=")
        altchars = b"-_" if set("-_") & set(padded) else None
        return base64.b64decode(padded + "=" * (-len(padded) % 4), altchars=altchars, validate=True)
    except (ValueError, TypeError, AttributeError):
        return None


class Attachments:
    """The attachments of one store, as files in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, digest: str) -> Path:
        """The path of the bytes with this SHA-256."""
        return self.folder / digest[:2] / digest

    def file(self, digest: str) -> Path | None:
        """A file with these bytes, for programs that take a path; None where there may be none."""
        return self.path(digest)

    def read(self, digest: str) -> bytes:
        """The bytes with this SHA-256; OSError when they are not there."""
        return self.path(digest).read_bytes()

    def keep(self, data: bytes) -> str:
        """Store bytes once; returns their hash."""
        digest = _hash(data)
        target = self.path(digest)
        if not target.exists():
            make_private(self.folder)
            make_private(target.parent)
            write_whole(target, data)
        return digest

    def take_over(self, other: Read | None, digest: str, carried: bytes | str | None = None) -> bool:
        """Store the bytes that an export carries (also in base64), or those that another store has; returns whether they
        were missing here. Bytes that an export has under another hash are not taken."""
        if self.has(digest):
            return False
        data = carried if isinstance(carried, bytes) else _decoded(carried or "")
        if data is None or _hash(data) != digest:
            try:
                data = None if other is None else other(digest)
            except OSError:
                data = None
        if data is not None:
            self.keep(data)
        return data is not None

    def has(self, digest: str) -> bool:
        """Whether the bytes are stored."""
        return self.size(digest) is not None

    def size(self, digest: str) -> int | None:
        """The size of the bytes stored under this hash; None when there are none."""
        try:
            return self.path(digest).stat().st_size
        except OSError:
            return None

    def forget(self, digests: Iterable[str]) -> None:
        """Remove files that no message refers to any more."""
        for digest in digests:
            self.path(digest).unlink(missing_ok=True)

    def inlined(self, content: Any, kinds: Mapping[str, str], depth: int = 0) -> Any:
        """The content with payloads in place of references; `kinds` has by hash the MIME type that a message gave.

        Inside a longer text only references lifted from there are replaced: a text may also mention a file.
        """
        if isinstance(content, str):
            whole = _REFERENCE.fullmatch(content)
            return _REFERENCE.sub(lambda found: self._data_url(found, kinds, whole is not None), content)
        if depth > 50 or not isinstance(content, (list, dict)):
            return content
        if isinstance(content, list):
            return [self.inlined(item, kinds, depth + 1) for item in content]
        bare = _REFERENCE.fullmatch(content["data"]) if isinstance(content.get("data"), str) else None
        if bare is not None and isinstance(content.get("media_type") or content.get("format"), str):
            data = self._bytes(bare[1])
            if data is not None:
                content = {**content, "data": base64.b64encode(data).decode()}
        return {key: self.inlined(item, kinds, depth + 1) for key, item in content.items()}

    def _data_url(self, found: re.Match[str], kinds: Mapping[str, str], whole: bool) -> str:
        kind = kinds.get(found[1], "")
        data = self._bytes(found[1]) if whole or kind else None
        if data is None:
            return found[0]
        mime = kind if "/" in kind else mime_of(data)  # a bare format ("wav") was given by another part
        return f"data:{mime};base64,{base64.b64encode(data).decode()}"

    def _bytes(self, digest: str) -> bytes | None:
        try:
            return self.read(digest)
        except OSError:
            return None

    def lift(self, content: Any) -> tuple[Any, Lifted]:
        """The content with each base64 payload replaced by a reference, and the attachments it refers to.

        A reference to bytes stored here keeps them stored; one to unknown bytes is only text.
        """
        lifted: list[tuple[str, str, int]] = []
        content = self._lifted(content, lifted, 0)
        mimes = {digest: mime for digest, mime, _ in lifted if mime}  # one with a type overrides a mere mention
        return content, tuple({digest: (digest, mimes.get(digest, ""), size) for digest, _, size in lifted}.values())

    def _lifted(self, value: Any, lifted: list[tuple[str, str, int]], depth: int) -> Any:
        if isinstance(value, str):
            named = references(value) if PREFIX in value else ()
            lifted += [(digest, "", size) for digest, _, _ in named if (size := self.size(digest)) is not None]
            if ";base64," in value:
                return _DATA_URL.sub(lambda found: self._reference(found[2], found[1], lifted) or found[0], value)
            return value
        if depth > 50 or not isinstance(value, (list, dict)):
            return value
        if isinstance(value, list):
            return [self._lifted(item, lifted, depth + 1) for item in value]
        data = value.get("data")
        mime = value.get("media_type") or value.get("format")  # Anthropic's sources, OpenAI's input_audio
        if isinstance(data, str) and isinstance(mime, str) and len(data) >= 64:
            value = {**value, "data": self._reference(data, mime, lifted) or data}
        return {key: self._lifted(item, lifted, depth + 1) for key, item in value.items()}

    def _reference(self, encoded: str, mime: str, lifted: list[tuple[str, str, int]]) -> str | None:
        """Store a payload; the reference to it, or None when it is no base64."""
        data = _decoded(encoded)
        if data is None:
            return None
        digest = self.keep(data)
        lifted.append((digest, mime, len(data)))
        return PREFIX + digest


class TableAttachments(Attachments):
    """The attachments of a store that several hosts share, or that is encrypted: in a table by hash."""

    def __init__(self, engine: Engine, folder: Path) -> None:
        super().__init__(folder)
        self._engine = engine

    def file(self, digest: str) -> Path | None:
        """Of a shared store, a file of this host with these bytes; None in an encrypted one."""
        if not self._engine.shared:
            return None
        if not self.path(digest).exists() and (data := self._bytes(digest)) is not None:
            super().keep(data)
        return self.path(digest)

    def read(self, digest: str) -> bytes:
        """The bytes with this SHA-256; OSError when they are not there."""
        with self._engine.read() as tx:
            data = tx.value("SELECT data FROM attachment_data WHERE hash = ?", (digest,))
        if data is None:
            raise FileNotFoundError(f"the attachment {digest} is gone")
        return bytes(data)

    def keep(self, data: bytes) -> str:
        """Store bytes once; returns their hash."""
        digest = _hash(data)
        if not self.has(digest):
            sql = "INSERT INTO attachment_data(hash, data) VALUES(?, ?) ON CONFLICT DO NOTHING"
            with self._engine.write(exclusive=False) as tx:
                tx.run(sql, (digest, Blob(data)))
        return digest

    def size(self, digest: str) -> int | None:
        """The size of the bytes stored under this hash; None when there are none."""
        with self._engine.read() as tx:
            length = tx.value("SELECT length(data) FROM attachment_data WHERE hash = ?", (digest,))
        return None if length is None else int(length)

    def forget(self, digests: Iterable[str]) -> None:
        """Remove what no message refers to any more, and this host's files of it."""
        gone = list(digests)
        super().forget(gone)
        used = "SELECT 1 FROM attachments a WHERE a.hash = attachment_data.hash"
        if gone:
            with self._engine.write() as tx:
                for digest in gone:
                    tx.run(f"DELETE FROM attachment_data WHERE hash = ? AND NOT EXISTS ({used})", (digest,))
