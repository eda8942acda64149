"""One long-lived process appends messages, one call and one transaction each, onto a loaded store.

Besides the appends themselves it reports how fast they are when the index is brought up to date as well, so
that work put off is not work hidden, and whether every message is in the file.
"""

from __future__ import annotations

import time
from typing import Any

from benchmarks.jobs.common import Config, latencies, main, percentile, quiet_gc, sample
from benchmarks.jobs.processor import meter
from benchmarks.jobs.stores import open_store, plain_sql


def append(config: Config) -> dict[str, Any]:
    pairs = sample(config)
    before_all = _rows(config["store"])
    store = open_store(config)
    taken: list[float] = []
    own: list[float] = []  # processor time of the appending thread: waiting for others is not in it
    current = ""
    clock, thread_clock = time.perf_counter, time.thread_time
    with quiet_gc():
        store.recent(1)  # so that there is a connection to measure
        start, work = clock(), meter(config["store"])()
        for session, message in pairs:
            if session["id"] != current:
                current = session["id"]
                store.create(session)
            before, own_before = clock(), thread_clock()
            store.append(current, message)
            own.append(thread_clock() - own_before)
            taken.append(clock() - before)
        appended, worked = clock() - start, meter(config["store"])() - work
        store.catch_up()
        caught_up = clock() - start
    store.close()
    return {
        "messages": len(pairs),
        "per_second": len(pairs) / appended,
        "cpu_ms": worked / len(pairs) * 1e3,
        "cpu_p50_ms": percentile(own, 0.50) * 1e3,
        "per_second_indexed": len(pairs) / caught_up,
        "missing": before_all + len(pairs) - _rows(config["store"]),
        **latencies(taken),
    }


def _rows(where: str) -> int:
    with plain_sql(where) as ask:
        return int(ask("SELECT count(*) FROM messages")[0][0])


if __name__ == "__main__":
    main(append)
