"""The email adapter against real mail servers: logging in, receiving, sending, and everything that can go wrong."""

from __future__ import annotations

import asyncio
import threading
import time
from email.message import EmailMessage
from email.utils import formatdate, parsedate_to_datetime
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from hermes.errors import PlatformRefused, PlatformUnreachable, SendRefused, SlowDown
from hermes.gateway.events import Chat, Event, as_json, from_json
from hermes.gateway.platforms.email.adapter import Email
from hermes.store.gateway.gateway_db import GatewayDB
from tests.support.gateway import Clock, received
from tests.support.labs.base import until
from tests.support.labs.email import Lab, connected
from tests.support.labs.email_server import SERVER
from tests.support.labs.recording import Recorder


def our_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("hermes-email")]


# ------------------------------------------------------------------------------------------ logging in


@pytest.mark.parametrize(
    "change, word",
    [
        ({"password": "wrong-password-1"}, "username and password"),
        ({"folder": "Nowhere"}, "Nowhere"),
        ({"imap_security": "ssl"}, "imap_security"),
        ({"imap_security": "tls"}, "imap_security"),
        ({"require_authentication": "perhaps"}, "require_authentication"),
        ({"ca_file": "/nowhere.pem"}, "ca_file"),
        ({"imap_host": ""}, "imap_host"),
    ],
)
def test_a_wrong_setting_is_refused_with_its_name(lab: Lab, change: dict[str, Any], word: str) -> None:
    async def run() -> None:
        adapter, link = Email({**lab.settings, **change}, Path("/nowhere")), Recorder()
        with pytest.raises(PlatformRefused, match=word) as caught:
            await adapter.connect(link)
        assert str(change.get("password", "no such thing")) not in str(caught.value)
        assert link.identities == [] and link.losses == []
        await adapter.disconnect()

    asyncio.run(run())
    until(lambda: our_threads() == [])


# ------------------------------------------------------------------------------------------ receiving


async def test_a_mail_becomes_an_event(lab: Lab) -> None:
    async with connected(lab) as (_, link):
        mail = lab.mail("How far is it?\n\n-- \nAlice", subject="The moon")
        message_id = lab.put(mail)
        event = (await link.until(lambda: link.events))[0]
        assert event.id.split() == [message_id, lab.user_id("alice")]
        assert event == Event(
            id=event.id,
            chat=Chat(platform="email", chat_id=lab.user_id("alice"), type="dm", thread_id=message_id, name="The moon"),
            sender=event.sender,
            text="The moon\n\nHow far is it?",
            message_id=message_id,
            sent_at=parsedate_to_datetime(str(mail["Date"])).timestamp(),
        )
        assert (event.sender.user_id, event.sender.name) == (lab.user_id("alice"), "Alice Miller")


async def test_commands_stand_alone_and_a_mail_can_be_only_a_subject(lab: Lab) -> None:
    async with connected(lab) as (_, link):
        lab.put(lab.mail("/new please", subject="again"))
        lab.put(lab.mail("", subject="What time is it?"))
        await link.until(lambda: link.texts == ["/new please", "What time is it?"])


async def test_what_a_mail_quotes_comes_along_unless_we_wrote_it(lab: Lab) -> None:
    below = "\n\nOn Mon, 3 Mar 2025 at 10:12, Bob <bob@people.test> wrote:\n> we meet at 5\n"
    async with connected(lab) as (adapter, link):
        lab.put(lab.mail("when?" + below, In_Reply_To="<bobs@people.test>", References="<bobs@people.test>"))
        (foreign,) = await link.until(lambda: link.events)
        assert (foreign.text, foreign.quoted, foreign.reply_to) == ("when?", "we meet at 5", "<bobs@people.test>")
        bobs = lab.put(lab.mail("the secret is 42", who="bob"))
        lab.put(lab.mail("what is it?", In_Reply_To=bobs, References=bobs))
        # a person who names another one's mail need not have read it
        assert (await link.until(lambda: link.events[2:]))[0].quoted is None
        ours = await adapter.send(place(lab), "Yes.", nonce="one")
        lab.put(lab.mail("Thanks\n\n> Yes.\n", In_Reply_To=ours, References=ours))
        assert (await link.until(lambda: link.events[3:]))[0].quoted is None


