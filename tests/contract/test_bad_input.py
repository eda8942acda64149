"""Bad input, by name: a typed error or a defined result, and the store is as good afterwards as before."""

from __future__ import annotations

import contextlib
import sys

import pytest

from tests.support.sizes import size, some

from . import finishes, found, ids, plain_sql, shown, talk

# ------------------------------------------------------------------ queries


@pytest.mark.parametrize("query", ["", "   ", "\n"])
def test_an_empty_query(db, query):
    talk(db, "s", "a lynx")
    assert db.search_messages(query) == []


UNIT = size(1_000, 4_000)  # a quarter of a megabyte in a quick run
HUGE = {
    "words": "".join(f"word{n} " for n in range(25 * UNIT)),
    "one word": "z" * (250 * UNIT),
    "or chain": "lynx OR " * (30 * UNIT) + "lynx",
    "not chain": "lynx NOT " * (25 * UNIT) + "zebra",
    "quotes": '"' * (250 * UNIT),
    "nested": "(" * (125 * UNIT) + "lynx" + ")" * (125 * UNIT),
    "surrogates": "\ud800" * (250 * UNIT),
    "cjk": "部" * (75 * UNIT),
    "mixed": '(lynx OR "a b" NOT 部 -x/y.z* ' * (7 * UNIT),
}


@pytest.mark.parametrize("kind", some(list(HUGE), 5))
def test_a_megabyte_of_query(db, kind):
    talk(db, "s", "a lynx and 部署")
    assert isinstance(finishes(lambda: db.search_messages(HUGE[kind])), list)
    assert len(found(db, "lynx")) == 1


@pytest.mark.parametrize(
    "query",
    [
        "(" * 5000 + "lynx" + ")" * 5000,
        "(" * 5000 + "lynx",
        " ".join(["lynx"] * 3000),
        "lynx OR " + " OR ".join(f"w{n}" for n in range(3000)),
        '"' * 2001 + "lynx",
        "?!" * 5000 + " lynx " + "-" * 5000,
    ],
    ids=["nested", "opened", "and chain", "wide or", "quotes", "signs"],
)
def test_a_long_query_still_finds_what_it_asks_for(db, query):
    (message_id,) = talk(db, "s", "a lynx")
    assert message_id in finishes(lambda: found(db, query))


def calls_of(call):
    """How many functions a call calls, of Python and of C: its work, whatever else the machine does."""
    count = 0

    def counted(frame, event, argument):
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(counted)
    try:
        return call(), count
    finally:
        sys.setprofile(None)


@pytest.mark.parametrize(
    ("text", "query", "marked"),
    [
        ("a" * 200_000, "a" * 2000, "a" * 120),
        ("any many very " * 15_000 + "yes", "y*", "y"),
        ("yes " * 50_000 + "y", "y", "y"),
        ("getUserById " * 15_000, "rByI", "rByI"),
    ],
    ids=["one word", "inside words", "beginnings", "parts"],
)
def test_a_long_text_is_not_looked_at_place_by_place(db, text, query, marked):
    talk(db, "s", text)
    db.catch_up()
    db.search_messages(query)
    hits, calls = calls_of(lambda: db.search_messages(query))
    assert f">>>{marked[:4]}" in hits[0]["snippet"]
    assert calls < 20_000


def test_a_row_of_emoji_is_not_tried_in_every_way(db):
    talk(db, "s", "😀" * 300 + " lynx")
    assert len(finishes(lambda: found(db, "😀😀😀😀😀😀😀😀a OR lynx"))) == 1


@pytest.mark.parametrize(
    "kw", [{"limit": -1}, {"limit": -(2**70)}, {"offset": -1}, {"limit": 2**70}, {"offset": 2**70}]
)
def test_a_negative_or_endless_limit(db, kw):
    """One rule for all three calls: the same typed error, or the same number of rows."""
    from hermes.errors import InvalidInput

    for name in "abc":
        talk(db, name, "a lynx")
    outcomes = []
    for call in (
        lambda: db.search_messages("lynx", **kw),
        lambda: db.list_sessions_rich(**kw),
        lambda: db.search_sessions(**kw),
    ):
        try:
            outcomes.append(len(call()))
        except InvalidInput:
            outcomes.append("InvalidInput")
    assert len(set(outcomes)) == 1, outcomes


@pytest.mark.parametrize(
    "filters", [{"source_filter": ["x' OR 1=1 --"]}, {"title": "%"}, {"tag": "\x00"}, {"user_id": "\ud800"}]
)
def test_hostile_filters_are_plain_values(db, filters):
    talk(db, "s", "a lynx")
    assert db.search_messages("lynx", **filters) == []


# ------------------------------------------------------------------ text that is no text


