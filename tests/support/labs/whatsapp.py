"""WhatsApp's Cloud API without Meta: the Graph API for messages and media, and its signed webhook deliveries.

Requests are checked by the published reference: login, fields, lengths, types, the 24-hour window. Signatures are computed
here, independently of the adapter.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import time
from email.parser import BytesParser
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.support.labs.http_lab import Handler, HttpLab

NUMBER_ID, NUMBER = "106540352242922", "15550783881"
TOKEN, SECRET, WORD = "EAAJBtokenOfTheLab0123456789", "app-secret-of-the-lab-0123456789", "word of the lab"
GROUP = "Y2FwaV9ncm91cDoxNzA1NTU1MDEz"
TEMPLATE = "note_from_assistant"
VERSION = "v24.0"
_NUMBERS = {"alice": "15005550101", "bob": "15005550102", "mallory": "15005550103"}
_SCOPED = {"alice": "US.13491208655302741901", "bob": "US.13491208655302741902", "mallory": "US.13491208655302741903"}
_MIMES = {
    "image": {"image/jpeg", "image/png"},
    "audio": {"audio/aac", "audio/amr", "audio/mpeg", "audio/mp4", "audio/ogg"},
    "video": {"video/mp4", "video/3gpp"},
    "document": None,
}
_OFFICE = "application/vnd.openxmlformats-officedocument"
# What the upload takes, from the words of its refusal.
_UPLOADS = {
    "audio/aac", "audio/mp4", "audio/mpeg", "audio/amr", "audio/ogg", "audio/opus", "application/vnd.ms-powerpoint",
    "application/msword", f"{_OFFICE}.wordprocessingml.document", f"{_OFFICE}.presentationml.presentation",
    f"{_OFFICE}.spreadsheetml.sheet", "application/pdf", "text/plain", "application/vnd.ms-excel", "image/jpeg", "image/png",
    "image/webp", "video/mp4", "video/3gpp",
}  # fmt: skip
_LARGEST = {"audio": 16_000_000, "video": 16_000_000, "image": 5_000_000}
_CONTENT = {"text": {"body", "preview_url"}, "image": {"id", "caption"}, "audio": {"id"}, "video": {"id", "caption"},
            "document": {"id", "caption", "filename"}}  # fmt: skip


class Wrong(Exception):
    """A request that the vendor refuses; `problem` where no correct client would send it."""

    def __init__(self, code: int, text: str, *, status: int = 400, problem: bool = True) -> None:
        super().__init__(text)
        self.code, self.status, self.problem = code, status, problem


class Lab(HttpLab):
    """One number, three people and a group."""

    platform = "whatsapp"
    places = frozenset({"dm", "group"})
    can = frozenset("redeliver rate_limit fail attach files choices change take_back forward".split())

    def _forget(self) -> None:
        self.sent: list[dict[str, Any]] = []  # what the agent sent, as it was sent
        self.typings: list[dict[str, Any]] = []
        self._said: dict[str, dict[str, Any]] = {}  # the deliveries
        self._where: dict[str, str] = {}  # message → chat
        self._media: dict[str, tuple[str, bytes, str]] = {}
        self.limit_code = 131056
        self.breaks_at: int | None = None  # after how many messages one send gets a server error
        self.token = TOKEN
        self.closed: set[str] = set()  # people who have not written for a day
        self.told_later = False  # whether that is reported by a status, not by the answer
        self.logins: list[tuple[str, str]] = []  # path and Authorization of requests for media

    @property
    def settings(self) -> dict[str, Any]:
        return {
            "phone_number_id": NUMBER_ID, "access_token": TOKEN, "app_secret": SECRET, "verify_token": WORD,
            "base_url": self.address,
        }  # fmt: skip

    def user_id(self, who: str) -> str:
        return _NUMBERS[who]

    def chat_id(self, where: str, who: str = "alice") -> str:
        return GROUP if where == "group" else _NUMBERS[who]

    # ------------------------------------------------------------------------------------------ people

    def say(self, text: str, *, who: str = "alice", where: str = "dm", addressed: bool = True, **more: Any) -> str:
        body = f"@{NUMBER} {text}" if where == "group" and addressed else text
        return self.tell({"type": "text", "text": {"body": body}, **more}, who=who, where=where)

    def forward(self, text: str, *, who: str = "alice", where: str = "dm") -> str:
        return self.say(text, who=who, where=where, addressed=False, context={"forwarded": True})

    def tell(self, message: dict[str, Any], *, who: str = "alice", where: str = "dm") -> str:
        """A person sends a message of any type."""
        number = f"wamid.HBgL{next(self._ids):024d}"
        group = {"group_id": GROUP} if where == "group" else {}
        whole = {
            "from": _NUMBERS[who],
            "from_user_id": _SCOPED[who],
            "id": number,
            "timestamp": str(int(time.time())),
            **group,
            **message,
        }
        self._said[number] = self.value(messages=[whole], who=who)
        self._where[number] = self.chat_id(where, who)
        self.redeliver(number)
        return number

    def value(self, *, who: str = "alice", **what: Any) -> dict[str, Any]:
        """A delivery's value, as the webhook reference has it."""
        contacts = [{"profile": {"name": who.title()}, "wa_id": _NUMBERS[who], "user_id": _SCOPED[who]}]
        return {
            "messaging_product": "whatsapp", "contacts": contacts,
            "metadata": {"display_phone_number": NUMBER, "phone_number_id": NUMBER_ID}, **what,
        }  # fmt: skip

    def redeliver(self, message_id: str) -> None:
        self.deliver(self._said[message_id])

    def deliver(self, *values: dict[str, Any], signature: str | None = None) -> None:
        """Call the webhook, signed unless another signature is given."""
        changes = [{"value": value, "field": "messages"} for value in values]
        whole = {"object": "whatsapp_business_account", "entry": [{"id": "102290129340398", "changes": changes}]}
        self.deliver_bytes(json.dumps(whole).encode(), signature)

    def deliver_bytes(self, body: bytes, signature: str | None = None) -> None:
        headers = {"Content-Type": "application/json", "X-Hub-Signature-256": signature or signed(body)}
        self._deliveries.post(f"http://127.0.0.1:{self.listens_at}/whatsapp", content=body, headers=headers)

    def fails(self, message_id: str, code: int, text: str, who: str = "alice") -> None:
        """Report by a status that a message of the agent's was not delivered."""
        error = {"code": code, "title": text, "message": text, "error_data": {"details": text}}
        status = {
            "id": message_id,
            "status": "failed",
            "timestamp": str(int(time.time())),
            "recipient_id": _NUMBERS[who],
        }
        self.deliver(self.value(statuses=[{**status, "errors": [error]}]))

    def attach(
        self, data: bytes, name: str, mime: str, *, who: str = "alice", where: str = "dm", text: str = ""
    ) -> str:
        media = str(next(self._ids) + 10**15)
        self._media[media] = (name, data, mime)
        kind = next((kind for kind, known in _MIMES.items() if known and mime in known), "document")
        url = f"https://lookaside.fbsbx.com/whatsapp_business/attachments/?mid={media}"
        inside = {
            "id": media,
            "mime_type": mime,
            "sha256": "base64=",
            "url": url,
            **({"caption": text} if text else {}),
        }
        inside |= {"audio": {"voice": False}, "image": {"static_url": url}}.get(kind, {})
        return self.tell(
            {"type": kind, kind: inside | ({"filename": name} if kind == "document" else {})}, who=who, where=where
        )

    def change(self, message_id: str, text: str, *, who: str = "alice", where: str = "dm") -> None:
        edit = {"original_message_id": message_id, "message": {"type": "text", "text": {"body": text}}}
        self.tell({"type": "edit", "edit": edit}, who=who, where=where)

    def take_back(self, message_id: str, *, who: str = "alice", where: str = "dm") -> None:
        self.tell({"type": "revoke", "revoke": {"original_message_id": message_id}}, who=who, where=where)

    def press(self, label: str, *, who: str = "alice", where: str = "dm", which: int = -1) -> None:
        shown = [one for message in self._to(where, who) for one in _choices(message) if one[1]["title"] == label]
        kind, found = shown[which]
        self.tell({"type": "interactive", "interactive": {"type": kind, kind: found}}, who=who, where=where)

    # ------------------------------------------------------------------------------------------ what the agent did

    def _to(self, where: str, who: str) -> list[dict[str, Any]]:
        return [one for one in list(self.sent) if one.get("to", one.get("recipient")) == self.chat_id(where, who)]

    def shown(self, where: str = "dm", *, who: str = "alice") -> list[str]:
        return [text for one in self._to(where, who) if (text := _text(one))]

    def sent_files(self, where: str = "dm", *, who: str = "alice") -> list[tuple[str, bytes, str]]:
        kinds = [(one, one[one["type"]]) for one in self._to(where, who) if one["type"] in _MIMES]
        return [(*self._media[inside["id"]][:2], inside.get("caption", "")) for _, inside in kinds]

    def buttons(self, where: str = "dm", *, who: str = "alice") -> list[str]:
        found = [[one["title"] for _, one in _choices(message)] for message in self._to(where, who)]
        return next((labels for labels in reversed(found) if labels), [])

    def typed(self, where: str = "dm", *, who: str = "alice") -> int:
        return sum(self._where.get(one["message_id"]) == self.chat_id(where, who) for one in list(self.typings))

    # ------------------------------------------------------------------------------------------ the server

    def _taken(self, body: Any) -> dict[str, Any]:
        if body.get("messaging_product") != "whatsapp":
            raise Wrong(100, "(#100) The parameter messaging_product is required.")
        if "status" in body:
            if (
                set(body) - {"messaging_product", "status", "message_id", "typing_indicator"}
                or body["status"] != "read"
            ):
                raise Wrong(100, f"(#100) unknown parameters: {body}")
            if body["message_id"] not in self._said:
                raise Wrong(131009, "(#131009) Parameter value is not valid: message_id")
            self.typings.append(body)
            return {"success": True}
        if self._limited:
            self._limited -= 1
            raise Wrong(self.limit_code, "(Business Account, Consumer Account) pair rate limit hit", problem=False)
        if self._failing:
            self._failing -= 1
            raise Wrong(131000, "Something went wrong", status=500, problem=False)
        if self.breaks_at is not None and len(self.sent) == self.breaks_at:
            self.breaks_at = None
            raise Wrong(131000, "Something went wrong", status=500, problem=False)
        kind = body.get("type", "text")
        self._check(body, kind)
        number = f"wamid.HBgM{next(self._ids):024d}"
        to = body.get("to", body.get("recipient"))
        if to in self.closed and kind != "template":
            if not self.told_later:
                raise Wrong(131047, "Re-engagement message", problem=False)
            who = next(who for who, one in _NUMBERS.items() if one == to)
            self.fails(number, 131047, "Re-engagement message", who)
        else:
            self.sent.append({**body, "id": number})
        return {"messaging_product": "whatsapp", "contacts": [{"input": to, "wa_id": to}], "messages": [{"id": number}]}

    def _check(self, body: dict[str, Any], kind: str) -> None:
        """Refuse what the reference of the messages endpoint does not allow."""
        extra = set(body) - {"messaging_product", "recipient_type", "to", "recipient", "type", "context", kind}
        if extra or kind not in body or not ("to" in body or "recipient" in body):  # of both, `to` counts
            raise Wrong(100, f"(#100) Invalid parameter: {sorted(extra)} {kind}")
        if body.get("recipient_type", "individual") not in ("individual", "group"):
            raise Wrong(131009, "recipient_type")
        if (body.get("to") == GROUP) != (body.get("recipient_type") == "group"):
            raise Wrong(131009, "recipient_type of a group")
        if "to" in body and not (body["to"] == GROUP or re.fullmatch(r"\d{5,15}", body["to"])):
            raise Wrong(131009, f"to: {body['to']!r}")
        quoted = body.get("context", {}).get("message_id")
        if quoted is not None and quoted not in self._said and not any(one["id"] == quoted for one in self.sent):
            raise Wrong(131009, "(#131009) Parameter value is not valid: context", problem=False)
        inside = body[kind]
        if kind in _CONTENT and set(inside) - _CONTENT[kind]:
            raise Wrong(100, f"(#100) unknown parameters {sorted(set(inside) - _CONTENT[kind])}")
        if kind == "text" and not 1 <= len(inside["body"]) <= 4096:
            raise Wrong(100, "(#100) Param text['body'] must be at most 4096 characters long.")
        if kind in _MIMES:
            if inside["id"] not in self._media or len(inside.get("caption", "")) > 1024:
                raise Wrong(131009, f"{kind}: {inside}")
            known = _MIMES[kind]
            if known is not None and self._media[inside["id"]][2] not in known:
                raise Wrong(131053, f"{kind} does not take {self._media[inside['id']][2]}")
        elif kind == "template":
            _check_template(inside)
        elif kind == "interactive":
            _check_interactive(inside)
        elif kind != "text":
            raise Wrong(100, f"(#100) unknown type {kind}")

    def _stored(self, content_type: str, body: bytes, query: dict[str, list[str]]) -> dict[str, Any]:
        """Take an upload: multipart/form-data with messaging_product (or that in the query), type and file."""
        whole = BytesParser().parsebytes(b"Content-Type: " + content_type.encode() + b"\r\n\r\n" + body)
        fields: dict[str, tuple[str | None, bytes, str]] = {}
        for part in whole.get_payload():  # type: ignore[union-attr]
            told = str(part["Content-Disposition"])  # type: ignore[index]
            header = re.search(rb'name="file"; filename="([^"]*)"', body)
            name = re.search(r'name="(\w+)"', told)
            assert name is not None
            data = part.get_payload(decode=True)  # type: ignore[union-attr]
            file = header[1].decode() if header and name[1] == "file" else None
            fields[name[1]] = (file, data, part.get_content_type())  # type: ignore[union-attr]
        product = fields.get("messaging_product", ("", query.get("messaging_product", [""])[0].encode(), ""))[1]
        if set(fields) - {"messaging_product", "type", "file"} or "file" not in fields or product != b"whatsapp":
            raise Wrong(100, f"(#100) wrong fields of an upload: {sorted(fields)}")
        name_, data_, mime = fields["file"]
        if mime != fields.get("type", ("", mime.encode(), ""))[1].decode() or not name_:
            raise Wrong(100, "(#100) the file's type")
        if mime not in _UPLOADS:
            raise Wrong(100, f"(#100) Param file must be a file with one of the following types: {sorted(_UPLOADS)}.")
        if len(data_) > _LARGEST.get(mime.partition("/")[0], 100_000_000):
            raise Wrong(131053, "Media upload error: the file is too large for its type")
        return {"id": self.store(name_, data_, mime)}

    def store(self, name: str, data: bytes, mime: str) -> str:
        """Put a file where media are; its id."""
        media = str(next(self._ids) + 10**15)
        self._media[media] = (name, data, mime)
        return media

    def _handler(self) -> type[Handler]:
        lab = self

        class Requests(Handler):
            def _answered(self, body: bytes = b"") -> None:
                try:
                    if self.headers.get("Authorization") != f"Bearer {lab.token}":
                        raise Wrong(
                            190, "Error validating access token: Session has expired", status=401, problem=False
                        )
                    found = self._done(urlsplit(self.path), body)
                    if isinstance(found, tuple):
                        self.answer(200, *found)
                        return
                    self.answer(200, json.dumps(found).encode())
                except Wrong as error:
                    if error.problem:
                        lab._problems.append(str(error))
                    told = {"message": str(error), "type": "OAuthException", "code": error.code, "fbtrace_id": "A"}
                    self.answer(error.status, json.dumps({"error": told}).encode())

            def _done(self, url: Any, body: bytes) -> Any:
                path = url.path.strip("/").split("/")
                if path[0] == "stored":
                    return lab._media[path[1]][1], lab._media[path[1]][2]
                if path[0] != VERSION:
                    raise Wrong(2500, f"Unknown path components: {url.path}")
                if self.command == "GET" and path[1] == NUMBER_ID:
                    return {"display_phone_number": f"+{NUMBER}", "verified_name": "The Lab", "id": NUMBER_ID}
                if self.command == "GET" and path[1] in lab._media:
                    if parse_qs(url.query).get("phone_number_id", [NUMBER_ID]) != [NUMBER_ID]:
                        raise Wrong(100, "phone_number_id")
                    _, data, mime = lab._media[path[1]]
                    digest = hashlib.sha256(data).hexdigest()
                    address = f"{lab.address}/stored/{path[1]}"
                    told = {"messaging_product": "whatsapp", "url": address, "mime_type": mime, "sha256": digest}
                    return {**told, "file_size": len(data), "id": path[1]}
                if self.command == "POST" and path[1:] == [NUMBER_ID, "media"]:
                    return lab._stored(self.headers["Content-Type"], body, parse_qs(url.query))
                if self.command == "POST" and path[1:] == [NUMBER_ID, "messages"]:
                    return lab._taken(json.loads(body))
                raise Wrong(100, f"Unsupported request: {self.command} {url.path}", problem=self.command == "POST")

            def do_GET(self) -> None:
                lab.logins.append((self.path, self.headers.get("Authorization", "")))
                self._answered()

            def do_POST(self) -> None:
                self._answered(self.body())

        return Requests


