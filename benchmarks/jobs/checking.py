"""`check` of a loaded store beside SQLite's own integrity check of the same file: processor time of each, in turns.

The job works on a copy of its own: it makes the store sound first."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.jobs.common import Config, main, quiet_gc

TURNS = 5


def checking(config: Config) -> dict[str, Any]:
    import sqlite3

    from hermes_state import SessionDB

    path = Path(config["store"])
    with SessionDB(db_path=path) as db:
        db.repair()  # the corpus's own times were put in with SQL: the transcripts have others
        raw = sqlite3.connect(path)
        integrity: list[float] = []
        check: list[float] = []
        with quiet_gc():
            for _ in range(TURNS):
                integrity.append(_processor(lambda: raw.execute("PRAGMA integrity_check").fetchall()))
                check.append(_processor(db.check))
        raw.close()
        found, messages = len(db.check()), db.message_count()
    return {"integrity_ms": min(integrity) * 1e3, "check_ms": min(check) * 1e3, "found": found, "messages": messages}


def _processor(call: Callable[[], Any]) -> float:
    start = time.process_time()
    call()
    return time.process_time() - start


if __name__ == "__main__":
    main(checking)
