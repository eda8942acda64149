"""The full-text index on PostgreSQL.

A message has a row of message_words, with a GIN index over its tsvector. Of a long message there are several rows; for these
few a query tree is put together leaf by leaf. The distinct words of the store are in `words`; trigrams find parts of them
(below). Appended messages are indexed a moment later (upkeep.py), and until then searched directly
(engines/unindexed.py); those stored otherwise, which may have the id of an earlier one, with their transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from operator import itemgetter
from typing import Any

from hermes.store.engines import unindexed
from hermes.store.engines.base import SPEAKER, Candidate, Holder, Params, Scope
from hermes.store.engines.postgres import lexemes
from hermes.store.engines.postgres.connection import VERSION, PooledConnection, PostgresTx, array_text
from hermes.store.engines.unindexed import IndexedRow, WaitingMessages, document
from hermes.store.text.index_text import worth_keeping
from hermes.store.text.query import Node

LOOKED_AT = 1_000  # words looked for at once
_HELD_TOGETHER = b"LOCK TABLE words IN ROW SHARE MODE"
_HELD_ALONE = b"LOCK TABLE words IN EXCLUSIVE MODE"
BATCH = 200  # messages indexed in one transaction
# Ids in which the words of a question are searched first: enough for a common word, all of whose matches would be read in a
# larger window. How far the next one reaches follows from what was found.
FIRST_WINDOW = 1 << 14
_ADD_WORDS = (
    b"INSERT INTO words(word) SELECT word FROM unnest(%b::text[]) AS given(word)"
    b" WHERE NOT EXISTS (SELECT 1 FROM words o WHERE o.word = given.word)"
)
_ENTRIES = "unnest(%s::bigint[], %s::int[], %s::bool[], %s::int[], %b::text[]) AS given(id, part, whole, size, words)"
_ADD_ENTRIES = f"INSERT INTO message_words SELECT id, part, whole, size, words::tsvector FROM {_ENTRIES}"
_INDEX = (
    # A newer program has upgraded the store: it indexes the rest itself.
    "WITH taken AS (DELETE FROM unindexed WHERE message_id = ANY(%s)"
    f" AND (SELECT max(version) FROM hermes_migrations) <= {VERSION} RETURNING message_id)"
    f" {_ADD_ENTRIES} WHERE id IN (SELECT message_id FROM taken)"
).encode()
_UNINDEXED = "FROM messages m WHERE NOT EXISTS (SELECT 1 FROM message_words w WHERE w.message_id = m.id)"
# A scan of the whole table looks cheap to the planner for queries with many words: it does not count their unpacking.
_BEGIN = (
    "SELECT set_config('enable_seqscan', 'off', true), (SELECT array_agg(message_id) FROM unindexed),"
    " coalesce(max(message_id), 0), EXISTS (SELECT 1 FROM message_words WHERE NOT whole AND part = 1),"
    " EXISTS (SELECT 1 FROM message_words WHERE NOT whole AND part = 0) FROM message_words"
)
_SIZE = "(SELECT p.size FROM message_words p WHERE p.message_id = m.id LIMIT 1)"  # the same in every part
Numbered = tuple[int, tuple[str, str, str]]  # a message as its index columns


def _columns(rows: Sequence[lexemes.Entry]) -> list[list[Any]]:
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


def _like_pattern(part: str) -> str:
    """A pattern for all texts that contain this."""
    escaped = part.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    return f"%{escaped}%"


def _entries(documents: Sequence[Numbered]) -> list[lexemes.Entry]:
    """The rows of the index for some messages."""
    return [row for message_id, columns in documents for row in lexemes.entries(message_id, columns)]


class PostgresFullText:
    """See `hermes.store.engines.base.FullText`."""

    # ------------------------------------------------------------------ indexing

    def index(self, connection: PooledConnection, message_ids: Sequence[int], documents: Sequence[Numbered]) -> None:
        """Index those of these messages that still wait, given as `documents` those that exist."""
        tx = PostgresTx(connection)
        rows = _entries(documents)
        with connection.indexing():
            self._list_words(tx, documents)
            tx.ask(_INDEX, (message_ids, *_columns(rows)))

    def _list_words(self, tx: PostgresTx, documents: Sequence[Numbered]) -> None:
        """Add the words of these messages to the list of words, from which none is removed before the transaction ends."""
        tx.ask(_HELD_TOGETHER)
        found = set[bytes]().union(*(lexemes.distinct_words(columns) for _, columns in documents))
        if words := [word.decode("utf-8", "replace") for word in worth_keeping(found)]:
            tx.ask(_ADD_WORDS, (words,))

    def mark(self, tx: Any) -> int:
        """The id up to which every message is indexed, unless another program has written."""
        waiting, newest = "SELECT min(message_id) - 1 FROM unindexed", "SELECT max(message_id) FROM message_words"
        return int(tx.value(f"SELECT coalesce(({waiting}), ({newest}), 0)"))

    def pending(self, tx: Any) -> int:
        """How many messages are not in the index: just stored, or written by another program."""
        return int(tx.value(f"SELECT count(*) {_UNINDEXED}"))

    def index_now(self, tx: Any, message_ids: Sequence[int]) -> None:
        self.reindex(tx, message_ids)

    def reindex(self, tx: Any, message_ids: Sequence[int]) -> None:
        self.drop(tx, message_ids)
        for start in range(0, len(message_ids), BATCH):
            self.write(tx, self.documents(tx, message_ids[start : start + BATCH]))

    def write(self, tx: PostgresTx, documents: Sequence[Numbered]) -> None:
        """Index messages in this transaction, unqueued: a process that still has an earlier text of one finds nothing to take."""
        self._list_words(tx, documents)
        rows = _entries(documents)
        for start in range(0, len(rows), 50):
            tx.ask(_ADD_ENTRIES, _columns(rows[start : start + 50]))

    def queue_foreign(self, tx: Any) -> None:
        """Queue messages that another program has written."""
        tx.run(
            f"INSERT INTO unindexed(message_id) SELECT m.id {_UNINDEXED} AND m.id NOT IN (SELECT message_id FROM unindexed)"
        )

    def documents(self, tx: Any, message_ids: Sequence[int]) -> list[Numbered]:
        """Messages as they are stored, for the index."""
        these, ids = tx.among("id", message_ids)
        rows = tx.rows(f"SELECT {unindexed.COLUMNS} FROM messages WHERE {these}", ids)
        return [(row[0], document(IndexedRow(*row))) for row in rows]

    def drop(self, tx: Any, message_ids: Sequence[int]) -> None:
        # This waits for a process that is indexing one of them; the next statement then sees its rows.
        tx.ask("DELETE FROM unindexed WHERE message_id = ANY(%s)", (list(message_ids),))
        tx.ask("DELETE FROM message_words WHERE message_id = ANY(%s)", (list(message_ids),))

    # ------------------------------------------------------------------ searching

    def candidates(self, tx: Any, tree: Any, scope: Scope, cap: int) -> list[Candidate]:
        match, loose = lexemes.expression(tree), lexemes.expression(tree, loose=True)
        if match is None or loose is None or cap <= 0:
            return []
        waiting = self._waiting_matches(tx, tree, scope, cap)
        newest, some_long, some_enormous = tx.extent
        in_parts = some_enormous
        if " <-> " in match:  # for a long message the parts decide
            in_parts = in_parts or some_long
            match, loose = f"{match} & !'{lexemes.LONG}'", f"{loose} & !'{lexemes.LONG}'"
        widening = lexemes.Widening(newest, cap)
        found: list[Candidate] = []
        for looked_at in widening:
            found += self._whole_matches(tx, match, loose, looked_at, scope, cap - len(found))
            widening.found = len(found)
        if in_parts:
            oldest = found[-1][0] if len(found) >= cap else 0  # older matches would be cut off again
            found += self._long_matches(tx, tree, newest, oldest, scope, cap)
        return sorted({*waiting, *found}, reverse=True)[:cap]

    def holders(self, tx: Any, trees: Sequence[Any], scope: Scope, cap: int) -> list[list[Holder]]:
        columns = (
            f"m.id, m.session_id, {SPEAKER} FROM ({{words}} ORDER BY place DESC OFFSET 0) w JOIN messages m ON m.id = w.place"
            f" {_join(scope)} WHERE {scope.where} ORDER BY w.place DESC"
        )
        found: list[list[Holder]] = self._newest(tx, trees, columns, scope.params, cap)
        for number, tree in enumerate(trees):
            search = self.candidates if _has_places(lexemes.expression(tree)) else self._waiting_matches
            if some := search(tx, tree, scope, cap):
                also = [(one, session_id, role) for one, _, session_id, role in some]
                found[number] = sorted([*also, *found[number]], reverse=True)[:cap]
        return found

    def holder_ids(self, tx: Any, trees: Sequence[Any], cap: int) -> list[list[int]]:
        found = [
            [row[0] for row in rows]
            for rows in self._newest(tx, trees, "place FROM ({words}) w ORDER BY place DESC", (), cap)
        ]
        for number, tree in enumerate(trees):
            if _has_places(lexemes.expression(tree)):
                found[number] = [one[0] for one in self.candidates(tx, tree, Scope(), cap)]
            elif waiting := [one.id for one in unindexed.matching(tree, self.begin(tx))]:
                found[number] = sorted([*waiting, *found[number]], reverse=True)[:cap]
        return found

    def _newest(self, tx: Any, trees: Sequence[Any], columns: str, params: Params, cap: int) -> list[list[Any]]:
        """The newest indexed matches of each tree that is not searched by places, with these columns: all trees in one
        statement, window by window. It is one text for any number of trees, so the server plans it once.

        `{words}` in the columns are the messages in the index; they are sorted before anything else is read: `_whole_matches`.
        """
        self.begin(tx)
        newest, _, in_parts = tx.extent
        sql = (
            "SELECT a.number, h.* FROM unnest(?::text[], ?::bigint[], ?::bigint[]) WITH ORDINALITY"
            f" AS a(match, below, most, number) CROSS JOIN LATERAL (SELECT {columns.replace('{words}', _matching(in_parts))}"
            " LIMIT a.most) h"
        )
        found: list[list[Any]] = [[] for _ in trees]
        left = []
        for tree, rows in zip(trees, found, strict=True):
            match = lexemes.expression(tree)
            if match is not None and cap > 0 and not _has_places(match):
                widening = lexemes.Widening(newest, cap, FIRST_WINDOW)
                left.append((rows, match, widening, iter(widening)))
        while left:
            windows = [next(steps) for *_, steps in left]
            matches = [where.within(one[1]) for one, where in zip(left, windows, strict=True)]
            ends, most = (
                array_text([where.end for where in windows]),
                array_text([cap - len(rows) for rows, *_ in left]),
            )
            for row in tx.rows(sql, (array_text(matches), ends, most, *params)):
                left[row[0] - 1][0].append(row[1:])
            for rows, _, widening, _ in left:
                widening.found = len(rows)
            left = [one for one, where in zip(left, windows, strict=True) if where.first > 0 and len(one[0]) < cap]
        for rows in found:
            rows.sort(key=itemgetter(0), reverse=True)  # they are, as long as the server joins by nested loops
        return found

    def begin(self, tx: Any) -> WaitingMessages:
        """The first query of a search: how far the index goes, and which messages wait to be indexed (returned)."""
        if tx.unindexed is None:
            _, waiting, *tx.extent = tx.row(_BEGIN)
            tx.unindexed = WaitingMessages(partial(unindexed.read, tx), waiting or ())
        found: WaitingMessages = tx.unindexed
        return found

    def _waiting_matches(self, tx: Any, tree: Node, scope: Scope, cap: int) -> list[Candidate]:
        """The newest matches among the messages that wait, newest first."""
        return unindexed.newest(tx, tree, self.begin(tx), scope, cap)

    def _whole_matches(
        self, tx: Any, match: str, loose: str, where: lexemes.Window, scope: Scope, cap: int
    ) -> list[Candidate]:
        """The newest matches in a window, newest first.

        They are read from the index and sorted before anything else is checked (OFFSET 0 forces the planner to do so;
        it underestimates the cost of reading the words of message after message): a phrase is searched
        in those that have its words, from the newest on, until there are enough. Only where the scope may be much
        narrower than the words, and the window is the whole store, the planner decides. (`+ 0`: the planner must not start from
        the order of ids.)
        """
        fence = "" if where.condition is None and scope.needs_sessions else " ORDER BY place DESC OFFSET 0"
        exact, params = ("", []) if loose == match else (" AND w.words @@ ?::tsquery", [match])
        ask = tx.rows if fence else tx.planned
        rows: list[Candidate] = ask(
            f"SELECT w.place, w.size, m.session_id, {SPEAKER} FROM (SELECT message_id, message_id + 0 AS place, size, words"
            f" FROM message_words WHERE whole AND words @@ ?::tsquery AND message_id + 0 < ?{fence}) w JOIN messages m"
            f" ON m.id = w.message_id {_join(scope)} WHERE {scope.where}{exact} ORDER BY w.place DESC LIMIT ?",
            (where.within(loose), where.end, *scope.params, *params, cap),
        )
        return rows

    def _long_matches(self, tx: Any, tree: Node, newest: int, oldest: int, scope: Scope, cap: int) -> list[Candidate]:
        """The newest matches from an id on among the messages that have parts in the index, newest first."""
        where = lexemes.window(newest, newest - oldest)
        if lexemes.is_unit(tree):  # one part matches the whole query: newest first, as in `_whole_matches`
            match, loose = str(lexemes.expression(tree)), str(lexemes.expression(tree, loose=True))
            exact, params = ("", []) if loose == match else ("WHERE words @@ ?::tsquery", [match])
            chosen = (
                "SELECT DISTINCT place FROM (SELECT message_id + 0 AS place, words FROM message_words WHERE NOT whole"
                f" AND words @@ ?::tsquery AND message_id + 0 >= ? ORDER BY place DESC OFFSET 0) p {exact}"
                " ORDER BY place DESC OFFSET 0"
            )
            values: list[Any] = [where.within(loose), oldest, *params]
        else:
            sets = lexemes.in_parts(tree, where)
            if sets is None:
                return []
            chosen, values = sets[0], [*sets[1]]
        rows: list[Candidate] = tx.rows(
            f"SELECT m.id, {_SIZE}, m.session_id, {SPEAKER} FROM ({chosen}) w(place) JOIN messages m ON m.id = w.place"
            f" {_join(scope)} WHERE {scope.where} AND w.place >= ? ORDER BY w.place DESC LIMIT ?",
            (*values, *scope.params, oldest, cap),
        )
        return rows

    # ------------------------------------------------------------------ words

    def words_containing(self, tx: Any, part: str, cap: int, *, at_end: bool = False) -> list[str]:
        """The shorter ones first."""
        if len(part) < 3:
            return []
        like = _like_pattern(part)
        rows = tx.planned(
            "SELECT word FROM (SELECT DISTINCT word FROM words WHERE word LIKE ? OFFSET 0) e ORDER BY length(word), word LIMIT ?",
            (like[:-1] if at_end else like, cap),
        )
        fits = (lambda word: word.endswith(part)) if at_end else (lambda word: True)
        found = {row[0] for row in rows}.union(unindexed.words_with(part, fits, self.begin(tx)))
        return sorted(found, key=lambda one: (len(one), one))[:cap]

    def words_starting(self, tx: Any, starts: Sequence[str], cap: int) -> list[list[str]]:
        found: list[list[str]] = [[] for _ in starts]
        rows = tx.rows(
            "SELECT a.number, w.word FROM unnest(?::text[], ?::text[]) WITH ORDINALITY AS a(first, after, number)"
            ' CROSS JOIN LATERAL (SELECT DISTINCT word FROM words WHERE word >= a.first COLLATE "C"'
            " AND word < a.after COLLATE \"C\" LIMIT ?) w WHERE a.first <> ''",
            (array_text(starts), array_text([f"{start}\U0010ffff" for start in starts]), cap),
        )
        for number, word in rows:
            found[number - 1].append(word)
        waiting = self.begin(tx)
        for number, start in enumerate(starts):
            if start:
                also = unindexed.words_with(start, lambda word, s=start: word.startswith(s), waiting)  # type: ignore[misc]
                found[number] = list(dict.fromkeys([*found[number], *also]))[:cap]
        return found


# ---------------------------------------------------------------------------------------------- the list of words
#
# Words are added in the transaction that indexes their message. A removal can't overlap with it: indexing holds a shared lock
# of the table `words`, a removal an exclusive one. (Only the store's owner has a right on that table; an advisory lock could be
# held by every role that can log in.)

Work = Callable[[], AbstractContextManager["PostgresTx"]]


def remove_unused_words(read: Work, write: Work) -> int:
    """Remove the words that no message has; returns how many. Waiting messages add theirs when they are indexed."""
    return sum(_remove_words(write, some) for some in _unused_words(read))


def _unused_words(read: Work) -> Iterator[list[str]]:
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
        (listed, [lexemes.quoted(lexemes.lexeme(one)) for one in listed]),
    ).fetchall()
    return [row[0] for row in rows]


def _remove_words(write: Work, unused: list[str]) -> int:
    """Remove these, unless a message has got them meanwhile."""
    with write() as tx:
        tx.ask(_HELD_ALONE)
        gone = _without_message(tx, unused)
        if gone:
            tx.ask("DELETE FROM words WHERE word = ANY(%s)", (gone,))
        return len(gone)
