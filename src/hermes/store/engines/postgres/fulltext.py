"""The full-text index on PostgreSQL.

A message has a row of message_words, with a GIN index over its tsvector. Of a long message there are several rows; for these
few a query tree is put together leaf by leaf. The distinct words of the store are in `words`, names made of several (a_b) in
`names`; trigrams find parts of them (word_lists.py). Appended messages are indexed a moment later (indexer.py), and until then
searched directly (unindexed_tail.py); messages stored otherwise are indexed in the same transaction.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from operator import itemgetter
from typing import Any

from hermes.errors import StoreCorrupt
from hermes.store import codec
from hermes.store.engines.base import Candidate, Document, Holder, Params, Scope, columns_of
from hermes.store.engines.postgres import text_encoding
from hermes.store.engines.postgres.expressions import expression, in_parts, is_unit, ranked_words
from hermes.store.engines.postgres.id_ranges import Widening, Window, window
from hermes.store.engines.postgres.lexemes import (
    LONG,
    Entry,
    entries,
    listed,
    words_and_names,
)
from hermes.store.engines.postgres.migrate import MIGRATIONS
from hermes.store.engines.postgres.pool import PooledConnection
from hermes.store.engines.postgres.text_encoding import array
from hermes.store.engines.postgres.transaction import PostgresTx, store_message
from hermes.store.engines.postgres.unindexed_tail import Tail, View, occurrences
from hermes.store.engines.postgres.word_lists import COUNTED as COUNTED_REMOVALS
from hermes.store.engines.postgres.word_lists import HELD_TOGETHER, KnownWords
from hermes.store.index_text import worth_keeping
from hermes.store.query import Node, positive

COUNTED = 400  # words a message may have for their occurrences to be counted
BATCH = 200  # messages indexed in one transaction
# Ids in which the words of a question are searched first. A range costs about as much as all matches of a rare word; for a
# common one, all of whose matches would be read, a smaller window is remembered.
FIRST_WINDOW = 1 << 17
REMEMBERED = 4096  # common words
WAITING_AT_ONCE = 500  # messages that wait and match, read together
_ONCE = 1.6449340668482264  # ts_rank divides by this: the value of one occurrence
_NEW = (
    "INSERT INTO {0}s({0}) SELECT {0} FROM unnest(%b::text[]) AS given({0})"
    " WHERE NOT EXISTS (SELECT 1 FROM {0}s o WHERE o.{0} = given.{0})"
)
_ADD_WORDS, _ADD_NAMES = _NEW.format("word").encode(), _NEW.format("name").encode()
_ENTRIES = "unnest(%s::bigint[], %s::int[], %s::bool[], %s::int[], %b::text[]) AS given(id, part, whole, size, words)"
_ADD_ENTRIES = f"INSERT INTO message_words SELECT id, part, whole, size, words::tsvector FROM {_ENTRIES}"
_INDEX = (
    # A newer program has upgraded the store: it indexes the rest itself.
    f"WITH taken AS (DELETE FROM unindexed WHERE message_id = ANY(%s) AND {COUNTED_REMOVALS} = %s"
    f" AND (SELECT max(version) FROM hermes_migrations) <= {len(MIGRATIONS)} RETURNING message_id)"
    f" INSERT INTO message_words SELECT id, part, whole, size, words::tsvector FROM {_ENTRIES}"
    " WHERE id IN (SELECT message_id FROM taken)"
).encode()
# A scan of the whole table looks cheap to the planner for queries with many words: it does not count their unpacking.
NO_SCANS = "SET LOCAL enable_seqscan = off"
_EXTENT = (
    "coalesce(max(message_id), 0), EXISTS (SELECT 1 FROM message_words WHERE NOT whole AND part = 1),"
    " EXISTS (SELECT 1 FROM message_words WHERE NOT whole AND part = 0) FROM message_words"
)
WAITING = "(SELECT array_agg(message_id) FROM unindexed)"
SET_OUT = f"{NO_SCANS}; SELECT {WAITING}, {_EXTENT}"
_LENGTH = "(SELECT sum(p.size) FROM message_words p WHERE p.message_id = m.id AND NOT p.whole)"
COLUMNS = "id, content, content_rest, content_format, tool_name, tool_calls"
Numbered = tuple[int, tuple[str, str, str]]  # a message as its index columns
# A message that matches: its session, its role, how many words it has, and how often the searched ones, if counted.
Found = tuple[int, str, str, int, float | None]


def _weighed(found: Found, number: int) -> Candidate:
    """The relevance of a message to the searched words: their count relative to its length, bounded.

    How often a longer one has each word is costly to find out (its words have to be unpacked) and matters little
    next to its length: once is assumed.
    """
    message_id, session_id, role, size, rank = found
    count = number if rank is None else rank * number * _ONCE
    return message_id, count / (count + 0.4 + 0.8 * float(size) / 400.0), session_id, role


def _columns(rows: Sequence[Entry]) -> list[list[Any]]:
    return [list(column) for column in zip(*rows, strict=True)] or [[], [], [], [], []]


def _join(scope: Scope) -> str:
    return "JOIN sessions s ON s.id = m.session_id" if scope.needs_sessions else ""


def _has_places(match: str | None) -> bool:
    """Whether a match depends on where words stand, as in a name of several: those of long messages lie apart."""
    return match is not None and " <-> " in match


def _matching(in_parts: bool) -> str:
    """SQL for the messages of the index that match `a.match`, below an id; of an enormous message there are parts only."""
    matching = " AND words @@ a.match::tsquery AND message_id + 0 < a.below"
    whole = f"SELECT message_id + 0 AS place FROM message_words WHERE whole{matching}"
    if not in_parts:
        return whole
    return f"SELECT place FROM ({whole} UNION SELECT message_id + 0 FROM message_words WHERE NOT whole{matching}) p"


def _like(part: str) -> str:
    """A pattern for all texts that contain this."""
    escaped = part.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    return f"%{escaped}%"


def lists(found: set[bytes]) -> tuple[list[str], list[str]]:
    """Which of these words and names belong in the lists of words and of names."""
    names = {one for one in found if b"_" in one}
    return [word.decode("utf-8", "replace") for word in worth_keeping(found - names)], listed(names)


class PostgresFullText:
    """See `hermes.store.engines.base.FullText`."""

    def __init__(self) -> None:
        self._known = KnownWords()
        self.has_names = True  # whether there is a list of names: a store opened for reading may be older than it
        self.has_groups = True  # the same for the tables with their trigrams
        self.tail = Tail(self.documents)
        self.first_window = FIRST_WINDOW
        self._enough: dict[str, int] = {}  # a common word → the newest ids that held enough messages with it

    # ------------------------------------------------------------------ indexing

    def write_stored(self, tx: PostgresTx) -> set[bytes]:
        """Index the messages that were stored in this transaction; returns the words to `learn` after the commit."""
        if not tx.stored:
            return set()
        documents = [(message_id, columns_of(*document)) for message_id, *document in tx.stored]
        tx.stored = []
        return self._write(tx, documents)

    def store(
        self, tx: PostgresTx, count: tuple[str, Params], insert: tuple[str, Params], document: Document
    ) -> int | None:
        """Store a message and queue it for indexing; returns its id, or None when there is no such session."""
        message_id = store_message(tx, count, insert)
        if message_id is not None:
            tx.waiting.append((message_id, document))
        return message_id

    def index(self, connection: PooledConnection, documents: Sequence[Numbered], absent: Sequence[int]) -> int:
        """Index waiting messages, unless another process has done so meanwhile; those that are `absent` are read first.

        Returns the number of the batch: it grows over all processes.
        """
        tx = PostgresTx(connection, self)
        documents = [*documents, *self.read(connection, absent)]
        message_ids = [*(number for number, _ in documents), *absent]
        while True:
            removals = self._known.removals
            rows, found = self._made(documents)
            with connection.indexing():
                connection.execute(HELD_TOGETHER)
                self._add_to_lists(tx, found)
                tx.ask(_INDEX, (message_ids, removals, *_columns(rows)))
                said = connection.execute(f"SELECT {COUNTED_REMOVALS}, nextval('index_batches')".encode())
            now, batch = said.fetchone() or (removals, 0)
            self._known.agree(now)
            if now == removals:
                self._known.learn(found, removals)
                return int(batch)

    def begin_lists(self, tx: PostgresTx) -> None:
        """Called before a transaction adds words: until it ends no word is removed from the lists."""
        tx.ask(HELD_TOGETHER)
        (tx.removals,) = tx.ask(f"SELECT {COUNTED_REMOVALS}").fetchone()
        self._known.agree(tx.removals)

    def read(self, connection: PooledConnection, message_ids: Sequence[int]) -> list[Numbered]:
        """Those of these messages that exist, as stored."""
        return self.documents(PostgresTx(connection, self), message_ids) if message_ids else []

    def _made(self, documents: Iterable[Numbered]) -> tuple[list[Entry], set[bytes]]:
        """The rows of the index for some messages, and the words and names in them that are new to this process."""
        rows: list[Entry] = []
        found: set[bytes] = set()
        for message_id, columns in documents:
            words, names = words_and_names(columns)
            rows += entries(message_id, columns, names)
            found |= words - self._known.words
            found |= names - self._known.words
        return rows, found

    def _add_to_lists(self, tx: PostgresTx, found: set[bytes]) -> None:
        words, names = lists(found)
        if words:
            tx.ask(_ADD_WORDS, (words,))
        if names:
            tx.ask(_ADD_NAMES, (names,))

    def _write(self, tx: PostgresTx, documents: Sequence[Numbered]) -> set[bytes]:
        rows, found = self._made(documents)
        self._add_to_lists(tx, found)
        for start in range(0, len(rows), 50):
            tx.ask(_ADD_ENTRIES, _columns(rows[start : start + 50]))
        return found

    def learn(self, tx: PostgresTx) -> None:
        """The transaction was committed: cache the words it put into the lists."""
        if tx.learned:
            self._known.learn(tx.learned, tx.removals)

    def mark(self, tx: Any) -> int:
        """The id up to which every message is indexed, unless another program has written."""
        return int(
            tx.value(
                "SELECT coalesce((SELECT min(message_id) - 1 FROM unindexed), (SELECT max(message_id) FROM message_words), 0)"
            )
        )

    def pending(self, tx: Any) -> int:
        """How many messages are not in the index: just stored, or written by another program."""
        return int(
            tx.value(
                "SELECT count(*) FROM messages m WHERE NOT EXISTS (SELECT 1 FROM message_words w WHERE w.message_id = m.id)"
            )
        )

    def unindexed(self, tx: Any, limit: int = BATCH) -> list[int]:
        """Some of those messages."""
        rows = tx.rows(
            "SELECT m.id FROM messages m WHERE NOT EXISTS (SELECT 1 FROM message_words w WHERE w.message_id = m.id)"
            " ORDER BY m.id LIMIT ?",
            (limit,),
        )
        return [row[0] for row in rows]

    def index_now(self, tx: Any, message_ids: Sequence[int]) -> None:
        """Nothing to do: messages stored under given ids are indexed with the commit."""

    def reindex(self, tx: Any, message_ids: Sequence[int]) -> None:
        self.drop(tx, message_ids)
        self.begin_lists(tx)
        for start in range(0, len(message_ids), BATCH):
            self._write(tx, self.documents(tx, message_ids[start : start + BATCH]))

    def documents(self, tx: Any, message_ids: Sequence[int]) -> list[Numbered]:
        """Messages as they are stored, for the index."""
        found = []
        rows = tx.ask(f"SELECT {COLUMNS} FROM messages WHERE id = ANY(%s)", (list(message_ids),)).fetchall()
        for message_id, head, rest, form, name, calls in text_encoding.rows(rows):
            try:
                content = codec.joined(head, rest)
            except StoreCorrupt:  # one damaged text must not prevent finding the others
                content = head
            found.append((message_id, columns_of(content, form, name, calls)))
        return found

    def drop(self, tx: Any, message_ids: Sequence[int]) -> None:
        gone = set(message_ids)
        tx.stored = [row for row in tx.stored if row[0] not in gone]
        tx.waiting = [one for one in tx.waiting if one[0] not in gone]
        # This waits for a process that is indexing one of them; the next statement then sees its rows.
        tx.ask("DELETE FROM unindexed WHERE message_id = ANY(%s)", (list(message_ids),))
        tx.ask("DELETE FROM message_words WHERE message_id = ANY(%s)", (list(message_ids),))

    # ------------------------------------------------------------------ searching

    def candidates(self, tx: Any, tree: Any, scope: Scope, cap: int) -> list[Candidate]:
        match, loose = expression(tree), expression(tree, loose=True)
        if match is None or loose is None or cap <= 0:
            return []
        self._begin(tx)
        newest, some_long, some_enormous = tx.extent
        in_parts = some_enormous
        if " <-> " in match:  # for a long message the parts decide
            in_parts = in_parts or some_long
            match, loose = f"{match} & !'{LONG}'", f"{loose} & !'{LONG}'"
        words = ranked_words(tree)
        ranking, number = " | ".join(words), len(words)
        widening = Widening(newest, cap)
        found: list[Found] = []
        for looked_at in widening:
            found += self._whole_ones(tx, (match, loose, ranking), looked_at, scope, cap - len(found))
            widening.found = len(found)
        if in_parts:
            oldest = found[-1][0] if len(found) >= cap else 0  # older matches would be cut off again
            found = list(
                {one[0]: one for one in (*self._long_ones(tx, tree, newest, oldest, scope, cap), *found)}.values()
            )
            found = sorted(found, key=itemgetter(0), reverse=True)[:cap]
        if waiting := self._waiting_ones(tx, tree, scope, cap):
            found = sorted([*waiting, *found], key=itemgetter(0), reverse=True)[:cap]
        return [_weighed(one, number) for one in found]

    def holders(self, tx: Any, trees: Sequence[Any], scope: Scope, cap: int) -> list[list[Holder]]:
        columns = (
            "m.id, m.session_id, m.role FROM ({words} ORDER BY place DESC OFFSET 0) w JOIN messages m ON m.id = w.place"
            f" {_join(scope)} WHERE {scope.where} ORDER BY w.place DESC"
        )
        found: list[list[Holder]] = self._newest(tx, trees, columns, scope.params, cap)
        for number, tree in enumerate(trees):
            if _has_places(expression(tree)):
                found[number] = [(one[0], one[2], one[3]) for one in self.candidates(tx, tree, scope, cap)]
            elif waiting := [(one[0], one[1], one[2]) for one in self._waiting_ones(tx, tree, scope, cap)]:
                found[number] = sorted([*waiting, *found[number]], key=itemgetter(0), reverse=True)[:cap]
        return found

    def holder_ids(self, tx: Any, trees: Sequence[Any], cap: int) -> list[list[int]]:
        found = [
            [row[0] for row in rows]
            for rows in self._newest(tx, trees, "place FROM ({words}) w ORDER BY place DESC", (), cap)
        ]
        for number, tree in enumerate(trees):
            if _has_places(expression(tree)):
                found[number] = [one[0] for one in self.candidates(tx, tree, Scope(), cap)]
            elif waiting := [one.id for one in self._begin(tx).matching(tree)]:
                found[number] = sorted([*waiting, *found[number]], reverse=True)[:cap]
        return found

    def _newest(self, tx: Any, trees: Sequence[Any], columns: str, params: Params, cap: int) -> list[list[Any]]:
        """The newest indexed matches of each tree that is not searched by places, with these columns: all trees in one
        statement, window by window. It is one text for any number of trees, so the server plans it once.

        `{words}` in the columns are the messages in the index; they are sorted before anything else is read, as in `_whole_ones`.
        """
        self._begin(tx)
        newest, _, in_parts = tx.extent
        sql = (
            "SELECT a.number, h.* FROM unnest(?::text[], ?::bigint[], ?::bigint[]) WITH ORDINALITY"
            f" AS a(match, below, most, number) CROSS JOIN LATERAL (SELECT {columns.replace('{words}', _matching(in_parts))}"
            " LIMIT a.most) h"
        )
        found: list[list[Any]] = [[] for _ in trees]
        left = []
        for tree, rows in zip(trees, found, strict=True):
            match = expression(tree)
            if match is not None and cap > 0 and not _has_places(match):
                widening = Widening(newest, cap, self._enough.get(match, self.first_window))
                left.append((rows, match, widening, iter(widening)))
        while left:
            windows = [next(steps) for *_, steps in left]
            matches = [where.within(one[1]) for one, where in zip(left, windows, strict=True)]
            ends, most = array([where.end for where in windows]), array([cap - len(rows) for rows, *_ in left])
            for row in tx.rows(sql, (array(matches), ends, most, *params)):
                left[row[0] - 1][0].append(row[1:])
            for rows, match, widening, _ in left:
                widening.found = len(rows)
                if len(rows) >= cap:
                    self._remember(match, newest - min(rows)[0])
            left = [one for one, where in zip(left, windows, strict=True) if where.first > 0 and len(one[0]) < cap]
        for rows in found:
            rows.sort(key=itemgetter(0), reverse=True)  # they are, as long as the server joins by nested loops
        return found

    def _remember(self, match: str, length: int) -> None:
        """A word filled its place from so many ids: next time a little more than these is searched first."""
        if length * 2 < self.first_window:
            if len(self._enough) >= REMEMBERED:
                self._enough.clear()
            self._enough[match] = length + length // 2

    def _begin(self, tx: Any) -> View:
        """The first query of a search: how far the index goes, and which messages wait to be indexed (returned)."""
        if tx.extent is None:
            tx.run(NO_SCANS)
            waiting, *tx.extent = tx.row(f"SELECT {WAITING if self.has_names else 'NULL'}, {_EXTENT}")
            tx.tail = self.tail.view(tx, waiting)
        view: View = tx.tail
        return view

    def _waiting_ones(self, tx: Any, tree: Node, scope: Scope, cap: int) -> list[Found]:
        """The newest matches among the messages that wait, newest first."""
        found: list[Found] = []
        words = ranked_words(tree)
        matching = self._begin(tx).matching(tree)
        while len(found) < cap and (some := {one.id: one for one in islice(matching, WAITING_AT_ONCE)}):
            rows = tx.rows(
                f"SELECT m.id, m.session_id, m.role FROM messages m {_join(scope)} WHERE m.id = ANY(?::bigint[])"
                f" AND {scope.where} ORDER BY m.id DESC",
                (array([*some]), *scope.params),
            )
            for message_id, session_id, role in rows:
                message = some[message_id]
                rank = occurrences(words, message) / (len(words) * _ONCE) if message.size <= COUNTED else None
                found.append((message_id, session_id, role, message.size, rank))
        return found[:cap]

    def _whole_ones(self, tx: Any, asked: tuple[str, str, str], where: Window, scope: Scope, cap: int) -> list[Found]:
        """The newest matches in a window, newest first. `asked`: the match, the loose one, and the words to count.

        They are read from the index and sorted before anything else is checked (OFFSET 0 forces the planner to do so;
        it underestimates the cost of reading the words of message after message): a phrase is searched
        in those that have its words, from the newest on, until there are enough. Only where the scope may be much
        narrower than the words, and the window is the whole store, the planner decides. (`+ 0`: the planner must not start from
        the order of ids.)
        """
        match, loose, ranking = asked
        fence = "" if where.condition is None and scope.needs_sessions else " ORDER BY place DESC OFFSET 0"
        exact, params = ("", []) if loose == match else (" AND w.words @@ ?::tsquery", [match])
        ask = tx.rows if fence else tx.planned
        rows: list[Found] = ask(
            f"SELECT place, session_id, role, size, CASE WHEN size <= {COUNTED} THEN"
            " ts_rank('{1,1,1,1}', words, ?::tsquery) END FROM (SELECT w.place, m.session_id, m.role, w.size, w.words"
            " FROM (SELECT message_id, message_id + 0 AS place, size, words FROM message_words WHERE whole"
            f" AND words @@ ?::tsquery AND message_id + 0 < ?{fence}) w JOIN messages m"
            f" ON m.id = w.message_id {_join(scope)} WHERE {scope.where}{exact} ORDER BY w.place DESC LIMIT ?) f"
            " ORDER BY place DESC",
            (ranking, where.within(loose), where.end, *scope.params, *params, cap),
        )
        return rows

    def _long_ones(self, tx: Any, tree: Node, newest: int, oldest: int, scope: Scope, cap: int) -> list[Found]:
        """The same, from an id on, for messages that have parts in the index."""
        where = window(newest, newest - oldest)
        if is_unit(tree) and all(leaf.kind != "name" for leaf in positive(tree)):
            # One part matches the whole query: newest first, as in `_whole_ones`.
            match, loose = str(expression(tree)), str(expression(tree, loose=True))
            exact, params = ("", []) if loose == match else ("WHERE words @@ ?::tsquery", [match])
            chosen = (
                "SELECT DISTINCT place FROM (SELECT message_id + 0 AS place, words FROM message_words WHERE NOT whole"
                f" AND words @@ ?::tsquery AND message_id + 0 >= ? ORDER BY place DESC OFFSET 0) p {exact}"
                " ORDER BY place DESC OFFSET 0"
            )
            asked: list[Any] = [where.within(loose), oldest, *params]
        else:
            sets = in_parts(tree, where)
            if sets is None:
                return []
            chosen, asked = sets[0], [*sets[1]]
        rows: list[Found] = tx.rows(
            f"SELECT m.id, m.session_id, m.role, {_LENGTH}, NULL FROM ({chosen}) w(place) JOIN messages m ON m.id = w.place"
            f" {_join(scope)} WHERE {scope.where} AND w.place >= ? ORDER BY w.place DESC LIMIT ?",
            (*asked, *scope.params, oldest, cap),
        )
        return rows

    # ------------------------------------------------------------------ words

    def words_containing(self, tx: Any, part: str, cap: int) -> list[str]:
        if len(part) < 3:
            return []
        waiting = self._begin(tx).words(part, lambda word: True)
        return list(dict.fromkeys([*self._listed(tx, "words", "word", part, cap), *waiting]))[:cap]

    def _listed(self, tx: Any, table: str, column: str, part: str, cap: int) -> list[str]:
        """The entries of a list that contain this."""
        like = _like(part)
        if self.has_groups:
            rows = tx.planned(
                f"SELECT DISTINCT entry FROM (SELECT entries FROM {table}_grouped WHERE entries LIKE ? OFFSET 0) g,"
                " string_to_table(entries, E'\\n') entry WHERE entry LIKE ? LIMIT ?",
                (like, like, cap),
            )
        else:
            rows = tx.planned(f"SELECT DISTINCT {column} FROM {table} WHERE {column} LIKE ? LIMIT ?", (like, cap))
        return [row[0] for row in rows]

    def has_all_names(self, tx: Any) -> bool:
        """Whether the names of all messages are in the list and in the index."""
        return tx.row("SELECT 1 FROM names WHERE name = ''") is not None

    def names_are_complete(self, tx: Any) -> None:
        """Record that they are."""
        tx.ask("INSERT INTO names(name) SELECT '' WHERE NOT EXISTS (SELECT 1 FROM names WHERE name = '')")

    def names_containing(self, tx: Any, part: str, cap: int) -> list[str] | None:
        if not self.has_names or not self.has_all_names(tx):
            return None
        return list(dict.fromkeys([*self._listed(tx, "names", "name", part, cap), *self._begin(tx).names(part)]))[:cap]

    def is_name(self, tx: Any, name: str) -> bool:
        listed = tx.row("SELECT 1 FROM names WHERE name = ?", (name,)) is not None
        return listed or any(one == name for one in self._begin(tx).names(name))

    def words_starting(self, tx: Any, starts: Sequence[str], cap: int) -> list[list[str]]:
        found: list[list[str]] = [[] for _ in starts]
        rows = tx.rows(
            "SELECT a.number, w.word FROM unnest(?::text[], ?::text[]) WITH ORDINALITY AS a(first, after, number)"
            ' CROSS JOIN LATERAL (SELECT DISTINCT word FROM words WHERE word >= a.first COLLATE "C"'
            " AND word < a.after COLLATE \"C\" LIMIT ?) w WHERE a.first <> ''",
            (array(starts), array([f"{start}\U0010ffff" for start in starts]), cap),
        )
        for number, word in rows:
            found[number - 1].append(word)
        view = self._begin(tx)
        for number, start in enumerate(starts):
            if start and (waiting := [word for word in view.words(start, bool) if word.startswith(start)]):
                found[number] = list(dict.fromkeys([*found[number], *waiting]))[:cap]
        return found
