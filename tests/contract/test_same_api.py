"""Programs written for the API as it was first documented run unchanged: names, words in errors, what comes back."""

from __future__ import annotations

import base64
import inspect
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import hermes_state
from hermes_state import SessionDB

from . import contents, found, ids, old_session, talk

PICTURE = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(range(200))).decode()
OTHER = base64.b64encode(bytes(range(100, 250))).decode()
SOUND = base64.b64encode(bytes(range(255, 0, -1))).decode()


# ── names ──


def test_arguments_have_their_documented_names(db):
    given = {"source": "cli", "model": "m", "system_prompt": "You are.", "user_id": "u", "parent_session_id": None}
    db.ensure_session("s", **given, model_config={"a": 1})
    row = db.get_session(session_id="s")
    assert {**{name: row[name] for name in given}, "model_config": row["model_config"]} == {
        **given,
        "model_config": '{"a":1}',
    }
    assert db.ensure_session("s", source="telegram", user_id="other") == "s"
    assert db.get_session("s")["user_id"] == "u", "an existing session is left as it is"
    db.replace_messages(session_id="s", messages=[{"role": "user", "content": "one"}])
    assert contents(db.get_messages(session_id="s")) == ["one"]
    assert db.resolve_session_id(session_id_or_prefix="s") == "s"
    assert db.get_next_title_in_lineage(base_title="T") == "T"


def test_attributes_and_constants(db, tmp_path, monkeypatch):
    assert db.db_path == db.path
    assert SessionDB.MAX_TITLE_LENGTH == 100
    assert hermes_state.SCHEMA_VERSION == 11
    monkeypatch.setenv("HERMES_HOME", str(tmp_path / "home"))
    assert tmp_path / "home" / "state.db" == hermes_state.DEFAULT_DB_PATH
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = hermes_state.no_such_name


def test_everything_public_is_importable_and_errors_are_those_that_are_raised(db):
    assert sorted(hermes_state.__all__) == sorted(set(hermes_state.__all__))
    for name in hermes_state.__all__:
        assert getattr(hermes_state, name) is not None
    with pytest.raises(hermes_state.SessionNotFound):
        db.append_message("nobody", "user", "x")
    assert (Path(inspect.getfile(hermes_state)).parent / "py.typed").is_file()


@pytest.mark.thorough
def test_a_program_is_type_checked_against_it(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        "from hermes_state import DEFAULT_DB_PATH, HandoffState, MessageRow, SearchHit, SessionDB, SessionRow, StoreBusy\n"
        "db = SessionDB(DEFAULT_DB_PATH)\n"
        "state: HandoffState | None = db.get_handoff_state('s')\n"
        "pruned: int = db.maybe_auto_prune_and_vacuum()['pruned']\n"
        "rows: list[SessionRow] = db.list_sessions_rich()\n"
        "messages: list[MessageRow] = db.get_messages('s')\n"
        "hits: list[SearchHit] = db.search_messages('hello')\n"
        "db.replace_messages('s', db.get_messages_as_conversation('s'))\n"
        "assert all(db.import_session(one) for one in db.iter_export())\n"
        "wrong: str = db.message_count()\n"
    )
    environment = {**os.environ, "MYPYPATH": str(Path(inspect.getfile(hermes_state)).parents[1])}
    said = subprocess.run(
        [sys.executable, "-m", "mypy", "--follow-imports=silent", "--config-file=", f"--cache-dir={tmp_path}", str(program)],
        capture_output=True, text=True, env=environment, cwd=tmp_path,
    )  # fmt: skip
    assert "Found 1 error in 1 file" in said.stdout, said.stdout
    assert 'expression has type "int", variable has type "str"' in said.stdout


# ── words ──


def test_title_errors_say_it_in_the_words_programs_look_for(db):
    talk(db, "one", "a")
    talk(db, "two", "b")
    db.set_session_title("one", "T")
    with pytest.raises(ValueError, match="already in use by session one"):
        db.set_session_title("two", "T")
    with pytest.raises(ValueError, match="too long"):
        db.set_session_title("two", "x" * 101)
    with pytest.raises(ValueError, match="too long"):
        SessionDB.sanitize_title("x" * 101)


