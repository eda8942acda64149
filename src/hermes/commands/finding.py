"""The session a person means by what they typed.

An exact id comes first, then a title (the newest of its family), then the beginning of an id if only one begins so.
A session that was compressed goes on at the end of its chain.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hermes.store.db import SessionDB
    from hermes.store.visibility import User


_SHOWN = 10  # candidates


@dataclass(slots=True, frozen=True)
class Found:
    """One session, or those it could have been, or titles that look alike."""

    session_id: str | None
    candidates: tuple[str, ...] = ()
    more: bool = False  # there are more candidates than these
    suggestions: tuple[str, ...] = ()


def find(db: SessionDB, words: str, *, visible_to: User | None = None) -> Found:
    """Look a session up by id, title or the beginning of an id."""
    if words and db.get_session(words, visible_to=visible_to) is not None:
        return Found(words)
    by_title = db.resolve_session_by_title(words, visible_to=visible_to) if words else None
    if by_title is not None:
        return Found(by_title)
    candidates = db.session_ids_with_prefix(words, _SHOWN + 1, visible_to=visible_to) if words else []
    if len(candidates) == 1:
        return Found(candidates[0])
    if candidates:
        return Found(None, candidates=tuple(candidates[:_SHOWN]), more=len(candidates) > _SHOWN)
    return Found(None, suggestions=tuple(_alike(db, words, visible_to)))


def _alike(db: SessionDB, words: str, visible_to: User | None) -> list[str]:
    from difflib import get_close_matches

    rows = db.list_sessions_rich(limit=500, order_by_last_active=True, visible_to=visible_to)
    titles = [row["title"] for row in rows if row.get("title")]
    folded = {title.casefold(): title for title in titles}
    close = [folded[name] for name in get_close_matches(words.casefold(), list(folded), n=3, cutoff=0.4)]
    close += [title for title in titles if words and words.casefold() in title.casefold() and title not in close]
    return close[:3]


def continued(db: SessionDB, session_id: str) -> str:
    """Where a session goes on: the end of its chain of compressions, or the first after it that holds messages."""
    tip = db.get_compression_tip(session_id)
    return db.get_compression_tip(db.resolve_resume_session_id(tip))
