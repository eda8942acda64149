"""Whether what a question found can be its answer, or is only the nearest there is.

Partial matches are found for nearly every question. They are weak where something speaks against them: the question names a
person or a year that no message has; the person writes here, and only others speak of the topic; sessions of the named time
hold far less of it than others; or hardly a word of the topic is held by any message. Each test has a threshold of its own,
chosen on the sets of `make recall` (`--refused`) so that hardly any right answer is called weak. A hit is weak,
too, if its session holds none of the names in the question.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence, Set
from typing import NamedTuple

from hermes.store.search.clues import signer
from hermes.store.search.periods import MONTHS, WEEKDAYS
from hermes.store.text.index_text import UNSPACED, fold, pieces
from hermes.store.text.stems import language_of

# How far others may be ahead of the person that the question names, and other times of the time that it names.
OTHERS_VALUE, OTHERS_NEAR = -9.0, -1.5  # where most messages are signed: by words, and with vectors
OTHERS_SHARE, OTHERS_BOTH = -0.35, -3.5  # where a session is signed once
TIMES_VALUE, TIMES_BOTH = -5.2, -3.2
SHARE_OF_PERSON, SHARE_OF_TIME = 3.0, 5.0  # what a share of the words counts beside deviations of nearness
MOSTLY, ALL = 0.6, 0.99  # of the topic's words that no message holds
BEST_OF_SOME, BEST_OF_NONE = 18.0, 20.0  # the best session's value by words, where most and where all are held by none
RELATED_TO_SOME, RELATED_TO_NONE = 0.75, 1.0  # and how near the nearest message is then
_YEAR = re.compile(r"\b(?:19|20)\d\d\b")


class Word(NamedTuple):
    """A word of the question."""

    text: str
    is_name: bool
    """Whether the word is written like a name."""
    value: float
    """How rare the word is."""
    messages: Set[int]
    """The messages that hold it."""
    sessions: Set[str]


class Looked(NamedTuple):
    """A session that was looked into."""

    id: str
    value: float
    """The score of the session by words."""
    fits: bool
    """Whether the session is of the time that the question names."""
    messages: Sequence[tuple[int, str, float]]
    """The id, the beginning of the text, and how near it is to what the question means (0 without vectors). None are needed
    without vectors where the question can name no person."""


class _Lead(NamedTuple):
    """How far some messages or sessions are ahead of the others."""

    share: float
    """In shares of the words."""
    near: float


def is_weak(
    asked: str, words: Sequence[Word], sessions: Sequence[Looked], *, named_time: bool, related: float | None
) -> bool:
    """Whether something speaks against all partial matches. `related`: see `Nearness.related`; None without vectors."""
    folded = fold(asked)
    words = [word for word in words if not is_a_time(word.text)]
    if tells_names(asked) and any(word.is_name and not word.messages for word in words):
        return True
    has_year = _YEAR.search(folded) is not None
    if named_time and has_year and not any(session.fits for session in sessions):
        return True
    signers = [[signer(text) for _, text, _ in session.messages] for session in sessions]
    persons = _persons(asked, {name for names in signers for name in names if name})
    topic = [word for word in words if not word.is_name and not any(word.text in name for name in persons)]
    if persons and _is_of_others(topic, sessions, signers, persons, with_vectors=related is not None):
        return True
    if named_time and (has_year or not MONTHS.keys().isdisjoint(pieces(folded))):
        return _is_of_another_time(words, sessions, with_vectors=related is not None)
    return _is_of_something_else(topic, sessions, related)


def tells_names(asked: str) -> bool:
    """Whether a capital marks a name: not in German, where every noun has one, and not where most words are typed so."""
    typed = asked.split()
    return language_of(typed) != "german" and 2 * sum(word[:1].isupper() for word in typed) <= len(typed)


def is_a_time(word: str) -> bool:
    """Whether a word with a capital is a number, month or weekday, and no name."""
    return word.isdigit() or word in MONTHS or word in WEEKDAYS


def may_name(asked: str) -> bool:
    """Whether a question may name a person: only then the messages' texts count."""
    return bool(capitalized(asked)) or UNSPACED.search(fold(asked)) is not None


def capitalized(asked: str) -> set[str]:
    """The words written with a capital, without "I": a signature has two letters at least."""
    words = (fold(word) for word in asked.split() if word.lstrip("¿¡(\"'")[:1].isupper())
    return {piece for word in words for piece in pieces(word) if len(piece) > 1}


def _persons(asked: str, signers: set[str]) -> set[str]:
    """The names in the question that messages are signed with."""
    named = capitalized(asked)
    return {name for name in signers if name in named or (UNSPACED.match(name) and name in fold(asked))}


def _is_of_others(
    topic: Sequence[Word],
    sessions: Sequence[Looked],
    signers: Sequence[Sequence[str | None]],
    persons: set[str],
    *,
    with_vectors: bool,
) -> bool:
    """Whether others than the named persons speak of the topic. Where most messages are signed, a person's messages are those
    that they signed, else those of the sessions in which they signed one."""
    whole = sum(word.value for word in topic) or 1.0
    share: dict[int, float] = defaultdict(float)
    for word in topic:
        for message_id in word.messages:
            share[message_id] += word.value / whole
    names = [name for some in signers for name in some]
    each_signed = 2 * sum(name is not None for name in names) > len(names)
    parts: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
    for session, some in zip(sessions, signers, strict=True):
        is_theirs = not persons.isdisjoint(some)
        for (message_id, _, near), name in zip(session.messages, some, strict=True):
            parts[name in persons if each_signed else is_theirs].append((share.get(message_id, 0.0), near))
    lead = _lead(parts)
    if each_signed:
        return lead.near < OTHERS_NEAR if with_vectors else lead.share * whole < OTHERS_VALUE
    both = SHARE_OF_PERSON * lead.share + lead.near
    return (lead.share < OTHERS_SHARE and lead.near <= 0.0) or (with_vectors and both < OTHERS_BOTH)


def _is_of_another_time(words: Sequence[Word], sessions: Sequence[Looked], *, with_vectors: bool) -> bool:
    """Whether sessions of other times than the named one hold far more of the question."""
    whole = sum(word.value for word in words) or 1.0
    parts: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
    for session in sessions:
        held = sum(word.value for word in words if session.id in word.sessions) / whole
        parts[session.fits].append((held, max((near for _, _, near in session.messages), default=0.0)))
    lead = _lead(parts)
    if with_vectors:
        return SHARE_OF_TIME * lead.share + lead.near < TIMES_BOTH
    return lead.share * whole < TIMES_VALUE


def _is_of_something_else(topic: Sequence[Word], sessions: Sequence[Looked], related: float | None) -> bool:
    """Whether the topic's words are hardly known here, and nothing stands out for the others."""
    unheld = sum(not word.messages for word in topic) / len(topic) if topic else 0.0
    best = max((session.value for session in sessions), default=0.0)
    return any(
        unheld >= least and best < value and (related is None or related < near)
        for least, value, near in (
            (MOSTLY, BEST_OF_SOME, RELATED_TO_SOME),
            (ALL, BEST_OF_NONE, RELATED_TO_NONE),
        )
    )


def _lead(parts: dict[bool, list[tuple[float, float]]]) -> _Lead:
    return _Lead(*(_most(parts[True], at) - _most(parts[False], at) for at in (0, 1)))


def _most(values: Iterable[tuple[float, float]], at: int) -> float:
    return max((one[at] for one in values), default=0.0)
