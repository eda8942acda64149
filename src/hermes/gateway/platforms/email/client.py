"""The mailbox, over IMAP: one connection that waits for mails, and one for each lookup or copy.

imap-tools works in blocking calls, so each call runs in a thread of its own. The waiting connection uses IDLE, in which
the server reports new mails at once, and also polls every few seconds or minutes; a mail is marked as
seen only when it is stored. Mails that are not for us get a keyword of our own and stay unread for people.
"""

from __future__ import annotations

import asyncio
import imaplib
import re
import select
import socket
import ssl
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any, TypeVar

from imap_tools import BaseMailBox, MailBox, MailBoxStartTls, MailBoxUnencrypted
from imap_tools.errors import MailboxFolderSelectError, MailboxLoginError, MailboxStarttlsError

from hermes.errors import HermesError, PlatformRefused, PlatformUnreachable
from hermes.gateway.platforms._shared.http import error_text
from hermes.gateway.platforms.email.incoming import Mail

LEFT_ALONE = "$HermesLeftAlone"  # the keyword of a mail that was read and is not for us
LARGEST = 40_000_000  # bytes of a mail that is read whole; of a larger one, the beginning
_BEGINNING = 1_000_000
_PATIENCE = 30.0  # seconds for one answer of the server
_NEW_LOOK = 240.0  # seconds of IDLE before polling: routers drop silent connections, and servers forget to push
_ANOTHER_TRY = 5.0  # seconds until a mail that could not be stored is tried again
_NOT_NOW = re.compile(r"\[(UNAVAILABLE|INUSE|LIMIT|OVERQUOTA|SERVERBUG)\]|try again|too many", re.IGNORECASE)


Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Account:
    """A mail server, and the login there."""

    host: str
    port: int
    security: str  # "ssl", "starttls" or "none"
    username: str
    password: str
    context: ssl.SSLContext | None

    def open(self, folder: str | None) -> BaseMailBox:
        """A connection (IMAP), logged in, with this folder selected."""
        box = self._connected()
        try:
            login = box.login if (self.username + self.password).isascii() else box.login_utf8
            return login(self.username, self.password, folder)
        except BaseException:
            hang_up(box)
            raise

    def _connected(self) -> BaseMailBox:
        if self.security == "ssl":
            return MailBox(self.host, self.port, _PATIENCE, ssl_context=self.context)
        if self.security == "starttls":
            return MailBoxStartTls(self.host, self.port, _PATIENCE, self.context)
        return MailBoxUnencrypted(self.host, self.port, _PATIENCE)

    def explained(self, error: Exception, folder: str | None, *, entering: bool) -> HermesError:
        """Our error for one of the library's; `entering` is the time until we are logged in."""
        if isinstance(error, HermesError):
            return error
        where = f"the mail server {self.host}:{self.port} (IMAP)"
        reason = error_text(error, self.password)
        if isinstance(error, ssl.SSLCertVerificationError):
            return PlatformRefused(
                f"the certificate of {where} is not trusted; ca_file names the one that vouches for it"
            )
        if isinstance(error, ssl.SSLError) and "WRONG_VERSION" in reason:
            return PlatformRefused(f"{where} does not speak TLS on that port; look at imap_security and imap_port")
        if isinstance(error, MailboxStarttlsError) or "TLS not supported" in reason or "requires IMAP4_SSL" in reason:
            return PlatformRefused(f"{where} offers no STARTTLS; look at imap_security and imap_port")
        if isinstance(error, MailboxFolderSelectError):
            return PlatformRefused(f"{where} has no folder {folder!r}: {reason}")
        broken = isinstance(error, imaplib.IMAP4.abort) or not isinstance(
            error, imaplib.IMAP4.error | MailboxLoginError
        )
        if entering and not broken and not _NOT_NOW.search(reason):
            return PlatformRefused(f"{where} does not accept username and password: {reason}")
        return PlatformUnreachable(f"{where} can't be reached: {reason or type(error).__name__}")


