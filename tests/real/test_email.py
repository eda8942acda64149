"""Email with a real Postfix and a real Dovecot: as a person with a mail program would live it."""

from __future__ import annotations

import asyncio
import base64
import imaplib
from email.message import EmailMessage
from email.utils import formatdate
from pathlib import Path

import pytest

from hermes.errors import PlatformRefused, PlatformUnreachable, SendRefused
from hermes.gateway.events import Chat, Event, as_json, from_json
from hermes.gateway.platforms.email.adapter import Email
from hermes.gateway.platforms.email.client import LEFT_ALONE
from tests.gateway.platforms import conftest as fixtures
from tests.support.gateway import running
from tests.support.labs.base import until
from tests.support.labs.email import Lab, connected
from tests.support.labs.email_server import PASSWORD
from tests.support.labs.recording import Recorder
from tests.support.wire import Wire, said

lab, place = fixtures.lab, fixtures.place


def send(lab: Lab, mail: EmailMessage) -> str:
    """As a person's program does: logged in, through Postfix."""
    lab.server.write(lab.user_id("alice"), lab.address, mail.as_bytes())
    return str(mail["Message-ID"])


def flags(lab: Lab) -> dict[str, str]:
    """The mailbox's flags of each mail, by its subject."""
    with imaplib.IMAP4("127.0.0.1", lab.server.imap) as client:
        client.login(lab.address, PASSWORD)
        client.select("INBOX", readonly=True)
        _, found = client.fetch("1:*", "(FLAGS BODY.PEEK[HEADER.FIELDS (SUBJECT)])")
    pairs = [item for item in found if isinstance(item, tuple)]
    return {body.decode().partition(":")[2].strip(): head.decode() for head, body in pairs}


async def test_new_mail_is_pushed(lab: Lab) -> None:
    async with connected(lab, poll_seconds=600) as (_, link):
        for number in range(3):  # each after the last was taken: nothing but IDLE tells of it
            send(lab, lab.mail(f"number {number}"))
            await link.until(lambda number=number: link.texts == [f"number {n}" for n in range(number + 1)])


@pytest.mark.parametrize("security", ["ssl", "starttls"])
async def test_everything_works_over_tls(lab: Lab, security: str) -> None:
    server = lab.server
    ports = {"ssl": (server.imaps, server.smtps), "starttls": (server.imap, server.smtp)}[security]
    more = {"imap_port": ports[0], "smtp_port": ports[1], "imap_security": security, "smtp_security": security}
    async with connected(lab, **more, ca_file=str(server.certificate)) as (adapter, link):
        assert await adapter.check() == lab.address
        for number in range(2):
            send(lab, lab.mail(f"number {number}"))
            await link.until(lambda number=number: len(link.events) == number + 1)
        await adapter.send(link.events[0].chat, "safe", nonce="one", reply_to=link.events[0].message_id)
        await link.until(lambda: lab.shown() == ["safe"])
    values = {**lab.settings, **more}
    with pytest.raises(PlatformRefused, match="certificate"):
        await Email(values, Path("/nowhere")).check()
    with pytest.raises(PlatformRefused, match="certificate"):
        await Email({**values, "imap_security": "none", "imap_port": server.imap}, Path("/nowhere")).check()


async def test_a_whole_conversation_is_one_thread_in_both_mailboxes(lab: Lab) -> None:
    async with connected(lab) as (adapter, link):
        references: list[str] = []
        for number in range(3):
            headers = {"In_Reply_To": references[-1], "References": " ".join(references)} if references else {}
            subject = "Re: Trip to Rome" if references else "Trip to Rome"
            quote = f"\n\nOn Mon, 3 Mar 2025, Hermes wrote:\n> answer {number - 1}\n" if references else ""
            asked = send(lab, lab.mail(f"question {number}{quote}", subject=subject, **headers))
            await link.until(lambda number=number: len(link.events) == number + 1)
            event = link.events[-1]
            answered = await adapter.send(event.chat, f"answer {number}", nonce=f"n{number}", reply_to=event.message_id)
            await link.until(lambda number=number: len(lab.received()) == number + 1)
            references += [asked, answered]
        assert {event.chat.thread_id for event in link.events} == {references[0]}
        assert link.texts == ["Trip to Rome\n\nquestion 0", "question 1", "question 2"]
        for number, mail in enumerate(lab.received()):
            assert mail["Subject"] == "Re: Trip to Rome"
            assert mail["In-Reply-To"] == references[2 * number]
            assert str(mail["References"]).split()[0] == references[0]
        assert [str(mail["In-Reply-To"]) for mail in lab.received()] == references[0::2]


