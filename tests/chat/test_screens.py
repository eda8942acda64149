"""Narrow terminals: nothing scrolls away, nothing is cut in the middle of a word, the same numbers everywhere."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from hermes_state import SessionDB
from tests.chat.server import Call, Gate, ModelServer, Thought
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


def test_reasoning_that_is_shown_scrolls_on_while_the_model_thinks(home: Path, open_screen: Open) -> None:
    held = Gate()
    with ModelServer([Thought("First the walrus. " * 20), Thought("Then the ice."), held, "Done."]) as thinking:
        (home / "config.yaml").write_text(thinking.config())
        screen = open_screen(**NARROW)
        screen.line("/reasoning show")
        screen.wait_for("/reasoning hide")
        screen.line("think")
        screen.wait_for("Then the ice.")
        held.open.set()
        screen.wait_for("Done.")


def test_a_stop_before_the_first_word_claims_no_reply(server: ModelServer, open_screen: Open) -> None:
    held = Gate()
    server.scripts = [[held, "never"]]
    screen = open_screen()
    screen.line("hello")
    assert held.reached.wait(60)
    screen.press("C-c")
    screen.wait_for("Stopped.")


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


def test_what_a_command_of_the_users_own_prints_ends_with_a_line_break(
    server: ModelServer, open_screen: Open, tmp_path: Path
) -> None:
    screen = open_screen(cwd=tmp_path)
    screen.line("!printf walrus")
    screen.wait_for("walrus\nThe model")
    screen.line("!echo begun; sleep 600")
    screen.wait_for("begun", times=2)
    screen.press("C-c")
    screen.wait_for("^C\nEnded by SIGINT.")


def test_the_browser_names_as_many_keys_as_fit(server: ModelServer, open_screen: Open) -> None:
    screen = open_screen("sessions", "browse", **NARROW, until="No conversations yet")
    screen.wait_for("esc Back")
    assert screen.text().split("\n")[-1] == "↵ Resume ⇥ Inside ^r Rename ^x Delete f1 Keys esc Back"
    screen.press("F1")
    screen.wait_for("╭")  # the keys stand in a frame
    screen.press("F1")
    screen.resize(100, 30)
    screen.wait_for("esc Back ^t Preview")
