"""Processor time of a job and of the server processes that work for it, and a server's WAL: what a busy machine does not
change much."""

from __future__ import annotations

import time
from collections.abc import Callable

from benchmarks.jobs.stores import plain_sql


def meter(where: str) -> Callable[[], float]:
    """A clock of processor seconds: this process's and, for a store on a server here, that of its connections (on Linux).

    Of connections there are now; one made later has worked for nobody else, so the next meter minus this one is right, too.
    """
    server = server_meter(where)
    return lambda: time.process_time() + server()


def server_meter(where: str) -> Callable[[], float]:
    """The same for the server's part alone; 0 for a file."""
    if not where.startswith("postgresql:"):
        return lambda: 0.0
    with plain_sql(where) as ask:
        pids = [row[0] for row in ask("SELECT pid FROM pg_stat_activity WHERE datname = current_database()"
                                      " AND application_name = 'hermes-sessions'")]  # fmt: skip
    return lambda: sum(map(_ran, pids))


def wal_position(where: str) -> float:
    """How many bytes a server has written to its log so far; 0 for a file."""
    if not where.startswith("postgresql:"):
        return 0.0
    with plain_sql(where) as ask:
        return float(ask("SELECT pg_current_wal_lsn() - '0/0'::pg_lsn")[0][0])


def _ran(pid: int) -> float:
    try:
        with open(f"/proc/{pid}/schedstat") as file:
            return int(file.read().split()[0]) / 1e9
    except OSError:
        return 0.0  # it has ended
