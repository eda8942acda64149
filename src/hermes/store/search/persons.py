"""Questions about a person who writes in this store, in that person's own words: "Which race did Nora run?" as "Which race did
I run?".

Who tells something rarely says their own name, but others greet them by it: to a model the question is nearer to "Hey Nora!"
than to the answer. Only names by which messages are signed ("Nora: …") or people are addressed ("Thanks, Nora!") count, so
"Why did Postgres fail?" stays as it is. In English.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from hermes.store.engines.base import Tx, rows_among
from hermes.store.records import codec
from hermes.store.search.meaning.encoders import looks_english
from hermes.store.text.index_text import fold
from hermes.store.text.stems import STOP_WORDS

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
