"""Search by class of query, in a fresh process: twenty hits with whatever snippet and context the API gives.

The first query of each class is asked once unmeasured; then every query of the class once, measured. What raw
SQLite's word index cannot answer at all (CJK, parts of words, questions) is left out for it.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from benchmarks.jobs.common import Config, main, percentile, quiet_gc
from benchmarks.jobs.processor import meter
from benchmarks.jobs.stores import open_store

NOT_FOR_RAW = {"cjk2", "cjk3plus", "infix_substring", "question"}


def search(config: Config) -> dict[str, Any]:
    classes = json.loads(Path(config["queries"]).read_text(encoding="utf-8"))["queries"]
    classes["question"] = json.loads(Path(config["questions"]).read_text(encoding="utf-8"))
    store = open_store(config)
    answer: dict[str, Any] = {}
    clock = time.perf_counter
    for name, queries in classes.items():
        if config["contestant"] == "raw" and name in NOT_FOR_RAW:
            continue
        store.search(queries[0])
        ran = meter(config["store"])
        taken: list[float] = []
        worked: list[float] = []
        hits = 0
        with quiet_gc():
            for query in queries:
                before, work = clock(), ran()
                found = store.search(query)
                taken.append(clock() - before)
                worked.append(ran() - work)
                hits += len(found)
        answer[name] = {
            "p50_ms": percentile(taken, 0.5) * 1e3,
            "longest_ms": max(taken) * 1e3,
            "cpu_ms": percentile(worked, 0.5) * 1e3,
            "hits": hits,
        }
    store.close()
    return {"classes": answer}


if __name__ == "__main__":
    main(search)