@pytest.mark.parametrize(
    "session_id",
    [*"a/b|../escape|..|/absolute|a\\b|日本語|a.jsonl|%s".split("|"), "", " ", "x" * 1000, "a\nb", "a\x00b", "\ud800"],
)
def test_an_odd_session_id_is_kept_or_refused_and_never_leaves_the_folder(make_db, tmp_path, session_id):
    from hermes.errors import InvalidInput

    db = make_db(name="x")
    outside = {path for path in tmp_path.rglob("*") if "store-x" not in path.parts}
    try:
        db.create_session(session_id, "cli")
    except InvalidInput:
        assert db.session_count() == 0
    else:
        db.append_message(session_id, "user", "a lynx")
        assert shown(db, session_id) == ["a lynx"]
        assert db.search_messages("lynx")[0]["session_id"] == session_id
        assert ids(db.list_sessions_rich()) == [session_id]
        assert db.resolve_session_id(session_id) == session_id
    assert [path for path in tmp_path.rglob("*.jsonl") if path.parent != db.sessions_dir] == []
    assert {path for path in tmp_path.rglob("*") if "store-x" not in path.parts} == outside
    if db.session_count():
        assert db.delete_session(session_id) is True
    assert db.session_count() == 0


def test_deleting_an_odd_id_removes_nothing_outside(make_db, tmp_path):
    victim = tmp_path / "victim.jsonl"
    victim.write_text("precious")
    db = make_db(name="x")
    folder = tmp_path / "store-x" / "sessions"
    folder.mkdir(parents=True, exist_ok=True)
    for session_id in ("../../victim", "../victim", str(tmp_path / "victim")):
        with contextlib.suppress(ValueError):
            db.create_session(session_id, "cli")
        with contextlib.suppress(ValueError):
            db.delete_session(session_id, sessions_dir=folder)
    assert victim.read_text() == "precious"


def test_two_ids_that_differ_only_in_odd_characters_stay_apart(db):
    for n, session_id in enumerate(["a/b", "a_b", "a%2Fb", "a\\b", "A_B"]):
        with contextlib.suppress(ValueError):
            talk(db, session_id, f"words {n}")
            assert shown(db, session_id) == [f"words {n}"]
            assert db.check() == []


# ------------------------------------------------------------------ unknown, duplicate, clash


def test_a_message_for_an_unknown_session_is_an_error_and_creates_nothing(db):
    from hermes.errors import SessionNotFound

    with pytest.raises(SessionNotFound) as error:
        db.append_message("nobody", "user", "x")
    assert isinstance(error.value, KeyError) and "nobody" in str(error.value)
    assert db.session_count() == 0 and db.message_count() == 0


UNKNOWN_READS = {
    "get_session": (lambda db: db.get_session("nobody"), None),
    "get_messages": (lambda db: db.get_messages("nobody"), []),
    "get_messages_as_conversation": (lambda db: db.get_messages_as_conversation("nobody"), []),
    "with ancestors": (lambda db: db.get_messages_as_conversation("nobody", include_ancestors=True), []),
    "get_session_title": (lambda db: db.get_session_title("nobody"), None),
    "get_session_by_title": (lambda db: db.get_session_by_title("nobody"), None),
    "resolve_session_by_title": (lambda db: db.resolve_session_by_title("nobody"), None),
    "resolve_session_id": (lambda db: db.resolve_session_id("nobody"), None),
    "get_compression_tip": (lambda db: db.get_compression_tip("nobody"), "nobody"),
    "resolve_resume_session_id": (lambda db: db.resolve_resume_session_id("nobody"), "nobody"),
    "message_count": (lambda db: db.message_count("nobody"), 0),
    "export_session": (lambda db: db.export_session("nobody"), None),
    "set_session_title": (lambda db: db.set_session_title("nobody", "x"), False),
    "delete_session": (lambda db: db.delete_session("nobody"), False),
    "trash_session": (lambda db: db.trash_session("nobody"), False),
    "restore_session": (lambda db: db.restore_session("nobody"), False),
    "is_live": (lambda db: db.is_live("nobody"), False),
    "get_handoff_state": (lambda db: db.get_handoff_state("nobody"), None),
    "search": (lambda db: db.search_messages("lynx", session_ids=["nobody"]), []),
}


@pytest.mark.parametrize("call", UNKNOWN_READS)
def test_an_unknown_session_has_a_defined_answer(db, call):
    talk(db, "s", "a lynx")
    action, answer = UNKNOWN_READS[call]
    assert action(db) == answer
    assert db.session_count() == 1


UNKNOWN_WRITES = {
    "end_session": lambda db: db.end_session("nobody", "x"),
    "reopen_session": lambda db: db.reopen_session("nobody"),
    "update_system_prompt": lambda db: db.update_system_prompt("nobody", "x"),
    "replace_messages": lambda db: db.replace_messages("nobody", [{"role": "user", "content": "x"}]),
    "clear_messages": lambda db: db.clear_messages("nobody"),
    "branch_session": lambda db: db.branch_session("nobody", "new"),
    "compress_session": lambda db: db.compress_session("nobody", "new", summary="x"),
    "rewind": lambda db: db.rewind("nobody", 1),
    "unrewind": lambda db: db.unrewind("nobody"),
    "tag_session": lambda db: db.tag_session("nobody", "x"),
    "untag_session": lambda db: db.untag_session("nobody", "x"),
    "get_tags": lambda db: db.get_tags("nobody"),
    "share_session": lambda db: db.share_session("nobody", "telegram", "1"),
    "hold_session": lambda db: db.hold_session("nobody", "me"),
}


