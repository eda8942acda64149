"""The interface of a storage engine.

The modules above hold portable SQL (`?` for parameters, names in lower case) and reach the data only through a
`Tx`, given by `Engine.read()` and `Engine.write()`. What differs between databases (full text, vacuum,
locks, copies) is a method here. A write transaction is atomic and exclusive (one writer at a time), unless it
is opened with exclusive=False.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from hermes.errors import StoreError, StoreFull, StoreReadOnly
from hermes.store.records import codec
from hermes.store.records.rows import Finding
from hermes.store.text.index_text import call_ids, fold, id_word, phrase, plain, plain_calls, plain_parts
from hermes.store.text.query import MAX_PHRASE_WORDS, And, Leaf, Node, Not

T = TypeVar("T")
Row = tuple[Any, ...]
Params = Sequence[Any]
LOOKED_AT = 1_000  # words of the store that are looked for at once
HELD = "SELECT 1 FROM leases WHERE name = ? AND token = ? AND holder IS NOT NULL"


FULL = "can't grow: the disk is full. Free some space and try again"
# messages.hidden: there only for other sessions; replaced by a summary, still found by search; redacted by a person;
# an earlier version of a message whose text was changed. The last two are never shown again by any session.
KEPT, COMPACTED, REDACTED, REPLACED = -1, -2, -3, -4
# A message of another session that a session may show: not redacted, and no earlier version.
CARRIABLE = f"(m.hidden IS NULL OR m.hidden > {REDACTED})"


def batched(values: Sequence[T]) -> Iterator[Sequence[T]]:
    """The values, 500 at a time: as many as `Tx.among` takes on every engine."""
    return (values[first : first + 500] for first in range(0, len(values), 500))


def rows_among(tx: Tx, sql: str, values: Sequence[Any], column: str = "id", params: Params = ()) -> Iterator[Row]:
    """The rows for any number of values of a column: `{these}` in the statement is the condition, before other parameters."""
    for some in batched(values):
        these, given = tx.among(column, some)
        yield from tx.rows(sql.replace("{these}", these), (*given, *params))


def get_meta(tx: Tx, key: str) -> Any:
    """A value of state_meta; None when it is not set."""
    return codec.restored(tx.value("SELECT value FROM state_meta WHERE key = ?", (key,)))


def set_meta(tx: Tx, key: str, value: Any) -> None:
    """Set a value of state_meta."""
    sql = "INSERT INTO state_meta(key, value) VALUES(?, ?) ON CONFLICT(key) DO UPDATE SET value = excluded.value"
    tx.run(sql, (key, value))


def note_meta(tx: Tx, key: str, value: Any = "1") -> None:
    """Set a value of state_meta that is not set yet."""
    tx.run("INSERT INTO state_meta(key, value) VALUES(?, ?) ON CONFLICT DO NOTHING", (key, value))


def drop_meta(tx: Tx, key: str) -> bool:
    """Remove a value of state_meta; whether there was one."""
    return bool(tx.run("DELETE FROM state_meta WHERE key = ?", (key,)))


def meta_names(tx: Tx, prefix: str) -> list[str]:
    """The rest of each key of state_meta that begins with this, in order."""
    rows = tx.rows("SELECT key FROM state_meta WHERE instr(key, ?) = 1 ORDER BY key", (prefix,))
    return [str(codec.restored(row[0])).removeprefix(prefix) for row in rows]


def finding(kind: str, where: str, detail: str) -> Finding:
    """One problem that a check found."""
    return {"kind": kind, "where": where, "detail": detail}


class StoreMissing(StoreError):
    """A store that does not exist was opened for reading."""


def from_os(error: OSError, path: Path) -> Exception:
    """Map an error of the operating system to the error that this program raises."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return StoreFull(f"{path} {FULL}")
    if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        return StoreReadOnly(f"{path} can't be written ({error.strerror}); check its permissions and its folder's")
    return StoreError(f"{path}: {error.strerror or error}")


