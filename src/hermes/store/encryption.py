"""Moves a store between plain and encrypted, or to a new data key.

The key file is written first and removed last, and every reader tells by a file itself whether it is encrypted: so each
file is replaced by itself, in one rename, after its copy was read back and compared. Killed at any moment, the store can be
opened as before, and the next `encrypt`, `decrypt` or `rekey` continues. No other process may have the database open meanwhile:
the move holds SQLite's exclusive lock on it.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import apsw

from hermes.errors import HermesError, InvalidInput, MissingExtra, StoreBusy, StoreCorrupt, StoreError
from hermes.home import companion, key_file, settled
from hermes.store import drafts, encryption_keys, sealed_files
from hermes.store.engines.sqlite import cipher, locks
from hermes.store.engines.sqlite.engine import SqliteEngine
from hermes.store.engines.sqlite.error_mapping import as_ours, from_os
from hermes.store.engines.sqlite.file_identity import holder_of
from hermes.whole_files import sync_folder

Report = Callable[[int, int], None]  # files done, of all
WAIT_SECONDS = 5.0
_MOVING = "-moving"  # the copy of a database that is being made
_PIECE = 1 << 16  # bytes of a transcript in one piece
_SQLITE = b"SQLite format 3\0"


@dataclass(slots=True)
class Converted:
    """What was done: how many files, how many messages the database has, and which files could not be moved."""

    files: int = 0
    messages: int = 0
    left: list[str] = field(default_factory=list)


def encrypt(database: Path, make_way: Callable[[], encryption_keys.Way], report: Report | None = None) -> Converted:
    """Encrypt a store, or go on with it. `make_way` is asked how the key is to be wrapped, if there is none yet."""
    _require_libraries()
    if not settled(database).exists():
        SqliteEngine(settled(database)).close()  # a new store, encrypted from its beginning
    database = _existing(database)
    with _alone(database) as connection:
        vault = encryption_keys.vault_of(database)
        if vault is None:
            vault = encryption_keys.new_vault(make_way())
            encryption_keys.save(database, vault)
        elif vault.state == encryption_keys.DECRYPTING:
            vault = vault.changed(state=encryption_keys.ENCRYPTING)
            encryption_keys.save(database, vault)
        moved = _move(database, connection, vault.current, report)
        encryption_keys.save(database, vault.changed(state=encryption_keys.ENCRYPTED, keys=(vault.current,)))
    return moved


def decrypt(database: Path, report: Report | None = None) -> Converted:
    """Make a store plain again, or go on with it; the key file goes last."""
    database = _existing(database)
    with _alone(database) as connection:
        vault = encryption_keys.vault_of(database)
        if vault is None:
            raise InvalidInput(f"{database} is not encrypted")
        encryption_keys.save(database, vault.changed(state=encryption_keys.DECRYPTING))
        moved = _move(database, connection, None, report)
        if moved.left:
            raise StoreError(f"these files can't be decrypted, so the key file stays: {', '.join(moved.left)}")
        encryption_keys.remove(database)
        sync_folder(database.parent)
    encryption_keys.drop_entry(vault.way)
    return moved


def rewrap(database: Path, make_way: Callable[[], encryption_keys.Way]) -> None:
    """Wrap the same data key in another way: other processes may go on. Copies of the old key file still open the old way."""
    database = _existing(database)
    vault = encryption_keys.vault_of(database)
    if vault is None:
        raise InvalidInput(f"{database} is not encrypted; `hermes sessions encrypt` encrypts it")
    encryption_keys.save(database, vault.changed(way=make_way()))
    encryption_keys.drop_entry(vault.way)


def rekey(
    database: Path, make_way: Callable[[], encryption_keys.Way] | None = None, report: Report | None = None
) -> Converted:
    """Encrypt everything again with a new data key, or go on with it; `make_way` wraps it in another way as well."""
    database = _existing(database)
    with _alone(database) as connection:
        vault = encryption_keys.vault_of(database)
        if vault is None or vault.state in (encryption_keys.ENCRYPTING, encryption_keys.DECRYPTING):
            raise InvalidInput(f"{database} is not encrypted; `hermes sessions encrypt` encrypts it")
        before = vault.way
        if make_way is not None:
            vault = vault.changed(way=make_way())
        if vault.state != encryption_keys.REKEYING:
            vault = vault.changed(state=encryption_keys.REKEYING, keys=(encryption_keys.DataKey.new(), *vault.keys))
        encryption_keys.save(database, vault)
        moved = _move(database, connection, vault.current, report)
        if moved.left:
            raise StoreError(f"these files can't be read, so the old key stays as well: {', '.join(moved.left)}")
        encryption_keys.save(database, vault.changed(state=encryption_keys.ENCRYPTED, keys=(vault.current,)))
    if make_way is not None:
        encryption_keys.drop_entry(before)
    return moved


def _existing(database: Path) -> Path:
    database = settled(database)
    if not database.is_file():
        raise InvalidInput(f"{database} does not exist; there is nothing to encrypt or decrypt")
    return database


def _require_libraries() -> None:
    from importlib.util import find_spec

    if find_spec("argon2") is None or find_spec("cryptography") is None:
        raise MissingExtra("encryption", "encryption")
    if not cipher.IS_HERE:
        raise cipher.NoCipher("encryption needs SQLite3 Multiple Ciphers: pip install --force-reinstall apsw-sqlite3mc")


# ----------------------------------------------------------------------------------------- the database


@contextmanager
def _alone(database: Path) -> Iterator[apsw.Connection]:
    """The database, held so that no other connection can open it: this fails while another has it open."""
    try:
        connection = locks.connect(str(database), flags=apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_URI)
    except apsw.Error as error:
        raise as_ours(error, database, None) from error
    try:
        connection.set_busy_timeout(1000)
        connection.execute("PRAGMA temp_store=MEMORY; PRAGMA cache_size=-24000; PRAGMA secure_delete=ON")
        until = time.monotonic() + WAIT_SECONDS
        while True:
            try:
                connection.execute("PRAGMA locking_mode=EXCLUSIVE").fetchall()
                connection.execute(
                    "PRAGMA journal_mode=DELETE"
                ).fetchall()  # needs to be the only one, and moves the WAL
                if connection.pragma("journal_mode") != "delete":
                    raise apsw.BusyError
                connection.execute("BEGIN EXCLUSIVE; COMMIT")
                break
            except (apsw.BusyError, apsw.LockedError):
                if time.monotonic() > until:
                    raise StoreBusy(
                        f"{database} is open in another process{holder_of(database)}; end it, then try again"
                    ) from None
                time.sleep(0.05)
        yield connection
    except (apsw.Error, OSError) as error:
        raise as_ours(error, database, connection) from error
    finally:
        connection.close()
        locks.tidy()


def _move(
    database: Path, connection: apsw.Connection, key: encryption_keys.DataKey | None, report: Report | None
) -> Converted:
    """Bring every file of the store to this key (None: plain)."""
    moved = Converted(messages=_counts(connection).get("messages", 0))
    _tidy_up(database, sealing=key is not None)
    files = list(_files(database))
    copies = list(_database_copies(database)) if key is not None else []
    if key is not None:  # what is sealed already has the key of its copy
        files += [(path, kind) for path, kind in _files_of_copies(database) if sealed_files.key_id(path) is None]
    everything = 1 + len(copies) + len(files)

    def told(done: int) -> None:
        if report is not None:
            report(done, everything)

    if not _has_key(database, key):
        _replace_database(database, connection, key)
        moved.files += 1
    told(1)
    for number, copy in enumerate(copies, 2):
        _encrypt_copy(database, copy, moved)
        told(number)
    for number, (path, kind) in enumerate(files, 2 + len(copies)):
        try:
            moved.files += _replaced(path, kind, key)
        except (sealed_files.DamagedFile, HermesError) as error:
            moved.left.append(f"{path} ({error})")
        except FileNotFoundError:
            pass
        told(number)
    return moved


def _has_key(database: Path, key: encryption_keys.DataKey | None) -> bool:
    if cipher.is_plain(database):
        return key is None
    vault = encryption_keys.vault_of(database)
    return vault is not None and key is not None and cipher.key_of(database, vault) == key


def _counts(connection: apsw.Connection) -> dict[str, int]:
    names = connection.execute(
        "SELECT name FROM sqlite_master WHERE type = 'table' AND sql NOT LIKE 'CREATE VIRTUAL%' ORDER BY name"
    ).fetchall()
    return {
        str(name): sum(int(number) for (number,) in connection.execute(f'SELECT count(*) FROM "{name}"'))
        for (name,) in names
    }


def _replace_database(database: Path, connection: apsw.Connection, key: encryption_keys.DataKey | None) -> None:
    """Copy, verify, rename; then overwrite the file that was there."""
    part = database.with_name(database.name + _MOVING)
    part.unlink(missing_ok=True)
    cipher.copy(connection, part, key)
    os.chmod(part, 0o600)
    _verify(part, connection, key)
    was_plain = cipher.is_plain(database)
    old = os.open(database, os.O_RDWR | os.O_CLOEXEC)
    try:
        _sync(part)
        os.replace(part, database)
        sync_folder(database.parent)
        # A process that waits for this lock has the old file open, and nothing must be written there any more: without
        # its first page it is no database, so that process opens the new file.
        _overwrite(old, whole=was_plain)
    finally:
        os.close(old)


def _verify(part: Path, connection: apsw.Connection, key: encryption_keys.DataKey | None) -> None:
    """StoreCorrupt unless the copy is sound and has every row."""
    copy = apsw.Connection(str(part), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        if key is not None:
            cipher.set_key(copy, key)
        problems = [str(row[0]) for row in copy.execute("PRAGMA integrity_check(3)") if row[0] != "ok"]
        if not problems and _counts(copy) != _counts(connection):
            problems = ["the copy has other rows"]
        same = all(copy.pragma(name) == connection.pragma(name) for name in ("user_version", "application_id"))
        if problems or not same:
            raise StoreCorrupt(
                f"the copy of the database is not like it ({'; '.join(problems) or 'its header differs'}), so nothing was"
                " moved; `hermes sessions check` looks for damage"
            )
    finally:
        copy.close()


def _database_copies(database: Path) -> Iterator[Path]:
    """Plain databases beside this one that hold its messages: what backups and repairs left in the same folder."""
    folders = [database.parent, *_backup_folders(database)] if database.name == "state.db" else []
    beside = {path for path in database.parent.glob(f"{database.name}.*") if path.is_file()}
    for path in sorted(beside | {one for folder in folders for one in folder.iterdir() if one.is_file()}):
        if path != database and not path.is_symlink() and not path.name.endswith(_MOVING) and _is_plain_copy(path):
            yield path


def _backup_folders(database: Path) -> list[Path]:
    """Folders beside the database that are named after backups, and those inside them."""
    named = [one for one in database.parent.iterdir() if "backup" in one.name.lower() and _is_folder(one)]
    return [*named, *(below for one in named for below in sorted(one.rglob("*")) if _is_folder(below))]


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _files_of_copies(database: Path) -> Iterator[tuple[Path, str]]:
    """What lies beside copies of the database: their attachments and transcripts."""
    if database.name != "state.db":
        return
    own = {companion(database, "sessions"), companion(database, "attachments")}
    for folder in (database.parent, *_backup_folders(database)):
        for place in sorted({*folder.glob("*.sessions"), *folder.glob("*.attachments")} - own):
            yield from ((path, _kind(path)) for path in _below(place) if not _is_lock(path))


def _is_plain_copy(path: Path) -> bool:
    """An SQLite file with sessions in it (a platform's own database has none)."""
    with suppress(OSError), path.open("rb") as file:
        if file.read(len(_SQLITE)) != _SQLITE:
            return False
        address = f"file:{path.as_uri()[7:]}?immutable=1"
        try:
            connection = apsw.Connection(address, flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI)
        except apsw.Error:
            return True
        try:
            asked = "SELECT 1 FROM sqlite_master WHERE name IN ('messages', 'sessions')"
            return connection.execute(asked).fetchone() is not None
        except apsw.Error:
            return True  # damaged: a repair put it aside
        finally:
            connection.close()
    return False


def _encrypt_copy(database: Path, copy: Path, moved: Converted) -> None:
    """Encrypt a copy of the database; one that is too damaged is sealed as it is."""
    vault = encryption_keys.vault_of(database)
    if vault is None:
        return
    part = copy.with_name(copy.name + _MOVING)
    part.unlink(missing_ok=True)
    try:
        source = apsw.Connection(str(copy), flags=apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_URI)
        try:
            cipher.copy(source, part, vault.current)
            _verify(part, source, vault.current)
        finally:
            source.close()
        shutil.copy2(key_file(database), key_file(copy))
    except (apsw.Error, StoreError):
        part.unlink(missing_ok=True)
        for end in ("", "-wal"):
            with suppress(FileNotFoundError):
                moved.files += _replaced(copy.with_name(copy.name + end), "whole", vault.current)
        return
    old = os.open(copy, os.O_RDWR | os.O_CLOEXEC)
    try:
        os.chmod(part, 0o600)
        _sync(part)
        os.replace(part, copy)
        _overwrite(old, whole=True)
    finally:
        os.close(old)
    for end in ("-wal", "-shm"):
        copy.with_name(copy.name + end).unlink(missing_ok=True)
    moved.files += 1


# ----------------------------------------------------------------------------------------- the files


def _files(database: Path) -> Iterator[tuple[Path, str]]:
    """Every other file that holds text of messages, with how it is written: in lines, whole, or as a draft."""
    folder, own = database.parent, database.name == "state.db"
    yield from ((path, "draft") for path in _below(companion(database, "drafts")))
    yield from ((path, _kind(path)) for path in _below(companion(database, "sessions")) if not _is_lock(path))
    yield from ((path, "whole") for path in _below(companion(database, "attachments")))
    if not own:
        return
    yield from ((path, "lines") for path in folder.glob("history") if path.is_file())
    yield from ((path, "whole") for path in folder.glob(".history.*") if path.is_file())
    yield from ((path, "whole") for path in _below(folder / "cron") if path.suffix in (".md", ".new", ".part"))
    yield from ((path, "whole") for path in folder.glob("*/unkept/*.json*") if path.is_file())


def _kind(path: Path) -> str:
    return "lines" if ".jsonl" in path.name else "whole"


def _is_lock(path: Path) -> bool:
    return path.parent.name == ".open" or path.name == ".lock"


def _tidy_up(database: Path, *, sealing: bool) -> None:
    """Remove what a move that was killed left over, and the gateway's plain index of chats, which is not kept encrypted."""
    if database.name == "state.db":
        found = list(database.parent.rglob(f"*{_MOVING}"))
    else:
        found = list(database.parent.glob(f"{database.name}*{_MOVING}"))
        for what in ("sessions", "attachments", "drafts"):
            found += companion(database, what).rglob(f"*{_MOVING}")
    if sealing:
        found += companion(database, "sessions").glob("sessions.json")
    for path in found:
        if path.is_file() and not path.is_symlink():
            with path.open("r+b") as file:
                _overwrite(file.fileno(), whole=True)
            path.unlink(missing_ok=True)


def _below(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


def _replaced(path: Path, kind: str, key: encryption_keys.DataKey | None) -> bool:
    """Bring one file to this key; returns whether there was something to do."""
    before = sealed_files.key_id(path)
    if before == (key.id if key is not None else None):
        return False
    found = path.stat()
    content = _content(path, kind)
    part = path.with_name(f".{path.name}.{os.getpid()}{_MOVING}")
    old = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(handle, "wb") as stream:
            stream.write(_made(content, kind, key))
            stream.flush()
            os.fsync(stream.fileno())
        if _content(part, kind) != content:
            raise sealed_files.DamagedFile(f"{part} does not have what was written to it")
        os.utime(part, ns=(found.st_atime_ns, found.st_mtime_ns))
        os.replace(part, path)
        if before is None:
            _overwrite(old, whole=True)
    except OSError as error:
        raise error if isinstance(error, sealed_files.DamagedFile) else from_os(error, path) from error
    finally:
        os.close(old)
        part.unlink(missing_ok=True)
    return True


def _content(path: Path, kind: str) -> bytes:
    raw = path.read_bytes()
    if kind == "draft":
        return drafts.draft_content(raw, path)
    if kind == "whole" or not sealed_files.is_sealed(raw):
        return sealed_files.unsealed(raw, path)
    seal = sealed_files.seal_of(raw[: sealed_files.HEADER], path)
    return b"".join(data for data, whole in seal.pieces(raw, sealed_files.HEADER) if whole) if seal is not None else b""


def _made(content: bytes, kind: str, key: encryption_keys.DataKey | None) -> bytes:
    if key is None:
        return content
    if kind == "draft":
        return drafts.sealed_draft(content, key)
    if kind == "whole":
        return sealed_files.sealed(content, key)
    seal, out, at = sealed_files.Seal(key), [], 0
    while at < len(content):
        end = content.find(b"\n", at + _PIECE) + 1 or len(content)
        out.append(seal.piece(content[at:end]))
        at = end
    return seal.header + b"".join(out)


def _overwrite(handle: int, *, whole: bool) -> None:
    """Write zeros over a file that has lost its name (where the file system writes in place, they replace the text)."""
    left, at = os.fstat(handle).st_size if whole else 4096, 0
    while left > 0:
        count = os.pwrite(handle, bytes(min(left, 1 << 20)), at)
        left, at = left - count, at + count
    os.fsync(handle)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
