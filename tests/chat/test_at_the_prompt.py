"""The prompt in a shell: long pastes stay folded, Ctrl-Z and fg leave a sane screen."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.chat.server import Gate, ModelServer
from tests.support.program import PROGRAM, environment
from tests.support.screen import Screen

Open = Callable[..., Screen]
Look = Callable[[Callable[[Any], Any]], Any]


def test_a_long_paste_is_folded_when_it_is_pasted_and_when_it_comes_back(
    server: ModelServer, open_screen: Open, look: Look
) -> None:
    text = "".join(f"line {number} of the log\n" for number in range(200))
    folded = f"200 lines, {len(text):,} characters]"
    screen = open_screen(width=100)
    screen.wait_for("❯")
    screen.type("look: ")
    screen.paste(text)
    screen.wait_for(f"❯ look: [pasted text 1: {folded}")
    screen.press("Enter")
    screen.wait_for("That is all")
    screen.press("Up")
    screen.wait_for(f"❯ look: [pasted text 1: {folded}", times=2)
    screen.press("Enter")
    screen.wait_for("That is all", times=2)
    screen.press("C-d")
    screen.wait_until_over()
    again = open_screen("-c", width=100)
    again.wait_for("❯")
    again.press("Up")
    again.wait_for(f"❯ [earlier text 1: 200 lines, {len(text) + 6:,} characters]")
    again.press("Enter")
    again.wait_for("That is all", times=3)
    asked = [body["messages"][-1]["content"] for body in server.requests]
    assert asked == [f"look: {text}"] * 3 and text.count("\n") == 200


def test_ctrl_z_and_fg_at_the_prompt_and_during_a_reply(server: ModelServer, home: Path) -> None:
    gate = Gate()
    server.scripts = [["The first half", gate, " and the second."]]
    env = environment(home) | {"PS1": "shell> ", "PS2": "", "ENV": ""}
    with Screen(["sh", "-i"], env=env, width=100, height=30) as screen:
        screen.wait_for("shell>")
        screen.line(shlex.join(PROGRAM))
        screen.wait_for("❯")
        screen.type("hel")
        screen.press("C-z")
        screen.wait_for("shell>", times=2)
        screen.line("echo heard: $((40 + 2))")
        screen.wait_for("heard: 42")
        assert "echo heard" in screen.text()  # the shell shows what is typed
        screen.line("fg")
        screen.wait_for("❯ hel")
        screen.line("lo")
        screen.wait_for("The first half")
        screen.press("C-z")
        screen.wait_for("shell>", times=4)
        screen.line("stty -a | tr ' ;' '\\n\\n' | grep -c -x -e echo -e icanon -e icrnl")
        screen.wait_for("\n3\n")
        screen.line("fg")
        gate.open.set()
        screen.wait_for("and the second.")
        screen.line("more")
        screen.wait_for("That is all I have to say.")
        assert [body["messages"][-1]["content"] for body in server.requests] == ["hello", "more"]
        screen.press("C-d")
        screen.wait_for("Resume ")
