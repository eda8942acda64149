"""The database file, encrypted page by page with SQLite3 Multiple Ciphers (AEGIS-256).

A file is encrypted when its key file is beside it and it does not begin as a plain SQLite file does: so the one rename
that puts an encrypted copy in place of a plain file (or the reverse) decides, at any moment of a move.
"""

from __future__ import annotations

import os
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import apsw

from hermes.errors import HermesError, StoreLocked
from hermes.home import companion, has_key_file, key_file

if TYPE_CHECKING:
    from hermes.store import encryption_keys

IS_HERE = hasattr(apsw, "mc_version")
CIPHER = "aegis"  # AEGIS-256: authenticated, and a quarter of the time of ChaCha20 where the processor has AES
_PLAIN = b"SQLite format 3\0"
_FIELDS = slice(21, 24)  # of the header: constants of every SQLite file, which the cipher leaves readable
_CONSTANTS = b"\x40\x20\x20"
_ZEROS = slice(72, 92)  # of every plain file, also of one whose first bytes are damaged
_LOOKED_AT = 20  # transcripts
_descriptors: dict[tuple[int, int], int] = {}


class NoCipher(StoreLocked):
    """An encrypted file, and an SQLite that can't read it."""


def apply(connection: apsw.Connection) -> None:
    """Give a new connection the key of its file, if that is encrypted. StoreLocked when there is no key for it."""
    path = Path(connection.filename)
    if not connection.filename or not has_key_file(path) or is_plain(path):
        return
    _require_cipher(path)
    from hermes.store import encryption_keys

    try:
        vault = encryption_keys.vault_of(path)
        if vault is not None:
            set_key(connection, key_of(path, vault))
    except HermesError:
        connection.close()
        raise


def vault_of(path: Path) -> encryption_keys.Vault | None:
    """The vault of a database that is encrypted, or is being encrypted or decrypted."""
    if not has_key_file(path):
        return None
    from hermes.store import encryption_keys

    return encryption_keys.vault_of(path)


def give_key_file(path: Path, copy: Path) -> None:
    """Put a copy of the key file beside a copy of the database."""
    handle = os.open(key_file(copy), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(handle, "wb") as stream:
        stream.write(key_file(path).read_bytes())
        stream.flush()
        os.fsync(stream.fileno())


def key_of(path: Path, vault: encryption_keys.Vault) -> encryption_keys.DataKey:
    """The key of an encrypted database file: of two, while a new one is taken into use, the one that reads it."""
    if len(vault.keys) == 1:
        return vault.current
    return next((one for one in vault.keys if _opens(path, one)), vault.current)


def set_key(connection: apsw.Connection, key: encryption_keys.DataKey) -> None:
    """Encrypt or decrypt what this connection writes and reads from now on."""
    connection.pragma("cipher", CIPHER)
    connection.pragma("key", f"raw:{key.for_database()}")


def _opens(path: Path, key: encryption_keys.DataKey) -> bool:
    """Whether this key reads the file (while a new data key is taken into use there are two)."""
    address = f"{path.absolute().as_uri()}?immutable=1"
    probe = apsw.Connection(address, flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI)
    try:
        set_key(probe, key)
        probe.execute("SELECT count(*) FROM sqlite_master").fetchone()
        return True
    except apsw.Error:
        return False
    finally:
        probe.close()


def copy(connection: apsw.Connection, target: Path, key: encryption_keys.DataKey | None) -> None:
    """Write a whole copy of the database into a new file, with this key or none."""
    how = f"?cipher={CIPHER}&key=raw:{key.for_database()}" if key is not None else "?key="  # else it is the source's
    connection.execute("VACUUM INTO ?", (f"{target.absolute().as_uri()}{how}",))


def is_plain(path: Path) -> bool:
    """Whether a file begins as an unencrypted SQLite file does. (It is not closed here: that would drop SQLite's locks.)"""
    return _start(path)[: len(_PLAIN)] == _PLAIN


def looks_encrypted(path: Path) -> bool:
    """Whether a file that SQLite can't read looks like one that is encrypted and has lost its key file."""
    start = _start(path)
    return start[: len(_PLAIN)] != _PLAIN and start[_FIELDS] == _CONSTANTS and any(start[_ZEROS])


def unreadable(path: Path) -> HermesError | None:
    """The error for a file that is no database for SQLite, if it looks like an encrypted one; else None."""
    if not looks_encrypted(path):
        return None
    try:
        _require_cipher(path)
    except NoCipher as error:
        return error
    if has_key_file(path):
        return _stale_key(path)
    return StoreLocked(
        f"{path} is encrypted and its key file {key_file(path).name} is not beside it; put that file back (each"
        " backup has a copy of it)"
    )


def _stale_key(path: Path) -> HermesError | None:
    """The error when the key file is an old copy, which the transcripts tell by their keys; None: the file is damaged."""
    from hermes.store import sealed_files

    vault = vault_of(path)
    named = {sealed_files.key_id(one) for one in islice(companion(path, "sessions").glob("*.jsonl"), _LOOKED_AT)} - {
        None
    }
    if vault is None or not named or named & {key.id for key in vault.keys}:
        return None
    return StoreLocked(
        f"{path} is encrypted, and {key_file(path).name} is the key file of an earlier time; put back the one made by the"
        " last `hermes sessions rekey`"
    )


def _require_cipher(path: Path) -> None:
    if not IS_HERE:
        raise NoCipher(
            f"{path} is encrypted, and the installed SQLite can't read that: pip install --force-reinstall apsw-sqlite3mc"
        )


def _start(path: Path) -> bytes:
    try:
        found = path.stat()
        key = (found.st_dev, found.st_ino)
        if key not in _descriptors:
            _descriptors[key] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        return os.pread(_descriptors[key], 100, 0)
    except OSError:
        return b""
