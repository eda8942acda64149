"""Where VS Code, and the editors made from it, keep what their extensions store."""

from __future__ import annotations

from pathlib import Path

HOSTS = ("Code", "Code - Insiders", "VSCodium", "Cursor", "Windsurf")


def user_folders() -> list[Path]:
    """The folder `User` of each such editor, on Linux and on macOS, whether it is there or not."""
    above = (Path.home() / ".config", Path.home() / "Library" / "Application Support")
    return [folder / host / "User" for folder in above for host in HOSTS]
