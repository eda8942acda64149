"""A message as tsvectors: the same words as in the SQLite engine's index, with their positions.

A tsvector holds at most 1 MB, counts positions up to 16,383 and 255 of one word. A longer text has a row with its words but
without positions, and for phrases several parts that overlap by as many words as a phrase may have; of an enormous one there
are the parts only. Between the columns of a message a position is left out, so no phrase spans them. Equal parts (a text
that repeats itself) are stored once. Every row of a message has the number of words of the whole message.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from hermes.store.engines.postgres.id_ranges import ranges
from hermes.store.index_text import index_words, vocabulary
from hermes.store.query import MAX_PHRASE_WORDS

WHOLE_WORDS = 12_000
PART_WORDS = 3_000  # a phrase search reads the words of a part
PART_CHARACTERS = 200_000
LEXEME_BYTES = 1_000  # a longer word (base64, for example) is cut: its beginning identifies it well enough
SAME_WORD = 250
GAP = ""  # between columns
LONG = "#long"  # marks a row without positions. (No word of a text has a # in it.)
MOST_BYTES, MOST_DISTINCT = 800_000, 80_000  # of a row for a whole message
_PLACES = [f"':{number}" for number in range(1, WHOLE_WORDS + 2)]


def lexeme(word: str) -> str:
    """A word as the index has it."""
    raw = word.encode()
    return word if len(raw) <= LEXEME_BYTES else raw[:LEXEME_BYTES].decode("utf-8", "ignore")


def sequence(columns: Iterable[str]) -> list[str]:
    """The words of a message, given as its index columns, in order; GAP between columns."""
    words: list[str] = []
    for text in columns:
        if text:
            if words:
                words.append(GAP)
            words.extend(index_words(text))
    return words


# A row of message_words: message, part, whether that is the whole of it, how many words the message has, and the row's words.
Entry = tuple[int, int, bool, int, str]


def distinct_words(columns: Sequence[str]) -> set[bytes]:
    """The distinct words of a message, given as its index columns. The tool's name is not searched for parts."""
    return vocabulary(columns[0]) | vocabulary(columns[2]) if columns[2] else vocabulary(columns[0])


def entries(message_id: int, columns: Sequence[str]) -> list[Entry]:
    """The rows of message_words that a message, given as its index columns, has."""
    where, words = ranges(message_id), sequence(columns)
    size = len(words) - words.count(GAP)
    parts = list(dict.fromkeys(_written(some) for some in _pieces(words)))
    whole = f"{parts[0]} {where}"
    if len(parts) == 1 and len(whole.encode()) <= MOST_BYTES:
        return [(message_id, 0, True, size, whole)]
    rows = [f"{text} {where}" for text in parts]
    distinct = sorted({lexeme(word) for word in set(words) if word})
    whole = f"{' '.join(map(quoted, distinct))} {quoted(LONG)} {where}"
    if len(distinct) <= MOST_DISTINCT and len(whole.encode()) <= MOST_BYTES:
        rows.insert(0, whole)
    else:
        whole = ""
    return [(message_id, number, text == whole, size, text) for number, text in enumerate(rows)]


def _pieces(words: list[str], most: int = WHOLE_WORDS) -> Iterator[list[str]]:
    """The words in pieces that fit, halved until they do; each phrase is within one of them."""
    count = len(words)
    if count > 2 * MAX_PHRASE_WORDS and (
        count > most
        or sum(map(len, words)) > PART_CHARACTERS
        or (count > SAME_WORD and max(Counter(filter(None, words)).values(), default=0) > SAME_WORD)
    ):
        middle = count // 2
        yield from _pieces(words[: middle + MAX_PHRASE_WORDS], PART_WORDS)
        yield from _pieces(words[middle:], PART_WORDS)
    else:
        yield words


def _written(words: Sequence[str]) -> str:
    """Words and their positions as PostgreSQL reads a tsvector. (It merges the positions of repeated words itself.)"""
    if max(map(len, words), default=0) > LEXEME_BYTES // 4:
        words = [lexeme(word) for word in words]
    if GAP in words:
        return " ".join([f"'{word}{place}" for word, place in zip(words, _PLACES) if word])  # noqa: B905
    return " ".join([f"'{word}{place}" for word, place in zip(words, _PLACES)])  # noqa: B905


def quoted(word: str) -> str:
    """A word in quotes, for a tsquery. (No word of the index has a quote or a backslash in it.)"""
    return f"'{word}'"
