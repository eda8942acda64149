"""Housekeeping of a running chat or gateway: at its start, and once a day while it runs.

Old sessions are pruned if config.yaml says so (sessions.auto_prune), after the days of their source. In any case sessions that
have been in the trash for sessions.trash_days are deleted, sessions that a crash left open for a day are ended, empty sessions
are removed, and compressed children without any model call are ended.
"""

from __future__ import annotations

import threading
import time
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
