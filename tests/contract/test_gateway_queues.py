"""The gateway's inbox and outbox on every engine: what is stored of a message and for how long."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hermes.gateway.events import Chat, Choice, FileReference, choices_of, context_of, destination, file_of, from_json
from hermes.store.gateway import inbox, outbox
from hermes.store.gateway.gateway_db import GatewayDB
from tests.support.gateway import received

pytestmark = pytest.mark.mechanism

CHAT = Chat(platform="plain", chat_id="7", account="work")


def stored(gateway: GatewayDB) -> list[dict[str, Any]]:
    with gateway._store.read() as tx:
        return [json.loads(row[0]) for row in tx.rows("SELECT chat FROM gateway_outbox ORDER BY id")]


def test_it_is_there_until_the_message_is_sent_or_given_up(db: Any) -> None:
    gateway = GatewayDB(db)
    context, buttons = {"token": 'a "quoted" one'}, [Choice(label="Yes", says="yes")]
    first = gateway.post("plain/work", destination(CHAT, context, choices=buttons), "one", "n1")
    second = gateway.post("plain/work", destination(CHAT, context), "two", "n2")
    found = gateway.read(outbox.unsent)
    assert [context_of(part.chat) for part in found] == [context, context]
    assert choices_of(found[0].chat) == buttons and from_json(found[0].chat, Chat) == CHAT
    gateway.write(outbox.sent, first.id, "m1", first.chat)
    gateway.write(outbox.unsendable, second.id, "too late")
    assert stored(gateway) == [{"platform": "plain", "chat_id": "7", "account": "work"}] * 2
    assert gateway.read(outbox.unsent) == []


def test_a_file_is_queued_once_with_what_is_said_about_it(db: Any) -> None:
    gateway = GatewayDB(db)
    kept = db.keep_attachment(b"bytes")
    file = FileReference(kind="file", name="a.bin", mime="application/octet-stream", attachment=kept)
    parts = [(destination(CHAT, None, file), "", "f1"), (destination(CHAT), "a long caption", "f1-0")]
    assert [part.nonce for part in gateway.post_file("plain/work", kept, parts)] == ["f1", "f1-0"]
    assert gateway.post_file("plain/work", kept, parts) == []
    assert [file_of(part.chat) for part in gateway.read(outbox.unsent)] == [file, None]
    assert gateway.attachment(kept) == b"bytes"
    assert gateway.attachment("attachment:sha256:" + "0" * 64) is None
    assert gateway.attachment("no reference") is None


def test_what_holds_a_sessions_words_is_not_sent_once_that_is_shredded(db: Any) -> None:
    gateway = GatewayDB(db)
    for name in ("gone_1", "goneX1"):
        db.create_session(name, "plain")
        db.append_message(name, "user", "hello")
    kept = [db.keep_attachment(name.encode()) for name in ("gone_1", "goneX1")]
    files = [FileReference(kind="file", name="a.md", mime="text/markdown", attachment=one) for one in kept]
    for name, file in zip(("gone_1", "goneX1"), files, strict=True):
        parts = [(destination(CHAT, {"t": 1}, file, session=name), "its title", f"f-{name}")]
        gateway.post_file("plain/work", file.attachment, parts)
        db.append_message(name, "tool", f"sent {file.attachment}")
    said = gateway.post("plain/work", destination(CHAT, session="gone_1"), "its history", "n1")
    assert all(gateway.read(outbox.is_waiting, part.id) for part in gateway.read(outbox.unsent))
    assert db.shred_session("gone_1")["unfinished"] == []
    assert [part.nonce for part in gateway.read(outbox.unsent)] == ["f-goneX1"]
    assert not gateway.read(outbox.is_waiting, said.id)
    assert [gateway.attachment(one) for one in kept] == [None, b"goneX1"]
    texts = [
        (row["text"], "session" in row["chat"]) for row in db.sql("SELECT text, chat FROM gateway_outbox ORDER BY id")
    ]
    assert texts == [(None, False), ("its title", True), (None, False)]


def test_what_could_not_be_sent_is_shredded_with_its_session(db: Any) -> None:
    gateway = GatewayDB(db)
    db.create_session("gone", "plain")
    db.append_message("gone", "user", "hello")
    part = gateway.post("plain/work", destination(CHAT, {"t": 1}, session="gone"), "its history", "n1")
    gateway.write(outbox.unsendable, part.id, "too late")
    assert [row["text"] for row in db.sql("SELECT text FROM gateway_outbox")] == ["its history"]
    assert "reply_context" not in stored(gateway)[0]
    remove(db, "shred_session", "gone")
    assert [row["text"] for row in db.sql("SELECT text FROM gateway_outbox")] == [None]
    assert stored(gateway) == [{"platform": "plain", "chat_id": "7", "account": "work"}]


def remove(db: Any, way: str, session_id: str) -> None:
    """Delete or shred it."""
    assert getattr(db, way)(session_id)


# ------------------------------------------------------------------ events


def waiting(store: GatewayDB) -> list[str]:
    return [json.loads(one.event)["text"] for one in store.read(inbox.waiting)]


def test_an_event_deleted_before_it_came_is_never_answered(db: Any) -> None:
    store = GatewayDB(db)
    assert store.write(inbox.keep_deletion, "plain", "e1")
    assert received(store, "plain", "e1", "key", json.dumps({"text": "old"})) is None
    assert received(store, "other", "e1", "key", json.dumps({"text": "of another platform"})) is not None
    assert waiting(store) == ["of another platform"]


def test_what_has_come_is_not_early(db: Any) -> None:
    store = GatewayDB(db)
    received(store, "plain", "e1", "key", json.dumps({"text": "old"}))
    assert not store.write(inbox.keep_deletion, "plain", "e1")
    assert waiting(store) == ["old"]


def test_the_events_of_a_platforms_last_day_stay_known_however_long_ago_that_was(db: Any) -> None:
    """After a quiet month an adapter asks for what came since its last message, and a little before it."""
    now = [1_000_000.0]
    gateway = GatewayDB(db, clock=lambda: now[0])

    def happened(platform: str, name: str) -> None:
        number = received(gateway, platform, name, "k", "{}")
        assert number is not None
        gateway.finish(number, platform, "{}")

    happened("plain", "old")
    happened("busy", "old")
    now[0] += 2 * 86400
    happened("plain", "last")
    gateway.write(inbox.note, "plain", "edit")
    now[0] += 30 * 86400
    happened("busy", "new")
    gateway.forget_mail()
    known = {
        (platform, name) for platform in ("plain", "busy") for name in ("old", "last", "edit", "new")
        if gateway.read(inbox.is_noted, platform, name)
    }  # fmt: skip
    assert known == {("plain", "last"), ("busy", "new")}


def test_the_newest_row_is_not_forgotten(db: Any) -> None:
    """Numbers go on from it: a reply that had the name of an old one would be taken for it by the platform."""
    now = [1000.0]
    store = GatewayDB(db, clock=lambda: now[0])
    numbers = []
    for n in range(3):
        number = received(store, "plain", f"e{n}", "k", "{}")
        assert number is not None
        numbers.append(number)
        store.finish(number, "plain", "{}", [{"text": "hello", "nonce": f"n{n}"}])
    parts = store.read(outbox.unsent)
    assert len(parts) == 3
    for part in parts:
        store.write(outbox.unsendable, part.id, "not to be sent")
    now[0] += 30 * 86400
    assert store.forget_mail(last_days=-1) == 4
    again = received(store, "plain", "another", "k", "{}")
    assert again is not None and again > max(numbers)
    assert store.post("plain", "{}", "x", "nonce").id > max(part.id for part in parts)
