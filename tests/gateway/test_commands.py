"""Every slash command in a chat: in a conversation of two, in a group and in a thread."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hermes.commands.registry import GATEWAY, known
from hermes.gateway.runner import Gateway
from hermes.store.gateway import approvals, inbox, outbox, routes
from tests.support.echo import Echo
from tests.support.gateway import running
from tests.support.labs.base import until
from tests.support.labs.plain import PlainLab

KEYS = {
    "dm": "agent:main:plain:dm:dm-alice",
    "group": "agent:main:plain:group:group-1:u-alice",
    "thread": "agent:main:plain:group:group-1:thread-0",
}
GATEWAY_ID = re.compile(r"\d{8}_\d{6}_[0-9a-f]{8}")


class Talk:
    """Somebody in a chat, who says one thing after another."""

    def __init__(self, lab: PlainLab, gateway: Gateway, where: str = "dm", who: str = "alice") -> None:
        self.lab, self.gateway, self.where, self.who = lab, gateway, where, who

    def __call__(self, text: str) -> str:
        """Say something; what was answered when nothing is under way any more."""
        before = len(self.lab.shown(self.where, who=self.who))
        number = self.lab.say(text, where=self.where, who=self.who)

        def answered() -> bool:
            found = self.gateway.store.read(inbox.progress, "plain", number)
            quiet = not self.gateway.store.read(outbox.unsent)  # also what is said beside the answer
            shown = self.lab.shown(self.where, who=self.who)
            return bool(found and found[0] and not found[1]) and quiet and len(shown) > before

        until(answered, f"{text}: {self.lab.shown(self.where, who=self.who)}")
        return "\n".join(self.lab.shown(self.where, who=self.who)[before:])

    @property
    def session(self) -> dict[str, Any]:
        """The session this chat is in now."""
        route = self.gateway.store.read(
            routes.get, KEYS[self.where] if self.who == "alice" else f"agent:main:plain:dm:dm-{self.who}"
        )
        assert route is not None
        assert route.session_id is not None
        row = self.gateway.db.get_session(route.session_id)
        assert row is not None
        return row

    def said(self, session_id: str | None = None) -> list[str]:
        rows = self.gateway.db.get_messages(session_id or self.session["id"])
        return [str(row["content"]).removeprefix("[Alice] ").removeprefix("echo: [Alice] ") for row in rows]


@pytest.fixture
def gateway(lab: PlainLab, model: Echo) -> Iterator[Gateway]:
    with running(lab, model) as made:
        yield made


@pytest.fixture(params=["dm", "group", "thread"])
def talk(request: pytest.FixtureRequest, lab: PlainLab, gateway: Gateway) -> Talk:
    return Talk(lab, gateway, request.param)


def test_new_resume_and_sessions(talk: Talk) -> None:
    talk("about tulips")
    old = talk.session["id"]
    assert GATEWAY_ID.fullmatch(old)
    told = talk("/new")
    assert f"/resume {old}" in told
    assert talk.gateway.db.get_session(old)["end_reason"] == "user_exit"
    talk("about roses")
    new = talk.session["id"]
    assert new != old
    assert GATEWAY_ID.fullmatch(new)
    listed = talk("/sessions")
    assert f"`{old}`" in listed and f"`{new}`  (this one)" in listed
    assert f"`{old}`" in talk("/sessions tulips")
    assert "No messages match" in talk("/sessions orchids")
    told = talk(f"/resume {old[:18]}")
    assert talk.session["id"] == old
    assert "Continuing" in told and "about tulips" in told
    talk("and daisies")
    assert [text for text in talk.said(old) if not text.startswith("echo")][-1] == "and daisies"
    assert talk.gateway.db.get_session(old)["ended_at"] is None
    assert talk("/resume").count("- ") == 1  # the other one is offered
    assert "current session" in talk(f"/resume {old}")
    assert "No session is called" in talk("/resume nothing like it")


def test_titles_before_and_after_the_first_message(talk: Talk) -> None:
    assert "no title yet" in talk("/title")
    assert "first message" in talk("/title Tulips & more")
    assert talk("/title") == "Title: Tulips & more"
    talk("hello")
    assert talk.session["title"] == "Tulips & more"
    assert 'now called "Roses"' in talk("/title Roses")
    assert talk.session["title"] == "Roses"


def test_a_title_before_the_first_message_survives_a_restart(lab: PlainLab, model: Echo) -> None:
    with running(lab, model) as gateway:
        Talk(lab, gateway)("/title Kept over night")
    with running(lab, model) as gateway:
        talk = Talk(lab, gateway)
        talk("hello")
        assert talk.session["title"] == "Kept over night"


def test_branch_undo_retry_and_history(talk: Talk) -> None:
    talk("one")
    talk("two")
    old = talk.session["id"]
    assert "Undid 1 exchange" in talk("/undo")
    assert len(talk.said()) == 2
    assert "Restored 2 messages" in talk("/undo redo")
    assert talk("/retry").endswith("two")
    assert talk.said()[2::2] == ["two"]
    history = talk("/history")
    number = re.search(r"- `(\d+)` agent: echo: .*one", history)
    assert number, history
    assert "branch" in talk(f"/branch {number[1]}")
    branch = talk.session
    assert branch["id"] != old
    assert GATEWAY_ID.fullmatch(branch["id"])
    assert branch["parent_session_id"] == old
    talk("another way")
    assert talk.said()[0] == "one" and "two" not in talk.said() and talk.said()[-2] == "another way"
    assert talk.said(old)[2] == "two"


def test_status_usage_tag_and_pin(talk: Talk) -> None:
    assert "not saved yet" in talk("/status")
    assert "Nothing was used yet" in talk("/usage")
    assert "nothing to tag yet" in talk("/tag garden")
    talk("hello")
    status = talk("/status")
    assert f"- **Session:** {talk.session['id']}" in status
    assert "- **Messages:** 2" in status
    until(lambda: "- **Input:** 20 tokens" in talk("/usage"))  # those of its title as well
    assert talk("/tag garden plans") == "Tags: #garden #plans"
    assert talk("/tag -plans") == "Tags: #garden"
    assert "Pinned" in talk("/pin")
    assert talk.session["pinned_at"]
    assert "#garden pinned" in talk("/status")
    assert "Not pinned" in talk("/pin off")


def test_help_lists_what_works_here_as_a_list(talk: Talk) -> None:
    lines = talk("/help").splitlines()
    for one in known(GATEWAY):
        assert any(line.startswith(f"- `/{one.name}") and line.endswith(one.help) for line in lines)
    assert not any("/quit" in line for line in lines)
    assert talk("/help undo").startswith("- `/undo [n | redo]`")


def test_what_is_for_the_terminal_says_so(talk: Talk) -> None:
    for line in ("/quit", "/exit"):
        assert "in the terminal" in talk(line)


def test_unknown_commands_are_told_and_kept_from_the_model(talk: Talk, model: Echo) -> None:
    model.requests.clear()
    assert "did you mean /title?" in talk("/titel x")
    assert model.requests == []


def test_two_slashes_send_a_text_that_begins_with_one(talk: Talk) -> None:
    assert talk("//new is a command").endswith("/new is a command")
    assert talk("/etc/hosts is a file").endswith("/etc/hosts is a file")
    assert talk.said()[0] == "/new is a command"


def test_sethome_is_the_owners(lab: PlainLab, gateway: Gateway) -> None:
    assert "only the owner" in Talk(lab, gateway, "dm", "bob")("/sethome")
    assert gateway.store.read(approvals.home, "plain") is None
    assert "home chat now" in Talk(lab, gateway, "group")("/sethome")
    assert '"chat_id":"group-1"' in str(gateway.store.read(approvals.home, "plain"))


def test_handoff_says_what_is_missing(lab: PlainLab, gateway: Gateway) -> None:
    talk = Talk(lab, gateway)
    talk("hello")
    assert "already" in talk("/handoff plain")
    assert "not switched on" in talk("/handoff telegram")
    assert "only answer" in talk("/handoff qqbot")
    assert "to which platform?" in talk("/handoff")
    assert "only the owner" in Talk(lab, gateway, "dm", "bob")("/handoff plain")


def test_stop_without_anything_to_stop(talk: Talk) -> None:
    assert talk("/stop") == "Nothing runs in the background, and nothing is being answered."


# ------------------------------------------------------------------------------------------------ /compress


def full(talk: Talk) -> str:
    """A conversation with something to leave out; its id."""
    for number in range(4):
        talk(f"number {number}")
    return str(talk.session["id"])


COMPRESSION = {"protect_first_n": 1, "protect_last_n": 2}


def test_compress_goes_on_in_a_child_and_keeps_what_runs(lab: PlainLab, model: Echo) -> None:
    with running(lab, model, compression=COMPRESSION) as gateway:
        talk = Talk(lab, gateway)
        talk('call=terminal {"command": "sleep 300", "background": true}')
        old = full(talk)
        told = talk("/compress")
        new = talk.session
        assert new["id"] != old
        assert GATEWAY_ID.fullmatch(new["id"])
        assert (new["parent_session_id"], new["kind"]) == (old, "compression")
        assert "Nothing was deleted" in told
        agent = gateway.agents.get(KEYS["dm"])
        assert agent is not None
        assert agent.background_running() == 1
        talk("goes on")
        assert talk.said(new["id"])[-2] == "goes on"
        assert "Stopped 1 background process" in talk("/stop")


def test_stop_interrupts_compress_and_nothing_has_changed(lab: PlainLab, model: Echo) -> None:
    with running(lab, model, compression=COMPRESSION) as gateway:
        talk = Talk(lab, gateway)
        old = full(talk)
        model.latency = 30.0
        try:
            lab.say("/compress")
            until(lambda: "number 1" in str(model.requests[-1]) and not model.requests[-1].get("tools"))
            lab.say("/stop")
            until(lambda: any("it was interrupted" in one for one in lab.shown()), str(lab.shown()))
        finally:
            model.latency = 0.0
        assert talk.session["id"] == old
        until(lambda: any("Stopped" in one for one in lab.shown()))
        talk("goes on")
        assert talk.said(old)[-2] == "goes on"
        assert talk("/compress").startswith("Compressing")  # being interrupted once does not last
        assert talk.session["id"] != old


def test_a_message_does_not_cut_compress_short(lab: PlainLab, model: Echo) -> None:
    with running(lab, model, compression=COMPRESSION) as gateway:
        talk = Talk(lab, gateway)
        old = full(talk)
        model.latency = 1.0
        try:
            lab.say("/compress")
            until(lambda: "number 1" in str(model.requests[-1]) and not model.requests[-1].get("tools"))
        finally:
            model.latency = 0.0
        talk("right behind it")
        assert talk.session["id"] != old
        assert talk.said()[-2] == "right behind it"


# ------------------------------------------------------------------------------------------------ in groups


def test_where_a_mention_is_needed_our_commands_are_heard_and_others_are_not(lab: PlainLab, model: Echo) -> None:
    mention = {"plain": {"require_mention": True}}
    with running(lab, model, platforms=mention):
        lab.say("just chatting", where="group", addressed=False)
        lab.say("/weather in Berlin", where="group", addressed=False)  # another bot's
        lab.say("/status", where="group", addressed=False)
        until(lambda: len(lab.shown("group")) == 1)
        assert "not saved yet" in lab.shown("group")[0]
        lab.say("/weather in Berlin", where="group", addressed=True)
        until(lambda: len(lab.shown("group")) == 2)
        assert "no command /weather" in lab.shown("group")[1]


def test_where_a_mention_is_needed_the_answer_to_a_question_needs_none(
    lab: PlainLab, model: Echo, tmp_path: Path
) -> None:
    precious = tmp_path / "precious"
    precious.touch()
    mention = {"plain": {"require_mention": True}}
    with running(lab, model, platforms=mention):
        lab.say(f'call=terminal {{"command": "rm {precious}"}}', where="group")
        until(lambda: any("Reply **yes**" in one for one in lab.shown("group")))
        lab.say("yes", where="group", addressed=False)
        until(lambda: not precious.exists())
        until(lambda: any("the tool said" in one for one in lab.shown("group")))
        lab.say("yes", where="group", addressed=False)  # nobody asked any more
        lab.say("hello", where="group")
        until(lambda: any("echo: hello" in one for one in lab.shown("group")))
        assert not any("echo: yes" in one for one in lab.shown("group"))
