"""The memory tool: lines in two files, safe against crowds, crashes and strange text."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes.agent.tools.files import locked_folder
from hermes.agent.tools.memory import LIMITS, memory, memory_lines
from hermes.agent.tools.tool import Context
from hermes.errors import ToolError
from hermes.texts import one_line
from tests.support.sizes import THOROUGH

WRITER = """
import sys
from pathlib import Path
from types import SimpleNamespace
from hermes.agent.tools.memory import memory
from hermes_state import SessionDB
home, who = Path(sys.argv[1]), sys.argv[2]
context = SimpleNamespace(home=home, db=SessionDB(home / f"{who}.db"))
for number in range(40):
    memory.run(context, {"action": "add", "text": f"{who} {number}"})
    if number % 4 == 3:
        memory.run(context, {"action": "remove", "old_text": f"{who} {number}"})
"""


def do(context: Context, action: str, text: str | None = None, old: str | None = None, target: str = "memory") -> str:
    return memory.run(context, {"action": action, "text": text, "old_text": old, "target": target})


def lines(context: Context, target: str = "memory") -> list[str]:
    return memory_lines(context.home)[target]


def test_entries_are_added_replaced_and_removed(context: Context) -> None:
    assert do(context, "add", "We use PostgreSQL 16").endswith("(1 entry, 23 of 8,000 characters)")
    do(context, "add", "The parser is hand-written")
    do(context, "add", "Likes short answers", target="user")
    do(context, "replace", "We use PostgreSQL 17", old="PostgreSQL")
    do(context, "remove", old="parser")
    assert memory_lines(context.home) == {"memory": ["We use PostgreSQL 17"], "user": ["Likes short answers"]}
    assert (context.home / "memories/MEMORY.md").read_text() == "- We use PostgreSQL 17\n"


def test_the_same_entry_is_not_added_twice(context: Context) -> None:
    do(context, "add", "once")
    assert "already has that" in do(context, "add", "  once\n")
    do(context, "add", "other")
    do(context, "replace", "once", old="other")
    assert lines(context) == ["once"]


def test_a_part_that_fits_several_entries_is_refused_with_the_candidates(context: Context) -> None:
    do(context, "add", "red apple")
    do(context, "add", "green apple")
    with pytest.raises(ToolError, match="2 entries .*'red apple'; 'green apple'"):
        do(context, "remove", old="apple")
    with pytest.raises(ToolError, match="no entries .*'red apple'"):
        do(context, "replace", "x", old="pear")
    assert lines(context) == ["red apple", "green apple"]


def test_an_entry_that_is_exactly_meant_wins_over_longer_ones(context: Context) -> None:
    do(context, "add", "apple pie")
    do(context, "add", "apple")
    do(context, "remove", old="apple")
    assert lines(context) == ["apple pie"]


def test_files_are_for_the_owner_only(context: Context) -> None:
    old = os.umask(0)
    try:
        do(context, "add", "secret")
    finally:
        os.umask(old)
    folder = context.home / "memories"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert all(stat.S_IMODE(file.stat().st_mode) == 0o600 for file in folder.iterdir())


def test_what_the_owner_wrote_besides_entries_stays(context: Context) -> None:
    path = context.home / "memories/MEMORY.md"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"# Mine\n\nplain line\n* starred\n\n- dashed\nbroken \xff bytes")
    assert lines(context) == ["plain line", "starred", "dashed", "broken bytes"]
    do(context, "add", "new")
    do(context, "remove", old="starred")
    assert path.read_bytes() == b"# Mine\n\nplain line\n\n- dashed\nbroken \xff bytes\n- new\n"


def test_a_linked_file_stays_a_link(context: Context, tmp_path: Path) -> None:
    real = tmp_path / "dotfiles.md"
    real.write_text("- there\n")
    (context.home / "memories").mkdir(parents=True)
    (context.home / "memories/MEMORY.md").symlink_to(real)
    do(context, "add", "here")
    assert real.read_text() == "- there\n- here\n" and (context.home / "memories/MEMORY.md").is_symlink()


def test_size_is_bounded_with_a_clear_error(context: Context) -> None:
    with pytest.raises(ToolError, match="1,000 .* 2,000"):
        do(context, "add", "x" * 2000)
    with pytest.raises(ToolError, match=r"8,\d\d\d .* 8,000"):
        for number in range(100):
            do(context, "add", f"{number} " + "x" * 900)
    assert sum(map(len, lines(context))) < LIMITS["memory"]
    do(context, "remove", old="0 x" + "x" * 897)  # there is always a way back
    do(context, "add", "fits again")


def test_a_file_grown_by_hand_can_shrink_and_is_cut_in_the_prompt(context: Context) -> None:
    path = context.home / "memories/USER.md"
    path.parent.mkdir(parents=True)
    path.write_text("".join(f"- line {number} {'x' * 100}\n" for number in range(500)))
    shown = lines(context, "user")
    assert shown[-1].endswith("not shown here)") and sum(map(len, shown)) < LIMITS["user"] * 2.1
    do(context, "remove", old="line 499 ", target="user")
    assert "line 499" not in path.read_text()


def test_wrong_arguments_are_explained(context: Context) -> None:
    for arguments, told in [
        ({"action": "burn"}, "action"),
        ({"action": "add"}, "text"),
        ({"action": "add", "text": " \n"}, "text"),
        ({"action": "add", "text": "\x00"}, "text"),
        ({"action": "add", "text": ["x"]}, "text"),
        ({"action": "add", "text": "x", "target": "../x"}, "target"),
        ({"action": "replace", "text": "x"}, "old_text"),
        ({"action": "remove"}, "text"),
    ]:
        with pytest.raises(ToolError, match=told):
            memory.run(context, arguments)
    assert memory_lines(context.home) == {"memory": [], "user": []}


@given(st.text(max_size=200))
def test_any_text_becomes_one_clean_line_and_comes_back(context: Context, text: str) -> None:
    line = one_line(text)
    assert "\n" not in line and one_line(line) == line and line.encode() is not None
    entry = line[2:].strip() if line.startswith(("- ", "* ")) else line
    if entry:
        (context.home / "memories/MEMORY.md").unlink(missing_ok=True)
        do(context, "add", text)
        assert lines(context) == [entry]
        do(context, "remove", old=entry)
        assert lines(context) == []


def test_two_processes_at_once_never_lose_a_line(context: Context) -> None:
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(context.home), who]) for who in ("a", "b", "c")]
    assert [writer.wait(60) for writer in writers] == [0, 0, 0]
    expected = {f"{who} {number}" for who in "abc" for number in range(40) if number % 4 != 3}
    found = lines(context)
    assert set(found) == expected and len(found) == len(expected)
    assert sorted(entry.name for entry in (context.home / "memories").iterdir()) == [".lock", "MEMORY.md"]


def test_a_writer_that_hangs_is_waited_for_and_then_told(context: Context) -> None:
    folder = context.home / "memories"
    with locked_folder(folder):
        with pytest.raises(ToolError, match="another program is writing"), locked_folder(folder, seconds=0.2):
            pass
        if THOROUGH:  # the tool waits for ten seconds
            with pytest.raises(ToolError, match="another program is writing"):
                do(context, "add", "x")
