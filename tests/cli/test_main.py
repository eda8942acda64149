"""The door: exit statuses, one line for every error, --version, --help of everything, pipes that close."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from hermes import __version__
from hermes.cli.main import COMMANDS
from hermes.cli.sessions import COMMANDS as SESSIONS
from hermes_state import SessionDB
from tests.support.program import PROGRAM, environment, run, start
from tests.support.sizes import some
from tests.support.waiting import PATIENCE

ROOT = Path(__file__).resolve().parents[2]
EVERY = [[]] + [[name] for name in COMMANDS] + [["sessions", name] for name in SESSIONS]
EVERY += [["config", name] for name in ("get", "set", "unset", "path", "edit", "show")]


def test_version(hermes_home: Path) -> None:
    done = run("--version", home=hermes_home)
    assert (done.status, done.out, done.err) == (0, f"hermes {__version__}\n", "")
    assert run("--version", "--debug", home=hermes_home).out == f"hermes {__version__}\n"


def test_version_loads_no_library(hermes_home: Path) -> None:
    program = "import sys; from hermes.cli.main import main; main(['--version']); print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment(hermes_home), capture_output=True, text=True, check=True
    )
    assert not {"click", "msgspec", "yaml", "sqlite3", "rich", "httpx"} & set(done.stdout.split())


@pytest.mark.parametrize("path", EVERY, ids=" ".join)
def test_every_command_has_help_and_needs_nothing_for_it(path: list[str], hermes_home: Path) -> None:
    for flag in some(("--help", "-h"), 1 if path else 2):
        done = run(*path, flag, home=hermes_home)
        assert (done.status, done.err) == (0, ""), done.err
        assert done.out.startswith(f"Usage: hermes{' ' if path else ''}{' '.join(path)} ")
        said = re.sub(r"\s+", " ", done.out.partition("\n\n")[2])
        assert re.match(r" ?[A-Z`].{15}", said), f"say what it does: {said[:60]}"
    assert not hermes_home.exists()


def test_the_overview_names_every_command(hermes_home: Path) -> None:
    done = run("--help", home=hermes_home)
    assert set(COMMANDS) <= set(re.findall(r"^  ([a-z]+)  +[A-Z]", done.out, re.MULTILINE))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["sesions"], "`hermes sesions`; did you mean sessions?"),
        (["cron", "creat"], "`hermes cron creat`; did you mean create?"),
        (["sessions", "list", "--surce", "cli"], "--source"),
        (["sessions", "list", "--limit", "0"], "--limit"),
        (["sessions", "list", "--json=1"], "--json"),
        (["sessions", "show"], "(try `hermes sessions show --help`)"),
        (["sessions", "search", "x", "--since", "soon"], "--since"),
        (["sessions", "export", "-", "--format", "pdf"], "markdown"),
        (["web", "--user", "me"], "telegram:42"),
        (["cron", "create", "0 9 * * *", "hi", "--deliver", "fle"], "did you mean file?"),
        (["doctor", "extra"], "extra"),
        (["completion"], "fish"),
    ],
)
def test_wrong_usage_is_one_line_and_status_2(words: list[str], said: str, hermes_home: Path) -> None:
    done = run(*words, home=hermes_home)
    assert (done.status, done.out) == (2, "")
    assert done.err.startswith("hermes: ") and said in done.err
    assert len(done.err.splitlines()) == 1, done.err


def test_what_is_not_found_is_status_1(hermes_home: Path) -> None:
    done = run("sessions", "show", "nobody", home=hermes_home)
    assert (done.status, done.out) == (1, "")
    assert done.err.startswith("hermes: ") and "nobody" in done.err and "Traceback" not in done.err


@pytest.mark.parametrize("words", [["sessions", "list"], ["insights"], ["sessions", "stats"]])
def test_a_broken_config_is_one_line_with_the_line(words: list[str], hermes_home: Path) -> None:
    hermes_home.mkdir()
    (hermes_home / "config.yaml").write_text("sessions:\n  retention_days: soon\n")
    done = run(*words, home=hermes_home)
    said = f"hermes: {hermes_home / 'config.yaml'} line 2: sessions.retention_days: expected a number of 0 or more, got 'soon'\n"
    assert (done.status, done.out, done.err) == (1, "", said)


@pytest.mark.parametrize("how", ["before", "after", "variable"])
def test_debug_shows_where_an_error_came_from(how: str, hermes_home: Path) -> None:
    hermes_home.mkdir()
    (hermes_home / "config.yaml").write_text("sessions: {retention_days: soon}\n")
    words = {"before": ["--debug", "sessions", "list"], "after": ["sessions", "list", "--debug"]}.get(
        how, ["sessions", "list"]
    )
    done = run(*words, home=hermes_home, env={"HERMES_DEBUG": "1"} if how == "variable" else None)
    assert done.status == 1
    assert "Traceback (most recent call last)" in done.err
    assert "ConfigError" in done.err.splitlines()[-1]


def test_an_error_nobody_foresaw_is_still_one_line(hermes_home: Path) -> None:
    program = (
        "import sys, hermes.cli.main as m; m.COMMANDS['boom'] = 'boom';"
        "import types, click; b = types.ModuleType('boom'); b.command = click.Command('boom', callback=lambda: 1 / 0);"
        "sys.modules['boom'] = b; sys.exit(m.main(['boom']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment(hermes_home), capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "ZeroDivisionError" in done.stderr and "--debug" in done.stderr and done.stderr.count("\n") == 1


# ── pipes and signals ──


@pytest.fixture
def many(hermes_home: Path) -> Path:
    with SessionDB(db_path=hermes_home / "state.db", durability="normal", transcripts="off") as db:
        for number in range(400):
            db.create_session(f"20260101_{number:06}_abcdef", "cli")
            db.append_message(f"20260101_{number:06}_abcdef", role="user", content="words " * 30)
    return hermes_home


@pytest.mark.parametrize(
    "words",
    [
        "sessions list --limit 400",
        "sessions export -",
        "sessions list --json --limit 400",
        "config show --all",
        "doctor",
        "--help",
    ],
)
@pytest.mark.parametrize("reader", some(["head -1", "true"], 1))
def test_a_pipe_that_closes_early_is_quiet(words: str, reader: str, many: Path) -> None:
    line = f'set -o pipefail; "{sys.executable}" -m hermes.cli.main {words} | {reader} > /dev/null; echo "${{PIPESTATUS[0]}}"'
    done = subprocess.run(
        ["bash", "-c", line],
        env=environment(many, {"HERMES_NO_LOCAL": "1"}),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    assert done.stdout in ("0\n", "1\n" if words == "doctor" else "0\n")


EVERY_WAY_OF_PRINTING = [
    "--version", "--help", "sessions list", "sessions list --json", "sessions list --all",
    "sessions show 20260101_000000", "sessions export -", "sessions search words", "insights", "chat -q words",
]  # fmt: skip


@pytest.mark.parametrize("unbuffered", some(["", "1"], 1))
@pytest.mark.parametrize("words", some(EVERY_WAY_OF_PRINTING, 6))
def test_output_that_can_not_be_written_is_one_line_and_status_1(words: str, unbuffered: str, few: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("there is no /dev/full here")
    variables = {"HERMES_NO_LOCAL": "1", "HERMES_NO_EMBEDDED": "1", "PYTHONUNBUFFERED": unbuffered}
    for where, why in ((">/dev/full", "No space left on device"), (">&-", "Bad file descriptor")):
        done = in_shell(f"{words} {where}", few, variables)
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr == f"hermes: standard output: {why}\n"


@pytest.mark.parametrize("where", some(["2>/dev/full", "2>&-", "<&-", "0<&- 2>&-"], 2))
def test_standard_error_or_input_that_is_not_there_changes_nothing_else(where: str, few: Path) -> None:
    for words in ("sessions export -", "sessions list", "sessions show nobody"):
        usual, done = in_shell(words, few), in_shell(f"{words} {where}", few)
        assert (done.returncode, done.stdout) == (usual.returncode, usual.stdout)
        assert done.stderr == (usual.stderr if "2>" not in where else "")


def test_the_reply_is_in_the_record_though_it_could_not_be_printed(few: Path) -> None:
    done = in_shell("chat -q 'how are you' >/dev/full", few, {"HERMES_NO_LOCAL": "1", "HERMES_NO_EMBEDDED": "1"})
    assert done.returncode == 1
    with SessionDB(few / "state.db", read_only=True) as db:
        (row,) = [row for row in db.list_sessions_rich() if row["preview"] == "how are you"]
        assert [message["role"] for message in db.get_messages(row["id"])] == ["user", "assistant"]


def test_both_streams_in_one_file_are_in_the_order_they_were_written(few: Path, tmp_path: Path) -> None:
    (tmp_path / "half.jsonl").write_text('{"id": "a", "source": "cli", "messages": []}\n{"id": "broken\n')
    done = in_shell(f"sessions import '{tmp_path / 'half.jsonl'}' 2>&1", few)
    first, second = done.stdout.splitlines()
    assert first.startswith("1 session with 0 messages imported") and second.startswith("hermes: line 2: ")


def in_shell(words: str, home: Path, variables: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    line = f'"{sys.executable}" -m hermes.cli.main {words}'
    return subprocess.run(
        ["bash", "-c", line], env=environment(home, variables), capture_output=True, text=True, check=False
    )


@pytest.fixture
def few(hermes_home: Path) -> Path:
    with SessionDB(db_path=hermes_home / "state.db", durability="normal", transcripts="off") as db:
        db.create_session("20260101_000000_abcdef", "cli")
        db.append_message("20260101_000000_abcdef", role="user", content="words " * 30)
    return hermes_home


def test_ctrl_c_ends_with_130_and_no_traceback(many: Path) -> None:
    child = start("sessions", "show", "--follow", "20260101_000000", home=many)
    assert child.stdout is not None
    assert child.stdout.readline()
    child.send_signal(signal.SIGINT)
    _, said = child.communicate(timeout=120)
    assert child.returncode in (0, 130)
    assert "Traceback" not in said


def test_a_question_that_is_answered_with_ctrl_c_changes_nothing(many: Path) -> None:
    child, terminal = pty.fork()
    if child == 0:
        os.execve(sys.executable, [*PROGRAM, "sessions", "delete", "20260101_000000"], environment(many))
    shown = b""
    end = time.monotonic() + PATIENCE
    while b"?" not in shown and time.monotonic() < end:
        if select.select([terminal], [], [], 0.2)[0]:
            shown += os.read(terminal, 4096)
    gone, status = 0, 0
    while not gone and time.monotonic() < end:
        with suppress(OSError):  # the terminal is gone as soon as the program is
            os.write(terminal, b"\x03")  # again if need be: Python misses one that comes right before it begins to read
            while select.select([terminal], [], [], 0.5)[0]:
                shown += os.read(terminal, 4096)
        gone, status = os.waitpid(child, os.WNOHANG)
    if not gone:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    os.close(terminal)
    assert gone, shown.decode(errors="replace")
    assert os.waitstatus_to_exitcode(status) in (1, 130)
    with SessionDB(db_path=many / "state.db", read_only=True) as db:
        assert db.get_session("20260101_000000_abcdef") is not None
        assert db.list_trash() == []


def test_an_error_that_quotes_a_title_can_do_nothing_to_the_terminal(hermes_home: Path) -> None:
    with SessionDB(hermes_home / "state.db") as db:
        for number in range(12):
            db.create_session(f"2026{number:02}", "cli")
            db.set_session_title(f"2026{number:02}", f"\u202egnp.{number}\u202c")
    done = run("sessions", "show", "2026", home=hermes_home)
    assert done.status == 2 and "gnp.9" in done.err and done.err.endswith("  … and more\n")
    assert not set(done.err) & set("\u202e\u202c\x1b")
    done = run("sessions", "list", "\x1b]0;owned\x07\x1b[31m", home=hermes_home)
    assert done.status == 2 and "\x1b" not in done.err and "\x07" not in done.err


@pytest.mark.parametrize(
    "words", [["insights"], ["sessions", "stats"], ["sessions", "list"], ["doctor"], ["--help"], ["config", "show"]]
)
def test_a_terminal_without_some_letters_gets_question_marks(hermes_home: Path, words: list[str]) -> None:
    with SessionDB(hermes_home / "state.db") as db:
        db.create_session("s", "κλι")
        db.append_message("s", "user", "京都 – “hello” 👍🏽 \ud800")
    done = run(*words, home=hermes_home, env={"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0", "HERMES_NO_LOCAL": "1"})
    assert "internal error" not in done.err and "Traceback" not in done.err and done.out


def test_a_store_that_is_no_database_is_one_line(hermes_home: Path) -> None:
    hermes_home.mkdir()
    (hermes_home / "state.db").write_bytes(b"rubbish" * 200)
    for words in (["sessions", "list"], ["sessions", "stats"], ["insights"]):
        done = run(*words, home=hermes_home)
        assert done.status == 1
        assert len(done.err.splitlines()) == 1 and "is not a database" in done.err


def test_a_file_where_the_home_should_be_is_one_line(hermes_home: Path) -> None:
    hermes_home.write_text("x")
    done = run("sessions", "list", home=hermes_home)
    assert done.status == 1
    assert len(done.err.splitlines()) == 1 and "Traceback" not in done.err
