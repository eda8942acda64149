"""The WhatsApp adapter: `mode: cloud` is a business number by Meta's Cloud API, `mode: bridge` a personal one by a bridge.

Deliveries of the Cloud API to the webhook become events here; none of them makes that raise.
https://developers.facebook.com/documentation/business-messaging/whatsapp/webhooks/reference/messages

One person has a phone number, a LID, and for a business a business-scoped id; all are one id here. Which ids belong together is
noted in `<home>/whatsapp/session/lid-mapping-….json`: the bridge writes LIDs there, `same_person`
business-scoped ids (as US.13491208655302741918). Meta sends these with the number, and alone for people who hide it.

Markdown becomes WhatsApp's markup: *bold*, _italic_, ~struck through~, `code`, ```blocks of code```. WhatsApp has no escapes:
a mark counts where a word begins or ends, on one line. Where it would not count, or would end too early, it is left out, so
that no stray marks are seen.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hermes.errors import PlatformRefused
from hermes.gateway.adapter import Capabilities, Setting
from hermes.gateway.chats.router import canonical_whatsapp_identifier
from hermes.gateway.events import DM, GROUP, Attachment, Chat, Event, Forwarded, Revision, Sender, deleted
from hermes.gateway.platforms._shared import markup
from hermes.gateway.platforms._shared.http import attachment, error_text
from hermes.gateway.platforms._shared.listener import in_window
from hermes.gateway.platforms._shared.receipt import dict_of, dicts_of, text_of
from hermes.gateway.platforms._shared.tasks import Api, ApiAdapter, Recent
from hermes.home import write_whole

BUSINESS_SCOPED = re.compile(r"[A-Z]{2}\.(?:ENT\.)?[A-Za-z0-9]{1,128}")
PHONE = re.compile(r"[0-9]{5,15}")


def canonical(value: Any, home: Path) -> str:
    """The one id of a person or a direct chat; "" where the value is none."""
    return canonical_whatsapp_identifier(value, home=home) if isinstance(value, str) and value.strip() else ""


def sender(person: str, name: str | None) -> Sender:
    """A person by their canonical id. Their number with a plus sign works in `allowed_users`, too.

    WhatsApp authenticated the account: Meta signs its deliveries, and the bridge is our own linked device.
    """
    if PHONE.fullmatch(person):
        return Sender(user_id=f"+{person}", stable_id=person, name=name or f"+{person}", proven=True)
    return Sender(user_id=person, name=name or person, proven=True)


def same_person(home: Path, number: str, scoped: str) -> None:
    """Note on the disk that a business-scoped id is the person with this number. OSError if that fails."""
    if not PHONE.fullmatch(number) or not BUSINESS_SCOPED.fullmatch(scoped) or len(scoped) <= len(number):
        return
    folder = home / "whatsapp" / "session"
    file, content = folder / f"lid-mapping-{scoped}_reverse.json", json.dumps(number)
    try:
        if file.read_text("utf-8") == content:
            return
    except (OSError, ValueError):
        pass
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_whole(file, content)


REPLAYS = 7 * 24 * 3600.0  # seconds: for so long Meta repeats a delivery, and the gateway knows what it has answered
_ENVELOPE = ("from", "from_user_id", "group_id", "timestamp")
_RECORDS = ("interactive", "order", "location", "contacts")  # shown as they come: forms, orders, places, people
_FILES = ("image", "video", "audio", "document", "sticker")


@dataclass(slots=True)
class Failed:
    """A message of ours that was accepted first, and not delivered."""

    message_id: str
    person: str
    code: Any
    why: str


@dataclass(slots=True)
class CloudDelivery:
    """One delivery, in order."""

    items: list[Event | Revision] = field(default_factory=list)
    failed: list[Failed] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)  # for the log
    problems: list[str] = field(default_factory=list)  # for the owner


class DeliveryReader:
    """Reads deliveries for one number."""

    def __init__(self, number_id: str, home: Path) -> None:
        self._number_id, self._home = number_id, home
        self.texts: Recent[str, str] = Recent(1_000)  # message id → how it begins, for quotes
        self._number = ""  # ours, as people see it

    def read(self, payload: Any) -> CloudDelivery:
        """Everything in a delivery that concerns our number."""
        found = CloudDelivery()
        for change in _changes(payload):
            value = dict_of(change.get("value"))
            ours = dict_of(value.get("metadata")).get("phone_number_id")
            if change.get("field") != "messages":
                continue
            if ours != self._number_id:
                found.problems.append(
                    f"a delivery for another number ({ours}) is ignored: give that number its own account"
                )
                continue
            self._number = "".join(
                filter(str.isdigit, str(dict_of(value.get("metadata")).get("display_phone_number") or ""))
            )
            for one in dicts_of(value.get("messages")):
                self._message(one, value, found)
            for one in dicts_of(value.get("statuses")):
                if one.get("status") == "failed":
                    found.failed.append(self._failure(one))
            for one in dicts_of(value.get("errors")):
                found.problems.append(f"WhatsApp reports: {_error(one)}")
        return found

    def _failure(self, status: dict[str, Any]) -> Failed:
        first = next(iter(dicts_of(status.get("errors"))), {})
        person = canonical(status.get("recipient_id") or status.get("recipient_user_id"), self._home)
        return Failed(str(status.get("id") or ""), person, first.get("code"), _error(first))

    def _message(self, message: dict[str, Any], value: dict[str, Any], found: CloudDelivery) -> None:
        number, who = message.get("id"), self._person(message, found)
        if not isinstance(number, str) or not number or not who:
            found.notes.append("a message without an id or a sender is ignored")
            return
        stamp = message.get("timestamp")
        if not isinstance(stamp, str | int) or not in_window(str(stamp), seconds=REPLAYS):
            found.notes.append(
                f"a message of {who} is ignored: its time ({stamp}) is not in the last 7 days; it may be a replay"
            )
            return
        kind = message.get("type")
        if kind == "revoke":
            gone = dict_of(message.get("revoke")).get("original_message_id")
            found.items += [deleted(gone)] if isinstance(gone, str) and gone else []
        elif kind == "edit":
            edit = dict_of(message.get("edit"))
            first, newer = edit.get("original_message_id"), dict_of(edit.get("message"))
            if isinstance(first, str) and first and newer:
                mine: dict[str, Any] = {key: message[key] for key in _ENVELOPE if key in message}
                event = self._event({**newer, **mine, "id": first}, value, who)
                found.items.append(Revision(id=number, revises=first, event=event))
        elif kind == "request_welcome":
            found.notes.append(f"{who} has opened the chat")
        elif kind == "system":
            found.notes.append(
                f"WhatsApp reports of {who}: {error_text(dict_of(message.get('system')).get('body') or 'a change')}"
            )
        elif kind != "reaction":
            found.items.append(self._event(message, value, who))

    def _person(self, message: dict[str, Any], found: CloudDelivery) -> str:
        """The sender's one id. Meta leaves the number out for people who hide it, after it has sent both for some time."""
        number, scoped = canonical(message.get("from"), self._home), message.get("from_user_id")
        if number and isinstance(scoped, str):
            try:
                same_person(self._home, number, scoped)
            except OSError as error:
                found.notes.append(f"that {scoped} is {number} could not be written down: {error}")
        return number or canonical(scoped, self._home)

    def _chat(self, message: dict[str, Any], who: str, name: str | None) -> Chat:
        group = message.get("group_id")
        if isinstance(group, str) and group:
            return Chat(platform="whatsapp", chat_id=group, type=GROUP)
        return Chat(platform="whatsapp", chat_id=who, type=DM, name=name)

    def _event(self, message: dict[str, Any], value: dict[str, Any], who: str) -> Event:
        name = _name(message, value)
        chat = self._chat(message, who, name)
        text, files = _content(message)
        context = dict_of(message.get("context"))
        quoted = context.get("id") if isinstance(context.get("id"), str) else None
        mention = f"@{self._number}"
        ours = self._number and (mention in text or canonical(context.get("from"), self._home) == self._number)
        self.texts.put(message["id"], text[:300])
        forwarded = None
        if context.get("forwarded") or context.get("frequently_forwarded"):  # without its author
            forwarded, text, ours = Forwarded(text=text), "", False
        return Event(
            id=message["id"], chat=chat, sender=sender(who, name), attachments=files, message_id=message["id"],
            text=text.replace(mention, "").strip() if chat.type == GROUP and self._number else text, forwarded=forwarded,
            reply_to=quoted, quoted=self.texts.get(quoted) if quoted else None,
            sent_at=float(str(message["timestamp"])), addressed=chat.type == DM or bool(ours),
        )  # fmt: skip


