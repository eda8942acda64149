"""Small things at the prompt that were wrong once: a swallowed key, a line that is lost, a screen that repeats itself."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hermes.texts import estimate_tokens
from hermes_state import SessionDB
from tests.chat.server import Gate, ModelServer
from tests.faults import can_mount, need
from tests.support.labs.base import until
from tests.support.program import PROGRAM, environment, run
from tests.support.screen import Screen

Open = Callable[..., Screen]
Look = Callable[[Callable[[Any], Any]], Any]


def record(home: Path, *texts: str, count: int = 1) -> None:
    with SessionDB(home / "state.db") as db:
        for number in range(count):
            db.create_session(f"old{number}", "cli")
            for place, text in enumerate(texts or ("hello", "hi")):
                db.append_message(f"old{number}", "assistant" if place % 2 else "user", text)
            db.set_session_title(f"old{number}", f"Old talk {number}")


def test_esc_at_a_question_cancels_it_and_swallows_no_key(server: ModelServer, home: Path, open_screen: Open) -> None:
    record(home, count=3)
    screen = open_screen()
    screen.line("/resume")
    screen.wait_for("Which one?")
    screen.press("Escape")
    screen.wait_for("❯", times=2)
    screen.line("walrus")
    screen.wait_for("❯ walrus")


def test_branching_does_not_print_the_conversation_again(server: ModelServer, home: Path, open_screen: Open) -> None:
    server.scripts = [["The walrus sleeps."]]
    screen = open_screen()
    screen.line("tell me")
    screen.wait_for("The walrus sleeps.")
    screen.line("/branch")
    screen.wait_for("This is a branch now")
    assert screen.history().count("The walrus sleeps.") == 1


def test_a_recap_names_files_that_went_with_a_message_and_does_not_print_them(
    server: ModelServer, home: Path, tmp_path: Path, open_screen: Open
) -> None:
    (tmp_path / "notes.txt").write_text("".join(f"secret line {number}\n" for number in range(30)))
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "inner.txt").write_text("x")
    assert run("-q", "what is in @notes.txt and @sub and why?", home=home, cwd=tmp_path).status == 0
    recap = open_screen("-c", width=100, until="").wait_for("❯")
    assert "● what is in @notes.txt and @sub and why?" in recap and "[file notes.txt" in recap
    assert "secret line" not in recap and "inner.txt" not in recap


def test_a_first_exchange_that_was_stopped_still_gets_a_title(
    server: ModelServer, open_screen: Open, look: Look
) -> None:
    gate = Gate()
    server.scripts = [["The parser ", gate]]
    screen = open_screen()
    screen.line("Why is the parser slow on large files?")
    screen.wait_for("The parser")
    screen.press("C-c")
    screen.wait_for("so far is kept")
    screen.leave()
    (row,) = look(lambda db: db.list_sessions_rich())
    assert "parser" in str(row["title"]).lower()


def test_ctrl_c_in_one_question_prints_each_line_once(server: ModelServer, open_screen: Open) -> None:
    gate = Gate()
    server.scripts = [["The first half ", gate]]
    screen = open_screen("-q", "tell me", until="The first half")
    screen.press("C-c")
    screen.wait_until_over()
    text = screen.history()
    assert text.count("The first half") == 1 and text.count("topped") == 1, text


def test_lines_typed_before_the_prompt_is_ready_are_sent_one_by_one(
    server: ModelServer, home: Path, look: Look
) -> None:
    server.scripts = [["Answer one."], ["Answer two."]]
    go = home / "go"
    os.mkfifo(go)
    command = f"cat {shlex.quote(str(go))}; exec {shlex.join(PROGRAM)}"
    with Screen(["sh", "-c", command], env=environment(home)) as screen:
        screen.line("first line")
        screen.line("second line")
        screen.wait_for("second line")
        go.write_text("Starting.")
        screen.wait_for("Answer two.")
    rows = look(lambda db: db.get_messages(db.list_sessions_rich()[0]["id"]))
    assert [row["content"] for row in rows if row["role"] == "user"] == ["first line", "second line"]


def test_a_full_disk_gives_the_typed_line_back_and_the_refusal_names_no_save(
    server: ModelServer, home: Path, open_screen: Open
) -> None:
    need(can_mount(), "file systems can't be mounted here (it takes root, or user namespaces)")
    config = (home / "config.yaml").read_text()
    ballast = home / "ballast"
    begin = f'mount -t tmpfs -o size=8000k small "$1" && printf %s "$2" > "$1/config.yaml" && {shlex.join(PROGRAM)}'
    again = f"; dd if=/dev/zero of={ballast}; {shlex.join(PROGRAM)} -q hello; echo over"
    words = ["unshare", "-rm", "sh", "-c", begin + again, "sh", str(home), config]
    with Screen(words, 100, 40, env=environment(home)) as screen:
        screen.wait_for("❯")
        screen.line(f"!dd if=/dev/zero of={ballast}")
        screen.wait_for("was not saved")
        screen.press("C-u")
        screen.line("hello walrus")
        screen.wait_for("was not saved", times=2)
        screen.wait_for("❯ hello walrus", times=2)
        screen.press("C-u")
        screen.line(f"!rm {ballast}")
        screen.wait_for("with your next message")
        screen.line("once more")
        screen.wait_for("That is all I have to say.")
        screen.press("C-d")
        screen.wait_for("over")
        assert "--no-save" in screen.history()
    asked = [one["content"] for one in server.requests[-1]["messages"] if one["role"] == "user"]
    assert asked[-1] == "once more" and "hello walrus" not in asked


def test_the_window_of_a_resumed_conversation_counts_the_tools_of_mcp_servers(
    server: ModelServer, home: Path, open_screen: Open
) -> None:
    program = Path(__file__).parents[1] / "agent" / "tools" / "mcp_plain_server.py"
    with (home / "config.yaml").open("a") as config:
        config.write(f"mcp_servers: {{plain: {{command: {sys.executable}, args: [{program}]}}}}\n")
    assert run("-q", "hello", home=home).status == 0
    sent = estimate_tokens((), server.requests[-1]["tools"])
    assert any(tool["function"]["name"].startswith("plain__") for tool in server.requests[-1]["tools"])
    screen = open_screen("-c", width=100, height=40)

    def counted() -> bool:
        screen.line("/context")
        return f"Tools {sent:>21,}" in screen.wait_for("is summarised")

    until(counted)  # once the server has answered
