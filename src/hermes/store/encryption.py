"""Encrypted stores: their key, and the moves between plain and encrypted. An encrypted store has everything in its database.

A random data key encrypts the database. It lies, wrapped, in the key file beside the database (`state.db-key`); what unwraps it
is in the system's keyring, in a file of the user's, or made from a passphrase (Argon2id). So a passphrase can be changed
without encrypting anything again, and every copy of the store that has a copy of the key file can be opened with the same
passphrase. A process keeps the keys that it has unwrapped in its memory.

A move writes the key file first and removes it last, and a database itself shows whether it is encrypted: the one rename that
puts the other copy in its place is the move. What lies in files beside a plain store goes into the copy before that rename, or
comes out of the database before it, and is removed where it no longer belongs after it. Killed at any moment, the store opens
as before or as after, and the same call again finishes. No other process may have the database open meanwhile: the move holds
SQLite's exclusive lock on it.
"""

from __future__ import annotations

import base64
import hmac
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from typing import Any

from hermes.errors import InvalidInput, MissingExtra, StoreBusy, StoreCorrupt, StoreError, StoreLocked, StoreReadOnly
from hermes.home import companion, key_file, make_private, settled
from hermes.store.engines.sqlite import connection as driver
from hermes.store.engines.sqlite import schema
from hermes.store.engines.sqlite.connection import Connection, as_ours, holder_of, is_busy
from hermes.store.records import codec
from hermes.store.records.attachments import DIGEST, Attachments
from hermes.store.transcripts.lines import file_name
from hermes.store.transcripts.writer import LOST, NOT_GATEWAY
from hermes.whole_files import sync_folder, write_whole

FORMAT = "hermes-key"
VERSION = 1
SERVICE = "hermes-sessions"  # the name of the entries in the system's keyring
KEY_FILE, PASSPHRASE_FILE = "HERMES_KEY_FILE", "HERMES_PASSPHRASE_FILE"
SHORTEST = 32  # bytes of a key file
_ARGON2 = {"time_cost": 3, "memory_cost": 65536, "parallelism": 4}
Change = Callable[[Connection], None]
_FOLDERS = ("sessions", "attachments", "drafts")


@dataclass(frozen=True, slots=True)
class DataKey:
    """A random key: it encrypts the database, and the files of a folder that stores meet in."""

    secret: bytes

    @property
    def id(self) -> str:
        """The name of the key, which reveals nothing about it."""
        return hmac.digest(self.secret, b"hermes id", "sha256")[:8].hex()

    def for_database(self) -> str:
        """The key of the database, in hex."""
        return hmac.digest(self.secret, b"hermes database", "sha256").hex()

    def for_files(self) -> bytes:
        """The key of files in a folder that stores meet in."""
        return hmac.digest(self.secret, b"hermes files", "sha256")


@dataclass(frozen=True, slots=True)
class Way:
    """How the data key is wrapped: `kind` is keyring, file or passphrase; `secret` unwraps it, with `about` (public)."""

    kind: str
    about: Mapping[str, Any]
    secret: bytes


@dataclass(frozen=True, slots=True)
class Vault:
    """An unlocked key file."""

    key: DataKey
    way: Way


_unlocked: dict[Path, Vault] = {}
_asking = threading.RLock()  # two threads that open a store must not ask for its passphrase twice


def vault_of(database: Path) -> Vault | None:
    """The unlocked key file of a database, None without one. StoreLocked when there is no right key."""
    database = Path(os.path.realpath(database))  # SQLite follows links, too
    with _asking:
        public = _public(key_file(database))
        if public is None:
            return None
        known = _unlocked.get(database)  # another process may have wrapped the same key in another way since
        if known is None or known.key.id != public["key"]:
            known = _unlocked[database] = _unlock(database, public)
        return known


def share_key(database: Path, other: Path) -> None:
    """Give a file that is about to be made the key of this database."""
    if key_file(database).exists():
        write_whole(key_file(other), key_file(database).read_bytes())
    else:
        remove_key(other)


def remove_key(database: Path) -> None:
    """Remove a key file."""
    key_file(database).unlink(missing_ok=True)
    _unlocked.pop(Path(os.path.realpath(database)), None)


# ----------------------------------------------------------------------------------------- the key file


