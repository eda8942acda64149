"""Files to people in Teams: pictures go inside a message; other files are offered, and uploaded when the person accepts them.

https://learn.microsoft.com/microsoftteams/platform/bots/how-to/bots-filesv4
Offers are kept in memory: after a restart an accepted one is answered with a request to ask again.
"""

from __future__ import annotations

import base64
import hashlib
from collections import OrderedDict
from typing import Any

from hermes.errors import SendRefused
from hermes.gateway.events import DM, Chat, OutgoingFile
from hermes.gateway.platforms.teams.incoming import dict_of, text_of

LARGEST = 20_000_000
_LARGEST_PICTURE = 1_000_000
_PICTURES = ("image/png", "image/jpeg", "image/gif")
_MOST = 100_000_000  # bytes of all offers
_CARD = "application/vnd.microsoft.teams.card.file"


class Offers:
    """Files that were offered to people and neither accepted nor declined."""

    def __init__(self) -> None:
        self._offers: OrderedDict[str, tuple[str, OutgoingFile]] = OrderedDict()

    def attachment(self, chat: Chat, file: OutgoingFile, nonce: str) -> dict[str, Any]:
        """The attachment of the message that shows or offers a file."""
        if not file.data:
            raise SendRefused(f"Teams takes no empty files: {file.name}")
        if file.mime in _PICTURES and len(file.data) <= _LARGEST_PICTURE:
            data = base64.b64encode(file.data).decode()
            return {"contentType": file.mime, "contentUrl": f"data:{file.mime};base64,{data}", "name": file.name}
        if chat.type != DM:
            raise SendRefused(f"Teams takes files from bots in personal chats only, so not {file.name}")
        key = hashlib.sha256(nonce.encode()).hexdigest()[:32]
        self._offers[key] = (chat.chat_id, file)
        while sum(len(one.data) for _, one in self._offers.values()) > _MOST:
            self._offers.popitem(last=False)
        context = {"offer": key}
        content = {
            "description": file.name, "sizeInBytes": len(file.data), "acceptContext": context, "declineContext": context,
        }  # fmt: skip
        return {"contentType": f"{_CARD}.consent", "name": file.name, "content": content}

    def answered(self, chat: Chat, value: dict[str, Any]) -> tuple[OutgoingFile, dict[str, Any]] | None:
        """The file that a person in this chat accepts, and where it is uploaded to. SendRefused if it is no longer offered."""
        key = text_of(dict_of(value.get("context")).get("offer"))
        if value.get("action") != "accept":
            self._offers.pop(key, None)
            return None
        chat_id, file = self._offers.get(key, ("", None))
        if file is None or chat_id != chat.chat_id:
            raise SendRefused("This file is no longer offered. Please ask for it again.")
        return file, dict_of(value.get("uploadInfo"))

    def done(self, value: dict[str, Any]) -> None:
        """The file was uploaded: forget it."""
        self._offers.pop(text_of(dict_of(value.get("context")).get("offer")), None)


def info(place: dict[str, Any]) -> dict[str, Any]:
    """The attachment that shows an uploaded file."""
    content = {name: text_of(place.get(name)) for name in ("uniqueId", "fileType")}
    return {
        "contentType": f"{_CARD}.info", "contentUrl": text_of(place.get("contentUrl")), "name": text_of(place.get("name")),
        "content": content,
    }  # fmt: skip
