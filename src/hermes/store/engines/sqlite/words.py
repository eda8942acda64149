"""The distinct words of the store, for searches by a part of a word. They are recorded together with the index entries."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from hermes.store.engines.base import Tx
from hermes.store.index_text import vocabulary, worth_keeping

KNOWN = 300_000  # words cached, which need not be looked up again
REMOVALS = "words_removed"  # in state_meta: how often words were removed
LOOKED_AT = 1_000  # words looked for at once


class Words:
    """The list of words, and this process's cache of it."""

    def __init__(self) -> None:
        self._known: set[bytes] = set()
        self._removals = 0  # the count of removals when the cache was filled

    def add(self, tx: Any, texts: Iterable[str]) -> None:
        """Record the words of these texts, and the three-letter pieces of those that are new."""
        removals = number(tx, REMOVALS)
        if removals != self._removals or len(self._known) > KNOWN:
            self._known, self._removals = set(), removals
        words: set[bytes] = set()
        for text in texts:
            if text:
                words |= vocabulary(text)
        words = words - self._known  # not -=, which iterates over the whole cache
        self._known |= words  # a rollback makes these unlisted: `forget` is called then
        if kept := b'","'.join(worth_keeping(words)):  # no word has a quote in it
            fresh = tx.rows(
                "SELECT value FROM json_each(?) WHERE value NOT IN (SELECT word FROM words)", (f'["{kept.decode()}"]',)
            )
            first = 1 + (tx.value("SELECT max(id) FROM words") or 0)
            numbered = [(place, word) for place, (word,) in enumerate(fresh, first)]
            tx.connection.executemany("INSERT INTO words(id, word) VALUES(?, ?)", numbered)
            tx.connection.executemany("INSERT INTO messages_fts_trigram(rowid, content) VALUES(?, ?)", numbered)

    def forget(self) -> None:
        """Clear the cache: words that it has may not be listed."""
        self._known = set()

    # ------------------------------------------------------------------ taking out

    def listed_after(self, tx: Tx, word: str) -> list[tuple[int, str]]:
        """Some words of the list in order, with their ids, starting after this one."""
        rows = tx.rows(f"SELECT id, word FROM words WHERE word > ? ORDER BY word LIMIT {LOOKED_AT}", (word,))
        return [(row[0], row[1]) for row in rows]

    def take_out(self, tx: Any, words: Sequence[tuple[int, str]]) -> None:
        """Remove these from the list, in a write transaction in which no message has them."""
        tx.run_many(
            "INSERT INTO messages_fts_trigram(messages_fts_trigram, rowid, content) VALUES('delete', ?, ?)", words
        )
        tx.run_many("DELETE FROM words WHERE id = ?", [(number_,) for number_, _ in words])
        set_number(tx, REMOVALS, number(tx, REMOVALS) + 1)

    # ------------------------------------------------------------------ looking up

    def containing(self, tx: Tx, part: str, cap: int, *, at_end: bool) -> list[str]:
        """Listed words that contain this part of at least three characters, or end with it."""
        # Two pieces select enough; whether the word contains the whole part is checked afterwards.
        pieces = dict.fromkeys((part[:3], part[-3:]))
        match = " AND ".join('"' + piece.replace('"', '""') + '"' for piece in pieces)
        fits, given = ("substr(w.word, ?) = ?", (-len(part), part)) if at_end else ("instr(w.word, ?)", (part,))
        rows = tx.rows(
            "SELECT w.word FROM messages_fts_trigram f CROSS JOIN words w ON w.id = f.rowid"
            f" WHERE messages_fts_trigram MATCH ? AND {fits} LIMIT ?",
            (match, *given, cap),
        )
        return [row[0] for row in rows]

    def starting(self, tx: Tx, start: str, cap: int) -> list[str]:
        """Listed words with this prefix."""
        rows = tx.rows(
            "SELECT word FROM words WHERE word >= ? AND word < ? LIMIT ?", (start, start + "\U0010ffff", cap)
        )
        return [row[0] for row in rows]


def number(tx: Tx, key: str) -> int:
    """A number of state_meta; 0 when it is missing or unreadable: the work then starts over."""
    try:
        return int(tx.value("SELECT value FROM state_meta WHERE key = ?", (key,)) or 0)
    except ValueError:
        return 0


def set_number(tx: Tx, key: str, value: int) -> None:
    """Set a number in state_meta."""
    tx.run(
        "INSERT INTO state_meta(key, value) VALUES(?, ?) ON CONFLICT(key) DO UPDATE SET value = excluded.value",
        (key, str(value)),
    )
