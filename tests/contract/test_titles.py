"""Titles: cleaned, unique, at most 100 characters; a family is a base and numbers, not a guess from text."""

from __future__ import annotations

import pytest

from hermes_state import SessionDB

FAMILY = "\U0001f468\u200d\U0001f469\u200d\U0001f467"  # man, woman, girl, joined


def titled(db, session_id, title, **columns):
    db.create_session(session_id, columns.pop("source", "cli"), **columns)
    assert db.set_session_title(session_id, title) is True


def compress(db, old, new):
    assert db.compress_session(old, new, summary="so far") == new
    return new


# ------------------------------------------------------------------ cleaning


@pytest.mark.parametrize(
    ("given", "cleaned"),
    [
        ("my project", "my project"),
        ("  my   project  ", "my project"),
        ("my\tproject\nhere", "my project here"),
        ("a\x00b\x07c\x7fd\x85e", None),  # control characters: see below
        ("a\u200bb\u2060c\ufeffd", "abcd"),
        ("a\u202eb\u202dc\u2066d\u2069e\u200ef\u200fg", "abcdefg"),
        ("проект 数据库 データ café naïve", "проект 数据库 データ café naïve"),
        (f"our {FAMILY} trip ❤️", f"our {FAMILY} trip ❤️"),
        ("100% of a_b [x] 'q' \"z\" \\ / *", "100% of a_b [x] 'q' \"z\" \\ / *"),
        ("中\u3000文", "中 文"),
    ],
)
def test_sanitising(db, given, cleaned):
    if cleaned is None:
        assert "".join(db.sanitize_title(given).split()) == "abcde"
    else:
        assert db.sanitize_title(given) == cleaned


@pytest.mark.parametrize("empty", [None, "", "\t\n", "\u202e \u200b", "\u3000"])
def test_what_is_empty_after_cleaning_is_none(empty):
    assert SessionDB.sanitize_title(empty) is None


def test_a_hundred_characters_fit_and_one_more_is_an_error_not_a_cut(db):
    from hermes.errors import TitleTooLong

    assert db.sanitize_title("x" * 100) == "x" * 100
    assert db.sanitize_title("  " + "部" * 100 + "\u200b ") == "部" * 100, "counted after cleaning"
    with pytest.raises(TitleTooLong):
        db.sanitize_title("x" * 101)
    db.create_session("s", "cli")
    with pytest.raises(ValueError, match="100"):
        db.set_session_title("s", "x" * 101)
    assert db.get_session_title("s") is None


# ------------------------------------------------------------------ setting and looking up


def test_a_title_is_set_cleaned_and_read_back(db):
    titled(db, "s", "  my \u200b project\n")
    assert db.get_session_title("s") == "my project"
    assert db.get_session("s")["title"] == "my project"
    assert db.get_session_by_title("my project")["id"] == "s"
    assert db.resolve_session_by_title("my project") == "s"


def test_setting_the_title_of_an_unknown_session_is_false(db):
    assert db.set_session_title("nobody", "x") is False
    assert db.get_session_title("nobody") is None
    assert db.session_count() == 0


def test_an_empty_title_clears(db):
    titled(db, "s", "x")
    assert db.set_session_title("s", "") is True
    assert db.get_session_title("s") is None and db.get_session_by_title("x") is None
    titled(db, "t", "x")


def test_a_clash_is_an_error_that_names_the_holder(db):
    from hermes.errors import TitleClash

    titled(db, "holder-1", "taken")
    titled(db, "s", "mine")
    with pytest.raises(TitleClash, match="holder-1") as error:
        db.set_session_title("s", " taken ")
    assert isinstance(error.value, ValueError)
    assert db.get_session_title("s") == "mine" and db.get_session_title("holder-1") == "taken"
    assert db.set_session_title("s", "mine") is True


def test_renaming_frees_the_old_title(db):
    titled(db, "a", "x")
    db.set_session_title("a", "y")
    titled(db, "b", "x")
    assert db.get_session_by_title("x")["id"] == "b" and db.get_session_by_title("y")["id"] == "a"


