"""The prompt in a shell: long pastes stay folded, Ctrl-Z and fg leave a sane screen."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hermes_state import SessionDB
from tests.chat.server import Gate, ModelServer
from tests.support.program import PROGRAM, environment, run
from tests.support.screen import Screen

Open = Callable[..., Screen]
Look = Callable[[Callable[[Any], Any]], Any]


def test_a_long_paste_is_folded_when_it_is_pasted_and_when_it_comes_back(
    server: ModelServer, open_screen: Open, look: Look
) -> None:
    text = "".join(f"line {number} of the log\n" for number in range(200))
    folded = f"200 lines, {len(text):,} characters]"
    screen = open_screen(width=100)
    screen.type("look: ")
    screen.paste(text)
    screen.wait_for(f"❯ look: [pasted text 1: {folded}")
    screen.press("Enter")
    screen.wait_for("of 33k tokens")  # the prompt is back
    screen.press("Up")
    screen.wait_for(f"❯ look: [pasted text 1: {folded}", times=2)
    screen.press("Enter")
    screen.wait_for("That is all", times=2)
    screen.leave()
    again = open_screen("-c", width=100)
    again.press("Up")
    again.wait_for(f"❯ [earlier text 1: 200 lines, {len(text) + 6:,} characters]")
    again.press("Enter")
    again.wait_for("That is all", times=3)
    asked = [body["messages"][-1]["content"] for body in server.requests]
    assert asked == [f"look: {text}"] * 3 and text.count("\n") == 200


def test_the_edge_of_the_prompt_tells_how_full_the_window_is(server: ModelServer, open_screen: Open) -> None:
    screen = open_screen(width=100)
    assert "tokens" not in screen.text()
    screen.line("hello")
    screen.wait_for("That is all")
    screen.wait_for("tokens")
    screen.type("more")
    text = screen.wait_for("❯ more")
    (line,) = [one for one in text.splitlines() if "tokens" in one]
    assert re.fullmatch(r"❯ more +[\d,]+k? of [\d.,]+[kM]? tokens *", line)
    screen.press("Enter")
    screen.wait_for("That is all", times=2)
    assert not [one for one in screen.text().splitlines() if "more" in one and "tokens" in one]
    edge = re.compile(r"([\d,]+k?) of [\d.,]+[kM]? tokens")
    used = edge.findall(screen.wait_for("tokens"))[-1]
    screen.leave()
    again = open_screen("-c", width=100, until="")
    assert edge.findall(again.wait_for("tokens"))[-1] == used, "the tools count before the first turn, too"


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


def test_the_editor_writes_the_message(server: ModelServer, home: Path, tmp_path: Path) -> None:
    editor = tmp_path / "editor"
    editor.write_text("#!/bin/sh\necho 'written in the editor' > \"$1\"\n")
    editor.chmod(0o755)
    server.scripts = [["make docs"]]
    env = environment(home) | {"EDITOR": str(editor)}
    with Screen([*PROGRAM], env=env, width=100, height=30) as screen:
        screen.wait_for("❯")
        screen.press("C-x", "C-e")
        screen.wait_for("❯ written in the editor")
        screen.press("Enter")
        screen.wait_for("make docs")
    assert server.requests[0]["messages"][-1]["content"].strip() == "written in the editor"


def test_a_long_conversation_is_shown_in_a_pager_and_links_stand_in_the_page(home: Path) -> None:
    with SessionDB(db_path=home / "state.db") as db:
        db.create_session("long", "cli")
        for number in range(60):
            db.append_message("long", "user", f"question {number}")
        db.append_message("long", "assistant", "```python\nprint('x')\n```")
        db.branch_session("long", "twig", title="Another way")
        db.append_message("twig", "user", "hello")
        db.create_session("short", "cli")
        db.append_message("short", "user", "one line")
    env = environment(home) | {"PAGER": "less", "LESS": ""}
    with Screen([*PROGRAM, "sessions", "show", "long"], env=env, width=60, height=20) as screen:
        screen.wait_for("question 3")
        assert "question 40" not in screen.history() and not screen.is_over()
        screen.press("G")
        screen.wait_for("print(")
        screen.press("q")
        assert screen.wait_until_over() == 0
    with Screen([*PROGRAM, "sessions", "show", "short"], env=env, width=60, height=20) as screen:
        assert screen.wait_until_over() == 0
        assert "one line" in screen.text()
    page = run("sessions", "export", "-", "--format", "html", home=home).out
    assert 'branched from <a href="#long"' in page
