"""Talking through `hermes web`: streaming, stop, confirmation of dangerous commands, the rules of leases, the audit log."""

from __future__ import annotations

import base64
import re
from pathlib import Path
from typing import Any

import pytest

from hermes_state import SessionDB
from tests.support.echo import Echo
from tests.support.page import SVG, Page, png


def said(home: Path, session_id: str) -> list[tuple[str, Any]]:
    with SessionDB(home / "state.db", read_only=True) as db:
        return [(row["role"], row["content"]) for row in db.get_messages(session_id)]


def audited(home: Path, session_id: str) -> list[tuple[str, str | None]]:
    with SessionDB(home / "state.db", read_only=True) as db:
        return [(one["action"], one["by"]) for one in reversed(db.audit_log(1000)) if one["session_id"] == session_id]


def test_a_new_conversation_is_streamed_stored_and_audited(home: Path, page: Page) -> None:
    begun = page.do("/api/talk", text="hello long=60 slow=20").json()
    events = list(page.turn(begun["turn"]))
    assert events[0]["kind"] == "html"
    assert events[-1] == {"kind": "done", "session": begun["session"], "interrupted": False}
    question, (role, reply) = said(home, begun["session"])
    assert question == ("user", "hello long=60 slow=20") and role == "assistant" and len(reply) > 50
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
        if event["kind"] == "html":
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


def test_the_reply_so_far_comes_as_html_and_ends_as_the_message_is_stored(home: Path, page: Page) -> None:
    begun = page.do("/api/talk", text="long=4000 slow=2").json()
    blocks: list[str] = []
    for event in page.turn(begun["turn"]):
        if event["kind"] == "html":
            assert event["from"] <= len(blocks)
            blocks[event["from"] :] = event["blocks"]
    stored = page.get(f"/api/messages/{begun['session']}")["messages"][-1]["html"]
    assert len(blocks) > 3 and stored.startswith("".join(blocks[:-1]))


def test_another_model_of_the_endpoint_is_chosen_and_kept(home: Path, page: Page, model: Echo) -> None:
    model.models = ["echo", "other"]
    assert page.get("/api/models") == {"models": ["echo", "other"], "model": "echo"}
    begun = page.do("/api/talk", text="hello", model="other").json()
    assert list(page.turn(begun["turn"]))[-1]["kind"] == "done"
    with SessionDB(home / "state.db") as db:
        assert db.chosen_model(begun["session"]) == "other"
        assert page.get(f"/api/models/{begun['session']}")["model"] == "other"
        assert page.do(f"/api/models/{begun['session']}", model="echo").json()["model"] == "echo"
        assert not db.chosen_model(begun["session"])
        assert page.do(f"/api/models/{begun['session']}", model="nothing").status_code == 400
        assert not db.chosen_model(begun["session"])
    assert [action for action, _ in audited(home, begun["session"])] == ["model", "turn", "model"]


def test_an_edited_message_is_sent_in_a_branch(home: Path, page: Page) -> None:
    begun = page.do("/api/talk", text="first").json()
    list(page.turn(begun["turn"]))
    again = page.do(f"/api/talk/{begun['session']}", text="second").json()
    list(page.turn(again["turn"]))
    before = said(home, begun["session"])
    ids = [one["id"] for one in page.get(f"/api/messages/{begun['session']}")["messages"]]
    for number, kept in ((2, before[:2]), (0, [])):
        edited = page.do(f"/api/talk/{begun['session']}", text="better", instead_of=ids[number]).json()
        assert list(page.turn(edited["turn"]))[-1]["kind"] == "done"
        assert edited["session"] != begun["session"]
        assert said(home, edited["session"]) == [*kept, ("user", "better"), ("assistant", "echo: better")]
        assert page.get(f"/api/session/{edited['session']}")["parent"] == begun["session"]
    assert said(home, begun["session"]) == before
    for wrong in (ids[1], 10**9):  # a reply, and no message at all
        assert page.do(f"/api/talk/{begun['session']}", text="better", instead_of=wrong).status_code == 400


