"""OpenCode's database: read without a lock, and never changed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.interop.importing import PIXEL, brought_in, database, hidden, sessions, told, unchanged


def part(name: str, message: str, **data: Any) -> tuple[Any, ...]:
    return name, message, "ses_1", json.dumps(data)


def test_opencode(tmp_path: Path) -> None:
    home = tmp_path / "home"
    tokens = {"input": 10, "output": 4, "reasoning": 0, "cache": {"read": 90, "write": 0}}
    assistant = {"role": "assistant", "modelID": "sonnet", "providerID": "x", "cost": 0.25, "tokens": tokens,
                 "time": {"created": 1772500060000}, "finish": "stop"}  # fmt: skip
    later = {"role": "user", "time": {"created": 1772500120000}}
    path = database(
        tmp_path / "opencode" / "opencode.db",
        ("CREATE TABLE session(id TEXT, project_id TEXT, parent_id TEXT, directory TEXT, title TEXT, revert TEXT,"
         " time_created INTEGER, time_updated INTEGER, time_archived INTEGER)", []),
        ("CREATE TABLE message(id TEXT, session_id TEXT, time_created INTEGER, data TEXT)", []),
        ("CREATE TABLE part(id TEXT, message_id TEXT, session_id TEXT, data TEXT)", []),
        ("INSERT INTO session VALUES(?,?,?,?,?,?,?,?,?)", [
            ("ses_1", "p", None, "/work/app", "Fix the bug", json.dumps({"messageID": "msg_3"}), 1772500000000, 0, None),
            ("ses_2", "p", "ses_1", "/work/app", "explore", None, 1772500050000, 0, None)]),
        ("INSERT INTO message VALUES(?,?,?,?)", [
            ("msg_1", "ses_1", 1772500000000, json.dumps({"role": "user", "time": {"created": 1772500000000}})),
            ("msg_2", "ses_1", 1772500060000, json.dumps(assistant)), ("msg_3", "ses_1", 1772500120000, json.dumps(later)),
            ("msg_4", "ses_2", 1772500050000, json.dumps({"role": "user", "time": {"created": 1772500050000}}))]),
        ("INSERT INTO part VALUES(?,?,?,?)", [
            part("prt_1", "msg_1", type="text", text="why does it crash?"), part("prt_2", "msg_2", type="step-start"),
            part("prt_3", "msg_2", type="reasoning", text="hm"), part("prt_4", "msg_2", type="tool", callID="c1", tool="bash",
                 state={"status": "completed", "input": {"command": "ls"}, "output": "a.py", "time": {"end": 1772500061000}}),
            part("prt_5", "msg_2", type="text", text="It divides by zero."), part("prt_6", "msg_3", type="text", text="taken back"),
            ("prt_7", "msg_4", "ses_2", json.dumps({"type": "text", "text": "explore the code"}))]),
    )  # fmt: skip
    before = unchanged(path)
    assert "2 sessions with 4 messages imported" in brought_in(tmp_path / "opencode", home)
    assert unchanged(path) == before
    found = sessions(home)
    session = found["opencode-ses_1"]
    assert (session["title"], session["cwd"], session["model"]) == ("Fix the bug", "/work/app", "sonnet")
    assert told(session) == [("user", "why does it crash?"), ("assistant", "It divides by zero."), ("tool", "a.py")]
    reply = session["messages"][1]
    assert (reply["input_tokens"], reply["cost_usd"], reply["reasoning"]) == (10, 0.25, "hm")
    assert hidden(session) == ["taken back"]
    assert (found["opencode-ses_2"]["parent_session_id"], found["opencode-ses_2"]["kind"]) == (
        "opencode-ses_1",
        "subagent",
    )


def test_what_was_taken_back_after_a_compaction_is_hidden_once_and_damage_costs_its_message(tmp_path: Path) -> None:
    home, told_there = tmp_path / "home", []
    for number, (role, words, more) in enumerate((
        ("user", "one", {}), ("assistant", "the summary", {"summary": True}), ("user", "two", {}), ("user", "taken back", {}),
    )):  # fmt: skip
        info = {"role": role, "time": {"created": 1772500000000 + number}, **more}
        told_there.append((f"msg_{number}", json.dumps(info), words))
    told_there.insert(3, ("msg_2a", "{torn", "of a damaged message"))
    path = database(
        tmp_path / "opencode.db",
        ("CREATE TABLE session(id TEXT, title TEXT, revert TEXT, time_created INTEGER)", []),
        ("CREATE TABLE message(id TEXT, session_id TEXT, time_created INTEGER, data TEXT)", []),
        ("CREATE TABLE part(id TEXT, message_id TEXT, session_id TEXT, data TEXT)", []),
        ("INSERT INTO session VALUES(?,?,?,?)", [("ses_1", "t", json.dumps({"messageID": "msg_3"}), 1772500000000)]),
        ("INSERT INTO message VALUES(?,?,?,?)", [(name, "ses_1", n, data) for n, (name, data, _) in enumerate(told_there)]),
        ("INSERT INTO part VALUES(?,?,?,?)",
         [part(f"prt_{n}", name, type="text", text=words) for n, (name, _, words) in enumerate(told_there)]),
    )  # fmt: skip
    assert "msg_2a: no JSON object" in brought_in(path, home, status=1)
    found = sessions(home)
    assert (told(found["opencode-ses_1"]), hidden(found["opencode-ses_1"])) == ([("user", "one")], [])
    assert told(found["opencode-ses_1.2"]) == [("user", "the summary"), ("user", "two")]
    assert hidden(found["opencode-ses_1.2"]) == ["taken back"]


def test_the_text_of_a_file_that_was_given_with_the_prompt_comes_in(tmp_path: Path) -> None:
    file, home = tmp_path / "talk.json", tmp_path / "home"
    held = [
        {"type": "text", "text": "explain these"},
        {"type": "file", "mime": "text/plain", "filename": "a.py", "url": "file:///w/a.py",
         "source": {"type": "file", "path": "a.py", "text": {"value": "def f(): ...", "start": 0, "end": 12}}},
        {"type": "file", "mime": "text/plain", "filename": "b.py", "url": "data:text/plain;base64,cHJpbnQoMSk="},
        {"type": "file", "mime": "text/plain", "filename": "c.py", "url": "data:text/plain,x%20%3D%201"},
        {"type": "file", "mime": "image/png", "filename": "d.png", "url": f"data:image/png;base64,{PIXEL}"},
    ]  # fmt: skip
    info = {"id": "msg_1", "role": "user", "time": {"created": 1772500000000}}
    session = {"id": "ses_1", "title": "T", "directory": "/w", "time": {"created": 1772500099000}}
    file.write_text(json.dumps({"info": session, "messages": [{"info": info, "parts": held}]}))
    brought_in(file, home)
    found = sessions(home)["opencode-ses_1"]
    *texts, picture = found["messages"][0]["content"]
    assert [one["text"] for one in texts] == [
        "explain these",
        "[file a.py]\ndef f(): ...",
        "[file b.py]\nprint(1)",
        "[file c.py]\nx = 1",
    ]
    assert "attachment:sha256:" in picture["image_url"]["url"] and found["started_at"] == 1772500000.0
