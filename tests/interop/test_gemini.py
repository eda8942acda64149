"""Gemini CLI's chats, in both of its formats."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from hermes_state import SessionDB
from tests.interop.importing import brought_in, hidden, lines, sessions, told

NAME = "77777777-2222-4333-8444-555555555555"
HEADER = {
    "sessionId": NAME,
    "projectHash": "abc",
    "startTime": "2026-03-03T08:00:00Z",
    "lastUpdated": "2026-03-03T08:05:00Z",
}
REPLY = {
    "id": "m2", "timestamp": "2026-03-03T08:01:00Z", "type": "gemini", "content": "Two files.", "model": "gemini-3-pro",
    "thoughts": [{"subject": "Looking", "description": "I list the folder"}],
    "tokens": {"input": 50, "output": 5, "cached": 40},
    "toolCalls": [{"id": "c1", "name": "list_directory", "args": {"path": "."}, "status": "success",
                   "result": [{"functionResponse": {"id": "c1", "response": {"output": "a\nb"}}}]}],
}  # fmt: skip


def user(name: str, words: str) -> dict[str, Any]:
    return {"id": name, "timestamp": "2026-03-03T08:00:30Z", "type": "user", "content": [{"text": words}]}


def test_a_chat_of_lines_with_a_rewind(tmp_path: Path) -> None:
    home = tmp_path / "home"
    gemini = tmp_path / ".gemini"
    lines(gemini / "tmp" / "parser" / "chats" / "session-2026-03-03-77777777.jsonl", [
        HEADER, user("m0", "<session_context>today</session_context>"), user("m1", "which files?"), REPLY,
        {"id": "i1", "type": "info", "content": "saved", "timestamp": "2026-03-03T08:01:01Z"},
        user("m3", "a mistake"), {"$rewindTo": "m3"}, user("m4", "thanks"), {"$set": {"summary": "Listing files"}},
        {"id": "x", "type": "hologram", "timestamp": "2026-03-03T08:02:00Z"},
    ])  # fmt: skip
    (gemini / "projects.json").write_text(json.dumps({"projects": {"/work/parser": "parser"}}))
    printed = brought_in(gemini, home)
    assert "1 session with 5 messages imported" in printed and "hologram" in printed
    session = sessions(home)[f"gemini-{NAME}"]
    assert (session["title"], session["cwd"], session["model"]) == ("Listing files", "/work/parser", "gemini-3-pro")
    assert told(session) == [
        ("system", "<session_context>today</session_context>"), ("user", "which files?"), ("assistant", "Two files."),
        ("tool", "a\nb"), ("user", "thanks"),
    ]  # fmt: skip
    reply = session["messages"][2]
    assert (reply["reasoning"], reply["output_tokens"]) == ("Looking: I list the folder", 5)
    assert hidden(session) == ["a mistake"]


def test_an_older_chat_in_one_object(tmp_path: Path) -> None:
    home = tmp_path / "home"
    file = tmp_path / "session-old.json"
    file.write_text(json.dumps({**HEADER, "messages": [user("m1", "which files?"), REPLY]}))
    assert "1 session with 3 messages imported" in brought_in(file, home)
    file.write_text(json.dumps({**HEADER, "messages": [user("m1", "which files?"), REPLY, user("m9", "and now?")]}))
    assert "0 sessions with 1 message imported, 1 session updated" in brought_in(file, home)


def test_the_header_has_messages_a_note_stands_before_a_rewind_and_a_tool_fails(tmp_path: Path) -> None:
    home, folder = tmp_path / "home", "/work/parser"
    chats = tmp_path / ".gemini" / "tmp" / hashlib.sha256(folder.encode()).hexdigest() / "chats"
    failed = {"id": "c1", "name": "read", "result": [{"functionResponse": {"response": {"error": "no such file"}}}]}
    lines(chats / "session-1.jsonl", [
        {**HEADER, "messages": [user("m1", "which files?")]}, {**REPLY, "toolCalls": [failed], "tokens": {"thoughts": 3}},
        {"id": "i1", "type": "info", "content": "saved", "timestamp": "2026-03-03T08:01:01Z"},
        user("m3", "a mistake"), {"$rewindTo": "m3"}, user("m4", "thanks"), {"$teleport": 1},
    ])  # fmt: skip
    (tmp_path / ".gemini" / "projects.json").write_text(json.dumps({"projects": {folder: "parser"}}))
    assert "unknown type: $teleport" in brought_in(tmp_path / ".gemini", home)
    session = sessions(home)[f"gemini-{NAME}"]
    assert [text for _, text in told(session)] == ["which files?", "Two files.", "no such file", "thanks"]
    assert (session["cwd"], session["reasoning_tokens"]) == (folder, 3)
    with SessionDB(home / "state.db") as db:  # what was taken back stood after the tool's answer
        db.unrewind(session["id"])
        assert [one["content"] for one in db.get_messages(session["id"])][-2:] == ["no such file", "a mistake"]
