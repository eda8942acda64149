"""The servers that a test run started end with the run, also when it is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.postgres.clusters import folder
from tests.support.labs.base import until
from tests.support.leftovers import marked
from tests.support.sizes import some

pytestmark = pytest.mark.mechanism

TREE = Path(__file__).parents[2]
# A server that left its parent's session, one of PostgreSQL, and a test that never ends.
SCENE = """
import os, pathlib, subprocess, time
from tests.support import postgres

def test_one():
    detached = subprocess.Popen(["sleep", "600"], start_new_session=True)
    if os.environ.get("WITH_A_DATABASE"):
        postgres.server()
    told = pathlib.Path(__file__).parent / "told"
    (told.parent / "part").write_text(f"{os.environ['HERMES_TEST_RUN'].rpartition('/')[2]} {os.getpid()} {detached.pid}")
    (told.parent / "part").rename(told)
    time.sleep(600)
"""


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs /proc")
@pytest.mark.parametrize(
    ("workers", "number", "whom"),
    some(
        [
            (0, signal.SIGTERM, "all"),
            (0, signal.SIGKILL, "all"),
            (1, signal.SIGTERM, "all"),
            (1, signal.SIGKILL, "worker"),
        ],
        quick=2,
    ),
)
def test_a_run_that_is_ended_leaves_no_process(workers: int, number: int, whom: str) -> None:
    with folder() as place:
        (place / "test_scene.py").write_text(SCENE)
        (place / "temporary").mkdir()
        variables = {**os.environ, "TMPDIR": str(place / "temporary"), "PYTHONPATH": f"{TREE}:{TREE / 'src'}"}
        variables["HERMES_TEST_GRACE"] = "3"
        if number == signal.SIGTERM and workers == 0:
            variables["WITH_A_DATABASE"] = "1"
        name, worker, detached = _ended(place, workers, number, whom, variables)
        until(lambda: not any(marked(name)), "processes of the run go on")
    assert not _alive(detached) and not _alive(worker)


def _ended(place: Path, workers: int, number: int, whom: str, variables: dict[str, str]) -> tuple[str, int, int]:
    """Start a run and end it in the middle: its mark, the process that ran the test, and the one that one started."""
    words = ["-m", "pytest", "-n", str(workers), "--max-worker-restart", "0", "-p", "tests.support.leftovers", "-p",
             "no:cacheprovider", "-c", os.devnull, "--rootdir", str(place), str(place / "test_scene.py")]  # fmt: skip
    with (place / "output").open("wb") as output:
        run = subprocess.Popen([sys.executable, *words], env=variables, stdout=output, stderr=output)
    try:
        until(lambda: (place / "told").exists() or run.poll() is not None)
        assert run.poll() is None, (place / "output").read_text()
        name, worker, detached = (place / "told").read_text().split()
        assert _alive(int(detached))
        os.kill(int(worker) if whom == "worker" else run.pid, number)
        run.wait(60)
    finally:
        run.kill()
        run.wait()
    return name, int(worker), int(detached)
