"""The key of an encrypted store.

A random data key encrypts the database and the files around it. It lies, wrapped, in the key file beside the database
(`state.db-key`); what unwraps it is in the system's keyring, in a file of the user's, or made from a passphrase
(Argon2id). So a passphrase can be changed without encrypting anything again, and every copy of the store that has a copy of
the key file can be opened with the same passphrase.

The keys a process has unwrapped stay in its memory: a file is read by the key that its own header names.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import json
import os
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hermes.errors import HermesError, InvalidInput, MissingExtra, StoreError, StoreLocked
from hermes.home import key_file
from hermes.whole_files import sync_folder, write_whole

FORMAT = "hermes-key"
VERSION = 1
SUFFIX = "-key"
SERVICE = "hermes-sessions"  # the name of the entries in the system's keyring
KEY_FILE, PASSPHRASE_FILE = "HERMES_KEY_FILE", "HERMES_PASSPHRASE_FILE"
SHORTEST = 32  # bytes of a key file
ENCRYPTED, ENCRYPTING, DECRYPTING, REKEYING = "encrypted", "encrypting", "decrypting", "rekeying"
_ARGON2 = {"time_cost": 3, "memory_cost": 65536, "parallelism": 4}
_LARGEST_ARGON2 = {"time_cost": 100, "memory_cost": 4 << 20, "parallelism": 64}


def _hex(count: int) -> str:
    return os.urandom(count).hex()


def _mac(key: bytes, data: bytes) -> bytes:
    import hmac  # slow to import for the many stores that are not encrypted

    return hmac.digest(key, data, "sha256")


@dataclass(frozen=True, slots=True)
class DataKey:
    """A random key; `id` names it in the header of each file it encrypts."""

    id: str
    secret: bytes

    @staticmethod
    def new() -> DataKey:
        """A new random key."""
        return DataKey(_hex(8), os.urandom(32))

    def for_database(self) -> str:
        """The key of the database, in hex."""
        return _mac(self.secret, b"hermes database").hex()

    def for_file(self, file_id: bytes) -> bytes:
        """The key of one file beside it."""
        return _mac(self.secret, b"hermes file " + file_id)


@dataclass(frozen=True, slots=True)
class Way:
    """How the data key is wrapped: `kind` is keyring, file or passphrase; `secret` unwraps it, with `about` (public)."""

    kind: str
    about: Mapping[str, Any]
    secret: bytes


@dataclass(frozen=True, slots=True)
class Vault:
    """An unlocked key file."""

    id: str
    state: str
    way: Way
    keys: tuple[DataKey, ...]  # the first one encrypts; further ones while a new data key is taken into use

    @property
    def current(self) -> DataKey:
        """The key that new files are encrypted with."""
        return self.keys[0]

    @property
    def writes_plain(self) -> bool:
        """Whether new files are written unencrypted: the store is being decrypted."""
        return self.state == DECRYPTING

    def changed(self, *, state: str | None = None, way: Way | None = None, keys: tuple[DataKey, ...] = ()) -> Vault:
        """The same with another state, another way or other keys."""
        return replace(self, state=state or self.state, way=way or self.way, keys=keys or self.keys)


_unlocked: dict[Path, tuple[tuple[int, int, int], Vault]] = {}
_loaded: dict[str, DataKey] = {}
_asking = threading.RLock()  # two threads that open a store must not ask for its passphrase twice


def _real(database: Path) -> Path:
    """A database under one name, by whichever links it is reached: SQLite follows them all."""
    return Path(os.path.realpath(database))


def vault_of(database: Path) -> Vault | None:
    """The unlocked vault of a database, None for one that is not encrypted. StoreLocked when there is no right key."""
    with _asking:
        return _vault_at(_real(database))


def _vault_at(database: Path) -> Vault | None:
    path = key_file(database)
    known = _unlocked.get(database)
    try:
        seen = _version(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreError(f"{path} can't be read ({error.strerror})") from error
    if known is not None and known[0] == seen:
        return known[1]
    public = _public(path)
    if (
        known is not None
        and _about(public) != known[1].way.about
        and public["keys"] == [key.id for key in known[1].keys]
    ):
        return known[1].changed(
            state=ENCRYPTED
        )  # wrapped in another way by another process: what this one has still fits
    vault = _unlock(path, public)
    remember(database, vault)
    return vault


def remember(database: Path, vault: Vault) -> None:
    """Keep an unlocked vault for this process."""
    database = _real(database)
    for key in vault.keys:
        _loaded[key.id] = key
    _unlocked[database] = _version(key_file(database)), vault


def share(database: Path, other: Path) -> None:
    """Another file, about to be made, is encrypted like this database is."""
    vault = vault_of(database)
    if vault is not None:
        save(other, vault)
    else:
        remove(other)


def remove(database: Path) -> None:
    """Remove a key file."""
    key_file(database).unlink(missing_ok=True)
    _unlocked.pop(_real(database), None)


def writing_key(database: Path) -> DataKey | None:
    """The key that new files of this store are encrypted with; None: they are plain."""
    vault = vault_of(database)
    return None if vault is None or vault.writes_plain else vault.current


def key_named(key_id: str, near: Path) -> DataKey:
    """The key a file names, of a store this process has open, or of one above or beside the file."""
    if key_id not in _loaded:
        for folder in list(near.absolute().parents)[:4]:
            for found in sorted(folder.glob(f"*{SUFFIX}")):
                with contextlib.suppress(StoreLocked, MissingExtra):
                    vault_of(found.with_name(found.name.removesuffix(SUFFIX)))
                if key_id in _loaded:
                    return _loaded[key_id]
    try:
        return _loaded[key_id]
    except KeyError:
        raise StoreLocked(f"{near} is encrypted with a key that no key file near it has (key {key_id})") from None


def _version(path: Path) -> tuple[int, int, int]:
    found = path.stat()
    return found.st_ino, found.st_mtime_ns, found.st_size


# ----------------------------------------------------------------------------------------- the key file


def new_vault(way: Way) -> Vault:
    """A vault with a new data key."""
    return Vault(_hex(8), ENCRYPTING, way, (DataKey.new(),))


def save(database: Path, vault: Vault) -> None:
    """Write the key file, whole or not at all."""
    path = key_file(database)
    write_whole(path, _encoded(vault))
    sync_folder(path.parent)
    remember(database, vault)


def _encoded(vault: Vault) -> bytes:
    nonce = os.urandom(12)
    ids = [key.id for key in vault.keys]
    public = {
        "format": FORMAT,
        "version": VERSION,
        "id": vault.id,
        "keys": ids,
        "way": vault.way.kind,
        **vault.way.about,
    }
    inside = {"state": vault.state, "keys": [{"id": one.id, "secret": one.secret.hex()} for one in vault.keys]}
    sealed = _aead(vault.way.secret).encrypt(
        nonce, json.dumps(inside).encode(), f"{vault.id} {vault.way.kind}".encode()
    )
    wrapped = base64.b64encode(nonce + sealed).decode()
    return json.dumps({**public, "wrapped": wrapped}, indent=1).encode() + b"\n"


def _aead(secret: bytes) -> Any:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
    except ImportError as error:
        raise MissingExtra("an encrypted store", "encryption") from error
    return ChaCha20Poly1305(secret)


def _public(path: Path) -> dict[str, Any]:
    """What can be read of a key file without a key."""
    try:
        public: dict[str, Any] = json.loads(path.read_bytes())
        if public["format"] != FORMAT or public["version"] != VERSION:
            raise StoreLocked(f"{path} was written by a newer program (version {public['version']}); update this one")
        base64.b64decode(public["wrapped"], validate=True)
        return public | {"way": str(public["way"]), "id": str(public["id"]), "keys": list(public["keys"])}
    except (ValueError, KeyError, TypeError, binascii.Error) as error:
        raise StoreLocked(f"{path} is damaged; put back a copy of it (each backup has one beside it)") from error


_COMMON = frozenset(("format", "version", "id", "way", "keys", "wrapped"))


def _about(public: Mapping[str, Any]) -> dict[str, Any]:
    """What belongs to the way a key is wrapped in."""
    return {key: value for key, value in public.items() if key not in _COMMON}


def _unlock(path: Path, public: Mapping[str, Any]) -> Vault:
    kind, vault_id, wrapped = public["way"], public["id"], base64.b64decode(public["wrapped"])
    about = _about(public)
    alike = (one.way.secret for _, one in _unlocked.values() if one.way.kind == kind and one.way.about == about)
    way = Way(kind, about, next(alike, b"") or _secret(path, kind, about))
    opened = _opened(way, vault_id, wrapped)
    if opened is None:
        raise StoreLocked(_WRONG[kind].format(path=path.with_name(path.name.removesuffix(SUFFIX))))
    keys = tuple(DataKey(str(one["id"]), bytes.fromhex(one["secret"])) for one in opened["keys"])
    return Vault(vault_id, str(opened["state"]), way, keys)


_WRONG = {
    "passphrase": "{path} is encrypted, and this is not its passphrase; try again",
    "file": "{path} is encrypted, and this is not its key file; set " + KEY_FILE + " to the right one",
    "keyring": "{path} is encrypted, and the key in the system's keyring is not its key; restore the keyring's entry",
}


def _opened(way: Way, vault_id: str, wrapped: bytes) -> Any:
    cipher = _aead(way.secret)
    from cryptography.exceptions import InvalidTag

    try:
        return json.loads(cipher.decrypt(wrapped[:12], wrapped[12:], f"{vault_id} {way.kind}".encode()))
    except (InvalidTag, ValueError):
        return None


# ----------------------------------------------------------------------------------------- ways to a secret


def by_passphrase(passphrase: str) -> Way:
    """A new way: a passphrase."""
    if not passphrase:
        raise InvalidInput("an empty passphrase protects nothing; give a longer one")
    about = {"salt": _hex(16), "argon2": dict(_ARGON2)}
    return Way("passphrase", about, _from_passphrase(passphrase, about))


def by_file(path: Path) -> Way:
    """A new way: a file of the user's with at least 32 bytes; it is made when it does not exist."""
    path = Path(os.path.abspath(path.expanduser()))
    if not path.exists():
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(handle, "w") as stream:
            stream.write(_hex(32) + "\n")
            stream.flush()
            os.fsync(stream.fileno())
        sync_folder(path.parent)
    about = {"salt": _hex(16), "file": str(path)}
    return Way("file", about, _from_file(path, about))


