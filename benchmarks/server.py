"""A PostgreSQL 18 server for the benchmarks: safe (fsync and synchronous_commit on), with sensible memory, in the cache directory.

A loaded store is a database of it, kept from run to run like the files of the others; what is written to is a copy.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.cache import BuildError, Cache
from benchmarks.contestants import Contestant
from tests.support.postgres import Cluster

SETTINGS = {
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    "shared_buffers": "2GB",
    "effective_cache_size": "12GB",
    "work_mem": "32MB",
    "maintenance_work_mem": "512MB",
    "max_wal_size": "8GB",
    "checkpoint_timeout": "15min",
    "random_page_cost": "1.1",  # there are no disks that turn any more
    "max_connections": "100",
}
LOAD_TIMEOUT = 4 * 3600.0


class Server:
    """The server and its databases."""

    def __init__(self, cache: Cache, contestant: Contestant, say: Callable[[str], None]) -> None:
        self._cache, self._contestant, self._say = cache, contestant, say
        self._cluster = Cluster("18", cache.directory / "postgres", SETTINGS)

    def store(self, size: str, source: Path) -> str:
        """The URL of a loaded store of that size, copied with COPY from the SQLite one the first time."""
        name = f"loaded_{size.lower()}"
        stamp = self._cluster.folder / f"{name}.json"
        if not stamp.exists():
            self._say(f"copying {source.parent.name} to PostgreSQL; this is done once")
            self._cluster.sql(f"DROP DATABASE IF EXISTS {name}", f"CREATE DATABASE {name}")
            config = {"url": self._cluster.url(name), "from": str(source)}
            answer = self._contestant.run("pg_copy", config, home=self._cache.home, timeout=LOAD_TIMEOUT)
            if "error" in answer:
                raise BuildError(f"{name} could not be built: {answer['error']}")
            stamp.write_text(json.dumps(answer))
        return self._cluster.url(name)

    def sizes(self, size: str) -> dict[str, int]:
        """Bytes of each table (with what is stored aside) and each index of a loaded store."""
        rows = self._cluster.sql(
            "SELECT relname::text, CASE relkind WHEN 'r' THEN pg_table_size(oid) ELSE pg_relation_size(oid) END FROM pg_class"
            " WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'i') ORDER BY 2 DESC",
            database=f"loaded_{size.lower()}",
        )
        return {name: int(size) for name, size in rows}

    def page_images(self, first: float, last: float) -> int:
        """Bytes of whole pages in the log between two positions: each page's first change after a checkpoint."""
        start, end = (f"{int(one) >> 32:X}/{int(one) & 0xFFFFFFFF:X}" for one in (first, last))
        told = self._cluster.run(
            "pg_waldump", "--stats", "-p", str(self._cluster.data / "pg_wal"), "-s", start, "-e", end, check=False
        )
        (total,) = (line for line in told.stdout.splitlines() if line.startswith("Total"))
        return int(re.sub(r"\[.*?\]", "", total).split()[3])  # records, their bytes, images, all

    @contextmanager
    def copy(self, size: str) -> Iterator[str]:
        """A copy of a loaded store to write to."""
        self._cluster.sql("DROP DATABASE IF EXISTS written", f"CREATE DATABASE written TEMPLATE loaded_{size.lower()}")
        self._cluster.sql("CHECKPOINT")
        try:
            yield self._cluster.url("written")
        finally:
            self._cluster.sql("DROP DATABASE IF EXISTS written WITH (FORCE)")

    def __enter__(self) -> Server:
        if not (self._cluster.data / "PG_VERSION").exists():
            self._cluster.make()
        self._cluster.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._cluster.stop()
