"""Conversations of Cursor: the editor's database, and transcripts of its command line."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from tests.interop.importing import brought_in, changed, database, hidden, lines, sessions, told, unchanged
from tests.support import program

NAME, CHILD = "7f3c0000-0000-4000-8000-000000000001", "7f3c0000-0000-4000-8000-000000000002"
AT = 1772700000000
Row = tuple[str, Any]


def bubble(number: int, kind: int, conversation: str = NAME, **more: Any) -> Row:
    made = f"2026-03-05T08:{40 + number}:00.000Z"
    return f"bubbleId:{conversation}:b{number}", json.dumps(
        {"_v": 3, "type": kind, "bubbleId": f"b{number}", "createdAt": made, **more}
    )


def tool(name: str, result: Any = None, **more: Any) -> dict[str, Any]:
    return {"capabilityType": 15, "toolFormerData": {"name": name, "status": "completed", "result": result, **more}}


def composer(numbers: list[int], conversation_id: str = NAME, **more: Any) -> Row:
    headers = [{"bubbleId": f"b{number}", "type": 1} for number in numbers]
    about = {"_v": 10, "composerId": conversation_id, "createdAt": AT, "fullConversationHeadersOnly": headers, **more}
    return f"composerData:{conversation_id}", json.dumps(about)


def talk() -> list[Row]:
    replaced = {"file_path": "/work/c/a.py", "old_string": "width = 1", "new_string": "width = 2"}
    edit = {"relativeWorkspacePath": "a.py", "noCodeblock": True}
    return [
        composer([0, 1, 2, 3, 4, 5, 6, 9], modelConfig={"modelName": "default"}),
        bubble(0, 1, text="make x two", workspaceProjectDir="/work/c", modelInfo={"modelName": "sonnet"}),
        bubble(1, 2, text="", capabilityType=30, thinking={"text": "I edit it.", "signature": "s"}),
        bubble(2, 2, text="Editing.", modelInfo={"modelName": "sonnet"}, tokenCount={"inputTokens": 11, "outputTokens": 3}),
        bubble(3, 2, **tool("search_replace", json.dumps({"ok": True}), toolCallId="t1", rawArgs=json.dumps(replaced), params="{}")),
        bubble(4, 2, **tool("edit_file_v2", json.dumps({"ok": True}), toolCallId="t2", params=json.dumps(edit))),
        bubble(5, 2, **tool("run_terminal_command_v2", toolCallId="t3", params={"command": "false"}, status="error", error="exit 1")),
        bubble(6, 2, text="Done.", capabilityType=22),
        bubble(7, 1, text="taken back"),
    ]  # fmt: skip


def editor(path: Path, rows: list[Row], items: list[Row] = []) -> Path:  # noqa: B006
    path.unlink(missing_ok=True)
    return database(
        path,
        ("CREATE TABLE ItemTable (key TEXT UNIQUE ON CONFLICT REPLACE, value BLOB)", []),
        ("CREATE TABLE cursorDiskKV (key TEXT UNIQUE ON CONFLICT REPLACE, value BLOB)", []),
        ("INSERT INTO cursorDiskKV VALUES(?, ?)", rows),
        *([("INSERT INTO ItemTable VALUES(?, ?)", items)] if items else []),
    )


def global_database(home: Path) -> Path:
    return home / ".config" / "Cursor" / "User" / "globalStorage" / "state.vscdb"


def test_a_conversation_of_the_editor(tmp_path: Path) -> None:
    home = tmp_path / "home"
    file = editor(
        global_database(tmp_path),
        [*talk(), composer([0], CHILD, name="Sub"), bubble(0, 1, CHILD, rawText="look around")],
    )
    before = unchanged(file)
    done = program.run("sessions", "import", "--found", "--yes", home=home, env={"HOME": str(tmp_path)})
    assert done.status == 0 and "2 sessions" in done.out, done
    assert unchanged(file) == before
    found = sessions(home)
    session = found[f"cursor-{NAME}"]
    assert (session["cwd"], session["model"], session["started_at"]) == ("/work/c", "sonnet", AT / 1000)
    assert [role for role, _ in told(session)] == ["user", "assistant", "assistant", "assistant", "tool", "assistant", "tool",
                                                   "assistant", "tool", "assistant"]  # fmt: skip
    asked, thought, reply, replaced, first, edited, *_, last = session["messages"]
    assert asked["content"] == "make x two"
    assert thought["reasoning"] == "I edit it." and (reply["input_tokens"], reply["output_tokens"]) == (11, 3)
    arguments = [json.loads(one["tool_calls"][0]["function"]["arguments"]) for one in (replaced, edited)]
    assert arguments[0] == {"file_path": "/work/c/a.py", "old_string": "width = 1", "new_string": "width = 2"}
    assert arguments[1]["relativeWorkspacePath"] == "a.py"
    assert changed(home) == {"/work/c/a.py": 1, "a.py": 0}
    assert (first["tool_call_id"], first["tool_name"], last["content"]) == ("t1", "search_replace", "Done.")
    assert session["messages"][8]["content"] == "exit 1" and hidden(session) == ["taken back"]
    assert told(found[f"cursor-{CHILD}"]) == [("user", "look around")]
    assert "2 sessions already here" in brought_in(file, home)


def test_damaged_and_emptied_rows_cost_themselves(tmp_path: Path) -> None:
    rows = [*talk(), (f"bubbleId:{NAME}:b9", None), ("composerData:empty", None), ("composerData:torn", "{torn"),
            (f"bubbleId:{NAME}:b10", "[1]"), ("composerData:none", json.dumps({"composerId": "none"}))]  # fmt: skip
    printed = brought_in(editor(tmp_path / "state.vscdb", rows), tmp_path / "home", status=1)
    assert "1 session with 10 messages" in printed and "torn" in printed


def test_the_folder_of_a_window_is_that_of_its_conversations(tmp_path: Path) -> None:
    window = global_database(tmp_path).parent.parent / "workspaceStorage" / "abc"
    editor(window / "state.vscdb", [composer([0]), bubble(0, 1, text="hi")])
    (window / "workspace.json").write_text(json.dumps({"folder": "file:///work/with%20space"}))
    brought_in(tmp_path / ".config", tmp_path / "home")
    assert sessions(tmp_path / "home")[f"cursor-{NAME}"]["cwd"] == "/work/with space"


def said(role: str, *content: Any) -> dict[str, Any]:
    return {"role": role, "message": {"content": content[0] if isinstance(content[0], str) else list(content)}}


def transcript() -> list[Any]:
    edit = {"path": "/work/c/a.py", "old_string": "1", "new_string": "2"}
    return [
        said("user", {"type": "text", "text": "<user_query>\nmake x two\n</user_query>"}),
        said("assistant", {"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "Editing."},
             {"type": "tool_use", "id": None, "name": "StrReplace", "input": edit}),
        said("user", {"type": "tool_result", "content": "ok"}),
        {"type": "turn_ended", "status": "success"}, said("assistant", "Done."),
    ]  # fmt: skip


def test_a_transcript_of_the_command_line(tmp_path: Path) -> None:
    home, folder = tmp_path / "home", tmp_path / ".cursor" / "projects" / "work-c" / "agent-transcripts" / NAME
    file = lines(folder / f"{NAME}.jsonl", [*transcript(), {"type": "hologram"}])
    os.utime(file, (1772786400, 1772786400))
    lines(folder / "subagents" / f"{CHILD}.jsonl", transcript()[:1])
    done = program.run("sessions", "import", "--found", "--yes", home=home, env={"HOME": str(tmp_path)})
    assert done.status == 0 and "2 sessions with 5 messages imported" in done.out and "hologram" in done.err, done
    found = sessions(home)
    session = found[f"cursor-{NAME}"]
    assert told(session) == [("user", "make x two"), ("assistant", "Editing."), ("tool", "ok"), ("assistant", "Done.")]
    reply, result = session["messages"][1:3]
    assert json.loads(reply["tool_calls"][0]["function"]["arguments"])["new_string"] == "2"
    assert (reply["reasoning"], result["tool_call_id"]) == ("hm", reply["tool_calls"][0]["id"])
    assert (
        session["started_at"] == session["messages"][0]["timestamp"] == 1772786400
        and found[f"cursor-{CHILD}"]["parent_session_id"] == f"cursor-{NAME}"
    )
    lines(file, [*transcript(), said("user", "more")])
    brought_in(file, home)
    assert told(sessions(home)[f"cursor-{NAME}"])[-1] == ("user", "more")


def test_a_conversation_of_the_editor_comes_once(tmp_path: Path) -> None:
    """The editor writes a transcript of it as well, without times and results."""
    home, env = tmp_path / "home", {"HOME": str(tmp_path)}
    editor(global_database(tmp_path), [*talk(), composer([], "listed-only")])
    lines(tmp_path / ".cursor" / "projects" / "work-c" / "agent-transcripts" / "listed-only.jsonl", transcript()[:1])
    file = lines(tmp_path / ".cursor" / "projects" / "work-c" / "agent-transcripts" / f"{NAME}.jsonl", transcript())
    done = program.run("sessions", "import", "--found", "--yes", home=home, env=env)
    assert "2 sessions with 11 messages imported" in done.out, done
    done = program.run("sessions", "import", file, home=home, env=env)
    assert done.status == 1 and "database" in done.err, done
    assert len(sessions(home)[f"cursor-{NAME}"]["messages"]) == 10


def test_it_grows_and_loses_nothing(tmp_path: Path) -> None:
    file, home = editor(tmp_path / "state.vscdb", talk()), tmp_path / "home"
    brought_in(file, home)
    editor(file, [composer([0, 2, 8], name="Title"), *talk()[1:4], bubble(8, 1, text="go on")])
    brought_in(file, home)
    session = sessions(home)[f"cursor-{NAME}"]
    assert session["title"] == "Title" and told(session)[-1] == ("user", "go on")
    assert "Done." in hidden(session) and len(session["messages"]) == 3
