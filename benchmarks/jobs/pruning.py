"""One process prunes half of the store while others keep appending; what the others feel is measured.

A write by the others that raises counts as failed; the longest one says how long the pruning kept the lock.
"""

from __future__ import annotations

import multiprocessing
import sqlite3
import time
from typing import Any

from benchmarks.jobs.common import Config, latencies, main, quiet_gc, sample
from benchmarks.jobs.stores import SessionStore, open_store

PAUSE_SECONDS = 0.02
LEAD_SECONDS = 0.5  # the others write for this long before the pruning starts and after it has ended


def pruning(config: Config) -> dict[str, Any]:
    messages = [message for _, message in sample(config)]
    context = multiprocessing.get_context("fork")
    barrier, stop, answers = context.Barrier(config["others"] + 1), context.Event(), context.Queue()
    processes = []
    for number in range(config["others"]):
        arguments = (config, number, messages, barrier, stop, answers)
        processes.append(context.Process(target=_other, args=arguments))
        processes[-1].start()
    store = open_store(config)
    assert isinstance(store, SessionStore)
    barrier.wait(timeout=60)
    time.sleep(LEAD_SECONDS)
    start = time.perf_counter()
    pruned = store.prune(config["older_than_days"])
    seconds = time.perf_counter() - start
    time.sleep(LEAD_SECONDS)
    stop.set()
    found = [answers.get(timeout=config["timeout"]) for _ in processes]
    for process in processes:
        process.join()
    store.close()
    failures = [failure for answer in found for failure in answer["failures"]]
    return {
        "pruned": pruned,
        "prune_seconds": seconds,
        "writes": sum(len(answer["taken"]) for answer in found),
        "failed": len(failures),
        "failure": failures[0] if failures else None,
        "lost": sum(answer["acknowledged"] for answer in found) - _written(config["store"]),
        **latencies([seconds for answer in found for seconds in answer["taken"]]),
    }


def _other(config: Config, number: int, messages: list[dict[str, Any]], barrier: Any, stop: Any, answers: Any) -> None:
    store = open_store(config)
    session_id = f"other_{number}"
    now = time.time()
    store.create({"id": session_id, "source": "cli", "started_at": now, "title": None, "messages": []})
    taken: list[float] = []
    failures: list[str] = []
    barrier.wait(timeout=60)
    with quiet_gc():
        while not stop.is_set():
            message = {**messages[len(taken) % len(messages)], "timestamp": time.time()}
            before = time.perf_counter()
            try:
                store.append(session_id, message)
            except Exception as error:  # a failed write is a result here, not an accident
                failures.append(f"{type(error).__name__}: {error}"[:200])
            taken.append(time.perf_counter() - before)
            time.sleep(PAUSE_SECONDS)
    store.close()
    answers.put({"taken": taken, "failures": failures, "acknowledged": len(taken) - len(failures)})


def _written(path: str) -> int:
    db = sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=30)
    try:
        sql = "SELECT count(*) FROM messages WHERE session_id LIKE 'other\\_%' ESCAPE '\\'"
        return int(db.execute(sql).fetchone()[0])
    finally:
        db.close()


if __name__ == "__main__":
    main(pruning)