def _content(message: dict[str, Any]) -> tuple[str, tuple[Attachment, ...]]:
    """The text of a message and its file."""
    kind = str(message.get("type") or "")
    inside = dict_of(message.get(kind))
    if kind == "text":
        return text_of(inside.get("body")), ()
    if kind in _FILES and isinstance(inside.get("id"), str) and inside["id"]:
        mime = text_of(inside.get("mime_type")).partition(";")[0].strip()
        return text_of(inside.get("caption")), (attachment(inside.get("filename"), mime, id=inside["id"]),)
    if kind == "button":  # of a template
        return text_of(inside.get("text")) or text_of(inside.get("payload")), ()
    chosen = dict_of(inside.get("button_reply")) or dict_of(inside.get("list_reply"))
    if kind == "interactive" and chosen:
        return text_of(chosen.get("id")) or text_of(chosen.get("title")), ()
    if kind in _RECORDS and message.get(kind):
        return f"[{kind}: {json.dumps(message[kind], ensure_ascii=False)}]", ()
    why = _error(next(iter(dicts_of(message.get("errors"))), {}))
    return f"[a message of a kind that WhatsApp does not pass on: {kind or 'unknown'}{f'; {why}' if why else ''}]", ()


def _name(message: dict[str, Any], value: dict[str, Any]) -> str | None:
    """The sender's display name."""
    ids = [one for one in (message.get("from"), message.get("from_user_id")) if one]
    for one in dicts_of(value.get("contacts")):
        if one.get("wa_id") in ids or one.get("user_id") in ids:
            profile = dict_of(one.get("profile"))
            return text_of(profile.get("name")) or text_of(profile.get("username")) or None
    return None


