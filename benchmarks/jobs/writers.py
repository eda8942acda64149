"""Eight processes append to one store at the same time, each to a session of its own.

Afterwards plain SQL looks for what the promise is about: every acknowledged message there, once, in order.
"""

from __future__ import annotations

import multiprocessing
import time
from typing import Any

from benchmarks.jobs.common import Config, latencies, main, quiet_gc, sample
from benchmarks.jobs.processor import wal_position
from benchmarks.jobs.stores import open_store, plain_sql

FIRST_TIMESTAMP = 1_770_000_000.0


def writers(config: Config) -> dict[str, Any]:
    pairs = sample(config)
    share = len(pairs) // config["writers"]
    context = multiprocessing.get_context("fork")
    barrier, answers = context.Barrier(config["writers"] + 1), context.Queue()
    processes = []
    for number in range(config["writers"]):
        mine = pairs[number * share : (number + 1) * share]
        session = {
            **mine[0][0],
            "id": f"writer_{config['tag']}_{number}",
            "title": None,
            "parent_session_id": None,
        }
        arguments = (config, session, [message for _, message in mine], barrier, answers)
        processes.append(context.Process(target=_writer, args=arguments))
        processes[-1].start()
    log = wal_position(config["store"])
    barrier.wait(timeout=60)
    start = time.perf_counter()
    found = [answers.get(timeout=config["timeout"]) for _ in processes]
    for process in processes:
        process.join()
    store = open_store(config)
    store.catch_up()
    store.close()
    caught_up = time.perf_counter() - start
    taken = [seconds for answer in found for seconds in answer["taken"]]
    failures = [failure for answer in found for failure in answer["failures"]]
    logged = wal_position(config["store"])
    return {
        "messages": len(taken),
        "per_second": len(taken) / (max(answer["end"] for answer in found) - start),
        "per_second_indexed": len(taken) / caught_up,
        "wal_kb": (logged - log) / len(taken) / 1e3 or None,
        "wal": [log, logged],
        "failed": len(failures),
        "failure": failures[0] if failures else None,
        **_verify(config["store"], found),
        **latencies(taken),
    }


def _writer(
    config: Config, session: dict[str, Any], messages: list[dict[str, Any]], barrier: Any, answers: Any
) -> None:
    store = open_store(config)
    store.create(session)
    taken: list[float] = []
    stamps: list[float] = []
    failures: list[str] = []
    clock = time.perf_counter
    barrier.wait(timeout=60)
    with quiet_gc():
        for number, message in enumerate(messages):
            stamp = FIRST_TIMESTAMP + number
            before = clock()
            try:
                store.append(session["id"], {**message, "timestamp": stamp})
            except Exception as error:  # a failed write is a result here, not an accident
                failures.append(f"{type(error).__name__}: {error}"[:200])
            else:
                stamps.append(stamp)
            taken.append(clock() - before)
        end = clock()
    store.close()
    answers.put({"session": session["id"], "taken": taken, "stamps": stamps, "failures": failures, "end": end})


def _verify(where: str, found: list[dict[str, Any]]) -> dict[str, int]:
    lost = doubled = disordered = 0
    with plain_sql(where) as ask:
        for answer in found:
            rows = ask("SELECT timestamp FROM messages WHERE session_id = ? ORDER BY id", answer["session"])
            there = [row[0] for row in rows]
            lost += len(set(answer["stamps"]) - set(there))
            doubled += len(there) - len(set(there))
            disordered += there != sorted(there)
    return {"lost": lost, "doubled": doubled, "disordered": disordered}


if __name__ == "__main__":
    main(writers)
