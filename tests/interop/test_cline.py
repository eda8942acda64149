"""Tasks of Cline, Roo Code and Kilo Code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.interop.importing import PIXEL, brought_in, sessions, told
from tests.support import program

TASK = "1795003200000"
AT = int(TASK)
ENVIRONMENT = "<environment_details>\n# Current Working Directory (/work/c) Files\na.py\n# Current Mode\nACT\n</environment_details>"


def text(words: str) -> dict[str, str]:
    return {"type": "text", "text": words}


def history() -> list[Any]:
    """Messages as current versions write them, with the tools of the API."""
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL}}
    call = {"type": "tool_use", "id": "c1", "name": "replace_in_file", "input": {"path": "a.py", "diff": "x"}}
    used = {"tokens": {"prompt": 120, "completion": 7, "cached": 20}, "cost": 0.5}
    return [
        {"role": "user", "content": [text("<task>\nwhich files?\n</task>"), image, text(ENVIRONMENT)], "ts": AT},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "I edit."}, text("Looking."), call], "ts": AT + 1000,
         "modelInfo": {"modelId": "sonnet", "providerId": "anthropic"}, "metrics": used},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": [text("done")]}, text(ENVIRONMENT)],
         "ts": AT + 2000},
        {"role": "assistant", "ts": AT + 3000,
         "content": [{"type": "tool_use", "id": "c2", "name": "attempt_completion", "input": {"result": "One file."}}]},
    ]  # fmt: skip


def written(path: Path, value: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))
    return path


def task(home: Path, extension: str, messages: list[Any], host: str = ".config/Code") -> Path:
    folder = home / host / "User" / "globalStorage" / extension / "tasks" / TASK
    return written(folder / "api_conversation_history.json", messages)


def test_a_task_of_an_editor(tmp_path: Path) -> None:
    home = tmp_path / "home"
    file = task(tmp_path, "saoudrizwan.claude-dev", history(), "Library/Application Support/VSCodium")
    item = {"id": TASK, "ts": AT, "task": "which files?", "tokensIn": 100, "tokensOut": 9, "totalCost": 0.75,
            "cwdOnTaskInitialization": "/work/c"}  # fmt: skip
    written(file.parents[2] / "state" / "taskHistory.json", [{"id": "other", "task": "another"}, item])
    done = program.run("sessions", "import", "--found", "--yes", home=home, env={"HOME": str(tmp_path)})
    assert done.status == 0 and "1 session with 4 messages imported" in done.out, done
    session = sessions(home)[f"cline-{TASK}"]
    assert (session["source"], session["title"], session["cwd"], session["model"], session["actual_cost_usd"]) == (
        "cline",
        "which files?",
        "/work/c",
        "sonnet",
        0.75,
    )
    asked, reply, result, answer = session["messages"]
    assert asked["content"][0]["text"] == "which files?" and "attachment:sha256:" in str(asked["content"][1])
    assert (reply["reasoning"], reply["input_tokens"], reply["cache_read_tokens"], reply["cost_usd"]) == (
        "I edit.",
        100,
        20,
        0.5,
    )
    assert (result["content"], result["tool_call_id"], result["tool_name"]) == ("done", "c1", "replace_in_file")
    assert answer["content"] == "One file." and answer["tool_calls"][0]["function"]["name"] == "attempt_completion"
    assert (asked["timestamp"], answer["timestamp"]) == (AT / 1000, AT / 1000 + 3)
    assert "1 session already here" in brought_in(file, home)


@pytest.mark.parametrize(
    ("extension", "source"), [("rooveterinaryinc.roo-cline", "roo"), ("kilocode.kilo-code", "kilo")]
)
def test_forks_tell_about_a_task_beside_it_and_condense_it(tmp_path: Path, extension: str, source: str) -> None:
    home = tmp_path / "home"
    condensed = [
        {"role": "user", "content": [text("Summary.")], "ts": AT + 4000, "isSummary": True},
        {"role": "user", "content": [text("<feedback>\ngo on\n</feedback>")], "ts": AT + 5000},
        {"role": "hologram", "content": ""},
    ]
    file = task(tmp_path, extension, [*history(), *condensed])
    written(file.with_name("history_item.json"), {"id": TASK, "task": "Listing", "workspace": "/work/roo", "parentTaskId": "1"})  # fmt: skip
    assert "unknown type: message hologram" in brought_in(file, home)
    found = sessions(home)
    first = found[f"{source}-{TASK}"]
    assert (first["title"], first["cwd"], first["kind"]) == ("Listing", "/work/roo", "subagent")
    assert told(found[f"{source}-{TASK}.2"]) == [("user", "Summary."), ("user", "go on")]


def test_a_session_of_the_terminal_program_and_its_sub_agent(tmp_path: Path) -> None:
    home, folder = tmp_path / "home", tmp_path / ".cline" / "data" / "sessions" / "1_a"
    about = {"version": 1, "session_id": "1_a", "cwd": "/work/c", "model": "m", "started_at": "2026-11-18T12:00:00Z",
             "metadata": {"title": "Listing"}}  # fmt: skip
    reply = {"id": "m2", "role": "assistant", "content": [text("Looking.")], "ts": AT + 1, "modelInfo": {"id": "m", "provider": "p"},
             "metrics": {"inputTokens": 120, "outputTokens": 7, "cacheReadTokens": 20, "cacheWriteTokens": 0}}  # fmt: skip
    asked = {
        "id": "m1",
        "role": "user",
        "content": [text('<user_input mode="act">which files?</user_input>')],
        "ts": AT,
    }
    whole = {"version": 1, "agent": "lead", "sessionId": "1_a", "origin": {"source": "cli"}, "messages": [asked, reply],
             "system_prompt": "You are Cline."}  # fmt: skip
    written(folder / "1_a.json", about)
    written(folder / "1_a.messages.json", whole)
    child = {**whole, "agent": "subagent", "sessionId": "1_a__agent_2", "origin": {"parentThreadId": "1_a"}}
    written(folder / "agent_2.messages.json", child)
    done = program.run("sessions", "import", "--found", "--yes", home=home, env={"HOME": str(tmp_path)})
    assert done.status == 0 and "2 sessions with 4 messages imported" in done.out, done
    found = sessions(home)
    session = found["cline-1_a"]
    assert (session["title"], session["cwd"], session["system_prompt"], session["input_tokens"]) == (
        "Listing",
        "/work/c",
        "You are Cline.",
        100,
    )
    assert told(session) == [("user", "which files?"), ("assistant", "Looking.")]
    assert (found["cline-1_a__agent_2"]["kind"], found["cline-1_a__agent_2"]["cwd"]) == ("subagent", "/work/c")


def test_a_file_that_was_written_anew_takes_nothing_away(tmp_path: Path) -> None:
    home = tmp_path / "home"
    file = task(tmp_path, "rooveterinaryinc.roo-cline", history())
    brought_in(file, home)
    before = told(sessions(home)[f"roo-{TASK}"])
    written(file, [history()[0], {"role": "user", "content": "and now?", "ts": AT + 9000}])
    assert "1 session updated" in brought_in(file, home)
    assert told(sessions(home)[f"roo-{TASK}"]) == [*before, ("user", "and now?")]
    file.write_text(json.dumps(history())[:-20])
    assert "ends in the middle" in brought_in(file, home, status=1)
    assert len(told(sessions(home)[f"roo-{TASK}"])) == 5