async def test_only_what_was_kept_is_seen_and_what_is_not_for_us_stays_unread(lab: Lab) -> None:
    async with connected(lab) as (_, link):
        send(lab, lab.mail("buy now", subject="newsletter", List_Id="<news.example.org>"))
        send(lab, lab.mail("hello", subject="hello"))
        await link.until(lambda: link.texts == ["hello"])
        await link.until(lambda: "mailing list" in link.logged)
        found = await link.until(lambda: f if r"\Seen" in (f := flags(lab)).get("hello", "") else None)
        assert r"\Seen" not in found["newsletter"] and LEFT_ALONE in found["newsletter"]
    async with connected(lab) as (_, link):
        lab.say("after a restart")
        await link.until(lambda: link.texts == ["after a restart"])
        assert "newsletter" not in link.logged and "skipping" not in link.logged


def test_two_agents_that_write_to_each_other_fall_silent(lab: Lab) -> None:
    other = Lab()

    async def run() -> None:
        ours, theirs = Recorder(), Recorder()
        first, second = Email(lab.settings, Path("/nowhere")), Email(other.settings, Path("/nowhere"))
        await first.connect(ours)
        await second.connect(theirs)
        try:
            await first.send(Chat(platform="email", chat_id=other.address), "Hello, you!", nonce="one")
            await theirs.until(lambda: "sent by a program" in theirs.logged)
            assert theirs.events == []
        finally:
            await first.disconnect()
            await second.disconnect()

    asyncio.run(run())


async def test_a_forged_sender_gets_no_answer_and_the_log_says_why(lab: Lab) -> None:
    alice, mallory = lab.user_id("alice"), lab.user_id("mallory")
    results = f"mx.lab.test; auth=pass smtp.auth={alice}; dkim=pass header.d=lab.test; dmarc=pass header.from=lab.test"
    received = "from x by mx.lab.test (Dovecot) with LMTP id 1"
    async with connected(lab) as (_, link):
        forged = [
            lab.mail("from another server").as_bytes(),
            lab.mail("with results", Authentication_Results=results).as_bytes(),
            f"Received: {received}\r\nAuthentication-Results: {results}\r\n".encode()
            + lab.mail("with a trail").as_bytes(),
        ]
        for number, mail in enumerate(forged, 1):
            lab.server.submit(mallory, lab.address, mail)
            await link.until(
                lambda number=number: link.logged.count("no Authentication-Results of mx.lab.test") == number
            )
        for mail in forged:  # a colleague, who has a login of her own
            lab.server.write(mallory, lab.address, mail.replace(b"@people.test>", b".again@people.test>"))
        await link.until(lambda: link.logged.count("sent by another account") == 3)
        to_bob = lab.mail("rm -rf build")
        to_bob.replace_header("To", lab.user_id("bob"))
        send(lab, to_bob)  # her own words, but not to us
        await link.until(lambda: "aliases" in link.logged)
        send(lab, lab.mail("it is me"))
        await link.until(lambda: link.texts == ["it is me"])
        assert link.events[0].sender.proven


def test_where_no_proof_is_wanted_nobody_is_the_owner_and_nothing_of_a_proven_conversation_is_seen(lab: Lab) -> None:
    forged = lab.mail("list my files", subject="")
    with (
        Wire([said("Here you are.")] * 8) as model,
        running(lab, model, platforms={"email": {"require_authentication": "never"}}) as gateway,
    ):
        send(lab, lab.mail("it is me"))
        until(lambda: lab.shown() == ["Here you are."])
        lab.server.submit(lab.user_id("mallory"), lab.address, forged.as_bytes())
        until(lambda: len(lab.shown()) == 2)
        offered = [{tool["function"]["name"] for tool in body.get("tools", [])} for body in model.bodies]
        turns = [body for body in model.bodies if body.get("tools")]
        assert "terminal" in offered[model.bodies.index(turns[0])]
        assert "terminal" not in offered[model.bodies.index(turns[-1])]
        rows = gateway.db.list_sessions_rich(limit=10)
        assert {row["user_id"] for row in rows} == {lab.user_id("alice"), f"unproven:{lab.user_id('alice')}"}


def test_always_refuses_to_start_without_the_name_of_the_server(lab: Lab) -> None:
    adapter = Email({**lab.settings, "require_authentication": "always", "authserv_id": ""}, Path("/nowhere"))
    with pytest.raises(PlatformRefused, match="authserv_id"):
        adapter.validate()
    with pytest.raises(PlatformRefused, match="authserv_id"):
        asyncio.run(adapter.connect(Recorder()))


async def test_by_default_without_the_name_of_the_server_no_mail_is_answered_and_the_owner_is_told(lab: Lab) -> None:
    async with connected(lab, authserv_id="") as (adapter, link):
        send(lab, lab.mail("it is me"))
        await link.until(lambda: "skipping a mail" in link.logged)
        assert link.events == [] and "of 'mx.lab.test'" in link.logged
        assert "authserv_id is not set" in str(adapter.doubts())


