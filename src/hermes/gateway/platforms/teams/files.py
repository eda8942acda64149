"""Files for people in Teams: each is offered, and uploaded when the person has allowed it.

https://learn.microsoft.com/microsoftteams/platform/bots/how-to/bots-filesv4
Until then its bytes lie in a folder of ours, which only the user can read; after a week an offer is forgotten.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from hermes.gateway.events import OutgoingFile

CONSENT = "application/vnd.microsoft.teams.card.file.consent"
INFO = "application/vnd.microsoft.teams.card.file.info"
_LAST = 7 * 86_400.0  # seconds


class Offers:
    """The files that wait for a person's consent."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def add(self, nonce: str, file: OutgoingFile) -> dict[str, Any]:
        """Keep a file; the attachment that offers it."""
        key = hashlib.sha256(nonce.encode()).hexdigest()[:32]
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        draft = self._folder / f"{key}.new"
        draft.unlink(missing_ok=True)
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
            out.write(file.data)
            out.flush()
            os.fsync(out.fileno())
        os.replace(draft, self._folder / key)
        about = {"offer": key}
        content = {
            "description": file.name,
            "sizeInBytes": len(file.data),
            "acceptContext": about,
            "declineContext": about,
        }
        return {"contentType": CONSENT, "name": file.name, "content": content}

    def get(self, context: Any) -> tuple[str, bytes] | None:
        """The file of an accepted or declined offer, and its key; None if it is no longer there."""
        key = context.get("offer") if isinstance(context, dict) else None
        if not isinstance(key, str) or len(key) != 32 or not key.isalnum():
            return None
        try:
            return key, (self._folder / key).read_bytes()
        except OSError:
            return None

    def drop(self, key: str) -> None:
        """Forget a file."""
        with suppress(OSError):
            (self._folder / key).unlink(missing_ok=True)

    def tidy(self) -> None:
        """Forget the offers that no one has answered."""
        with suppress(OSError):
            for path in self._folder.iterdir():
                if path.stat().st_mtime < time.time() - _LAST:
                    self.drop(path.name)


def consent(activity: dict[str, Any]) -> dict[str, Any] | None:
    """What a person has decided about an offer; None if the activity is none of that."""
    value = activity.get("value")
    if activity.get("type") != "invoke" or activity.get("name") != "fileConsent/invoke" or not isinstance(value, dict):
        return None
    context = value.get("context")
    if isinstance(context, str):  # some clients send it as text
        with suppress(ValueError):
            value = {**value, "context": json.loads(context)}
    return value


def uploaded(upload: dict[str, Any]) -> dict[str, Any]:
    """The attachment that shows an uploaded file."""
    content = {"uniqueId": upload.get("uniqueId"), "fileType": upload.get("fileType")}
    return {"contentType": INFO, "contentUrl": upload.get("contentUrl"), "name": upload.get("name"), "content": content}
