"""The output of a command is on the screen: its last lines while it runs, its end afterwards, all of it by /show."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from tests.chat.server import Call, ModelServer
from tests.support.screen import Screen

Open = Callable[..., Screen]


def test_output_is_seen_while_it_runs_folded_afterwards_and_unfolded(
    server: ModelServer, open_screen: Open, tmp_path: Path
) -> None:
    wait = f"while [ ! -e {tmp_path}/go ]; do sleep 0.05; done"
    server.scripts = [
        [Call("terminal", command=f"for i in 1 2 3 4 5 6 7 8 9; do echo row $i; done; {wait}; echo the end")],
        ["Read it."],
        [Call("terminal", command="printf 'one\\ntwo\\n'"), Call("terminal", command="true")],
        ["Read both."],
    ]
    screen = open_screen("--yes", cwd=tmp_path, width=160)
    screen.line("/show")
    screen.wait_for("No tools have been used")
    screen.line("run it")
    running = screen.wait_for("    row 9")
    assert "    row 4" in running and "    row 3" not in running  # the last six lines
    assert "✓" not in running
    (tmp_path / "go").touch()
    screen.wait_for("Read it.")
    text = screen.wait_for("tokens")  # the prompt is back
    assert re.search(r"✓ terminal .*\n    … 6 lines above: /show\n    row 7\n    row 8\n    row 9\n    the end\n", text)
    assert text.count("row 9") == 1  # nothing of the running region is left
    screen.press("C-o")
    text = screen.wait_for("[exit status 0]")
    assert all(f"\nrow {number}\n" in text for number in range(1, 10))
    screen.line("now these")
    text = screen.wait_for("Read both.")
    assert re.search(r"✓ terminal  printf .*\n    one\n    two\n  ✓ terminal  true  \S+\n\nRead both", text)
    screen.line("/show list")
    text = screen.wait_for("  3  terminal: for i in")
    assert "  1  terminal: true" in text and "  2  terminal: printf" in text
    screen.line("/show 2")
    screen.wait_for("\none\ntwo\n[exit status 0]")
    screen.line("/show 9")
    screen.wait_for("only 3 tool calls")


def test_what_a_command_prints_does_nothing_to_the_screen(server: ModelServer, open_screen: Open) -> None:
    server.scripts = [
        [Call("terminal", command=r"printf 'a\033[2Jb\033]0;title\007c\tx\r\nd%s' " + "y" * 300)],
        ["Read it."],
    ]
    screen = open_screen(width=60, height=20)
    screen.line("run it")
    text = screen.wait_for("Read it.")
    assert re.search(r"\n    abc +x\n    dy+…\n", text)
    assert "❯ run it" in text
