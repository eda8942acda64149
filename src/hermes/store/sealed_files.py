"""The files around an encrypted database: transcripts, prompts, attachments, drafts, spools and the prompt's history.

A sealed file is a header and pieces, each encrypted and authenticated by itself (ChaCha20-Poly1305, a key of its own for
each file, a random nonce for each piece). A file that is written whole is one piece. A file that is appended to has a piece
for each write: one that a crash tore costs that piece, since a reader goes on at the next. A file without the
header is plain and read as it is, so both kinds may lie side by side while a store is encrypted or decrypted.
"""

from __future__ import annotations

import io
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from hermes.errors import StoreError
from hermes.whole_files import write_whole

if TYPE_CHECKING:
    from hermes.store import encryption_keys

MAGIC = b"\x8bHERMES\x01"
HEADER = len(MAGIC) + 8 + 16  # the id of the data key and that of the file
_MARK = b"\xf5\x9dHP"
_FRONT = struct.Struct("<4sI12s")  # the mark, the length of what follows the front, the nonce
_TAG = 16
WHOLE = HEADER + _FRONT.size + _TAG  # bytes a whole file has more than its content


class DamagedFile(OSError):
    """A sealed file whose content can't be decrypted."""


class Seal:
    """One sealed file: makes and reads its pieces."""

    def __init__(self, key: encryption_keys.DataKey, file_id: bytes | None = None) -> None:
        from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

        self._file_id = file_id if file_id is not None else os.urandom(16)
        self.header = MAGIC + bytes.fromhex(key.id) + self._file_id
        self._cipher = ChaCha20Poly1305(key.for_file(self._file_id))

    def piece(self, data: bytes) -> bytes:
        """One piece of the file."""
        nonce = os.urandom(12)
        return _FRONT.pack(_MARK, len(data) + _TAG, nonce) + self._cipher.encrypt(nonce, data, self.header)

    def _opened(self, raw: bytes, at: int) -> tuple[bytes, int] | None:
        """The piece at this place and where it ends; None when there is none or it is damaged."""
        if len(raw) - at < _FRONT.size + _TAG:
            return None
        mark, length, nonce = _FRONT.unpack_from(raw, at)
        end = at + _FRONT.size + length
        if mark != _MARK or length < _TAG or end > len(raw):
            return None
        from cryptography.exceptions import InvalidTag

        try:
            return self._cipher.decrypt(nonce, raw[at + _FRONT.size : end], self.header), end
        except InvalidTag:
            return None

    def pieces(self, raw: bytes, at: int = 0) -> Iterator[tuple[bytes, bool]]:
        """The pieces in these bytes from a place on: (content, True), or (bytes that are no whole piece, False)."""
        torn, search = at, at + 1
        while at < len(raw):
            found = self._opened(raw, at)
            if found is None:
                following = raw.find(_MARK, search)
                at = following if following >= 0 else len(raw)
                search = at + 1
                continue
            if torn < at:
                yield raw[torn:at], False
            data, at = found
            torn = at
            # A write that was cut short by a byte or two may end as the next mark begins (one time in 256): its last
            # bytes are then those of the mark, and the next piece begins before this one ends.
            search = at - len(_MARK) + 1
            yield data, True
        if torn < len(raw):
            yield raw[torn:], False


def is_sealed(start: bytes) -> bool:
    """Whether these are the first bytes of a sealed file."""
    return start.startswith(MAGIC)


def seal_of(start: bytes, path: Path) -> Seal | None:
    """The seal of a file that begins with these bytes, None for a plain one. StoreLocked when its key is not here."""
    if not start.startswith(MAGIC) or len(start) < HEADER:
        return None
    from hermes.store import encryption_keys

    return Seal(encryption_keys.key_named(start[8:16].hex(), path), start[16:HEADER])


def key_id(path: Path) -> str | None:
    """Which data key a file is sealed with; None for a plain file."""
    with path.open("rb") as file:
        start = file.read(HEADER)
    return start[8:16].hex() if is_sealed(start) and len(start) == HEADER else None


