"""One process searches while another appends at a steady rate: what a user waits for an answer while others talk.

Asked are the queries of every class in turn. A rate of 0 is a quiet store.
"""

from __future__ import annotations

import json
import multiprocessing
import time
from itertools import cycle
from pathlib import Path
from typing import Any

from benchmarks.jobs.common import Config, main, percentile, quiet_gc, sample
from benchmarks.jobs.processor import meter
from benchmarks.jobs.stores import open_store

PAUSE = 0.02  # seconds between two searches


def searching(config: Config) -> dict[str, Any]:
    classes = json.loads(Path(config["queries"]).read_text(encoding="utf-8"))["queries"]
    queries = [query for some in zip(*classes.values(), strict=False) for query in some]
    context = multiprocessing.get_context("fork")
    begin, stop = context.Event(), context.Event()
    writer = context.Process(target=_append, args=(config, begin, stop)) if config["rate"] else None
    if writer is not None:
        writer.start()
    store = open_store(config)
    for query in queries[:20]:
        store.search(query)
    begin.set()
    taken: list[float] = []
    clock, end = time.perf_counter, time.perf_counter() + config["seconds"]
    work = meter(config["store"])()
    with quiet_gc():
        for query in cycle(queries):
            before = clock()
            if before > end:
                break
            store.search(query)
            taken.append(clock() - before)
            time.sleep(PAUSE)
    worked = meter(config["store"])() - work
    stop.set()
    if writer is not None:
        writer.join()
    store.close()
    return {
        "searches": len(taken),
        "p50_ms": percentile(taken, 0.5) * 1e3,
        "p99_ms": percentile(taken, 0.99) * 1e3,
        "cpu_ms": worked / len(taken) * 1e3,
    }


def _append(config: Config, begin: Any, stop: Any) -> None:
    """Messages at the rate that was asked for, into one session, until it is enough."""
    pairs = sample(config)
    store = open_store(config)
    session = {**pairs[0][0], "id": f"searched_{config['tag']}", "title": None, "parent_session_id": None}
    store.create(session)
    begin.wait(60)
    start = time.monotonic()
    for number, (_, message) in enumerate(cycle(pairs)):
        if stop.wait(max(0.0, start + number / config["rate"] - time.monotonic())):
            break
        store.append(session["id"], message)
    store.close()


if __name__ == "__main__":
    main(searching)
