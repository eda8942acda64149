"""What is tidied while one begins to talk; the prompt never waits for it.

Old sessions are pruned if config.yaml wants it (sessions.auto_prune). What has been in the trash long enough goes, and
what a crash left open for a day is ended, in any case.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from hermes.errors import HermesError

if TYPE_CHECKING:
    from hermes.config import Config
    from hermes.store.db import SessionDB


def start(db: SessionDB, config: Config) -> threading.Thread | None:
    """Begin tidying in the background; None when the store can only be read."""
    if db.read_only:
        return None
    thread = threading.Thread(target=_tidy, args=(db, config), name="housekeeping", daemon=True)
    thread.start()
    return thread


def _tidy(db: SessionDB, config: Config) -> None:
    """Every step leaves the store whole, so being cut off by the end of the program does no harm."""
    wanted = config.sessions
    try:
        if wanted.auto_prune:
            db.maybe_auto_prune_and_vacuum(wanted.retention_days, wanted.min_interval_hours, wanted.vacuum_after_prune)
        db.empty_trash(wanted.trash_days, by="trash_days")
        db.end_abandoned_sessions()
    except HermesError:
        pass  # the next start tries again; a conversation is not the place to hear of it
