"""A folder as the place where stores meet: Syncthing, a USB stick, a network mount.

    hermes-sync.json                       marks the folder, and has its version
    stores/<store>/sync-key                the key of what this store writes, if the folder is encrypted
    stores/<store>/ab/<session>.<version>  a session's document as a store knows it, packed with zstd
    attachments/ab/<hash>                  attachments, each once

A store writes in its own sub-folder only, under names made of the content, each file whole (a temporary file, fsync, rename):
a synchroniser never sees two versions of one file. A document that another store has put there already is not written again.

The folder of an encrypted store is encrypted, each file for itself: each store has a data key of its own there, wrapped by the
passphrase or key file that the stores share, so two that begin at the same time do not get in each other's way.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from hermes.errors import InvalidInput, StoreLocked
from hermes.home import key_file, sync_folder, write_whole
from hermes.store import keys
from hermes.store.exchange.replica import Replica

if TYPE_CHECKING:
    from hermes.store.api.session_db import SessionDB

_MARK = "hermes-sync.json"
_PLAIN, _ENCRYPTED = 1, 2  # versions: programs that know no encrypted folders must not write plain files into one
_KEY = "sync"  # stores/<store>/sync-key
_NAME = re.compile(r"([0-9a-f]{32})\.([0-9a-f]{32}\.(?:full|[0-9a-f]{12})(?:-[0-9a-f]{12})?)")
_HASH = re.compile("[0-9a-f]{64}")
_SEALED = b"\x8bHERMES\x01"  # how an encrypted file begins; then the id of its key, a nonce, and the content


class UnreadableFile(OSError):
    """A file of an encrypted folder that was not encrypted with one of its keys, under this name."""


class FolderPlace:
    """Documents in a folder. It is encrypted if the store that uses it first is, unless `plain` is wanted.

    StoreLocked when the folder's key is not that of this store, or unknown; nothing is written then.
    """

    def __init__(self, folder: Path, db: SessionDB, *, plain: bool = False) -> None:
        self._folder, self._own = folder, folder / "stores" / Replica(db).store
        self._paths: dict[tuple[str, str], list[Path]] = {}
        self._keys: dict[str, keys.DataKey] = {}  # to read with, by id
        vault = None if db.is_shared else keys.vault_of(db.path)
        self._key = self._prepare(vault, plain)

    def _prepare(self, vault: keys.Vault | None, plain: bool) -> keys.DataKey | None:
        """The key to write with, of a folder that is ready; None: it is not encrypted."""
        if not self._folder.is_dir():
            raise InvalidInput(f"{self._folder} is not a folder; create it, or connect the disk it is on")
        mark = self._folder / _MARK
        version = _version_of(mark) if mark.exists() else None
        if version is None and any(
            not file.name.startswith(".") and file.name not in ("stores", "attachments")
            for file in self._folder.iterdir()
        ):
            raise InvalidInput(f"{self._folder} holds other files; name an empty folder, or a new one below it")
        others = sorted(self._folder.glob(f"stores/*/{key_file(Path(_KEY)).name}"))
        if version is None:  # a new folder, or one of which only a part has arrived
            found = _version_by_documents(self._folder) or (_ENCRYPTED if others else None)
            encrypted = found == _ENCRYPTED or (found is None and vault is not None and not plain)
        else:
            encrypted = version == _ENCRYPTED
        if vault is not None and not encrypted and not plain:
            raise InvalidInput(
                f"{self._folder} is not encrypted, and this store is; name an empty folder, or pass --plain to write there all"
                " the same"
            )
        key = self._unlock(others, vault) if encrypted else None
        if version is None:
            content = {"hermes sessions": "sync", "version": _ENCRYPTED if encrypted else _PLAIN}
            _write(mark, (json.dumps(content) + "\n").encode())
        return key

    def _unlock(self, others: list[Path], vault: keys.Vault | None) -> keys.DataKey:
        """The key of what this store writes; the others' keys are loaded, to read by."""
        own = self._own / _KEY
        known = [keys.vault_of(path.with_name(_KEY)) for path in others]
        if key_file(own) in others:
            mine = known[others.index(key_file(own))]
        else:
            way = next((one.way for one in known if one is not None), None) or _way(vault, self._folder)
            mine = keys.new_vault(way)
            own.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            keys.save(own, mine)
        if mine is None:
            raise StoreLocked(f"{key_file(own)} is gone; try again")
        self._keys = {one.key.id: one.key for one in (*known, mine) if one is not None}
        return mine.key

    def offers(self) -> dict[str, set[str]]:
        """By key, the versions of the document that are there, of all stores."""
        self._paths = {}
        stores = self._folder / "stores"
        for left in self._own.glob("*/.*.part"):  # by a process of this store that was killed
            if not _runs(left):
                left.unlink(missing_ok=True)
        for path in stores.glob("*/*/*") if stores.is_dir() else ():
            if (found := _NAME.fullmatch(path.name)) is not None:
                self._paths.setdefault((found[1], found[2]), []).append(path)
        offered: dict[str, set[str]] = {}
        for key, version in self._paths:
            offered.setdefault(key, set()).add(version)
        return offered

    def fetch(self, key: str, version: str) -> bytes:
        """A document; the first of its copies that is there."""
        error: Exception = FileNotFoundError(f"{key}.{version}")
        for path in self._paths.get((key, version), ()):
            try:
                return self._read(path)
            except OSError as failed:
                error = failed
        raise error

    def give(self, key: str, version: str, data: bytes) -> None:
        """Write a document."""
        self._write(self._own / key[:2] / f"{key}.{version}", data)

    def drop(self, key: str, versions: set[str]) -> list[bytes]:
        """Remove earlier versions that this store wrote."""
        dropped = []
        for version in versions:
            path = self._own / key[:2] / f"{key}.{version}"
            if path.is_file():
                with contextlib.suppress(UnreadableFile):
                    dropped.append(self._read(path))
                path.unlink(missing_ok=True)
        return dropped

    def drop_attachment(self, digest: str) -> None:
        """Remove an attachment."""
        self._attachment(digest).unlink(missing_ok=True)

    def lacks(self, digests: list[str]) -> list[str]:
        """The attachments that are not there."""
        return [digest for digest in digests if not self._attachment(digest).is_file()]

    def fetch_attachment(self, digest: str) -> bytes | None:
        """The bytes of an attachment; None while they have not arrived."""
        try:
            data = self._read(self._attachment(digest))
        except OSError:
            return None
        return data if hashlib.sha256(data).hexdigest() == digest else None

    def give_attachment(self, digest: str, data: bytes) -> None:
        """Write an attachment."""
        self._write(self._attachment(digest), data)

    def _read(self, path: Path) -> bytes:
        """The content of a file. In an encrypted folder only what was encrypted under this name counts."""
        raw = path.read_bytes()
        if self._key is None:
            return raw
        if not raw.startswith(_SEALED):
            raise UnreadableFile(f"{path} is not encrypted, though its folder is; remove it")
        key = self._keys.get(raw[8:16].hex())
        if key is None:
            raise UnreadableFile(f"{path} is encrypted with a key that is not in the folder (yet)")
        cipher = keys.aead(key.for_files())
        from cryptography.exceptions import InvalidTag

        try:
            return bytes(cipher.decrypt(raw[16:28], raw[28:], path.name.encode()))
        except (InvalidTag, ValueError):
            raise UnreadableFile(f"{path} is damaged, or was written under another name; remove it") from None

    def _write(self, path: Path, data: bytes) -> None:
        if self._key is not None:
            nonce, cipher = os.urandom(12), keys.aead(self._key.for_files())
            data = _SEALED + bytes.fromhex(self._key.id) + nonce + cipher.encrypt(nonce, data, path.name.encode())
        _write(path, data)

    def _attachment(self, digest: str) -> Path:
        if _HASH.fullmatch(digest) is None:
            raise InvalidInput(f"{digest!r} is no attachment")
        return self._folder / "attachments" / digest[:2] / digest


