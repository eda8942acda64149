"""Which folders had a file written: by inotify where the system has it, else by looking at the times of their files.

Nothing here opens the files, so the programs that write them notice nothing.
"""

from __future__ import annotations

import ctypes
import os
import select
import struct
import sys
import time
from collections.abc import Iterable
from pathlib import Path

_MODIFY, _CLOSE_WRITE, _MOVED_TO, _CREATE, _DELETE_SELF = 0x2, 0x8, 0x80, 0x100, 0x400
_MASK = _MODIFY | _CLOSE_WRITE | _MOVED_TO | _CREATE | _DELETE_SELF
_IS_FOLDER, _OVERFLOW = 0x40000000, 0x4000
_EVENT = struct.Struct("iIII")
_POLL_SECONDS = 1.0


class FileEvents:
    """Watches folders and everything below them."""

    def __init__(self, folders: Iterable[Path]) -> None:
        self._roots = list(folders)
        self._descriptor = -1
        self._folders: dict[int, Path] = {}
        self._times: dict[Path, tuple[int, int]] = {}
        if sys.platform == "linux":
            self._libc = ctypes.CDLL(None, use_errno=True)
            self._descriptor = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        for root in self._roots:
            if self._descriptor >= 0:
                self._watch(root)
        if self._descriptor < 0:
            self._times = self._looked()

    def _watch(self, folder: Path) -> None:
        """Watch a folder and those below it; where the system allows no more of them, look at the times instead."""
        for path, _, _ in os.walk(folder):
            number = self._libc.inotify_add_watch(self._descriptor, os.fsencode(path), _MASK)
            if number >= 0:
                self._folders[number] = Path(path)
            elif os.path.isdir(path):
                self.close()
                return

    def wait(self, seconds: float) -> set[Path]:
        """The files (or folders) that were written to; empty when nothing happened for so long."""
        if self._descriptor >= 0:
            return self._read(seconds)
        until = time.monotonic() + seconds
        while True:
            now = self._looked()
            changed = {path for path, stamp in now.items() if self._times.get(path) != stamp}
            self._times = now
            left = until - time.monotonic()
            if changed or left <= 0:
                return changed
            time.sleep(min(_POLL_SECONDS, left))

    def _read(self, seconds: float) -> set[Path]:
        ready, _, _ = select.select([self._descriptor], [], [], seconds)
        if not ready:
            return set()
        try:
            data = os.read(self._descriptor, 1 << 16)
        except BlockingIOError:
            return set()
        changed: set[Path] = set()
        at = 0
        while at + _EVENT.size <= len(data):
            number, mask, _, length = _EVENT.unpack_from(data, at)
            name = data[at + _EVENT.size : at + _EVENT.size + length].rstrip(b"\0")
            at += _EVENT.size + length
            if mask & _OVERFLOW:
                return set(self._roots)  # events were lost: everything may have changed
            folder = self._folders.get(number)
            if folder is None:
                continue
            path = folder / os.fsdecode(name) if name else folder
            if mask & _IS_FOLDER and mask & (_CREATE | _MOVED_TO) and self._descriptor >= 0:
                self._watch(path)
            changed.add(path)
        return changed

    def _looked(self) -> dict[Path, tuple[int, int]]:
        found: dict[Path, tuple[int, int]] = {}
        for root in self._roots:
            for path, _, names in os.walk(root):
                for name in names:
                    try:
                        seen = os.stat(os.path.join(path, name))
                    except OSError:
                        continue
                    found[Path(path, name)] = (seen.st_mtime_ns, seen.st_size)
        return found

    def close(self) -> None:
        """Stop watching by inotify."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
            self._folders.clear()