async def test_mails_come_in_order_and_each_thread_is_its_own(lab: Lab) -> None:
    async with connected(lab) as (_, link):
        ids = [lab.say(str(number)) for number in range(20)]
        other = lab.put(lab.mail("elsewhere", subject="another thing"))
        await link.until(lambda: len(link.events) == 21)
        assert [event.message_id for event in link.events] == [*ids, other]
        assert {event.chat.thread_id for event in link.events[:20]} == {ids[0]}
        assert link.events[20].chat.thread_id == other


def with_the_same_id(lab: Lab) -> list[EmailMessage]:
    first, second = lab.mail("the first"), lab.mail("the second")
    del second["Message-ID"]
    second["Message-ID"] = first["Message-ID"]
    return [first, second]


async def test_a_message_id_of_a_proven_sender_counts_once(lab: Lab) -> None:
    first, second = with_the_same_id(lab)
    cut = b"In-Reply-To: <another@people.test>\r\n" + first.as_bytes()  # not signed, and changes which text is new
    async with connected(lab) as (_, link):
        for mail in (first, second, cut, b"X-Route: another\r\n" + first.as_bytes()):
            lab.put(mail)
        await link.until(lambda: len(link.events) == 4)
        assert len({event.id for event in link.events}) == 1
        by_bob = lab.mail("mine", who="bob")
        del by_bob["Message-ID"]
        by_bob["Message-ID"] = first["Message-ID"]
        lab.put(by_bob)  # he can't use up hers
        await link.until(lambda: len(link.events) == 5)
        assert link.events[4].id != link.events[0].id


async def test_of_unproven_senders_two_mails_with_one_message_id_are_two(lab: Lab) -> None:
    first, second = with_the_same_id(lab)
    async with connected(lab, require_authentication="never") as (_, link):
        for mail in (first, second, b"X-Route: another\r\n" + first.as_bytes()):
            lab.put(mail, proven=False)
        lab.put(first)
        await link.until(lambda: link.texts == ["the first", "the second", "the first", "the first"])
        ids = [event.id for event in link.events]
        assert ids[0] == ids[2] != ids[1] and ids[3] not in ids[:3]


async def test_a_message_id_is_known_for_good(lab: Lab, make_db: Any) -> None:
    clock = Clock()
    store = GatewayDB(make_db(), clock=clock)
    async with connected(lab, require_authentication="never") as (_, link):
        lab.redeliver(lab.say("hello"))
        lab.put(lab.mail("who am I?", who="bob"), proven=False)
        await link.until(lambda: len(link.events) == 3)
        (mail, again, unproven), newest = link.events, replace(link.events[0], id="the newest")
        for event in (mail, unproven, newest):
            for platform in ("email", "email/work"):
                number = received(store, platform, event.id, "key", as_json(event))
                assert number is not None
                store.finish(number, platform, as_json(event.chat))
        clock.forward(400 * 86400)
        store.forget_mail(last_days=-1)
        for platform in ("email", "email/work"):
            assert received(store, platform, again.id, "key", as_json(again)) is None
            assert received(store, platform, unproven.id, "key", as_json(unproven)) is not None


OWNER = "owner@example.org"
SIGNED = "v=1; a=rsa-sha256; d=example.org; s=a;\r\n h=from:to:subject:date:message-id; bh=AAAA; b=BBBB"
OVERSIGNED = SIGNED.replace("h=from", "h=from:to:to:cc:cc:subject:date:message-id")
DKIM = f"{SERVER}; dkim=pass header.d=example.org; dmarc=pass header.from=example.org"
SPF = f"{SERVER}; spf=pass smtp.mailfrom={OWNER}; dkim=pass header.d=example.org"


