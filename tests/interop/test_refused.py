"""A file of no known program is refused, and a file that brings nothing is a failure that says why."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from hermes.interop import formats
from tests.interop.importing import brought_in, database, lines, sessions, told
from tests.interop.test_claude_code import NAME, conversation
from tests.support import program

AT = "2026-03-01T10:00:00.000Z"
# The first lines of programs that no importer reads.
UNKNOWN: dict[str, list[Any]] = {
    "wire": [{"type": "metadata", "protocol_version": "1.3"}, {"timestamp": 1.5, "message": {"type": "TurnBegin", "payload": {}}}],
    "acp": [{"jsonrpc": "2.0", "method": "session/prompt", "params": {"sessionId": "g", "prompt": []}}],
    "ids": [{"id": "1"}, {"id": "2"}],
}  # fmt: skip


@pytest.mark.parametrize("name", UNKNOWN)
def test_a_file_of_no_known_program_is_refused_with_what_was_looked_for(tmp_path: Path, name: str) -> None:
    file, home = lines(tmp_path / f"{name}.jsonl", UNKNOWN[name]), tmp_path / "home"
    printed = brought_in(file, home, status=1)
    assert f"{name}.jsonl is in no format that can be imported" in printed and printed.count("\n") == 1
    assert all(one.program in printed for one in formats.histories())
    assert not (home / "state.db").exists()
    file.write_text(json.dumps(UNKNOWN[name], indent=2))
    assert "is in no format" in brought_in(file, home, status=1)


def nothing(tmp_path: Path) -> dict[str, Path]:
    """Files of known programs in which no one has said anything."""
    gemini = {"sessionId": "g1", "projectHash": "abc", "startTime": AT, "lastUpdated": AT}
    meta = {"type": "session_meta", "timestamp": AT, "payload": {"id": "c1", "timestamp": AT, "cwd": "/w"}}
    with zipfile.ZipFile(tmp_path / "export.zip", "w") as archive:
        archive.writestr("conversations.json", json.dumps([{"uuid": "x", "name": "n", "chat_messages": []}]))
    return {
        "claude-code": lines(tmp_path / f"{NAME}.jsonl", [{"type": "mode", "mode": "plan", "sessionId": NAME}]),
        "codex": lines(tmp_path / "rollout-1.jsonl", [meta]),
        "gemini": lines(tmp_path / "session-1.jsonl", [gemini]),
        "pi": lines(tmp_path / "pi.jsonl", [{"type": "session", "version": 3, "id": "p", "timestamp": AT, "cwd": "/w"}]),
        "claude-ai": tmp_path / "export.zip",
        "llm": database(
            tmp_path / "logs.db",
            ("CREATE TABLE conversations(id TEXT, name TEXT, model TEXT)", []),
            ("CREATE TABLE responses(id TEXT, prompt TEXT, response TEXT, conversation_id TEXT)", []),
        ),
        "chatgpt": lines(tmp_path / "conversations.json", [[{"conversation_id": "c", "title": "t", "mapping": {}}]]),
    }  # fmt: skip


def test_a_named_file_that_brings_nothing_is_a_failure_with_its_reason(tmp_path: Path) -> None:
    for name, file in nothing(tmp_path).items():
        printed = brought_in(file, tmp_path / "home", status=1)
        assert f"{file}: there is no conversation in it" in printed, name
    folder = tmp_path / "folder"
    lines(folder / f"{NAME}.jsonl", [one for one in conversation() if not isinstance(one, str)])
    lines(folder / "empty.jsonl", [{"type": "mode", "mode": "plan", "sessionId": "e"}])
    assert "1 session with 6 messages imported" in brought_in(folder, tmp_path / "home")
    assert "1 session already here" in brought_in(folder, tmp_path / "home")
    done = program.run("sessions", "import", "-", home=tmp_path / "other", input="")
    assert done.status == 1 and "- is empty" in done.err, done


@pytest.mark.parametrize("form", ["object", "array", "one after the other", "array on a line"])
def test_indented_json_of_our_own_is_read(tmp_path: Path, form: str) -> None:
    def session(number: int) -> dict[str, Any]:
        said = [{"role": "user", "content": f"hello {number}", "timestamp": 1.0, "id": number}]
        return {"id": f"s{number}", "source": "cli", "started_at": 1.0, "messages": said}

    made = [session(1)] if form == "object" else [session(1), session(2)]
    if form == "array on a line":
        text = json.dumps(made)
    else:
        text = json.dumps(made, indent=2) if form == "array" else "\n".join(json.dumps(one, indent=2) for one in made)
    file, home = tmp_path / "pretty.json", tmp_path / "home"
    file.write_text(text + "\n")
    brought_in(file, home)
    assert [told(one) for one in sessions(home).values()] == [[("user", f"hello {n}")] for n in range(1, len(made) + 1)]
    file.write_text(text[: len(text) - 9])
    assert "ends in the middle" in brought_in(file, tmp_path / "other", status=1)
