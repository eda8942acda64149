"""Clues to an answer that the form of a question gives: who is to have said it, and whether it names a time or a number.

A message signed with a name of the question ("Nora: …") counts more, a message that asks something itself counts less, and so
on. The weights were compared on the sets of `make recall`.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from hermes.store.text.index_text import fold, pieces

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