def test_deleting_frees_the_title(db):
    titled(db, "a", "x")
    db.delete_session("a")
    assert db.get_session_by_title("x") is None and db.resolve_session_by_title("x") is None
    titled(db, "b", "x")


def test_get_by_title_is_exact(db):
    titled(db, "a", "Project")
    titled(db, "b", "project")
    titled(db, "c", "project #2")
    assert db.get_session_by_title("project")["id"] == "b"
    assert db.get_session_by_title("Project")["id"] == "a"
    assert db.get_session_by_title("proj") is None
    assert db.get_session_by_title("nothing") is None


# ------------------------------------------------------------------ families


def test_compression_numbers_the_titles_and_the_base_gives_the_newest(db):
    titled(db, "a", "my project")
    compress(db, "a", "b")
    compress(db, "b", "c")
    assert [db.get_session_title(name) for name in "abc"] == ["my project", "my project #2", "my project #3"]
    assert db.resolve_session_by_title("my project") == "c"
    assert db.get_next_title_in_lineage("my project") == "my project #4"


def test_resolving_a_numbered_title_still_finds_that_family(db):
    """ "my project #2" names one session exactly; asking for it never gives a stranger."""
    titled(db, "a", "my project")
    compress(db, "a", "b")
    compress(db, "b", "c")
    assert db.resolve_session_by_title("my project #2") in ("b", "c")
    assert db.get_session_by_title("my project #2")["id"] == "b"


def test_a_family_whose_base_is_gone_is_still_found(db):
    titled(db, "a", "my project")
    compress(db, "a", "b")
    db.delete_session("a")
    assert db.resolve_session_by_title("my project") == "b"


def test_the_title_a_person_types(db):
    for name, title in (("a", "My Parser"), ("b", "My Parser #2"), ("c", "Straße"), ("d", "MY LIST"), ("e", "my list")):
        titled(db, name, title)
    assert db.sessions_meant_by_title("My Parser") == ["b"], "the newest of the family"
    assert db.sessions_meant_by_title("My Parser #2") == db.sessions_meant_by_title(" MY  parser #2 ") == ["b"]
    assert db.sessions_meant_by_title("my parser") == db.sessions_meant_by_title("arse") == ["b"]
    assert db.sessions_meant_by_title("STRAẞE") == ["c"] and db.sessions_meant_by_title("ss") == []
    assert db.sessions_meant_by_title("My list") == ["e", "d"], "two in another case: the newest first"
    assert db.sessions_meant_by_title("MY LIST") == ["d"]
    assert db.sessions_meant_by_title("my") == ["e", "d", "b"]
    for words in ("", "  ", "\u200b", "nothing like it", "%", "x" * 5000):
        assert db.sessions_meant_by_title(words) == []
    db.delete_session("b")
    assert db.sessions_meant_by_title("parser") == ["a"]


def test_a_person_finds_only_titles_of_their_own(db):
    titled(db, "a", "My Parser", source="telegram", user_id="1")
    titled(db, "b", "Your Parser", source="telegram", user_id="2")
    assert db.sessions_meant_by_title("parser", visible_to=("telegram", "1")) == ["a"]
    assert db.sessions_meant_by_title("parser") == ["b", "a"]


def test_the_next_title(db):
    assert db.get_next_title_in_lineage("x") == "x"
    titled(db, "a", "x")
    assert db.get_next_title_in_lineage("x") == "x #2"
    titled(db, "b", "x #2")
    assert db.get_next_title_in_lineage("x") == "x #3"
    assert db.get_next_title_in_lineage("x #2") == "x #3"
    for number in range(3, 12):
        titled(db, f"s{number}", f"x #{number}")
    assert db.resolve_session_by_title("x") == "s11", "ten is newer than nine"
    assert db.get_next_title_in_lineage("x") == "x #12"


