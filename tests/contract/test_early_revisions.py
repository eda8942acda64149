"""An edit or a deletion that comes before its event counts when the event comes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hermes.store.gateway import inbox
from hermes.store.gateway.gateway_db import GatewayDB
from tests.support.gateway import received

pytestmark = pytest.mark.mechanism


def event(text: str, user: str = "alice", **more: Any) -> str:
    return json.dumps({"sender": {"user_id": user, **more}, "text": text, "quoted": "as it was"})


def waiting(store: GatewayDB) -> list[dict[str, Any]]:
    return [json.loads(one.event) for one in store.read(inbox.waiting)]


def test_an_early_edit_by_the_same_sender_replaces_the_words(db: Any) -> None:
    store = GatewayDB(db)
    assert store.write(inbox.keep_early, "plain", "c1", "e1", event("new"))
    assert store.write(inbox.keep_early, "plain", "c2", "e1", event("newest"))
    assert store.write(inbox.keep_early, "plain", "c3", "e2", event("of another", user="bob"))
    assert store.write(inbox.keep_early, "other", "c4", "e3", event("of another platform"))
    assert store.read(inbox.is_noted, "plain", "c1") and waiting(store) == []
    for name in ("e1", "e2", "e3"):
        assert received(store, "plain", name, "key", event("old")) is not None
    assert [one["text"] for one in waiting(store)] == ["newest", "old", "old"]
    assert all(one["quoted"] == "as it was" for one in waiting(store))


def test_an_event_deleted_before_it_came_is_never_answered(db: Any) -> None:
    store = GatewayDB(db)
    assert store.write(inbox.keep_early, "plain", "c1", "e1", event("new"))
    assert store.write(inbox.keep_early, "plain", "d1", "e1", None)
    assert received(store, "plain", "e1", "key", event("old")) is None
    assert waiting(store) == []


def test_what_has_come_is_not_early(db: Any) -> None:
    store = GatewayDB(db)
    received(store, "plain", "e1", "key", event("old"))
    assert not store.write(inbox.keep_early, "plain", "d1", "e1", None)
    assert not store.read(inbox.is_noted, "plain", "d1")
    assert [one["text"] for one in waiting(store)] == ["old"]