def signed_mail(
    text: str, results: str = DKIM, signature: str | None = SIGNED, added: str = "", **headers: str
) -> bytes:
    """A mail of the owner's from another domain, as our server notes its checks; `added` are headers on top of it."""
    fields = {
        "From": f"Olga <{OWNER}>", "Subject": "", "Date": formatdate(), "Message-ID": f"<{text}.{time.time_ns()}@x>", **headers,
    }  # fmt: skip
    above = f"Authentication-Results: {results}\r\nReceived: from x (x [192.0.2.7]) by {SERVER} (Postfix) with ESMTPS id x\r\n"
    above += f"{added}\r\n" * bool(added) + f"DKIM-Signature: {signature}\r\n" * (signature is not None)
    return (above + "".join(f"{name}: {value}\r\n" for name, value in fields.items() if value) + f"\r\n{text}").encode()


def dated(days: float) -> str:
    return formatdate(time.time() + days * 86400)


async def test_a_mail_is_believed_that_its_sender_wrote_to_us_and_lately(lab: Lab) -> None:
    us = lab.address
    others = "Bob, the second <bob@people.test>"
    mails = [
        signed_mail("to", To=us),
        signed_mail("to-name", To=f"{others}, Agent <{us.upper()}>"),
        signed_mail("to-group", To=f"Team: {us}, {others};"),
        signed_mail("to-comment", To=f'"x, y (z" (a comment <{others}>) <{us}>'),
        signed_mail("folded", To=f"{others},\r\n\tAgent\r\n <{us}>"),
        signed_mail("tag", To=us.replace("@", "+jobs@")),
        signed_mail("alias", To="helper@people.test"),
        signed_mail("cc", signature=OVERSIGNED, To="bob@people.test", Cc=f"{others}, {us}"),
        signed_mail("two-signatures", To=us, added=f"DKIM-Signature: {OVERSIGNED.replace('example', 'relay')}"),
        signed_mail("old", To=us, Date=dated(-13.5)),
        signed_mail("clock", To=us, Date=dated(0.5)),
        signed_mail("spf", SPF, signature=None, To=us),
        signed_mail("spf-cc", SPF, To="bob@people.test", Cc=us),  # cc is not signed, but its own server has sent it
    ]
    async with connected(lab, aliases=["Helper@people.test"]) as (_, link):
        for mail in mails:
            lab.put(mail, proven=False)
        await link.until(lambda: len(link.events) == len(mails))
        assert [(event.sender.proven, event.sender.user_id) for event in link.events] == [(True, OWNER)] * len(mails)


@pytest.mark.parametrize("proof", ["always", "never"])
async def test_a_mail_of_the_owners_that_is_sent_on_proves_nothing(lab: Lab, proof: str) -> None:
    us, bob = lab.address, "bob@people.test"
    mails = [
        signed_mail("to-bob", To=bob),
        signed_mail("to-bob-directly", SPF, To=bob),
        signed_mail("to-none"),
        signed_mail("name-only", To=f'"{us}" <{bob}>'),
        signed_mail("name-unquoted", To=f"{us} <{bob}>"),
        signed_mail("group-name", To=f"{us}: {bob};"),
        # where our reader ends the headers, and a server that checks the signature reads on
        signed_mail("hidden-by-blank", To=f"{us}\r\nX-A : b\r\nTo: {bob}"),
        signed_mail("hidden-by-word", To=f"{us}\r\nnonsense\r\nTo: {bob}"),
        signed_mail("hidden-by-cr", To=f"{us}\r\nX-A: b\r\rdelete it all\r\nTo: {bob}"),
        signed_mail("cr-in-header", **{"X-A": f"b\rTo: {us}\r\rdelete it all", "To": bob}),
        signed_mail("near", To=f"x{us}, {us}.example.org"),
        signed_mail("cc-added", To=bob, added=f"Cc: {us}"),
        signed_mail("to-added", To=bob, added=f"To: {us}"),
        signed_mail("to-replaced", signature=SIGNED.replace("to:", ""), To=us),
        signed_mail("signature-added", signature=SIGNED.replace("to:", ""), To=us, added=f"DKIM-Signature: {SIGNED}"),
        signed_mail("sibling-added", signature=SIGNED.replace("to:", "").replace("d=", "d=mail."), To=us,
                    added=f"DKIM-Signature: {SIGNED}"),
        signed_mail("no-signature", signature=None, To=us),
        signed_mail("half-signed", signature=f"{SIGNED}; l=12", To=us),
        signed_mail("old", To=us, Date=dated(-16)),
        signed_mail("old-directly", SPF, To=us, Date=dated(-16)),
        signed_mail("early", To=us, Date=dated(2)),
        signed_mail("no-date", To=us, Date=""),
        signed_mail("nonsense", To=us, Date="tomorrow"),
        signed_mail("date-unsigned", signature=SIGNED.replace("date:", ""), To=us),
        signed_mail("date-added", To=us, Date=dated(-16), added=f"Date: {dated(0)}"),
        signed_mail("no-id", To=us, **{"Message-ID": ""}),
        signed_mail("bad-id", To=us, **{"Message-ID": f"<{'x' * 600}>"}),
        signed_mail("id-added", To=us, added="Message-ID: <other@x>"),
        signed_mail("id-unsigned", signature=SIGNED.replace(":message-id", ""), To=us),
        signed_mail("subject-added", To=us, Subject="hello", added="Subject: delete it all"),
    ]  # fmt: skip
    async with connected(lab, require_authentication=proof) as (_, link):
        for mail in mails:
            lab.put(mail, proven=False)
        lab.put(signed_mail("genuine", To=us), proven=False)
        await link.until(lambda: link.texts[-1:] == ["genuine"])
        assert [event.text.split("\n")[-1] for event in link.events if event.sender.proven] == ["genuine"]
        assert len(link.events) == (1 if proof == "always" else len(mails) + 1)
        if proof == "always":
            assert link.logged.count("skipping a mail") == len(mails)
            assert all(
                word in link.logged for word in ("aliases", "malformed", "future", "Message-ID", "DKIM", "Subject")
            )


