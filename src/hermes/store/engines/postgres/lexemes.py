"""A message as tsvectors: the same words as the SQLite engine's index has, with their places.

A tsvector holds at most 1 MB, counts places up to 16,383 and 255 of one word; a longer text becomes several parts that
overlap by as many words as a phrase may have. Between the columns of a message a place is left out, so that no phrase reaches
over. Equal parts (a text that repeats itself) are kept once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from hermes.store.engines.postgres.stretches import names
from hermes.store.query import MAX_PHRASE_WORDS
from hermes.store.text import index_words

PART_WORDS = 12_000
PART_CHARACTERS = 200_000
LEXEME_BYTES = 1_000  # a longer word (someone's base64) is cut: its beginning tells it well enough
SAME_WORD = 250
GAP = ""  # between columns
_NUMBERS = [str(number) for number in range(1, PART_WORDS + 2)]


def lexeme(word: str) -> str:
    """A word as the index has it."""
    raw = word.encode()
    return word if len(raw) <= LEXEME_BYTES else raw[:LEXEME_BYTES].decode("utf-8", "ignore")


def _sequence(columns: Iterable[str]) -> list[str]:
    words: list[str] = []
    for text in columns:
        if text:
            if words:
                words.append(GAP)
            words.extend(index_words(text))
    return words


# A row of message_words: message, part, whether that is the whole of it, how many words it has, and the words.
Entry = tuple[int, int, bool, int, str]


def entries(message_id: int, columns: Sequence[str]) -> list[Entry]:
    """The rows of message_words that a message, given as its index columns, has."""
    found, where = parts(columns), names(message_id)
    return [(message_id, number, len(found) == 1, size, f"{text} {where}") for number, (size, text) in enumerate(found)]


def parts(columns: Sequence[str]) -> list[tuple[int, str]]:
    """The parts of a message, given as its index columns: how many words each has, and its tsvector as PostgreSQL reads it."""
    words = _sequence(columns)
    if len(words) <= PART_WORDS and sum(map(len, columns)) <= PART_CHARACTERS:
        written = _written(words)
        if written is not None:
            return [(len(words), written)]
    return _cut(words)


def _cut(words: Sequence[str]) -> list[tuple[int, str]]:
    out: dict[str, int] = {}
    start = size = 0
    count: Counter[str] = Counter()
    for number, word in enumerate(words):
        if count[word] >= SAME_WORD or number - start >= PART_WORDS or size >= PART_CHARACTERS:
            out.setdefault(_written(words[start:number]) or "", number - start)
            start = max(start + 1, number + 1 - MAX_PHRASE_WORDS)
            count = Counter(words[start:number])
            size = sum(map(len, words[start:number]))
        count[word] += 1
        size += len(word)
    out.setdefault(_written(words[start:]) or "", len(words) - start)
    return [(number, text) for text, number in out.items()]


def _written(words: Sequence[str]) -> str | None:
    """Words and their places as PostgreSQL reads a tsvector; None when one of them comes too often."""
    places: dict[str, list[str]] = {}
    for place, word in zip(_NUMBERS, words):  # noqa: B905
        if word in places:
            places[word].append(place)
        else:
            places[word] = [place]
    places.pop(GAP, None)
    longest = max(map(len, places.values()), default=0)
    if longest > SAME_WORD + 1:
        return None
    long = [word for word in places if len(word) > LEXEME_BYTES // 4]
    for word in long:
        if (cut := lexeme(word)) != word:
            places[cut] = sorted({*places.get(cut, ()), *places.pop(word)}, key=int)
    if longest <= 1 and not long:
        return " ".join([f"'{word}':{numbers[0]}" for word, numbers in places.items()])
    return " ".join([f"'{word}':{','.join(numbers)}" for word, numbers in places.items()])


def quoted(word: str) -> str:
    """A word in quotes, for a tsquery. (No word of the index has a quote or a backslash in it.)"""
    return f"'{word}'"
