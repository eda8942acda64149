"""What the bytes of the database file are spent on: pages by table and index."""

from __future__ import annotations

from typing import Any

from benchmarks.jobs.common import Config, main


def size(config: Config) -> dict[str, Any]:
    import apsw

    db = apsw.Connection(config["store"], flags=apsw.SQLITE_OPEN_READONLY)
    sql = "SELECT name, sum(pgsize) FROM dbstat GROUP BY name ORDER BY 2 DESC"
    parts = dict(db.execute(sql))
    free = db.pragma("freelist_count") * db.pragma("page_size")
    db.close()
    return {"parts": parts, "free": free}


if __name__ == "__main__":
    main(size)
