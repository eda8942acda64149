"""Events of a session: what happened beside its messages goes wherever these go, and is none of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hermes.store.upkeep.check import rebuild_store
from hermes_state import SessionDB

from . import found, say, shown

SECRET = "sk-proj-abcdefghijklmnopqrstuvwxyz0123456789ABCDEFGHIJ"


def failed(db: Any) -> tuple[int, int]:
    """A session whose second question was refused, and then answered."""
    (first,) = say(db, "s", "a first question")
    db.append_message("s", "assistant", "a first answer")
    (second,) = say(db, "s", "a second question")
    assert db.record_event("s", "model_error", "HTTP 400: quokka is no model") is True
    db.append_message("s", "assistant", "a late answer")
    return first, second


def told(db: Any) -> list[tuple[str, int, str]]:
    return [(one["kind"], one["after"], one["text"]) for one in db.get_session_events("s")]


def test_an_event_is_no_message(db: Any) -> None:
    _, second = failed(db)
    assert told(db) == [("model_error", second, "HTTP 400: quokka is no model")]
    assert db.message_count("s") == 4 and db.get_session("s")["message_count"] == 4
    assert "quokka" not in str(shown(db, "s")) + str(db.get_messages_as_conversation("s"))
    assert found(db, "quokka") == set()


def test_a_store_without_events_has_none_and_an_unknown_session_gets_none(db: Any) -> None:
    say(db, "s", "hello")
    assert db.get_session_events("s") == [] and "events" not in db.export_session("s")
    assert db.record_event("nowhere", "model_error", "x") is False
    assert db.get_session_events("nowhere") == []


def test_secrets_in_an_event_are_masked_and_long_texts_cut(db: Any) -> None:
    say(db, "s", "hello")
    db.record_event("s", "model_error", f"bad key {SECRET} " + "x" * 10_000)
    ((_, _, text),) = told(db)
    assert SECRET not in text and "bad key" in text and len(text) == 2_000


def test_events_go_out_and_in_with_their_session(db: Any, tmp_path: Path) -> None:
    _, second = failed(db)
    exported = db.export_session("s")
    assert [event["after"] for event in exported["events"]] == [second]
    with SessionDB(tmp_path / "other.db") as other:
        say(other, "t", "takes the first id")  # so that ids change on the way
        assert other.import_session(exported) is True
        ((kind, after, text),) = told(other)
        assert (kind, text) == ("model_error", "HTTP 400: quokka is no model")
        assert [one["content"] for one in other.get_messages("s") if one["id"] == after] == ["a second question"]
        assert other.import_session(exported) is False and len(told(other)) == 1
    db.trash_session("s")
    assert db.get_session_events("s") == []
    db.restore_session("s")
    assert len(told(db)) == 1
    assert db.delete_session("s") is True
    db.create_session("s", "cli")
    assert told(db) == [] and db.delete_session("s") is True
    assert db.import_session(exported) is True and len(told(db)) == 1


def test_what_makes_no_sense_in_an_import_is_left_out(db: Any) -> None:
    say(db, "s", "hello")
    exported = {**db.export_session("s"), "id": "t", "messages": []}
    for number, bad in enumerate(
        [7, {}, [], [7, None, {"at": "x"}, {"at": 1.0, "after": "y", "kind": "z", "text": "t"}]]
    ):
        assert db.import_session({**exported, "id": f"t{number}", "title": None, "events": bad}) is True
        assert db.get_session_events(f"t{number}") == []


def test_transcripts_bring_events_back(tmp_path: Path) -> None:
    with SessionDB(tmp_path / "state.db") as db:
        db.create_session("s", "telegram")
        failed(db)
        for kind in ("another kind", "title", "state"):
            assert db.record_event("s", kind, f"words of {kind}")
        before, folder = db.get_session_events("s"), db.sessions_dir
        assert len(before) == 4 and db.check() == []
        assert '"event":"model_error"' in (folder / "s.jsonl").read_text()
        (folder / "s.jsonl").unlink()
        db.repair()  # written again from the database
        assert (folder / "s.jsonl").read_text().count('"event":"model_error"') == 1
        assert db.check() == []
    rebuild_store(tmp_path / "rebuilt.db", folder)
    with SessionDB(tmp_path / "rebuilt.db") as again:
        assert again.get_session_events("s") == before
