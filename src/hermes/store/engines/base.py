"""What a storage engine must do for the record.

The modules above hold portable SQL (`?` for parameters, names in lower case) and reach the data only through a
`Tx`, handed out by `Engine.read()` and `Engine.write()`. What differs between databases (full text, vacuum,
locks, copies) is a method here. A write transaction is all or nothing and has one writer at a time, unless it says
that it need not be alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from hermes.errors import StoreError
from hermes.store import codec
from hermes.store.index_text import fold, plain, plain_calls, plain_parts
from hermes.store.query import And, Leaf, Node, Not

if TYPE_CHECKING:
    from hermes.store.rows import Finding

Row = tuple[Any, ...]
Progress = Callable[[str, int, int], None]  # what is being looked at, how much of it is done, and of how much
MessageColumns = dict[str, Sequence[Any]]  # a session's own messages by column; `content` has the whole texts
# Told which sessions are about to be read within one view; what it returns is told the messages of each that is sound.
Visit: TypeAlias = "Callable[[Tx, Sequence[str]], Callable[[str, MessageColumns], None]]"
Params = Sequence[Any]
Document = tuple[Any, Any, Any, Any]  # what of a message is searched: whole content, its form, tool name, tool calls
HELD = "SELECT 1 FROM leases WHERE name = ? AND token = ? AND holder IS NOT NULL"


# messages.hidden: only there for other sessions; replaced by a summary, still found by search; taken out by a person;
# an earlier version of a message whose text was changed. The last two are shown by no session and never come back.
KEPT, COMPACTED, REDACTED, REPLACED = -1, -2, -3, -4


def finding(kind: str, where: str, detail: str) -> Finding:
    """One thing that a check found wrong."""
    return {"kind": kind, "where": where, "detail": detail}


class NothingThere(StoreError):
    """A store that is not there yet was opened for reading."""


class Tx(Protocol):
    """One transaction: short questions and commands, results as tuples or dicts."""

    active_first: str
    """What an ORDER BY of sessions `s` by last activity, the newest first, begins with where an index needs it."""

    def rows(self, sql: str, params: Params = ()) -> list[Row]:
        """All rows."""
        ...

    def row(self, sql: str, params: Params = ()) -> Row | None:
        """The first row, or None."""
        ...

    def value(self, sql: str, params: Params = ()) -> Any:
        """The first column of the first row, or None."""
        ...

    def dicts(self, sql: str, params: Params = ()) -> list[Any]:
        """All rows as dicts keyed by column name; the caller, who names the columns, says which TypedDict that is."""
        ...

    def run(self, sql: str, params: Params = ()) -> int:
        """Execute a change; how many rows it touched."""
        ...

    def run_many(self, sql: str, many: Sequence[Params]) -> None:
        """Execute a change once with each of these parameters."""
        ...

    def insert(self, sql: str, params: Params = ()) -> int:
        """Execute an INSERT into a table with an integer key; the new key."""
        ...

    def has_table(self, name: str) -> bool:
        """Whether there is such a table."""
        ...

    def hold(self, session_id: str) -> None:
        """Nobody else changes this session, or stores messages in it, until the transaction ends."""
        ...

    def holds(self, lease: str, token: int) -> bool:
        """Whether a lease is this token's; if so, nobody takes it before the transaction ends."""
        ...

    def now(self) -> float:
        """The time, by the one clock that all who use the store go by."""
        ...

    def reserve(self, highest: int, table: str = "messages") -> None:
        """Rows are about to be stored under ids of their own, up to this one: none of them is given out again."""
        ...

    def last_number(self, table: str) -> int:
        """The highest id the table has ever given out."""
        ...

    def changed_by_us(self, message_ids: Sequence[int]) -> None:
        """This program itself changed or removed these messages: that is no change by another program."""
        ...

    def store_message(
        self, count: tuple[str, Params], insert: tuple[str, Params], at: float, document: Document
    ) -> int | None:
        """Run `count`, and if it changed a row `insert` (INSERT … VALUES(…) of a message); its id, else None."""
        ...

    def message_stored(
        self, message_id: int, at: float, content: Any, form: Any, tool_name: Any, tool_calls: Any
    ) -> None:
        """Told of each message row: its time, its whole content and the columns that are searched, as stored."""
        ...

    def meanwhile(self, work: Callable[[], None]) -> None:
        """`work` may be done between the commit and the moment when it lasts, while the disk is busy; or it is not done."""
        ...


