"""Attachments of a message are recorded in its transcript, so that a rebuild or an export loses none."""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path
from typing import Any

from hermes.store.upkeep.check import rebuild_store
from hermes_state import SessionDB

PICTURE = bytes(range(256)) * 4
HASH = hashlib.sha256(PICTURE).hexdigest()
DATA = f"data:image/png;base64,{base64.b64encode(PICTURE).decode()}"
NOWHERE = f"attachment:sha256:{'0' * 64}"


def rows(db: SessionDB) -> list[tuple[Any, ...]]:
    with db._engine.read() as tx:
        return tx.rows(
            "SELECT m.session_id, m.role, a.hash, a.mime, a.bytes FROM attachments a JOIN messages m ON m.id = a.message_id"
            " ORDER BY m.id"
        )


def filled(db: SessionDB) -> list[tuple[Any, ...]]:
    db.create_session("s", "cli")
    db.append_message("s", "user", [{"type": "image_url", "image_url": {"url": DATA}}])
    db.append_message("s", "user", f"what is {NOWHERE}, and [{NOWHERE}]?")
    db.append_message("s", "assistant", [{"type": "text", "text": f"{NOWHERE} is nothing"}])
    db.append_message("s", "tool", f"see {db.keep_attachment(PICTURE)}")
    db.append_message("s", "system", f"look: {DATA}")
    return rows(db)


def test_a_message_that_only_mentions_a_reference_has_no_attachment(tmp_path: Path) -> None:
    with SessionDB(tmp_path / "state.db") as db:
        assert filled(db) == [
            ("s", "user", HASH, "image/png", len(PICTURE)),
            ("s", "tool", HASH, "", len(PICTURE)),
            ("s", "system", HASH, "image/png", len(PICTURE)),
        ]


def test_type_and_size_are_in_the_transcript_and_come_back_from_it(tmp_path: Path) -> None:
    with SessionDB(tmp_path / "state.db") as db:
        before = filled(db)
        lines = [json.loads(line) for line in (tmp_path / "sessions" / "s.jsonl").read_text().splitlines()]
        told = [line.get("attachments") for line in lines if line["type"] == "message"]
        assert told[0] == [{"hash": HASH, "mime": "image/png", "bytes": len(PICTURE)}]
        assert told[1] == told[2] == []
    rebuild_store(tmp_path / "again.db", tmp_path / "sessions")
    with SessionDB(tmp_path / "again.db") as again:
        assert rows(again) == before


def test_a_file_written_anew_tells_the_same(tmp_path: Path) -> None:
    with SessionDB(tmp_path / "state.db") as db:
        before = filled(db)
    (tmp_path / "sessions" / "s.jsonl").unlink()
    with SessionDB(tmp_path / "state.db") as db:
        db.repair()
    rebuild_store(tmp_path / "again.db", tmp_path / "sessions")
    with SessionDB(tmp_path / "again.db") as again:
        assert rows(again) == before


def test_an_export_carries_the_attachments_of_its_messages_and_no_others(tmp_path: Path) -> None:
    from hermes.interop import formats, jsonl

    with SessionDB(tmp_path / "one" / "state.db") as db:
        before = filled(db)
        (line,) = jsonl.write(formats.Export(sessions=db.iter_export(), attachments=db.read_attachment))
    data = json.loads(line)
    assert list(data["attachments"]) == [HASH]
    with SessionDB(tmp_path / "two" / "state.db") as db:
        db.import_sessions([data])
        assert rows(db) == before


def test_a_database_that_is_rebuilt_beside_its_transcripts_has_them(tmp_path: Path) -> None:
    with SessionDB(tmp_path / "state.db") as db:
        filled(db)
    for file in tmp_path.glob("state.db*"):
        file.unlink()
    rebuild_store(tmp_path / "state.db", tmp_path / "sessions")
    (tmp_path / "sessions" / "s.jsonl").rename(tmp_path / "away")
    with SessionDB(tmp_path / "state.db") as db:
        assert [(one["kind"], one["where"]) for one in db.check()] == [("transcript", "session s")]
