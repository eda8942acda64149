"""Finds the session that a user means by an id or a title.

An exact id comes first, then a title, then an id prefix if it is unique. To resume, a title may be typed in any case or in
part, and means the newest of its numbered family ("Bug" continues "Bug #2"); from there the conversation continues at the end
of its chain of compressions (`continued`). Every other command acts on the session with exactly that title.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hermes.store.api.session_db import SessionDB
    from hermes.store.records.rows import SessionRow
    from hermes.store.records.visibility import User


_SHOWN = 10  # candidates


@dataclass(slots=True, frozen=True)
class ChosenSession:
    """The session that was found, or else the candidates, or similar titles."""

    session_id: str | None
    candidates: tuple[str, ...] = ()
    more: bool = False  # there are more candidates than these
    suggestions: tuple[str, ...] = ()


def find(db: SessionDB, words: str, *, visible_to: User | None = None, resuming: bool = False) -> ChosenSession:
    """Look a session up by id, title or id prefix; `resuming`: by the title as people type it."""
    if words and db.get_session(words, visible_to=visible_to) is not None:
        return ChosenSession(words)
    titled = db.sessions_meant_by_title(words, visible_to=visible_to) if resuming else _titled(db, words, visible_to)
    if len(titled) == 1:
        return ChosenSession(titled[0])
    candidates = db.session_ids_with_prefix(words, _SHOWN + 1, visible_to=visible_to) if words else []
    if len(candidates) == 1:
        return ChosenSession(candidates[0])
    if candidates := titled or candidates:
        return ChosenSession(None, candidates=tuple(candidates[:_SHOWN]), more=len(candidates) > _SHOWN)
    return ChosenSession(None, suggestions=tuple(_alike(db, words, visible_to)))


def _titled(db: SessionDB, words: str, visible_to: User | None) -> list[str]:
    """The session with exactly this title, as a title is stored."""
    try:
        title = db.sanitize_title(words)
    except ValueError:  # too long for any title
        return []
    row = db.get_session_by_title(title, visible_to=visible_to) if title else None
    return [] if row is None else [row["id"]]


def _alike(db: SessionDB, words: str, visible_to: User | None) -> list[str]:
    from difflib import get_close_matches

    from hermes.store.text.index_text import fold

    rows = db.list_sessions_rich(limit=500, order_by_last_active=True, visible_to=visible_to)
    titles = [title for row in rows if (title := row["title"])]
    folded = {fold(title): title for title in titles}
    close = [folded[name] for name in get_close_matches(fold(words), list(folded), n=3, cutoff=0.4)]
    close += [title for title in titles if words and fold(words) in fold(title) and title not in close]
    return close[:3]


def continued(db: SessionDB, session_id: str) -> str:
    """The session that continues another one: the end of its chain of compressions, or the first after it with messages."""
    tip = db.get_compression_tip(session_id)
    return db.get_compression_tip(db.resolve_resume_session_id(tip))


def message_count(db: SessionDB, row: SessionRow) -> int:
    """How many messages a session shows, including those it carries over from another one."""
    return message_counts(db, [row])[0]


def message_counts(db: SessionDB, rows: Sequence[SessionRow]) -> list[int]:
    """How many messages each of these sessions shows, as `message_count` says."""
    children = [row["id"] for row in rows if row["kind"] in ("branch", "compression")]
    carried = db.carried_message_counts(children) if children else {}
    return [int(row["message_count"] or 0) + carried.get(row["id"], 0) for row in rows]


def tool_call_count(db: SessionDB, row: SessionRow) -> int:
    """How many tool calls a session shows, including those in messages it carries over."""
    if row["kind"] not in ("branch", "compression"):
        return int(row["tool_call_count"] or 0)
    calls = (one["tool_calls"] for one in db.get_messages(row["id"]))
    return sum(len(one) if isinstance(one, list) else 1 for one in calls if one)


ONESHOT = "oneshot"  # end_reason of a session of one question (`hermes -q`); continued, it ends with another reason


def is_oneshot(row: Mapping[str, Any]) -> bool:
    """Whether a session is a single question (`hermes -q`) that was not continued."""
    return bool(row["end_reason"] == ONESHOT)
