"""`hermes sessions encrypt`, `decrypt` and `rekey`: the record in files that can't be read without a key."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hermes.cli.shared import configuration, note, progress, put
from hermes.home import has_key_file
from hermes.texts import counted

if TYPE_CHECKING:
    from hermes.store.encryption import Converted
    from hermes.store.encryption_keys import Way

_PATH = click.Path(dir_okay=False, path_type=Path)


def _ways(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options that say what unlocks the store."""
    for option in (
        click.option(
            "--passphrase-file", type=_PATH, metavar="FILE", help="A passphrase, read from a file's first line."
        ),
        click.option(
            "--passphrase", "ask", is_flag=True, help="A passphrase, asked for on the terminal (the default)."
        ),
        click.option(
            "--key-file",
            type=_PATH,
            metavar="FILE",
            help="A file with 32 random bytes or more; made when there is none.",
        ),
        click.option("--keyring", is_flag=True, help="A key in the system's keyring."),
    ):
        function = option(function)
    return function


@click.command(
    help="Encrypt the record: the database, transcripts, attachments, drafts, waiting messages, the prompt's history, and"
    " copies of the database beside it. Other programs must not have it open. Run it again after an interruption: it goes"
    " on. Without the key the record can never be read again, so keep a copy of the key."
)
@_ways
def encrypt(keyring: bool, key_file: Path | None, ask: bool, passphrase_file: Path | None) -> None:
    from hermes.store import encryption

    database = _database()
    way = _way(database, keyring, key_file, ask, passphrase_file)
    had_key = has_key_file(database)
    with progress("encrypting", 1000) as step:
        moved = encryption.encrypt(database, way, lambda done, of: step(1000 * done // of))
    _tell("encrypted", database, moved)
    if had_key:
        note("it had a key already, which stays as it is; `hermes sessions rekey` changes it")
        return
    if key_file is not None and database.parent in key_file.absolute().parents:
        note(f"{key_file} lies beside what it protects: move it elsewhere and set HERMES_KEY_FILE")


@click.command(help="Make an encrypted record plain again; or print one encrypted file, a transcript for instance.")
@click.option("--print", "file", type=_PATH, metavar="FILE", help="Only print what this encrypted file holds.")
def decrypt(file: Path | None) -> None:
    from hermes.store import encryption, sealed_files

    if file is not None:
        try:
            put(sealed_files.content(file) if ".jsonl" in file.name else sealed_files.read_bytes(file))
        except OSError as error:
            raise click.ClickException(f"{file}: {error.strerror or error}") from None
        return
    database = _database()
    with progress("decrypting", 1000) as step:
        moved = encryption.decrypt(database, lambda done, of: step(1000 * done // of))
    _tell("decrypted", database, moved)


@click.command(
    help="Change what unlocks the record: another passphrase, key file, or the keyring. With --reencrypt everything is"
    " encrypted again with a new data key: for when the old key may be known to someone."
)
@_ways
@click.option("--reencrypt", is_flag=True, help="Encrypt everything again with a new data key.")
def rekey(keyring: bool, key_file: Path | None, ask: bool, passphrase_file: Path | None, reencrypt: bool) -> None:
    from hermes.store import encryption, encryption_keys

    database = _database()
    vault = encryption_keys.vault_of(database)
    if vault is None:
        raise click.ClickException(f"{database} is not encrypted; `hermes sessions encrypt` encrypts it")
    chosen = keyring or key_file is not None or ask or passphrase_file is not None
    way = _way(database, keyring, key_file, ask, passphrase_file) if chosen or not reencrypt else None
    if not reencrypt and vault.state != encryption_keys.REKEYING:
        assert way is not None
        encryption.rewrap(database, way)
        print(f"{database} has a new key; backups made before still open with the old one")
        return
    with progress("encrypting", 1000) as step:
        moved = encryption.rekey(database, way, lambda done, of: step(1000 * done // of))
    _tell("encrypted again", database, moved)


def _database() -> Path:
    """The file of the configured store."""
    from hermes.home import default_database, settled
    from hermes.store.engines.store_address import file_of
    from hermes.store.opening import store_url

    url = store_url(configuration())
    if url is None:
        return default_database()
    file = file_of(url)
    if file is None:
        raise click.ClickException("the record is on a server: encrypt that server's disk, this encrypts files only")
    return settled(file)


def _way(
    database: Path, keyring: bool, key_file: Path | None, ask: bool, passphrase_file: Path | None
) -> Callable[[], Way]:
    """How the key is to be wrapped, as the options say; asked for only when it is needed."""
    from hermes.store import encryption_keys

    if sum((keyring, key_file is not None, ask, passphrase_file is not None)) > 1:
        raise click.UsageError("give one of --keyring, --key-file, --passphrase and --passphrase-file")
    if keyring:
        return lambda: encryption_keys.by_keyring(str(database))
    if key_file is not None:
        return lambda: encryption_keys.by_file(key_file)
    if passphrase_file is not None:
        return lambda: encryption_keys.by_passphrase(encryption_keys.read_passphrase(passphrase_file))
    return _asked


def _asked() -> Way:
    from hermes.store import encryption_keys

    if not sys.stdin.isatty():
        raise click.ClickException(
            "there is no terminal to ask for a passphrase: give --passphrase-file, --key-file or --keyring"
        )
    return encryption_keys.by_passphrase(
        click.prompt("New passphrase", hide_input=True, confirmation_prompt=True, err=True)
    )


def _tell(done: str, database: Path, moved: Converted) -> None:
    print(f"{done} {database}: {counted(moved.messages, 'message')}, {counted(moved.files, 'file')}")
    for one in moved.left:
        note(f"left as it was: {one}")