# ── what comes back ──


def test_empty_fields_are_not_sent_again(db):
    db.create_session("s", "cli")
    db.append_message(
        "s", "assistant", "x", tool_name="", tool_calls=[], tool_call_id="", finish_reason="", reasoning="",
        reasoning_details=[], codex_reasoning_items=[], codex_message_items=[],
    )  # fmt: skip
    assert db.get_messages_as_conversation("s") == [{"role": "assistant", "content": "x"}]
    assert db.get_messages("s")[0]["reasoning"] == "", "the record has what was put in"
    db.append_message("s", "assistant", "", reasoning="r", reasoning_content="")
    assert db.get_messages_as_conversation("s")[1] == {
        "role": "assistant", "content": "", "reasoning": "r", "reasoning_content": "",
    }  # fmt: skip


def test_search_sessions_is_ordered_by_last_activity(db):
    for name in ("first", "second", "third"):
        talk(db, name, f"words of {name}")
    db.append_message("first", "user", "and again", timestamp=time.time() + 5)
    rows = db.search_sessions()
    assert ids(rows) == ["first", "third", "second"]
    assert rows[0]["last_active"] > rows[1]["last_active"]


def test_payloads_come_back_ready_to_be_sent(db):
    parts = [
        {"type": "text", "text": f"a text with data:image/gif;base64,{PICTURE} inside"},
        {"type": "image_url", "image_url": {"url": f"data:image/webp;base64,{OTHER}", "detail": "low"}},
        {"type": "input_audio", "input_audio": {"data": SOUND, "format": "wav"}},
    ]
    db.create_session("s", "cli")
    db.append_message("s", "user", parts)
    assert db.get_messages_as_conversation("s")[0]["content"] == parts
    (row,) = db.get_messages("s")
    assert "base64" not in str(row["content"])
    assert db.resolve_attachments(row)["content"] == parts
    assert db.resolve_attachments(row)["id"] == row["id"]
    assert db.resolve_attachments(row["content"]) == parts
    assert db.get_messages_as_conversation("s", inline_attachments=False)[0]["content"] == row["content"]


def test_a_text_that_speaks_of_a_file_is_no_payload_and_a_lost_file_leaves_its_reference(db):
    reference = db.keep_attachment(b"%PDF some bytes")
    db.create_session("s", "cli")
    db.append_message("s", "user", f"see {reference}, please")
    db.append_message("s", "user", [{"type": "file", "file": {"url": reference}}])
    spoken, whole = contents(db.get_messages_as_conversation("s"))
    assert spoken == f"see {reference}, please"
    assert whole[0]["file"]["url"].startswith("data:application/pdf;base64,")
    gone = "attachment:sha256:" + "0" * 64
    assert db.resolve_attachments(gone) == gone


def test_a_prompt_repeated_before_any_reply_comes_once_with_ancestors(db):
    talk(db, "root", "first", "answer", "unanswered")
    db.end_session("root", "compression")
    db.create_session("next", "cli", parent_session_id="root")
    said = ["unanswered", "now", "again", "again", "", "yes", "again"]
    for text in said:
        db.append_message("next", "assistant" if text in ("now", "yes") else "user", text)
    whole = contents(db.get_messages_as_conversation("next", include_ancestors=True))
    assert whole == ["first", "answer", "unanswered", "now", "again", "", "yes", "again"]
    assert contents(db.get_messages_as_conversation("next")) == said


def test_a_question_with_a_tool_call_for_an_answer_may_be_asked_again(db):
    db.create_session("s", "cli")
    db.append_message("s", "user", "status?")
    db.append_message("s", "assistant", None, tool_calls=[{"id": "c", "function": {"name": "t", "arguments": "{}"}}])
    db.append_message("s", "tool", "", tool_call_id="c")
    db.append_message("s", "user", "status?")
    assert len(db.get_messages_as_conversation("s", include_ancestors=True)) == 4


