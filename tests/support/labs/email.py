"""Email with real servers (email_server.py): each lab has an address for the agent and people of its own.

People's mails are put into the agent's mailbox in order; the agent's go through Postfix. A person goes on in one thread.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from email import message_from_bytes, policy
from email.message import EmailMessage
from email.utils import formatdate, parseaddr
from pathlib import Path
from typing import Any

from hermes.gateway.platforms.email.adapter import Email
from tests.support.labs import recording
from tests.support.labs.base import PEOPLE
from tests.support.labs.base import Lab as Base
from tests.support.labs.email_server import DOMAIN, PASSWORD, SERVER, MailServer
from tests.support.labs.recording import Recorder

_NUMBERS = itertools.count(1)


class Lab(Base):
    """A mailbox for the agent, and three people who write to it."""

    platform = "email"
    places = frozenset({"dm"})
    can = frozenset({"redeliver", "rate_limit", "fail", "drop", "attach", "files"})

    def __init__(self) -> None:
        self.server = MailServer.running()
        self.number = f"{os.getpid()}-{next(_NUMBERS)}"
        self.address = f"hermes.{self.number}@{DOMAIN}"
        self._counter = itertools.count(1)
        self._kept: dict[str, bytes] = {}
        self._roots: dict[str, str] = {}

    @property
    def settings(self) -> dict[str, Any]:
        return {
            "address": self.address,
            "password": PASSWORD,
            "imap_host": "127.0.0.1",
            "imap_port": self.server.imap_line.port,
            "imap_security": "none",
            "smtp_host": "127.0.0.1",
            "smtp_port": self.server.smtp_line.port,
            "smtp_security": "none",
            "authserv_id": SERVER,
        }

    def user_id(self, who: str) -> str:
        return f"{who}.{self.number}@{DOMAIN}"

    def chat_id(self, where: str = "dm", who: str = "alice") -> str:
        return self.user_id(who)

    def message_id(self) -> str:
        """A new Message-ID of a person's mail program."""
        return f"<{self.number}.{next(self._counter)}.{time.monotonic_ns()}@people.test>"

    def mail(self, text: str, *, who: str = "alice", subject: str = "", **headers: str) -> EmailMessage:
        """A mail as a person's program writes it."""
        mail = EmailMessage(policy=policy.SMTP)
        mail["From"] = f"{who.title()} Miller <{self.user_id(who)}>"
        mail["To"] = self.address
        mail["Subject"] = subject
        mail["Message-ID"] = self.message_id()
        for name, value in headers.items():
            mail[name.replace("_", "-")] = value
        if "Date" not in mail:
            mail["Date"] = formatdate()
        mail.set_content(text)
        return mail

    def put(self, mail: EmailMessage | bytes, *, proven: bool = True) -> str:
        """Deliver a mail to the agent, as if its sender had logged in (`proven`); its Message-ID."""
        raw = mail if isinstance(mail, bytes) else mail.as_bytes()
        message_id = str(message_from_bytes(raw)["Message-ID"])
        raw = (self.noted(parseaddr(str(message_from_bytes(raw)["From"]))[1]) if proven else b"") + raw
        self._kept[message_id] = raw
        self.server.deliver(self.address, raw)
        return message_id

    def noted(self, account: str) -> bytes:
        """The headers that the mail server adds to a mail of a logged-in user."""
        login = f"Authentication-Results: {SERVER}; auth=pass smtp.auth={account}"
        return f"{login}\r\nReceived: from lab (lab [192.0.2.7]) by {SERVER} (Postfix) with ESMTPSA id x\r\n".encode()

    def say(self, text: str, *, who: str = "alice", where: str = "dm", addressed: bool = True) -> str:
        return self.put(self._in_thread(who, text))

    def attach(
        self, data: bytes, name: str, mime: str, *, who: str = "alice", where: str = "dm", text: str = ""
    ) -> str:
        mail = self._in_thread(who, text)
        kind, _, subtype = mime.partition("/")
        mail.add_attachment(data, maintype=kind, subtype=subtype, filename=name)
        return self.put(mail)

    def _in_thread(self, who: str, text: str) -> EmailMessage:
        root = self._roots.get(who)
        mail = self.mail(text, who=who, **({"In_Reply_To": root, "References": root} if root else {}))
        self._roots.setdefault(who, str(mail["Message-ID"]))
        return mail

    def received(self, who: str = "alice") -> list[EmailMessage]:
        """The agent's mails in a person's mailbox, in order."""
        mails = [message_from_bytes(raw, policy=policy.default) for raw in self.server.mails(self.user_id(who))]
        return [mail for mail in mails if isinstance(mail, EmailMessage)]

    def shown(self, where: str = "dm", *, who: str = "alice") -> list[str]:
        return [plain_text(mail) for mail in self.received(who)]

    def sent_files(self, where: str = "dm", *, who: str = "alice") -> list[tuple[str, bytes, str]]:
        return [
            (str(part.get_filename()), part.get_payload(decode=True), plain_text(mail))
            for mail in self.received(who)
            for part in mail.iter_attachments()
        ]

    def redeliver(self, message_id: str) -> None:
        self.server.deliver(self.address, self._kept[message_id])

    def rate_limit(self, seconds: float, times: int = 1) -> None:
        # whole seconds, as servers say it
        self.server.smtp_line.refuse(f"450 4.7.1 Too many mails, try again in {max(1, round(seconds))} seconds", times)

    def fail(self, times: int = 1) -> None:
        self.server.smtp_line.refuse("421 4.3.0 Temporary system problem", times)

    def drop(self) -> None:
        self.server.imap_line.drop()
        self.server.smtp_line.drop()

    def typed(self, where: str = "dm", *, who: str = "alice") -> int:
        return 0

    def threads(self) -> list[str]:
        sent = [message_from_bytes(raw, policy=policy.default) for raw in self.server.mails(self.address, "Sent")]
        begun = {str(mail["References"]).strip(): str(mail["Subject"]) for mail in sent}
        return [name for ids, name in begun.items() if ids.startswith("<hermes.thread.") and " " not in ids]

    def reset(self) -> None:
        self.server.smtp_line.reset()
        self.server.imap_line.reset()
        self._roots.clear()
        self._kept.clear()
        for address in (self.address, *(self.user_id(who) for who in PEOPLE)):
            self.server.empty(address)

    def close(self) -> None:
        self.reset()


def plain_text(mail: EmailMessage) -> str:
    """The text of a mail in a program without HTML."""
    part = mail.get_body(("plain",))
    return "" if part is None else str(part.get_content()).replace("\r\n", "\n").removesuffix("\n")


@asynccontextmanager
async def connected(lab: Lab, home: Path = Path("/nowhere"), **more: Any) -> AsyncIterator[tuple[Email, Recorder]]:
    """An adapter with a mailbox, connected for the block, and what it hears."""
    adapter, link = Email({**lab.settings, **more}, home), Recorder()
    async with recording.connected(adapter, link):
        yield adapter, link
