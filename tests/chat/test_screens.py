"""What a narrow terminal shows: nothing scrolled away, nothing cut in the middle of a word, the same numbers everywhere."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from tests.chat.server import Call, Gate, ModelServer
from tests.support.screen import Screen

Open = Callable[..., Screen]
NARROW = {"width": 60, "height": 20}


def test_a_reply_that_fills_the_screen_leaves_the_prompt_right_below_it(server: ModelServer, open_screen: Open) -> None:
    code = "".join(f"step_{number} = {number}\n" for number in range(12))
    written = Gate()
    server.scripts = [["Before it.\n\n```python\n", code, written, "```\n\n", "After it.\n\n", "The end."]]
    screen = open_screen(**NARROW)
    screen.wait_for("❯")
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
    screen.wait_for("❯")
    screen.line("write it")
    text = screen.wait_for("Done.")
    assert re.search(r"✗ edit_file  long.txt  failed  \S+\n    old does not occur in the file;", text), text
    screen.line("/show 2")
    text = screen.wait_for("+line three", times=2)
    assert "-line 3\n+line three" in text and "[before:" not in text
    screen.line("/show 3")  # of the long diff only a part stood below the call
    screen.wait_for("+line 59")
    screen.line("/show list")
    screen.wait_for("  3  write_file: long.txt  (")
    screen.line("/context")
    text = screen.wait_for("Free ")
    used = re.findall(r"About ([\d,]+) of", text)[-1]
    assert text.split("\n")[-1].endswith(f"{used} of 33k tokens"), text  # the prompt's edge says the same


def test_the_browser_names_as_many_keys_as_fit(server: ModelServer, open_screen: Open) -> None:
    screen = open_screen("sessions", "browse", **NARROW)
    screen.wait_for("No conversations yet")
    screen.wait_for("esc Back")
    assert screen.text().split("\n")[-1] == "↵ Resume ⇥ Inside ^r Rename ^x Delete f1 Keys esc Back"
    screen.resize(100, 30)
    screen.wait_for("esc Back ^t Preview")
