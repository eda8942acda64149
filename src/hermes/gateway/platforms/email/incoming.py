"""Parsing a mail: its text, its sender, its thread, and whether it is a message to us at all.

Programs of all kinds write mails and follow the standards loosely. Reading never fails: unreadable parts are skipped.
Identity and thread come from the raw headers, before anything in them is decoded, so that an encoded text can't
pretend to be an address.

The text is what the person wrote: the body without the markup, the quoted mail below it and the signature. Mail programs put the
answered mail under the answer, each in its own way. The conversation has it already, so only the new text counts. That
works line by line, in one pass: no mail can be made slow to read.
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
from html.parser import HTMLParser

from hermes.gateway.platforms.email.authentication import MESSAGE_ID, message_id_in, time_of

_LONGEST_LINE = 500  # attributions and headings are shorter; a longer line is text
# "On Monday Alice wrote:" in the languages most mails are in
_WROTE = re.compile(
    r"^(?:(?:on|am|le|el|em|il|op|den|dne|w dniu|\w{2,10}[.,]{0,2} \d|在|\d).{4,400}?"
    r"(?:wrote|schrieb(?: .{1,200})?|a écrit|escribió|escreveu|ha scritto|schreef(?: .{1,200})?|skrev(?: .{1,200})?"
    r"|napsal\(?a?\)?|napisał\(?a?\)?|пишет|написал\(?а?\)?|写道|寫道)|\d{4}.{4,200}<[^<>@\s]+@[^<>\s]+>)\s?[:：]\s*$",
    re.IGNORECASE,
)
_ORIGINAL = re.compile(
    r"^\s*-{2,}\s*(?:original(?: e-?mail)? message|original message|ursprüngliche nachricht|originalnachricht"
    r"|message d'origine|message original|mensaje original|mensagem original|messaggio originale"
    r"|oorspronkelijk bericht|ursprungligt meddelande|oprindelig meddelelse|原始邮件|原始郵件)\s*-{2,}\s*$",
    re.IGNORECASE,
)
_FROM = re.compile(r"^\W{0,3}(?:from|von|de|da|van|från|fra|od|от|发件人|寄件者|差出人)\*?\s?[:：]", re.IGNORECASE)
_SENT = re.compile(
    r"^\W{0,3}(?:sent|date|gesendet|datum|envoyé|enviado(?: el)?|fecha|data|inviato|verzonden|skickat|sendt|wysłano"
    r"|отправлено|дата|发送时间|日期|送信日時)\*?\s?[:：]",
    re.IGNORECASE,
)
_MOBILE = re.compile(
    r"^(?:sent from (?:my|outlook|yahoo|mail|proton).{0,60}|get outlook for .{0,60}|von meinem .{1,40} gesendet"
    r"|gesendet von .{1,60}|gesendet mit .{1,60}|envoyé de(?:puis)? mon .{1,40}|enviado desde mi .{1,40}"
    r"|enviado do meu .{1,40}|inviato da .{1,40}|sendt fra min .{1,40}|verzonden vanaf .{1,40})$",
    re.IGNORECASE,
)
_FORWARD = re.compile(r"^\s*(?:fwd?|wg|tr|rv|enc|doorst|vs|转发|i)\s*[:：]", re.IGNORECASE)
_REPLY = re.compile(r"^\s*(?:re|aw|antw|antwort|sv|vs|odp|rif|res|回复|答复|ynt)(?:\[\d+\])?\s*[:：]\s*", re.IGNORECASE)


def is_forward(subject: str) -> bool:
    """Whether a mail forwards another: then the quoted text is its content."""
    return bool(_FORWARD.match(subject))


def without_reply_marks(subject: str) -> str:
    """A subject without "Re:", "AW:" and the like before it."""
    while match := _REPLY.match(subject):
        subject = subject[match.end() :]
    return subject.strip()


def unflowed(text: str, *, without_space: bool = False) -> str:
    """format=flowed (RFC 3676): lines that end with a space continue in the next; a signature's mark does not."""
    lines: list[str] = []
    flowing = False
    for line in text.split("\n"):
        quoted = line.startswith(">")
        if line.startswith(" "):
            line = line[1:]
        if flowing and not quoted and lines:
            lines[-1] += line
        else:
            lines.append(line)
        flowing = line.endswith(" ") and line != "-- " and not quoted
        if flowing and without_space:
            lines[-1] = lines[-1][:-1]
    return "\n".join(lines)


