"""Out and in again: an export holds everything, an import adds it once, a backup is a store."""

from __future__ import annotations

import copy
import json

import pytest

from hermes.errors import InvalidInput, StoreClosed

from . import contents, found, ids, shown, talk

CALLS = [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"x": "文"}'}}]


def without_ids(exported):
    """Message ids belong to the store that gave them out."""
    data = copy.deepcopy(exported)
    for message in data["messages"]:
        del message["id"]
    return data


def full_life(db):
    made = {"model": "m", "model_config": {"t": 1}, "system_prompt": "be kind", "user_id": "1", "started_at": 1000.5}
    db.create_session("root", "telegram", **made)
    db.append_message("root", "user", [{"type": "text", "text": "parts of a puffin"}], timestamp=1001.0)
    reply = {"tool_calls": CALLS, "reasoning": "r", "reasoning_details": [{"a": 1}], "finish_reason": "tool_calls"}
    used = {"token_count": 4, "model": "m2", "input_tokens": 5, "output_tokens": 6, "cost_usd": 0.25}
    db.append_message("root", "assistant", "look", **reply, **used, timestamp=1002.0)
    output = "x" * 9000 + " tail of a puffin"
    db.append_message("root", "tool", output, tool_name="f", tool_call_id="c1", timestamp=1003.0)
    db.append_message("root", "odd-role", None, timestamp=1004.0)
    db.append_message("root", "user", "nul \x00 and \ud800 surrogate", timestamp=1005.0)
    db.update_token_counts("root", input_tokens=10, estimated_cost_usd=0.5, billing_provider="p", api_call_count=2)
    db.set_session_title("root", "the title")
    db.tag_session("root", "one", "zwei")
    db.pin_session("root")
    db.end_session("root", "done")
    talk(db, "plain", "hello", "hi")


def test_an_export_is_the_session_and_its_messages(db):
    talk(db, "s", "one", "two")
    data = db.export_session("s")
    assert data["messages"] == db.get_messages("s")
    session = db.get_session("s")
    assert {key: data[key] for key in session} == session


def test_export_all_and_iter_export_agree(db):
    full_life(db)
    everything = db.export_all()
    assert isinstance(everything, list) and sorted(ids(everything)) == ["plain", "root"]
    assert list(db.iter_export()) == everything
    assert ids(db.export_all(source="telegram")) == ids(db.iter_export(source="telegram")) == ["root"]
    assert db.export_all(source="nothing") == []
    assert {data["id"]: data for data in everything} == {name: db.export_session(name) for name in ("root", "plain")}


def test_iter_export_streams_while_the_store_is_used(db):
    for n in range(5):
        talk(db, f"s{n}", "x")
    seen = []
    for data in db.iter_export():
        seen.append(data["id"])
        db.append_message(data["id"], "user", "written meanwhile")
    assert sorted(seen) == [f"s{n}" for n in range(5)]


def test_import_into_a_fresh_store_gives_an_equal_export(db, make_db):
    full_life(db)
    other = make_db()
    for data in db.export_all():
        assert other.import_session(json.loads(json.dumps(data))) is True
    for name in ("root", "plain"):
        assert without_ids(other.export_session(name)) == without_ids(db.export_session(name))
        assert other.get_messages_as_conversation(name) == db.get_messages_as_conversation(name)
    assert other.get_session_by_title("the title")["id"] == "root"
    assert len(found(other, "puffin")) == len(found(db, "puffin")) == 2
    assert sorted(other.get_tags("root")) == ["one", "zwei"]
    assert other.check() == []


@pytest.mark.parametrize("already", [1, 2, 7])
def test_import_into_a_store_in_use_gives_an_equal_export(db, make_db, already):
    """The message ids of the two stores overlap; that must not matter."""
    full_life(db)
    other = make_db()
    talk(other, "mine", *(f"my own {n}" for n in range(already)))
    for data in db.export_all():
        assert other.import_session(data) is True
    for name in ("root", "plain"):
        assert without_ids(other.export_session(name)) == without_ids(db.export_session(name))
    assert shown(other, "mine") == [f"my own {n}" for n in range(already)]
    assert other.check() == []


def test_importing_twice_is_false_and_changes_nothing(db, make_db):
    full_life(db)
    data = db.export_session("root")
    other = make_db()
    assert other.import_session(data) is True
    other.append_message("root", "user", "and on")
    before = other.export_session("root")
    assert other.import_session(data) is False
    assert other.export_session("root") == before


