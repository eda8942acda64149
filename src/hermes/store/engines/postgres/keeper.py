"""The thread that tidies the full-text index while its process writes.

New words go to a list that every search looks through; moving them from there into the index takes the server long, so no
append waits for it: after some messages, and once more when it has become quiet, this thread has it done. If it dies,
the server does it sooner or later (autovacuum), and nothing is missed meanwhile.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import psycopg

from hermes.errors import HermesError

AFTER_MESSAGES = 256
AFTER_CHARACTERS = 400_000
QUIET = 0.4  # seconds
_TIDY = b"SELECT gin_clean_pending_list('idx_words'), gin_clean_pending_list('idx_words_parts'), gin_clean_pending_list('idx_words_pieces')"  # noqa: E501


class Keeper:
    """Counts what was written, and has the index tidied by a thread of its own."""

    def __init__(self, connect: Callable[[], psycopg.Connection[Any]]) -> None:
        self._connect = connect
        self._thread: threading.Thread | None = None
        self._wake = threading.Event()
        self._stopped = False
        self._messages = self._characters = 0
        self._dirty = False

    def written(self, characters: int) -> None:
        """A message was stored."""
        self._messages += 1
        self._characters += characters
        self._dirty = True
        if self._messages >= AFTER_MESSAGES or self._characters >= AFTER_CHARACTERS:
            self._messages = self._characters = 0
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, daemon=True, name="hermes-keeper")
                self._thread.start()
            self._wake.set()

    def _work(self) -> None:
        try:
            with self._connect() as connection:
                while not self._stopped:
                    asked = self._wake.wait(QUIET if self._dirty else None)
                    self._wake.clear()
                    if asked or self._dirty:
                        self._dirty = asked and not self._stopped  # once more when nobody writes
                        connection.execute(_TIDY)
        except (psycopg.Error, HermesError):
            self._thread = None  # not the owner of the index, or the connection is lost: the next one tries again

    def stop(self) -> None:
        """Let the thread end."""
        self._stopped = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(5.0)