def test_another_reply_and_the_earlier_one_back(home: Path, page: Page) -> None:
    begun = page.do("/api/talk", text="hello").json()
    list(page.turn(begun["turn"]))
    place = f"/api/messages/{begun['session']}"
    first = page.get(place)["messages"][-1]["id"]
    again = page.do(f"/api/talk/{begun['session']}", again=True).json()
    assert list(page.turn(again["turn"]))[-1]["kind"] == "done"
    assert said(home, begun["session"]) == [("user", "hello"), ("assistant", "echo: hello")]
    told = page.get(place)
    assert told["messages"][-1]["id"] != first and told["undone"] == 1
    (undone,) = page.get(f"/api/undone/{begun['session']}")["messages"]
    assert undone["id"] == first and page.client.get(undone["said"]).text == "echo: hello"
    assert page.client.get(f"/text/{first}").status_code == 404
    assert page.do(f"/api/do/redo/{begun['session']}").json() == {"done": 1}
    told = page.get(place)
    assert told["messages"][-1]["id"] == first and told["undone"] == 1
    assert ("redo", "hermes web") in audited(home, begun["session"])
    assert page.do("/api/talk", again=True).status_code == 400


def file(name: str, data: bytes, kind: str = "") -> dict[str, str]:
    return {"name": name, "type": kind, "data": base64.b64encode(data).decode()}


def test_files_go_with_a_message(home: Path, page: Page, model: Echo) -> None:
    files = [
        file("cat.png", png(), "image/png"),
        file("notes.txt", b"buy <milk>"),
        file("plan.pdf", b"%PDF-1.7 x", "application/pdf"),
    ]
    begun = page.do("/api/talk", text="what is this?", files=files).json()
    assert list(page.turn(begun["turn"]))[-1]["kind"] == "done"
    sent = next(one["messages"][-1]["content"] for one in model.requests if "image_url" in str(one["messages"]))
    text = "".join(part.get("text", "") for part in sent)
    assert "what is this?" in text and "buy <milk>" in text and "plan.pdf" in text
    assert [part["image_url"]["url"][:22] for part in sent if "image_url" in part] == ["data:image/png;base64,"]
    message = page.get(f"/api/messages/{begun['session']}")["messages"][0]
    assert message["html"].count("<img ") == 1 and 'alt="cat.png"' in message["html"]
    assert (
        'download="plan.pdf"' in message["html"]
        and "buy &lt;milk&gt;" in message["html"]
        and str(home) not in message["html"]
    )
    pdf = re.findall('href="(/attachment/[^"]*)" download="plan.pdf"', message["html"])
    assert page.client.get(pdf[0]).content == b"%PDF-1.7 x"
    assert page.client.get(f"/text/{message['id']}?said=1").text == "what is this?"
    edited = page.do(f"/api/talk/{begun['session']}", text="and now?", instead_of=message["id"]).json()
    list(page.turn(edited["turn"]))
    again = page.get(f"/api/messages/{edited['session']}")["messages"][0]["html"]
    assert (
        "and now?" in again
        and "what is this?" not in again
        and 'alt="cat.png"' in again
        and "buy &lt;milk&gt;" in again
    )


def test_files_that_can_not_be_sent_are_refused(page: Page, home: Path) -> None:
    before = [one["id"] for one in page.get("/api/sessions")["sessions"]]
    for wrong in ([{"name": "x"}], [3], "x", [{"name": "x", "data": "not base64!"}], [file("big", b"x" * 21_000_000)]):
        refused = page.do("/api/talk", text="see", files=wrong)
        assert refused.status_code in (400, 413) and refused.json()["error"]
    assert [one["id"] for one in page.get("/api/sessions")["sessions"]] == before
    begun = page.do("/api/talk", files=[file("a.svg", SVG, "image/svg+xml")]).json()
    list(page.turn(begun["turn"]))
    shown = page.get(f"/api/messages/{begun['session']}")["messages"][0]["html"]
    assert "<img" not in shown and "<svg" not in shown and 'download="a.svg"' in shown
    answer = page.client.get(re.findall('href="(/attachment/[^"]*)"', shown)[0])
    assert answer.headers["content-disposition"] == "attachment" and "svg" not in answer.headers["content-type"]


