"""Leaving: the session ends, and the user learns how to come back."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from hermes.commands.going import USER_EXIT
from hermes.commands.text import duration, message_count
from hermes.harmless import harmless

if TYPE_CHECKING:
    from hermes.store.db import SessionDB


def end(db: SessionDB, session_id: str, reason: str = USER_EXIT) -> bool:
    """End a session, if anything was said in it; whether it was."""
    if db.get_session(session_id) is None:
        return False
    db.end_session(session_id, reason)
    return True


def farewell(db: SessionDB, session_id: str, since: float) -> list[str]:
    """What is said on leaving: which session, how long, how much, and the line that resumes it. [] if nothing was said."""
    row = db.get_session(session_id)
    if row is None:
        return []
    return [
        f"Session   {session_id}",
        f"Title     {harmless(row['title'] or '—')}",
        f"Duration  {duration(time.time() - since)}",
        f"Messages  {message_count(db, row):,}",
        f"Resume    {resume_line(session_id)}",
    ]


def resume_line(session_id: str) -> str:
    """What to type in a shell to go on with a session."""
    import shlex

    return f"hermes -r {shlex.quote(session_id)}"
