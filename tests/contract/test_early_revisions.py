"""A message that is deleted before it arrives is not answered."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hermes.store.gateway import inbox
from hermes.store.gateway.gateway_db import GatewayDB
from tests.support.gateway import received

pytestmark = pytest.mark.mechanism


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
