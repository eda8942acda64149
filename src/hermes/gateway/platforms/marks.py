"""How far the messages of an account are stored, in a small file: the next connection reads what was said after it."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from hermes.whole_files import write_whole

_PAUSE = 1.0  # seconds between two writes of `changed`; what a crash loses is only read again

State = TypeVar("State", bound=msgspec.Struct)
Value = TypeVar("Value")


def put_last(known: dict[str, Value], key: str, value: Value, most: int) -> None:
    """Put an entry at the end of a dictionary of bounded size: the oldest are forgotten first."""
    known.pop(key, None)
    known[key] = value
    while len(known) > most:
        del known[next(iter(known))]


class Since(msgspec.Struct):
    """The moment (in the server's own unit) up to which everything is stored; None at the very first connection."""

    since: int | None = None


class MarkFile(Generic[State]):
    """The state of one account (`account` tells it from others) in a file. Without a readable one it is a new `kind()`."""

    def __init__(self, file: Path, account: str, kind: type[State]) -> None:
        self._file, self._account = file, account
        self._written, self._outdated = 0.0, False
        self.state = kind()
        with suppress(OSError, ValueError):
            owner, state = msgspec.json.decode(file.read_bytes(), type=tuple[str, kind])  # type: ignore[valid-type]
            if owner == account:
                self.state = state

    def changed(self) -> None:
        """Note that `state` has changed; it is written soon, and by `save` at the latest."""
        self._outdated = True
        if time.monotonic() - self._written > _PAUSE:
            self.save()

    def save(self) -> None:
        """Write the file, if it is outdated. If the disk refuses it, messages are read again after a restart."""
        if self._outdated:
            with suppress(OSError):
                self.write(sync=False)

    def write(self, *, sync: bool = True) -> None:
        """Write the file now; OSError if that fails."""
        self._written = time.monotonic()
        self._file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(self._file, msgspec.json.encode((self._account, self.state)), sync=sync)
        self._outdated = False