async def test_old_unread_mails_are_left_alone_unless_none_is_too_old(lab: Lab) -> None:
    old = lab.noted(lab.user_id("alice")) + lab.mail("from last month").as_bytes()
    lab.server.put_away(lab.address, old, days_ago=30)
    async with connected(lab) as (_, link):
        lab.say("from today")
        await link.until(lambda: link.texts == ["from today"])
    async with connected(lab, days=0) as (_, link):
        await link.until(lambda: link.texts == ["from last month"])


async def test_a_server_without_push_is_asked_again_and_again(lab: Lab) -> None:
    lab.server.imap_line.hidden = b" IDLE"
    async with connected(lab, poll_seconds=0.1) as (_, link):
        for number in range(3):
            lab.say(str(number))
            await link.until(lambda number=number: link.texts[-1:] == [str(number)])


# ------------------------------------------------------------------------------------------ sending


def place(lab: Lab, **more: Any) -> Chat:
    return Chat(platform="email", chat_id=lab.user_id("alice"), **more)


async def test_a_reply_has_text_and_html_and_goes_to_the_thread(lab: Lab) -> None:
    async with connected(lab) as (adapter, link):
        lab.put(lab.mail("How far?", subject="Re: The moon ü"))
        event = (await link.until(lambda: link.events))[0]
        chat = from_json(as_json(event.chat), Chat)  # as it comes back from the store
        sent = await adapter.send(chat, "**384,400** km", nonce="one", reply_to=event.message_id)
        await link.until(lambda: lab.shown() == ["**384,400** km"])
        mail = lab.received()[0]
        assert mail["Message-ID"] == sent
        assert mail["In-Reply-To"] == mail["References"] == event.message_id
        assert mail["Subject"] == "Re: The moon ü"
        assert mail["Auto-Submitted"] == "auto-replied"
        assert mail["To"] == lab.user_id("alice")
        html = mail.get_body(("html",))
        assert html is not None and "<strong>384,400</strong> km" in html.get_content()


async def test_a_mail_to_no_thread_begins_one(lab: Lab) -> None:
    async with connected(lab) as (adapter, link):
        await adapter.send(place(lab), "Good morning!\n\nIt rains.", nonce="one")
        await link.until(lambda: lab.received())
        mail = lab.received()[0]
        assert mail["Subject"] == "Good morning!" and "References" not in mail
        lab.put(lab.mail("Thanks", In_Reply_To=str(mail["Message-ID"]), References=str(mail["Message-ID"])))
        event = (await link.until(lambda: link.events))[0]
        assert event.chat.thread_id == mail["Message-ID"]