def test_importing_a_taken_title_keeps_both(db, make_db):
    """A clash of titles is no reason to lose a session: the newcomer gets the next number."""
    full_life(db)
    other = make_db()
    talk(other, "mine", "x")
    other.set_session_title("mine", "the title")
    assert other.import_session(db.export_session("root")) is True
    assert other.get_session_title("mine") == "the title"
    assert other.get_session_title("root") == "the title #2"


def test_lineage_survives_export_and_import(db, make_db):
    first, _, last = talk(db, "a", "one puffin", "two", "three")
    db.set_session_title("a", "x")
    db.branch_session("a", "side", at_message=first)
    db.append_message("side", "user", "side words")
    db.compress_session("a", "b", summary="sum", head_until=first, tail_from=last)
    db.append_message("b", "user", "four")
    other = make_db()
    for data in db.export_all():
        assert other.import_session(data) is True
    for name in ("a", "b", "side"):
        assert shown(other, name) == shown(db, name)
        for column in ("parent_session_id", "kind", "title", "end_reason"):
            assert other.get_session(name)[column] == db.get_session(name)[column]
    assert other.get_compression_tip("a") == "b"
    assert other.resolve_session_by_title("x") == "b"
    assert set(ids(other.list_sessions_rich())) == set(ids(db.list_sessions_rich()))
    whole = contents(other.get_messages_as_conversation("b", include_ancestors=True))
    assert whole == contents(db.get_messages_as_conversation("b", include_ancestors=True))
    assert other.check() == []


@pytest.mark.parametrize("data", [{}, {"id": "s"}, {"source": "cli"}, {"id": 7, "source": "cli"}, [], None, "text", 5])
def test_importing_nonsense_is_a_typed_error_or_a_session_never_half_of_one(db, data):
    from hermes.errors import HermesError

    try:
        db.import_session(data)
    except (HermesError, TypeError):
        assert db.session_count() == 0
    else:
        (row,) = db.list_sessions_rich()
        assert db.get_messages(row["id"]) == []


def test_importing_one_bad_message_imports_nothing(db):
    from hermes.errors import HermesError

    fine = {"role": "user", "content": "fine", "timestamp": 6.0}
    data = {"id": "s", "source": "cli", "started_at": 5.0, "messages": [fine, 42]}
    with pytest.raises((HermesError, TypeError)):
        db.import_session(data)
    assert db.get_session("s") is None and db.message_count() == 0


def test_an_import_without_the_additions_is_fine(db):
    """An export by an older or simpler program, with only those of the documented columns that it has, can be imported."""
    data = {
        "id": "s",
        "source": "cli",
        "started_at": 5.0,
        "unknown_column": [1],
        "messages": [
            {"role": "user", "content": "a puffin", "timestamp": 6.0},
            {"role": "assistant", "content": "yes", "timestamp": 7.0},
        ],
    }
    assert db.import_session(data) is True
    row = db.get_session("s")
    assert row["message_count"] == 2 and row["started_at"] == 5.0
    assert [m["timestamp"] for m in db.get_messages("s")] == [6.0, 7.0]
    assert db.list_sessions_rich()[0]["preview"] == "a puffin" and len(found(db, "puffin")) == 1
    assert db.check() == []


def test_importing_a_whole_database(db, make_db, sqlite_only):
    full_life(db)
    other = make_db()
    talk(other, "plain", "my own plain session")
    assert other.import_database(db.path) == {"sessions": 1, "messages": 5, "skipped": 1}
    assert without_ids(other.export_session("root")) == without_ids(db.export_session("root"))
    assert shown(other, "plain") == ["my own plain session"]
    assert other.import_database(db.path) == {"sessions": 0, "messages": 0, "skipped": 2}
    assert db.check() == [] and other.check() == []


def test_a_backup_is_a_store_of_its_own(make_db, tmp_path, sqlite_only):
    from hermes_state import SessionDB

    db = make_db(name="x")
    full_life(db)
    (tmp_path / "backup").mkdir()
    db.backup(tmp_path / "backup" / "copy.db")
    before = db.export_all()
    db.append_message("plain", "user", "later")
    with SessionDB(db_path=tmp_path / "backup" / "copy.db") as copied:
        assert copied.export_all() == before
        assert len(found(copied, "puffin")) == 2
    assert shown(db, "plain")[-1] == "later"