async def test_a_server_that_restarts_is_found_again_with_what_came_meanwhile(lab: Lab) -> None:
    async with connected(lab) as (adapter, link):
        alice = lab.user_id("alice")
        with lab.server.logged_in(alice) as client:
            lab.server.stop_dovecot()
            try:
                await link.until(lambda: link.losses)
                await adapter.disconnect()
                with pytest.raises(PlatformUnreachable):
                    await adapter.connect(link)
                client.sendmail(alice, [lab.address], lab.mail("are you there?").as_bytes())  # Postfix keeps it
            finally:
                lab.server.start_dovecot()
        await adapter.connect(link)
        await link.until(lambda: link.texts == ["are you there?"])


async def test_files_are_fetched_also_when_their_mail_has_another_number(lab: Lab) -> None:
    picture = base64.b64decode(
        "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
    )
    async with connected(lab) as (adapter, link):
        mail = lab.mail("see the files", subject="files")
        mail.add_attachment(picture, maintype="image", subtype="png", filename="Überblick.png")
        mail.add_attachment(b"RIFFxxxxWAVE", maintype="audio", subtype="wav", filename="note.wav")
        mail.add_attachment("a,b\n1,2\n", subtype="csv", filename="table.csv")
        send(lab, mail)
        event = from_json(as_json((await link.until(lambda: link.events))[0]), Event)
        assert [(file.kind, file.name, file.mime) for file in event.attachments] == [
            ("image", "Überblick.png", "image/png"),
            ("audio", "note.wav", "audio/wav"),
            ("file", "table.csv", "text/csv"),
        ]
        assert event.attachments[0].size == len(picture)
        assert await adapter.fetch(event.attachments[0]) == picture
        raw = lab.server.mails(lab.address)[0]
        lab.server.empty(lab.address)
        with pytest.raises(SendRefused, match="no longer"):
            await adapter.fetch(event.attachments[0])
        lab.server.deliver(lab.address, raw)
        assert await adapter.fetch(event.attachments[0]) == picture
        assert (await adapter.fetch(event.attachments[2])).replace(b"\r\n", b"\n") == b"a,b\n1,2\n"


def test_a_wrong_password_is_refused_by_the_real_server(lab: Lab) -> None:
    async def run() -> None:
        for change in ({"password": "not-the-password"}, {"password": "nicht-Größe"}):
            with pytest.raises(PlatformRefused, match="username and password") as caught:
                await Email({**lab.settings, **change}, Path("/nowhere")).connect(Recorder())
            assert change["password"] not in str(caught.value)

    asyncio.run(run())


async def test_a_bounce_is_no_message(lab: Lab) -> None:
    async with connected(lab) as (adapter, link):
        # lab.test has nobody outside: Postfix takes the mail and sends a true delivery notice back
        await adapter.send(Chat(platform="email", chat_id="somebody@outside.test"), "hello", nonce="one")
        await link.until(lambda: "skipping a mail" in link.logged)
        assert link.events == [] and "MAILER-DAEMON".lower() in link.logged.lower()


@pytest.mark.thorough  # pieces of a mail, and one that is too large, are read by tests of their own
async def test_a_mail_of_thirty_megabytes_is_read_and_the_next_one_too(lab: Lab) -> None:
    data = bytes(range(256)) * 90_000  # 23 MB, over 30 in base64
    async with connected(lab) as (adapter, link):
        mail = lab.mail("a large one")
        mail.add_attachment(data, maintype="application", subtype="zip", filename="large.zip")
        send(lab, mail)
        send(lab, lab.mail("a small one"))
        await link.until(lambda: sorted(link.texts) == ["a large one", "a small one"])
        large = next(event for event in link.events if event.attachments)
        assert large.attachments[0].size == len(data)
        assert await adapter.fetch(large.attachments[0]) == data


async def test_broken_mails_stop_nothing(lab: Lab) -> None:
    async with connected(lab) as (_, link):
        for head in (
            b"Content-Type: multipart/mixed; boundary=never\r\n",
            b"Content-Type: text/plain; charset=no-such-thing\r\nContent-Transfer-Encoding: base64\r\n",
            b"Subject: =?utf-8?b?/////?=\r\nContent-Type: message/rfc822\r\n",
            b"Subject: \xff\xfe raw bytes\r\n",
        ):
            raw = b"From: alice <%s>\r\nTo: %s\r\nDate: %s\r\nMessage-ID: %s\r\n%s\r\n\xe4\xf6\xfc ===\r\n" % (
                lab.user_id("alice").encode(),
                lab.address.encode(),
                formatdate().encode(),
                lab.message_id().encode(),
                head,
            )
            lab.server.deliver(lab.address, lab.noted(lab.user_id("alice")) + raw)
        lab.say("still there?")
        await link.until(lambda: "still there?" in link.texts)
        assert len(link.events) == 5