def hang_up(box: BaseMailBox) -> None:
    """Close a connection without asking the server."""
    with suppress(OSError, imaplib.IMAP4.error):
        box.client.sock.shutdown(socket.SHUT_RDWR)
    with suppress(OSError, imaplib.IMAP4.error):
        box.client.shutdown()


def raw_mail(box: BaseMailBox, uid: str) -> tuple[bytes, int] | None:
    """(bytes, true size) of a mail in the selected folder, which stays unseen; None when it is gone."""
    _, answer = box.client.uid("FETCH", uid, "(RFC822.SIZE)")
    found = re.search(rb"RFC822\.SIZE (\d+)", b" ".join(item for item in answer if isinstance(item, bytes)))
    if not found:
        return None
    size = int(found[1])
    part = "BODY.PEEK[]" if size <= LARGEST else f"BODY.PEEK[]<0.{_BEGINNING}>"
    _, answer = box.client.uid("FETCH", uid, f"({part})")
    raw = next((item[1] for item in answer if isinstance(item, tuple)), None)
    return None if raw is None else (raw, size if size > LARGEST else len(raw))


def uid_validity(box: BaseMailBox) -> str:
    """The selected folder's UIDVALIDITY: with another value its numbers mean other mails."""
    found = box.client.untagged_responses.get("UIDVALIDITY", [b""])[-1]
    return found.decode("ascii", "replace") if isinstance(found, bytes) else ""


def find_mail(box: BaseMailBox, message_id: str) -> str | None:
    """The number of the mail with this Message-ID in the selected folder."""
    if not message_id.isascii() or not message_id.isprintable():
        return None
    quoted = message_id.replace("\\", "\\\\").replace('"', '\\"')
    found = box.uids(f'HEADER Message-ID "{quoted}"', charset=None)
    return found[-1] if found else None


@dataclass(frozen=True, slots=True)
class FoundMail:
    """A new mail in the folder."""

    mail: Mail | None  # None: it could not be read
    uid: str
    validity: str


class Connection:
    """A connection to the mailbox. A server that does not answer delays nothing: `close` ends the call that waits for it."""

    def __init__(self, account: Account, folder: str | None) -> None:
        self._account, self._folder = account, folder
        self._box: BaseMailBox | None = None
        self._busy = self._closed = False

    async def open(self) -> None:
        """Log in and select the folder."""
        await self._called(self._enter, entering=True)

    async def run(self, work: Callable[..., Result], *arguments: Any) -> Result:
        """Run `work` in a thread with the open mailbox and the arguments; returns its result."""
        return await self._called(work, self._box, *arguments)

    def close(self) -> None:
        """Hang up. A thread that waits for the server is woken and does it: a descriptor that it polls must not be reused."""
        self._closed = True
        if self._box is not None:
            with suppress(OSError):
                self._box.client.sock.shutdown(socket.SHUT_RDWR)
            if not self._busy:
                hang_up(self._box)

    def _enter(self) -> None:
        self._box = self._account.open(self._folder)

    async def _called(self, work: Callable[..., Result], *arguments: Any, entering: bool = False) -> Result:
        outcome: Future[Result] = Future()
        outcome.set_running_or_notify_cancel()
        self._busy = True

        def call() -> None:
            try:
                result = work(*arguments)
                self._busy = False
                outcome.set_result(result)
            except Exception as error:
                self._busy = False
                outcome.set_exception(self._account.explained(error, self._folder, entering=entering))
            if self._closed and self._box is not None:
                hang_up(self._box)

        # A daemon: unlike an executor's thread it never delays the end of the process.
        threading.Thread(target=call, name="hermes-email", daemon=True).start()
        return await asyncio.wrap_future(outcome)


