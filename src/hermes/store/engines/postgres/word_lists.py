"""The list of words: each process's cache of it, and the removal of words that no message has any more.

Each word has a row, for searches by it, its prefix and its trigrams (schema.py).

A process caches which words are in the list and does not look them up again. So a removal of words is counted in
`state_meta` (REMOVALS), and a batch of messages is indexed only if the count is the one at which its words were chosen. The two
can't overlap: indexing holds a shared lock of the table `words`, a removal an exclusive one. (Only the
store's owner has a right on that table; an advisory lock could be held by every role that can log in.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from hermes.store.engines.postgres.lexemes import lexeme, quoted

if TYPE_CHECKING:
    from hermes.store.engines.postgres.transaction import PostgresTx

KNOWN = 300_000
REMOVALS = "words_removed"  # in state_meta: how often words were removed
COUNTED = f"coalesce((SELECT value FROM state_meta WHERE key = '{REMOVALS}'), '0')"
LOOKED_AT = 1_000  # words looked for at once
HELD_TOGETHER = b"LOCK TABLE words IN ROW SHARE MODE"
_HELD_ALONE = b"LOCK TABLE words IN EXCLUSIVE MODE"


class KnownWords:
    """Words that are in the list, as cached by this process, and the count of removals at that time."""

    def __init__(self) -> None:
        self.words: set[bytes] = set()
        self.removals = "0"

    def learn(self, words: set[bytes], removals: str) -> None:
        """Cache these as listed; called after the commit, with the count at which they were inserted."""
        if removals != self.removals:
            return
        if len(self.words) > KNOWN:
            self.words = set()
        self.words.update(words)

    def agree(self, removals: str) -> None:
        """Set the count: if it differs from before, the cache is cleared."""
        if removals != self.removals:
            self.words = set()
            self.removals = removals


Work = Callable[[], AbstractContextManager["PostgresTx"]]


def take_out_unused(read: Work, write: Work) -> int:
    """Remove the words that no message has; returns how many. Waiting messages add theirs when they are indexed."""
    return sum(_take_out(write, some) for some in _unused(read))


def _unused(read: Work) -> Iterator[list[str]]:
    """Words of the list that no message seems to have, some at a time."""
    last = ""
    while True:
        with read() as tx:
            rows = tx.rows(f"SELECT DISTINCT word FROM words WHERE word > ? ORDER BY 1 LIMIT {LOOKED_AT}", (last,))
            if not rows:
                return
            last = rows[-1][0]
            unused = _without_message(tx, [row[0] for row in rows])
        if unused:
            yield unused


def _without_message(tx: Any, listed: list[str]) -> list[str]:
    tx.run("SET LOCAL enable_seqscan = off")
    none = "NOT EXISTS (SELECT 1 FROM message_words m WHERE {} AND m.words @@ given.query::tsquery)"
    rows = tx.ask(
        "SELECT word FROM unnest(%s::text[], %s::text[]) AS given(word, query)"
        f" WHERE {none.format('m.whole')} AND {none.format('NOT m.whole')}",
        (listed, [quoted(lexeme(one)) for one in listed]),
    ).fetchall()
    return [row[0] for row in rows]


def _take_out(write: Work, unused: list[str]) -> int:
    """Remove these, unless a message has got them meanwhile."""
    with write() as tx:
        tx.ask(_HELD_ALONE)
        gone = _without_message(tx, unused)
        if gone:
            tx.ask("DELETE FROM words WHERE word = ANY(%s)", (gone,))
            tx.run(
                "INSERT INTO state_meta(key, value) VALUES(?, '1') ON CONFLICT(key) DO UPDATE"
                " SET value = (state_meta.value::bigint + 1)::text",
                (REMOVALS,),
            )
        return len(gone)
