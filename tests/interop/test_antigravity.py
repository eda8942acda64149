"""Transcripts of Antigravity."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.interop.importing import brought_in, changed, lines, sessions, told
from tests.support import program

NAME = "77777777-2222-4333-8444-555555555555"


def step(number: int, source: str, kind: str, content: Any = None, **more: Any) -> dict[str, Any]:
    made = {
        "step_index": number,
        "source": source,
        "type": kind,
        "status": "DONE",
        "created_at": f"2026-03-09T10:{number:02}:00Z",
    }
    return {**made, **({} if content is None else {"content": content}), **more}


def talk() -> list[Any]:
    asked = (
        "<USER_REQUEST>\nmake x two\n</USER_REQUEST>\n<ADDITIONAL_METADATA>\nnow\n</ADDITIONAL_METADATA>\n<USER_SETTINGS_CHANGE>\n"
        "The user changed setting `Model Selection` from None to Gemini 3.5 Flash (High). No need to comment.\n</USER_SETTINGS_CHANGE>"
    )
    edit = {"TargetFile": json.dumps("/work/g/a.py"), "CodeContent": json.dumps("width = 2\n"), "Overwrite": "true"}
    calls = [
        {"name": "view_file", "args": {"AbsolutePath": json.dumps("/work/g/a.py")}},
        {"name": "write_to_file", "args": edit},
    ]
    return [
        step(0, "USER_EXPLICIT", "USER_INPUT", asked), step(1, "SYSTEM", "CONVERSATION_HISTORY"),
        step(3, "MODEL", "PLANNER_RESPONSE", "Editing.", thinking="I look first.", tool_calls=calls,
             usage={"input_tokens": 100, "output_tokens": 9, "cached_content_token_count": 40}),
        step(5, "MODEL", "CODE_ACTION", "Written."), step(4, "MODEL", "VIEW_FILE", "x = 1"),
        step(6, "SYSTEM", "EPHEMERAL_MESSAGE", "noise"), step(7, "MODEL", "PLANNER_RESPONSE", "Done.", model="gemini-3.5-flash"),
    ]  # fmt: skip


def transcript(home: Path, *steps: Any, kind: str = "antigravity") -> Path:
    logs = home / ".gemini" / kind / "brain" / NAME / ".system_generated" / "logs"
    return lines(logs / "transcript.jsonl", steps)


def test_a_conversation(tmp_path: Path) -> None:
    home = tmp_path / "home"
    file = transcript(tmp_path, *talk(), step(8, "ORACLE", "HOLOGRAM", "?"), kind="antigravity-ide")
    done = program.run("sessions", "import", "--found", "--yes", home=home, env={"HOME": str(tmp_path)})
    assert done.status == 0 and "1 session with 5 messages imported" in done.out and "HOLOGRAM" in done.err, done
    session = sessions(home)[f"antigravity-{NAME}"]
    assert (
        session["model"] == "Gemini 3.5 Flash (High)" and session["started_at"] == session["messages"][0]["timestamp"]
    )
    assert told(session) == [
        ("user", "make x two"),
        ("assistant", "Editing."),
        ("tool", "x = 1"),
        ("tool", "Written."),
        ("assistant", "Done."),
    ]
    reply, viewed, written, last = session["messages"][1:]
    assert (reply["reasoning"], reply["input_tokens"], reply["cache_read_tokens"], reply["output_tokens"]) == (
        "I look first.",
        60,
        40,
        9,
    )
    calls = [
        (one["id"], one["function"]["name"], json.loads(one["function"]["arguments"])) for one in reply["tool_calls"]
    ]
    assert calls[1][1:] == (
        "write_to_file",
        {"TargetFile": "/work/g/a.py", "CodeContent": "width = 2\n", "Overwrite": True},
    )
    assert [(one["tool_call_id"], one["tool_name"]) for one in (viewed, written)] == [one[:2] for one in calls]
    assert last["model"] == "gemini-3.5-flash" and changed(home) == {"/work/g/a.py": 1}
    lines(file, [*talk(), step(9, "USER_EXPLICIT", "USER_INPUT", "thanks")])
    brought_in(file, home)
    assert told(sessions(home)[f"antigravity-{NAME}"])[-1] == ("user", "thanks")


def test_a_checkpoint_is_a_continuation_and_a_step_may_come_twice(tmp_path: Path) -> None:
    running = step(7, "MODEL", "PLANNER_RESPONSE", "Do", status="RUNNING")
    file = transcript(tmp_path, *talk()[:-1], running, *talk()[-1:], step(7, "MODEL", "PLANNER_RESPONSE"),
                      step(8, "SYSTEM", "CHECKPOINT", "So far."), step(9, "SYSTEM", "SYSTEM_MESSAGE", "<SYSTEM_MESSAGE>\nhurry\n</SYSTEM_MESSAGE>"),
                      {"type": "PLANNER_RESPONSE", "content": "On it."}, "{torn")  # fmt: skip
    printed = brought_in(file, tmp_path / "home", status=1)
    assert "2 sessions with 8 messages" in printed
    found = sessions(tmp_path / "home")
    assert told(found[f"antigravity-{NAME}"])[-1] == ("assistant", "Done.")
    assert told(found[f"antigravity-{NAME}.2"]) == [("user", "So far."), ("system", "hurry"), ("assistant", "On it.")]
