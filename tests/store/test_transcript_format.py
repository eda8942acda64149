"""The transcripts as others read them: short lines, any JSON reader, a conversation that can be followed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hermes.store.upkeep.check import rebuild_store
from hermes_state import SessionDB

PROMPT = "You are careful. " * 2000
HALVES = "\ud83d\ude00"  # two lone surrogates, not the sign that they would be together


def lines(db: SessionDB, name: str) -> list[dict[str, Any]]:
    text = (db.sessions_dir / f"{name}.jsonl").read_bytes().decode()  # strict UTF-8
    return [json.loads(line) for line in text.splitlines()]


def events(db: SessionDB, name: str, kind: str) -> list[dict[str, Any]]:
    return [line for line in lines(db, name) if line.get("event") == kind]


def again(folder: Path) -> SessionDB:
    rebuild_store(folder / "again.db", folder / "sessions")
    return SessionDB(folder / "again.db", transcripts="off")


def test_a_transcript_has_its_system_prompt(tmp_path: Path) -> None:
    with SessionDB(tmp_path / "state.db") as db:
        for name in ("a", "b"):
            db.create_session(name, "cli", system_prompt=PROMPT)
            db.append_message(name, "user", "hello")
        db.compress_session("a", "c", summary="so far")
        db.update_system_prompt("b", "be brief \ud800")
        assert lines(db, "a")[0]["session"]["system_prompt"] == PROMPT
        assert db.check() == []
    with again(tmp_path) as other:
        assert [other.get_session(name)["system_prompt"] for name in "abc"] == [PROMPT, "be brief \ud800", PROMPT]


def odd(db: SessionDB) -> None:
    db.create_session("s", "cli", system_prompt=f"kind {HALVES}")
    db.append_message("s", "user", f"text {HALVES} and \ud800")
    db.append_message("s", "assistant", [{"type": "text", "text": f"part {HALVES}", "k\udfff": [1 << 70]}])
    db.append_message("s", "tool", "x" * 3000 + HALVES, tool_name="t\ud800", tool_call_id="c")
    db.append_message("s", "assistant", "plain", tool_calls=[{"function": {"name": "f", "arguments": HALVES}}])


def test_messages_of_older_files_without_a_usable_time_stay_in_their_places(tmp_path: Path) -> None:
    times = ["1e999", "NaN", "7", str(10**400), "[1]", "null", "9", '"soon"']
    lines_ = [f'{{"role": "user", "content": "{number}", "timestamp": {at}}}' for number, at in enumerate(times)]
    (tmp_path / "sessions").mkdir()
    (tmp_path / "sessions" / "old.jsonl").write_text("\n".join(lines_))
    with SessionDB(tmp_path / "state.db") as db:
        db.rebuild()
        assert [(one["content"], one["timestamp"]) for one in db.get_messages("old")] == [
            *((str(number), 7.0) for number in range(6)), ("6", 9.0), ("7", 9.0),
        ]  # fmt: skip
        assert db.check() == []


def test_lone_surrogates_make_valid_lines_and_come_back_exactly(tmp_path: Path) -> None:
    with SessionDB(tmp_path / "state.db") as db:
        odd(db)
        wanted = db.get_messages("s")
        for line in lines(db, "s"):
            json.dumps(line, ensure_ascii=False).encode()  # a lone surrogate would not be UTF-8
        assert db.check() == []
    with again(tmp_path) as other:
        assert other.get_messages("s") == wanted
        assert other.get_session("s")["system_prompt"] == f"kind {HALVES}"
    (tmp_path / "sessions" / "s.jsonl").unlink()
    with SessionDB(tmp_path / "state.db") as db:
        db.repair()  # the same lines, from the database
        assert db.check() == []
        for line in lines(db, "s"):
            json.dumps(line, ensure_ascii=False).encode()


def test_a_parent_names_where_it_goes_on(tmp_path: Path) -> None:
    with SessionDB(tmp_path / "state.db") as db:
        db.create_session("a", "cli")
        first = db.append_message("a", "user", "one")
        db.branch_session("a", "b", at_message=first)
        db.compress_session("a", "c", summary="so far")
        (branch,) = events(db, "a", "branch")
        assert (branch["branch"], branch["at_message"]) == ("b", first)
        assert [event["continued_in"] for event in events(db, "a", "end")] == ["c"]
        (db.sessions_dir / "a.jsonl").unlink()
        db.repair()
        (state,) = events(db, "a", "state")
        assert (state["continued_in"], state["branches"]) == ("c", ["b"])


def test_a_reader_who_knows_only_hides_and_shows_sees_the_right_messages(tmp_path: Path) -> None:
    with SessionDB(tmp_path / "state.db") as db:
        db.create_session("a", "cli")
        ids = [db.append_message("a", "user", f"m{number}") for number in range(4)]
        db.branch_session("a", "b")
        for step in (ids[2], None, ids[0], None):
            db.rewind("b", step) if step is not None else db.append_message("b", "user", "more")
        db.unrewind("b")
        visible = dict.fromkeys(ids, True)
        for line in lines(db, "b"):
            if line["type"] == "message":
                visible[line["id"]] = True
            visible.update(dict.fromkeys(line.get("shows", ()), True))
            visible.update(dict.fromkeys(line.get("hides", ()), False))
        assert [number for number, shown in visible.items() if shown] == [m["id"] for m in db.get_messages("b")]


def test_usage_tells_what_changed(tmp_path: Path) -> None:
    with SessionDB(tmp_path / "state.db") as db:
        db.create_session("a", "cli")
        for _ in range(2):
            db.update_token_counts("a", input_tokens=5, model="m", cost_status="sure", billing_provider="p")
        db.update_token_counts("a")
        db.append_message("a", "assistant", "hi", usage={"output_tokens": 3, "model": "m"})
        told = [event["set"] for event in events(db, "a", "usage")]
        assert told == [
            {"input_tokens": 5, "model": "m", "billing_provider": "p", "cost_status": "sure"},
            {"input_tokens": 10},
            {"output_tokens": 3},
        ]
        before = db.get_session("a")
    with again(tmp_path) as other:
        assert other.get_session("a") == before
