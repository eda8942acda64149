"""Questions in the middle of a turn: a yes of the one who was asked is a yes, everything else is a no."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hermes.gateway.flow.turns import read_answer
from hermes.gateway.settings import Timings
from tests.support.echo import Echo
from tests.support.gateway import running
from tests.support.labs.base import until
from tests.support.labs.plain import PlainLab
from tests.support.wire import Wire, call, delta, end, sse
from tests.support.wire import said as reply

OWNERS = ["plain:u-alice", "plain:u-bob"]


@pytest.fixture
def precious(tmp_path: Path) -> Path:
    path = tmp_path / "precious.txt"
    path.write_text("do not lose me")
    return path


def removing(path: Path) -> str:
    return f'call=terminal {{"command": "rm {path}"}}'


def asked(lab: PlainLab, where: str = "dm") -> None:
    until(lambda: any("Reply **yes** or **no**" in one for one in lab.shown(where)), str(lab.shown(where)))


def answered(lab: PlainLab, words: str, where: str = "dm") -> list[str]:
    until(lambda: any(words in one for one in lab.shown(where)), str(lab.shown(where)))
    return lab.shown(where)


def test_yes_is_yes(lab: PlainLab, model: Echo, precious: Path) -> None:
    with running(lab, model) as gateway:
        lab.say(removing(precious))
        asked(lab)
        assert precious.exists()
        lab.say("Yes!")
        answered(lab, "the tool said")
        assert not precious.exists()
        (row,) = gateway.db.list_sessions_rich(source="plain")
        users = [m["content"] for m in gateway.db.get_messages(row["id"]) if m["role"] == "user"]
        assert users == [removing(precious)]  # the answer is no message to the agent
        assert len(lab.shown()) == 2  # and gets no reply
    assert not lab.unacknowledged


def test_the_whole_command_is_shown(lab: PlainLab, model: Echo, precious: Path) -> None:
    names = [f"file-{number}" for number in range(2_000)]
    with running(lab, model):
        lab.say(f'call=terminal {{"command": "rm {" ".join(names)} {precious}"}}')
        asked(lab)
        shown = "".join("".join(lab.shown()).split())
        assert "".join(names) in shown and precious.exists()
        lab.say("no")
        answered(lab, "the tool said")


def test_a_rule_answers_before_anyone_is_asked(lab: PlainLab, model: Echo, precious: Path) -> None:
    with running(lab, model, permissions={"allow": ["rm"]}):
        lab.say(removing(precious))
        answered(lab, "the tool said")
        assert not precious.exists() and not any("Reply **yes**" in one for one in lab.shown())


def test_no_is_no_and_the_turn_goes_on(lab: PlainLab, model: Echo, precious: Path) -> None:
    with running(lab, model):
        lab.say(removing(precious))
        asked(lab)
        lab.say("no")
        answered(lab, "the tool said")
        assert precious.exists()
        assert len(lab.shown()) == 2


def test_another_message_means_no_and_is_answered(lab: PlainLab, model: Echo, precious: Path) -> None:
    with running(lab, model, display={"busy": "queue"}):
        lab.say(removing(precious))
        asked(lab)
        lab.say("wait, which file is that?")
        shown = answered(lab, "echo: wait, which file is that?")
        assert precious.exists()
        assert any("the tool said" in one for one in shown)


def test_silence_is_a_no(lab: PlainLab, model: Echo, precious: Path) -> None:
    with running(lab, model, timings=Timings(answer=0.3)):
        lab.say(removing(precious))
        asked(lab)
        answered(lab, "the tool said")
        assert precious.exists()
        lab.say("yes")  # too late: it is a message like any other
        answered(lab, "echo: yes")
        assert precious.exists()


def test_another_persons_yes_does_not_count(lab: PlainLab, model: Echo, precious: Path) -> None:
    with running(lab, model, display={"busy": "queue"}):
        lab.say(removing(precious), where="thread")
        asked(lab, "thread")
        lab.say("yes", where="thread", who="bob")
        lab.say("no", where="thread")
        shown = answered(lab, "echo: [Bob] yes", "thread")
        assert precious.exists()
        assert any("the tool said" in one for one in shown)


def test_another_person_who_interrupts_does_not_wait_for_the_answer(lab: PlainLab, model: Echo, precious: Path) -> None:
    """The owner does, under another id: nobody else may."""
    with running(lab, model, display={"busy": "interrupt"}, owner=OWNERS):
        lab.say(removing(precious), where="thread")
        asked(lab, "thread")
        lab.say("pause=1.5 yes", where="thread", who="bob")
        until(lambda: any("pause=1.5 yes" in str(one["messages"][-1]) for one in model.requests))
        lab.say("yes", where="thread")  # the question is over: this is a message like any other
        answered(lab, "echo: [Alice] yes", "thread")
        assert precious.exists()


def test_stopping_does_not_wait_for_an_answer_and_asks_again_afterwards(
    lab: PlainLab, model: Echo, precious: Path
) -> None:
    with running(lab, model, timings=Timings(turns_end=0.2)):
        lab.say(removing(precious))
        asked(lab)
    assert precious.exists()
    with running(lab, model, timings=Timings(turns_end=0.2)):  # the event was not given up
        answered(lab, "tool said")
    assert precious.exists()


def test_a_question_is_seen_while_the_reply_grows(lab: PlainLab, precious: Path) -> None:
    streaming = {"streaming": {"edit_interval": 0.05, "buffer_threshold": 1}}
    arguments = f'{{"command": "rm {precious}"}}'
    first = sse(
        delta(content="Let me clear that away."),
        0.5,
        delta(tool_calls=[{"index": 0, "id": "call_1", **call("terminal", arguments)}]),
        end("tool_calls"),
        "[DONE]",
    )
    with (
        Wire([first, reply("It is gone."), reply("A title")]) as wire,
        running(lab, wire, gateway=streaming),
    ):
        lab.say("clear it")
        asked(lab)
        growing, question = lab.shown()
        assert growing.startswith("Let me clear that away.")
        assert question.endswith("is a no).")
        lab.say("ok")
        until(lambda: lab.shown() == ["Let me clear that away.\n\nIt is gone.", question], str(lab.shown()))
        assert not precious.exists()


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        *[(text, True) for text in ("yes", " Yes. ", "Y", "ok!", "ДА", "はい", "👍", "👍🏽", "👍🏿️", "/approve")],
        *[(text, False) for text in ("no", "No!", "NEIN", "👎🏻", "❌", "/deny")],
        *[(text, None) for text in ("yes, but first explain", "", "maybe", "not yes", "yesno", "/stop", "🏽")],
    ],
)
def test_answers_are_read_strictly(text: str, answer: Any) -> None:
    assert read_answer(text) is answer
