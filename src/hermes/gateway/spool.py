"""The spool: messages on the disk that the store has not taken yet, masked and encrypted as the store would keep them.

Adapters write to it; what it shares with the store (the mask, the encryption) stays out of them.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

from hermes.errors import ConfigError
from hermes.whole_files import sync_folder

Mask = Callable[[str], str]

_MOST = 10_000  # files: messages beyond these are not acknowledged
_WORDS = frozenset({"text", "quoted", "fallback", "preview", "plain_text", "pretext", "footer"})


def store_mask(home: Path) -> Mask:
    """The mask that this home's store applies to texts (privacy.redact_secrets): no file holds what the store does not."""

    @cache
    def mask() -> Mask:
        from hermes.config import load_config
        from hermes.store.redact import redact

        try:
            main = (
                home.parents[2] if home.parent.parent.name == "accounts" else home
            )  # an account's folder is inside it
            wanted = load_config(main / "config.yaml").privacy.redact_secrets
        except ConfigError:
            wanted = True
        return redact if wanted else str

    return lambda text: mask()(text)


class Spool:
    """A folder of messages in order of arrival. Only the user can read its files; they are removed once the store has them.

    The text people wrote in a message (`_WORDS`) is masked; its other fields are names and numbers that must not change.
    """

    def __init__(self, folder: Path, mask: Mask = str) -> None:
        self._folder, self._mask = folder, mask
        self._thread: ThreadPoolExecutor | None = None  # not the loop's own threads: those may all wait for the store

    def waiting(self) -> list[tuple[str, dict[str, Any]]]:
        """The name and the content of each message in it, the oldest first; unreadable files stay where they are."""
        from hermes.store import sealed_files

        found = []
        for file in sorted(self._folder.glob("*.json")):
            try:
                content = json.loads(sealed_files.read_bytes(file))
            except (OSError, ValueError):
                continue
            if isinstance(content, dict):
                found.append((file.name, content))
        return found

    async def put(self, content: dict[str, Any]) -> str:
        """Write a message to the disk and sync it; returns its name here. OSError if that fails."""
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "hermes-spool")
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._write, content)

    def drop(self, name: str) -> None:
        """Remove a message that the store has. A file that can't be removed is read again, and recognised by its id."""
        try:
            (self._folder / name).unlink(missing_ok=True)
        except OSError:
            pass

    def close(self) -> None:
        """Release the thread; a write under way is finished."""
        if self._thread is not None:
            self._thread.shutdown(wait=False)
            self._thread = None

    def _write(self, content: dict[str, Any]) -> str:
        from hermes.store import encryption_keys, sealed_files

        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if sum(1 for _ in self._folder.iterdir()) >= _MOST:
            raise OSError(f"{_MOST:,} messages already wait there for the store")
        name = f"{time.time_ns():020d}.json"
        path, raw = self._folder / name, json.dumps(_masked(content, self._mask)).encode()
        sealed_files.put(path, raw, encryption_keys.writing_key_near(path))
        sync_folder(self._folder)
        return name


def _masked(content: Any, mask: Mask) -> Any:
    if isinstance(content, dict):
        return {
            name: mask(value) if name in _WORDS and isinstance(value, str) else _masked(value, mask)
            for name, value in content.items()
        }
    return [_masked(one, mask) for one in content] if isinstance(content, list | tuple) else content
