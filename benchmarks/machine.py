"""One line on what the figures were measured with."""

from __future__ import annotations

import os
import platform
import subprocess

from benchmarks.contestants import ROOT, Contestant
from benchmarks.disk import Disk

_VERSIONS = """
import sqlite3, sys
print("Python", sys.version.split()[0] + ",", "SQLite", sqlite3.sqlite_version)
"""


def line(ours: Contestant, rival: Contestant | None, disk: Disk) -> str:
    """Cores, memory, disk, versions and the commit measured."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    parts = [f"{cores} cores", f"{memory:.0f} GB", platform.system() + " " + platform.release().split("-")[0]]
    parts.append(f"fsync of 4 KB {disk.best_ms:.2f} ms at rest, at most {disk.worst_ms:.2f} ms before a turn")
    parts.append(f"ours and raw: {_versions(ours)}")
    if rival:
        parts.append(f"rival: {_versions(rival)}")
    parts.append(f"commit {_commit()}")
    return "Machine: " + " · ".join(parts)


def _versions(contestant: Contestant) -> str:
    command = [contestant.python, "-c", _VERSIONS]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip() or "unknown"


def _commit() -> str:
    def git(*arguments: str) -> str:
        command = ["git", "-C", str(ROOT), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()

    try:
        commit = git("rev-parse", "--short=10", "HEAD") or "none"
        return commit + (" + changes" if git("status", "--porcelain", "--", "src") else "")
    except OSError:
        return "unknown"
