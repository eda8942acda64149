"""Transcripts: a line follows each commit, so that `tail -f` shows the conversation."""

from __future__ import annotations

import json

from . import shown, talk


def test_each_message_is_in_the_transcript_when_append_returns(db):
    db.create_session("s", "cli")
    for text in ("one", "two", "drei ✓"):
        db.append_message("s", "user", text)
        lines = (db.sessions_dir / "s.jsonl").read_text(encoding="utf-8").splitlines()
        assert any(json.loads(line).get("content") == text for line in lines)


def test_transcripts_can_be_switched_off(make_db):
    db = make_db(transcripts="off")
    talk(db, "s", "quiet", source="telegram")
    assert not (db.sessions_dir / "s.jsonl").exists()
    assert shown(db, "s") == ["quiet"]


def test_transcripts_for_the_gateway_only(make_db):
    db = make_db(transcripts="gateway")
    talk(db, "t", "hello", source="telegram")
    talk(db, "c", "hello", source="cli")
    assert (db.sessions_dir / "t.jsonl").exists() and not (db.sessions_dir / "c.jsonl").exists()
