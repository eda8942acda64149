"""The distinct words of the store, for searches by a part of a word.

Words are recorded after their messages are indexed, while no process writes, up to their own mark; a search reads
the few messages above it. Losing or repeating that work is harmless: a word is in the list or it is not. Words that
no message has any more are removed when the file is tidied (`take_out`); removals are counted, so that a process that cached
them looks them up again.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import apsw

from hermes.errors import StoreCorrupt
from hermes.store import codec
from hermes.store.engines.base import Tx, columns_of
from hermes.store.engines.sqlite import migrate
from hermes.store.index_text import fold, vocabulary, worth_keeping

BEHIND = 2_048  # this many messages may wait; beyond that each batch records the words of as many as it indexes
CHUNK_MESSAGES = 64
CHUNK_CHARACTERS = 150_000
MERGE_EVERY = 4  # batches of messages, or chunks of words: each is a separate segment of the index
MERGE_PAGES = 40  # merged then; the rest is merged while no process writes
KNOWN = 300_000
MANY = 5_000  # more messages than this are read each time, without caching their words in memory
REMOVALS = "words_removed"  # in state_meta: how often words were removed
RARE = 32  # a piece that at most this many words have: searching for a second piece costs more than it saves
LOOKED_AT = 1_000  # words looked for at once


class IndexedRow(NamedTuple):
    """What the index needs of a message, as it is stored."""

    id: int
    content: Any
    content_rest: bytes | None
    content_format: str | None
    tool_name: Any
    tool_calls: Any
    session_id: str
    writer: int | None


COLUMNS = ", ".join(IndexedRow._fields)
SEARCHED = ("content", "content_rest", "content_format", "tool_name", "tool_calls")  # what the index is made of


def document(row: IndexedRow) -> tuple[str, str, str]:
    """The words of a message as its three index columns see them, not yet folded."""
    try:
        content = codec.joined(row.content, row.content_rest)
    except StoreCorrupt:  # one damaged text must not prevent finding the others
        content = str(row.content)
    return columns_of(content, row.content_format, row.tool_name, row.tool_calls)


def text_crc(row: IndexedRow) -> int:
    """A checksum of what the index is made of."""
    crc = 0
    for value in (row.content, row.content_rest, row.content_format, row.tool_name, row.tool_calls):
        if value is None:
            crc = zlib.crc32(b"\1", crc)
            continue
        data = value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogatepass")
        crc = zlib.crc32(data, zlib.crc32(b"\0", crc))
    return crc


def rows_above(tx: Any, mark: int, limit: int = -1, upto: int = 1 << 62) -> Iterator[IndexedRow]:
    """Messages above a mark, in the order of their ids."""
    rows = tx.connection.execute(
        f"SELECT {COLUMNS} FROM messages WHERE id > ? AND id <= ? ORDER BY id LIMIT ?", (mark, upto, limit)
    )
    return map(IndexedRow._make, rows)


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


def merge(connection: apsw.Connection, table: str, pages: int) -> bool:
    """Merge a few pages of an index; returns whether there was anything to merge. Less than 0: start a full merge."""
    before = connection.total_changes()
    connection.execute(f"INSERT INTO {table}({table}, rank) VALUES('merge', ?)", (pages,))
    return connection.total_changes() - before >= 2


@dataclass(slots=True)
class Chunk:
    """The words of a few messages, found outside the write lock."""

    start: int
    last: int
    words: set[bytes]  # not known to this process
    kept: str  # those of them that can be searched by parts, as a JSON list
    removals: int  # the count of removals then
    written: bool = False


@dataclass(slots=True)
class _Recent:
    """The words of messages above the mark, as far as a connection has read."""

    upto: int = 0
    since: int = 0  # where the reading began, and the number of messages then
    count: int = 0
    words: set[bytes] = field(default_factory=set)


class Words:
    """The list of words, and this process's cache of it."""

    def __init__(self) -> None:
        self._known: set[bytes] = set()
        self._older: set[bytes] = set()
        self._recent: dict[int, _Recent] = {}
        self._chunks = 0
        self._removals = 0  # the count of removals when the cache was filled

    def upto(self, tx: Tx) -> int:
        """The id up to which the words of every message are in the list."""
        return number(tx, migrate.META_WORDS)

    def is_behind(self, tx: Tx, mark: int) -> bool:
        """Whether too many messages wait."""
        return mark - self.upto(tx) > BEHIND

    def prepare(self, tx: Any, mark: int) -> Chunk | None:
        """The words of the next messages below the index's mark; None when there are none."""
        start = last = self.upto(tx)
        self._agree(tx)
        words: set[bytes] = set()
        size = 0
        for row in rows_above(tx, start, CHUNK_MESSAGES, mark):
            text, _, calls = document(row)
            words |= vocabulary(text)
            if calls:
                words |= vocabulary(calls)
            last = row.id
            size += len(text) + len(calls)
            if size >= CHUNK_CHARACTERS:
                break
        if last == start:
            if start >= mark:
                return None
            last = mark  # the messages in between were removed
        words = words - self._known - self._older  # not -=, which iterates over the whole cache
        return Chunk(start, last, words, _kept(words), self._removals)

    def write(self, tx: Any, chunk: Chunk) -> bool:
        """Put them into the list; False when another process did it first. After the commit, call `learn`."""
        if self.upto(tx) != chunk.start or number(tx, REMOVALS) != chunk.removals:
            return False
        _insert(tx, chunk.kept)
        set_number(tx, migrate.META_WORDS, chunk.last)
        self._chunks += 1
        if self._chunks % MERGE_EVERY == 0:  # a search reads every segment
            merge(tx.connection, "messages_fts_trigram", MERGE_PAGES)
        chunk.written = True
        return True

    def learn(self, chunk: Chunk) -> None:
        """Cache these words as listed, if they were written: they need not be looked up again."""
        if not chunk.written or chunk.removals != self._removals:
            return
        if len(self._known) > KNOWN // 2:
            self._older, self._known = self._known, set()
        self._known |= chunk.words

    def add(self, tx: Any, texts: Sequence[str]) -> None:
        """Record the words of texts that were stored below the mark."""
        self._agree(tx)
        words: set[bytes] = set()
        for text in texts:
            words |= vocabulary(text)
        _insert(tx, _kept(words - self._known - self._older))

    def unlearn(self) -> None:
        """Clear the cache of the list."""
        self._known, self._older = set(), set()

    def _agree(self, tx: Tx) -> None:
        """Clear the cache if words were removed since."""
        removals = number(tx, REMOVALS)
        if removals != self._removals:
            self.unlearn()
            self._removals = removals

    # ------------------------------------------------------------------ taking out

    def listed_after(self, tx: Tx, word: str) -> list[tuple[int, str]]:
        """Some words of the list in order, with their ids, starting after this one."""
        rows = tx.rows(f"SELECT id, word FROM words WHERE word > ? ORDER BY word LIMIT {LOOKED_AT}", (word,))
        return [(row[0], row[1]) for row in rows]

    def take_out(self, tx: Any, words: Sequence[tuple[int, str]]) -> None:
        """Remove these from the list, in a write transaction in which no message has them."""
        delete = "INSERT INTO messages_fts_trigram(messages_fts_trigram, rowid, content) VALUES('delete', ?, ?)"
        tx.connection.executemany(delete, words)
        tx.connection.executemany("DELETE FROM words WHERE id = ?", [(number_,) for number_, _ in words])
        set_number(tx, REMOVALS, number(tx, REMOVALS) + 1)

    # ------------------------------------------------------------------ looking up

    def containing(self, tx: Tx, part: str, cap: int, *, listed: bool) -> list[str]:
        """Words that contain this part of at least three characters."""
        found: list[str] = []
        if listed:
            # Its rarest pieces select enough; whether the word contains the whole part is checked afterwards.
            pieces = sorted({part[i : i + 3] for i in range(len(part) - 2)}, key=_commonness)[:2]
            if _commonness(pieces[0]) < RARE:
                pieces = pieces[:1]
            match = " AND ".join('"' + piece.replace('"', '""') + '"' for piece in pieces)
            rows = tx.rows(
                "SELECT w.word FROM messages_fts_trigram f CROSS JOIN words w ON w.id = f.rowid"
                " WHERE messages_fts_trigram MATCH ? AND instr(w.word, ?) LIMIT ?",
                (match, part, cap),
            )
            found = [row[0] for row in rows]
        needle = part.encode()
        found += self._unlisted(tx, part, lambda word: needle in word, listed=listed)
        return list(dict.fromkeys(found))[:cap]

    def starting(self, tx: Tx, start: str, cap: int, *, listed: bool) -> list[str]:
        """Words with this prefix."""
        found: list[str] = []
        if listed:
            rows = tx.rows(
                "SELECT word FROM words WHERE word >= ? AND word < ? LIMIT ?", (start, start + "\U0010ffff", cap)
            )
            found = [row[0] for row in rows]
        needle = start.encode()
        found += self._unlisted(tx, start, lambda word: word.startswith(needle), listed=listed)
        return list(dict.fromkeys(found))[:cap]

    def _unlisted(self, tx: Any, part: str, fits: Callable[[bytes], bool], *, listed: bool) -> list[str]:
        """Matching words of the messages that are not in the list yet."""
        upto = self.upto(tx) if listed else 0
        top = tx.value("SELECT max(id) FROM messages") or 0
        recent = self._recent.setdefault(id(tx.connection), _Recent())
        if recent.upto <= upto:
            recent.words.clear()
        if top <= upto:
            return []
        if top - upto > MANY:
            return [word.decode("utf-8", "replace") for word in _scanned(tx, upto, part) if fits(word)]
        below = "SELECT count(*) FROM messages WHERE id > ? AND id <= ?"
        if recent.upto > upto and tx.value(below, (recent.since, recent.upto)) > recent.count:
            recent.upto = upto  # an import keeps its ids: they may be below what was read
        for row in rows_above(tx, max(upto, recent.upto)):
            text, _, calls = document(row)
            recent.words.update(worth_keeping(vocabulary(f"{text} {calls}")))
        if recent.upto != top:
            recent.since, recent.upto = upto, top
            recent.count = tx.value(below, (upto, top))
        return [word.decode("utf-8", "replace") for word in recent.words if fits(word)]


