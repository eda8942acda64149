"""Parsing a mail: its text, its sender, its thread, and whether it is a message to us at all.

Programs of all kinds write mails and follow the standards loosely. Reading never fails: unreadable parts are skipped.
Identity and thread come from the raw headers, before anything in them is decoded, so that an encoded text can't
pretend to be an address.
"""

from __future__ import annotations

import codecs
import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from email import message_from_bytes
from email.header import decode_header
from email.message import Message
from email.parser import BytesHeaderParser
from email.utils import getaddresses

from hermes.gateway.platforms.email.authentication import MESSAGE_ID, message_id_in, time_of
from hermes.gateway.platforms.email.mail_bodies import is_forward, new_text, quoted, text_of_html, unflowed

LONGEST = 100_000  # characters of a mail's text that are passed on
EVIDENCE = frozenset(
    ("received", "authentication-results", "dkim-signature", "to", "cc", "subject", "date", "message-id")
)
_HEADERS = re.compile(rb"[!-9;-~]+:[^\r\n\0]*(?:\r?\n(?:[!-9;-~]+:|[ \t])[^\r\n\0]*)*+(?:\r?\n){2}")
_ADDRESS = re.compile(r"[^\s\x00-\x1f<>\"(),:;@\\\[\]]+@[^\s<>\"(),:;@\\\[\]]+")
_ROBOTS = re.compile(
    r"(?:mailer-daemon|postmaster|(?:no|do[-_.]?not)[-_.]?reply.*|bounces?(?:[-+_.].*)?|.*[-_.+]bounces?)@", re.I
)
_PROGRAMS = (  # headers of mails that no person wrote to us
    ("Return-Path", "<>", "it is a notice of a mail system"),
    ("Auto-Submitted", r"(?!no\s*(?:;|$)).+", "it was sent by a program (Auto-Submitted)"),
    ("Precedence", "bulk|junk|list|auto_reply", "it is bulk mail (Precedence)"),
    *((name, ".+", "it came through a mailing list") for name in ("List-Id", "List-Unsubscribe", "Feedback-ID")),
    ("X-Auto-Response-Suppress", "(?!none$).+", "its sender wants no automatic answers (X-Auto-Response-Suppress)"),
    *((f"X-Auto{name}", ".+", "it is an automatic answer") for name in ("reply", "respond", "responder")),
    ("X-Spam-Flag", "yes", "the mail server takes it for spam"),
)
_ODD_CODECS = {"idna", "punycode", "unicode_escape", "raw_unicode_escape", "undefined", "mbcs", "oem"}
_SMALL_PICTURE = 10_000  # bytes; a smaller one inside the text is a logo


@dataclass(frozen=True, slots=True)
class File:
    """A file in a mail: `part` is the number of its part, to find it again."""

    part: int
    name: str | None
    mime: str
    size: int


@dataclass(frozen=True, slots=True)
class Mail:
    """A parsed mail."""

    message_id: str  # made from the mail itself where it has none
    references: tuple[str, ...]  # the thread above it, root first
    address: str  # the sender's, in lower case; "" when that is not clear
    name: str | None
    subject: str
    text: str
    quoted: str  # the answered mail, as far as this one contains it
    files: tuple[File, ...]
    sent_at: float | None
    trail: tuple[tuple[str, str], ...]  # its headers of EVIDENCE in their order, topmost first
    clear: bool  # every program reads the same headers in it; else a signature may be of others than ours
    digest: str  # a hash of its content: two mails may have one Message-ID
    unwanted: str | None  # why it is not answered; None when it is


def read_mail(raw: bytes, our_address: str, *, size: int | None = None) -> Mail:
    """Parse a mail. `size` is its true size when `raw` is only its beginning."""
    message = _parsed(raw)
    subject = _decoded(_first(message, "Subject"))
    references = _thread(message)
    name, address = _sender(message)
    reply = bool(references) or subject.lower().startswith("re:")
    reply = reply and not is_forward(subject)
    whole = _text(message)
    text = new_text(whole, reply=reply).replace("\x00", "")
    files = tuple(_files(message))
    if size is not None and size > len(raw):
        files = ()
        text += f"\n\n[This mail is too large ({size // 1_000_000} MB): everything after its beginning was left out.]"
    if len(text) > LONGEST:
        text = text[:LONGEST] + f"\n\n[The rest of this mail, {len(text) - LONGEST:,} characters, was left out.]"
    return Mail(
        message_id=_message_id(message, raw),
        references=references,
        address=address,
        name=name or None,
        subject=" ".join(subject.split())[:300],
        text=text.strip("\n"),
        quoted=quoted(whole).replace("\x00", "") if reply else "",
        files=files,
        sent_at=time_of(_first(message, "Date")),
        trail=tuple(_trail(message)),
        clear=_HEADERS.match(raw) is not None,
        digest=_digest(subject, text, files),
        unwanted=_unwanted(message, address, our_address),
    )


