"""The mailbox, over IMAP: one connection that waits for mails, and one for everything else.

imap-tools works in blocking calls, so each connection lives in a thread of its own. The waiting one uses IDLE, in which
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
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any, TypeVar

from imap_tools import BaseMailBox, MailBox, MailBoxStartTls, MailBoxUnencrypted
from imap_tools.errors import MailboxFolderSelectError, MailboxLoginError, MailboxStarttlsError

from hermes.errors import HermesError, PlatformRefused, PlatformUnreachable
from hermes.gateway.platforms.email.incoming import Mail
from hermes.gateway.platforms.http import error_text

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
    """The mailbox's server and login."""

    host: str
    port: int
    security: str  # "ssl", "starttls" or "none"
    username: str
    password: str
    context: ssl.SSLContext | None

    def open(self, folder: str | None) -> BaseMailBox:
        """A connection, logged in, with this folder selected."""
        with self.explained(folder, entering=True):
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

    @contextmanager
    def explained(self, folder: str | None = None, *, entering: bool = False) -> Iterator[None]:
        """Turns the library's errors into ours; `entering` is the time until we are logged in."""
        try:
            yield
        except HermesError:
            raise
        except Exception as error:
            raise self._explained(error, folder, entering) from None

    def _explained(self, error: Exception, folder: str | None, entering: bool) -> HermesError:
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


Take = Callable[[FoundMail], Coroutine[Any, Any, bool]]  # False: not for us


class MailboxWatcher:
    """Waits for mails in one folder and hands them over, one after the other, oldest first.

    `read` runs in the thread, since a large mail takes its time; `take` runs in the event loop; `lost` is called there
    when the connection broke.
    """

    def __init__(
        self,
        account: Account,
        folder: str,
        *,
        read: Callable[[bytes, int], Mail],
        take: Take,
        lost: Callable[[Exception], None],
        days: int,
        pause: float,
    ) -> None:
        self._account, self._folder = account, folder
        self._read, self._take, self._lost = read, take, lost
        self._days, self._pause = days, pause
        self._loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._ended = asyncio.Event()
        self._stopping = threading.Event()
        self._ear, self._mouth = socket.socketpair()  # a byte here wakes the thread up
        self._box: BaseMailBox | None = None
        self._idles = False
        self._offered: Future[bool] | None = None
        self._left_alone: set[str] = set()  # used if the server stores no keywords of ours
        self._thread = threading.Thread(target=self._run, name="hermes-email", daemon=True)

    async def start(self, connected: Callable[[], None]) -> None:
        """Returns when the mailbox is open, after `connected` was called; raises why it can't be."""
        self._connected = connected
        self._thread.start()
        await self._ready

    async def stop(self) -> None:
        """End it, gently first."""
        self._stopping.set()
        with suppress(OSError):
            self._mouth.send(b"!")
        if self._thread.ident is None:
            return
        for seconds, harder in ((0.5, self._withdraw), (1.5, self._hang_up), (2.0, lambda: None)):
            with suppress(TimeoutError):
                await asyncio.wait_for(self._ended.wait(), seconds)
                self._thread.join(0.5)
                return
            harder()

    def _withdraw(self) -> None:
        """Stop handing over the current mail: it stays unseen."""
        if self._offered is not None:
            self._offered.cancel()

    def _hang_up(self) -> None:
        if self._box is not None:
            hang_up(self._box)

    # ------------------------------------------------------------------------------------------ in the thread

    def _run(self) -> None:
        error: Exception | None = None
        try:
            self._box = box = self._account.open(self._folder)
            self._idles = b"IDLE" in (box.client.capability()[1][-1] or b"").upper().split()
            self._tell(self._set_ready, None)
            with self._account.explained(self._folder):
                while not self._stopping.is_set():
                    safe = self._look(box)
                    self._wait(box, None if safe else _ANOTHER_TRY)
                box.client.logout()
        except Exception as why:
            error = why
        except CancelledError:
            pass
        finally:
            if self._box is not None:
                hang_up(self._box)
            self._ear.close()
            self._mouth.close()
            self._tell(self._finish, error)

    def _tell(self, function: Callable[[Any], None], argument: object) -> None:
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(function, argument)

    def _set_ready(self, _: object) -> None:
        if not self._ready.done() and not self._stopping.is_set():
            self._connected()
            self._ready.set_result(None)

    def _finish(self, error: Exception | None) -> None:
        self._ended.set()
        if not self._ready.done():
            self._ready.set_exception(error or PlatformUnreachable("the connection was closed"))
        elif not self._stopping.is_set():
            self._lost(error or PlatformUnreachable("the connection was closed"))

    def _look(self, box: BaseMailBox) -> bool:
        """Hand over new mails; False when one could not be stored and must be tried again."""
        box.client.noop()
        for kind in ("EXISTS", "RECENT", "FETCH", "EXPUNGE"):  # the library keeps these until they are read
            box.client.untagged_responses.pop(kind, None)
        validity = uid_validity(box)
        since = f" SINCE {_imap_date(date.today() - timedelta(days=self._days))}" if self._days else ""
        for uid in box.uids(f"UNSEEN UNDELETED UNKEYWORD {LEFT_ALONE}{since}", charset=None):
            if self._stopping.is_set():
                return True
            if uid in self._left_alone:
                continue
            raw = raw_mail(box, uid)
            if raw is None:
                continue
            try:
                mail = self._read(*raw)
            except Exception:  # reading should never fail; if it does, the next mails must not wait for this one
                mail = None
            self._offered = asyncio.run_coroutine_threadsafe(self._take(FoundMail(mail, uid, validity)), self._loop)
            try:
                wanted = self._offered.result()
            except Exception:  # `take` has logged why; it stays unseen
                return False
            finally:
                self._offered = None
            self._mark(box, uid, wanted)
        return True

    def _mark(self, box: BaseMailBox, uid: str, wanted: bool) -> None:
        kept = box.client.uid("STORE", uid, "+FLAGS.SILENT", r"(\Seen)" if wanted else f"({LEFT_ALONE})")[0] == "OK"
        if not wanted or not kept:
            self._left_alone.add(uid)

    def _wait(self, box: BaseMailBox, seconds: float | None) -> None:
        """Wait for a new mail, the next poll, or the stop."""
        if seconds is not None or not self._idles:
            self._sleep([], seconds or self._pause)
            return
        client: Any = box.client
        if "EXISTS" in client.untagged_responses:  # reported since the last search, and only once
            return
        tag = client._command("IDLE")
        news = False
        while client._get_response() is not None:  # None is the "+" that means: idling
            news = True
            if client.tagged_commands[tag]:  # it refuses
                client.tagged_commands.pop(tag)
                self._idles = False
                return
        if not news and not _unread(client):
            self._sleep([client.sock], _NEW_LOOK)
        client.send(b"DONE\r\n")
        box.consume_until_tagged_response(tag)

    def _sleep(self, also: list[socket.socket], seconds: float) -> None:
        poller = select.poll()
        for ear in (self._ear, *also):
            poller.register(ear, select.POLLIN)
        poller.poll(seconds * 1000)


