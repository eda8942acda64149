"""Editors that are built on VS Code: where they keep their data, and which folder a window of theirs was opened on."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from hermes.interop.histories.conversation import text
from hermes.interop.json_reading import json_object

HOSTS = ("Code", "Code - Insiders", "VSCodium", "Cursor", "Windsurf")


def user_folders(*hosts: str) -> list[Path]:
    """The User folders of these editors (of all, if none is named), on Linux and on macOS."""
    config = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    bases = (config, Path.home() / "Library" / "Application Support")
    return [base / host / "User" for host in hosts or HOSTS for base in bases]


def local_path(address: Any) -> str | None:
    """The path of a file's address, which may be a text or the editor's own object; None for one on another machine."""
    if isinstance(address, dict):
        if address.get("scheme") not in (None, "file"):
            return None
        return text(address.get("fsPath")) or text(address.get("path"))
    is_here = isinstance(address, str) and address.startswith("file:///")
    return unquote(address.removeprefix("file://")) if is_here else None


def opened_folder(storage: Path) -> str | None:
    """The folder that a window was opened on, from the `workspace.json` in its part of workspaceStorage."""
    return local_path(json_object(storage / "workspace.json").get("folder"))
