"""The file tools: where they work without a question, what they refuse, exact edits and patches, and snapshots."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from hermes.agent.tools.files import FILE_TOOLS, changes_in, patched, put_back
from hermes.agent.tools.permission import HERE, Answer, free_folder
from hermes.agent.tools.tool import FOR_EVERYONE, Context
from hermes.errors import ToolDeclined, ToolError
from tests.agent.tools.conftest import Person

TOOLS = {tool.name: tool for tool in FILE_TOOLS}


@pytest.fixture
def context(make_context: Callable[..., Context]) -> Context:
    made = make_context()
    made.root = made.cwd
    return made


def call(context: Context, name: str, /, **arguments: Any) -> str:
    return TOOLS[name].run(context, arguments)


def test_only_the_owner_has_them() -> None:
    assert not FOR_EVERYONE & set(TOOLS)


def test_inside_the_folder_nothing_is_asked_and_outside_everything(
    context: Context, person: Person, tmp_path: Path
) -> None:
    outside = tmp_path / "elsewhere.txt"
    outside.write_text("theirs")
    (context.cwd / "file.txt").write_text("mine")
    (context.cwd / "link.txt").symlink_to(outside)
    (context.cwd / "up").symlink_to(tmp_path)
    (context.cwd / ".git").mkdir()
    assert call(context, "read_file", path="file.txt").endswith("\nmine")
    assert "Made" in call(context, "write_file", path="deep/er/new.txt", content="x")
    assert person.asked == []
    person.says = False
    for path in ("../elsewhere.txt", str(outside), "link.txt", "up/elsewhere.txt", "deep/../../elsewhere.txt"):
        for name, more in (
            ("read_file", {}),
            ("write_file", {"content": "x"}),
            ("edit_file", {"old": "theirs", "new": "x"}),
        ):
            with pytest.raises(ToolDeclined):
                call(context, name, path=path, **more)
            assert str(outside) in person.asked.pop()
    with pytest.raises(ToolDeclined):
        call(context, "write_file", path=".git/hooks/pre-commit", content="x")
    with pytest.raises(ToolDeclined):
        call(context, "read_file", path=str(context.home / "config.yaml"))
    assert outside.read_text() == "theirs"
    context.cwd = tmp_path  # `cd ..` of the terminal tool does not widen what is free
    with pytest.raises(ToolDeclined):
        call(context, "read_file", path="elsewhere.txt")


def test_a_part_past_the_end_of_a_file_is_an_error_that_names_its_length(context: Context) -> None:
    (context.cwd / "file.txt").write_text("one\ntwo\n")
    (context.cwd / "empty.txt").touch()
    assert call(context, "read_file", path="file.txt", offset=2).endswith("\ntwo\n")
    with pytest.raises(ToolError, match="2 lines"):
        call(context, "read_file", path="file.txt", offset=3)
    assert "0 lines" in call(context, "read_file", path="empty.txt")


def test_without_a_user_outside_means_no(context: Context) -> None:
    """As in the API server and in cron, whose agents refuse every question."""
    context.confirm = lambda question: False
    context.root = None
    with pytest.raises(ToolDeclined):
        call(context, "write_file", path="file.txt", content="x")
    assert not (context.cwd / "file.txt").exists()


def test_the_home_folder_and_what_is_above_it_are_not_free(tmp_path: Path) -> None:
    home = Path.home()
    assert free_folder(home) is None and free_folder(home.parent) is None and free_folder(Path("/")) is None
    assert free_folder(tmp_path) == tmp_path.resolve()


def test_what_is_no_text_is_refused(context: Context) -> None:
    (context.cwd / "data.bin").write_bytes(b"\0\1")
    os.mkfifo(context.cwd / "pipe")
    for path, why in (("data.bin", "binary"), ("pipe", "no regular file"), (".", "a folder"), ("none", "no file")):
        with pytest.raises(ToolError, match=why):
            call(context, "read_file", path=path)


def test_an_edit_is_exact(context: Context) -> None:
    file = context.cwd / "a.txt"
    file.write_text("a\nb\na\n")
    for arguments, why in (
        ({"old": "c", "new": "d"}, "does not occur"),
        ({"old": "a", "new": "d"}, "2 times"),
        ({"patch": "@@ -1 +1 @@\n-x\n+y\n"}, "does not fit"),
        ({"patch": "hello"}, "no hunk"),
    ):
        with pytest.raises(ToolError, match=why):
            call(context, "edit_file", path="a.txt", **arguments)
    assert file.read_text() == "a\nb\na\n"
    call(context, "edit_file", path="a.txt", old="a", new="-- x", all=True)
    assert file.read_text() == "-- x\nb\n-- x\n"
    call(context, "edit_file", path="a.txt", patch="@@ -1,2 +1 @@\n--- x\n b\n")  # removes a line that begins with --
    assert file.read_text() == "b\n-- x\n"


def test_a_snapshot_puts_the_file_back_unless_it_holds_a_secret(context: Context) -> None:
    file, secret = context.cwd / "a.txt", context.cwd / "env"
    file.write_text("first\n")
    secret.write_text("OPENAI_API_KEY=sk-proj-" + "a1B2c3D4" * 6 + "\n")
    said = [
        call(context, "write_file", path="a.txt", content="second\n"),
        call(context, "write_file", path="a.txt", content="third\n"),
        call(context, "write_file", path="env", content="gone\n"),
    ]
    assert "can't" in said[-1]
    rows = [{"role": "tool", "tool_name": "write_file", "content": text} for text in said]
    (change,) = changes_in(rows)
    assert put_back(context.db, change) is None
    assert file.read_text() == "first\n"
    kept = list(context.db.attachments_dir.rglob("*"))
    assert not any(b"sk-proj" in path.read_bytes() for path in kept if path.is_file())


lines = st.lists(st.sampled_from(["", "a", "b", " c", "-d", "+e", "@@", "-- f"]), max_size=12)


@given(lines, lines)
def test_the_patch_of_two_texts_makes_one_of_the_other(old: list[str], new: list[str]) -> None:
    before, after = "".join(f"{line}\n" for line in old), "".join(f"{line}\n" for line in new)
    patch = "\n".join(difflib.unified_diff(before.split("\n"), after.split("\n"), "a", "b", lineterm="", n=3))
    if patch:
        assert patched(before, patch) == after


def test_a_folder_swapped_for_a_link_after_the_check_leads_nowhere(
    context: Context, person: Person, tmp_path: Path
) -> None:
    """While the user is asked about one file, another program puts a link in place of a folder above it."""
    agreed, secret = tmp_path / "agreed", tmp_path / "secret"
    for folder, text in ((agreed, "harmless"), (secret, "hidden")):
        (folder / "deep").mkdir(parents=True)
        (folder / "deep" / "file.txt").write_text(text)

    def swap() -> None:
        agreed.rename(tmp_path / "aside")
        agreed.symlink_to(secret)

    for name, arguments in (
        ("read_file", {"path": "file.txt"}),
        ("write_file", {"path": "file.txt", "content": "x"}),
        ("write_file", {"path": "new/made.txt", "content": "x"}),
        ("edit_file", {"path": "file.txt", "old": "hidden", "new": "x"}),
    ):
        person.meanwhile = swap
        with pytest.raises(ToolError, match="became a link meanwhile"):
            call(context, name, **arguments | {"path": str(agreed / "deep" / str(arguments["path"]))})
        agreed.unlink()
        (tmp_path / "aside").rename(agreed)
    assert [path.name for path in (secret / "deep").iterdir()] == ["file.txt"]
    assert (secret / "deep" / "file.txt").read_text() == "hidden"
    assert (agreed / "deep" / "file.txt").read_text() == "harmless"


def test_always_is_for_one_file_and_no_pattern_covers_the_programs_own(context: Context, tmp_path: Path) -> None:
    asked: list[str] = []
    context.config.permissions.deny.append("write_file *")
    with pytest.raises(ToolDeclined, match="permissions.deny"):
        call(context, "write_file", path="inside.txt", content="x")

    def confirm(question: str) -> Answer:
        asked.append(question)
        return Answer(True, HERE)

    context.confirm = confirm
    context.home.mkdir(exist_ok=True)
    (context.home / ".env").write_text("KEY=hidden")
    for name in ("one.txt", "two.txt"):
        (tmp_path / name).write_text(name)
        for _ in range(2):
            call(context, "read_file", path=f"../{name}")
    assert len(asked) == 2
    context.config.permissions.allow.append("read_file *")
    (tmp_path / "three.txt").write_text("three")
    call(context, "read_file", path="../three.txt")
    assert len(asked) == 2
    assert "KEY=hidden" in call(context, "read_file", path=str(context.home / ".env"))
    assert len(asked) == 3
    assert {"command": f"read_file {tmp_path}/two.txt", "folder": str(context.cwd)} in yaml.safe_load(
        (context.home / "config.yaml").read_text()
    )["permissions"]["allow"]


def test_a_file_swapped_for_a_link_is_not_put_back_through_it(context: Context, tmp_path: Path) -> None:
    (context.cwd / "folder").mkdir()
    (context.cwd / "folder" / "file.txt").write_text("old")
    text = call(context, "write_file", path="folder/file.txt", content="new")
    row = {"role": "tool", "tool_name": "write_file", "content": text}
    (change,) = changes_in([row])
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "file.txt").write_text("new")  # as the tool left it, but another file
    (context.cwd / "folder").rename(context.cwd / "aside")
    (context.cwd / "folder").symlink_to(tmp_path / "theirs")
    assert "became a link" in str(put_back(context.db, change))
    assert (tmp_path / "theirs" / "file.txt").read_text() == "new"


def test_a_text_under_another_name_empties_no_file(context: Context) -> None:
    file = context.cwd / "a.txt"
    file.write_text("all of it\n")
    with pytest.raises(ToolError, match="content"):
        call(context, "write_file", path="a.txt", text="new")
    with pytest.raises(ToolError, match="new"):
        call(context, "edit_file", path="a.txt", old="all", new_text="some")
    assert file.read_text() == "all of it\n"
    call(context, "edit_file", path="a.txt", old="all", new="")
    call(context, "write_file", path="b.txt", content="")
    assert file.read_text() == " of it\n" and (context.cwd / "b.txt").read_bytes() == b""
