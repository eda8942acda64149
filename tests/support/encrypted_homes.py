"""Encrypted homes for tests: how one is made, and whether any file still has a text."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path


def files_with(words: Iterable[bytes], *folders: Path) -> dict[str, list[bytes]]:
    """The files below these folders whose raw bytes have one of the words, as they are, in UTF-16, or in base64."""
    found: dict[str, list[bytes]] = {}
    for folder in folders:
        for file in folder.rglob("*"):
            if file.is_file() and not file.is_symlink():
                raw = file.read_bytes()
                seen = [word for word in words if word in raw or word.decode().encode("utf-16-le") in raw]
                if seen:
                    found[str(file)] = seen
    return found
