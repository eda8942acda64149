"""Checks that the full-text index holds the words of its messages.

The quick check compares totals stored in the index. The thorough one runs messages through the tokenizer once
more and compares every word and its position; it reads the whole index exactly once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING

import apsw

from hermes.store.engines.base import finding
from hermes.store.engines.sqlite import schema
from hermes.store.engines.sqlite.word_table import COLUMNS, document
from hermes.store.index_text import index_text

if TYPE_CHECKING:
    from hermes.store.rows import Finding

_CHUNK = 500
_MASK = (1 << 64) - 1


def totals(connection: apsw.Connection) -> Iterator[Finding]:
    """Whether the index holds as many words as its totals say: the lengths of its messages add up to its own totals."""
    record = connection.execute("SELECT block FROM messages_fts_data WHERE id = 1").fetchone()
    if record is None or not isinstance(record[0], bytes):
        return
    rows, *says = _varints(record[0]) or [0]
    lengths = Counter(chain.from_iterable(connection.execute("SELECT sz FROM messages_fts_docsize")))  # many are equal
    count, sums = sum(lengths.values()), [0] * len(says)
    for sizes, times in lengths.items():
        for column, number in enumerate(_varints(sizes)[: len(sums)]):
            sums[column] += number * times
    if says and (count, sums) != (rows, says):
        yield finding(
            "fts-stale", "the index", f"its totals are {rows} messages and {says} words, it holds {count} and {sums}"
        )


def _varints(data: bytes) -> list[int]:
    """SQLite's variable-length integers: seven bits a byte, the highest bit means that more follow."""
    if data.isascii():  # small numbers take one byte each
        return list(data)
    out, value, length = [], 0, 0
    for byte in data:
        length += 1
        if length == 9:
            value = value << 8 | byte
        else:
            value = value << 7 | byte & 0x7F
            if byte & 0x80:
                continue
        out.append(value)
        value = length = 0
    return out


def compare(
    connection: apsw.Connection, message_ids: Sequence[int], progress: Callable[[str, int, int], None] | None
) -> Iterator[Finding]:
    """Of these messages, those whose index entry is of another text."""
    indexed = _places(connection, "main", "messages_fts", set(message_ids))
    present = {row[0] for row in connection.execute("SELECT id FROM messages_fts_docsize").fetchall()}
    connection.execute(
        f"CREATE VIRTUAL TABLE IF NOT EXISTS temp.check_fts USING fts5({schema.FTS_COLUMNS}, content='',"
        f" contentless_delete=1, tokenize='{schema.TOKENIZER}')"
    )
    try:
        for start in range(0, len(message_ids), _CHUNK):
            some = message_ids[start : start + _CHUNK]
            _tokenize(connection, some[0], some[-1])
            fresh = _places(connection, "temp", "check_fts", None)
            for message_id in some:
                if message_id in present and indexed.get(message_id, 0) != fresh.get(message_id, 0):
                    yield finding("fts-stale", f"message {message_id}", "the full-text index has another text")
            if progress is not None:
                progress("index", start + len(some), len(message_ids))
    finally:
        connection.execute("DROP TABLE temp.check_fts")


def _tokenize(connection: apsw.Connection, first: int, last: int) -> None:
    connection.execute("INSERT INTO check_fts(check_fts) VALUES('delete-all')")
    for row in connection.execute(f"SELECT {COLUMNS} FROM messages WHERE id BETWEEN ? AND ?", (first, last)).fetchall():
        text, name, calls = document(row)
        connection.execute(
            f"INSERT INTO check_fts(rowid, {schema.FTS_COLUMNS}) VALUES(?, ?, ?, ?)",
            (row[0], index_text(text), index_text(name), index_text(calls)),
        )


def _places(connection: apsw.Connection, where: str, table: str, wanted: set[int] | None) -> dict[int, int]:
    """By message, one number (a hash) of all its words and their positions."""
    connection.execute(f"CREATE VIRTUAL TABLE temp.check_words USING fts5vocab('{where}', '{table}', 'instance')")
    out: dict[int, int] = {}
    try:
        for term, message_id, column, place in connection.execute(
            "SELECT term, doc, col, offset FROM temp.check_words"
        ):
            if wanted is None or message_id in wanted:
                out[message_id] = (out.get(message_id, 0) + hash((term, column, place))) & _MASK
    finally:
        connection.execute("DROP TABLE temp.check_words")
    return out
