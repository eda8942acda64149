"""Opens the store that config.yaml configures, and does its housekeeping."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

from hermes.config import Config
from hermes.errors import HermesError, StoreClosed
from hermes.home import default_database, get_hermes_home, settled
from hermes.store.api.session_db import SessionDB
from hermes.store.engines import file_of
from hermes.store.engines.base import StoreMissing


def store_url(config: Config) -> str | None:
    """The address of the store: HERMES_STORE_URL, else the one of config.yaml; None: a file on this machine.

    ConfigError when config.yaml refers to a variable that is not set: no other store must be used instead.
    """
    url = os.environ.get("HERMES_STORE_URL")
    if not url:
        config.require_set("store")
    return url or config.store.url


def store_file(config: Config) -> Path | None:
    """The database file of the store: of a sqlite:///… address, else store.path, else the home's; None: it is on a server."""
    url = store_url(config)
    if url is None:
        return local_file(config)
    file = file_of(url)
    return None if file is None else settled(file)


def local_file(config: Config) -> Path:
    """The database file that is used where no address is configured: store.path, else state.db in the home."""
    if config.store.path is not None:
        return settled(get_hermes_home() / Path(config.store.path).expanduser())
    return default_database()


def open_configured(config: Config, *, read_only: bool = False, path: Path | None = None) -> SessionDB:
    """The user's store, or the file `path`. Reading from one that does not exist yet opens (and creates) an empty one."""
    config.require_set("privacy", "sessions")
    config.require_known("store")
    file = path or store_file(config)
    missing = path is None and file is not None and not file.exists()
    try:
        return _open(config, file, read_only=read_only and not missing)
    except StoreMissing:
        return _open(config, file, read_only=False)


def open_existing(config: Config) -> SessionDB | None:
    """The user's store for reading only; None when there is none yet."""
    config.require_known("store")
    file = store_file(config)
    if file is not None and not file.exists():
        return None
    try:
        return _open(config, file, read_only=True)
    except StoreMissing:
        return None


def _open(config: Config, file: Path | None, *, read_only: bool) -> SessionDB:
    return SessionDB(
        file,
        url=store_url(config) if file is None else None,
        read_only=read_only,
        durability=config.store.durability,
        redact_secrets=config.privacy.redact_secrets,
        transcripts=config.sessions.transcripts,
    )


# ---------------------------------------------------------------------------------------------- housekeeping
#
# Housekeeping of a running chat or gateway: at its start, and once a day while it runs.
#
# Old sessions are pruned if config.yaml says so (sessions.auto_prune). In any case sessions
# that have been in the trash for sessions.trash_days are deleted, sessions that a crash left open for a day are ended, empty
# sessions are removed, and compressed children without any model call are ended.

_DAY = 86_400.0


def start(db: SessionDB, config: Config) -> threading.Thread | None:
    """Begin tidying in the background; None when the store can only be read. No program waits for it."""
    if db.read_only:
        return None
    thread = threading.Thread(target=_work, args=(db, config), name="hermes-housekeeping", daemon=True)
    thread.start()
    return thread


def _work(db: SessionDB, config: Config) -> None:
    while True:
        try:
            tidy(db, config)
        except StoreClosed:
            return
        except HermesError:
            pass  # retried the next day or at the next start; not reported in a conversation
        time.sleep(_DAY)


def tidy(db: SessionDB, config: Config) -> None:
    """Do all of it now. Every step leaves the store consistent, so an end of the program in between does no harm."""
    wanted = config.sessions
    if wanted.auto_prune:
        db.maybe_auto_prune_and_vacuum(wanted.retention_days, wanted.min_interval_hours, wanted.vacuum_after_prune)
    db.empty_trash(wanted.trash_days, by="trash_days")
    db.finalize_orphaned_compression_sessions()
    db.end_abandoned_sessions()
    db.prune_empty_ghost_sessions()
