"""Moves a store between plain and encrypted. An encrypted one has everything in its database.

The key file is written first and removed last, and a database itself shows whether it is encrypted: the one rename that
puts the other copy in its place is the move. What lies in files beside a plain store goes into the copy before that rename, or
comes out of the database before it, and is removed where it no longer belongs after it. Killed at any moment, the store opens
as before or as after, and the same call again finishes. No other process may have the database open meanwhile: the move holds
SQLite's exclusive lock on it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from hermes.errors import InvalidInput, StoreBusy, StoreCorrupt, StoreReadOnly
from hermes.home import companion, make_private, settled, sync_folder, write_whole
from hermes.store import keys
from hermes.store.engines.sqlite import connection as driver
from hermes.store.engines.sqlite import schema
from hermes.store.engines.sqlite.connection import Connection, as_ours, holder_of, is_busy
from hermes.store.records import codec
from hermes.store.records.attachments import DIGEST, Attachments
from hermes.store.transcripts.replay import file_name
from hermes.store.transcripts.writer import LOST, NOT_GATEWAY

Change = Callable[[Connection], None]
_FOLDERS = ("sessions", "attachments", "drafts")


def encrypt(database: Path, make_way: Callable[[], keys.Way]) -> list[Path]:
    """Encrypt a store, or finish that; calls `make_way()` to wrap a new key if it has none. → readable copies that stay."""
    driver.sqlcipher()
    keys.aead(bytes(32))  # a missing library is an error before anything is done
    database = settled(database)
    _open_once(database, "all")
    with _exclusively(database) as connection:
        _refuse(database, connection)
        redundant, copies = list(_redundant(database, connection)), _copies(database)
        vault = keys.vault_of(database) or keys.save(database, keys.new_vault(make_way()))
        if driver.is_plain(database):
            _replace(database, connection, vault.key, lambda copy: _move_inside(database, copy))
        else:
            _move_inside(database, connection)
        for path in redundant:
            _erase(path)
        for path in _below(database):
            with suppress(OSError):  # a file, or a folder that is not empty
                path.rmdir()
    return [path for path in copies if path.is_file()]


def decrypt(database: Path, transcripts: str = "all") -> None:
    """Make a store plain again, or finish that; `transcripts` as of SessionDB. The key file goes last."""
    database = settled(database)
    vault = _vault(database)
    _open_once(database, transcripts)
    with _exclusively(database) as connection:
        if not driver.is_plain(database):
            _move_outside(database, connection)
            if transcripts != "off":
                make_private(companion(database, "sessions"))  # where the next opening writes them
            _replace(database, connection, None, lambda copy: _drop_inside(copy, transcripts))
        keys.remove(database)
        sync_folder(database.parent)
    keys.drop_entry(vault.way)
    _open_once(database, transcripts)


def rekey(database: Path, make_way: Callable[[], keys.Way]) -> None:
    """Wrap the data key in another way: other processes may go on. Copies of the old key file still open the old way."""
    database = settled(database)
    vault = _vault(database)
    keys.save(database, keys.Vault(vault.key, make_way()))
    keys.drop_entry(vault.way)


def _vault(database: Path) -> keys.Vault:
    vault = keys.vault_of(database)
    if vault is None:
        raise InvalidInput(f"{database} is not encrypted; `hermes sessions encrypt` encrypts it")
    return vault


def _open_once(database: Path, transcripts: str) -> None:
    """Make the file if there is none, bring it to this format, and write the transcripts that it lacks."""
    from hermes.store.api.session_db import SessionDB

    with SessionDB(database, transcripts=transcripts) as db:
        if db.read_only:
            raise StoreReadOnly(f"{database} can only be read; it is left as it is")


# ----------------------------------------------------------------------------------------- the database


@contextmanager
def _exclusively(database: Path) -> Iterator[Connection]:
    """The database, held so that no other connection can open it: this fails while another has it open."""
    connection = driver.connect(database, key=driver.key_of(database), cipher=True)
    try:
        for setting in ("temp_store=MEMORY", "cache_size=-24000", "secure_delete=ON"):
            connection.execute(f"PRAGMA {setting}")
        until = time.monotonic() + 5
        while True:
            try:
                connection.execute("PRAGMA locking_mode=exclusive")
                # "delete" is answered when no other process has it open.
                if connection.execute("PRAGMA journal_mode=delete").fetchone()[0] == "delete":
                    connection.execute("BEGIN EXCLUSIVE")
                    connection.execute("COMMIT")
                    break
            except driver.Error as error:
                if not is_busy(error):
                    raise
            if time.monotonic() > until:
                raise StoreBusy(f"{database} is open in another process{holder_of(database)}; end it, then try again")
            time.sleep(0.05)
        yield connection
    except driver.Failure as error:
        raise as_ours(error, database) from error
    finally:
        connection.close()


def _replace(database: Path, connection: Connection, key: keys.DataKey | None, change: Change) -> None:
    """Put a changed copy with this key in the place of the database, and overwrite the file that was there."""
    part = database.with_name(database.name + "-moving")
    _erase(part)
    os.close(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    secret = None if key is None else key.for_database()
    driver.copy_database(connection, part, secret)
    copy = driver.connect(part, key=secret)
    try:
        for setting in ("journal_mode=OFF", "synchronous=OFF", "temp_store=MEMORY"):
            copy.execute(f"PRAGMA {setting}").fetchall()
        change(copy)
        problem = next(str(row[0]) for row in copy.execute("PRAGMA integrity_check(1)"))
    finally:
        copy.close()
    if problem != "ok":
        _erase(part)
        raise StoreCorrupt(f"a copy of {database} is not sound ({problem}); `hermes sessions check` looks for damage")
    old = os.open(database, os.O_RDWR | os.O_CLOEXEC)
    try:
        with part.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(part, database)
        sync_folder(database.parent)
        # A process that waits for this lock has the old file open, and nothing must be written there any more: without
        # its first page it is no database, so that process opens the new file.
        _overwrite(old)
    finally:
        os.close(old)


def _refuse(database: Path, connection: Connection) -> None:
    """InvalidInput while files beside the store have something that its database lacks."""
    if connection.execute("SELECT 1 FROM state_meta WHERE key = ?", (LOST,)).fetchone() is not None:
        raise InvalidInput(f"{database} lost its newest messages; `hermes sessions rebuild` brings them back first")
    for one in database.parent.glob("*/unkept/*.json") if database.name == "state.db" else ():
        raise InvalidInput(f"{one.parent} has messages that the record lacks; run the gateway until it has them")


# ----------------------------------------------------------------------------------------- files beside it


def _move_inside(database: Path, copy: Connection) -> None:
    """Put attachments and drafts into the tables of an encrypted database, which has no transcripts."""
    for statement in schema.INSIDE:
        copy.execute(statement)
    for path in companion(database, "attachments").glob("*/*"):
        if DIGEST.fullmatch(path.name):
            copy.execute("INSERT OR IGNORE INTO attachment_data VALUES(?, ?)", (path.name, path.read_bytes()))
    for path in companion(database, "drafts").glob("*"):
        copy.execute("INSERT OR IGNORE INTO drafts VALUES(?, ?)", (path.name, path.read_bytes()))
    copy.execute("UPDATE sessions SET transcript = NULL")


def _move_outside(database: Path, connection: Connection) -> None:
    """The inverse of _move_inside(): the attachments and drafts in their files."""
    files, drafts = Attachments(companion(database, "attachments")), companion(database, "drafts")
    for (data,) in connection.execute("SELECT data FROM attachment_data"):
        files.keep(data)
    for name, data in connection.execute("SELECT name, data FROM drafts"):
        make_private(drafts)
        write_whole(drafts / name, data)


def _drop_inside(copy: Connection, transcripts: str) -> None:
    """Drop the tables of an encrypted database; the next opening writes the transcripts that are wanted."""
    for table in ("attachment_data", "drafts"):
        copy.execute(f"DROP TABLE {table}")
    wanted = {"all": "1", "gateway": f"source NOT IN ({', '.join(repr(one) for one in sorted(NOT_GATEWAY))})"}
    copy.execute(f"UPDATE sessions SET transcript = 0 WHERE {wanted.get(transcripts, '0')}")


def _redundant(database: Path, connection: Connection) -> Iterator[Path]:
    """The readable files whose content an encrypted database has, or that are not kept beside one."""
    sessions, attachments, drafts = (companion(database, what) for what in _FOLDERS)
    own = {file_name(codec.restored(row[0])) for row in connection.execute("SELECT id FROM sessions")}
    for path in _below(database):
        stored = attachments in path.parents and DIGEST.search(path.name) is not None
        is_transcript = path.parent == sessions and path.name in {*own, "sessions.json"}
        if stored or is_transcript or (path.is_file() and path.parent == drafts):
            yield path
    for end in ("history", "cron/*/*.md") if database.name == "state.db" else ():
        yield from database.parent.glob(end)


def _below(database: Path) -> list[Path]:
    """The files and folders in the folders of a plain store, the innermost first."""
    places = [companion(database, what) for what in _FOLDERS]
    return sorted((one for place in places for one in (place, *place.rglob("*")) if one.exists()), reverse=True)


def _copies(database: Path) -> list[Path]:
    """The readable files that stay: other files in the store's folders, and copies beside it."""
    copies = filter(driver.is_plain, database.parent.glob(f"{database.name}.*"))
    return sorted({*_below(database), *copies})


def _erase(path: Path) -> None:
    """Remove a file, and overwrite it (where the file system writes in place, zeros replace the text)."""
    if path.is_file() and not path.is_symlink():
        with path.open("r+b") as file:
            _overwrite(file.fileno())
        path.unlink()


def _overwrite(handle: int) -> None:
    found, piece = os.fstat(handle), 1 << 20
    size = found.st_size if found.st_nlink < 2 else 0  # a copy made of hard links stays as it is
    for at in range(0, size, piece):
        os.pwrite(handle, bytes(min(piece, size - at)), at)
    os.fsync(handle)
