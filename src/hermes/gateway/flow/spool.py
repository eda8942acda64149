"""The spool: messages on the disk that the store has not taken yet, with their secrets masked.

Beside an encrypted store there is none: a message that the store does not take is not acknowledged.
"""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

from hermes.gateway.events import Event, as_json, from_json, masked, writable
from hermes.home import in_encrypted_home, sync_folder, write_whole
from hermes.store.redact import redact

_MOST = 10_000  # files: messages beyond these are not acknowledged


class Spool:
    """A folder of messages in order of arrival. Only the user can read its files; they are removed once the store has them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def waiting(self) -> list[tuple[Path, Event]]:
        """The file and the content of each message in it, the oldest first; unreadable files stay where they are."""
        found = []
        for file in sorted(self._folder.glob("*.json")):
            with suppress(OSError, ValueError):
                found.append((file, from_json(file.read_text("utf-8"), Event)))
        return found

    def put(self, event: Event) -> Path:
        """Write a message to the disk and sync it; its file. OSError if that fails."""
        if in_encrypted_home(self._folder):
            raise OSError("the record is encrypted, so no message is written to a file")
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if sum(1 for _ in self._folder.iterdir()) >= _MOST:
            raise OSError(f"{_MOST:,} messages already wait there for the store")
        file = self._folder / f"{time.time_ns():020d}.json"
        write_whole(file, as_json(masked(writable(event), redact)))
        sync_folder(self._folder)
        return file
