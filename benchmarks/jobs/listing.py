"""The twenty sessions that were active last, with preview and last activity."""

from __future__ import annotations

from typing import Any

from benchmarks.jobs.common import Config, latencies, main, repeat
from benchmarks.jobs.processor import meter
from benchmarks.jobs.stores import open_store


def listing(config: Config) -> dict[str, Any]:
    store = open_store(config)
    rows = len(store.recent(20))
    ran = meter(config["store"])
    work = ran()
    taken = repeat(store.recent, [20], most=200, seconds=2.0)
    each = (ran() - work) / (len(taken) + 1)
    store.close()
    return {"rows": rows, "cpu_ms": each * 1e3, **latencies(taken)}


if __name__ == "__main__":
    main(listing)
