"""A command of `hermes` as a person would run it: a fresh process, its wall time, CPU time and peak memory.

Raw is an interpreter that does nothing: what no program in Python can beat. A first run that is not measured writes
the bytecode.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.jobs.common import Config, main

RUNS = 7


def program(config: Config) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "home"
        home.mkdir(mode=0o700)
        if config.get("store"):
            for beside in ("", "-wal"):
                if Path(config["store"] + beside).exists():
                    shutil.copy(config["store"] + beside, home / ("state.db" + beside))
        command = _command(config)
        environment = {**os.environ, "HERMES_HOME": str(home), "COLUMNS": "120", "NO_COLOR": "1"}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        runs = [_run(command, environment) for _ in range(RUNS + 1)][1:]
    middle = RUNS // 2
    return {name: sorted(run[name] for run in runs)[middle] for name in ("wall_ms", "cpu_ms", "peak_mb")}


def _command(config: Config) -> list[str]:
    if config["contestant"] == "raw":
        return [sys.executable, "-I", "-c", "pass"]
    if config["contestant"] == "rival":
        return [str(Path(sys.executable).with_name("hermes")), *config["words"]]
    return [sys.executable, "-c", "from hermes.cli.main import script; script()", *config["words"]]


def _run(command: list[str], environment: dict[str, str]) -> dict[str, float]:
    start = time.perf_counter()
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    _, status, used = os.wait4(process.pid, 0)
    wall = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        assert process.stderr is not None
        raise RuntimeError(process.stderr.read().decode(errors="replace").strip().splitlines()[-1:])
    return {"wall_ms": wall * 1e3, "cpu_ms": (used.ru_utime + used.ru_stime) * 1e3, "peak_mb": used.ru_maxrss / 1024}


if __name__ == "__main__":
    main(program)
