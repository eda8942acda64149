"""A message as tsvectors: the same words as in the SQLite engine's index, with their positions.

A tsvector holds at most 1 MB, counts positions up to 16,383 and 255 of one word. A longer text has a row with its words but
without positions, and for phrases several parts that overlap by as many words as a phrase may have; of an enormous one there
are the parts only. Between the columns of a message a position is left out, so no phrase spans them. Equal parts (a text
that repeats itself) are stored once. A name made of several words, a_b, is also indexed whole
and without a position: a search for it finds it at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from hermes.store.engines.postgres.id_ranges import names
from hermes.store.index_text import index_words, vocabulary_and_names
from hermes.store.query import MAX_PHRASE_WORDS

WHOLE_WORDS = 12_000
PART_WORDS = 3_000  # a phrase search reads the words of a part
PART_CHARACTERS = 200_000
LEXEME_BYTES = 1_000  # a longer word (base64, for example) is cut: its beginning identifies it well enough
SAME_WORD = 250
LONGEST_NAME = 250  # bytes; a longer one is a token or the like
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


# A row of message_words: message, part, whether that is the whole of it, how many words it has, and the words.
Entry = tuple[int, int, bool, int, str]


def words_and_names(columns: Sequence[str]) -> tuple[set[bytes], set[bytes]]:
    """The distinct words and names of a message, given as its index columns. The tool's name is not searched for parts."""
    words, names_in_it = vocabulary_and_names(columns[0])
    if columns[2]:
        more, more_names = vocabulary_and_names(columns[2])
        words |= more
        names_in_it |= more_names
    return words, {name for name in names_in_it if len(name) <= LONGEST_NAME} if names_in_it else names_in_it


def listed(names_in_it: Iterable[bytes]) -> list[str]:
    """Names in order, as texts."""
    return [name.decode("utf-8", "replace") for name in sorted(names_in_it)]


def entries(message_id: int, columns: Sequence[str], names_in_it: Iterable[bytes]) -> list[Entry]:
    """The rows of message_words that a message, given as its index columns, has."""
    where, named_in_it = names(message_id), listed(names_in_it)
    parts: dict[str, int] = {}
    words = sequence(columns)
    for some in _pieces(words):
        parts.setdefault(_written(some), len(some))
    named = " ".join(map(named_lexeme, named_in_it))
    if len(parts) == 1:
        ((text, size),) = parts.items()
        whole = f"{text} {named} {where}"
        if len(whole.encode()) <= MOST_BYTES:
            return [(message_id, 0, True, size, whole)]
    found = [(size, text) for text, size in parts.items()]
    distinct = sorted({lexeme(word) for word in set(words) if word})
    whole = f"{' '.join(map(quoted, distinct))} {named} {quoted(LONG)} {where}"
    if len(distinct) <= MOST_DISTINCT and len(whole.encode()) <= MOST_BYTES:
        total = sum(parts.values())
        rows = [(message_id, number, False, size, f"{text} {where}") for number, (size, text) in enumerate(found, 1)]
        return [(message_id, 0, True, total, whole), *rows]
    each = PART_CHARACTERS // LONGEST_NAME
    for start in range(0, len(named_in_it), each):
        found.append((0, " ".join(map(named_lexeme, named_in_it[start : start + each]))))
    return [(message_id, number, False, size, f"{text} {where}") for number, (size, text) in enumerate(found)]


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


def named_lexeme(name: str) -> str:
    """A name in quotes, as in a tsvector or a tsquery: no word prefix is the prefix of a name, since lexemes
    without a position would break phrase search."""
    return f"'#{name}'"
