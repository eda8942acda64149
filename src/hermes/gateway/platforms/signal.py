"""The Signal adapter: it listens to signal-cli's stream of events and sends through its JSON-RPC.

People are identified by their UUID (a phone number can change, and may be hidden), groups by their group id, a message by
its author and the time it was sent. The stream is not repeated: messages that arrive while no client listens are kept by
Signal's servers only if the daemon runs with --receive-mode=on-connection.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import itertools
import logging
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote as quoted

import httpx
import msgspec

from hermes.errors import HermesError, PlatformRefused, PlatformUnreachable, SendRefused, SlowDown
from hermes.gateway.adapter import Capabilities, Link, ReplyContext, Setting, utf16_units
from hermes.gateway.events import DM, GROUP, Attachment, Chat, Event, OutgoingFile, Revision, Sender, deleted
from hermes.gateway.platforms._shared import markup
from hermes.gateway.platforms._shared.http import HttpApi, attachment, check_size, in_base64, json_object, seconds
from hermes.gateway.platforms._shared.receipt import LOG, Log, dicts_of, hand_over, read_object
from hermes.gateway.platforms._shared.tasks import PAUSES, ApiAdapter, Recent, Retries

OPENING = 2.0  # seconds: some daemons answer only with the first keep-alive, but a refusal comes at once
LARGEST_FILE = 14_000_000  # bytes: signal-cli reads texts of up to 20 million characters, and base64 makes 4 of 3
_PERSON = re.compile(r"\+\d+|(?:PNI:)?[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}|u:.+")


class Signal(ApiAdapter["Daemon"]):
    """A Signal account, served by a signal-cli daemon."""

    platform = "signal"
    title = "Signal"
    settings = (
        Setting(
            name="base_url", help="where signal-cli's daemon listens (signal-cli daemon --http)",
            variable="SIGNAL_BASE_URL", default="http://127.0.0.1:8080",
        ),
        Setting(
            name="account", help="the account's phone number, as +4915112345678", variable="SIGNAL_ACCOUNT",
            required=True,
        ),
    )  # fmt: skip
    # No edits: a Signal message can be edited ten times only, too few for a streamed reply.
    capabilities = Capabilities(
        longest=2000, measure=utf16_units, typing=True, media=True, mention_needed=True, quotes=True,
        tells_edits=True, tells_deletions=True, files=True, largest_file=LARGEST_FILE, longest_caption=2000,
    )  # fmt: skip

    opening = OPENING  # seconds to wait for the answer to the stream's request
    pauses: Sequence[float] = PAUSES  # seconds before each attempt to open a broken stream again

    def __init__(self, values: Mapping[str, Any], home: Path) -> None:
        super().__init__(values, home)
        self._account = self.text("account")
        self._ourselves = {self._account}
        self._versions: Recent[str, str] = Recent(500)  # an edit's id → the id of the message it edits
        self._unstored: list[Event | Revision] = []  # not stored yet; the daemon does not send them again
        self._texts: Recent[str, str] = Recent(500)  # message id → its beginning, for quotes

    # ---------------------------------------------------------------------------------------------- login

    async def check(self) -> str:
        """Ask the daemon whether it has the account."""
        async with self.make_api() as daemon:
            await self._find_account(daemon)
        return self._account

    def make_api(self) -> Daemon:
        """The daemon's API, for our account."""
        return Daemon(self.text("base_url"), self._account)

    async def begin(self, link: Link, daemon: Daemon) -> None:
        """Find the account and open the stream."""
        opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        await self._find_account(daemon)
        await self._find_ourselves(daemon)
        self._tasks.start(self._listen(daemon, link, opened), name="signal")
        await asyncio.wait({opened}, timeout=self.opening)
        if opened.done():
            opened.result()
        link.connected(self._account)

    async def _find_account(self, daemon: Daemon) -> None:
        if not self._account:
            raise PlatformRefused("Signal needs the account's phone number (platforms.signal.account in config.yaml)")
        await daemon.ask("version")
        try:
            accounts = await daemon.ask("listAccounts")
        except UnknownMethod:
            return  # started with -a: it serves one account, and reports when it is the wrong one
        known = [str(one.get("number")) for one in dicts_of(accounts)]
        if self._account not in known:
            raise PlatformRefused(
                f"the signal-cli daemon at {daemon.address} has no account {self._account}"
                f" (it has {', '.join(known) or 'none'}): register or link it with signal-cli first"
            )

    async def _find_ourselves(self, daemon: Daemon) -> None:
        """Find our UUID, for mentions by people who do not see our number."""
        with contextlib.suppress(SendRefused, PlatformUnreachable, UnknownMethod):
            found = dicts_of(await daemon.call("getUserStatus", recipient=[self._account]))
            self._ourselves |= {str(one["uuid"]) for one in found if one.get("uuid")}

    # ---------------------------------------------------------------------------------------------- receiving

    async def _listen(self, daemon: Daemon, link: Link, opened: asyncio.Future[None]) -> None:
        """Give the gateway the messages, in order, until the stream can't be opened any more."""
        retries = Retries(link, self._account, self.pauses)

        def on_open() -> None:
            if not opened.done():
                opened.set_result(None)
            retries.succeeded()

        try:
            while True:
                try:
                    await self._keep(link)
                    async for data in daemon.events(on_open, link.log):
                        event = self._revision_of(data) or self._event_of(data, link)
                        if event is not None:
                            self._unstored.append(event)
                            await self._keep(link)
                except PlatformUnreachable as error:
                    if not opened.done():
                        raise
                    await retries.failed(error)
        except Exception as error:
            if not isinstance(error, HermesError):
                link.log.exception("the Signal stream broke")
                error = PlatformUnreachable(f"the Signal stream broke: {error}")
            if opened.done():
                link.lost(error)
            else:
                opened.set_exception(error)

    async def _keep(self, link: Link) -> None:
        """Give the gateway what is not stored yet. A failed one is tried again after the next connect."""
        while self._unstored:
            await hand_over(link, self._unstored[0])
            del self._unstored[0]

    def _revision_of(self, data: dict[str, Any]) -> Revision | None:
        """An edit or a deletion. It names its message by author and time, so it can only refer to its sender's own."""
        envelope = data.get("envelope")
        if not isinstance(envelope, dict):
            return None
        person = envelope.get("sourceUuid") or envelope.get("sourceNumber") or envelope.get("source")
        edit, message = envelope.get("editMessage"), envelope.get("dataMessage")
        if isinstance(edit, dict) and isinstance(edit.get("dataMessage"), dict):
            made = self._event_of({"envelope": {**envelope, "dataMessage": edit["dataMessage"]}}, None)
            stamp = edit.get("targetSentTimestamp")
            if made is None or not isinstance(stamp, int):
                return None
            before = f"{made.chat.chat_id}:{person}:{stamp}"
            first = self._versions.put(made.id, self._versions.get(before) or before)
            return Revision(id=made.id, revises=first, event=msgspec.structs.replace(made, id=first))
        gone = message.get("remoteDelete") if isinstance(message, dict) else None
        if not isinstance(message, dict) or not isinstance(gone, dict) or not isinstance(gone.get("timestamp"), int):
            return None
        name = f"{_chat(message, str(person), None).chat_id}:{person}:{gone['timestamp']}"
        return deleted(self._versions.get(name) or name)

    def _event_of(self, data: dict[str, Any], link: Link | None) -> Event | None:
        """The gateway's event for a message; None for receipts, typing, reactions and our own devices."""
        envelope = data.get("envelope")
        if data.get("exception") and link is not None:
            link.log.warning("signal-cli could not read a message: %s", data["exception"])
        if not isinstance(envelope, dict) or not isinstance(envelope.get("dataMessage"), dict):
            return None
        message = envelope["dataMessage"]
        person = envelope.get("sourceUuid") or envelope.get("sourceNumber") or envelope.get("source")
        stamp = message.get("timestamp") or envelope.get("timestamp")
        text = message.get("message") if isinstance(message.get("message"), str) else ""
        files = [file for file in dicts_of(message.get("attachments")) if file.get("id")]
        if not person or not isinstance(stamp, int) or person in self._ourselves or not (text or files):
            return None
        if any(message.get(key) for key in ("reaction", "remoteDelete", "isExpirationUpdate", "storyContext")):
            return None
        chat = _chat(message, str(person), envelope.get("sourceName"))
        quote = message.get("quote") if isinstance(message.get("quote"), dict) else {}
        author = quote.get("authorUuid") or quote.get("authorNumber") or quote.get("author")
        clean, mentioned = self._without_mentions(text, dicts_of(message.get("mentions")))
        name = _message_id(stamp, str(person))
        self._texts.put(name, clean[:200])
        return Event(
            id=f"{chat.chat_id}:{person}:{stamp}",
            chat=chat,
            sender=_sender(envelope, str(person)),
            text=clean,
            attachments=tuple(_attachment(file, chat.chat_id) for file in files),
            message_id=name,
            reply_to=_message_id(quote["id"], str(author)) if quote.get("id") and author else None,
            quoted=str(quote["text"]) if quote.get("text") else None,
            sent_at=stamp / 1000,
            addressed=chat.type == DM or mentioned or author in self._ourselves,
        )

    def _without_mentions(self, text: str, mentions: list[dict[str, Any]]) -> tuple[str, bool]:
        """The text with the mentions of others by name and without those of us, and whether there was one of us."""
        units = text.encode("utf-16-le")
        ours = False
        for mention in sorted(mentions, key=lambda one: _number(one.get("start")), reverse=True):
            start, length = _number(mention.get("start")), _number(mention.get("length"))
            if not 0 <= start <= start + length <= len(units) // 2:
                continue
            about_us = bool(self._ourselves & {mention.get("uuid"), mention.get("number"), mention.get("name")})
            ours = ours or about_us
            name = "" if about_us else f"@{mention.get('name') or mention.get('number') or mention.get('uuid')}"
            units = units[: start * 2] + name.encode("utf-16-le", "replace") + units[(start + length) * 2 :]
        text = units.decode("utf-16-le", "replace")
        return (text.strip(" ,:") if ours else text), ours

    # ---------------------------------------------------------------------------------------------- sending

    async def send(
        self, chat: Chat, text: str, *, nonce: str, reply_to: str | None = None, context: ReplyContext | None = None
    ) -> str:
        """Send a message to a person or a group. Signal has no nonces: sent twice, it arrives twice."""
        quote: dict[str, Any] = {}
        if reply_to is not None and (named := _named(reply_to)) is not None:
            quote = {
                "quoteTimestamp": named[0],
                "quoteAuthor": named[1],
                "quoteMessage": self._texts.get(reply_to) or "",
            }
        stamp = await self._post(chat, text, **quote)
        name = _message_id(stamp, self._account)
        self._texts.put(name, text[:200])
        return name

    async def send_file(
        self, chat: Chat, file: OutgoingFile, *, caption: str = "", nonce: str, context: ReplyContext | None = None
    ) -> str:
        """Send a file with its bytes in the request: the daemon need not see our folders."""
        address = await asyncio.to_thread(_data_address, file)
        return _message_id(await self._post(chat, caption, attachment=[address]), self._account)

    async def _post(self, chat: Chat, text: str, **more: Any) -> int:
        plain, styles = styled(text)
        words = {"message": plain} if plain or "attachment" not in more else {}
        parameters = {**_target(chat.chat_id), **words, **more}
        response = await self.api.call("send", **parameters, **({"textStyle": styles} if styles else {}))
        check_sent(response)
        stamp = response.get("timestamp") if isinstance(response, dict) else None
        if not isinstance(stamp, int):
            raise PlatformUnreachable("signal-cli did not say when the message was sent")
        return stamp

    async def typing(self, chat: Chat) -> None:
        """Show for fifteen seconds that a reply is being written."""
        await self.api.call("sendTyping", **_target(chat.chat_id))

    async def fetch(self, attachment: Attachment) -> bytes:
        """The bytes of a file, from the daemon's own folder."""
        reference = attachment.reference
        with in_base64():
            response = await self.api.call(
                "getAttachment", id=str(reference["id"]), **_target(str(reference["chat_id"]), many=False)
            )
        try:
            data = base64.b64decode(response["data"], validate=True)
        except (TypeError, KeyError, binascii.Error):
            raise SendRefused(f"signal-cli no longer has the file {attachment.name or reference['id']}") from None
        check_size(len(data))
        return data