def test_a_hash_in_a_title_makes_no_family(db):
    titled(db, "other", "bug #login page")
    assert db.resolve_session_by_title("bug") is None
    assert db.get_next_title_in_lineage("bug") == "bug"
    titled(db, "bug", "bug")
    assert db.resolve_session_by_title("bug") == "bug"
    assert db.get_next_title_in_lineage("bug") == "bug #2"
    assert db.get_next_title_in_lineage("bug #login page") == "bug #login page #2"
    compress(db, "other", "other2")
    assert db.get_session_title("other2") == "bug #login page #2"
    assert db.resolve_session_by_title("bug") == "bug"
    assert db.resolve_session_by_title("bug #login page") == "other2"


@pytest.mark.parametrize(
    ("asked", "stranger"),
    [
        ("50%", "50 percent #2"),
        ("a_b", "axb #2"),
        ("a%", "abc #3"),
        ("x", "x #2b"),
        ("x", "x#2"),
        ("x", "xx #2"),
    ],
)
def test_percent_and_underscore_are_literal_and_strangers_stay_strangers(db, asked, stranger):
    titled(db, "stranger", stranger)
    assert db.resolve_session_by_title(asked) is None
    assert db.get_next_title_in_lineage(asked) == asked
    titled(db, "own", asked)
    assert db.resolve_session_by_title(asked) == "own"
    assert db.get_next_title_in_lineage(asked) == f"{asked} #2"


@pytest.mark.parametrize("base", ["x" * 100, "部" * 100, "a b" * 33 + "c", FAMILY * 20])
def test_a_title_of_a_hundred_characters_can_be_continued(db, base):
    assert len(base) == 100
    titled(db, "a", base)
    for old, new in ("ab", "bc", "cd"):
        compress(db, old, new)
    titles = [db.get_session_title(name) for name in "abcd"]
    assert titles[0] == base and len(set(titles)) == 4
    assert all(len(title) <= 100 for title in titles)
    assert [title[-3:] for title in titles[1:]] == [" #2", " #3", " #4"]
    assert db.resolve_session_by_title(base) == "d"
    following = db.get_next_title_in_lineage(base)
    assert len(following) <= 100 and following.endswith(" #5")


def test_two_long_titles_that_differ_at_the_end_continue_apart(db):
    one, two = "x" * 99 + "1", "x" * 99 + "2"
    titled(db, "a", one)
    titled(db, "b", two)
    compress(db, "a", "a2")
    compress(db, "b", "b2")
    titles = [db.get_session_title(name) for name in ("a", "b", "a2", "b2")]
    assert len(set(titles)) == 4 and all(title and len(title) <= 100 for title in titles)
    assert db.resolve_session_by_title(one) == "a2" and db.resolve_session_by_title(two) == "b2"


def test_renaming_a_member_takes_it_out_of_the_family(db):
    titled(db, "a", "x")
    compress(db, "a", "b")
    db.set_session_title("b", "something else")
    assert db.resolve_session_by_title("x") == "a"
    assert db.resolve_session_by_title("something else") == "b"


def test_compressing_when_the_next_number_is_taken_goes_on_counting(db):
    titled(db, "a", "x")
    titled(db, "stray", "x #2")
    compress(db, "a", "b")
    assert db.get_session_title("b") == "x #3"
    assert db.resolve_session_by_title("x") == "b"


@pytest.mark.parametrize("number", ["0", "1", "02", "9" * 30, "²", "٣", "-1"])
def test_odd_numbers_after_a_hash_are_plain_titles_at_worst(db, number):
    title = f"x #{number}"
    titled(db, "a", title)
    assert db.get_session_by_title(title)["id"] == "a"
    assert db.resolve_session_by_title(title) == "a"
    following = db.get_next_title_in_lineage(title)
    titled(db, "b", following)
    assert following != title and db.get_session_title("b") == following
    compress(db, "a", "c")
    assert db.get_session_title("c") not in (None, title, following)
