"""Opens the configuration and the record of the user for the commands.

A home may belong to the public Hermes Agent, whose state.db (schema 12 and later) is only read. Commands that write open the
record through `open_record`: on a terminal it offers to bring that program's sessions into `<home>/record.db`, a record of our
own, and notes that file in config.yaml as store.path; elsewhere the error says what to run. Nothing else of it is touched.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import click
import msgspec

from hermes.cli.output import note, progress, wrapped
from hermes.config import Config, load_config
from hermes.config.loading import RECORD
from hermes.errors import StoreReadOnly
from hermes.home import default_database, get_hermes_home, has_key_file
from hermes.texts import counted

if TYPE_CHECKING:
    from datetime import tzinfo
    from pathlib import Path

    from hermes.store.api.session_db import SessionDB
    from hermes.store.upkeep.check import AgentStore

_CONFIG = "hermes.config"
EVERY = 1 << 40  # a limit beyond any number of rows


def configuration() -> Config:
    """config.yaml, read once per command. Errors in parts that the record does not need are warnings."""
    context = click.get_current_context(silent=True)
    if context is None:
        return load_config(needs=RECORD)
    if _CONFIG not in context.meta:
        context.meta[_CONFIG] = load_config(needs=RECORD)
    config: Config = context.meta[_CONFIG]
    return config


@contextmanager
def opened(*, writing: bool = False, in_bulk: bool = False, path: Path | None = None) -> Iterator[SessionDB]:
    """The user's store, or the one in the file `path`, closed afterwards.

    `in_bulk` is for work that can simply be repeated: it is synced to the disk at the end, not step by step.
    """
    from hermes.store.api.configured import open_configured

    config = configuration()
    if in_bulk:
        config = config.changed(store=msgspec.structs.replace(config.store, durability="normal"))
    with open_configured(config, read_only=not writing, path=path) as db:
        yield db
    if in_bulk and not db.is_shared:
        # Only now that it is closed: closing a file releases every lock this process has on it.
        for end in ("", "-wal"):
            with suppress(FileNotFoundError), open(f"{db.path}{end}", "rb") as stream:
                os.fsync(stream.fileno())


def is_encrypted() -> bool:
    """Whether the user's store is encrypted, or is being encrypted or decrypted."""
    from hermes.store.api.configured import store_file

    file = store_file(configuration())
    return file is not None and has_key_file(file)


def typed(text: str) -> str:
    """An argument that is text, not a path: read as UTF-8 even if the locale (LC_ALL=C) differs."""
    try:
        escaped = any("\udc80" <= sign <= "\udcff" for sign in text)  # bytes that the locale's encoding could not read
        return os.fsencode(text).decode("utf-8") if escaped else text
    except UnicodeError:
        return text


def zone() -> tzinfo | None:
    """The time zone times are shown in."""
    from hermes.times import zone_of

    return zone_of(configuration().timezone)


def index(db: SessionDB) -> int:
    """Finish the full-text index, so that the next search is fast; returns how many messages were indexed."""
    with progress("indexing", db.index_status()["pending"]) as step:
        return db.catch_up(progress=lambda done, total: step(done))


# ------------------------------------------------------------------------------------------------ a home of Hermes Agent


AGENTS_RECORD = "record.db"


def agents_home(config: Config) -> AgentStore | None:
    """The store of Hermes Agent, if this home has no other one."""
    from hermes.store.api.configured import store_file
    from hermes.store.upkeep.check import agent_store

    return agent_store(default_database()) if store_file(config) == default_database() else None


def open_record(config: Config) -> SessionDB:
    """The user's store, for writing; StoreReadOnly if nothing could be stored."""
    from hermes.store.api.configured import open_configured

    if (theirs := agents_home(config)) is not None:
        settle(config, theirs)
    db = open_configured(config)
    if db.read_only:
        db.close()
        raise StoreReadOnly(f"{db.where} is read-only; `hermes doctor` shows why")
    return db


def settle(config: Config, theirs: AgentStore, *, agreed: bool = False) -> None:
    """Bring the sessions of Hermes Agent into a record of our own, if the user agrees; StoreReadOnly if not."""
    run = f"hermes sessions import {shlex.quote(str(theirs.path))}"
    if not agreed:
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise StoreReadOnly(
                f"this home belongs to {theirs}, whose record is only read here; `{run}` brings it into a record of your own"
            )
        question = f"This home belongs to {theirs}. Bring them into a record of your own beside it?"
        if not click.confirm(wrapped(question), default=True, err=True):
            raise StoreReadOnly(
                f"nothing was changed; reading works (`hermes sessions list`), and `{run}` brings the sessions in later"
            )
    record = get_hermes_home() / AGENTS_RECORD
    sessions, messages = _bring(config, theirs, record)
    from hermes.config.editing import set_value

    set_value("store.path", AGENTS_RECORD)
    config.store.path = AGENTS_RECORD
    came = f"{counted(sessions, 'session')} with {counted(messages, 'message')}"
    note(f"imported {came} into {record}; the files of Hermes Agent are unchanged")


def _bring(config: Config, theirs: AgentStore, record: Path) -> tuple[int, int]:
    """Import the sessions, except those that an interrupted import has stored already."""
    from hermes.interop.arrivals import alone
    from hermes.interop.histories import hermes_agent
    from hermes.store.api.configured import open_configured

    def sessions() -> Iterator[Mapping[str, Any]]:
        with progress("importing", theirs.sessions) as step:
            for number, found in enumerate(hermes_agent.read(theirs.path, None, []), 1):
                yield found.session
                step(number)

    def refused(session: Mapping[str, Any], error: Exception) -> None:
        note(f"session {session['id']} was not imported: {error}")

    with open_configured(config, path=record) as db, alone(theirs.path):
        counts = db.import_sessions(sessions(), update=True, refused=refused)
        index(db)
    return counts["sessions"], counts["messages"]
