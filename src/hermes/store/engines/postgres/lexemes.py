"""A message as tsvectors: the same words as the SQLite engine's index has, with their places.

A tsvector holds at most 1 MB, counts places up to 16,383 and 255 of one word; a longer text becomes several parts that
overlap by as many words as a phrase may have. Between the columns of a message a place is left out, so that no phrase reaches
over. Equal parts (a text that repeats itself) are kept once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from hermes.store.query import MAX_PHRASE_WORDS
from hermes.store.text import index_words

PART_WORDS = 12_000
PART_CHARACTERS = 200_000
LEXEME_BYTES = 1_000  # a longer word (someone's base64) is cut: its beginning tells it well enough
SAME_WORD = 250
GAP = ""  # between columns


def lexeme(word: str) -> str:
    """A word as the index has it."""
    raw = word.encode()
    return word if len(raw) <= LEXEME_BYTES else raw[:LEXEME_BYTES].decode("utf-8", "ignore")


def _sequence(columns: Iterable[str]) -> Iterator[str]:
    for number, text in enumerate(columns):
        if text:
            if number:
                yield GAP
            yield from index_words(text)


def parts(columns: Sequence[str]) -> list[tuple[int, str]]:
    """The parts of a message, given as its index columns: how many words each has, and its tsvector as PostgreSQL reads it."""
    out: dict[str, int] = {}
    sequence: list[str] = []
    count: dict[str, int] = {}
    size = 0
    for word in _sequence(columns):
        if word:
            word = lexeme(word)
            seen = count.get(word, 0)
            if seen >= SAME_WORD or len(sequence) >= PART_WORDS or size >= PART_CHARACTERS:
                out.setdefault(_written(sequence), len(sequence))
                sequence = sequence[1 - MAX_PHRASE_WORDS :]
                count, size = {}, 0
                for carried in sequence:
                    count[carried] = count.get(carried, 0) + 1
                    size += len(carried)
                seen = count.get(word, 0)
            count[word] = seen + 1
            size += len(word)
        sequence.append(word)
    out.setdefault(_written(sequence), len(sequence))
    return [(number, text) for text, number in out.items()]


def _written(sequence: Sequence[str]) -> str:
    places: dict[str, list[int]] = {}
    for place, word in enumerate(sequence, 1):
        if word:
            places.setdefault(word, []).append(place)
    return " ".join(f"{quoted(word)}:{','.join(map(str, numbers))}" for word, numbers in places.items())


def quoted(word: str) -> str:
    """A word in quotes, for a tsvector or a tsquery. (No word of the index has a quote or a backslash in it.)"""
    return f"'{word}'"
