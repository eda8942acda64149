"""The twenty sessions that were active last, with preview and last activity."""

from __future__ import annotations

from typing import Any

from benchmarks.jobs.common import Config, latencies, main, repeat
from benchmarks.jobs.stores import open_store


def listing(config: Config) -> dict[str, Any]:
    store = open_store(config)
    rows = len(store.recent(20))
    taken = repeat(store.recent, [20], most=200, seconds=2.0)
    store.close()
    return {"rows": rows, **latencies(taken)}


if __name__ == "__main__":
    main(listing)
