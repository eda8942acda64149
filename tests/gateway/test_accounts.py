"""Two accounts of one platform side by side: each its own bot, conversations, people, home chat and files."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hermes.config.loading import parse_config
from hermes.errors import ConfigError
from hermes.gateway.chats.access import welcome
from hermes.gateway.events import Sender
from hermes.gateway.settings import platform_settings
from hermes.gateway.startup import made_adapter
from hermes.store.api.session_db import SessionDB
from hermes.store.gateway import approvals, outbox, routes
from tests.support.echo import Echo
from tests.support.gateway import running
from tests.support.gateway_process import environment
from tests.support.labs.base import until
from tests.support.labs.plain import Plain, PlainLab
from tests.support.program import PROGRAM


@pytest.fixture
def labs() -> Iterator[tuple[PlainLab, PlainLab]]:
    """The account without a name, and `work`; the same people, with the same ids, write to both."""
    first, second = PlainLab(), PlainLab()
    first.account, second.account = "default", "work"
    yield first, second
    first.close()
    second.close()


def test_the_same_person_has_a_conversation_with_each_and_each_answers_its_own(
    labs: tuple[PlainLab, PlainLab], model: Echo
) -> None:
    first, second = labs
    with running(labs, model) as gateway:
        assert set(gateway.connections) == {"plain", "plain/work"}
        # both platforms count their messages from 1: the same chat id, the same message id, two bots
        assert first.say("to the first") == second.say("to the second")
        until(lambda: first.shown() == ["echo: to the first"] and second.shown() == ["echo: to the second"])
        for where in ("group", "thread"):
            second.say(f"in a {where}", where=where)
            until(
                lambda where=where: (
                    second.shown(where) == [f"echo: in a {where}"] or "in a thread" in str(second.shown(where))
                )
            )
        assert first.shown("group") == []
        keys = {route.key for route in gateway.store.read(routes.bound)}
        assert keys == {
            "agent:main:plain:dm:dm-alice",
            "agent:main:plain/work:dm:dm-alice",
            "agent:main:plain/work:group:group-1:u-alice",
            "agent:main:plain/work:group:group-1:thread-0",
        }
        rows = gateway.db.list_sessions_rich(source="plain")  # the source is the platform
        assert len(rows) == 4 and {row["user_id"] for row in rows} == {"u-alice", None}
        assert {row["platform"] for row in gateway.store.statuses()} == {"plain", "plain/work"}
        # an edit in one account changes nothing in the other, whose message has the same id there
        (edited,) = [number for number, event in second.events.items() if event["text"] == "to the second"]
        second.change(edited, "changed there")
        found = lambda: [  # noqa: E731
            one["content"] for row in rows for one in gateway.db.get_messages(row["id"]) if one["role"] == "user"
        ]
        until(lambda: "changed there" in found(), str(found()))
        assert "to the first" in found() and "to the second" not in found()


def test_a_restart_sends_each_reply_by_its_own_account(labs: tuple[PlainLab, PlainLab], model: Echo) -> None:
    first, second = labs
    with running(labs, model) as gateway:
        first.fail(times=10_000)
        second.fail(times=10_000)
        first.say("one")
        second.say("two")
        until(lambda: len(gateway.store.read(outbox.unsent)) == 2)
        assert gateway.store.mail_counts() == {"plain": {"unsent": 1}, "plain/work": {"unsent": 1}}
    for lab in labs:
        with lab._lock:
            lab._failures = 0
    with running(labs, model):
        until(lambda: first.shown() == ["echo: one"] and second.shown() == ["echo: two"])


def test_people_are_let_in_by_account_and_the_owner_is_the_owner_of_both(
    labs: tuple[PlainLab, PlainLab], model: Echo
) -> None:
    first, second = labs
    with running(labs, model) as gateway:
        second.say("let me in", who="mallory")
        until(lambda: second.shown(who="mallory"))
        code = second.shown(who="mallory")[0].split("pairing approve ")[1].split("`")[0]
        assert gateway.store.approve_pairing(welcome=welcome, code=code) is not None
        until(lambda: len(second.shown(who="mallory")) == 2)  # the welcome, by the account she wrote to
        second.say("hello", who="mallory")
        until(lambda: second.shown(who="mallory")[-1] == "echo: hello")
        first.say("and here?", who="mallory")
        until(lambda: first.shown(who="mallory"))
        assert "pairing approve" in first.shown(who="mallory")[0]
        for lab in labs:
            lab.say("/sethome")
            until(lambda lab=lab: any("home chat now" in text for text in lab.shown()), str(lab.shown()))
        assert gateway.store.read(approvals.home, "plain") != gateway.store.read(approvals.home, "plain/work")


class LocalPlain(Plain):
    """Another organisation, in which the same id is another person."""

    local_ids = True


def test_where_ids_are_an_organisations_own_the_same_id_is_another_person(
    labs: tuple[PlainLab, PlainLab], model: Echo
) -> None:
    first, second = labs
    first.adapter = second.adapter = LocalPlain
    owner = ["plain:u-alice", "plain/work:u-bob"]
    with running(labs, model, owner=owner) as gateway:
        first.say("the secret is Kardamom")
        until(lambda: first.shown())
        for line in ("/sessions", "/resume secret", 'call=session_search {"query": "secret"}', "/sethome"):
            before = len(second.shown())
            second.say(line)
            until(lambda before=before: len(second.shown()) > before)
        second.say('call=terminal {"command": "echo pwned"}')
        until(lambda: "no tool" in str(second.shown()))
        assert "Kardamom" not in str(second.shown())
        assert gateway.store.read(approvals.home, "plain/work") is None
        second.say("/sethome", who="bob")
        until(lambda: gateway.store.read(approvals.home, "plain/work") is not None)
        first.say("/sethome", who="bob")
        until(lambda: "owner" in str(first.shown(who="bob")))
        users = {row["user_id"] for row in gateway.db.list_sessions_rich(source="plain")}
        assert users == {"u-alice", "work/u-alice"}


def test_an_id_that_looks_like_an_accounts_is_nobody_elses(tmp_path: Path) -> None:
    from hermes.gateway.chats.access import Access
    from hermes.gateway.settings import PlatformSettings
    from hermes.store.gateway.gateway_db import GatewayDB

    with SessionDB(tmp_path / "state.db") as db:
        settings = PlatformSettings("email/work", allowed_users=frozenset({"o@lab.test"}))
        access = Access(GatewayDB(db), ["email/work:o@lab.test", "email:p@lab.test"], {"email/work": settings})
        for address in ("work/o@lab.test", "work/p@lab.test"):  # both are addresses that a server may give away
            assert not access.may_talk("email/work", Sender(user_id=address, proven=True))
            assert not access.is_owner("email/work", Sender(user_id=address, proven=True))


def test_a_handoff_goes_to_the_account_that_is_named(
    labs: tuple[PlainLab, PlainLab], model: Echo, hermes_home: Path
) -> None:
    first, second = labs
    with SessionDB(hermes_home / "state.db") as db:
        db.create_session("20260101_000000_abcdef", "cli")
        db.set_session_title("20260101_000000_abcdef", "from the desk")
        db.append_message("20260101_000000_abcdef", "user", "about tulips")
    with running(labs, model) as gateway:
        second.say("/sethome", where="group")
        until(lambda: gateway.store.read(approvals.home, "plain/work"))
        assert gateway.db.request_handoff("20260101_000000_abcdef", "plain/work")
        until(lambda: gateway.db.get_handoff_state("20260101_000000_abcdef")["state"] in ("completed", "failed"))
        assert gateway.db.get_handoff_state("20260101_000000_abcdef")["state"] == "completed"
        assert (first.threads(), second.threads()) == ([], ["from the desk"])
        route = gateway.store.read(routes.of_session, "20260101_000000_abcdef")
        assert route is not None and route.key.startswith("agent:main:plain/work:group:group-1:thread-")


# ------------------------------------------------------------------------------------------------ config.yaml


def config(text: str) -> Any:
    return parse_config(text, Path("config.yaml"))


TWO = """
platforms:
  plain:
    allowed_users: [u-1]
    accounts:
      default: {port: 1, token: a}
      work: {port: 2, token: b, allowed_users: [u-2], require_mention: true}
      off: {port: 3, token: c, enabled: false}