def _target(chat_id: str, *, many: bool = True) -> dict[str, Any]:
    """The recipient: a UUID or a number is a person, all else a group."""
    if _PERSON.fullmatch(chat_id):
        return {"recipient": [chat_id] if many else chat_id}
    return {"groupId": chat_id}


def _sender(envelope: dict[str, Any], person: str) -> Sender:
    # Signal's encryption authenticates the account; the daemon that decrypts is ours.
    return Sender(
        user_id=str(envelope.get("sourceNumber") or person),
        stable_id=str(envelope["sourceUuid"]) if envelope.get("sourceUuid") else None,
        name=str(envelope.get("sourceName") or envelope.get("sourceNumber") or person),
        proven=True,
    )


def _data_address(file: OutgoingFile) -> str:
    """A file as signal-cli takes it: data:<type>;filename=<name, escaped>;base64,<bytes>."""
    mime = file.mime if re.fullmatch(r"[\w.+-]+/[\w.+-]+", file.mime) else "application/octet-stream"
    name = quoted(file.name, safe="", errors="replace")
    return f"data:{mime};filename={name};base64,{base64.b64encode(file.data).decode()}"


def _chat(message: dict[str, Any], person: str, name: Any) -> Chat:
    group = message.get("groupInfo")
    if isinstance(group, dict) and group.get("groupId"):
        title = group.get("groupName")
        return Chat(platform="signal", chat_id=str(group["groupId"]), type=GROUP, name=str(title) if title else None)
    return Chat(platform="signal", chat_id=person, type=DM, name=str(name) if name else None)


