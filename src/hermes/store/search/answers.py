"""Judges whether what a question found can be its answer, or is only the nearest there is.

Partial matches are found for nearly every question. They are weak where something speaks against them: the question names a
person or a year that no message has; the person writes here, and only others speak of the topic; sessions of the named time
hold far less of it than others; or hardly a word of the topic is held by any message. Each test has a threshold of its own,
chosen on the sets of `make recall` (`--refused`) so that hardly any right answer is called weak. A hit is weak,
too, if its session holds none of the names in the question.

The form of a question gives clues to its answer (who is to have said it, whether it names a time or a number), and a
question about a person who writes in this store is also asked in that person's own words: "Which race did Nora run?" as
"Which race did I run?".
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence, Set
from typing import NamedTuple

import msgspec

from hermes.store.engines.base import Holder, Tx, rows_among
from hermes.store.records import codec
from hermes.store.search.encoders import looks_english
from hermes.store.search.periods import MONTHS, WEEKDAYS
from hermes.store.text.index_text import UNSPACED, fold, pieces
from hermes.store.text.query import Leaf
from hermes.store.text.stems import STOP_WORDS, language_of

HEAD = 300  # characters of a message that are looked at
SIGNED = re.compile(r"\W*([^\W\d_]{2,})[^:\n]{0,24}:")
_WHEN = re.compile(r"\W*(?:when|since when|wann|seit wann|cuando|quand|khi nao|bao gio)\b|什么时候|何时|哪天|几号")
_NUMBER = re.compile(
    r"\bhow (?:many|much|long|old|far|tall|often)\b|\bwie(?: ?viele?|\s?lange| alt| oft)\b|\bcuant[oa]s?\b|\bcombien\b"
    r"|\bbao (?:nhieu|lau|xa)\b|多少|多久|多大|几[个年天次]"
)
_A_TIME = re.compile(
    r"\b(?:yesterday|today|tonight|tomorrow|ago|last|next|week(?:end)?s?|months?|years?|(?:mon|tues|wednes|thurs|fri|satur|sun)day"
    r"|january|february|march|april|may|june|july|august|september|october|november|december|morning|evening"
    r"|gestern|heute|morgen|vor|letzte[nrs]?|nachste[nrs]?|woche|monat|jahr|ayer|hoy|manana|pasad[oa]|semana|mes|ano"
    r"|hier|aujourd|demain|derniere?|semaine|mois|annee|hom qua|hom nay|tuan|thang|nam)\b"
    r"|\b(?:19|20)\d\d\b|昨天|今天|明天|上周|下周|[月周年号]"
)
_A_NUMBER = re.compile(
    r"\d|\b(?:one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|twenty|thirty|forty|fifty|hundred|thousand|dozen|half"
    r"|couple|zwei|drei|vier|funf|sechs|sieben|acht|neun|zehn|hundert|dos|tres|cuatro|cinco|seis|siete|ocho|nueve|diez|cien"
    r"|deux|trois|quatre|cinq|sept|huit|neuf|dix|cent|hai|ba|bon|nam|sau|bay|tam|chin|muoi)\b|[一二两三四五六七八九十百]"
)


def signer(text: str) -> str | None:
    """The folded name that a message is signed with; None without one."""
    signed = SIGNED.match(text, 0, 60) if text.find(":", 0, 60) > 0 else None  # most texts have no colon there
    return fold(signed[1]) if signed else None


class ClueWeights(NamedTuple):
    """How much each clue counts for a message."""

    signed: float
    asks: float
    time: float
    number: float


class Clues:
    """The clues of one question."""

    def __init__(self, question: str, weights: ClueWeights) -> None:
        folded = fold(question)
        self._names = frozenset(pieces(folded))
        self._wants_time = _WHEN.match(folded) is not None
        self._wants_number = _NUMBER.search(folded) is not None
        self._weights = weights

    def value(self, text: str, *, is_question: bool) -> float:
        """How much the clues speak for a message with this text."""
        value = self._weights.asks if is_question else 0.0
        if signer(text) in self._names:
            value += self._weights.signed
        if self._wants_time and _A_TIME.search(fold(text)):
            value += self._weights.time
        if self._wants_number and _A_NUMBER.search(fold(text)):
            value += self._weights.number
        return value


LOOKED_AT = 24  # messages that hold a name
ADDRESSED = 0.2  # the share of them that is signed with it or addresses a person by it
_AUXILIARY = "do|does|did|is|are|was|were|has|have|had|will|would|can|could|should|might|may|must"
_BEFORE_ME = "to|with|for|of|by|from|about|than|like|at|on|between"
_WORD = re.compile(r"[^\W\d_]{2,}")
_SUBJECT = re.compile(rf"\b(?:{_AUXILIARY})\s+([^\W\d_]{{2,}})(?:\s+and\s+([^\W\d_]{{2,}}))?", re.IGNORECASE)
_POSSESSIVE = re.compile(r"\b([^\W\d_]{2,})(?:['\u2019]s\b|(?<=s)['\u2019])", re.IGNORECASE)
_GREETING = (
    "hi|hey|hello|hiya|dear|thanks|thank you|thx|morning|evening|afternoon|night|bye|goodbye|congrats|congratulations|sorry|"
    "wow|yes|yeah|no|ok|okay|sure|welcome|hallo|danke|liebe|lieber|hola|gracias|querida|querido|bonjour|salut|merci|ciao"
)
_SPOKEN_TO = (
    "you|your|i|my|me|we|it|it's|i'm|i've|you're|that|that's|this|the|there|how|what|when|where|why|did|do|are|is|have|can|could|"
    "will|would|thanks|please|so|just|guess|good|great"
)
_HEADS = "SELECT id, substr(content, 1, 240) FROM messages WHERE {these}"


def spoken(tx: Tx, question: str, holders: Mapping[str, Sequence[int]]) -> str | None:
    """A question as the person it is about would say it; None if it is about no person that is known here. `holders`: the
    messages that hold each of its words, folded."""
    if not looks_english(question):
        return None
    names = [name for name in _candidates(question) if holders.get(name)]
    if not names:
        return None
    samples = {name: holders[name][:: max(1, len(holders[name]) // LOOKED_AT)][:LOOKED_AT] for name in names}
    ids = sorted({one for some in samples.values() for one in some})
    heads = {row[0]: fold(str(codec.restored(row[1]) or "")) for row in rows_among(tx, _HEADS, ids)}
    known = {name for name in names if is_addressed(name, [heads.get(one, "") for one in samples[name]])}
    found = _in_first_person(question, known) if known else question
    return found if found != question else None


def _candidates(question: str) -> list[str]:
    """The words that may be a person: written like a name, in the place of a subject, or owning something."""
    words = [match[0] for match in _WORD.finditer(question)]
    found = [word for word in words[1:] if word[0].isupper()]
    found += [name for match in _SUBJECT.finditer(question) for name in match.groups() if name]
    found += [match[1] for match in _POSSESSIVE.finditer(question)]
    return [name for name in dict.fromkeys(map(fold, found)) if name not in STOP_WORDS]


def is_addressed(name: str, texts: Sequence[str]) -> bool:
    """Whether messages are signed with a name, or people addressed by it."""
    word = re.escape(name)
    pattern = re.compile(
        rf"^\W*{word}\b[^:\n]{{0,24}}:"  # Nora: …, Nora (she/her): …
        rf"|\b(?:{_GREETING})[,!]?\s+(?:my\s+)?(?:dear\s+)?{word}\b"
        rf"|(?:^|[.!?\n]\s+){word}\s*(?:!|,\s+(?:{_SPOKEN_TO})\b)"  # and not "Postgres, Redis and Kafka run"
        rf"|,\s+{word}\s*(?:[!?]|\.(?:\s|$)|$)"
    )
    return sum(pattern.search(text) is not None for text in texts) >= max(1.0, ADDRESSED * len(texts))


def _in_first_person(question: str, known: set[str]) -> str:
    def owned(match: re.Match[str]) -> str:
        return "my" if fold(match[1]) in known else match[0]

    def subject(match: re.Match[str]) -> str:
        if fold(match[1]) not in known:
            return match[0]
        both = match[2] is not None and fold(match[2]) in known
        end = match.end(1) if not both else match.end()
        return f"{match[0][: match.start(1) - match.start()]}{'we' if both else 'I'}{match[0][end - match.start() :]}"

    found = _SUBJECT.sub(subject, _POSSESSIVE.sub(owned, question))
    if found != question:
        return found  # a further name stays as it is
    for match in _WORD.finditer(question):
        if fold(match[0]) in known:
            before, after = question[: match.start()], question[match.end() :]
            is_object = re.search(rf"\b(?:{_BEFORE_ME})\s+$", before, re.IGNORECASE) or not after.strip(" ?!.")
            return f"{before}{'me' if is_object else 'I'}{after}"
    return question


# How far others may be ahead of the person that the question names, and other times of the time that it names.
OTHERS_VALUE, OTHERS_NEAR = -9.0, -1.5  # where most messages are signed: by words, and with vectors
OTHERS_SHARE, OTHERS_BOTH = -0.35, -3.5  # where a session is signed once
TIMES_VALUE, TIMES_BOTH = -5.2, -3.2
SHARE_OF_PERSON, SHARE_OF_TIME = 3.0, 5.0  # what a share of the words counts beside deviations of nearness
MOSTLY, ALL = 0.6, 0.99  # of the topic's words that no message holds
BEST_OF_SOME, BEST_OF_NONE = 18.0, 20.0  # the best session's value by words, where most and where all are held by none
RELATED_TO_SOME, RELATED_TO_NONE = 0.75, 1.0  # and how near the nearest message is then
_YEAR = re.compile(r"\b(?:19|20)\d\d\b")


class QuestionWord(msgspec.Struct):
    """One word of a question, and the messages that hold a form of it."""

    leaves: list[Leaf]
    """The forms of the word, the typed one first."""
    is_name: bool = False
    """Whether the word is written like a name."""
    holders: Sequence[Holder] = ()
    also: Set[int] = frozenset()
    """Of a common word: older messages that hold it, visible or not."""
    held: float = 0.0
    """How many messages hold it, where `holders` are only the newest."""
    value: float = 0.0
    """How rare the word is."""
    messages: Set[int] = frozenset()
    """The messages that hold it, of those that hold any word of the question."""
    sessions: Counter[str] = msgspec.field(default_factory=Counter)
    """How many messages of each session hold it, without what the program's own assistants said."""

    @property
    def text(self) -> str:
        """The word as it was typed, folded."""
        return self.leaves[0].text


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


