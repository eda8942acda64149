"""The email adapter: a mail thread is a conversation with the person who writes in it.

Mails of machines and forgeries are sorted out, the new text of the others becomes events, and replies go into the same
thread. A reply's Message-ID comes from its nonce, and a copy lies in the Sent folder, where a mail whose sending was
interrupted is looked up: with a copy it was sent, without one that is unknown.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar

from imap_tools import BaseMailBox

from hermes.errors import PlatformRefused, PlatformUnreachable, SendRefused
from hermes.gateway.adapter import Adapter, Capabilities, Link, ReplyContext, Setting
from hermes.gateway.events import Attachment, Chat, Event, OutgoingFile, Sender
from hermes.gateway.platforms._shared.http import attachment, check_size, tls_context
from hermes.gateway.platforms._shared.tasks import Tasks, loss_reported
from hermes.gateway.platforms.email.authentication import ALWAYS, NEVER, WHEN_CHECKED, distrust, misuse, wanted_proof
from hermes.gateway.platforms.email.client import (
    Account,
    Connection,
    FoundMail,
    find_mail,
    raw_mail,
    uid_validity,
    watch,
)
from hermes.gateway.platforms.email.incoming import File, Mail, file_in, is_address, read_mail, without_reply_marks
from hermes.gateway.platforms.email.outgoing import SmtpSender, message_id_for, subject_from, written

_SECURITIES = ("ssl", "starttls", "none")
_PORTS = {"imap": {"ssl": 993, "starttls": 143, "none": 143}, "smtp": {"ssl": 465, "starttls": 587, "none": 25}}
LARGEST_FILE = 18_000_000  # bytes: many servers take mails of 25 MB, and a file grows by a third in a mail
_NEW_THREAD = "<hermes.thread."  # the prefix of the ids of threads that we began
_SENT_NAMES = ("Sent", "INBOX.Sent", "INBOX/Sent", "Sent Items", "Sent Messages")


class Email(Adapter):
    """Email: IMAP to receive, SMTP to send."""

    platform: ClassVar[str] = "email"
    title: ClassVar[str] = "Email"
    extra: ClassVar[str | None] = "email"
    capabilities: ClassVar[Capabilities] = Capabilities(
        longest=100_000, threads=True, media=True, files=True, largest_file=LARGEST_FILE, longest_caption=100_000
    )
    settings = (
        Setting("address", "the agent's own address", required=True),
        Setting("password", "its password (an app password)", secret=True, required=True),
        Setting("imap_host", "the server for incoming mail", required=True),
        Setting("smtp_host", "the server for outgoing mail", required=True),
        Setting("username", "the name to log in with, if not the address"),
        Setting("aliases", "other addresses whose mail arrives here", default=(), kind=list),
        Setting("imap_port", "993, or 143 without ssl", kind=int),
        Setting("smtp_port", "465, 587 with starttls, 25 with none", kind=int),
        Setting("imap_security", "ssl, starttls or none", default="ssl"),
        Setting("smtp_security", "ssl, starttls or none", default="ssl"),
        Setting("ca_file", "certificates to trust beside the usual ones (PEM)"),
        Setting("name", "the name before the address", default="Hermes"),
        Setting("folder", "the folder mails arrive in", default="INBOX"),
        Setting("sent_folder", "for copies of replies; empty: found by itself; none: no copies"),
        Setting("days", "mails older than this many days are left alone; 0: none is too old", default=14, kind=int),
        Setting("poll_seconds", "how often to look where the server can't push", default=30.0, kind=float),
        Setting(
            "require_authentication", default=WHEN_CHECKED,
            help="proof of the sender (SPF, DKIM, DMARC, login): when-checked, always or never (then no sender is the owner)",
        ),
        Setting(
            "authserv_id", asked=True,
            help="the name at the beginning of the Authentication-Results our server writes; without it no sender is proven",
        ),
        Setting(
            "authserv_below", default=False, kind=bool,
            help="the server writes them below its Received line, and removes those that came with a mail (as Gmail does)",
        ),
    )  # fmt: skip

    def __init__(self, values: Mapping[str, Any], home: Path) -> None:
        super().__init__(values, home)
        self._link: Link | None = None
        self._tasks = Tasks()
        self._connections: set[Connection] = set()
        self._sent_folder: str | None = None
        self._sent_known = False

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
        async with self._mailbox(self._folder):
            pass
        await self._smtp().check()
        return self._address

    async def connect(self, link: Link) -> None:
        """Open the mailbox and begin to watch it."""
        await self.disconnect()
        self.validate()
        self._proof = self._wanted_proof()
        if why := self.doubts():
            link.log.warning("%s", why)
        self._link = link
        connection = Connection(self._account("imap"), self._folder)
        self._connections.add(connection)
        try:
            await connection.open()
        except BaseException:
            await self.disconnect()
            raise
        link.connected(self._address)
        self._tasks.start(self._watch(link, connection), name="email")

    async def _watch(self, link: Link, connection: Connection) -> None:
        with loss_reported(link, self.title):
            await watch(
                connection, take=self._take, days=int(self.setting("days")), pause=float(self.setting("poll_seconds")),
                read=lambda raw, size: read_mail(raw, self._address, size=size),
            )  # fmt: skip

    async def disconnect(self) -> None:
        """Stop watching, and close all connections."""
        await self._tasks.stop()
        for connection in self._connections:
            connection.close()
        self._connections.clear()
        self._link, self._sent_known = None, False

    @asynccontextmanager
    async def _mailbox(self, folder: str | None) -> AsyncIterator[Connection]:
        """A connection of its own to a folder, for a short visit."""
        connection = Connection(self._account("imap"), folder)
        self._connections.add(connection)
        try:
            await connection.open()
            yield connection
        finally:
            connection.close()
            self._connections.discard(connection)

    # ------------------------------------------------------------------------------------------ receiving

    async def _take(self, found: FoundMail) -> bool:
        """Hand a mail over; False when it is not for us. An error leaves it unseen."""
        assert self._link is not None
        log, mail = self._link.log, found.mail
        if mail is None:
            log.warning("skipping a mail that can't be read")
            return False
        unproven = self._distrust(mail)
        why = mail.unwanted or (unproven if self._proof != NEVER else None)
        if why:
            log.info("skipping a mail from %s: %s", mail.address or "an unknown sender", why)
            return False
        event = self._event(mail, found, await self._root(mail), proven=unproven is None)
        try:
            await self._link.received(event)
        except Exception as error:
            log.warning("a mail could not be stored and stays unseen (%s)", type(error).__name__)
            raise
        return True

    def _distrust(self, mail: Mail) -> str | None:
        """Why a mail does not prove that its sender wrote it to us, and lately; None when it does."""
        if not mail.clear:
            return "its headers are malformed"
        server, below = self.text("authserv_id"), bool(self.setting("authserv_below"))
        our_domain = self._address.rpartition("@")[2]
        return distrust(mail.trail, mail.address, server=server, our_domain=our_domain, below=below) or misuse(
            mail.trail, mail.address, server=server, our_domain=our_domain, below=below,
            our_addresses={one.lower() for one in (self._address, self._username, *self.setting("aliases"))},
            now=time.time(), days=int(self.setting("days")),
        )  # fmt: skip

    def _event(self, mail: Mail, found: FoundMail, root: str, *, proven: bool) -> Event:
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
            # what we wrote is in the conversation
            quoted=None if mail.references and mail.references[-1].startswith("<hermes.") else mail.quoted or None,
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
        """True if the Sent folder has a copy of the mail. Without one that is unknown: the copy follows the mail."""
        return True if await self._find_sent(message_id_for(nonce, self._domain)) else None

    async def _deliver(self, recipient: str, message_id: str, mail: bytes) -> None:
        """Send a mail and put a copy into the Sent folder; nothing if a copy is there."""
        if await self._find_sent(message_id):
            return
        await self._smtp().send(self._address, recipient, mail)
        try:
            if folder := await self._sent():
                async with self._mailbox(folder) as box:
                    await box.run(_put_copy, folder, mail, message_id)
        except (PlatformRefused, PlatformUnreachable) as error:  # the mail is sent: that is what counts
            self._warn("no copy of a sent mail could be stored: %s", error)

    async def create_thread(self, chat: Chat, name: str) -> Chat:
        """A thread exists once its first mail does; its name becomes the subject."""
        root = f"{_NEW_THREAD}{uuid.uuid4().hex}@{self._domain}>"
        return Chat(platform=self.platform, chat_id=chat.chat_id, type=chat.type, thread_id=root, name=name)

    async def _find(self, folder: str, message_id: str) -> Mail | None:
        """The mail with this Message-ID in a folder."""

        def look(box: BaseMailBox) -> Mail | None:
            uid = find_mail(box, message_id)
            found = raw_mail(box, uid) if uid else None
            return read_mail(found[0], self._address) if found else None

        async with self._mailbox(folder) as box:
            return await box.run(look)

    async def _find_sent(self, message_id: str) -> Mail | None:
        """A mail of ours in the Sent folder."""
        try:
            folder = await self._sent()
            return await self._find(folder, message_id) if folder else None
        except PlatformRefused as error:  # the folder is gone, or never existed
            self._warn("the Sent folder can't be read: %s", error)
            return None

    async def _sent(self) -> str | None:
        """The name of the folder for sent mails."""
        if not self._sent_known:
            wanted = self.text("sent_folder")
            if not wanted:
                async with self._mailbox(None) as box:
                    wanted = await box.run(_sent_folder)
            self._sent_folder, self._sent_known = None if wanted.lower() == "none" else wanted, True
        return self._sent_folder

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

        async with self._mailbox(str(place.get("folder") or self._folder)) as mailbox:
            data = await mailbox.run(get)
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

    def _smtp(self) -> SmtpSender:
        return SmtpSender(self._account("smtp"), domain=self._domain)

    @property
    def _username(self) -> str:
        return self.text("username") or self._address

    def _account(self, kind: str) -> Account:
        """The server for `kind` (imap or smtp), with our login."""
        security = self.text(f"{kind}_security").lower()
        if security not in _SECURITIES:
            raise PlatformRefused(f"{kind}_security must be ssl, starttls or none, not {security!r}")
        host = self.text(f"{kind}_host")
        if not host or not self._address:
            raise PlatformRefused(f"email needs {'address' if host else f'{kind}_host'} in config.yaml")
        port = int(self.setting(f"{kind}_port") or _PORTS[kind][security])
        password, context = str(self.setting("password") or ""), tls_context(self.setting("ca_file"))
        return Account(host, port, security, self._username, password, context)

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
    return attachment(file.name, file.mime, file.size, **place, part=file.part)


def _sent_folder(box: BaseMailBox) -> str:
    """The folder the server marks as the one for sent mails, else one with a usual name; "none" without any."""
    folders = box.folder.list()
    for folder in folders:
        if any(flag.lower() == "\\sent" for flag in folder.flags):
            return str(folder.name)
    names = {folder.name for folder in folders}
    return next((name for name in _SENT_NAMES if name in names), "none")


def _put_copy(box: BaseMailBox, folder: str, mail: bytes, message_id: str) -> None:
    box.client.noop()
    if not find_mail(box, message_id):  # some servers store a copy themselves
        box.append(mail, folder, flag_set=r"\Seen")
