"""SMS and MMS through Twilio: its webhook brings messages, its REST API sends them.

https://www.twilio.com/docs/messaging
The webhook's request says that there are new messages: they are read from Twilio's list, in the order in which they were sent.
So are those whose webhook did not reach us, after the start and every ten minutes. Twilio itself stops writing to a person who
writes STOP, until they write START, as the law of many countries wants it.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import mimetypes
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlsplit

import httpx
import msgspec

from hermes.errors import PlatformError, PlatformRefused, PlatformUnreachable, SendRefused, SlowDown
from hermes.gateway.adapter import Capabilities, Link, ReplyContext, Setting, utf16_units
from hermes.gateway.events import Attachment, Chat, Event, Sender
from hermes.gateway.flow.turns import wait_first
from hermes.gateway.platforms._shared import markup
from hermes.gateway.platforms._shared.http import HttpApi, address_parts, attachment, error_text, is_at, json_object
from hermes.gateway.platforms._shared.receipt import MarkFile, dicts_of, keep, text_of
from hermes.gateway.platforms._shared.tasks import ApiAdapter, Recent, loss_reported

if TYPE_CHECKING:
    from hermes.gateway.platforms._shared.listener import PlatformRequest, PlatformResponse

# the words that Twilio itself handles
HANDLED = frozenset({"STOP", "STOPALL", "UNSUBSCRIBE", "CANCEL", "END", "QUIT", "OPTOUT", "REVOKE", "START", "UNSTOP"})
MOST_SEGMENTS = 10  # a carrier refuses longer messages
# signs that would make a message one of fewer characters, as others that look alike
_PLAINER = str.maketrans("“”„‘’–—•\u00a0\t", '"""\'\'---  ') | {ord("…"): ".."}
_LAYOUT = markup.Layout(bullet="- ")
_EMPTY = '<?xml version="1.0" encoding="UTF-8"?><Response/>'
_UNSUBSCRIBED = 21610  # Twilio's code: the person has written STOP
_ADDRESS = re.compile(r"(https?://)?([^/?#]*?)(:\d+)?([/?#].*)?", re.DOTALL)
_SID = re.compile(r"[A-Z]{2}[0-9a-fA-F]{32}")
OVERLAP = timedelta(minutes=15)  # read again each time: a message is listed a while after its date
_PAGE = 1000  # Twilio's largest
_BRIEF = 10.0  # seconds until a list that could not be read is requested again
_MEDIA_HOSTS = (".twilio.com", ".twiliocdn.com", ".amazonaws.com")


def signature(token: str, url: str, fields: list[tuple[str, str]]) -> str:
    """Twilio's signature of a request: the address and all fields, sorted by name."""
    signed = url + "".join(f"{name}{value}" for name, value in sorted(set(fields)))
    return base64.b64encode(hmac.new(token.encode(), signed.encode(), hashlib.sha1).digest()).decode()


def addresses(url: str) -> tuple[str, ...]:
    """The ways Twilio writes an address that it signs: as it is, without its port, with the port of its scheme.

    Which one it is depends on the part of Twilio that calls; its own libraries accept all of them.
    """
    scheme, host, port, rest = _ADDRESS.fullmatch(url).groups("")  # type: ignore[union-attr]  # it fits every text
    usual = {"https://": ":443", "http://": ":80"}.get(scheme, "")
    return url, f"{scheme}{host}{'' if port else usual}{rest}"


