"""A Mac without a Mac: a BlueBubbles server of our own, with its REST API and its webhooks.

It checks every request by the server's published validation rules (required fields, methods, the password).
"""

from __future__ import annotations

import itertools
import json
import time
from email.parser import BytesParser
from email.policy import HTTP
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from tests.support.labs.http_lab import Handler, HttpLab

PASSWORD = "bluebubbles-password-1"
GROUP = "iMessage;+;chat830542"
_ADDRESSES = {"alice": "+15005550201", "bob": "bob@icloud.example", "mallory": "+15005550203"}
_TEXT_FIELDS = {"chatGuid", "tempGuid", "message", "method", "subject", "effectId", "selectedMessageGuid", "partIndex"}


class Lab(HttpLab):
    """One account, three people and a group."""

    platform = "bluebubbles"
    places = frozenset({"dm", "group"})
    can = frozenset({"redeliver", "fail", "attach", "change", "take_back", "files"})

    once = True  # the server's WebhookService does not look at the answer

    def __init__(self) -> None:
        self._clock = itertools.count(int(time.time() * 1000))
        self._webhooks: list[dict[str, Any]] = []
        super().__init__()

    def _forget(self) -> None:
        self._sent: list[dict[str, Any]] = []
        self._said: dict[str, dict[str, Any]] = {}
        self._files: dict[str, tuple[str, bytes, str]] = {}
        self._typing: list[str] = []
        self.private_api = True
        self.refuses: str | None = None  # what iMessage says of the next message
        self.queued = 0  # the next messages are refused as such that are being sent already
        self.unreachable = False  # webhooks do not arrive
        self.registered = 0

    @property
    def settings(self) -> dict[str, Any]:
        return {"url": self.address, "password": PASSWORD}

    def user_id(self, who: str) -> str:
        return _ADDRESSES[who]

    def chat_id(self, where: str, who: str = "alice") -> str:
        return GROUP if where == "group" else f"iMessage;-;{_ADDRESSES[who]}"

    def say(self, text: str, *, who: str = "alice", where: str = "dm", addressed: bool = True, **more: Any) -> str:
        guid = f"MSG-{next(self._ids):08X}"
        words = f"Hermes, {text}" if addressed and where == "group" else text
        chat = {"guid": self.chat_id(where, who), "displayName": "The Group" if where == "group" else ""}
        self._said[guid] = {
            "guid": guid, "text": words, "isFromMe": False, "handle": {"address": _ADDRESSES[who], "service": "iMessage"},
            "chats": [chat], "attachments": [], "dateCreated": next(self._clock), "dateEdited": None, "dateRetracted": None,
            "associatedMessageGuid": None, "threadOriginatorGuid": None, **more,
        }  # fmt: skip
        self.redeliver(guid)
        return guid

    def redeliver(self, message_id: str, kind: str = "new-message") -> None:
        for one in () if self.unreachable else self._webhooks:
            if kind in one["events"] or "*" in one["events"]:
                body = json.dumps({"type": kind, "data": self._said[message_id]})
                self._deliveries.post(one["url"], content=body, headers={"Content-Type": "application/json"})

    def change(self, message_id: str, text: str, *, who: str = "alice", where: str = "dm") -> None:
        self._said[message_id].update(text=text, dateEdited=next(self._clock))
        self.redeliver(message_id, "updated-message")

    def take_back(self, message_id: str, *, who: str = "alice", where: str = "dm") -> None:
        self._said[message_id].update(text="", dateRetracted=next(self._clock))
        self.redeliver(message_id, "updated-message")

    def attach(
        self, data: bytes, name: str, mime: str, *, who: str = "alice", where: str = "dm", text: str = ""
    ) -> str:
        guid = f"at_0_{next(self._ids):08X}"
        self._files[guid] = (name, data, mime)
        about = {"guid": guid, "transferName": name, "mimeType": mime, "totalBytes": len(data)}
        return self.say(f"\ufffc{text}", who=who, where=where, attachments=[about])

    def shown(self, where: str = "dm", *, who: str = "alice") -> list[str]:
        chat = self.chat_id(where, who)
        return [one["message"] for one in self._sent if one["chatGuid"] == chat and "message" in one]

    def sent_files(self, where: str = "dm", *, who: str = "alice") -> list[tuple[str, bytes, str]]:
        """With the caption, which is the message after it."""
        there = [one for one in self._sent if one["chatGuid"] == self.chat_id(where, who)]
        after = [str(one.get("message", "")) for one in there[1:]] + [""]
        files = [(one["name"], one["data"], text) for one, text in zip(there, after, strict=False) if "data" in one]
        return [(name, data, text if text == "a dot" else "") for name, data, text in files]

    def typed(self, where: str = "dm", *, who: str = "alice") -> int:
        return self._typing.count(self.chat_id(where, who))

    # ------------------------------------------------------------------------------------------ the server

    def _answered(self, method: str, path: str, body: bytes, mime: str) -> tuple[int, Any]:
        if path == "/server/info":
            info = {
                "private_api": self.private_api,
                "helper_connected": self.private_api,
                "detected_icloud": "me@icloud.example",
            }
            return 200, {"server_version": "1.9.9", "os_version": "14.5", **info}
        if path == "/webhook" and method == "GET":
            return 200, self._webhooks
        if path == "/webhook":
            made = json.loads(body)
            if not str(made.get("url", "")).startswith("http") or not made.get("events"):
                return self._wrong("a webhook needs url and events")
            self.registered += 1
            self._webhooks.append({"id": next(self._ids), **made})
            return 200, self._webhooks[-1]
        if path == "/message/query":
            return self._query(json.loads(body))
        if path.startswith("/chat/") and path.endswith("/typing"):
            if not self.private_api:
                return self._wrong("typing needs the private API")
            self._typing.append(unquote(path.split("/")[2]))
            return 200, None
        if path == "/message/text":
            return self._text(json.loads(body))
        if path == "/message/attachment":
            return self._attachment(body, mime)
        return self._wrong(f"there is no {method} {path}")

    def _query(self, asked: dict[str, Any]) -> tuple[int, Any]:
        if (
            set(asked) - {"with", "limit", "offset", "after", "before", "sort", "chatGuid", "where"}
            or asked["limit"] > 1000
        ):
            return self._wrong(f"a bad query {asked}")
        found = [one for one in self._said.values() if one["dateCreated"] > asked.get("after", 0)]
        found.sort(key=lambda one: one["dateCreated"], reverse=asked.get("sort") == "DESC")
        start = asked.get("offset", 0)
        return 200, found[start : start + asked["limit"]]

    def _text(self, sent: dict[str, Any]) -> tuple[int, Any]:
        if set(sent) - _TEXT_FIELDS or not sent.get("chatGuid") or not str(sent.get("message", "")).strip():
            return self._wrong(f"a bad message: {sorted(sent)}")
        if (
            sent.get("method") not in ("apple-script", "private-api")
            or (sent["method"] == "private-api") != self.private_api
        ):
            return self._wrong(f"the method {sent.get('method')} is not available")
        if sent["method"] == "apple-script" and (not sent.get("tempGuid") or "selectedMessageGuid" in sent):
            return self._wrong("a tempGuid is required, and replies need the private API")
        return self._taken(sent)

    def _attachment(self, body: bytes, mime: str) -> tuple[int, Any]:
        whole = BytesParser(policy=HTTP).parsebytes(f"Content-Type: {mime}\r\n\r\n".encode() + body)
        fields: dict[str, Any] = {}
        for part in whole.iter_parts():
            name = part.get_param("name", header="content-disposition")
            fields[str(name)] = part.get_payload(decode=True)
        if {"chatGuid", "tempGuid", "name", "attachment"} - set(fields):
            return self._wrong(
                f"an attachment without {({'chatGuid', 'tempGuid', 'name', 'attachment'}) - set(fields)}"
            )
        data = fields.pop("attachment")
        return self._taken({**{name: value.decode() for name, value in fields.items()}, "data": data})

    def _taken(self, sent: dict[str, Any]) -> tuple[int, Any]:
        if self._failing:
            self._failing -= 1
            return 500, {"type": "Server Error", "message": "try again"}
        if self.queued:
            self.queued -= 1
            told = f"Message is already queued to be sent! (Temp GUID: {sent['tempGuid']})"
            return 400, {"type": "Validation Error", "message": told}
        if self.refuses is not None:
            told, self.refuses = self.refuses, None
            return 500, {"type": "iMessage Error", "message": told}
        self._sent.append(sent)
        return 200, {"guid": f"OUT-{next(self._ids):08X}"}

    def _wrong(self, text: str) -> tuple[int, Any]:
        self._problems.append(text)
        return 400, {"type": "Validation Error", "message": text}

    def _handler(self) -> type[Handler]:
        lab = self

        class Requests(Handler):
            def _serve(self) -> None:
                parts = urlsplit(self.path)
                body = self.body()
                path = parts.path.removeprefix("/api/v1")
                if parse_qs(parts.query).get("password") != [PASSWORD]:
                    status, found = 401, {"type": "Authentication Error", "message": "Unauthorized"}
                elif path.startswith("/attachment/"):
                    _, data, mime = lab._files[unquote(path.split("/")[2])]
                    self.answer(200, data, mime)
                    return
                else:
                    status, found = lab._answered(self.command, path, body, self.headers.get("Content-Type", ""))
                whole = {"status": status, "message": "", **({"data": found} if status == 200 else {"error": found})}
                self.answer(status, json.dumps(whole).encode(), "application/json")

            do_GET = do_POST = do_DELETE = _serve

        return Requests