"""


def test_accounts_inherit_the_platforms_keys_and_have_their_own(tmp_path: Path) -> None:
    found = config(TWO)
    assert found.enabled_platforms == ["plain", "plain/work"]
    made = dict(made_adapter(found, name, {}, tmp_path, Plain) for name in found.enabled_platforms)
    assert [(a.connection_name, a.account_name, a.webhook_path) for a in made] == [
        ("plain", None, "/plain"),
        ("plain/work", "work", "/plain/work"),
    ]
    assert [a.values["token"] for a in made] == ["a", "b"]
    assert [sorted(s.allowed_users) for s in made.values()] == [["u-1"], ["u-2"]]
    assert [a.home for a in made] == [tmp_path, tmp_path / "accounts" / "plain" / "work"]


def test_an_accounts_variables_end_with_its_name(tmp_path: Path) -> None:
    from hermes.gateway.platforms.signal import Signal

    text = "platforms: {signal: {accounts: {default: {}, my-work: {}}}}"
    variables = {"SIGNAL_ACCOUNT": "+1", "SIGNAL_ACCOUNT_MY_WORK": "+2", "SIGNAL_ALLOWED_USERS_MY_WORK": "x,y"}
    names = [one.name for one in Signal.settings if one.variable == "SIGNAL_ACCOUNT"]
    if not names:
        pytest.skip("Signal has no such setting")
    found = [platform_settings(config(text), Signal, variables, account=one) for one in (None, "my-work")]
    assert [one.values[names[0]] for one in found] == ["+1", "+2"]
    assert [sorted(one.allowed_users) for one in found] == [[], ["x", "y"]]


@pytest.mark.parametrize(
    ("accounts", "complaint"),
    [
        (
            "{work: {port: 1, token: same}, private: {port: 2, token: same}}",
            "accounts.work is the same account as private",
        ),
        ("{Work: {port: 1}}", "is not a valid account name"),
        ("{a/b: {port: 1}}", "is not a valid account name"),
        ("[work]", "must be names"),
        ("{work: 7}", "must be names"),
        ("{work: {port: 1, tokn: x}}", r"platforms.demanding.accounts.work.tokn"),
        ("{work: {port: x}}", r"platforms.demanding.accounts.work.port must be"),
        ("{work: {port: 1}}", r"platforms.demanding.accounts.work.token is missing"),
        ("{work: {port: 1, token: '${NOT_SET_ANYWHERE}'}}", "NOT_SET_ANYWHERE"),
    ],
)
def test_wrong_accounts_are_named(accounts: str, complaint: str) -> None:
    from hermes.gateway.adapter import Setting

    class Demanding(Plain):
        platform = "demanding"
        settings = (Plain.settings[0], Setting(name="token", help="the token", secret=True, required=True))

    text = f"platforms: {{demanding: {{accounts: {accounts}}}}}"
    if "private" in accounts:  # of two that are the same, the first runs
        text = text.replace("{work: {port: 1, token: same}, private: {port: 2, token: same}}",
                            "{private: {port: 2, token: same}, work: {port: 1, token: same}}")  # fmt: skip
        assert platform_settings(config(text), Demanding, {}, account="private").values["token"] == "same"
    name = accounts.strip("{").partition(":")[0] if "account name" in complaint else "work"
    with pytest.raises(ConfigError, match=complaint):
        platform_settings(config(text), Demanding, {}, account=name)


def test_status_shows_each_account(hermes_home: Path) -> None:
    hermes_home.mkdir(parents=True, exist_ok=True)
    (hermes_home / "config.yaml").write_text(
        "platforms: {telegram: {accounts: {default: {token: '1:a'}, work: {token: '2:b'}}}}", "utf-8"
    )
    SessionDB(hermes_home / "state.db").close()
    outcome = subprocess.run(
        [*PROGRAM, "gateway", "status"], env=environment(hermes_home), capture_output=True, text=True, timeout=120
    )
    assert "telegram/work" in outcome.stdout, outcome
