"""Searches messages that wait to be indexed, in this process: a stored message is found at once, and a search writes nothing.

A waiting message is compared word by word, with the same words and in the same order as the index would have them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cached_property, partial
from itertools import islice
from typing import Any, NamedTuple

from hermes.errors import StoreCorrupt
from hermes.store.engines.base import SPEAKER, Candidate, Scope, Tx, columns_of, could_match, phrase_words
from hermes.store.records import codec
from hermes.store.text.index_text import WORD_BYTES, fold, index_words, vocabulary, worth_keeping
from hermes.store.text.query import And, Leaf, Node, Not

_APART = "\x01"  # between the columns of a message: in no word, so that no phrase spans columns
# Of waiting messages, held for one search; further ones are read again by each of its steps.
HELD_CHARACTERS = 32_000_000
READ = 200  # messages read at once
AT_ONCE = 500  # of those that match, compared with the scope of a search
COLUMNS = "id, content, content_rest, content_format, tool_name, tool_calls"
_LONGEST = 1_000  # characters of a word that are compared; of a longer one (base64, for example) only its beginning
Columns = tuple[str, str, str]


class IndexedRow(NamedTuple):
    """The columns of a message that the index needs, as they are stored."""

    id: int
    content: Any
    content_rest: bytes | None
    content_format: str | None
    tool_name: Any
    tool_calls: Any
    session_id: str = ""
    writer: int | None = None


def document(row: IndexedRow) -> tuple[str, str, str]:
    """The words of a message as its three index columns see them, not yet folded."""
    try:
        content = codec.joined(row.content, row.content_rest)
    except StoreCorrupt:  # one damaged text must not prevent finding the others
        content = str(row.content)
    return columns_of(content, row.content_format, row.tool_name, row.tool_calls)


class UnindexedMessage:
    """One message that waits. Its words are made when a search needs them."""

    def __init__(self, message_id: int, length: int, columns: Callable[[], Columns]) -> None:
        self.id, self.length, self._columns = message_id, length, columns

    @cached_property
    def columns(self) -> Columns:
        """The three index columns of the message, not folded."""
        return self._columns()

    @cached_property
    def folded(self) -> str:
        """The text of all columns, folded."""
        return fold(_APART.join(self.columns))

    @cached_property
    def _words(self) -> list[list[str]]:
        return [[word[:_LONGEST] for word in index_words(column)] for column in self.columns if column]

    @cached_property
    def line(self) -> str:
        """The words in order, each between its own two spaces."""
        return f" {f'  {_APART}  '.join('  '.join(words) for words in self._words)} "

    @property
    def size(self) -> int:
        """How many words it has."""
        if self.folded.isascii():  # without making its words
            return len(self.folded.encode().translate(WORD_BYTES).split())
        return sum(map(len, self._words))

    def words_with(self, part: str) -> list[str]:
        """The words of the message with this part, as far as words can be searched by a part."""
        if part not in self.folded:
            return []
        words = vocabulary(f"{self.columns[0]} {self.columns[2]}")
        return [word for one in worth_keeping(words) if part in (word := one.decode("utf-8", "replace"))]


class WaitingMessages:
    """The messages that wait in the view of one search, newest first. Each is read once, as far as they can be held."""

    def __init__(self, read: Callable[[Sequence[int]], Iterable[UnindexedMessage]], ids: Sequence[int]) -> None:
        self._read, self._ids = read, sorted(ids, reverse=True)
        self._held: dict[int, list[UnindexedMessage]] = {}
        self._room = HELD_CHARACTERS

    def __iter__(self) -> Iterator[UnindexedMessage]:
        for start in range(0, len(self._ids), READ):
            some = self._held.get(start)
            if some is None:
                some = sorted(self._read(self._ids[start : start + READ]), key=lambda one: -one.id)
                self._room -= sum(one.length for one in some)
                if self._room > 0:
                    self._held[start] = some
            yield from some


Test = Callable[[UnindexedMessage], bool]


def _test(tree: Node) -> Test | None:
    """Whether a message matches a tree, as a function; None when nothing in the tree is indexed."""
    if isinstance(tree, Leaf):
        return _leaf_test(tree)
    if isinstance(tree, Not):
        keep, drop = _test(tree.keep), _test(tree.drop)
        if keep is None or drop is None:
            return keep
        return lambda message: keep(message) and not drop(message)
    if isinstance(tree, And):
        tests = [test for child in tree.children if (test := _test(child)) is not None]
        return (lambda message: all(test(message) for test in tests)) if tests else None
    some = [test for child in tree.children if (test := _test(child)) is not None]
    return (lambda message: any(test(message) for test in some)) if some else None


def _leaf_test(leaf: Leaf) -> Test | None:
    words, open_end = phrase_words(leaf)
    if not words:
        return None
    needle = f" {'  '.join(word[:_LONGEST] for word in words)}{'' if open_end else ' '}"
    # A pattern that begins with plain text is searched fast: the border before the first word is checked after it.
    first = f"{re.escape(words[0])}(?<![a-z0-9](?s:.{{{len(words[0])}}}))"
    pattern = f"[^a-z0-9{_APART}]+".join((first, *map(re.escape, words[1:])))
    in_ascii = re.compile(pattern if open_end else f"{pattern}(?![a-z0-9])")

    def test(message: UnindexedMessage) -> bool:
        if not could_match(leaf, message.folded):
            return False
        if message.folded.isascii() and max(map(len, words)) < _LONGEST:  # without making its words
            return in_ascii.search(message.folded) is not None
        return needle in message.line

    return test


def matching(tree: Node, messages: Iterable[UnindexedMessage]) -> Iterator[UnindexedMessage]:
    """The messages that match a tree, in their order."""
    test = _test(tree)
    return iter(()) if test is None else filter(test, messages)


def words_with(part: str, fits: Callable[[str], bool], messages: Iterable[UnindexedMessage]) -> list[str]:
    """The words of the messages that have this part and fit."""
    return list(dict.fromkeys(word for one in messages for word in one.words_with(part) if fits(word)))


def read(tx: Tx, message_ids: Sequence[int]) -> Iterator[UnindexedMessage]:
    """Some of the messages that wait, as they are stored."""
    these, ids = tx.among("id", message_ids)
    for values in tx.rows(f"SELECT {COLUMNS} FROM messages WHERE {these}", ids):
        row = IndexedRow(*values)
        text = str(row.content or "")
        with suppress(StoreCorrupt):
            text = codec.joined(row.content, row.content_rest) or ""
        yield UnindexedMessage(row.id, len(text) + len(row.tool_calls or ""), partial(document, row))


def newest(tx: Tx, tree: Node, waiting: WaitingMessages, scope: Scope, cap: int) -> list[Candidate]:
    """The newest matches among the messages that wait, newest first."""
    found: list[Candidate] = []
    join = "JOIN sessions s ON s.id = m.session_id" if scope.needs_sessions else ""
    left = matching(tree, waiting)
    while len(found) < cap and (some := {one.id: one.size for one in islice(left, AT_ONCE)}):
        these, ids = tx.among("m.id", [*some])
        sql = f"SELECT m.id, m.session_id, {SPEAKER} FROM messages m {join} WHERE {these} AND {scope.where} ORDER BY m.id DESC"
        rows = tx.rows(sql, (*ids, *scope.params))
        found += [(one, some[one], session_id, role) for one, session_id, role in rows]
    return found[:cap]
