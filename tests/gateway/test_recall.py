"""A fact from another program's history answers a question in a chat, without a tool call."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.interop.test_claude_code import NAME, replied, said
from tests.support.gateway import running
from tests.support.labs.base import until
from tests.support.labs.telegram import Lab
from tests.support.program import run
from tests.support.wire import Answer, Wire
from tests.support.wire import said as answered

QUESTION = "Which database did we choose for the parser cache?"


def _import(home: Path, folder: Path) -> None:
    file = folder / f"{NAME}.jsonl"
    told = [{"type": "text", "text": "For the parser cache we choose DuckDB: SQLite locked under load."}]
    lines = [said("u1", None, "What should the parser cache be stored in?", 1), replied("a1", "u1", "msg_1", told, 2)]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    imported = run("sessions", "import", str(file), home=home)
    assert imported.status == 0, imported.err


def _knows(request: dict[str, Any]) -> Answer:
    """A model that knows only what it is sent."""
    return answered("It was DuckDB." if "DuckDB" in json.dumps(request["messages"]) else "I can't tell.")


@pytest.mark.parametrize(("who", "answer"), [("alice", "It was DuckDB."), ("bob", "I can't tell.")])
def test_a_fact_from_claude_code_answers_the_owner_in_telegram(
    hermes_home: Path, tmp_path: Path, who: str, answer: str
) -> None:
    _import(hermes_home, tmp_path)
    lab = Lab()
    try:
        with Wire(_knows) as model, running(lab, model) as gateway:
            lab.say(QUESTION, who=who)
            until(lambda: answer in lab.shown(who=who), str(lab.shown(who=who)))
            (session,) = gateway.db.list_sessions_rich(source="telegram")
            rows = gateway.db.get_messages(session["id"])
            assert [row["role"] for row in rows] == ["user", "assistant"] and rows[0]["content"] == QUESTION
            kinds = [event["kind"] for event in gateway.db.get_session_events(session["id"])]
            assert kinds == (["recalled"] if who == "alice" else [])
    finally:
        lab.close()


def test_nothing_is_recalled_where_others_read_and_off_lasts_in_a_chat(hermes_home: Path, tmp_path: Path) -> None:
    _import(hermes_home, tmp_path)
    lab = Lab()
    try:
        with Wire(_knows) as model:
            with running(lab, model):
                lab.say(QUESTION, where="group")
                until(lambda: lab.shown("group") == ["I can't tell."], str(lab.shown("group")))
                lab.say("/recall on", where="group")
                until(lambda: "direct chats" in lab.shown("group")[-1])
                lab.say("/recall off")
                until(lambda: any("off" in text for text in lab.shown()))
            with running(lab, model):
                lab.say(QUESTION)
                until(lambda: lab.shown()[-1] == "I can't tell.", str(lab.shown()))
                lab.say("/recall on")
                until(lambda: "on" in lab.shown()[-1])
                lab.say(f"And again: {QUESTION}")
                until(lambda: lab.shown()[-1] == "It was DuckDB.", str(lab.shown()))
    finally:
        lab.close()