async def watch(
    connection: Connection, *, read: Callable[[bytes, int], Mail], take: Callable[[FoundMail], Awaitable[bool]],
    days: int, pause: float,
) -> None:  # fmt: skip
    """Hand over the mails of the folder, one after the other, oldest first, until the connection breaks.

    `read` runs in a thread, since a large mail takes its time. `take` results in False for a mail that is not for us; a mail
    for which it raises stays unseen, and is tried again.
    """
    left_alone: set[str] = set()  # used if the server stores no keywords of ours
    idles = await connection.run(_can_idle)
    while True:
        safe = True
        uids, validity = await connection.run(_new_mails, days)
        for uid in uids:
            if uid in left_alone or (found := await connection.run(_fetched, uid, validity, read)) is None:
                continue
            try:
                wanted = await take(found)
            except Exception:  # `take` has logged why
                safe = False
                break
            if not await connection.run(_mark, uid, wanted) or not wanted:
                left_alone.add(uid)
        if safe and idles:
            idles = await connection.run(_idle)
        else:
            await asyncio.sleep(pause if safe else _ANOTHER_TRY)


def _can_idle(box: BaseMailBox) -> bool:
    return b"IDLE" in (box.client.capability()[1][-1] or b"").upper().split()


def _new_mails(box: BaseMailBox, days: int) -> tuple[list[str], str]:
    """The numbers of new mails, and the folder's UIDVALIDITY."""
    box.client.noop()
    for kind in ("EXISTS", "RECENT", "FETCH", "EXPUNGE"):  # the library keeps these until they are read
        box.client.untagged_responses.pop(kind, None)
    since = f" SINCE {_imap_date(date.today() - timedelta(days=days))}" if days else ""
    return box.uids(f"UNSEEN UNDELETED UNKEYWORD {LEFT_ALONE}{since}", charset=None), uid_validity(box)


def _fetched(box: BaseMailBox, uid: str, validity: str, read: Callable[[bytes, int], Mail]) -> FoundMail | None:
    if (raw := raw_mail(box, uid)) is None:
        return None
    try:
        return FoundMail(read(*raw), uid, validity)
    except Exception:  # reading should never fail; if it does, the next mails must not wait for this one
        return FoundMail(None, uid, validity)


def _mark(box: BaseMailBox, uid: str, wanted: bool) -> bool:
    answer = box.client.uid("STORE", uid, "+FLAGS.SILENT", r"(\Seen)" if wanted else f"({LEFT_ALONE})")
    return bool(answer[0] == "OK")


def _idle(box: BaseMailBox) -> bool:
    """Wait until the server reports something, or for _NEW_LOOK seconds; False if it refuses to."""
    client: Any = box.client
    if "EXISTS" in client.untagged_responses:  # reported since the last search, and only once
        return True
    tag = client._command("IDLE")
    news = False
    while client._get_response() is not None:  # None is the "+" that means: idling
        news = True
        if client.tagged_commands[tag]:  # it refuses
            client.tagged_commands.pop(tag)
            return False
    if not news and not _unread(client):
        poller = select.poll()
        poller.register(client.sock, select.POLLIN)
        poller.poll(_NEW_LOOK * 1000)
    client.send(b"DONE\r\n")
    box.consume_until_tagged_response(tag)
    return True


def _unread(client: Any) -> bool:
    """Whether data has arrived that a wait at the socket would miss, because it is in the read buffer already."""
    if isinstance(client.sock, ssl.SSLSocket) and client.sock.pending():
        return True
    if getattr(client, "_readbuf", None):  # where Python 3.14 keeps it
        return True
    look = getattr(client.file, "peek", None)
    if look is None:
        return False
    client.sock.settimeout(0)
    try:
        return bool(look(1))
    except OSError:
        return False
    finally:
        client.sock.settimeout(_PATIENCE)


def _imap_date(day: date) -> str:
    months = "Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split()  # independent of the locale
    return f"{day.day}-{months[day.month - 1]}-{day.year}"
