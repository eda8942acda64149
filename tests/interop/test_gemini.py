"""Gemini CLI's chats, in both of its formats."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

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


FILES = {"id": "m5", "timestamp": "2026-03-03T08:02:00Z", "type": "gemini", "content": "", "model": "gemini-3-pro",
         "tokens": {"input": 70, "output": 7, "cached": 0, "thoughts": 2},
         "toolCalls": [{"id": "c2", "name": "read_file", "args": {"file_path": "a"}, "status": "success",
                        "result": [{"functionResponse": {"id": "c2", "response": {"output": "alpha"}}}]}]}  # fmt: skip
TALK = [HEADER, user("m1", "which files?"), REPLY, user("m3", "read a"), FILES]
# What `gemini -r latest` appends: the same messages in the form of the API, without calls, model and tokens, at new times.
LATER = "2026-03-04T09:00:00Z"
CALL = {"functionCall": {"id": "c1", "name": "list_directory", "args": {"path": "."}}}
ANSWER = {"functionResponse": {"id": "c1", "name": "list_directory", "response": {"output": "a\nb"}}}
COPIES = {
    "of the API": [
        {"id": "m1", "timestamp": LATER, "role": "user", "parts": [{"text": "which files?"}]},
        {"id": "m2", "timestamp": LATER, "role": "model", "parts": [{"text": "Hm.", "thought": True}, {"text": "Two files."}, CALL]},
        {"id": "m2_response", "timestamp": LATER, "role": "user", "parts": [ANSWER]},
        {"id": "m3", "timestamp": LATER, "role": "user", "parts": [{"text": "read a"}]},
        {"id": "m5", "timestamp": LATER, "role": "model", "parts": [CALL]},
    ],
    "of the file": [
        {"id": "m1", "timestamp": LATER, "type": "user", "content": [{"text": "which files?"}]},
        {"id": "m2", "timestamp": LATER, "type": "gemini", "content": [{"text": "Two files."}, CALL]},
        {"id": "m2_response", "timestamp": LATER, "type": "user", "content": [ANSWER]},
        {"id": "m3", "timestamp": LATER, "type": "user", "content": [{"text": "read a"}]},
        {"id": "m5", "timestamp": LATER, "type": "gemini", "content": [CALL], "toolCalls": [], "tokens": None},
    ],
}  # fmt: skip


def resumed(form: str) -> list[dict[str, Any]]:
    return [{"$set": {"sessionId": NAME}}, {"$set": {"messages": COPIES[form], "lastUpdated": LATER}}]


def everything(home: Path) -> dict[str, Any]:
    """All that a session holds, but for what storing it has made."""
    session = sessions(home)[f"gemini-{NAME}"]
    made = ("id", "session_id", "last_active", "meta", "hidden")
    messages = [{name: value for name, value in one.items() if name not in made} for one in session["messages"]]
    return {**{name: value for name, value in session.items() if name not in made}, "messages": messages}


@pytest.mark.parametrize("form", COPIES)
def test_a_resumed_chat_keeps_what_its_poorer_copies_lack(tmp_path: Path, form: str) -> None:
    home, file = tmp_path / "home", tmp_path / "chats" / "session-1.jsonl"
    lines(file, TALK)
    brought_in(file, home)
    before = everything(home)
    assert (before["input_tokens"], before["output_tokens"], before["reasoning_tokens"]) == (80, 12, 2)
    lines(file, [*TALK, *resumed(form)])
    assert "0 sessions with 0 messages imported" in brought_in(file, home)
    assert everything(home) == before
    lines(file, [*TALK, *resumed(form), user("m6", "thanks")])
    assert "0 sessions with 1 message imported, 1 session updated" in brought_in(file, home)
    assert everything(home)["messages"][:-1] == before["messages"]
    fresh = tmp_path / "fresh"
    brought_in(file, fresh)
    assert everything(fresh) == everything(home)


def test_a_record_that_grows_line_by_line_loses_nothing(tmp_path: Path) -> None:
    home, file = tmp_path / "home", tmp_path / "chats" / "session-1.jsonl"
    begun = {**REPLY, "tokens": None, "toolCalls": [{"id": "c1", "name": "list_directory", "args": {"path": "."}}]}
    lines(file, [HEADER, user("m1", "which files?"), begun])
    brought_in(file, home)
    second = {"id": "c9", "name": "read", "args": {"path": "a"}, "result": "alpha"}
    more = [
        REPLY,
        {**REPLY, "content": [CALL], "thoughts": [], "model": None, "tokens": {}, "toolCalls": [second]},
    ]
    lines(file, [HEADER, user("m1", "which files?"), begun, *more])
    brought_in(file, home)
    session = everything(home)
    assert told(session) == [("user", "which files?"), ("assistant", "Two files."), ("tool", "a\nb"), ("tool", "alpha")]
    reply = session["messages"][1]
    assert [one["id"] for one in reply["tool_calls"]] == ["c1", "c9"]
    assert (reply["reasoning"], reply["output_tokens"], session["output_tokens"]) == (
        "Looking: I list the folder",
        5,
        5,
    )


def test_a_rewind_after_a_resume_takes_away_what_it_names(tmp_path: Path) -> None:
    home, file = tmp_path / "home", tmp_path / "chats" / "session-1.jsonl"
    lines(file, [*TALK, *resumed("of the API")])
    brought_in(file, home)
    back = [*TALK, *resumed("of the API"), {"$rewindTo": "m3"}]
    lines(file, back)
    brought_in(file, home)
    session = everything(home)
    assert told(session) == [("user", "which files?"), ("assistant", "Two files."), ("tool", "a\nb")]
    assert hidden(session) == ["read a", None, "alpha"]
    lines(file, [*back, *resumed("of the file")])  # what was taken back is given to the model again
    brought_in(file, home)
    session = everything(home)
    assert [text for _, text in told(session)] == ["which files?", "Two files.", "a\nb", "read a", None, "alpha"]
    assert hidden(session) == []
    fresh = tmp_path / "fresh"
    brought_in(file, fresh)
    assert told(everything(fresh)) == told(session) and hidden(everything(fresh)) == []


def test_an_older_chat_that_was_resumed_is_read_from_the_file_that_goes_on(tmp_path: Path) -> None:
    """On resume Gemini CLI copies the older file into one of lines beside it, and leaves the older one."""
    home, chats = tmp_path / "home", tmp_path / "tmp" / "parser" / "chats"
    older = {**HEADER, "messages": TALK[1:]}
    lines(chats / "session-1.json", [older])
    brought_in(tmp_path / "tmp", home)
    lines(chats / "session-1.jsonl", [*TALK, *resumed("of the file"), user("m6", "thanks")])
    assert "0 sessions with 1 message imported, 1 session updated" in brought_in(tmp_path / "tmp", home)
    before = everything(home)
    assert told(before)[-1] == ("user", "thanks")
    assert "1 session already here" in brought_in(tmp_path / "tmp", home)
    assert everything(home) == before


def test_the_file_that_a_resumption_leaves_hides_nothing(tmp_path: Path) -> None:
    home, chats = tmp_path / "home", tmp_path / ".gemini" / "tmp" / "parser" / "chats"
    context = user("m0", "<session_context>today</session_context>")
    lines(chats / "session-2026-03-03T08-00-77777777.jsonl", [HEADER, context, user("m1", "which files?"), REPLY])
    lines(chats / "session-2026-03-03T09-00-77777777.jsonl", [HEADER, {"$set": {"messages": [context]}}])
    for _ in range(2):
        brought_in(tmp_path / ".gemini", home)
        session = sessions(home)[f"gemini-{NAME}"]
        assert len(session["messages"]) == 4 and not hidden(session)


def test_tokens_that_are_written_after_the_words_come_in_with_the_next_import(tmp_path: Path) -> None:
    home, file = tmp_path / "home", tmp_path / "chats" / "session-1.jsonl"
    lines(file, [HEADER, user("m1", "which files?"), {**REPLY, "tokens": None, "model": None}])
    brought_in(file, home)
    lines(file, [HEADER, user("m1", "which files?"), {**REPLY, "tokens": None, "model": None}, REPLY])
    brought_in(file, home)
    session = everything(home)
    assert [session["messages"][1][name] for name in ("input_tokens", "output_tokens", "cache_read_tokens")] == [
        10,
        5,
        40,
    ]
    assert (session["output_tokens"], session["model"]) == (5, "gemini-3-pro")
