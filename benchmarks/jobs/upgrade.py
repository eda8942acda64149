"""Open a file of schema version 6 and see when one can work with it: append and list, search, everything
indexed.

How large the files beside it grow meanwhile is watched from outside (contestants.py).
"""

from __future__ import annotations

import time
from typing import Any

from benchmarks.jobs.common import Config, main
from benchmarks.jobs.stores import open_store


def upgrade(config: Config) -> dict[str, Any]:
    start = time.perf_counter()
    store = open_store(config)
    opened = time.perf_counter() - start
    store.append(config["session"], {"role": "user", "content": "the first words after the upgrade"})
    listed = len(store.recent(20))
    usable = time.perf_counter() - start
    hits = len(store.search(config["query"], limit=100))
    searched = time.perf_counter() - start
    store.catch_up()
    caught_up = time.perf_counter() - start
    hits_after = len(store.search(config["query"], limit=100))
    store.close()
    return {
        "open_seconds": opened,
        "usable_seconds": usable,
        "first_search_seconds": searched - usable,
        "caught_up_seconds": caught_up,
        "listed": listed,
        "hits": hits,
        "hits_after": hits_after,
    }


if __name__ == "__main__":
    main(upgrade)
