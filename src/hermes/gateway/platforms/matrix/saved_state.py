"""State that survives a restart, in small private files below <home>/matrix.

The position in the server's stream is written only after everything before it was stored: after a kill events come twice,
but none is lost. A file that belongs to another account, or can't be read, counts as missing.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from hermes.home import make_private

MOST_WAITING = 500  # encrypted messages whose keys have not arrived; older ones are given up


class SavedState:
    """The files of one account on one home server."""

    def __init__(self, home: Path, homeserver: str) -> None:
        self.folder = home / "matrix"
        self.homeserver = homeserver
        make_private(home)
        make_private(self.folder)

    @property
    def keys(self) -> Path:
        """The folder of the encryption keys."""
        folder = self.folder / "keys"
        make_private(folder)
        return folder

    # ---------------------------------------------------------------------------------------------- login

    def login(self, user: str | None) -> dict[str, str] | None:
        """The saved device of a password login: user_id, device_id, access_token."""
        kept = self._read("login.json", user)
        return kept if kept and {"user_id", "device_id", "access_token"} <= kept.keys() else None

    def keep_login(self, user: str | None, user_id: str, device_id: str, access_token: str) -> None:
        """Log in as the same device next time: its keys and its transaction ids stay valid."""
        self._write("login.json", user, {"user_id": user_id, "device_id": device_id, "access_token": access_token})

    def forget_login(self) -> None:
        """The server no longer knows that device."""
        (self.folder / "login.json").unlink(missing_ok=True)

    # ---------------------------------------------------------------------------------------------- stream

    def since(self, user_id: str) -> str | None:
        """The stored position in the stream; None before the first time."""
        kept = self._read("sync.json", user_id)
        return str(kept["since"]) if kept and kept.get("since") else None

    def keep_since(self, user_id: str, since: str) -> None:
        """Store that everything before this position is safe."""
        self._write("sync.json", user_id, {"since": since})

    def waiting(self, user_id: str) -> list[dict[str, Any]]:
        """Encrypted messages that can't be read yet, oldest first, as the server sent them."""
        kept = self._read("waiting.json", user_id)
        events = kept.get("events") if kept else None
        return [event for event in events if isinstance(event, dict)] if isinstance(events, list) else []

    def keep_waiting(self, user_id: str, events: list[dict[str, Any]]) -> None:
        """Replace the remembered messages."""
        self._write("waiting.json", user_id, {"events": events[-MOST_WAITING:]})

    # ---------------------------------------------------------------------------------------------- files

    def _read(self, name: str, owner: str | None) -> dict[str, Any] | None:
        try:
            kept = json.loads((self.folder / name).read_text("utf-8"))
        except (OSError, ValueError):
            return None
        if not isinstance(kept, dict) or kept.get("homeserver") != self.homeserver or kept.get("owner") != owner:
            return None
        return kept

    def _write(self, name: str, owner: str | None, what: dict[str, Any]) -> None:
        part = self.folder / f"{name}.part"
        handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump({"homeserver": self.homeserver, "owner": owner, **what}, file)
            file.flush()
            os.fsync(file.fileno())  # an empty file after a power cut would look like the first start
        os.replace(part, self.folder / name)
