"""The terminal and process tools, with real programs."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes.agent.tools.terminal import Output, Process, background, process, terminal
from hermes.agent.tools.tool import Context
from hermes.errors import ToolError
from hermes.texts import readable
from tests.support.waiting import until


def run(context: Context, command: str, **more: Any) -> str:
    return terminal.run(context, {"command": command, **more})


def running(mark: str) -> list[psutil.Process]:
    """Programs that have this mark among their words and are not dead already."""
    found = []
    for each in psutil.process_iter():
        try:
            if mark in " ".join(each.cmdline()) and each.pid != os.getpid() and each.status() != psutil.STATUS_ZOMBIE:
                found.append(each)
        except psutil.Error:
            pass
    return found


# -- running ------------------------------------------------------------------------------------------------------


def test_output_and_errors_come_back_in_order_with_the_exit_status(context: Context) -> None:
    said = run(context, "echo one; echo two >&2; echo three; exit 7")
    assert said == "one\ntwo\nthree\n[exit status 7]"


def test_a_program_ended_by_a_signal_is_told_as_such(context: Context) -> None:
    context.config.terminal.approval = "never"
    assert run(context, "kill -SEGV $$").endswith("[ended by SIGSEGV]")


def test_cd_lasts_from_one_command_to_the_next(context: Context) -> None:
    start = context.cwd
    assert f"now in {start}/a b" in run(context, "mkdir 'a b' && cd 'a b'")
    assert context.cwd == start / "a b"
    assert run(context, "pwd").startswith(f"{start}/a b\n")
    run(context, "cd .. ; exit 3")
    assert context.cwd == start


def test_cd_in_a_subshell_or_elsewhere_does_not_last(context: Context) -> None:
    start = context.cwd
    run(context, "mkdir sub; (cd sub); sh -c 'cd sub'")
    run(context, "cd /", workdir="sub")
    assert context.cwd == start


def test_workdir_is_for_one_command(context: Context) -> None:
    (context.cwd / "sub").mkdir()
    assert run(context, "pwd", workdir="sub").startswith(f"{context.cwd}/sub\n")
    with pytest.raises(ToolError, match="does not exist"):
        run(context, "pwd", workdir="nowhere")


def test_there_is_no_keyboard(context: Context) -> None:
    assert run(context, 'cat; read x; echo "[$x] $?"') == "[] 1\n[exit status 0]"


def test_errors_name_the_line_of_the_command(context: Context) -> None:
    context.config.terminal.approval = "never"
    assert "line 2:" in run(context, "echo fine\nnosuchprogram")


@pytest.mark.parametrize("command", ["echo 'x", "if", "&& ls", "cat <<EOF"])
def test_broken_commands_are_results_too(context: Context, command: str) -> None:
    context.config.terminal.approval = "never"
    assert "exit status" in run(context, command)


def test_bytes_that_are_no_text_are_decoded_somehow(context: Context) -> None:
    said = run(context, r"printf 'a\xff\xfeb\x00c\n'; head -c 5000 /dev/urandom")
    assert said.startswith("a\ufffd\ufffdbc\n") and said.encode()


def test_colours_and_progress_bars_are_removed(context: Context) -> None:
    said = run(context, r"printf '\033[1;31mred\033[0m \033]0;title\007x\n10%%\r50%%\r100%%\nab\bc\n'")
    assert said == "red x\n100%\nac\n[exit status 0]"


def test_long_output_keeps_its_beginning_and_end(context: Context) -> None:
    said = run(context, "seq 1 200000")
    assert said.startswith("1\n2\n") and "199999\n200000\n[exit status 0]" in said
    assert "characters left out" in said and len(said) < 45_000


def test_endless_output_does_not_fill_the_memory(context: Context) -> None:
    said = run(context, "echo begin; yes xxxxxxxxxxxxxxxxxxxxxxxx | head -c 50000000; echo end")
    assert said.startswith("begin\nxxx") and said.endswith("end\n[exit status 0]") and "[… about 49,9" in said
    assert len(said) < 45_000


@pytest.mark.parametrize(
    "arguments, told",
    [
        ({}, "command"),
        ({"command": ""}, "command"),
        ({"command": 5}, "command"),
        ({"command": "ls", "timeout": "soon"}, "timeout"),
        ({"command": "ls", "background": "maybe"}, "background"),
        ({"command": "ls\0"}, "null characters"),
        ({"command": "ls", "workdir": "a\0b"}, "does not exist"),
    ],
)
def test_wrong_arguments_are_explained(context: Context, arguments: dict[str, Any], told: str) -> None:
    with pytest.raises(ToolError, match=told):
        terminal.run(context, arguments)


# -- ending -------------------------------------------------------------------------------------------------------


def test_a_command_that_takes_too_long_is_ended_with_all_it_started(context: Context) -> None:
    said = run(context, "echo begun; sleep 1234.51 & sh -c 'sleep 1234.51; true'", timeout=0.5)
    assert said.startswith("begun\n[not finished")
    assert not running("1234.51")


def test_a_program_that_will_not_listen_is_ended_by_force(context: Context) -> None:
    said = run(context, "trap '' TERM; echo begun; while true; do sleep 1234.52; done", timeout=0.5)
    assert said.startswith("begun\n") and "not finished" in said
    assert not running("1234.52")


def test_an_interrupt_ends_the_command_and_keeps_what_it_said(context: Context, person: Any) -> None:
    threading.Thread(target=lambda: (until(lambda: running("1234.53")), person.stop.set())).start()
    said = run(context, "echo begun; sleep 1234.53 | cat")
    assert said.startswith("begun\n[interrupted")
    assert not running("1234.53")


def test_nothing_stays_behind_a_command_that_is_over(context: Context) -> None:
    said = run(context, "sleep 1234.54 & echo over")
    assert said.startswith("over\n[exit status 0; ")
    assert not running("1234.54")


def test_commands_leave_no_zombies_and_no_open_files(context: Context) -> None:
    me = psutil.Process()
    run(context, "true")
    before = me.num_fds()
    for _ in range(10):
        run(context, "true")
    until(lambda: me.num_fds() <= before)
    assert not [child for child in me.children() if child.status() == psutil.STATUS_ZOMBIE]


# -- asking -------------------------------------------------------------------------------------------------------


def test_a_command_that_may_change_something_is_asked_about_and_a_no_is_a_failed_result(
    context: Context, person: Any
) -> None:
    (context.cwd / "precious").write_text("x")
    person.says = False
    with pytest.raises(ToolError, match="declined"):
        run(context, "rm precious")
    assert (context.cwd / "precious").exists()
    assert person.asked == ["Run `rm precious`? (rm is not known to only read)"]
    person.says = True
    assert "exit status 0" in run(context, "rm precious")
    assert not (context.cwd / "precious").exists()


def test_background_commands_are_asked_about_as_well(context: Context, person: Any) -> None:
    person.says = False
    with pytest.raises(ToolError, match="declined"):
        run(context, "rm x", background=True)
    assert process.run(context, {"action": "list"}) == "No background processes."


def test_the_configuration_can_ask_always_or_never(make_context: Any, person: Any) -> None:
    never = make_context()
    never.config.terminal.approval = "never"
    run(never, "touch a; rm a")
    assert person.asked == []
    always = make_context()
    always.config.terminal.approval = "all"
    run(always, "ls")
    assert person.asked == ["Run `ls`? (every command is asked about)"]


def test_another_folder_is_named_in_the_question(context: Context, person: Any) -> None:
    (context.cwd / "sub").mkdir()
    person.says = False
    with pytest.raises(ToolError, match="declined"):
        run(context, "echo > x", workdir="sub")
    assert person.asked == [f"Run `echo > x` in {context.cwd}/sub? (it writes to x)"]


# -- in the background --------------------------------------------------------------------------------------------


def test_background_processes_are_listed_read_waited_for_and_killed(context: Context) -> None:
    assert "as process 1" in run(
        context, "echo one; until [ -e go ]; do sleep 0.05; done; echo two; exit 3", background=True
    )
    assert "as process 2" in run(context, "sleep 1234.55", background=True)
    until(lambda: "next offset: 4" in process.run(context, {"action": "read", "id": 1}))
    first = process.run(context, {"action": "read", "id": 1})
    assert first.startswith("process 1: running") and first.endswith("one\n[next offset: 4]")
    assert process.run(context, {"action": "read", "id": 1, "offset": 4}).split("\n")[1] == "(nothing new)"
    (context.cwd / "go").write_text("")
    ended = process.run(context, {"action": "wait", "id": 1, "offset": 4})
    assert ended.startswith("process 1: exit status 3") and ended.endswith("\ntwo\n[next offset: 8]")
    assert process.run(context, {"action": "kill", "id": 2}).startswith("process 2: killed; ended by SIGTERM")
    assert not running("1234.55")
    listed = process.run(context, {"action": "list"}).split("\n")
    assert listed[0].startswith("1: exit status 3") and listed[1].startswith("2: ended by SIGTERM")


def test_waiting_is_bounded_and_can_be_interrupted(context: Context, person: Any) -> None:
    run(context, "sleep 1234.56", background=True)
    assert "running" in process.run(context, {"action": "wait", "id": 1, "timeout": 0.1})
    person.stop.set()
    assert "running" in process.run(context, {"action": "wait", "id": 1, "timeout": 500})


def test_all_background_processes_end_with_the_agent(context: Context) -> None:
    run(context, "sleep 1234.57", background=True)
    run(context, "trap '' TERM; sleep 1234.57; sleep 1234.57", background=True)
    until(lambda: len(running("1234.57")) >= 2)
    background(context).close()
    assert not running("1234.57")
    with pytest.raises(ToolError, match="over"):
        run(context, "sleep 1", background=True)


def test_an_unknown_process_is_named(context: Context) -> None:
    run(context, "true", background=True)
    with pytest.raises(ToolError, match="9.*: 1"):
        process.run(context, {"action": "read", "id": 9})
    with pytest.raises(ToolError, match="action"):
        process.run(context, {"action": "write"})


def test_a_dead_leader_does_not_hide_its_children(tmp_path: Path) -> None:
    started = Process("sleep 1234.58 & disown; exit 0", tmp_path)
    started.ended.wait(120)
    assert started.kill() and not running("1234.58")


# -- output -------------------------------------------------------------------------------------------------------


@given(st.lists(st.binary(max_size=50), max_size=30), st.integers(0, 40), st.integers(0, 40))
def test_output_keeps_the_first_and_last_bytes_and_counts_all(pieces: list[bytes], first: int, last: int) -> None:
    output = Output(first, last)
    for piece in pieces:
        output.add(piece)
    whole = b"".join(pieces)
    text, size = output.since(0)
    assert size == len(whole)
    if len(whole) <= first + last:
        assert text == readable(whole.decode("utf-8", "replace"))
    assert output.since(size)[0] == ""
