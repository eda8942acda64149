"""Fill an empty store with the whole corpus, message by message, by the contestant's own calls.

The store it leaves is cached and the other jobs work on it or on copies. The calls stamp sessions with the
time of loading, so the times of the corpus are put back afterwards by plain SQL; listing, chains and pruning
then see what a real file of that age has.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterable, Iterator
from typing import Any

from benchmarks import corpus
from benchmarks.jobs.common import Config, latencies, main, sessions
from benchmarks.jobs.stores import RawStore, SessionStore, open_store


def load(config: Config) -> dict[str, Any]:
    store = open_store(config)
    text = [0]
    started = time.perf_counter()
    taken: list[float] = []
    if isinstance(store, RawStore):
        count = store.load(_weighed(config, text))
    else:
        times, taken = _append_all(store, _weighed(config, text))
        count = len(taken)
    appended = time.perf_counter() - started
    store.catch_up()
    store.close()
    total = time.perf_counter() - started
    if not isinstance(store, RawStore):
        _put_back_times(config["store"], times)
    return {
        "messages": count,
        "text_bytes": text[0],
        "seconds": total,
        "append_seconds": appended,
        **latencies(taken),
    }


def _weighed(config: Config, text: list[int]) -> Iterator[dict[str, Any]]:
    """The sessions, their text added up on the way: a corpus made on the way is read only once."""
    for session in sessions(config):
        text[0] += sum(corpus.raw_bytes(message) for message in session["messages"])
        yield session


def _append_all(store: SessionStore, source: Iterable[dict[str, Any]]) -> tuple[list[tuple[Any, ...]], list[float]]:
    times, taken = [], []
    clock = time.perf_counter
    for session in source:
        store.create(session)
        for message in session["messages"]:
            before = clock()
            store.append(session["id"], message)
            taken.append(clock() - before)
        store.finish(session)
        times.append((session["started_at"], session["ended_at"], session["id"]))
    return times, taken


def _put_back_times(path: str, times: list[tuple[Any, ...]]) -> None:
    db = sqlite3.connect(path, timeout=30)
    with db:
        db.executemany("UPDATE sessions SET started_at = ?, ended_at = ? WHERE id = ?", times)
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    db.close()


if __name__ == "__main__":
    main(load)
