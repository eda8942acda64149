"""Data for displays beside rows: names to filter by, relatives, states to watch, narrowed lists, and the audit log's lines."""

from __future__ import annotations

import pytest

from hermes.errors import InvalidInput

from . import ids, talk

ME = ("telegram", "111")


@pytest.fixture
def house(db):
    talk(db, "mine", "the okapi", "reply", source="telegram", user_id="111", model="m-1", cwd="/srv/a_b")
    talk(db, "work", "the okapi", "reply", model="m-2", cwd="/srv/a_b/deep")
    talk(db, "near", "the okapi", model="m-2", cwd="/srv/aXb")
    db.append_message("work", "tool", "out", tool_name="terminal", tool_call_id="c")
    db.tag_session("work", "urgent")
    return db


def test_facets_are_the_names_there_are_most_frequent_first(house):
    found = house.facets()
    assert found["sources"] == {"cli": 2, "telegram": 1} and list(found["models"]) == ["m-2", "m-1"]
    assert found["tags"] == {"urgent": 1} and found["tools"] == {"terminal": 1}
    assert found["folders"] == {"/srv/aXb": 1, "/srv/a_b": 1, "/srv/a_b/deep": 1}
    house.trash_session("work")
    assert house.facets()["tags"] == {} and house.facets()["models"] == {"m-1": 1, "m-2": 1}


def test_facets_show_nothing_of_others(house):
    found = house.facets(visible_to=ME)
    assert found == {
        "sources": {"telegram": 1},
        "models": {"m-1": 1},
        "folders": {"/srv/a_b": 1},
        "tags": {},
        "tools": {},
    }


def test_facets_of_an_empty_store(db):
    assert db.facets() == {"sources": {}, "models": {}, "folders": {}, "tags": {}, "tools": {}}


def test_lists_and_searches_are_narrowed_to_a_folder_and_what_is_below_it(house):
    for folder, names in (("/srv/a_b", {"mine", "work"}), ("/srv/a_b/", {"mine", "work"}), ("/srv/a_b/deep", {"work"}),
                          ("/srv/a", set()), ("/", {"mine", "work", "near"}), ("", {"mine", "work", "near"})):  # fmt: skip
        assert set(ids(house.list_sessions_rich(cwd=folder))) == names, folder
        assert {hit["session_id"] for hit in house.search_messages("okapi", cwd=folder)} == names, folder
    assert house.search_messages("okapi", cwd="/srv", visible_to=ME)[0]["session_id"] == "mine"


def test_a_search_leaves_sessions_out(house):
    def found(**more):
        return {hit["session_id"] for hit in house.search_messages("okapi", **more)}

    assert found(exclude_sessions=["work", "nothing"]) == {"mine", "near"}
    assert found(exclude_sessions=[]) == {"mine", "work", "near"}
    assert found(exclude_sessions=["mine"], visible_to=ME) == set()


def test_lists_are_narrowed_to_a_model_and_a_time(house):
    assert set(ids(house.list_sessions_rich(model="m-2"))) == {"work", "near"}
    at = house.get_session("work")["started_at"]
    assert ids(house.list_sessions_rich(until=at - 3600)) == []
    assert set(ids(house.list_sessions_rich(since=at - 3600, model="m-1"))) == {"mine"}


def test_the_family_of_a_session_is_the_same_whomever_one_asks(db):
    first = talk(db, "a", "one", "two", "three")
    db.compress_session("a", "b", summary="so far", tail_from=first[-1])
    db.branch_session("b", "c", title="Another way")
    talk(db, "other", "words")
    for one in ("a", "b", "c"):
        assert [(row["id"], row["parent"]) for row in db.get_family(one)] == [("a", None), ("b", "a"), ("c", "b")]
    assert [row["id"] for row in db.get_family("other")] == ["other"]
    assert db.get_family("nothing") == []
    db.trash_session("c")
    assert [row["id"] for row in db.get_family("a")] == ["a", "b"]


def test_a_family_has_only_members_that_may_be_seen(db):
    first = talk(db, "a", "one", "two", source="telegram", user_id="222")
    db.branch_session("a", "b", at_message=first[0])
    db.share_session("b", *ME)
    assert [(row["id"], row["parent"]) for row in db.get_family("b", visible_to=ME)] == [("b", None)]
    assert db.get_family("a", visible_to=ME) == []


def test_the_state_of_a_session_changes_with_it(house):
    def state():
        return house.session_states(["mine", "work", "nothing"])

    before = state()
    assert set(before) == {"mine", "work"} and state() == before
    house.append_message("mine", "user", "more")
    after = state()
    assert after["mine"] != before["mine"] and after["work"] == before["work"]
    house.rewind("work", house.get_messages("work")[0]["id"])
    assert state()["work"] != after["work"]
    for change in (house.set_session_title, house.tag_session):
        seen = state()["mine"]
        change("mine", "another")
        assert state()["mine"] != seen
    assert house.session_states([]) == {}


def test_sessions_are_listed_by_their_title_whatever_its_case_and_accents(house):
    house.set_session_title("mine", "Über den Café-Plan")
    house.set_session_title("work", "Plan B")
    for words, found in (
        ("plan", {"mine", "work"}), ("über cafe", {"mine"}), ("CAFÉ OR b", {"mine", "work"}), ("plan NOT cafe", {"work"}), ("zebra", set()),
        ("", set()),
    ):  # fmt: skip
        assert {row["id"] for row in house.list_sessions_rich(title=words)} == found, words
    assert [row["id"] for row in house.list_sessions_rich(title="plan", visible_to=ME)] == ["mine"]


def test_many_sessions_are_watched_at_once(house):
    assert set(house.session_states([*(f"n{number}" for number in range(1200)), "mine"])) == {"mine"}


def test_the_audit_log_takes_lines_of_displays_but_none_in_the_stores_name(house):
    house.record_audit("title", "work", by="a page", detail="key sk-abcdefghijklmnopqrstuvwxyz0123456789")
    line = house.audit_log()[0]
    assert (line["action"], line["session_id"], line["by"]) == ("title", "work", "a page")
    assert "abcdefghijklmnop" not in line["detail"]
    for action in ("trash", "restore", "delete", "replace", "clear"):
        with pytest.raises(InvalidInput):
            house.record_audit(action, "work", by="a page")
    house.trash_session("work", by="me")
    house.restore_session("work", by="me")
    assert [(one["action"], one["by"]) for one in house.audit_log(2)] == [("restore", "me"), ("trash", "me")]
