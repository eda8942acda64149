"""Who is measured, and how one measurement is run: a job in a process of its own, in the contestant's
interpreter, with a time limit. Whatever goes wrong there comes back as a result that says so; a benchmark
hides nothing.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RIVAL_REQUIREMENT = "hermes-agent==0.19.0"
WATCH_SECONDS = 0.05

Result = dict[str, Any]


@dataclass(frozen=True)
class Contestant:
    """One column of the table."""

    key: str  # "rival", "raw" or "ours"
    python: str
    pythonpath: str | None = None

    def run(self, job: str, config: dict[str, Any], *, home: Path, timeout: float, watch: Path | None = None) -> Result:
        """Run benchmarks.jobs.<job>; its answer, or {"error": why} after a failure or `timeout` seconds.

        With `watch`, the answer also has the peak size of the files in that directory while the job ran.
        """
        command = [
            self.python,
            "-m",
            f"benchmarks.jobs.{job}",
            json.dumps({"contestant": self.key, **config}),
        ]
        watcher = _Watcher(watch) if watch else None
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=self._environment(home),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,
        )
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            _kill_group(process)
            return {"error": f"no answer within {timeout:.0f} s"}
        except BaseException:
            _kill_group(process)
            raise
        finally:
            peaks = watcher.stop() if watcher else {}
        if process.returncode != 0:
            lines = err.strip().splitlines()
            return {"error": lines[-1][:200] if lines else f"exit status {process.returncode}"}
        return {**json.loads(out.strip().splitlines()[-1]), **peaks}

    def _environment(self, home: Path) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("HERMES_", "PYTHON"))}
        kept |= {"HERMES_HOME": str(home), "PYTHONHASHSEED": "0", "PYTHONIOENCODING": "utf-8"}
        if self.pythonpath:
            kept["PYTHONPATH"] = self.pythonpath
        return kept


def ours(python: str | None = None) -> Contestant:
    """The project's own store: from src/ if it is there, else as installed in the interpreter."""
    source = ROOT / "src"
    return Contestant("ours", python or sys.executable, str(source) if (source / "hermes_state.py").exists() else None)


def raw(python: str | None = None) -> Contestant:
    return Contestant("raw", python or sys.executable)


def _kill_group(process: subprocess.Popen[str]) -> None:
    """End the job and the processes it forked; they have a group of their own."""
    try:
        os.killpg(process.pid, 9)
    except ProcessLookupError:
        pass
    process.communicate()


class _Watcher:
    """Polls a directory's size in a thread: transcripts (JSON Lines) apart from all other files."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._done = threading.Event()
        self._peak_files = self._peak_all = 0
        self._thread = threading.Thread(target=self._poll, daemon=True)
        self._thread.start()

    def stop(self) -> dict[str, int]:
        self._done.set()
        self._thread.join()
        return {"peak_files_bytes": self._peak_files, "peak_all_bytes": self._peak_all}

    def _poll(self) -> None:
        while True:
            files, transcripts = directory_bytes(self._directory)
            self._peak_files = max(self._peak_files, files)
            self._peak_all = max(self._peak_all, files + transcripts)
            if self._done.wait(WATCH_SECONDS):
                return


def directory_bytes(directory: Path) -> tuple[int, int]:
    """(bytes of all files but transcripts, bytes of transcripts) below a directory."""
    files = transcripts = 0
    for where, _, names in os.walk(directory):
        for name in names:
            try:
                size = os.stat(os.path.join(where, name)).st_size
            except FileNotFoundError:
                continue
            if name.endswith(".jsonl"):
                transcripts += size
            else:
                files += size
    return files, transcripts
