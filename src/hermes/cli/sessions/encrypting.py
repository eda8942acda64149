"""`hermes sessions encrypt`, `decrypt` and `rekey`: the record in files that can't be read without a key."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hermes.cli.options import flag
from hermes.cli.output import note, put
from hermes.cli.record import configuration, opened
from hermes.home import has_key_file
from hermes.store import encryption, keys
from hermes.store.records.attachments import PREFIX

if TYPE_CHECKING:
    from hermes.store.keys import Way

_PATH = click.Path(dir_okay=False, path_type=Path)


def _ways(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options that say what unlocks the store."""
    key_text = "A file with 32 random bytes or more; made when there is none."
    for option in (
        click.option("--passphrase-file", type=_PATH, metavar="FILE", help="A passphrase: a file's first line."),
        flag("--passphrase", "A passphrase, asked for on the terminal (the default).", "ask"),
        click.option("--key-file", type=_PATH, metavar="FILE", help=key_text),
        flag("--keyring", "A key in the system's keyring."),
    ):
        function = option(function)
    return function


@click.command()
@_ways
def encrypt(keyring: bool, key_file: Path | None, ask: bool, passphrase_file: Path | None) -> None:
    """Encrypt the record. Everything is then in its database: attachments and drafts go into it, and transcripts, the
    prompt's history and results of jobs in files are removed. Other programs must not have it open. After an
    interruption, run it again: it continues. Without the key the record can never be read again, so keep a copy of
    the key.
    """
    database = _database()
    way = _way(database, keyring, key_file, ask, passphrase_file)
    had_key = has_key_file(database)
    left = encryption.encrypt(database, way)
    print(f"encrypted {database}")
    if left:
        note(f"readable copies and other files remain; remove them by hand: {', '.join(map(str, left))}")
    if had_key:
        note("it already had a key, which was kept; `hermes sessions rekey` changes it")
    elif key_file is not None and database.parent in key_file.absolute().parents:
        note(f"{key_file} is stored beside what it protects: move it elsewhere and set HERMES_KEY_FILE")


@click.command()
@click.option("--print", "digest", metavar="HASH", help="Only print the attachment with this SHA-256.")
def decrypt(digest: str | None) -> None:
    """Make an encrypted record plain again; or print one of its attachments."""
    if digest is not None:
        with opened() as db:
            try:
                put(db.read_attachment(digest.removeprefix(PREFIX)))
            except OSError:
                raise click.ClickException(f"the record has no attachment {digest}") from None
        return
    database = _database()
    encryption.decrypt(database, configuration().sessions.transcripts)
    print(f"decrypted {database}")


@click.command()
@_ways
def rekey(keyring: bool, key_file: Path | None, ask: bool, passphrase_file: Path | None) -> None:
    """Change what unlocks the record: another passphrase, key file, or the keyring. The data key stays; if someone may
    know it, decrypt the record and encrypt it again.
    """
    database = _database()
    encryption.rekey(database, _way(database, keyring, key_file, ask, passphrase_file))
    print(f"{database} has a new key; earlier backups still open with the old one")


def _database() -> Path:
    """The file of the configured store."""
    from hermes.store.api.configured import store_file

    file = store_file(configuration())
    if file is None:
        raise click.ClickException("the record is on a server: encrypt that server's disk, this encrypts files only")
    return file


def _way(
    database: Path, keyring: bool, key_file: Path | None, ask: bool, passphrase_file: Path | None
) -> Callable[[], Way]:
    """The function that wraps the key as the options say; it asks for a passphrase only when it is called."""
    if sum((keyring, key_file is not None, ask, passphrase_file is not None)) > 1:
        raise click.UsageError("give one of --keyring, --key-file, --passphrase and --passphrase-file")
    if keyring:
        return lambda: keys.by_keyring(str(database))
    if key_file is not None:
        return lambda: keys.by_file(key_file)
    if passphrase_file is not None:
        return lambda: keys.by_passphrase(keys.read_passphrase(passphrase_file))
    return _ask_passphrase


def _ask_passphrase() -> Way:
    if not sys.stdin.isatty():
        give = "give --passphrase-file, --key-file or --keyring"
        raise click.ClickException(f"there is no terminal to ask for a passphrase: {give}")
    return keys.by_passphrase(click.prompt("New passphrase", hide_input=True, confirmation_prompt=True, err=True))