def _check_template(inside: dict[str, Any]) -> None:
    language = {"policy": "deterministic", **inside["language"]}  # the only policy that there is
    if (inside["name"], language) != (TEMPLATE, {"code": "en_US", "policy": "deterministic"}):
        raise Wrong(132001, "Template name does not exist in the translation")
    (component,) = inside["components"]
    (variable,) = component["parameters"]
    text = variable["text"]
    if component["type"] != "body" or variable["type"] != "text" or re.search(r"[\n\t]| {4}", text):
        raise Wrong(132018, "There was an issue with the parameters in your template")
    if not 1 <= len(text) <= 1000:
        raise Wrong(132005, "Translated text too long")


def _check_interactive(inside: dict[str, Any]) -> None:
    """The limits of reply buttons and of lists."""
    body, action = inside["body"]["text"], inside["action"]
    if inside["type"] == "button":
        entries, longest = [one["reply"] for one in action["buttons"]], 20
        wrong = (
            not 1 <= len(entries) <= 3 or len(body) > 1024 or any(one["type"] != "reply" for one in action["buttons"])
        )
    else:
        entries, longest = [row for section in action["sections"] for row in section["rows"]], 24
        wrong = (
            not 1 <= len(entries) <= 10 or len(body) > 4096 or len(action["button"]) > 20 or inside["type"] != "list"
        )
    titles, ids = [one["title"] for one in entries], [one["id"] for one in entries]
    wrong = wrong or any(not 1 <= len(title) <= longest for title in titles) or any(len(one) > 200 for one in ids)
    if wrong or len(set(ids)) < len(ids) or any(len(one.get("description", "")) > 72 for one in entries):
        raise Wrong(131009, f"interactive: {inside}")


def _choices(message: dict[str, Any]) -> list[tuple[str, dict[str, str]]]:
    """The buttons or rows of a message: the field of the reply to each, and its id and title."""
    inside = message.get("interactive")
    if not inside:
        return []
    if inside["type"] == "button":
        return [("button_reply", one["reply"]) for one in inside["action"]["buttons"]]
    return [("list_reply", row) for section in inside["action"]["sections"] for row in section["rows"]]


def _text(message: dict[str, Any]) -> str:
    """The text that people see."""
    kind = message["type"]
    if kind == "text":
        return str(message["text"]["body"])
    if kind == "interactive":
        return str(message["interactive"]["body"]["text"])
    if kind == "template":
        return "Your assistant: " + str(message["template"]["components"][0]["parameters"][0]["text"])
    return ""


def signed(body: bytes) -> str:
    """Meta's signature of a delivery."""
    return "sha256=" + hmac.new(SECRET.encode(), body, hashlib.sha256).hexdigest()