class Tx(Protocol):
    """One transaction: short queries and statements, results as tuples or dicts."""

    def rows(self, sql: str, params: Params = ()) -> list[Row]:
        """All rows."""

    def row(self, sql: str, params: Params = ()) -> Row | None:
        """The first row, or None."""

    def value(self, sql: str, params: Params = ()) -> Any:
        """The first column of the first row, or None."""

    def column(self, sql: str, params: Params = ()) -> list[Any]:
        """The first column of all rows."""

    def dicts(self, sql: str, params: Params = ()) -> list[Any]:
        """All rows as dicts keyed by column name; the caller, who names the columns, says which TypedDict that is."""

    def run(self, sql: str, params: Params = ()) -> int:
        """Execute a statement that writes; returns the number of affected rows."""

    def run_many(self, sql: str, many: Sequence[Params]) -> None:
        """Execute a statement that writes once with each of these parameters."""

    def insert(self, sql: str, params: Params = ()) -> int:
        """Execute an INSERT into a table with an integer key; returns the new key."""

    def has_table(self, name: str) -> bool:
        """Whether the table exists."""

    def among(self, column: str, values: Sequence[int] | Sequence[str]) -> tuple[str, list[Any]]:
        """A condition: the column has one of these values, of which there may be hundreds; and its parameters."""

    def spans(self, spans: Sequence[tuple[str, int, int]]) -> tuple[str, list[Any]]:
        """Ranges of message ids, each in a session, as a table `a` (session_id, first, last) after FROM; and its parameters."""

    def hold(self, session_id: str) -> None:
        """Lock this session: no other transaction changes it, or stores messages in it, until this one ends."""

    def holds(self, lease: str, token: int) -> bool:
        """Whether this token holds a lease; if so, no process can take it before the transaction ends."""

    def now(self) -> float:
        """The time, by the one clock that all users of the store share."""

    def reserve(self, highest: int, table: str = "messages") -> None:
        """Rows will be stored under given ids, up to this one: none of these ids is generated again."""

    def last_number(self, table: str) -> int:
        """The highest id the table has ever generated."""

    def store_message(self, count: tuple[str, Params], insert: tuple[str, Params]) -> int | None:
        """Run `count`, and if it changed a row `insert` (INSERT … VALUES(…) of a message); its id, else None."""


# The program's own assistants (the embedded model and the one that only quotes): their text ranks below all other.
OWN_MODELS = ("extractive", "smollm2")
OWN = "own model"
# Who speaks in a message `m`, for its rank: its role, or OWN.
SPEAKER = f"CASE WHEN m.role = 'assistant' AND m.model IN {OWN_MODELS} THEN '{OWN}' ELSE m.role END"
# A message that matches, without what is shown of it: its id, how many words it has, its session and who speaks.
Candidate = tuple[int, int, str, str]
# A message that holds a word: its id, its session and who speaks.
Holder = tuple[int, str, str]


@dataclass(frozen=True, slots=True)
class Scope:
    """The messages that a search may see: portable SQL over `m` (messages) and `s` (sessions)."""

    where: str = "TRUE"
    params: tuple[Any, ...] = ()
    needs_sessions: bool = False
    sessions: str = "TRUE"
    """The sessions `s` it may see, without those it sees a part of: for how many there are."""
    session_params: tuple[Any, ...] = ()
    by_message: bool = False
    """Whether it may see only some messages of those sessions (of a time, a role, a tool)."""


class FullText(Protocol):
    """The engine's index over messages. Expressions are the engine's own, built by `expression()`."""

    def candidates(self, tx: Tx, tree: Any, scope: Scope, cap: int) -> list[Candidate]:
        """The newest `cap` messages that match the query tree, newest first."""

    def holders(self, tx: Tx, trees: Sequence[Any], scope: Scope, cap: int) -> list[list[Holder]]:
        """The newest `cap` messages that match each of these trees: all words of a question in one call."""

    def holder_ids(self, tx: Tx, trees: Sequence[Any], cap: int) -> list[list[int]]:
        """The ids alone, of all users' messages: only to be intersected with ids that may be seen."""

    def words_containing(self, tx: Tx, part: str, cap: int, *, at_end: bool = False) -> list[str]:
        """Words of the store (folded) that contain this part, or end with it."""

    def words_starting(self, tx: Tx, starts: Sequence[str], cap: int) -> list[list[str]]:
        """Words of the store (folded) with each of these prefixes."""

    def mark(self, tx: Tx) -> int:
        """The id up to which every message is indexed."""

    def pending(self, tx: Tx) -> int:
        """How many messages are not in the index yet (search finds them nevertheless)."""

    def index_now(self, tx: Tx, message_ids: Sequence[int]) -> None:
        """Index messages that were inserted otherwise than by Tx.store_message: imports keep their ids."""

    def reindex(self, tx: Tx, message_ids: Sequence[int]) -> None:
        """Re-index messages whose row was changed."""

    def drop(self, tx: Tx, message_ids: Sequence[int]) -> None:
        """Remove messages from the index whose rows were deleted in this transaction."""

    def listed_words(self, tx: Tx, after: str) -> list[str]:
        """Some of the store's words in order, starting after this one."""

    def unused_words(self, tx: Tx, words: Sequence[str]) -> list[str]:
        """The words among these that no indexed message has."""

    def remove_words(self, tx: Tx, words: Sequence[str]) -> None:
        """Remove these from the list of words, unless a message has got them meanwhile."""