class Sms(ApiAdapter["_TwilioApi"]):
    """A phone number at Twilio."""

    platform = "sms"
    title = "SMS"
    extra = "sms"
    variables = "TWILIO"
    settings = (
        Setting("account_sid", "the account's SID, as AC…", required=True),
        Setting("auth_token", "the account's auth token", secret=True, required=True),
        Setting("phone_number", "the number messages are sent from, as +4915112345678", unless="messaging_service_sid"),
        Setting("messaging_service_sid", "a messaging service, as MG…"),
        Setting(
            "trust_numbers", "believe sender numbers, which can be forged: the owner's number has the owner's tools",
            default=False, kind=bool,
        ),
        Setting("base_url", "where Twilio's API is", default="https://api.twilio.com"),
    )  # fmt: skip
    # A part of this length takes ten segments at most, in either alphabet.
    capabilities = Capabilities(longest=MOST_SEGMENTS * 67, measure=utf16_units, media=True)
    look_again = 600.0  # seconds between two looks at Twilio's list

    def __init__(self, values: Mapping[str, Any], home: Path) -> None:
        super().__init__(values, home)
        self._mark = MarkFile(home / "sms.json", self.text("account_sid"), _State)
        self._news = asyncio.Event()
        self._pushed: dict[str, dict[str, str]] = {}  # the webhook's messages, by id, until they are stored
        self._done: Recent[str, bool] = Recent()  # the ids of messages that are stored, or are not for the agent

    # ------------------------------------------------------------------------------------------ login

    def validate(self) -> None:
        """Refuse what can't be an account."""
        for name, kind in (("account_sid", "AC"), ("messaging_service_sid", "MG")):
            sid = self.text(name)
            if (sid or name == "account_sid") and not (sid.startswith(kind) and _SID.fullmatch(sid)):
                raise PlatformRefused(
                    f"sms: {name} must begin with {kind} and have 32 digits of 0-9 and a-f after it (Twilio's console shows it)"
                )
        number = self.text("phone_number")
        if not number and not self.text("messaging_service_sid"):
            raise PlatformRefused("sms: phone_number (or messaging_service_sid) is missing: nothing could be sent")
        if number and not (number.startswith("+") and number[1:].isdigit()):
            raise PlatformRefused(f"sms: phone_number must be written as +4915112345678, not {number!r}")

    def doubts(self) -> str | None:
        """Twilio signs its requests with the public address; a sender's number proves nothing."""
        if self.webhook_address is None:
            return "gateway.listen.public_url is not set: Twilio signs the address it calls, so every message would be refused"
        if self.setting("trust_numbers"):
            return "trust_numbers is set: a person who forges the owner's number in an SMS has the owner's tools"
        return None

    async def check(self) -> str:
        """Log in and say which number we are."""
        async with self.make_api() as api:
            account = (await api.request("GET", f"{self._path}.json")).json()
            return self.text("phone_number") or str(account.get("friendly_name") or self.text("account_sid"))

    async def begin(self, link: Link, api: _TwilioApi) -> None:
        """Log in and register the webhook."""
        identity = await self.check()

        async def delivered(call: PlatformRequest) -> PlatformResponse:
            from hermes.gateway.platforms._shared.listener import PlatformResponse

            fields = dict(_fields(call))
            self._pushed[fields.get("MessageSid", "")] = fields  # until it is stored, Twilio's list has it
            self._news.set()
            return PlatformResponse(body=_EMPTY, mime="text/xml")

        self.closing(await self.listen(link, delivered, signed=self._is_twilio, seconds=10))
        link.connected(identity)
        self._tasks.start(self._look_after(link, api), name="sms")

    def make_api(self) -> _TwilioApi:
        """The API, with our login."""
        return _TwilioApi(
            self.title, self.text("base_url"), auth=(self.text("account_sid"), self.text("auth_token")), timeout=40
        )

    @property
    def _path(self) -> str:
        return f"/2010-04-01/Accounts/{self.text('account_sid')}"

    # ------------------------------------------------------------------------------------------ receiving

    async def _look_after(self, link: Link, api: _TwilioApi) -> None:
        """Hand over new messages when Twilio has called, and now and then those whose call did not reach us."""
        with loss_reported(link, self.title):
            while True:
                pause = self.look_again
                self._news.clear()
                try:
                    await self._catch_up(link, api)
                except (PlatformUnreachable, SlowDown, SendRefused) as error:
                    pause = min(pause, max(_BRIEF, getattr(error, "retry_after", 0.0)))
                    link.log.warning("the list of messages can't be read: %s; trying again in %g s", error, pause)
                while self._pushed:  # these are not in the list yet
                    await self._hand_over(link, self._pushed.pop(next(iter(self._pushed))))
                await wait_first(self._news, pause)

    async def _catch_up(self, link: Link, api: _TwilioApi) -> None:
        """Hand over what the list has since the newest message that we have; at the first start, of the last minutes."""
        state = self._mark.state
        if state.until is None:
            state.until = await twilio_time(api, self._path)
            self._mark.write()
        number, service = self.text("phone_number"), self.text("messaging_service_sid")
        for fields, sent in await received(api, self._path, state.until - OVERLAP, number=number, service=service):
            # Only the webhook says that Twilio has handled a word itself (OptOutType).
            await self._hand_over(link, self._pushed.pop(fields["MessageSid"], fields), sent)
            if sent > state.until:
                state.until = sent
                self._mark.write()

    def _is_twilio(self, call: PlatformRequest) -> bool:
        presented = call.headers.get("X-Twilio-Signature", "")
        wanted = [signature(self.text("auth_token"), url, _fields(call)) for url in addresses(call.url)]
        return any(hmac.compare_digest(presented.encode(), one.encode()) for one in wanted)

    async def _hand_over(self, link: Link, fields: dict[str, str], sent: datetime | None = None) -> None:
        """Hand over a message, unless Twilio has handled it: STOP, START and the like."""
        who, number = fields.get("From", ""), fields.get("MessageSid") or fields.get("SmsSid", "")
        # Twilio signs names and values without a border between them: only the form of an id shows where it ends.
        if not who or not _SID.fullmatch(number) or fields.get("AccountSid") != self.text("account_sid"):
            return
        if number in self._done:
            return
        if fields.get("OptOutType") or fields.get("Body", "").strip().upper() in HANDLED:
            link.log.info("%s has written a word that Twilio handles", who)
        else:
            event = Event(
                id=number, chat=Chat(platform=self.platform, chat_id=who, name=who),
                # Twilio signed the request, but numbers can be forged on the way to it: the owner decides.
                sender=Sender(user_id=who, name=who, proven=bool(self.setting("trust_numbers"))),
                text=fields.get("Body", ""), attachments=_media(fields), message_id=number,
                sent_at=None if sent is None else sent.timestamp(),
            )  # fmt: skip
            await keep(link, event)
        self._done.put(number, True)

    async def fetch(self, attachment: Attachment) -> bytes:
        """The bytes of a picture or file. Twilio's own host gets our login, the host it redirects to does not."""
        address = str(attachment.reference.get("url"))
        if address_parts(address)[:2] != address_parts(self.text("base_url"))[:2]:
            raise SendRefused("the file is not stored at Twilio")
        return await self.api.media(address)

    # ------------------------------------------------------------------------------------------ sending

    async def send(
        self, chat: Chat, text: str, *, nonce: str, reply_to: str | None = None, context: ReplyContext | None = None
    ) -> str:
        """Send a message; its SID."""
        body = (markup.marked(text, _LAYOUT).text or text).translate(_PLAINER)
        form = {"To": chat.chat_id, "Body": body}
        service = self.text("messaging_service_sid")
        form |= {"MessagingServiceSid": service} if service else {"From": self.text("phone_number")}
        answer = await self.api.request("POST", f"{self._path}/Messages.json", data=form)
        return str(answer.json()["sid"])


