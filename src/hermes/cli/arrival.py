"""A home that belongs to the public Hermes Agent: imports its sessions into a record of our own beside it.

That program's state.db (schema 12 and later) is only read. Commands that write open the record through `open_record`: on
a terminal it offers to bring the sessions into `<home>/record.db` and notes that file in config.yaml as store.path;
elsewhere the error says what to run. Nothing else of the other program is touched.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hermes.cli.options import wrapped
from hermes.cli.output import note, progress
from hermes.cli.record import index
from hermes.config import Config
from hermes.errors import StoreReadOnly
from hermes.home import default_database, get_hermes_home
from hermes.texts import counted

if TYPE_CHECKING:
    from hermes.store.api.session_db import SessionDB
    from hermes.store.upkeep.check import AgentStore

RECORD = "record.db"
Takes = Callable[[Mapping[str, Any]], bool]


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


def settle(config: Config, theirs: AgentStore, *, agreed: bool = False, takes: Takes | None = None) -> None:
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
    record = get_hermes_home() / RECORD
    sessions, messages = _bring(config, theirs, record, takes)
    from hermes.config.editing import set_value

    set_value("store.path", RECORD)
    config.store.path = RECORD
    came = f"{counted(sessions, 'session')} with {counted(messages, 'message')}"
    note(f"imported {came} into {record}; the files of Hermes Agent are unchanged")


def _bring(config: Config, theirs: AgentStore, record: Path, takes: Takes | None) -> tuple[int, int]:
    """Import the sessions that `takes` selects (None: all), except those that an interrupted import has stored already."""
    from hermes.interop.arrivals import alone
    from hermes.interop.histories import hermes_agent
    from hermes.store.api.configured import open_configured

    def sessions() -> Iterator[Mapping[str, Any]]:
        with progress("importing", theirs.sessions) as step:
            for number, found in enumerate(hermes_agent.read(theirs.path, None, []), 1):
                if takes is None or takes(found.session):
                    yield found.session
                step(number)

    def refused(session: Mapping[str, Any], error: Exception) -> None:
        note(f"session {session['id']} was not imported: {error}")

    with open_configured(config, path=record) as db, alone(theirs.path):
        counts = db.import_sessions(sessions(), update=True, refused=refused)
        index(db)
    return counts["sessions"], counts["messages"]