def _error(one: dict[str, Any]) -> str:
    text = dict_of(one.get("error_data")).get("details") or one.get("message") or one.get("title") or ""
    return error_text(f"{text} (code {one.get('code')})") if one else ""


def _changes(payload: Any) -> Iterator[dict[str, Any]]:
    if isinstance(payload, dict) and payload.get("object") == "whatsapp_business_account":
        for entry in dicts_of(payload.get("entry")):
            yield from dicts_of(entry.get("changes"))


LONGEST = 4096  # characters of a text
_LAYOUT = markup.Layout(bullet="- ", code_alone=True, tight_lists=True)
_MARKS = {markup.BOLD: "*", markup.ITALIC: "_", markup.STRIKE: "~", markup.CODE: "`"}
_PREFIX = re.compile(r"[> ]*")
_UNSENDABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")
_SPACES = re.compile(r" *[\t\n]+ *| {4,}")


def formatted(markdown: str, longest: int = LONGEST) -> str:
    """The text to send; the Markdown itself where nothing visible would be left or it would become too long."""
    source = _UNSENDABLE.sub("\ufffd", markdown)
    marked = markup.marked(source, _LAYOUT)
    if not marked.text.strip():
        return source
    for text in (_written(marked), marked.text):
        if len(text) <= longest:
            return text
    return source


def one_line(markdown: str) -> str:
    """The text for a template's variable, which takes no line breaks, tabs or four spaces in a row."""
    text = markup.marked(_UNSENDABLE.sub("\ufffd", markdown), _LAYOUT).text or markdown
    return _SPACES.sub(" ", text).strip()


