"""Search answers what people ask: recall@3 by session on the labelled set, however far the index has come."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.sizes import some

from .labelled import LIMIT, Found, ask, by_class, conversations, fill, questions, recall

GOAL = 0.9
GOAL_PER_CLASS = 0.6
STATES = some(["caught up", "just appended", "half indexed"], 2)

_asked: dict[tuple[str, str], list[Found]] = {}  # searching is the slow part: once per engine and state


def _store_in(state: str, db: Any) -> None:
    sessions = conversations()
    half = len(sessions) // 2
    fill(db, sessions[:half])
    if state == "half indexed":
        db.catch_up()
    fill(db, sessions[half:], first=half)
    if state == "caught up":
        db.catch_up()
        assert db.index_status()["pending"] == 0


@pytest.fixture
def found_in(engine: str, make_db: Callable[..., Any]) -> Callable[[str], list[Found]]:
    """found_in(state) → the answers to all questions of a store whose index is in that state."""

    def found(state: str) -> list[Found]:
        if (engine, state) not in _asked:
            db = make_db()
            _store_in(state, db)
            _asked[engine, state] = ask(db, questions())
        return _asked[engine, state]

    return found


@pytest.mark.parametrize("state", STATES)
def test_nine_of_ten_tuning_questions_are_answered(state: str, found_in: Callable[[str], list[Found]]) -> None:
    found = [one for one in found_in(state) if not one.question.held_out]
    missed = [f"[{one.question.kind}] {one.question.text}" for one in found if not one.answered]
    assert recall(found) >= GOAL, "\n".join(["missed:", *missed])


@pytest.mark.parametrize("state", STATES)
def test_nine_of_ten_held_out_questions_are_answered(state: str, found_in: Callable[[str], list[Found]]) -> None:
    found = [one for one in found_in(state) if one.question.held_out]
    # By class only: a held-out question that is read while tuning is no longer held out.
    per_class = {name: f"{recall(group):.2f}" for name, group in by_class(found).items()}
    assert recall(found) >= GOAL, f"recall by class: {per_class}"


@pytest.mark.parametrize("state", STATES)
def test_no_class_of_questions_is_left_behind(state: str, found_in: Callable[[str], list[Found]]) -> None:
    per_class = {name: recall(group) for name, group in by_class(found_in(state)).items()}
    assert {name: share for name, share in per_class.items() if share < GOAL_PER_CLASS} == {}


@pytest.mark.parametrize("state", STATES[1:])
def test_the_same_questions_are_answered_before_and_after_indexing(
    state: str, found_in: Callable[[str], list[Found]]
) -> None:
    pairs = zip(found_in(state), found_in("caught up"), strict=True)
    differing = [
        before.question.kind if before.question.held_out else before.question.text
        for before, after in pairs
        if before.answered != after.answered
    ]
    assert differing == []


@pytest.mark.parametrize("state", STATES[1:])
def test_the_same_messages_match_before_and_after_indexing(state: str, found_in: Callable[[str], list[Found]]) -> None:
    differing = []
    for before, after in zip(found_in(state), found_in("caught up"), strict=True):
        whole = [hit for hit in [*before.hits, *after.hits] if not hit["relaxed"]]
        if len(whole) < len(before.hits) + len(after.hits) or max(len(before.hits), len(after.hits)) >= LIMIT:
            continue  # relaxed answers and full pages are cut by rank, which the index may refine
        if {_place(hit) for hit in before.hits} != {_place(hit) for hit in after.hits}:
            differing.append(before.question.kind if before.question.held_out else before.question.text)
    assert differing == []


def _place(hit: dict[str, Any]) -> tuple[str, float]:
    """A message, named alike in both stores."""
    return hit["session_id"], hit["timestamp"]
