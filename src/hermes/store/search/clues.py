"""What the form of a question gives: clues to its answer (who is to have said it, whether it names a time or a number).

And questions about a person who writes in this store, in that person's own words: "Which race did Nora run?" as "Which race
did I run?".
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from hermes.store.engines.base import Tx, rows_among
from hermes.store.records import codec
from hermes.store.search.meaning.encoders import looks_english
from hermes.store.text.index_text import fold, pieces
from hermes.store.text.stems import STOP_WORDS

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

    def __init__(self, asked: str, weights: ClueWeights) -> None:
        folded = fold(asked)
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


def spoken(tx: Tx, asked: str, holders: Mapping[str, Sequence[int]]) -> str | None:
    """A question as the person it is about would say it; None if it is about no person that is known here. `holders`: the
    messages that hold each of its words, folded."""
    if not looks_english(asked):
        return None
    names = [name for name in _candidates(asked) if holders.get(name)]
    if not names:
        return None
    samples = {name: holders[name][:: max(1, len(holders[name]) // LOOKED_AT)][:LOOKED_AT] for name in names}
    ids = sorted({one for some in samples.values() for one in some})
    heads = {row[0]: fold(str(codec.restored(row[1]) or "")) for row in rows_among(tx, _HEADS, ids)}
    known = {name for name in names if is_addressed(name, [heads.get(one, "") for one in samples[name]])}
    found = _in_first_person(asked, known) if known else asked
    return found if found != asked else None


def _candidates(asked: str) -> list[str]:
    """The words that may be a person: written like a name, where a subject stands, or owning something."""
    words = [match[0] for match in _WORD.finditer(asked)]
    found = [word for word in words[1:] if word[0].isupper()]
    found += [name for match in _SUBJECT.finditer(asked) for name in match.groups() if name]
    found += [match[1] for match in _POSSESSIVE.finditer(asked)]
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


def _in_first_person(asked: str, known: set[str]) -> str:
    def owned(match: re.Match[str]) -> str:
        return "my" if fold(match[1]) in known else match[0]

    def subject(match: re.Match[str]) -> str:
        if fold(match[1]) not in known:
            return match[0]
        both = match[2] is not None and fold(match[2]) in known
        end = match.end(1) if not both else match.end()
        return f"{match[0][: match.start(1) - match.start()]}{'we' if both else 'I'}{match[0][end - match.start() :]}"

    found = _SUBJECT.sub(subject, _POSSESSIVE.sub(owned, asked))
    if found != asked:
        return found  # a further name stays as it is
    for match in _WORD.finditer(asked):
        if fold(match[0]) in known:
            before, after = asked[: match.start()], asked[match.end() :]
            is_object = re.search(rf"\b(?:{_BEFORE_ME})\s+$", before, re.IGNORECASE) or not after.strip(" ?!.")
            return f"{before}{'me' if is_object else 'I'}{after}"
    return asked
