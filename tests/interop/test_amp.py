"""Threads of Amp."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.interop.importing import brought_in, sessions, told
from tests.support import program

NAME = "T-019ca26f-aaaa-4bbb-8ccc-dddddddddddd"


def thread() -> dict[str, Any]:
    calls = [
        {"type": "tool_use", "id": f"c{n}", "name": "Bash", "input": {"command": "ls"}, "complete": True}
        for n in range(3)
    ]
    runs = [{"status": "done", "result": {"output": "a.py\n", "exitCode": 0}}, {"status": "error", "error": {"message": "no"}}, {"status": "cancelled"}]  # fmt: skip
    used = {
        "model": "sonnet",
        "inputTokens": 10,
        "outputTokens": 7,
        "cacheReadInputTokens": 90,
        "cacheCreationInputTokens": 5,
    }
    return {
        "v": 3, "id": NAME, "created": 1772359200000, "title": "Listing",
        "messages": [
            {"role": "user", "messageId": 0, "content": [{"type": "text", "text": "which files?"}], "meta": {"sentAt": 1772359201000}},
            {"role": "assistant", "messageId": 1, "usage": used,
             "content": [{"type": "thinking", "thinking": "I list them."}, {"type": "text", "text": "Looking."}, *calls]},
            {"role": "user", "messageId": 2, "content": [
                {"type": "tool_result", "toolUseID": f"c{n}", "run": run} for n, run in enumerate(runs)]},
            {"role": "assistant", "messageId": 3, "content": [{"type": "text", "text": "One file."}, {"type": "hologram"}]},
        ],
        "env": {"initial": {"trees": [{"displayName": "a", "uri": "file:///work/a%20b"}]}},
    }  # fmt: skip


def written(path: Path, value: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))
    return path


def test_a_thread_with_tools_and_reasoning(tmp_path: Path) -> None:
    home = tmp_path / "home"
    file = written(tmp_path / ".local" / "share" / "amp" / "threads" / f"{NAME}.json", thread())
    done = program.run("sessions", "import", "--found", "--yes", home=home, env={"HOME": str(tmp_path)})
    assert done.status == 0 and "1 session with 6 messages imported" in done.out and "hologram" in done.err, done
    session = sessions(home)[f"amp-{NAME}"]
    assert (session["title"], session["cwd"], session["model"]) == ("Listing", "/work/a b", "sonnet")
    assert [text for _, text in told(session)] == [
        "which files?",
        "Looking.",
        "a.py\n",
        "no",
        "[cancelled]",
        "One file.",
    ]
    reply = session["messages"][1]
    assert (reply["reasoning"], reply["input_tokens"], reply["cache_read_tokens"], reply["cache_write_tokens"]) == ("I list them.", 10, 90, 5)  # fmt: skip
    assert session["messages"][3]["tool_call_id"] == "c1"
    assert "1 session already here" in brought_in(file, home)


def test_a_thread_that_grew_and_one_that_lost_messages(tmp_path: Path) -> None:
    home, whole = tmp_path / "home", thread()
    file = written(tmp_path / f"{NAME}.json", whole)
    brought_in(file, home)
    later = {"role": "user", "messageId": 4, "content": [{"type": "text", "text": "and now?"}]}
    written(file, {**whole, "messages": [*whole["messages"][:2], later]})
    assert "1 session updated" in brought_in(file, home)
    assert len(told(sessions(home)[f"amp-{NAME}"])) == 7
    file.write_text(json.dumps(whole)[:-9])
    assert "not JSON" in brought_in(file, home, status=1)
