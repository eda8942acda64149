"""A Telegram group becomes a supergroup, which has another id: its conversations go on there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("telegram", reason="needs python-telegram-bot")

from tests.support.echo import Echo
from tests.support.gateway import running
from tests.support.labs.base import until
from tests.support.labs.telegram import Lab, person

OLD, NEW = -4711, -1009000000001


@pytest.fixture
def lab() -> Iterator[Lab]:
    made = Lab()
    yield made
    made.close()


def told(lab: Lab, chat: dict[str, Any], **fields: Any) -> None:
    lab.post({"chat": chat, "from": person("alice"), **fields}, where="group", message_thread_id=None,
             is_topic_message=None, reply_to_message=None)  # fmt: skip


def asked(model: Echo, words: str) -> list[str]:
    """The messages of the request to the model that ends with these words, once it was made."""

    def shown() -> list[str]:
        found = [one["messages"] for one in model.requests if str(one["messages"][-1]["content"]).endswith(words)]
        return [str(message["content"]) for message in found[0]] if found else []

    return list(until(shown))


@pytest.mark.parametrize("side", ["old", "new", "both"])
def test_a_group_that_becomes_a_supergroup_keeps_its_conversation(lab: Lab, model: Echo, side: str) -> None:
    old = {"id": OLD, "type": "group", "title": "The Lab"}
    new = {"id": NEW, "type": "supergroup", "title": "The Lab"}
    with running(lab, model, platforms={"telegram": {"require_mention": False}}) as gateway:
        told(lab, old, text="before the move")
        asked(model, "before the move")
        (row,) = gateway.db.list_sessions_rich(source="telegram")
        until(lambda: not gateway.db.is_live(row["id"]))
        if side in ("old", "both"):
            told(lab, old, migrate_to_chat_id=NEW)
        if side in ("new", "both"):
            told(lab, new, migrate_from_chat_id=OLD)
        told(lab, new, text="after the move")
        assert any("before the move" in content for content in asked(model, "after the move"))
        assert [one["id"] for one in gateway.db.list_sessions_rich(source="telegram")] == [row["id"]]