class MailboxVisits:
    """Short visits to the mailbox, each on a connection of its own: looking something up, putting a mail away."""

    def __init__(self, account: Account) -> None:
        self._account = account
        self._threads: set[threading.Thread] = set()
        self._boxes: set[BaseMailBox] = set()

    async def run(self, folder: str | None, work: Callable[[BaseMailBox], Result]) -> Result:
        """What `work` returns, done in a thread with this folder selected."""
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[Result] = loop.create_future()

        def tell(function: Callable[[Any], None], argument: object) -> None:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(lambda: None if outcome.done() else function(argument))

        def visit() -> None:
            try:
                box = self._account.open(folder)
                self._boxes.add(box)
                try:
                    with self._account.explained(folder):
                        result = work(box)
                    tell(outcome.set_result, result)
                    with suppress(OSError, imaplib.IMAP4.error):
                        box.client.logout()
                finally:
                    self._boxes.discard(box)
                    hang_up(box)
            except Exception as error:
                tell(outcome.set_exception, error)
            finally:
                self._threads.discard(threading.current_thread())

        thread = threading.Thread(target=visit, name="hermes-email-visit", daemon=True)
        self._threads.add(thread)
        thread.start()
        return await outcome

    async def stop(self) -> None:
        """Abort running visits."""
        deadline = time.monotonic() + 2
        while self._threads and time.monotonic() < deadline:
            for box in list(self._boxes):
                hang_up(box)
            await asyncio.sleep(0.02)


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
