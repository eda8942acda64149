"""Reads every message once: checks that its values and text can be read and match the index.

Messages are read a session at a time and checked column by column, in bulk; only those of a session in which something
is wrong are checked one by one. Sound sessions are passed on, so that no other check has to read them again.
"""

from __future__ import annotations

import zlib
from collections.abc import Generator, Iterable, Iterator, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import apsw

from hermes.errors import StoreCorrupt
from hermes.store import codec
from hermes.store.engines.base import MessageColumns, Progress, Visit, finding
from hermes.store.engines.sqlite import inspection, value_check
from hermes.store.engines.sqlite.word_table import SEARCHED, IndexedRow, text_crc

if TYPE_CHECKING:
    from hermes.store.engines.sqlite.engine import SqliteEngine
    from hermes.store.rows import Finding

_AT_ONCE = 32  # sessions read within one view of the database
_TYPES: dict[str, frozenset[type]] = {
    "TEXT": frozenset((str, type(None))),
    "REAL": frozenset((float, int, type(None))),
    "INTEGER": frozenset((int, type(None))),
    "BLOB": frozenset((bytes, type(None))),
}
_ALWAYS = (
    "id", "role", "content", "tool_calls", "tool_name", "timestamp", "hidden", "content_format", "content_rest",
)  # fmt: skip
_FORMS = (None, "json", "text")
_STALE = "the full-text index has another text"


def check(engine: SqliteEngine, progress: Progress | None, visit: Visit | None) -> Iterator[Finding]:
    """The problems of messages and of their index entries; `visit` gets the sound messages."""
    look = _Look()
    with engine.read() as tx:
        total = int(tx.value("SELECT count(*) FROM messages"))
        look.within(tx.connection, engine.fulltext.mark(tx))
        try:
            owners = [row[0] for row in tx.rows("SELECT DISTINCT session_id FROM messages ORDER BY session_id")]
        except UnicodeDecodeError:
            yield from look.each("TRUE", ())
            owners = []
    for start in range(0, len(owners), _AT_ONCE):
        with engine.read() as tx:
            look.within(tx.connection, engine.fulltext.mark(tx))
            some = owners[start : start + _AT_ONCE]
            take = visit(tx, [owner for owner in some if isinstance(owner, str)]) if visit is not None else None
            for owner in some:
                columns = yield from look.session(owner)
                if take is not None and columns is not None:
                    take(owner, columns)
        if progress is not None:
            progress("messages", look.read, max(look.read, total))
    if look.unknown:
        with engine.read() as tx:
            yield from inspection.compare_index(tx.connection, sorted(look.unknown), progress)


class _Look:
    """Checks messages, each time within one snapshot of the database.

    Most columns are empty in most stores: they are read only once one of them is found not empty.
    """

    _connection: apsw.Connection
    _table: value_check.CheckedTable
    _mark: int

    def __init__(self) -> None:
        self._used: tuple[str, ...] = _ALWAYS
        self._sql = self._crc = ""
        self.unknown: list[int] = []  # messages without a checksum of their index entry
        self.read = 0

    def within(self, connection: apsw.Connection, mark: int) -> None:
        """Use this connection; messages up to the mark are indexed."""
        self._connection, self._mark = connection, mark
        if not self._sql:
            table = value_check.table(connection, "messages")
            assert table is not None
            self._table = table
            has_crc = connection.execute("SELECT 1 FROM main.sqlite_master WHERE name = 'indexed_texts'").fetchone()
            self._crc = "(SELECT crc FROM indexed_texts i WHERE i.id = m.id)" if has_crc else "NULL"
            self._use(())

    def _use(self, names: Iterable[str]) -> None:
        """Read these columns as well from now on."""
        self._used = (*self._used, *names)
        self._kinds = [(place, _TYPES.get(self._table.kinds[name])) for place, name in enumerate(self._used)]
        self._searched = [self._used.index(name) for name in SEARCHED]
        self._empty = [name for name in self._table.kinds if name not in (*self._used, "session_id")]
        columns = ", ".join(f"m.{name}" for name in self._used)
        more = " OR ".join(f"m.{name} IS NOT NULL" for name in self._empty) or "0"
        self._sql = f"SELECT {columns}, {self._crc}, {more} FROM messages m WHERE m.session_id = ?"

    def session(self, owner: Any) -> Generator[Finding, None, MessageColumns | None]:
        """The messages of a session by column (the empty ones left out), if all can be read as the program reads them."""
        try:
            by_column = self._columns(owner)
            if not by_column:
                return None  # it was just deleted
            columns: MessageColumns = dict(zip(self._used, by_column, strict=False))
            whole = [by_column[place] for place in self._searched]
            right = isinstance(owner, str) and all(
                kind is None or _are(kind, by_column[place]) for place, kind in self._kinds
            )
            if right:
                columns["content"] = _texts(columns)
        except (UnicodeDecodeError, StoreCorrupt):
            right = False
        if not right:
            yield from self.each("m.session_id = ?", (owner,))
            return None
        self.read += len(columns["id"])
        for message_id, crc, made in zip(columns["id"], by_column[-2], _crcs(*whole), strict=True):
            if crc != made and message_id <= self._mark:
                if crc is None:
                    self.unknown.append(message_id)
                else:
                    yield finding("fts-stale", f"message {message_id}", _STALE)
        return columns

    def _columns(self, owner: Any) -> list[Sequence[Any]]:
        """A session's messages in the order of their ids, by column: those in use, the index's checksum, and a mark."""
        rows = self._connection.execute(self._sql, (owner,)).fetchall()
        rows.sort(key=itemgetter(0))
        by_column: list[Sequence[Any]] = list(zip(*rows, strict=True))
        if not rows or not any(by_column[-1]):
            return by_column
        names = ", ".join(f"max(m.{name} IS NOT NULL)" for name in self._empty)
        found = self._connection.execute(f"SELECT {names} FROM messages m WHERE m.session_id = ?", (owner,)).fetchone()
        self._use([name for name, some in zip(self._empty, found or (), strict=True) if some])
        return self._columns(owner)

    def each(self, where: str, params: tuple[Any, ...]) -> Iterator[Finding]:
        """What is wrong with each of these messages, one by one."""
        searched = ", ".join(f"m.{name}" for name in IndexedRow._fields)
        others = ", ".join(f"m.{name}" for name in self._table.texts if name != "content")
        sql = f"SELECT {searched}, {self._crc}, {others} FROM messages m WHERE m.id = ?"
        for (message_id,) in self._connection.execute(
            f"SELECT m.id FROM messages m WHERE {where} ORDER BY m.id", params
        ):
            self.read += 1
            this = f"id = {message_id}"
            for damage in value_check.of_wrong_type(self._connection, self._table, this):
                yield finding("damaged-row", damage.name, f"{damage.column} {damage.detail}")
            try:
                row = self._connection.execute(sql, (message_id,)).fetchone()
            except UnicodeDecodeError:
                for damage in value_check.unreadable(self._connection, self._table, this):
                    yield finding("damaged-row", damage.name, f"{damage.column} {damage.detail}")
                continue
            assert row is not None  # it is in the same snapshot
            searched_columns = len(IndexedRow._fields)
            columns, (crc, *texts) = IndexedRow._make(row[:searched_columns]), row[searched_columns:]
            yield from _broken(columns, texts)
            if message_id <= self._mark and crc is None:
                self.unknown.append(message_id)
            elif message_id <= self._mark and crc != text_crc(columns):
                yield finding("fts-stale", f"message {message_id}", _STALE)


