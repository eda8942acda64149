"""Makes the vectors of messages: a thread in each process that stores messages, or a command that waits for it.

The thread begins a moment after the last message and works in small batches: each is read, encoded without any lock,
and written in one short transaction, so an append never waits for a model. One process at a time works (a lease). It goes on
from the newest row; from time to time the counts are compared, and where rows are missing (an import, an edit, a new model)
all messages are looked through. A process that ends in between loses at most one batch of work.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from hermes.errors import StoreError
from hermes.install_line import install_line
from hermes.store.coordination import leases
from hermes.store.engines.base import Engine

if TYPE_CHECKING:
    from hermes.store.search.meaning.encoders import Encoder

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
        """A message was stored: its vector is made soon, if this is switched on."""
        if not self._on:
            self._appends += 1
            if self._appends % OFF_CHECKS != 1:
                return
            from hermes.store.search.meaning import vectors  # most stores have none: not at every start

            with self._engine.read() as tx:
                self._on = vectors.are_kept(tx)
            if not self._on:
                return
        self.start()
        self._wanted.set()

    def switched_on(self) -> None:
        """This process itself has created the table."""
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
        from hermes.store.search.meaning import encoders

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
        from hermes.store.search.meaning import vectors

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
                left = vectors.missing(tx, encoder.name) if whole else 0
            done = 0
            for after in (max(0, int(newest or 0) - OVERLAP), 0):
                done = self._pass(
                    encoder, after, token, done, lambda new: progress(new, max(new, left)) if progress else None
                )
                with self._engine.read() as tx:
                    if not thorough or self._stopped.is_set() or not vectors.missing(tx, encoder.name):
                        break
            if thorough:
                self._compare_at[encoder.name] = time.monotonic() + LOOK_THROUGH
                while not self._stopped.is_set():
                    with self._engine.write(durable=False) as tx:
                        if not vectors.forget_older(tx):
                            break
            return done
        finally:
            with self._engine.write(durable=False) as tx:
                leases.release(tx, LEASE, token)

    def _pass(self, encoder: Encoder, after: int, token: int, done: int, told: Callable[[int], None]) -> int:
        """Look through the messages after this id; how many rows were written in all, with those `done` before."""
        from hermes.store.search.meaning import vectors

        with self._engine.read() as tx:
            last = int(tx.value("SELECT max(id) FROM messages") or 0)
        while after < last and not self._stopped.is_set():
            to = after + STEP
            with self._engine.read() as tx:
                some = vectors.waiting(tx, encoder.name, after, to, BATCH)
            if not some:
                after = to
                continue
            try:
                made = vectors.encoded(encoder, some)
            except ImportError as error:
                raise StoreError(
                    f"a library of {encoder.name} can't be loaded ({error});"
                    f" {install_line('meaning', '--force-reinstall')}"
                ) from error
            with self._engine.write(durable=False) as tx:
                if not leases.renew(tx, LEASE, token, LEASE_SECONDS):
                    return done  # this process was suspended: another one goes on
                vectors.store(tx, encoder.name, some, made)
            done += len(some)
            after = some[-1].id
            told(done)
        return done