class _TwilioApi(HttpApi):
    def failure(self, answer: httpx.Response) -> PlatformError:
        """The error by Twilio's own code."""
        found = json_object(answer) or {}
        if answer.status_code == 401:
            return PlatformRefused("Twilio does not accept account_sid and auth_token")
        if found.get("code") == _UNSUBSCRIBED:
            return SendRefused("they have opted out (STOP)")
        if found.get("code") == 20429:
            return SlowDown("Twilio asks us to wait", 5.0)
        return SendRefused(f"Twilio refuses: {error_text(found.get('message') or f'HTTP {answer.status_code}')}")

    async def media(self, address: str) -> bytes:
        """A file at Twilio, which redirects to where it is stored."""
        answer = await self.download(
            address, what="the file", trusted=lambda one: is_at(one, _MEDIA_HOSTS, self.base_url)
        )
        return answer.content


def _fields(call: PlatformRequest) -> list[tuple[str, str]]:
    return parse_qsl(call.body.decode("utf-8", "replace"), keep_blank_values=True)


def _media(fields: dict[str, str]) -> tuple[Attachment, ...]:
    count = fields.get("NumMedia", "0")
    found = []
    for number in range(min(int(count) if count.isdecimal() else 0, 20)):
        url, mime = fields.get(f"MediaUrl{number}"), fields.get(f"MediaContentType{number}")
        if url:
            name = f"{urlsplit(url).path.rpartition('/')[2] or number}{mimetypes.guess_extension(mime or '') or ''}"
            found.append(attachment(name, mime, url=url))
    return tuple(found)


