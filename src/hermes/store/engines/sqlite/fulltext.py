"""The full-text index of a SQLite store.

Messages are indexed in batches above one mark, a moment after they were stored: their entries and their distinct words in
one transaction. Those above the mark are compared in this process (unindexed.py), so an answer is complete at once. The index
holds no text: an entry is removed with the text that it was made of. Two triggers keep that text when a message is changed
or deleted, by this program or with SQL by another one (`changed_messages`), and `follow_changes` brings the index up to date.
Only the newest matches are looked at, so that a common word costs no more in a large store than in a small one.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from hermes.store.engines import unindexed
from hermes.store.engines.base import SPEAKER, Candidate, Holder, Scope, Tx, get_meta, phrase_words, set_meta
from hermes.store.engines.sqlite import migrate, schema
from hermes.store.engines.unindexed import IndexedRow, WaitingMessages, document
from hermes.store.text.index_text import index_text, vocabulary, worth_keeping
from hermes.store.text.query import And, Leaf, Node, Not

Bounds = tuple[int, int]  # messages and characters indexed in one transaction
PIECE: Bounds = (8, 20_000)  # while others append: they wait as long as one piece takes
BATCH: Bounds = (64, 150_000)
BULK: Bounds = (192, 900_000)  # while messages come without a pause: fewer than one append in a hundred waits for it
TAIL = 64  # messages above the mark that need not be indexed yet
STANDING = 224  # messages above the mark, while they come without a pause
_SEARCHED = ("content", "content_rest", "content_format", "tool_name", "tool_calls")
_ENTRY = f"(rowid, {schema.FTS_COLUMNS}) VALUES(?, ?, ?, ?)"
_UNINDEX = f"INSERT INTO messages_fts(messages_fts, rowid, {schema.FTS_COLUMNS}) VALUES('delete', ?, ?, ?, ?)"


COLUMNS = ", ".join(IndexedRow._fields)


def text_crc(row: IndexedRow) -> int:
    """A checksum of what the index is made of."""
    crc = 0
    for value in row[1:6]:
        if value is None:
            crc = zlib.crc32(b"\1", crc)
            continue
        data = value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogatepass")
        crc = zlib.crc32(data, zlib.crc32(b"\0", crc))
    return crc


def expression(tree: Node | None) -> str | None:
    """A query tree as an FTS5 expression; None when nothing in it is indexed. User text is always quoted."""
    if tree is None:
        return None
    if isinstance(tree, Leaf):
        words, open_end = phrase_words(tree)
        return f'"{" ".join(words)}"{" *" if open_end else ""}' if words else None
    if isinstance(tree, Not):
        keep, drop = expression(tree.keep), expression(tree.drop)
        return keep if keep is None or drop is None else f"({keep} NOT {drop})"
    parts = [part for part in map(expression, tree.children) if part is not None]
    if not parts:
        return None
    return parts[0] if len(parts) == 1 else f"({(' AND ' if isinstance(tree, And) else ' OR ').join(parts)})"


class SqliteFullText:
    """See `hermes.store.engines.base.FullText`."""

    def __init__(self) -> None:
        self.indexed = True  # False: another program's file, of which nothing is indexed
        self._mark = 0  # the mark as last read: only a hint
        self._waiting = 0  # characters that were not indexed yet: also a hint
        self.dropped = False  # messages were deleted: the engine empties the WAL and resets this
        self.words = Words()

    # ------------------------------------------------------------------ indexing

    def due(self, message_id: int, size: int) -> bool:
        """Whether enough messages for a batch are above the mark."""
        self._waiting += size
        return message_id - self._mark >= TAIL or self._waiting >= BATCH[1]

    def is_far_behind(self, message_id: int) -> bool:
        """Whether so many messages wait that they must be indexed now."""
        return message_id - self._mark >= STANDING or self._waiting >= BULK[1]

    def mark(self, tx: Tx) -> int:
        """The id up to which every message is indexed."""
        if not self.indexed:
            return 0
        self._mark = number(tx, migrate.META_INDEXED)
        return self._mark

    def pending(self, tx: Tx) -> int:
        if not self.indexed:
            return 0
        return int(tx.value("SELECT count(*) FROM messages WHERE id > ?", (self.mark(tx),)))

    def foreign_sessions(self, tx: Tx) -> list[str]:
        """Sessions with unindexed rows that another program wrote."""
        rows = tx.rows(
            "SELECT DISTINCT m.session_id FROM messages m NOT INDEXED CROSS JOIN sessions s ON s.id = m.session_id"
            " WHERE m.id > ? AND m.writer IS NULL"
            " AND m.hidden IS NULL AND (s.active_at IS NULL OR s.active_at < m.timestamp)",
            (max(self.mark(tx), number(tx, migrate.META_ADOPTED)),),
        )
        return [row[0] for row in rows]

    def next_rows(self, tx: Any, most: Bounds) -> list[IndexedRow]:
        """The next messages above the mark."""
        rows: list[IndexedRow] = []
        size = 0
        sql = f"SELECT {COLUMNS} FROM messages WHERE id > ? ORDER BY id LIMIT ?"
        for values in tx.cursor(sql, (self.mark(tx), most[0])):
            row = IndexedRow._make(values)
            rows.append(row)
            size += len(row.content or "") + 4 * len(row.content_rest or "") + len(row.tool_calls or "")
            if size >= most[1]:
                break
        return rows

    def index_rows(self, tx: Any, rows: Sequence[IndexedRow]) -> set[str]:
        """Index the messages that `next_rows` gave, in the same transaction; returns the sessions adopted with them."""
        adopted = number(tx, migrate.META_ADOPTED)
        foreign = {row.session_id for row in rows if row.writer is None and row.id > adopted}
        self._index(tx, rows)
        set_meta(tx, migrate.META_INDEXED, str(rows[-1].id))
        for session_id in foreign:
            adopt(tx, session_id)
        self._mark, self._waiting = rows[-1].id, 0
        return foreign

    def _index(self, tx: Any, rows: Iterable[IndexedRow]) -> None:
        texts: list[str] = []
        for row in rows:
            text, name, calls = document(row)
            texts += (text, calls)
            tx.run(f"INSERT INTO messages_fts{_ENTRY}", (row.id, index_text(text), index_text(name), index_text(calls)))
            tx.run("INSERT OR REPLACE INTO indexed_texts(id, crc) VALUES(?, ?)", (row.id, text_crc(row)))
        self.words.add(tx, texts)

    def _row(self, tx: Any, message_id: int) -> IndexedRow | None:
        found = tx.row(f"SELECT {COLUMNS} FROM messages WHERE id = ?", (message_id,))
        return None if found is None else IndexedRow._make(found)

    def index_now(self, tx: Any, message_ids: Sequence[int]) -> None:
        """Index rows that were inserted below the mark (imports keep their ids)."""
        mark = self.mark(tx)
        below = [message_id for message_id in message_ids if message_id <= mark]
        self._index(tx, [row for one in below if (row := self._row(tx, one)) is not None])

    def reindex(self, tx: Any, message_ids: Sequence[int]) -> None:
        self.follow_changes(tx, message_ids)

    def drop(self, tx: Tx, message_ids: Sequence[int]) -> None:
        self.dropped = True
        self.follow_changes(tx, message_ids)

    def follow_changes(self, tx: Any, message_ids: Sequence[int] | None = None) -> None:
        """Bring the entries of changed and deleted messages up to date: of these, or of all."""
        columns = ", ".join(f"c.{name}" for name in ("id", *_SEARCHED))
        sql = f"SELECT {columns}, i.crc FROM changed_messages c LEFT JOIN indexed_texts i ON i.id = c.id"
        if message_ids is None:
            notes = tx.rows(sql)
        else:
            notes = [row for one in message_ids for row in tx.rows(f"{sql} WHERE c.id = ?", (one,))]
        for *values, crc in notes:
            before, row = IndexedRow(*values), self._row(tx, values[0])
            tx.run("DELETE FROM changed_messages WHERE id = ?", (before.id,))
            if crc is None or (row is not None and crc == text_crc(row)):
                if row is not None and crc is None:
                    self.index_now(tx, [row.id])  # moved under another id
                continue
            if crc != text_crc(before):  # made of a third text: only a new index is sure to be right
                migrate.reset_index(tx.connection)
                return
            text, name, calls = document(before)
            tx.run(_UNINDEX, (before.id, index_text(text), index_text(name), index_text(calls)))
            tx.run("DELETE FROM indexed_texts WHERE id = ?", (before.id,))
            if row is not None:
                self._index(tx, [row])

    def has_changes(self, tx: Tx) -> bool:
        """Whether messages were changed or deleted that `follow_changes` has not seen."""
        return self.indexed and tx.row("SELECT 1 FROM changed_messages LIMIT 1") is not None

    def unused(self, tx: Any, words: Sequence[tuple[int, str]]) -> list[tuple[int, str]]:
        """The words of the list that no indexed message has."""
        ask = "SELECT rowid FROM messages_fts WHERE messages_fts MATCH ? LIMIT 1"
        return [
            (number_, word)
            for number_, word in words
            if (match := expression(Leaf(word, "phrase"))) is None or tx.row(ask, (match,)) is None
        ]

    # ------------------------------------------------------------------ searching

    def candidates(self, tx: Tx, tree: Any, scope: Scope, cap: int) -> list[Candidate]:
        columns = f"f.rowid, (SELECT sz FROM messages_fts_docsize WHERE id = f.rowid), m.session_id, {SPEAKER}"
        found = self._matches(tx, tree, scope, cap, columns)
        return [(one, size if type(size) is int else _words_in(size), *rest) for one, size, *rest in found]

    def holders(self, tx: Tx, trees: Sequence[Any], scope: Scope, cap: int) -> list[list[Holder]]:
        found = [self._matches(tx, tree, scope, cap, f"f.rowid, 0, m.session_id, {SPEAKER}") for tree in trees]
        return [[(one, session_id, role) for one, _, session_id, role in rows] for rows in found]

    def holder_ids(self, tx: Tx, trees: Sequence[Any], cap: int) -> list[list[int]]:
        sql = "SELECT rowid FROM messages_fts WHERE messages_fts MATCH ? ORDER BY rowid DESC LIMIT ?"
        return [
            [one.id for one in unindexed.matching(tree, self._unindexed(tx))]
            + ([row[0] for row in tx.rows(sql, (match, cap))] if self.indexed else [])
            if (match := expression(tree)) is not None
            else []
            for tree in trees
        ]

    def _matches(self, tx: Any, tree: Any, scope: Scope, cap: int, columns: str) -> list[Any]:
        """The newest messages that match, those above the mark first. The second column is a size, or words counted in it."""
        match = expression(tree)
        if match is None or cap <= 0:
            return []
        recent: list[Any] = unindexed.newest(tx, tree, self._unindexed(tx), scope, cap)
        if not self.indexed or len(recent) >= cap:
            return recent
        join = "CROSS JOIN sessions s ON s.id = m.session_id" if scope.needs_sessions else ""
        sql = (
            f"SELECT {columns} FROM messages_fts f CROSS JOIN messages m ON m.id = f.rowid {join}"
            f" WHERE messages_fts MATCH ? AND {scope.where} ORDER BY f.rowid DESC LIMIT ?"
        )
        return [*recent, *tx.rows(sql, (match, *scope.params, cap - len(recent)))]

    def words_containing(self, tx: Tx, part: str, cap: int, *, at_end: bool = False) -> list[str]:
        if len(part) < 3:
            return []
        found = self.words.containing(tx, part, cap, at_end=at_end) if self.indexed else []
        found += unindexed.words_with(part, lambda word: not at_end or word.endswith(part), self._unindexed(tx))
        return list(dict.fromkeys(found))[:cap]

    def words_starting(self, tx: Tx, starts: Sequence[str], cap: int) -> list[list[str]]:
        lists: list[list[str]] = []
        for start in starts:
            found = self.words.starting(tx, start, cap) if start and self.indexed else []
            if start:
                found += unindexed.words_with(start, lambda word, s=start: word.startswith(s), self._unindexed(tx))  # type: ignore[misc]
            lists.append(list(dict.fromkeys(found))[:cap])
        return lists

    # ------------------------------------------------------------------ messages above the mark

    def _unindexed(self, tx: Any) -> WaitingMessages:
        """The messages above the mark."""
        if tx.waiting is None:
            ids = [row[0] for row in tx.rows("SELECT id FROM messages WHERE id > ?", (self.mark(tx),))]
            tx.waiting = WaitingMessages(partial(unindexed.read, tx), ids)
        found: WaitingMessages = tx.waiting
        return found


def _words_in(sizes: bytes | None) -> int:
    """How many words an entry has, from the lengths of its columns (SQLite's variable-length integers)."""
    total = value = 0
    for byte in sizes or b"":
        value = value << 7 | byte & 0x7F
        if not byte & 0x80:
            total, value = total + value, 0
    return total


def adopt(tx: Tx, session_id: str) -> None:
    """Update a session row with messages that another program wrote."""
    tx.run(
        "UPDATE sessions SET active_at = (SELECT max(timestamp) FROM messages m WHERE m.session_id = sessions.id"
        " AND m.hidden IS NULL), message_count = (SELECT count(*) FROM messages m WHERE m.session_id = sessions.id AND"
        " m.hidden IS NULL), first_words = coalesce(first_words, (SELECT hermes_beginning(content) FROM messages m WHERE"
        " m.session_id = sessions.id AND m.role = 'user' AND m.content IS NOT NULL AND m.hidden IS NULL ORDER BY m.id LIMIT 1))"
        " WHERE id = ?",
        (session_id,),
    )


def merge(tx: Any, table: str, pages: int) -> bool:
    """Merge a few pages of an index; returns whether there was anything to merge. Less than 0: start a full merge."""
    before = tx.connection.total_changes
    tx.run(f"INSERT INTO {table}({table}, rank) VALUES('merge', ?)", (pages,))
    return bool(tx.connection.total_changes - before >= 2)


# ---------------------------------------------------------------------- the distinct words, for parts of words
#
# They are recorded together with the index entries.

LOOKED_AT = 1_000  # words looked for at once


class Words:
    """The list of words."""

    def add(self, tx: Any, texts: Iterable[str]) -> None:
        """Record the words of these texts, and the three-letter pieces of those that are new."""
        words = set[bytes]().union(*(vocabulary(text) for text in texts if text))
        if kept := b'","'.join(worth_keeping(words)):  # no word has a quote in it
            fresh = tx.rows(
                "SELECT value FROM json_each(?) WHERE value NOT IN (SELECT word FROM words)", (f'["{kept.decode()}"]',)
            )
            first = 1 + (tx.value("SELECT max(id) FROM words") or 0)
            numbered = [(place, word) for place, (word,) in enumerate(fresh, first)]
            tx.connection.executemany("INSERT INTO words(id, word) VALUES(?, ?)", numbered)
            tx.connection.executemany("INSERT INTO messages_fts_trigram(rowid, content) VALUES(?, ?)", numbered)

    # ------------------------------------------------------------------ taking out

    def listed_after(self, tx: Tx, word: str) -> list[tuple[int, str]]:
        """Some words of the list in order, with their ids, starting after this one."""
        rows = tx.rows(f"SELECT id, word FROM words WHERE word > ? ORDER BY word LIMIT {LOOKED_AT}", (word,))
        return [(row[0], row[1]) for row in rows]

    def remove(self, tx: Any, words: Sequence[tuple[int, str]]) -> None:
        """Remove these from the list, in a write transaction in which no message has them."""
        tx.run_many(
            "INSERT INTO messages_fts_trigram(messages_fts_trigram, rowid, content) VALUES('delete', ?, ?)", words
        )
        tx.run_many("DELETE FROM words WHERE id = ?", [(number_,) for number_, _ in words])

    # ------------------------------------------------------------------ looking up

    def containing(self, tx: Tx, part: str, cap: int, *, at_end: bool) -> list[str]:
        """Listed words that contain this part of at least three characters, or end with it."""
        # Two pieces select enough; whether the word contains the whole part is checked afterwards.
        pieces = dict.fromkeys((part[:3], part[-3:]))
        match = " AND ".join('"' + piece.replace('"', '""') + '"' for piece in pieces)
        test, values = ("substr(w.word, ?) = ?", (-len(part), part)) if at_end else ("instr(w.word, ?)", (part,))
        rows = tx.rows(
            "SELECT w.word FROM messages_fts_trigram f CROSS JOIN words w ON w.id = f.rowid"
            f" WHERE messages_fts_trigram MATCH ? AND {test} LIMIT ?",
            (match, *values, cap),
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
        return int(get_meta(tx, key) or 0)
    except ValueError:
        return 0
