"""A reply context of an event reaches every message that answers the event, also after a restart, and nothing else."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from hermes.gateway.adapter import Link
from hermes.gateway.events import Chat, Event, context_of, destination, from_json
from hermes.gateway.settings import Timings
from hermes.store.api.session_db import SessionDB
from hermes.store.gateway import approvals, inbox, outbox
from tests.support.echo import Echo
from tests.support.gateway import Clock, running
from tests.support.labs.base import until
from tests.support.labs.plain import ForgetfulLab, LettersLab, Plain, PlainLab
from tests.support.sizes import some

LABS = {"edits and nonces": PlainLab, "edits": ForgetfulLab, "neither": LettersLab}


@pytest.fixture(params=some(list(LABS), 1))
def lab(request: pytest.FixtureRequest) -> Iterator[PlainLab]:
    made = LABS[request.param]()
    yield made
    made.close()


def token(number: int) -> dict[str, Any]:
    return {"token": f"ctx-{number}", "until": 1_900_000_000 + number}


def contexts(lab: PlainLab, words: str) -> list[dict[str, Any] | None]:
    """The contexts of the messages with these words."""
    return [one["context"] for one in lab.messages.values() if words in one["text"]]


def rows(home: Path) -> str:
    """Everything in the gateway's tables, the messages and the sessions."""
    with closing(sqlite3.connect(home / "state.db")) as db:
        names = [row[0] for row in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        wanted = [name for name in names if name.startswith("gateway_") or name in ("messages", "sessions")]
        return "\n".join(str(row) for name in wanted for row in db.execute(f"SELECT * FROM {name}"))


def test_each_part_of_each_reply_has_the_context_of_its_own_event(
    lab: PlainLab, model: Echo, hermes_home: Path
) -> None:
    with running(lab, model, display={"busy": "queue"}) as gateway:
        lab.say("long=2500", context=token(1))
        until(lambda: "Paragraph 13" in "".join(lab.shown()) and "▉" not in "".join(lab.shown()))
        parts = len(lab.messages)
        assert parts >= 3
        assert [one["context"] for one in lab.messages.values()] == [token(1)] * parts
        lab.say("the second", context=token(2))
        until(lambda: contexts(lab, "the second") == [token(2)])
        lab.say("without one")
        until(lambda: contexts(lab, "without one") == [None])
        until(lambda: not gateway.store.read(outbox.unsent) and not gateway.store.read(inbox.waiting))
    assert "ctx-" not in rows(hermes_home)  # nothing of it is kept once it is not needed


def test_commands_questions_and_pairing_codes_answer_their_event(plain: PlainLab, model: Echo, tmp_path: Path) -> None:
    with running(plain, model):
        plain.say("/status", context=token(1))
        until(lambda: token(1) in contexts(plain, ""))
        plain.say("who am I", who="mallory", context=token(2))
        until(lambda: contexts(plain, "hermes pairing approve") == [token(2)])
        plain.say(f'call=terminal {{"command": "rm {tmp_path}/x"}}', context=token(3))
        until(lambda: contexts(plain, "Reply **yes** or **no**") == [token(3)])
        plain.say("no", context=token(4))
        until(lambda: contexts(plain, "the tool said") == [token(3)])
        assert token(4) not in contexts(plain, "")  # the answer to a question gets no answer of its own


def test_the_context_survives_a_restart_with_the_reply_and_with_the_event(lab: PlainLab, model: Echo) -> None:
    with running(lab, model, timings=Timings(turns_end=0.5)) as gateway:
        lab.say("first", context=token(1))
        lab.fail(times=10_000)
        until(lambda: gateway.store.read(outbox.unsent))  # the reply waits in the outbox
        lab.say("slow=3 second", where="group", context=token(2))
        until(lambda: gateway.turns.running)  # the event waits in the inbox
    assert lab.messages == {}
    with lab._lock:
        lab._failures = 0
    with running(lab, model):
        until(lambda: contexts(lab, "first") == [token(1)], str(lab.messages))
        until(lambda: contexts(lab, "second") == [token(2)], str(lab.messages))


def test_a_part_that_was_given_up_keeps_its_text_but_not_the_context(
    plain: PlainLab, model: Echo, hermes_home: Path
) -> None:
    with running(plain, model) as gateway:
        plain.refuses = "the window is over"
        plain.say("too late", context=token(1))
        until(lambda: gateway.store.mail_counts().get("plain", {}).get("failed") == 1)
    kept = rows(hermes_home)
    assert "the window is over" in kept and "echo: too late" in kept and "ctx-" not in kept


def test_a_handoff_and_a_notice_elsewhere_have_no_context(plain: PlainLab, model: Echo, hermes_home: Path) -> None:
    with SessionDB(hermes_home / "state.db") as db:
        db.create_session("20260101_000000_abcdef", "cli")
        db.append_message("20260101_000000_abcdef", "user", "about tulips")
    plain.no_threads = True
    with running(plain, model) as gateway:
        plain.say("/sethome", context=token(1))
        until(lambda: gateway.store.read(approvals.home, "plain"))
        assert "ctx-" not in str(gateway.store.read(approvals.home, "plain"))
        assert gateway.db.request_handoff("20260101_000000_abcdef", "plain")
        until(lambda: gateway.db.get_handoff_state("20260101_000000_abcdef")["state"] == "completed")
        assert contexts(plain, "")[0] == token(1)
        assert set(map(str, contexts(plain, "")[1:])) == {"None"} and len(plain.messages) > 1


class Old(Plain):
    """An adapter written before there were reply contexts."""

    platform = "old"
    title = "Old"

    async def send(self, chat: Chat, text: str, *, nonce: str, reply_to: str | None = None) -> str:
        return await super().send(chat, text, nonce=nonce, reply_to=reply_to)

    async def connect(self, link: Link) -> None:
        await super().connect(link)


class OldLab(PlainLab):
    platform = "old"
    adapter = Old


def test_an_adapter_of_the_old_signature_works(model: Echo) -> None:
    lab = OldLab()
    try:
        with running(lab, model, clock=Clock()):
            lab.say("hello")
            until(lambda: lab.shown() == ["echo: hello"])
            lab.say("/title a name")
            until(lambda: any("a name" in text for text in lab.shown()))
    finally:
        lab.close()


def test_a_destination_is_a_chat_to_any_reader() -> None:
    chat = Chat(platform="plain", chat_id="7", type="group", thread_id='a "reply_context" b')
    assert context_of(destination(chat)) is None
    stored = destination(chat, {"url": "https://e.org/?a=1", "n": [1, {"two": None}]})
    assert from_json(stored, Chat) == chat
    assert context_of(stored) == {"url": "https://e.org/?a=1", "n": [1, {"two": None}]}
    assert (
        from_json('{"id":"1","chat":{"platform":"p","chat_id":"c"},"sender":{"proven":true}}', Event).reply_context
        is None
    )