def _digest(subject: str, text: str, files: tuple[File, ...]) -> str:
    """A fingerprint that all deliveries of one mail share, and no two mails."""
    fields = [subject, text, *(f"{file.name} {file.mime} {file.size}" for file in files)]
    return hashlib.sha256("\0".join(fields).encode("utf-8", "replace")).hexdigest()[:16]


def file_in(raw: bytes, part: int) -> bytes | None:
    """The bytes of a file that `read_mail` has listed; None when there is no such part."""
    for number, leaf, _ in _leaves(_parsed(raw)):
        if number == part:
            return _payload(leaf)
    return None


def is_address(text: str) -> bool:
    """Whether this is one plain address, and nothing that could be read as more."""
    return bool(_ADDRESS.fullmatch(text))


# ------------------------------------------------------------------------------------------ headers


def _parsed(raw: bytes) -> Message:
    try:
        return message_from_bytes(raw)
    except Exception:  # parts nested a thousand deep, made to break programs: the headers are still worth reading
        message = BytesHeaderParser().parsebytes(raw.partition(b"\r\n\r\n")[0] + b"\r\n\r\n")
        del message["Content-Type"], message["Content-Transfer-Encoding"]
        message.set_payload("[The parts of this mail are nested too deep to be read.]")
        return message


def _all(message: Message, name: str) -> list[str]:
    """A header's values, unfolded and not decoded; bytes beyond ASCII are taken for UTF-8."""
    return [_unfolded(value) for key, value in message.raw_items() if key.lower() == name.lower()]


def _trail(message: Message) -> Iterator[tuple[str, str]]:
    """The headers that say who sent a mail to whom, and when: (name in lower case, value), in their order."""
    for key, value in message.raw_items():
        if key.lower() in EVIDENCE:
            yield key.lower(), _unfolded(value)


def _unfolded(value: object) -> str:
    return re.sub(r"[\r\n\x00]+\s*", " ", _unescaped(str(value))).strip()


def _unescaped(value: str) -> str:
    return value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _first(message: Message, name: str) -> str:
    return next(iter(_all(message, name)), "")


def _decoded(value: str) -> str:
    """A header in readable form."""
    try:
        pieces = decode_header(value)
    except Exception:  # a broken encoded word
        return value
    return "".join(piece if isinstance(piece, str) else decoded(piece, charset) for piece, charset in pieces)


def decoded(data: bytes, charset: str | None) -> str:
    """Bytes as text, in the charset they claim, or in the likeliest; never an error."""
    for name in (charset, "utf-8", "cp1252"):
        try:
            codec = codecs.lookup(name or "utf-8").name.replace("-", "_")
            if codec in _ODD_CODECS:
                continue
            return data.decode("gb18030" if codec in ("gb2312", "gbk") else codec)
        except (LookupError, ValueError):
            continue
    return data.decode("utf-8", "replace")


def _sender(message: Message) -> tuple[str, str]:
    """(name, address) of From; no address when it names none, or more than one."""
    values = _all(message, "From")
    if len(values) != 1:
        return "", ""
    found = getaddresses(values)
    if len(found) != 1 or not is_address(found[0][1]):
        return "", ""
    name, address = found[0]
    return " ".join(_decoded(name).split())[:200], address.lower()


def _message_id(message: Message, raw: bytes) -> str:
    if found := message_id_in(_first(message, "Message-ID")):
        return found
    stable = [*(_first(message, name) for name in ("From", "Date", "Subject", "To")), ""]
    body = raw.partition(b"\r\n\r\n")[2] or raw.partition(b"\n\n")[2]  # a second delivery differs in its headers only
    digest = hashlib.sha256("\n".join(stable).encode("utf-8", "replace") + body).hexdigest()[:32]
    return f"<{digest}@without-message-id>"


