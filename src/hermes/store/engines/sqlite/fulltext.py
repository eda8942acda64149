"""The full-text index of a SQLite store.

Messages are indexed after their own transaction, in bounded batches above a high-water mark, by the process that
has just written; what is above the mark is searched through a small temporary index of the reading connection, so
an answer is complete at once. The index holds no text. Ranking looks at the newest matches only, so that a common
word costs no more in a large store than in a small one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import apsw

from hermes.errors import StoreCorrupt
from hermes.store import codec
from hermes.store.engines.base import REPLACED, Candidate, Holder, Scope, Tx, could_match
from hermes.store.engines.sqlite import migrate, schema
from hermes.store.engines.sqlite.word_table import (
    COLUMNS,
    MERGE_EVERY,
    MERGE_PAGES,
    Chunk,
    IndexedRow,
    Words,
    document,
    merge,
    number,
    rows_above,
    set_number,
    text_crc,
)
from hermes.store.index_text import fold, index_text, phrase
from hermes.store.query import And, Leaf, Node, Not, Or, positive

BATCH_MESSAGES = 64
BATCH_CHARACTERS = 150_000
Bounds = tuple[int, int]  # messages and characters indexed at once
BATCH: Bounds = (BATCH_MESSAGES, BATCH_CHARACTERS)
PIECE: Bounds = (8, 20_000)  # while others append: they wait as long as one piece takes
BULK: Bounds = (192, 900_000)  # while messages come without a pause: fewer than one append in a hundred wait for it
STANDING = 224  # messages above the mark, while they come without a pause
TIDY_PAGES = 32
LARGE = 200_000  # messages
SPELLINGS = 300
NOTE_CRC = "INSERT OR REPLACE INTO indexed_texts(id, crc) VALUES(?, ?)"
SMALL_TAIL = 512  # more unindexed messages than this are scanned, not indexed for one search


def expression(tree: Node | None) -> str | None:
    """A query tree as an FTS5 expression; None when nothing in it is indexed. User text is always quoted."""
    if tree is None:
        return None
    if isinstance(tree, Leaf):
        words, open_end = phrase(tree.text)
        return f'"{words}"{" *" if tree.prefix or open_end else ""}' if words else None
    if isinstance(tree, Not):
        keep, drop = expression(tree.keep), expression(tree.drop)
        return keep if keep is None or drop is None else f"({keep} NOT {drop})"
    parts = [part for part in map(expression, tree.children) if part is not None]
    if not parts:
        return None
    return parts[0] if len(parts) == 1 else f"({(' AND ' if isinstance(tree, And) else ' OR ').join(parts)})"


def _may_hold(tree: Node, row: IndexedRow) -> bool:
    """The same on the row as it is stored, without unpacking JSON: escapes occur only around plain words."""
    try:
        whole = codec.joined(row.content, row.content_rest) or ""
    except StoreCorrupt:
        return True
    raw = f"{whole}\n{codec.restored(row.tool_name) or ''}\n{codec.restored(row.tool_calls) or ''}"
    return "\\u" in raw or not raw.isascii() or could_match(tree, raw.lower())


@dataclass(slots=True)
class IndexBatch:
    """Messages ready to be indexed, prepared outside the write lock."""

    mark: int
    last: int
    documents: list[tuple[int, str, str, str]]
    strangers: set[str]  # sessions with rows another program wrote
    crcs: list[tuple[int, int]]  # checksums of the indexed text
    parts: list[int]  # messages with parts as another program stores them
    top: int  # the newest message then


@dataclass(slots=True)
class _Tail:
    """What a connection's temporary index holds."""

    mark: int = 0
    upto: int = 0