def _written(marked: markup.Marked) -> str:
    """The text with WhatsApp's marks around its spans."""
    text = marked.text
    opening: dict[int, list[tuple[int, int, str]]] = {}
    closing: dict[int, list[tuple[int, int, str]]] = {}
    for depth, span in enumerate(marked.spans):  # of two with the same place the outer one comes later
        for start, end, before, after in _pieces(text, span):
            opening.setdefault(start, []).append((-end, -depth, before))
            closing.setdefault(end, []).append((-start, depth, after))
    parts, last = [], 0
    for place in sorted({*opening, *closing}):
        parts.append(text[last:place])
        parts += [mark for _, _, mark in sorted(closing.get(place, ()))]  # what began last ends first
        parts += [mark for _, _, mark in sorted(opening.get(place, ()))]  # what ends last begins first
        last = place
    return "".join([*parts, text[last:]])


def _pieces(text: str, span: markup.Span) -> list[tuple[int, int, str, str]]:
    """The places for the marks of a span: around each of its lines, or around a block of code."""
    if span.kind == markup.PRE:
        inside = text[span.start : span.end]
        return [] if "```" in inside or not inside.strip() else [(span.start, span.end, "```\n", "\n```")]
    mark = _MARKS.get(span.kind)
    if mark is None:
        return []
    found, start = [], span.start
    for line in text[span.start : span.end].split("\n"):
        end = start + len(line)
        first = start if start == span.start else start + len(_PREFIX.match(line)[0])  # type: ignore[index]
        inside = text[first:end]
        first += len(inside) - len(inside.lstrip())
        last = first + len(inside.strip())
        if last > first and mark not in text[first:last] and _stands_alone(text, first, last):
            found.append((first, last, mark, mark))
        start = end + 1
    return found


def _stands_alone(text: str, start: int, end: int) -> bool:
    """Whether no letter touches it from outside: only there WhatsApp reads a mark."""
    before, after = text[start - 1 : start] if start else "", text[end : end + 1]
    return not (before.isalnum() or before == "_" or after.isalnum() or after == "_")


CLOUD, BRIDGE = "cloud", "bridge"


class WhatsApp(ApiAdapter[Api]):
    """A number on WhatsApp."""

    platform = "whatsapp"
    title = "WhatsApp"
    extra = "whatsapp"
    settings = (
        Setting("mode", "cloud (a business number at Meta) or bridge (a personal number)", asked=True, default=CLOUD),
        Setting("phone_number_id", "cloud: the number's id in Meta's console (not the number)", asked=True),
        Setting("access_token", "cloud: a system user's access token", secret=True, asked=True),
        Setting("app_secret", "cloud: the app's secret", secret=True, asked=True),
        Setting(
            "verify_token", "cloud: a word of your own, which you also enter in the console", secret=True, asked=True
        ),
        Setting("template", "cloud: an approved template for messages after 24 hours"),
        Setting("template_language", "cloud: the template's language", default="en_US"),
        Setting(
            "bridge_command", "bridge: the command that starts it, as node /opt/whatsapp-bridge/bridge.js", asked=True
        ),
        Setting("bridge_url", "bridge: its address, if it is started by something else"),
        Setting("bridge_token", "bridge: its token", secret=True),
        Setting("base_url", "cloud: where Meta's Graph API is", default="https://graph.facebook.com"),
        Setting("api_version", "cloud: the version of the Graph API", default="v24.0"),
    )  # fmt: skip
    capabilities = Capabilities(
        longest=LONGEST, typing=True, media=True, quotes=True, files=True, largest_file=100_000_000,
        longest_caption=1024, choices=10, longest_choice=200, tells_edits=True,
        tells_deletions=True, mention_needed=True,
    )  # fmt: skip

    def __new__(cls, values: Mapping[str, Any], home: Path) -> WhatsApp[Any]:
        """The adapter for the `mode` of these settings."""
        from hermes.gateway.platforms.whatsapp.bridge import BridgedNumber
        from hermes.gateway.platforms.whatsapp.cloud import CloudNumber

        bridged = str(values.get("mode") or "").strip().lower() == BRIDGE
        return super().__new__(cls if cls is not WhatsApp else BridgedNumber if bridged else CloudNumber)

    def validate(self) -> None:
        """Refuse settings that can't work."""
        if self.text("mode").lower() not in (CLOUD, BRIDGE):
            raise PlatformRefused(f"{self.connection_name}: mode must be cloud or bridge, not {self.text('mode')!r}")

    logs_in = True
