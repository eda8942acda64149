"""Outgoing mails, and sending them (SMTP).

The Markdown goes as plain text, and beside it as HTML for programs that show it. Markup in the text is
never passed on as HTML, and pictures become links: no mail program fetches anything because of our mail.
"""

from __future__ import annotations

import hashlib
import re
import ssl
from collections.abc import Callable, Sequence
from email.charset import QP, Charset
from email.encoders import encode_base64
from email.header import Header
from email.mime.base import MIMEBase
from email.mime.multipart import MIMEMultipart
from email.mime.text import MIMEText
from email.utils import formataddr, formatdate

import aiosmtplib

from hermes.errors import HermesError, PlatformRefused, PlatformUnreachable, SendRefused, SlowDown
from hermes.gateway.events import OutgoingFile
from hermes.gateway.platforms import markup
from hermes.gateway.platforms.http import error_text

_WAIT = 60.0  # seconds, if a server says "later" without a time
_STYLE = (
    "<style>body{font-family:sans-serif;line-height:1.4}pre{background:#f4f4f4;padding:8px;overflow-x:auto}"
    "code{font-family:monospace}table{border-collapse:collapse}td,th{border:1px solid #ccc;padding:4px 8px}"
    "blockquote{border-left:3px solid #ccc;margin-left:0;padding-left:10px;color:#555}</style>"
)
_CHARSET = Charset("utf-8")
_CHARSET.body_encoding = QP  # base64 makes plain text unreadable in a mail's source, and larger


def as_html(text: str) -> str:
    """Markdown as a page of HTML in which nothing of the text itself counts as markup."""
    return f"<!doctype html><html><head>{_STYLE}</head><body>{markup.html(text)[0]}</body></html>"


def message_id_for(nonce: str, domain: str) -> str:
    """The Message-ID of the mail with this nonce: the same each time."""
    return f"<hermes.{hashlib.sha256(nonce.encode('utf-8', 'replace')).hexdigest()[:32]}@{domain}>"


def subject_from(text: str) -> str:
    """A subject for a mail that begins a thread without a name: its first words."""
    line = next((line for line in text.splitlines() if line.strip(" #*_>`-")), "")
    line = re.sub(r"[*_`#>]+", "", line).strip()
    return (line if len(line) <= 70 else line[:69].rsplit(" ", 1)[0] + "…") or "A message"


def written(
    *, sender: tuple[str, str], recipient: str, subject: str, text: str, message_id: str, above: Sequence[str],
    file: OutgoingFile | None = None,
) -> bytes:  # fmt: skip
    """A mail as bytes. `above` is the thread it belongs to, root first, the mail it answers last."""
    text = text.encode("utf-8", "replace").decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")
    words = MIMEMultipart("alternative")
    mail = words if file is None else MIMEMultipart("mixed")
    name, address = sender
    mail["From"] = formataddr((header_text(name), address)) if name else address
    mail["To"] = recipient
    subject = header_text(subject)
    mail["Subject"] = subject if subject.isascii() else str(Header(subject, "utf-8", header_name="Subject").encode())
    mail["Date"] = formatdate(localtime=True)
    mail["Message-ID"] = message_id
    if above:
        mail["In-Reply-To"] = above[-1]
        mail["References"] = " ".join(dict.fromkeys(above))
    mail["Auto-Submitted"] = "auto-replied" if above else "auto-generated"
    mail["X-Auto-Response-Suppress"] = "All"
    words.attach(MIMEText(text, "plain", _CHARSET))  # type: ignore[arg-type]  # a Charset is as good as its name
    words.attach(MIMEText(as_html(text), "html", _CHARSET))  # type: ignore[arg-type]
    if file is not None:
        mail.attach(words)
        mail.attach(_attached(file))
    return re.sub(rb"\r?\n", b"\r\n", mail.as_bytes())


def _attached(file: OutgoingFile) -> MIMEBase:
    """A file as a part of a mail. Types that are not one plain part (a mail in a mail) go as bytes."""
    kind, _, subtype = file.mime.partition("/")
    if not re.fullmatch(r"[\w.+-]+/[\w.+-]+", file.mime, re.ASCII) or kind in ("message", "multipart"):
        kind, subtype = "application", "octet-stream"
    part = MIMEBase(kind, subtype)
    part.set_payload(file.data)
    encode_base64(part)
    name = header_text(file.name) or "file"
    part.add_header("Content-Disposition", "attachment", filename=name if name.isascii() else ("utf-8", "", name))
    return part