def by_keyring(label: str) -> Way:
    """A new way: an entry in the system's keyring, made here."""
    about, value = {"entry": f"{label} {_hex(4)}"}, os.urandom(32)
    ring = _keyring()
    try:
        ring.set_password(SERVICE, about["entry"], base64.b64encode(value).decode())
        if ring.get_password(SERVICE, about["entry"]) != base64.b64encode(value).decode():
            raise InvalidInput("the system's keyring does not keep what is put into it")
    except ring.errors.KeyringError as error:
        raise InvalidInput(
            f"this system has no keyring that works ({error or type(error).__name__}); use --key-file or --passphrase"
        ) from error
    return Way("keyring", about, value)


def drop_entry(way: Way) -> None:
    """Remove the keyring's entry of a way that is no longer used; never raises."""
    if way.kind == "keyring":
        with contextlib.suppress(Exception):
            _keyring().delete_password(SERVICE, way.about["entry"])


def _keyring() -> Any:
    try:
        import keyring
        import keyring.errors
    except ImportError as error:
        raise MissingExtra("the system's keyring", "encryption") from error
    return keyring


def _secret(path: Path, kind: str, about: Mapping[str, Any]) -> bytes:
    """What unwraps the data key, from where the user has said that it is."""
    database = path.with_name(path.name.removesuffix(SUFFIX))
    if kind == "file":
        place = _named(KEY_FILE, "key_file") or about.get("file")
        if not place or not Path(place).expanduser().exists():
            raise StoreLocked(
                f"{database} is encrypted with a key file, and {place or 'none'} is not there; mount or restore it, or set"
                f" {KEY_FILE} (or store.key_file in config.yaml)"
            )
        return _from_file(Path(place).expanduser(), about)
    if kind == "passphrase":
        return _from_passphrase(_asked_passphrase(database), about)
    if kind == "keyring":
        ring = _keyring()
        try:
            value = ring.get_password(SERVICE, str(about["entry"]))
        except ring.errors.KeyringError as error:
            raise StoreLocked(
                f"{database} is encrypted, and the system's keyring can't be used ({error or type(error).__name__});"
                " unlock it, then try again"
            ) from error
        if value is None:
            raise StoreLocked(
                f"{database} is encrypted, and the system's keyring has no entry {SERVICE!r} for {about['entry']!r};"
                " restore that entry"
            )
        return base64.b64decode(value)
    raise StoreLocked(f"{path} names a way to its key that this program does not know ({kind}); update it")


