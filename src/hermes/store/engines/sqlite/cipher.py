"""The database file, encrypted page by page with SQLCipher (AES-256, each page authenticated).

A file is encrypted when its key file is beside it and it does not begin as a plain SQLite file does: so the one rename
that puts an encrypted copy in place of a plain file (or the reverse) decides, at any moment of a move.
"""

from __future__ import annotations

import zlib
from pathlib import Path

from hermes.errors import HermesError, StoreLocked
from hermes.home import has_key_file, key_file
from hermes.store.engines.sqlite.connection import Connection, beginning

_PLAIN = b"SQLite format 3\0"
_PAGE = 4096  # bytes of an encrypted page, which are as good as random


def key_of(path: Path) -> str | None:
    """The key of a database in hexadecimal; None for a plain one. StoreLocked when it can't be had."""
    if not is_encrypted(path):
        return None
    from hermes.store import encryption_keys

    vault = encryption_keys.vault_of(path)
    return None if vault is None else vault.key.for_database()


def copy(source: Connection, target: Path, key: str | None) -> None:
    """Write a whole copy of the database into a new or empty file, with this key or none. The source is SQLCipher's."""
    source.execute("ATTACH DATABASE ? AS copy KEY ?", (str(target), "" if key is None else f"x'{key}'"))
    try:
        source.execute("PRAGMA copy.auto_vacuum=INCREMENTAL")
        source.execute("SELECT sqlcipher_export('copy')").fetchall()
        for name in ("application_id", "user_version"):
            (value,) = source.execute(f"PRAGMA main.{name}").fetchone()
            source.execute(f"PRAGMA copy.{name}={value}")
    finally:
        source.execute("DETACH DATABASE copy")


def is_encrypted(path: Path) -> bool:
    """Whether a database is encrypted, or will be when it is made."""
    return has_key_file(path) and not is_plain(path)


def is_plain(path: Path) -> bool:
    """Whether a file begins as an unencrypted SQLite file does."""
    return beginning(path, len(_PLAIN)) == _PLAIN


def unreadable(path: Path) -> HermesError | None:
    """The error for a file that is no database for SQLite, if it looks like an encrypted one; else None."""
    start = beginning(path, _PAGE)
    if start[: len(_PLAIN)] == _PLAIN or len(start) < _PAGE or len(zlib.compress(start)) < _PAGE:
        return None
    name, back = key_file(path).name, "put it back from a backup"
    if has_key_file(path):
        why = f"its key file {name} is another store's or an earlier one, or the database is damaged"
        return StoreLocked(f"{path} is encrypted, and can't be read: {why}; {back}")
    return StoreLocked(f"{path} is encrypted and its key file {name} is not beside it; {back}")