def test_what_a_platform_and_a_program_say_of_a_message_is_kept(db, make_db):
    db.create_session("s", "telegram")
    db.append_message("s", "user", "hello", platform_message_id="42", meta={"edited": True})
    (row,) = db.get_messages("s")
    assert (row["platform_message_id"], row["meta"]) == ("42", {"edited": True})
    assert db.get_messages_as_conversation("s") == [{"role": "user", "content": "hello"}]
    other = make_db(name="other")
    other.import_sessions(db.iter_export())
    assert other.get_messages("s") == [row]


# ── chains, upkeep ──


def test_the_calls_about_a_compressed_conversation(db):
    talk(db, "a", "one", "two")
    db.compress_session("a", "b", summary="short")
    assert db.get_compression_lineage("a") == db.get_compression_lineage("b") == ["a", "b"]
    assert db.get_conversation_root("b") == "a"
    assert db.get_conversation_root("nobody") == "nobody"


def test_auto_maintenance_tells_what_it_did(db):
    old_session(db, "old", 200)
    assert db.maybe_auto_prune_and_vacuum() == {"skipped": False, "pruned": 1, "vacuumed": True}
    assert db.maybe_auto_prune_and_vacuum() == {"skipped": True, "pruned": 0, "vacuumed": False}
    assert db.maybe_auto_prune_and_vacuum(min_interval_hours=0) == {"skipped": False, "pruned": 0, "vacuumed": False}
    old_session(db, "older", 300)
    done = db.maybe_auto_prune_and_vacuum(min_interval_hours=0, vacuum=False)
    assert done == {"skipped": False, "pruned": 1, "vacuumed": False}


def test_transcripts_elsewhere_go_with_their_session(db, tmp_path):
    names = ("s.jsonl", "s.json", "sx.jsonl", "request_dump_s_1.json")
    talk(db, "s", "hello")
    talk(db, "t", "hello")
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    for name in names:
        (folder / name).write_text("{}")
    assert db.delete_session("t", sessions_dir=folder)
    assert len(list(folder.iterdir())) == len(names)
    assert db.delete_session("s", sessions_dir=folder)
    assert sorted(path.name for path in folder.iterdir()) == ["request_dump_s_1.json", "sx.jsonl"]


def test_a_transcript_that_cannot_be_removed_keeps_no_session_from_being_deleted_or_pruned(db, tmp_path, recwarn):
    talk(db, "s", "hello")
    old_session(db, "old", 200)
    old_session(db, "older", 300)
    folder = tmp_path / "elsewhere"
    for name in ("s.jsonl", "old.jsonl"):
        (folder / name).mkdir(parents=True)
    (folder / "older.jsonl").write_text("{}")
    assert db.delete_session("s", sessions_dir=folder)
    done = db.maybe_auto_prune_and_vacuum(sessions_dir=folder)
    assert (done["pruned"], db.session_count()) == (2, 0) and "error" not in done
    assert not (folder / "older.jsonl").exists()
    assert db.check() == [] and [str(one.message) for one in recwarn] == []


# ── as Python has it ──


def test_repr_in_and_no_limit(db):
    for number in range(25):
        talk(db, f"s{number:02}", "needle")
    assert "s00" in db
    assert "nobody" not in db
    assert 7 not in db
    assert repr(db) == f"<SessionDB {db.where}>"
    assert len(db.list_sessions_rich()) == 20
    assert len(db.list_sessions_rich(limit=None)) == len(db.search_sessions(limit=None)) == 25
    assert len(db.list_sessions_rich(limit=None, offset=20)) == 5
    assert len(db.search_messages("needle", limit=None)) == len(found(db, "needle")) == 25


def test_a_store_in_memory_is_private_and_gone_when_it_is_closed(sqlite_only, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with SessionDB(":memory:") as db, SessionDB(db_path=":memory:") as other:
        talk(db, "s", "only here")
        assert found(db, "only")
        assert "s" not in other
        folder = db.path.parent
        assert folder.is_dir()
    assert not folder.exists()
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(hermes_state.InvalidInput, match=":memory:"):
        SessionDB(":memory:", read_only=True)
