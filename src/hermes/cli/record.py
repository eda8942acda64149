"""Opens the configuration and the record of the user for the commands, and gives the time zone of the times they show."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import click
import msgspec

from hermes.cli.output import progress
from hermes.config import Config, load_config
from hermes.config.loading import RECORD
from hermes.errors import HermesError
from hermes.home import has_key_file

if TYPE_CHECKING:
    from datetime import tzinfo
    from pathlib import Path

    from hermes.store.api.session_db import SessionDB

_CONFIG = "hermes.config"
EVERY = 1 << 40  # a limit beyond any number of rows


def configuration() -> Config:
    """config.yaml, read once per command. Errors in parts that the record does not need are warnings."""
    context = click.get_current_context(silent=True)
    if context is None:
        return load_config(needs=RECORD)
    if _CONFIG not in context.meta:
        context.meta[_CONFIG] = load_config(needs=RECORD)
    config: Config = context.meta[_CONFIG]
    return config


@contextmanager
def opened(*, writing: bool = False, in_bulk: bool = False, path: Path | None = None) -> Iterator[SessionDB]:
    """The user's store, or the one in the file `path`, closed afterwards.

    `in_bulk` is for work that can simply be repeated: it is synced to the disk at the end, not step by step.
    """
    from hermes.store.api.configured import open_configured

    config = configuration()
    if in_bulk:
        config = config.changed(store=msgspec.structs.replace(config.store, durability="normal"))
    with open_configured(config, read_only=not writing, path=path) as db:
        yield db
    if in_bulk and not db.is_shared:
        # Only now that it is closed: closing a file releases every lock this process has on it.
        for end in ("", "-wal"):
            with suppress(FileNotFoundError), open(f"{db.path}{end}", "rb") as stream:
                os.fsync(stream.fileno())


def is_encrypted() -> bool:
    """Whether the user's store is encrypted, or is being encrypted or decrypted."""
    from hermes.store.api.configured import store_file

    file = store_file(configuration())
    return file is not None and has_key_file(file)


def typed(text: str) -> str:
    """An argument that is text, not a path: read as UTF-8 even if the locale (LC_ALL=C) differs."""
    try:
        escaped = any("\udc80" <= sign <= "\udcff" for sign in text)  # bytes that the locale's encoding could not read
        return os.fsencode(text).decode("utf-8") if escaped else text
    except UnicodeError:
        return text


def zone() -> tzinfo | None:
    """The time zone times are shown in."""
    from hermes.times import zone_of

    return zone_of(configuration().timezone)


def index(db: SessionDB) -> int:
    """Finish the full-text index, so that the next search is fast; returns how many messages were indexed."""
    with progress("indexing", db.index_status()["pending"]) as step:
        return db.catch_up(progress=lambda done, total: step(done))


def recover_drafts(db: SessionDB, session_id: str | None = None) -> None:
    """Store the unfinished replies of crashed processes in a session (None: in every one), so that reading it shows all.

    The next question there would store them as well. If storing fails, the drafts stay.
    """
    wanted = [one for one in db.drafts.sessions() if session_id in (None, one)]
    if not wanted:
        return
    from hermes.agent.turn_session import recover_abandoned

    try:
        with opened(writing=True) as writer:
            for one in wanted:
                recover_abandoned(writer, one)
    except (HermesError, OSError):
        return  # e.g. a file that can only be read: what is stored can be shown all the same
