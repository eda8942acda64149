"""The email adapter: a mail thread is a conversation with the person who writes in it.

Mails of machines and forgeries are sorted out, the new text of the others becomes events, and replies go into the same
thread. A reply's Message-ID comes from its nonce, and a copy lies in the Sent folder (sent_folder.py), so that a mail that may
have been sent already can be looked up there; that narrows the window for a duplicate mail, but can't close it.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from imap_tools import BaseMailBox

from hermes.errors import PlatformRefused, PlatformUnreachable, SendRefused
from hermes.gateway.adapter import Adapter, Capabilities, Link, ReplyContext, Setting
from hermes.gateway.events import Attachment, Chat, Event, OutgoingFile, Sender
from hermes.gateway.platforms.email import sent_folder
from hermes.gateway.platforms.email.authentication import ALWAYS, NEVER, WHEN_CHECKED, doubt, misused, wanted_proof
from hermes.gateway.platforms.email.incoming import File, Mail, file_in, is_address, read_mail
from hermes.gateway.platforms.email.mail_bodies import without_reply_marks
from hermes.gateway.platforms.email.mailbox import (
    Account,
    FoundMail,
    MailboxVisits,
    MailboxWatcher,
    find_mail,
    raw_mail,
    uid_validity,
)
from hermes.gateway.platforms.email.outgoing import SmtpSender, message_id_for, subject_from, written
from hermes.gateway.platforms.http import attachment_kind, check_size, tls_context

_SECURITIES = ("ssl", "starttls", "none")
_PORTS = {"imap": {"ssl": 993, "starttls": 143, "none": 143}, "smtp": {"ssl": 465, "starttls": 587, "none": 25}}
LARGEST_FILE = 18_000_000  # bytes: many servers take mails of 25 MB, and a file grows by a third in a mail
_NEW_THREAD = "<hermes.thread."  # the prefix of the ids of threads that we began
_SENT_NAMES = ("Sent", "INBOX.Sent", "INBOX/Sent", "Sent Items", "Sent Messages")

Result = TypeVar("Result")


class Email(Adapter):
    """Email: IMAP to receive, SMTP to send."""

    platform: ClassVar[str] = "email"
    title: ClassVar[str] = "Email"
    extra: ClassVar[str | None] = "email"
    capabilities: ClassVar[Capabilities] = Capabilities(
        longest=100_000, threads=True, media=True, files=True, largest_file=LARGEST_FILE, longest_caption=100_000
    )
    settings = (
        Setting(name="address", help="the agent's own address", variable="EMAIL_ADDRESS", required=True),
        Setting(
            name="password", help="its password (an app password)", variable="EMAIL_PASSWORD", secret=True, required=True
        ),
        Setting(name="imap_host", help="the server for incoming mail", variable="EMAIL_IMAP_HOST", required=True),
        Setting(name="smtp_host", help="the server for outgoing mail", variable="EMAIL_SMTP_HOST", required=True),
        Setting(name="username", help="the name to log in with, if not the address", variable="EMAIL_USERNAME"),
        Setting(
            name="aliases", help="other addresses whose mail arrives here", variable="EMAIL_ALIASES", kind=list, default=()
        ),
        Setting(name="imap_port", help="993, or 143 without ssl", variable="EMAIL_IMAP_PORT", kind=int),
        Setting(name="smtp_port", help="465, 587 with starttls, 25 with none", variable="EMAIL_SMTP_PORT", kind=int),
        Setting(
            name="imap_security", help="ssl, starttls or none", variable="EMAIL_IMAP_SECURITY", default="ssl"
        ),
        Setting(
            name="smtp_security", help="ssl, starttls or none", variable="EMAIL_SMTP_SECURITY", default="ssl"
        ),
        Setting(name="ca_file", help="certificates to trust beside the usual ones (PEM)", variable="EMAIL_CA_FILE"),
        Setting(name="name", help="the name before the address", variable="EMAIL_NAME", default="Hermes"),
        Setting(name="folder", help="the folder mails arrive in", variable="EMAIL_FOLDER", default="INBOX"),
        Setting(
            name="sent_folder", help="for copies of replies; empty: found by itself; none: no copies",
            variable="EMAIL_SENT_FOLDER",
        ),
        Setting(
            name="days", help="mails older than this many days are left alone; 0: none is too old",
            variable="EMAIL_DAYS", default=14, kind=int,
        ),
        Setting(
            name="poll_seconds", help="how often to look where the server can't push", variable="EMAIL_POLL_SECONDS",
            default=30.0, kind=float,
        ),
        Setting(
            name="require_authentication",
            help="proof of the sender (SPF, DKIM, DMARC, login): when-checked, always or never (then no sender is the owner)",
            variable="EMAIL_REQUIRE_AUTHENTICATION", default=WHEN_CHECKED,
        ),
        Setting(
            name="authserv_id",
            help="the name at the beginning of the Authentication-Results our server writes; without it no sender is proven",
            variable="EMAIL_AUTHSERV_ID", asked=True,
        ),
        Setting(
            name="authserv_below",
            help="the server writes them below its Received line, and removes those that came with a mail (as Gmail does)",
            variable="EMAIL_AUTHSERV_BELOW", default=False, kind=bool,
        ),
    )  # fmt: skip

    def __init__(self, values: Mapping[str, Any], home: Path) -> None:
        super().__init__(values, home)
        self._link: Link | None = None
        self._watcher: MailboxWatcher | None = None
        self._visits: MailboxVisits | None = None
        self._sent_folder: str | None = None
        self._sent_known = False
        self._without_copies = home / "email" / "without-copies"

    # ------------------------------------------------------------------------------------------ connection

    def validate(self) -> None:
        """Check that `always` comes with authserv_id: without it no results can be trusted."""
        if self._wanted_proof() == ALWAYS and not self.setting("authserv_id"):
            raise PlatformRefused(
                "require_authentication: always needs authserv_id, the name your mail server writes at the beginning of"
                " Authentication-Results; without it a sender could forge that header"
            )

    def doubts(self) -> str | None:
        """Why mails are not answered, or not with all rights; None when senders can be proven."""
        if self._wanted_proof() == NEVER:
            return "senders are not proven (require_authentication: never): any sender can use any address, and none is the owner"
        if not self.setting("authserv_id"):
            return "no sender can be proven, so that no mail is answered: authserv_id is not set"
        return None

    async def check(self) -> str:
        """Log in to both servers."""
        visits = MailboxVisits(self._account())
        try:
            await visits.run(self._folder, lambda box: None)
        finally:
            await visits.stop()
        await self._smtp().check()
        return self._address

    async def connect(self, link: Link) -> None:
        """Open the mailbox and begin to watch it."""
        await self.disconnect()
        self.validate()
        self._proof = self._wanted_proof()
        if why := self.doubts():
            link.log.warning("%s", why)
        account = self._account()
        self._link = link
        self._visits = MailboxVisits(account)
        self._watcher = MailboxWatcher(
            account,
            self._folder,
            read=lambda raw, size: read_mail(raw, self._address, size=size),
            take=self._take,
            lost=link.lost,
            days=int(self.setting("days")),
            pause=float(self.setting("poll_seconds")),
        )
        try:
            await self._watcher.start(lambda: link.connected(self._address))
        except BaseException:
            await self.disconnect()
            raise

    async def disconnect(self) -> None:
        """End the threads and their connections."""
        watcher, self._watcher = self._watcher, None
        visits, self._visits = self._visits, None
        if watcher is not None:
            await watcher.stop()
        if visits is not None:
            await visits.stop()
        self._sent_known = False

    # ------------------------------------------------------------------------------------------ receiving

    async def _take(self, found: FoundMail) -> bool:
        """Hand a mail over; False when it is not for us. An error leaves it unseen."""
        assert self._link is not None
        log, mail = self._link.log, found.mail
        if mail is None:
            log.warning("skipping a mail that can't be read")
            return False
        unproven = self._doubt(mail)
        why = mail.unwanted or (unproven if self._proof != NEVER else None)
        if why:
            log.info("skipping a mail from %s: %s", mail.address or "an unknown sender", why)
            return False
        event = self._event(mail, found, await self._root(mail), await self._quoted(mail), proven=unproven is None)
        try:
            await self._link.received(event)
        except Exception as error:
            log.warning("a mail could not be stored and stays unseen (%s)", type(error).__name__)
            raise
        return True

    def _doubt(self, mail: Mail) -> str | None:
        """Why a mail does not prove that its sender wrote it to us, and lately; None when it does."""
        if not mail.clear:
            return "its headers are malformed"
        server, below = self.text("authserv_id"), bool(self.setting("authserv_below"))
        our_domain = self._address.rpartition("@")[2]
        return doubt(mail.trail, mail.address, server=server, our_domain=our_domain, below=below) or misused(
            mail.trail, mail.address, server=server, our_domain=our_domain, below=below,
            our_addresses={one.lower() for one in (self._address, self._username, *self.setting("aliases"))},
            now=time.time(), days=int(self.setting("days")),
        )  # fmt: skip

    async def _quoted(self, mail: Mail) -> str | None:
        """The answered mail, if the conversation does not have it: it is neither ours nor the same person's.

        Other people's mails in this mailbox are not looked up: the sender who names one may not have read it.
        """
        above = mail.references[-1] if mail.references else ""
        if above.startswith("<hermes."):
            return None

        def look(box: BaseMailBox) -> Mail | None:
            uid = find_mail(box, above) if above else None
            there = raw_mail(box, uid) if uid else None
            return read_mail(there[0], self._address) if there else None

        before = await self._visit(self._folder, look) if above else None
        if before is None or before.address != mail.address:
            return mail.quoted or None
        return before.text if before.unwanted else None

    def _event(self, mail: Mail, found: FoundMail, root: str, quoted: str | None, *, proven: bool) -> Event:
        subject = without_reply_marks(mail.subject)
        place = {"folder": self._folder, "validity": found.validity, "uid": found.uid, "message_id": mail.message_id}
        return Event(
            # Of a proven sender a Message-ID counts once, for good (GatewayDB.forget_mail). An unproven one can't use it up,
            # and some programs give all their mails one Message-ID.
            id=f"{mail.message_id} {mail.address if proven else mail.digest}",
            chat=Chat(platform=self.platform, chat_id=mail.address, thread_id=root, name=subject or None),
            sender=Sender(
                user_id=mail.address,
                name=mail.name or mail.address,
                proven=proven,
                stable_id=None if proven else f"unproven:{mail.address}",  # sees nothing of the genuine one's
            ),
            text=_words(mail, subject, begins=not mail.references),
            attachments=tuple(_attachment(file, place) for file in mail.files),
            message_id=mail.message_id,
            reply_to=mail.references[-1] if mail.references else None,
            quoted=quoted,
            sent_at=mail.sent_at,
        )

    async def _root(self, mail: Mail) -> str:
        """The mail that began the thread. For programs that name only the answered mail, ours is looked up."""
        if not mail.references:
            return mail.message_id
        above = mail.references[0]
        if len(mail.references) > 1 or not above.startswith("<hermes.") or above.startswith(_NEW_THREAD):
            return above
        ours = await self._find_sent(above)
        return ours.references[0] if ours and ours.references else above

    # ------------------------------------------------------------------------------------------ sending

    async def send(
        self, chat: Chat, text: str, *, nonce: str, reply_to: str | None = None, context: ReplyContext | None = None
    ) -> str:
        """A mail in the chat's thread; without one, a mail that begins a thread."""
        return await self._send(chat, text, nonce, reply_to)

    async def send_file(
        self, chat: Chat, file: OutgoingFile, *, caption: str = "", nonce: str, context: ReplyContext | None = None
    ) -> str:
        """A mail in the chat's thread with the file attached; `was_sent` knows it as any other."""
        return await self._send(chat, caption, nonce, None, file)

    async def _send(
        self, chat: Chat, text: str, nonce: str, reply_to: str | None, file: OutgoingFile | None = None
    ) -> str:
        if not is_address(chat.chat_id):
            raise SendRefused(f"{chat.chat_id!r} is not an email address")
        message_id = message_id_for(nonce, self._domain)
        above = [one for one in (chat.thread_id, reply_to) if one]
        begins = not above or (reply_to is None and above[0].startswith(_NEW_THREAD))
        subject = chat.name or (subject_from(text or (file.name if file else "")) if begins else "your message")
        mail = written(
            sender=(self.text("name"), self._address),
            recipient=chat.chat_id,
            subject=subject if begins else f"Re: {subject}",
            text=text,
            message_id=message_id,
            above=above,
            file=file,
        )
        await self._deliver(chat.chat_id, message_id, mail)
        return message_id

    async def was_sent(self, chat: Chat, *, nonce: str) -> bool | None:
        """Whether a mail was sent, according to the Sent folder; None without such a folder, or without certainty."""
        message_id = message_id_for(nonce, self._domain)
        try:
            if (folder := await self._sent()) is None:
                return None
            found = await self._visit(folder, lambda box: sent_folder.copies(box, message_id))
        except PlatformRefused:  # the folder is gone, or never existed
            return None
        if not found:
            return None if self._without_copies.exists() else False
        return True if any(not one.marked for one in found) else None

    async def _deliver(self, recipient: str, message_id: str, mail: bytes) -> None:
        """Send a mail, with a marked copy in the Sent folder until it is sent (see sent_folder.py)."""
        smtp, loop, folder = self._smtp(), asyncio.get_running_loop(), await self._sent()
        if folder is None:
            await smtp.send(self._address, recipient, mail)
            return
        begun: list[Future[None]] = []
        out: Future[None] = Future()  # done as soon as the server has accepted the mail, before it closes

        async def post() -> None:
            try:
                await smtp.send(self._address, recipient, mail, lambda: out.set_result(None))
            except BaseException as error:
                broken_off = PlatformUnreachable("sending a mail was interrupted", maybe_sent=True)
                if not out.done():
                    out.set_exception(error if isinstance(error, Exception) else broken_off)
                if not isinstance(error, Exception):
                    raise

        def work(box: BaseMailBox) -> str | None:
            """The number of a copy whose mark could not be removed."""
            if any(not one.marked for one in sent_folder.copies(box, message_id)):
                return None
            uid = sent_folder.put(box, folder, mail, message_id)
            self._note_copies(uid is not None)
            begun.append(asyncio.run_coroutine_threadsafe(post(), loop))
            try:
                out.result()
            except SendRefused:
                sent_folder.remove(box, {uid} if uid else set())
                raise
            try:
                if uid is not None:
                    sent_folder.settle(box, uid, message_id)
                elif not sent_folder.copies(box, message_id):
                    box.append(mail, folder, flag_set=r"\Seen")
            except Exception:  # the mail is sent: that is what counts
                return uid
            return None

        try:
            unsettled = await self._visit(folder, work)
        except asyncio.CancelledError:
            for one in begun:
                one.cancel()
            raise
        except PlatformRefused as error:
            if begun:
                raise
            self._warn("no copies of sent mails can be stored: %s", error)
            self._note_copies(False)
            await smtp.send(self._address, recipient, mail)
            return
        if unsettled is not None:
            await self._settle(folder, unsettled, message_id)

    async def _settle(self, folder: str, uid: str, message_id: str) -> None:
        """Remove the mark of a copy on another connection, since the first one broke."""
        try:
            await self._visit(folder, lambda box: sent_folder.settle(box, uid, message_id))
        except (PlatformRefused, PlatformUnreachable) as error:
            self._warn("the copy of a sent mail could not be stored, or keeps its mark: %s", error)

    def _note_copies(self, kept: bool) -> None:
        """Record, for the process after a kill, whether a mail without a copy may have been sent."""
        with contextlib.suppress(OSError):
            if kept:
                self._without_copies.unlink(missing_ok=True)
            else:
                self._without_copies.parent.mkdir(parents=True, exist_ok=True)
                self._without_copies.touch()

    async def create_thread(self, chat: Chat, name: str) -> Chat:
        """A thread exists once its first mail does; its name becomes the subject."""
        root = f"{_NEW_THREAD}{uuid.uuid4().hex}@{self._domain}>"
        return Chat(platform=self.platform, chat_id=chat.chat_id, type=chat.type, thread_id=root, name=name)

    async def _find_sent(self, message_id: str) -> Mail | None:
        """A mail of ours in the Sent folder."""
        if (folder := await self._sent()) is None:
            return None

        def look(box: BaseMailBox) -> Mail | None:
            uid = find_mail(box, message_id)
            found = raw_mail(box, uid) if uid else None
            return read_mail(found[0], self._address) if found else None

        try:
            return await self._visit(folder, look)
        except PlatformRefused as error:  # the folder is gone, or never existed
            self._warn("the Sent folder can't be read: %s", error)
            return None

    async def _sent(self) -> str | None:
        """The name of the folder for sent mails."""
        if not self._sent_known:
            wanted = self.text("sent_folder")
            if wanted.lower() == "none":
                self._sent_folder = None
            else:
                self._sent_folder = wanted or await self._visit(None, _sent_folder)
            self._sent_known = True
        return self._sent_folder

    async def _visit(self, folder: str | None, work: Callable[[BaseMailBox], Result]) -> Result:
        if self._visits is None:
            raise PlatformUnreachable("email is not connected")
        return await self._visits.run(folder, work)

    # ------------------------------------------------------------------------------------------ files

    async def fetch(self, attachment: Attachment) -> bytes:
        """A file out of its mail, which is found by its number or, where numbers have changed, by its Message-ID."""
        place = attachment.reference
        message_id, part = str(place.get("message_id")), int(place.get("part", -1))

        def get(box: BaseMailBox) -> bytes | None:
            uid = str(place.get("uid"))
            found = raw_mail(box, uid) if uid_validity(box) == place.get("validity") and uid.isdecimal() else None
            if found is None and (uid_now := find_mail(box, message_id)):
                found = raw_mail(box, uid_now)
            return file_in(found[0], part) if found else None

        data: bytes | None = await self._visit(str(place.get("folder") or self._folder), get)
        if data is None:
            raise SendRefused(f"the mail with {attachment.name or 'the file'} is no longer in the mailbox")
        check_size(len(data))
        return data

    # ------------------------------------------------------------------------------------------ settings

    @property
    def _address(self) -> str:
        return self.text("address").lower()

    @property
    def _domain(self) -> str:
        domain = self._address.rpartition("@")[2]
        try:
            return domain.encode("idna").decode("ascii") or "localhost"
        except UnicodeError:
            return "localhost"

    @property
    def _folder(self) -> str:
        return self.text("folder")

    def _account(self) -> Account:
        host, port, security = self._server("imap")
        return Account(
            host,
            port,
            security,
            self._username,
            str(self.setting("password") or ""),
            tls_context(self.setting("ca_file")),
        )

    def _smtp(self) -> SmtpSender:
        host, port, security = self._server("smtp")
        password = str(self.setting("password") or "")
        return SmtpSender(
            host,
            port,
            security,
            self._username,
            password,
            domain=self._domain,
            context=tls_context(self.setting("ca_file")),
        )

    @property
    def _username(self) -> str:
        return self.text("username") or self._address

    def _server(self, kind: str) -> tuple[str, int, str]:
        security = self.text(f"{kind}_security").lower()
        if security not in _SECURITIES:
            raise PlatformRefused(f"{kind}_security must be ssl, starttls or none, not {security!r}")
        host = self.text(f"{kind}_host")
        if not host or not self._address:
            raise PlatformRefused(f"email needs {'address' if host else f'{kind}_host'} in config.yaml")
        return host, int(self.setting(f"{kind}_port") or _PORTS[kind][security]), security

    def _wanted_proof(self) -> str:
        try:
            return wanted_proof(self.setting("require_authentication"))
        except ValueError as error:
            raise PlatformRefused(str(error)) from error

    def _warn(self, message: str, *arguments: object) -> None:
        if self._link is not None:
            self._link.log.warning(message, *arguments)


def _words(mail: Mail, subject: str, *, begins: bool) -> str:
    """The message text. The subject is part of it if the mail begins a thread; a slash command stands alone."""
    if begins and not mail.text.startswith("/") and not mail.text.casefold().startswith(subject.casefold()):
        return f"{subject}\n\n{mail.text}".strip()
    return mail.text


def _attachment(file: File, place: Mapping[str, Any]) -> Attachment:
    return Attachment(
        kind=attachment_kind(file.mime),
        name=file.name,
        mime=file.mime,
        size=file.size,
        reference={**place, "part": file.part},
    )


def _sent_folder(box: BaseMailBox) -> str | None:
    """The folder the server marks as the one for sent mails, else one with a usual name."""
    folders = box.folder.list()
    for folder in folders:
        if any(flag.lower() == "\\sent" for flag in folder.flags):
            return folder.name
    names = {folder.name for folder in folders}
    return next((name for name in _SENT_NAMES if name in names), None)