# A message that matches, before anything about it is shown: its id, a score, its session and its role.
Candidate = tuple[int, float, str, str]
# A message that holds a word: its id, its session and its role.
Holder = tuple[int, str, str]


@dataclass(frozen=True, slots=True)
class Scope:
    """Which messages a search may see: portable SQL over `m` (messages) and `s` (sessions)."""

    where: str = "TRUE"
    params: tuple[Any, ...] = ()
    needs_sessions: bool = False
    sessions: str = "TRUE"
    """The sessions `s` it may see, without those it sees a part of: for how many there are."""
    session_params: tuple[Any, ...] = ()


class FullText(Protocol):
    """The engine's index over messages. Expressions are the engine's own, built by `expression()`."""

    has_names: bool
    """Whether it knows names made of several words (a_b): those it has, and leaves of that kind."""

    def candidates(self, tx: Tx, tree: Any, scope: Scope, cap: int) -> list[Candidate]:
        """The newest `cap` messages that match the query tree, each with a score (higher is better)."""
        ...

    def holders(self, tx: Tx, tree: Any, scope: Scope, cap: int) -> list[Holder]:
        """The same without a score: what a question asks of each of its words."""
        ...

    def holder_ids(self, tx: Tx, tree: Any, cap: int) -> list[int]:
        """The ids alone, of all users' messages: only to be intersected with ids that may be seen."""
        ...

    def words_containing(self, tx: Tx, part: str, cap: int) -> list[str]:
        """Words of the store (folded) that contain this part."""
        ...

    def names_containing(self, tx: Tx, part: str, cap: int) -> list[str] | None:
        """Names made of several words (folded, a_b_c) that contain this part; None when there is no list of them."""
        ...

    def is_name(self, tx: Tx, name: str) -> bool:
        """Whether some message has this name."""
        ...

    def words_starting(self, tx: Tx, start: str, cap: int) -> list[str]:
        """Words of the store (folded) that start so."""
        ...

    def mark(self, tx: Tx) -> int:
        """The id up to which every message is indexed."""
        ...

    def pending(self, tx: Tx) -> int:
        """How many messages are not in the index yet (they are found all the same)."""
        ...

    def index_now(self, tx: Tx, message_ids: Sequence[int]) -> None:
        """Index messages that were inserted under ids below what is indexed already (imports keep their ids)."""
        ...

    def reindex(self, tx: Tx, message_ids: Sequence[int]) -> None:
        """Index messages anew whose row was changed."""
        ...

    def drop(self, tx: Tx, message_ids: Sequence[int]) -> None:
        """Forget messages that are being deleted in this transaction."""
        ...


