"""Importing many sessions of which some can't be taken, and counting sessions by source."""

from __future__ import annotations

from typing import Any

import pytest

from hermes.errors import InvalidInput, StoreClosed


def test_without_a_listener_the_first_bad_session_is_an_error_and_leaves_nothing_of_itself(db: Any) -> None:
    with pytest.raises(InvalidInput):
        db.import_sessions([{"id": "good", "source": "cli"}, {"id": "bad", "messages": "no list"}, {"id": "never"}])
    assert [session["id"] for session in db.iter_export()] == ["good"]


def test_with_a_listener_the_bad_ones_are_told_and_the_rest_comes_in(db: Any) -> None:
    told: list[tuple[str, str]] = []
    bad = [
        {"id": "list", "messages": "no list"}, {"id": "source", "source": ["cli"]}, {"id": "tags", "tags": [[]], "members": [["x"]]},
        {"id": "role", "messages": [{"content": "nobody said this"}]},
    ]  # fmt: skip
    good = {"id": "good", "source": "cli", "messages": [{"role": "user", "content": "hello"}]}
    counts = db.import_sessions(
        [*bad, good, good, {"id": "bare"}], refused=lambda data, error: told.append((data["id"], str(error)))
    )
    assert [name for name, _ in told] == ["list", "source", "tags", "role"] and all(reason for _, reason in told)
    assert counts == {"sessions": 2, "messages": 1, "skipped": 1}
    assert {session["id"] for session in db.iter_export()} == {"good", "bare"}
    assert db.check() == []


def test_trouble_with_the_store_itself_is_never_taken_for_a_bad_session(make_db: Any) -> None:
    db = make_db()
    db.close()
    with pytest.raises(StoreClosed):
        db.import_sessions([{"id": "x", "source": "cli"}], refused=lambda data, error: pytest.fail(str(error)))


def test_sessions_are_counted_by_source_the_largest_first_without_the_trash(db: Any) -> None:
    assert db.source_counts() == {}
    for number, source in enumerate(["cli", "telegram", "telegram", "api", "telegram"]):
        db.create_session(f"s{number}", source, user_id=str(number))
    assert list(db.source_counts().items()) == [("telegram", 3), ("api", 1), ("cli", 1)]
    db.trash_session("s3")
    assert db.source_counts() == {"telegram": 3, "cli": 1}
    assert db.source_counts(visible_to=("telegram", "2")) == {"telegram": 1}


def test_what_is_in_the_trash_stays_there_and_is_counted(db: Any) -> None:
    data = [{"id": name, "source": "cli", "messages": [{"role": "user", "content": name}]} for name in "abc"]
    assert db.import_sessions(data) == {"sessions": 3, "messages": 3, "skipped": 0}
    db.trash_session("a")
    assert db.import_sessions(data) == {"sessions": 0, "messages": 0, "skipped": 3, "trashed": 1}
    assert [row["id"] for row in db.list_trash()] == ["a"] and db.session_count() == 2
