"""A store that is open: its engine, its files, and the transactions that every other part uses."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeVar

from hermes.errors import AttachmentNotFound, InvalidInput, StoreUnreachable
from hermes.home import companion, default_database, has_key_file, settled
from hermes.store import leases
from hermes.store.api.arguments import checked_number, checked_text
from hermes.store.engines import file_of, open_engine
from hermes.store.engines.base import Tx
from hermes.store.records import lineage, message_values, sessions
from hermes.store.records.attachments import DIGEST, Attachments, TableAttachments
from hermes.store.search.vectors import VectorIndexer
from hermes.store.transcripts.writer import TranscriptWriter

if TYPE_CHECKING:
    from tempfile import TemporaryDirectory

    from hermes.store.transcripts.drafts import Drafts

MEMORY = ":memory:"  # SQLite's name for it: a store in its own temporary folder, deleted on close
AWAY = 5.0  # seconds: a server that could not be reached for so long has been waited for
END = ("end", "ended_at", "end_reason")  # a line of a transcript: its name, and the columns of the session in it
P = ParamSpec("P")
R = TypeVar("R")
Text = TypeVar("Text", str, str | None)


def read_again(call: Callable[P, R]) -> Callable[P, R]:
    """Repeat a call that only reads, once, if the connection to the server was lost meanwhile."""

    @wraps(call)
    def repeated(*args: P.args, **kwargs: P.kwargs) -> R:
        began = time.monotonic()
        try:
            return call(*args, **kwargs)
        except StoreUnreachable:
            if time.monotonic() - began > AWAY:
                raise
            return call(*args, **kwargs)

    return repeated


class OpenStore:
    """The base class of every part of SessionDB."""

    path: Path
    """The database file (for a store on a server: the path its local folders are next to); also as `db_path`."""
    read_only: bool
    """Whether this store can only be read."""
    where: str
    """The location of the store for display: a path, or a URL without its password."""
    is_shared: bool
    """Whether the store is on a server that other hosts can use as well."""

    def __init__(
        self,
        db_path: Path | str | None = None,
        *,
        url: str | None = None,
        read_only: bool = False,
        durability: str = "full",
        redact_secrets: bool = True,
        transcripts: str = "all",
        timeout: float = 30.0,
        patience: float = 15.0,
    ) -> None:
        for name, choice, allowed in (
            ("durability", durability, ("full", "normal")),
            ("transcripts", transcripts, ("all", "gateway", "off")),
        ):
            if choice not in allowed:
                raise InvalidInput(f"{name} is {', '.join(map(repr, allowed[:-1]))} or {allowed[-1]!r}, not {choice!r}")
        for name, seconds in (("timeout", timeout), ("patience", patience)):
            if not (isinstance(seconds, int | float) and seconds > 0):
                raise InvalidInput(f"{name} is a number of seconds, not {seconds!r}")
        file = None if url is None else file_of(url)
        if file is not None:
            if db_path is not None:
                raise InvalidInput("give db_path or a sqlite:///… URL, not both")
            db_path, url = file, None
        self._temporary: TemporaryDirectory[str] | None = None
        if str(db_path) == MEMORY:
            if read_only:
                raise InvalidInput(f"{MEMORY} is always new and empty; it cannot be opened read-only")
            from tempfile import TemporaryDirectory

            self._temporary = TemporaryDirectory(prefix="hermes-memory-")
            db_path, durability, transcripts = Path(self._temporary.name, "state.db"), "normal", "off"
        self.path = self.db_path = settled(db_path if db_path is not None else default_database())
        self.sessions_dir = companion(self.path, "sessions")
        self.attachments_dir = companion(self.path, "attachments")
        self._mask = self._redact if redact_secrets else None
        self._fences = threading.local()  # the leases this thread's writes depend on
        self._process = os.getpid()
        self._maskings = threading.local()  # how many of this thread's texts held a secret
        self._patience = patience
        self._which_transcripts = transcripts
        self._connect = partial(
            open_engine, self.path, url, read_only=read_only, durability=durability, timeout=timeout, patience=patience
        )
        self._open()

    def _open(self) -> None:
        self._engine = self._connect()
        self.read_only, self.where, self.is_shared = self._engine.read_only, self._engine.where, self._engine.shared
        self.is_encrypted = not self._engine.shared and has_key_file(self.path) and self._keeps_everything_inside()
        if self._engine.shared or self.is_encrypted:
            self._attachments: Attachments = TableAttachments(self._engine, self.attachments_dir)
        else:
            self._attachments = Attachments(self.attachments_dir)
        mode = "off" if self._engine.read_only or self.is_encrypted else self._which_transcripts
        self._transcripts = TranscriptWriter(self._engine, self.sessions_dir, mode, self._attachments)
        self._meaning = VectorIndexer(self._engine)
        self._transcripts.complete_marked()
        self._engine.start_background()

    def _keeps_everything_inside(self) -> bool:
        """Whether the file is encrypted; then it has tables for what lies in files beside a plain one."""
        from hermes.store.engines.sqlite import connection as driver
        from hermes.store.engines.sqlite import schema

        if not driver.is_encrypted(self.path):
            return False  # it is being encrypted, or a killed process left the key file
        if not self._engine.read_only and not self._read(lambda tx: tx.has_table("drafts")):
            self._engine.make_tables(schema.INSIDE)
        return True

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.where}{' (read-only)' if self.read_only else ''}>"

    def __contains__(self, session_id: object) -> bool:
        """Whether there is a session with this id."""
        return self._read(lambda tx: isinstance(session_id, str) and sessions.is_shown(tx, session_id, None))

    @property
    def drafts(self) -> Drafts:
        """The received parts of replies that are still being streamed."""
        from hermes.store.transcripts.drafts import Drafts

        return Drafts(self._engine, self.path, inside=self.is_encrypted)

    def read_attachment(self, digest: str) -> bytes:
        """The bytes of an attachment by their SHA-256; AttachmentNotFound when they are not here."""
        self._require_hash(digest)
        try:
            return self._attachments.read(digest)
        except FileNotFoundError:
            raise AttachmentNotFound(digest) from None

    def attachment_file(self, digest: str) -> Path | None:
        """The path of a file with an attachment's bytes, for programs that take one. None: an encrypted store has no files."""
        self._require_hash(digest)
        return self._attachments.file(digest)

    def _require_hash(self, digest: str) -> None:
        """AttachmentNotFound for what is no hash: it names a file."""
        self._require_open()
        text = checked_text(digest, "the hash of an attachment") or ""
        if not DIGEST.fullmatch(text):
            raise AttachmentNotFound(text)

    def _require_open(self) -> None:
        with self._engine.read():
            pass  # StoreClosed, if it is

    def size(self) -> int:
        """How many bytes the store takes, without its transcript and attachment files."""
        return self._engine.size()

    def close(self) -> None:
        """Close the store. May be called twice; any other call afterwards raises StoreClosed."""
        if self._process == os.getpid():
            self._meaning.stop()
            self._transcripts.settle()
        self._engine.close()
        if self._temporary is not None and self._process == os.getpid():  # a fork leaves the parent's files alone
            self._temporary.cleanup()

    @read_again
    def sql(self, query: str, params: Sequence[str | bytes | float | bool | None] = ()) -> list[dict[str, Any]]:
        """Rows of a SELECT over the tables of docs/format.md, each a dict keyed by column name; `?` stands for a parameter.

        It only reads: a statement that would change something is InvalidInput. No other library needs to open the file.
        """
        if not isinstance(query, str) or not query.strip():
            raise InvalidInput("sql() takes a SELECT as text")
        return self._engine.query(query, params)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ------------------------------------------------------------------------------------------ transactions

    @read_again
    def _read(self, ask: Callable[Concatenate[Tx, P], R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call a function that only reads with a transaction, and with it again if the connection was lost meanwhile."""
        with self._engine.read() as tx:
            return ask(tx, *args, **kwargs)

    def _look_up(self, ask: Callable[Concatenate[Tx, P], R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call a function that lists sessions or looks for a title, after rows of other programs were adopted."""
        self._engine.adopt_foreign_rows()
        return self._read(ask, *args, **kwargs)

    @contextmanager
    def _writing(
        self, *session_ids: str, exclusive: bool = True, storing: bool = False, durable: bool = True
    ) -> Iterator[Tx]:
        """A write transaction that commits only while this thread's fences hold. The transcripts of these sessions follow."""
        fences: tuple[tuple[str, int], ...] = getattr(self._fences, "held", ())
        storing = storing and not fences
        with self._engine.write(lock=session_ids, exclusive=exclusive, storing=storing, durable=durable) as tx:
            if fences:
                for session_id in sorted(set(session_ids)):  # before the leases: see leases.py
                    tx.hold(session_id)
                leases.check(tx, fences)
            yield tx
            if session_ids:
                self._transcripts.mark(tx, session_ids)

    def _write(self, change: Callable[Concatenate[Tx, P], R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call a function that writes single rows beside sessions, each statement of it correct in any interleaving."""
        with self._writing(exclusive=False) as tx:
            return change(tx, *args, **kwargs)

    def _change(self, what: Sequence[str], change: Callable[[Tx], R], *session_ids: str, exclusive: bool = True) -> R:
        """Change sessions; a line in the transcript of each follows: `what` has its name and the columns of the session.

        `change` returns a list of those that it changed; another result that is true stands for all of them.
        """
        with self._writing(*session_ids, exclusive=exclusive) as tx:
            done = change(tx)
            if isinstance(done, list):
                self._transcripts.mark(tx, done)
        for session_id in done if isinstance(done, list) else session_ids if done else ():
            self._transcripts.changed(session_id, *what)
        return done

    def _change_parts(
        self, session_id: str, what: Sequence[str], change: Callable[[Tx, str], bool], *, whole: bool = True
    ) -> bool:
        """Change every part of a compressed conversation (or not the `whole`: one session); whether one changed."""
        known = self.get_compression_chain(session_id) if whole else [session_id]

        def each(tx: Tx) -> list[str]:
            return [part for part in (lineage.parts(tx, session_id) if whole else known) if change(tx, part)]

        return bool(self._change(what, each, *known))

    @contextmanager
    def fenced(self, name: str, token: int) -> Iterator[None]:
        """In this block, this thread's writes commit only while `token` still holds the lease; else they raise Fenced.

        The writing transaction checks it, so a process that was suspended, and whose lease another process took
        meanwhile, can't write stale data. Blocks may be nested: all their leases must hold. Fences cover all writes
        to sessions and messages and what is noted beside them; not leases themselves and deletions.
        """
        fence = checked_text(name, "name") or "", checked_number(token, "token", "INTEGER")
        before = getattr(self._fences, "held", ())
        self._fences.held = (*before, fence)
        try:
            yield
        finally:
            self._fences.held = before

    @property
    def secrets_masked(self) -> int:
        """How many texts with a secret this thread has passed to the store so far; each was stored masked."""
        return getattr(self._maskings, "count", 0)

    def masked(self, text: str) -> str:
        """The text as this store would store it: with `[masked:<kind>]` for each secret, unless `redact_secrets=False`.

        For files written outside the store, so that none of them holds a secret that the store masks.
        """
        return self._masked(text)

    def _masked(self, text: Text) -> Text:
        if text is not None and not isinstance(text, str):
            raise TypeError(f"text expected, not {type(text).__name__}")  # `guarded` names the argument
        return self._mask(text) if self._mask is not None and text else text

    def _redact(self, text: str) -> str:
        from hermes.store.redact import redact

        masked = redact(text)
        if masked is not text:
            self._maskings.count = self.secrets_masked + 1
        return masked

    def _encoded(self, message: Mapping[str, Any]) -> message_values.EncodedMessage:
        return message_values.encode_message(message, mask=self._mask, lift=self._attachments.lift)

    def get_compression_chain(self, session_id: str) -> list[str]:
        """The sessions of one compressed conversation, the oldest first; only the id itself when it
        was never compressed. For a session in the trash: those in the trash."""
        return self._read(lineage.parts, session_id)

    def get_subagents(self, session_id: str) -> list[str]:
        """The sessions of sub-agents that worked for this session, the oldest first; none that are in the trash."""
        return self._read(lineage.subagents, session_id)