class Engine(Protocol):
    """A database that holds one record."""

    name: str
    read_only: bool
    where: str
    """The store's place, as a person is told it."""
    shared: bool
    """Whether several hosts may use it: files beside it are then this host's own, and the bytes of attachments lie in it."""
    on_adopted: Callable[[Iterable[str]], None]
    """Told which sessions had rows by another program that were just taken in."""
    on_unsure: Callable[[Iterable[str]], None]
    """Told which sessions were changed in a transaction that was committed, but maybe not for good."""
    on_differing: Callable[[Sequence[str]], None]
    """Told which sessions another program has archived, or hidden or shown messages of: it is followed."""
    on_parts: Callable[[Sequence[int]], None]
    """Told which messages hold parts as another program stores them, before they are indexed."""

    @property
    def fulltext(self) -> FullText:
        """The index over messages."""
        ...

    def read(self) -> AbstractContextManager[Tx]:
        """A consistent view; never blocks writers and is not blocked by them."""
        ...

    def query(self, sql: str, params: Params) -> list[dict[str, Any]]:
        """Rows of a caller's own question, in this database's SQL; InvalidInput when it is no question or a wrong one."""
        ...

    def searching(self) -> AbstractContextManager[Tx]:
        """The same for a search: everything that is stored by now is found in it."""
        ...

    def write(
        self, *, holding: Sequence[str] = (), alone: bool = True, storing: bool = False, lasting: bool = True
    ) -> AbstractContextManager[Tx]:
        """A transaction that commits at the end of the block and rolls back when the block raises.

        The sessions named in `holding` are held (see Tx.hold) from the beginning. Of those that are not `alone` several may
        run side by side: each of their statements must be right whatever the others do. `storing` says that a message is
        to be stored in it (Tx.store_message). What is not `lasting` may be gone after a power failure of this machine: who
        holds a lease, since nobody who held one is left then.
        """
        ...

    def has_table(self, tx: Tx, name: str) -> bool:
        """Whether there is such a table."""
        ...

    def make_tables(self, statements: Sequence[str]) -> None:
        """Make further tables and indexes, declared as for SQLite, if they are not there."""
        ...

    def size(self) -> int:
        """How many bytes the store takes."""
        ...

    def taking_in(self) -> AbstractContextManager[None]:
        """Entered before a list or a title look-up: rows that another program wrote are brought up to date."""
        ...

    def catch_up(self, *, progress: Callable[[int, int], None] | None = None) -> int:
        """Index every message that is not indexed yet; how many that was."""
        ...

    def appended(self, message_id: int, size: int) -> None:
        """Told after each append: the moment to do a bounded piece of housekeeping."""
        ...

    def problems(self, progress: Progress | None = None, visit: Visit | None = None) -> list[Finding]:
        """What is wrong with the stored data or its index. An engine that reads every message for it tells `visit`."""
        ...

    def put_values_right(self, known: Callable[[str, Any, str], Any]) -> int:
        """Write over values that can't be read: with `known(table, key, column)`, else with what is left of them.

        `known` raises LookupError when it does not know; how many values were written.
        """
        ...

    def rebuild_index(self) -> None:
        """Make the full-text index anew from the messages."""
        ...

    def start_background(self) -> None:
        """Begin work that can be put off, if there is much of it."""
        ...

    def reclaim(self, *, full: bool = False) -> bool:
        """Give free space back to the file system, if it is worth it (or always, when `full`)."""
        ...

    def scrub(self) -> list[str]:
        """Rewrite what holds deleted text: index, free pages, log. A line for each place that could not be rewritten."""
        ...

    def backup(self, target: Path) -> None:
        """A consistent copy while others write."""
        ...

    def close(self) -> None:
        """Let go of everything. May be called twice."""
        ...


# ----------------------------------------------------------------------------------------------------
# A message as the full-text index sees it: the same three columns on every engine.


def columns_of(content: str | None, form: Any, tool_name: Any, tool_calls: Any) -> tuple[str, str, str]:
    """The words of a message (its whole content, and the other columns as stored), not yet folded."""
    value = "" if content is None else codec.content_value(content, form)
    text = plain(value) if isinstance(value, str) else plain_parts(value)
    calls = plain_calls(codec.from_json(tool_calls)) if tool_calls is not None else ""
    return text, codec.restored(tool_name) or "", calls


def could_match(tree: Node, folded: str) -> bool:
    """A cheap necessary condition on folded text: every needed word occurs in it somewhere."""
    if isinstance(tree, Leaf):
        return all(word in folded for word in fold(tree.text).replace("_", " ").split() if word.isalnum())
    if isinstance(tree, Not):
        return could_match(tree.keep, folded)
    if isinstance(tree, And):
        return all(could_match(child, folded) for child in tree.children)
    return any(could_match(child, folded) for child in tree.children)
