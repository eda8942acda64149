"""Which commands ask first: the table, and that no wrapping changes a verdict."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes.agent.tools.danger import is_destructive

from .danger_table import DESTRUCTIVE, HARMLESS


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "place"
    for name in ("notes.txt", "other.txt", "a file.txt", "sub/notes.txt"):
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text("precious\n")
    (place / "empty").mkdir()
    return place


def test_the_table_is_large_and_says_nothing_twice() -> None:
    assert len(DESTRUCTIVE) >= 150 and len(HARMLESS) >= 150
    assert len(set(DESTRUCTIVE)) == len(DESTRUCTIVE) and len(set(HARMLESS)) == len(HARMLESS)
    assert not set(DESTRUCTIVE) & set(HARMLESS)


@pytest.mark.parametrize("command", DESTRUCTIVE)
def test_destructive_commands_are_asked_about(command: str, folder: Path) -> None:
    reason = is_destructive(command, folder)
    assert reason and "\n" not in reason.strip() and len(reason) < 200


@pytest.mark.parametrize("command", HARMLESS)
def test_harmless_commands_just_run(command: str, folder: Path) -> None:
    assert is_destructive(command, folder) is None


def test_what_bash_accepts_in_the_harmless_table_is_what_was_read(folder: Path) -> None:
    """The table is real shell: bash itself finds no syntax error in any harmless row."""
    for command in HARMLESS:
        checked = subprocess.run(["bash", "-n", "-c", command], cwd=folder, capture_output=True, text=True)
        assert checked.returncode == 0, (command, checked.stderr)


@pytest.mark.parametrize(
    "command, told",
    [
        ("rm -rf build", "rm removes files"),
        ("echo x > notes.txt", "> would overwrite notes.txt"),
        ("mv other.txt sub/notes.txt", "mv would overwrite sub/notes.txt"),
        ("cp notes.txt sub", "cp would overwrite notes.txt in sub"),
        ("git reset --hard", "git reset --hard throws away changes"),
        ("curl x | sh", "sh would run whatever comes in"),
        ("$CMD", "which program $CMD is can't be seen beforehand"),
        ("echo 'x", "it can't be read as a command: a quote is never closed"),
        ("sqlite3 x.db 'drop table t'", "sqlite3 would run DROP"),
    ],
)
def test_the_reason_names_what_would_happen(command: str, told: str, folder: Path) -> None:
    assert is_destructive(command, folder) == told


def test_a_reason_stays_one_short_line_whatever_the_command_says(folder: Path) -> None:
    reason = is_destructive(f"echo > $X'{'a' * 5000}\n\n'", folder)
    assert reason and "\n" not in reason and len(reason) <= 160


def test_sql_in_a_file_is_read(folder: Path) -> None:
    (folder / "read.sql").write_text("SELECT 1;")
    (folder / "drop.sql").write_text("DROP TABLE t;")
    assert is_destructive("psql -f read.sql", folder) is None
    assert is_destructive("psql < read.sql", folder) is None
    assert is_destructive("psql -f drop.sql", folder) == "psql would run DROP"
    assert is_destructive("psql < drop.sql", folder) == "psql would run DROP"


# Each takes a whole script and gives a command that runs it.
WRAPPINGS = [
    lambda script: f"sh -c {shlex.quote(script)}",
    lambda script: f"bash -lc {shlex.quote(script)}",
    lambda script: f"/usr/bin/env A=b bash -o pipefail -c {shlex.quote(script)}",
    lambda script: f"nohup nice -n 3 timeout -k 1 5 sh -c {shlex.quote(script)} &",
    lambda script: f"eval {shlex.quote(script)}",
    lambda script: f"({script}\n)",
    lambda script: f"{{ {script}\n}}",
    lambda script: f"echo before; {{ {script}\n}}",
    lambda script: f"true && ({script}\n) || false",
    lambda script: f"echo $({script}\n)",
    lambda script: f'echo "$({script}\n)"',
    lambda script: f"if true; then {{ {script}\n}}; fi",
    lambda script: f"for i in 1 2; do {script}\ndone",
    lambda script: f"while false; do {script}\ndone",
    lambda script: f"case x in a) ls;; *) {script}\n;; esac",
    lambda script: f"f() {{ {script}\n}}; f",
    lambda script: f"cat <({script}\n)",
    lambda script: f"ls | xargs -n1 sh -c {shlex.quote(script)}",
    lambda script: f"find . -exec bash -c {shlex.quote(script)} \\;",
    lambda script: f"bash <<'END-{len(script)}'\n{script}\nEND-{len(script)}\n",
    lambda script: f"bash <<< {shlex.quote(script)}",
    lambda script: f"trap {shlex.quote(script)} EXIT",
    lambda script: f"ssh host {shlex.quote(shlex.quote(script).join(['sh -c ', '']))}",
]
# What a here-document or a comment at the end would swallow is left out: the wrapping would not be the same script.
WHOLE = [command for command in HARMLESS if command.strip() and "<<" not in command and not command.startswith("#")]
BAD = [
    "rm x",
    "echo x > notes.txt",
    "mv other.txt notes.txt",
    "git push -f",
    "kill 1",
    "sudo ls",
    "$CMD",
    "curl x | sh",
]


@given(st.sampled_from(WHOLE), st.lists(st.sampled_from(WRAPPINGS), max_size=4))
def test_no_wrapping_makes_a_harmless_command_destructive(folder: Path, command: str, wrappings: list) -> None:
    for wrap in wrappings:
        command = wrap(command)
    assert is_destructive(command, folder) is None, command


@given(st.sampled_from(BAD), st.lists(st.sampled_from(WRAPPINGS), max_size=4))
def test_no_wrapping_makes_a_destructive_command_harmless(folder: Path, command: str, wrappings: list) -> None:
    for wrap in wrappings:
        command = wrap(command)
    assert is_destructive(command, folder), command


PIECES = st.sampled_from(
    ["rm", "ls", " ", "'", '"', "\\", "$", "$(", "((", "(", ")", "))", "`", "{", "}", "${", ";", ";;", "&", "|", "<", ">", "<<", "<<-",
     "EOF", "\n", "#", "if", "then", "fi", "case", "in", "esac", "for", "do", "done", "[[", "]]", "=", "a=(", "!", "~", "*", "-c", "sh",
     "xargs", "find", "-exec", "git", "cp", "psql", "env", "eval", "time", "function", "\x00", "\ud800", "é", "$'", "\\x"]
)  # fmt: skip


@given(st.one_of(st.text(), st.lists(PIECES, max_size=40).map("".join), st.lists(PIECES, max_size=40).map(" ".join)))
def test_no_text_makes_it_crash(folder: Path, command: str) -> None:
    reason = is_destructive(command, folder)
    assert reason is None or isinstance(reason, str)


RUNNABLE = st.sampled_from(
    ["rm", "rm", "ls", "'", '"', "\\", "$(", "(", ")", "`", "{", "}", ";", "&&", "||", "|", "<", ">", "<<E", "\nE\n", "E", "\n", "#", "if",
     "then", "fi", "case", "x", "in", "esac", "for", "do", "done", "[[", "]]", "a=", "a=(", "!", "-c", "bash", "eval", "env", "time", "exec",
     "command", "nohup", "trap", "EXIT", "f()", "function", "$a", "${a:-", "$((", "))", "$'", "2>&1", "&", "echo", "builtin", ".", "xargs",
     "find", "-exec", "+", "\\;", "{}", "-I", "cp", "coproc", ";;", "*)", "<(", ">(", "<<<", "<<-E", "-"]
)  # fmt: skip


@pytest.fixture
def stubs(tmp_path: Path) -> Path:
    """A PATH on which `rm` only leaves a mark, and little else can be found."""
    folder = tmp_path / "stubs"
    folder.mkdir()
    (folder / "rm").write_text(f"#!/bin/sh\ncase $0 in {folder}/rm) : > {tmp_path}/mark;; esac\n")  # started, not read
    (folder / "rm").chmod(0o755)
    for name in ("bash", "env", "nohup", "xargs", "find", "ls", "cat", "cp", "mv", "tee", "sed", "ln", "sort", "mkdir"):
        (folder / name).symlink_to(shutil.which(name) or "/bin/false")
    return folder


def run_for_real(command: str, work: Path, path: Path) -> None:
    """Let bash do it, with that folder as its home, and leave nothing running.

    The pieces commands are made of must not lead out of the folder: no `~`, no `/`, no `..` that climbs.
    """
    running = subprocess.Popen(
        ["/bin/bash", "-c", command], cwd=work, env={"PATH": str(path), "HOME": str(work)}, stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    try:
        running.wait(10)
    except subprocess.TimeoutExpired:
        pass
    finally:
        try:
            os.killpg(running.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        running.wait()


@given(
    st.one_of(
        st.lists(RUNNABLE, max_size=10).map(" ".join),
        st.lists(RUNNABLE, max_size=8).map("".join),
        st.tuples(st.lists(RUNNABLE, max_size=5), st.lists(RUNNABLE, max_size=5)).map(
            lambda around: " ".join([*around[0], "rm", *around[1]])
        ),
    )
)
def test_whenever_a_real_shell_would_run_rm_it_is_asked_about(tmp_path: Path, stubs: Path, command: str) -> None:
    """The parser against bash itself: what bash really does decides."""
    mark = tmp_path / "mark"
    work = tmp_path / "work"
    shutil.rmtree(work, ignore_errors=True)
    mark.unlink(missing_ok=True)
    work.mkdir()
    reason = is_destructive(command, work)
    run_for_real(command, work, stubs)
    if mark.exists():
        assert reason, command


WRITING = st.sampled_from(
    ["cp", "mv", "ln -f", "tee", "sed -i s/e/x/", "sed s/e/x/", "sort -o", "echo hi", "cat", "cp -r", "cp -n", "mv -t sub", "cp -t empty", "-T",
     "notes.txt", "other.txt", "'a file.txt'", "sub", "sub/", "sub/.", "./notes.txt", "sub/notes.txt", "fresh.txt", "empty", "empty/", "*.txt",
     "n*", "../place/notes.txt", "a\\ file.txt", "{other,notes}.txt", ">", ">|", ">>", "<", "2>", "&>", "&&", ";", "|", "||", "cd sub",
     "cd ../place", "cd empty", "&& cd -", "$PWD/notes.txt", "(", ")", "xargs", "bash -c", "find . -exec", "{}", "\\;", "x=notes.txt", "$x",
     "mkdir new", "new", "\n"]
)  # fmt: skip


@given(st.lists(WRITING, min_size=2, max_size=9).map(" ".join))
def test_nothing_written_is_lost_without_asking(tmp_path: Path, stubs: Path, command: str) -> None:
    """Real files, real programs: if a content has vanished from the folder afterwards, it was asked about."""
    place = tmp_path / "place"
    shutil.rmtree(place, ignore_errors=True)
    precious = {}
    for name in ("notes.txt", "other.txt", "a file.txt", "sub/notes.txt"):
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        precious[name] = f"precious {name}\n"
        (place / name).write_text(precious[name])
    (place / "empty").mkdir()
    reason = is_destructive(command, place)
    run_for_real(command, place, stubs)
    now = "".join(path.read_text() for path in place.rglob("*") if path.is_file())
    lost = [name for name, text in precious.items() if text not in now]
    assert not lost or reason, (command, lost)


@pytest.mark.parametrize(
    ("command", "reason"),
    [("$((" * 60 + "x" + " ) )" * 60, "too deep"), ("(" * 5000, "too deep"), ("$(" * 5000, "too deep"), ("`" * 9999, "never closed"),
     ("{ " * 5000, "too deep"), ("! " * 5000, "too deep"), ("sh -c " * 50, "whatever comes in"), ("((" * 3000 + "))" * 3000, None),
     ("'" + "a" * 300_000, "too long"), ("a" * 99_000, None), ("\\a" * 49_000, None), ("<<E\n" * 2000, None), ("${" * 3000, "too deep"),
     ("f() " * 3000, "too deep"), ("env " * 3000, "can't be judged"), ("nice " * 20_000, "can't be judged"), ("[[ " * 3000, "never closed")]
)  # fmt: skip
def test_monsters_end_soon(command: str, reason: str | None, folder: Path) -> None:
    """Each gets an answer (a reading that tries every way would never end), and what can't be read is asked about."""
    told = is_destructive(command, folder)
    assert told is None if reason is None else told is not None and reason in told
