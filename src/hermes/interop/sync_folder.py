"""A folder as the place where stores meet: Syncthing, a USB stick, a network mount.

    hermes-sync.json                       what this is, and its version
    stores/<store>/ab/<session>.<version>  a session's document as a store knows it, packed with zstd
    attachments/ab/<hash>                  attachments, each once

A store writes in its own sub-folder only, under names that say the content, each file whole (a temporary file, fsync, rename):
a synchroniser never sees two versions of one file. A document that another store has put there already is not written again.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from pathlib import Path

from hermes.errors import InvalidInput

_MARK = "hermes-sync.json"
_VERSION = 1
_NAME = re.compile(r"([0-9a-f]{32})\.([0-9a-f]{32}\.(?:full|[0-9a-f]{12})(?:-[0-9a-f]{12})?)")
_HASH = re.compile("[0-9a-f]{64}")


class FolderPlace:
    """Documents in a folder. `store` is the permanent id of the store that writes."""

    def __init__(self, folder: Path, store: str) -> None:
        self._folder, self._own = folder, folder / "stores" / store
        self._paths: dict[tuple[str, str], list[Path]] = {}
        self._prepare()

    def _prepare(self) -> None:
        mark = self._folder / _MARK
        if not self._folder.is_dir():
            raise InvalidInput(f"{self._folder} is no folder; create it, or connect the disk it is on")
        if mark.exists():
            try:
                version = json.loads(mark.read_bytes())["version"]
            except (OSError, ValueError, KeyError, TypeError) as error:
                raise InvalidInput(
                    f"{mark} can't be read ({error}); let the synchronisation of the folder finish"
                ) from error
            if version > _VERSION:
                raise InvalidInput(f"{self._folder} was written by a newer version of hermes; update this one")
            return
        if any(
            not one.name.startswith(".") and one.name not in ("stores", "attachments") for one in self._folder.iterdir()
        ):
            raise InvalidInput(f"{self._folder} holds other files; name an empty folder, or a new one below it")
        _write(mark, (json.dumps({"hermes sessions": "sync", "version": _VERSION}) + "\n").encode())

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
                return path.read_bytes()
            except OSError as failed:
                error = failed
        raise error

    def give(self, key: str, version: str, data: bytes) -> None:
        """Write a document."""
        _write(self._own / key[:2] / f"{key}.{version}", data)

    def drop(self, key: str, versions: set[str]) -> list[bytes]:
        """Remove earlier versions that this store wrote."""
        dropped = []
        for version in versions:
            path = self._own / key[:2] / f"{key}.{version}"
            if path.is_file():
                dropped.append(path.read_bytes())
                path.unlink(missing_ok=True)
        return dropped

    def drop_attachment(self, digest: str) -> None:
        """Remove an attachment."""
        self._attachment(digest).unlink(missing_ok=True)

    def lacks(self, digests: list[str]) -> list[str]:
        """The attachments that are not there."""
        return [one for one in digests if not self._attachment(one).is_file()]

    def fetch_attachment(self, digest: str) -> bytes | None:
        """The bytes of an attachment; None while they have not arrived."""
        try:
            data = self._attachment(digest).read_bytes()
        except OSError:
            return None
        return data if hashlib.sha256(data).hexdigest() == digest else None

    def give_attachment(self, digest: str, data: bytes) -> None:
        """Write an attachment."""
        _write(self._attachment(digest), data)

    def _attachment(self, digest: str) -> Path:
        if _HASH.fullmatch(digest) is None:
            raise InvalidInput(f"{digest!r} is no attachment")
        return self._folder / "attachments" / digest[:2] / digest


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
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(part, target)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    folder = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