def _scanned(tx: Any, upto: int, part: str) -> set[bytes]:
    words: set[bytes] = set()
    for row in rows_above(tx, upto):
        text, _, calls = document(row)
        folded = fold(f"{text} {calls}")
        if part in folded:
            words |= vocabulary(folded)
    return words


_COMMON = {letter: place for place, letter in enumerate("zqxjkvwybgfhpumdclosnratie", 1)}


def _commonness(piece: str) -> int:
    """How common three letters are likely to be in words of programs and of Latin languages."""
    return sum(_COMMON.get(letter, 8) for letter in piece)


def _kept(words: set[bytes]) -> str:
    kept = b'","'.join(worth_keeping(words))  # no word has a quote in it
    return f'["{kept.decode()}"]' if kept else "[]"


def _insert(tx: Any, kept: str) -> None:
    """Add words that are new to the store, and their three-letter pieces."""
    fresh = tx.rows("SELECT value FROM json_each(?) WHERE value NOT IN (SELECT word FROM words)", (kept,))
    first = 1 + (tx.value("SELECT max(id) FROM words") or 0)
    numbered = [(place, word) for place, (word,) in enumerate(fresh, first)]
    tx.connection.executemany("INSERT INTO words(id, word) VALUES(?, ?)", numbered)
    tx.connection.executemany("INSERT INTO messages_fts_trigram(rowid, content) VALUES(?, ?)", numbered)