def _thread(message: Message) -> tuple[str, ...]:
    """The ids of the mails above this one, root first."""
    ids = [found for value in _all(message, "References") for found in MESSAGE_ID.findall(value)]
    above = [found for value in _all(message, "In-Reply-To") for found in MESSAGE_ID.findall(value)]
    return tuple(dict.fromkeys([*ids, *above[:1]]))


def _unwanted(message: Message, address: str, our_address: str) -> str | None:
    """Why a mail is not answered: two programs that answer each other never stop. None when it is."""
    if not address:
        return "its From header does not name one sender"
    if address == our_address.lower():
        return "it is one of our own mails"
    if _ROBOTS.match(address):
        return "it is from a mail system or an address that takes no replies"
    for name, pattern, why in _PROGRAMS:
        if re.fullmatch(pattern, _first(message, name), re.IGNORECASE):
            return why
    return None


# ------------------------------------------------------------------------------------------ text and files


def _leaves(message: Message) -> Iterator[tuple[int, Message, bool]]:
    """(number, part, whether it belongs to the text beside it) of all that holds something; a mail in it is one part."""
    waiting = [(message, False)]
    number = 0
    while waiting:
        part, related = waiting.pop()
        payload = (
            part.get_payload() if part.is_multipart() else None
        )  # it would decode a text, and fail at some charsets
        if part.get_content_maintype() == "multipart" and isinstance(payload, list):
            inside = part.get_content_subtype() == "related"
            waiting.extend((child, inside) for child in reversed(payload) if isinstance(child, Message))
            continue
        yield number, part, related
        number += 1


def _is_text(part: Message) -> bool:
    return (
        part.get_content_type() in ("text/plain", "text/html")
        and part.get_content_disposition() != "attachment"
        and not _file_name(part)
    )


def _text(message: Message) -> str:
    """The text: plain where there is some, else from HTML."""
    plain: list[str] = []
    html: list[str] = []
    for _, part, _ in _leaves(message):
        if not _is_text(part):
            continue
        text = decoded(_payload(part), part.get_content_charset()).replace("\r\n", "\n")
        if part.get_content_type() == "text/html":
            html.append(text)
        elif str(_parameter(part, "format")).lower() == "flowed":
            plain.append(unflowed(text, without_space=str(_parameter(part, "delsp")).lower() == "yes"))
        else:
            plain.append(text)
    joined = "\n".join(text for text in plain if text.strip())
    if joined or not html:
        return joined
    try:
        return "\n".join(text_of_html(text) for text in html)
    except Exception:  # the standard library's parser gives up on a few malformed declarations
        return "\n".join(re.sub(r"<[^>]{0,2000}>", "", text) for text in html)


def _files(message: Message) -> Iterator[File]:
    for number, part, related in _leaves(message):
        if _is_text(part) or (part is message and not _file_name(part) and part.get_content_maintype() == "text"):
            continue
        mime = part.get_content_type()
        size = len(_payload(part))
        if related and mime.startswith("image/") and size < _SMALL_PICTURE and part.get("Content-ID"):
            continue
        if mime in ("application/pgp-signature", "application/pkcs7-signature", "text/calendar") and not size:
            continue
        yield File(number, _file_name(part) or ("mail.eml" if mime == "message/rfc822" else None), mime, size)


def _parameter(part: Message, name: str) -> object:
    try:
        return part.get_param(name)
    except Exception:
        return None


def _file_name(part: Message) -> str | None:
    """A file's name without any folder before it."""
    try:
        name = part.get_filename()
    except Exception:  # a continuation (RFC 2231) that leads nowhere
        return None
    if not name:
        return None
    name = " ".join(_decoded(_unescaped(name)).split())
    return re.split(r"[/\\]", name)[-1].replace("\x00", "")[:200] or None


def _payload(part: Message) -> bytes:
    try:
        data = part.get_payload(decode=True)
        if isinstance(data, bytes):
            return data
        inner = part.get_payload()
        if isinstance(inner, list) and inner and isinstance(inner[0], Message):
            return inner[0].as_bytes()
        return str(inner or "").encode("utf-8", "surrogateescape")
    except Exception:  # a mail within a mail that can't be written out again
        return b""