def new_vault(way: Way) -> Vault:
    """A vault with a new data key."""
    return Vault(DataKey(os.urandom(32)), way)


def save_vault(database: Path, vault: Vault) -> Vault:
    """Write the key file, whole or not at all; returns the vault."""
    nonce, way = os.urandom(12), vault.way
    wrapped = nonce + aead(way.secret).encrypt(nonce, vault.key.secret, way.kind.encode())
    public = {"format": FORMAT, "version": VERSION, "key": vault.key.id, "way": way.kind, **way.about}
    public["wrapped"] = base64.b64encode(wrapped).decode()
    write_whole(key_file(database), json.dumps(public, indent=1) + "\n")
    sync_folder(database.parent)
    _unlocked[Path(os.path.realpath(database))] = vault
    return vault


def aead(secret: bytes) -> Any:
    """The cipher that encrypts and authenticates bytes with a key."""
    try:
        from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
    except ImportError as error:
        raise MissingExtra("an encrypted store", "encryption") from error
    return ChaCha20Poly1305(secret)


def _public(path: Path) -> dict[str, Any] | None:
    """The readable part of a key file, without the key; None without a file."""
    try:
        public: dict[str, Any] = json.loads(path.read_bytes())
        if public["format"] != FORMAT or public["version"] != VERSION:
            raise StoreLocked(f"{path} was written by a newer program (version {public['version']}); update this one")
        public["wrapped"] = base64.b64decode(public["wrapped"], validate=True)
        bytes.fromhex(public.get("salt") or "")
        return public | {"way": str(public["way"]), "key": str(public["key"])}
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreError(f"{path} can't be read ({error.strerror})") from error
    except (ValueError, KeyError, TypeError) as error:
        raise StoreLocked(f"{path} is damaged; put back a copy of it (each backup has one beside it)") from error


def _unlock(database: Path, public: dict[str, Any]) -> Vault:
    kind, wrapped, mark = public["way"], public["wrapped"], public.get("salt") or public.get("entry")
    alike = (one.way for one in _unlocked.values() if mark in one.way.about.values())
    way = next(alike, None) or _configured_way(database, kind, public)
    cipher = aead(way.secret)
    from cryptography.exceptions import InvalidTag

    try:
        return Vault(DataKey(cipher.decrypt(wrapped[:12], wrapped[12:], kind.encode())), way)
    except (InvalidTag, ValueError):
        named = {"file": f"key file; set {KEY_FILE} to the right one", "keyring": "entry in the keyring; restore that"}
        raise StoreLocked(f"{database} is encrypted, and this is not its {named.get(kind, kind)}") from None


def _configured_way(database: Path, kind: str, about: Mapping[str, Any]) -> Way:
    """Read the passphrase or key that unwraps the data key, from its configured place."""
    if kind == "passphrase":
        return by_passphrase(_read_passphrase(database), about["salt"])
    if kind == "file":
        return by_file(Path(_named(KEY_FILE, "key_file") or about["file"]), about["salt"])
    return by_keyring(entry=str(about.get("entry")))


# ----------------------------------------------------------------------------------------- ways to a secret


def by_passphrase(passphrase: str, salt: str | None = None) -> Way:
    """A passphrase; with a new salt, if none is given."""
    if not passphrase:
        raise InvalidInput("an empty passphrase protects nothing; give a longer one")
    try:
        from argon2.low_level import Type, hash_secret_raw
    except ImportError as error:
        raise MissingExtra("an encrypted store", "encryption") from error
    salt, raw = salt or token_hex(16), passphrase.encode("utf-8", "surrogatepass")
    secret = hash_secret_raw(raw, bytes.fromhex(salt), hash_len=32, type=Type.ID, **_ARGON2)
    return Way("passphrase", {"salt": salt}, secret)