class Engine(Protocol):
    """A database that holds one store."""

    name: str
    read_only: bool
    where: str
    """The store's location for display."""
    shared: bool
    """Whether several hosts may use it: local files are then this host's own, and attachments are in the database."""
    on_behind: Callable[[Iterable[str]], None]
    """Called with sessions whose transcripts may lack lines: rows of another program were adopted, or a commit may not last."""

    @property
    def fulltext(self) -> FullText:
        """The index over messages."""

    def read(self) -> AbstractContextManager[Tx]:
        """A consistent view; never blocks writers and is not blocked by them."""

    def query(self, sql: str, params: Params) -> list[dict[str, Any]]:
        """Rows of a caller's own query, in this database's SQL; InvalidInput when it is not read-only or fails."""

    def searching(self) -> AbstractContextManager[Tx]:
        """A consistent view for a search, which finds every message stored so far."""

    def write(
        self, *, lock: Sequence[str] = (), exclusive: bool = True, storing: bool = False, durable: bool = True
    ) -> AbstractContextManager[Tx]:
        """A transaction that commits at the end of the block and rolls back when the block raises.

        The sessions named in `lock` are locked (see Tx.hold) from the beginning. Transactions that are not `exclusive` may
        run concurrently: each of their statements must be correct in any interleaving. `storing` says that a message will
        be stored in it (Tx.store_message). A write that is not `durable` may be lost in a power failure of this machine:
        a lease, since no process that held one survives that.
        """

    def make_tables(self, statements: Sequence[str]) -> None:
        """Create further tables and indexes, declared as for SQLite, if they do not exist."""

    def size(self) -> int:
        """How many bytes the store takes."""

    def adopt_foreign_rows(self) -> None:
        """Adopt rows that another program wrote: called before a list or a title look-up."""

    def catch_up(self, *, progress: Callable[[int, int], None] | None = None) -> int:
        """Index every message that is not indexed yet; returns how many."""

    def appended(self, message_id: int, size: int) -> None:
        """Called after each append, to do a bounded piece of housekeeping."""

    def problems(self) -> list[Finding]:
        """Find damage in the stored data or its index."""

    def rebuild_index(self) -> None:
        """Rebuild the full-text index from the messages."""

    def start_background(self) -> None:
        """Start deferred work in the background, if there is much of it."""

    def reclaim(self, *, full: bool = False) -> bool:
        """Return free space to the file system, if there is enough (or always, when `full`)."""

    def scrub(self) -> list[str]:
        """Rewrite what holds deleted text: index, free pages, log. A line for each place that could not be rewritten."""

    def backup(self, target: Path) -> None:
        """Write a consistent copy while others write."""

    def close(self) -> None:
        """Close everything. May be called twice."""


def remove_unused_words(engine: Engine) -> None:
    """Remove the words that no indexed message has from the list of words, some at a time."""
    last = ""
    while True:
        with engine.read() as tx:
            listed = engine.fulltext.listed_words(tx, last)
            unused = engine.fulltext.unused_words(tx, listed)
        if not listed:
            return
        last = listed[-1]
        if unused:
            with engine.write() as tx:
                engine.fulltext.remove_words(tx, unused)


# ----------------------------------------------------------------------------------------------------
# A message as the full-text index sees it: the same three columns on every engine.


def columns_of(content: str | None, form: Any, tool_name: Any, tool_calls: Any) -> tuple[str, str, str]:
    """The words of a message (its whole content, and the other columns as stored), not yet folded."""
    value = "" if content is None else codec.content_value(content, form)
    text = plain(value) if isinstance(value, str) else plain_parts(value)
    if tool_calls is None:
        return text, codec.restored(tool_name) or "", ""
    calls = codec.from_json(tool_calls)
    return text, codec.restored(tool_name) or "", "\n".join((plain_calls(calls), *map(id_word, call_ids(calls))))


def phrase_words(leaf: Leaf) -> tuple[list[str], bool]:
    """The words of a leaf as every index has them, and whether the last one is only a beginning; none when nothing is indexed.

    Of a phrase that is longer than MAX_PHRASE_WORDS the first ones count: each further word would be compared at every place
    of a long message, and a PostgreSQL index has no longer ones in one part. (Of Chinese each pair of characters is a word.)
    """
    words, open_end = phrase(leaf.text)
    parted = words.split()
    return parted[:MAX_PHRASE_WORDS], 0 < len(parted) <= MAX_PHRASE_WORDS and (leaf.prefix or open_end)


def could_match(tree: Node, folded: str) -> bool:
    """A cheap necessary condition on folded text: it contains every needed word."""
    if isinstance(tree, Leaf):  # of a phrase that is cut, so many characters are of words that count
        words = fold(tree.text)[:MAX_PHRASE_WORDS].replace("_", " ").split()
        return all(word in folded for word in words if word.isalnum())
    if isinstance(tree, Not):
        return could_match(tree.keep, folded)
    if isinstance(tree, And):
        return all(could_match(child, folded) for child in tree.children)
    return any(could_match(child, folded) for child in tree.children)