def test_a_conversation_is_not_trashed_while_a_reply_is_written(home: Path, page: Page) -> None:
    begun = page.do("/api/talk", text="long=2000 slow=60").json()
    for action in ("trash", "redo"):
        refused = page.do(f"/api/do/{action}/{begun['session']}")
        assert refused.status_code == 409 and "this page is answering" in refused.json()["error"]
    assert page.get(f"/api/session/{begun['session']}")["id"] == begun["session"]
    page.do(f"/api/stop/{begun['turn']}")
    assert list(page.turn(begun["turn"]))[-1]["kind"] == "done"
    assert page.do(f"/api/do/trash/{begun['session']}").status_code == 200
    with SessionDB(home / "state.db") as db:
        assert db.get_session(begun["session"]) is None and db.turn_holder(begun["session"]) is None


@pytest.mark.parametrize(
    ("call", "detail"), [('terminal {"command": "rm -rf HERE"}', ""), ('write_file {"path": "HERE", "content": "so be it"}', "so be it")]
)  # fmt: skip
def test_a_call_that_waits_for_the_user_says_so(home: Path, page: Page, tmp_path: Path, call: str, detail: str) -> None:
    session_id, call = f"waiting-{call[:5]}", call.replace("HERE", str(tmp_path / "x"))
    lost = {"id": "lost", "type": "function", "function": {"name": "terminal", "arguments": "{}"}}
    with SessionDB(home / "state.db") as db:
        db.create_session(session_id, "cli")
        db.append_message(session_id, "user", "before")
        db.append_message(session_id, "assistant", "", tool_calls=[lost])  # by a program that was killed
    begun = page.do(f"/api/talk/{session_id}", text=f"call={call}").json()

    def how() -> str:
        shown = "".join(one["html"] for one in page.get(f"/api/messages/{session_id}")["messages"])
        before, now = re.findall('class="state [a-z]*">([^<]*)<', shown)
        assert before == "no result"
        return str(now)

    for event in page.turn(begun["turn"]):
        if event["kind"] == "question":
            assert how() == "waits for permission" and detail in event["detail"]
            page.do(f"/api/answer/{begun['turn']}", question=event["id"], yes=False)
    assert how() == "declined"


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
        seen = page.get("/api/session/s1")
        assert (seen["turn"], seen["other"]) == (None, "telegram")
        refused = page.do("/api/talk/s1", text="me too")
        assert refused.status_code == 409 and "telegram" in refused.json()["error"]
        assert said(home, "s1") == before
        db.release_lease("session:s1", token)
    begun = page.do("/api/talk/s1", text="now").json()
    assert list(page.turn(begun["turn"]))[-1]["kind"] == "done"
    assert said(home, "s1") == [*before, ("user", "now"), ("assistant", "echo: now")]


def test_one_turn_at_a_time_in_a_conversation_and_a_second_tab_finds_it(home: Path, page: Page) -> None:
    begun = page.do("/api/talk/media", text="long=2000 slow=60").json()
    assert page.get("/api/session/media")["turn"] == begun["turn"]
    refused = page.do("/api/talk/media", text="again")
    assert refused.status_code == 409 and "this page" in refused.json()["error"]
    page.do(f"/api/stop/{begun['turn']}")
    assert list(page.turn(begun["turn"]))[-1]["kind"] == "done"
    assert page.get("/api/session/media")["turn"] is None
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
        assert next(event for event in page.turn(begun["turn"]) if event["kind"] == "html")
        page.process.terminate()
        page.process.wait(120)
    roles = [role for role, _ in said(home, begun["session"])]
    assert roles == ["user", "assistant"]
    with SessionDB(home / "state.db", read_only=True) as db:
        assert db.turn_holder(begun["session"]) is None
