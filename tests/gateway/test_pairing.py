"""Nobody is answered until allowed: by the lists of the configuration, or by a code that the owner approves."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes.config.loading import parse_config
from hermes.errors import ConfigError, StoreBusy
from hermes.gateway.chats.access import Access, welcome
from hermes.gateway.events import Chat, Event, Sender
from hermes.gateway.runner import Gateway
from hermes.gateway.settings import PlatformSettings, platform_settings
from hermes.store.api.session_db import SessionDB
from hermes.store.gateway import approvals, inbox, outbox
from hermes.store.gateway.approvals import LASTS, TRIES_A_MINUTE
from hermes.store.gateway.gateway_db import GatewayDB
from tests.support.echo import Echo
from tests.support.gateway import Clock, running
from tests.support.labs.base import until
from tests.support.labs.plain import Plain, PlainLab

CODE = re.compile(r"[A-Z2-9]{4}-[A-Z2-9]{4}")


def code_for(lab: PlainLab, gateway: Gateway, who: str = "mallory", text: str = "hello?") -> str:
    """A stranger writes and is told a code."""
    lab.say(text, who=who)
    until(lambda: lab.shown(who=who))
    (code,) = CODE.findall(lab.shown(who=who)[-1])
    return str(code)


def heard(lab: PlainLab, gateway: Gateway) -> None:
    """Everything that was said is taken in, and every answer sent."""
    until(
        lambda: (
            not lab.unacknowledged and not gateway.store.read(inbox.waiting) and not gateway.store.read(outbox.unsent)
        ),
    )


# ------------------------------------------------------------------------------------------------ by a code


def test_a_stranger_is_let_in_by_the_code_and_told_so(lab: PlainLab, model: Echo, hermes_home: Path) -> None:
    with running(lab, model) as gateway:
        code = code_for(lab, gateway)
        with SessionDB(hermes_home / "state.db") as other:  # as `hermes pairing approve` does
            found = GatewayDB(other).approve_pairing(welcome=welcome, code=code.lower().replace("-", " "))
        assert found is not None
        assert (found["platform"], found["user_id"], found["name"]) == ("plain", "u-mallory", "Mallory")
        until(lambda: any("You are in" in text for text in lab.shown(who="mallory")))
        lab.say("thank you", who="mallory")
        until(lambda: "echo: thank you" in lab.shown(who="mallory"))
        assert sum("You are in" in text for text in lab.shown(who="mallory")) == 1
        assert gateway.db.search_messages("hello?") == []


def test_who_was_let_in_while_no_gateway_ran_is_told_at_the_next_start(
    lab: PlainLab, model: Echo, hermes_home: Path
) -> None:
    with running(lab, model) as gateway:
        code = code_for(lab, gateway)
    with SessionDB(hermes_home / "state.db") as db:
        assert GatewayDB(db).approve_pairing(welcome=welcome, code=code) is not None
    for _ in range(2):
        with running(lab, model) as gateway:
            until(lambda: any("You are in" in text for text in lab.shown(who="mallory")))
            lab.say("hello", who="mallory")
            heard(lab, gateway)
    assert sum("You are in" in text for text in lab.shown(who="mallory")) == 1


def test_a_code_works_once_and_for_an_hour(lab: PlainLab, model: Echo) -> None:
    clock = Clock()
    with running(lab, model, clock=clock) as gateway:
        first = code_for(lab, gateway)
        clock.forward(LASTS + 1)
        assert gateway.store.approve_pairing(welcome=welcome, code=first) is None
        assert not gateway.store.read(approvals.may_talk, "plain", "u-mallory")
        lab.say("again", who="mallory")
        until(lambda: len(lab.shown(who="mallory")) == 2)
        (second,) = CODE.findall(lab.shown(who="mallory")[-1])
        assert second != first
        assert gateway.store.approve_pairing(welcome=welcome, code=second) is not None
        assert gateway.store.approve_pairing(welcome=welcome, code=second) is None
        assert gateway.store.read(approvals.may_talk, "plain", "u-mallory")


def test_one_code_an_hour_each_and_silence_otherwise(lab: PlainLab, model: Echo) -> None:
    with running(lab, model) as gateway:
        code_for(lab, gateway)
        for number in range(5):
            lab.say(f"please {number}", who="mallory")
        heard(lab, gateway)
        assert len(lab.shown(who="mallory")) == 1
        assert len(gateway.store.read(approvals.waiting, gateway.store.clock())) == 1


def test_many_strangers_lock_no_one_out(lab: PlainLab, model: Echo) -> None:
    with running(lab, model) as gateway:
        for number in range(25):
            gateway.store.write(approvals.make_pairing, f"code{number}", "plain", f"u{number}", None, "{}")
        assert gateway.store.approve_pairing(welcome=welcome, code=code_for(lab, gateway)) is not None
        assert len(gateway.store.read(approvals.waiting, gateway.store.clock())) == 25


def test_five_tries_a_minute_over_all_processes(db: SessionDB, make_db: Any) -> None:
    clock = Clock()
    store = GatewayDB(db, clock=clock)
    store.write(approvals.make_pairing, "AAAA-BBBB", "plain", "u1", None, "{}")
    with SessionDB(db.path) as second:
        others = GatewayDB(second, clock=clock)
        for number in range(TRIES_A_MINUTE):
            assert (store, others)[number % 2].approve_pairing(welcome=welcome, code=f"wrong {number}") is None
        for one in (store, others):
            with pytest.raises(StoreBusy, match="wait a minute"):
                one.approve_pairing(welcome=welcome, code="AAAA-BBBB")  # the right one does not help now
        assert not others.read(approvals.may_talk, "plain", "u1")
        clock.forward(61)
        assert others.approve_pairing(welcome=welcome, code="aaaa bbbb") is not None
        clock.forward(-7200)  # the clock of the machine is set back
        assert others.approve_pairing(welcome=welcome, code="whatever") is None


def test_codes_are_kept_as_digests_only(lab: PlainLab, model: Echo, hermes_home: Path) -> None:
    with running(lab, model) as gateway:
        code = code_for(lab, gateway)
        heard(lab, gateway)
    with closing(sqlite3.connect(hermes_home / "state.db")) as file:
        kept = "\n".join(str(row) for row in file.execute("SELECT * FROM gateway_pairings"))
        kept += "\n".join(str(row) for row in file.execute("SELECT * FROM gateway_outbox"))
    assert "u-mallory" in kept
    assert code not in kept
    assert code.replace("-", "") not in kept


def test_shut_out_again(lab: PlainLab, model: Echo) -> None:
    with running(lab, model) as gateway:
        gateway.store.approve_pairing(welcome=welcome, code=code_for(lab, gateway))
        assert gateway.store.write(approvals.revoke, "plain", "u-mallory")
        assert not gateway.store.write(approvals.revoke, "plain", "u-mallory")
        lab.say("still here?", who="mallory")
        heard(lab, gateway)
        assert not any("echo" in text for text in lab.shown(who="mallory"))


@pytest.mark.parametrize("where", ["group", "channel", "thread"])
def test_no_codes_in_groups(lab: PlainLab, model: Echo, where: str) -> None:
    with running(lab, model) as gateway:
        lab.say("let me in", who="mallory", where=where)
        lab.say("/help", who="mallory", where=where)
        heard(lab, gateway)
        assert lab.shown(where) == []
        assert gateway.store.read(approvals.waiting, gateway.store.clock()) == []


def _access(db: SessionDB, **settings: Any) -> Access:
    return Access(GatewayDB(db), ["plain:owner"], {"plain": PlatformSettings("plain", **settings)})


def test_no_codes_to_bots_nor_to_those_without_an_id(db: SessionDB) -> None:
    access = _access(db)
    chat = Chat(platform="plain", chat_id="c")
    for sender in (
        Sender(user_id="b", is_bot=True, proven=True),
        Sender(proven=True),
        Sender(name="somebody", proven=True),
    ):
        assert not access.may_talk("plain", sender)
        assert access.pairing_code(Event(id="1", chat=chat, sender=sender, text="hi")) is None
    assert GatewayDB(db).read(approvals.waiting, GatewayDB(db).clock()) == []


# ------------------------------------------------------------------------------------------------ by the configuration


def test_who_may_talk(db: SessionDB) -> None:
    access = _access(db, allowed_users=frozenset({"7", "uuid-1"}))
    assert access.may_talk("plain", Sender(user_id="7", proven=True))
    assert access.may_talk("plain", Sender(user_id="+49 changed", stable_id="uuid-1", proven=True))
    assert access.may_talk("plain", Sender(user_id="owner", proven=True))
    for sender in (
        Sender(user_id="8", proven=True),
        Sender(user_id="", proven=True),
        Sender(proven=True),
        Sender(user_id="7", is_bot=True, proven=True),
        Sender(name="7", proven=True),
    ):
        assert not access.may_talk("plain", sender)
    assert not access.may_talk("elsewhere", Sender(user_id="7", proven=True))
    assert not access.may_talk("elsewhere", Sender(user_id="owner", proven=True))


def test_everybody_only_when_it_is_written_out(db: SessionDB) -> None:
    assert not _access(db).may_talk("plain", Sender(user_id="8", proven=True))
    assert _access(db, allow_all=True).may_talk("plain", Sender(user_id="8", proven=True))
    assert not _access(db, allow_all=True).may_talk("plain", Sender(user_id="8", is_bot=True, proven=True))
    assert _access(db, allow_all=True).user("plain", Sender(user_id="8", proven=True)) == ("plain", "8")


def test_a_pairing_holds_for_the_stable_id(db: SessionDB) -> None:
    access = _access(db)
    sender = Sender(user_id="+49 1", stable_id="uuid-2", proven=True)
    chat = Chat(platform="plain", chat_id="c")
    code = access.pairing_code(Event(id="1", chat=chat, sender=sender, text="hi"))
    assert code is not None
    assert GatewayDB(db).approve_pairing(welcome=welcome, code=code) is not None
    assert access.may_talk("plain", Sender(user_id="+49 2", stable_id="uuid-2", proven=True))
    assert not access.may_talk("plain", Sender(user_id="+49 1", stable_id="uuid-3", proven=True))


def settings(text: str, **variables: str) -> PlatformSettings:
    config = parse_config(f"platforms: {{plain: {{port: 1, {text}}}}}", Path("config.yaml"))
    return platform_settings(config, Plain, variables)


@pytest.mark.parametrize(
    ("text", "people"),
    [
        ("allowed_users: [12345, '67', u-x]", {"12345", "67", "u-x"}),
        ("allowed_users: -1001000000001", {"-1001000000001"}),
        ("allowed_users: '1, 2,,3 '", {"1", "2", "3"}),
        ("allowed_users: []", set()),
        ("allowed_users: null", set()),
        ("allowed_users: ['@bob:example.org', 'bob@example.org']", {"@bob:example.org", "bob@example.org"}),
    ],
)
def test_ids_as_people_write_them(text: str, people: set[str]) -> None:
    assert settings(text).allowed_users == people
    assert not settings(text).allow_all


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("allowed_users: ['*']", "allow_all: true"),
        ("allowed_users: '*'", "allow_all: true"),
        ("allowed_users: [1.5]", "not a user id"),
        ("allowed_users: [true]", "not a user id"),
        ("allowed_users: [null]", "not a user id"),
        ("allowed_users: {a: b}", "list of user ids"),
        ("allowed_users: true", "list of user ids"),
        ("allow_all: everybody", "true or false"),
        ("allow_all: 1", "true or false"),
        ("alowed_users: [1]", "allowed_users"),
    ],
)
def test_what_cannot_be_meant_is_an_error(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        settings(text)


def test_the_variable_adds_people() -> None:
    found = settings("allowed_users: [1]", PLAIN_ALLOWED_USERS="2, 3")
    assert found.allowed_users == {"1", "2", "3"}
    with pytest.raises(ConfigError, match="PLAIN_ALLOWED_USERS"):
        settings("allowed_users: [1]", PLAIN_ALLOWED_USERS="*")


@given(st.lists(st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1).map(str.strip)))
def test_whatever_ids_are_listed_are_let_in_and_nobody_else(ids: list[str]) -> None:
    import json

    ids = [one for one in ids if one and one != "*"]
    text = json.dumps(ids, ensure_ascii=False).replace("${", "$")
    found = settings(f"allowed_users: {text}").allowed_users
    assert found == {one.replace("${", "$") for one in ids}


@pytest.mark.parametrize("word", ["false", "'false'", "no", "'off'", "${NOBODY_SETS_THIS:-false}"])
def test_a_platform_that_is_switched_off_is_off(word: str) -> None:
    config = parse_config(f"platforms: {{plain: {{enabled: {word}}}, other: {{}}}}", Path("config.yaml"))
    assert config.enabled_platforms == ["other"]


# ------------------------------------------------------------------------------------------------ the first words


def test_start_is_answered_with_a_greeting_and_help_not_by_the_model(lab: PlainLab, model: Echo) -> None:
    with running(lab, model) as gateway:
        asked = len(model.requests)
        lab.say("/start deep-link", who="bob")
        until(lambda: lab.shown(who="bob"))
        heard(lab, gateway)
        greeting, *commands = lab.shown(who="bob")
        assert "Hello" in greeting
        assert "/new" in "".join(commands)
        assert "/start" not in "".join(commands)
        assert len(model.requests) == asked
        assert gateway.db.session_count() == 0
        lab.say("/start", who="mallory")
        until(lambda: lab.shown(who="mallory"))
        assert CODE.search(lab.shown(who="mallory")[0])