def is_weak(
    question: str, words: Sequence[QuestionWord], sessions: Sequence[Looked], *, named_time: bool, related: float | None
) -> bool:
    """Whether something speaks against all partial matches. `related`: see `Nearness.related`; None without vectors."""
    folded = fold(question)
    words = [word for word in words if not is_a_time(word.text)]
    if tells_names(question) and any(word.is_name and not word.messages for word in words):
        return True
    has_year = _YEAR.search(folded) is not None
    if named_time and has_year and not any(session.fits for session in sessions):
        return True
    signers = [[signer(text) for _, text, _ in session.messages] for session in sessions]
    persons = _persons(question, {name for names in signers for name in names if name})
    topic = [word for word in words if not word.is_name and not any(word.text in name for name in persons)]
    if persons and _is_of_others(topic, sessions, signers, persons, with_vectors=related is not None):
        return True
    if named_time and (has_year or not MONTHS.keys().isdisjoint(pieces(folded))):
        return _is_of_another_time(words, sessions, with_vectors=related is not None)
    return _is_of_something_else(topic, sessions, related)


def tells_names(question: str) -> bool:
    """Whether a capital marks a name: not in German, where every noun has one, and not where most words are typed so."""
    typed = question.split()
    return language_of(typed) != "german" and 2 * sum(word[:1].isupper() for word in typed) <= len(typed)


