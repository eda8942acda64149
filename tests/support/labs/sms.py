"""Twilio without Twilio: its REST API for messages, and its signed webhook requests.

Requests are checked by the published API: login, parameters, lengths. A webhook is called once, whatever its answer is; the
list of messages has all of them. The signature is computed here from Twilio's
documentation, independently of the adapter.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import threading
import time
from datetime import datetime
from email.utils import formatdate
from typing import Any
from urllib.parse import parse_qs, parse_qsl, urlencode, urlsplit

from tests.support.labs.http_lab import Handler, HttpLab

SID = "AC00000000000000000000000000000001"
TOKEN = "twilio-auth-token-for-the-lab-01"
NUMBER = "+15005550006"
_NUMBERS = {"alice": "+15005550101", "bob": "+15005550102", "mallory": "+15005550103"}
_ERRORS = "https://www.twilio.com/docs/errors"
_PATH = f"/2010-04-01/Accounts/{SID}/Messages"
_PARAMETERS = {"To", "From", "MessagingServiceSid", "Body", "MediaUrl", "StatusCallback"}


class Lab(HttpLab):
    """One number and three people."""

    platform = "sms"
    places = frozenset({"dm"})
    can = frozenset({"redeliver", "rate_limit", "fail", "attach"})

    once = True

    def _forget(self) -> None:
        self._sent: list[dict[str, str]] = []
        self._said: dict[str, dict[str, str]] = {}
        self._times: dict[str, float] = {}  # when each was sent
        self.moved = 0.0  # how far Twilio's clock is from ours, in seconds
        self.page_size = 1000  # the most messages in a page of the list
        self.silent = False  # no webhook is called
        self.lists = threading.Event()  # the list of messages is answered
        self.lists.set()
        self.listed: list[dict[str, str]] = []  # the queries of the list
        self._media: dict[str, tuple[bytes, str]] = {}
        self.unsubscribed: set[str] = set()
        self.logins: list[tuple[str, str]] = []  # path and Authorization of requests for media

    @property
    def settings(self) -> dict[str, Any]:
        return {"account_sid": SID, "auth_token": TOKEN, "phone_number": NUMBER, "base_url": self.address} | {
            "trust_numbers": True  # as for every platform, the first person is the owner
        }

    def user_id(self, who: str) -> str:
        return _NUMBERS[who]

    def chat_id(self, where: str, who: str = "alice") -> str:
        return _NUMBERS[who]

    def say(self, text: str, *, who: str = "alice", where: str = "dm", addressed: bool = True, **more: str) -> str:
        number = f"SM{next(self._ids):032x}"
        self._said[number] = {
            "ToCountry": "US", "MessageSid": number, "SmsSid": number, "AccountSid": SID, "NumMedia": "0", "NumSegments": "1",
            "From": _NUMBERS[who], "To": NUMBER, "Body": text, "ApiVersion": "2010-04-01", **more,
        }  # fmt: skip
        self._times[number] = time.time() + self.moved
        if not self.silent:
            self.redeliver(number)
        return number

    def redeliver(self, message_id: str) -> None:
        self.deliver(self._said[message_id])

    def deliver(self, fields: dict[str, str], signature: str | None = None) -> None:
        """Call the webhook, signed unless another signature is given."""
        url = f"http://127.0.0.1:{self.listens_at}/sms"
        self._deliveries.post(url, data=fields, headers={"X-Twilio-Signature": signature or signed(url, fields)})

    def attach(
        self, data: bytes, name: str, mime: str, *, who: str = "alice", where: str = "dm", text: str = ""
    ) -> str:
        media = f"ME{next(self._ids):032x}"
        self._media[media] = (data, mime)
        url = f"{self.address}{_PATH}/SM{next(self._ids) + 1:032x}/Media/{media}"
        return self.say(text, who=who, NumMedia="1", MediaUrl0=url, MediaContentType0=mime)

    def shown(self, where: str = "dm", *, who: str = "alice") -> list[str]:
        return [one["Body"] for one in self._sent if one["To"] == _NUMBERS[who]]

    # ------------------------------------------------------------------------------------------ the server

    def _taken(self, form: dict[str, list[str]]) -> tuple[int, dict[str, Any]]:
        fields = {name: values[0] for name, values in form.items()}
        if set(fields) - _PARAMETERS:
            return self._wrong(21601, f"unknown parameters {sorted(set(fields) - _PARAMETERS)}")
        if self._limited:
            self._limited -= 1
            return 429, {"code": 20429, "message": "Too many requests", "status": 429}
        if self._failing:
            self._failing -= 1
            return 503, {"code": 20503, "message": "Service unavailable", "status": 503}
        if not fields.get("To", "").startswith("+"):
            return self._wrong(21211, "The 'To' number is not a valid phone number.")
        if fields["To"] in self.unsubscribed:
            told = "Attempt to send to unsubscribed recipient"
            return 400, {"code": 21610, "message": told, "more_info": f"{_ERRORS}/21610", "status": 400}
        if not (fields.get("From") == NUMBER or fields.get("MessagingServiceSid", "").startswith("MG")):
            return self._wrong(21603, "A 'From' phone number is required.")
        if not fields.get("Body", "").strip():
            return self._wrong(21602, "Message body is required.")
        if len(fields["Body"]) > 1600:
            return self._wrong(21617, "The concatenated message body exceeds the 1600 character limit.")
        self._sent.append(fields)
        return 201, self._resource(fields)

    def _resource(self, fields: dict[str, str]) -> dict[str, Any]:
        """A message as Twilio's OpenAPI describes it."""
        return self._described(f"SM{next(self._ids):032x}", formatdate(), fields)

    def _described(self, sid: str, now: str, fields: dict[str, str]) -> dict[str, Any]:
        return {
            "sid": sid, "account_sid": SID, "api_version": "2010-04-01", "status": "queued", "direction": "outbound-api",
            "body": fields["Body"], "to": fields["To"], "from": fields.get("From"), "num_segments": "1", "num_media": "0",
            "messaging_service_sid": fields.get("MessagingServiceSid"), "date_created": now, "date_updated": now,
            "date_sent": None, "error_code": None, "error_message": None, "price": None, "price_unit": "USD",
            "uri": f"{_PATH}/{sid}.json", "subresource_uris": {"media": f"{_PATH}/{sid}/Media.json"},
        }  # fmt: skip

    def _list(self, query: dict[str, str]) -> tuple[int, dict[str, Any]]:
        """The messages we have received and sent, the newest first."""
        self.listed.append(query)
        if set(query) - {"To", "From", "DateSent>", "DateSent<", "DateSent", "PageSize", "Page", "PageToken"}:
            return self._wrong(20001, f"unknown parameters of the list: {sorted(query)}")
        if self._limited:
            self._limited -= 1
            return 429, {"code": 20429, "message": "Too many requests", "status": 429}
        if self._failing:
            self._failing -= 1
            return 503, {"code": 20503, "message": "Service unavailable", "status": 503}
        since = datetime.fromisoformat(
            query.get("DateSent>", "2000-01-01T00:00:00Z").replace("Z", "+00:00")
        ).timestamp()
        found = []
        for sid, fields in self._said.items():
            at = formatdate(self._times[sid])
            number_of = {"num_media": fields["NumMedia"], "date_sent": at, "date_created": at, "date_updated": at}
            row = {**self._described(sid, at, fields), **number_of, "direction": "inbound", "status": "received"}
            row |= {"messaging_service_sid": fields.get("MessagingServiceSid"), "account_sid": fields["AccountSid"]}
            if int(self._times[sid]) >= since and query.get("To") in (None, fields["To"]):
                found.append(row)
        found.reverse()
        size, page = min(int(query.get("PageSize", "50")), self.page_size), int(query.get("Page", "0"))
        begin, uri = page * size, f"{_PATH}.json?{urlencode({**query, 'Page': str(page + 1), 'PageToken': 'PAx'})}"
        return 200, {
            "messages": found[begin : begin + size], "page": page, "page_size": size, "start": begin, "end": begin + size - 1,
            "uri": f"{_PATH}.json?{urlencode(query)}", "first_page_uri": f"{_PATH}.json", "previous_page_uri": None,
            "next_page_uri": uri if len(found) > begin + size else None,
        }  # fmt: skip

    def _media_list(self, sid: str) -> dict[str, Any]:
        fields = self._said.get(sid, {})
        files = []
        for number in range(int(fields.get("NumMedia", "0"))):
            media = fields[f"MediaUrl{number}"].rpartition("/")[2]
            files.append({
                "sid": media, "account_sid": SID, "parent_sid": sid, "content_type": fields[f"MediaContentType{number}"],
                "date_created": formatdate(), "date_updated": formatdate(), "uri": f"{_PATH}/{sid}/Media/{media}.json",
            })  # fmt: skip
        return {"media_list": files, "page": 0, "page_size": 50, "next_page_uri": None}

    def _wrong(self, code: int, text: str) -> tuple[int, dict[str, Any]]:
        self._problems.append(text)
        return 400, {
            "code": code,
            "message": text,
            "more_info": f"{_ERRORS}/{code}",
            "status": 400,
        }

    def _handler(self) -> type[Handler]:
        lab = self

        class Requests(Handler):
            def date_time_string(self, timestamp: float | None = None) -> str:
                return formatdate((time.time() if timestamp is None else timestamp) + lab.moved, usegmt=True)

            def _allowed(self) -> bool:
                wanted = base64.b64encode(f"{SID}:{TOKEN}".encode()).decode()
                if self.headers.get("Authorization") == f"Basic {wanted}":
                    return True
                self.answer(401, json.dumps({"code": 20003, "message": "Authenticate", "status": 401}).encode())
                return False

            def do_GET(self) -> None:
                path = urlsplit(self.path).path
                if "/Media/" in path:
                    lab.logins.append((path, self.headers.get("Authorization", "")))
                if path.startswith("/stored/"):
                    data, mime = lab._media[path.rpartition("/")[2]]
                    self.answer(200, data, mime)
                elif self._allowed():
                    if "/Media/" in path:
                        self.answer(307, b"", Location=f"/stored/{path.rpartition('/')[2]}")
                    elif path == f"{_PATH}.json":
                        lab.lists.wait(60)
                        status, found = lab._list(dict(parse_qsl(urlsplit(self.path).query)))
                        self.answer(
                            status, json.dumps(found).encode(), **({"Retry-After": "0"} if status == 429 else {})
                        )
                    elif path.endswith("/Media.json"):
                        self.answer(200, json.dumps(lab._media_list(path.split("/")[-2])).encode())
                    else:
                        self.answer(200, json.dumps({"sid": SID, "friendly_name": "The Lab"}).encode())

            def do_POST(self) -> None:
                form = parse_qs(self.body().decode(), keep_blank_values=True)
                if self._allowed():
                    status, found = lab._taken(form)
                    self.answer(status, json.dumps(found).encode(), **({"Retry-After": "0"} if status == 429 else {}))

        return Requests


def signed(url: str, fields: dict[str, str]) -> str:
    """Twilio's signature, from its documentation."""
    text = url
    for name in sorted(fields):
        text += name + fields[name]
    return base64.b64encode(hmac.new(TOKEN.encode(), text.encode(), hashlib.sha1).digest()).decode()
