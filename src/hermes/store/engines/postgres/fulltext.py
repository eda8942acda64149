"""The full-text index on PostgreSQL.

Words are indexed in the transaction that stores their message, so the index is always complete: a row of message_words a
message, with a GIN index over its tsvector. Of a long message there are several rows; for these few a query tree is put
together leaf by leaf. The distinct words of the store lie in `words`, whose trigrams find parts of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from hermes.errors import StoreCorrupt
from hermes.store import codec
from hermes.store.engines.base import Candidate, Document, Params, Scope
from hermes.store.engines.documents import columns_of
from hermes.store.engines.postgres import storing
from hermes.store.engines.postgres.lexemes import Entry, entries, lexeme, parts, quoted
from hermes.store.engines.postgres.stretches import Widening, Window, window
from hermes.store.engines.postgres.transaction import PostgresTx
from hermes.store.query import And, Leaf, Node, Not, Or, positive
from hermes.store.text import phrase, vocabulary, worth_keeping

KNOWN = 300_000
RANKED_WORDS = 64  # of a query
COUNTED = 400  # words a message may have for their occurrences to be counted
BATCH = 200  # messages indexed in one transaction
_ONCE = 1.6449340668482264  # ts_rank divides by this: what one occurrence counts
COLUMNS = "id, content, content_rest, content_format, tool_name, tool_calls"
Numbered = tuple[int, tuple[str, str, str]]  # a message as its index columns
Found = tuple[int, str, str]  # a message that matches, its session and its role


def _words(leaf: Leaf) -> list[str]:
    """The words of a leaf as they stand in a tsquery; none when nothing in it is indexed."""
    words, open_end = phrase(leaf.text)
    every = [quoted(lexeme(word)) for word in words.split()]
    if every and (leaf.prefix or open_end):
        every[-1] += ":*"
    return every


def _one_of(leaves: Iterable[Leaf], link: str) -> list[str]:
    """Leaves of which one is enough. Those that go on alike are asked together: ('a' | 'b') <-> 'c':* reads c… once."""
    beginnings: dict[tuple[str, ...], dict[str, None]] = {}
    for leaf in leaves:
        if words := _words(leaf):
            beginnings.setdefault(tuple(words[1:]), {})[words[0]] = None
    found: list[str] = []
    for rest, firsts in beginnings.items():
        if not rest:
            found += firsts
            continue
        first = next(iter(firsts)) if len(firsts) == 1 else f"({' | '.join(firsts)})"
        found.append(f"({link.join((first, *rest))})")
    return found


def expression(tree: Node | None, *, loose: bool = False) -> str | None:
    """A query tree as a tsquery; None when nothing in it is indexed. User text only ever stands in quotes.

    `loose` asks of a phrase only that its words are there, which the index answers by itself: all that match the tree match
    this, and perhaps others.
    """
    if tree is None:
        return None
    link = " & " if loose else " <-> "
    if isinstance(tree, Leaf):
        return next(iter(_one_of([tree], link)), None)
    if isinstance(tree, Not):
        keep, drop = expression(tree.keep, loose=loose), expression(tree.drop)
        if keep is None or drop is None or (loose and "<->" in drop):
            return keep
        return f"({keep} & !{drop})"
    if isinstance(tree, Or):
        found = _one_of((child for child in tree.children if isinstance(child, Leaf)), link)
        others: Iterable[Node] = (child for child in tree.children if not isinstance(child, Leaf))
    else:
        found, others = [], tree.children
    found += [part for child in others if (part := expression(child, loose=loose)) is not None]
    if not found:
        return None
    return found[0] if len(found) == 1 else f"({(' & ' if isinstance(tree, And) else ' | ').join(found)})"


def _ranking(tree: Node) -> tuple[str, int]:
    """What a message is ranked by: any of the words that were asked for, and how many these are."""
    words: dict[str, None] = {}
    for leaf in positive(tree):
        words.update(dict.fromkeys(_words(leaf)))
        if len(words) >= RANKED_WORDS:
            break
    some = list(words)[:RANKED_WORDS]
    return " | ".join(some), len(some)


def _join(scope: Scope) -> str:
    return "JOIN sessions s ON s.id = m.session_id" if scope.needs_sessions else ""


def _array(ids: Iterable[int]) -> str:
    return f"{{{','.join(map(str, ids))}}}"


def _kept(words: set[bytes]) -> list[str]:
    """Those of the words that belong in the list."""
    return [word.decode("utf-8", "replace") for word in worth_keeping(words)]


def _units(tree: Node) -> Iterator[Node]:
    """The parts of a tree that one place in a message answers: its leaves, and those of them that stand for each other."""
    if isinstance(tree, Leaf) or (isinstance(tree, Or) and all(isinstance(child, Leaf) for child in tree.children)):
        if expression(tree) is not None:
            yield tree
    elif isinstance(tree, Not):
        yield from _units(tree.keep)
        yield from _units(tree.drop)
    else:
        for child in tree.children:
            yield from _units(child)


def _combined(tree: Node, having: dict[Node, set[int]]) -> set[int] | None:
    """The messages that answer a tree, from those that answer its units; None when nothing of it is indexed."""
    if isinstance(tree, Leaf) or tree in having:
        return having.get(tree)
    if isinstance(tree, Not):
        keep, drop = _combined(tree.keep, having), _combined(tree.drop, having)
        return keep if not keep or not drop else keep - drop
    sets = [found for child in tree.children if (found := _combined(child, having)) is not None]
    return (set.intersection if isinstance(tree, And) else set.union)(*sets) if sets else None


class PostgresFullText:
    """See `hermes.store.engines.base.FullText`."""

    def __init__(self) -> None:
        self._known: set[bytes] = set()  # words that are in the list for good

    # ------------------------------------------------------------------ indexing

    def write_stored(self, tx: PostgresTx) -> set[bytes]:
        """Index the messages that were stored in this transaction; the words to `learn` when it is committed."""
        if not tx.stored:
            return set()
        documents = [(row[0], columns_of(*row[1:])) for row in tx.stored]
        tx.stored = []
        return self._write(tx, documents)

    def store(
        self, tx: PostgresTx, count: tuple[str, Params], insert: tuple[str, Params], document: Document
    ) -> int | None:
        """Store a message and index it; its id, or None when there is no such session."""
        columns = columns_of(*document)
        words = self._unknown(columns) - tx.learned
        message_id = storing.store(tx, count, insert, parts(columns), _kept(words))
        tx.learned |= words
        return message_id

    def _unknown(self, columns: tuple[str, str, str]) -> set[bytes]:
        words = vocabulary(columns[0])
        if columns[2]:
            words |= vocabulary(columns[2])
        return words - self._known

    def _write(self, tx: PostgresTx, documents: Sequence[Numbered]) -> set[bytes]:
        rows: list[Entry] = []
        words: set[bytes] = set()
        for message_id, columns in documents:
            rows += entries(message_id, columns)
            words |= self._unknown(columns)
        if kept := _kept(words):
            tx.ask(storing.ADD_WORDS, (kept,))
        if len(rows) == 1:
            tx.ask("INSERT INTO message_words VALUES(%s, %s, %s, %s, %s::tsvector)", rows[0])
        else:
            for start in range(0, len(rows), 50):
                some = list(zip(*rows[start : start + 50], strict=True))
                tx.ask(
                    "INSERT INTO message_words SELECT id, part, whole, size, words::tsvector FROM unnest(%s::bigint[],"
                    " %s::int[], %s::bool[], %s::int[], %s::text[]) AS given(id, part, whole, size, words)",
                    [list(column) for column in some],
                )
        return words

    def learn(self, words: set[bytes]) -> None:
        """These words are in the list: they need not be looked up again."""
        if len(self._known) > KNOWN:
            self._known = set()
        self._known.update(words)

    def mark(self, tx: Any) -> int:
        """The id up to which every message is indexed: the last one, unless another program has written."""
        return int(tx.value("SELECT coalesce(max(message_id), 0) FROM message_words"))

    def pending(self, tx: Any) -> int:
        """How many messages another program wrote that are not in the index."""
        return int(
            tx.value(
                "SELECT count(*) FROM messages m WHERE NOT EXISTS (SELECT 1 FROM message_words w WHERE w.message_id = m.id)"
            )
        )

    def unindexed(self, tx: Any, limit: int = BATCH) -> list[int]:
        """Some of them."""
        rows = tx.rows(
            "SELECT m.id FROM messages m WHERE NOT EXISTS (SELECT 1 FROM message_words w WHERE w.message_id = m.id)"
            " ORDER BY m.id LIMIT ?",
            (limit,),
        )
        return [row[0] for row in rows]

    def index_now(self, tx: Any, message_ids: Sequence[int]) -> None:
        """Nothing to do: whatever is stored is indexed with the commit."""

    def reindex(self, tx: Any, message_ids: Sequence[int]) -> None:
        self.drop(tx, message_ids)
        for start in range(0, len(message_ids), BATCH):
            self._write(tx, self.documents(tx, message_ids[start : start + BATCH]))

    def documents(self, tx: Any, message_ids: Sequence[int]) -> list[Numbered]:
        """Messages as they are stored, for the index."""
        marks = ", ".join("?" * len(message_ids))
        found = []
        for message_id, head, rest, form, name, calls in tx.rows(
            f"SELECT {COLUMNS} FROM messages WHERE id IN ({marks})", list(message_ids)
        ):
            try:
                content = codec.joined(head, rest)
            except StoreCorrupt:  # one damaged text must not keep the others from being found
                content = head
            found.append((message_id, columns_of(content, form, name, calls)))
        return found

    def drop(self, tx: Any, message_ids: Sequence[int]) -> None:
        gone = set(message_ids)
        tx.stored = [row for row in tx.stored if row[0] not in gone]
        tx.ask("DELETE FROM message_words WHERE message_id = ANY(%s)", (list(message_ids),))

    # ------------------------------------------------------------------ searching

    def candidates(self, tx: Any, tree: Any, scope: Scope, cap: int) -> list[Candidate]:
        match, loose = expression(tree), expression(tree, loose=True)
        if match is None or loose is None or cap <= 0:
            return []
        # A scan of the whole table looks cheap to the planner where many words are asked for: their unpacking is not counted.
        _, newest, some_long = tx.row(
            "SELECT set_config('enable_seqscan', 'off', true), coalesce(max(message_id), 0),"
            " EXISTS (SELECT 1 FROM message_words WHERE NOT whole AND part = 1) FROM message_words"
        )
        widening = Widening(newest, cap)
        found: list[Found] = []
        for looked_at in widening:
            found += self._whole_ones(tx, match, loose, looked_at, scope, cap - len(found))
            widening.found = len(found)
        if some_long:
            oldest = found[-1][0] if len(found) >= cap else 0  # what is older than all of these would be cut off again
            found = sorted([*found, *self._long_ones(tx, tree, newest, oldest, scope, cap)], reverse=True)[:cap]
        return self._weighed(tx, tree, found)

    def _whole_ones(self, tx: Any, match: str, loose: str, where: Window, scope: Scope, cap: int) -> list[Found]:
        """The newest matches in a window, newest first.

        They are taken from the index and put in order before anything else is looked at (OFFSET 0 says so to the
        planner, which does not know how dear it is to look into the words of message after message): a phrase is looked
        for in those that have its words, from the newest on, until there are enough. Only where the scope may be much
        narrower than the words, and the window is all there is, the planner decides. (`+ 0`: the order of ids is nothing
        to begin with.)
        """
        fence = "" if where.condition is None and scope.needs_sessions else " ORDER BY place DESC OFFSET 0"
        exact, params = ("", []) if loose == match else (" AND w.words @@ ?::tsquery", [match])
        rows: list[Found] = tx.planned(
            "SELECT w.message_id, m.session_id, m.role FROM (SELECT message_id, message_id + 0 AS place, words FROM"
            f" message_words WHERE whole AND words @@ ?::tsquery AND message_id + 0 < ?{fence}) w JOIN messages m"
            f" ON m.id = w.message_id {_join(scope)} WHERE {scope.where}{exact} ORDER BY w.place DESC LIMIT ?",
            (where.within(loose), where.end, *scope.params, *params, cap),
        )
        return rows

    def _long_ones(self, tx: Any, tree: Node, newest: int, oldest: int, scope: Scope, cap: int) -> list[Found]:
        """The same, from an id on, of messages that have several rows in the index."""
        where, asked = window(newest, newest - oldest), list(_units(tree))
        if asked == [tree]:
            return self._long_ones_of_one(tx, tree, where, oldest, scope, cap)
        having: list[set[int]] = [set() for _ in asked]
        for number, message_id in tx.planned(
            " UNION ALL ".join(
                f"SELECT {number}, message_id FROM message_words WHERE NOT whole AND words @@ ?::tsquery"
                for number in range(len(asked))
            ),
            [where.within(str(expression(unit))) for unit in asked],
        ):
            having[number].add(message_id)
        ids = [found for found in _combined(tree, dict(zip(asked, having, strict=True))) or () if found >= oldest]
        if not ids:
            return []
        rows: list[Found] = tx.planned(
            f"SELECT m.id, m.session_id, m.role FROM messages m {_join(scope)} WHERE m.id = ANY(?::bigint[]) AND {scope.where}"
            " ORDER BY m.id DESC LIMIT ?",
            (_array(ids), *scope.params, cap),
        )
        return rows

    def _long_ones_of_one(self, tx: Any, unit: Node, where: Window, oldest: int, scope: Scope, cap: int) -> list[Found]:
        """Where one place in a message answers the whole question: newest first, as in `_whole_ones`."""
        match, loose = str(expression(unit)), str(expression(unit, loose=True))
        exact, params = ("", []) if loose == match else ("WHERE words @@ ?::tsquery", [match])
        rows: list[Found] = tx.planned(
            "SELECT m.id, m.session_id, m.role FROM (SELECT DISTINCT place FROM (SELECT message_id + 0 AS place, words"
            " FROM message_words WHERE NOT whole AND words @@ ?::tsquery AND message_id + 0 >= ? ORDER BY place DESC"
            f" OFFSET 0) p {exact} ORDER BY place DESC OFFSET 0) w JOIN messages m ON m.id = w.place {_join(scope)}"
            f" WHERE {scope.where} ORDER BY w.place DESC LIMIT ?",
            (where.within(loose), oldest, *params, *scope.params, cap),
        )
        return rows

    def _weighed(self, tx: Any, tree: Node, found: Sequence[Found]) -> list[Candidate]:
        """How much each message is about the words: their number against its length, bounded.

        How often a longer one has each word is dear to find out (its words lie aside and have to be unpacked) and says
        little next to its length: once is assumed.
        """
        if not found:
            return []
        ranking, number = _ranking(tree)
        weights = {}
        for message_id, rank, size in tx.rows(
            f"SELECT message_id, max(CASE WHEN whole AND size <= {COUNTED} THEN ts_rank('{{1,1,1,1}}', words, ?::tsquery) END),"
            " sum(size) FROM message_words WHERE message_id = ANY(?::bigint[]) GROUP BY message_id",
            (ranking, _array(row[0] for row in found)),
        ):
            count = number if rank is None else rank * number * _ONCE
            weights[message_id] = count / (count + 0.4 + 0.8 * float(size) / 400.0)
        return [(message_id, weights.get(message_id, 0.0), session, role) for message_id, session, role in found]

    # ------------------------------------------------------------------ words

    def words_containing(self, tx: Any, part: str, cap: int) -> list[str]:
        if len(part) < 3:
            return []
        pattern = part.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
        rows = tx.planned("SELECT DISTINCT word FROM words WHERE word LIKE ? LIMIT ?", (f"%{pattern}%", cap))
        return [row[0] for row in rows]

    def words_starting(self, tx: Any, start: str, cap: int) -> list[str]:
        if not start:
            return []
        rows = tx.rows(
            "SELECT DISTINCT word FROM words WHERE word >= ? AND word < ? LIMIT ?", (start, start + "\U0010ffff", cap)
        )
        return [row[0] for row in rows]
