"""Messages that were deleted in Teams, and the ids of those that were restored afterwards, in a file of their own.

A deleted message can't be brought back in the record: copies of the record on other machines have deleted it, too. So a
restored one is recorded again, under another id, and later edits and deletions concern that one.
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

from hermes.whole_files import write_whole

_MOST = 2_000


class Deletions:
    """The deleted messages, and the restored ones, by the ids of their first events."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._states: dict[str, tuple[str, bool]] | None = None  # the id in the record, and whether it is deleted

    def current(self, name: str) -> str:
        """The id under which a message is in the record."""
        return self._known().get(name, (name, False))[0]

    def is_deleted(self, name: str) -> bool:
        """Whether a message was deleted, and not restored since."""
        return self._known().get(name, (name, False))[1]

    def deleted(self, name: str) -> None:
        """A message was deleted."""
        self._put(name, self.current(name), gone=True)

    def restored(self, name: str, event_id: str) -> None:
        """A deleted message was restored, and is in the record under this id."""
        self._put(name, event_id, gone=False)

    def _known(self) -> dict[str, tuple[str, bool]]:
        if self._states is None:
            self._states = {}
            with suppress(OSError, ValueError, TypeError, AttributeError):
                found = json.loads(self._file.read_text("utf-8"))
                self._states = {str(name): (str(now), bool(gone)) for name, (now, gone) in found.items()}
        return self._states

    def _put(self, name: str, now: str, *, gone: bool) -> None:
        states = self._known()
        states.pop(name, None)
        states[name] = (now, gone)
        while len(states) > _MOST:
            del states[next(iter(states))]
        with suppress(OSError):  # without it a message that is restored after a restart is missing in the record
            self._file.parent.mkdir(parents=True, exist_ok=True)
            write_whole(self._file, json.dumps(states))