def _attachment(file: dict[str, Any], chat_id: str) -> Attachment:
    mime = file.get("contentType") or "application/octet-stream"
    return attachment(file.get("filename"), mime, file.get("size"), id=str(file["id"]), chat_id=chat_id)


def _number(value: Any) -> int:
    return value if isinstance(value, int) else -1


def _message_id(stamp: int, author: str) -> str:
    return f"{stamp}:{author}"


def _named(message_id: str) -> tuple[int, str] | None:
    """The time and the author in a message id."""
    stamp, _, author = message_id.partition(":")
    return (int(stamp), author) if stamp.isdecimal() and author else None


# -------------------------------------------------------------------------------- Markdown as Signal shows it

_UNSENDABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff\ufffc]")  # U+FFFC is where a mention would stand
_STYLES = {
    markup.BOLD: "BOLD",
    markup.ITALIC: "ITALIC",
    markup.STRIKE: "STRIKETHROUGH",
    markup.CODE: "MONOSPACE",
    markup.PRE: "MONOSPACE",
}
_LAYOUT = markup.Layout(tight_lists=True, table=None)


def styled(markdown: str) -> tuple[str, list[str]]:
    """The text to send and its styles, each "start:length:STYLE" in UTF-16 units, as Signal counts."""
    source = _UNSENDABLE.sub("\ufffd", markdown)
    marked = markup.marked(source, _LAYOUT)
    if not marked.text.strip() or utf16_units(marked.text) > max(utf16_units(source), 200):
        return source, []  # nothing would be left, or it would grow: then the Markdown itself
    return marked.text, [
        f"{start}:{length}:{_STYLES[span.kind]}" for span, start, length in marked.measured(utf16_units)
    ]


