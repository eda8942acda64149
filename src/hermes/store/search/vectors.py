"""Makes and stores the vectors of messages, in a table that is created when search by meaning is switched on.

A row for each message and model; a message without meaning to find (a tool's output, a redacted one) has a row without
a vector, so the vectors are complete exactly when there are as many rows as messages. Triggers, which run in any program
that writes to the store, remove the row of a message that is deleted, changed or redacted, in the same transaction.
Components are int8, scaled to the largest one: only the direction counts.

A thread in each process that stores messages makes them, or a command that waits for it. The thread begins a moment after
the last message and works in small batches: each is read, encoded without any lock, and written in one short transaction,
so an append never waits for a model. One process at a time works (a lease). It goes on from the newest row; from time to
time the counts are compared, and where rows are missing (an import, an edit, a new model) all messages are looked through.
A process that ends in between loses at most one batch of work.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from hermes.errors import StoreCorrupt, StoreError, install_line
from hermes.store import leases
from hermes.store.engines.base import REDACTED, REPLACED, Engine, Tx, get_meta, note_meta, rows_among
from hermes.store.records import codec
from hermes.store.search.encoders import CHARACTERS, Encoder
from hermes.store.text.index_text import plain, plain_parts

if TYPE_CHECKING:
    import numpy as np

META = "meaning"  # the key of state_meta that records that the table exists
MEANT = ("user", "assistant")  # roles whose messages have vectors
TABLES = (
    "CREATE TABLE IF NOT EXISTS message_vectors (message_id INTEGER NOT NULL, model TEXT NOT NULL, size INTEGER NOT NULL,"
    " vector BLOB, PRIMARY KEY (message_id, model))",  # with row ids: else a vector beside its key needs a page of its own
)
_WATCHED = ("id", "content", "content_rest", "content_format", "role")
_SHOWN_CHANGED = "(coalesce(old.hidden, 0) IN (-3, -4)) <> (coalesce(new.hidden, 0) IN (-3, -4))"  # redacted, replaced
_CHANGED = " OR ".join([*(f"old.{column} IS DISTINCT FROM new.{column}" for column in _WATCHED), _SHOWN_CHANGED])
_FORGET = "DELETE FROM message_vectors WHERE message_id = old.id"
TRIGGERS: dict[str, tuple[str, ...]] = {
    "sqlite": (
        f"CREATE TRIGGER IF NOT EXISTS vectors_changed AFTER UPDATE OF {', '.join(_WATCHED)}, hidden ON messages"
        f" WHEN {_CHANGED.replace('IS DISTINCT FROM', 'IS NOT')} BEGIN {_FORGET}; END",
        f"CREATE TRIGGER IF NOT EXISTS vectors_removed AFTER DELETE ON messages BEGIN {_FORGET}; END",
    ),
    # By the table's own schema: a restored dump has an empty search_path.
    "postgres": (
        "CREATE OR REPLACE FUNCTION hermes_forget_vectors() RETURNS trigger LANGUAGE plpgsql AS $trigger$ BEGIN"
        " EXECUTE format('DELETE FROM %I.message_vectors WHERE message_id = $1', TG_TABLE_SCHEMA) USING OLD.id;"
        " RETURN NULL; END $trigger$",
        f"CREATE OR REPLACE TRIGGER vectors_changed AFTER UPDATE OF {', '.join(_WATCHED)}, hidden ON messages"
        f" FOR EACH ROW WHEN ({_CHANGED}) EXECUTE FUNCTION hermes_forget_vectors()",
        "CREATE OR REPLACE TRIGGER vectors_removed AFTER DELETE ON messages FOR EACH ROW"
        " EXECUTE FUNCTION hermes_forget_vectors()",
    ),
}
_COLUMNS = (
    "m.id, m.role, m.hidden, m.content, CASE WHEN m.content_format = 'json' THEN m.content_rest END, m.content_format"
)
_PUT = (
    "INSERT INTO message_vectors(message_id, model, size, vector) VALUES(?, ?, ?, ?)"
    " ON CONFLICT(message_id, model) DO UPDATE SET size = excluded.size, vector = excluded.vector"
)


class MessageWithoutVector(msgspec.Struct, frozen=True):
    """A message that has no row of a model yet, in the order of `_COLUMNS`."""

    id: int
    role: Any
    hidden: int | None
    content: Any
    rest: bytes | None
    form: str | None

    def text(self) -> str:
        """The beginning of the message; empty when it has no meaning to find."""
        if self.role not in MEANT or self.hidden in (REDACTED, REPLACED):
            return ""
        try:
            value = codec.content_value(codec.joined(self.content, self.rest), self.form)
        except StoreCorrupt:
            return ""
        text = plain(value) if isinstance(value, str) else plain_parts(value)
        return text[: 2 * CHARACTERS].strip()


def is_switched_on(tx: Tx) -> bool:
    """Whether search by meaning was switched on for this store. (The key may remain where the table was dropped with SQL.)"""
    return get_meta(tx, META) is not None and tx.has_table("message_vectors")


def prepare(engine: Engine) -> None:
    """Switch it on: create the table and its triggers, if they do not exist. Not inside a transaction."""
    with engine.read() as tx:
        if is_switched_on(tx):
            return
    engine.make_tables((*TABLES, *TRIGGERS[engine.name]))
    with engine.write() as tx:
        note_meta(tx, META)


def counts(tx: Tx) -> dict[str, tuple[int, int]]:
    """How many rows, and how many of them with a vector, there are of each model."""
    rows = tx.rows("SELECT model, count(*), count(vector) FROM message_vectors GROUP BY model")
    return {str(model): (int(all_rows), int(filled)) for model, all_rows, filled in rows}


def missing(tx: Tx, model: str) -> int:
    """How many messages have no row of this model."""
    have = tx.value("SELECT count(*) FROM message_vectors WHERE model = ?", (model,))
    return max(0, int(tx.value("SELECT count(*) FROM messages")) - int(have))


def waiting(tx: Tx, model: str, after: int, to: int, most: int) -> list[MessageWithoutVector]:
    """The next messages without a row of this model, among the ids after one and up to another."""
    rows = tx.rows(
        f"SELECT {_COLUMNS} FROM messages m WHERE m.id > ? AND m.id <= ? AND NOT EXISTS (SELECT 1 FROM message_vectors v"
        " WHERE v.message_id = m.id AND v.model = ?) ORDER BY m.id LIMIT ?",
        (after, to, model, most),
    )
    return [MessageWithoutVector(*row) for row in rows]


def encoded(encoder: Encoder, some: Sequence[MessageWithoutVector]) -> list[tuple[int, bytes | None]]:
    """Size and vector of each of these messages."""
    texts = [one.text() for one in some]
    meant = [number for number, text in enumerate(texts) if text and encoder.suits(text)]
    out: list[tuple[int, bytes | None]] = [(0, None)] * len(some)
    if meant:
        found, sizes = encoder.passages([texts[number] for number in meant])
        for number, vector, size in zip(meant, as_int8(found), sizes, strict=True):
            out[number] = (size, vector)
    return out


def store(tx: Tx, model: str, some: Sequence[MessageWithoutVector], made: Sequence[tuple[int, bytes | None]]) -> None:
    """Store them, without those whose message was changed or deleted while they were made."""
    found = rows_among(tx, f"SELECT {_COLUMNS} FROM messages m WHERE {{these}}", [one.id for one in some], "m.id")
    now = {row[0]: MessageWithoutVector(*row).text() for row in found}
    rows = [
        (one.id, model, size, None if vector is None else codec.Blob(vector))
        for one, (size, vector) in zip(some, made, strict=True)
        if now.get(one.id) == one.text()
    ]
    if rows:
        tx.run_many(_PUT, rows)


def as_int8(found: np.ndarray[Any, Any]) -> list[bytes]:
    """Vectors as they are stored."""
    import numpy as np

    largest = np.abs(found).max(axis=1, keepdims=True)
    scaled = np.rint(found * (127.0 / np.maximum(largest, 1e-9))).astype(np.int8)
    return [row.tobytes() for row in scaled]


def as_floats(blobs: Iterable[bytes]) -> np.ndarray[Any, Any]:
    """Stored vectors, one a row, of length 1."""
    import numpy as np

    rows = list(blobs)
    found = np.frombuffer(b"".join(rows), dtype=np.int8).reshape(len(rows), -1).astype(np.float32)
    unit: np.ndarray[Any, Any] = found / np.maximum(np.sqrt(np.einsum("ij,ij->i", found, found)), 1e-9)[:, None]
    return unit


BATCH = 16  # messages; more are not encoded any faster
STEP = 20_000  # ids that are looked through at once
OVERLAP = 2_000  # ids below the newest row that are looked at again: transactions may end out of order
QUIET = 0.5  # seconds after the last message
LOOK_THROUGH = 600.0  # seconds between two comparisons of the counts
LEASE, LEASE_SECONDS = "job:meaning", 60.0
OFF_CHECKS = 64  # appends between two looks whether it was switched on


class VectorIndexer:
    """The vectors of one open store."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._wanted = threading.Event()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._appends = 0
        self._on = False
        # Of each model: when its counts are compared with those of messages next.
        self._compare_at: dict[str, float] = {}

    def appended(self) -> None:
        """Have the vector of a stored message made soon, if this is switched on."""
        if not self._on:
            self._appends += 1
            if self._appends % OFF_CHECKS != 1:
                return
            with self._engine.read() as tx:
                self._on = is_switched_on(tx)
            if not self._on:
                return
        self.start()
        self._wanted.set()

    def switched_on(self) -> None:
        """Record that this process has created the table."""
        self._on = True

    def start(self) -> None:
        """Start the thread, if a model is installed. Nothing is loaded before it has something to do."""
        if self._thread is None and not self._engine.read_only:
            self._thread = threading.Thread(target=self._work, daemon=True, name="hermes-meaning")
            self._thread.start()

    def stop(self) -> None:
        """End the thread; a batch that was begun is finished."""
        self._stopped.set()
        self._wanted.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _work(self) -> None:
        from hermes.store.search import encoders

        found = encoders.installed()
        if not found:
            return
        try:
            while not self._stopped.is_set():
                self._wanted.wait(LOOK_THROUGH)
                self._wanted.clear()
                if self._stopped.wait(QUIET):
                    return
                for encoder in found:
                    self.make(encoder, whole=False)
        except StoreError:
            pass  # closed, unreachable, or a model that can't be loaded: `hermes doctor` reports what is missing

    def make(self, encoder: Encoder, *, whole: bool = True, progress: Callable[[int, int], None] | None = None) -> int:
        """Make the vectors that are missing; how many rows were written. `whole`: all of them, in place of any other process
        (which may have been killed); else 0 while another one does it."""
        holder = f"{os.uname().nodename}:{os.getpid()}:{id(self)}"
        with self._engine.write(durable=False) as tx:
            if whole:
                leases.release(tx, LEASE)
            token = leases.acquire(tx, LEASE, holder, LEASE_SECONDS)
        if token is None:
            return 0
        try:
            thorough = whole or time.monotonic() >= self._compare_at.get(encoder.name, 0.0)
            with self._engine.read() as tx:
                newest = tx.value("SELECT max(message_id) FROM message_vectors WHERE model = ?", (encoder.name,))
                left = missing(tx, encoder.name) if whole else 0
            done = 0
            for after in (max(0, int(newest or 0) - OVERLAP), 0):
                done = self._pass(
                    encoder, after, token, done, lambda new: progress(new, max(new, left)) if progress else None
                )
                with self._engine.read() as tx:
                    if not thorough or self._stopped.is_set() or not missing(tx, encoder.name):
                        break
            if thorough:
                self._compare_at[encoder.name] = time.monotonic() + LOOK_THROUGH
            return done
        finally:
            with self._engine.write(durable=False) as tx:
                leases.release(tx, LEASE, token)

    def _pass(self, encoder: Encoder, after: int, token: int, done: int, progress: Callable[[int], None]) -> int:
        """Look through the messages after this id; how many rows were written in all, with those `done` before."""
        with self._engine.read() as tx:
            last = int(tx.value("SELECT max(id) FROM messages") or 0)
        while after < last and not self._stopped.is_set():
            to = after + STEP
            with self._engine.read() as tx:
                some = waiting(tx, encoder.name, after, to, BATCH)
            if not some:
                after = to
                continue
            try:
                made = encoded(encoder, some)
            except ImportError as error:
                raise StoreError(
                    f"a library of {encoder.name} can't be loaded ({error});"
                    f" {install_line('meaning', '--force-reinstall')}"
                ) from error
            with self._engine.write(durable=False) as tx:
                if not leases.renew(tx, LEASE, token, LEASE_SECONDS):
                    return done  # this process was suspended: another one goes on
                store(tx, encoder.name, some, made)
            done += len(some)
            after = some[-1].id
            progress(done)
        return done
