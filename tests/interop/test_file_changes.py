"""The edit tools of each program, through a file as that program writes it: what they changed is known after the import."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hermes.store.records.file_changes import hashes_in, line_hash
from hermes_state import SessionDB
from tests.interop import test_cline as cline
from tests.interop import test_copilot as copilot
from tests.interop import test_cursor as cursor
from tests.interop import test_gemini as gemini
from tests.interop import test_opencode as opencode
from tests.interop import test_qwen as qwen
from tests.interop import test_vscode_copilot as vscode
from tests.interop import test_zed as zed
from tests.interop.importing import brought_in, database, lines

OLD, NEW = "total = first + second", "total = sum(everything)"
REFUSED = "old_string was not found"


def of_gemini(folder: Path) -> Path:
    given = {"file_path": "/work/a.py", "old_string": OLD, "new_string": NEW}
    calls = [
        {"id": "c1", "name": "replace", "args": given, "status": "success", "result": "replaced"},
        {"id": "c2", "name": "write_file", "args": {"file_path": "/work/refused.py", "content": NEW}, "status": "cancelled", "result": REFUSED},
    ]  # fmt: skip
    return lines(
        folder / "session-1.jsonl", [gemini.HEADER, gemini.user("m1", "sum it"), {**gemini.REPLY, "toolCalls": calls}]
    )


def of_qwen(folder: Path) -> Path:
    call = {
        "functionCall": {
            "id": "c1",
            "name": "edit",
            "args": {"file_path": "/work/a.py", "old_string": OLD, "new_string": NEW},
        }
    }
    answer = {"functionResponse": {"id": "c1", "name": "edit", "response": {"output": "done"}}}
    return lines(folder / ".qwen" / "projects" / "x" / "chats" / f"{qwen.NAME}.jsonl", [
        qwen.record(1, None, "user", "user", [{"text": "sum it"}]), qwen.record(2, 1, "assistant", "model", [{"text": "So."}, call]),
        qwen.record(3, 2, "tool_result", "user", [answer]),
    ])  # fmt: skip


def of_opencode(folder: Path) -> Path:
    def tool(number: int, status: str, **given: Any) -> tuple[Any, ...]:
        state = {"status": status, "input": given, "output": "done", "error": REFUSED}
        return opencode.part(f"prt_{number}", "msg_2", type="tool", callID=f"c{number}", tool="edit", state=state)

    made = {"created": 1772500060000}
    return database(
        folder / "opencode" / "opencode.db",
        ("CREATE TABLE session(id TEXT, project_id TEXT, parent_id TEXT, directory TEXT, title TEXT, revert TEXT,"
         " time_created INTEGER, time_updated INTEGER, time_archived INTEGER)", []),
        ("CREATE TABLE message(id TEXT, session_id TEXT, time_created INTEGER, data TEXT)", []),
        ("CREATE TABLE part(id TEXT, message_id TEXT, session_id TEXT, data TEXT)", []),
        ("INSERT INTO session VALUES(?,?,?,?,?,?,?,?,?)", [("ses_1", "p", None, "/work", "x", None, 1772500000000, 0, None)]),
        ("INSERT INTO message VALUES(?,?,?,?)", [
            ("msg_1", "ses_1", 1772500000000, json.dumps({"role": "user", "time": made})),
            ("msg_2", "ses_1", 1772500060000, json.dumps({"role": "assistant", "time": made}))]),
        ("INSERT INTO part VALUES(?,?,?,?)", [
            opencode.part("prt_1", "msg_1", type="text", text="sum it"),
            tool(2, "completed", filePath="/work/a.py", oldString=OLD, newString=NEW),
            tool(3, "error", filePath="/work/refused.py", oldString=OLD, newString=NEW)]),
    ).parent  # fmt: skip


def of_pi(folder: Path) -> Path:
    def entry(number: int, **told: Any) -> dict[str, Any]:
        parent = f"0000000{number - 1}" if number > 1 else None
        return {
            "type": "message",
            "id": f"0000000{number}",
            "parentId": parent,
            "timestamp": "2026-03-07T10:00:00.000Z",
            "message": told,
        }

    calls = [
        {"type": "toolCall", "id": "t1", "name": "edit", "arguments": {"path": "a.py", "oldText": OLD, "newText": NEW}},
        {"type": "toolCall", "id": "t2", "name": "write", "arguments": {"path": "refused.py", "content": NEW}},
    ]
    return lines(folder / "2026_pi.jsonl", [
        {"type": "session", "version": 3, "id": "pi-1", "timestamp": "2026-03-07T10:00:00.000Z", "cwd": "/work"},
        entry(1, role="user", content="sum it"), entry(2, role="assistant", model="m", content=calls),
        entry(3, role="toolResult", toolCallId="t1", toolName="edit", content=[{"type": "text", "text": "done"}]),
        entry(4, role="toolResult", toolCallId="t2", toolName="write", isError=True, content=[{"type": "text", "text": REFUSED}]),
    ])  # fmt: skip


def of_cursor(folder: Path) -> Path:
    given = json.dumps({"file_path": "/work/a.py", "old_string": OLD, "new_string": NEW})
    refused = json.dumps({"target_file": "/work/refused.py", "code_edit": NEW})
    return cursor.editor(folder / "Cursor" / "User" / "globalStorage" / "state.vscdb", [
        cursor.composer([0, 1, 2]), cursor.bubble(0, 1, text="sum it"),
        cursor.bubble(1, 2, text="So.", **cursor.tool("search_replace", "{}", toolCallId="t1", rawArgs=given)),
        cursor.bubble(2, 2, text="So.", **cursor.tool("edit_file", toolCallId="t2", rawArgs=refused, status="error", error=REFUSED)),
    ])  # fmt: skip


def of_copilot(folder: Path) -> Path:
    given = {"path": "/work/a.py", "old_str": OLD, "new_str": NEW}
    refused = {"path": "/work/refused.py", "file_text": NEW}
    return lines(folder / "session-state" / copilot.NAME / "events.jsonl", [
        copilot.event(0, "session.start", sessionId=copilot.NAME, context={"cwd": "/work"}), copilot.event(1, "user.message", content="sum it"),
        copilot.event(2, "assistant.message", content="So.", toolRequests=[
            {"toolCallId": "t1", "name": "edit", "arguments": given}, {"toolCallId": "t2", "name": "create", "arguments": refused}]),
        copilot.event(3, "tool.execution_complete", toolCallId="t1", success=True, result={"content": "done"}),
        copilot.event(4, "tool.execution_complete", toolCallId="t2", success=False, error={"message": REFUSED}),
    ])  # fmt: skip


def of_vscode(folder: Path) -> Path:
    given = {"filePath": "/work/a.py", "oldString": OLD, "newString": NEW}
    round_ = {
        "id": "r0",
        "response": "So.",
        "toolCalls": [{"id": "t1", "name": "replace_string_in_file", "arguments": json.dumps(given)}],
    }
    asked = vscode.request(
        1,
        "sum it",
        [{"value": "So."}],
        result=vscode.result(round_, results={"t1": {"content": [{"value": "edited"}]}}),
    )
    return cline.written(vscode.storage(folder) / f"{vscode.NAME}.json", vscode.whole(asked))


def of_cline(folder: Path) -> Path:
    diff = f"------- SEARCH\n{OLD}\n=======\n{NEW}\n+++++++ REPLACE"
    calls = [
        {"type": "tool_use", "id": "c1", "name": "replace_in_file", "input": {"path": "a.py", "diff": diff}},
        {"type": "tool_use", "id": "c2", "name": "write_to_file", "input": {"path": "refused.py", "content": NEW}},
    ]
    results = [
        {"type": "tool_result", "tool_use_id": "c1", "content": "done"},
        {"type": "tool_result", "tool_use_id": "c2", "is_error": True, "content": REFUSED},
    ]
    environment = cline.ENVIRONMENT.replace("/work/c", "/work")
    return cline.task(folder, "saoudrizwan.claude-dev", [
        {"role": "user", "content": [cline.text("<task>\nsum it\n</task>"), cline.text(environment)], "ts": cline.AT},
        {"role": "assistant", "content": calls, "ts": cline.AT + 1000}, {"role": "user", "content": results, "ts": cline.AT + 2000},
    ])  # fmt: skip


def of_zed(folder: Path) -> Path:
    def use(name: str, path: str) -> dict[str, Any]:
        given = {"path": path, "edits": [{"old_text": OLD, "new_text": NEW}]}
        return {
            "ToolUse": {"id": name, "name": "edit_file", "raw_input": "{}", "input": given, "is_input_complete": True}
        }

    results = {
        name: {"tool_use_id": name, "tool_name": "edit_file", "is_error": name == "t2", "content": {"Text": "so"}}
        for name in ("t1", "t2")
    }
    told = zed.document(
        {"User": {"id": "u1", "content": [{"Text": "sum it"}]}},
        {"Agent": {"content": [use("t1", "c/a.py"), use("t2", "c/refused.py")], "tool_results": results}},
    )
    return zed.threads(folder / "zed" / "threads" / "threads.db", zed.row("z1", told))


@pytest.mark.parametrize(
    "made", [of_gemini, of_qwen, of_opencode, of_pi, of_cursor, of_copilot, of_vscode, of_cline, of_zed]
)
def test_an_edit_is_known_after_the_import_and_a_refused_one_is_not(
    made: Callable[[Path], Path], tmp_path: Path
) -> None:
    home = tmp_path / "home"
    brought_in(made(tmp_path), home)
    with SessionDB(home / "state.db", read_only=True) as db:
        (change,) = db.file_changes(["a.py"])
        assert change["path"] in ("/work/a.py", "a.py", "c/a.py") and change["kind"] == "edit"
        assert hashes_in(change["lines"]) == {line_hash(NEW)}
        assert db.change_reasons([change["message_id"]])[change["message_id"]]["request"] == "sum it"
        assert db.file_changes(["refused.py"]) == []