def _are(types: frozenset[type], column: Sequence[Any]) -> bool:
    """Whether each value of a column is of one of these types; most columns are empty, which is checked first."""
    if column[0] is None and column.count(None) == len(column):
        return True
    return types.issuperset(map(type, column))


def _texts(columns: MessageColumns) -> Sequence[Any]:
    """The whole texts of messages. StoreCorrupt: one can't be unpacked, or does not match the format in its row."""
    texts, forms = columns["content"], columns["content_format"]
    if columns["content_rest"].count(None) != len(texts):
        texts = [
            head if rest is None else codec.joined(head, rest) for head, rest in zip(texts, columns["content_rest"])
        ]
    if forms.count(None) != len(forms):
        if not set(forms).issubset(_FORMS):
            raise StoreCorrupt("a message has content of an unknown format")
        if not all(_is_parts(text) for text, form in zip(texts, forms, strict=True) if form == "json"):
            raise StoreCorrupt("the parts of a message are damaged: no valid JSON")
    return texts


def _is_parts(text: Any) -> bool:
    return not isinstance(codec.from_json(text), (str, int, float, type(None)))


def _crcs(
    texts: Iterable[Any], rests: Iterable[Any], forms: Iterable[Any], names: Iterable[Any], calls: Iterable[Any]
) -> list[int]:
    """`text_crc` of many rows whose values are of the right types: the pieces are joined before."""
    crc32, out = zlib.crc32, []
    for text, rest, form, name, call in zip(texts, rests, forms, names, calls, strict=True):
        if form is name is call is rest is None and text is not None:  # most messages
            out.append(crc32(f"\0{text}\1\1\1\1".encode()))
            continue
        end = _marked(form) + _marked(name) + _marked(call)
        start = _marked(text)
        if rest is None:
            out.append(crc32(f"{start}\1{end}".encode()))
        else:
            out.append(crc32(end.encode(), crc32(rest, crc32(f"{start}\0".encode()))))
    return out


def _marked(value: str | None) -> str:
    return "\1" if value is None else f"\0{value}"


def _broken(row: IndexedRow, texts: Sequence[Any]) -> Iterator[Finding]:
    """Which of a message's searched columns and other texts can't be read."""
    where, rest, form = f"message {row.id}", row.content_rest, row.content_format
    try:
        content = codec.joined(row.content, rest)
    except StoreCorrupt:
        what = "the rest of its text can't be unpacked" if rest is not None else "its text can't be read"
        yield finding("damaged-text", where, what)
        return
    if form not in _FORMS:
        yield finding("damaged-text", where, f"its content has an unknown format ({form!r})")
    elif form == "json" and not _is_parts(content):
        yield finding("damaged-text", where, "its content is damaged: no valid JSON")
    for text in texts:
        if type(text) is bytes:
            try:
                codec.restored(text)
            except StoreCorrupt:
                yield finding("damaged-row", where, "a text of it is damaged: no valid UTF-8")
