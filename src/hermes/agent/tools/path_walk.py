"""Opening a path that was checked, and no other: folder by folder, without following a link.

A path is checked after its links were followed. Until it is opened, another program can put a link in place of one of its
folders, and the plain name would lead elsewhere. Every step here is taken from the open folder above it, and a link is an error.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from hermes.errors import ToolError

# To pass through a folder takes no right to list it: Linux has O_PATH for that, others O_SEARCH.
_THROUGH: Final = getattr(os, "O_PATH", getattr(os, "O_SEARCH", os.O_RDONLY))
_FOLDER: Final = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@contextmanager
def walked(path: Path, *, make: bool = False, listed: bool = False) -> Iterator[int]:
    """A descriptor of the folder at this path, which has no links in it. `make`: missing folders are made; `listed`: it is read.

    OSError if there is none; ToolError if one of its folders is a link by now.
    """
    handle = os.open(path.anchor, _THROUGH | _FOLDER)
    try:
        for number, name in enumerate(path.parts[1:], 2):
            flags = (os.O_RDONLY if listed and number == len(path.parts) else _THROUGH) | _FOLDER
            try:
                below = _step(handle, name, flags, path)
            except FileNotFoundError:
                if not make:
                    raise
                with suppress(FileExistsError):
                    os.mkdir(name, dir_fd=handle)
                below = _step(handle, name, flags, path)
            os.close(handle)
            handle = below
        yield handle
    finally:
        os.close(handle)


@contextmanager
def opened(path: Path) -> Iterator[int]:
    """A descriptor for reading the file at this path, which has no links in it; errors as `walked`."""
    with walked(path.parent) as folder:
        handle = _step(folder, path.name, _FILE, path)
    try:
        yield handle
    finally:
        os.close(handle)


def _step(folder: int, name: str, flags: int, path: Path) -> int:
    try:
        return os.open(name, flags, dir_fd=folder)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.EMLINK) and is_link(folder, name):
            raise ToolError(f"{path}: {name} became a link meanwhile; nothing was done") from error
        raise


def is_link(folder: int, name: str) -> bool:
    """Whether this entry of an open folder is a symbolic link."""
    try:
        return stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
    except OSError:
        return False
