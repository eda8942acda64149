"""Talking through `hermes web`: streaming, stop, confirmation of dangerous commands, the rules of leases, the audit log."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hermes_state import SessionDB
from tests.support.echo import Echo
from tests.support.page import Page, fill, talkative


@pytest.fixture(scope="module")
def model() -> Iterator[Echo]:
    with Echo() as echo:
        yield echo


@pytest.fixture(scope="module")
def home(model: Echo, tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("talk") / "home"
    talkative(home, model.base_url)
    fill(home)
    return home


@pytest.fixture(scope="module")
def page(home: Path) -> Iterator[Page]:
    with Page(home) as page:
        yield page


def said(home: Path, session_id: str) -> list[tuple[str, Any]]:
    with SessionDB(home / "state.db", read_only=True) as db:
        return [(row["role"], row["content"]) for row in db.get_messages(session_id)]


def audited(home: Path, session_id: str) -> list[tuple[str, str | None]]:
    with SessionDB(home / "state.db", read_only=True) as db:
        return [(one["action"], one["by"]) for one in reversed(db.audit_log(1000)) if one["session_id"] == session_id]


def test_a_new_conversation_is_streamed_stored_and_audited(home: Path, page: Page) -> None:
    begun = page.do("/api/talk", text="hello long=400 slow=0.4").json()
    events = list(page.turn(begun["turn"]))
    pieces = [event["text"] for event in events if event["kind"] == "text"]
    assert len(pieces) > 3 and events[-1] == {"kind": "done", "session": begun["session"], "interrupted": False}
    assert said(home, begun["session"]) == [("user", "hello long=400 slow=0.4"), ("assistant", "".join(pieces))]
    assert audited(home, begun["session"]) == [("turn", "hermes web")]
    with SessionDB(home / "state.db", read_only=True) as db:
        row = db.get_session(begun["session"])
        assert row is not None and row["source"] == "web"
        assert db.turn_holder(begun["session"]) is None
    again = page.do(f"/api/talk/{begun['session']}", text="again").json()
    assert list(page.turn(again["turn"]))[-1]["kind"] == "done"
    assert [role for role, _ in said(home, begun["session"])] == ["user", "assistant"] * 2
    assert list(page.turn(again["turn"])) == list(page.turn(again["turn"]))  # a page that comes later sees all of it


def test_stop_keeps_what_has_arrived(home: Path, page: Page) -> None:
    begun = page.do("/api/talk", text="long=2000 slow=60").json()
    last: dict[str, Any] = {}
    for event in page.turn(begun["turn"]):
        last = event
        if event["kind"] == "text":
            assert page.do(f"/api/stop/{begun['turn']}").status_code == 200
    assert last["kind"] == "done" and last["interrupted"] is True
    (_, question), (role, reply) = said(home, begun["session"])
    assert role == "assistant" and 0 < len(reply) < 2000 and question == "long=2000 slow=60"


def test_the_model_chosen_for_a_conversation_answers_here_as_well(home: Path, page: Page, model: Echo) -> None:
    begun = page.do("/api/talk", text="hello").json()
    assert list(page.turn(begun["turn"]))[-1]["kind"] == "done"
    used = []
    for choice in ("other", ""):  # /model other, /model default
        with SessionDB(home / "state.db") as db:
            db.choose_model(begun["session"], choice)
        again = page.do(f"/api/talk/{begun['session']}", text="once more").json()
        assert list(page.turn(again["turn"]))[-1]["kind"] == "done"
        asked = [one["model"] for one in model.requests if one["messages"][-1]["content"] == "once more"]
        used.append(asked[-1])  # the title is asked for at any time
    assert used == ["other", "echo"]


@pytest.mark.parametrize("yes", [True, False])
def test_a_dangerous_command_is_asked_about(home: Path, page: Page, yes: bool, tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    begun = page.do("/api/talk", text=f'call=terminal {{"command": "rm -rf {tmp_path}/precious"}}').json()
    kinds = []
    for event in page.turn(begun["turn"]):
        kinds.append(event["kind"])
        if event["kind"] == "question":
            assert "rm -rf" in event["text"] and (tmp_path / "precious").exists()
            assert page.do(f"/api/answer/{begun['turn']}", question="another", yes=True).status_code == 409
            told = {"question": event["id"], "yes": yes}
            assert page.do(f"/api/answer/{begun['turn']}", **told).status_code == 200
            assert page.do(f"/api/answer/{begun['turn']}", **told).status_code == 409
    assert (tmp_path / "precious").exists() is not yes
    assert next(one for one in kinds if one != "notice") == "tool" and "result" in kinds and kinds[-1] == "done"
    assert audited(home, begun["session"]) == [("turn", "hermes web"), ("allow" if yes else "decline", "hermes web")]


def test_a_question_ends_with_the_turn(page: Page, home: Path, tmp_path: Path) -> None:
    begun = page.do("/api/talk", text=f'call=terminal {{"command": "rm -rf {tmp_path}"}}').json()
    for event in page.turn(begun["turn"]):
        if event["kind"] == "question":
            page.do(f"/api/stop/{begun['turn']}")
    assert tmp_path.exists() and audited(home, begun["session"])[-1][0] == "decline"


def test_while_another_process_is_answering_nothing_is_sent(home: Path, page: Page) -> None:
    before = said(home, "s1")
    with SessionDB(home / "state.db") as db:
        token = db.take_turn("s1", "elsewhere:1:x:telegram", 60.0)
        assert page.get("/api/running/s1") == {"turn": None, "other": "telegram"}
        refused = page.do("/api/talk/s1", text="me too")
        assert refused.status_code == 409 and "telegram" in refused.json()["error"]
        assert said(home, "s1") == before
        db.release_lease("session:s1", token)
    begun = page.do("/api/talk/s1", text="now").json()
    assert list(page.turn(begun["turn"]))[-1]["kind"] == "done"
    assert said(home, "s1") == [*before, ("user", "now"), ("assistant", "echo: now")]


def test_one_turn_at_a_time_in_a_conversation_and_a_second_tab_finds_it(home: Path, page: Page) -> None:
    begun = page.do("/api/talk/media", text="long=2000 slow=60").json()
    assert page.get("/api/running/media")["turn"] == begun["turn"]
    refused = page.do("/api/talk/media", text="again")
    assert refused.status_code == 409 and "this page" in refused.json()["error"]
    page.do(f"/api/stop/{begun['turn']}")
    assert list(page.turn(begun["turn"]))[-1]["kind"] == "done"
    assert page.get("/api/running/media")["turn"] is None
    assert [content for _, content in said(home, "media")].count("again") == 0


def test_a_compressed_conversation_goes_on_at_its_end(home: Path, page: Page) -> None:
    begun = page.do("/api/talk/old", text="from an old part").json()
    assert begun["session"] == "new"
    list(page.turn(begun["turn"]))
    assert said(home, "new")[-2:] == [("user", "from an old part"), ("assistant", "echo: from an old part")]


def test_what_can_not_be_sent_is_said(home: Path, page: Page, model: Echo) -> None:
    assert page.do("/api/talk", text="  ").status_code == 400
    assert page.do("/api/talk/nothing", text="hi").status_code == 404
    assert next(page.events(turn="nothing")) == ("turn=nothing", None)
    assert page.do("/api/stop/nothing").status_code == 404
    model.refuses["echo"] = 401
    try:
        begun = page.do("/api/talk", text="no key").json()
        last = list(page.turn(begun["turn"]))[-1]
    finally:
        del model.refuses["echo"]
    assert last["kind"] == "error" and last["text"]
    assert said(home, begun["session"])[0] == ("user", "no key")


def test_a_server_that_ends_keeps_the_reply_so_far(home: Path) -> None:
    with Page(home) as page:
        begun = page.do("/api/talk", text="long=2000 slow=60").json()
        assert next(event for event in page.turn(begun["turn"]) if event["kind"] == "text")
        page.process.terminate()
        page.process.wait(20)
    roles = [role for role, _ in said(home, begun["session"])]
    assert roles == ["user", "assistant"]
    with SessionDB(home / "state.db", read_only=True) as db:
        assert db.turn_holder(begun["session"]) is None
