"""Open an existing file of the current version, and close it again."""

from __future__ import annotations

from typing import Any

from benchmarks.jobs.common import Config, latencies, main, repeat
from benchmarks.jobs.stores import open_store


def opening(config: Config) -> dict[str, Any]:
    def once(_: None) -> None:
        store = open_store(config)
        if config["contestant"] == "raw":  # SQLite opens lazily; the others have read the schema by now
            store.db.execute("SELECT 1 FROM sessions LIMIT 1").fetchone()
        store.close()

    return latencies(repeat(once, [None], most=100, seconds=2.0))


if __name__ == "__main__":
    main(opening)
