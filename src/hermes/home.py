"""Paths: the home directory and the files that belong to one database.

Everything a user owns lies below one directory that only they can read; a database that
lives elsewhere takes its transcripts and attachments along, beside it.
"""

from __future__ import annotations

import os
from pathlib import Path

from hermes.errors import StoreError


def get_hermes_home() -> Path:
    """`$HERMES_HOME`, else `~/.hermes`. Not created here."""
    home = os.environ.get("HERMES_HOME")
    return Path(home).expanduser() if home else Path.home() / ".hermes"


def default_database() -> Path:
    """The database that `SessionDB()` opens."""
    return settled(get_hermes_home() / "state.db")


def companion(database: Path, what: str) -> Path:
    """The folder `what` that belongs to a database: `sessions` beside `state.db`, `X.sessions` beside `X.db`."""
    name = what if database.name == "state.db" else f"{database.stem}.{what}"
    return database.parent / name


def key_file(database: Path) -> Path:
    """The path of the wrapped key of an encrypted database."""
    return database.with_name(database.name + "-key")


def has_key_file(database: Path) -> bool:
    """Whether a database is encrypted, or is being encrypted or decrypted."""
    return os.path.exists(f"{database}-key")


def in_encrypted_home(path: Path) -> bool:
    """Whether a file lies below the folder of an encrypted database: no readable text of a conversation is written there."""
    return any(any(folder.glob("*.db-key")) for folder in list(path.absolute().parents)[:4])


def settled(database: Path | str) -> Path:
    """A database's path, whatever the working directory is later and by whichever link it is named."""
    path = Path(os.path.abspath(Path(database).expanduser()))
    return path.resolve() if path.is_symlink() else path


def make_private(folder: Path) -> None:
    """Create a folder that only its owner can read; an existing one is left as it is."""
    if not folder.is_dir():
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError) as error:
            raise StoreError(f"{folder} is needed as a folder, but a file is in its place") from error


def project_folder(folder: Path) -> Path:
    """The project that a folder belongs to: the git root above it, else the folder itself."""
    return next((one for one in (folder, *folder.parents) if (one / ".git").exists()), folder)
