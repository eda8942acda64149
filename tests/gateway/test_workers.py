"""Lanes: in order within a key, side by side between keys, nobody waits for a stranger, and nothing is remembered for nothing."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from hermes.gateway.workers import Lane, Workers
from tests.support.labs.base import until


def test_one_long_piece_of_work_holds_up_no_other_lane() -> None:
    """Two lanes get something to do in the same moment while one thread is idle: both begin."""
    free, begun = threading.Event(), set()

    def work(lane: Lane, item: Any) -> None:
        begun.add(lane.key)
        if item == "long":
            free.wait(30)

    lanes = Workers(work)
    lanes.add("first", "short")
    until(lambda: not lanes.running and begun)  # now a thread is idle
    for number in range(20):
        lanes.add(f"a{number}", "long")
        lanes.add(f"b{number}", "long")
        until(lambda number=number: {f"a{number}", f"b{number}"} <= begun, 5, f"only {begun} began")
    free.set()
    lanes.stop()


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(0, 4), max_size=60), st.integers(1, 4))
def test_within_a_lane_everything_happens_in_order_and_one_at_a_time(keys: list[int], threads: int) -> None:
    done: dict[str, list[int]] = defaultdict(list)
    inside: dict[str, int] = defaultdict(int)
    overlaps = []

    def work(lane: Lane, item: Any) -> None:
        inside[lane.key] += 1
        if inside[lane.key] > 1:
            overlaps.append(lane.key)
        done[lane.key].append(item)
        time.sleep(0)
        inside[lane.key] -= 1

    lanes = Workers(work, most_threads=threads)
    wanted: dict[str, list[int]] = defaultdict(list)
    for number, key in enumerate(keys):
        lanes.add(str(key), number)
        wanted[str(key)].append(number)
    until(lambda: not lanes.busy)
    lanes.stop()
    assert done == wanted
    assert not overlaps


def test_beyond_the_last_thread_lanes_take_turns() -> None:
    order: list[str] = []
    gate = threading.Event()

    def work(lane: Lane, item: Any) -> None:
        gate.wait(10)
        order.append(lane.key)

    lanes = Workers(work, most_threads=1)
    for _ in range(3):
        lanes.add("busy", 0)
    lanes.add("quiet", 0)
    gate.set()
    until(lambda: len(order) == 4)
    lanes.stop()
    assert order.index("quiet") <= 1  # not behind all that "busy" has to do


def test_a_lane_goes_on_after_something_went_wrong() -> None:
    done: list[int] = []

    def work(lane: Lane, item: int) -> None:
        if item == 0:
            raise RuntimeError("on purpose")
        done.append(item)

    lanes = Workers(work)
    lanes.add("a", 0)
    lanes.add("a", 1)
    until(lambda: done == [1])
    lanes.stop()


def test_a_lane_in_which_nothing_happens_is_forgotten_and_threads_are_few() -> None:
    lanes = Workers(lambda lane, item: None, most_threads=4)
    for number in range(5000):
        lanes.add(str(number), number)
    until(lambda: not lanes.busy)
    assert lanes.busy == 0
    assert sum(1 for thread in threading.enumerate() if thread.name == "hermes-lane") <= 4 + 60  # others' tests idle on
    lanes.stop()


def test_after_a_stop_nothing_begins_and_what_runs_goes_on() -> None:
    free, begun, ended = threading.Event(), [], []
    others = set(threading.enumerate())

    def work(lane: Lane, item: str) -> None:
        begun.append(item)
        free.wait(30)
        ended.append(item)

    lanes = Workers(work)
    lanes.add("a", "running")
    lanes.add("a", "behind it")
    until(lambda: begun)
    lanes.stop()
    lanes.add("a", "late")
    lanes.add("b", "late elsewhere")
    free.set()
    until(lambda: not lanes.running)
    until(lambda: not [one for one in set(threading.enumerate()) - others if one.name == "hermes-lane"])
    assert begun == ended == ["running"]
