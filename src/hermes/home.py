"""Paths and files: the home, what belongs to one database, and how files are written that several processes share.

Everything a user owns lies below one directory that only they can read; a database that lives elsewhere takes its transcripts and
attachments along, beside it. A shared file has one writer at a time, and is replaced in one step: a reader sees the old content
or the new one, also after a crash.
"""

from __future__ import annotations

import errno
import fcntl
import os
import random
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from hermes.errors import StoreError

LOCK_SECONDS = 10.0
_FIRST, _LAST = 0.000_2, 0.002  # seconds between two tries to lock a file


def get_hermes_home() -> Path:
    """`$HERMES_HOME`, else `~/.hermes`. Not created here."""
    home = os.environ.get("HERMES_HOME")
    return Path(home).expanduser() if home else Path.home() / ".hermes"


def default_database() -> Path:
    """The database that `SessionDB()` opens."""
    return settled(get_hermes_home() / "state.db")


def companion(database: Path, what: str) -> Path:
    """The folder `what` that belongs to a database: `sessions` beside `state.db`, `X.sessions` beside `X.db`."""
    name = what if database.name == "state.db" else f"{database.stem}.{what}"
    return database.parent / name


def key_file(database: Path) -> Path:
    """The path of the wrapped key of an encrypted database."""
    return database.with_name(database.name + "-key")


def has_key_file(database: Path) -> bool:
    """Whether a database is encrypted, or is being encrypted or decrypted."""
    return os.path.exists(f"{database}-key")


def in_encrypted_home(path: Path) -> bool:
    """Whether a file lies below the folder of an encrypted database: no readable text of a conversation is written there."""
    return any(any(folder.glob("*.db-key")) for folder in list(path.absolute().parents)[:4])


def settled(database: Path | str) -> Path:
    """A database's path, whatever the working directory is later and by whichever link it is named."""
    path = Path(os.path.abspath(Path(database).expanduser()))
    return path.resolve() if path.is_symlink() else path


def make_private(folder: Path) -> None:
    """Create a folder that only its owner can read; an existing one is left as it is."""
    if not folder.is_dir():
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError) as error:
            raise StoreError(f"{folder} is needed as a folder, but a file is in its place") from error


def project_folder(folder: Path) -> Path:
    """The project that a folder belongs to: the git root above it, else the folder itself."""
    return next((one for one in (folder, *folder.parents) if (one / ".git").exists()), folder)


# ------------------------------------------------------------------------------------------ files


def write_whole(path: Path, content: bytes | str | Iterable[bytes], *, sync: bool = True) -> None:
    """Create or replace a file in one step; only its owner can read it. Its folder must exist.

    `sync`: wait until the disk has it, so that a power cut does not leave an empty file in the place of the old one.
    """
    pieces = [content.encode()] if isinstance(content, str) else [content] if isinstance(content, bytes) else content
    part = path.with_name(f".{path.name[:100]}.{threading.get_native_id()}.{os.getpid()}.part")
    handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.writelines(pieces)
            if sync:
                stream.flush()
                os.fsync(stream.fileno())
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def sync_folder(folder: Path) -> None:
    """Wait until the disk has the names in a folder: without it, a power cut may lose a new file."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def lock_within(handle: int, seconds: float) -> bool:
    """Lock an open file; False if another process holds it for `seconds`, or the file system has no locks."""
    pause, end = _FIRST, 0.0
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            end = end or time.monotonic() + seconds
            if time.monotonic() >= end:
                return False
        except OSError:
            return False
        time.sleep(random.uniform(0.5, 1.5) * pause)
        pause = min(1.2 * pause, _LAST)


@contextmanager
def locked(file: Path, seconds: float = LOCK_SECONDS) -> Iterator[None]:
    """Hold a lock file, made if it is missing, against other processes during this block; TimeoutError after `seconds`."""
    handle = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if not lock_within(handle, seconds):
            raise TimeoutError(errno.EAGAIN, "another program is writing there; try again in a moment")
        yield
    finally:
        os.close(handle)  # this also releases the lock