def is_a_time(word: str) -> bool:
    """Whether a word with a capital is a number, month or weekday, and no name."""
    return word.isdigit() or word in MONTHS or word in WEEKDAYS


def may_name(question: str) -> bool:
    """Whether a question may name a person: only then the messages' texts count."""
    return bool(capitalized(question)) or UNSPACED.search(fold(question)) is not None


def capitalized(question: str) -> set[str]:
    """The words written with a capital, without "I": a signature has two letters at least."""
    words = (fold(word) for word in question.split() if word.lstrip("¿¡(\"'")[:1].isupper())
    return {piece for word in words for piece in pieces(word) if len(piece) > 1}


def _persons(question: str, signers: set[str]) -> set[str]:
    """The names in the question that messages are signed with."""
    named = capitalized(question)
    return {name for name in signers if name in named or (UNSPACED.match(name) and name in fold(question))}


def _is_of_others(
    topic: Sequence[QuestionWord],
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
    lead, near_lead = _lead(parts)
    if each_signed:
        return near_lead < OTHERS_NEAR if with_vectors else lead * whole < OTHERS_VALUE
    both = SHARE_OF_PERSON * lead + near_lead
    return (lead < OTHERS_SHARE and near_lead <= 0.0) or (with_vectors and both < OTHERS_BOTH)


def _is_of_another_time(words: Sequence[QuestionWord], sessions: Sequence[Looked], *, with_vectors: bool) -> bool:
    """Whether sessions of other times than the named one hold far more of the question."""
    whole = sum(word.value for word in words) or 1.0
    parts: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
    for session in sessions:
        held = sum(word.value for word in words if session.id in word.sessions) / whole
        parts[session.fits].append((held, max((near for _, _, near in session.messages), default=0.0)))
    lead, near_lead = _lead(parts)
    if with_vectors:
        return SHARE_OF_TIME * lead + near_lead < TIMES_BOTH
    return lead * whole < TIMES_VALUE


def _is_of_something_else(topic: Sequence[QuestionWord], sessions: Sequence[Looked], related: float | None) -> bool:
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


def _lead(parts: dict[bool, list[tuple[float, float]]]) -> list[float]:
    """How far some messages or sessions (True) are ahead of the others: in shares of the words, and in nearness."""
    return [
        max((one[at] for one in parts[True]), default=0.0) - max((one[at] for one in parts[False]), default=0.0)
        for at in (0, 1)
    ]
