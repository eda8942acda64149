"""Searches messages that wait to be indexed, in this process: a stored message is found at once, and a search writes nothing.

A search reads the text of each waiting message once and caches it while the message waits. It is compared word by word, with
the same words and the same score as the index would give. So a store opened for reading, a replica and a role that may not
write find the messages that an ended process left, and a long queue costs a search the reading of its texts, not its indexing.
"""

from __future__ import annotations

import re
import threading
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
        word = given.strip("()").split(" | ")[0]  # the other one is that of rows indexed long ago
        if word.startswith("'#"):
            total += message.has_name(word[2:-1])
            continue
        part = f" {word[1:-3]}" if word.endswith(":*") else f" {word[1:-1]} "
        total += sum(1.0 / (place * place) for place in range(1, message.line.count(part) + 1))
    return total


class View:
    """The messages that wait in one transaction's snapshot, newest first."""

    def __init__(self, tail: Tail, tx: Any, ids: Sequence[int]) -> None:
        self._tail, self._tx, self.ids = tail, tx, sorted(ids, reverse=True)

    def __iter__(self) -> Iterator[UnindexedMessage]:
        return self._tail.messages(self._tx, self.ids)

    def matching(self, tree: Node) -> Iterator[UnindexedMessage]:
        """Those that match a tree."""
        for message in self if self.ids else ():
            if could_match(tree, message.folded) and holds(tree, message):
                yield message

    def words(self, part: str, fits: Callable[[str], bool]) -> list[str]:
        """Their listed words with this part that also fit."""
        near = self if self.ids else ()
        return list(dict.fromkeys(word for message in near for word in message.around(part) if fits(word)))

    def names(self, part: str) -> list[str]:
        """Their names that have this part."""
        near = (message for message in self if part in message.folded and message.line) if self.ids else ()
        return list(dict.fromkeys(name for message in near for name in message.names if part in name))


class Tail:
    """The waiting messages this process has read."""

    def __init__(self, read: Read) -> None:
        self._read, self.kept_characters, self.read_at_once = read, KEPT_CHARACTERS, READ
        self._lock = threading.Lock()
        self._kept: dict[int, UnindexedMessage] = {}
        self._characters = 0

    def view(self, tx: Any, ids: Sequence[int] | None) -> View:
        """The messages with these ids; cached others are dropped."""
        there = set(ids or ())
        with self._lock:
            for message_id in [one for one in self._kept if one not in there]:
                self._characters -= len(self._kept.pop(message_id).folded)
        return View(self, tx, ids or ())

    def messages(self, tx: Any, ids: Sequence[int]) -> Iterator[UnindexedMessage]:
        """These messages, in this order, a few at a time; those that were deleted are left out."""
        for start in range(0, len(ids), self.read_at_once):
            some = ids[start : start + self.read_at_once]
            with self._lock:
                found = {one: self._kept[one] for one in some if one in self._kept}
            absent = [one for one in some if one not in found]
            for message_id, columns in self._read(tx, absent) if absent else ():
                found[message_id] = self._keep(UnindexedMessage(message_id, columns))
            yield from (found[one] for one in some if one in found)

    def _keep(self, message: UnindexedMessage) -> UnindexedMessage:
        with self._lock:
            if self._characters + len(message.folded) <= self.kept_characters and message.id not in self._kept:
                self._kept[message.id] = message
                self._characters += len(message.folded)
        return message
