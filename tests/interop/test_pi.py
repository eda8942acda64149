"""Sessions of Pi and OpenClaw."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path
from typing import Any

import pytest

from tests.interop.importing import PIXEL, brought_in, hidden, lines, sessions, told
from tests.support import program


def test_pi(tmp_path: Path) -> None:
    home = tmp_path / "home"

    def entry(kind: str, name: str, parent: str | None, **more: Any) -> dict[str, Any]:
        return {"type": kind, "id": name, "parentId": parent, "timestamp": "2026-03-07T10:00:00.000Z", **more}

    reply = {"role": "assistant", "model": "sonnet", "stopReason": "toolUse", "timestamp": 1772877601000,
             "usage": {"input": 1, "output": 2, "cacheRead": 3, "cacheWrite": 0, "cost": {"total": 0.5}},
             "content": [{"type": "text", "text": "I look."}, {"type": "toolCall", "id": "t1", "name": "bash", "arguments": {"c": "ls"}}]}  # fmt: skip
    file = lines(tmp_path / "2026_pi.jsonl", [
        {"type": "session", "version": 3, "id": "pi-1", "timestamp": "2026-03-07T10:00:00.000Z", "cwd": "/work/pi"},
        entry("message", "00000001", None, message={"role": "user", "content": "ls please"}),
        entry("message", "00000002", "00000001", message=reply),
        entry("message", "00000003", "00000002", message={"role": "toolResult", "toolCallId": "t1", "toolName": "bash", "content": [{"type": "text", "text": "a"}]}),
        entry("message", "00000004", "00000003", message={"role": "user", "content": "left"}),
        entry("label", "00000005", "00000003", label="x"),
        entry("message", "00000006", "00000003", message={"role": "user", "content": "kept"}),
    ])  # fmt: skip
    assert "1 session with 4 messages imported" in brought_in(file, home)
    session = sessions(home)["pi-pi-1"]
    assert told(session) == [("user", "ls please"), ("assistant", "I look."), ("tool", "a"), ("user", "kept")]
    assert hidden(session) == ["left"] and session["messages"][1]["cost_usd"] == 0.5 and session["cwd"] == "/work/pi"


def test_openclaw_in_its_usual_place(tmp_path: Path) -> None:
    records = [
        {"type": "session", "version": 3, "id": "claw-1", "timestamp": "2026-03-07T10:00:00.000Z", "cwd": "/work"},
        {"type": "message", "id": "00000001", "parentId": None, "timestamp": "2026-03-07T10:00:01.000Z",
         "message": {"role": "user", "content": "hello claw"}},
    ]  # fmt: skip
    lines(tmp_path / ".openclaw" / "agents" / "main" / "sessions" / "claw-1.jsonl", records)
    done = program.run("sessions", "import", "--found", "--yes", home=tmp_path / "home", env={"HOME": str(tmp_path)})
    assert done.status == 0 and "1 session with 1 message imported" in done.out, done
    session = sessions(tmp_path / "home")["openclaw-claw-1"]
    assert (session["source"], told(session)) == ("openclaw", [("user", "hello claw")])


def test_oh_my_pi_with_a_picture_beside_it_and_a_sub_agent(tmp_path: Path) -> None:
    home, folder, at = tmp_path / "home", tmp_path / ".omp" / "agent", "2026-03-07T10:00:00.000Z"

    def entry(number: int, kind: str, **more: Any) -> dict[str, Any]:
        parent = f"{number - 1}" if number > 1 else None
        return {"type": kind, "id": f"{number}", "parentId": parent, "timestamp": at, **more}

    data = base64.b64decode(PIXEL)
    name = hashlib.sha256(data).hexdigest()
    (folder / "blobs").mkdir(parents=True)
    (folder / "blobs" / name).write_bytes(data)
    pictures = [{"type": "image", "mimeType": "image/png", "data": f"blob:sha256:{one}"} for one in (name, "0" * 64)]
    header = {"type": "session", "version": 3, "id": "o1", "timestamp": at, "cwd": "/work", "title": "Birds"}
    lines(folder / "sessions" / "--work--" / "1_o1.jsonl", [
        header, entry(1, "message", message={"role": "user", "content": [{"type": "text", "text": "which bird?"}, *pictures]}),
        entry(2, "mode_change", mode="plan"), entry(3, "ttsr_injection", injectedRules=["a"]),
        entry(4, "message", message={"role": "pythonExecution", "code": "1+1", "output": "2"}),
        entry(5, "message", message={"role": "developer", "content": "a rule"}),
    ])  # fmt: skip
    lines(folder / "sessions" / "--work--" / "2_o2.jsonl", [
        {**header, "id": "o2", "title": None, "parentSession": "o1"}, entry(1, "session_init", systemPrompt="Look.", task="look"),
        entry(2, "message", message={"role": "user", "content": "look"}),
    ])  # fmt: skip
    done = program.run("sessions", "import", "--found", "--yes", home=home, env={"HOME": str(tmp_path)})
    assert done.status == 0 and "2 sessions with 4 messages imported" in done.out and "unknown" not in done.err, done
    found = sessions(home)
    session, child = found["omp-o1"], found["omp-o2"]
    asked, typed, rule = session["messages"]
    assert session["title"] == "Birds" and name in str(asked["content"]) and "[picture]" in str(asked["content"])
    assert (typed["content"], rule["role"]) == (">>> 1+1\n2", "system")
    assert (child["kind"], child["parent_session_id"], child["system_prompt"]) == ("subagent", "omp-o1", "Look.")


def test_a_damaged_line_costs_that_line_and_not_what_was_said_before_it(tmp_path: Path) -> None:
    home = tmp_path / "home"
    header = {"type": "session", "version": 3, "id": "pi-1", "timestamp": "2026-03-07T10:00:00.000Z", "cwd": "/work"}
    said = [{"type": "message", "id": f"{n}", "parentId": f"{n - 1}" if n else None, "message": {"role": "user", "content": f"{n}"}}
            for n in range(5)]  # fmt: skip
    file = lines(tmp_path / "pi.jsonl", [header, *said[:2], '{"type": "message", "id": "2", "par', *said[3:]])
    assert "line 4: not JSON" in brought_in(file, home, status=1)
    session = sessions(home)["pi-pi-1"]
    assert [text for _, text in told(session)] == ["0", "1", "3", "4"] and not hidden(session)


@pytest.mark.parametrize("kept", [{"firstKeptEntryId": "3"}, {"firstKeptEntryIndex": 3}])
def test_what_a_compaction_leaves_in_the_context_is_shown_after_its_summary(
    tmp_path: Path, kept: dict[str, Any]
) -> None:
    home = tmp_path / "home"

    def entry(number: int, **more: Any) -> dict[str, Any]:
        at = f"2026-03-07T10:0{number}:00.000Z"
        return {
            "type": "message",
            "id": f"{number}",
            "parentId": f"{number - 1}" if number > 1 else None,
            "timestamp": at,
            **more,
        }

    def said(number: int, role: str, words: str) -> dict[str, Any]:
        return entry(number, message={"role": role, "content": [{"type": "text", "text": words}]})

    header = {"type": "session", "version": 3, "id": "p", "timestamp": "2026-03-07T10:00:00.000Z", "cwd": "/w"}
    records = [
        header, said(1, "user", "long ago"), said(2, "assistant", "yes"), said(3, "user", "just now"), said(4, "assistant", "I see"),
        entry(5, type="compaction", summary="Summary.", tokensBefore=9, **kept), said(6, "user", "go on"),
    ]  # fmt: skip
    file = lines(tmp_path / "p.jsonl", records)
    assert "2 sessions with 6 messages imported" in brought_in(file, home)
    assert [text for _, text in told(sessions(home)["pi-p"])] == ["long ago", "yes", "just now", "I see"]
    assert [text for _, text in told(sessions(home)["pi-p.2"])] == ["Summary.", "just now", "I see", "go on"]
    assert "2 sessions already here" in brought_in(file, home)
