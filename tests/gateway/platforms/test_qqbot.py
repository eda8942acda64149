"""QQ: replies bound to their message, numbers that make a repeated send one message, tokens that expire, sessions that are resumed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes.errors import SendRefused
from hermes.gateway.chats.access import welcome
from hermes.gateway.events import Event, OutgoingFile
from hermes.gateway.platforms.qqbot import QQBot, understood
from hermes.store.gateway import inbox, outbox
from tests.support.anything import anything
from tests.support.echo import Echo, reply_to
from tests.support.gateway import running
from tests.support.labs.base import until
from tests.support.labs.qqbot import MOST_REPLIES, Lab


def test_every_part_of_a_reply_names_its_message_with_a_number_of_its_own(lab: Lab, model: Echo) -> None:
    with running(lab, model):
        asked = lab.say("long=8000")
        until(lambda: len(lab.shown()) >= 3)
        until(lambda: "Paragraph 48:" in "".join(lab.shown()))
    assert {one["msg_id"] for one in lab._sent} == {asked}
    assert len({one["msg_seq"] for one in lab._sent}) == len(lab._sent)
    assert lab.proactive == []


def settled(gateway: Any) -> bool:
    """Whether everything was answered, and every answer sent or given up."""
    read = gateway.store.read
    return not read(outbox.unsent) and not read(inbox.waiting)


def test_a_reply_fits_into_the_answers_that_a_message_gets_and_says_what_is_missing(lab: Lab, model: Echo) -> None:
    with running(lab, model) as gateway:
        lab.say("long=20000")
        until(lambda: lab.shown() and settled(gateway))
        shown = lab.shown()
        assert len(shown) < MOST_REPLIES
        text, _, note = "\n\n".join(shown).rpartition("\n\n")
        whole = reply_to("long=20000")
        assert whole.split()[: len(text.split())] == text.split()
        missing = int(note.split("The rest, ")[1].split()[0])
        assert abs(len(whole) - len(text) - missing) < 200  # blank lines between the parts
        lab.say("and now?")  # a new message, with new answers
        until(lambda: "echo: and now?" in lab.shown())
    assert lab.proactive == []


def test_a_sixth_answer_is_given_up_and_the_person_told_with_the_next_message(
    lab: Lab, model: Echo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hermes.gateway.platforms.qqbot._MOST_WAITS", 2)
    with running(lab, model) as gateway:
        asked = lab.say("hello")
        until(lambda: lab.shown() == ["echo: hello"])
        lab.use_up(asked)  # by a process that died, for example
        event = understood(*lab._said[asked])
        assert event is not None
        gateway.services.outbox.post(event.chat, "one more", answers=event)
        until(lambda: settled(gateway))
        (row,) = gateway.store.statuses()
        assert "5 answers" in (row["error"] or "")
        lab.say("again")
        until(lambda: any("could not be sent" in one for one in lab.shown()))
        assert "one more" not in lab.shown()
    assert lab.proactive == []


@pytest.mark.parametrize(("where", "age"), [("dm", 3_700.0), ("group", 400.0)])
def test_an_answer_after_its_window_is_given_up(lab: Lab, model: Echo, where: str, age: float) -> None:
    with running(lab, model) as gateway:
        lab.say("late", where=where, age=age)
        until(lambda: "only within an hour" in (gateway.store.statuses()[0]["error"] or ""))
        until(lambda: settled(gateway))
    assert lab.shown(where) == lab.proactive == []


def test_a_send_whose_answer_was_lost_is_one_message(lab: Lab, model: Echo) -> None:
    with running(lab, model) as gateway:
        lab.lost_answers = 1
        lab.say("hello")
        until(
            lambda: gateway.store.read(inbox.waiting) == [] and gateway.store.read(outbox.unsent) == [] and lab.shown(),
        )
        assert lab.shown() == ["echo: hello"]


@pytest.mark.parametrize("status", [502, 429])
def test_a_token_server_that_is_busy_does_not_end_the_connection(lab: Lab, model: Echo, status: int) -> None:
    with running(lab, model) as gateway:
        lab.say("one")
        until(lambda: lab.shown() == ["echo: one"])
        lab.expire_token()
        lab.no_tokens = [status]
        lab.say("two")
        until(lambda: lab.shown() == ["echo: one", "echo: two"])
        assert [row["state"] for row in gateway.store.statuses()] == ["connected"]


def test_a_session_is_resumed_after_the_last_stored_event(lab: Lab, model: Echo) -> None:
    with running(lab, model, display={"busy": "queue"}):
        lab.say("one")
        until(lambda: lab.shown() == ["echo: one"])
        lab.drop()
        lab.say("two")
        until(lambda: lab.shown() == ["echo: one", "echo: two"])
        lab.ask_again()
        lab.say("three")
        until(lambda: len(lab.shown()) == 3)
    lab.say("while it was down")
    with running(lab, model, display={"busy": "queue"}):  # a restart resumes, too
        until(lambda: lab.shown()[-1:] == ["echo: while it was down"])
    assert len(lab.shown()) == 4
    assert (lab.identified, lab.resumed >= 3) == (1, True)


def test_an_expired_connection_is_resumed(lab: Lab, model: Echo) -> None:
    with running(lab, model):
        lab.say("one")
        until(lambda: lab.shown() == ["echo: one"])
        lab.close_with(4009)
        lab.say("while it was away")
        until(lambda: lab.shown() == ["echo: one", "echo: while it was away"])
    assert (lab.identified, lab.resumed) == (1, 1)


def test_a_connection_that_acknowledges_nothing_is_replaced(lab: Lab, model: Echo) -> None:
    with running(lab, model):
        lab.say("one")
        until(lambda: lab.shown() == ["echo: one"] and lab.beats > 1)
        lab.mute()
        lab.say("into the void")
        until(lambda: lab.shown() == ["echo: one", "echo: into the void"])
    assert (lab.identified, lab.resumed) == (1, 1)


def test_a_session_that_the_server_forgot_is_begun_again(lab: Lab, model: Echo) -> None:
    with running(lab, model):
        lab.say("one")
        until(lambda: lab.shown() == ["echo: one"])
        lab.forget_session()
        lab.drop()
        until(lambda: lab.identified == 2)
        lab.say("two")
        until(lambda: lab.shown() == ["echo: one", "echo: two"])


async def test_pictures_are_sent_and_other_files_refused(lab: Lab, hermes_home: Path) -> None:
    adapter = QQBot(lab.settings, hermes_home)
    event = understood(*lab._said[lab.say("a picture, please")])
    assert event is not None
    chat = event.chat
    picture = OutgoingFile(kind="image", name="a.png", mime="image/png", data=b"\x89PNG")
    paper = OutgoingFile(kind="file", name="a.pdf", mime="application/pdf", data=b"%PDF")
    adapter._api = adapter.make_api()
    await adapter.send_file(chat, picture, nonce="n1", context=event.reply_context)
    with pytest.raises(SendRefused, match="not a.pdf"):
        await adapter.send_file(chat, paper, nonce="n2", context=event.reply_context)
    with pytest.raises(SendRefused, match="since April 2025"):
        await adapter.send(chat, "unasked", nonce="n3")
    await adapter.disconnect()
    assert lab.pictures() == [b"\x89PNG"]


def test_a_qq_chat_does_not_become_home(lab: Lab, model: Echo) -> None:
    owner = f"qqbot:{lab.user_id('alice')}"
    with running(lab, model, owner=[owner]):
        lab.say("/sethome")
        until(lambda: any("a bot can only answer there" in one for one in lab.shown()))


def test_a_person_who_is_approved_hears_it_as_the_answer_to_their_message(lab: Lab, model: Echo) -> None:
    with running(lab, model) as gateway:
        lab.say("你好，可以和你聊天吗？", who="mallory")
        (greeting,) = until(lambda: lab.shown(who="mallory"))
        code = greeting.split("approve ")[1].split()[0].strip("`")
        assert gateway.store.approve_pairing(code, welcome) is not None
        until(lambda: any("已批准你" in one for one in lab.shown(who="mallory")))
    assert lab.proactive == []


any_json = anything("user_openid", "member_openid", "url")
names = st.sampled_from(["id", "author", "content", "timestamp", "group_openid", "attachments"])


@given(
    st.sampled_from(["C2C_MESSAGE_CREATE", "GROUP_AT_MESSAGE_CREATE", "READY"]),
    st.dictionaries(names, any_json) | any_json,
)
def test_whatever_the_gateway_sends_is_read_or_skipped(kind: str, data: Any) -> None:
    found = understood(kind, data)
    assert found is None or isinstance(found, Event)