def test_messages_that_come_in_below_what_was_searched_are_found(db, make_db):
    """Imports keep their ids: a session with older ones comes in after others were searched for."""
    source = make_db()
    for name in "xy":
        talk(source, name, f"{name}heron at dawn", f"{name}getUserById again")
    older, newer = source.export_session("x"), source.export_session("y")
    db.import_session(newer)
    assert len(found(db, "yheron")) == 1 and len(found(db, "yheron dawn")) == 1
    assert len(found(db, "UserBy")) == 1
    db.import_session(older)
    assert len(found(db, "xheron")) == 1
    assert len(found(db, "dawn")) == 2
    assert len(found(db, "UserBy")) == 2
    db.append_message("x", "user", "later, a heron")
    assert len(found(db, "xheron")) == 1
    assert db.check() == []


def test_a_session_that_comes_in_parts(db):
    """An importer of a long file brings a session in parts; each begins with a message that is here."""

    def part(first, last, *, continues):
        told = [
            {"role": "assistant" if at % 2 else "user", "content": f"word{at}", "timestamp": float(at), "id": at + 1,
             "platform_message_id": f"m{at}", "output_tokens": 3, "tool_calls": [{"id": f"c{at}"}] if at % 2 else None}
            for at in range(first, last)
        ]  # fmt: skip
        return {"id": "long", "source": "codex", "started_at": 0.0, "ended_at": float(last), "end_reason": "imported",
                "output_tokens": 3 * len(told), "messages": told, "partial": continues}  # fmt: skip

    parts = [part(0, 40, continues=False), part(39, 80, continues=True), part(78, 120, continues=True)]
    assert db.import_sessions(iter(parts), update=True) == {"sessions": 1, "messages": 120, "skipped": 0, "updated": 0}
    assert [one["content"] for one in db.get_messages("long")] == [f"word{at}" for at in range(120)]
    row = db.get_session("long")
    counters = (row["message_count"], row["tool_call_count"], row["output_tokens"], row["ended_at"])
    assert counters == (120, 60, 360, 120.0)
    assert len(db.search_messages("word119")) == 1 and db.check() == []
    again = db.import_sessions(iter(parts), update=True)
    assert again["messages"] == 0 and again["sessions"] == 0
    refused = []
    gap = part(200, 210, continues=True)
    db.import_sessions([gap], update=True, refused=lambda session, error: refused.append(error))
    assert refused and len(db.get_messages("long")) == 120


# ------------------------------------------------------------------ many sessions, of which some can't be taken


def test_without_a_listener_the_first_bad_session_is_an_error_and_leaves_nothing_of_itself(db):
    with pytest.raises(InvalidInput):
        db.import_sessions([{"id": "good", "source": "cli"}, {"id": "bad", "messages": "no list"}, {"id": "never"}])
    assert [session["id"] for session in db.iter_export()] == ["good"]


def test_with_a_listener_the_bad_ones_are_told_and_the_rest_comes_in(db):
    told = []
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


def test_trouble_with_the_store_itself_is_never_taken_for_a_bad_session(make_db):
    db = make_db()
    db.close()
    with pytest.raises(StoreClosed):
        db.import_sessions([{"id": "x", "source": "cli"}], refused=lambda data, error: pytest.fail(str(error)))


def test_sessions_are_counted_by_source_the_largest_first_without_the_trash(db):
    assert db.source_counts() == {}
    for number, source in enumerate(["cli", "telegram", "telegram", "api", "telegram"]):
        db.create_session(f"s{number}", source, user_id=str(number))
    assert list(db.source_counts().items()) == [("telegram", 3), ("api", 1), ("cli", 1)]
    db.trash_session("s3")
    assert db.source_counts() == {"telegram": 3, "cli": 1}
    assert db.source_counts(visible_to=("telegram", "2")) == {"telegram": 1}


def test_what_is_in_the_trash_stays_there_and_is_counted(db):
    data = [{"id": name, "source": "cli", "messages": [{"role": "user", "content": name}]} for name in "abc"]
    assert db.import_sessions(data) == {"sessions": 3, "messages": 3, "skipped": 0}
    db.trash_session("a")
    assert db.import_sessions(data) == {"sessions": 0, "messages": 0, "skipped": 3, "trashed": 1}
    assert [row["id"] for row in db.list_trash()] == ["a"] and db.session_count() == 2