def new_text(text: str, *, reply: bool) -> str:
    """The new text of a mail: without the signature and, in a reply, without the answered mail."""
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    if reply:
        lines = lines[: _quoted_from(lines)]
    lines = _without_signature(lines)
    if reply:
        lines = _without_last_quote(lines)
        lines = _without_first_quote(lines)
    return "\n".join(line.rstrip() for line in lines).strip("\n")


def quoted(text: str) -> str:
    """The mail that a reply contains below or above its new text; "" if quotes stand between and belong to the text."""
    if any(line.startswith(">") for line in new_text(text, reply=True).split("\n")):
        return ""
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    start = _quoted_from(lines)
    if start < len(lines):
        below = [line for line in lines[start:] if not _ORIGINAL.match(line[:_LONGEST_LINE])]
        return "\n".join(below).strip("_-* \n")
    return "\n".join(re.sub(r"\A> ?", "", line) for line in lines if line.startswith(">")).strip()


def _quoted_from(lines: list[str]) -> int:
    """The line at which a mail is quoted without "> ", as Outlook and phones do; else the end."""
    for number, line in enumerate(lines):
        if len(line) > _LONGEST_LINE:
            continue
        if _ORIGINAL.match(line):
            return number
        if _FROM.match(line) and any(_SENT.match(after[:80]) for after in lines[number + 1 : number + 4]):
            above = number - 1
            while above >= 0 and not lines[above].strip():
                above -= 1
            return above if above >= 0 and re.fullmatch(r"\s*[_\-*]{5,}\s*", lines[above][:200]) else number
        length = _attribution(lines, number)
        if length and not _next_is_quote(lines, number + length) and re.search(r"[@\d]", " ".join(lines[number:][:3])):
            return number
    return len(lines)


def _attribution(lines: list[str], number: int) -> int:
    """How many lines the "On … wrote:" takes that begins at this one; 0 without one. Programs wrap it."""
    for length in (1, 2, 3):
        wrapped = lines[number : number + length]
        joined = " ".join(line.strip() for line in wrapped)
        if not wrapped[-1].strip() or wrapped[-1].startswith(">") or len(joined) > _LONGEST_LINE:
            return 0
        if _WROTE.match(joined):
            return length
    return 0


def _next_is_quote(lines: list[str], number: int) -> bool:
    return next((line.startswith(">") for line in lines[number : number + 5] if line.strip()), False)


def _without_signature(lines: list[str]) -> list[str]:
    for number, line in enumerate(lines):
        if line in ("-- ", "--"):
            lines = lines[:number]
            break
    end = len(lines)
    while end and (not lines[end - 1].strip() or _MOBILE.match(lines[end - 1].strip()[:100])):
        end -= 1
    return lines[:end]


def _without_last_quote(lines: list[str]) -> list[str]:
    """Without the quote at the end and the line that announces it. A quote that is answered below stays."""
    end = len(lines)
    while end and (not lines[end - 1].strip() or lines[end - 1].startswith(">")):
        end -= 1
    if not any(line.startswith(">") for line in lines[end:]):
        return lines
    for start in range(max(0, end - 3), end):
        if _attribution(lines, start) == end - start:
            return _without_signature(lines[:start])
    return _without_signature(lines[:end])


def _without_first_quote(lines: list[str]) -> list[str]:
    """The lines without a single quote at the top; where there are more quotes, each stays with its answer."""
    start = 0
    while start < len(lines) and not lines[start].strip():
        start += 1
    start += _attribution(lines, start) if start < len(lines) else 0
    after = start
    while after < len(lines) and (lines[after].startswith(">") or not lines[after].strip()):
        after += 1
    quoted = any(line.startswith(">") for line in lines[start:after])
    if not quoted or any(line.startswith(">") for line in lines[after:]):
        return lines
    return lines[after:]


