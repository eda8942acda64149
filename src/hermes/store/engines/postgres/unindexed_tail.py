"""Searches messages that wait to be indexed, in this process: a stored message is found at once, and a search writes nothing.

A search reads the text of each waiting message once. It is compared word by word, with
the same words and the same score as the index would give. So a store opened for reading, a replica and a role that may not
write find the messages that an ended process left, and a long queue costs a search the reading of its texts, not its indexing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from hermes.store.engines.base import could_match
from hermes.store.engines.postgres.lexemes import lexeme, sequence, words_and_names
from hermes.store.index_text import fold, phrase, worth_keeping
from hermes.store.query import And, Leaf, Node, Not

KEPT_CHARACTERS = 32_000_000  # of waiting messages; further ones are read again by each step of a search
READ = 200  # messages read at once
_APART = "\x01"  # between the columns of a message: in no word, so that no phrase spans columns
Columns = tuple[str, str, str]
Read = Callable[[Any, Sequence[int]], list[tuple[int, Columns]]]


class UnindexedMessage:
    """One message that waits. Its words are made when a search needs them."""

    __slots__ = ("_columns", "_line", "folded", "id", "names", "size")

    def __init__(self, message_id: int, columns: Columns) -> None:
        self.id, self._columns = message_id, columns
        self.folded = fold("\n".join(columns))
        self._line: str | None = None
        self.size = 0
        self.names: set[str] = set()

    @property
    def line(self) -> str:
        """The words in order, each between its own two spaces."""
        if self._line is None:
            words = sequence(self._columns)
            self.size = len(words)
            self.names = {name.decode("utf-8", "replace") for name in words_and_names(self._columns)[1]}
            self._line = f" {'  '.join(lexeme(word) or _APART for word in words)} "
        return self._line

    def around(self, part: str) -> list[str]:
        """The words with this part, that can be searched by a part."""
        if part not in self.folded:
            return []
        if self.folded.isascii():
            words = set(re.findall(f"[a-z0-9]*{re.escape(part)}[a-z0-9]*".encode(), self.folded.encode()))
        else:
            words = words_and_names(self._columns)[0]
        return [word for one in worth_keeping(words) if part in (word := one.decode("utf-8", "replace"))]

    def has_name(self, name: str) -> bool:
        return bool(self.line) and name in self.names


def wanted(leaf: Leaf) -> str:
    """A leaf as a part of `Waiting.line`; "" when nothing in it is indexed."""
    words, open_end = phrase(leaf.text)
    if not words:
        return ""
    return f" {'  '.join(lexeme(word) for word in words.split())}{'' if leaf.prefix or open_end else ' '}"


def holds(tree: Node, message: UnindexedMessage) -> bool | None:
    """Whether a message matches a tree; None when nothing of it is indexed."""
    if isinstance(tree, Leaf):
        if tree.kind == "name":
            return message.has_name(tree.text)
        part = wanted(tree)
        return part in message.line if part else None
    if isinstance(tree, Not):
        keep = holds(tree.keep, message)
        return keep and holds(tree.drop, message) is not True
    told = [answer for child in tree.children if (answer := holds(child, message)) is not None]
    if not told:
        return None
    return all(told) if isinstance(tree, And) else any(told)


def occurrences(words: Sequence[str], message: UnindexedMessage) -> float:
    """The count of the words (as in a tsquery), as ts_rank counts: the second a quarter, and so on."""
    total = 0.0
    for given in words:
        word = given.strip("()")
        if word.startswith("'#"):
            total += message.has_name(word[2:-1])
            continue
        part = f" {word[1:-3]}" if word.endswith(":*") else f" {word[1:-1]} "
        total += sum(1.0 / (place * place) for place in range(1, message.line.count(part) + 1))
    return total


class View:
    """The messages that wait in one transaction's snapshot, newest first."""

    def __init__(self, read: Read, tx: Any, ids: Sequence[int] | None) -> None:
        self._read, self._tx, self.ids = read, tx, sorted(ids or (), reverse=True)
        self._kept: list[list[UnindexedMessage]] = []  # those that were read, as they were read
        self._room = KEPT_CHARACTERS

    def __iter__(self) -> Iterator[UnindexedMessage]:
        """All of them, a few at a time; those that were deleted are left out."""
        for number, start in enumerate(range(0, len(self.ids), READ)):
            if number < len(self._kept):
                yield from self._kept[number]
                continue
            rows = sorted(self._read(self._tx, self.ids[start : start + READ]), reverse=True)
            some = [UnindexedMessage(*row) for row in rows]
            self._room -= sum(len(one.folded) for one in some)
            if self._room > 0 and number == len(self._kept):
                self._kept.append(some)
            yield from some

    def matching(self, tree: Node) -> Iterator[UnindexedMessage]:
        """Those that match a tree."""
        return (one for one in self if could_match(tree, one.folded) and holds(tree, one))

    def words(self, part: str) -> list[str]:
        """Their listed words with this part."""
        return list(dict.fromkeys(word for message in self for word in message.around(part)))

    def names(self, part: str) -> list[str]:
        """Their names that have this part."""
        near = (message for message in self if part in message.folded and message.line)
        return list(dict.fromkeys(name for message in near for name in message.names if part in name))
