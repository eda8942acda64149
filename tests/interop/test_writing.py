"""Conversations go out in the formats that other programs read, and come back from those that they are read from."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import pytest

from hermes_state import SessionDB
from tests.interop.importing import PIXEL, brought_in, hidden, sessions, told
from tests.support import program

PICTURE = [
    {"type": "text", "text": "what is this?"},
    {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}},
]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    home = tmp_path / "home"
    call = {"id": "c1", "type": "function", "function": {"name": "terminal", "arguments": '{"command":"ls"}'}}
    with SessionDB(home / "state.db") as db:
        db.create_session("s1", "cli", model="gpt-5", system_prompt="Be brief.", cwd="/work/x")
        db.set_session_title("s1", "A dot")
        db.append_message("s1", "user", PICTURE)
        db.append_message("s1", "assistant", "I look.", reasoning="hm", tool_calls=[call], finish_reason="tool_calls")
        db.append_message("s1", "tool", "a.py <|im_end|>", tool_call_id="c1", tool_name="terminal")
        db.append_message("s1", "assistant", "A dot.", output_tokens=5, input_tokens=9)
    return home


@pytest.mark.parametrize("form", ["claude-code", "codex"])
def test_what_goes_out_comes_back(home: Path, tmp_path: Path, form: str) -> None:
    file = tmp_path / "rollout-out.jsonl"
    done = program.run("sessions", "export", file, "--session-id", "s1", "--format", form, home=home)
    assert done.status == 0, done
    other = tmp_path / "other"
    assert "1 session with 4 messages imported" in brought_in(file, other)
    (back,) = sessions(other).values()
    (out,) = sessions(home).values()
    assert told(back) == told(out)
    assert (back["title"], back["cwd"], back["source"]) == ("A dot", "/work/x", form)
    assert (
        back["messages"][1]["reasoning"] == "hm"
        and back["messages"][1]["tool_calls"] == out["messages"][1]["tool_calls"]
    )
    assert back["messages"][3]["output_tokens"] == 5
    with SessionDB(home / "state.db") as db:
        db.create_session("s2", "cli")
        db.append_message("s2", "user", "more")
    refused = program.run("sessions", "export", tmp_path / "two.jsonl", "--format", form, home=home)
    assert refused.status != 0 and "--session-id" in refused.err and not (tmp_path / "two.jsonl").exists()


def test_an_imported_conversation_is_gone_on_with(home: Path, tmp_path: Path) -> None:
    file = tmp_path / "out.jsonl"
    program.run("sessions", "export", file, "--session-id", "s1", "--format", "claude-code", home=home)
    other = tmp_path / "other"
    brought_in(file, other)
    (name,) = sessions(other)
    done = program.run("-r", name, "-q", "and now?", home=other)
    assert done.status == 0, done
    shown = told(sessions(other)[name])
    assert len(shown) == 6 and shown[4] == ("user", "and now?")


def test_what_claude_code_and_codex_cant_hold_is_said(tmp_path: Path) -> None:
    home = tmp_path / "home"
    pixel = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}}
    with SessionDB(home / "state.db") as db:
        db.create_session("s", "cli", model="a-model", system_prompt="be kind")
        db.append_message("s", "user", "hello")
        db.append_message("s", "assistant", "")
        call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}
        db.append_message("s", "assistant", None, tool_calls=[call])
        db.append_message("s", "tool", [{"type": "text", "text": "a dot"}, pixel], tool_call_id="c", tool_name="look")
    claude, codex = tmp_path / f"{uuid.uuid4()}.jsonl", tmp_path / "rollout-1.jsonl"
    for form, file, missing in (
        ("claude-code", claude, "system prompts (1)"),
        ("codex", codex, "attachments (1), empty messages (1)"),
    ):
        done = program.run("sessions", "export", file, "--format", form, "--session-id", "s", home=home)
        assert done.status == 0 and all(one in done.err for one in missing.split(", ")), done
        (session,) = sessions_of(file, tmp_path / form).values()
        assert session["model"] == "a-model" and "attachment:" not in file.read_text()


def sessions_of(file: Path, home: Path) -> dict[str, dict[str, Any]]:
    brought_in(file, home)
    return sessions(home)


def exported(home: Path, tmp_path: Path) -> Path:
    name = str(uuid.uuid5(uuid.NAMESPACE_URL, "hermes:s1"))
    file = tmp_path / f"{name}.jsonl"
    done = program.run("sessions", "export", file, "--session-id", "s1", "--format", "claude-code", home=home)
    assert done.status == 0, done
    return file


def gone_on(file: Path, *words: str, after: int = -1) -> None:
    """Claude Code goes on: it appends lines to the file."""
    records = [json.loads(line) for line in file.read_text().splitlines()]
    parent = [one for one in records if one.get("uuid")][after]["uuid"]
    with file.open("a") as stream:
        for number, text in enumerate(words):
            line = {"type": "user", "uuid": str(uuid.uuid5(uuid.NAMESPACE_URL, text)), "parentUuid": parent, "sessionId": file.stem,
                    "timestamp": f"2036-03-01T10:{number:02}:00Z", "message": {"role": "user", "content": text}}  # fmt: skip
            parent = line["uuid"]
            stream.write(json.dumps(line) + "\n")


def texts(home: Path, name: str = "s1") -> list[Any]:
    return [content for _, content in told(sessions(home)[name])][3:]


def test_an_exported_session_that_was_continued_there_continues_the_one_it_came_from(
    home: Path, tmp_path: Path
) -> None:
    file = exported(home, tmp_path)
    assert "1 session already here" in brought_in(file, home)
    gone_on(file, "one")
    assert "1 message imported, 1 session updated" in brought_in(file, home)
    assert texts(home) == ["A dot.", "one"]
    gone_on(file, "two", "three")
    assert "2 messages imported, 1 session updated" in brought_in(file, home)
    brought_in(file, home)
    assert list(sessions(home)) == ["s1"] and texts(home) == ["A dot.", "one", "two", "three"]
    file.unlink()
    file = exported(home, tmp_path)  # and once more, with what came back
    gone_on(file, "four", "five")
    brought_in(file, home)
    assert list(sessions(home)) == ["s1"] and texts(home) == ["A dot.", "one", "two", "three", "four", "five"]
    assert not hidden(sessions(home)["s1"])
    with SessionDB(home / "state.db") as db:
        assert db.check() == []


@pytest.mark.parametrize("case", ["gone on here", "from earlier", "with two"])
def test_where_both_have_gone_on_it_is_a_branch(home: Path, tmp_path: Path, case: str) -> None:
    file = exported(home, tmp_path)
    if case == "gone on here":
        with SessionDB(home / "state.db") as db:
            db.append_message("s1", "user", "said here")
    gone_on(file, "one", *(["two"] if case == "with two" else []), after=-2 if case == "from earlier" else -1)
    brought_in(file, home)
    brought_in(file, home)
    if case == "with two":
        assert texts(home) == ["A dot.", "one", "two"]
        return
    branch = sessions(home)[f"claude-code-{file.stem}"]
    assert (branch["parent_session_id"], branch["kind"]) == ("s1", "branch")
    assert [content for _, content in told(branch)][2:] == [
        "a.py <|im_end|>",
        *(["A dot."] * (case == "gone on here")),
        "one",
    ]
    gone_on(file, "two")
    brought_in(file, home)
    assert texts(home, branch["id"])[-2:] == ["one", "two"] and len(sessions(home)) == 2
    assert texts(home) == ["A dot.", *(["said here"] * (case == "gone on here"))]
    with SessionDB(home / "state.db") as db:
        assert db.check() == []


def test_a_chat_that_comes_back_keeps_the_messages_of_its_platform(home: Path, tmp_path: Path) -> None:
    with SessionDB(home / "state.db") as db:
        db.append_message("s1", "user", "from the phone", platform_message_id="555")
    file = exported(home, tmp_path)
    gone_on(file, "one", "two")
    brought_in(file, home)
    assert list(sessions(home)) == ["s1"] and texts(home) == ["A dot.", "from the phone", "one", "two"]
    gone_on(file, "three")
    brought_in(file, home)
    assert texts(home)[1:] == ["from the phone", "one", "two", "three"] and not hidden(sessions(home)["s1"])