def by_file(path: Path, salt: str | None = None) -> Way:
    """A file of the user's with at least 32 bytes; with a new salt, if none is given, and then it is made if there is none."""
    path = Path(os.path.abspath(path.expanduser()))
    if salt is None and not path.exists():
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_whole(path, token_hex(32) + "\n")
        sync_folder(path.parent)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise StoreLocked(
            f"the record is encrypted with a key file, and {path} is not there or can't be read ({error.strerror}); mount or"
            f" restore it, or set {KEY_FILE} (or store.key_file in config.yaml)"
        ) from error
    if len(data) < SHORTEST:
        raise StoreLocked(f"the key file {path} has fewer than {SHORTEST} bytes: that is too short for a key")
    salt = salt or token_hex(16)
    return Way("file", {"salt": salt, "file": str(path)}, hmac.digest(bytes.fromhex(salt), data, "sha256"))


def by_keyring(label: str = "", entry: str | None = None) -> Way:
    """An entry in the system's keyring; a new one, if none is given."""
    name, new = entry or f"{label} {token_hex(4)}", None if entry else token_hex(32)
    value = _entry(name, new)
    if value is None or new not in (None, value):
        raise StoreLocked(f"the system's keyring has no entry {SERVICE!r} for {name!r}; restore it, or use --key-file")
    return Way("keyring", {"entry": name}, bytes.fromhex(value))


def drop_entry(way: Way) -> None:
    """Remove the keyring's entry of a way that is no longer used; never raises."""
    if way.kind == "keyring":
        with suppress(Exception):
            import keyring

            keyring.delete_password(SERVICE, way.about["entry"])


def _entry(name: str, value: str | None = None) -> str | None:
    """Read an entry of the system's keyring; stores `value` there first, if it is given."""
    try:
        import keyring
        from keyring.errors import KeyringError
    except ImportError as error:
        raise MissingExtra("the system's keyring", "encryption") from error
    try:
        if value is not None:
            keyring.set_password(SERVICE, name, value)
        return keyring.get_password(SERVICE, name)
    except KeyringError as error:
        why = error or type(error).__name__
        raise StoreLocked(f"this system has no keyring that works ({why}); unlock it, or use --key-file") from error


def _named(variable: str, setting: str) -> str | None:
    """A file that the environment or config.yaml names."""
    from hermes.config import load_config

    return os.environ.get(variable) or getattr(load_config().store, setting)


def _read_passphrase(database: Path) -> str:
    if place := _named(PASSPHRASE_FILE, "passphrase_file"):
        return read_passphrase(Path(place))
    if all(one is not None and one.isatty() for one in (sys.stdin, sys.stderr)):
        import getpass

        with suppress(EOFError):
            return getpass.getpass(f"Passphrase for {database}: ")
    raise StoreLocked(
        f"{database} is encrypted with a passphrase and there is no terminal to ask on; set {PASSPHRASE_FILE} (or"
        " store.passphrase_file in config.yaml) to a file that has it"
    )


def read_passphrase(path: Path) -> str:
    """The first line of a file."""
    try:
        passphrase = path.expanduser().read_text(encoding="utf-8").partition("\n")[0].rstrip("\r")
    except (OSError, UnicodeDecodeError) as error:
        raise StoreLocked(f"{path}, which should have the passphrase, can't be read ({error})") from error
    if not passphrase:
        raise StoreLocked(f"{path}, which should have the passphrase in its first line, is empty")
    return passphrase


# ----------------------------------------------------------------------------------------- moves


def encrypt(database: Path, make_way: Callable[[], Way]) -> list[Path]:
    """Encrypt a store, or finish that; calls `make_way()` to wrap a new key if it has none. → readable copies that stay."""
    driver.sqlcipher()
    aead(bytes(32))  # a missing library is an error before anything is done
    database = settled(database)
    _open_once(database, "all")
    with _exclusively(database) as connection:
        _refuse(database, connection)
        redundant, copies = list(_redundant(database, connection)), _copies(database)
        vault = vault_of(database) or save_vault(database, new_vault(make_way()))
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
        remove_key(database)
        sync_folder(database.parent)
    drop_entry(vault.way)
    _open_once(database, transcripts)


def rekey(database: Path, make_way: Callable[[], Way]) -> None:
    """Wrap the data key in another way: other processes may go on. Copies of the old key file still open the old way."""
    database = settled(database)
    vault = _vault(database)
    save_vault(database, Vault(vault.key, make_way()))
    drop_entry(vault.way)


def _vault(database: Path) -> Vault:
    vault = vault_of(database)
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


def _replace(database: Path, connection: Connection, key: DataKey | None, change: Change) -> None:
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
