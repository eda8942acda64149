"""QQ: replies bound to their message, numbers that make a repeated send one message, tokens that expire, sessions that are resumed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes.errors import PlatformRefused, SendRefused
from hermes.gateway.events import Chat, Event, OutgoingFile
from hermes.gateway.platforms.qqbot import QQBot, understood
from hermes.store import gateway_inbox, gateway_outbox
from tests.support.echo import Echo, reply_to
from tests.support.gateway import running
from tests.support.labs.base import until
from tests.support.labs.qqbot import MOST_REPLIES, Lab


@pytest.fixture(scope="module")
def place() -> Iterator[Lab]:
    made = Lab()
    yield made
    made.close()


@pytest.fixture
def lab(place: Lab) -> Iterator[Lab]:
    place.reset()
    yield place
    assert place.problems() == []


@pytest.fixture(scope="module")
def model() -> Iterator[Echo]:
    with Echo() as echo:
        yield echo


def test_every_part_of_a_reply_names_its_message_with_a_number_of_its_own(
    lab: Lab, model: Echo, hermes_home: Path
) -> None:
    with running(lab, hermes_home, model.base_url):
        asked = lab.say("long=8000")
        until(lambda: len(lab.shown()) >= 3, 30)
        until(lambda: "Paragraph 48:" in "".join(lab.shown()), 30)
    assert {one["msg_id"] for one in lab._sent} == {asked}
    assert len({one["msg_seq"] for one in lab._sent}) == len(lab._sent)
    assert lab.proactive == []


def test_a_reply_of_more_parts_than_a_message_may_be_answered_with_arrives_whole(
    lab: Lab, model: Echo, hermes_home: Path
) -> None:
    with running(lab, hermes_home, model.base_url) as gateway:
        lab.say("long=20000")
        until(
            lambda: (
                lab.shown()
                and not gateway.store.read(gateway_outbox.unsent)
                and not gateway.store.read(gateway_inbox.waiting)
            ),
            30,
        )
    assert " ".join(lab.shown()).split() == reply_to("long=20000").split()
    assert len(lab._sent) - len(lab.proactive) == MOST_REPLIES
    assert lab.proactive


@pytest.mark.parametrize(("where", "age"), [("dm", 3_700.0), ("group", 400.0)])
def test_after_its_window_a_message_is_not_named_any_more(
    lab: Lab, model: Echo, hermes_home: Path, where: str, age: float
) -> None:
    with running(lab, hermes_home, model.base_url):
        lab.say("late", where=where, age=age)
        until(lambda: lab.shown(where) == ["echo: late"], 30)
        assert len(lab.proactive) == 1


def test_a_send_whose_answer_was_lost_is_one_message(lab: Lab, model: Echo, hermes_home: Path) -> None:
    with running(lab, hermes_home, model.base_url) as gateway:
        lab.lost_answers = 1
        lab.say("hello")
        until(
            lambda: (
                gateway.store.read(gateway_inbox.waiting) == []
                and gateway.store.read(gateway_outbox.unsent) == []
                and lab.shown()
            ),
            40,
        )
        assert lab.shown() == ["echo: hello"]


def test_an_expired_token_is_renewed_once_for_many_requests(lab: Lab, model: Echo, hermes_home: Path) -> None:
    with running(lab, hermes_home, model.base_url):
        lab.say("one")
        until(lambda: lab.shown() == ["echo: one"])
        before = lab.renewals
        lab.expire_token()
        for who in ("alice", "bob"):
            lab.say("two", who=who)
        until(lambda: lab.shown(who="bob") == ["echo: two"] and lab.shown()[-1:] == ["echo: two"], 30)
        assert lab.renewals == before + 1


@pytest.mark.parametrize("status", [502, 429])
def test_a_token_server_that_is_busy_does_not_end_the_connection(
    lab: Lab, model: Echo, hermes_home: Path, status: int
) -> None:
    with running(lab, hermes_home, model.base_url) as gateway:
        lab.say("one")
        until(lambda: lab.shown() == ["echo: one"])
        lab.expire_token()
        lab.no_tokens = [status]
        lab.say("two")
        until(lambda: lab.shown() == ["echo: one", "echo: two"], 30)
        assert [row["state"] for row in gateway.store.statuses()] == ["connected"]


def test_a_session_is_resumed_after_the_last_stored_event(lab: Lab, model: Echo, hermes_home: Path) -> None:
    with running(lab, hermes_home, model.base_url, display={"busy": "queue"}):
        lab.say("one")
        until(lambda: lab.shown() == ["echo: one"])
        lab.drop()
        lab.say("two")
        until(lambda: lab.shown() == ["echo: one", "echo: two"], 30)
        lab.ask_again()
        lab.say("three")
        until(lambda: len(lab.shown()) == 3, 30)
    lab.say("while it was down")
    with running(lab, hermes_home, model.base_url, display={"busy": "queue"}):  # a restart resumes, too
        until(lambda: lab.shown()[-1:] == ["echo: while it was down"], 30)
    assert len(lab.shown()) == 4
    assert (lab.identified, lab.resumed >= 3) == (1, True)


def test_a_session_that_the_server_forgot_is_begun_again(lab: Lab, model: Echo, hermes_home: Path) -> None:
    with running(lab, hermes_home, model.base_url):
        lab.say("one")
        until(lambda: lab.shown() == ["echo: one"])
        lab.forget_session()
        lab.drop()
        until(lambda: lab.identified == 2, 30)
        lab.say("two")
        until(lambda: lab.shown() == ["echo: one", "echo: two"], 30)


def test_pictures_are_sent_and_other_files_refused(lab: Lab, hermes_home: Path) -> None:
    adapter = QQBot(lab.settings, hermes_home)
    chat = Chat(platform="qqbot", chat_id=lab.user_id("alice"))
    picture = OutgoingFile(kind="image", name="a.png", mime="image/png", data=b"\x89PNG")
    paper = OutgoingFile(kind="file", name="a.pdf", mime="application/pdf", data=b"%PDF")

    async def sent() -> None:
        adapter._api = adapter._made()
        await adapter.send_file(chat, picture, nonce="n1")
        with pytest.raises(SendRefused, match="not a.pdf"):
            await adapter.send_file(chat, paper, nonce="n2")
        await adapter.disconnect()

    asyncio.run(sent())
    assert lab.pictures() == [b"\x89PNG"]


def test_a_wrong_secret_is_named_and_not_shown(lab: Lab, tmp_path: Path) -> None:
    with pytest.raises(PlatformRefused, match="does not accept app_id") as told:
        asyncio.run(QQBot({**lab.settings, "client_secret": "wrong-secret"}, tmp_path).check())
    assert "wrong-secret" not in str(told.value)
    assert asyncio.run(QQBot(lab.settings, tmp_path).check()) == "hermes"


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=12),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["user_openid", "member_openid", "url"]), inner, max_size=3)
    ),
    max_leaves=8,
)
names = st.sampled_from(["id", "author", "content", "timestamp", "group_openid", "attachments"])


@given(
    st.sampled_from(["C2C_MESSAGE_CREATE", "GROUP_AT_MESSAGE_CREATE", "READY"]),
    st.dictionaries(names, anything) | anything,
)
def test_whatever_the_gateway_sends_is_read_or_skipped(kind: str, data: Any) -> None:
    found = understood(kind, data)
    assert found is None or isinstance(found, Event)
