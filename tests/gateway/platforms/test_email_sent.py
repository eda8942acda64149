"""Mails whose sending was cut off: a copy in the Sent folder shows that they are out, else they say that they are sent again."""

from __future__ import annotations

import imaplib
from pathlib import Path

import pytest

from hermes.errors import PlatformUnreachable, SendRefused
from hermes.gateway.events import Chat, OutgoingFile, as_json
from hermes.store.api.session_db import SessionDB
from hermes.store.gateway import outbox
from hermes.store.gateway.gateway_db import GatewayDB
from tests.support.echo import Echo
from tests.support.gateway import received, running
from tests.support.labs.base import until
from tests.support.labs.email import Lab, connected
from tests.support.labs.email_server import PASSWORD
from tests.support.notices import REPEATED


def place(lab: Lab) -> Chat:
    return Chat(platform="email", chat_id=lab.user_id("alice"), thread_id="<root@people.test>", name="trip")


def in_sent(lab: Lab) -> list[set[str]]:
    """The flags of each mail in the Sent folder, as the server tells them."""
    with imaplib.IMAP4("127.0.0.1", lab.server.imap) as client:
        client.login(lab.address, PASSWORD)
        client.select("Sent", readonly=True)
        found = []
        for number in client.search(None, "ALL")[1][0].split():
            said = client.fetch(number.decode(), "(FLAGS)")[1][0]
            assert isinstance(said, bytes)
            found.append(set(said.decode().partition("FLAGS (")[2].partition(")")[0].split()) - {"\\Recent"})
        return found


# ------------------------------------------------------------------------------------------------ the copy


async def test_a_sent_mail_has_one_copy_and_is_known(lab: Lab, tmp_path: Path) -> None:
    async with connected(lab, tmp_path) as (adapter, _):
        assert await adapter.was_sent(place(lab), nonce="one") is None
        await adapter.send(place(lab), "hello", nonce="one")
        assert await adapter.was_sent(place(lab), nonce="one") is True
        assert in_sent(lab) == [{"\\Seen"}]


async def test_a_file_is_attached_to_a_mail_of_its_thread_and_known_as_sent(lab: Lab, tmp_path: Path) -> None:
    names = ("a.png", "Zürich, Liste.txt", 'the "best".eml', "line\r\nBcc: mallory@x.test.bin")
    types = ("image/png", "text/plain", "message/rfc822", "nonsense")
    data = bytes(range(256)) + b"\r\n.\r\nFrom x\n"
    async with connected(lab, tmp_path) as (adapter, _):
        for number, (name, mime) in enumerate(zip(names, types, strict=True)):
            file = OutgoingFile(kind="file", name=name, mime=mime, data=data)
            assert await adapter.was_sent(place(lab), nonce=f"f{number}") is None
            await adapter.send_file(place(lab), file, caption="**see** it" if number else "", nonce=f"f{number}")
            await adapter.send_file(place(lab), file, caption="again", nonce=f"f{number}")  # out already: once
            assert await adapter.was_sent(place(lab), nonce=f"f{number}") is True
    until(lambda: len(lab.received()) == 4)
    sent = lab.sent_files()
    assert [name for name, _, _ in sent] == [*names[:3], "line Bcc: mallory@x.test.bin"]
    assert [text for _, _, text in sent] == ["", *["**see** it"] * 3]
    assert all(content == data for _, content, _ in sent)
    for mail in lab.received():
        assert (mail["In-Reply-To"], mail["References"], mail["Subject"]) == ("<root@people.test>",) * 2 + ("Re: trip",)
        assert mail["Bcc"] is None and mail.get_content_type() == "multipart/mixed"


async def test_a_mail_that_is_refused_leaves_no_copy(lab: Lab, tmp_path: Path) -> None:
    async with connected(lab, tmp_path) as (adapter, _):
        lab.server.smtp_line.refuse("554 5.7.1 Rejected as spam")
        with pytest.raises(SendRefused):
            await adapter.send(place(lab), "hello", nonce="one")
        assert in_sent(lab) == []


async def test_a_server_that_breaks_off_before_the_mail_is_certain_not_to_have_it(lab: Lab, tmp_path: Path) -> None:
    async with connected(lab, tmp_path, smtp_port=9) as (adapter, _):
        with pytest.raises(PlatformUnreachable) as error:
            await adapter.send(place(lab), "hello", nonce="one")
        assert not error.value.maybe_sent


async def test_where_there_is_no_sent_folder_nothing_can_be_told(lab: Lab, tmp_path: Path) -> None:
    async with connected(lab, tmp_path, sent_folder="none") as (adapter, _):
        await adapter.send(place(lab), "hello", nonce="one")
        assert await adapter.was_sent(place(lab), nonce="one") is None
        assert await adapter.was_sent(place(lab), nonce="two") is None


async def test_a_folder_that_takes_no_copies_costs_the_certainty_and_no_mail(lab: Lab, tmp_path: Path) -> None:
    async with connected(lab, tmp_path, sent_folder="Nowhere") as (adapter, _):
        await adapter.send(place(lab), "hello", nonce="one")
        assert await adapter.was_sent(place(lab), nonce="one") is None
    until(lambda: lab.shown() == ["hello"])


# ------------------------------------------------------------------------------------------------ the gateway


def left_by_a_killed_process(home: Path, lab: Lab) -> None:
    """A store as it is when a gateway dies while it sends a mail."""
    with SessionDB(home / "state.db") as db:
        store = GatewayDB(db)
        number = received(store, "email", "e-1", "key", "{}")
        assert number is not None
        store.finish(number, "email", as_json(place(lab)), [{"text": "perhaps", "nonce": "n-0"}])
        with db._engine.write() as tx:
            tx.run("UPDATE gateway_outbox SET begun_at = 1.0")


def after_a_restart(lab: Lab, model: Echo, home: Path) -> list[str]:
    with running(lab, model, home) as gateway:
        until(lambda: not gateway.store.read(outbox.unsent))
    until(lambda: lab.shown())
    return lab.shown()


async def test_a_mail_that_is_out_is_not_sent_again(lab: Lab, model: Echo, hermes_home: Path) -> None:
    left_by_a_killed_process(hermes_home, lab)
    async with connected(lab, hermes_home) as (adapter, _):
        await adapter.send(place(lab), "perhaps", nonce="n-0")
    assert after_a_restart(lab, model, hermes_home) == ["perhaps"]


def test_a_mail_without_a_copy_says_that_it_may_be_there_already(lab: Lab, model: Echo, hermes_home: Path) -> None:
    left_by_a_killed_process(hermes_home, lab)
    assert after_a_restart(lab, model, hermes_home) == [f"{REPEATED}perhaps"]
