"""The key of an encrypted store.

A random data key encrypts the database, which holds everything. It lies, wrapped, in the key file beside the database
(`state.db-key`); what unwraps it is in the system's keyring, in a file of the user's, or made from a passphrase
(Argon2id). So a passphrase can be changed without encrypting anything again, and every copy of the store that has a copy of
the key file can be opened with the same passphrase.

A process keeps the keys that it has unwrapped in its memory.
"""

from __future__ import annotations

import base64
import contextlib
import hmac
import json
import os
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from typing import Any

from hermes.errors import InvalidInput, MissingExtra, StoreError, StoreLocked
from hermes.home import key_file, sync_folder, write_whole

FORMAT = "hermes-key"
VERSION = 1
SERVICE = "hermes-sessions"  # the name of the entries in the system's keyring
KEY_FILE, PASSPHRASE_FILE = "HERMES_KEY_FILE", "HERMES_PASSPHRASE_FILE"
SHORTEST = 32  # bytes of a key file
_ARGON2 = {"time_cost": 3, "memory_cost": 65536, "parallelism": 4}


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


def share(database: Path, other: Path) -> None:
    """Give a file that is about to be made the key of this database."""
    if key_file(database).exists():
        write_whole(key_file(other), key_file(database).read_bytes())
    else:
        remove(other)


def remove(database: Path) -> None:
    """Remove a key file."""
    key_file(database).unlink(missing_ok=True)
    _unlocked.pop(Path(os.path.realpath(database)), None)


# ----------------------------------------------------------------------------------------- the key file


def new_vault(way: Way) -> Vault:
    """A vault with a new data key."""
    return Vault(DataKey(os.urandom(32)), way)


def save(database: Path, vault: Vault) -> Vault:
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
        with contextlib.suppress(Exception):
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

        with contextlib.suppress(EOFError):
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
