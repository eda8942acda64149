"""A program that tests fork instead of starting it (tests/support/forking.py) is the same program."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.forking import Forked, forks
from tests.support.program import environment
from tests.support.waiting import until

pytestmark = pytest.mark.mechanism

PROBE = """
import atexit, json, os, sys, time
atexit.register(lambda: print("at exit"))
print(json.dumps([sys.argv[1:], os.getcwd(), sorted(os.environ), time.tzname, __name__, sys.stdout.encoding,
                  sys.stdout.errors, sys.stderr.errors, sys.stdin.read(), sys.stdout.isatty()]))
print("told", file=sys.stderr)
match sys.argv[1:]:
    case ["fail"]: raise ValueError("on purpose")
    case ["status", number]: sys.exit(int(number))
    case ["words"]: sys.exit("some words")
    case ["killed"]: os.kill(os.getpid(), 9)
    case ["interrupted"]: raise KeyboardInterrupt
"""


def outcome(kind: type[subprocess.Popen[Any]], folder: Path, *words: str) -> tuple[int, str, list[str]]:
    variables = environment(folder, {"TZ": "Asia/Tokyo", "PROBE": "1"})
    variables["PYTHONPATH"] = os.pathsep.join([str(folder), variables["PYTHONPATH"]])
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with kind([sys.executable, "-m", "probe", *words], env=variables, cwd=folder, text=True, **pipes) as process:
        out, err = process.communicate("what is said: é", timeout=60)
    return process.returncode, out, [line for line in err.splitlines() if not line.startswith(("Traceback", " "))]


@pytest.mark.parametrize(
    "words", [(), ("status", "3"), ("status", "0"), ("fail",), ("words",), ("killed",), ("interrupted",)], ids=" ".join
)
def test_a_forked_program_is_the_one_that_is_started(tmp_path: Path, words: tuple[str, ...]) -> None:
    (tmp_path / "probe.py").write_text(PROBE)
    assert outcome(Forked, tmp_path, *words) == outcome(subprocess.Popen, tmp_path, *words)


@pytest.mark.skipif(not forks(), reason="every program is started from the beginning")
def test_other_variables_of_the_interpreter_start_it_from_the_beginning(tmp_path: Path) -> None:
    (tmp_path / "loaded.py").write_text("import sys\nprint('httpx' in sys.modules, sys.flags.dont_write_bytecode)\n")
    said = []
    for more in ({}, {"PYTHONHASHSEED": "1"}):
        variables = environment(tmp_path, more)
        variables["PYTHONPATH"] = os.pathsep.join([str(tmp_path), variables["PYTHONPATH"]])
        with Forked([sys.executable, "-m", "loaded"], env=variables, stdout=subprocess.PIPE, text=True) as process:
            said.append(process.communicate(timeout=120)[0])
    assert said == ["True 0\n", "False 0\n"]


FAMILY = """
import subprocess, sys, time
one = subprocess.Popen(["sh", "-c", "sleep 600 & echo $!; exec sleep 600"], stdout=subprocess.PIPE, text=True, start_new_session=True)
print(one.pid, one.stdout.readline().strip(), flush=True)
time.sleep(600)
"""
# a test process: it starts a program, says what runs, and does not end by itself
TESTS = """
import os, subprocess, sys, time
from tests.support.forking import Forked
print(os.getpid())
made = Forked([sys.executable, "-m", "family"], env=dict(os.environ), stdout=subprocess.PIPE, text=True)
print(made.pid, made.stdout.readline(), flush=True)
time.sleep(600)
"""


@pytest.mark.skipif(not forks(), reason="every program is started from the beginning")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_programs_and_what_they_started_end_with_the_test_process(tmp_path: Path, number: int) -> None:
    (tmp_path / "family.py").write_text(FAMILY)
    variables = environment(tmp_path)
    variables["PYTHONPATH"] = os.pathsep.join([str(tmp_path), variables["PYTHONPATH"]])
    with subprocess.Popen([sys.executable, "-c", TESTS], env=variables, stdout=subprocess.PIPE, text=True) as tests:
        assert tests.stdout is not None
        alive = [psutil.Process(int(pid)) for _ in range(2) for pid in tests.stdout.readline().split()]
        assert len(alive) == 4
        tests.send_signal(number)
        tests.wait(60)
    until(lambda: not any(one.is_running() for one in alive), lambda: alive)
