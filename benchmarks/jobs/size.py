"""What the bytes of the database file are spent on: pages by table and index."""

from __future__ import annotations

from typing import Any

from benchmarks.jobs.common import Config, main


def size(config: Config) -> dict[str, Any]:
    import sqlite3

    db = sqlite3.connect(config["store"])
    sql = "SELECT name, sum(pgsize) FROM dbstat GROUP BY name ORDER BY 2 DESC"
    parts = dict(db.execute(sql))
    free = db.execute("PRAGMA freelist_count").fetchone()[0] * db.execute("PRAGMA page_size").fetchone()[0]
    db.close()
    return {"parts": parts, "free": free}


if __name__ == "__main__":
    main(size)