async def test_a_thread_can_be_begun_and_answers_find_it(lab: Lab) -> None:
    async with connected(lab) as (adapter, link):
        chat = await adapter.create_thread(place(lab), "Parser for config files")
        await adapter.send(chat, "Here we go on.", nonce="one")
        await adapter.send(chat, "And on.", nonce="two")
        await link.until(lambda: len(lab.received()) == 2)
        first = lab.received()[0]
        assert [mail["Subject"] for mail in lab.received()] == ["Parser for config files"] * 2
        both = f"{first['References']} {first['Message-ID']}"
        lab.put(
            lab.mail(
                "Good.", subject="Re: Parser for config files", In_Reply_To=str(first["Message-ID"]), References=both
            )
        )
        event = (await link.until(lambda: link.events))[0]
        assert (event.chat.thread_id, event.chat.name, event.text) == (chat.thread_id, chat.name, "Good.")


async def test_the_same_nonce_again_sends_no_second_mail(lab: Lab) -> None:
    for _ in range(2):  # also after a restart
        async with connected(lab) as (adapter, link):
            first = await adapter.send(place(lab), "once", nonce="one")
            assert await adapter.send(place(lab), "once", nonce="one") == first
            await adapter.send(place(lab), "last", nonce="two")
            await link.until(lambda: "last" in lab.shown())
            assert lab.shown() == ["once", "last"]
            assert len(lab.server.mails(lab.address, "Sent")) == 2


async def test_no_copies_are_kept_where_none_are_wanted(lab: Lab) -> None:
    async with connected(lab, sent_folder="none") as (adapter, link):
        await adapter.send(place(lab), "once", nonce="one")
        await link.until(lambda: lab.shown() == ["once"])
        assert lab.server.mails(lab.address, "Sent") == []


async def test_the_longest_text_arrives_whole(lab: Lab) -> None:
    text = ("Wörter und *Zeichen* " * 6000)[: Email.capabilities.longest - 1] + "!"
    async with connected(lab) as (adapter, link):
        await adapter.send(place(lab), text, nonce="one")
        await link.until(lambda: lab.shown())
        assert lab.shown() == [text]


@pytest.mark.parametrize(
    "answer, error",
    [
        ("450 4.7.1 Greylisted, try again in 7 seconds", SlowDown),
        ("452 4.3.1 Insufficient storage", SlowDown),
        ("421 4.7.0 Too busy", PlatformUnreachable),
        ("554 5.7.1 Rejected as spam", SendRefused),
    ],
)
async def test_what_the_server_says_decides_what_comes_next(lab: Lab, answer: str, error: type[Exception]) -> None:
    async with connected(lab) as (adapter, link):
        lab.server.smtp_line.refuse(answer)
        with pytest.raises(error, match=answer[:3]) as caught:
            await adapter.send(place(lab), "hello", nonce="one")
        if isinstance(caught.value, SlowDown):
            assert caught.value.retry_after == (7 if "7 seconds" in answer else 60)
        await adapter.send(place(lab), "hello", nonce="one")
        await link.until(lambda: lab.shown() == ["hello"])


async def test_a_mail_to_somebody_who_is_gone_is_refused(lab: Lab) -> None:
    async with connected(lab) as (adapter, _):
        with pytest.raises(SendRefused, match="no such person"):
            await adapter.send(Chat(platform="email", chat_id="gone@lab.test"), "hello", nonce="one")
        with pytest.raises(SendRefused):
            await adapter.send(Chat(platform="email", chat_id="a@b\r\nRCPT TO:<c@d>"), "hello", nonce="two")


# ------------------------------------------------------------------------------------------ trouble


async def test_an_answer_that_names_only_our_mail_still_finds_its_thread(lab: Lab) -> None:
    async with connected(lab) as (adapter, link):
        root = lab.say("hello")
        event = (await link.until(lambda: link.events))[0]
        ours = await adapter.send(event.chat, "hi", nonce="one", reply_to=event.message_id)
        lab.put(lab.mail("again", In_Reply_To=ours))
        await link.until(lambda: len(link.events) == 2)
        assert link.events[1].chat.thread_id == root
