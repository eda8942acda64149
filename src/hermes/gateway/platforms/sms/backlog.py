"""Messages whose webhook did not reach us: Twilio does not deliver a message again, but lists those it has received.

https://www.twilio.com/docs/messaging/api/message-resource#read-multiple-message-resources
A small file has the moment up to which all were read, by Twilio's clock, and the messages that were handled without being
stored (STOP, START): the store recognises all others by their SID.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

import httpx

from hermes.errors import PlatformUnreachable, SendRefused
from hermes.gateway.platforms.http import HttpApi, json_object
from hermes.whole_files import write_whole

OVERLAP = timedelta(minutes=15)  # read again each time: a message is listed a while after its date
_FIRST = timedelta(minutes=5)  # before the very first start: another gateway on the same store may have ended just now
_PAGE = 1000  # Twilio's largest
_SETTLED = 1000
Fields = dict[str, str]


class Backlog:
    """How far the list was read, and what is not for the agent, in a file of its own."""

    def __init__(self, file: Path, account: str) -> None:
        self._file, self._account = file, account
        kept = self._read()
        self._until: datetime | None = kept.get("until")
        self._settled: dict[str, None] = dict.fromkeys(kept.get("settled", ()))

    def _read(self) -> dict[str, Any]:
        try:
            kept = json.loads(self._file.read_text("utf-8"))
            if kept["account"] != self._account:
                return {}
            until = datetime.fromisoformat(kept["until"]) if kept["until"] else None
            return {"until": until if until is None or until.tzinfo else None, "settled": map(str, kept["settled"])}
        except (OSError, ValueError, KeyError, TypeError):
            return {}

    def since(self, now: datetime) -> datetime:
        """The date of the oldest message to ask for."""
        return now - _FIRST if self._until is None else self._until - OVERLAP

    def read_until(self, moment: datetime) -> None:
        """Everything that Twilio had received by then is stored."""
        if self._until is None or moment > self._until:
            self._until = moment
            self._write()

    def settle(self, sid: str) -> None:
        """A message was handled and is not for the agent: a later list does not bring it again."""
        self._settled[sid] = None
        while len(self._settled) > _SETTLED:
            del self._settled[next(iter(self._settled))]
        self._write()

    def is_settled(self, sid: str) -> bool:
        """Whether a message was handled, and not stored."""
        return sid in self._settled

    def _write(self) -> None:
        until = None if self._until is None else self._until.isoformat()
        content = {"account": self._account, "until": until, "settled": list(self._settled)}
        self._file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(self._file, json.dumps(content))


async def twilio_time(api: HttpApi, path: str) -> datetime:
    """The time by Twilio's clock: ours may be wrong, or be set back."""
    return _date(dict((await api.request("GET", f"{path}.json")).headers).get("date")) or datetime.now(UTC)


async def received(
    api: HttpApi, path: str, since: datetime, *, number: str, service: str
) -> list[tuple[Fields, float]]:
    """What people have sent to `number`, or to a number of the messaging service `service`, since then, the oldest first.

    Each as the fields of the webhook's request, and when it was sent.
    """
    query = {"DateSent>": since.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"), "PageSize": str(_PAGE)}
    if not service:  # numbers of a service are unknown here
        query["To"] = number
    found: list[tuple[datetime, dict[str, Any]]] = []
    address: str | None = f"{path}/Messages.json?{httpx.QueryParams(query)}"
    while address is not None:
        page = _object(await api.request("GET", address))
        for message in page.get("messages") or ():
            sent = _date(message.get("date_sent") or message.get("date_created")) if isinstance(message, dict) else None
            if sent is not None and sent >= since and _is_ours(message, number, service):
                found.append((sent, message))
        following = str(page.get("next_page_uri") or "").removeprefix(api.base_url)
        # Our login goes nowhere else, whatever the list says.
        address = following if following.startswith(f"{path}/Messages.json?") else None
    found.reverse()  # the newest is the first in the list
    found.sort(key=lambda one: one[0])
    return [(await _fields(api, path, message), sent.timestamp()) for sent, message in found]


def _is_ours(message: Mapping[str, Any], number: str, service: str) -> bool:
    to_us = bool(number) and message.get("to") == number
    to_service = bool(service) and message.get("messaging_service_sid") == service
    whole = message.get("direction") == "inbound" and message.get("status") == "received"
    return whole and (to_us or to_service) and bool(message.get("sid"))


async def _fields(api: HttpApi, path: str, message: Mapping[str, Any]) -> Fields:
    sid = str(message["sid"])
    fields = {
        "MessageSid": sid,
        "AccountSid": str(message.get("account_sid") or ""),
        "From": str(message.get("from") or ""),
        "Body": str(message.get("body") or ""),
    }
    if str(message.get("num_media") or "0") == "0":
        return fields
    try:
        files = _object(await api.request("GET", f"{path}/Messages/{sid}/Media.json")).get("media_list")
    except SendRefused:  # deleted at Twilio
        files = None
    files = [one for one in files or () if isinstance(one, dict) and isinstance(one.get("sid"), str)]
    fields["NumMedia"] = str(len(files))
    for place, one in enumerate(files):
        fields[f"MediaUrl{place}"] = f"{api.base_url}{path}/Messages/{sid}/Media/{one['sid']}"
        fields[f"MediaContentType{place}"] = str(one.get("content_type") or "")
    return fields


def _object(answer: httpx.Response) -> dict[str, Any]:
    found = json_object(answer)
    if found is None:
        raise PlatformUnreachable("Twilio's list of messages can't be read")
    return found


def _date(text: Any) -> datetime | None:
    try:
        found = parsedate_to_datetime(str(text))
    except ValueError:
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)
