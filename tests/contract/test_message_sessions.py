"""Which session shows a message, and titles that give way to one that is there."""

from __future__ import annotations

from . import talk


def test_the_session_of_a_message_is_its_own_else_one_that_carries_it(db):
    made = talk(db, "s", "one", "two", "three")
    assert [db.session_of_message(one) for one in made] == ["s", "s", "s"]
    assert db.session_of_message(max(made) + 1) is None
    db.branch_session("s", "b")
    assert db.session_of_message(made[0]) == "s"
    db.rewind("s", made[0])
    assert db.session_of_message(made[1]) == "b"
    db.trash_session("s")
    assert db.session_of_message(made[0]) == "b"
    db.trash_session("b")
    assert db.session_of_message(made[0]) is None


def test_the_session_of_a_message_is_told_to_those_who_may_see_it(db):
    (mine,) = talk(db, "mine", "x", source="telegram", user_id="1")
    assert db.session_of_message(mine, visible_to=("telegram", "1")) == "mine"
    assert db.session_of_message(mine, visible_to=("telegram", "2")) is None
    db.share_session("mine", "telegram", "2")
    assert db.session_of_message(mine, visible_to=("telegram", "2")) == "mine"


def test_only_if_untitled_gives_way_to_a_title_that_is_there(db):
    talk(db, "s", "x")
    assert db.set_session_title("s", "first", only_if_untitled=True) is True
    assert db.set_session_title("s", "second", only_if_untitled=True) is False
    assert db.get_session_title("s") == "first"
    db.set_session_title("s", "")
    assert db.set_session_title("s", "third", only_if_untitled=True) is True
    assert db.set_session_title("nowhere", "fourth", only_if_untitled=True) is False