# ------------------------------------------------------------
# The connection to signal-cli's daemon: requests as JSON-RPC, incoming messages as a stream of server-sent events.

logging.getLogger("httpx").setLevel(logging.WARNING)  # it logs a line for every request, with the phone number in it

SILENCE = 60.0  # seconds without even a keep-alive (the daemon sends one every 15)
PATIENCE = 60.0  # seconds for one request: the daemon itself talks to Signal meanwhile
LATER = 60.0  # seconds to wait if Signal rate-limits us without a time

USER_ERROR, UNTRUSTED_KEY, RATE_LIMIT = -1, -4, -5  # as signal-cli numbers its errors
UNKNOWN_METHOD, BAD_PARAMETERS, INTERNAL = -32601, -32602, -32603


class UnknownMethod(PlatformRefused):
    """The daemon does not have this method: it is older, or serves one account only."""


class Daemon(HttpApi):
    """The API of a daemon, for one account."""

    def __init__(self, base_url: str, account: str) -> None:
        address = httpx.URL(base_url if "://" in base_url else f"http://{base_url}")
        login = (address.username, address.password) if address.username else None
        self.address = str(address.copy_with(username=None, password=None)).rstrip("/")
        self.account = account
        self._numbers = itertools.count(1)
        title = f"the signal-cli daemon at {self.address}"
        super().__init__(title, self.address, auth=login, timeout=PATIENCE, trust_env=False)

    async def call(self, method: str, **parameters: Any) -> Any:
        """Call a method for our account."""
        return await self.ask(method, account=self.account, **parameters)

    async def ask(self, method: str, **parameters: Any) -> Any:
        """Call a method; its result, or the error that its answer means."""
        body = {"jsonrpc": "2.0", "method": method, "id": str(next(self._numbers)), "params": parameters}
        answer = await self.request("POST", "/api/v1/rpc", json=body)
        content = json_object(answer)
        if content is None:
            raise PlatformRefused(f"{self.address} is not a signal-cli daemon: it does not speak JSON-RPC")
        if content.get("error"):
            raise self._rpc_failure(method, content["error"])
        return content.get("result")

    async def events(self, opened: Callable[[], None], log: Log = LOG) -> AsyncIterator[dict[str, Any]]:
        """The account's events, until the stream breaks. `opened` is called when the daemon has answered."""
        timeout = httpx.Timeout(PATIENCE, read=SILENCE)
        try:
            async with self._http.stream(
                "GET", "/api/v1/events", params={"account": self.account}, timeout=timeout
            ) as answer:
                if answer.status_code == 400:
                    raise PlatformRefused(f"{self.title} has no account {self.account}")
                self.check(answer)
                opened()
                async for data in _events(answer.aiter_lines(), log):
                    yield data
        except httpx.HTTPError as error:
            raise PlatformUnreachable(f"the stream of {self.title} broke ({type(error).__name__})") from None
        raise PlatformUnreachable(f"the stream of {self.title} ended")

    def failure(self, answer: httpx.Response) -> PlatformRefused:
        """The error for a server that is no signal-cli daemon, or refuses us."""
        return PlatformRefused(f"{self.address} is not a signal-cli daemon, or refuses us (HTTP {answer.status_code})")

    def _rpc_failure(self, method: str, error: Any) -> HermesError:
        """The error for a JSON-RPC error."""
        error = error if isinstance(error, dict) else {}
        code, words = error.get("code"), f"signal-cli {method}: {error.get('message') or 'failed'}"
        data = error.get("data")
        results = failures(data.get("response") if isinstance(data, dict) else None)
        if code == RATE_LIMIT:
            waits = [seconds(result.get("retryAfterSeconds"), LATER) for result in results]
            return SlowDown(words, max(waits, default=LATER))
        if code == UNTRUSTED_KEY:
            return SendRefused(f"{words}; a safety number has changed: signal-cli trust")
        if code == USER_ERROR:
            return _worst(words, results) or SendRefused(words)
        if code == BAD_PARAMETERS and "account" in words:
            return PlatformRefused(f"{words} ({self.account}): register or link it with signal-cli first")
        if code == UNKNOWN_METHOD:
            return UnknownMethod(words)
        if code == BAD_PARAMETERS or (code == INTERNAL and method == "getAttachment"):
            return SendRefused(words)  # for a file: the daemon no longer has it
        return PlatformUnreachable(words)