class SqliteFullText:
    """See `hermes.store.engines.base.FullText`."""

    has_names = False
    TAIL = BATCH_MESSAGES  # the tail above the mark is searched directly: it must stay short
    SETTLE = 2_000

    def __init__(self) -> None:
        self._tails: dict[int, _Tail] = {}
        self._indexed = True
        self._mark = 0  # the mark as last read: only a hint
        self._bytes = 0
        self._waiting = 0  # characters that were not indexed yet: also a hint
        self.batches = 0
        self.dropped = False  # messages were deleted: the engine empties the WAL and resets this
        self.words = Words()

    def prepare(self, connection: apsw.Connection, *, indexed: bool = True) -> None:
        """Make a connection able to search."""
        self._indexed = indexed
        connection.register_fts5_function("hermes_score", _score)
        self._tails[id(connection)] = _Tail()

    # ------------------------------------------------------------------ indexing

    def due(self, message_id: int, size: int) -> bool:
        """Whether enough messages for a batch are above the mark."""
        self._bytes += size
        self._waiting += size
        if message_id - self._mark < self.TAIL and self._bytes < BATCH_CHARACTERS:
            return False
        self._bytes = 0
        return True

    def is_far_behind(self, message_id: int) -> bool:
        """Whether so many messages wait that they must be indexed now."""
        return message_id - self._mark >= STANDING or self._waiting >= BULK[1]

    def mark(self, tx: Tx) -> int:
        """The id up to which every message is indexed."""
        if not self._indexed:
            return 0
        self._mark = number(tx, migrate.META_INDEXED)
        return self._mark

    def pending(self, tx: Tx) -> int:
        if not self._indexed:
            return 0
        return int(tx.value("SELECT count(*) FROM messages WHERE id > ?", (self.mark(tx),)))

    def pending_over(self, tx: Tx, most: int) -> bool:
        """Whether more than this many messages wait to be indexed."""
        return tx.row("SELECT 1 FROM messages WHERE id > ? LIMIT 1 OFFSET ?", (self.mark(tx), most)) is not None

    def strangers(self, tx: Tx) -> list[str]:
        """Sessions with unindexed rows that another program wrote."""
        adopted = number(tx, migrate.META_ADOPTED)
        rows = tx.rows(
            "SELECT DISTINCT m.session_id FROM messages m NOT INDEXED CROSS JOIN sessions s ON s.id = m.session_id"
            " WHERE m.id > ? AND m.writer IS NULL"
            " AND m.hidden IS NULL AND (s.last_active IS NULL OR s.last_active < m.timestamp)",
            (max(self.mark(tx), adopted),),
        )
        return [row[0] for row in rows]

    def foreign_parts(self, tx: Tx) -> list[int]:
        """Unindexed messages that hold parts as another program stores them."""
        rows = tx.rows(
            "SELECT id FROM messages WHERE id > ? AND writer IS NULL AND content_format IS NULL"
            f" AND {migrate.HOLDS_PARTS}",
            (self.mark(tx),),
        )
        return [row[0] for row in rows]

    def prepare_batch(self, tx: Tx, least: int, most: Bounds = BATCH) -> IndexBatch | None:
        """The next messages above the mark, if there are at least this many (or half as many characters as fit)."""
        mark = self.mark(tx)
        top = tx.value("SELECT max(id) FROM messages") or 0
        adopted = number(tx, migrate.META_ADOPTED)
        documents: list[tuple[int, str, str, str]] = []
        strangers: set[str] = set()
        crcs: list[tuple[int, int]] = []
        parts: list[int] = []
        size = 0
        for row in rows_above(tx, mark, most[0]):
            text, name, calls = document(row)
            documents.append((row.id, index_text(text), index_text(name), index_text(calls)))
            crcs.append((row.id, text_crc(row)))
            if row.writer is None and row.id > adopted:
                strangers.add(row.session_id)
            if (
                row.content_format is None
                and isinstance(row.content, str)
                and row.content.startswith(codec.FOREIGN_PARTS)
            ):
                parts.append(row.id)
            size += len(text) + len(calls)
            if size >= most[1]:
                break
        if not documents or (len(documents) < least and size < most[1] // 2):
            return None
        return IndexBatch(mark, documents[-1][0], documents, strangers, crcs, parts, top)

    def write_batch(self, tx: Any, batch: IndexBatch) -> int:
        """Put a prepared batch into the index; 0 when another process did it first."""
        between = "SELECT count(*) FROM messages WHERE id > ? AND id <= ?"
        if self.mark(tx) != batch.mark or tx.value(between, (batch.mark, batch.last)) != len(batch.documents):
            return 0
        if _edited_since(tx, batch.top):  # one of these may have another text since
            return 0
        # The index has nothing above the mark, unless another program's trigger put it there.
        strange = tx.row("SELECT 1 FROM messages_fts_docsize WHERE id > ? LIMIT 1", (batch.mark,)) is not None
        tx.connection.executemany(
            f"INSERT {'OR REPLACE ' if strange else ''}INTO messages_fts(rowid, {schema.FTS_COLUMNS}) VALUES(?, ?, ?, ?)",
            batch.documents,
        )
        tx.connection.executemany(NOTE_CRC, batch.crcs)
        self.batches += 1
        if self.batches % MERGE_EVERY == 0:
            merge(tx.connection, "messages_fts", MERGE_PAGES)
        set_number(tx, migrate.META_INDEXED, batch.last)
        for session_id in batch.strangers:
            adopt(tx, session_id)
        self._mark = batch.last
        self._waiting = 0
        return len(batch.documents)

    def index_now(self, tx: Any, message_ids: Sequence[int]) -> None:
        """Index rows that were inserted below the mark (imports keep their ids)."""
        mark = self.mark(tx)
        texts: list[str] = []
        for message_id in message_ids:
            if message_id <= mark:
                row = IndexedRow._make(tx.row(f"SELECT {COLUMNS} FROM messages WHERE id = ?", (message_id,)))
                text, name, calls = document(row)
                texts += (text, calls)
                tx.run(NOTE_CRC, (message_id, text_crc(row)))
                tx.run(
                    f"INSERT OR REPLACE INTO messages_fts(rowid, {schema.FTS_COLUMNS}) VALUES(?, ?, ?, ?)",
                    (message_id, index_text(text), index_text(name), index_text(calls)),
                )
        if texts:
            self.words.add(tx, texts)

    def stale(self, tx: Tx) -> list[int]:
        """Messages that were changed or deleted with SQL and whose index entry is of the old text."""
        columns = ", ".join(f"m.{name}" for name in IndexedRow._fields)
        rows = tx.rows(
            f"SELECT i.id, i.crc, {columns} FROM changed_messages c CROSS JOIN indexed_texts i ON i.id = c.id"
            " LEFT JOIN messages m ON m.id = c.id"
        )
        now = ((message_id, crc, IndexedRow._make(columns)) for message_id, crc, *columns in rows)
        return [message_id for message_id, crc, row in now if row.id is None or crc != text_crc(row)]

    def reindex(self, tx: Tx, message_ids: Sequence[int]) -> None:
        self.index_now(tx, message_ids)

    def drop(self, tx: Tx, message_ids: Sequence[int]) -> None:
        self.dropped = True
        mark = self.mark(tx)
        for message_id in message_ids:
            if message_id <= mark:
                tx.run("DELETE FROM messages_fts WHERE rowid = ?", (message_id,))
                tx.run("DELETE FROM indexed_texts WHERE id = ?", (message_id,))

    def unused(self, tx: Any, words: Sequence[tuple[int, str]]) -> list[tuple[int, str]]:
        """Those words of the list that no indexed message has."""
        ask = "SELECT rowid FROM messages_fts WHERE messages_fts MATCH ? LIMIT 1"
        return [
            (number_, word)
            for number_, word in words
            if (match := expression(Leaf(word, "phrase"))) is None or tx.row(ask, (match,)) is None
        ]

    # ------------------------------------------------------------------ searching

    def candidates(self, tx: Tx, tree: Any, scope: Scope, cap: int) -> list[Candidate]:
        match = expression(self._spelled_out(tx, tree))
        if match is None or cap <= 0:
            return []
        indexed: list[Candidate] = []
        if self._indexed:
            indexed = self._match(tx, "messages_fts", match, scope, cap)
        table = self._tail_table(tx, tree)
        if table is None:
            return indexed
        recent = self._match(tx, table, match, scope, cap)
        known = {candidate[0] for candidate in recent}  # another program's trigger may already have indexed some
        return [*recent, *(candidate for candidate in indexed if candidate[0] not in known)][:cap]

    def holders(self, tx: Tx, trees: Sequence[Any], scope: Scope, cap: int) -> list[list[Holder]]:
        join = "CROSS JOIN sessions s ON s.id = m.session_id" if scope.needs_sessions else ""
        sql = (
            "SELECT f.rowid, m.session_id, m.role FROM {0} f CROSS JOIN messages m ON m.id = f.rowid"
            f" {join} WHERE {{0}} MATCH ? AND {scope.where} ORDER BY f.rowid DESC LIMIT ?"
        )
        return [self._holding(tx, tree, sql, scope.params, cap) for tree in trees]

    def holder_ids(self, tx: Tx, trees: Sequence[Any], cap: int) -> list[list[int]]:
        sql = "SELECT rowid FROM {0} WHERE {0} MATCH ? ORDER BY rowid DESC LIMIT ?"
        return [[row[0] for row in self._holding(tx, tree, sql, (), cap)] for tree in trees]

    def _holding(self, tx: Tx, tree: Any, sql: str, params: Sequence[Any], cap: int) -> list[Any]:
        """The rows that a statement gives of the index and of the messages above the mark, newest first."""
        match = expression(tree)
        if match is None or cap <= 0:
            return []
        asked = (match, *params, cap)
        table = self._tail_table(tx, tree)
        recent = [] if table is None else tx.rows(sql.format(table), asked)
        indexed = tx.rows(sql.format("messages_fts"), asked) if self._indexed else []
        if not recent:
            return indexed
        known = {row[0] for row in recent}
        return [*recent, *(row for row in indexed if row[0] not in known)][:cap]

    def _spelled_out(self, tx: Tx, tree: Any) -> Any:
        """In a large store, expand prefixes to the words of the store.

        FTS5 collects every match of a prefix before it returns the first; of whole words it returns the newest at once.
        """
        if not self._indexed or not any(leaf.prefix for leaf in positive(tree)):
            return tree
        if self._extent(tx)[1] < LARGE:
            return tree

        def spelled(node: Node) -> Node:
            if isinstance(node, Leaf):
                start = fold(node.text)
                if (
                    not node.prefix
                    or not start.isascii()
                    or not start.isalnum()
                    or not start[:4].isalpha()
                    or len(start) < 4
                ):
                    return node
                found = self.words.starting(tx, start, SPELLINGS + 1, listed=True)
                return Or(tuple(Leaf(word, "phrase") for word in found)) if 0 < len(found) <= SPELLINGS else node
            if isinstance(node, Not):
                return Not(spelled(node.keep), node.drop)
            children = tuple(map(spelled, node.children))
            return And(children) if isinstance(node, And) else Or(children)

        return spelled(tree)

    def _match(self, tx: Tx, table: str, match: str, scope: Scope, cap: int) -> list[Candidate]:
        join = "CROSS JOIN sessions s ON s.id = m.session_id" if scope.needs_sessions else ""
        sql = (
            f"SELECT f.rowid, hermes_score({table}), m.session_id, m.role FROM {table} f CROSS JOIN messages m ON m.id = f.rowid"
            f" {join} WHERE {table} MATCH ? AND {scope.where} ORDER BY f.rowid DESC LIMIT ?"
        )
        return tx.rows(sql, (match, *scope.params, cap))

    def words_containing(self, tx: Tx, part: str, cap: int) -> list[str]:
        return self.words.containing(tx, part, cap, listed=self._indexed) if len(part) >= 3 else []

    def names_containing(self, tx: Tx, part: str, cap: int) -> list[str] | None:
        return None  # a list of them would make the file a tenth larger

    def is_name(self, tx: Tx, name: str) -> bool:
        return False

    def words_starting(self, tx: Tx, starts: Sequence[str], cap: int) -> list[list[str]]:
        return [self.words.starting(tx, start, cap, listed=self._indexed) if start else [] for start in starts]

    # ------------------------------------------------------------------ the tail above the mark

    def _extent(self, tx: Any) -> tuple[int, int]:
        """The mark and the newest message, fixed for the whole transaction of this search."""
        if tx.extent is None:
            tx.extent = (self.mark(tx), tx.value("SELECT max(id) FROM messages") or 0)
        extent: tuple[int, int] = tx.extent
        return extent

    def _tail_table(self, tx: Any, tree: Node) -> str | None:
        """The temporary index that holds the unindexed messages (or those of them that could match)."""
        mark, top = self._extent(tx)
        if top <= mark:
            return None
        tail = self._tails[id(tx.connection)]
        if tail.upto == 0:
            for table in ("tail_fts", "scan_fts"):
                tx.run(
                    f"CREATE VIRTUAL TABLE IF NOT EXISTS temp.{table} USING fts5({schema.FTS_COLUMNS}, content='',"
                    f" contentless_delete=1, tokenize='{schema.TOKENIZER}')"
                )
        if top - mark > SMALL_TAIL:
            tail.upto = max(tail.upto, 1)
            self._scan(tx, mark, tree)
            return "scan_fts"
        held = (
            "SELECT (SELECT count(*) FROM temp.tail_fts_docsize WHERE id > ?1)"
            " <> (SELECT count(*) FROM messages WHERE id > ?1 AND id <= ?2)"
        )
        # An import keeps its ids, which may be below; an edit changes a text that may be in this index.
        if tail.upto > mark and (tx.value(held, (mark, tail.upto)) or _edited_since(tx, tail.upto)):
            tx.run("INSERT INTO tail_fts(tail_fts) VALUES('delete-all')")
            tail.upto = mark
        if tail.mark != mark:
            tx.run("DELETE FROM tail_fts WHERE rowid <= ?", (mark,))
            tail.mark = mark
        for row in rows_above(tx, max(mark, tail.upto), SMALL_TAIL):
            text, name, calls = document(row)
            tx.run(
                f"INSERT OR REPLACE INTO tail_fts(rowid, {schema.FTS_COLUMNS}) VALUES(?, ?, ?, ?)",
                (row.id, index_text(text), index_text(name), index_text(calls)),
            )
        tail.upto = top
        return "tail_fts"

    def _scan(self, tx: Any, mark: int, tree: Node) -> None:
        tx.run("INSERT INTO scan_fts(scan_fts) VALUES('delete-all')")
        for row in rows_above(tx, mark):
            if not _may_hold(tree, row):
                continue
            text, name, calls = document(row)
            if could_match(tree, fold(f"{text}\n{name}\n{calls}")):
                tx.run(
                    f"INSERT INTO scan_fts(rowid, {schema.FTS_COLUMNS}) VALUES(?, ?, ?, ?)",
                    (row.id, index_text(text), index_text(name), index_text(calls)),
                )


def _edited_since(tx: Any, top: int) -> bool:
    """Whether a text was changed since this was the newest message: an edit stores the replaced text as a new row."""
    return tx.value(f"SELECT 1 FROM messages WHERE id > ? AND hidden = {REPLACED} LIMIT 1", (top,)) is not None


class Tidying:
    """Work deferred while messages come in: indexing them, recording words, merging the index. One small piece at a time."""

    def __init__(self, fulltext: SqliteFullText) -> None:
        self._fulltext = fulltext

    def next_batch(self, tx: Tx) -> IndexBatch | None:
        """The next messages to be indexed, if all of them were written by this program (the engine adopts the others)."""
        batch = self._fulltext.prepare_batch(tx, 1, PIECE)
        return None if batch is None or batch.strangers or batch.parts else batch

    def index(self, tx: Any, batch: IndexBatch) -> None:
        """Index them, in a write transaction."""
        self._fulltext.write_batch(tx, batch)

    def is_behind(self, tx: Tx) -> bool:
        """Whether too many messages wait for their words to be recorded."""
        return self._fulltext.words.is_behind(tx, self._fulltext.mark(tx))

    def prepare(self, tx: Tx) -> Chunk | None:
        """Prepare a piece, without a lock."""
        return self._fulltext.words.prepare(tx, self._fulltext.mark(tx))

    def write(self, tx: Any, chunk: Chunk | None) -> bool:
        """Write the piece, in a write transaction; returns whether there may be more."""
        if chunk is not None:
            return self._fulltext.words.write(tx, chunk) or True
        return merge(tx.connection, "messages_fts", TIDY_PAGES) or merge(
            tx.connection, "messages_fts_trigram", TIDY_PAGES
        )

    def written(self, chunk: Chunk | None) -> None:
        """Called after the commit."""
        if chunk is not None:
            self._fulltext.words.learn(chunk)


def adopt(tx: Tx, session_id: str) -> None:
    """Update a session row with messages that another program wrote."""
    tx.run(
        "UPDATE sessions SET last_active = (SELECT max(timestamp) FROM messages m WHERE m.session_id = sessions.id"
        " AND m.hidden IS NULL), message_count = (SELECT count(*) FROM messages m WHERE m.session_id = sessions.id AND"
        " m.hidden IS NULL), preview = coalesce(preview, (SELECT hermes_beginning(content) FROM messages m WHERE"
        " m.session_id = sessions.id AND m.role = 'user' AND m.content IS NOT NULL AND m.hidden IS NULL ORDER BY m.id LIMIT 1))"
        " WHERE id = ?",
        (session_id,),
    )


def _score(api: Any, *_: Any) -> float:
    """The relevance of a message to the words: their count relative to its length, bounded."""
    count = api.inst_count
    return float(count / (count + 0.4 + 0.8 * api.column_size(-1) / 400.0))
