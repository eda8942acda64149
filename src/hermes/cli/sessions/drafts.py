"""Replies that a crash cut off, before they are read: stored first, so that `show` and `export` have every word.

A reply in progress lies in a draft until it is whole. The draft of a process that is gone belongs to the conversation; the
next question would store it, and so does looking at the conversation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hermes.cli.shared import opened
from hermes.errors import HermesError
from hermes.store.drafts import drafted

if TYPE_CHECKING:
    from hermes.store.db import SessionDB


def recover_drafts(db: SessionDB, session_id: str | None = None) -> None:
    """Store what crashed processes left of replies in a session (None: in every one). Where that fails, the drafts stay."""
    wanted = [one for one in drafted(db.path) if session_id in (None, one)]
    if not wanted:
        return
    from hermes.agent.turn_session import recover

    try:
        with opened(writing=True) as writer:
            for one in wanted:
                recover(writer, one)
    except (HermesError, OSError):
        return  # e.g. a file that can only be read: what is stored can be shown all the same
