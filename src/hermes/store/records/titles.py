"""Titles: unique names of sessions, in numbered families.

A family is stored as (base, number), not parsed from the text each time, so that a base too long for " #2" can be
shortened for display and still be found whole.

A title is cleaned once, when it is set: invisible characters (which could make two titles look alike, or turn
one around) are removed, white space is folded, and everything visible stays exactly as typed. Letters are
not normalised: an accent typed as a character of its own stays so, and the two spellings are two titles.
A family is "my project", "my project #2", "my project #3"; the number is at the end of the title only.

Invisible characters are listed here by code point instead of queried from `unicodedata`, so that a stored title
means the same under every Python version. Format characters that have a shape (Arabic number signs) stay.
"""

from __future__ import annotations

import re
from functools import cache

from hermes.errors import TitleClash, TitleTooLong
from hermes.store.engines.base import Tx
from hermes.store.records.visibility import User, session_clause
from hermes.store.text.index_text import fold

__all__ = ["MAX_TITLE", "sanitize_title", "shown_title", "split_family"]

MAX_TITLE = 100  # code points
_NUMBERED = re.compile(r"(.*\S) #([2-9]|[1-9][0-9]{1,8})", re.DOTALL)


def sanitize_title(text: str | None) -> str | None:
    """The title as it is stored, or None when nothing visible remains. Cleaning twice changes nothing.

    Removed: control characters, zero-width and other invisible format characters, direction marks and
    overrides, lone surrogates, soft hyphens, byte-order marks. Joiners, variation selectors and tags stay
    inside the emoji that are built with them and are removed everywhere else. All white space becomes single spaces.
    Raises TitleTooLong when more than MAX_TITLE characters remain.
    """
    if text is None:
        return None
    title = " ".join((text if text.isascii() and text.isprintable() else _visible(text)).split())
    if len(title) > MAX_TITLE:
        raise TitleTooLong(
            f"The title is too long: {len(title)} characters, and at most {MAX_TITLE} are allowed; shorten it."
        )
    return title or None


def split_family(title: str) -> tuple[str, int]:
    """The family a title belongs to and its number in it: ("my project", 3) for "my project #3".

    What counts is something, one space, "#" and a number from 2 to 999999999 in ASCII digits without leading
    zeros. Any other title ("bug #login page", "#5", "x #1", "x #007") is the first of a family of its own.
    """
    numbered = _NUMBERED.fullmatch(title)
    return (numbered[1], int(numbered[2])) if numbered else (title, 1)


def shown_title(base: str, number: int) -> str:
    """The title of a family's member: the base itself for number 1, else "base #number".

    Never longer than MAX_TITLE: the base is cut, where no emoji and no letter loses a part.
    """
    suffix = f" #{number}" if number > 1 else ""
    return _shortened(base, MAX_TITLE - len(suffix)) + suffix


def _visible(text: str) -> str:
    # The second pass must see its characters side by side, hence two.
    return _emoji_or_stray().sub(r"\1", _invisible().sub("", text))


def _shortened(text: str, room: int) -> str:
    if len(text) <= room:
        return text
    from unicodedata import category  # only titles near the limit need it

    cut = 0
    for cluster in _cluster().finditer(text):
        end = cluster.end()
        if end > room:
            break
        # Vowel and final jamo of a decomposed Korean syllable are letters, but no letters of their own.
        if not category(text[end]).startswith("M") and not "\u1160" <= text[end] <= "\u11ff":
            cut = end
    # One letter with a hundred marks has no good cut: cut it anywhere, and leave no joiner at the edge.
    return (text[:cut] or _visible(text[:room])).rstrip()


# The patterns are compiled when first needed: most processes never clean a title that is not plain ASCII.


@cache
def _invisible() -> re.Pattern[str]:
    return re.compile(
        r"[\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f\ud800-\udfff"  # control (white space apart), surrogates
        r"\u00ad\u034f\u061c\u180b-\u180f\u200b\u200c\u200e\u200f\u202a-\u202e\u2060-\u206f\ufeff\ufff0-\ufffb"
        r"\u115f\u1160\u17b4\u17b5\u3164\uffa0"  # fillers: letters and vowels that are blank
        r"\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"  # hieroglyph, shorthand, music
        r"\U000e0000-\U000e001f\U000e0080-\U000e0fff]"
    )


# Extended_Pictographic of Unicode 15.1 (with the places it holds free for emoji to come) and the skin tones.
_PICTURE = (
    r"[\xa9\xae\u203c\u2049\u2122\u2139\u2194-\u2199\u21a9\u21aa\u231a\u231b\u2328\u2388\u23cf\u23e9-\u23f3"
    r"\u23f8-\u23fa\u24c2\u25aa\u25ab\u25b6\u25c0\u25fb-\u25fe\u2600-\u2605\u2607-\u2612\u2614-\u2685"
    r"\u2690-\u2705\u2708-\u2712\u2714\u2716\u271d\u2721\u2728\u2733\u2734\u2744\u2747\u274c\u274e\u2753-\u2755"
    r"\u2757\u2763-\u2767\u2795-\u2797\u27a1\u27b0\u27bf\u2934\u2935\u2b05-\u2b07\u2b1b\u2b1c\u2b50\u2b55\u3030"
    r"\u303d\u3297\u3299\U0001f000-\U0001f0ff\U0001f10d-\U0001f10f\U0001f12f\U0001f16c-\U0001f171\U0001f17e"
    r"\U0001f17f\U0001f18e\U0001f191-\U0001f19a\U0001f1ad-\U0001f1e5\U0001f201-\U0001f20f\U0001f21a\U0001f22f"
    r"\U0001f232-\U0001f23a\U0001f23c-\U0001f23f\U0001f249-\U0001f53d\U0001f546-\U0001f64f\U0001f680-\U0001f6ff"
    r"\U0001f774-\U0001f77f\U0001f7d5-\U0001f7ff\U0001f80c-\U0001f80f\U0001f848-\U0001f84f\U0001f85a-\U0001f85f"
    r"\U0001f888-\U0001f88f\U0001f8ae-\U0001f8ff\U0001f90c-\U0001f93a\U0001f93c-\U0001f945\U0001f947-\U0001faff"
    r"\U0001fc00-\U0001fffd]"
)
_ELEMENT = _PICTURE + r"[\U0001f3fb-\U0001f3ff]?[\ufe0e\ufe0f]?"
_EMOJI = (
    r"\U0001f3f4[\U000e0030-\U000e0039\U000e0061-\U000e007a]{3,6}\U000e007f"  # the flag of Scotland
    r"|[0-9#*]\ufe0f?\u20e3"  # a keycap
    rf"|{_ELEMENT}(?:\u200d{_ELEMENT})*"
)


@cache
def _emoji_or_stray() -> re.Pattern[str]:
    """An emoji, which stays (group 1), or a character that only makes sense inside one."""
    return re.compile(rf"({_EMOJI})|[\u200d\ufe00-\ufe0f\U000e0020-\U000e007f]")


@cache
def _cluster() -> re.Pattern[str]:
    """An emoji, a flag of two regional letters, or one character."""
    return re.compile(rf"{_EMOJI}|[\U0001f1e6-\U0001f1ff]{{2}}|.", re.DOTALL)


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


def set_or_number(tx: Tx, session_id: str, title: str | None) -> None:
    """Give a session a title, or the next one of its family where another session has it."""
    taken = tx.row("SELECT 1 FROM sessions WHERE title = ? AND id <> ?", (title, session_id)) is not None
    set_title(tx, session_id, next_title(tx, title) if title and taken else title)


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