def header_text(text: str) -> str:
    """Text that can't begin another header."""
    return " ".join(re.sub(r"[\x00-\x1f\x7f\x85\u2028\u2029\ud800-\udfff]+", " ", text).split())[:300]


class SmtpSender:
    """Hands mails to an SMTP server, each on a connection of its own."""

    def __init__(
        self,
        host: str,
        port: int,
        security: str,
        username: str,
        password: str,
        *,
        domain: str,
        context: ssl.SSLContext | None,
    ) -> None:
        self._host, self._port, self._security = host, port, security
        self._username, self._password = username, password
        self._domain, self._context = domain, context

    async def check(self) -> None:
        """Log in, and out again."""
        await self._with_connection(None)

    async def send(self, sender: str, recipient: str, mail: bytes, accepted: Callable[[], None] = lambda: None) -> None:
        """Deliver a mail to the server; `accepted` is called as soon as the server has accepted it."""
        await self._with_connection((sender, recipient, mail), accepted)

    async def _with_connection(
        self, what: tuple[str, str, bytes] | None, accepted: Callable[[], None] = lambda: None
    ) -> None:
        client = aiosmtplib.SMTP(
            hostname=self._host,
            port=self._port,
            use_tls=self._security == "ssl",
            start_tls=self._security == "starttls",
            tls_context=self._context if self._security != "none" else None,
            local_hostname=self._domain if self._domain.isascii() else "localhost",
            timeout=30,
        )
        begun = False
        try:
            await client.connect()
            await client.ehlo()
            if self._username and client.supports_extension("auth"):
                await client.login(self._username, self._password)
            if what is not None:
                sender, recipient, mail = what
                options = [] if (sender + recipient).isascii() else ["SMTPUTF8"]
                begun = True
                await client.sendmail(sender, [recipient], mail, mail_options=options)
                accepted()
            if client.is_connected:
                try:
                    await client.quit(timeout=3)
                except aiosmtplib.SMTPException:
                    pass  # the mail is delivered; how the server closes does not matter
        except (aiosmtplib.SMTPException, OSError, ValueError) as error:
            explained = self._explained(error)
            answered = isinstance(error, aiosmtplib.SMTPResponseException)
            if isinstance(explained, PlatformUnreachable) and not answered:
                explained.maybe_sent = begun  # the answer may have been lost, not the mail
            raise explained from None
        finally:
            client.close()

    def _explained(self, error: Exception) -> HermesError:
        where = f"the mail server {self._host}:{self._port} (SMTP)"
        if isinstance(error, aiosmtplib.SMTPRecipientsRefused) and error.recipients:
            error = error.recipients[0]
        if isinstance(error, ssl.SSLCertVerificationError) or isinstance(error.__cause__, ssl.SSLCertVerificationError):
            return PlatformRefused(
                f"the certificate of {where} is not trusted; ca_file names the one that vouches for it"
            )
        if isinstance(error, aiosmtplib.SMTPAuthenticationError):
            reason = self._masked(error.message)
            if error.code < 500:
                return PlatformUnreachable(f"{where} can't check the password now: {error.code} {reason}")
            return PlatformRefused(f"{where} does not accept username and password: {error.code} {reason}")
        if isinstance(error, aiosmtplib.SMTPConnectResponseError | aiosmtplib.SMTPHeloError):
            return PlatformUnreachable(f"{where} is not ready: {error.code} {self._masked(error.message)}")
        if isinstance(error, aiosmtplib.SMTPResponseException):
            reason = self._masked(error.message)
            if error.code == 421 or error.code < 400:
                return PlatformUnreachable(f"{where} is not ready: {error.code} {reason}")
            if error.code < 500:
                return SlowDown(f"{where} asks to wait: {error.code} {reason}", _wait_in(reason))
            return SendRefused(f"{where} refuses the mail: {error.code} {reason}")
        if isinstance(error, aiosmtplib.SMTPNotSupported | aiosmtplib.SMTPRecipientsRefused | ValueError):
            return SendRefused(f"{where} can't accept the mail: {self._masked(str(error))}")
        return PlatformUnreachable(f"{where} can't be reached: {self._masked(str(error)) or type(error).__name__}")

    def _masked(self, text: str) -> str:
        return error_text(text, self._password)


def _wait_in(reason: str) -> float:
    """The seconds a server asks to wait, if it names them ("try again in 300 seconds")."""
    found = re.search(r"(\d{1,5})\s*(sec|min)", reason, re.IGNORECASE)
    if not found:
        return _WAIT
    return float(found[1]) * (60 if found[2].lower() == "min" else 1)
