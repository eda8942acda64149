"""Every session with its messages as JSON Lines into a file: the time, and the memory it took."""

from __future__ import annotations

import os
import time
from typing import Any

from benchmarks.jobs.common import Config, main
from benchmarks.jobs.stores import open_store


def export(config: Config) -> dict[str, Any]:
    store = open_store(config)
    start = time.perf_counter()
    with open(config["out"], "wb") as out:
        count = store.export(out)
    seconds = time.perf_counter() - start
    store.close()
    size = os.path.getsize(config["out"])
    os.unlink(config["out"])
    return {"sessions": count, "seconds": seconds, "bytes": size}


if __name__ == "__main__":
    main(export)
