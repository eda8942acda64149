"""Outgoing mails, and sending them (SMTP).

The Markdown goes as plain text, and beside it as HTML for programs that show it. Markup in the text is
never passed on as HTML, and pictures become links: no mail program fetches anything because of our mail.
"""

from __future__ import annotations

import hashlib
import re
import ssl
from collections.abc import Sequence
from contextlib import suppress
from email.headerregistry import Address
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import formatdate

import aiosmtplib

from hermes.errors import HermesError, PlatformRefused, PlatformUnreachable, SendRefused, SlowDown
from hermes.gateway.events import OutgoingFile
from hermes.gateway.platforms._shared import markup
from hermes.gateway.platforms._shared.http import error_text
from hermes.gateway.platforms.email.client import Account

_WAIT = 60.0  # seconds, if a server says "later" without a time
_STYLE = (
    "<style>body{font-family:sans-serif;line-height:1.4}pre{background:#f4f4f4;padding:8px;overflow-x:auto}"
    "code{font-family:monospace}table{border-collapse:collapse}td,th{border:1px solid #ccc;padding:4px 8px}"
    "blockquote{border-left:3px solid #ccc;margin-left:0;padding-left:10px;color:#555}</style>"
)


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
    name, address = sender
    # Long lines: ids of mails must not be folded, nor encoded.
    mail = EmailMessage(policy=SMTP.clone(utf8=not (address + recipient).isascii(), max_line_length=998))
    # A control character would break the address.
    shown = "".join(sign for sign in header_text(name) if sign.isprintable())
    user, _, domain = address.rpartition("@")
    mail["From"] = Address(shown, user, domain) if shown.strip() and user else address
    mail["To"] = recipient
    mail["Subject"] = header_text(subject)
    mail["Date"] = formatdate(localtime=True)
    mail["Message-ID"] = message_id
    if above:
        mail["In-Reply-To"] = above[-1]
        mail["References"] = " ".join(dict.fromkeys(above))
    mail["Auto-Submitted"] = "auto-replied" if above else "auto-generated"
    mail["X-Auto-Response-Suppress"] = "All"
    mail.set_content(text, cte="quoted-printable")  # base64 makes plain text unreadable in a mail's source, and larger
    mail.add_alternative(as_html(text), subtype="html", cte="quoted-printable")
    if file is not None:
        kind, _, subtype = file.mime.partition("/")
        if not re.fullmatch(r"[\w.+-]+/[\w.+-]+", file.mime, re.ASCII) or kind in ("message", "multipart"):
            kind, subtype = "application", "octet-stream"  # a mail in a mail is not one plain part
        mail.add_attachment(file.data, kind, subtype, filename=header_text(file.name) or "file")
    return mail.as_bytes()


def header_text(text: str) -> str:
    """Text that can't begin another header."""
    return " ".join(re.sub(r"[\x00-\x1f\x7f\x85\u2028\u2029\ud800-\udfff]+", " ", text).split())[:300]


class SmtpSender:
    """Hands mails to an SMTP server, each on a connection of its own."""

    def __init__(self, account: Account, *, domain: str) -> None:
        self._account, self._domain = account, domain

    async def check(self) -> None:
        """Log in, and out again."""
        await self._with_connection(None)

    async def send(self, sender: str, recipient: str, mail: bytes) -> None:
        """Deliver a mail to the server."""
        await self._with_connection((sender, recipient, mail))

    async def _with_connection(self, what: tuple[str, str, bytes] | None) -> None:
        account = self._account
        client = aiosmtplib.SMTP(
            hostname=account.host,
            port=account.port,
            use_tls=account.security == "ssl",
            start_tls=account.security == "starttls",
            tls_context=account.context if account.security != "none" else None,
            local_hostname=self._domain if self._domain.isascii() else "localhost",
            timeout=30,
        )
        begun = False
        try:
            await client.connect()
            await client.ehlo()
            if account.username and client.supports_extension("auth"):
                await client.login(account.username, account.password)
            if what is not None:
                sender, recipient, mail = what
                options = [] if (sender + recipient).isascii() else ["SMTPUTF8"]
                begun = True
                await client.sendmail(sender, [recipient], mail, mail_options=options)
            if client.is_connected:
                with suppress(aiosmtplib.SMTPException):  # the mail is delivered; how the server closes does not matter
                    await client.quit(timeout=3)
        except (aiosmtplib.SMTPException, OSError, ValueError) as error:
            explained = self._explained(error)
            answered = isinstance(error, aiosmtplib.SMTPResponseException)
            if isinstance(explained, PlatformUnreachable) and not answered:
                explained.maybe_sent = begun  # the answer may have been lost, not the mail
            raise explained from None
        finally:
            client.close()

    def _explained(self, error: Exception) -> HermesError:
        where = f"the mail server {self._account.host}:{self._account.port} (SMTP)"
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
        return error_text(text, self._account.password)


def _wait_in(reason: str) -> float:
    """The seconds a server asks to wait, if it names them ("try again in 300 seconds")."""
    found = re.search(r"(\d{1,5})\s*(sec|min)", reason, re.IGNORECASE)
    if not found:
        return _WAIT
    return float(found[1]) * (60 if found[2].lower() == "min" else 1)