@pytest.mark.parametrize("call", UNKNOWN_WRITES)
def test_writing_to_an_unknown_session_creates_nothing(db, call):
    from hermes.errors import SessionNotFound

    talk(db, "s", "a lynx")
    with contextlib.suppress(SessionNotFound):
        UNKNOWN_WRITES[call](db)
    assert ids(db.export_all()) == ["s"] and db.message_count() == 1
    assert db.check() == []


@pytest.mark.parametrize("role", ["developer", "function", "робот", "", "x" * 1000, "\x00", "\ud800", "USER"])
def test_a_role_nobody_knows(db, role):
    from hermes.errors import InvalidInput

    db.create_session("s", "cli")
    try:
        message_id = db.append_message("s", role, "a lynx")
    except InvalidInput:
        assert role in ("", "\x00", "\ud800") and db.message_count() == 0
        return
    assert db.get_messages("s")[0]["role"] == role
    assert db.get_messages_as_conversation("s") == [{"role": role, "content": "a lynx"}]
    assert found(db, "lynx") == {message_id} == found(db, "lynx", role_filter=[role])


def test_numbers_beyond_64_bits_come_back_or_are_refused(db):
    from hermes.errors import InvalidInput

    db.create_session("s", "cli")
    try:
        db.append_message("s", "assistant", "x", tool_calls=[{"n": 2**80}])
    except InvalidInput:
        assert db.message_count() == 0
    else:
        assert db.get_messages("s")[0]["tool_calls"] == [{"n": 2**80}]


def test_deeply_nested_json_comes_back_or_is_refused(db):
    from hermes.errors import InvalidInput

    deep: list = []
    for _ in range(5000):
        deep = [deep]
    db.create_session("s", "cli")
    try:
        db.append_message("s", "assistant", "x", tool_calls=deep)
    except InvalidInput:
        assert db.message_count() == 0
    else:
        assert db.message_count() == 1 and db.get_messages("s")
        assert db.export_session("s") and db.get_messages_as_conversation("s")
    db.append_message("s", "tool", "[" * 3000 + '"the word inside"' + "]" * 3000, tool_name="x")
    db.catch_up()
    assert len(db.search_messages("inside")) == 1 and db.check() == []
    db.append_message("s", "tool", "[" * 100_000, tool_name="x")
    assert shown(db, "s")[-1] == "[" * 100_000


# ------------------------------------------------------------------ parents


def test_a_parent_nobody_knows_is_refused_or_left_out(db):
    from hermes.errors import HermesError

    try:
        db.create_session("s", "cli", parent_session_id="nobody")
    except HermesError:
        assert db.session_count() == 0
    else:
        assert ids(db.list_sessions_rich(include_children=True)) == ["s"]
        assert db.get_compression_tip("s") == "s"


def walk_everything(db, names):
    for name in names:
        assert db.get_compression_tip(name) in names
        assert db.resolve_resume_session_id(name) in names
        assert isinstance(db.get_messages_as_conversation(name, include_ancestors=True), list)
        assert db.export_session(name)["id"] == name
    for kw in ({}, {"include_children": True}, {"project_compression_tips": False}, {"order_by_last_active": True}):
        rows = ids(db.list_sessions_rich(**kw))
        assert len(rows) == len(set(rows))
    assert isinstance(db.search_messages("lynx"), list)
    return True


@pytest.mark.parametrize("filled", [False, True])
def test_a_parent_cycle_written_by_another_program(make_db, sqlite_only, filled):
    db = make_db(name="x")
    names = ["a", "b", "c"]
    for name in names:
        db.create_session(name, "cli")
        if filled:
            db.append_message(name, "user", "a lynx")
        db.end_session(name, "compression")
    db.close()
    update = "UPDATE sessions SET parent_session_id = ?, started_at = 5e9, ended_at = 4e9 WHERE id = ?"
    plain_sql(db.path, (update, ["a", "b"]), (update, ["b", "c"]), (update, ["c", "a"]))
    again = make_db(name="x")
    assert finishes(lambda: walk_everything(again, names))
    assert again.delete_session("b") is True
    assert finishes(lambda: walk_everything(again, ["a", "c"]))


def test_a_parent_cycle_by_import(db):
    from hermes.errors import HermesError

    for name, parent in (("a", "b"), ("b", "a")):
        data = {"id": name, "source": "cli", "parent_session_id": parent, "messages": []}
        data |= {"started_at": 5.0, "ended_at": 4.0, "end_reason": "compression"}
        with contextlib.suppress(HermesError):
            finishes(lambda data=data: db.import_session(data))
    names = ids(db.export_all())
    assert finishes(lambda: walk_everything(db, names))
