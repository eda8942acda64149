"""Conversations: one item at a time and in order in each, none waits for another, and a late item lets others pass."""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import dataclass
from typing import Any

import pytest

from hermes.gateway.flow.turns import Conversation, Turns
from tests.support.labs.base import until

pytestmark = pytest.mark.mechanism


@dataclass(eq=False)
class Item:
    name: str
    due: float = 0.0


def run(story: Any) -> None:
    asyncio.run(asyncio.wait_for(story(), 30))


def test_items_of_a_conversation_run_in_order_and_beside_those_of_others() -> None:
    order: list[str] = []
    first, second = threading.Event(), threading.Event()

    def work(talk: Conversation, item: Item) -> None:
        if item.name == "a0":
            first.set()
            assert second.wait(20)  # another conversation goes on meanwhile
        if item.name == "b0":
            assert first.wait(20)
            second.set()
        order.append(item.name)

    async def story() -> None:
        done: list[str] = []
        turns = Turns(work, lambda item: done.append(item.name))
        for name in ("a0", "a1", "b0", "a2", "b1"):
            turns.add(name[0], Item(name))
        while len(done) < 5:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0)
        assert list(turns) == [] and turns.running == []

    run(story)
    assert [one for one in order if one[0] == "a"] == ["a0", "a1", "a2"]
    assert [one for one in order if one[0] == "b"] == ["b0", "b1"]


def test_a_mistake_in_one_item_does_not_stop_the_next() -> None:
    done: list[str] = []

    def work(talk: Conversation, item: Item) -> None:
        talk.question = object()  # type: ignore[assignment]
        if item.name == "bad":
            raise ValueError("on purpose")
        assert talk.running is item

    async def story() -> None:
        turns = Turns(work, lambda item: done.append(item.name))
        turns.add("a", Item("bad"))
        turns.add("a", Item("good"))
        talk = turns.get("a")
        while len(done) < 2:
            await asyncio.sleep(0.01)
        assert talk is not None and talk.question is None

    run(story)
    assert done == ["bad", "good"]


def test_an_item_that_is_not_due_lets_others_pass() -> None:
    done: list[str] = []

    async def story() -> None:
        turns = Turns(lambda talk, item: None, lambda item: done.append(item.name))
        soon = time.monotonic() + 2  # on a busy machine the next lines take their time
        turns.add("a", Item("late", soon))
        turns.add("a", Item("later", soon + 0.01))
        await asyncio.sleep(0.05)
        turns.add("a", Item("command"))
        while len(done) < 3:
            await asyncio.sleep(0.01)

    run(story)
    assert done == ["command", "late", "later"]


def test_after_a_stop_nothing_begins_and_what_runs_goes_on() -> None:
    began, goes_on, ended = threading.Event(), threading.Event(), threading.Event()

    def work(talk: Conversation, item: Item) -> None:
        began.set()
        assert goes_on.wait(20)
        ended.set()
        assert item.name == "first"

    async def story() -> None:
        turns = Turns(work, lambda item: None)
        turns.add("a", Item("first"))
        turns.add("a", Item("second"))
        while not began.is_set():
            await asyncio.sleep(0.01)
        turns.stop()
        turns.add("b", Item("third"))
        assert [item.name for item in turns.running] == ["first"]
        goes_on.set()
        while turns.running:
            await asyncio.sleep(0.01)

    run(story)
    until(ended.is_set)