def _named(variable: str, setting: str) -> str | None:
    """A file that the environment or config.yaml names."""
    given = os.environ.get(variable)
    if given:
        return given
    from hermes.config import load_config

    try:
        return getattr(load_config().store, setting) or None
    except HermesError:
        return None  # reported by whatever needs the configuration


def _asked_passphrase(database: Path) -> str:
    place = _named(PASSPHRASE_FILE, "passphrase_file")
    if place:
        return read_passphrase(Path(place))
    if sys.stdin is not None and sys.stdin.isatty() and sys.stderr is not None and sys.stderr.isatty():
        import getpass

        with contextlib.suppress(EOFError):
            return getpass.getpass(f"Passphrase for {database}: ")
    raise StoreLocked(
        f"{database} is encrypted with a passphrase and there is no terminal to ask on; set {PASSPHRASE_FILE} (or"
        " store.passphrase_file in config.yaml) to a file that has it"
    )


def read_passphrase(path: Path) -> str:
    """The first line of a file."""
    try:
        with path.expanduser().open(encoding="utf-8") as stream:
            passphrase = stream.readline().rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise StoreLocked(f"{path}, which should have the passphrase, can't be read ({error})") from error
    if not passphrase:
        raise StoreLocked(f"{path}, which should have the passphrase in its first line, is empty")
    return passphrase


def _from_file(path: Path, about: Mapping[str, Any]) -> bytes:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise StoreLocked(f"the key file {path} can't be read ({error.strerror})") from error
    if len(data) < SHORTEST:
        raise StoreLocked(f"the key file {path} has fewer than {SHORTEST} bytes: that is too short for a key")
    return _mac(bytes.fromhex(about["salt"]), data)


def _from_passphrase(passphrase: str, about: Mapping[str, Any]) -> bytes:
    try:
        from argon2.low_level import Type, hash_secret_raw
    except ImportError as error:
        raise MissingExtra("an encrypted store", "encryption") from error
    cost = {name: min(int(about["argon2"][name]), _LARGEST_ARGON2[name]) for name in _ARGON2}
    salt = bytes.fromhex(about["salt"])
    return hash_secret_raw(passphrase.encode("utf-8", "surrogatepass"), salt, hash_len=32, type=Type.ID, **cost)


def writing_key_near(path: Path) -> DataKey | None:
    """The key for a file of the home that does not belong to one database: that of `state.db` in a folder above it."""
    for folder in list(path.absolute().parents)[:4]:
        if os.path.exists(folder / f"state.db{SUFFIX}"):
            return writing_key(folder / "state.db")
    return None