def _version_of(mark: Path) -> int:
    try:
        version = int(json.loads(mark.read_bytes())["version"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InvalidInput(f"{mark} can't be read ({error}); let the synchronisation of the folder finish") from error
    if version > _ENCRYPTED:
        raise InvalidInput(f"{mark.parent} was written by a newer version of hermes; update this one")
    return version


def _version_by_documents(folder: Path) -> int | None:
    """The version of a folder without its mark, read from a document in it; None without one."""
    for path in folder.glob("stores/*/*/*"):
        if _NAME.fullmatch(path.name) is not None:
            with path.open("rb") as file:
                return _ENCRYPTED if file.read(len(_SEALED)) == _SEALED else _PLAIN
    return None


def _way(vault: keys.Vault | None, folder: Path) -> keys.Way:
    """The secret that opens a new key of the folder: the store's, if other machines can have it, too."""
    if vault is not None and vault.way.kind != "keyring":
        return vault.way
    place = os.environ.get(keys.PASSPHRASE_FILE)
    if place:
        return keys.by_passphrase(keys.read_passphrase(Path(place)))
    place = os.environ.get(keys.KEY_FILE)
    if place:
        return keys.by_file(Path(place))
    raise InvalidInput(
        f"the key of this store is in the system's keyring, which no other machine has; give {folder} a passphrase: set"
        f" {keys.PASSPHRASE_FILE} to a file with it, on each machine"
    )


def _runs(part: Path) -> bool:
    """Whether the process that writes this file still runs."""
    try:
        os.kill(int(part.name.split(".")[-2]), 0)
    except (ValueError, ProcessLookupError):
        return False
    except PermissionError:
        pass
    return True


def _write(target: Path, data: bytes) -> None:
    """Write a file whole or not at all."""
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_whole(target, data)
    sync_folder(target.parent)
