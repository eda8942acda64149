"""The windows of ids in which a search looks: from the newest messages on, each below the one before."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes.store.engines.postgres.lexemes import SHIFTS, Widening, ranges, window

pytestmark = pytest.mark.mechanism

IDS = st.integers(0, 1 << 40)


@given(IDS, st.integers(1, 1 << 40))
def test_a_window_holds_at_least_the_newest_ids_and_names_the_stretches_they_lie_in(newest: int, length: int) -> None:
    found = window(newest, length)
    assert found.first <= max(0, newest - length + 1)
    if found.condition is None:
        assert found.first == 0
        return
    asked = set(found.condition.strip("()").split(" | "))
    for message_id in {newest, found.first, (newest + found.first) // 2, max(found.first, newest - length + 1)}:
        assert asked & set(ranges(message_id).split())
    if found.first:
        assert not asked & set(ranges(found.first - 1).split())
    assert newest - found.first < 8 * (length + (1 << SHIFTS[0]))  # and not much more


@given(IDS, st.integers(1, 5000), st.lists(st.integers(0, 50), max_size=40))
def test_windows_lie_below_each_other_until_enough_was_found_or_everything_was_looked_at(
    newest: int, needed: int, finds: list[int]
) -> None:
    widening = Widening(newest, needed)
    end, seen = newest + 1, 0
    for number, looked_at in enumerate(widening):
        assert widening.found < needed or number == 0
        assert looked_at.end == end
        assert looked_at.first < end
        asked = set((looked_at.condition or "").strip("()").split(" | "))
        for message_id in {looked_at.first, (looked_at.first + end) // 2, end - 1}:
            assert looked_at.condition is None or asked & set(ranges(message_id).split())
        end, seen = looked_at.first, seen + 1
        widening.found += finds[number] if number < len(finds) else 0
    assert (end == 0 or widening.found >= needed) and seen <= 32
