"""kill -9 in the middle of a turn, and another process goes on: nothing shown is lost, nothing is there twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hermes.agent.prompt import LOST
from hermes.agent.turn import Done, Notice, Text
from hermes.agent.turn_session import recover, recover_abandoned
from hermes.errors import StoreClosed
from hermes.store.leases import holder_name
from hermes.store.transcripts.drafts import Draft
from hermes_state import SessionDB
from tests.support.aimock import fixtures_of
from tests.support.sizes import some
from tests.support.wire import CUT, STALL, Wire, call, delta, end, said, sse

# A turn in a process of its own; each event is a line on stdout as soon as it is shown.
CHILD = """
import sys, time
from pathlib import Path
from hermes_state import SessionDB
from hermes.agent.models.endpoint import EndpointModel
from hermes.agent.loop import Agent
from hermes.agent.tools.tool import Tool
from hermes.config import Config

def sleepy(context, arguments):
    if arguments.get("long"):
        time.sleep(600)
    return "slept well"

tool = Tool("sleep", "sleeps", {"type": "object", "properties": {"long": {"type": "boolean"}}}, sleepy)
db = SessionDB(db_path=Path(sys.argv[1]))
agent = Agent(db, Config(), EndpointModel("fake", sys.argv[2], "key", 100_000), session_id="s1", tools=[tool])
for event in agent.turn(sys.argv[3]):
    print(type(event).__name__, repr(getattr(event, "text", "")), flush=True)
