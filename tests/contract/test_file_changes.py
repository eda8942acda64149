"""File changes of tool calls: noted with the message, on every engine, and gone with it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hermes_state import SessionDB


def call(name: str, arguments: Any, call_id: str = "c1") -> dict[str, Any]:
    given = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": given}}


def wrote(db: Any, session: str, path: str, text: str = "a first line\n", at: float = 100.0) -> int:
    db.ensure_session(session, "cli")
    db.append_message(session, "user", f"Please write {path}", timestamp=at - 1)
    calls = [call("write_file", {"path": path, "content": text})]
    return int(db.append_message(session, "assistant", f"I write {path}.", tool_calls=calls, timestamp=at))


def found(db: Any, *names: str, **more: Any) -> list[tuple[str, str, str]]:
    return [(row["session_id"], row["path"], row["kind"]) for row in db.file_changes(list(names), **more)]


PATCH = "*** Begin Patch\n*** Update File: src/a.py\n@@\n-old line\n+new line\n*** Add File: b.py\n+hello world\n*** End Patch"


@pytest.mark.parametrize(
    ("tool", "arguments", "changes"),
    [
        ("write_file", {"path": "a.py", "content": "x"}, [("a.py", "write")]),
        ("edit_file", {"path": "a.py", "old": "x", "new": "y"}, [("a.py", "edit")]),
        ("edit_file", {"path": "./d/../a.py", "patch": "@@ -1 +1 @@\n-x\n+y"}, [("a.py", "edit")]),
        ("Write", {"file_path": "/p/a.py", "content": "x"}, [("/p/a.py", "write")]),
        ("MultiEdit", {"file_path": "/p/a.py", "edits": [{"old_string": "x", "new_string": "y"}]}, [("/p/a.py", "edit")]),
        ("NotebookEdit", {"notebook_path": "/p/a.ipynb", "new_source": "x"}, [("/p/a.ipynb", "edit")]),
        ("apply_patch", PATCH, [("b.py", "write"), ("src/a.py", "edit")]),
        ("apply_patch", {"input": PATCH}, [("b.py", "write"), ("src/a.py", "edit")]),
        ("shell", {"command": ["bash", "-lc", f"apply_patch <<'EOF'\n{PATCH}\nEOF"], "workdir": "/p"}, [("/p/b.py", "write"), ("/p/src/a.py", "edit")]),
        ("replace", {"file_path": "/p/a.py", "old_string": "x", "new_string": "y"}, [("/p/a.py", "edit")]),
        ("edit", {"filePath": "/p/a.py", "oldString": "x", "newString": "y"}, [("/p/a.py", "edit")]),
        ("edit", {"path": "a.py", "oldText": "x", "newText": "y"}, [("a.py", "edit")]),
        ("patch", {"patchText": PATCH}, [("b.py", "write"), ("src/a.py", "edit")]),
        ("search_replace", {"file_path": "a.py", "old_string": "x", "new_string": "y"}, [("a.py", "edit")]),
        ("edit_file", {"target_file": "a.py", "code_edit": "y"}, [("a.py", "edit")]),
        ("delete_file", {"target_file": "a.py"}, [("a.py", "delete")]),
        ("create", {"path": "/p/a.py", "file_text": "x"}, [("/p/a.py", "write")]),
        ("str_replace_editor", {"command": "str_replace", "path": "/p/a.py", "old_str": "x", "new_str": "y"}, [("/p/a.py", "edit")]),
        ("str_replace_editor", {"command": "view", "path": "/p/a.py"}, []),
        ("replace_string_in_file", {"filePath": "C:\\p\\a.py", "oldString": "x", "newString": "y"}, [("C:/p/a.py", "edit")]),
        ("insert_edit_into_file", {"filePath": "/p/a.py", "code": "y"}, [("/p/a.py", "edit")]),
        ("create_file", {"filePath": "/p/a.py", "content": "x"}, [("/p/a.py", "write")]),
        ("write_to_file", {"path": "a.py", "content": "x"}, [("a.py", "write")]),
        ("replace_in_file", {"path": "a.py", "diff": "------- SEARCH\nx\n=======\ny\n+++++++ REPLACE"}, [("a.py", "edit")]),
        ("developer__text_editor", {"command": "write", "path": "/p/a.py", "file_text": "x"}, [("/p/a.py", "write")]),
        ("editor", {"path": "a.py", "old_text": "x", "new_text": "y"}, [("a.py", "edit")]),
        ("fs_write", {"command": "create", "path": "a.py", "file_text": "x"}, [("a.py", "write")]),
        ("Read", {"file_path": "/p/a.py"}, []),
        ("terminal", {"command": "sed -i s/x/y/ a.py"}, []),
        ("write_file", "no JSON", []),
        ("write_file", {"path": 3, "content": None}, []),
    ],
)  # fmt: skip
def test_the_edit_tools_of_every_program(db: Any, tool: str, arguments: Any, changes: list[tuple[str, str]]) -> None:
    db.create_session("s", "cli")
    db.append_message("s", "assistant", None, tool_calls=[call(tool, arguments)])
    assert sorted((row["path"], row["kind"]) for row in db.file_changes(session_id="s")) == changes


def test_a_change_is_found_by_the_name_of_its_file_newest_first(db: Any) -> None:
    wrote(db, "one", "src/a.py", at=100.0)
    wrote(db, "two", "/elsewhere/a.py", at=200.0)
    wrote(db, "two", "b.py", at=300.0)
    assert found(db, "a.py") == [("two", "/elsewhere/a.py", "write"), ("one", "src/a.py", "write")]
    assert found(db, "a.py", session_id="one") == [("one", "src/a.py", "write")]
    assert found(db) == [] and len(db.file_changes()) == 3


def test_the_request_and_the_words_beside_a_change(db: Any) -> None:
    made = wrote(db, "one", "a.py")
    assert db.change_reasons([made, made + 100]) == {made: {"request": "Please write a.py", "words": "I write a.py."}}
    silent = db.append_message(
        "one", "assistant", None, tool_calls=[call("write_file", {"path": "b.py", "content": "x"})]
    )
    assert db.change_reasons([silent])[silent]["words"] == "I write a.py."  # said before it in the same turn
    db.append_message("one", "user", "Now b.py again")
    silent = db.append_message(
        "one", "assistant", None, tool_calls=[call("write_file", {"path": "b.py", "content": "y"})]
    )
    assert db.change_reasons([silent])[silent] == {"request": "Now b.py again", "words": ""}


@pytest.mark.parametrize(
    "result",
    [
        "error: old does not occur in the file",
        "<tool_use_error>File has not been read yet.</tool_use_error>",
        "The user doesn't want to proceed with this tool use.",
        "apply_patch verification failed: no such file",
        json.dumps({"output": "no", "metadata": {"exit_code": 1}}),
    ],
)
def test_a_call_that_failed_changed_nothing(db: Any, result: str) -> None:
    db.create_session("s", "cli")
    calls = [call("write_file", {"path": f"{name}.py", "content": "x"}, name) for name in ("a", "b")]
    db.append_message("s", "assistant", "both", tool_calls=calls)
    db.append_message("s", "tool", "Made a.py (1 bytes).", tool_name="write_file", tool_call_id="a")
    db.append_message("s", "tool", result, tool_name="write_file", tool_call_id="b")
    assert [row["path"] for row in db.file_changes(session_id="s")] == ["a.py"]


def test_what_was_noted_goes_with_the_message(db: Any) -> None:
    redacted, _ = wrote(db, "one", "a.py"), wrote(db, "two", "a.py", at=200.0)
    wrote(db, "three", "a.py", at=300.0)
    assert len(found(db, "a.py")) == 3
    assert db.redact_message(redacted)
    assert [one[0] for one in found(db, "a.py")] == ["three", "two"]
    db.delete_session("two")
    db.clear_messages("three")
    assert found(db, "a.py") == []
    assert db.sql("SELECT count(*) AS n FROM file_changes") == [{"n": 0}]


def test_in_the_trash_nothing_is_seen_and_back_again_everything(db: Any) -> None:
    wrote(db, "one", "a.py")
    db.trash_session("one")
    assert found(db, "a.py") == []
    db.restore_session("one")
    assert len(found(db, "a.py")) == 1


def test_a_person_sees_the_changes_of_their_own_sessions(db: Any) -> None:
    db.create_session("ann", "telegram", user_id="1")
    db.create_session("bob", "telegram", user_id="2")
    ann, bob = wrote(db, "ann", "a.py"), wrote(db, "bob", "a.py", at=200.0)
    assert found(db, "a.py", visible_to=("telegram", "1")) == [("ann", "a.py", "write")]
    assert list(db.change_reasons([ann, bob], visible_to=("telegram", "1"))) == [ann]


def test_a_branch_shows_the_change_of_the_session_it_comes_from(db: Any) -> None:
    made = wrote(db, "one", "a.py")
    db.branch_session("one", "branch")
    assert found(db, "a.py") == [("one", "a.py", "write")]
    db.delete_session("one")
    assert found(db, "a.py") == [("branch", "a.py", "write")]
    assert db.change_reasons([made])[made]["request"] == "Please write a.py"


def test_an_export_carries_no_notes_and_an_import_makes_them_again(db: Any, tmp_path: Any) -> None:
    wrote(db, "one", "a.py")
    told = db.export_session("one")
    assert "file_changes" not in told
    with SessionDB(tmp_path / "other.db") as other:
        other.import_session(told)
        assert found(other, "a.py") == [("one", "a.py", "write")]


@pytest.mark.parametrize("name", ["a\0b.py", "a\ud800b.py", "größe.py"])
def test_any_text_can_be_a_path(db: Any, name: str) -> None:
    wrote(db, "one", name, "a line \0 with \ud800 in it")
    assert [row["path"] for row in db.file_changes(session_id="one")] == [name]
    assert [row["path"] for row in db.file_changes([name])] == [name]


def test_blocks_without_an_end_are_read_at_once(db: Any) -> None:
    db.create_session("s", "cli")
    text = "<<<<<<< SEARCH\n" * 20_000 + "old line\n=======\nnew line here\n>>>>>>> REPLACE\n"
    db.append_message("s", "assistant", "", tool_calls=[call("replace_in_file", {"path": "a.py", "diff": text})])
    assert [len(row["lines"]) for row in db.file_changes(["a.py"])] == [5]


def test_repair_notes_everything_again(db: Any) -> None:
    redacted, _ = wrote(db, "one", "a.py"), wrote(db, "two", "b.py")
    db.redact_message(redacted)
    db.repair(rebuild_index=True)
    assert [row["path"] for row in db.file_changes()] == ["b.py"]
    assert db.sql("SELECT count(*) AS n FROM file_changes") == [{"n": 1}]
