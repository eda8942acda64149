"""Titles: unique names of sessions, in numbered families.

A family is stored as (base, number), not parsed from the text each time, so that a base too long for " #2" can be
shortened for display and still be found whole.
"""

from __future__ import annotations

from hermes.errors import TitleClash
from hermes.store.engines.base import Tx
from hermes.store.records.title_rules import MAX_TITLE, sanitize_title, shown_title, split_family
from hermes.store.records.visibility import User, session_clause
from hermes.store.text.index_text import fold


def titled_key(session_id: str) -> str:
    """The key of state_meta that records that a title was made for a session: no process makes another."""
    return f"titled:{session_id}"


def family_of(tx: Tx, title: str, session_id: str | None = None) -> tuple[str, int]:
    """The (base, number) a clean title stands for; a shortened base is found again by its members.

    Where two long bases shorten to the same, the family of the session's own parent is meant.
    """
    base, number = split_family(title)
    if number == 1 or len(title) < MAX_TITLE - 8:
        return base, number
    parent = tx.value(
        "SELECT p.title_base FROM sessions s JOIN sessions p ON p.id = s.parent_session_id WHERE s.id = ?",
        (session_id,),
    )
    like = "SELECT DISTINCT title_base FROM sessions WHERE title_base >= ? AND title_base < ?"
    for whole in (parent, *tx.column(like, (base, base + "\U0010ffff"))):
        if whole is not None and len(whole) > len(base) and shown_title(whole, number) == title:
            return whole, number
    return base, number


def set_title(tx: Tx, session_id: str, title: str | None, *, only_if_untitled: bool = False) -> bool:
    """Give a session a title (or remove it); False when there is no such session, or it has one and `only_if_untitled`."""
    clean = sanitize_title(title)
    here = "SELECT title FROM sessions WHERE id = ? AND trashed_at IS NULL AND purged IS NULL"
    session = tx.row(here, (session_id,))
    if session is None or (only_if_untitled and session[0] is not None):
        return False
    if clean is None:
        tx.run(
            "UPDATE sessions SET title = NULL, title_base = NULL, title_no = NULL, title_seen = NULL WHERE id = ?",
            (session_id,),
        )
        return True
    holder = tx.value("SELECT id FROM sessions WHERE title = ? AND id <> ?", (clean, session_id))
    if holder is not None:
        message = f"the title {clean!r} is already in use by session {holder}; choose another"
        raise TitleClash(message, holder=str(holder), title=clean)
    base, number = family_of(tx, clean, session_id)
    tx.run(
        "UPDATE sessions SET title = ?, title_base = ?, title_no = ?, title_seen = ? WHERE id = ?",
        (clean, base, number, clean, session_id),
    )
    return True


def next_title(tx: Tx, base: str) -> str:
    """`base` if it is unused, else the next free "base #n"; a numbered title counts from its own base."""
    clean = sanitize_title(base)
    if clean is None:
        return ""
    if tx.row("SELECT 1 FROM sessions WHERE title = ?", (clean,)) is None:
        base_of, number = family_of(tx, clean)
        if number == 1 and tx.row("SELECT 1 FROM sessions WHERE title_base = ?", (clean,)) is None:
            return clean
        clean = base_of
    base, _ = family_of(tx, clean)
    number = int(tx.value("SELECT max(title_no) FROM sessions WHERE title_base = ?", (base,)) or 0) + 1
    while tx.row("SELECT 1 FROM sessions WHERE title = ?", (shown_title(base, number),)) is not None:
        number += 1
    return shown_title(base, number)


def by_title(tx: Tx, title: str, visible_to: User | None) -> str | None:
    """The id of the session with exactly this title."""
    where, params = session_clause(visible_to)
    value = tx.value(f"SELECT s.id FROM sessions s WHERE s.title = ? AND {where}", [title, *params])
    return None if value is None else str(value)


def resolve(tx: Tx, title: str, visible_to: User | None) -> str | None:
    """The newest session of the family `title` names; a numbered title names that member itself."""
    try:
        clean = sanitize_title(title)
    except ValueError:
        return None
    if clean is None:
        return None
    where, params = session_clause(visible_to)
    exact = by_title(tx, clean, visible_to)
    if exact is not None and split_family(clean)[1] > 1:
        return exact
    newest = tx.value(
        f"SELECT s.id FROM sessions s WHERE s.title_base = ? AND s.title IS NOT NULL AND {where}"
        " ORDER BY s.title_no DESC, s.started_at DESC LIMIT 1",
        [clean, *params],
    )
    return exact if newest is None else str(newest)


def meant(tx: Tx, words: str, visible_to: User | None) -> list[str]:
    """The sessions that a person may mean by these words: one where it is clear, the newest first where it is not.

    Exactly this title, else the same in any case and with or without accents, else the titles that contain it; of each family
    its newest member.
    """
    exact = resolve(tx, words, visible_to)
    if exact is not None:
        return [exact]
    folded = " ".join(fold(words).split())
    where, params = session_clause(visible_to)
    rows = tx.rows(
        f"SELECT s.id, s.started_at, s.title, s.title_base FROM sessions s WHERE s.title IS NOT NULL AND {where}"
        " ORDER BY s.title_no DESC, s.started_at DESC",
        params,
    )
    same: dict[str, tuple[float, str]] = {}
    containing: dict[str, tuple[float, str]] = {}
    for session_id, started_at, title, base in rows if folded else ():
        if base is not None and fold(base) == folded:
            same.setdefault(base, (started_at, session_id))
        elif fold(title) == folded:  # a numbered title names that member itself
            same.setdefault(title, (started_at, session_id))
        elif folded in fold(title):
            containing.setdefault(base or title, (started_at, session_id))
    return [session_id for _, session_id in sorted((same or containing).values(), reverse=True)]


def adopt_foreign_titles(tx: Tx) -> None:
    """Give families to titles that another program set."""
    for session_id, title in tx.rows("SELECT id, title FROM sessions WHERE title IS DISTINCT FROM title_seen"):
        if not isinstance(title, str | None):  # a damaged row: `check` names it
            continue
        base, number = (None, None) if title is None else split_family(title)
        tx.run(
            "UPDATE sessions SET title_base = ?, title_no = ?, title_seen = title WHERE id = ?",
            (base, number, session_id),
        )