print("Over", flush=True)
"""


class Child:
    def __init__(self, database: Path, base_url: str, words: str) -> None:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(part for part in sys.path if part)}
        self.process = subprocess.Popen(
            [sys.executable, "-c", CHILD, str(database), base_url, words],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment,
        )  # fmt: skip

    def wait_for(self, kind: str, times: int = 1) -> list[tuple[str, str]]:
        """The events up to the n-th of a kind."""
        assert self.process.stdout is not None
        seen: list[tuple[str, str]] = []
        while sum(name == kind for name, _ in seen) < times:
            line = self.process.stdout.readline()
            assert line, f"the child ended before {kind}: {seen}"
            name, _, text = line.rstrip("\n").partition(" ")
            seen.append((name, eval(text) if text else ""))
        return seen

    def kill(self) -> list[tuple[str, str]]:
        """Kill it; what it had shown in the meantime."""
        self.process.send_signal(signal.SIGKILL)
        assert self.process.stdout is not None
        rest = [line.rstrip("\n").partition(" ") for line in self.process.stdout if line.endswith("\n")]
        self.process.wait()
        self.process.stdout.close()
        return [(name, eval(text) if text else "") for name, _, text in rest]


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "store" / "state.db"


def rows(db: Any) -> list[tuple[str, Any]]:
    return [(row["role"], row["content"]) for row in db.get_messages("s1")]


def shown(events: list[tuple[str, str]]) -> str:
    return "".join(text for name, text in events if name == "Text")


def test_no_word_that_was_shown_is_lost_and_the_next_process_goes_on(
    aimock: Any, make_agent: Any, database: Path
) -> None:
    text = " ".join(f"word{n}" for n in range(400))
    slow = {"match": {"userMessage": "tell"}, "response": {"content": text}, "chunkSize": 9, "latency": 25}
    server = aimock([slow, *fixtures_of("And they lived happily.")])
    child = Child(database, server.base_url, "tell me a story")
    events = child.wait_for("Text", 12)
    events += child.kill()
    assert ("Over", "") not in events

    with SessionDB(db_path=database) as db:
        assert rows(db) == [("user", "tell me a story")]
        agent = make_agent(server, db=db)
        resumed = list(agent.turn("go on"))
        assert resumed[-1] == Done("And they lived happily.")
        assert any("crash" in event.text for event in resumed if isinstance(event, Notice))
        assert not any("another program" in event.text for event in resumed if isinstance(event, Notice))
        assert db.is_live("s1")
        stored = rows(db)
        assert [role for role, _ in stored] == ["user", "assistant", "user", "assistant"]
        partial = stored[1][1]
        assert partial.startswith(shown(events))
        assert text.startswith(partial)
        assert db.get_messages("s1")[1]["finish_reason"] == "interrupted"
        sent = server.requests()[-1]["messages"][1:]
        assert [m["content"] for m in sent] == ["tell me a story", partial, "go on"]
        assert not any((database.parent / "drafts").iterdir())


def test_a_tool_that_was_running_is_said_to_be_lost_and_history_is_not_rewritten(
    make_agent: Any, database: Path
) -> None:
    calls = delta(tool_calls=[call("sleep", "{}", index=0, id="c0"), call("sleep", '{"long": true}', index=1, id="c1")])
    with Wire([sse(delta(content="Let me sleep."), calls, end("tool_calls")), said("Good morning.")]) as wire:
        child = Child(database, wire.base_url, "rest")
        child.wait_for("ToolFinished")
        child.kill()
        with SessionDB(db_path=database) as db:
            before = db.get_messages("s1")
            assert [row["role"] for row in before] == ["user", "assistant", "tool"]
            assert before[2]["content"] == "slept well"
            agent = make_agent(wire, db=db)
            assert list(agent.turn("awake?"))[-1] == Done("Good morning.")
            after = db.get_messages("s1")
            assert after[:3] == before
            assert [(row["role"], row["content"]) for row in after[3:]] == [
                ("user", "awake?"),
                ("assistant", "Good morning."),
            ]
        sent = wire.bodies[-1]["messages"][3:]
        assert [(m["tool_call_id"], m["content"]) for m in sent[:2]] == [("c0", "slept well"), ("c1", LOST)]


def test_a_question_whose_reply_never_began_is_still_there(make_agent: Any, database: Path) -> None:
    with Wire([sse(3600), said("Here.")]) as wire:
        child = Child(database, wire.base_url, "anybody?")
        while not wire.bodies:
            assert child.process.poll() is None
        child.kill()
        with SessionDB(db_path=database) as db:
            assert rows(db) == [("user", "anybody?")]
            assert list(make_agent(wire, db=db).turn("hello?"))[-1] == Done("Here.")
            assert [role for role, _ in rows(db)] == ["user", "user", "assistant"]
        assert [m["role"] for m in wire.bodies[-1]["messages"]] == ["system", "user", "assistant", "user"]


@pytest.mark.parametrize("pieces", some(range(1, 9), 3))
def test_killed_at_any_piece_the_record_is_whole(make_agent: Any, database: Path, pieces: int) -> None:
    parts = [part for n in range(8) for part in (delta(content=f"p{n} "), 0.02)]
    with Wire([sse(*parts, STALL), said("ok")]) as wire:
        child = Child(database, wire.base_url, "go")
        events = child.wait_for("Text", pieces)
        events += child.kill()
        with SessionDB(db_path=database) as db:
            list(make_agent(wire, db=db).turn("again"))
            stored = rows(db)
            assert [role for role, _ in stored] == ["user", "assistant", "user", "assistant"]
            assert stored[1][1].startswith(shown(events))
            assert db.check() == []


def test_killed_after_a_reply_began_anew_only_the_new_words_are_kept(make_agent: Any, database: Path) -> None:
    with Wire([sse(delta(content="old words, "), CUT), sse(delta(content="new words"), STALL)]) as wire:
        child = Child(database, wire.base_url, "go")
        child.wait_for("Text", 2)
        child.kill()
        with SessionDB(db_path=database) as db:
            make_agent(wire, db=db)
            assert rows(db) == [("user", "go"), ("assistant", "new words")]


def test_words_that_could_not_be_stored_are_stored_later(make_agent: Any, database: Path) -> None:
    with Wire([sse(delta(content="Precious "), delta(content="words."), end())]) as wire:
        db = SessionDB(db_path=database)
        agent = make_agent(wire, db=db)
        with pytest.raises(StoreClosed):
            for event in agent.turn("say it"):
                if isinstance(event, Text):
                    db.close()  # as a full disk would, from here on nothing can be stored
        with SessionDB(db_path=database) as again:
            make_agent(wire, db=again)
            assert rows(again) == [
                ("user", "say it")
            ]  # who heard them still holds the session, and may store them itself
            (lease,) = again.sql("SELECT token FROM leases WHERE name = 'session:s1'")
            again.release_lease("session:s1", lease["token"])
            make_agent(wire, db=again)
            assert rows(again) == [("user", "say it"), ("assistant", "Precious words.")]


# ── the draft itself ──


def begun(db: Any) -> Draft:
    db.create_session("s1", "cli")
    return db.drafts.begin("s1", after=db.append_message("s1", "user", "hi"), model="fake")


def test_a_living_process_keeps_its_draft(db: Any) -> None:
    draft = begun(db)
    token = db.take_turn("s1", holder_name("cli"))
    draft.write("Hel")
    assert not recover_abandoned(db, "s1")
    draft.close(keep=True)
    assert not recover_abandoned(db, "s1")  # it may still store the reply itself
    db.release_lease("session:s1", token)
    assert recover_abandoned(db, "s1")
    assert not recover_abandoned(db, "s1")  # once
    assert not db.is_live("s1")
    assert rows(db) == [("user", "hi"), ("assistant", "Hel")]


@pytest.mark.parametrize("meanwhile", ["stored after all", "question taken back"])
def test_a_reply_that_is_there_or_not_wanted_any_more_is_not_stored_again(db: Any, meanwhile: str) -> None:
    draft = begun(db)
    draft.write("Hello")
    if meanwhile == "stored after all":
        db.append_message("s1", "assistant", "Hello")
    else:
        db.rewind("s1", 0)
    before = rows(db)
    draft.close(keep=True)  # as if the process had died right here
    assert not recover(db, "s1")
    assert rows(db) == before


def test_a_deleted_session_takes_its_draft_along(db: Any) -> None:
    draft = begun(db)
    draft.write("private words")
    draft.close(keep=True)
    assert db.delete_session("s1")
    assert not any((Path(db.path).parent / "drafts").iterdir())


def test_a_recap_after_a_crash_already_shows_what_had_arrived(db: Any, make_agent: Any) -> None:
    draft = begun(db)
    draft.write("Hel")
    draft.close(keep=True)
    with Wire([said("ok")]) as wire:
        agent = make_agent(wire, db=db)
        assert rows(db) == [("user", "hi"), ("assistant", "Hel")]
        events = list(agent.turn("again"))
        assert any("crash" in event.text for event in events if isinstance(event, Notice))


@pytest.mark.parametrize(
    "content", [b"", b"{", b"{}\nhello", b'{"session": "other", "after": 1, "model": null}\nhello', b"\xff\n\xff"]
)
def test_a_damaged_draft_is_nothing(db: Any, content: bytes) -> None:
    draft = begun(db)
    draft.write("x")
    draft.close(keep=True)
    file = next((Path(db.path).parent / "drafts").iterdir())
    file.write_bytes(content)
    assert not recover(db, "s1")
    assert not file.exists()


def test_half_a_character_at_the_end_is_left_out(db: Any) -> None:
    draft = begun(db)
    draft.write("schön €")
    draft.close(keep=True)
    file = next((Path(db.path).parent / "drafts").iterdir())
    file.write_bytes(file.read_bytes()[:-1])
    assert recover(db, "s1")
    assert rows(db)[-1] == ("assistant", "schön ")