def failures(response: Any) -> list[dict[str, Any]]:
    """The failures among a message's results (one for every recipient); [] if any succeeded."""
    results = response.get("results") if isinstance(response, dict) else None
    found = [result for result in results if isinstance(result, dict)] if isinstance(results, list) else []
    return [] if any(result.get("type") == "SUCCESS" for result in found) else found


def check_sent(response: Any) -> None:
    """Raise the error of a message that reached none of its recipients."""
    worst = _worst("signal-cli send", failures(response))
    if worst is not None:
        raise worst


def _worst(words: str, results: list[dict[str, Any]]) -> HermesError | None:
    kinds = {str(result.get("type")): result for result in results}
    if "RATE_LIMIT_FAILURE" in kinds:
        return SlowDown(f"{words}: rate limit", seconds(kinds["RATE_LIMIT_FAILURE"].get("retryAfterSeconds"), LATER))
    if "NETWORK_FAILURE" in kinds:
        return PlatformUnreachable(f"{words}: network failure")
    return SendRefused(f"{words}: {', '.join(sorted(kinds))}") if kinds else None


async def _events(lines: AsyncIterator[str], log: Log) -> AsyncIterator[dict[str, Any]]:
    """The "receive" events of a stream; what is no JSON object is left out."""
    kind, data = "message", []
    async for line in lines:
        if line:
            field, _, value = line.partition(":")
            value = value.removeprefix(" ")
            if field == "event":
                kind = value
            elif field == "data":
                data.append(value)
            continue
        if kind == "receive" and data:
            content = read_object("\n".join(data), "Signal", log)
            if content is not None:
                yield content
        kind, data = "message", []
