"""A message as tsvectors: the same words as in the SQLite engine's index, with their positions.

A tsvector holds at most 1 MB, counts positions up to 16,383 and 255 of one word. A longer text has a row with its words but
without positions, and for phrases several parts that overlap by as many words as a phrase may have; of an enormous one there
are the parts only. Between the columns of a message a position is left out, so no phrase spans them. Equal parts (a text
that repeats itself) are stored once. Every row of a message has the number of words of the whole message.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from hermes.store.engines.base import phrase_words
from hermes.store.text.index_text import index_words, vocabulary
from hermes.store.text.query import MAX_PHRASE_WORDS, And, Leaf, Node, Not, Or

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
    parts = list(dict.fromkeys(_tsvector_text(some) for some in _pieces(words)))
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


def _tsvector_text(words: Sequence[str]) -> str:
    """Words and their positions as PostgreSQL reads a tsvector. (It merges the positions of repeated words itself.)"""
    if max(map(len, words), default=0) > LEXEME_BYTES // 4:
        words = [lexeme(word) for word in words]
    if GAP in words:
        return " ".join([f"'{word}{place}" for word, place in zip(words, _PLACES) if word])  # noqa: B905
    return " ".join([f"'{word}{place}" for word, place in zip(words, _PLACES)])  # noqa: B905


def quoted(word: str) -> str:
    """A word in quotes, for a tsquery. (No word of the index has a quote or a backslash in it.)"""
    return f"'{word}'"


# ---------------------------------------------------------------------------------------------- queries
#
# Translates a query tree for PostgreSQL: to a tsquery, and for messages indexed in several parts to SQL over them.
#
# User text is always quoted, or in a parameter.


def expression(tree: Node | None, *, loose: bool = False) -> str | None:
    """A query tree as a tsquery; None when nothing in it is indexed. User text is always quoted.

    `loose` requires of a phrase only that its words occur, which the index alone can answer: all matches of the tree match
    this, and perhaps others.
    """
    if tree is None:
        return None
    link = " & " if loose else " <-> "
    if isinstance(tree, Leaf):
        return next(iter(_alternatives([tree], link)), None)
    if isinstance(tree, Not):
        keep, drop = expression(tree.keep, loose=loose), expression(tree.drop)
        if keep is None or drop is None or (loose and "<->" in drop):
            return keep
        return f"({keep} & !{drop})"
    if isinstance(tree, Or):
        found = _alternatives((child for child in tree.children if isinstance(child, Leaf)), link)
        others: Iterable[Node] = (child for child in tree.children if not isinstance(child, Leaf))
    else:
        found, others = [], tree.children
    found += [part for child in others if (part := expression(child, loose=loose)) is not None]
    if not found:
        return None
    return found[0] if len(found) == 1 else f"({(' & ' if isinstance(tree, And) else ' | ').join(found)})"


def _words(leaf: Leaf) -> list[str]:
    """The words of a leaf as in a tsquery; none when nothing in it is indexed."""
    words, open_end = phrase_words(leaf)
    written = [quoted(lexeme(word)) for word in words]
    return [*written[:-1], f"{written[-1]}:*"] if open_end else written


def _alternatives(leaves: Iterable[Leaf], link: str) -> list[str]:
    """Leaves of which one is enough. Those with the same continuation are combined: ('a' | 'b') <-> 'c':* reads c… once."""
    beginnings: dict[tuple[str, ...], dict[str, None]] = {}
    for leaf in leaves:
        if words := _words(leaf):
            beginnings.setdefault(tuple(words[1:]), {})[words[0]] = None
    found: list[str] = []
    for rest, firsts in beginnings.items():
        if not rest:
            found += firsts
            continue
        first = next(iter(firsts)) if len(firsts) == 1 else f"({' | '.join(firsts)})"
        found.append(f"({link.join((first, *rest))})")
    return found


def is_unit(tree: Node) -> bool:
    """Whether one position in a message can match it: a leaf, or alternative leaves."""
    return isinstance(tree, Leaf) or (isinstance(tree, Or) and all(isinstance(child, Leaf) for child in tree.children))


def in_parts(tree: Node, where: Window) -> tuple[str, list[str]] | None:
    """SQL for the long messages that match a tree, from those that have a part which matches a unit of it; None when
    nothing of it is indexed."""
    if is_unit(tree):
        match = expression(tree)
        if match is None:
            return None
        return "SELECT message_id FROM message_words WHERE NOT whole AND words @@ ?::tsquery", [where.within(match)]
    if isinstance(tree, Not):
        keep, drop = in_parts(tree.keep, where), in_parts(tree.drop, where)
        if keep is None or drop is None:
            return keep
        return f"({keep[0]}) EXCEPT ({drop[0]})", [*keep[1], *drop[1]]
    assert isinstance(tree, And | Or)
    sets = [found for child in tree.children if (found := in_parts(child, where)) is not None]
    if not sets:
        return None
    link = " INTERSECT " if isinstance(tree, And) else " UNION "
    return link.join(f"({sql})" for sql, _ in sets), [one for _, params in sets for one in params]


# ---------------------------------------------------------------------------------------------- newest first
#
# Ranges of message ids as words of the index, so that a search reads the newest messages first.
#
# Only the newest few hundred matches are ranked, but a GIN index knows no order: it would return every message that has a
# common word. So the index entry of each message also has words for the id ranges it is in (4,096 messages, eight times as
# many, and so on), and a search queries "these words, in the last two ranges" and widens from there. The server steps through
# the shorter of the two lists, so the work is bounded by the query, not by the size of the store.

FIRST_SHIFT = 12
STEP = 3
LAST_SHIFT = 30
SHIFTS = range(FIRST_SHIFT, LAST_SHIFT + 1, STEP)
MOST_AT_ONCE = 4  # ranges of one length in a query
WIDEN = 512  # times as many messages, at most, from one window to the next


def ranges(message_id: int) -> str:
    """The id ranges of a message, as PostgreSQL reads them in a tsvector. (No word of a text has a # in it.)"""
    return " ".join([f"'#{shift}.{message_id >> shift}'" for shift in SHIFTS])


@dataclass(frozen=True, slots=True)
class Window:
    """Messages from the id `first` on up to one before `end`, as a part of a tsquery; None where that is the whole store."""

    first: int
    end: int
    condition: str | None

    def within(self, match: str) -> str:
        """A tsquery that finds the matches in this window, and perhaps more from `end` on."""
        return match if self.condition is None else f"({match}) & {self.condition}"


def window(newest: int, length: int, end: int | None = None) -> Window:
    """The window that holds at least the newest `length` ids, up to `end`."""
    end = newest + 1 if end is None else end
    for shift in SHIFTS:
        last, first = (end - 1) >> shift, max(0, newest - length) >> shift
        if first == 0:
            break
        if last - first < MOST_AT_ONCE:
            blocks = " | ".join(f"'#{shift}.{block}'" for block in range(last, first - 1, -1))
            return Window(first << shift, end, f"({blocks})")
    return Window(0, end, None)


class Widening:
    """From the newest messages to all of them, each window below the one before, until a search has what it needs."""

    def __init__(self, newest: int, needed: int, first: int = 1 << FIRST_SHIFT) -> None:
        """`first`: how many of the newest ids the first window has at least."""
        self._newest, self._needed, self._first = newest, needed, first
        self.found = 0  # in all windows so far: set by the caller after each

    def __iter__(self) -> Iterator[Window]:
        length, end = self._first, self._newest + 1
        while True:
            now = window(self._newest, length, end)
            yield now
            end = now.first
            if end == 0 or self.found >= self._needed:
                return
            looked_at = self._newest - end + 1
            likely = int(1.3 * looked_at * self._needed / self.found) if self.found else looked_at * WIDEN
            length = max(looked_at * 2, min(likely, looked_at * WIDEN))