def sealed(data: bytes, key: encryption_keys.DataKey | None) -> bytes:
    """The bytes of a file with this content, written whole; without a key the content itself."""
    if key is None:
        return data
    seal = Seal(key)
    return seal.header + seal.piece(data)


def unsealed(raw: bytes, path: Path) -> bytes:
    """The content of a file from its bytes. DamagedFile when a part of it is damaged."""
    if not is_sealed(raw):
        return raw
    try:
        seal = seal_of(raw[:HEADER], path)
    except StoreError as error:
        raise DamagedFile(str(error)) from error
    found = [] if seal is None else list(seal.pieces(raw, HEADER))
    if not found or not all(whole for _, whole in found):
        raise DamagedFile(f"{path} is encrypted, and damaged")
    return found[0][0] if len(found) == 1 else b"".join(data for data, _ in found)


def read_bytes(path: Path) -> bytes:
    """The content of a file, sealed or plain."""
    return unsealed(path.read_bytes(), path)


def content_size(path: Path) -> int:
    """The size of the content of a file that was written whole, without reading it."""
    with path.open("rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        return max(size - WHOLE, 0) if is_sealed(file.read(len(MAGIC))) else size


def lines(path: Path) -> Iterator[bytes]:
    """The lines of a file that is appended to. Torn bytes of a sealed one come as one line, which is no text."""
    with path.open("rb") as file:
        start = file.read(HEADER)
        if not is_sealed(start):
            file.seek(0)
            yield from file
            return
        raw = file.read()
    try:
        seal = seal_of(start, path)
    except StoreError as error:
        raise DamagedFile(str(error)) from error
    for data, whole in seal.pieces(raw) if seal is not None else [(start, False)]:
        if whole:
            yield from io.BytesIO(data)
        else:
            yield b"\xff" + data.replace(b"\n", b"") + b"\n"


def content(path: Path) -> bytes:
    """Everything that can be read of a file that is appended to."""
    return b"".join(lines(path))


def put(path: Path, data: bytes, key: encryption_keys.DataKey | None, *, sync: bool = True) -> None:
    """Write a file whole, sealed with this key or plain, beside itself and then in its place."""
    write_whole(path, sealed(data, key), sync=sync)


class Appending:
    """The file behind a descriptor that several processes append to, each while it holds the file's lock."""

    def __init__(self, path: Path, key: encryption_keys.DataKey | None) -> None:
        self._path = path
        self._key = key
        self._seal: Seal | None = None
        self._plain = False  # and it stays so: a file changes its kind while no process has the store open

    def at_start(self, handle: int, size: int) -> bytes:
        """What stands before the first write; decides, for this moment, whether the file is sealed."""
        if self._plain:
            return b""
        if size:
            start = os.pread(handle, HEADER, 0)
            if is_sealed(start) and len(start) == HEADER:
                if self._seal is None or self._seal.header != start:
                    self._seal = seal_of(start, self._path)
                return b""
            if not MAGIC.startswith(start[: len(MAGIC)]):
                self._plain, self._seal = self._key is None, None
                return b""
            os.ftruncate(handle, 0)  # a header that was torn: nothing stands behind it
        self._seal = Seal(self._key) if self._key is not None else None
        return self._seal.header if self._seal is not None else b""

    @property
    def is_sealed(self) -> bool:
        """Whether the file is sealed (after `at_start`)."""
        return self._seal is not None

    def news(self, raw: bytes, at: int) -> bytes:
        """The content of bytes that were read at this place of the file."""
        if self._seal is None:
            return raw
        return b"".join(data for data, whole in self._seal.pieces(raw[max(HEADER - at, 0) :]) if whole)

    def made(self, data: bytes) -> bytes:
        """Data as it is appended."""
        return self._seal.piece(data) if self._seal is not None else data
