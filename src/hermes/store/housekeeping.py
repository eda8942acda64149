"""What is tidied while a program that talks runs: at its start, and once a day for as long as it lives.

Old sessions are pruned if config.yaml wants it (sessions.auto_prune). In any case sessions that have been in the trash for
sessions.trash_days are deleted, sessions that a crash left open for a day are ended, empty sessions are removed, and
compressed children that no model was ever asked in are closed.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from hermes.errors import HermesError, StoreClosed

if TYPE_CHECKING:
    from hermes.config import Config
    from hermes.store.db import SessionDB

_DAY = 86_400.0


def start(db: SessionDB, config: Config) -> threading.Thread | None:
    """Begin tidying in the background; None when the store can only be read. No program waits for it."""
    if db.read_only:
        return None
    thread = threading.Thread(target=_work, args=(db, config), name="hermes-housekeeping", daemon=True)
    thread.start()
    return thread


def _work(db: SessionDB, config: Config) -> None:
    never = threading.Event()
    while True:
        try:
            tidy(db, config)
        except StoreClosed:
            return
        except HermesError:
            pass  # the next day or the next start tries again; a conversation is not the place to hear of it
        never.wait(_DAY)


def tidy(db: SessionDB, config: Config) -> None:
    """Do all of it now. Every step leaves the store whole, so being cut off by the end of the program does no harm."""
    wanted = config.sessions
    if wanted.auto_prune:
        db.maybe_auto_prune_and_vacuum(wanted.retention_days, wanted.min_interval_hours, wanted.vacuum_after_prune)
    db.empty_trash(wanted.trash_days, by="trash_days")
    db.finalize_orphaned_compression_sessions()
    db.end_abandoned_sessions()
    db.prune_empty_ghost_sessions()
