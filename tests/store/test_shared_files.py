"""Files that another program made or has opened (tests/support/foreign): its rows mean here what they mean there."""

from __future__ import annotations

import gzip
import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from hermes.store.upkeep.check import rebuild_store
from hermes_state import SessionDB
from support import digest, plain_sql

SAMPLES = Path(__file__).parents[1] / "support" / "foreign"
PICTURE = b"\x89PNG\r\n\x1a\n" + bytes(range(200))


def sample(name: str, folder: Path) -> Path:
    path = folder / "state.db"
    folder.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.decompress((SAMPLES / f"{name}.db.gz").read_bytes()))
    return path


@contextmanager
def opened(path: Path, **more: Any) -> Iterator[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        db = SessionDB(db_path=path, **more)
    with db:
        yield db


def texts(db: Any, session_id: str) -> list[Any]:
    return [message["content"] for message in db.get_messages(session_id)]


def picture_of(db: Any, content: Any) -> bytes:
    """The bytes that the reference in a message of two parts leads to."""
    assert content[0] == {"type": "text", "text": "which bird is this, a kestrel?"}
    digest = content[1]["image_url"]["url"].removeprefix("attachment:sha256:")
    return (db.attachments_dir / digest[:2] / digest).read_bytes()


def imported(name: str, tmp_path: Path) -> Any:
    db = SessionDB(db_path=tmp_path / "ours" / "state.db")
    db.import_database(sample(name, tmp_path / "theirs"))
    return db


# ── messages with pictures ──


@pytest.mark.parametrize("name", ["schema-11", "schema-22"])
def test_parts_are_read_as_parts_at_once_and_never_as_text(name, tmp_path):
    with opened(sample(name, tmp_path)) as db:
        content = db.get_messages("parts")[0]["content"]
        assert content[0]["text"] == "which bird is this, a kestrel?"
        assert db.get_messages_as_conversation("parts")[0]["content"][0] == content[0]
        assert [row["preview"] for row in db.list_sessions_rich() if row["id"] == "parts"] == [content[0]["text"]]
        (hit,) = db.search_messages("bird")
        assert hit["snippet"] == "which >>>bird<<< is this, a kestrel?"
        assert [line["content"] for line in db.search_messages("title:Birds stop OR kestrel")[0]["context"]]
        assert db.search_messages("iVBORw0KGgo") == []


@pytest.mark.parametrize("name", ["schema-11", "schema-22"])
def test_an_import_lifts_the_payloads(name, tmp_path):
    with imported(name, tmp_path) as db:
        assert picture_of(db, texts(db, "parts")[0]) == PICTURE
        assert db.check() == []


def test_a_text_that_looks_like_another_programs_parts_stays_a_text(tmp_path):
    text = '\0json:[{"type": "text", "text": "typed by hand"}]'
    with SessionDB(db_path=tmp_path / "state.db") as db:
        db.create_session("s", "cli")
        db.append_message("s", "user", text)
        assert texts(db, "s") == [text]
        data = db.export_session("s")
    with SessionDB(db_path=tmp_path / "second" / "state.db") as second:
        second.import_session(data)
        assert texts(second, "s") == [text]


# ── undone, compacted, archived ──


def assert_meaning(db: Any) -> None:
    assert texts(db, "undone") == ["one", "first", "another question"]
    assert texts(db, "compacted") == ["SUMMARY of the notes", "after it"]
    assert db.search_messages("withdrawn") == []
    assert {hit["session_id"] for hit in db.search_messages("marsh")} == {"compacted"}
    assert len(db.search_messages("marsh")) == 4
    assert db.session_of_message(db.search_messages("marsh")[0]["id"]) == "compacted"
    assert {row["id"]: row["message_count"] for row in db.list_sessions_rich(limit=50)} == {
        "parts": 2, "tools-2": 2, "undone": 3, "compacted": 2, "archived": 1,
    }  # fmt: skip
    assert "archived" not in {row["id"] for row in db.list_sessions_rich(include_archived=False)}
    assert [m["platform_message_id"] for m in db.get_messages("compacted")] == [None, "tg-9"]
    assert json.loads(db.get_session("compacted")["meta"])["chat_id"] == "c9"
    assert db.check() == []


def test_a_newer_file_is_read_as_what_it_means_and_is_sound(tmp_path):
    path = sample("schema-22", tmp_path)
    before = digest(path)
    with opened(path) as db:
        assert db.read_only
        assert_meaning(db)
        assert db.get_meta("theme") == "dark"
    assert digest(path) == before


def test_an_import_keeps_what_is_undone_compacted_and_archived(tmp_path):
    with imported("schema-22", tmp_path) as db:
        assert_meaning(db)
        rewound = db.export_session("compacted")["rewound_messages"]
        assert [m["platform_message_id"] for m in rewound] == ["tg-0", "tg-1", "tg-2", "tg-3"]
        assert rewound[2]["meta"] == {"api_content": "as it was sent"}
        exported = list(db.iter_export())
        assert db.unrewind("undone") == 2
        assert texts(db, "undone") == ["one", "first", "withdrawn question", "withdrawn answer"]
    with SessionDB(db_path=tmp_path / "third" / "state.db") as third:
        third.set_meta("theme", "light")
        third.import_sessions(exported)
        third.import_database(tmp_path / "theirs" / "state.db")
        assert third.get_meta("theme") == "light"
        third.set_meta("theme", "dark")
        assert_meaning(third)


def test_what_is_compacted_survives_a_rebuild_from_transcripts(tmp_path):
    with imported("schema-22", tmp_path) as db:
        folder = db.sessions_dir
    rebuild_store(tmp_path / "again.db", folder)
    with SessionDB(db_path=tmp_path / "again.db", transcripts="off") as again:
        assert texts(again, "compacted") == ["SUMMARY of the notes", "after it"]
        assert len(again.search_messages("marsh")) == 4
        assert [m["platform_message_id"] for m in again.get_messages("compacted")] == [None, "tg-9"]
        assert again.search_messages("withdrawn") == []


# ── a file of ours that the other program has opened ──

OPENED = "ours-opened-by-schema-22"


def test_a_file_of_ours_stays_ours_whatever_another_program_wrote_into_it(tmp_path):
    path = sample(OPENED, tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        db = SessionDB(db_path=path)
    with db:
        assert db.read_only is False
        shown = texts(db, "ours")
        assert shown[:3] == ["first of ours", "hi", "kept question"] and "undone here" not in shown
        assert "written beside" in shown
        assert "tg-1" in [message["platform_message_id"] for message in db.get_messages("ours")]
        assert [hit["session_id"] for hit in db.search_messages("theirs")] == ["theirs"]
        db.append_message("ours", "user", "gone on with")
        db.catch_up()
        assert picture_of(db, next(one for one in texts(db, "ours") if isinstance(one, list))) == PICTURE
        assert db.check() == []
    columns = {row[1] for row in plain_sql(path, "PRAGMA table_info(messages)")}
    assert {"active", "compacted", "observed", "api_content", "meta"} <= columns
    assert plain_sql(path, "SELECT version FROM schema_version") == [(22,)]
    assert plain_sql(path, "SELECT count(*) FROM sqlite_master WHERE name = 'session_model_usage'") == [(1,)]


def test_a_file_of_ours_that_another_program_opened_can_be_read_without_being_altered(tmp_path):
    path = sample(OPENED, tmp_path)
    before = digest(path)
    with opened(path, read_only=True) as db:
        assert texts(db, "ours")[:3] == ["first of ours", "hi", "kept question"]
        assert db.search_messages("kept")[0]["session_id"] == "ours"
    assert digest(path) == before


@pytest.mark.parametrize("number", [1, 2])
def test_another_program_does_not_bring_a_redacted_message_back(tmp_path, number):
    """Its column `active` says nothing about what is hidden here, also in a file of a later version of this program."""
    path = sample(OPENED, tmp_path)
    with opened(path) as db:
        last = db.append_message("ours", "user", "said by mistake")
        db.redact_message(last)
    plain_sql(path, "UPDATE messages SET active = 1")
    plain_sql(path, f"PRAGMA user_version = {number}")
    with opened(path) as db:
        assert db.read_only is (number != 1)
        assert "said by mistake" not in texts(db, "ours")
        assert db.search_messages("mistake") == []


@pytest.mark.parametrize("indexed", [False, True], ids=["recent", "indexed"])
def test_search_follows_what_plain_sql_changes(tmp_path, indexed):
    path = tmp_path / "state.db"
    with SessionDB(db_path=path) as db:
        db.create_session("talk", "cli")
        for text in ("about larches", "about birches", "about willows"):
            db.append_message("talk", "user", text)
        if indexed:
            db.catch_up()
        assert len(db.search_messages("larches")) == 1
        plain_sql(path, "UPDATE messages SET content = 'about maples' WHERE content = 'about larches'")
        plain_sql(path, "DELETE FROM messages WHERE content = 'about birches'")
        assert (db.search_messages("larches"), db.search_messages("birches")) == ([], [])
        assert len(db.search_messages("maples")) == len(db.search_messages("willows")) == 1
        assert [one["kind"] for one in db.check() if one["kind"].startswith("fts")] == []
        assert plain_sql(path, "SELECT count(*) FROM changed_messages") == [(0,)]