# -------------------------------------------------------------------------------- messages whose webhook did not reach us
#
# Twilio does not deliver a message again, but lists those it has received
# (https://www.twilio.com/docs/messaging/api/message-resource#read-multiple-message-resources). A small file has the date of the
# newest one that is stored, by Twilio's clock; the store recognises by its SID what is read twice.


class _State(msgspec.Struct):
    until: datetime | None = None


async def twilio_time(api: HttpApi, path: str) -> datetime:
    """The time by Twilio's clock: ours may be wrong, or be set back."""
    return _date(dict((await api.request("GET", f"{path}.json")).headers).get("date")) or datetime.now(UTC)


async def received(
    api: HttpApi, path: str, since: datetime, *, number: str, service: str
) -> list[tuple[dict[str, str], datetime]]:
    """List what people have sent to `number`, or to a number of the messaging service `service`, since then, the oldest first.

    Each as the fields of the webhook's request, and when it was sent.
    """
    query = {"DateSent>": since.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"), "PageSize": str(_PAGE)}
    if not service:  # numbers of a service are unknown here
        query["To"] = number
    found: list[tuple[datetime, dict[str, Any]]] = []
    address: str | None = f"{path}/Messages.json?{httpx.QueryParams(query)}"
    while address is not None:
        page = await api.object("GET", address)
        for message in dicts_of(page.get("messages")):
            sent = _date(message.get("date_sent") or message.get("date_created"))
            if sent is not None and sent >= since and _is_ours(message, number, service):
                found.append((sent, message))
        following = str(page.get("next_page_uri") or "").removeprefix(api.base_url)
        # Our login goes nowhere else, whatever the list says.
        address = following if following.startswith(f"{path}/Messages.json?") else None
    found.reverse()  # the newest is the first in the list
    found.sort(key=lambda one: one[0])
    return [(await _listed_fields(api, path, message), sent) for sent, message in found]


def _is_ours(message: Mapping[str, Any], number: str, service: str) -> bool:
    to_us = bool(number) and message.get("to") == number
    to_service = bool(service) and message.get("messaging_service_sid") == service
    whole = message.get("direction") == "inbound" and message.get("status") == "received"
    return whole and (to_us or to_service) and bool(message.get("sid"))


async def _listed_fields(api: HttpApi, path: str, message: Mapping[str, Any]) -> dict[str, str]:
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
        files = (await api.object("GET", f"{path}/Messages/{sid}/Media.json")).get("media_list")
    except SendRefused:  # deleted at Twilio
        files = None
    files = [one for one in dicts_of(files) if text_of(one.get("sid"))]
    fields["NumMedia"] = str(len(files))
    for place, one in enumerate(files):
        fields[f"MediaUrl{place}"] = f"{api.base_url}{path}/Messages/{sid}/Media/{one['sid']}"
        fields[f"MediaContentType{place}"] = str(one.get("content_type") or "")
    return fields


def _date(text: Any) -> datetime | None:
    try:
        found = parsedate_to_datetime(str(text))
    except ValueError:
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)
