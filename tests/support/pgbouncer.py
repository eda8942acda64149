"""PgBouncer for tests: a pooler in front of a PostgreSQL server, as many hosting providers put one there.

with pgbouncer(server, size=3) as pooler:              # transaction mode: a server connection serves one transaction
    SessionDB(url=pooler.url("database"))
"""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path

import psycopg

from tests.support.waiting import until

from .environments import program
from .ports import free_port
from .postgres import NOBODY, Cluster, server

_SETTINGS = """\
[databases]
* = host={host} port={port} user=postgres
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {listen}
unix_socket_dir =
auth_type = any
pool_mode = {mode}
default_pool_size = {size}
max_client_conn = 300
ignore_startup_parameters = {ignored}
log_connections = 0
log_disconnections = 0
admin_users = postgres
"""


class Pooler:
    """A running PgBouncer."""

    def __init__(self, port: int) -> None:
        self.port = port

    def url(self, database: str = "postgres", **more: str) -> str:
        """The URL of one of the server's databases, through the pooler."""
        asked = "&".join(f"{key}={value}" for key, value in more.items())
        return f"postgresql://postgres@127.0.0.1:{self.port}/{database}{f'?{asked}' if asked else ''}"


@contextmanager
def pgbouncer(
    server: Cluster, folder: Path, *, mode: str = "transaction", size: int = 3, ignored: str = "extra_float_digits"
) -> Iterator[Pooler]:
    """PgBouncer with `size` connections to each database; its files are in `folder`, which must be empty."""
    found = program("pgbouncer", "pgbouncer")
    port = free_port()
    settings = folder / "pgbouncer.ini"
    settings.write_text(
        _SETTINGS.format(host=server.folder, port=server.port, listen=port, mode=mode, size=size, ignored=ignored)
    )
    settings.chmod(0o644)
    as_nobody = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"] if os.getuid() == 0 else []
    with (folder / "pgbouncer.log").open("w") as log:
        process = subprocess.Popen([*as_nobody, found, str(settings)], cwd="/", stdout=log, stderr=log)
    try:
        pooler = Pooler(port)
        _wait_for(pooler, process, folder / "pgbouncer.log")
        yield pooler
    finally:
        process.terminate()
        process.wait(120)


def _wait_for(pooler: Pooler, process: subprocess.Popen[bytes], log: Path) -> None:
    def answers() -> bool:
        try:
            psycopg.connect(pooler.url("pgbouncer"), autocommit=True).close()
        except psycopg.OperationalError:
            return False
        return True

    until(answers, lambda: f"pgbouncer starts: {log.read_text()[-2000:]}", unless=lambda: process.poll() is not None)


class PooledStores:
    """Stores on the shared server behind a pooler of this process, each in a database of its own."""

    def __init__(self) -> None:
        self._server = server()
        self._databases: dict[str, str] = {}
        self._free: list[str] = []
        self._place = Path(tempfile.mkdtemp(prefix="hermes-pgbouncer-"))
        self._place.chmod(0o755)
        self._open = ExitStack()
        atexit.register(self._leave)
        self._pooler = self._open.enter_context(pgbouncer(self._server, self._place))

    def store(self, name: str) -> str:
        """The URL of the store of that name, an empty one if there is none yet."""
        if name not in self._databases:
            if self._free:
                self._databases[name] = self._free.pop()
            else:
                self._databases[name] = f"t{os.urandom(6).hex()}"
                self._server.sql(f"CREATE DATABASE {self._databases[name]}")
        return self._pooler.url(self._databases[name])

    def forget(self, name: str) -> None:
        """A store is not needed any more: emptied, it serves the next test."""
        database = self._databases.pop(name, None)
        if database is not None:
            self._server.empty("public", database)
            self._free.append(database)

    def _leave(self) -> None:
        self._open.close()
        for database in (*self._databases.values(), *self._free):
            self._server.sql(f"DROP DATABASE {database} WITH (FORCE)")
        shutil.rmtree(self._place, ignore_errors=True)


@cache
def pooled_stores() -> PooledStores:
    """The pooled stores of this process."""
    return PooledStores()