# ------------------------------------------------------------------------------------------ mails without plain text

_SILENT = {"head", "style", "script", "title", "template", "noscript", "svg", "object"}
_BLOCKS = {"p", "div", "table", "ul", "ol", "tr", "section", "article", "header", "footer", "pre", "center"}
_BLOCKS |= {"h1", "h2", "h3", "h4", "h5", "h6", "dl", "dt", "dd", "form", "fieldset", "figure", "main", "nav"}
_PARAGRAPHS = {"p", "h1", "h2", "h3", "h4", "h5", "h6", "ul", "ol", "table", "pre"}
_DEEPEST = 8  # quotes in quotes; deeper ones count as this deep


def text_of_html(html: str) -> str:
    """HTML as plain text: paragraphs, lists, links with their addresses, quotes with "> ". What is hidden stays so."""
    reader = _HtmlText()
    reader.feed(html)
    reader.close()
    return reader.text()


class _HtmlText(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self._lines: list[tuple[int, str]] = []  # how deep it is quoted, and what it says
        self._line: list[str] = []
        self._quote = 0
        self._exact = 0  # inside <pre>
        self._silent: list[str] = []  # the element that is not shown, and those of its name inside
        self._links: list[tuple[str, int]] = []

    def text(self) -> str:
        self._end_line()
        shown: list[str] = []
        for depth, line in self._lines:
            line = ("> " * depth + line).rstrip() if depth else line
            if line.strip("> ") or (shown and shown[-1].strip("> ")):
                shown.append(line)
        return "\n".join(shown).strip("\n")

    def _end_line(self) -> None:
        line = "".join(self._line)
        self._line = []
        line = line if self._exact else re.sub(r"[ \t\n\r\f]+", " ", line).strip()
        if line:
            self._lines.append((self._quote, line))

    def _blank(self) -> None:
        self._end_line()
        self._lines.append((self._quote, ""))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if self._silent:
            if tag == self._silent[0]:
                self._silent.append(tag)
            return
        attributes = {name: value or "" for name, value in attrs}
        hidden = "hidden" in attributes or "display:none" in attributes.get("style", "").replace(" ", "").lower()
        if tag in _SILENT or (hidden and tag in _BLOCKS | {"span", "td", "a", "b", "i", "font"}):
            self._silent.append(tag)
        elif tag == "br":
            if any(piece.strip() for piece in self._line):
                self._end_line()
            else:
                self._blank()
        elif tag == "hr":
            self._end_line()
            self._lines.append((self._quote, "________"))
        elif tag == "blockquote":
            self._blank()
            self._quote = min(self._quote + 1, _DEEPEST)
        elif tag == "li":
            self._end_line()
            self._line.append("- ")
        elif tag in ("td", "th"):
            self._line.append(" ")
        elif tag == "a":
            self._links.append((attributes.get("href", ""), len(self._line)))
        elif tag == "img" and attributes.get("alt"):
            self._line.append(f"[{attributes['alt']}]")
        if tag in _BLOCKS:
            self._blank() if tag in _PARAGRAPHS else self._end_line()
        if tag == "pre":
            self._exact += 1

    def handle_endtag(self, tag: str) -> None:
        if self._silent:
            if tag == self._silent[0]:
                self._silent.pop()
            return
        if tag == "a" and self._links:
            href, start = self._links.pop()
            shown = "".join(self._line[start:]).strip()
            if href.startswith(("http://", "https://")) and shown and shown.rstrip("/") not in href:
                self._line.append(f" ({href})")
        elif tag == "blockquote" and self._quote:
            self._end_line()
            self._quote -= 1
            self._blank()
        elif tag in _BLOCKS or tag == "li":
            self._blank() if tag in _PARAGRAPHS else self._end_line()
        if tag == "pre" and self._exact:
            self._exact -= 1

    def handle_data(self, data: str) -> None:
        if self._silent:
            return
        if self._exact:
            first, *rest = data.split("\n")
            self._line.append(first)
            for line in rest:
                self._end_line()
                self._line.append(line)
        else:
            self._line.append(data)


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
