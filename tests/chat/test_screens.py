"""Narrow terminals: nothing scrolls away, nothing is cut in the middle of a word, the same numbers everywhere."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from hermes_state import SessionDB
from tests.chat.server import Call, Gate, ModelServer
from tests.support.screen import Screen
from tests.support.waiting import until

Open = Callable[..., Screen]
NARROW = {"width": 60, "height": 20}


def test_a_reply_that_fills_the_screen_leaves_the_prompt_right_below_it(server: ModelServer, open_screen: Open) -> None:
    code = "".join(f"step_{number} = {number}\n" for number in range(12))
    written = Gate()
    server.scripts = [["Before it.\n\n```python\n", code, written, "```\n\n", "After it.\n\n", "The end."]]
    screen = open_screen(**NARROW)
    screen.line("write a program")
    screen.wait_for("step_11 = 11")  # it stands in the region that is drawn again and again
    written.open.set()
    screen.wait_for("The end.")
    text = screen.wait_for("tokens")
    lines = text.split("\n")
    assert lines[-1].startswith("❯") and len(lines) >= 18, text  # no empty lines below, where the region was
    assert "step_11 = 11" in text and "After it.\n\nThe end.\n\n❯" in text, text
    assert screen.history().count("step_11") == 1


def test_a_changed_file_is_shown_as_a_diff_and_a_failed_call_says_why(
    server: ModelServer, open_screen: Open, tmp_path: Path
) -> None:
    long = "".join(f"line {number}\n" for number in range(60))
    server.scripts = [
        [Call("write_file", path="long.txt", content=long)],
        [Call("edit_file", path="long.txt", old="line 3\n", new="line three\n")],
        [Call("edit_file", path="long.txt", old="nowhere", new="x")],
        ["Done."],
    ]
    folder = tmp_path / "project"
    folder.mkdir()
    screen = open_screen(cwd=folder, width=100, height=30)
    screen.line("write it")
    screen.wait_for("Done.")
    text = screen.wait_for("of 33k tokens")
    assert re.search(r"✗ edit_file  long.txt  failed  \S+\n    old does not occur in the file;", text), text
    screen.line("/show 2")
    screen.line("/show 3")  # of the long diff only a part stood below the call
    screen.wait_for("+line 59")
    shown = screen.history().rpartition("/show 2")[2]
    assert "-line 3\n+line three" in shown and "[before:" not in shown
    screen.line("/show list")
    screen.wait_for("  3  write_file: long.txt  (")
    screen.line("/context")
    used = re.findall(r"About ([\d,]+) of", screen.wait_for("Free "))[-1]
    until(
        lambda: screen.text().split("\n")[-1].endswith(f"{used} of 33k tokens"), screen.text
    )  # the next prompt says the same


def test_a_window_made_narrower_during_a_reply_keeps_no_trace_of_the_wider_one(
    server: ModelServer, open_screen: Open
) -> None:
    begun, ended = Gate(), Gate()
    server.scripts = [["one " * 30 + "two ", begun, "three ", ended, "four"]]
    screen = open_screen(width=100, height=30)
    screen.line("count")
    screen.wait_for("two")
    screen.resize(60, 20)
    begun.open.set()
    screen.wait_for("three")
    ended.open.set()
    screen.wait_for("four")
    assert len(re.findall(r"\bone\b", screen.history())) == 30


def test_a_number_that_is_not_in_the_list_is_asked_for_again(
    server: ModelServer, open_screen: Open, home: Path
) -> None:
    with SessionDB(home / "state.db") as db:
        for name in ("walrus", "seal"):
            db.create_session(name, "cli")
            db.append_message(name, "user", f"about the {name}")
            db.set_session_title(name, name)
    screen = open_screen()
    screen.line("/resume")
    screen.wait_for("Which one?")
    screen.line("7")
    screen.wait_for("Which one?", times=2)
    screen.line("1")
    screen.wait_for("● about the")


def test_the_browser_names_its_keys_on_a_narrow_screen(server: ModelServer, open_screen: Open) -> None:
    screen = open_screen("sessions", "browse", **NARROW, until="No conversations yet")
    screen.wait_for("esc Back")
    keys = screen.text().split("\n")[-1]
    assert keys.startswith("↵ Resume") and keys.endswith("^r Rename")
    screen.press("F1")
    screen.wait_for("╭")  # the keys stand in a frame
